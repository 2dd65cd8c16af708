//! Changes to jobs that are there: read, plan with [`step`], write what the plan says, guarded by `rev`.
//!
//! `rev` is a random number that every write replaces. A write therefore happens only if nothing happened
//! to the job since it was read, and a document that carries the `rev` of a plan proves that the plan was
//! carried out, even when the answer to the write was lost. What was not carried out is planned again.

use std::collections::{HashMap, HashSet};

use futures::TryStreamExt;
use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use tokio::time::Instant;

use super::client::{barrier, durable, fault, parts, strict, write, write_in, write_strict};
use super::document::{readable, to_meta, update, without_contents};
use super::floors::Place;
use super::receipts::{self, Receipt};
use super::{JOBS, Mongo};
use crate::job::state::Verb;
use crate::job::transition::{Next, Operation, Outcome, Refusal, Step, Surroundings, step};
use crate::job::{JobId, Meta, QueueName, Rules, State, Timestamp};
use crate::store::{Applied, Change, Denied, Result, Store as _, StoreError};

/// How often changes that met other changes are planned again.
const ATTEMPTS: usize = 6;

type Answer = Result<Applied, Denied>;

/// A plan for one job.
struct Plan {
    meta: Meta,
    step: Step,
    /// What a receipt must say to whom it may concern later, if there must be one.
    receipt: Option<Verb>,
    /// The `rev` that the document has once the plan is carried out.
    rev: i64,
}

impl Plan {
    fn applied(&self) -> Applied {
        Applied {
            outcome: self.step.outcome.clone(),
            queue: self.meta.queue.clone(),
            started_at: self.meta.started_at,
            repeated: false,
        }
    }

    fn guard(&self) -> Document {
        doc! { "_id": self.meta.id.as_str(), "rev": self.meta.rev }
    }

    /// What this plan changes in the document, if it is to be changed.
    fn update(&self, now: Timestamp) -> Option<Document> {
        let Next::Write { meta, payload, result } = &self.step.next else {
            return None;
        };
        let next = Meta { rev: self.rev, ..(**meta).clone() };
        Some(update(&next, payload.as_ref(), result.as_ref(), now))
    }

    /// The job as it is once the plan is carried out, if somebody still holds it then.
    fn held(&self) -> Option<Meta> {
        match &self.step.next {
            Next::Write { meta, .. } if meta.state == State::Reserved => {
                Some(Meta { rev: self.rev, ..(**meta).clone() })
            }
            _ => None,
        }
    }

    /// The receipt that must be written together with the plan, if one must.
    fn receipt(&self) -> Option<Receipt> {
        Some(Receipt {
            id: self.meta.id.clone(),
            claim: self.meta.claim.clone()?,
            verb: self.receipt?,
            queue: self.meta.queue.clone(),
            outcome: self.step.outcome.clone(),
            started_at: self.meta.started_at,
        })
    }

    /// Where the job stands in its queue once the plan is carried out, if it is ready then.
    fn place(&self) -> Option<(&QueueName, Place)> {
        match &self.step.next {
            Next::Write { meta, .. } if meta.state == State::Ready => {
                Some((&meta.queue, Place { priority: meta.priority, run_at: meta.run_at }))
            }
            _ => None,
        }
    }

    /// The queues whose jobs it changes.
    fn queues(&self) -> impl Iterator<Item = &QueueName> {
        let to = match &self.step.next {
            Next::Write { meta, .. } => Some(&meta.queue),
            _ => None,
        };
        [&self.meta.queue].into_iter().chain(to)
    }

    /// Whether the job leaves.
    fn deletes(&self) -> bool {
        self.step.next == Next::Delete
    }
}

/// Applies changes in order; those to different jobs travel together.
pub async fn apply(mongo: &Mongo, changes: Vec<Change>, rules: &Rules) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = changes.iter().map(|_| None).collect();
    let mut waiting: Vec<(usize, Change)> = changes.into_iter().enumerate().collect();
    // One deadline for all of it: many changes of one job must not keep those of others waiting.
    let end = Instant::now() + mongo.connection.deadline();
    while !waiting.is_empty() {
        let mut ids = HashSet::new();
        let (round, later) = waiting.into_iter().partition(|(_, change)| ids.insert(change.id.clone()));
        let mut round = Round { mongo, rules, pending: round, sent: HashMap::new(), answers: &mut answers };
        let late = |_| Err(StoreError::unavailable("the changes did not end in time"));
        if let Err(error) = tokio::time::timeout_at(end, round.run()).await.unwrap_or_else(late) {
            let left: Vec<(usize, Change)> = round.pending.into_iter().chain(later).collect();
            for (n, _) in left {
                answers[n].get_or_insert_with(|| Err(error.clone().into()));
            }
            break;
        }
        waiting = later;
    }
    let unanswered = || Err(StoreError::internal("a change was left unanswered").into());
    answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
}

