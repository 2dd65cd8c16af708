//! Where a case takes place: one queue of one server, and what can be seen of it.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};

use crate::common::server::Server;

/// Longer than any test takes, and shorter than [`Call::LATER_MS`].
pub const LEASE_MS: u64 = 80_000_000;

/// The queues of a case, by the end of their names.
pub const QUEUES: [&str; 4] = ["", ".next", ".dead", ".cut"];

/// A response: status and body.
pub type Answer = (u16, Value);

/// One server and a name that nothing else has: of the queue, and of whatever else has a name.
#[derive(Clone)]
pub struct Site {
    pub server: Arc<Server>,
    pub name: String,
}

/// What the faults strike.
#[derive(Clone)]
pub struct Call {
    pub act: Act,
    /// What has to be looked at beside the queues.
    pub look: Vec<String>,
    /// The text of an API key: whether it is valid is looked at as well.
    pub shown: Option<String>,
    /// Whether it is made of several steps, which a repeat completes.
    pub is_stepwise: bool,
    /// Whether what it has left half done lapses: then attempts are not compared.
    pub is_lapsing: bool,
    /// The state in which jobs of the queue are until the last of its steps, where the server makes some by itself.
    pub until_none_is: Option<&'static str>,
}

#[derive(Clone)]
pub enum Act {
    /// A request of a client.
    Request { method: Method, path: String, body: Option<Value>, key: Option<String> },
    /// What the server does by itself when its time has come.
    Later,
    /// What the server does at its start.
    Start,
}

impl Call {
    /// How far the clock is set ahead for [`Act::Later`] and [`Act::Start`]: more than a day.
    pub const LATER_MS: i64 = 90_000_000;

    /// Returns a call of which only the queues are looked at.
    pub fn new(act: Act) -> Self {
        Self {
            act,
            look: Vec::new(),
            shown: None,
            is_stepwise: false,
            is_lapsing: false,
            until_none_is: None,
        }
    }

    /// Returns the same call where this path is looked at as well.
    pub fn and_look(mut self, path: String) -> Self {
        self.look.push(path);
        self
    }

    /// Returns the same call where this text of an API key is tried as well.
    pub fn and_show(mut self, key: &str) -> Self {
        self.shown = Some(key.to_owned());
        self
    }

    /// Returns the same call, which is made of several steps.
    pub fn in_steps(mut self) -> Self {
        self.is_stepwise = true;
        self
    }

    /// Returns the same call, which holds its jobs by a lease first.
    pub fn by_lease(mut self) -> Self {
        self.is_lapsing = true;
        self
    }

    /// Returns the same call, whose last step leaves no job of the queue in this state.
    pub fn until_none_is(mut self, state: &'static str) -> Self {
        self.until_none_is = Some(state);
        self
    }

    /// Returns whether this picture shows a step before the last one.
    pub fn is_under_way(&self, picture: &Value) -> bool {
        let mut jobs = picture[""].as_array().into_iter().flatten();
        self.until_none_is.is_some_and(|state| jobs.any(|job| job["state"] == state))
    }

    /// Returns the same call with an `Idempotency-Key`.
    pub fn with_key(mut self, with: &str) -> Self {
        if let Act::Request { key, .. } = &mut self.act {
            *key = Some(with.to_owned());
        }
        self
    }
}

impl Site {
    /// Returns a path below `/v1` where `@` stands for the name.
    pub fn path(&self, path: &str) -> String {
        format!("/v1{}", path.replace('@', &self.name))
    }

    /// Returns the call of this path; `@` in path and body stands for the name.
    pub fn call(&self, method: Method, path: &str, body: Value) -> Call {
        let body = (!body.is_null()).then(|| named(body, &self.name));
        let act = Act::Request { method, path: self.path(path), body, key: None };
        Call::new(act)
    }

    /// Returns a POST of this path.
    pub fn post(&self, path: &str, body: Value) -> Call {
        self.call(Method::POST, path, body)
    }

    /// Does what must succeed.
    pub async fn must(&self, method: Method, path: &str, body: Value) -> Value {
        let call = self.call(method, path, body);
        let (status, answer) = self.make(&call.act).await.unwrap();
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
        answer
    }

