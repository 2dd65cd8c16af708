//! Clients that wait for jobs and report when they got one.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::calls::{Caller, Queue};

/// The maximum `wait_ms` of a reserve.
const WAIT_MS: u64 = 60_000;
/// The timeout from a push to its delivery to a waiting client.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Waiting clients; dropping this aborts them.
pub struct Waiting {
    clients: JoinSet<anyhow::Result<()>>,
    delivered: mpsc::UnboundedReceiver<Instant>,
}

impl Waiting {
    /// Makes each caller wait for one job at a time of its queue and commit it.
    pub fn start(callers: impl IntoIterator<Item = (Caller, Queue)>) -> Self {
        let (sender, delivered) = mpsc::unbounded_channel();
        let mut clients = JoinSet::new();
        for (mut caller, queue) in callers {
            let sender = sender.clone();
            clients.spawn(async move {
                loop {
                    // If the wait times out it asks again, as a worker would.
                    if caller.reserve(&queue, 1, WAIT_MS).await? == 0 {
                        continue;
                    }
                    let now = Instant::now();
                    caller.commit().await?;
                    sender.send(now).ok().context("the receiver is gone")?;
                }
            });
        }
        Self { clients, delivered }
    }

    /// Returns when a client got the next job, once that is committed.
    pub async fn next(&mut self) -> anyhow::Result<Instant> {
        tokio::select! {
            delivered = self.delivered.recv() => delivered.context("no client is waiting any more"),
            failure = failure(&mut self.clients) => Err(failure),
            () = tokio::time::sleep(DELIVERY_TIMEOUT) => {
                anyhow::bail!("no client got the job within {DELIVERY_TIMEOUT:?} of its push")
            }
        }
    }

    /// Sleeps, and fails if a client stops waiting.
    pub async fn pass(&mut self, time: Duration) -> anyhow::Result<()> {
        tokio::time::timeout(time, failure(&mut self.clients)).await.map_or(Ok(()), Err)
    }
}

/// Returns why a client stopped waiting; pending as long as none did.
async fn failure(clients: &mut JoinSet<anyhow::Result<()>>) -> anyhow::Error {
    match clients.join_next().await {
        Some(Ok(Err(error))) => error,
        _ => anyhow::anyhow!("a waiting client panicked"),
    }
}
