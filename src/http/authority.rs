//! What a key allows beyond the queue in the path: the queues that a call writes to, and what it may see.
//!
//! A key for some queues reaches the queues, semaphores and workers whose names its patterns match, the schedules of its
//! queues, and the batches that it created itself.

use super::access::Granted;
use super::problem::{Code, Problem};
use crate::job::{
    ApiKeyId, BatchId, Caller, Job, JobSpec, OnFinished, QueueName, QueuePattern, Schedule, ScheduleName,
    ScheduleRule, Scope, SemaphoreName, Stage,
};
use crate::queue::settle::Action;
use crate::queue::{Error, NewPush, Precondition, Queues};

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

    /// Hides a schedule of a queue that is not the key's.
    pub fn schedule(&self, schedule: &Schedule) -> Result<(), Problem> {
        if self.caller.reaches(&schedule.rule.queue) {
            return Ok(());
        }
        Err(Error::UnknownSchedule(schedule.name.clone()).into())
    }

    /// Returns the precondition under which the caller may change a schedule: that it is the one that was judged here.
    /// Where it may be created, one of another queue is refused, since its name is taken.
    pub async fn schedule_of(
        &self,
        queues: &Queues,
        name: &ScheduleName,
        precondition: Precondition,
        may_create: bool,
    ) -> Result<Precondition, Problem> {
        if !self.caller.is_limited() {
            return Ok(precondition);
        }
        let seen = match queues.schedule(name).await {
            Err(Error::UnknownSchedule(_)) if may_create => return Ok(precondition),
            seen => seen?,
        };
        if may_create && !self.caller.reaches(&seen.rule.queue) {
            let detail = format!("the schedule {name} is of a queue that is not the key's");
            return Err(Problem::new(Code::Forbidden, detail));
        }
        self.schedule(&seen)?;
        Ok(match precondition {
            Precondition::Versions(versions) if !versions.contains(&seen.version) => {
                Precondition::Versions(versions)
            }
            _ => Precondition::Versions(vec![seen.version]),
        })
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

    /// Returns the problem of an error, without the job that holds a key where the caller may not read it.
    pub fn problem(&self, error: Error) -> Problem {
        match error {
            Error::KeyConflict(_) if !self.caller.has(Scope::Read) || self.caller.is_limited() => {
                Problem::new(Code::KeyConflict, "the key is in use by a job with another payload")
            }
            error => error.into(),
        }
    }
}
