//! Plans that happen together with other documents, or not at all: receipts, the jobs that a commit pushes, and
//! the batches whose jobs end.

use std::collections::HashMap;

use tokio::time::Instant;

use crate::job::push::{Room, limited};
use crate::job::receipt::Receipt;
use crate::job::transition::Refusal;
use crate::job::{BatchId, Child, JobId, Meta, NewJob, QueueName, Rules, State};
use crate::store::audit::Seen;
use crate::store::mongo::Mongo;
use crate::store::mongo::batches;
use crate::store::mongo::jobs::bury;
use crate::store::mongo::jobs::groups::{self, Lines};
use crate::store::mongo::jobs::plan::{Plan, deletions};
use crate::store::mongo::jobs::push;
use crate::store::mongo::jobs::query;
use crate::store::mongo::jobs::receipts;
use crate::store::mongo::jobs::rewrite::{self, Rewrite};
use crate::store::mongo::transaction::{self, Failed, Transaction, Tx, TxError, Verdict};
use crate::store::{Applied, CalledBack, Denied, PushRefused, Pushed, Result, Store as _, StoreError};

/// How many plans share a transaction at most: what is large ends in parts, each within the deadline, and what is done by then is done.
const TOGETHER: usize = 100;

/// The result of a transaction.
pub enum Written {
    /// All of it is stored.
    Done(Together),
    /// A conflict: a job is not as it was read, or the next one of a line had to be made dead. Nothing was stored.
    Stale,
    /// A job that was to be pushed is refused; nothing was stored.
    Refused(PushRefused),
    /// This job has the key that the one of the plan was to get; nothing was stored.
    KeyTaken(JobId),
}

/// What was stored together with the plans.
#[derive(Default)]
pub struct Together {
    /// For each plan, the jobs that it pushed.
    pushed: Vec<Vec<Child>>,
    /// The callbacks of batches that ended.
    callbacks: HashMap<BatchId, CalledBack>,
    /// The jobs whose turn has come.
    next: Vec<groups::Next>,
}

impl Together {
    /// The results of the plans that were carried out, with the indexes of their changes.
    pub fn applied(mut self, plans: &[(usize, Plan)]) -> Vec<(usize, Applied)> {
        let pushed = std::mem::take(&mut self.pushed);
        let applied = |((n, plan), pushed): (&(usize, Plan), Vec<Child>)| {
            let callback = plan.finish().and_then(|finish| self.callbacks.remove(&finish.batch));
            let unblocked = self.next_of(plan).iter().map(groups::Next::arrival).collect();
            (*n, Applied { unblocked, ..plan.applied(pushed, callback) })
        };
        plans.iter().zip(pushed).map(applied).collect()
    }

    /// Takes out whose turn has come with this plan.
    fn next_of(&mut self, plan: &Plan) -> Option<groups::Next> {
        let vacated = plan.vacated()?;
        let index = self.next.iter().position(|next| next.line == vacated.line)?;
        Some(self.next.swap_remove(index))
    }
}

/// How many jobs the plans of one transaction push at most, where there are several plans.
const PUSHED_TOGETHER: usize = 1000;

/// How many purges share a transaction at most.
const PURGED_TOGETHER: usize = 512;

/// Writes plans in transactions.
pub struct Writer<'a> {
    pub mongo: &'a Mongo,
    pub rules: &'a Rules,
    /// How often the changes were planned before.
    pub attempt: usize,
    /// The deadline of the call.
    pub end: Instant,
    /// By the indexes of the changes.
    pub answers: &'a mut Vec<Option<Result<Applied, Denied>>>,
    /// Plans whose outcome is unknown.
    pub unknown: &'a mut HashMap<JobId, Plan>,
}

