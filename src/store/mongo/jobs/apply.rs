//! Changes to jobs that are there: read, plan with [`step`], write what the plan says, guarded by `rev`.
//!
//! `rev` is a random number that every write replaces. A write therefore happens only if nothing happened to the job since it
//! was read, and a document that carries the `rev` of a plan proves that the plan was carried out, even when the reply to the
//! write was lost. What was not carried out is planned again: optimistic concurrency, retried up to [`ATTEMPTS`] times.

use std::collections::{HashMap, HashSet};

use futures::TryStreamExt;
use mongodb::bson::{Document, doc};
use tokio::time::Instant;

use crate::faults;
use crate::job::state::Verb;
use crate::job::trace::{OfJob, inherits};
use crate::job::transition::{Next, OfUnreadable, Operation, Refusal, Step, Surroundings, missing, step};
use crate::job::{JobId, Meta, Rules, Timestamp, proven_by_absence_until};
use crate::store::audit;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{barrier, fault, parts, strict, write_strict};
use crate::store::mongo::jobs::apply_atomic::Writer;
use crate::store::mongo::jobs::bury;
use crate::store::mongo::jobs::deletion::delete;
use crate::store::mongo::jobs::document::{Row, to_job, to_meta, trace_of, without_contents, without_long};
use crate::store::mongo::jobs::passes::Pass;
use crate::store::mongo::jobs::plan::Plan;
use crate::store::mongo::jobs::proof;
use crate::store::mongo::jobs::proof::{Evidence, Proof, Questions};
use crate::store::mongo::jobs::unreadable::{Removable, removable};
use crate::store::mongo::stored::Stored;
use crate::store::{Applied, Cause, Change, Denied, Result, Store as _, StoreError, Term, chain};

/// How often changes are planned at most, where they conflict with others.
const ATTEMPTS: usize = 6;
/// How many passes a call makes at most: that many changes of one job, each of which differs from the others.
const PASSES: usize = 8;

type Answer = Result<Applied, Denied>;

/// Applies changes in order; those to different jobs travel together.
pub async fn apply(mongo: &Mongo, changes: Vec<Change>, rules: &Rules) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = changes.iter().map(|_| None).collect();
    let mut waiting: Vec<(usize, Change)> = changes.into_iter().enumerate().collect();
    // One deadline for all of it, and few passes: many changes of one job must not keep those of others waiting.
    let end = mongo.connection.end();
    let mut passes = 0;
    while !waiting.is_empty() && passes < PASSES && Instant::now() < end {
        passes += 1;
        let mut pass = Pass::of(waiting);
        let mut round = Round {
            mongo,
            rules,
            end,
            attempt: 0,
            pending: std::mem::take(&mut pass.changes),
            sent: HashMap::new(),
            traces: HashMap::new(),
            removals: HashMap::new(),
            answers: &mut answers,
        };
        let late = |_| Err(StoreError::unavailable("the changes did not end in time"));
        if let Err(error) = tokio::time::timeout_at(end, round.run()).await.unwrap_or_else(late) {
            for (n, _) in round.pending {
                answers[n].get_or_insert_with(|| Err(error.clone().into()));
            }
        }
        waiting = pass.rest(&mut answers);
    }
    for (n, _) in waiting {
        answers[n] = Some(Err(StoreError::unavailable("too many changes of one job came at once").into()));
    }
    let unanswered = || Err(StoreError::internal("a change was left unanswered").into());
    answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
}

/// A job that cannot be read.
struct Spoiled {
    document: Stored,
    why: String,
}

/// How a job is removed that cannot be read.
struct Removal {
    operation: Operation,
    /// See [`Plan::found_by`].
    guard: Option<Document>,
}

/// What an earlier plan of a change means for it.
enum Earlier {
    /// The change is planned.
    Plan {
        /// See [`Plan::earlier`].
        revs: Vec<i64>,
        is_overtaken: bool,
    },
    /// It was carried out.
    Done(Applied),
    /// That will not be known.
    Unknown,
}

/// A change, its job as that was found, and what the one would do to the other.
struct Judged {
    n: usize,
    change: Change,
    meta: Option<Meta>,
    step: Result<Step, Refusal>,
}

