//! What every response says to browsers: that it is for the client alone, and that no page may show or run it.

use std::sync::LazyLock;

use axum::http::HeaderValue;
use axum::http::header::{self, HeaderMap, HeaderName};

use crate::dashboard;

/// The headers of every response.
pub const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::CACHE_CONTROL, "no-store"),
];

/// The policy of the interactive page of `/docs`, which has scripts and styles of its own.
const DOCS: &str =
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'";

/// The headers of every response of JSON: a copy costs less than adding them one by one.
static JSON: LazyLock<HeaderMap> = LazyLock::new(|| {
    let own = [(header::CONTENT_TYPE, "application/json")].into_iter();
    let all = own.chain(HEADERS).map(|(name, value)| (name, HeaderValue::from_static(value)));
    all.collect()
});

/// Returns the headers of a response of JSON.
pub fn of_json() -> HeaderMap {
    JSON.clone()
}

/// Adds the headers to a response of this path, but for those that it has.
pub fn add(path: &str, headers: &mut HeaderMap) {
    let own = match path {
        path if path.starts_with("/docs") => Some(DOCS),
        path if dashboard::has(path) => Some(dashboard::POLICY),
        _ => None,
    };
    own.into_iter().for_each(|policy| {
        drop(headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy)))
    });
    if headers.contains_key(header::X_FRAME_OPTIONS) {
        return; // nothing but `of_json` sets this one
    }
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}
