//! `wake`: clients wait for jobs of one queue at the last server, and one job at a time is pushed at the first; reports
//! the latency from just before the push to the response of the waiting reserve.

use std::time::{Duration, Instant};

use super::calls::{Jobs, Queue};
use super::crew::Crew;
use super::figures::{Measured, Meter};
use super::waiting::Waiting;

/// Runs one phase for the wake-ups and one for the pushes themselves.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let queue = Queue::unique();
    let mut waiters = Vec::with_capacity(options.clients());
    for _ in 0..options.clients() {
        waiters.push((crew.caller(options.last_url()).await?, queue.clone()));
    }
    let mut waiting = Waiting::start(waiters);
    let (wakes, pushes) = (Meter::new("wake")?, Meter::new("push")?);
    let jobs = Jobs::new(options.payload_bytes, 1);
    let mut pusher = crew.caller(options.first_url()).await?;
    let start = Instant::now();
    for _ in 0..options.jobs() {
        // Random, so that pushes do not synchronise with a periodic task of the other server.
        let pause = options.pause_ms + rand::random_range(0..=options.pause_ms);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let start = Instant::now();
        pusher.push(&queue, &jobs, 1).await?;
        pushes.add(start, 1);
        let delivered = waiting.next().await?;
        wakes.add_latency(delivered.saturating_duration_since(start), 1);
    }
    let took = start.elapsed();
    Ok(Measured::of(vec![wakes.phase(took), pushes.phase(took)]))
}