/// The error of a change whose job others have written, or removed, since it was sent.
fn unknown() -> StoreError {
    StoreError::unavailable("the job has been changed since by this call or by others")
}

/// Changes to different jobs on their way.
struct Round<'a> {
    mongo: &'a Mongo,
    rules: &'a Rules,
    end: Instant,
    /// How often they were planned before.
    attempt: usize,
    pending: Vec<(usize, Change)>,
    /// Plans that were sent and whose outcome is unknown, also once the change is planned again: they may land late.
    sent: HashMap<JobId, Plan>,
    /// The traces of those jobs that were read, or are remembered.
    traces: HashMap<JobId, OfJob>,
    /// Of those jobs that could not be read when they were read last. One that was mended since is not removed so.
    removals: HashMap<JobId, Removal>,
    answers: &'a mut Vec<Option<Answer>>,
}

/// Changes that seem to have been carried out, and their results.
type Proven = Vec<(usize, Applied)>;

impl Round<'_> {
    async fn run(&mut self) -> Result<()> {
        let mut trouble = StoreError::unavailable("the jobs were changed by others again and again");
        for attempt in 0..ATTEMPTS {
            self.attempt = attempt;
            self.removals.clear();
            let since = self.mongo.connection.term();
            let (mut metas, spoiled) =
                if attempt == 0 { self.recall().await? } else { self.read(self.ids()).await? };
            if !spoiled.is_empty() {
                self.set_aside(spoiled, &mut metas).await;
            }
            let (plans, proven) = self.plan(metas).await?;
            // What could not be confirmed, such as after a failover, is read again: the rest of the round goes on.
            if let Err(error) = self.confirm(proven, since).await {
                trouble = error;
            }
            if !self.goes_on() {
                return Ok(());
            }
            faults::point("apply.planned").await;
            plans
                .iter()
                .filter_map(|(_, plan)| plan.written())
                .for_each(|meta| self.mongo.indexes.note(meta));
            let deadlines: Vec<Timestamp> = plans.iter().filter_map(|(_, plan)| plan.expires_at()).collect();
            // An administrative act is written together with its row.
            let is_act = audit::row().is_some();
            let (atomic, plain): (Vec<_>, Vec<_>) =
                plans.into_iter().partition(|(_, plan)| is_act || plan.is_atomic());
            let results = [self.write_plain(plain).await, self.write_atomically(atomic).await];
            self.mongo.deadlines.note(deadlines);
            for result in results {
                // A refused statement leaves the others of its command as they should be: read again.
                if let Err(error) = result {
                    trouble = error;
                }
            }
            if !self.goes_on() {
                return Ok(());
            }
        }
        Err(trouble)
    }

    fn answer(&mut self, n: usize, answer: Answer) {
        self.answers[n] = Some(answer);
    }

    /// Whether changes are left that have no result yet.
    fn goes_on(&mut self) -> bool {
        self.pending.retain(|(n, _)| self.answers[*n].is_none());
        !self.pending.is_empty()
    }

    /// Plans that other documents belong to.
    async fn write_atomically(&mut self, plans: Vec<(usize, Plan)>) -> Result<()> {
        let Self { mongo, rules, end, attempt, ref mut answers, ref mut sent, .. } = *self;
        Writer { mongo, rules, attempt, end, answers, unknown: sent }.write(plans).await
    }

    /// Records the results of what is refused. Returns the plans of what is to be written, and what is done already if a majority has
    /// what was read.
    async fn plan(&mut self, metas: HashMap<JobId, Meta>) -> Result<(Vec<(usize, Plan)>, Proven)> {
        let now = self.mongo.now()?;
        let judged = self.judge(metas, now);
        let evidence = self.questions(&judged).answer(self.mongo).await?;
        let (mut plans, mut proven) = (Vec::new(), Vec::new());
        for Judged { n, change, meta, step } in judged {
            let earlier = self.earlier(&change, meta.as_ref(), &evidence);
            let found = earlier.and_then(|earlier| Ok((earlier, evidence.receipt_of(&change)?)));
            let (revs, is_overtaken, receipt) = match found {
                Ok((Earlier::Plan { revs, is_overtaken }, receipt)) => (revs, is_overtaken, receipt),
                Ok((Earlier::Done(applied), _)) => {
                    proven.push((n, applied));
                    continue;
                }
                Ok((Earlier::Unknown, _)) => {
                    self.answer(n, Err(unknown().into()));
                    continue;
                }
                Err(error) => {
                    self.answer(n, Err(error.into()));
                    continue;
                }
            };
            match (step, meta) {
                (Ok(step), Some(meta)) if step.next == Next::Keep => {
                    let plan = Plan::new(meta, step, &change.operation, now);
                    let kept = Applied { repeated: true, ..plan.applied(Vec::new(), None) };
                    proven.push((n, receipt.map_or(kept, Applied::from))); // it has more than history does
                }
                (Ok(step), Some(meta)) => {
                    let guard = self.removals.get(&change.id).and_then(|removal| removal.guard.clone());
                    let mut plan = Plan::new(meta, step, &change.operation, now).found_by(guard);
                    plan.inherit(self.traces.get(&change.id).unwrap_or(&OfJob::Unread));
                    plan.earlier = revs;
                    plans.push((n, plan));
                }
                (Ok(_), None) => self.answer(n, Err(Denied::Refused(Refusal::Unknown))),
                (Err(refusal), _) => match receipt.filter(|_| matches!(refusal, Refusal::Lost { .. })) {
                    Some(receipt) => proven.push((n, receipt.into())),
                    None if is_overtaken => self.answer(n, Err(unknown().into())),
                    None => self.answer(n, Err(Denied::Refused(refusal))),
                },
            }
        }
        Ok((plans, proven))
    }

    fn judge(&self, mut metas: HashMap<JobId, Meta>, now: Timestamp) -> Vec<Judged> {
        let judge = |(n, change): &(usize, Change)| {
            let (n, mut change, meta) = (*n, change.clone(), metas.remove(&change.id));
            if let Some(removal) = self.removals.get(&change.id) {
                change.operation = removal.operation.clone();
            }
            let around = Surroundings { now, rules: self.rules, chance: rand::random() };
            let step = match &meta {
                Some(meta) => step(meta, &change.operation, around),
                None => Err(missing(&change.operation)),
            };
            Judged { n, change, meta, step }
        };
        self.pending.iter().map(judge).collect()
    }

    /// What must be looked up before these changes are answered: what became of what was sent, and whether what would do nothing, or has
    /// lost its job, was done before.
    fn questions<'q>(&'q self, judged: &'q [Judged]) -> Questions<'q> {
        let mut questions = Questions::default();
        for Judged { change, meta, step, .. } in judged {
            if let Some(plan) = self.sent.get(&change.id) {
                questions.about_plan(plan, change, meta.as_ref());
            }
            let may_be_repeated = match step {
                Ok(step) => step.next == Next::Keep,
                Err(refusal) => matches!(refusal, Refusal::Lost { .. }),
            };
            if may_be_repeated {
                questions.about_call(change);
            }
        }
        questions
    }

    /// Records what was done already, as read since this term was noted.
    async fn confirm(&mut self, proven: Proven, since: Term) -> Result<()> {
        if !proven.is_empty() {
            barrier(&self.mongo.connection, since).await?;
            proven.into_iter().for_each(|(n, applied)| self.answer(n, Ok(applied)));
        }
        Ok(())
    }

    /// Returns what became of an earlier plan of this change, if its outcome was unknown.
    fn earlier(&self, change: &Change, meta: Option<&Meta>, evidence: &Evidence) -> Result<Earlier> {
        let Some(plan) = self.sent.get(&change.id) else {
            return Ok(Earlier::Plan { revs: Vec::new(), is_overtaken: false });
        };
        let proof = proof::of(self.mongo, plan, &change.operation, meta, evidence)?;
        Ok(match proof {
            Proof::Done(applied) => Earlier::Done(applied),
            Proof::Unknown => Earlier::Unknown,
            Proof::Nothing | Proof::Overtaken => Earlier::Plan {
                revs: plan.earlier.iter().copied().chain([plan.rev]).collect(),
                is_overtaken: matches!(proof, Proof::Overtaken),
            },
        })
    }

    fn ids(&self) -> Vec<JobId> {
        self.pending.iter().map(|(_, change)| change.id.clone()).collect()
    }

    /// The jobs as they are in the cache of deliveries; those that are not in it are read. What may have been taken back is read
    /// as well, what a step compares with a `rev` or a deadline that was read, and what only asks whether it was done: an unguarded refusal
    /// must not come from memory.
    async fn recall(&mut self) -> Result<(HashMap<JobId, Meta>, Vec<Spoiled>)> {
        let now = self.mongo.now()?;
        let (mut metas, mut unknown) = (HashMap::with_capacity(self.pending.len()), Vec::new());
        for (_, Change { id, operation }) in &self.pending {
            let known = operation.claim().and_then(|claim| self.mongo.delivered.take(id, claim));
            let compares = matches!(operation.verb(), Verb::Abandon | Verb::Lapse)
                || matches!(operation, Operation::Recall { .. });
            let lacks_trace = |trace: &OfJob| *trace == OfJob::Unread && inherits(operation.pushes());
            // What was remembered so long ago may have been removed since, and the receipt of that be gone: its absence would prove nothing.
            let is_old = |meta: &Meta| proven_by_absence_until(meta).is_none_or(|until| until <= now);
            let known = known.filter(|(meta, trace)| !compares && !is_old(meta) && !lacks_trace(trace));
            match known {
                Some((meta, trace)) => {
                    metas.insert(id.clone(), meta);
                    self.traces.insert(id.clone(), trace);
                }
                None => unknown.push(id.clone()),
            }
        }
        let (read, spoiled) = self.read(unknown).await?;
        metas.extend(read);
        Ok((metas, spoiled))
    }

    /// Reads jobs. Returns the documents of those that cannot be read as well.
    async fn read(&mut self, ids: Vec<JobId>) -> Result<(HashMap<JobId, Meta>, Vec<Spoiled>)> {
        if ids.is_empty() {
            return Ok((HashMap::new(), Vec::new()));
        }
        let ids: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        let jobs = self.mongo.collection(JOBS).await?;
        let is_whole = self.pending.iter().any(|(_, change)| change.operation.looks_at_contents());
        let has_heirs = self.pending.iter().any(|(_, change)| inherits(change.operation.pushes()));
        let find = jobs.find(doc! { "_id": { "$in": ids } });
        let part = if has_heirs { without_long() } else { without_contents() };
        let cursor = if is_whole { find.await } else { find.projection(part).await };
        let documents: Vec<Stored> = cursor.map_err(fault)?.try_collect().await.map_err(fault)?;
        let (mut metas, mut spoiled) = (HashMap::with_capacity(documents.len()), Vec::new());
        for document in documents {
            let read = if is_whole { to_job(&document).map(|job| job.meta) } else { to_meta(&document) };
            match read {
                Ok(meta) => {
                    if has_heirs {
                        self.traces.insert(meta.id.clone(), trace_of(&document));
                    }
                    metas.insert(meta.id.clone(), meta);
                }
                Err(error) => spoiled.push(Spoiled { document, why: chain(&error) }),
            }
        }
        Ok((metas, spoiled))
    }

    /// Deals with jobs that cannot be read: what removes them goes on with what can be read. What fails fails for its job alone.
    async fn set_aside(&mut self, spoiled: Vec<Spoiled>, metas: &mut HashMap<JobId, Meta>) {
        for Spoiled { document, why } in &spoiled {
            tracing::error!(why, "a job cannot be read");
            let Ok(id) = Row(document).text::<JobId>("_id") else { continue };
            let Some((n, change)) = self.pending.iter().find(|(_, own)| own.id == id) else { continue };
            let answer = match change.operation.of_unreadable() {
                OfUnreadable::Remove(operation) => match removable(document) {
                    Some(Removable { meta, guard }) => {
                        metas.insert(id.clone(), meta);
                        self.removals.insert(id, Removal { operation, guard });
                        continue;
                    }
                    None => None,
                },
                OfUnreadable::Bury => {
                    let buried = bury::bury(self.mongo, &[document], self.end, self.rules).await;
                    Some(Err(buried.err().map_or(Denied::Refused(Refusal::Unknown), Denied::Store)))
                }
                OfUnreadable::Mend(mending) => {
                    let within = change.operation.within().cloned();
                    let mended = bury::mend(self.mongo, document, *mending, within, self.rules).await;
                    mended.unwrap_or_else(|error| Some(Err(Denied::Store(error))))
                }
                OfUnreadable::Refuse => None,
            };
            let refused = || Err(Denied::Store(StoreError::Unreadable(Cause(why.as_str().into()))));
            self.answers[*n] = Some(answer.unwrap_or_else(refused));
        }
        self.goes_on();
    }

    /// Deletions return how many jobs they found and not which. As long as a lease has not run out, only calls with
    /// the same token, and what leaves a receipt, conflict over its job, so that those may travel together; a job whose
    /// lease ran out may be taken back and delivered to others at any moment, and so is deleted alone.
    async fn write_plain(&mut self, plans: Vec<(usize, Plan)>) -> Result<()> {
        let now = self.mongo.now()?;
        let (late, prompt): (Vec<_>, Vec<_>) =
            plans.into_iter().partition(|(_, plan)| plan.deletes() && plan.meta.may_be_overdue(now));
        let mut outcome = self.write_together(prompt).await;
        for plan in late {
            outcome = outcome.and(self.write_together(vec![plan]).await);
        }
        outcome
    }

    /// One update command, whose reply shows what each of its statements did, and one delete command, whose reply does
    /// not. Results that are certain are recorded.
    async fn write_together(&mut self, plans: Vec<(usize, Plan)>) -> Result<()> {
        if plans.is_empty() {
            return Ok(());
        }
        let now = self.mongo.now()?;
        let update = |(_, plan): &(usize, Plan)| {
            plan.update(now).map(|update| Some(strict(plan.guard(), update?))).transpose()
        };
        let updates = plans.iter().filter_map(update).collect::<Result<Vec<Document>>>()?;
        let delete_count = plans.iter().filter(|(_, plan)| plan.deletes()).count() as u64;
        let update = async {
            let (mut in_vain, mut sent) = (HashSet::new(), 0);
            for part in parts(updates)? {
                let count = part.len();
                in_vain.extend(
                    write_strict(&self.mongo.connection, part).await?.into_iter().map(|index| sent + index),
                );
                sent += count;
            }
            Ok(in_vain)
        };
        // Only where nothing else is to be done.
        let delete = delete(self.mongo, &plans);
        let sent = self.mongo.counters.sending(plans.iter().flat_map(|(_, plan)| plan.queues()));
        let (updated, deleted) = tokio::join!(update, delete);
        faults::point("apply.written").await;
        self.mongo.note_ready(plans.iter().filter_map(|(_, plan)| plan.position()));
        let (mut all_known, mut index) = (true, 0);
        for (n, mut plan) in plans {
            plan.is_lost = deleted.is_err();
            // A deletion that matched nothing did nothing: another call removed the job.
            let (certain, in_vain) = match (&plan.step.next, &updated, &deleted) {
                (Next::Delete, _, Ok(n)) => (*n == delete_count, *n == 0),
                (Next::Delete, _, Err(_)) | (_, Err(_), _) => (false, false),
                (_, Ok(in_vain), _) => {
                    let in_vain = in_vain.contains(&index);
                    index += 1;
                    (!in_vain, in_vain)
                }
            };
            if certain {
                let trace = self.traces.get(&plan.meta.id).cloned().unwrap_or(OfJob::Unread);
                self.mongo.delivered.remember(plan.held().iter().map(|meta| (meta, trace.clone())));
                self.mongo.counters.stepped(&plan.meta, &plan.step.next);
                self.answer(n, Ok(plan.applied(Vec::new(), None)));
            } else if !in_vain {
                all_known = false; // what is proven later is counted then, and the queue all the same
                self.sent.insert(plan.meta.id.clone(), plan);
            }
        }
        if all_known {
            sent.answered();
        }
        updated.and(deleted).map(|_| ())
    }
}
