//! Why a call was refused or failed.

use std::time::Duration;

use super::NO_ROOM;
use super::rounds::RoundError;
use crate::job::transition::Refusal;
use crate::job::{
    BatchId, BulkId, Invalid, JobId, QueueName, ScheduleName, SemaphoreName, StoredKeyId, Visible, WorkerName,
};
use crate::store::{Denied, Named, PushRefused, StoreError};

/// Why a call was refused or failed. `http/problem.rs` says what it means for a client.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A value is out of its range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// There is no such job.
    #[error("job {0} not found: it never existed, or it finished and is not retained")]
    UnknownJob(JobId),
    /// The job was there when the wait for it began, and is gone.
    #[error(
        "job {0} is gone: it is done, and is not kept (retain_result_ms, retain_done_ms), or it was cancelled, purged or popped, or has \
         expired"
    )]
    JobGone(JobId),
    /// One of the jobs of a call is refused, and with it all of them.
    #[error("job {index} of the call: {error}")]
    InJob {
        /// Its index among the jobs of the call.
        index: usize,
        /// Why.
        error: Box<Error>,
    },
    /// There is no such worker.
    #[error("worker {0} has sent no heartbeat lately")]
    UnknownWorker(WorkerName),
    /// There is no such batch.
    #[error("there is no batch {0}")]
    UnknownBatch(BatchId),
    /// All jobs of the batch are duplicates.
    #[error(
        "all jobs of the batch are duplicates, the first one of job {0}: the batch would count none of them, and end before they \
         have; nothing was stored. With an Idempotency-Key a batch can be sent again"
    )]
    OnlyDuplicates(JobId),
    /// The batch takes no more jobs.
    #[error("batch {0} is sealed")]
    BatchSealed(BatchId),
    /// The token is not, or no longer, the one that holds the job.
    #[error("the reservation of job {id} is not, or no longer, yours")]
    ReservationLost {
        /// The job.
        id: JobId,
        /// Whether the job does not exist any more either.
        gone: bool,
    },
    /// The job's state does not allow it.
    #[error("job {id} is {}, which does not allow this", state.as_str())]
    WrongState {
        /// The job.
        id: JobId,
        /// What it is.
        state: Visible,
    },
    /// The job cannot be read: another program wrote it.
    #[error("job {id} cannot be read: {why}; PATCH what cannot be read, or DELETE it")]
    UnreadableJob {
        /// The job.
        id: JobId,
        /// What is wrong with it.
        why: String,
    },
    /// The key is taken by a job with another payload, or is not to be shared.
    #[error(
        "the key is taken by job {0}, which has another payload, or the push says `key_conflict: refuse`"
    )]
    KeyConflict(JobId),
    /// Another job has the key that a moved job was to get.
    #[error("the key is taken by job {0} in the queue that the job would move to; nothing was moved")]
    KeyTaken(JobId),
    /// The queue has as many unfinished jobs as it takes.
    #[error("queue {0} has as many unfinished jobs as its max_jobs allows")]
    QueueFull(QueueName),
    /// There are as many of these as there may be, and this is none of them.
    #[error("there are as many {} as limits.{} allows ({limit})", kind.as_str(), kind.option())]
    LimitReached {
        /// What there are too many of.
        kind: Named,
        /// How many there may be.
        limit: u64,
    },
    /// There is no such operation.
    #[error("there is no operation {0}")]
    UnknownOperation(BulkId),
    /// The operation that a call with the same key began is not there any more.
    #[error(
        "the operation {0}, which was begun with this Idempotency-Key, is not there any more, as after a restore or a copy of the store; \
         nothing was begun: look at what it did, and use another key to begin it again"
    )]
    OperationGone(BulkId),
    /// There are as many operations under way as there may be.
    #[error("there are {0} operations under way, which are as many as there may be; nothing was begun")]
    TooManyOperations(usize),
    /// There are as many replays that wait for room as there may be.
    #[error("{0} replays wait for room in their queues, which are as many as may wait; nothing was begun")]
    TooManyReplays(usize),
    /// The queue cannot be deleted while it has jobs.
    #[error("queue {0} still has jobs")]
    QueueNotEmpty(QueueName),
    /// The settings have changed since the version that the caller knows.
    #[error("the settings of queue {0} are not of the version in If-Match")]
    SettingsChanged(QueueName),
    /// There is no such semaphore.
    #[error("there is no semaphore {0}")]
    UnknownSemaphore(SemaphoreName),
    /// The semaphore cannot be deleted while jobs need it.
    #[error("the semaphore {name} is needed by {by}")]
    SemaphoreInUse {
        /// The semaphore.
        name: SemaphoreName,
        /// How many jobs need it, and some of them; or which schedule, or which batches.
        by: String,
    },
    /// There is no such schedule.
    #[error("there is no schedule {0}")]
    UnknownSchedule(ScheduleName),
    /// The schedule has changed since the version that the caller knows.
    #[error(
        "the schedule {0} is not of the version in If-Match, or was changed by another call at the same moment"
    )]
    ScheduleChanged(ScheduleName),
    /// The key with which the request began has ended since, or keys are required by now.
    #[error("{0}")]
    Unauthorized(&'static str),
    /// Jobs would go from a dead-letter queue to the next, and come back.
    #[error("makes a circle: {}", .0.iter().map(QueueName::as_str).collect::<Vec<_>>().join(" → "))]
    DeadLetterCircle(Vec<QueueName>),
    /// There is no such API key.
    #[error("there is no key {0}")]
    UnknownApiKey(StoredKeyId),
    /// The API key cannot be read: another program wrote it.
    #[error("the key {id} cannot be read: {why}; it can only be deleted")]
    UnreadableApiKey {
        /// What names it.
        id: StoredKeyId,
        /// What is wrong with it.
        why: String,
    },
    /// The same idempotency key came with another request.
    #[error("the Idempotency-Key was used for another request")]
    IdempotencyKeyReused,
    /// The first request with this idempotency key is still running.
    #[error("the first request with this Idempotency-Key is still running")]
    RequestPending,
    /// The server is about to stop, and the first request with this idempotency key still running elsewhere.
    #[error("the server is shutting down; the first request with this Idempotency-Key is still running")]
    Draining,
    /// Too much was waiting for the store already; nothing happened.
    #[error("too many requests are waiting for the store; nothing happened")]
    Overloaded,
    /// As many streams of events are open as may be.
    #[error("as many streams of events are open as may be (limits.event_streams)")]
    TooManyStreams,
    /// This caller has as many of them open as one may.
    #[error("this caller has {0} streams of events open, as many as one may: half of limits.event_streams")]
    TooManyStreamsOfOne(usize),
    /// The API key is at one of its limits.
    #[error("{what}; nothing happened")]
    KeyLimited {
        /// Which limit.
        what: String,
        /// After which time to try again.
        wait: Duration,
    },
    /// The memory for responses is in use.
    #[error("{NO_ROOM}")]
    NoRoom,
    /// As many calls wait for jobs as may; there is no job now.
    #[error(
        "no job is ready, and too many calls are waiting (limits.waiting, and four fifths of limits.connections; of this peer, of \
         limits.connections_per_peer)"
    )]
    TooManyWaiting,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<RoundError> for Error {
    fn from(error: RoundError) -> Self {
        match error {
            RoundError::Overloaded => Self::Overloaded,
            RoundError::Lost => StoreError::internal("a round ended without a result").into(),
        }
    }
}

