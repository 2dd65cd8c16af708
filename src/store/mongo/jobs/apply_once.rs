//! Changes of a call that carries an `Idempotency-Key`: all of them in one transaction, together with its answer.

use std::collections::HashMap;

use futures::TryStreamExt;
use mongodb::bson::doc;

use crate::job::push::Room;
use crate::job::trace::{OfJob, inherits};
use crate::job::transition::{Next, OfUnreadable, Operation, Refusal, Surroundings, missing, step};
use crate::job::{JobId, Meta, QueueName, Rules, Timestamp};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::answers::record;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::apply_atomic::{CarryOut, Written};
use crate::store::mongo::jobs::document::{Row, to_meta, trace_of, without_contents, without_long};
use crate::store::mongo::jobs::plan::Plan;
use crate::store::mongo::jobs::query;
use crate::store::mongo::jobs::unreadable::{Removable, removable};
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{self, Transaction, Tx, TxError, Verdict};
use crate::store::{Applied, Change, Denied, Keyed, Once, Result, Store as _, StoreError};

/// How often changes are planned at most, where they conflict with others.
const ATTEMPTS: usize = 6;

type Answer = Result<Applied, Denied>;
type Found = Result<(Meta, OfJob), Box<Spoiled>>;

/// A job that cannot be read.
struct Spoiled {
    document: Stored,
    why: StoreError,
}

/// Applies changes of different jobs, unless the call was answered before.
pub async fn apply(
    mongo: &Mongo,
    changes: &[Change],
    rules: &Rules,
    keyed: &Keyed<Vec<Answer>>,
) -> Result<Once<Vec<Answer>>> {
    let end = mongo.connection.end();
    for _ in 0..ATTEMPTS {
        let Planned { mut plans, mut denied } =
            mongo.connection.until(end, planned(mongo, changes, rules)).await?;
        plans.iter().filter_map(|(_, plan)| plan.written()).for_each(|meta| mongo.indexes.note(meta));
        let deadlines: Vec<Timestamp> = plans.iter().filter_map(|(_, plan)| plan.expires_at()).collect();
        let joined = plans.iter().filter_map(|(_, plan)| plan.joined().cloned());
        let limited = limited(&plans, rules);
        let locks = mongo.connection.until(end, async {
            let queues = mongo.queue_mutex.lock(limited.iter().cloned()).await;
            let groups = mongo.group_mutex.lock(joined).await;
            Ok(((queues, groups), query::room(mongo, &limited, &[], rules).await?))
        });
        let (_locks, mut room) = locks.await?;
        let full = plans.extract_if(.., |(_, plan)| plan.target().is_some_and(|queue| !room.take(queue)));
        denied.extend(full.map(|(n, _)| (n, Denied::Refused(Refusal::Full))));
        let carry_out = CarryOut { plans: &mut plans, room: Room::default(), rules };
        let change = ChangeOnce { carry_out, denied: &denied, count: changes.len(), keyed };
        let changed = transaction::until(mongo, end).run(change).await?;
        mongo.deadlines.note(deadlines);
        if let Some(once) = changed {
            return Ok(once);
        }
    }
    Err(StoreError::unavailable("the jobs were changed by others again and again"))
}

/// The queues with limited room that jobs are moved to.
fn limited(plans: &[(usize, Plan)], rules: &Rules) -> Vec<QueueName> {
    let targets = plans.iter().filter_map(|(_, plan)| plan.target());
    let mut limited: Vec<QueueName> =
        targets.filter(|queue| rules.max_jobs(queue).is_some()).cloned().collect();
    limited.sort();
    limited.dedup();
    limited
}

/// Reads the jobs as they are, past all caches: what is refused here is reported to the client.
async fn read(mongo: &Mongo, changes: &[Change]) -> Result<HashMap<JobId, Found>> {
    if changes.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<&str> = changes.iter().map(|change| change.id.as_str()).collect();
    let jobs = mongo.collection(JOBS).await?;
    let has_heirs = changes.iter().any(|change| inherits(change.operation.pushes()));
    let projection = if has_heirs { without_long() } else { without_contents() };
    let cursor = jobs.find(doc! { "_id": { "$in": ids } }).projection(projection).await;
    let documents: Vec<Stored> = cursor.map_err(fault)?.try_collect().await.map_err(fault)?;
    let found = documents.into_iter().filter_map(|document| {
        let id = Row(&document).text::<JobId>("_id").ok()?;
        let meta = to_meta(&document);
        let found = match meta {
            Ok(meta) => Ok((meta, trace_of(&document))),
            Err(error) => Err(Box::new(Spoiled { document, why: error.unreadable() })),
        };
        Some((id, found))
    });
    Ok(found.collect())
}

