//! Pushes that carry an `Idempotency-Key`: all jobs of one in a transaction, together with its answer.

use crate::faults;
use crate::job::push::{Pushed, Room};
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
    let mut limited: Vec<QueueName> = jobs.iter().map(|job| job.queue.clone()).collect();
    limited.retain(|queue| rules.max_jobs(queue).is_some());
    limited.sort();
    limited.dedup();
    let counting = mongo.connection.until(end, async {
        let locks = mongo.queue_mutex.lock(limited.iter().cloned()).await;
        let group_locks = mongo.group_mutex.lock(jobs.iter().filter_map(push::line)).await;
        Ok(((locks, group_locks), query::room(mongo, &limited, None, rules).await?))
    });
    let (_locks, room) = counting.await?;
    faults::point("push.room").await;
    let jobs: Vec<&NewJob> = jobs.iter().collect();
    Ok(transaction::until(mongo, end).run(Push { jobs, room, keyed }).await?)
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
        push::write(resolved, tx).await?;
        answers::keep(&self.keyed.call, &answer, tx).await?;
        Ok(Verdict::Commit(Once::Now(pushed, Some(answer))))
    }
}
