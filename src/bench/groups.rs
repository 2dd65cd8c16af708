//! `groups`: jobs in groups of `--group-size`, delivered one at a time per group; and plain jobs behind a blocked group
//! at the head of their queue.

use super::against::Against;
use super::calls::{Jobs, Queue};
use super::crew::Crew;
use super::figures::Measured;
use super::settling;

/// Runs the phases in order.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let (payload_bytes, batch) = (options.payload_bytes, options.batch);
    let mut against = Against::plain(crew).await?;
    let groups = options.jobs().div_ceil(options.group_size);
    against.live("in groups", Jobs::grouped(payload_bytes, batch, groups)).await?;

    let queue = Queue::unique();
    let blocked = Jobs::grouped(payload_bytes, batch, 1);
    settling::push_these(crew, &queue, blocked, (options.clients(), options.jobs())).await?;
    let mut holder = crew.caller().await?;
    holder.reserve(&queue, 1, 0).await?;
    against.beside(&queue, "beside a blocked group").await?;
    holder.commit().await?;
    Ok(against.done())
}