/// Elements with the indexes of their changes.
type Indexed<T> = Vec<(usize, T)>;

/// What is to be done, and what is refused, by the indexes of the changes.
pub struct Planned {
    pub plans: Indexed<Plan>,
    pub denied: Indexed<Denied>,
}

/// Plans changes of different jobs. What they write is written in a transaction that begins afterwards.
pub async fn planned(mongo: &Mongo, changes: &[Change], rules: &Rules) -> Result<Planned> {
    let mut found = read(mongo, changes).await?;
    let now = mongo.now()?;
    let (mut plans, mut denied) = (Vec::new(), Vec::new());
    for (n, change) in changes.iter().enumerate() {
        let around = Surroundings { now, rules, chance: rand::random() };
        let planned = match found.remove(&change.id) {
            Some(Ok((meta, trace))) => {
                let mut planned = plan(meta, &change.operation, around);
                if let Ok(plan) = &mut planned {
                    plan.inherit(&trace);
                }
                planned
            }
            Some(Err(spoiled)) => plan_of_spoiled(*spoiled, &change.operation, around),
            None => Err(Denied::Refused(missing(&change.operation))),
        };
        match planned {
            Ok(plan) => plans.push((n, plan)),
            Err(why) => denied.push((n, why)),
        }
    }
    Ok(Planned { plans, denied })
}

/// Plans a change of a job.
fn plan(meta: Meta, operation: &Operation, around: Surroundings<'_>) -> Result<Plan, Denied> {
    match step(&meta, operation, around) {
        Ok(step) if step.next == Next::Keep => Err(Denied::Refused(Refusal::Unknown)),
        Ok(step) => Ok(Plan::new(meta, step, operation, around.now)),
        Err(refusal) => Err(Denied::Refused(refusal)),
    }
}

/// Plans a change of a job that cannot be read: what removes it goes on with what can be read, and all else is denied.
fn plan_of_spoiled(
    spoiled: Spoiled,
    operation: &Operation,
    around: Surroundings<'_>,
) -> Result<Plan, Denied> {
    match (operation.of_unreadable(), removable(&spoiled.document)) {
        (OfUnreadable::Remove(removal), Some(Removable { meta, guard })) => {
            plan(meta, &removal, around).map(|plan| plan.found_by(guard))
        }
        _ => Err(Denied::Store(spoiled.why)),
    }
}

/// Changes and their answer. Done: nothing where a job is not as it was read.
///
/// Idempotence: the answer has the id of the call, and is written with the jobs; whichever attempt of whichever server stores
/// it first, all others find it.
struct ChangeOnce<'a> {
    carry_out: CarryOut<'a>,
    denied: &'a [(usize, Denied)],
    count: usize,
    keyed: &'a Keyed<Vec<Answer>>,
}

impl Transaction for ChangeOnce<'_> {
    type Done = Option<Once<Vec<Answer>>>;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Done>, TxError> {
        if let Some(before) = record::find(&self.keyed.call, tx).await? {
            return Ok(Verdict::Commit(Some(Once::Before(before))));
        }
        let mut all: Vec<Answer> = (0..self.count).map(|_| Err(Denied::Refused(Refusal::Unknown))).collect();
        for (n, denied) in self.denied {
            all[*n] = Err(denied.clone());
        }
        if !self.carry_out.plans.is_empty() {
            match self.carry_out.attempt(tx).await? {
                Verdict::Commit(Written::Done(together)) => {
                    for (n, applied) in together.applied(self.carry_out.plans) {
                        all[n] = Ok(applied);
                    }
                }
                Verdict::Commit(_) | Verdict::Abort(_) => return Ok(Verdict::Abort(None)),
            }
        }
        let Some(answer) = self.keyed.answered(&all) else {
            return Ok(Verdict::Abort(Some(Once::Now(all, None))));
        };
        record::keep(&self.keyed.call, &answer, tx).await?;
        Ok(Verdict::Commit(Some(Once::Now(all, Some(answer)))))
    }
}