impl Writer<'_> {
    /// Plans in transactions, which several of them share.
    pub async fn write(&mut self, plans: Vec<(usize, Plan)>) -> Result<()> {
        let rules = self.rules;
        let may_be_refused = |job: &NewJob| job.key.is_some() || rules.max_jobs(&job.queue).is_some();
        let (purges, plans): (Vec<_>, Vec<_>) = plans.into_iter().partition(|(_, plan)| plan.purges());
        let (refusable, together): (Vec<_>, Vec<_>) = plans
            .into_iter()
            .partition(|(_, plan)| plan.pushes.iter().any(may_be_refused) || plan.taken().is_some());
        // One of them that others have changed stops all of its transaction: from then on fewer share one.
        let fewer = |most: usize| (most >> (3 * self.attempt).min(9)).max(1);
        let (at_once, most) = (fewer(TOGETHER), fewer(PURGED_TOGETHER));
        // The first to be written is the last of these.
        let mut parts = parts_of(refusable, at_once);
        parts.extend(parts_of(purges, most));
        parts.extend(parts_of(together, at_once));
        let mut outcome = Ok(());
        while let Some(part) = parts.pop() {
            match self.write_in_one(part).await {
                Ok(mut refused) if !refused.is_empty() => {
                    // Each half for itself, until the refused one is alone: then the refusal is its own.
                    let second = refused.split_off(refused.len() / 2);
                    parts.extend([second, refused]);
                }
                Ok(_) => {}
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// Returns the plans again where there are several, nothing of them was stored, and one of them was refused.
    async fn write_in_one(&mut self, plans: Vec<(usize, Plan)>) -> Result<Vec<(usize, Plan)>> {
        if plans.is_empty() {
            return Ok(plans);
        }
        let (mongo, rules) = (self.mongo, self.rules);
        let pushes = |plan: &Plan| plan.pushes.iter().map(|job| job.queue.clone()).collect::<Vec<_>>();
        let entered =
            plans.iter().flat_map(|(_, plan)| plan.target().cloned().into_iter().chain(pushes(plan)));
        let limited = limited(entered, rules);
        let _locks = mongo.queue_mutex.lock(limited.iter().cloned()).await;
        // Where a job only leaves its line, conflicts are rare enough not to wait for others.
        let joined = plans.iter().flat_map(|(_, plan)| {
            plan.joined().cloned().into_iter().chain(plan.pushes.iter().filter_map(push::line))
        });
        let _group_locks = mongo.group_mutex.lock(joined).await;
        // A job that is committed makes room in its queue.
        let leaving = plans.iter().filter(|(_, plan)| !plan.pushes.is_empty());
        let leaving: Vec<&QueueName> = leaving.map(|(_, plan)| &plan.meta.queue).collect();
        let mut room = query::room(mongo, &limited, &leaving, rules).await?;
        let mut fitting = Vec::new();
        for (n, plan) in plans {
            if plan.target().is_none_or(|queue| room.take(queue)) {
                fitting.push((n, plan));
            } else {
                self.answers[n] = Some(Err(Denied::Refused(Refusal::Full)));
            }
        }
        if fitting.is_empty() {
            return Ok(fitting);
        }
        let carry_out = CarryOut { plans: &mut fitting, room, rules };
        let written = transaction::until(mongo, self.end).run(carry_out).await;
        self.conclude(fitting, written)
    }

    /// Records the results that are certain. Returns the plans that are to be written again in smaller parts.
    fn conclude(
        &mut self,
        plans: Vec<(usize, Plan)>,
        written: Result<Written, Failed>,
    ) -> Result<Vec<(usize, Plan)>> {
        match written {
            Ok(Written::Refused(_) | Written::KeyTaken(_))
            | Err(Failed::NotStored(StoreError::NotUnique(_)))
                if plans.len() > 1 =>
            {
                return Ok(plans);
            }
            Ok(Written::Done(together)) => {
                for (n, applied) in together.applied(&plans) {
                    self.answers[n] = Some(Ok(applied));
                }
            }
            Ok(Written::Stale) => {} // plan again
            Ok(Written::Refused(refused)) => {
                for (n, _) in plans {
                    self.answers[n] = Some(Err(Denied::PushRefused(refused.clone())));
                }
            }
            Ok(Written::KeyTaken(holder)) => {
                for (n, _) in plans {
                    self.answers[n] = Some(Err(Denied::KeyTaken(holder.clone())));
                }
            }
            Err(Failed::NotStored(error @ StoreError::NotUnique(_))) => {
                for (n, _) in plans {
                    self.answers[n] = Some(Err(Denied::Store(error.clone())));
                }
            }
            Err(failed) => {
                if let Failed::Unknown(_) = &failed {
                    let lost = |(_, plan): (usize, Plan)| (plan.meta.id.clone(), plan.lost());
                    self.unknown.extend(plans.into_iter().map(lost));
                }
                return Err(failed.into());
            }
        }
        Ok(Vec::new())
    }
}

/// Returns the plans in parts of up to `most`, the last part first.
fn parts_of(plans: Vec<(usize, Plan)>, most: usize) -> Vec<Vec<(usize, Plan)>> {
    let (mut parts, mut pushed) = (Vec::new(), 0);
    for plan in plans {
        let own = plan.1.pushes.len();
        match parts.last_mut() {
            Some(part) if Vec::len(part) < most && pushed + own <= PUSHED_TOGETHER => {
                part.push(plan);
                pushed += own;
            }
            _ => {
                parts.push(vec![plan]);
                pushed = own;
            }
        }
    }
    parts.reverse();
    parts
}

/// Plans that are carried out in one transaction: moves, commits that push or are of a batch, forced cancels, what
/// leaves a line.
///
/// Idempotence: a plan is guarded by the `rev` that was read, so that it is carried out once, whichever attempt does it.
/// One whose outcome is unknown is planned again only once its receipt, its `rev` or its absence shows what became of
/// it. What is stored beside the jobs (receipts, pushes, counts of batches, callbacks, whose turn has come) is stored
/// with them or not at all, and the receipt keeps the ids of what was pushed: a repeat at any server gets
/// its result from it.
pub struct CarryOut<'a> {
    pub plans: &'a mut [(usize, Plan)],
    pub room: Room,
    pub rules: &'a Rules,
}

impl Transaction for CarryOut<'_> {
    type Done = Written;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Written>, TxError> {
        let Self { plans, rules, .. } = self;
        let (mut room, mut lines) = (self.room.clone(), Lines::default());
        let Some(mut next) = line_up(plans, &mut lines, rules, tx).await? else {
            return Ok(Verdict::Abort(Written::Stale));
        };
        let counted = batches::count(plans.iter().filter_map(|(_, plan)| plan.finish()), tx).await?;
        if !write_jobs(plans, &mut next, tx).await? {
            return Ok(Verdict::Abort(Written::Stale));
        }
        let freed: Vec<_> = plans.iter().filter_map(|(_, plan)| Some((&plan.meta, plan.freed()?))).collect();
        push::free(&freed, tx).await?;
        for (hold, moved, payload) in plans.iter().filter_map(|(_, plan)| plan.taken()) {
            if let Some(holder) = push::move_key(hold, moved, payload, tx).await? {
                return Ok(Verdict::Abort(Written::KeyTaken(holder)));
            }
        }
        let jobs: Vec<&NewJob> = plans.iter().flat_map(|(_, plan)| &plan.pushes).collect();
        let mut resolved = push::resolve(&jobs, &mut room, &mut lines, tx).await?;
        let pushed = match children(plans, &jobs, std::mem::take(&mut resolved.pushed)) {
            Ok(children) => children,
            Err(refused) => return Ok(Verdict::Abort(Written::Refused(refused))),
        };
        let callbacks = batches::conclude(counted, rules, tx).await?;
        lines.load(callbacks.iter().filter_map(|(_, job)| push::line(job)), tx).await?;
        let now = tx.mongo.now()?;
        for (_, callback) in &callbacks {
            resolved.add(callback, &mut lines, now)?;
        }
        lines.write(tx).await?;
        let receipts = plans.iter().zip(&pushed).filter_map(|((_, plan), pushed)| plan.receipt(pushed));
        receipts::insert(&receipts.collect::<Vec<Receipt>>(), tx).await?;
        push::write(resolved, tx).await?;
        if let Some((_, plan)) = plans.first().filter(|_| tx.acts_on_one_job()) {
            tx.sees(Seen::of_job(&plan.meta, &plan.step.next, now));
        }
        tx.record_jobs(plans.len()).await?;
        note(plans, &next, tx);
        let callbacks = callbacks.iter().map(|(batch, callback)| (batch.clone(), CalledBack::from(callback)));
        let callbacks = callbacks.collect();
        Ok(Verdict::Commit(Written::Done(Together { pushed, callbacks, next })))
    }
}

