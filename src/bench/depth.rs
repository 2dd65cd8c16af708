//! `depth`: how fast jobs are reserved and committed from a queue that has 1,000 jobs, 10,000 and so on. While
//! they go, as many are pushed again in batches, so that the queue stays as deep as it is.

use std::sync::Arc;

use super::calls::{Jobs, Queue};
use super::crew::Crew;
use super::figures::Measured;
use super::settling::{Settling, Steps};

/// The depth that the others are compared with.
const SHALLOW: usize = 1_000;
/// So many jobs are pushed again at once. Fewer than the shallowest queue has, so that it never runs dry.
const REFILL: usize = 100;

/// A phase for each depth, and its rate as a part of the first one's.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    anyhow::ensure!(options.backlog() >= 2 * REFILL, "depth needs --backlog to be at least {}", 2 * REFILL);
    let queue = Queue::unique();
    let steps = Steps::Refilled(Arc::new(Jobs::new(options.payload_bytes, REFILL)));
    let mut measured = Measured::default();
    let (mut there, mut first, mut empty_reserves) = (0, None, 0);
    for depth in depths(options.backlog()) {
        crew.fill(std::slice::from_ref(&queue), depth.saturating_sub(there)).await?;
        let work = (options.clients(), options.jobs());
        let settled = Settling::run(crew, &queue, work, steps.clone()).await?;
        // Less than a step at the end is not pushed again.
        there = depth.max(there) - options.jobs() % REFILL;
        empty_reserves += settled.empty_reserves;
        let rate = settled.pair.jobs_per_s;
        let mut phase = settled.pair;
        phase.name = format!("depth {depth}");
        measured.phases.push(phase);
        measured.set(format!("ratio_at_{depth}"), rate / *first.get_or_insert(rate));
    }
    measured.set("empty_reserves", empty_reserves as f64);
    crew.discard(std::slice::from_ref(&queue), there).await?;
    Ok(measured)
}

/// 1,000, 10,000 and so on, up to the deepest.
fn depths(deepest: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(SHALLOW), |depth| depth.checked_mul(10));
    let mut depths: Vec<usize> = powers.take_while(|depth| *depth < deepest).collect();
    depths.push(deepest);
    depths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_grow_tenfold_up_to_the_deepest() {
        assert_eq!(depths(1_000_000), [1_000, 10_000, 100_000, 1_000_000]);
        assert_eq!(depths(25_000), [1_000, 10_000, 25_000]);
        assert_eq!((depths(1_000), depths(300)), (vec![1_000], vec![300]));
    }
}
