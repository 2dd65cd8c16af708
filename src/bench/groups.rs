//! `groups`: jobs in groups of `--group-size`, of which only one of each may be delivered at a time; and plain jobs behind
//! a group that is blocked at the head of their queue.

use super::against::Against;
use super::calls::{Jobs, Queue};
use super::crew::Crew;
use super::figures::Measured;
use super::settling;

/// The phases one after the other.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let (payload_bytes, batch) = (options.payload_bytes, options.batch);
    let mut against = Against::plain(crew).await?;
    let groups = options.jobs().div_ceil(options.group_size);
    against.live("in groups", Jobs::grouped(payload_bytes, batch, groups)).await?;

    let queue = Queue::unique();
    let blocked = Jobs::grouped(payload_bytes, batch, 1);
    settling::push_these(crew, &queue, blocked, (options.clients(), options.jobs())).await?;
    let mut holder = crew.caller(options.first_url()).await?;
    holder.reserve(&queue, 1, 0).await?;
    against.beside(&queue, "beside a blocked group").await?;
    holder.commit().await?;
    Ok(against.done())
}
