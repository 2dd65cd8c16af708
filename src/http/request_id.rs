//! Every request has an id: the client's own, or a new one. It is in the answer, in problems and in the log.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");

tokio::task_local! {
    static CURRENT: String;
}

/// The id of the request that is being answered.
pub fn current() -> String {
    CURRENT.try_with(String::clone).unwrap_or_default()
}

/// Gives the request its id, and the answer the same.
pub async fn assign(request: Request, next: Next) -> Response {
    let given =
        request.headers().get(HEADER).and_then(|value| value.to_str().ok()).filter(|id| is_usable(id));
    let id = given.map_or_else(|| ulid::Ulid::new().to_string(), str::to_owned);
    let mut response = CURRENT.scope(id.clone(), next.run(request)).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

/// What a client sends ends up in logs: short and visible only.
fn is_usable(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
}
