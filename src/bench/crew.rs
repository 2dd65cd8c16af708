//! The clients of a run at work, all on one thread, and how far they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinSet;

use super::calls::{Caller, Jobs, Queue};
use super::client::{Client, Traffic};
use super::figures::Meter;
use super::options::Options;

/// How often the bar is drawn; clients do nothing for it.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// A run without any answer for this long has failed; no call waits longer than a minute.
const STUCK: Duration = Duration::from_secs(100);
/// How many connections fill a queue.
const FILLERS: usize = 8;
/// A queue with more jobs is left as it is: deleting it would take longer than it is worth.
const FEW_JOBS: usize = 20_000;

/// What every scenario works with.
#[derive(Debug)]
pub struct Crew {
    /// What was asked for.
    pub options: Options,
    /// What the clients have seen so far.
    pub traffic: Arc<Traffic>,
}

/// Jobs that are still to be done, shared by those who do them.
#[derive(Debug)]
pub struct Left(AtomicUsize);

impl Left {
    /// So many.
    pub fn new(jobs: usize) -> Self {
        Self(AtomicUsize::new(jobs))
    }

    /// Takes on up to `most` of them; 0 when there are none left.
    pub fn take(&self, most: usize) -> usize {
        let take = |left: usize| Some(left.saturating_sub(most));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        before.min(most)
    }
}

impl Crew {
    /// Connects so many callers, spread over the servers.
    pub async fn callers(&self, count: usize) -> anyhow::Result<Vec<Caller>> {
        let mut callers = Vec::with_capacity(count);
        for url in self.options.url.iter().cycle().take(count) {
            callers.push(self.caller(url).await?);
        }
        Ok(callers)
    }

    /// Connects one caller to one server.
    pub async fn caller(&self, url: &str) -> anyhow::Result<Caller> {
        Ok(Caller::new(Client::connect(url, &self.traffic).await?))
    }

    /// Lets every caller work until all are done, answers how long that took, and shows how far they are with
    /// `total` jobs. The first failure ends them all.
    pub async fn work<F>(
        &self,
        what: &str,
        (meter, total): (&Meter, usize),
        callers: Vec<Caller>,
        run: impl Fn(Caller) -> F,
    ) -> anyhow::Result<Duration>
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let mut working: JoinSet<_> = JoinSet::new();
        let start = Instant::now();
        for caller in callers {
            working.spawn(run(caller));
        }
        let mut watch = Watch::new(what, total, &self.traffic)?;
        let mut draw = tokio::time::interval(DRAW_EVERY);
        loop {
            tokio::select! {
                ended = working.join_next() => match ended {
                    Some(ended) => ended.context("a client broke")??,
                    None => return Ok(start.elapsed()),
                },
                _ = draw.tick() => watch.look(meter.jobs())?,
            }
        }
    }

    /// Pushes so many jobs, spread over these queues, in the largest batches, and measures nothing.
    pub async fn fill(&self, queues: &[Queue], count: usize) -> anyhow::Result<()> {
        let queues: Arc<[Queue]> = queues.into();
        let jobs = Arc::new(Jobs::in_bulk(self.options.payload_bytes));
        let (left, meter) = (Arc::new(Left::new(count)), Meter::new("fill")?);
        let callers = self.callers(FILLERS).await?;
        let next = Arc::new(AtomicUsize::new(0));
        // No queue gets more than its share.
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

    /// Deletes queues that hold so many jobs together, where that is cheap.
    pub async fn discard(&self, queues: &[Queue], jobs: usize) -> anyhow::Result<()> {
        if jobs > FEW_JOBS {
            return Ok(());
        }
        let mut caller = self.caller(self.options.first_url()).await?;
        for queue in queues {
            caller.delete(queue).await?;
        }
        Ok(())
    }
}

/// Shows on a terminal how far a phase is, and notices when nothing happens any more.
struct Watch<'a> {
    bar: ProgressBar,
    traffic: &'a Traffic,
    /// How many answers there were, and when that number was new.
    seen: (u64, Instant),
}

impl<'a> Watch<'a> {
    fn new(what: &str, total: usize, traffic: &'a Traffic) -> anyhow::Result<Self> {
        // It draws on standard error, and only where that is a terminal.
        let bar = ProgressBar::new(total as u64).with_message(what.to_owned());
        let style = "{msg:>16} [{bar:40}] {human_pos}/{human_len} {per_sec} {eta}";
        bar.set_style(ProgressStyle::with_template(style)?.progress_chars("=> "));
        Ok(Self { bar, traffic, seen: (0, Instant::now()) })
    }

    fn look(&mut self, jobs: u64) -> anyhow::Result<()> {
        self.bar.set_position(jobs);
        let answers = self.traffic.answers.load(Ordering::Relaxed);
        if answers != self.seen.0 {
            self.seen = (answers, Instant::now());
        }
        anyhow::ensure!(self.seen.1.elapsed() < STUCK, "the server has not answered anything for {STUCK:?}");
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
        let left = Left::new(250);
        assert_eq!([left.take(100), left.take(100), left.take(100), left.take(100)], [100, 100, 50, 0]);
    }
}
