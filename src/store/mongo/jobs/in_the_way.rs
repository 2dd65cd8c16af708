//! Jobs that cannot be read, or not be delivered, and stand before others of their queue: they are made dead or, where that fails, left out
//! for a while.

use tokio::time::Instant;

use crate::job::{QueueName, Rules};
use crate::store::chain;
use crate::store::mongo::Mongo;
use crate::store::mongo::jobs::bury;
use crate::store::mongo::jobs::document::Row;
use crate::store::mongo::stored::{RawId, Stored};

/// Which part of a call's deadline it takes at most to make such jobs dead. A transaction that a killed server has left open may hold one
/// of them, or its batch, for longer than any call takes.
const PART: u32 = 5;
/// Which part of a call's deadline it takes at most to begin the rounds of one queue.
const READ_PART: u32 = 3;
/// The most rounds: each reads past twice as many jobs that stay.
const ROUNDS: u32 = 10;
/// How many of them are left out at most.
const LEFT_OUT_MAX: usize = 2000;

/// Reads of the first jobs of one queue, each of which leaves out what stayed in the one before, and reads what is behind it instead.
pub struct Rounds {
    left_out: Vec<RawId>,
    known: usize,
    round: u32,
    late: Instant,
}

impl Rounds {
    /// Begins with what is left out of every read of the queue.
    pub fn of(mongo: &Mongo, queue: &QueueName) -> Self {
        let left_out = mongo.left_out.of(queue);
        let late = Instant::now() + mongo.connection.deadline() / READ_PART;
        Self { known: left_out.len(), left_out, round: 1, late }
    }

    /// The jobs that the next read leaves out.
    pub fn left_out(&self) -> &[RawId] {
        &self.left_out
    }

    /// How many more jobs than are wanted the next read asks for: as many as have stayed so far.
    pub fn more(&self) -> usize {
        self.left_out.len() - self.known
    }

    /// Notes what stayed in the last read. Returns whether another one may follow.
    pub fn go_on(&mut self, stay: Vec<RawId>) -> bool {
        self.left_out.extend(stay);
        self.round += 1;
        self.round <= ROUNDS && self.left_out.len() < LEFT_OUT_MAX && Instant::now() < self.late
    }
}

/// Returns until when a call that begins now may make such jobs dead.
pub fn end(mongo: &Mongo) -> Instant {
    Instant::now() + mongo.connection.deadline() / PART
}

/// Makes these jobs of a queue dead. Returns nothing once they are; else the ids of all of them, which the reads of this call are to leave
/// out. Those of later calls do so for a while where it has failed, or was not over by the end.
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
    let buried =
        if Instant::now() < end { Some(bury::bury(mongo, &spoiled, end, rules).await) } else { None };
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

/// Returns whether it was tried lately to make this job dead, in vain.
pub fn stays(mongo: &Mongo, job: &Stored) -> bool {
    let queue = Row(job).text::<QueueName>("queue");
    queue.is_ok_and(|queue| job.raw_id().is_ok_and(|id| mongo.left_out.has(&queue, &id)))
}

/// Makes jobs of any queues dead whose time is over, and which are in no batch. What fails is not tried again for a while: it would be
/// read first each time, and take as long. Returns whether the next read comes further: some are dead now, or are passed over from now on.
pub async fn clear_overdue(mongo: &Mongo, jobs: &[&Stored]) -> bool {
    if jobs.is_empty() {
        return false;
    }
    match bury::bury_uncounted(mongo, jobs, end(mongo)).await {
        Ok(buried) => buried > 0,
        Err(error) => {
            tracing::error!(error = chain(&error), "jobs that cannot be read could not be made dead");
            for job in jobs {
                if let (Ok(queue), Ok(id)) = (Row(job).text::<QueueName>("queue"), job.raw_id()) {
                    mongo.left_out.note(&queue, &[id]);
                }
            }
            jobs.iter().any(|job| stays(mongo, job))
        }
    }
}
