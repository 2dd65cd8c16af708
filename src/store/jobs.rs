//! The part of the contract that is about jobs: pushing, claiming, changing and finding them.

use async_trait::async_trait;

use super::{CalledBack, Found, PageBuilder, Result, Search, StoreError, TakeAsk, Taken};
use crate::job::error_group::Tally;
use crate::job::group::Line;
use crate::job::push::{PushRefused, Pushed};
use crate::job::rate::Deliveries;
use crate::job::transition::{Operation, Outcome, Refusal};
use crate::job::{
    Child, Claim, Filter, Job, JobId, Mark, Meta, NewJob, QueueName, Reach, Rules, SemaphoreName, State,
    Timestamp, WorkerName,
};

/// A request for jobs of one queue.
#[derive(Debug, Clone)]
pub struct ClaimAsk {
    /// The queue to take from.
    pub queue: QueueName,
    /// The most jobs to take.
    pub count: usize,
    /// Marks what this request wins. Requests of one call that fail together, those for one queue that are all pops or none of them,
    /// may share it.
    pub claim: Claim,
    /// How long the reservation lasts, in milliseconds.
    pub lease_ms: u64,
    /// Whether a job that has a lease of its own gets that one: the request has not said how long.
    pub yields: bool,
    /// The worker that asks.
    pub worker: Option<WorkerName>,
    /// Whether the jobs are taken away for good: those that need semaphores are passed over.
    pub pop: bool,
}

/// What claims have led to.
#[derive(Debug, Default)]
pub struct Claims {
    /// For each request, in the same order.
    pub won: Vec<Result<Vec<Job>>>,
    /// Queues that may have more jobs than were won, and when a retry may win some.
    pub resume: Vec<(QueueName, Timestamp)>,
    /// Semaphores that may have room now: [`unblock_waiters`](super::Semaphores::unblock_waiters) serves them.
    pub offers: Vec<SemaphoreName>,
    /// Queues with jobs that were left ready since this semaphore is full: once that is released a claim may win some.
    pub refused: Vec<(SemaphoreName, QueueName)>,
    /// Queues of which as much was read as one call reads, since their jobs are large or many were in the way: there may be some for the
    /// requests that got none, which are to be made again.
    pub again: Vec<QueueName>,
}

impl Claims {
    /// Returns what so many requests get when all of them fail.
    pub fn failed(asks: usize, error: &StoreError) -> Self {
        Self { won: (0..asks).map(|_| Err(error.clone())).collect(), ..Self::default() }
    }
}

/// Something that is to happen to one job.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The job.
    pub id: JobId,
    /// What is to happen.
    pub operation: Operation,
}

/// What has happened to one job.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// What has become of it.
    pub outcome: Outcome,
    /// The queue that it was in.
    pub queue: QueueName,
    /// When it had last been delivered.
    pub started_at: Option<Timestamp>,
    /// The jobs that were stored with it, in the order in which it asked for them.
    pub pushed: Vec<Child>,
    /// The callback of a batch whose last job this was, stored with it.
    pub callback: Option<CalledBack>,
    /// Jobs that nothing blocks any more: their queues, and when they are due.
    pub unblocked: Vec<(QueueName, Timestamp)>,
    /// Semaphores that may have room now: [`unblock_waiters`](super::Semaphores::unblock_waiters) serves them.
    pub released: Vec<SemaphoreName>,
    /// Whether this is the receipt of an earlier call with the same token, and nothing was changed now.
    pub repeated: bool,
    /// Whether an earlier call with the same token may have done it: the reply to this one's command was lost, and what was found
    /// proves that one of the two did.
    pub perhaps_earlier: bool,
    /// When it happened: what was due then was reported as `ready`, and a repeat gets the same.
    pub at: Timestamp,
}

impl Applied {
    /// Returns what has happened now to a job of this queue, and nothing beside it.
    pub fn new(outcome: Outcome, queue: QueueName, started_at: Option<Timestamp>, at: Timestamp) -> Self {
        Self {
            outcome,
            queue,
            started_at,
            pushed: Vec::new(),
            callback: None,
            unblocked: Vec::new(),
            released: Vec::new(),
            repeated: false,
            perhaps_earlier: false,
            at,
        }
    }

    /// Returns what is said of a job that could not be read before and is this now.
    pub fn mended(job: &Meta, at: Timestamp) -> Self {
        Self::new(Outcome::Dead { moved_to: None }, job.queue.clone(), job.started_at, at)
    }
}

/// Why a [`Change`] did not happen.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Denied {
    /// The job does not allow it.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// One of the jobs that were to be stored with it was refused.
    #[error("the push of another job was refused: {0:?}")]
    PushRefused(PushRefused),
    /// This job has the key that the job was to get in the queue that it would move to.
    #[error("the key is taken by job {0}")]
    KeyTaken(JobId),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How far ahead a store reads deadlines for the reaper at least, in milliseconds.
pub const LOOK_AHEAD_MS: u64 = 2000;

