//! The two loops that most scenarios are made of: clients that push jobs, and clients that reserve and commit
//! them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::calls::{Caller, Jobs, Queue};
use super::crew::{Crew, Left};
use super::figures::{Meter, Phase};
use super::pace::Pace;

/// How long a client pauses whom others were faster than.
const PAUSE: Duration = Duration::from_millis(1);
/// How long jobs may be missing: as long as it takes until the reservations of a lost answer have run out.
const PATIENCE: Duration = Duration::from_secs(90);

/// Pushes so many jobs and answers the figures of it.
pub async fn push(crew: &Crew, queue: &Queue, clients: usize, count: usize) -> anyhow::Result<Phase> {
    let jobs = Jobs::new(crew.options.payload_bytes, crew.options.batch);
    push_these(crew, queue, jobs, (clients, count)).await
}

/// Pushes so many of these jobs and answers the figures of it.
pub async fn push_these(
    crew: &Crew,
    queue: &Queue,
    jobs: Jobs,
    (clients, count): (usize, usize),
) -> anyhow::Result<Phase> {
    let options = &crew.options;
    let jobs = Arc::new(jobs);
    let (left, meter) = (Arc::new(Left::new(count)), Meter::new("push")?);
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
                    let start = pace.turn().await;
                    caller.push(&queue, &jobs, count).await?;
                    meter.add(start, count);
                }
            }
        })
        .await?;
    Ok(meter.phase(took))
}

/// What happens each time that so many more jobs are settled.
#[derive(Debug, Default, Clone)]
pub enum Steps {
    /// Nothing.
    #[default]
    None,
    /// The moment is noted.
    Noted(usize),
    /// As many are pushed again by whoever settled the last of them.
    Refilled(Arc<Jobs>),
}

impl Steps {
    fn every(&self) -> usize {
        match self {
            Self::None => usize::MAX,
            Self::Noted(every) => *every,
            Self::Refilled(jobs) => jobs.batch(),
        }
    }
}

/// Jobs that clients reserve and commit.
#[derive(Debug)]
pub struct Settling {
    queue: Queue,
    /// How many a client asks for at once.
    batch: usize,
    left: Left,
    pace: Pace,
    steps: Steps,
    settled: AtomicUsize,
    /// When each step was done.
    moments: Mutex<Vec<Instant>>,
    /// Reserves that answered nothing although there were jobs.
    empty: AtomicU64,
    pair: Arc<Meter>,
    reserve: Arc<Meter>,
    commit: Arc<Meter>,
}

/// The figures of jobs that were reserved and committed.
#[derive(Debug)]
pub struct Settled {
    /// Pairs of a reserve and its commit.
    pub pair: Phase,
    /// The reserves.
    pub reserve: Phase,
    /// The commits.
    pub commit: Phase,
    /// Reserves that answered nothing although there were jobs.
    pub empty_reserves: u64,
    /// How long each step took.
    pub steps: Vec<Duration>,
}

impl Settling {
    /// Reserves and commits so many jobs of a queue that has them, and answers the figures of it.
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
            left: Left::new(count),
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
            pair: work.pair.phase(took),
            reserve: work.reserve.phase(took),
            commit: work.commit.phase(took),
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
            let mut start = self.pace.turn().await;
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

    /// So many jobs were settled.
    async fn step(&self, caller: &mut Caller, count: usize) -> anyhow::Result<()> {
        let every = self.steps.every();
        let before = self.settled.fetch_add(count, Ordering::Relaxed);
        for _ in before / every..(before + count) / every {
            match &self.steps {
                Steps::None => {}
                Steps::Noted(_) => {
                    self.moments.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
                }
                Steps::Refilled(jobs) => caller.push(&self.queue, jobs, jobs.batch()).await?,
            }
        }
        Ok(())
    }
}

/// Reserves at least one of up to `count` jobs that are known to be there. Where several servers take from one
/// database a reserve may find that others were faster; such an answer is counted and asked for again.
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
        anyhow::ensure!(since.elapsed() < PATIENCE, "no job is found any more, {PATIENCE:?} long");
        empty.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
}
