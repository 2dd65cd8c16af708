//! Plans that happen together with other documents, or not at all: receipts, the jobs that a commit pushes, and
//! the batches whose jobs end.

use std::collections::HashMap;

use mongodb::ClientSession;
use mongodb::bson::doc;

use crate::job::transition::Refusal;
use crate::job::{BatchId, Child, NewJob, QueueName, State};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::batches;
use crate::store::mongo::client::{fault, parts, write_in};
use crate::store::mongo::jobs::apply::Round;
use crate::store::mongo::jobs::groups::{self, Lines};
use crate::store::mongo::jobs::plan::{Plan, deletion};
use crate::store::mongo::jobs::push::{self, Resolved, Room, TxError};
use crate::store::mongo::jobs::receipts::{self, Receipt};
use crate::store::{Applied, CalledBack, Denied, PushRefused, Pushed, Result, Store as _};

/// How a transaction ended.
enum Written {
    /// All of it is stored.
    Done(Together),
    /// A job or a key was not what the plans expect; nothing was stored.
    Stale,
    /// A job that was to be pushed is refused; nothing was stored.
    Refused(PushRefused),
}

/// What was stored together with the plans.
#[derive(Default)]
struct Together {
    /// For each plan, the jobs that it pushed.
    pushed: Vec<Vec<Child>>,
    /// The callbacks of batches that ended.
    callbacks: HashMap<BatchId, CalledBack>,
    /// The jobs whose turn has come.
    next: Vec<groups::Next>,
}

impl Together {
    /// Takes out whose turn has come with this plan.
    fn next_of(&mut self, plan: &Plan) -> Option<groups::Next> {
        let vacated = plan.vacated().filter(|vacated| vacated.was_first)?;
        let place = self.next.iter().position(|next| next.line == vacated.line)?;
        Some(self.next.swap_remove(place))
    }
}