/// What the reaper has to do.
#[derive(Debug, Clone, Default)]
pub struct Overdue {
    /// [`Operation::Lapse`] and [`Operation::Expire`] for jobs whose time has come, the longest overdue first.
    pub changes: Vec<Change>,
    /// Milliseconds until the next deadline; a store need not read further ahead than [`LOOK_AHEAD_MS`].
    pub next_in_ms: Option<u64>,
}

impl Overdue {
    /// Returns the first `limit` of these, the longest overdue first. Where there are more the next deadline has passed as well.
    pub(super) fn first(mut due: Vec<(Timestamp, Change)>, limit: usize) -> Self {
        due.sort_by_key(|(deadline, _)| *deadline);
        let next_in_ms = (due.len() > limit).then_some(0);
        due.truncate(limit);
        Self { changes: due.into_iter().map(|(_, change)| change).collect(), next_in_ms }
    }
}

/// A job that cannot be read, because another program wrote it.
#[derive(Debug, Clone, PartialEq)]
pub struct UnreadableJob {
    /// The job.
    pub id: JobId,
    /// Why.
    pub why: String,
    /// What can be read of it: what cannot is left out, `null` or zero. `None` where it is not known in which queue it is.
    pub remains: Option<Box<Job>>,
}

/// A job as it is stored, or one that cannot be read.
pub type ListedJob = std::result::Result<Job, UnreadableJob>;

/// Returns the id of a job that was read or cannot be.
pub fn listed_id(job: &ListedJob) -> &JobId {
    match job {
        Ok(job) => &job.meta.id,
        Err(unreadable) => &unreadable.id,
    }
}

/// What a store knows of why a job is not delivered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Obstacles {
    /// The first job of its line, where it is not the first itself.
    pub head: Option<LineHead>,
    /// What its queue has delivered lately, as far as it counts for a rate.
    pub deliveries: Deliveries,
}

/// The first job of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineHead {
    /// The job.
    pub id: JobId,
    /// Its state.
    pub state: State,
    /// How many jobs of the line are before the one that was asked for, this one included; [`AHEAD_MAX`] stands for more as well.
    pub ahead: u64,
}

/// The line of a group, as a list shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupLine {
    /// The line.
    pub line: Line,
    /// Its first job.
    pub head: JobId,
    /// The state of that.
    pub state: State,
    /// Its earliest time of delivery.
    pub run_at: Timestamp,
    /// How many jobs are behind it; [`AHEAD_MAX`] stands for more as well.
    pub waiting: u64,
}

/// Up to how many jobs of a line are counted.
pub const AHEAD_MAX: u64 = 1000;

/// The verbs on jobs. They take lists and return a result for each element, in the same order.
#[async_trait]
pub trait Jobs: Send + Sync {
    /// Stores jobs. Each element stands for itself; ids are new. Where `rules` limit a queue, its
    /// unfinished jobs never exceed `max_jobs` by pushes through this instance.
    async fn push(&self, jobs: Vec<NewJob>, rules: &Rules) -> Vec<Result<Pushed>>;

    /// Reserves jobs that are ready and due and not expired: the highest priority first, then the earliest
    /// `run_at`, then the smallest id. A job is won by at most one claim. Each delivery counts as an attempt.
    ///
    /// Jobs whose semaphores have no room for them are blocked and passed over. A store that has just found one full may
    /// leave the jobs behind, all of which need it, as they are, for a moment: see [`Claims::refused`]. No semaphore ever
    /// has more holders than its capacity, and no queue more reserved jobs or more deliveries than `rules` allow,
    /// however many instances claim at once.
    ///
    /// A call ends where it has read a lot: it may win fewer jobs than there are, and none for some requests, which are to be made again
    /// then: see [`Claims::again`].
    async fn claim(&self, asks: &[ClaimAsk], rules: &Rules) -> Claims;

