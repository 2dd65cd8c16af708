//! Calls with an `Idempotency-Key` that create or take something: the response of the first call, sent again.

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts as _, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::AppState;
use super::body::{or_empty, with_digest};
use super::json;
use super::params::Idempotency;
use super::problem::{ApiResult, Code, Problem};
use super::request_id;
use crate::queue::{CallKey, CallOutcome, IdempotencyKey, Queues};
use crate::store::Answering;

/// A valid request body, and what makes the call recognisable if it has an `Idempotency-Key`.
pub struct Keyed<T> {
    /// Identifies the call.
    pub key: Option<CallKey>,
    /// The key as the client sent it.
    pub sent: Option<IdempotencyKey>,
    /// The body.
    pub body: T,
    /// Whether it was empty, which is read as `{}`.
    pub is_empty: bool,
}

impl<T: DeserializeOwned> FromRequest<AppState> for Keyed<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let Idempotency(sent) = Idempotency::from_request_parts(&mut parts, state).await?;
        let Some(sent) = sent else {
            let (body, is_empty) = or_empty(Request::from_parts(parts, body), state).await?;
            return Ok(Self { key: None, sent: None, body, is_empty });
        };
        // Decoded: a name with a colon is the same whether or not a client encodes that.
        let path = percent_decode_str(parts.uri.path()).decode_utf8_lossy().into_owned();
        let method = parts.method.clone();
        let (body, is_empty, digest) = with_digest(Request::from_parts(parts, body), state).await?;
        Ok(Self { key: Some(sent.call(method.as_str(), &path, digest)), sent: Some(sent), body, is_empty })
    }
}

/// A response that can be kept and sent again.
pub struct Answer {
    status: StatusCode,
    location: Option<String>,
    body: String,
}

/// The text that it is kept as.
#[derive(Serialize, Deserialize)]
struct Kept {
    status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    body: Box<RawValue>,
}

fn unexpected(error: impl std::fmt::Display) -> Problem {
    tracing::error!(%error, "an answer could not be written or read");
    Problem::new(Code::Internal, "the answer of the call could not be written or read")
}

impl Answer {
    /// Returns a response with this body.
    pub fn new(status: StatusCode, body: &impl Serialize) -> ApiResult<Self> {
        Ok(Self { status, location: None, body: serde_json::to_string(body).map_err(unexpected)? })
    }

    /// The same with the path of what was created.
    pub fn at(self, location: String) -> Self {
        Self { location: Some(location), ..self }
    }

    fn into_text(self) -> Option<String> {
        let body = RawValue::from_string(self.body).ok()?;
        serde_json::to_string(&Kept { status: self.status.as_u16(), location: self.location, body }).ok()
    }

    fn read(text: &str) -> ApiResult<Self> {
        let Kept { status, location, body } = serde_json::from_str(text).map_err(unexpected)?;
        let status = StatusCode::from_u16(status).map_err(unexpected)?;
        Ok(Self { status, location, body: Box::<str>::from(body).into() })
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = json::of(self.body.into_bytes());
        *response.status_mut() = self.status;
        let location = self.location.and_then(|location| HeaderValue::try_from(location).ok());
        response.headers_mut().extend(location.map(|location| (header::LOCATION, location)));
        response
    }
}

/// Makes the response of a call that has come to this; also within the store, before the call is over.
pub type Render<T> = Arc<dyn Fn(&T) -> ApiResult<Answer> + Send + Sync>;

/// Returns a function that makes responses.
pub fn render<T>(make: impl Fn(&T) -> ApiResult<Answer> + Send + Sync + 'static) -> Render<T> {
    Arc::new(make)
}

/// Returns what a store keeps of a call that has come to something; nothing where the response is a problem. The problems within it
/// are those of the current request.
pub fn kept<T: 'static>(render: &Render<T>) -> Answering<T> {
    let (render, id) = (render.clone(), request_id::current());
    Arc::new(move |done| request_id::scope_sync(id.clone(), || render(done).ok()?.into_text()))
}

/// Returns the response of a call.
pub fn respond<T>(told: CallOutcome<T>, render: &Render<T>) -> ApiResult<Response> {
    Ok(match told {
        CallOutcome::Plain(done) => render(&done)?.into_response(),
        CallOutcome::Answer(text) => repeated(&text)?,
    })
}

/// Returns the response that this call had before, if it had one.
pub async fn recalled(queues: &Queues, key: Option<&CallKey>) -> ApiResult<Option<Response>> {
    let Some(key) = key else { return Ok(None) };
    queues.recalled(key).await?.map(|text| repeated(&text)).transpose()
}

/// Returns the response that was kept as this text.
pub fn repeated(text: &str) -> ApiResult<Response> {
    Ok(Answer::read(text)?.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_kept_as_it_is() {
        let body = serde_json::json!({"id": "ä\"", "n": 1.50});
        let answer = || Answer::new(StatusCode::CREATED, &body).unwrap().at("/v1/jobs/x".to_owned());
        let again = Answer::read(&answer().into_text().unwrap()).unwrap();
        assert_eq!((again.status, again.location, again.body), {
            let Answer { status, location, body } = answer();
            (status, location, body)
        });
    }
}
