//! `drain`: fills a large queue and then empties it; the rate of each tenth shows whether deleted index entries slow
//! down the rest.

use super::calls::Queue;
use super::crew::Crew;
use super::figures::Measured;
use super::settling::{Settling, Steps};

const PARTS: usize = 10;

/// Runs one phase; reports the rate of each tenth, and that of the last relative to the first.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let (queue, part) = (Queue::unique(), options.jobs() / PARTS);
    anyhow::ensure!(part >= options.batch, "drain needs --jobs to be at least ten times --batch");
    let count = part * PARTS;
    crew.fill(std::slice::from_ref(&queue), count).await?;
    let settled = Settling::run(crew, &queue, (options.clients(), count), Steps::Recorded(part)).await?;
    let rates: Vec<f64> = settled.steps.iter().map(|took| part as f64 / took.as_secs_f64()).collect();
    let mut measured = Measured::of(vec![settled.pair, settled.reserve, settled.commit]);
    for (n, rate) in (1..).zip(&rates) {
        measured.set(format!("tenth_{n}_per_s"), *rate);
    }
    if let [first, .., last] = rates[..] {
        measured.set("ratio_last_first", last / first);
    }
    measured.set("empty_reserves", settled.empty_reserves as f64);
    Ok(measured)
}