    /// Returns the jobs of these queues that this claim holds: what a claim whose outcome is unknown has won.
    async fn held(&self, queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>>;

    /// Returns the reserved jobs whose claims bear one of these marks: what settles have taken with them. Called where a settle may be a
    /// repeat: it walks all reserved jobs.
    async fn marked(&self, marks: &[Mark]) -> Result<Vec<Job>>;

    /// Applies operations to jobs, each atomically. The same id may occur more than once; then in order.
    ///
    /// A job that cannot be read is [`Unreadable`](super::StoreError::Unreadable), except to what removes jobs: that
    /// removes it, even while it is held. An edit makes it a dead job that can be read, if it has a payload then. What the server wants by
    /// itself makes it dead, and is refused.
    async fn apply(&self, changes: Vec<Change>, rules: &Rules) -> Vec<Result<Applied, Denied>>;

    /// Applies operations like [`Jobs::apply`], and takes jobs with them where that saves something: in the same transaction, or not at
    /// all. Where nothing was taken, the caller claims afterwards; so it does in a store whose settles of all clients share a round, and would
    /// wait for the claims of one.
    async fn apply_and_take(&self, changes: Vec<Change>, takes: &[TakeAsk], rules: &Rules) -> Taken {
        Taken::nothing(self.apply(changes, rules).await, takes.len())
    }

    /// Returns whether a commit by this claim has certainly taken effect that was sent: the job is not there, which proves it until this time
    /// ([`proven_by_absence_until`](crate::job::proven_by_absence_until)). A store that never says [`ends_alone`](super::Store::ends_alone) is not asked.
    async fn prove_commit(&self, _id: &JobId, _claim: &Claim, _until: Timestamp) -> Result<bool> {
        Ok(false)
    }

    /// Returns up to `limit` jobs whose reservation ran out or whose `expires_at` passed, by the store's
    /// clock.
    async fn overdue(&self, limit: usize) -> Result<Overdue>;

    /// Returns the scheduled jobs that are due next, the earliest first: up to `limit` queues and moments.
    async fn upcoming(&self, limit: usize) -> Result<Vec<(QueueName, Timestamp)>>;

    /// Returns jobs by their ids, each at the index of its id.
    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<ListedJob>>>;

    /// The same, as they are durably: what a failover may take back is not to be seen.
    async fn get_durable(&self, ids: &[JobId]) -> Result<Vec<Option<ListedJob>>> {
        self.get(ids).await
    }

    /// Returns those of these jobs that, durably, are there and have not [finished](crate::job::Meta::has_finished), in any order.
    async fn unfinished(&self, ids: &[JobId]) -> Result<Vec<JobId>>;

    /// Takes one step of a search: returns jobs that the [filter](crate::job::Filter::accepts) means, by id, and how far it has scanned.
    /// Also where the filter means nearly no job, a step ends in time and reads a bounded amount; fewer jobs than were asked for say
    /// nothing of those behind it. Jobs that cannot be read are among them where what can be read of them is meant.
    async fn search(&self, ask: &Search) -> Result<Found>;

    /// Returns the jobs that the filter means, the oldest first, those after `after`: up to `limit`, fewer where they have
    /// [`PAGE_BYTES`](super::PAGE_BYTES), and else only where there are no more. It takes as many steps of a search as that needs.
    async fn find(&self, filter: &Filter, after: Option<&JobId>, limit: usize) -> Result<Vec<ListedJob>> {
        let mut ask = Search { after: after.cloned(), ..Search::new(filter.clone(), limit) };
        let mut page = PageBuilder::new(limit);
        loop {
            ask.limit = page.room();
            let found = self.search(&ask).await?;
            found.jobs.into_iter().for_each(|job| page.push(job));
            ask.after = found.stopped_at;
            if page.is_full() || ask.after.is_none() {
                return Ok(page.into_items());
            }
        }
    }

    /// Counts the dead of these queues by their errors. Where there are very many, not all: the second value is whether all were counted.
    async fn tally_dead(&self, within: &Reach) -> Result<(Tally, bool)>;

    /// Returns the lines of these queues that have jobs, those after `after` in an order of the store's own: up to `limit`, and none only
    /// where there are no more. Costs a few seeks for each.
    async fn groups(&self, within: &Reach, after: Option<&Line>, limit: usize) -> Result<Vec<GroupLine>>;

    /// Returns the first jobs that a claim of this queue would find, in the order of delivery, and leaves them as they are. What
    /// limits a delivery (a pause, semaphores, `max_reserved`, a rate) is not considered. Up to `limit`, and about
    /// [`PAGE_BYTES`](super::PAGE_BYTES).
    async fn peek(&self, queue: &QueueName, limit: usize) -> Result<Vec<Job>>;

    /// Returns what may keep this job from being delivered, beside its own fields and the settings. Costs a few seeks.
    async fn obstacles(&self, job: &Meta) -> Result<Obstacles>;

    /// Returns the queues that have jobs and whose name begins with `prefix`, by name, those after `after`.
    async fn queues(&self, prefix: &str, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>>;

    /// Returns those of these queues that have a job which is ready and due, in any order; each at most once.
    /// It costs next to nothing for queues without ready jobs, and never walks a backlog. A queue whose due
    /// jobs have all expired may be among them, until they are removed.
    async fn stocked(&self, queues: &[QueueName]) -> Result<Vec<QueueName>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_overdue_come_first() {
        let due = |ms: i64| {
            let (at, id) = (Timestamp::from_millis(ms), format!("J{ms}").parse().unwrap());
            (at, Change { id, operation: Operation::Expire { expires_at: at } })
        };
        let first = |limit| {
            let Overdue { changes, next_in_ms } = Overdue::first([3, 1, 2].map(due).to_vec(), limit);
            (changes, next_in_ms)
        };
        let changes = |order: &[i64]| order.iter().map(|ms| due(*ms).1).collect::<Vec<_>>();
        assert_eq!(first(2), (changes(&[1, 2]), Some(0)));
        assert_eq!(first(3), (changes(&[1, 2, 3]), None));
    }
}
