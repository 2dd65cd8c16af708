//! Problems: errors as RFC 9457 `application/problem+json`. The only place that maps domain errors to HTTP
//! statuses.

use std::borrow::Cow;
use std::time::Duration;

use crate::http::json::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};

use super::request_id;
use crate::job::{Invalid, JobId};
use crate::queue::Error;
use crate::store::{StoreError, chain};

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $status:ident, $retryable:literal, $title:literal;)*) => {
        /// The kind of problem, for programs. The codes are stable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
        #[serde(rename_all = "kebab-case")]
        #[schema(as = ProblemCode)]
        pub enum Code {
            $($(#[doc = $doc])* $name,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the HTTP status of this code.
            pub fn status(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$status,)* }
            }

            /// Returns whether the same request may succeed later.
            pub fn is_retryable(self) -> bool {
                match self { $(Self::$name => $retryable,)* }
            }

            /// Returns the code as a title for people.
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

codes! {
    /// The body is not valid JSON, or a header is invalid.
    Malformed = BAD_REQUEST, false, "The request is malformed";
    /// A key is required: there is none, or it is wrong, has expired or was revoked.
    Unauthorized = UNAUTHORIZED, false, "A valid key is required";
    /// The key does not allow this.
    Forbidden = FORBIDDEN, false, "The key does not allow this";
    /// This server only shows (`http.read_only`).
    ReadOnly = FORBIDDEN, false, "The server is read-only";
    /// A login is possible over TLS, or on the server's own machine.
    TlsRequired = FORBIDDEN, false, "TLS is required";
    /// A browser sent this on behalf of a page of another site.
    CrossSite = FORBIDDEN, false, "Cross-site requests are forbidden";
    /// The server is not meant to be reached under this name (`http.hosts`).
    HostNotAllowed = MISDIRECTED_REQUEST, false, "The host is not allowed";
    /// No route matches this path.
    NotFound = NOT_FOUND, false, "No route matches this path";
    /// There is no such job.
    UnknownJob = NOT_FOUND, false, "There is no such job";
    /// The job is gone since the call began to wait for it: it is done and not kept, or was removed.
    JobGone = GONE, false, "The job is gone";
    /// There is no such operation.
    UnknownOperation = NOT_FOUND, false, "There is no such operation";
    /// There is no such schedule.
    UnknownSchedule = NOT_FOUND, false, "There is no such schedule";
    /// There is no such API key.
    UnknownKey = NOT_FOUND, false, "There is no such key";
    /// There is no such semaphore.
    UnknownSemaphore = NOT_FOUND, false, "There is no such semaphore";
    /// The worker has sent no heartbeat lately. It may hold jobs all the same; only a call that removes it says that it holds none.
    UnknownWorker = NOT_FOUND, false, "There is no such worker";
    /// The batch does not exist or has been deleted.
    UnknownBatch = NOT_FOUND, false, "There is no such batch";
    /// The path does not support this method.
    MethodNotAllowed = METHOD_NOT_ALLOWED, false, "The path does not support this method";
    /// The client paused too long while sending the body.
    RequestTimeout = REQUEST_TIMEOUT, true, "The request body timed out";
    /// The reservation expired and was reclaimed, was already settled, or never existed. `gone` says whether the
    /// job no longer exists.
    ReservationLost = CONFLICT, false, "The reservation is lost";
    /// The job's state does not allow this.
    WrongState = CONFLICT, false, "The job's state does not allow this";
    /// The key is in use by a job with another payload, or the push is to be refused where it is in use at all; or a job was to be moved
    /// to a key that another one has. Without `job_id`: a unique index that another program made in the store has a value of the job already.
    KeyConflict = CONFLICT, false, "The key is in use";
    /// The batch is sealed and accepts no more jobs.
    BatchSealed = CONFLICT, false, "The batch is sealed";
    /// All jobs of a batch that was to be created are duplicates: it would count none of them, and end before they have.
    /// Nothing was stored.
    BatchOfDuplicates = CONFLICT, false, "All jobs of the batch are duplicates";
    /// What is stored under this name cannot be read, because another program wrote it. Replace or delete it.
    Unreadable = CONFLICT, false, "What is stored cannot be read";
    /// Jobs that are not done need the semaphore, dead ones too, or those that a schedule or the end of a batch is to push.
    SemaphoreInUse = CONFLICT, false, "The semaphore is in use";
    /// The queue has jobs; deleting it needs `force`.
    QueueNotEmpty = CONFLICT, false, "The queue is not empty";
    /// The first request with this `Idempotency-Key` is still in flight.
    RequestPending = CONFLICT, true, "The first request with this Idempotency-Key is still in flight";
    /// The version in `If-Match` is not the current one of the settings or of the schedule.
    SettingsChanged = PRECONDITION_FAILED, false, "The settings have changed";
    /// The path exceeds the size limit.
    UriTooLong = URI_TOO_LONG, false, "The path is too long";
    /// The head of the request exceeds the size limit.
    HeadTooLarge = REQUEST_HEADER_FIELDS_TOO_LARGE, false, "The head of the request is too large";
    /// The body, or a payload, result or progress in it, exceeds its size limit; of the latter, `pointer` names it.
    TooLarge = PAYLOAD_TOO_LARGE, false, "The body is too large";
    /// The content type of the body is not JSON.
    UnsupportedMediaType = UNSUPPORTED_MEDIA_TYPE, false, "The content type is not JSON";
    /// A field or a parameter is invalid; `pointer` or `parameter` names it.
    InvalidField = UNPROCESSABLE_ENTITY, false, "A field is invalid";
    /// The `Idempotency-Key` was already used for a different request.
    IdempotencyKeyReused = UNPROCESSABLE_ENTITY, false, "The Idempotency-Key was used for a different request";
    /// Too many logins of this client failed.
    TooManyAttempts = TOO_MANY_REQUESTS, true, "Too many attempts";
    /// The API key has made as many requests as its `rate` allows, or has as many in flight as its `max_concurrent`. `Retry-After`
    /// says when to try again; nothing was done.
    KeyLimited = TOO_MANY_REQUESTS, true, "The limit of the key is reached";
    /// The queue has as many unfinished jobs as its `max_jobs` allows.
    QueueFull = TOO_MANY_REQUESTS, true, "The queue is full";
    /// There are as many queues, workers, schedules, semaphores or idempotency keys as the configuration allows; `detail` names
    /// the option. What exists keeps working.
    LimitReached = TOO_MANY_REQUESTS, true, "A limit of the configuration is reached";
    /// An unexpected error; the server's log has the details under the `request_id`.
    Internal = INTERNAL_SERVER_ERROR, false, "Internal server error";
    /// The store is unavailable. The outcome of the call is unknown.
    StoreUnavailable = SERVICE_UNAVAILABLE, true, "The store is unavailable";
    /// The store's file is damaged, or its disk cannot be read; `detail` says what to do. The outcome of the call is unknown.
    StoreDamaged = SERVICE_UNAVAILABLE, false, "The store is damaged";
    /// Too much is under way: requests for the store, memory, calls that wait, streams, connections. The request had no effect.
    Overloaded = SERVICE_UNAVAILABLE, true, "The server is overloaded";
    /// The server is shutting down.
    Draining = SERVICE_UNAVAILABLE, true, "The server is shutting down";
    /// The store is full; nothing was stored.
    StoreFull = INSUFFICIENT_STORAGE, true, "The store is full";
}

impl Code {
    /// Returns the code as it is on the wire.
    pub fn word(self) -> String {
        serde_json::to_value(self)
            .ok()
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default()
    }

    /// Returns when to try again, in milliseconds, where that is known of the code.
    fn retry_after_ms(self) -> Option<u64> {
        let waits = matches!(
            self.status(),
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::INSUFFICIENT_STORAGE
        );
        waits.then_some(1000)
    }
}

/// An error (RFC 9457).
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct Problem {
    /// A URI for the kind of problem; `code` as a URN.
    #[serde(rename = "type")]
    #[schema(example = "urn:tailback:problem:queue-full")]
    kind: String,
    /// The kind of problem, for people.
    title: &'static str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What is wrong with this request, for people.
    #[schema(value_type = String)]
    detail: Detail,
    /// The kind of problem, for programs.
    code: Code,
    /// Whether the same request may succeed later.
    retryable: bool,
    /// The id of the request, as in `x-request-id` and in the server's log.
    request_id: String,
    /// The field that is invalid, as a JSON pointer (RFC 6901) into the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pointer: Option<String>,
    /// The parameter in the path, the query or the headers that is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<Cow<'static, str>>,
    /// Whether the job no longer exists (`reservation-lost` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    gone: Option<bool>,
    /// The job that holds the key (`key-conflict`; of `batch-of-duplicates` the first one).
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<JobId>,
    /// When to try again, in milliseconds; `Retry-After` says it in whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

/// What is wrong, in two parts: [`Problem::under`] replaces the first.
#[derive(Debug, Clone)]
struct Detail {
    /// What of the body is wrong, as [`Problem::at`] names it; empty where the problem has no pointer.
    subject: String,
    /// What follows, with the space or the colon between the two.
    text: String,
}

impl Serialize for Detail {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{}{}", self.subject, self.text))
    }
}

impl Problem {
    /// Returns a problem of this kind; `detail` is for the client.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:tailback:problem:{}", code.word()),
            title: code.title(),
            status: code.status().as_u16(),
            detail: Detail { subject: String::new(), text: detail.into() },
            code,
            retryable: code.is_retryable(),
            request_id: request_id::current(),
            pointer: None,
            parameter: None,
            gone: None,
            job_id: None,
            retry_after_ms: code.retry_after_ms(),
        }
    }

    /// Returns the problem of an invalid field of the body at this JSON pointer.
    pub fn field(pointer: impl Into<String>, detail: impl AsRef<str>) -> Self {
        Self::new(Code::InvalidField, format!(" {}", detail.as_ref())).at(pointer.into())
    }

    /// The same request may succeed after this time.
    pub fn after(self, wait: Duration) -> Self {
        let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
        Self { retry_after_ms: Some(ms), ..self }
    }

    /// Returns the problem of an element of the body that is under this pointer: it names the field from the whole body on.
    pub fn under(self, prefix: &str) -> Self {
        let pointer = self.pointer.as_ref().map(|own| format!("{prefix}{own}"));
        match pointer {
            Some(pointer) => self.at(pointer),
            None => self,
        }
    }

    /// Returns the problem of a job of the body, which has this index: it names the job, and the field from the whole body on.
    pub fn in_job(self, index: usize) -> Self {
        let job = format!("/jobs/{index}");
        match self.pointer {
            Some(_) => self.under(&job),
            None => {
                let text = format!(": {}", self.detail.text);
                self.with_text(text).at(job)
            }
        }
    }

    /// Returns the problem of an invalid parameter.
    pub fn parameter(name: impl Into<Cow<'static, str>>, detail: impl AsRef<str>) -> Self {
        let name = name.into();
        let detail = format!("{name} {}", detail.as_ref());
        Self { parameter: Some(name), ..Self::new(Code::InvalidField, detail) }
    }

    /// Returns what an error of a call means, and where the state of the job does not allow the call, what the call needs.
    pub fn needing(needs: &str) -> impl Fn(Error) -> Self {
        move |error| match error {
            error @ Error::WrongState { .. } => Self::new(Code::WrongState, format!("{error}: {needs}")),
            error => error.into(),
        }
    }

    /// Returns `reservation-lost` for a job id that cannot exist.
    pub fn reservation_lost(detail: &str) -> Self {
        Self { gone: Some(true), ..Self::new(Code::ReservationLost, detail) }
    }

    /// Returns the same problem with a reason behind its detail.
    pub fn because(self, why: &str) -> Self {
        let text = format!("{}: {why}", self.detail.text);
        self.with_text(text)
    }

    /// Returns the same problem of what is at this pointer.
    fn at(self, pointer: String) -> Self {
        let subject = if pointer.is_empty() { "the body".to_owned() } else { pointer.clone() };
        Self { detail: Detail { subject, ..self.detail }, pointer: Some(pointer), ..self }
    }

    /// Returns the same problem with this text of its detail.
    fn with_text(self, text: String) -> Self {
        Self { detail: Detail { text, ..self.detail }, ..self }
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }
}

