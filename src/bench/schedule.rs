//! `schedule`: jobs become due one after the other while clients wait for them; reports how late they are delivered.
//!
//! Lateness is the time from the job's `run_at` to the response that delivers it, by this machine's clock. That is
//! correct only if the server's store runs on the same machine, which the other scenarios do not require.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;

use super::calls::{Caller, Jobs, Queue};
use super::crew::Crew;
use super::figures::{Measured, Meter};

/// The `wait_ms` of a reserve.
const WAIT_MS: u64 = 1_000;
/// The assumed minimum rate of pushes per second: all jobs must be pushed before the first is due.
const PUSHED_PER_S: usize = 2_000;
/// The time for everything else before the first job is due, in milliseconds.
const LEAD_MS: i64 = 2_000;
/// How often it is tried to push in time.
const ATTEMPTS: usize = 5;
/// How long the clients have been waiting when the first job becomes due, in milliseconds.
const EARLY_MS: i64 = 500;

/// The work of the waiting clients.
struct Late {
    queue: Queue,
    batch: usize,
    count: usize,
    delivered: AtomicUsize,
    /// The number of jobs that were delivered too early.
    early: AtomicU64,
    lateness: Arc<Meter>,
}

/// Runs one phase; its latencies are the lateness of each job.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let count = options.jobs();
    let (queue, early) = pushed_in_time(crew, count).await?;
    tokio::time::sleep(early).await;
    let work = Arc::new(Late {
        queue,
        batch: options.batch,
        count,
        delivered: AtomicUsize::new(0),
        early: AtomicU64::new(0),
        lateness: Meter::new("lateness")?,
    });
    let callers = crew.callers(options.clients()).await?;
    let took = crew
        .work("delivered", (&work.lateness, count), callers, |caller| {
            let work = work.clone();
            async move { work.client(caller).await }
        })
        .await?;
    let mut measured = Measured::of(vec![work.lateness.phase_of(&took)]);
    measured.set("spread_over_s", options.seconds() as f64);
    measured.set("early_jobs", work.early.load(Ordering::Relaxed) as f64);
    Ok(measured)
}

/// Pushes the jobs before the first of them is due. Returns their queue, and how long it is until the clients are to wait. Where a machine is too slow,
/// another queue gets twice the time; what was pushed into the first one stays there.
async fn pushed_in_time(crew: &Crew, count: usize) -> anyhow::Result<(Queue, Duration)> {
    let mut lead_ms = LEAD_MS + i64::try_from(count * 1000 / PUSHED_PER_S)?;
    for _ in 0..ATTEMPTS {
        let (queue, first_ms) = (Queue::unique(), now_us() / 1000 + lead_ms);
        push(crew, &queue, first_ms).await?;
        if let Ok(early) = u64::try_from(first_ms - EARLY_MS - now_us() / 1000) {
            return Ok((queue, Duration::from_millis(early)));
        }
        lead_ms *= 2;
    }
    anyhow::bail!("the jobs could not be pushed in {} ms", lead_ms / 2)
}

/// Pushes the jobs, whose due times are spread evenly from `first_ms` on.
async fn push(crew: &Crew, queue: &Queue, first_ms: i64) -> anyhow::Result<()> {
    let (count, options) = (crew.options.jobs(), &crew.options);
    let span_ms = options.seconds() * 1000;
    let text = "x".repeat(options.payload_bytes);
    let batch = Jobs::in_bulk(options.payload_bytes).batch();
    let mut caller = crew.caller().await?;
    for from in (0..count).step_by(batch) {
        let to = (from + batch).min(count);
        let mut body = String::from("{\"jobs\":[");
        for n in from..to {
            let after_ms = i64::try_from(span_ms * n as u64 / count as u64)?;
            let run_at = jiff::Timestamp::from_millisecond(first_ms + after_ms)?;
            let comma = if n == from { "" } else { "," };
            write!(body, "{comma}{{\"payload\":{{\"x\":\"{text}\"}},\"run_at\":\"{run_at:.3}\"}}")?;
        }
        body.push_str("]}");
        caller.push_body(queue, &body, to - from).await?;
    }
    Ok(())
}

impl Late {
    /// Reserves and commits jobs until all have been delivered.
    async fn client(&self, mut caller: Caller) -> anyhow::Result<()> {
        while self.delivered.load(Ordering::Relaxed) < self.count {
            let mut due_us = Vec::new();
            let show = |job: &super::calls::Reserved<'_>| {
                due_us.push(job.run_at.parse::<jiff::Timestamp>().context("run_at")?.as_microsecond());
                Ok(())
            };
            let reserved = caller.reserve_each(&self.queue, self.batch, WAIT_MS, show).await?;
            let now_us = now_us();
            if reserved == 0 {
                continue;
            }
            for due_us in due_us {
                let late_us = u64::try_from(now_us - due_us).unwrap_or_else(|_| {
                    self.early.fetch_add(1, Ordering::Relaxed);
                    0
                });
                self.lateness.add_latency(Duration::from_micros(late_us), 1);
            }
            self.delivered.fetch_add(reserved, Ordering::Relaxed);
            caller.commit().await?;
        }
        Ok(())
    }
}

/// Returns this machine's time, in microseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "a client has no other clock, and only measures with it")]
fn now_us() -> i64 {
    jiff::Timestamp::now().as_microsecond()
}
