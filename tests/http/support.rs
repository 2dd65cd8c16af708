//! What the cases of this suite share: raw requests, checks of problems, and waiting.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;
pub use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::common::contract;
pub use crate::common::server::{LOOKED, Place, Server, looked, metric, until, until_looked};

/// Makes waiters look by themselves only once a minute, so that nothing but a wake-up explains an answer.
pub const ONLY_WOKEN: &[(&str, &str)] = &[("TAILBACK_WAIT__POLL_MS", "60000")];
/// How long a waiter waits that is woken much earlier.
pub const LONG_MS: u64 = 55_000;
/// Under [`LONG_MS`], after which a waiter looks once more by itself, and as long as that allows: a machine may be busy, and MongoDB stand
/// still for 40 s.
pub const WOKEN: Duration = Duration::from_secs(54);

/// A whole answer.
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    /// The header's text, empty where there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Status and body, as the checks below take them.
    pub fn answer(&self) -> (u16, Value) {
        (self.status, self.json())
    }
}

/// Sends a request as it is; a body is declared as JSON unless the headers say otherwise.
pub async fn raw(
    server: &Server,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Vec<u8>>,
) -> Reply {
    let mut request = server.http.request(method.parse().unwrap(), format!("{}{path}", server.base));
    let body = body.into();
    if !body.is_empty() {
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        request = request.body(body);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.unwrap();
    contract::check(method, path, status, &headers, &text);
    Reply { status, headers, text }
}

/// A POST of this text.
pub async fn post_text(server: &Server, path: &str, body: &str) -> Reply {
    raw(server, "POST", path, &[], body).await
}

/// A POST that goes on beside the case.
pub fn begin(server: &Server, path: &str, headers: &[(&str, &str)], body: Value) -> JoinHandle<(u16, Value)> {
    let mut request = server.http.post(format!("{}{path}", server.base)).json(&body);
    let path = path.to_owned();
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    tokio::spawn(async move {
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        contract::check("POST", &path, status, &headers, &text);
        (status, serde_json::from_str(&text).unwrap())
    })
}

/// A reserve from this queue that waits until it is woken.
pub fn begin_reserve(server: &Server, queue: &str) -> JoinHandle<(u16, Value)> {
    let ask = json!({"wait_ms": LONG_MS, "lease_ms": 600_000});
    begin(server, &format!("/v1/queues/{queue}/reserve"), &[], ask)
}

/// The same once it has looked in vain, where no other call claims meanwhile.
pub async fn waiting_reserve(server: &Server, queue: &str) -> JoinHandle<(u16, Value)> {
    let before = looked(server).await;
    let waiter = begin_reserve(server, queue);
    until("the waiter has looked", || async { looked(server).await > before }).await;
    waiter
}

/// The ids of the jobs that a waiter got; it must have been woken.
pub async fn woken(since: Instant, waiter: JoinHandle<(u16, Value)>) -> Vec<String> {
    let (status, answer) = waiter.await.unwrap();
    assert_eq!(status, 200, "{answer}");
    assert!(since.elapsed() < WOKEN, "nobody woke the waiter: {answer}");
    ids(answer["jobs"].as_array().unwrap())
}

/// The ids of these jobs.
pub fn ids(jobs: &[Value]) -> Vec<String> {
    jobs.iter().map(id).collect()
}

/// The id of this job.
pub fn id(job: &Value) -> String {
    job["id"].as_str().unwrap().to_owned()
}

/// Reserves the one job that the queue has.
pub async fn take(server: &Server, queue: &str) -> Value {
    let jobs = server.reserve(queue, json!({"worker": "w1", "lease_ms": 600_000})).await;
    assert_eq!(jobs.len(), 1, "queue {queue} has no job to reserve");
    jobs.into_iter().next().unwrap()
}

/// Pushes a job with nothing special about it, and reserves it.
pub async fn push_and_take(server: &Server, queue: &str) -> Value {
    server.push(queue, json!({"payload": {"n": 1}})).await;
    take(server, queue).await
}

/// Sets a queue's settings.
pub async fn configure(server: &Server, queue: &str, settings: Value) {
    let path = format!("/v1/queues/{queue}");
    let (status, answer) = server.send(reqwest::Method::PUT, &path, Some(settings)).await;
    assert_eq!(status, 200, "{answer}");
}

/// The servers that this one lists, once they are so many: one that has not said so for 15 s is not among them.
pub async fn servers_listed(server: &Server, count: usize) -> Vec<Value> {
    let listed = RefCell::new(Vec::new());
    until("the servers are known", || async {
        let (status, answer) = server.get("/v1/servers").await;
        assert_eq!(status, 200, "{answer}");
        *listed.borrow_mut() = answer["servers"].as_array().unwrap().clone();
        listed.borrow().len() == count
    })
    .await;
    listed.into_inner()
}

/// What the repeat of a call is told that was answered so: the same, and that it is a repeat.
pub fn repeat_of((status, answer): &(u16, Value)) -> (u16, Value) {
    let mut answer = answer.clone();
    answer["repeated"] = json!(true);
    (*status, answer)
}

/// The job as it is now.
pub async fn see(server: &Server, id: &str) -> Value {
    let (status, job) = server.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!(status, 200, "{job}");
    job
}

/// A problem of this kind, with everything that a problem must have.
#[track_caller]
pub fn refused((status, problem): &(u16, Value), expected: u16, code: &str) {
    assert_eq!((*status, &problem["code"]), (expected, &json!(code)), "{problem}");
    assert_eq!(problem["status"], expected, "{problem}");
    assert_eq!(problem["type"], format!("urn:tailback:problem:{code}"), "{problem}");
    for field in ["title", "detail", "request_id"] {
        assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {problem}");
    }
    assert!(problem["retryable"].is_boolean(), "{problem}");
}

/// The field at this JSON pointer was refused.
#[track_caller]
pub fn invalid(answer: &(u16, Value), pointer: &str) {
    refused(answer, 422, "invalid-field");
    assert_eq!(answer.1["pointer"], pointer, "{}", answer.1);
}

/// This parameter was refused.
#[track_caller]
pub fn bad_parameter(answer: &(u16, Value), name: &str) {
    refused(answer, 422, "invalid-field");
    assert_eq!(answer.1["parameter"], name, "{}", answer.1);
}

/// The token was refused; `gone` tells whether the job does not exist either.
#[track_caller]
pub fn lost(answer: &(u16, Value), gone: bool) {
    refused(answer, 409, "reservation-lost");
    assert_eq!(answer.1["gone"], gone, "{}", answer.1);
}