impl From<Invalid> for Problem {
    fn from(Invalid { pointer, detail, is_too_large }: Invalid) -> Self {
        match Self::field(pointer, detail) {
            Self { detail, pointer, .. } if is_too_large => {
                Self { detail, pointer, ..Self::new(Code::TooLarge, "") }
            }
            problem => problem,
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Invalid(invalid) => invalid.into(),
            Error::UnknownJob(_) => Self::new(Code::UnknownJob, text),
            Error::InJob { index, error } => Self::from(*error).in_job(index),
            Error::JobGone(_) => Self::new(Code::JobGone, text),
            Error::UnknownWorker(_) => Self::new(Code::UnknownWorker, text),
            Error::UnknownBatch(_) => Self::new(Code::UnknownBatch, text),
            Error::OnlyDuplicates(id) => {
                Self { job_id: Some(id), ..Self::new(Code::BatchOfDuplicates, text) }
            }
            Error::BatchSealed(_) => Self::new(Code::BatchSealed, text),
            Error::ReservationLost { gone, .. } => {
                Self { gone: Some(gone), ..Self::new(Code::ReservationLost, text) }
            }
            Error::WrongState { .. } => Self::new(Code::WrongState, text),
            Error::KeyConflict(id) | Error::KeyTaken(id) => {
                Self { job_id: Some(id), ..Self::new(Code::KeyConflict, text) }
            }
            Error::KeyLimited { wait, .. } => Self::new(Code::KeyLimited, text).after(wait),
            Error::QueueFull(_) => Self::new(Code::QueueFull, text),
            Error::LimitReached { .. } => Self::new(Code::LimitReached, text),
            Error::UnknownOperation(_) | Error::OperationGone(_) => Self::new(Code::UnknownOperation, text),
            Error::TooManyOperations(_) | Error::TooManyReplays(_) => Self::new(Code::LimitReached, text),
            Error::QueueNotEmpty(_) => {
                Self::new(Code::QueueNotEmpty, format!("{text}; force=true deletes them as well"))
            }
            Error::UnknownSemaphore(_) => Self::new(Code::UnknownSemaphore, text),
            Error::SemaphoreInUse { .. } => Self::new(Code::SemaphoreInUse, text),
            Error::UnknownSchedule(_) => Self::new(Code::UnknownSchedule, text),
            Error::SettingsChanged(_) | Error::ScheduleChanged(_) => Self::new(Code::SettingsChanged, text),
            Error::DeadLetterCircle(_) => Self::field("/dead_letter", text),
            Error::Unauthorized(_) => Self::new(Code::Unauthorized, text),
            Error::UnknownApiKey(_) => Self::new(Code::UnknownKey, text),
            Error::UnreadableApiKey { .. } | Error::UnreadableJob { .. } => Self::new(Code::Unreadable, text),
            Error::IdempotencyKeyReused => Self::new(Code::IdempotencyKeyReused, text),
            Error::RequestPending => Self::new(Code::RequestPending, text),
            Error::Draining => Self::new(Code::Draining, text),
            Error::Overloaded
            | Error::NoRoom
            | Error::TooManyWaiting
            | Error::TooManyStreams
            | Error::TooManyStreamsOfOne(_) => Self::new(Code::Overloaded, text),
            Error::Store(error) => error.into(),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::Unavailable(_) | StoreError::Building | StoreError::Unsuitable(_) => {
                Code::StoreUnavailable
            }
            StoreError::Full(_) => Code::StoreFull,
            StoreError::Damaged(_) => Code::StoreDamaged,
            StoreError::Unreadable(_) => Code::Unreadable,
            StoreError::NotUnique(_) => Code::KeyConflict,
            StoreError::Internal(_) => Code::Internal,
        };
        // The source chain is for the log only.
        tracing::debug!(request_id = request_id::current(), error = chain(&error), "store call failed");
        let detail = match &error {
            StoreError::Unsuitable(_) => {
                "the store cannot be used; see the server's log for the reason".to_owned()
            }
            StoreError::Unreadable(cause) => format!("{error}: {cause}; replace it with PUT, or DELETE it"),
            StoreError::Damaged(cause) => format!(
                "{error} ({cause}): check the disk and the server's log; if the disk is sound, stop the server, keep a copy of the file, \
                 and put back a backup or what `sqlite3 FILE .recover` saves of it"
            ),
            other => other.to_string(),
        };
        Self::new(code, detail)
    }
}

