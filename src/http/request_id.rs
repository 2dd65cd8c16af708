//! Every request has an id: the client's own, or a new one. It is in the answer, in problems and in the log.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");

tokio::task_local! {
    static CURRENT: String;
}

/// The id of the request that is being answered.
pub fn current() -> String {
    CURRENT.try_with(String::clone).unwrap_or_default()
}

/// The id of this request: its own, or a new one.
pub fn of(request: &Request) -> String {
    let given =
        request.headers().get(HEADER).and_then(|value| value.to_str().ok()).filter(|id| is_usable(id));
    given.map_or_else(|| ulid::Ulid::new().to_string(), str::to_owned)
}

/// What is done for the request with this id.
pub async fn scope<T>(id: String, work: impl Future<Output = T>) -> T {
    CURRENT.scope(id, work).await
}

/// Puts the id into the answer.
pub fn show(id: &str, response: &mut Response) {
    if let Ok(value) = HeaderValue::from_str(id) {
        response.headers_mut().insert(HEADER, value);
    }
}

/// What a client sends ends up in logs: short and visible only.
fn is_usable(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
}
