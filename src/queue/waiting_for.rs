//! Why a job is not delivered, in words for people.

use serde::Serialize;

use super::{Queues, Result};
use crate::job::semaphore::Waiter;
use crate::job::state::State;
use crate::job::{
    GroupName, Job, JobId, Meta, QueueName, Rules, SemaphoreName, Timestamp, Visible, WorkerName,
};
use crate::store::{AHEAD_MAX, Holder, LineHead, Obstacles, SemaphoreView};

/// How many holders of a semaphore are named.
const HOLDERS_NAMED: usize = 3;

/// What kind of thing a job waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = WaitingForReason)]
pub enum Reason {
    /// A worker has it.
    Reserved,
    /// Jobs of its group are before it.
    Group,
    /// The time for which it was pushed.
    Due,
    /// The delay after a failure.
    Backoff,
    /// Room in a semaphore.
    Semaphore,
    /// Its queue to be resumed.
    Paused,
    /// Its queue has as many reserved jobs as it may have.
    MaxReserved,
    /// Its queue has delivered as many jobs lately as it may.
    Rate,
    /// A worker: no reserve or pop waits for its queue.
    Worker,
    /// Its turn: those before it in its queue are delivered first.
    Turn,
}

/// A thing that a job waits for. What names it is there where it has one.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct WaitingFor {
    /// What kind of thing.
    pub reason: Reason,
    /// The same in words.
    #[schema(max_length = 2000)]
    pub detail: String,
    /// Until when, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The job that it waits for: the first of its group, or of those that come first for a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// The semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub semaphore: Option<SemaphoreName>,
    /// The worker that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerName>,
}

impl WaitingFor {
    fn new(reason: Reason, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { reason, detail, until: None, job: None, group: None, semaphore: None, worker: None }
    }
}

impl Queues {
    /// Returns what a job waits for, all of it; nothing where it is done or dead. `may_see`: whether what is in a queue may be
    /// named to who asks.
    pub async fn waiting_for(
        &self,
        job: &Job,
        may_see: impl Fn(&QueueName) -> bool,
    ) -> Result<Vec<WaitingFor>> {
        let (meta, now) = (&job.meta, self.now()?);
        match meta.visible(now) {
            Visible::Done | Visible::Dead => return Ok(Vec::new()),
            Visible::Reserved => return Ok(vec![reserved(meta)]),
            Visible::Ready | Visible::Scheduled | Visible::Blocked => {}
        }
        let rules = self.rules();
        // Most jobs have neither a line nor a rate, nor semaphores, and cost no query more.
        let obstacles = match meta.turn.is_some() || rules.rate(&meta.queue).is_some() {
            true => self.0.store.obstacles(meta).await?,
            false => Obstacles::default(),
        };
        let mut all = Vec::new();
        all.extend(obstacles.head.as_ref().map(|head| behind(meta, head)));
        all.extend(due(meta, now));
        let comes_later = !all.is_empty();
        if !meta.semaphores.is_empty() {
            all.extend(self.semaphores_of(meta, &rules, comes_later, may_see).await?);
        }
        if all.is_empty() && meta.state == State::Blocked {
            all.push(soon(meta));
        }
        all.extend(self.limits(meta, &rules, &obstacles, now).await?);
        if !comes_later {
            all.extend(self.nobody_for(meta));
        }
        if all.is_empty() {
            let detail = "nothing holds it: it is delivered when those before it in its queue are";
            all.push(WaitingFor::new(Reason::Turn, detail));
        }
        Ok(all)
    }

    /// Reports that the job has no waiter, or only some that cannot take it.
    fn nobody_for(&self, meta: &Meta) -> Option<WaitingFor> {
        let (queue, waiters) = (&meta.queue, &self.0.waiters);
        let detail = match (waiters.wait_for(queue), meta.semaphores.is_empty()) {
            (false, _) => format!("no reserve or pop waits for the queue {queue}"),
            (true, false) if !waiters.reserve_for(queue) => {
                format!(
                    "only a pop waits for the queue {queue}, and pops pass over jobs that need semaphores"
                )
            }
            (true, _) => return None,
        };
        Some(WaitingFor::new(Reason::Worker, detail))
    }

    /// Returns which semaphores hold the job: those without room, or the first whose room is kept for others.
    async fn semaphores_of(
        &self,
        meta: &Meta,
        rules: &Rules,
        comes_later: bool,
        may_see: impl Fn(&QueueName) -> bool,
    ) -> Result<Vec<WaitingFor>> {
        let mut all = self.semaphores_without_room(&meta.semaphores, &may_see).await?;
        if all.is_empty() && !comes_later {
            let kept = self.0.store.kept_from(meta, rules).await?;
            all.extend(kept.map(|(name, first)| kept_for(name, first, may_see)));
        }
        Ok(all)
    }

    async fn semaphores_without_room(
        &self,
        names: &[SemaphoreName],
        may_see: impl Fn(&QueueName) -> bool,
    ) -> Result<Vec<WaitingFor>> {
        let mut all = Vec::new();
        for view in self.0.store.semaphores(names).await? {
            if view.held >= view.capacity {
                let holders = self.0.store.holders(&view.name, HOLDERS_NAMED).await?;
                all.push(full(&view, &holders, &may_see));
            }
        }
        for name in self.0.store.unknown_semaphores(names).await? {
            let detail = format!("the semaphore {name} does not exist: create it with a PUT");
            all.push(WaitingFor { semaphore: Some(name), ..WaitingFor::new(Reason::Semaphore, detail) });
        }
        Ok(all)
    }