/// What the commit does to the numbers of jobs, and which of them it makes ready.
fn note(plans: &[(usize, Plan)], next: &[groups::Next], tx: &mut Tx<'_>) {
    for (_, plan) in plans {
        tx.changes.stepped(&plan.meta, &plan.step.next);
        if let Some((queue, position)) = plan.position() {
            tx.becomes_ready(queue, position);
        }
    }
    for next in next {
        tx.changes.moved(&next.line.queue, State::Blocked, State::Ready, 1);
        tx.becomes_ready(&next.line.queue, next.position);
    }
}

/// Writes what the plans say of the jobs themselves, and those whose turn has come. False if one of them is not as
/// it was read.
async fn write_jobs(
    plans: &[(usize, Plan)],
    next: &mut [groups::Next],
    tx: &mut Tx<'_>,
) -> Result<bool, TxError> {
    let now = tx.mongo.now()?;
    let mut changes = Vec::with_capacity(plans.len() + next.len());
    for (_, plan) in plans {
        let Meta { id, rev, state, .. } = &plan.meta;
        changes.extend(plan.update(now)?.map(|update| Rewrite {
            id: id.as_str().to_owned(),
            rev: *rev,
            from: *state,
            update,
            document: None,
        }));
    }
    changes.extend(groups::unblocking(next));
    let leaving: Vec<&Plan> = plans.iter().map(|(_, plan)| plan).filter(|plan| plan.deletes()).collect();
    let found = rewrite::write(changes, deletions(&leaving), tx).await?;
    Ok(found == (plans.len() + next.len()) as u64)
}

