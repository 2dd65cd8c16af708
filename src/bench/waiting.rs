//! Clients that wait for jobs, and say when they got one.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::calls::{Caller, Queue};

/// The longest that the server lets a reserve wait, in milliseconds.
const WAIT_MS: u64 = 60_000;
/// How long a pushed job may take to reach somebody who waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waiting clients; they end with this.
pub struct Waiting {
    clients: JoinSet<anyhow::Result<()>>,
    answered: mpsc::UnboundedReceiver<Instant>,
}

impl Waiting {
    /// Lets each caller wait for one job at a time of its queue, and commit it.
    pub fn start(callers: impl IntoIterator<Item = (Caller, Queue)>) -> Self {
        let (tell, answered) = mpsc::unbounded_channel();
        let mut clients = JoinSet::new();
        for (mut caller, queue) in callers {
            let tell = tell.clone();
            clients.spawn(async move {
                loop {
                    // Without a job in time it asks again, as a worker would.
                    if caller.reserve(&queue, 1, WAIT_MS).await? == 0 {
                        continue;
                    }
                    let now = Instant::now();
                    caller.commit().await?;
                    tell.send(now).ok().context("nobody listens any more")?;
                }
            });
        }
        Self { clients, answered }
    }

    /// The moment at which somebody got the next job, once that is committed.
    pub async fn next(&mut self) -> anyhow::Result<Instant> {
        tokio::select! {
            answered = self.answered.recv() => answered.context("nobody waits any more"),
            failure = failure(&mut self.clients) => Err(failure),
            () = tokio::time::sleep(PATIENCE) => anyhow::bail!("nobody got a job within {PATIENCE:?} of its push"),
        }
    }

    /// Lets time pass, and fails if a client does not wait any more.
    pub async fn pass(&mut self, time: Duration) -> anyhow::Result<()> {
        tokio::time::timeout(time, failure(&mut self.clients)).await.map_or(Ok(()), Err)
    }
}

/// Why one of the clients stopped waiting; never, as long as all is well.
async fn failure(clients: &mut JoinSet<anyhow::Result<()>>) -> anyhow::Error {
    match clients.join_next().await {
        Some(Ok(Err(error))) => error,
        _ => anyhow::anyhow!("a waiting client broke"),
    }
}