/// Returns whether the response is a problem.
pub fn is_problem(response: &Response) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    content_type.is_some_and(|value| value == "application/problem+json")
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (code, retry_after_ms) = (self.code, self.retry_after_ms);
        let mut response = (code.status(), Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tailback\""));
        }
        if let Some(ms) = retry_after_ms {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
        }
        response
    }
}

/// The result of a handler: a response, or a problem.
pub type ApiResult<T> = Result<T, Problem>;

#[cfg(test)]
mod tests {
    use super::*;

    /// The detail and the pointer of a problem, as they are sent.
    fn sent(problem: &Problem) -> (String, Option<String>) {
        let sent = serde_json::to_value(problem).unwrap();
        (sent["detail"].as_str().unwrap().to_owned(), sent["pointer"].as_str().map(str::to_owned))
    }

    #[track_caller]
    fn assert_sent(problem: &Problem, detail: &str, pointer: &str) {
        assert_eq!(sent(problem), (detail.to_owned(), Some(pointer.to_owned())));
    }

    #[test]
    fn a_field_is_named_from_the_whole_body_on() {
        let field = Problem::field("/key", "must be text");
        assert_sent(&field, "/key must be text", "/key");
        assert_sent(&field.clone().under("/push/2"), "/push/2/key must be text", "/push/2/key");
        let nested = field.under("/push/2").in_job(7);
        assert_sent(&nested, "/jobs/7/push/2/key must be text", "/jobs/7/push/2/key");

        let whole = Problem::field("", "must be an object");
        assert_sent(&whole, "the body must be an object", "");
        assert_sent(&whole.clone().under("/jobs/7"), "/jobs/7 must be an object", "/jobs/7");
        assert_sent(&whole.under("/push/2").in_job(7), "/jobs/7/push/2 must be an object", "/jobs/7/push/2");

        let large = Problem::from(Invalid::too_large("/payload", "is too large")).under("/jobs/7");
        assert_eq!(large.status(), 413);
        assert_sent(&large, "/jobs/7/payload is too large", "/jobs/7/payload");
    }

