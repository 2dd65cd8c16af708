//! What a request to settle a job may say, and what is meant by it.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::next::NextRequest;
use super::push::{QueuedPush, parse_queued, when};
use crate::http::body::{optional_content, optional_payload, present};
use crate::http::problem::ApiResult;
use crate::job::list::at_most;
use crate::job::record::KeyUntil;
use crate::job::spec::{Headers, JobHeaders};
use crate::job::transition::{Back, RollbackKind};
use crate::job::{Base64, Invalid, JobKey, MediaType, QueueName, Reservation, Timestamp};
use crate::queue::Relocation;
use crate::queue::settle::{Action, MoveKey, PUSHES_MAX};

/// A commit: the work succeeded.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitRequest {
    /// The token that the reserve returned.
    #[schema(value_type = Reservation)]
    pub(super) reservation: String,
    /// The result: any JSON value. Kept with the job in history, or its payload in the next stage.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(super) result: Option<Box<RawValue>>,
    /// Jobs to push with the commit, up to 1000. Atomic: they are stored with the commit, or nothing happens.
    #[serde(default, deserialize_with = "at_most::<{ PUSHES_MAX }, _, _>")]
    #[schema(value_type = Vec<QueuedPush>, max_items = 1000)]
    pub(super) push: Vec<Box<RawValue>>,
    /// The next jobs, taken with the same call.
    pub(super) next: Option<NextRequest>,
}

/// A rollback: the work failed.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// The token that the reserve returned.
    #[schema(value_type = Reservation)]
    pub(super) reservation: String,
    /// The delay before the next delivery, in milliseconds; not together with `run_at`. Default: the job's backoff; none where the
    /// attempt does not count.
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    pub(super) delay_ms: Option<u64>,
    /// The earliest time of the next delivery, instead of `delay_ms`; a time in the past is allowed, and sorts earlier.
    pub(super) run_at: Option<Timestamp>,
    /// The error message; its first 4096 bytes are kept with the job.
    #[schema(max_length = 1048576)]
    pub(super) error: Option<String>,
    /// `true`: the job is dead now, whatever attempts are left, like one that is out of attempts.
    /// Default: `false`.
    pub(super) dead: Option<bool>,
    /// `false`: the job was not at fault and is only put off. The attempt does not count, and the backoff does not grow; without
    /// a delay it comes back at once. Default: `true`.
    pub(super) count_attempt: Option<bool>,
    /// `true`: the job comes back at once to the place that it had in the order of delivery, instead of behind all that
    /// waits; not together with a delay. Default: `false`.
    pub(super) keep_place: Option<bool>,
    /// The next jobs, taken with the same call.
    pub(super) next: Option<NextRequest>,
}

/// An extension of a reservation: the worker needs more time.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// The token that the reserve returned.
    #[schema(value_type = Reservation)]
    pub(super) reservation: String,
    /// The new lease, in milliseconds from now; default: the lease of the reserve.
    #[schema(minimum = 100, maximum = 86400000)]
    pub(super) lease_ms: Option<u64>,
    /// The progress: any JSON value, shown with the job and passed to the next attempt.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(super) progress: Option<Box<RawValue>>,
}

/// A move to another queue.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// The token that the reserve returned. Without one, which needs the scope `operate`, the job must not be reserved or done, and only
    /// its place changes: there is no payload, headers or key beside it then.
    #[schema(value_type = Option<Reservation>)]
    pub(super) reservation: Option<String>,
    /// The target queue. The job's attempts start at 0 there.
    pub(super) queue: QueueName,
    /// The new payload: any JSON value; default: unchanged.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(super) payload: Option<Box<RawValue>>,
    /// A new binary payload instead, as base64.
    pub(super) payload_base64: Option<Base64>,
    /// The media type of a new binary payload; default: `application/octet-stream`.
    pub(super) payload_type: Option<MediaType>,
    /// The delay before delivery from the target queue, in milliseconds; not together with `run_at`.
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    pub(super) delay_ms: Option<u64>,
    /// The earliest time of delivery from the target queue; not together with `delay_ms`.
    pub(super) run_at: Option<Timestamp>,
    /// The new priority; default: unchanged.
    pub(super) priority: Option<i32>,
    /// The new headers, in place of all that it has; default: unchanged.
    #[serde(default, deserialize_with = "crate::job::headers::distinct_if_any")]
    #[schema(value_type = Option<JobHeaders>)]
    pub(super) headers: Option<Headers>,
    /// The deduplication key that the job has in the target queue; default: none. Where another job has it, nothing is moved. The key that
    /// the job had before stays in use as after any move.
    pub(super) key: Option<JobKey>,
    /// How long the key stays in use at least, in milliseconds; default: as long as one of a push.
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    pub(super) key_ttl_ms: Option<u64>,
    /// Until when the job has the key; default: `finished`.
    pub(super) key_until: Option<KeyUntil>,
}

