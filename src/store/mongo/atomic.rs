//! Plans that happen together with other documents, or not at all: receipts, the jobs that a commit pushes, and
//! the batches whose jobs end.

use std::collections::HashMap;

use mongodb::ClientSession;
use mongodb::bson::{Document, doc};

use super::JOBS;
use super::apply::Round;
use super::batches;
use super::client::{fault, parts, write_in};
use super::document::from_job;
use super::plan::Plan;
use super::push::{self, Resolved, Room, Trouble};
use super::receipts::{self, Receipt};
use crate::job::transition::Refusal;
use crate::job::{BatchId, Child, NewJob, QueueName};
use crate::store::{CalledBack, Denied, PushRefused, Pushed, Result, Store as _};

/// How a transaction ended.
enum Written {
    /// All of it is stored: for each plan, the jobs that it pushed; and the callbacks of batches that ended.
    Done(Vec<Vec<Child>>, HashMap<BatchId, CalledBack>),
    /// A job or a key was not what the plans expect; nothing was stored.
    Stale,
    /// A job that was to be pushed is refused; nothing was stored.
    Refused(PushRefused),
}

impl Round<'_> {
    /// Plans in transactions of their own. Those that nothing but the jobs themselves can stop share one.
    pub(super) async fn write_atomically(&mut self, plans: Vec<(usize, Plan)>) -> Result<()> {
        let rules = self.rules;
        let may_be_refused = |job: &NewJob| job.key.is_some() || rules.max_jobs(&job.queue).is_some();
        let (alone, together): (Vec<_>, Vec<_>) =
            plans.into_iter().partition(|(_, plan)| plan.pushes.iter().any(may_be_refused));
        let mut outcome = self.write_in_one(together).await;
        for plan in alone {
            outcome = outcome.and(self.write_in_one(vec![plan]).await);
        }
        outcome
    }

    async fn write_in_one(&mut self, plans: Vec<(usize, Plan)>) -> Result<()> {
        if plans.is_empty() {
            return Ok(());
        }
        let (mongo, rules) = (self.mongo, self.rules);
        let pushes = |plan: &Plan| plan.pushes.iter().map(|job| job.queue.clone()).collect::<Vec<_>>();
        let entered =
            plans.iter().flat_map(|(_, plan)| plan.target().cloned().into_iter().chain(pushes(plan)));
        let mut limited: Vec<QueueName> = entered.filter(|queue| rules.max_jobs(queue).is_some()).collect();
        limited.sort();
        limited.dedup();
        let _gates = mongo.gates.enter(limited.iter().cloned()).await;
        let mut room = mongo.room(&limited, rules).await?;
        let mut fitting = Vec::new();
        for (n, plan) in plans {
            match plan.target().and_then(|queue| room.get_mut(queue)) {
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
        let sent = mongo.counters.sending(fitting.iter().flat_map(|(_, plan)| plan.queues()));
        let written = self.transact(&fitting, room).await;
        mongo.floors.came(fitting.iter().filter_map(|(_, plan)| plan.place()));
        let pushed = fitting.iter().flat_map(|(_, plan)| &plan.pushes).map(push::place);
        mongo.floors.came(pushed.collect::<Vec<_>>().iter().map(|(queue, place)| (queue, *place)));
        if written.is_ok() {
            sent.answered();
        }
        self.conclude(fitting, written)
    }

    /// Answers what is certain.
    fn conclude(&mut self, plans: Vec<(usize, Plan)>, written: Result<Written>) -> Result<()> {
        match written {
            Ok(Written::Done(pushed, mut callbacks)) => {
                for ((n, plan), pushed) in plans.into_iter().zip(pushed) {
                    self.mongo.counters.stepped(&plan.meta, &plan.step.next);
                    let callback = plan.finish().and_then(|finish| callbacks.remove(&finish.batch));
                    self.answer(n, Ok(plan.applied(pushed, callback)));
                }
            }
            Ok(Written::Stale) => {} // plan again
            Ok(Written::Refused(refused)) => {
                for (n, _) in plans {
                    self.answer(n, Err(Denied::PushRefused(refused.clone())));
                }
            }
            Err(error) => {
                for (_, plan) in plans {
                    self.sent.insert(plan.meta.id.clone(), plan);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Others that write to the same batches are waited for, as long as the round may take.
    async fn transact(&self, plans: &[(usize, Plan)], room: Room) -> Result<Written> {
        loop {
            match self.try_transact(plans, room.clone()).await {
                Ok(written) => return Ok(written),
                Err(Trouble::Driver(error)) if batches::is_conflict(&error) => batches::pause().await,
                Err(Trouble::Driver(error)) => return Err(fault(error)),
                Err(Trouble::Store(error)) => return Err(error),
            }
        }
    }

    async fn try_transact(
        &self,
        plans: &[(usize, Plan)],
        mut room: Room,
    ) -> std::result::Result<Written, Trouble> {
        let mut session = self.mongo.transaction().await?;
        let finishes = plans.iter().filter_map(|(_, plan)| plan.finish());
        let counted = batches::count(self.mongo, finishes, &mut session).await?;
        if !self.write_jobs(plans, &mut session).await? {
            abort(&mut session).await;
            return Ok(Written::Stale);
        }
        let callbacks = batches::conclude(self.mongo, counted, self.rules, &mut session).await?;
        let jobs: Vec<&NewJob> = plans.iter().flat_map(|(_, plan)| &plan.pushes).collect();
        for (_, plan) in plans {
            // A job that is committed makes room in its queue.
            if let (Some(left), false) = (room.get_mut(&plan.meta.queue), plan.pushes.is_empty()) {
                *left += 1;
            }
        }
        let mut resolved = push::resolve(self.mongo, &jobs, &mut room, &mut session).await?;
        let children = match children(plans, &jobs, std::mem::take(&mut resolved.pushed)) {
            Ok(children) => children,
            Err(refused) => {
                abort(&mut session).await;
                return Ok(Written::Refused(refused));
            }
        };
        let receipts = plans.iter().zip(&children).filter_map(|((_, plan), pushed)| plan.receipt(pushed));
        let receipts: Vec<Receipt> = receipts.collect();
        if !receipts.is_empty() {
            receipts::insert(self.mongo, &receipts, &mut session).await?;
        }
        let now = self.mongo.now()?;
        for (_, callback) in &callbacks {
            resolved.documents.push(from_job(&callback.clone().into_job(), now));
            resolved.arriving.push(callback.queue.clone());
        }
        let stored = self.store(resolved, session).await;
        let places: Vec<_> = callbacks.iter().map(|(_, callback)| push::place(callback)).collect();
        self.mongo.floors.came(places.iter().map(|(queue, place)| (queue, *place)));
        let told = callbacks.iter().map(|(batch, callback)| (batch.clone(), CalledBack::from(callback)));
        Ok(if stored? { Written::Done(children, told.collect()) } else { Written::Stale })
    }

    /// Writes what the plans say of the jobs themselves. False if one of them is not as it was read.
    async fn write_jobs(
        &self,
        plans: &[(usize, Plan)],
        session: &mut ClientSession,
    ) -> std::result::Result<bool, Trouble> {
        let database = self.mongo.connection.database().await?;
        let now = self.mongo.now()?;
        let update = |(_, plan): &(usize, Plan)| Some(doc! { "q": plan.guard(), "u": plan.update(now)? });
        let updates: Vec<Document> = plans.iter().filter_map(update).collect();
        let leaving = plans.iter().filter(|(_, plan)| plan.deletes());
        let deletes = leaving.map(|(_, plan)| doc! { "q": plan.guard(), "limit": 1 }).collect();
        let mut found = 0;
        for (verb, field, statements) in [("update", "updates", updates), ("delete", "deletes", deletes)] {
            for part in parts(statements)? {
                let command = doc! { verb: JOBS, field: part };
                found += write_in(database, command, session).await.map_err(Trouble::Driver)?.unwrap_or(0);
            }
        }
        Ok(found == plans.len() as u64)
    }

    /// Stores new jobs, and commits all. False: a key was taken in the meantime.
    async fn store(
        &self,
        resolved: Resolved,
        mut session: ClientSession,
    ) -> std::result::Result<bool, Trouble> {
        let Resolved { documents, records, arriving, .. } = resolved;
        let database = self.mongo.connection.database().await?;
        let arriving = self.mongo.counters.arriving(&arriving);
        let stored = async {
            if !push::write(database, documents, parts(records)?, &mut session)
                .await
                .map_err(Trouble::Driver)?
            {
                abort(&mut session).await;
                return Ok(false);
            }
            session.commit_transaction().await.map_err(Trouble::Driver)?;
            Ok(true)
        };
        let stored = stored.await;
        match &stored {
            Ok(true) => arriving.stored(),
            Ok(false) => arriving.refused(),
            Err(Trouble::Driver(error)) if batches::is_conflict(error) => arriving.refused(),
            Err(_) => {} // it is not known what has been stored
        }
        stored
    }
}

/// The jobs that each plan pushes, unless one of them is refused.
fn children(
    plans: &[(usize, Plan)],
    jobs: &[&NewJob],
    pushed: Vec<Pushed>,
) -> std::result::Result<Vec<Vec<Child>>, PushRefused> {
    let mut pushed = jobs.iter().zip(pushed);
    let of_plan = |(_, plan): &(usize, Plan)| {
        let own = pushed.by_ref().take(plan.pushes.len()).enumerate();
        own.map(|(place, (job, pushed))| child(place, job, pushed)).collect()
    };
    plans.iter().map(of_plan).collect()
}

/// What became of one of the jobs that are pushed together, unless it was refused.
pub fn child(place: usize, job: &NewJob, pushed: Pushed) -> std::result::Result<Child, PushRefused> {
    let queue = job.queue.clone();
    match pushed {
        Pushed::Created => Ok(Child { id: job.id.clone(), queue, run_at: job.run_at, deduplicated: false }),
        Pushed::Duplicate { id, run_at, .. } => Ok(Child { id, queue, run_at, deduplicated: true }),
        Pushed::KeyConflict { id } => Err(PushRefused { place, queue, key_of: Some(id) }),
        Pushed::Full => Err(PushRefused { place, queue, key_of: None }),
    }
}

/// Gives a transaction up.
pub async fn abort(session: &mut ClientSession) {
    if let Err(error) = session.abort_transaction().await {
        tracing::debug!(%error, "a transaction was left to end by itself");
    }
}
