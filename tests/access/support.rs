//! Servers that require keys, and calls with them.

pub use reqwest::Method;
pub use serde_json::{Value, json};

use crate::common::contract;
pub use crate::common::server::{Place, Server, UNHURRIED, until};

/// The admin key of the servers of these cases.
pub const ADMIN: &str = "admin-key-of-the-cases-0123456789abcdef";

/// A server that requires keys.
pub async fn locked(place: &Place) -> Server {
    locked_with(place, &[]).await
}

/// The same with variables in its environment.
pub async fn locked_with(place: &Place, environment: &[(&str, &str)]) -> Server {
    let mut all = vec![("TAILBACK_AUTH__ADMIN_KEY", ADMIN)];
    all.extend_from_slice(environment);
    Server::start_with(&place.url, &all).await
}

/// A call with a key, or without one, and with headers of its own.
pub async fn call_with(
    server: &Server,
    key: Option<&str>,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<Value>,
) -> (u16, Value) {
    let mut request = server.http.request(method.clone(), format!("{}{path}", server.base));
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if let Some(body) = body {
        request = request.json(&body);
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.unwrap();
    contract::check(method.as_str(), path, status, &headers, &text);
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

pub async fn get(server: &Server, key: &str, path: &str) -> (u16, Value) {
    call_with(server, Some(key), Method::GET, path, &[], None).await
}

pub async fn post(server: &Server, key: &str, path: &str, body: Value) -> (u16, Value) {
    call_with(server, Some(key), Method::POST, path, &[], Some(body)).await
}

pub async fn put(server: &Server, key: &str, path: &str, body: Value) -> (u16, Value) {
    call_with(server, Some(key), Method::PUT, path, &[], Some(body)).await
}

pub async fn delete(server: &Server, key: &str, path: &str) -> (u16, Value) {
    call_with(server, Some(key), Method::DELETE, path, &[], None).await
}

/// Makes a key: its id and its text.
pub async fn make(server: &Server, key: Value) -> (String, String) {
    let (status, made) = post(server, ADMIN, "/v1/keys", key).await;
    assert_eq!(status, 201, "{made}");
    (made["id"].as_str().unwrap().to_owned(), made["key"].as_str().unwrap().to_owned())
}

/// Makes a key with these scopes for these queues, and returns its text.
pub async fn key_for(server: &Server, scopes: &[&str], queues: &[&str]) -> String {
    make(server, json!({"name": "a case", "scopes": scopes, "queues": queues})).await.1
}

/// Pushes a job that must be stored, and returns its id.
pub async fn push(server: &Server, key: &str, queue: &str, job: Value) -> String {
    let (status, pushed) = post(server, key, &format!("/v1/queues/{queue}/jobs"), job).await;
    assert_eq!(status, 201, "{pushed}");
    pushed["id"].as_str().unwrap().to_owned()
}

/// Reserves so many jobs, all of which must be there.
pub async fn reserve(server: &Server, key: &str, queue: &str, count: usize) -> Vec<Value> {
    let ask = json!({"count": count, "lease_ms": 600_000});
    let (status, answer) = post(server, key, &format!("/v1/queues/{queue}/reserve"), ask).await;
    assert_eq!(status, 200, "{answer}");
    let jobs = answer["jobs"].as_array().unwrap().clone();
    assert_eq!(jobs.len(), count, "{answer}");
    jobs
}

/// Settles a reserved job.
pub async fn settle(server: &Server, key: &str, job: &Value, verb: &str, mut body: Value) -> (u16, Value) {
    body["reservation"] = job["reservation"].clone();
    post(server, key, &format!("/v1/jobs/{}/{verb}", job["id"].as_str().unwrap()), body).await
}

/// A problem of this kind.
#[track_caller]
pub fn refused(answer: &(u16, Value), status: u16, code: &str) {
    assert_eq!((answer.0, answer.1["code"].as_str().unwrap_or_default()), (status, code), "{}", answer.1);
    assert_eq!(answer.1["type"], format!("urn:tailback:problem:{code}"), "{}", answer.1);
}

#[track_caller]
pub fn forbidden(answer: &(u16, Value)) {
    refused(answer, 403, "forbidden");
}

#[track_caller]
pub fn ok(answer: &(u16, Value)) {
    assert!((200..300).contains(&answer.0), "{answer:?}");
}
