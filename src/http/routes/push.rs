//! Requests to push jobs: into the queue of the path, or within another call, each with its own queue.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::http::body::off_worker;
use crate::http::parse::parse;
use crate::job::record::{KeyConflict, KeyUntil};
use crate::job::spec::flat_spec;
use crate::job::{Invalid, JobKey, OnFinished, QueueName, Timestamp, When};
use crate::queue::NewPush;

macro_rules! pushes {
    ($($(#[doc = $doc:literal])* $name:ident { $($(#[$attr:meta])* $own:ident: $type:ty,)* })*) => {
        $(
            flat_spec! {
                $(#[doc = $doc])*
                #[derive(Debug, Deserialize, utoipa::ToSchema)]
                #[serde(deny_unknown_fields)]
                pub struct $name {
                    $($(#[$attr])* $own: $type,)*
                    ..payload,
                    /// The delay before delivery, in milliseconds; not together with `run_at`.
                    #[schema(minimum = 0, maximum = 31536000000_u64)]
                    delay_ms: Option<u64>,
                    /// The earliest time of delivery; not together with `delay_ms`.
                    run_at: Option<Timestamp>,
                    ..priority,
                    /// The deduplication key. While it is in use, a push with the same key and an equal payload returns the
                    /// first job; with another payload it is a conflict.
                    key: Option<JobKey>,
                    /// How long the key stays in use at least, in milliseconds; it always does until the job has ended, and while
                    /// it is dead. A job that is cancelled or purged before it is done leaves its key at once.
                    #[schema(minimum = 0, maximum = 31536000000_u64)]
                    key_ttl_ms: Option<u64>,
                    /// Until when the job has the key; default: `finished`.
                    key_until: Option<KeyUntil>,
                    /// What becomes of this push where a job has the key; default: `return`.
                    key_conflict: Option<KeyConflict>,
                    ..others,
                }
            }

            impl $name {
                /// Converts the request into a push.
                pub fn into_push(self) -> Result<NewPush, Invalid> {
                    self.check_payload()?;
                    let when = when(self.delay_ms, self.run_at)?.unwrap_or_default();
                    let (key, key_ttl_ms) = (self.key.clone(), self.key_ttl_ms);
                    let (key_until, key_conflict) = (self.key_until, self.key_conflict);
                    Ok(NewPush { when, key, key_ttl_ms, key_until, key_conflict, spec: self.into() })
                }
            }
        )*
    };
}

/// Returns when a job is due, where the request says so: in a while, or at a moment.
pub fn when(delay_ms: Option<u64>, run_at: Option<Timestamp>) -> Result<Option<When>, Invalid> {
    match (delay_ms, run_at) {
        (Some(_), Some(_)) => Err(Invalid::new("/run_at", "cannot be combined with delay_ms")),
        (Some(delay_ms), None) => Ok(Some(When::In(delay_ms))),
        (None, run_at) => Ok(run_at.map(When::At)),
    }
}

pushes! {
    /// A job to push.
    PushRequest {}
    /// A job to push, with its queue.
    QueuedPush {
        /// The queue.
        queue: QueueName,
    }
}

flat_spec! {
    /// The callback of a batch: a job that is pushed when the last job has finished. The batch adds headers to it.
    #[derive(Debug, Deserialize, utoipa::ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct OnFinishedRequest {
        /// The queue.
        queue: QueueName,
        ..payload,
        /// The delay before delivery, in milliseconds from when the last job finished.
        #[schema(minimum = 0, maximum = 31536000000_u64)]
        delay_ms: Option<u64>,
        ..priority,
        ..others,
    }
}

impl OnFinishedRequest {
    /// Converts the request into a callback.
    pub fn into_callback(self) -> Result<OnFinished, Invalid> {
        self.check_payload()?;
        let (queue, delay_ms) = (self.queue.clone(), self.delay_ms);
        Ok(OnFinished::new(self.into(), queue, delay_ms))
    }
}

/// Parses the jobs within another call, which are at this pointer of its body; fails on the first invalid one.
pub fn parse_queued(raw: &[Box<RawValue>], under: &str) -> Result<Vec<(QueueName, NewPush)>, Invalid> {
    let read = |(n, raw): (usize, &RawValue)| {
        let pointer = format!("{under}/{n}");
        let push: QueuedPush = parse(raw.get()).map_err(|error| error.under(&pointer))?;
        Ok((push.queue.clone(), push.into_push().map_err(|invalid| invalid.under(&pointer))?))
    };
    let bytes = raw.iter().map(|raw| raw.get().len()).sum();
    off_worker(bytes, || raw.iter().map(|raw| &**raw).enumerate().map(read).collect())
}
