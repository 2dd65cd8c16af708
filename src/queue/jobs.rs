//! Reading jobs, changing them, cancelling them.

use std::sync::Arc;

use serde_json::json;

use super::audit::{Act, shown};
use super::pages::fitting;
use super::push::{self, Prepared};
use super::quotas::Places;
use super::{CallKey, CallOutcome, Error, PushAnswer, Queues, Result, Settled};
use crate::faults;
use crate::job::spec::{check_attempts, check_content, check_expiry, check_headers};
use crate::job::state::Verb;
use crate::job::transition::{Edit, Operation, Outcome};
use crate::job::{Job, JobId, JobSpec, Meta, QueueName, Reach, State, Timestamp, When};
use crate::store::audit::{Entry, along};
use crate::store::{Answering, Applied, Change, Denied, ListedJob, Pushed, StoreError, UnreadableJob};

/// What a cancel does to a job that a worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfHeld {
    /// Asks the worker to stop.
    Ask,
    /// Nothing: it is refused.
    Refuse,
    /// Takes the job from its worker.
    Remove,
}

/// Where an operator puts a job.
#[derive(Debug, Clone)]
pub struct Relocation {
    /// The queue.
    pub queue: QueueName,
    /// When it is due there; `None`: as before.
    pub when: Option<When>,
    /// Its priority there; `None`: as before.
    pub priority: Option<i32>,
}

/// What a cancel has led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The job has left.
    Removed,
    /// A worker holds the job and is asked to stop; rolled back or expired, the job leaves.
    Requested,
}

impl Queues {
    /// Returns the job, also one that cannot be read. Within these queues it is dead from then on: who does not reach a job must not
    /// change it by reading it.
    pub async fn job(&self, id: &JobId, within: &Reach) -> Result<ListedJob> {
        self.found_job(id, within, self.0.store.get(std::slice::from_ref(id)).await?).await
    }

    /// The same of the job as it is durably: an answer that says how it has ended is not to be taken back.
    pub(super) async fn durable_job(&self, id: &JobId, within: &Reach) -> Result<ListedJob> {
        let (store, ids) = (&self.0.store, std::slice::from_ref(id));
        let is_there = |found: &[Option<ListedJob>]| found.iter().any(Option::is_some);
        let (since, found) = (store.term(), store.get_durable(ids).await?);
        if is_there(&found) || !is_there(&store.get(ids).await?) {
            return self.found_job(id, within, found).await;
        }
        // After a failover the primary has it before a majority is known to have it: also a job that was acknowledged.
        store.confirm(since).await?;
        self.found_job(id, within, store.get_durable(ids).await?).await
    }

    async fn found_job(
        &self,
        id: &JobId,
        within: &Reach,
        found: Vec<Option<ListedJob>>,
    ) -> Result<ListedJob> {
        let found = found.into_iter().next().flatten();
        let mut found = [found.ok_or_else(|| Error::UnknownJob(id.clone()))?];
        self.bury(&mut found, within).await;
        let [found] = found;
        Ok(found)
    }

    /// Makes those of these jobs dead that are within these queues, cannot be read and are not finished: no other call may have met them.
    pub(super) async fn bury(&self, jobs: &mut [ListedJob], within: &Reach) {
        let mut changes = Vec::new();
        for job in jobs.iter_mut().filter_map(|job| job.as_mut().err()) {
            let is_met = |meta: &Meta| meta.state.is_unfinished() && within.has(&meta.queue);
            let remains = job.remains.as_mut().filter(|remains| is_met(&remains.meta));
            changes.extend(remains.map(|remains| {
                remains.meta.state = State::Dead;
                Change { id: job.id.clone(), operation: Operation::Bury }
            }));
        }
        if !changes.is_empty() {
            // Each is refused: what matters is what is done on the way. A repeated read tries again.
            self.0.store.apply(changes, &self.rules()).await;
        }
    }

    /// Changes a job within these queues that is not reserved, done or dead, and returns what it is then.
    pub async fn edit(&self, id: &JobId, edit: Edit, within: &Reach) -> Result<Job> {
        if let Some(payload) = &edit.payload {
            check_content(payload, self.options().payload_bytes)?;
        }
        check_attempts(edit.max_attempts.flatten())?;
        check_expiry(edit.expires_in_ms.flatten())?;
        edit.headers.as_ref().map_or(Ok(()), check_headers)?;
        let within = within.clone();
        self.apply_one(id, Operation::Edit { within: within.clone(), edit: Box::new(edit) }).await?;
        self.changed(id, &within).await
    }

