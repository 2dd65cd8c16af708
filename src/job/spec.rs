//! What a producer specifies of a job: the same for a push, a push with a commit, the callback of a batch, a schedule
//! and a replay.
//!
//! Requests and stored rules are flat JSON objects that have these fields beside their own. `flat_spec!` declares
//! such a type, so that a new field of a job is declared here, and not once for each of them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::backoff::YEAR_MS;
use super::route::ROUTE_MAX;
use super::settings::{ATTEMPTS_MAX, LEASE_MAX_MS, LEASE_MIN_MS};
use super::{Backoff, Content, GroupName, Invalid, Job, Payload, SemaphoreName, Stage};

/// The most headers of one job.
pub const HEADERS_MAX: usize = 64;
/// The most bytes of all names and texts of one job's headers.
pub const HEADER_BYTES_MAX: usize = 8192;
/// The most semaphores of one job.
pub const SEMAPHORES_MAX: usize = 16;

/// Names and JSON values that are delivered with a job, such as a trace context.
pub type Headers = BTreeMap<String, Payload>;

/// The schema of [`Headers`].
#[derive(Debug)]
pub struct JobHeaders;

impl utoipa::PartialSchema for JobHeaders {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::schema::AdditionalProperties;
        use utoipa::openapi::{ObjectBuilder, Type};
        let text = "Headers: names and JSON values that are delivered with the job, up to 64 with 8192 bytes together.";
        let headers = ObjectBuilder::new().schema_type(Type::Object).description(Some(text));
        let headers = headers.max_properties(Some(HEADERS_MAX));
        headers.additional_properties(Some(AdditionalProperties::FreeForm(true))).into()
    }
}

impl utoipa::ToSchema for JobHeaders {}

/// What a producer specifies of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// The payload.
    pub payload: Content,
    /// The headers.
    pub headers: Headers,
    /// The priority; higher is delivered first.
    pub priority: i32,
    /// The maximum number of deliveries; `None`: the queue's.
    pub max_attempts: Option<u32>,
    /// The delay before a retry; `None`: the queue's.
    pub backoff: Option<Backoff>,
    /// How long a reservation lasts when the reserve does not say, in milliseconds; `None`: as the queue says.
    pub lease_ms: Option<u64>,
    /// How long one delivery lasts at most over all extensions, in milliseconds.
    pub max_run_ms: Option<u64>,
    /// When it expires, in milliseconds from the push: it is removed unless it is reserved or finished.
    pub expires_in_ms: Option<u64>,
    /// How long the job is kept once it is done, in milliseconds; `None`: as long as its queue says.
    pub retain_result_ms: Option<u64>,
    /// The group.
    pub group: Option<GroupName>,
    /// The semaphores that it holds while it is reserved.
    pub semaphores: Vec<SemaphoreName>,
    /// The route: further stages.
    pub then: Vec<Stage>,
}