/// Takes the jobs out of the lines that they leave, sees whose turn has come, and puts those that come to a line at its
/// end. Nothing where one of the next jobs could not be read.
async fn line_up(
    plans: &mut [(usize, Plan)],
    lines: &mut Lines,
    rules: &Rules,
    tx: &mut Tx<'_>,
) -> Result<Option<Vec<groups::Next>>, TxError> {
    plans.iter().filter_map(|(_, plan)| plan.vacated()).for_each(|vacated| lines.vacate(vacated));
    let Some(next) = bury::advance(lines, rules, tx).await? else { return Ok(None) };
    lines.load(plans.iter().filter_map(|(_, plan)| plan.joined().cloned()), tx).await?;
    for (_, plan) in plans {
        if let Some(line) = plan.joined() {
            let (turn, is_first) = lines.join(line);
            plan.step.join_line(turn, is_first);
        }
    }
    Ok(Some(next))
}

/// The jobs that each plan pushes, unless one of them is refused.
fn children(
    plans: &[(usize, Plan)],
    jobs: &[&NewJob],
    pushed: Vec<Pushed>,
) -> Result<Vec<Vec<Child>>, PushRefused> {
    let mut pushed = jobs.iter().zip(pushed);
    let of_plan = |(_, plan): &(usize, Plan)| {
        let own = pushed.by_ref().take(plan.pushes.len()).enumerate();
        own.map(|(index, (job, pushed))| pushed.into_child(index, job)).collect()
    };
    plans.iter().map(of_plan).collect()
}
