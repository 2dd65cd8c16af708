//! Pushes whose jobs are stored in one transaction: with an `Idempotency-Key`, together with the answer; and all or none.

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::faults;
use crate::job::push::{PushRefused, Pushed, Room};
use crate::job::{NewJob, QueueName, Rules};
use crate::store::mongo::Mongo;
use crate::store::mongo::answers;
use crate::store::mongo::jobs::groups::Lines;
use crate::store::mongo::jobs::push;
use crate::store::mongo::jobs::query;
use crate::store::mongo::transaction::{self, Transaction, Tx, TxError, Verdict};
use crate::store::{Keyed, Once, Result};

/// Stores jobs, unless the call was answered before.
pub async fn push(
    mongo: &Mongo,
    jobs: &[NewJob],
    rules: &Rules,
    keyed: &Keyed<Vec<Pushed>>,
) -> Result<Once<Vec<Pushed>>> {
    let end = mongo.connection.end();
    let (_locks, room) = room(mongo, jobs, rules, end).await?;
    let jobs: Vec<&NewJob> = jobs.iter().collect();
    Ok(transaction::until(mongo, end).run(Push { jobs, room, keyed }).await?)
}

/// Stores all of these jobs, or none of them.
pub async fn push_all(
    mongo: &Mongo,
    jobs: &[NewJob],
    rules: &Rules,
    keyed: Option<&Keyed<Vec<Pushed>>>,
) -> Result<Result<Once<Vec<Pushed>>, PushRefused>> {
    let end = mongo.connection.end();
    let (_locks, room) = room(mongo, jobs, rules, end).await?;
    let jobs: Vec<&NewJob> = jobs.iter().collect();
    Ok(transaction::until(mongo, end).run(PushAll { jobs, room, keyed }).await?)
}

/// Keeps others of this server from the room of queues, and from the lines of groups.
type Locks = (Vec<OwnedMutexGuard<()>>, Vec<OwnedMutexGuard<()>>);

/// Counts the room in the queues of these jobs, and keeps other pushes of this server from it.
async fn room(mongo: &Mongo, jobs: &[NewJob], rules: &Rules, end: Instant) -> Result<(Locks, Room)> {
    let mut limited: Vec<QueueName> = jobs.iter().map(|job| job.queue.clone()).collect();
    limited.retain(|queue| rules.max_jobs(queue).is_some());
    limited.sort();
    limited.dedup();
    let counting = mongo.connection.until(end, async {
        let locks = mongo.queue_mutex.lock(limited.iter().cloned()).await;
        let group_locks = mongo.group_mutex.lock(jobs.iter().filter_map(push::line)).await;
        Ok(((locks, group_locks), query::room(mongo, &limited, &[], rules).await?))
    });
    let counted = counting.await?;
    faults::point("push.room").await;
    Ok(counted)
}

/// A push and its answer.
///
/// Idempotence: the answer has the id of the call, and is written with the jobs; whichever attempt of whichever server stores
/// it first, all others find it.
struct Push<'a> {
    jobs: Vec<&'a NewJob>,
    room: Room,
    keyed: &'a Keyed<Vec<Pushed>>,
}

impl Transaction for Push<'_> {
    type Done = Once<Vec<Pushed>>;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Done>, TxError> {
        if let Some(before) = answers::find(&self.keyed.call, tx).await? {
            return Ok(Verdict::Commit(Once::Before(before)));
        }
        let (mut room, mut lines) = (self.room.clone(), Lines::default());
        let mut resolved = push::resolve(&self.jobs, &mut room, &mut lines, tx).await?;
        let pushed = std::mem::take(&mut resolved.pushed);
        let Some(answer) = self.keyed.answered(&pushed) else {
            return Ok(Verdict::Abort(Once::Now(pushed, None)));
        };
        lines.write(tx).await?;
        tx.record_jobs(resolved.stored()).await?;
        push::write(resolved, tx).await?;
        answers::keep(&self.keyed.call, &answer, tx).await?;
        Ok(Verdict::Commit(Once::Now(pushed, Some(answer))))
    }
}

/// A push of all jobs or none.
///
/// Idempotence: without a key as that of jobs with keys in `push.rs`, within the call; with one as above.
struct PushAll<'a> {
    jobs: Vec<&'a NewJob>,
    room: Room,
    keyed: Option<&'a Keyed<Vec<Pushed>>>,
}

impl Transaction for PushAll<'_> {
    type Done = Result<Once<Vec<Pushed>>, PushRefused>;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Done>, TxError> {
        if let Some(keyed) = self.keyed
            && let Some(before) = answers::find(&keyed.call, tx).await?
        {
            return Ok(Verdict::Commit(Ok(Once::Before(before))));
        }
        let (mut room, mut lines) = (self.room.clone(), Lines::default());
        let mut resolved = push::resolve(&self.jobs, &mut room, &mut lines, tx).await?;
        let pushed = std::mem::take(&mut resolved.pushed);
        let children = pushed.iter().cloned().zip(&self.jobs).enumerate();
        for (index, (pushed, job)) in children {
            if let Err(refused) = pushed.into_child(index, job) {
                return Ok(Verdict::Abort(Err(refused)));
            }
        }
        lines.write(tx).await?;
        tx.record_jobs(resolved.stored()).await?;
        push::write(resolved, tx).await?;
        let answer = self.keyed.and_then(|keyed| keyed.answered(&pushed));
        if let (Some(keyed), Some(answer)) = (self.keyed, &answer) {
            answers::keep(&keyed.call, answer, tx).await?;
        }
        Ok(Verdict::Commit(Ok(Once::Now(pushed, answer))))
    }
}