impl Round<'_> {
    /// Plans in transactions of their own. Those that nothing but the jobs themselves can stop share one.
    pub async fn write_atomically(&mut self, plans: Vec<(usize, Plan)>) -> Result<()> {
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
        let _locks = mongo.queue_mutex.lock(limited.iter().cloned()).await;
        // Where a job only leaves its line, meeting others is rare enough not to wait for them.
        let joined = plans.iter().flat_map(|(_, plan)| {
            plan.joined().cloned().into_iter().chain(plan.pushes.iter().filter_map(push::line))
        });
        let _group_locks = mongo.group_mutex.lock(joined).await;
        // A job that is committed makes room in its queue. One whose pushes could be refused is alone here.
        let leaving = match plans.as_slice() {
            [(_, plan)] if !plan.pushes.is_empty() => Some(&plan.meta.queue),
            _ => None,
        };
        let mut room = mongo.room(&limited, leaving, rules).await?;
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
        let written = self.transact(&mut fitting, room).await;
        mongo.heads.note_ready(fitting.iter().filter_map(|(_, plan)| plan.place()));
        let pushed = fitting.iter().flat_map(|(_, plan)| &plan.pushes).map(push::place);
        mongo.heads.note_ready(pushed.collect::<Vec<_>>().iter().map(|(queue, place)| (queue, *place)));
        if written.is_ok() {
            sent.answered();
        }
        self.conclude(fitting, written)
    }

    /// Answers what is certain.
    fn conclude(&mut self, plans: Vec<(usize, Plan)>, written: Result<Written>) -> Result<()> {
        match written {
            Ok(Written::Done(mut together)) => {
                let (counters, heads) = (&self.mongo.counters, &self.mongo.heads);
                for next in &together.next {
                    counters.moved(&next.line.queue, State::Blocked, State::Ready, 1);
                    heads.note_ready([(&next.line.queue, next.place)]);
                }
                for ((n, plan), pushed) in plans.into_iter().zip(std::mem::take(&mut together.pushed)) {
                    self.mongo.counters.stepped(&plan.meta, &plan.step.next);
                    let callback = plan.finish().and_then(|finish| together.callbacks.remove(&finish.batch));
                    let unblocked = together.next_of(&plan).iter().map(groups::Next::arrival).collect();
                    self.answer(n, Ok(Applied { unblocked, ..plan.applied(pushed, callback) }));
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
    async fn transact(&self, plans: &mut [(usize, Plan)], room: Room) -> Result<Written> {
        loop {
            match self.try_transact(plans, room.clone()).await {
                Ok(written) => return Ok(written),
                Err(TxError::Conflict) => batches::pause().await,
                Err(TxError::Driver(error)) if batches::is_conflict(&error) => batches::pause().await,
                Err(TxError::Driver(error)) => return Err(fault(error)),
                Err(TxError::Store(error)) => return Err(error),
            }
        }
    }

    async fn try_transact(
        &self,
        plans: &mut [(usize, Plan)],
        mut room: Room,
    ) -> std::result::Result<Written, TxError> {
        let mongo = self.mongo;
        let mut session = mongo.transaction().await?;
        let mut lines = Lines::default();
        let next = line_up(mongo, plans, &mut lines, &mut session).await?;
        let finishes = plans.iter().filter_map(|(_, plan)| plan.finish());
        let counted = batches::count(mongo, finishes, &mut session).await?;
        if !self.write_jobs(plans, &next, &mut session).await? {
            abort(&mut session).await;
            return Ok(Written::Stale);
        }
        let jobs: Vec<&NewJob> = plans.iter().flat_map(|(_, plan)| &plan.pushes).collect();
        let mut resolved = push::resolve(mongo, &jobs, &mut room, &mut lines, &mut session).await?;
        let pushed = match children(plans, &jobs, std::mem::take(&mut resolved.pushed)) {
            Ok(children) => children,
            Err(refused) => {
                abort(&mut session).await;
                return Ok(Written::Refused(refused));
            }
        };
        let callbacks = batches::conclude(mongo, counted, self.rules, &mut session).await?;
        lines.load(mongo, callbacks.iter().filter_map(|(_, job)| push::line(job)), &mut session).await?;
        let now = mongo.now()?;
        for (_, callback) in &callbacks {
            let (document, state) = push::stored(callback, &mut lines, now);
            resolved.documents.push(document);
            resolved.arriving.push((callback.queue.clone(), state));
        }
        lines.write(mongo, &mut session).await?;
        let receipts = plans.iter().zip(&pushed).filter_map(|((_, plan), pushed)| plan.receipt(pushed));
        let receipts: Vec<Receipt> = receipts.collect();
        if !receipts.is_empty() {
            receipts::insert(mongo, &receipts, &mut session).await?;
        }
        let stored = self.store(resolved, session).await;
        let places: Vec<_> = callbacks.iter().map(|(_, callback)| push::place(callback)).collect();
        mongo.heads.note_ready(places.iter().map(|(queue, place)| (queue, *place)));
        let told = callbacks.iter().map(|(batch, callback)| (batch.clone(), CalledBack::from(callback)));
        let together = Together { pushed, callbacks: told.collect(), next };
        Ok(if stored? { Written::Done(together) } else { Written::Stale })
    }

    /// Writes what the plans say of the jobs themselves, and those whose turn has come. False if one of them is not as
    /// it was read.
    async fn write_jobs(
        &self,
        plans: &[(usize, Plan)],
        next: &[groups::Next],
        session: &mut ClientSession,
    ) -> std::result::Result<bool, TxError> {
        let database = self.mongo.connection.database().await?;
        let now = self.mongo.now()?;
        let update = |(_, plan): &(usize, Plan)| Some(doc! { "q": plan.guard(), "u": plan.update(now)? });
        let updates = plans.iter().filter_map(update).chain(groups::statements(next)).collect();
        let leaving: Vec<&Plan> = plans.iter().map(|(_, plan)| plan).filter(|plan| plan.deletes()).collect();
        let deletes = if leaving.is_empty() { Vec::new() } else { vec![deletion(&leaving)] };
        let mut found = 0;
        for (verb, field, statements) in [("update", "updates", updates), ("delete", "deletes", deletes)] {
            for part in parts(statements)? {
                let command = doc! { verb: JOBS, field: part };
                found += write_in(database, command, session).await?.unwrap_or(0);
            }
        }
        Ok(found == (plans.len() + next.len()) as u64)
    }

    /// Stores new jobs, and commits all. False: a key was taken in the meantime.
    async fn store(
        &self,
        resolved: Resolved,
        mut session: ClientSession,
    ) -> std::result::Result<bool, TxError> {
        let Resolved { documents, records, arriving, .. } = resolved;
        let database = self.mongo.connection.database().await?;
        let arriving = self.mongo.counters.arriving(arriving.iter().map(|(queue, state)| (queue, *state)));
        let stored = async {
            if !push::write(database, documents, parts(records)?, &mut session)
                .await
                .map_err(TxError::Driver)?
            {
                abort(&mut session).await;
                return Ok(false);
            }
            session.commit_transaction().await.map_err(TxError::Driver)?;
            Ok(true)
        };
        let stored = stored.await;
        match &stored {
            Ok(true) => arriving.stored(),
            Ok(false) => arriving.refused(),
            Err(TxError::Driver(error)) if batches::is_conflict(error) => arriving.refused(),
            Err(_) => {} // it is not known what has been stored
        }
        stored
    }
}

/// Takes the jobs out of the lines that they leave, sees whose turn has come, and puts those that come to a line at its
/// end.
async fn line_up(
    mongo: &Mongo,
    plans: &mut [(usize, Plan)],
    lines: &mut Lines,
    session: &mut ClientSession,
) -> std::result::Result<Vec<groups::Next>, TxError> {
    plans.iter().filter_map(|(_, plan)| plan.vacated()).for_each(|vacated| lines.vacate(vacated));
    let next = lines.advance(mongo, session).await?;
    lines.load(mongo, plans.iter().filter_map(|(_, plan)| plan.joined().cloned()), session).await?;
    for (_, plan) in plans {
        if let Some(line) = plan.joined() {
            let (turn, is_first) = lines.join(line);
            plan.step.join_line(turn, is_first);
        }
    }
    Ok(next)
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
        Pushed::Created | Pushed::Blocked => {
            Ok(Child { id: job.id.clone(), queue, run_at: job.run_at, deduplicated: false })
        }
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