impl RollbackRequest {
    /// Returns what is to become of the job, unless the fields contradict each other.
    fn kind(&self) -> Result<RollbackKind, Invalid> {
        let when = when(self.delay_ms, self.run_at)?;
        let (keeps_place, counts) = (self.keep_place == Some(true), self.count_attempt != Some(false));
        if self.dead == Some(true) {
            return match (when, keeps_place, counts) {
                (None, false, true) => Ok(RollbackKind::Dead),
                _ => Err(Invalid::new(
                    "/dead",
                    "cannot be combined with delay_ms, run_at, keep_place or count_attempt: a dead job does not come back",
                )),
            };
        }
        let back = match (when, keeps_place) {
            (Some(_), true) => {
                return Err(Invalid::new("/keep_place", "cannot be combined with delay_ms or run_at"));
            }
            (Some(when), false) => Back::At(when),
            (None, true) => Back::InPlace,
            (None, false) => Back::ByBackoff,
        };
        Ok(if counts { RollbackKind::Retry(back) } else { RollbackKind::Snooze(back) })
    }
}

/// A request body that becomes a settle, of one job or as an item of many.
pub(super) trait IntoAction {
    fn into_action(self) -> ApiResult<(String, Action)>;

    /// Takes out what it says of the next jobs.
    fn take_next(&mut self) -> Option<NextRequest> {
        None
    }
}

impl IntoAction for CommitRequest {
    fn into_action(self) -> ApiResult<(String, Action)> {
        let result = optional_payload(self.result.as_deref(), "/result")?;
        Ok((self.reservation, Action::Commit { result, push: parse_queued(&self.push, "/push")? }))
    }

    fn take_next(&mut self) -> Option<NextRequest> {
        self.next.take()
    }
}

impl IntoAction for RollbackRequest {
    fn into_action(self) -> ApiResult<(String, Action)> {
        let kind = self.kind()?;
        Ok((self.reservation, Action::Rollback { kind, error: self.error }))
    }

    fn take_next(&mut self) -> Option<NextRequest> {
        self.next.take()
    }
}

impl IntoAction for ExtendRequest {
    fn into_action(self) -> ApiResult<(String, Action)> {
        let progress = optional_payload(self.progress.as_deref(), "/progress")?;
        Ok((self.reservation, Action::Extend { lease_ms: self.lease_ms, progress }))
    }
}

impl MoveRequest {
    /// Returns where an operator wants a job to be that no worker holds.
    pub(super) fn into_relocation(self) -> ApiResult<Relocation> {
        let given = [
            ("/payload", self.payload.is_some()),
            ("/payload_base64", self.payload_base64.is_some()),
            ("/payload_type", self.payload_type.is_some()),
            ("/headers", self.headers.is_some()),
            ("/key", self.key.is_some()),
            ("/key_ttl_ms", self.key_ttl_ms.is_some()),
            ("/key_until", self.key_until.is_some()),
        ];
        if let Some((pointer, _)) = given.iter().find(|(_, is_given)| *is_given) {
            return Err(Invalid::new(*pointer, "needs a reservation beside it").into());
        }
        let when = when(self.delay_ms, self.run_at)?;
        Ok(Relocation { queue: self.queue, when, priority: self.priority })
    }
}

impl IntoAction for MoveRequest {
    fn into_action(self) -> ApiResult<(String, Action)> {
        let payload = optional_content(self.payload.as_deref(), self.payload_base64, self.payload_type)?;
        let when = when(self.delay_ms, self.run_at)?.unwrap_or_default();
        let Self { reservation, queue, priority, headers, key, key_ttl_ms: ttl_ms, key_until: until, .. } =
            self;
        let beside = [("/key_ttl_ms", ttl_ms.is_some()), ("/key_until", until.is_some())];
        if let Some((pointer, _)) = beside.iter().find(|(_, is_there)| *is_there && key.is_none()) {
            return Err(Invalid::new(*pointer, "needs a key beside it").into());
        }
        let key = key.map(|key| MoveKey { key, ttl_ms, until });
        let reservation = reservation.ok_or_else(|| Invalid::new("/reservation", "must be given"))?;
        Ok((reservation, Action::Move { queue, payload, when, priority, headers, key }))
    }
}