    /// Pushes a job and returns its id.
    pub async fn push(&self, job: Value) -> String {
        let answer = self.must(Method::POST, "/queues/@/jobs", job).await;
        answer["id"].as_str().unwrap().to_owned()
    }

    /// Reserves so many jobs.
    pub async fn reserve(&self, count: usize) -> Vec<Value> {
        let ask = json!({"count": count, "lease_ms": LEASE_MS});
        let answer = self.must(Method::POST, "/queues/@/reserve", ask).await;
        let jobs = answer["jobs"].as_array().unwrap().clone();
        assert_eq!(jobs.len(), count, "{answer}");
        jobs
    }

    /// Pushes a job and reserves it.
    pub async fn held(&self, job: Value) -> Value {
        self.push(job).await;
        self.reserve(1).await.remove(0)
    }

    /// Returns the call that settles this job: `verb` is commit, rollback, extend or move.
    pub fn settle(&self, job: &Value, verb: &str, mut body: Value) -> Call {
        body["reservation"] = job["reservation"].clone();
        self.post(&format!("/jobs/{}/{verb}", job["id"].as_str().unwrap()), body)
    }

    /// Makes a request; nothing is returned where the server breaks off.
    pub async fn make(&self, act: &Act) -> Option<Answer> {
        let Act::Request { method, path, body, key } = act else { panic!("not a request") };
        let mut request = self.server.http.request(method.clone(), format!("{}{path}", self.server.base));
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let response = request.send().await.ok()?;
        let status = response.status();
        if [503, 507].contains(&status.as_u16()) {
            assert!(response.headers().contains_key("retry-after"), "{path}: {status} without Retry-After");
        }
        let text = response.text().await.ok()?;
        Some((status.as_u16(), serde_json::from_str(&text).unwrap_or(Value::Null)))
    }

    /// Returns everything that clients can see of this site, without what differs from site to site.
    pub async fn picture(&self, look: &[String]) -> Option<Value> {
        let get = async |path: &str| {
            let path = path.to_owned();
            self.make(&Act::Request { method: Method::GET, path, body: None, key: None }).await
        };
        let mut picture = json!({});
        for queue in &QUEUES[..3] {
            let (status, page) = get(&self.path(&format!("/queues/@{queue}/jobs?limit=200"))).await?;
            assert_eq!(status, 200, "{page}");
            let jobs = page["jobs"].as_array().unwrap();
            let mut shown: Vec<Value> = jobs.iter().map(|job| plain(job, &self.name)).collect();
            shown.sort_by_key(Value::to_string);
            picture[queue] = Value::Array(shown);
        }
        for path in look {
            let (status, body) = get(path).await?;
            picture[plain(&json!(path), &self.name).as_str().unwrap()] =
                json!([status, plain(&body, &self.name)]);
        }
        Some(picture)
    }

    /// Returns the picture of what this call concerns.
    pub async fn look(&self, call: &Call) -> Option<Value> {
        let mut picture = self.picture(&call.look).await?;
        if let Some(key) = &call.shown {
            let request = self.server.http.get(format!("{}/v1/queues", self.server.base)).bearer_auth(key);
            picture["the key is valid"] = json!(request.send().await.ok()?.status().is_success());
        }
        Some(if call.is_lapsing { without_attempts(&picture) } else { picture })
    }

    /// Returns an answer to this call without what differs from site to site.
    pub fn shown(&self, call: &Call, answer: &Answer) -> Answer {
        let body = plain(&answer.1, &self.name);
        (answer.0, if call.is_lapsing { without_attempts(&body) } else { body })
    }

    /// Commits all that can be reserved, and what is held already.
    pub async fn drain(&self, held: &[Value]) {
        for job in held {
            let commit = self.settle(job, "commit", json!({}));
            let (status, answer) = self.make(&commit.act).await.unwrap();
            assert_eq!(status, 200, "the token of {job} is not good: {answer}");
        }
        for queue in QUEUES {
            let reserve = format!("/queues/@{queue}/reserve");
            loop {
                let ask = json!({"count": 100, "lease_ms": LEASE_MS});
                let answer = self.must(Method::POST, &reserve, ask).await;
                let jobs = answer["jobs"].as_array().unwrap();
                for job in jobs {
                    let commit = self.settle(job, "commit", json!({}));
                    let (status, answer) = self.make(&commit.act).await.unwrap();
                    assert_eq!(status, 200, "{job}: {answer}");
                }
                if jobs.is_empty() {
                    break;
                }
            }
        }
    }