    #[test]
    fn only_the_subject_is_replaced() {
        // The text may begin like a subject.
        let own = Problem::field("/key", "/key is said twice").under("/jobs/7");
        assert_sent(&own, "/jobs/7/key /key is said twice", "/jobs/7/key");
        let body = Problem::field("/a", "the body says so").under("/jobs/7");
        assert_sent(&body, "/jobs/7/a the body says so", "/jobs/7/a");

        // Without a pointer nothing is replaced.
        let plain = Problem::new(Code::Malformed, "the body is not JSON");
        assert_eq!(sent(&plain.clone().under("/jobs/7")), ("the body is not JSON".to_owned(), None));
        let job = plain.in_job(7);
        assert_sent(&job, "/jobs/7: the body is not JSON", "/jobs/7");
        assert_sent(&job.under("/lists/1"), "/lists/1/jobs/7: the body is not JSON", "/lists/1/jobs/7");
        let parameter = Problem::parameter("limit", "must be a number").under("/jobs/7");
        assert_eq!(sent(&parameter), ("limit must be a number".to_owned(), None));
    }

    #[test]
    fn a_reason_stands_behind_the_detail() {
        let lost = Problem::reservation_lost("it is lost").because("it expired");
        assert_eq!(sent(&lost), ("it is lost: it expired".to_owned(), None));
        let field = Problem::field("/key", "is taken").because("by another").under("/jobs/7");
        assert_sent(&field, "/jobs/7/key is taken: by another", "/jobs/7/key");
    }
}
