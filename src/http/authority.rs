//! What a key allows beyond the queue in the path: the queues that a call writes to, and what it may see.
//!
//! A key for some queues reaches the queues, semaphores and workers whose names its patterns match, the schedules of its
//! queues, and the batches that it created itself.

use super::access::Granted;
use super::problem::{Code, Problem};
use crate::job::{
    ApiKeyId, BatchId, Caller, Job, JobId, JobSpec, OnFinished, QueueName, QueuePattern, Schedule,
    ScheduleName, ScheduleRule, Scope, SemaphoreName, Stage,
};
use crate::queue::settle::Action;
use crate::queue::{Error, NewPush, Precondition, Queues};
use crate::store::StoreError;

impl Granted {
    /// Returns whether there is anything that the caller may not do.
    pub fn is_judged(&self) -> bool {
        matches!(self.caller, Caller::Key(_)) && (self.caller.is_limited() || !self.caller.has(Scope::Admin))
    }

    /// Refuses the name of a semaphore or a worker that is not the key's.
    pub fn name(&self, what: &str, name: &str) -> Result<(), Problem> {
        if self.caller.reaches_name(name) {
            return Ok(());
        }
        Err(Problem::new(Code::Forbidden, format!("the queues of the key do not match the {what} {name}")))
    }

    /// Refuses what a job leads to or needs that the key does not allow: its later stages and its semaphores.
    fn leads(&self, then: &[Stage], semaphores: &[SemaphoreName]) -> Result<(), Problem> {
        then.iter().try_for_each(|stage| self.need(Scope::Push, &stage.queue))?;
        semaphores.iter().try_for_each(|name| self.name("semaphore", name.as_str()))
    }

    /// The same for what a producer says of a job.
    pub fn spec(&self, spec: &JobSpec) -> Result<(), Problem> {
        self.leads(&spec.then, &spec.semaphores)
    }

    /// Refuses pushes that the key does not allow.
    pub fn pushes(&self, pushes: &[(QueueName, NewPush)]) -> Result<(), Problem> {
        pushes.iter().try_for_each(|(queue, push)| {
            self.need(Scope::Push, queue)?;
            self.spec(&push.spec)
        })
    }

    /// Refuses the callback of a batch that the key does not allow.
    pub fn on_finished(&self, callback: &OnFinished) -> Result<(), Problem> {
        self.need(Scope::Push, &callback.queue)?;
        self.leads(&callback.then, &callback.semaphores)
    }

    /// Refuses a schedule whose jobs the key does not allow to push.
    pub fn rule(&self, rule: &ScheduleRule) -> Result<(), Problem> {
        self.need(self.scope(), &rule.queue)?;
        self.need(Scope::Push, &rule.queue)?;
        self.leads(&rule.job.then, &rule.job.semaphores)
    }

    /// Refuses a settle that writes to a queue that the key does not allow. That the job itself is the caller's, the token
    /// of its reservation proves.
    pub fn action(&self, action: &Action) -> Result<(), Problem> {
        match action {
            Action::Commit { push, .. } => self.pushes(push),
            Action::Move { queue, .. } => self.need(Scope::Push, queue),
            Action::Rollback { .. } | Action::Extend { .. } => Ok(()),
        }
    }

    /// Hides a job in a queue that is not the key's: to this caller there is none.
    pub fn job(&self, job: &Job) -> Result<(), Problem> {
        if self.caller.may(self.scope(), &job.meta.queue) {
            return Ok(());
        }
        Err(Error::UnknownJob(job.meta.id.clone()).into())
    }

    /// Returns the problem of a job that cannot be read, so that its queue is unknown.
    pub fn unreadable(&self, id: &JobId, why: &str) -> Problem {
        match self.caller.is_limited() {
            true => Error::UnknownJob(id.clone()).into(),
            false => Error::UnreadableJob { id: id.clone(), why: why.to_owned() }.into(),
        }
    }

    /// Returns the key that a new batch belongs to, where that limits who may use it.
    pub fn owner(&self) -> Option<ApiKeyId> {
        match &self.caller {
            Caller::Key(key) if self.caller.is_limited() => Some(key.id.clone()),
            _ => None,
        }
    }

    /// Hides a batch that another key created.
    pub async fn batch(&self, queues: &Queues, id: &BatchId) -> Result<(), Problem> {
        let owner = self.owner();
        if owner.is_some() && queues.batch(id).await?.owner != owner {
            return Err(Error::UnknownBatch(id.clone()).into());
        }
        Ok(())
    }

