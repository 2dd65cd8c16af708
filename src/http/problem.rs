//! Problems: errors as RFC 9457 `application/problem+json`. The only place that knows what an error of the
//! inside means as a status.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::request_id;
use crate::job::JobId;
use crate::queue::Error;
use crate::store::{StoreError, chain};

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $status:ident, $retryable:literal, $title:literal;)*) => {
        /// What went wrong, for programs. The words are stable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
        #[serde(rename_all = "kebab-case")]
        #[schema(as = ProblemCode)]
        pub enum Code {
            $($(#[doc = $doc])* $name,)*
        }

        impl Code {
            /// Every code there is.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The status of an answer with this code.
            pub fn status(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$status,)* }
            }

            /// Whether the same request may succeed later.
            pub fn is_retryable(self) -> bool {
                match self { $(Self::$name => $retryable,)* }
            }

            /// The code in words.
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

codes! {
    /// The body is not JSON, or a header is not what it must be.
    Malformed = BAD_REQUEST, false, "The request is malformed";
    /// A web page of another site asked a browser to send this.
    CrossSite = FORBIDDEN, false, "Web pages of other sites may not do this";
    /// There is nothing at this path.
    NotFound = NOT_FOUND, false, "There is nothing at this path";
    /// There is no such job.
    UnknownJob = NOT_FOUND, false, "There is no such job";
    /// There is no such schedule.
    UnknownSchedule = NOT_FOUND, false, "There is no such schedule";
    /// There is no such semaphore.
    UnknownSemaphore = NOT_FOUND, false, "There is no such semaphore";
    /// The worker has sent no heartbeat lately, and holds no jobs.
    UnknownWorker = NOT_FOUND, false, "There is no such worker";
    /// There is no such batch, or not any more.
    UnknownBatch = NOT_FOUND, false, "There is no such batch";
    /// The path does not have this method.
    MethodNotAllowed = METHOD_NOT_ALLOWED, false, "The path does not have this method";
    /// The client paused too long while it sent its body.
    RequestTimeout = REQUEST_TIMEOUT, true, "The request took too long to arrive";
    /// The reservation ran out and was taken back, was settled, or never was this one. `gone` tells whether
    /// the job does not exist any more.
    ReservationLost = CONFLICT, false, "The reservation is lost";
    /// The job's state does not allow this.
    WrongState = CONFLICT, false, "The job's state does not allow this";
    /// The key is taken by a job with another payload.
    KeyConflict = CONFLICT, false, "The key is taken by a job with another payload";
    /// The batch takes no more jobs.
    BatchSealed = CONFLICT, false, "The batch is sealed";
    /// Jobs that are not finished need the semaphore.
    SemaphoreInUse = CONFLICT, false, "The semaphore is in use";
    /// The queue has jobs and is only deleted when forced.
    QueueNotEmpty = CONFLICT, false, "The queue is not empty";
    /// The first request with this `Idempotency-Key` is still running.
    RequestPending = CONFLICT, true, "The first request with this Idempotency-Key is still running";
    /// The settings, or the rule of the schedule, are not of the version in `If-Match`.
    SettingsChanged = PRECONDITION_FAILED, false, "The settings have changed";
    /// The body is larger than the server takes.
    TooLarge = PAYLOAD_TOO_LARGE, false, "The body is too large";
    /// The body is not sent as JSON.
    UnsupportedMediaType = UNSUPPORTED_MEDIA_TYPE, false, "The body is not sent as JSON";
    /// A field or a parameter is not what it must be; `pointer` or `parameter` names it.
    InvalidField = UNPROCESSABLE_ENTITY, false, "A field is invalid";
    /// The `Idempotency-Key` was used for another request.
    IdempotencyKeyReused = UNPROCESSABLE_ENTITY, false, "The Idempotency-Key was used for another request";
    /// The queue has as many unfinished jobs as its `max_jobs` allows.
    QueueFull = TOO_MANY_REQUESTS, true, "The queue is full";
    /// The server failed in an unexpected way; its log says more, under the `request_id`.
    Internal = INTERNAL_SERVER_ERROR, false, "The server failed";
    /// The store cannot be reached. Whether the call was carried out is unknown.
    StoreUnavailable = SERVICE_UNAVAILABLE, true, "The store cannot be reached";
    /// Too many requests are waiting for the store; nothing happened.
    Overloaded = SERVICE_UNAVAILABLE, true, "Too many requests are waiting";
    /// The server is shutting down.
    Draining = SERVICE_UNAVAILABLE, true, "The server is shutting down";
    /// The store has no room left; nothing was stored.
    StoreFull = INSUFFICIENT_STORAGE, true, "The store has no room left";
}

impl Code {
    /// The code's word.
    pub fn word(self) -> String {
        serde_json::to_value(self)
            .ok()
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default()
    }

    /// How long to wait before trying again, in seconds.
    fn retry_after(self) -> Option<HeaderValue> {
        let waits = matches!(
            self.status(),
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::INSUFFICIENT_STORAGE
        );
        waits.then(|| HeaderValue::from_static("1"))
    }
}

/// What went wrong (RFC 9457).
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
    /// What is wrong this time, for people.
    detail: String,
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
    parameter: Option<&'static str>,
    /// Whether the job does not exist any more (`reservation-lost` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    gone: Option<bool>,
    /// The job that has the key (`key-conflict` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    job_id: Option<JobId>,
}

impl Problem {
    /// A problem of this kind; `detail` is for whoever made the request.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:tailback:problem:{}", code.word()),
            title: code.title(),
            status: code.status().as_u16(),
            detail: detail.into(),
            code,
            retryable: code.is_retryable(),
            request_id: request_id::current(),
            pointer: None,
            parameter: None,
            gone: None,
            job_id: None,
        }
    }

    /// The body's field at this JSON pointer is not what it must be.
    pub fn field(pointer: impl Into<String>, detail: impl AsRef<str>) -> Self {
        let pointer = pointer.into();
        let place = if pointer.is_empty() { "the body" } else { &pointer };
        Self { detail: format!("{place} {}", detail.as_ref()), ..Self::new(Code::InvalidField, "") }
            .at(pointer)
    }

    /// The parameter is not what it must be.
    pub fn parameter(name: &'static str, detail: impl AsRef<str>) -> Self {
        let detail = format!("{name} {}", detail.as_ref());
        Self { parameter: Some(name), ..Self::new(Code::InvalidField, detail) }
    }

    /// A reservation of a job that there cannot be.
    pub fn lost(detail: &str) -> Self {
        Self { gone: Some(true), ..Self::new(Code::ReservationLost, detail) }
    }

    fn at(self, pointer: String) -> Self {
        Self { pointer: Some(pointer), ..self }
    }

    /// An invalid field as the inside knows it.
    pub fn into_invalid(self) -> Error {
        let pointer = self.pointer.unwrap_or_default();
        let place = if pointer.is_empty() { "the body" } else { &pointer };
        let detail = self.detail.strip_prefix(place).unwrap_or(&self.detail).trim_start().to_owned();
        Error::Invalid { pointer, detail }
    }

    /// The status of the answer.
    pub fn status(&self) -> u16 {
        self.status
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Invalid { pointer, detail } => Self::field(pointer, detail),
            Error::UnknownJob(_) => Self::new(Code::UnknownJob, text),
            Error::UnknownWorker(_) => Self::new(Code::UnknownWorker, text),
            Error::UnknownBatch(_) => Self::new(Code::UnknownBatch, text),
            Error::BatchSealed(_) => Self::new(Code::BatchSealed, text),
            Error::ReservationLost { gone, .. } => {
                Self { gone: Some(gone), ..Self::new(Code::ReservationLost, text) }
            }
            Error::WrongState { id, state } => {
                let detail = format!("job {id} is {}, which does not allow this", state.as_str());
                Self::new(Code::WrongState, detail)
            }
            Error::KeyConflict(id) => Self { job_id: Some(id), ..Self::new(Code::KeyConflict, text) },
            Error::QueueFull(_) => Self::new(Code::QueueFull, text),
            Error::QueueNotEmpty(_) => {
                Self::new(Code::QueueNotEmpty, format!("{text}; ?force=true deletes them with it"))
            }
            Error::UnknownSemaphore(_) => Self::new(Code::UnknownSemaphore, text),
            Error::SemaphoreInUse(_) => Self::new(Code::SemaphoreInUse, text),
            Error::UnknownSchedule(_) => Self::new(Code::UnknownSchedule, text),
            Error::SettingsChanged(_) | Error::ScheduleChanged(_) => Self::new(Code::SettingsChanged, text),
            Error::IdempotencyKeyReused => Self::new(Code::IdempotencyKeyReused, text),
            Error::RequestPending => Self::new(Code::RequestPending, text),
            Error::Overloaded => Self::new(Code::Overloaded, text),
            Error::Store(error) => error.into(),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::Unavailable(_) | StoreError::Unsuitable(_) => Code::StoreUnavailable,
            StoreError::Full(_) => Code::StoreFull,
            StoreError::Internal(_) => Code::Internal,
        };
        // What is behind the error is for the log alone.
        tracing::debug!(request_id = request_id::current(), error = chain(&error), "the store failed");
        let detail = match &error {
            StoreError::Unsuitable(_) => "the store cannot be used; the server's log says why".to_owned(),
            other => other.to_string(),
        };
        Self::new(code, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let code = self.code;
        let mut response = (code.status(), Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = code.retry_after() {
            headers.insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

/// The answer of a handler.
pub type Answer<T> = Result<T, Problem>;