/// Declares a type that has the fields of a [`JobSpec`] beside its own, as one flat object. Its own fields stand in three
/// places, so that the order of all fields is the one that clients and stores know.
macro_rules! flat_spec {
    (
        $(#[$attr:meta])*
        pub struct $name:ident {
            $($(#[$first_attr:meta])* $first:ident: $first_type:ty,)*
            ..payload,
            $($(#[$time_attr:meta])* $time:ident: $time_type:ty,)*
            ..priority,
            $($(#[$key_attr:meta])* $key:ident: $key_type:ty,)*
            ..others,
        }
    ) => {
        $(#[$attr])*
        pub struct $name {
            $($(#[$first_attr])* pub $first: $first_type,)*
            /// The payload: any JSON value, delivered exactly as it was pushed. Default: null.
            #[serde(default = "crate::job::Payload::null")]
            #[schema(value_type = serde_json::Value)]
            pub payload: $crate::job::Payload,
            /// A binary payload instead, as base64. Up to as many bytes as a payload may have.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub payload_base64: Option<$crate::job::Base64>,
            /// The media type of a binary payload; default: `application/octet-stream`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub payload_type: Option<$crate::job::MediaType>,
            $($(#[$time_attr])* pub $time: $time_type,)*
            /// The priority; higher is delivered first.
            #[serde(default)]
            #[schema(default = 0)]
            pub priority: i32,
            $($(#[$key_attr])* pub $key: $key_type,)*
            /// The maximum number of deliveries before the job is dead, 0 for no limit; default: the queue's.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(minimum = 0, maximum = 1000000)]
            pub max_attempts: Option<u32>,
            /// The delay before a retry; default: the queue's.
            #[serde(
                default,
                skip_serializing_if = "Option::is_none",
                deserialize_with = "crate::job::backoff::object"
            )]
            pub backoff: Option<$crate::job::Backoff>,
            /// How long a reservation of the job lasts when the reserve does not say, in milliseconds; default: the queue's.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(minimum = 100, maximum = 86400000)]
            pub lease_ms: Option<u64>,
            /// How long one delivery of the job lasts at most, over all extensions, in milliseconds: then the reservation has run
            /// out, whatever its worker says. Default: no limit.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(minimum = 100, maximum = 31536000000_u64)]
            pub max_run_ms: Option<u64>,
            /// The job expires this long after it was pushed, in milliseconds: it is removed unless it is reserved or finished. That
            /// holds in a dead-letter queue, and after a redrive.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(minimum = 1, maximum = 31536000000_u64)]
            pub expires_in_ms: Option<u64>,
            /// How long the job is kept with its result once it is done, in milliseconds, for whoever waits for it; default: the
            /// queue's. Where the queue keeps its finished jobs for longer, so long.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(minimum = 0, maximum = 31536000000_u64)]
            pub retain_result_ms: Option<u64>,
            /// Headers: names and JSON values that are delivered with the job, up to 64 with 8192 bytes together.
            #[serde(
                default,
                skip_serializing_if = "std::collections::BTreeMap::is_empty",
                deserialize_with = "crate::job::headers::distinct"
            )]
            #[schema(value_type = $crate::job::spec::JobHeaders)]
            pub headers: $crate::job::spec::Headers,
            /// The group of the job: jobs of the same group in a queue are delivered one at a time, in the order of
            /// their pushes.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub group: Option<$crate::job::GroupName>,
            /// The semaphores that the job needs, up to 16: it is delivered once all have capacity, and holds all of
            /// them.
            #[serde(
                default,
                skip_serializing_if = "Vec::is_empty",
                deserialize_with = "crate::job::list::at_most::<{ crate::job::spec::SEMAPHORES_MAX }, _, _>"
            )]
            #[schema(max_items = 16)]
            pub semaphores: Vec<$crate::job::SemaphoreName>,
            /// The route: further stages of the job, up to 100. Each commit moves it to the next stage.
            #[serde(
                default,
                skip_serializing_if = "Vec::is_empty",
                deserialize_with = "crate::job::list::at_most::<{ crate::job::route::ROUTE_MAX }, _, _>"
            )]
            #[schema(max_items = 100)]
            pub then: Vec<$crate::job::Stage>,
        }

        impl From<$name> for $crate::job::JobSpec {
            fn from(flat: $name) -> Self {
                Self {
                    payload: $crate::job::Content::of(flat.payload, flat.payload_base64, flat.payload_type),
                    headers: flat.headers,
                    priority: flat.priority,
                    max_attempts: flat.max_attempts,
                    backoff: flat.backoff,
                    lease_ms: flat.lease_ms,
                    max_run_ms: flat.max_run_ms,
                    expires_in_ms: flat.expires_in_ms,
                    retain_result_ms: flat.retain_result_ms,
                    group: flat.group,
                    semaphores: flat.semaphores,
                    then: flat.then,
                }
            }
        }

        impl $name {
            /// Refuses fields that say different things of the payload.
            pub fn check_payload(&self) -> Result<(), $crate::job::Invalid> {
                let (base64, media_type) = (self.payload_base64.as_ref(), self.payload_type.as_ref());
                $crate::job::Content::check_fields(&self.payload, base64, media_type)
            }

            /// Adds the fields that are its own to a specification.
            #[allow(
                clippy::too_many_arguments,
                dead_code,
                reason = "as many as it has fields of its own; few are made so"
            )]
            pub fn new(
                spec: $crate::job::JobSpec,
                $($first: $first_type,)* $($time: $time_type,)* $($key: $key_type,)*
            ) -> Self {
                let (payload, payload_base64, payload_type) = spec.payload.into_fields();
                Self {
                    $($first,)* $($time,)* $($key,)*
                    payload,
                    payload_base64,
                    payload_type,
                    headers: spec.headers,
                    priority: spec.priority,
                    max_attempts: spec.max_attempts,
                    backoff: spec.backoff,
                    lease_ms: spec.lease_ms,
                    max_run_ms: spec.max_run_ms,
                    expires_in_ms: spec.expires_in_ms,
                    retain_result_ms: spec.retain_result_ms,
                    group: spec.group,
                    semaphores: spec.semaphores,
                    then: spec.then,
                }
            }
        }
    };
}
pub(crate) use flat_spec;

impl JobSpec {
    /// Returns a job with this payload and all defaults.
    pub fn new(payload: impl Into<Content>) -> Self {
        Self {
            payload: payload.into(),
            headers: Headers::new(),
            priority: 0,
            max_attempts: None,
            backoff: None,
            lease_ms: None,
            max_run_ms: None,
            expires_in_ms: None,
            retain_result_ms: None,
            group: None,
            semaphores: Vec::new(),
            then: Vec::new(),
        }
    }

    /// Returns what a replay of this job specifies: the same, without expiry and route.
    pub fn again(job: Job) -> Self {
        Self {
            payload: job.payload,
            headers: job.headers,
            priority: job.meta.priority,
            max_attempts: job.meta.max_attempts,
            backoff: job.meta.backoff,
            lease_ms: job.meta.default_lease_ms,
            max_run_ms: job.meta.max_run_ms,
            expires_in_ms: None,
            retain_result_ms: job.meta.retain_result_ms,
            group: job.meta.group,
            semaphores: job.meta.semaphores,
            then: Vec::new(),
        }
    }

    /// Refuses the first value that is out of its range. Pointers are relative to the job.
    pub fn check(&self, payload_bytes: usize) -> Result<(), Invalid> {
        check_content(&self.payload, payload_bytes)?;
        check_route(&self.then)?;
        check_semaphores(&self.semaphores)?;
        if self.lease_ms.is_some_and(|ms| !(LEASE_MIN_MS..=LEASE_MAX_MS).contains(&ms)) {
            return Err(Invalid::new("/lease_ms", "must be 100 to 86400000"));
        }
        if self.max_run_ms.is_some_and(|ms| !(LEASE_MIN_MS..=YEAR_MS).contains(&ms)) {
            return Err(Invalid::new("/max_run_ms", "must be 100 to 31536000000 (a year)"));
        }
        check_expiry(self.expires_in_ms)?;
        check_year(self.retain_result_ms, "/retain_result_ms")?;
        check_attempts(self.max_attempts)?;
        check_backoff(self.backoff.as_ref())?;
        check_headers(&self.headers)
    }
}

/// Refuses a JSON value that is larger than `limit` bytes.
pub fn check_size(value: &Payload, pointer: &str, limit: usize) -> Result<(), Invalid> {
    check_length(value.as_str().len(), pointer, limit)
}

/// Refuses a payload that is larger than `limit` bytes.
pub fn check_content(payload: &Content, limit: usize) -> Result<(), Invalid> {
    check_length(payload.size(), payload.field(), limit)
}

fn check_length(size: usize, pointer: &str, limit: usize) -> Result<(), Invalid> {
    match size {
        size if size > limit => {
            let detail = format!("is {size} bytes long; the limit is {limit} (limits.payload_bytes)");
            Err(Invalid::too_large(pointer, detail))
        }
        _ => Ok(()),
    }
}

/// Refuses a duration of more than a year.
pub fn check_year(ms: Option<u64>, pointer: &str) -> Result<(), Invalid> {
    match ms {
        Some(ms) if ms > YEAR_MS => Err(Invalid::new(pointer, "must be 0 to 31536000000 (a year)")),
        _ => Ok(()),
    }
}

/// Refuses a lifetime that is out of its range.
pub fn check_expiry(expires_in_ms: Option<u64>) -> Result<(), Invalid> {
    match expires_in_ms {
        Some(ms) if !(1..=YEAR_MS).contains(&ms) => {
            Err(Invalid::new("/expires_in_ms", "must be 1 to 31536000000 (a year)"))
        }
        _ => Ok(()),
    }
}

/// Refuses a `max_attempts` that is out of its range.
pub fn check_attempts(max_attempts: Option<u32>) -> Result<(), Invalid> {
    match max_attempts {
        Some(n) if n > ATTEMPTS_MAX => {
            Err(Invalid::new("/max_attempts", "must be 1 to 1000000, or 0 for no limit"))
        }
        _ => Ok(()),
    }
}

/// Refuses a `backoff` that has a value out of its range.
pub(super) fn check_backoff(backoff: Option<&Backoff>) -> Result<(), Invalid> {
    match backoff.and_then(Backoff::fault) {
        Some((field, what)) => Err(Invalid::new(format!("/backoff/{field}"), what)),
        None => Ok(()),
    }
}

fn check_semaphores(semaphores: &[SemaphoreName]) -> Result<(), Invalid> {
    if semaphores.len() > SEMAPHORES_MAX {
        return Err(Invalid::new("/semaphores", "must be at most 16"));
    }
    match semaphores.iter().enumerate().find(|(n, name)| semaphores[..*n].contains(name)) {
        Some((n, _)) => Err(Invalid::new(format!("/semaphores/{n}"), "must not be named twice")),
        None => Ok(()),
    }
}

fn check_route(then: &[Stage]) -> Result<(), Invalid> {
    if then.len() > ROUTE_MAX {
        return Err(Invalid::new("/then", "must be at most 100 stages"));
    }
    let checked =
        |(n, stage): (usize, &Stage)| stage.check().map_err(|invalid| invalid.under(&format!("/then/{n}")));
    then.iter().enumerate().try_for_each(checked)
}

/// Refuses headers that are too many, too long or named wrongly.
pub fn check_headers(headers: &Headers) -> Result<(), Invalid> {
    if headers.len() > HEADERS_MAX || headers_bytes(headers) > HEADER_BYTES_MAX {
        let detail = "must be at most 64 of them with at most 8192 bytes together";
        return Err(Invalid::new("/headers", detail));
    }
    if headers.keys().all(|name| is_header_name(name)) {
        return Ok(());
    }
    Err(Invalid::new("/headers", "names must be 1 to 128 of A-Z a-z 0-9 . _ : -"))
}

/// Returns whether there is room for one more header with so many bytes, its name and its text together.
pub fn has_room(headers: &Headers, bytes: usize) -> bool {
    headers.len() < HEADERS_MAX && headers_bytes(headers) + bytes <= HEADER_BYTES_MAX
}

fn headers_bytes(headers: &Headers) -> usize {
    headers.iter().map(|(name, value)| name.len() + header_bytes(value)).sum()
}

/// Returns how long a header is: a string by its characters, whatever of them is escaped, and all else by its JSON.
fn header_bytes(value: &Payload) -> usize {
    let text = value.as_str();
    let string = text.starts_with('"').then(|| serde_json::from_str::<Cow<'_, str>>(text).ok()).flatten();
    string.map_or(text.len(), |string| string.len())
}

fn is_header_name(name: &str) -> bool {
    (1..=128).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
}
