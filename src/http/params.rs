//! Parameters of paths, queries and headers, parsed into types that are always valid.

use std::borrow::Cow;
use std::str::FromStr;

use axum::extract::{FromRequestParts, Path, RawQuery};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::access;
use super::context::Context;
use super::problem::{Code, Problem};
use crate::job::names::NAME_RULE;
use crate::job::time::TIME_RULE;
use crate::job::{BatchId, BulkId, JobId, QueueName, StoredKeyId, Timestamp};
use crate::queue::{IdempotencyKey, Precondition};

/// The maximum number of elements in a page of a list.
pub const LIMIT_MAX: usize = 1000;
/// The longest cursor: of the longest name there is.
pub const CURSOR_MAX: usize = 512;
/// The longest `If-Match`: of a few dozen versions.
pub const IF_MATCH_MAX: usize = 1024;
/// The default number of elements in a page.
pub const LIMIT_DEFAULT: usize = 100;

/// The queue in the path.
pub struct InQueue(pub QueueName);

impl<S: Send + Sync> FromRequestParts<S> for InQueue {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = segment(parts, state).await?;
        let invalid = |_| Problem::parameter("queue", format!("must be {NAME_RULE}"));
        let queue = text.parse().map_err(invalid)?;
        access::of(parts)?.in_queue(&queue)?;
        Ok(Self(queue))
    }
}

/// The name in the path: of a schedule, a semaphore or a worker.
pub struct Named<T>(pub T);

impl<S: Send + Sync, T: FromStr> FromRequestParts<S> for Named<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = segment(parts, state).await?;
        let invalid = |_| Problem::parameter("name", format!("must be {NAME_RULE}"));
        text.parse().map(Self).map_err(invalid)
    }
}

/// The job in the path. An id that does not parse is unknown.
pub struct OfJob(pub JobId);

impl<S: Send + Sync> FromRequestParts<S> for OfJob {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = segment(parts, state).await?;
        text.parse().map(Self).map_err(|_| Problem::new(Code::UnknownJob, "there is no job with this id"))
    }
}

/// The batch in the path. An id that does not parse is unknown.
pub struct OfBatch(pub BatchId);

impl<S: Send + Sync> FromRequestParts<S> for OfBatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = segment(parts, state).await?;
        let unknown = |_| Problem::new(Code::UnknownBatch, "there is no batch with this id");
        text.parse().map(Self).map_err(unknown)
    }
}

/// The operation over many jobs in the path. An id that does not parse is unknown.
pub struct OfOperation(pub BulkId);

impl<S: Send + Sync> FromRequestParts<S> for OfOperation {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = segment(parts, state).await?;
        let unknown = |_| Problem::new(Code::UnknownOperation, "there is no operation with this id");
        text.parse().map(Self).map_err(unknown)
    }
}

/// The id of an API key in the path. A text that cannot be one is `unknown-key`.
pub struct OfKey(pub StoredKeyId);

impl<S: Send + Sync> FromRequestParts<S> for OfKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = segment(parts, state).await?;
        text.parse().map(Self).map_err(|_| Problem::new(Code::UnknownKey, "there is no key with this id"))
    }
}

/// The job in the path of a settle. A job whose id does not parse cannot be reserved.
pub struct SettledJob(pub JobId);

impl<S: Send + Sync> FromRequestParts<S> for SettledJob {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = segment(parts, state).await?;
        text.parse().map(Self).map_err(|_| Problem::reservation_lost("there is no job with this id"))
    }
}

/// Returns the only parameter of the path; empty, which is never valid, if it does not decode to UTF-8.
async fn segment<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<String, Problem> {
    if let Some(segment) = Context::of_mut(&mut parts.extensions).segment.take() {
        return Ok(segment);
    }
    let path = Path::<String>::from_request_parts(parts, state).await;
    Ok(path.map(|Path(text)| text).unwrap_or_default())
}

/// How many characters of an unknown parameter's name are repeated.
const NAME_SHOWN: usize = 64;

/// The query string. See [`Query::only`].
pub struct Query(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let RawQuery(text) = RawQuery::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::new(Code::Malformed, "the query string cannot be parsed"))?;
        let text = text.unwrap_or_default();
        let pairs: Vec<(String, String)> = form_urlencoded::parse(text.as_bytes()).into_owned().collect();
        Ok(Self(pairs))
    }
}

