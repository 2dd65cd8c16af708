//! Runs the clients, all on one thread, and shows their progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinSet;

use super::calls::{Caller, Jobs, Queue};
use super::client::{Client, Server, Traffic};
use super::cpu::Processes;
use super::figures::{Meter, Took};
use super::options::Options;

/// How often the progress bar is drawn; this costs the clients nothing.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// The timeout for a run without any response; no call waits longer than a minute.
const STALL_TIMEOUT: Duration = Duration::from_secs(100);
/// The number of connections that fill a queue.
const FILLERS: usize = 8;
/// A queue with more jobs is not deleted afterwards: that would take too long.
const FEW_JOBS: usize = 20_000;

/// The context of a scenario.
#[derive(Clone)]
pub struct Crew {
    /// The options of the run.
    pub options: Options,
    /// The traffic of the clients so far.
    pub traffic: Arc<Traffic>,
    /// The servers, at least one.
    servers: Vec<Arc<Server>>,
    /// The processes whose CPU time is measured.
    pub processes: Processes,
}

/// The number of jobs still to do, shared by the callers.
#[derive(Debug)]
pub struct Remaining(AtomicUsize);

impl Remaining {
    /// Returns a counter of `jobs`.
    pub fn new(jobs: usize) -> Self {
        Self(AtomicUsize::new(jobs))
    }

    /// Takes up to `most` of them; returns 0 if none remain.
    pub fn take(&self, most: usize) -> usize {
        let take = |left: usize| Some(left.saturating_sub(most));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        before.min(most)
    }
}

impl Crew {
    /// Returns the context of a run.
    pub fn new(options: Options) -> anyhow::Result<Self> {
        let targets = options.targets()?.into_iter();
        let servers = targets.map(|target| Server::new(target).map(Arc::new)).collect::<Result<_, _>>()?;
        let processes = Processes::of(&options);
        Ok(Self { options, traffic: Arc::default(), servers, processes })
    }

    /// Connects `count` callers, spread over the servers.
    pub async fn callers(&self, count: usize) -> anyhow::Result<Vec<Caller>> {
        let mut callers = Vec::with_capacity(count);
        for server in self.servers.iter().cycle().take(count) {
            callers.push(self.connect(Some(server)).await?);
        }
        Ok(callers)
    }

    /// Connects one caller to the first server.
    pub async fn caller(&self) -> anyhow::Result<Caller> {
        self.connect(self.servers.first()).await
    }

    /// Connects one caller to the last server, which is the first one if there is only one.
    pub async fn last_caller(&self) -> anyhow::Result<Caller> {
        self.connect(self.servers.last()).await
    }

    async fn connect(&self, server: Option<&Arc<Server>>) -> anyhow::Result<Caller> {
        let server = server.context("there is no server")?;
        Ok(Caller::new(Client::connect(server, &self.traffic).await?))
    }

    /// Returns how many servers there are.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Runs every caller to its end and returns what that took; shows the progress towards `total` jobs. The first
    /// failure aborts all.
    pub async fn work<F>(
        &self,
        what: &str,
        (meter, total): (&Meter, usize),
        callers: Vec<Caller>,
        run: impl Fn(Caller) -> F,
    ) -> anyhow::Result<Took>
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let mut working: JoinSet<_> = JoinSet::new();
        let (start, before) = (Instant::now(), self.processes.times());
        for caller in callers {
            working.spawn(run(caller));
        }
        let mut watch = Watch::new(what, total, &self.traffic)?;
        let mut draw = tokio::time::interval(DRAW_EVERY);
        loop {
            tokio::select! {
                ended = working.join_next() => match ended {
                    Some(ended) => ended.context("a client panicked")??,
                    None => {
                        let cpu = self.processes.times().since(&before);
                        return Ok(Took { time: start.elapsed(), cpu });
                    }
                },
                _ = draw.tick() => watch.check(meter.jobs())?,
            }
        }
    }

    /// Pushes `count` jobs, spread over these queues, in batches of the maximum size, without measuring.
    pub async fn fill(&self, queues: &[Queue], count: usize) -> anyhow::Result<()> {
        let queues: Arc<[Queue]> = queues.into();
        let jobs = Arc::new(Jobs::in_bulk(self.options.payload_bytes));
        let (left, meter) = (Arc::new(Remaining::new(count)), Meter::new("fill")?);
        let callers = self.callers(FILLERS).await?;
        let next = Arc::new(AtomicUsize::new(0));
        // Each queue gets at most its share.
        let batch = jobs.batch().min(count.div_ceil(queues.len()));
        self.work("fill", (&meter, count), callers, |mut caller| {
            let (queues, jobs, left, next) = (queues.clone(), jobs.clone(), left.clone(), next.clone());
            let meter = meter.clone();
            async move {
                loop {
                    let count = left.take(batch);
                    if count == 0 {
                        return Ok(());
                    }
                    let queue = &queues[next.fetch_add(1, Ordering::Relaxed) % queues.len()];
                    let start = Instant::now();
                    caller.push(queue, &jobs, count).await?;
                    meter.add(start, count);
                }
            }
        })
        .await?;
        Ok(())
    }

    /// Deletes queues that have `jobs` jobs in all, if that is cheap.
    pub async fn discard(&self, queues: &[Queue], jobs: usize) -> anyhow::Result<()> {
        if jobs > FEW_JOBS {
            return Ok(());
        }
        let mut caller = self.caller().await?;
        for queue in queues {
            caller.delete(queue).await?;
        }
        Ok(())
    }
}

/// Shows the progress of a phase on a terminal and fails if there is none for too long.
struct Watch<'a> {
    bar: ProgressBar,
    traffic: &'a Traffic,
    /// The number of responses, and when it last changed.
    seen: (u64, Instant),
}

impl<'a> Watch<'a> {
    fn new(what: &str, total: usize, traffic: &'a Traffic) -> anyhow::Result<Self> {
        // It draws on standard error, only if that is a terminal.
        let bar = ProgressBar::new(total as u64).with_message(what.to_owned());
        let style = "{msg:>16} [{bar:40}] {human_pos}/{human_len} {per_sec} {eta}";
        bar.set_style(ProgressStyle::with_template(style)?.progress_chars("=> "));
        Ok(Self { bar, traffic, seen: (0, Instant::now()) })
    }

    fn check(&mut self, jobs: u64) -> anyhow::Result<()> {
        self.bar.set_position(jobs);
        let responses = self.traffic.responses.load(Ordering::Relaxed);
        if responses != self.seen.0 {
            self.seen = (responses, Instant::now());
        }
        anyhow::ensure!(
            self.seen.1.elapsed() < STALL_TIMEOUT,
            "no response from the server for {STALL_TIMEOUT:?}"
        );
        Ok(())
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_taken_on_once() {
        let left = Remaining::new(250);
        assert_eq!([left.take(100), left.take(100), left.take(100), left.take(100)], [100, 100, 50, 0]);
    }
}
