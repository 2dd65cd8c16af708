//! Requests to push jobs: into the queue of the path, or within another call, each with its own queue.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::http::body::{off_worker, parse};
use crate::job::spec::flat_spec;
use crate::job::{Invalid, JobKey, OnFinished, QueueName, Timestamp};
use crate::queue::{NewPush, When};

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
                    #[schema(value_type = Option<String>, format = DateTime)]
                    run_at: Option<Timestamp>,
                    ..priority,
                    /// The deduplication key. While it is in use, a push with the same key and an equal payload returns the
                    /// first job; with another payload it is a conflict.
                    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
                    key: Option<JobKey>,
                    /// How long the key stays in use at least, in milliseconds; it always does until the job has ended, and while
                    /// it is dead. A job that is cancelled or purged before it is done leaves its key at once.
                    #[schema(minimum = 0, maximum = 31536000000_u64)]
                    key_ttl_ms: Option<u64>,
                    ..others,
                }
            }

            impl $name {
                /// Converts the request into a push.
                pub fn into_push(self) -> Result<NewPush, Invalid> {
                    let when = match (self.delay_ms, self.run_at) {
                        (None, None) => When::Now,
                        (Some(delay_ms), None) => When::In(delay_ms),
                        (None, Some(run_at)) => When::At(run_at),
                        (Some(_), Some(_)) => {
                            return Err(Invalid::new("/run_at", "cannot be combined with delay_ms"));
                        }
                    };
                    let (key, key_ttl_ms) = (self.key.clone(), self.key_ttl_ms);
                    Ok(NewPush { when, key, key_ttl_ms, spec: self.into() })
                }
            }
        )*
    };
}

pushes! {
    /// A job to push.
    PushRequest {}
    /// A job to push, with its queue.
    QueuedPush {
        /// The queue.
        #[schema(value_type = String)]
        queue: QueueName,
    }
}

flat_spec! {
    /// The callback of a batch: a job that is pushed when the last job has finished. The batch adds headers to it.
    #[derive(Debug, Deserialize, utoipa::ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct OnFinishedRequest {
        /// The queue.
        #[schema(value_type = String)]
        queue: QueueName,
        ..payload,
        /// The delay before delivery, in milliseconds from when the last job finished.
        #[schema(minimum = 0, maximum = 31536000000_u64)]
        delay_ms: Option<u64>,
        ..priority,
        ..others,
    }
}

impl From<OnFinishedRequest> for OnFinished {
    fn from(request: OnFinishedRequest) -> Self {
        let (queue, delay_ms) = (request.queue.clone(), request.delay_ms);
        Self::new(request.into(), queue, delay_ms)
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
