//! Jobs as clients push them: alone, or as a part of another call that says which queue they are for.

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
                /// What is to be done: any JSON value, given back equal to what is sent here.
                #[schema(value_type = serde_json::Value)]
                payload: Box<RawValue>,
                /// Due after so many milliseconds; not together with `run_at`.
                #[schema(minimum = 0, maximum = 31536000000_u64)]
                delay_ms: Option<u64>,
                /// Due at this moment; not together with `delay_ms`.
                #[schema(value_type = Option<String>, format = DateTime)]
                run_at: Option<Timestamp>,
                /// Higher is delivered first.
                #[serde(default)]
                #[schema(default = 0)]
                priority: i32,
                /// Your own name for the job: while it is taken, a push with the same key and an equal payload answers
                /// the first job, and one with another payload is refused.
                #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
                key: Option<JobKey>,
                /// How long the key is taken at least, in milliseconds; it is until the job has ended.
                #[schema(minimum = 0, maximum = 31536000000_u64)]
                key_ttl_ms: Option<u64>,
                /// How often the job is delivered before it is dead; absent: what the queue says.
                #[schema(minimum = 1, maximum = 1000000)]
                max_attempts: Option<u32>,
                /// How long the job waits after a rollback; absent: what the queue says.
                #[serde(default, deserialize_with = "crate::job::backoff::object")]
                backoff: Option<Backoff>,
                /// Removed after so many milliseconds, unless it is reserved or finished then.
                #[schema(minimum = 1, maximum = 31536000000_u64)]
                expires_in_ms: Option<u64>,
                /// Text that travels with the job.
                #[serde(default)]
                #[schema(value_type = std::collections::HashMap<String, String>)]
                headers: Headers,
                /// The group that the job belongs to: jobs of the queue with the same one are delivered one at a time, in the
                /// order of their pushes.
                #[schema(value_type = Option<String>)]
                group: Option<GroupName>,
                /// The semaphores that the job needs, up to 16: it is delivered while each has room, and takes all of them.
                #[serde(default)]
                #[schema(value_type = Vec<String>, max_items = 16)]
                semaphores: Vec<SemaphoreName>,
                /// The stages that the job goes through afterwards, up to 100: each commit hands it to the next one.
                #[serde(default)]
                #[schema(max_items = 100)]
                then: Vec<Stage>,
            }

            impl $name {
                /// What the product makes of it.
                pub fn into_push(self) -> Result<NewPush, Problem> {
                    let when = match (self.delay_ms, self.run_at) {
                        (None, None) => When::Now,
                        (Some(delay_ms), None) => When::In(delay_ms),
                        (None, Some(run_at)) => When::At(run_at),
                        (Some(_), Some(_)) => return Err(Problem::field("/run_at", "cannot stand beside delay_ms")),
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
    /// A job to push, and the queue that it is for.
    QueuedPush {
        /// Where it goes.
        #[schema(value_type = String)]
        queue: QueueName,
    }
}

/// The job that is pushed when the last job of a batch is finished.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OnFinishedRequest {
    /// Where it goes.
    #[schema(value_type = String)]
    queue: QueueName,
    /// What is to be done: any JSON value, given back equal to what is sent here.
    #[schema(value_type = serde_json::Value)]
    payload: Box<RawValue>,
    /// Due so many milliseconds after the last job was finished.
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    delay_ms: Option<u64>,
    /// Higher is delivered first.
    #[serde(default)]
    #[schema(default = 0)]
    priority: i32,
    /// How often the job is delivered before it is dead; absent: what the queue says.
    #[schema(minimum = 1, maximum = 1000000)]
    max_attempts: Option<u32>,
    /// How long the job waits after a rollback; absent: what the queue says.
    #[serde(default, deserialize_with = "crate::job::backoff::object")]
    backoff: Option<Backoff>,
    /// Removed so many milliseconds after it was pushed, unless it is reserved or finished then.
    #[schema(minimum = 1, maximum = 31536000000_u64)]
    expires_in_ms: Option<u64>,
    /// Text that travels with the job, beside what the batch adds.
    #[serde(default)]
    #[schema(value_type = std::collections::HashMap<String, String>)]
    headers: Headers,
    /// The group that the job belongs to: jobs of the queue with the same one are delivered one at a time, in the
    /// order of their pushes.
    #[schema(value_type = Option<String>)]
    group: Option<GroupName>,
    /// The semaphores that the job needs, up to 16: it is delivered while each has room, and takes all of them.
    #[serde(default)]
    #[schema(value_type = Vec<String>, max_items = 16)]
    semaphores: Vec<SemaphoreName>,
    /// The stages that the job goes through afterwards, up to 100.
    #[serde(default)]
    #[schema(max_items = 100)]
    then: Vec<Stage>,
}

impl OnFinishedRequest {
    /// What the product makes of it.
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

/// Jobs that are a part of another call, where they stand under this pointer: all of them are right, or none.
pub fn queued(raw: &[Box<RawValue>], under: &str) -> Result<Vec<(QueueName, NewPush)>, Problem> {
    let read = |(n, raw): (usize, &RawValue)| {
        let read = parse(raw.get()).and_then(|push: QueuedPush| Ok((push.queue.clone(), push.into_push()?)));
        read.map_err(|problem| match problem.into_invalid() {
            Error::Invalid { pointer, detail } => Problem::field(format!("{under}/{n}{pointer}"), detail),
            other => other.into(),
        })
    };
    raw.iter().map(|raw| &**raw).enumerate().map(read).collect()
}
