//! `batch`: jobs in batches of `--members`, each created by one call; in the end the callback of each batch must have
//! been pushed. The rate of the commits shows the cost of contention on a batch's counts.

use std::sync::Arc;

use super::against::Against;
use super::calls::{Jobs, Queue};
use super::crew::{Crew, Remaining};
use super::figures::{Measured, Meter};

/// Runs the phases in order.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let mut against = Against::plain(crew).await?;
    let (queue, after, members) = (Queue::unique(), Queue::unique(), options.members);
    let jobs = Arc::new(Jobs::new(options.payload_bytes, options.batch));
    let (left, meter) = (Arc::new(Remaining::new(options.jobs())), Meter::new("push, in batches")?);
    let callers = crew.callers(options.clients()).await?;
    let took = crew
        .work("push, in batches", (&meter, options.jobs()), callers, |mut caller| {
            let (jobs, left, meter) = (jobs.clone(), left.clone(), meter.clone());
            let (queue, after) = (queue.clone(), after.clone());
            async move {
                loop {
                    let count = left.take(members);
                    if count == 0 {
                        return Ok(());
                    }
                    let start = std::time::Instant::now();
                    caller.send("POST", "/v1/batches", &jobs.as_batch(&queue, &after, count)).await?;
                    meter.add(start, count);
                }
            }
        })
        .await?;
    let push = meter.phase_of(&took);
    let pushes = push.jobs_per_s;
    against.add(push);
    let settles = against.settle(&queue, "in batches").await?;
    against.compare("in_batches", pushes, settles);
    let mut caller = crew.caller().await?;
    let mut callbacks = 0;
    while caller.pop(&after).await? {
        callbacks += 1;
    }
    let batches = options.jobs().div_ceil(members);
    anyhow::ensure!(callbacks == batches, "{callbacks} callbacks were delivered for {batches} batches");
    Ok(against.done())
}
