//! `simulation`: the queue simulation of MongoDB's schema book. In each of 25 seconds 1,000 publishers push a
//! job and 300 readers fetch the oldest one, spread evenly over the second, over 4 × 50 connections. Open loop: the
//! latency of each counts from when it was due.
//!
//! A fetch there removes the job in one step, so it is a pop here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::calls::{Caller, Jobs, Queue};
use super::crew::Crew;
use super::figures::{Measured, Meter};
use super::pace;

/// Pushes per second.
const PUBLISHERS: u64 = 1_000;
/// Fetches per second.
const READERS: u64 = 300;

/// The work of all connections.
struct Simulation {
    queue: Queue,
    jobs: Jobs,
    start: Instant,
    seconds: u64,
    second: Vec<(Duration, Event)>,
    next: AtomicUsize,
    /// Fetches that were empty.
    empty: AtomicU64,
    publish: Arc<Meter>,
    fetch: Arc<Meter>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Publish,
    Fetch,
}

/// Runs one phase for publishing and one for fetching.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let callers = crew.callers(options.clients()).await?;
    let work = Arc::new(Simulation {
        queue: Queue::unique(),
        jobs: Jobs::new(options.payload_bytes, 1),
        start: Instant::now(),
        seconds: options.seconds(),
        second: second(),
        next: AtomicUsize::new(0),
        empty: AtomicU64::new(0),
        publish: Meter::new("publish")?,
        fetch: Meter::new("fetch")?,
    });
    let published = PUBLISHERS * options.seconds();
    let took = crew
        .work("publish", (&work.publish, usize::try_from(published)?), callers, |caller| {
            let work = work.clone();
            async move { work.connection(caller).await }
        })
        .await?;
    let mut measured = Measured::of(vec![work.publish.phase_of(&took), work.fetch.phase(took.time)]);
    measured.set("empty_fetches", work.empty.load(Ordering::Relaxed) as f64);
    let left = published.saturating_sub(work.fetch.jobs());
    crew.discard(std::slice::from_ref(&work.queue), usize::try_from(left)?).await?;
    Ok(measured)
}

/// Returns the events of a second, with their times.
fn second() -> Vec<(Duration, Event)> {
    let spread =
        |count: u64, event| (0..count).map(move |n| (Duration::from_nanos(n * 1_000_000_000 / count), event));
    let mut events: Vec<_> =
        spread(PUBLISHERS, Event::Publish).chain(spread(READERS, Event::Fetch)).collect();
    events.sort_unstable();
    events
}

impl Simulation {
    /// Processes the next event that no other connection has taken, until there are no more.
    async fn connection(&self, mut caller: Caller) -> anyhow::Result<()> {
        loop {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            let second = (n / self.second.len()) as u64;
            if second >= self.seconds {
                return Ok(());
            }
            let (after, event) = self.second[n % self.second.len()];
            let start = pace::begin(self.start + Duration::from_secs(second) + after).await;
            match event {
                Event::Publish => {
                    caller.push(&self.queue, &self.jobs, 1).await?;
                    self.publish.add(start, 1);
                }
                Event::Fetch => {
                    let got = caller.pop(&self.queue).await?;
                    self.fetch.add(start, usize::from(got));
                    self.empty.fetch_add(u64::from(!got), Ordering::Relaxed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_spread_evenly_over_the_second() {
        let events = second();
        assert_eq!(events.len(), 1_300);
        assert!(events.is_sorted());
        let fetches: Vec<u128> = events
            .iter()
            .filter(|(_, event)| *event == Event::Fetch)
            .map(|(after, _)| after.as_micros())
            .collect();
        assert_eq!((fetches.len(), fetches[1], fetches[299]), (300, 3_333, 996_666));
    }
}
