//! `semaphores`: jobs that need a semaphore with capacity for all, and one with capacity for a quarter of the clients;
//! and plain jobs behind jobs that wait for a semaphore.

use super::against::Against;
use super::calls::{Jobs, Queue};
use super::crew::Crew;
use super::figures::Measured;
use super::settling;

/// Runs the phases in order.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let (payload_bytes, batch) = (options.payload_bytes, options.batch);
    let mut caller = crew.caller().await?;
    let mut against = Against::plain(crew).await?;
    for (name, capacity) in [
        ("with a free semaphore", 1_000_000),
        ("with a busy semaphore", options.clients().div_ceil(4)),
        ("beside waiting jobs", 1),
    ] {
        // The name of a unique queue is unique for a semaphore as well.
        let semaphore = Queue::unique().name;
        let path = format!("/v1/semaphores/{semaphore}");
        caller.send("PUT", &path, &format!("{{\"capacity\":{capacity}}}")).await?;
        let jobs = Jobs::with(payload_bytes, batch, &format!(",\"semaphores\":[\"{semaphore}\"]"));
        if capacity > 1 {
            against.live(name, jobs).await?;
            continue;
        }
        let queue = Queue::unique();
        settling::push_these(crew, &queue, jobs, (options.clients(), options.jobs())).await?;
        caller.reserve(&queue, 1, 0).await?;
        against.beside(&queue, name).await?;
        caller.commit().await?;
    }
    Ok(against.done())
}