    /// Removes all that has the name of this site.
    pub async fn clear(&self) {
        for path in ["/schedules/@", "/workers/@"] {
            let (status, answer) =
                self.make(&self.call(Method::DELETE, path, Value::Null).act).await.unwrap();
            assert!([200, 204, 404].contains(&status), "{path}: {status} {answer}");
        }
        for queue in QUEUES {
            self.must(Method::DELETE, &format!("/queues/@{queue}?force=true"), Value::Null).await;
        }
        let all = self.must(Method::GET, "/keys", Value::Null).await;
        for key in all["keys"].as_array().unwrap().iter().filter(|key| key["name"] == self.name.as_str()) {
            let path = format!("/keys/{}", key["id"].as_str().unwrap());
            self.must(Method::DELETE, &path, Value::Null).await;
        }
        let semaphore = self.call(Method::DELETE, "/semaphores/@", Value::Null);
        let (status, answer) = self.make(&semaphore.act).await.unwrap();
        assert!([200, 404].contains(&status), "{status} {answer}");
    }
}

/// Returns the body with the site's name in the place of every `@`.
fn named(body: Value, name: &str) -> Value {
    match body {
        Value::String(text) => Value::String(text.replace('@', name)),
        Value::Array(items) => items.into_iter().map(|item| named(item, name)).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, named(value, name))).collect(),
        other => other,
    }
}

/// Returns a body without its ids, tokens and times. How long a lease is, and whether a job is to wait, stays.
pub fn plain(body: &Value, name: &str) -> Value {
    match body {
        Value::String(text) => Value::String(plain_text(text, name)),
        Value::Array(items) => items.iter().map(|item| plain(item, name)).collect(),
        Value::Object(fields) => {
            let is_api_key = fields.contains_key("scopes");
            let dropped = ["backoff", "detail", "purge_at", "next_runs"];
            let kept = fields.iter().filter(|(key, _)| !dropped.contains(&key.as_str()));
            let mut shown: serde_json::Map<String, Value> = kept
                .map(|(key, value)| match key.as_str() {
                    "reservation" => (key.clone(), json!("TOKEN")),
                    "request_id" => (key.clone(), json!("ID")),
                    "version" => (key.clone(), json!("VERSION")),
                    "id" | "key" if is_api_key => (key.clone(), json!("ID")),
                    _ => (key.clone(), plain(value, name)),
                })
                .collect();
            if let Some(lease_ms) = between(fields.get("started_at"), fields.get("reserved_until")) {
                shown["reserved_until"] = json!((lease_ms + 500_000) / 1_000_000);
            }
            if let Some(wait_ms) = between(fields.get("created_at"), fields.get("run_at")) {
                shown["run_at"] = json!(if wait_ms > 60_000 { "later" } else { "now" });
            }
            Value::Object(shown)
        }
        other => other.clone(),
    }
}

fn without_attempts(value: &Value) -> Value {
    let dropped = ["attempt", "errors", "run_at", "started_at"];
    match value {
        Value::Array(items) => items.iter().map(without_attempts).collect(),
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, _)| !dropped.contains(&key.as_str()));
            kept.map(|(key, value)| (key.clone(), without_attempts(value))).collect()
        }
        other => other.clone(),
    }
}

fn plain_text(text: &str, name: &str) -> String {
    if text.parse::<jiff::Timestamp>().is_ok() {
        return "TIME".to_owned();
    }
    let named = text.replace(name, "@");
    let is_id = |part: &str| part.len() == 26 && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    named.split('/').map(|part| if is_id(part) { "ID" } else { part }).collect::<Vec<_>>().join("/")
}

fn between(from: Option<&Value>, to: Option<&Value>) -> Option<i64> {
    let time = |value: Option<&Value>| value?.as_str()?.parse::<jiff::Timestamp>().ok();
    Some(time(to)?.as_millisecond() - time(from)?.as_millisecond())
}
