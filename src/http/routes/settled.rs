//! The responses of settles: a type for each call, and one for the items of many.

use serde::Serialize;

use super::next::NextResponse;
use crate::job::transition::Outcome;
use crate::job::{Child, JobId, QueueName, State as JobState, Timestamp, Visible};
use crate::queue::Settled;

/// The state of a job after a settle.
#[derive(Debug, Clone, Copy, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SettledState {
    /// Finished successfully.
    Done,
    /// Ready for delivery.
    Ready,
    /// Waiting for its `run_at`.
    Scheduled,
    /// Waiting for its group.
    Blocked,
    /// Out of attempts.
    Dead,
    /// Removed: its cancellation had been requested, or its `expires_at` had passed.
    Removed,
}

/// Declares the responses, each with those of the fields that its call has. What a call always returns is required, though it is an
/// option here: all are made of the same outcome.
macro_rules! responses {
    ($($(#[doc = $doc:literal])+ $name:ident {
        $($(#[doc = $field_doc:literal])+ $(@[$attr:meta])* $field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[doc = $doc])+
            #[derive(Debug, Serialize, utoipa::ToSchema)]
            pub struct $name {
                $(
                    $(#[doc = $field_doc])+
                    #[serde(skip_serializing_if = "Option::is_none")]
                    $(#[$attr])*
                    $field: Option<$type>,
                )*
            }

            impl From<Settled> for $name {
                fn from(settled: Settled) -> Self {
                    let all = Fields::of(settled);
                    Self { $($field: all.$field,)* }
                }
            }
        )*
    };
}

responses! {
    /// A job that was committed.
    CommitResponse {
        /// The job.
        @[schema(required = true)]
        id: JobId,
        /// Its state: `done`, or that in the next stage of its route; `removed` where its cancellation had been requested.
        @[schema(required = true)]
        state: SettledState,
        /// Its queue, where it goes on along its route.
        queue: QueueName,
        /// When it is delivered from there at the earliest.
        run_at: Timestamp,
        /// The jobs that were pushed with the commit, in the order of the request.
        pushed: Vec<Child>,
        /// Always true: the call was a repeat, and nothing was changed now. The response is that of the first call, also where this
        /// one asked for something else. Absent on a first call.
        repeated: bool,
        /// The next jobs, where the request asked for some.
        next: NextResponse,
    }
    /// A job that was rolled back.
    RollbackResponse {
        /// The job.
        @[schema(required = true)]
        id: JobId,
        /// Its state.
        @[schema(required = true)]
        state: SettledState,
        /// Its queue: the dead-letter queue, if it went there.
        queue: QueueName,
        /// When it is delivered again at the earliest, unless it is dead or removed.
        run_at: Timestamp,
        /// Always true: the call was a repeat, and nothing was changed now. The response is that of the first call, also where this
        /// one asked for something else. Absent on a first call.
        repeated: bool,
        /// The next jobs, where the request asked for some.
        next: NextResponse,
    }
    /// A job whose reservation was extended.
    ExtendResponse {
        /// The job.
        @[schema(required = true)]
        id: JobId,
        /// When the reservation expires.
        @[schema(required = true)]
        reserved_until: Timestamp,
        /// Whether cancellation of the job was requested: stop, and roll it back.
        @[schema(required = true)]
        cancel_requested: bool,
    }
    /// A job that was moved.
    MoveResponse {
        /// The job.
        @[schema(required = true)]
        id: JobId,
        /// Its state; `removed` where its cancellation had been requested.
        @[schema(required = true)]
        state: SettledState,
        /// The queue that it is in, unless it was removed.
        queue: QueueName,
        /// When it is delivered from there at the earliest.
        run_at: Timestamp,
        /// Always true: the call was a repeat, and nothing was changed now. The response is that of the first call, also where this
        /// one asked for something else. Absent on a first call.
        repeated: bool,
    }
    /// A job that was taken back from its worker.
    ReleaseResponse {
        /// The job.
        @[schema(required = true)]
        id: JobId,
        /// Its state; `removed` where its cancellation had been requested, or its `expires_at` had passed.
        @[schema(required = true)]
        state: SettledState,
        /// When it is delivered again at the earliest.
        run_at: Timestamp,
    }
    /// What became of one of many jobs. Which fields there are depends on what was asked for.
    SettledView {
        /// The job.
        id: JobId,
        /// Its new state (commit, rollback, move).
        state: SettledState,
        /// Its new queue (move; rollback into a dead-letter queue; commit along a route).
        queue: QueueName,
        /// When it is delivered again at the earliest (rollback, move).
        run_at: Timestamp,
        /// When the reservation expires (extend).
        reserved_until: Timestamp,
        /// Whether cancellation of the job was requested (extend).
        cancel_requested: bool,
        /// The jobs that were pushed with the commit, in the order of the request (commit).
        pushed: Vec<Child>,
        /// Always true: the call was a repeat, and nothing was changed now. The response is that of the first call, also where this
        /// one asked for something else. Absent on a first call.
        repeated: bool,
    }
}

impl SettledView {
    /// Returns what is said of a job that could not be settled: only which it is, if that could be read.
    pub fn unsettled(job: Option<JobId>) -> Self {
        let Fields {
            id: _, state, queue, run_at, reserved_until, cancel_requested, pushed, repeated, ..
        } = Fields::default();
        Self { id: job, state, queue, run_at, reserved_until, cancel_requested, pushed, repeated }
    }
}

/// Everything that can be said of a settle.
#[derive(Default)]
struct Fields {
    id: Option<JobId>,
    state: Option<SettledState>,
    queue: Option<QueueName>,
    run_at: Option<Timestamp>,
    reserved_until: Option<Timestamp>,
    cancel_requested: Option<bool>,
    pushed: Option<Vec<Child>>,
    repeated: Option<bool>,
    /// Written behind the rest, as it may be long.
    next: Option<NextResponse>,
}

impl Fields {
    fn of(settled: Settled) -> Self {
        let Settled { id, outcome, from: _, has_gone, pushed, at, repeated, perhaps_earlier: _ } = settled;
        let pushed = (!pushed.is_empty()).then_some(pushed);
        let fields = Self { id: Some(id), pushed, repeated: repeated.then_some(true), ..Self::default() };
        match outcome {
            Outcome::Done => Self { state: Some(SettledState::Done), ..fields },
            Outcome::Removed => Self { state: Some(SettledState::Removed), ..fields },
            Outcome::Dead { moved_to } => Self { state: Some(SettledState::Dead), queue: moved_to, ..fields },
            Outcome::Returned { queue, run_at, blocked } => {
                let state = if blocked { JobState::Blocked } else { JobState::Ready };
                let state = match state.visible(run_at, at) {
                    Visible::Blocked => SettledState::Blocked,
                    Visible::Scheduled => SettledState::Scheduled,
                    _ => SettledState::Ready,
                };
                let place = (!has_gone).then_some((queue, run_at));
                let (queue, run_at) = place.unzip();
                Self { state: Some(state), queue, run_at, ..fields }
            }
            Outcome::Held { reserved_until, cancel_requested } => Self {
                reserved_until: Some(reserved_until),
                cancel_requested: Some(cancel_requested),
                ..fields
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_distinguished_by_the_stores_clock() {
        let state = |run_at, blocked| {
            let run_at = Timestamp::from_millis(run_at);
            let outcome = Outcome::Returned { queue: "q".parse().unwrap(), run_at, blocked };
            let (id, at) = ("a".parse().unwrap(), Timestamp::from_millis(1000));
            let (from, has_gone, pushed, repeated, perhaps_earlier) = (None, false, Vec::new(), false, false);
            let settled = Settled { id, outcome, from, has_gone, pushed, at, repeated, perhaps_earlier };
            serde_json::to_value(SettledView::from(settled)).unwrap()["state"].clone()
        };
        assert_eq!((state(1000, false), state(1001, false)), ("ready".into(), "scheduled".into()));
        assert_eq!(state(1001, true), "blocked");
    }
}