    /// Returns a job that was changed, as it is now. It may have ended, or left, since: "no such job" would say that nothing was
    /// changed.
    async fn changed(&self, id: &JobId, within: &Reach) -> Result<Job> {
        let ended = || StoreError::unavailable("the job was changed, and ended or left before it was read");
        match self.job(id, within).await {
            Ok(Ok(job)) if within.has(&job.meta.queue) => {
                if let Some(expires_at) = job.meta.expires_at {
                    self.note_deadline(expires_at);
                }
                Ok(job)
            }
            Ok(_) | Err(Error::UnknownJob(_)) => Err(ended().into()),
            Err(error) => Err(error),
        }
    }

    /// Refuses what would make a job ready that cannot be read: no worker gets it, and it is made dead again. One that is not there is
    /// the operation's matter: for a keyed call, which may be a repeat, its absence proves nothing.
    async fn check_readable(&self, id: &JobId, within: &Reach) -> Result<()> {
        match self.job(id, within).await {
            Ok(Err(UnreadableJob { id, why, remains: Some(job) })) if within.has(&job.meta.queue) => {
                Err(Error::UnreadableJob { id, why })
            }
            Ok(_) | Err(Error::UnknownJob(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes a job within these queues that is dead, or waits for its time, ready at once, and returns it. Its attempts start again.
    pub async fn retry(&self, id: &JobId, within: &Reach) -> Result<Job> {
        self.check_readable(id, within).await?;
        self.act_on("job.retry", id, Operation::Retry { within: within.clone() }).await?;
        self.changed(id, within).await
    }

    /// Makes a job within these queues that waits for its time due at once, and returns it. Its attempts stay.
    pub async fn run(&self, id: &JobId, within: &Reach) -> Result<Job> {
        self.check_readable(id, within).await?;
        self.act_on("job.run", id, Operation::Run { within: within.clone() }).await?;
        self.changed(id, within).await
    }

    /// Takes a job within these queues back from its worker, whose token is dead from then on. The job is where it was before the
    /// delivery, which does not count; one that was to be cancelled, or is past its expiry, leaves.
    pub async fn release(&self, id: &JobId, within: &Reach) -> Result<Settled> {
        let applied = self.act_on("job.release", id, Operation::Revoke { within: within.clone() }).await?;
        Ok(Settled::now(id, applied))
    }

    /// Puts a job within these queues that no worker holds into another queue, where its attempts start again. With a key it is moved
    /// once.
    pub async fn relocate(
        &self,
        id: &JobId,
        to: Relocation,
        within: &Reach,
        keyed: Option<(&CallKey, Answering<Settled>)>,
    ) -> Result<CallOutcome<Settled>> {
        self.check_readable(id, within).await?;
        let Relocation { queue, when, priority } = to;
        let places = self.admit_queues(self.new_queues(std::iter::once(&queue))).await?;
        let relocate = Operation::Relocate { within: within.clone(), queue: queue.clone(), when, priority };
        let told = match keyed {
            Some(keyed) => self.act_once("job.move", id, relocate, keyed, places).await,
            None => self.act_on("job.move", id, relocate).await.map(|applied| {
                places.keep_all();
                CallOutcome::Plain(Settled::now(id, applied))
            }),
        };
        told.map_err(|error| match error {
            Error::ReservationLost { .. } => Error::QueueFull(queue), // it has no token to lose
            error => error,
        })
    }

    /// Brings a dead or dead-lettered job within these queues back to where it came from, and returns it.
    pub async fn redrive_job(&self, id: &JobId, within: &Reach) -> Result<Job> {
        self.check_readable(id, within).await?;
        let redrive = Operation::Redrive { within: within.clone(), home: within.clone() };
        self.act_on("job.redrive", id, redrive).await?;
        self.changed(id, within).await
    }

    /// Pushes a copy of a finished job: a new id, no key, no expiry, no route. History stays. With a key it is pushed once.
    pub async fn replay_job(
        &self,
        job: Job,
        keyed: Option<(&CallKey, Answering<Vec<Result<PushAnswer>>>)>,
    ) -> Result<CallOutcome<Vec<Result<PushAnswer>>>> {
        let now = self.now()?;
        if job.meta.state.is_unfinished() {
            return Err(Error::WrongState { state: job.meta.visible(now), id: job.meta.id });
        }
        self.check_semaphores(&JobSpec::again(job.clone())).await?;
        let act = Act {
            what: "job.replay",
            on: job.meta.id.as_str(),
            queue: Some(&job.meta.queue),
            ..Act::default()
        };
        let row = self.counting_row(act);
        let copy = self.copy(job, now);
        let places = self.admit_queues(self.new_queues(std::iter::once(&copy.queue))).await?;
        let named = places.of_each(std::iter::once(push::queues(&copy)));
        let prepared = Prepared { jobs: vec![copy], refusals: vec![None], places, named };
        match keyed {
            Some((key, answer)) => {
                let place = self.admit_request(&key.id).await?;
                along(row, self.store_once(prepared, place, key, answer)).await
            }
            None => {
                let Prepared { jobs, places, .. } = prepared;
                let facts: Vec<_> = jobs.iter().map(push::facts).collect();
                along(row, self.push_copies(jobs)).await?;
                places.keep_all();
                let pushed = facts.into_iter().map(|facts| push::answer(Pushed::Created, facts));
                Ok(CallOutcome::Plain(pushed.collect()))
            }
        }
    }

    /// Removes a job within these queues. `held` says what becomes of one that a worker holds.
    pub async fn cancel(&self, id: &JobId, held: OfHeld, within: &Reach) -> Result<Cancelled> {
        let within = within.clone();
        let cancel = match held {
            OfHeld::Ask => Operation::Cancel { within, force: false },
            OfHeld::Remove => Operation::Cancel { within, force: true },
            OfHeld::Refuse => Operation::CancelUnheld { within },
        };
        let applied = match held {
            OfHeld::Remove => self.act_on("job.cancel", id, cancel).await?,
            OfHeld::Ask | OfHeld::Refuse => self.apply_one(id, cancel).await?,
        };
        match applied.outcome {
            Outcome::Held { .. } => Ok(Cancelled::Requested),
            _ => Ok(Cancelled::Removed),
        }
    }

    /// The same for an administrative act, which is remembered with what it does.
    async fn act_on(&self, what: &'static str, id: &JobId, operation: Operation) -> Result<Applied> {
        along(self.row_on(what, id, &operation).await, self.apply_one(id, operation)).await
    }

    /// The same for a keyed call, whose answer is remembered as well.
    async fn act_once(
        &self,
        what: &'static str,
        id: &JobId,
        operation: Operation,
        (key, answer): (&CallKey, Answering<Settled>),
        places: Places,
    ) -> Result<CallOutcome<Settled>> {
        let place = self.admit_request(&key.id).await?;
        let row = self.row_on(what, id, &operation).await;
        let (this, id, verb) = (self.clone(), id.clone(), operation.verb());
        let of = id.clone();
        let render = move |applied: &Vec<Result<Applied, Denied>>| match applied.first() {
            Some(Ok(applied)) => answer(&Settled::now(&of, applied.clone())),
            _ => None,
        };
        let keyed = self.keyed(key, Arc::new(render))?;
        let work = async move {
            let change = Change { id: id.clone(), operation };
            let once = this.0.store.apply_once(vec![change], &this.rules(), keyed).await?;
            faults::point("keyed.stored").await;
            let now = this.now()?;
            let told = Self::outcome_of(once, place, |applied: &Vec<Result<Applied, Denied>>| {
                places.keep_all();
                applied.iter().flatten().for_each(|applied| this.note_one(&id, verb, applied, now));
            })?;
            match told {
                CallOutcome::Answer(answer) => Ok(CallOutcome::Answer(answer)),
                CallOutcome::Plain(applied) => Ok(CallOutcome::Plain(Settled::now(&id, only(&id, applied)?))),
            }
        };
        along(row, self.to_the_end(work)).await
    }

    /// Returns the row of an act on a job.
    async fn row_on(&self, what: &'static str, id: &JobId, operation: &Operation) -> Option<Entry> {
        let after = match operation {
            Operation::Relocate { queue, priority, .. } => {
                shown(&json!({"queue": queue, "priority": priority}))
            }
            _ => None,
        };
        // Once it is removed or moved, where it was is unknown.
        let queues = self.queues_of_jobs(std::slice::from_ref(id)).await.unwrap_or_default();
        let act = Act { what, on: id.as_str(), queue: queues.first(), after, ..Act::default() };
        self.counting_row(act)
    }

    async fn apply_one(&self, id: &JobId, operation: Operation) -> Result<Applied> {
        let change = Change { id: id.clone(), operation };
        let verb: Verb = change.operation.verb();
        let applied = self.0.store.apply(vec![change], &self.rules()).await;
        let applied = only(id, applied)?;
        self.note_one(id, verb, &applied, self.now()?);
        Ok(applied)
    }

    fn note_one(&self, id: &JobId, verb: Verb, applied: &Applied, now: Timestamp) {
        self.0.endings.note(id, &applied.outcome);
        self.note(verb, applied, now, &mut self.meter().notes());
    }

    /// Returns the jobs of a queue that are delivered next, in that order, and leaves them as they are.
    pub async fn peek(&self, queue: &QueueName, limit: usize) -> Result<Vec<Job>> {
        let mut jobs = self.0.store.peek(queue, limit).await?;
        jobs.truncate(fitting(&jobs, self.options().answer_bytes));
        Ok(jobs)
    }
}

/// Returns what the only change of a call has come to.
fn only(id: &JobId, applied: Vec<Result<Applied, Denied>>) -> Result<Applied> {
    let lost = || Err(StoreError::internal("a change was left unanswered").into());
    applied.into_iter().next().unwrap_or_else(lost).map_err(|denied| Error::denied(id, denied))
}
