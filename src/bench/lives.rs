//! `lives`: full life cycles of jobs in two phases: push them all, then reserve and commit them all. With `--mixed` a
//! third phase: each client pushes, reserves and commits, beside a constant backlog.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::calls::{Caller, Jobs, Queue};
use super::crew::{Crew, Remaining};
use super::figures::{Measured, Meter};
use super::pace::Pace;
use super::settling::{self, Settling, Steps};

/// The number of warm-up jobs; fewer if fewer are measured.
const WARM_UP: usize = 500;
/// The maximum number of clients in the warm-up.
const WARM_UP_CLIENTS: usize = 64;

/// Runs warm-up jobs that are not counted, before every scenario.
pub async fn warm_up(crew: &Crew) -> anyhow::Result<()> {
    let mut crew = crew.clone();
    crew.options.rate = None;
    let options = &crew.options;
    let clients = options.clients().min(WARM_UP_CLIENTS);
    let count = if options.jobs() > 0 { WARM_UP.min(options.jobs()) } else { WARM_UP };
    let queue = Queue::unique();
    settling::push(&crew, &queue, clients, count).await?;
    Settling::run(&crew, &queue, (clients, count), Steps::None).await?;
    Ok(())
}

/// Runs the phases in order.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let (queue, clients, count) = (Queue::unique(), crew.options.clients(), crew.options.jobs());
    let push = settling::push(crew, &queue, clients, count).await?;
    let settled = Settling::run(crew, &queue, (clients, count), Steps::None).await?;
    let lives_per_s = 1.0 / (1.0 / push.jobs_per_s + 1.0 / settled.pair.jobs_per_s);
    let of_pairs = &settled.pair.cpu_us_per_job;
    let cpu_us: Vec<(&str, f64)> =
        push.cpu_us_per_job.iter().filter_map(|(of, us)| Some((*of, us + of_pairs.get(of)?))).collect();
    let mut empty_reserves = settled.empty_reserves;
    let mut measured = Measured::of(vec![push, settled.pair, settled.reserve, settled.commit]);
    measured.set("lives_per_s", lives_per_s);
    for (of, us) in cpu_us {
        measured.set(format!("{of}_cpu_us_per_life"), us);
    }
    if crew.options.mixed {
        empty_reserves += mixed(crew, &mut measured).await?;
    }
    measured.set("empty_reserves", empty_reserves as f64);
    Ok(measured)
}

/// The work of the mixed phase.
struct Mixed {
    queue: Queue,
    jobs: Jobs,
    left: Remaining,
    pace: Pace,
    empty: AtomicU64,
    life: Arc<Meter>,
    push: Arc<Meter>,
    reserve: Arc<Meter>,
    commit: Arc<Meter>,
}

/// Runs the mixed phase; returns how many reserves were empty.
async fn mixed(crew: &Crew, measured: &mut Measured) -> anyhow::Result<u64> {
    let options = &crew.options;
    let (queue, count) = (Queue::unique(), options.jobs());
    crew.fill(std::slice::from_ref(&queue), options.backlog()).await?;
    let callers = crew.callers(options.clients()).await?;
    let work = Arc::new(Mixed {
        queue,
        jobs: Jobs::new(options.payload_bytes, options.batch),
        left: Remaining::new(count),
        pace: Pace::new(options.rate),
        empty: AtomicU64::new(0),
        life: Meter::new("mixed")?,
        push: Meter::new("mixed push")?,
        reserve: Meter::new("mixed reserve")?,
        commit: Meter::new("mixed commit")?,
    });
    let took = crew
        .work("mixed", (&work.life, count), callers, |caller| {
            let work = work.clone();
            async move { work.client(caller).await }
        })
        .await?;
    crew.discard(std::slice::from_ref(&work.queue), options.backlog()).await?;
    let meters = [&work.push, &work.reserve, &work.commit];
    measured.phases.push(work.life.phase_of(&took));
    measured.phases.extend(meters.map(|meter| meter.phase(took.time)));
    measured.set("mixed_lives_per_s", count as f64 / took.time.as_secs_f64());
    Ok(work.empty.load(Ordering::Relaxed))
}

impl Mixed {
    /// Pushes, reserves as many and commits them, in a loop. It gets the oldest jobs of the backlog, not those that it
    /// pushed.
    async fn client(&self, mut caller: Caller) -> anyhow::Result<()> {
        loop {
            let count = self.left.take(self.jobs.batch());
            if count == 0 {
                return Ok(());
            }
            let start = self.pace.next_start().await;
            caller.push(&self.queue, &self.jobs, count).await?;
            self.push.add(start, count);
            let mut left = count;
            while left > 0 {
                let reserving = Instant::now();
                let count = settling::reserve(&mut caller, &self.queue, left, &self.empty).await?;
                self.reserve.add(reserving, count);
                let committing = Instant::now();
                caller.commit().await?;
                self.commit.add(committing, count);
                left -= count;
            }
            self.life.add(start, count);
        }
    }
}
