//! Requests to push jobs: into the queue of the path, or within another call, each with its own queue.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::http::body::{parse, payload};
use crate::http::problem::Problem;
use crate::job::record::Headers;
use crate::job::{Backoff, GroupName, JobKey, QueueName, SemaphoreName, Stage, Timestamp};
use crate::queue::{Error, NewPush, When};

macro_rules! pushes {
    ($($(#[doc = $doc:literal])* $name:ident { $($(#[$attr:meta])* $own:ident: $type:ty,)* })*) => {
        $(
            $(#[doc = $doc])*
            #[derive(Debug, Deserialize, utoipa::ToSchema)]
            #[serde(deny_unknown_fields)]
            pub struct $name {
                $($(#[$attr])* $own: $type,)*
                /// The payload: any JSON value, delivered exactly as it was pushed.
                #[schema(value_type = serde_json::Value)]
                payload: Box<RawValue>,
                /// The delay before delivery, in milliseconds; not together with `run_at`.
                #[schema(minimum = 0, maximum = 31536000000_u64)]
                delay_ms: Option<u64>,
                /// The earliest time of delivery; not together with `delay_ms`.
                #[schema(value_type = Option<String>, format = DateTime)]
                run_at: Option<Timestamp>,
                /// The priority; higher is delivered first.
                #[serde(default)]
                #[schema(default = 0)]
                priority: i32,
                /// The deduplication key. While it is in use, a push with the same key and an equal payload returns the
                /// first job; with another payload it is a conflict.
                #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
                key: Option<JobKey>,
                /// How long the key stays in use at least, in milliseconds; it always does until the job has ended.
                #[schema(minimum = 0, maximum = 31536000000_u64)]
                key_ttl_ms: Option<u64>,
                /// The maximum number of deliveries before the job is dead; default: the queue's.
                #[schema(minimum = 1, maximum = 1000000)]
                max_attempts: Option<u32>,
                /// The delay before a retry; default: the queue's.
                #[serde(default, deserialize_with = "crate::job::backoff::object")]
                backoff: Option<Backoff>,
                /// The job expires after this time, in milliseconds: it is removed unless it is reserved or finished.
                #[schema(minimum = 1, maximum = 31536000000_u64)]
                expires_in_ms: Option<u64>,
                /// Headers: names and strings that are delivered with the job.
                #[serde(default)]
                #[schema(value_type = std::collections::HashMap<String, String>)]
                headers: Headers,
                /// The group of the job: jobs of the same group in a queue are delivered one at a time, in the order of
                /// their pushes.
                #[schema(value_type = Option<String>)]
                group: Option<GroupName>,
                /// The semaphores that the job needs, up to 16: it is delivered once all have capacity, and holds all of
                /// them.
                #[serde(default)]
                #[schema(value_type = Vec<String>, max_items = 16)]
                semaphores: Vec<SemaphoreName>,
                /// The route: further stages of the job, up to 100. Each commit moves it to the next stage.
                #[serde(default)]
                #[schema(max_items = 100)]
                then: Vec<Stage>,
            }

            impl $name {
                /// Converts the request into a push.
                pub fn into_push(self) -> Result<NewPush, Problem> {
                    let when = match (self.delay_ms, self.run_at) {
                        (None, None) => When::Now,
                        (Some(delay_ms), None) => When::In(delay_ms),
                        (None, Some(run_at)) => When::At(run_at),
                        (Some(_), Some(_)) => return Err(Problem::field("/run_at", "cannot be combined with delay_ms")),
                    };
                    Ok(NewPush {
                        payload: payload(&self.payload, "/payload")?,
                        headers: self.headers,
                        when,
                        priority: self.priority,
                        key: self.key,
                        key_ttl_ms: self.key_ttl_ms,
                        max_attempts: self.max_attempts,
                        backoff: self.backoff,
                        expires_in_ms: self.expires_in_ms,
                        group: self.group,
                        semaphores: self.semaphores,
                        then: self.then,
                    })
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

/// The callback of a batch: a job that is pushed when the last job has finished.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OnFinishedRequest {
    /// The queue.
    #[schema(value_type = String)]
    queue: QueueName,
    /// The payload: any JSON value, delivered exactly as it was pushed.
    #[schema(value_type = serde_json::Value)]
    payload: Box<RawValue>,
    /// The delay before delivery, in milliseconds from when the last job finished.
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    delay_ms: Option<u64>,
    /// The priority; higher is delivered first.
    #[serde(default)]
    #[schema(default = 0)]
    priority: i32,
    /// The maximum number of deliveries before the job is dead; default: the queue's.
    #[schema(minimum = 1, maximum = 1000000)]
    max_attempts: Option<u32>,
    /// The delay before a retry; default: the queue's.
    #[serde(default, deserialize_with = "crate::job::backoff::object")]
    backoff: Option<Backoff>,
    /// The job expires this long after it was pushed, in milliseconds: it is removed unless it is reserved or finished.
    #[schema(minimum = 1, maximum = 31536000000_u64)]
    expires_in_ms: Option<u64>,
    /// Headers (names and strings), in addition to the headers that the batch adds.
    #[serde(default)]
    #[schema(value_type = std::collections::HashMap<String, String>)]
    headers: Headers,
    /// The group of the job: jobs of the same group in a queue are delivered one at a time, in the order of their
    /// pushes.
    #[schema(value_type = Option<String>)]
    group: Option<GroupName>,
    /// The semaphores that the job needs, up to 16: it is delivered once all have capacity, and holds all of them.
    #[serde(default)]
    #[schema(value_type = Vec<String>, max_items = 16)]
    semaphores: Vec<SemaphoreName>,
    /// The route: further stages of the job, up to 100.
    #[serde(default)]
    #[schema(max_items = 100)]
    then: Vec<Stage>,
}

impl OnFinishedRequest {
    /// Converts the request into a push.
    pub fn into_push(self) -> Result<(QueueName, NewPush), Problem> {
        let push = NewPush {
            payload: payload(&self.payload, "/on_finished/payload")?,
            headers: self.headers,
            when: self.delay_ms.map_or(When::Now, When::In),
            priority: self.priority,
            key: None,
            key_ttl_ms: None,
            max_attempts: self.max_attempts,
            backoff: self.backoff,
            expires_in_ms: self.expires_in_ms,
            group: self.group,
            semaphores: self.semaphores,
            then: self.then,
        };
        Ok((self.queue, push))
    }
}

/// Parses the jobs within another call, which are at this pointer of its body; fails on the first invalid one.
pub fn parse_queued(raw: &[Box<RawValue>], under: &str) -> Result<Vec<(QueueName, NewPush)>, Problem> {
    let read = |(n, raw): (usize, &RawValue)| {
        let read = parse(raw.get()).and_then(|push: QueuedPush| Ok((push.queue.clone(), push.into_push()?)));
        read.map_err(|problem| match problem.into_invalid() {
            Error::Invalid { pointer, detail } => Problem::field(format!("{under}/{n}{pointer}"), detail),
            other => other.into(),
        })
    };
    raw.iter().map(|raw| &**raw).enumerate().map(read).collect()
}
