//! Jobs that cannot be read, or not be delivered, and stand before others of their queue: they are made dead or, where that fails, left out
//! for a while.

use tokio::time::{Instant, timeout_at};

use crate::job::{QueueName, Rules};
use crate::store::chain;
use crate::store::mongo::Mongo;
use crate::store::mongo::jobs::bury;
use crate::store::mongo::stored::{RawId, Stored};

/// Which part of a call's deadline it takes at most to make such jobs dead. A transaction that a killed server has left open may hold one
/// of them, or its batch, for longer than any call takes.
const PART: u32 = 5;

/// Returns until when a call that begins now may make such jobs dead.
pub fn end(mongo: &Mongo) -> Instant {
    Instant::now() + mongo.connection.deadline() / PART
}

/// Makes these jobs of a queue dead. Returns nothing once they are; else the ids of all of them, which the reads of this call are to leave
/// out. Those of later calls do so for a while where it has failed, or was not over by the end.
///
/// A burial that is given up may still happen: each of its writes is guarded by what was read. The driver ends a transaction whose session
/// is dropped, and the queue is counted anew.
pub async fn clear(
    mongo: &Mongo,
    queue: &QueueName,
    jobs: &[Stored],
    end: Instant,
    rules: &Rules,
) -> Option<Vec<RawId>> {
    let spoiled: Vec<&Stored> = jobs.iter().collect();
    if spoiled.is_empty() {
        return None;
    }
    let ids: Vec<RawId> = spoiled.iter().filter_map(|document| document.raw_id().ok()).collect();
    // A command that is given up at once would cost its connection.
    let buried = match Instant::now() < end {
        true => timeout_at(end, bury::bury(mongo, &spoiled, rules)).await.ok(),
        false => None,
    };
    let of = spoiled.len();
    match buried {
        Some(Ok(buried)) if buried >= of as u64 => return None,
        // Others have made them dead, as a rule: they are not left out of later reads, so that one that is mended by then comes in its turn.
        Some(Ok(buried)) => {
            tracing::warn!(%queue, buried, of, "jobs in the way of others were changed meanwhile");
            return Some(ids);
        }
        Some(Err(error)) => {
            let error = chain(&error);
            tracing::error!(error, %queue, of, "jobs in the way of others could not be made dead");
        }
        None => tracing::error!(%queue, of, "jobs in the way of others could not be made dead in time"),
    }
    mongo.left_out.note(queue, &ids);
    Some(ids)
}
