//! Names, patterns, keys, times, queries with their cursors and filters, and conditional headers.
#![no_main]

use axum::extract::FromRequestParts as _;
use axum::http::{HeaderValue, Request};
use futures::executor::block_on;
use libfuzzer_sys::fuzz_target;
use tailback::http::params::{Idempotency, IfMatch, Query};
use tailback::job::names::{KEY_RULE, NAME_RULE};
use tailback::job::{GroupName, JobId, JobKey, QueueName, QueuePattern, ScheduleName, Timestamp, Visible};

fn names(text: &str) {
    if let Ok(pattern) = text.parse::<QueuePattern>() {
        assert_eq!(pattern.to_string().parse(), Ok(pattern));
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        assert_eq!(time.to_string().parse(), Ok(time));
    }
    let _ = text.parse::<JobKey>();
}

fuzz_target!(|text: &str| {
    names(text);
    let Ok(request) = Request::builder().uri(format!("/?{text}")).body(()) else { return };
    let (mut parts, ()) = request.into_parts();
    if let Ok(value) = HeaderValue::from_str(text) {
        parts.headers.insert("if-match", value.clone());
        parts.headers.insert("idempotency-key", value);
    }
    let _ = block_on(IfMatch::from_request_parts(&mut parts, &())).is_ok();
    let _ = block_on(Idempotency::from_request_parts(&mut parts, &())).is_ok();
    let Ok(query) = block_on(Query::from_request_parts(&mut parts, &())) else { return };
    let Ok(query) = query.only(&["limit", "cursor", "force", "state", "group", "key"]) else { return };
    let _ = (query.limit().is_ok(), query.force().is_ok());
    // The filters of browsing jobs.
    let _ = (
        query.word::<Visible>("state", "a state").is_ok(),
        query.get::<GroupName>("group", NAME_RULE).is_ok(),
        query.get::<JobKey>("key", KEY_RULE).is_ok(),
    );
    let _ = (
        query.cursor::<JobId>().is_ok(),
        query.cursor::<QueueName>().is_ok(),
        query.cursor::<ScheduleName>().is_ok(),
    );
});
