//! What comes in paths, queries and headers, parsed into types that can only be valid.

use std::str::FromStr;

use axum::extract::{FromRequestParts, Path, RawQuery};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::problem::{Code, Problem};
use crate::job::names::NAME_RULE;
use crate::job::{BatchId, JobId, QueueName};
use crate::queue::{IdempotencyKey, Precondition};

/// The most elements of one page of a list.
pub const LIMIT_MAX: usize = 1000;
/// The elements of one page where the request does not say.
pub const LIMIT_DEFAULT: usize = 100;

/// The queue in the path.
pub struct InQueue(pub QueueName);

impl<S: Send + Sync> FromRequestParts<S> for InQueue {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = segment(parts, state).await?;
        let invalid = |_| Problem::parameter("queue", format!("must be {NAME_RULE}"));
        text.parse().map(Self).map_err(invalid)
    }
}

/// The name in the path, of a schedule or a worker.
pub struct Named<T>(pub T);

impl<S: Send + Sync, T: FromStr> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = segment(parts, state).await?;
        let invalid = |_| Problem::parameter("name", format!("must be {NAME_RULE}"));
        text.parse().map(Self).map_err(invalid)
    }
}

/// The job in the path. An id that does not parse is that of no job.
pub struct OfJob(pub JobId);

impl<S: Send + Sync> FromRequestParts<S> for OfJob {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = segment(parts, state).await?;
        text.parse().map(Self).map_err(|_| Problem::new(Code::UnknownJob, "there is no job with such an id"))
    }
}

/// The batch in the path. An id that does not parse is that of no batch.
pub struct OfBatch(pub BatchId);

impl<S: Send + Sync> FromRequestParts<S> for OfBatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = segment(parts, state).await?;
        let unknown = |_| Problem::new(Code::UnknownBatch, "there is no batch with such an id");
        text.parse().map(Self).map_err(unknown)
    }
}

/// The job in the path of a settle. One whose id does not parse cannot be reserved.
pub struct SettledJob(pub JobId);

impl<S: Send + Sync> FromRequestParts<S> for SettledJob {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = segment(parts, state).await?;
        text.parse().map(Self).map_err(|_| Problem::lost("there is no job with such an id"))
    }
}

/// The one parameter of the path. What is not UTF-8 once it is decoded is no valid name and no id.
async fn segment<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<String, Problem> {
    let path = Path::<String>::from_request_parts(parts, state).await;
    Ok(path.map(|Path(text)| text).unwrap_or_default())
}

/// The query, each of its parameters known and given once.
pub struct Query(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let RawQuery(text) = RawQuery::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::new(Code::Malformed, "the query cannot be read"))?;
        let text = text.unwrap_or_default();
        let pairs: Vec<(String, String)> = form_urlencoded::parse(text.as_bytes()).into_owned().collect();
        Ok(Self(pairs))
    }
}

impl Query {
    /// Refuses parameters that are not among these, or given twice.
    pub fn only(self, known: &[&'static str]) -> Result<Self, Problem> {
        for (n, (name, _)) in self.0.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let detail = format!("this call has no such parameter in its query; it has: {known}");
                return Err(Problem::parameter("query", detail));
            }
            if self.0[..n].iter().any(|(other, _)| other == name) {
                return Err(Problem::parameter("query", format!("has the parameter {name} twice")));
            }
        }
        Ok(self)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// A parameter that must parse; `rule` says what would be right.
    pub fn get<T: FromStr>(&self, name: &'static str, rule: &str) -> Result<Option<T>, Problem> {
        let invalid = |_| Problem::parameter(name, format!("must be {rule}"));
        self.text(name).map(|text| text.parse().map_err(invalid)).transpose()
    }

    /// A parameter that is one of the words of a type.
    pub fn word<T: serde::de::DeserializeOwned>(
        &self,
        name: &'static str,
        rule: &str,
    ) -> Result<Option<T>, Problem> {
        let invalid = |_| Problem::parameter(name, format!("must be one of: {rule}"));
        let read = |text: &str| serde_json::from_value(serde_json::Value::from(text)).map_err(invalid);
        self.text(name).map(read).transpose()
    }

    /// How many elements are asked for.
    pub fn limit(&self) -> Result<usize, Problem> {
        match self.get("limit", "1 to 1000")?.unwrap_or(LIMIT_DEFAULT) {
            limit if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
            _ => Err(Problem::parameter("limit", "must be 1 to 1000")),
        }
    }

    /// Where the page begins.
    pub fn cursor<T: FromStr>(&self) -> Result<Option<T>, Problem> {
        let invalid = || Problem::parameter("cursor", "must be one that an earlier page answered");
        let Some(text) = self.text("cursor") else {
            return Ok(None);
        };
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
        let place = String::from_utf8(bytes).map_err(|_| invalid())?;
        place.parse().map(Some).map_err(|_| invalid())
    }

    /// Whether the call is to be carried out in spite of what speaks against it.
    pub fn force(&self) -> Result<bool, Problem> {
        Ok(self.get("force", "true or false")?.unwrap_or(false))
    }
}

/// The place behind a page as a cursor.
pub fn cursor(place: &impl ToString) -> String {
    URL_SAFE_NO_PAD.encode(place.to_string())
}

/// The `If-Match` of a request.
pub struct IfMatch(pub Precondition);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Some(text) = header_text(&parts.headers, &header::IF_MATCH)? else {
            return Ok(Self(Precondition::None));
        };
        if text.trim() == "*" {
            return Ok(Self(Precondition::Exists));
        }
        let tags = text.split(',').map(|tag| {
            let version = tag.trim().strip_prefix('"')?.strip_suffix('"')?;
            (!version.contains('"')).then(|| version.to_owned())
        });
        let invalid =
            || Problem::new(Code::Malformed, "If-Match must be a list of entity tags, such as \"abc\"");
        let versions = tags.collect::<Option<Vec<String>>>().ok_or_else(invalid)?;
        Ok(Self(Precondition::Versions(versions)))
    }
}

/// The `Idempotency-Key` of a request.
pub struct Idempotency(pub Option<IdempotencyKey>);

impl<S: Send + Sync> FromRequestParts<S> for Idempotency {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let name = header::HeaderName::from_static("idempotency-key");
        let Some(text) = header_text(&parts.headers, &name)? else {
            return Ok(Self(None));
        };
        text.parse().map(|key| Self(Some(key))).map_err(|rule| Problem::parameter("Idempotency-Key", rule))
    }
}

fn header_text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Result<Option<&'a str>, Problem> {
    let text = headers.get(name).map(|value| value.to_str());
    text.transpose()
        .map_err(|_| Problem::new(Code::Malformed, format!("the header {name} must be visible ASCII")))
}