    /// Returns what the settings of the job's queue hold it by.
    async fn limits(
        &self,
        meta: &Meta,
        rules: &Rules,
        obstacles: &Obstacles,
        now: Timestamp,
    ) -> Result<Vec<WaitingFor>> {
        let queue = &meta.queue;
        let mut all = Vec::new();
        if rules.paused(queue) {
            all.push(WaitingFor::new(Reason::Paused, format!("the queue {queue} is paused")));
        }
        if let Some(most) = rules.max_reserved(queue) {
            let reserved = self.0.store.counts(queue).await?.counts.reserved;
            if reserved >= most {
                let detail = format!("{reserved} jobs of the queue {queue} are reserved, of {most} at most");
                all.push(WaitingFor::new(Reason::MaxReserved, detail));
            }
        }
        let rate =
            rules.rate(queue).and_then(|rate| Some((rate, obstacles.deliveries.resumes_at(rate, now)?)));
        if let Some((rate, until)) = rate {
            let detail = format!(
                "the queue {queue} has delivered {} jobs within {} ms, which is its rate",
                rate.limit, rate.per_ms
            );
            all.push(WaitingFor { until: Some(until), ..WaitingFor::new(Reason::Rate, detail) });
        }
        Ok(all)
    }
}

fn reserved(meta: &Meta) -> WaitingFor {
    let by =
        meta.worker.as_ref().map_or_else(|| "a worker".to_owned(), |worker| format!("the worker {worker}"));
    let asked = if meta.cancel_requested { " and was asked to stop" } else { "" };
    let detail =
        format!("{by} has it{asked}; it is delivered again if that neither settles nor extends it in time");
    WaitingFor {
        until: meta.reserved_until,
        worker: meta.worker.clone(),
        ..WaitingFor::new(Reason::Reserved, detail)
    }
}

fn behind(meta: &Meta, head: &LineHead) -> WaitingFor {
    let group = meta.group.as_ref().map(ToString::to_string).unwrap_or_default();
    let more = if head.ahead >= AHEAD_MAX { " at least" } else { "" };
    let held = match head.state {
        State::Dead => ": it holds the group until it is redriven, retried or deleted",
        _ => "",
    };
    let place = head.ahead + 1;
    let detail = format!(
        "it is number {place}{more} in the group {group}, whose first job {} is {}{held}",
        head.id,
        head.state.as_str()
    );
    let (job, group) = (Some(head.id.clone()), meta.group.clone());
    WaitingFor { job, group, ..WaitingFor::new(Reason::Group, detail) }
}

fn due(meta: &Meta, now: Timestamp) -> Option<WaitingFor> {
    if meta.run_at <= now {
        return None;
    }
    let (reason, what) = match meta.errors.is_empty() {
        true => (Reason::Due, "it is due"),
        false => (Reason::Backoff, "it has failed, and is retried"),
    };
    let detail = format!("{what} at {}", meta.run_at);
    Some(WaitingFor { until: Some(meta.run_at), ..WaitingFor::new(reason, detail) })
}

fn kept_for(name: SemaphoreName, first: Waiter, may_see: impl Fn(&QueueName) -> bool) -> WaitingFor {
    let is_seen = may_see(&first.queue);
    let whose = match is_seen {
        true => format!("the job {} of the queue {}", first.id, first.queue),
        false => "another job".to_owned(),
    };
    let why = match first.state {
        State::Ready => "was called for it and comes first",
        _ => "has waited for longer than semaphore_patience_ms and comes first",
    };
    let detail = format!("the semaphore {name} has room, which is kept for {whose}: it {why}");
    let job = is_seen.then_some(first.id);
    WaitingFor { job, semaphore: Some(name), ..WaitingFor::new(Reason::Semaphore, detail) }
}

/// What has blocked a job that nothing blocks any more.
fn soon(meta: &Meta) -> WaitingFor {
    let (reason, what) = match meta.semaphores.is_empty() {
        true => (Reason::Group, "it is the first of its group"),
        false => (Reason::Semaphore, "its semaphores have room"),
    };
    let detail = format!("{what} since a moment: it is ready within another");
    let (group, semaphore) = (meta.group.clone(), meta.semaphores.first().cloned());
    match reason {
        Reason::Group => WaitingFor { group, ..WaitingFor::new(reason, detail) },
        _ => WaitingFor { semaphore, ..WaitingFor::new(reason, detail) },
    }
}

fn full(view: &SemaphoreView, holders: &[Holder], may_see: impl Fn(&QueueName) -> bool) -> WaitingFor {
    let SemaphoreView { name, capacity, held, .. } = view;
    let named: Vec<String> = holders
        .iter()
        .filter(|holder| may_see(&holder.queue))
        .map(|holder| format!("{} of the queue {}", holder.id, holder.queue))
        .collect();
    let by = if named.is_empty() { String::new() } else { format!(", among others by {}", named.join(", ")) };
    let by = if named.len() as u64 == *held { by.replace(", among others", "") } else { by };
    let detail = format!("the semaphore {name} is held {held} times of {capacity}{by}");
    WaitingFor { semaphore: Some(name.clone()), ..WaitingFor::new(Reason::Semaphore, detail) }
}