    /// Returns a schedule, but hides one of a queue that is not the key's, and one of which that cannot be read.
    pub async fn schedule(&self, queues: &Queues, name: &ScheduleName) -> Result<Schedule, Problem> {
        match queues.schedule(name).await {
            Ok(schedule) if self.caller.reaches(&schedule.rule.queue) => Ok(schedule),
            Err(error) if !self.hides(&error) => Err(error.into()),
            _ => Err(Error::UnknownSchedule(name.clone()).into()),
        }
    }

    /// Returns whether an error would show what is wrong with something that the key may not reach.
    fn hides(&self, error: &Error) -> bool {
        self.caller.is_limited() && matches!(error, Error::Store(StoreError::Unreadable(_)))
    }

    /// Returns the precondition under which the caller may change a schedule: that it is the one that was judged here.
    pub async fn schedule_to_change(
        &self,
        queues: &Queues,
        name: &ScheduleName,
        precondition: Precondition,
    ) -> Result<Precondition, Problem> {
        if !self.caller.is_limited() {
            return Ok(precondition);
        }
        Ok(as_seen(precondition, self.schedule(queues, name).await?))
    }

    /// The same where it may be created. One of another queue is refused, since its name is taken.
    pub async fn schedule_to_set(
        &self,
        queues: &Queues,
        name: &ScheduleName,
        precondition: Precondition,
    ) -> Result<Precondition, Problem> {
        if !self.caller.is_limited() {
            return Ok(precondition);
        }
        match (queues.schedule(name).await, precondition) {
            (Err(Error::UnknownSchedule(_)), Precondition::None) => Ok(Precondition::Absent),
            (Err(Error::UnknownSchedule(_)), _) => Ok(Precondition::Versions(Vec::new())),
            (Ok(seen), precondition) if self.caller.reaches(&seen.rule.queue) => {
                Ok(as_seen(precondition, seen))
            }
            (Err(error), _) if !self.hides(&error) => Err(error.into()),
            _ => {
                let detail = format!("the schedule {name} is of a queue that is not the key's");
                Err(Problem::new(Code::Forbidden, detail))
            }
        }
    }

    /// The same where its jobs are to be pushed, by a run or from now on.
    pub async fn schedule_to_start(
        &self,
        queues: &Queues,
        name: &ScheduleName,
    ) -> Result<Precondition, Problem> {
        if !self.is_judged() {
            return Ok(Precondition::None);
        }
        let seen = self.schedule(queues, name).await?;
        self.rule(&seen.rule)?;
        Ok(as_seen(Precondition::None, seen))
    }

    /// Returns what of these patterns is the key's.
    pub fn patterns(&self, wanted: Vec<QueuePattern>) -> Result<Vec<QueuePattern>, Problem> {
        if !self.caller.is_limited() || wanted.is_empty() {
            return Ok(wanted); // how many there may be is judged later
        }
        let mut within = Vec::with_capacity(wanted.len());
        for pattern in wanted {
            if let QueuePattern::One(queue) = &pattern {
                self.in_queue(queue)?;
            }
            within.extend(self.caller.within(pattern));
        }
        if within.is_empty() {
            return Err(Problem::new(Code::Forbidden, "none of the queues is the key's"));
        }
        Ok(within)
    }

    /// Returns the problem of an error, without what the caller may not see: the job that holds a
    /// key, queues of others.
    pub fn problem(&self, error: Error) -> Problem {
        match error {
            Error::KeyConflict(_) if !self.caller.has(Scope::Read) || self.caller.is_limited() => {
                Problem::new(Code::KeyConflict, "the key is in use by a job with another payload")
            }
            Error::KeyTaken(_) if !self.caller.has(Scope::Read) || self.caller.is_limited() => {
                let detail =
                    "another job has the key in the queue that the job would move to; nothing was moved";
                Problem::new(Code::KeyConflict, detail)
            }
            Error::DeadLetterCircle(circle) if !circle.iter().all(|queue| self.caller.reaches(queue)) => {
                Problem::field("/dead_letter", "makes a circle through queues that are not the key's")
            }
            Error::InJob { index, error } => self.problem(*error).in_job(index),
            error => error.into(),
        }
    }
}

/// Returns what a precondition becomes once this schedule was judged: it must not have changed since.
fn as_seen(precondition: Precondition, seen: Schedule) -> Precondition {
    match precondition {
        Precondition::Versions(versions) if !versions.contains(&seen.version) => {
            Precondition::Versions(versions)
        }
        _ => Precondition::Versions(vec![seen.version]),
    }
}