/// Changes to different jobs on their way.
struct Round<'a> {
    mongo: &'a Mongo,
    rules: &'a Rules,
    pending: Vec<(usize, Change)>,
    /// Plans that were sent without a certain answer.
    sent: HashMap<JobId, Plan>,
    answers: &'a mut Vec<Option<Answer>>,
}

impl Round<'_> {
    async fn run(&mut self) -> Result<()> {
        let mut trouble = StoreError::unavailable("the jobs were changed by others again and again");
        for attempt in 0..ATTEMPTS {
            let metas = if attempt == 0 { self.recall().await? } else { self.read(&self.ids()).await? };
            let plans = self.plan(metas).await?;
            if !self.goes_on() {
                return Ok(());
            }
            let (atomic, plain): (Vec<_>, Vec<_>) =
                plans.into_iter().partition(|(_, plan)| plan.receipt.is_some());
            let results = [self.write_plain(plain).await, self.write_with_receipts(atomic).await];
            for result in results {
                // A refused statement leaves the others of its command as they should be: look again.
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

    /// Whether changes are left that have no answer yet.
    fn goes_on(&mut self) -> bool {
        self.pending.retain(|(n, _)| self.answers[*n].is_none());
        !self.pending.is_empty()
    }

    /// Answers what needs no write, and plans the rest.
    async fn plan(&mut self, mut metas: HashMap<JobId, Meta>) -> Result<Vec<(usize, Plan)>> {
        let now = self.mongo.now()?;
        let mut plans = Vec::new();
        let mut proven = Vec::new();
        for (n, change) in self.pending.clone() {
            let meta = metas.remove(&change.id);
            if let Some(plan) = self.sent.remove(&change.id)
                && self.carried_out(&plan, meta.as_ref()).await?
            {
                self.mongo.counters.stepped(&plan.meta, &plan.step.next);
                proven.push((n, plan.applied()));
                continue;
            }
            let around = Surroundings { now, rules: self.rules, chance: rand::random() };
            let planned = match &meta {
                Some(meta) => step(meta, &change.operation, around),
                None if change.operation.claim().is_some() => Err(Refusal::Lost { gone: true }),
                None => Err(Refusal::Unknown),
            };
            match (planned, meta) {
                (Ok(step), Some(meta)) if step.next == Next::Keep => {
                    let plan = Plan { meta, step, receipt: None, rev: 0 };
                    proven.push((n, Applied { repeated: true, ..plan.applied() }));
                }
                (Ok(step), Some(meta)) => {
                    let receipt = receipt_for(&change.operation, &meta);
                    plans.push((n, Plan { meta, step, receipt, rev: rand::random() }));
                }
                (Ok(_), None) => self.answer(n, Err(Denied::Refused(Refusal::Unknown))),
                (Err(refusal), _) => match self.receipt_of(&change, refusal).await? {
                    Some(receipt) => proven.push((n, receipt.applied())),
                    None => self.answer(n, Err(Denied::Refused(refusal))),
                },
            }
        }
        if !proven.is_empty() {
            barrier(self.mongo.connection.database().await?).await?;
            proven.into_iter().for_each(|(n, applied)| self.answer(n, Ok(applied)));
        }
        Ok(plans)
    }

    /// Whether the document (or its absence) proves that a plan was carried out.
    ///
    /// The absence of a job that was read with a valid token, and for which a deletion was sent, is that
    /// deletion's doing, or that of a duplicate of the same call, which means the same. The one other thing
    /// that deletes a job which is held is a forced cancel, and that leaves a receipt.
    async fn carried_out(&self, plan: &Plan, found: Option<&Meta>) -> Result<bool> {
        let deletes = plan.deletes();
        match (found, &plan.meta.claim) {
            (Some(meta), _) => Ok(!deletes && meta.rev == plan.rev),
            (None, Some(claim)) if deletes => {
                let receipt = receipts::find(self.mongo, &plan.meta.id, claim).await?;
                Ok(receipt.is_none_or(|receipt| receipt.verb != Verb::Cancel))
            }
            (None, _) => Ok(deletes),
        }
    }

    fn ids(&self) -> Vec<&JobId> {
        self.pending.iter().map(|(_, change)| &change.id).collect()
    }

    /// The jobs as this server has handed them out; those that it does not remember are read. What may have
    /// been taken back by now is read as well.
    async fn recall(&self) -> Result<HashMap<JobId, Meta>> {
        let now = self.mongo.now()?;
        let (mut metas, mut unknown) = (HashMap::with_capacity(self.pending.len()), Vec::new());
        for (_, Change { id, operation }) in &self.pending {
            let known = operation.claim().and_then(|claim| self.mongo.handed.take(id, claim));
            match known.filter(|meta| !meta.is_overdue(now)) {
                Some(meta) => drop(metas.insert(id.clone(), meta)),
                None => unknown.push(id),
            }
        }
        metas.extend(self.read(&unknown).await?);
        Ok(metas)
    }

    async fn read(&self, ids: &[&JobId]) -> Result<HashMap<JobId, Meta>> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let ids: Vec<&str> = ids.iter().map(|id| id.as_str()).collect();
        let jobs = self.mongo.collection(JOBS).await?;
        let cursor = jobs.find(doc! { "_id": { "$in": ids } }).projection(without_contents()).await;
        let documents: Vec<Document> = cursor.map_err(fault)?.try_collect().await.map_err(fault)?;
        Ok(readable(&documents, to_meta).into_iter().map(|meta| (meta.id.clone(), meta)).collect())
    }

    /// The receipt that tells that this very call, refused now, was carried out before.
    async fn receipt_of(&self, change: &Change, refusal: Refusal) -> Result<Option<Receipt>> {
        let (Operation::Move { claim, .. }, Refusal::Lost { .. }) = (&change.operation, refusal) else {
            return Ok(None);
        };
        let receipt = receipts::find(self.mongo, &change.id, claim).await?;
        Ok(receipt.filter(|receipt| receipt.verb == Verb::Move))
    }

    /// Deletions answer how many jobs they found and not which. As long as a reservation has not run out,
    /// only calls with the same token meet over its job, so that those may travel together; one that ran out
    /// may be taken back and given to others at any moment, and so is deleted alone.
    async fn write_plain(&mut self, plans: Vec<(usize, Plan)>) -> Result<()> {
        let now = self.mongo.now()?;
        let (late, prompt): (Vec<_>, Vec<_>) =
            plans.into_iter().partition(|(_, plan)| plan.deletes() && plan.meta.is_overdue(now));
        let mut outcome = self.write_together(prompt).await;
        for plan in late {
            outcome = outcome.and(self.write_together(vec![plan]).await);
        }
        outcome
    }

    /// One update command, which tells what each of its statements did, and one delete command, which does not;
    /// what they certainly did is answered.
    async fn write_together(&mut self, plans: Vec<(usize, Plan)>) -> Result<()> {
        if plans.is_empty() {
            return Ok(());
        }
        let now = self.mongo.now()?;
        let database = self.mongo.connection.database().await?;
        let update = |(_, plan): &(usize, Plan)| Some(strict(plan.guard(), plan.update(now)?));
        let updates: Vec<Document> = plans.iter().filter_map(update).collect();
        let leaving: Vec<&Plan> = plans.iter().map(|(_, plan)| plan).filter(|plan| plan.deletes()).collect();
        let delete_count = leaving.len() as u64;
        let update = async {
            let (mut in_vain, mut sent) = (HashSet::new(), 0);
            for part in parts(updates)? {
                let count = part.len();
                in_vain.extend(write_strict(database, part).await?.into_iter().map(|place| sent + place));
                sent += count;
            }
            Ok(in_vain)
        };
        let delete = async {
            if leaving.is_empty() {
                return Ok(0);
            }
            // One statement for all: a job whose `rev` is among those that were read is as it was read.
            let ids: Vec<&str> = leaving.iter().map(|plan| plan.meta.id.as_str()).collect();
            let revs: Vec<i64> = leaving.iter().map(|plan| plan.meta.rev).collect();
            let guard = doc! { "_id": { "$in": ids }, "rev": { "$in": revs } };
            let statement = doc! { "q": guard, "limit": 0, "hint": { "_id": 1 } };
            write(database, doc! { "delete": JOBS, "deletes": [statement] }).await
        };
        let sent = self.mongo.counters.sending(plans.iter().flat_map(|(_, plan)| plan.queues()));
        let (updated, deleted) = tokio::join!(update, delete);
        self.mongo.floors.came(plans.iter().filter_map(|(_, plan)| plan.place()));
        let (mut all_known, mut place) = (true, 0);
        for (n, plan) in plans {
            // A deletion that found nothing did nothing: then the job's absence is the doing of somebody else.
            let (certain, in_vain) = match (&plan.step.next, &updated, &deleted) {
                (Next::Delete, _, Ok(n)) => (*n == delete_count, *n == 0),
                (Next::Delete, _, Err(_)) | (_, Err(_), _) => (false, false),
                (_, Ok(in_vain), _) => {
                    let in_vain = in_vain.contains(&place);
                    place += 1;
                    (!in_vain, in_vain)
                }
            };
            if certain {
                self.mongo.handed.remember(plan.held().iter());
                self.mongo.counters.stepped(&plan.meta, &plan.step.next);
                self.answer(n, Ok(plan.applied()));
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

    /// Plans that leave a receipt: all of them with their receipts in one transaction, or none.
    async fn write_with_receipts(&mut self, plans: Vec<(usize, Plan)>) -> Result<()> {
        if plans.is_empty() {
            return Ok(());
        }
        let targets = plans.iter().filter_map(|(_, plan)| target(plan));
        let limited: Vec<QueueName> =
            targets.filter(|queue| self.rules.max_jobs(queue).is_some()).cloned().collect();
        let mongo = self.mongo;
        let _gates = mongo.gates.enter(limited.iter().cloned()).await;
        let mut room = mongo.room(&limited, self.rules).await?;
        let mut fitting = Vec::new();
        for (n, plan) in plans {
            match target(&plan).and_then(|queue| room.get_mut(queue)) {
                Some(0) => self.answer(n, Err(Denied::Refused(Refusal::Full))),
                Some(left) => {
                    *left -= 1;
                    fitting.push((n, plan));
                }
                None => fitting.push((n, plan)),
            }
        }
        if fitting.is_empty() {
            return Ok(());
        }
        let receipts: Vec<Receipt> = fitting.iter().filter_map(|(_, plan)| plan.receipt()).collect();
        let sent = mongo.counters.sending(fitting.iter().flat_map(|(_, plan)| plan.queues()));
        let done = self.transact(&fitting, &receipts).await;
        mongo.floors.came(fitting.iter().filter_map(|(_, plan)| plan.place()));
        if done.is_ok() {
            sent.answered();
        }
        for (n, plan) in fitting {
            match &done {
                Ok(true) => {
                    mongo.counters.stepped(&plan.meta, &plan.step.next);
                    self.answer(n, Ok(plan.applied()));
                }
                Ok(false) => {} // somebody changed one of the jobs: plan again
                Err(_) => drop(self.sent.insert(plan.meta.id.clone(), plan)),
            }
        }
        done.map(|_| ())
    }

    /// False if one of the jobs was not what its plan expects; then nothing was written.
    async fn transact(&self, plans: &[(usize, Plan)], receipts: &[Receipt]) -> Result<bool> {
        let database = self.mongo.connection.database().await?;
        let mut session = self.mongo.transaction().await?;
        let now = self.mongo.now()?;
        let update = |(_, plan): &(usize, Plan)| Some(doc! { "q": plan.guard(), "u": plan.update(now)? });
        let updates: Vec<Document> = plans.iter().filter_map(update).collect();
        let leaving = plans.iter().filter(|(_, plan)| plan.deletes());
        let deletes = leaving.map(|(_, plan)| doc! { "q": plan.guard(), "limit": 1 }).collect();
        let mut found = 0;
        for (verb, field, statements) in [("update", "updates", updates), ("delete", "deletes", deletes)] {
            for part in parts(statements)? {
                let command = doc! { verb: JOBS, field: part };
                found += write_in(database, command, &mut session).await.map_err(fault)?.unwrap_or(0);
            }
        }
        if found != plans.len() as u64 {
            abort(&mut session).await;
            return Ok(false);
        }
        receipts::insert(self.mongo, receipts, &mut session).await?;
        session.commit_transaction().await.map_err(fault)?;
        Ok(true)
    }
}

/// Which operations leave a receipt: those whose repeat, or whose victim, could not tell from the job alone.
fn receipt_for(operation: &Operation, meta: &Meta) -> Option<Verb> {
    match operation {
        Operation::Move { .. } => Some(Verb::Move),
        // Tells a commit that meets the deletion that it was not its own.
        Operation::Cancel { force: true } if meta.state == State::Reserved => Some(Verb::Cancel),
        _ => None,
    }
}

/// The queue that a plan brings a job into from another one, where a limit may stop it.
fn target(plan: &Plan) -> Option<&QueueName> {
    match &plan.step.outcome {
        Outcome::Returned { queue, .. } if *queue != plan.meta.queue => Some(queue),
        _ => None,
    }
}

async fn abort(session: &mut ClientSession) {
    if let Err(error) = session.abort_transaction().await {
        tracing::debug!(%error, "a transaction was left to end by itself");
    }
}

impl Mongo {
    /// A session with a transaction under way: a snapshot is read, and its commit is durable.
    pub async fn transaction(&self) -> Result<ClientSession> {
        let client = self.connection.database().await?.client();
        let mut session = client.start_session().await.map_err(fault)?;
        session
            .start_transaction()
            .read_concern(mongodb::options::ReadConcern::snapshot())
            .write_concern(durable())
            .await
            .map_err(fault)?;
        Ok(session)
    }
}