impl Query {
    /// Rejects parameters that are not in `known` or are given twice.
    pub fn only(self, known: &[&'static str]) -> Result<Self, Problem> {
        self.judged(known, None)
    }

    /// The same, but that this further one may be given several times.
    pub fn only_repeating(self, known: &[&'static str], repeated: &'static str) -> Result<Self, Problem> {
        self.judged(&[known, &[repeated]].concat(), Some(repeated))
    }

    fn judged(self, known: &[&'static str], repeated: Option<&str>) -> Result<Self, Problem> {
        for (n, (name, _)) in self.0.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let name: String = name.chars().take(NAME_SHOWN).collect();
                let detail = format!("has an unknown parameter {name:?}; known parameters: {known}");
                return Err(Problem::parameter("query", detail));
            }
            if repeated != Some(name) && self.0[..n].iter().any(|(other, _)| other == name) {
                return Err(Problem::parameter("query", format!("has the parameter {name} twice")));
            }
        }
        Ok(self)
    }

    /// Takes out the parameters that name a field of payloads or a header, and rejects others as [`only`](Self::only) does, but that one of
    /// those that are known may be given several times.
    pub fn with_fields(
        self,
        known: &[&'static str],
        repeated: &str,
    ) -> Result<(Self, Vec<(String, String)>), Problem> {
        let is_field =
            |(name, _): &(String, String)| name.starts_with("payload.") || name.starts_with("headers.");
        let (fields, others) = self.0.into_iter().partition(is_field);
        Ok((Self(others).judged(known, Some(repeated))?, fields))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Returns a parsed parameter; `rule` describes valid values.
    pub fn get<T: FromStr>(&self, name: &'static str, rule: &str) -> Result<Option<T>, Problem> {
        let invalid = |_| Problem::parameter(name, format!("must be {rule}"));
        self.text(name).map(|text| text.parse().map_err(invalid)).transpose()
    }

    /// Returns a time. A `+` in a query is read as a space: the offset of a time that was not encoded has one before it.
    pub fn time(&self, name: &'static str) -> Result<Option<Timestamp>, Problem> {
        let invalid = |_| Problem::parameter(name, format!("must be {TIME_RULE}"));
        self.text(name).map(|text| with_offset(text).parse().map_err(invalid)).transpose()
    }

    /// Returns all values of a parameter that may be given several times; `rule` describes valid ones.
    pub fn all<T: FromStr>(&self, name: &'static str, rule: &str) -> Result<Vec<T>, Problem> {
        let invalid = |_| Problem::parameter(name, format!("must be {rule}"));
        let given = self.0.iter().filter(|(other, _)| other == name);
        given.map(|(_, value)| value.parse().map_err(invalid)).collect()
    }

    /// Returns a parameter that is one of the variants of a type.
    pub fn word<T: serde::de::DeserializeOwned>(
        &self,
        name: &'static str,
        rule: &str,
    ) -> Result<Option<T>, Problem> {
        let invalid = |_| Problem::parameter(name, format!("must be one of: {rule}"));
        let read = |text: &str| serde_json::from_value(serde_json::Value::from(text)).map_err(invalid);
        self.text(name).map(read).transpose()
    }

    /// Returns the words of a parameter that has one or several, with commas between them; it may also be given several times, as many
    /// generated clients do.
    pub fn words<T: serde::de::DeserializeOwned>(
        &self,
        name: &'static str,
        rule: &str,
    ) -> Result<Vec<T>, Problem> {
        let invalid =
            |_| Problem::parameter(name, format!("must be one or several, with commas, of: {rule}"));
        let read = |text: &str| serde_json::from_value(serde_json::Value::from(text)).map_err(invalid);
        let given = self.0.iter().filter(|(other, _)| other == name);
        given.flat_map(|(_, text)| text.split(',')).map(read).collect()
    }

    /// Returns the requested number of elements.
    pub fn limit(&self) -> Result<usize, Problem> {
        match self.get("limit", "1 to 1000")?.unwrap_or(LIMIT_DEFAULT) {
            limit if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
            _ => Err(Problem::parameter("limit", "must be 1 to 1000")),
        }
    }

    /// Returns the cursor, which is where the page begins.
    pub fn cursor<T: FromStr>(&self) -> Result<Option<T>, Problem> {
        let invalid = || Problem::parameter("cursor", "must be a cursor that an earlier page returned");
        let Some(text) = self.text("cursor") else {
            return Ok(None);
        };
        if text.len() > CURSOR_MAX {
            return Err(invalid());
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
        let position = String::from_utf8(bytes).map_err(|_| invalid())?;
        position.parse().map(Some).map_err(|_| invalid())
    }

    /// Returns whether the operation is forced.
    pub fn force(&self) -> Result<bool, Problem> {
        Ok(self.get("force", "true or false")?.unwrap_or(false))
    }
}

/// Returns the text of a time with the `+` of its offset, which a query that was not encoded has lost.
pub fn with_offset(text: &str) -> Cow<'_, str> {
    let cut = text.len().saturating_sub("+00:00".len());
    match text.get(cut..).and_then(|offset| offset.strip_prefix(' ')) {
        Some(offset) => format!("{}+{offset}", &text[..cut]).into(),
        None => text.into(),
    }
}

/// Encodes the position after a page as a cursor.
pub fn cursor(position: &impl ToString) -> String {
    URL_SAFE_NO_PAD.encode(position.to_string())
}

/// The `If-Match` of a request.
pub struct IfMatch(pub Precondition);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Some(text) = header_text(&parts.headers, &header::IF_MATCH)? else {
            return Ok(Self(Precondition::None));
        };
        if text.len() > IF_MATCH_MAX {
            let detail = format!("must be at most {IF_MATCH_MAX} characters long");
            return Err(Problem::parameter("If-Match", detail));
        }
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
        let invalid = |rule| Problem::parameter("Idempotency-Key", rule);
        let key: IdempotencyKey = text.parse().map_err(invalid)?;
        Ok(Self(Some(key.of(access::of(parts)?.caller.identity()))))
    }
}

fn header_text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Result<Option<&'a str>, Problem> {
    if headers.get_all(name).iter().nth(1).is_some() {
        return Err(Problem::new(Code::Malformed, format!("the header {name} must not be repeated")));
    }
    let text = headers.get(name).map(|value| value.to_str());
    text.transpose()
        .map_err(|_| Problem::new(Code::Malformed, format!("the header {name} must be visible ASCII")))
}
