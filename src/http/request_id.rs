//! Request ids: the client's own `x-request-id`, or a new one. It is in the response, in problems and in the log.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");

tokio::task_local! {
    static CURRENT: String;
}

/// Returns the id of the current request.
pub fn current() -> String {
    CURRENT.try_with(String::clone).unwrap_or_default()
}

/// Returns the id of this request: the client's own, or a new one.
pub fn of(request: &Request) -> String {
    let given =
        request.headers().get(HEADER).and_then(|value| value.to_str().ok()).filter(|id| is_usable(id));
    given.map_or_else(|| ulid::Ulid::new().to_string(), str::to_owned)
}

/// Runs `work` with this id as the current one.
pub fn scope<T>(id: String, work: impl Future<Output = T>) -> impl Future<Output = T> {
    CURRENT.scope(id, work)
}

/// Runs `work` with this id as the current one, outside of the handling of a request.
pub fn scope_sync<T>(id: String, work: impl FnOnce() -> T) -> T {
    CURRENT.sync_scope(id, work)
}

/// Sets the id as a header of the response.
pub fn set_header(id: &str, response: &mut Response) {
    if let Ok(value) = HeaderValue::from_str(id) {
        response.headers_mut().insert(HEADER, value);
    }
}

/// Returns whether a client's id may be used: it is written to logs, so it must be short and visible ASCII.
fn is_usable(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
}