impl Error {
    /// An [`Error::Invalid`] at this JSON pointer.
    pub fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Invalid::new(pointer, detail).into()
    }

    /// An error of one of the jobs of a call.
    pub(super) fn in_job(index: usize, error: Self) -> Self {
        Self::InJob { index, error: error.into() }
    }

    /// Returns the error of a call that has stored so many things already; see [`StoreError::after`].
    pub(super) fn after(self, stored: u64) -> Self {
        match self {
            Self::Store(error) => Self::Store(error.after(stored)),
            error => error,
        }
    }

    pub(super) fn denied(id: &JobId, denied: Denied) -> Self {
        match denied {
            Denied::Refused(Refusal::Lost { gone }) => Self::ReservationLost { id: id.clone(), gone },
            Denied::Refused(Refusal::Unknown) => Self::UnknownJob(id.clone()),
            Denied::Refused(Refusal::Conflict { state }) => Self::WrongState { id: id.clone(), state },
            // Only a move ends so, and names the queue itself.
            Denied::Refused(Refusal::Full) => Self::ReservationLost { id: id.clone(), gone: false },
            Denied::PushRefused(PushRefused { key_of: Some(id), .. }) => Self::KeyConflict(id),
            Denied::PushRefused(PushRefused { queue, .. }) => Self::QueueFull(queue),
            Denied::KeyTaken(id) => Self::KeyTaken(id),
            Denied::Store(StoreError::Unreadable(why)) => {
                Self::UnreadableJob { id: id.clone(), why: why.to_string() }
            }
            Denied::Store(error) => Self::Store(error),
        }
    }

    /// Returns the same error for a value under this pointer.
    pub(super) fn under(self, prefix: &str) -> Self {
        match self {
            Self::Invalid(invalid) => invalid.under(prefix).into(),
            other => other,
        }
    }
}

/// What a method of [`Queues`](super::Queues) returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
