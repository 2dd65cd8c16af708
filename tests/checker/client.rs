//! A client that records what it does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::history::{Call, Outcome, Recorder, Verb};

/// How long a client waits for a response, unless it says otherwise.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The header by which the judge recognizes a job whose push was not answered.
pub const MARK: &str = "mark";

static MARKS: AtomicU64 = AtomicU64::new(0);

/// Gives a job its mark unless it has one.
pub fn mark(job: &mut Value) {
    let Some(job) = job.as_object_mut() else { return };
    let headers = job.entry("headers").or_insert_with(|| Value::Object(Map::new()));
    let number = MARKS.fetch_add(1, Ordering::Relaxed);
    if let Some(headers) = headers.as_object_mut() {
        headers.entry(MARK).or_insert_with(|| json!(format!("{}-{number}", std::process::id())));
    }
}

fn mark_each(jobs: Option<&mut Value>) {
    jobs.and_then(Value::as_array_mut).into_iter().flatten().for_each(mark);
}

/// Gives every job that this body pushes its mark.
fn mark_all(verb: Verb, body: &mut Value) {
    match verb {
        Verb::Push => mark(body),
        Verb::PushMany | Verb::PushTogether | Verb::AddToBatch => mark_each(body.get_mut("jobs")),
        Verb::CreateBatch => {
            mark_each(body.get_mut("jobs"));
            body.get_mut("on_finished").into_iter().for_each(mark);
        }
        Verb::PutSchedule => body.get_mut("job").into_iter().for_each(mark),
        Verb::Commit => mark_each(body.get_mut("push")),
        Verb::Settle => {
            let commits = body.get_mut("commit").and_then(Value::as_array_mut);
            commits.into_iter().flatten().for_each(|commit| mark_each(commit.get_mut("push")));
        }
        _ => {}
    }
}

/// A client of one server. [`Self::at`] is the same client at another one.
#[derive(Clone)]
pub struct Client {
    pub name: String,
    /// `http://host:port`.
    pub base: String,
    recorder: Recorder,
    http: reqwest::Client,
    timeout: Duration,
}

impl Client {
    pub fn new(recorder: &Recorder, name: &str, base: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self {
            name: name.to_owned(),
            base: base.to_owned(),
            recorder: recorder.clone(),
            http,
            timeout: TIMEOUT,
        }
    }

    /// The same client at another server.
    pub fn at(&self, base: &str) -> Self {
        Self { base: base.to_owned(), ..self.clone() }
    }

    /// The same client, recorded under another name.
    pub fn named(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }

    /// The same client with another patience.
    pub fn patient(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Makes one call, once, and records it. Jobs without a mark get one.
    pub async fn call(&self, verb: Verb, target: &str, body: Value) -> Outcome {
        self.call_keyed(verb, target, body, None).await
    }

    /// The same with an `Idempotency-Key`.
    pub async fn call_keyed(&self, verb: Verb, target: &str, mut body: Value, key: Option<&str>) -> Outcome {
        mark_all(verb, &mut body);
        let place = self.recorder.begin(Call {
            client: self.name.clone(),
            server: self.base.clone(),
            verb,
            target: target.to_owned(),
            key: key.map(str::to_owned),
            body: body.clone(),
            invoked_us: 0,
            completed_us: u64::MAX,
            outcome: Outcome::Unknown { why: "not over".to_owned() },
        });
        let outcome = self.send(verb, target, &body, key).await;
        self.recorder.end(place, &outcome);
        outcome
    }

    async fn send(&self, verb: Verb, target: &str, body: &Value, key: Option<&str>) -> Outcome {
        let (method, path) = verb.request(target);
        let request = self.http.request(method.parse().unwrap(), format!("{}{path}", self.base));
        let mut request = request.timeout(self.timeout);
        if !body.is_null() {
            request = request.json(body);
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() && !error.is_timeout() => {
                return Outcome::Refused { status: 0, code: "not-sent".to_owned(), answer: Value::Null };
            }
            Err(error) => return Outcome::Unknown { why: error.to_string() },
        };
        let status = response.status().as_u16();
        match response.text().await {
            Ok(text) if text.is_empty() => Outcome::of(status, Value::Null),
            Ok(text) => match serde_json::from_str(&text) {
                Ok(answer) => Outcome::of(status, answer),
                Err(error) => Outcome::Unknown { why: format!("{status}: {error}") },
            },
            Err(error) => Outcome::Unknown { why: format!("{status}: {error}") },
        }
    }

    pub async fn push(&self, queue: &str, job: Value) -> Outcome {
        self.call(Verb::Push, queue, job).await
    }

    pub async fn push_many(&self, queue: &str, jobs: Vec<Value>) -> Outcome {
        self.call(Verb::PushMany, queue, json!({ "jobs": jobs })).await
    }

    /// The jobs that came, none where none did or the outcome is unknown.
    pub async fn reserve(&self, queue: &str, ask: Value) -> Vec<Value> {
        jobs(&self.call(Verb::Reserve, queue, ask).await)
    }

    /// The same under an `Idempotency-Key`.
    pub async fn reserve_keyed(&self, queue: &str, ask: Value, key: &str) -> Outcome {
        self.call_keyed(Verb::Reserve, queue, ask, Some(key)).await
    }

    pub async fn pop(&self, queue: &str, ask: Value) -> Vec<Value> {
        jobs(&self.call(Verb::Pop, queue, ask).await)
    }

    /// Settles a job as a reserve returned it: [`Verb::Commit`], `Rollback`, `Extend` or `Move`.
    pub async fn settle(&self, verb: Verb, job: &Value, mut body: Value) -> Outcome {
        body["reservation"] = job["reservation"].clone();
        self.call(verb, job["id"].as_str().unwrap(), body).await
    }
}

/// The jobs of a reserve or a pop.
pub fn jobs(outcome: &Outcome) -> Vec<Value> {
    outcome.answer().and_then(|answer| answer["jobs"].as_array()).cloned().unwrap_or_default()
}
