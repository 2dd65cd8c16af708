//! `depth`: how fast jobs are reserved and committed from a queue with 1,000 jobs, 10,000 and so on. Meanwhile as many
//! are pushed in batches, so that the depth of the queue stays constant.

use std::sync::Arc;

use super::calls::{Jobs, Queue};
use super::crew::Crew;
use super::figures::Measured;
use super::settling::{Settling, Steps};

/// The depth that is the baseline.
const SHALLOW: usize = 1_000;
/// The number of jobs in a refill. Fewer than the shallowest queue has, so that it never runs empty.
const REFILL: usize = 100;

/// Runs a phase for each depth; reports its rate relative to the first.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    anyhow::ensure!(options.backlog() >= 2 * REFILL, "depth needs --backlog to be at least {}", 2 * REFILL);
    let queue = Queue::unique();
    let steps = Steps::Refill(Arc::new(Jobs::new(options.payload_bytes, REFILL)));
    let mut measured = Measured::default();
    let (mut there, mut first, mut empty_reserves) = (0, None, 0);
    for depth in depths(options.backlog()) {
        crew.fill(std::slice::from_ref(&queue), depth.saturating_sub(there)).await?;
        let work = (options.clients(), options.jobs());
        let settled = Settling::run(crew, &queue, work, steps.clone()).await?;
        // A partial step at the end is not refilled.
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

/// Returns 1,000, 10,000 and so on, up to the deepest.
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
