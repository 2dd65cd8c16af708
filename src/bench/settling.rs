//! The two loops of most scenarios: clients that push jobs, and clients that reserve and commit them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::calls::{Caller, Jobs, Queue};
use super::crew::{Crew, Remaining};
use super::figures::{Meter, Phase};
use super::pace::Pace;

/// The pause of a client before it retries an empty reserve.
const PAUSE: Duration = Duration::from_millis(1);
/// The timeout for jobs to appear: longer than the leases of a reserve whose response was lost.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Pushes `count` jobs and returns the figures.
pub async fn push(crew: &Crew, queue: &Queue, clients: usize, count: usize) -> anyhow::Result<Phase> {
    let jobs = Jobs::new(crew.options.payload_bytes, crew.options.batch);
    push_these(crew, queue, jobs, (clients, count)).await
}

/// Pushes `count` of these jobs and returns the figures.
pub async fn push_these(
    crew: &Crew,
    queue: &Queue,
    jobs: Jobs,
    (clients, count): (usize, usize),
) -> anyhow::Result<Phase> {
    let options = &crew.options;
    let jobs = Arc::new(jobs);
    let (left, meter) = (Arc::new(Remaining::new(count)), Meter::new("push")?);
    let callers = crew.callers(clients).await?;
    let pace = Arc::new(Pace::new(options.rate));
    let took = crew
        .work("push", (&meter, count), callers, |mut caller| {
            let (queue, jobs, left, meter) = (queue.clone(), jobs.clone(), left.clone(), meter.clone());
            let pace = pace.clone();
            async move {
                loop {
                    let count = left.take(jobs.batch());
                    if count == 0 {
                        return Ok(());
                    }
                    let start = pace.next_start().await;
                    caller.push(&queue, &jobs, count).await?;
                    meter.add(start, count);
                }
            }
        })
        .await?;
    Ok(meter.phase_of(&took))
}

/// What to do after every so many settled jobs.
#[derive(Debug, Default, Clone)]
pub enum Steps {
    /// Do nothing.
    #[default]
    None,
    /// Record the time.
    Recorded(usize),
    /// Refill: the client that settled the last of them pushes as many.
    Refill(Arc<Jobs>),
}

impl Steps {
    fn every(&self) -> usize {
        match self {
            Self::None => usize::MAX,
            Self::Recorded(every) => *every,
            Self::Refill(jobs) => jobs.batch(),
        }
    }
}

/// Jobs that clients reserve and commit.
#[derive(Debug)]
pub struct Settling {
    queue: Queue,
    /// The number of jobs per reserve.
    batch: usize,
    left: Remaining,
    pace: Pace,
    steps: Steps,
    settled: AtomicUsize,
    /// The time at which each step was done.
    moments: Mutex<Vec<Instant>>,
    /// Reserves that returned nothing although there were jobs.
    empty: AtomicU64,
    pair: Arc<Meter>,
    reserve: Arc<Meter>,
    commit: Arc<Meter>,
}

/// The figures of reserving and committing jobs.
#[derive(Debug)]
pub struct Settled {
    /// Pairs of a reserve and its commit.
    pub pair: Phase,
    /// The reserves.
    pub reserve: Phase,
    /// The commits.
    pub commit: Phase,
    /// Reserves that returned nothing although there were jobs.
    pub empty_reserves: u64,
    /// The duration of each step.
    pub steps: Vec<Duration>,
}

impl Settling {
    /// Reserves and commits `count` jobs of a queue that has them, and returns the figures.
    pub async fn run(
        crew: &Crew,
        queue: &Queue,
        (clients, count): (usize, usize),
        steps: Steps,
    ) -> anyhow::Result<Settled> {
        let options = &crew.options;
        let callers = crew.callers(clients).await?;
        let start = Instant::now();
        let work = Arc::new(Self {
            queue: queue.clone(),
            batch: options.batch,
            left: Remaining::new(count),
            pace: Pace::new(options.rate),
            steps,
            settled: AtomicUsize::new(0),
            moments: Mutex::default(),
            empty: AtomicU64::new(0),
            pair: Meter::new("reserve+commit")?,
            reserve: Meter::new("reserve")?,
            commit: Meter::new("commit")?,
        });
        let shown = (&*work.pair, count);
        let took = crew
            .work("reserve+commit", shown, callers, |caller| {
                let work = work.clone();
                async move { work.client(caller).await }
            })
            .await?;
        let moments = work.moments.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::iter::once(&start).chain(moments.iter());
        Ok(Settled {
            pair: work.pair.phase_of(&took),
            reserve: work.reserve.phase(took.time),
            commit: work.commit.phase(took.time),
            empty_reserves: work.empty.load(Ordering::Relaxed),
            steps: moments.iter().zip(before).map(|(moment, before)| *moment - *before).collect(),
        })
    }

    async fn client(&self, mut caller: Caller) -> anyhow::Result<()> {
        loop {
            let mut left = self.left.take(self.batch);
            if left == 0 {
                return Ok(());
            }
            let mut start = self.pace.next_start().await;
            while left > 0 {
                let reserving = start;
                let count = reserve(&mut caller, &self.queue, left, &self.empty).await?;
                self.reserve.add(reserving, count);
                let committing = Instant::now();
                caller.commit().await?;
                self.commit.add(committing, count);
                self.pair.add(start, count);
                self.step(&mut caller, count).await?;
                left -= count;
                start = Instant::now();
            }
        }
    }

    /// Counts `count` settled jobs and runs the steps that they complete.
    async fn step(&self, caller: &mut Caller, count: usize) -> anyhow::Result<()> {
        let every = self.steps.every();
        let before = self.settled.fetch_add(count, Ordering::Relaxed);
        for _ in before / every..(before + count) / every {
            match &self.steps {
                Steps::None => {}
                Steps::Recorded(_) => {
                    self.moments.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
                }
                Steps::Refill(jobs) => caller.push(&self.queue, jobs, jobs.batch()).await?,
            }
        }
        Ok(())
    }
}

/// Reserves at least one of up to `count` jobs that are known to exist. With several servers on one database a reserve
/// may lose the race for the jobs and be empty; it is counted and retried.
pub async fn reserve(
    caller: &mut Caller,
    queue: &Queue,
    count: usize,
    empty: &AtomicU64,
) -> anyhow::Result<usize> {
    let mut since = None;
    loop {
        let reserved = caller.reserve(queue, count, 0).await?;
        if reserved > 0 {
            return Ok(reserved);
        }
        let since = *since.get_or_insert_with(Instant::now);
        anyhow::ensure!(since.elapsed() < TIMEOUT, "no job was found for {TIMEOUT:?}");
        empty.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
}
