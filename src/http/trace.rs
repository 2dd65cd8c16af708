//! The trace that a request belongs to, as its caller says in `traceparent` and `tracestate`, and its span.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::HeaderMap;

use crate::job::TraceContext;
use crate::job::trace::{TRACEPARENT, TRACESTATE};
use crate::telemetry::trace::{End, Kind, Span, number, text};

/// The most bytes of a path that are recorded.
const PATH_MAX: usize = 512;

/// Returns the span of a request. `is_operational`: it is one of those that come every few seconds and show nothing; it is recorded only
/// where its caller wants that.
pub fn of(request: &Request, is_operational: bool) -> Option<Arc<Span>> {
    let sent = sent(request.headers());
    if is_operational && sent.is_none() { None } else { Span::of_request(sent) }
}

/// Returns the context that the caller sends, if it is one.
fn sent(headers: &HeaderMap) -> Option<TraceContext> {
    let mut all = headers.get_all(TRACEPARENT).iter();
    let (Some(traceparent), None) = (all.next(), all.next()) else {
        return None; // several say nothing
    };
    let states: Result<Vec<&str>, _> =
        headers.get_all(TRACESTATE).iter().map(|state| state.to_str()).collect();
    let state = states.ok().filter(|states| !states.is_empty()).map(|states| states.join(","));
    TraceContext::parse(traceparent.to_str().ok()?, state.as_deref())
}

/// What is said of a request that has got its response.
pub struct RequestEnd<'a> {
    /// The method, one of few words.
    pub method: &'static str,
    /// The route; `none` where no route matched.
    pub route: &'a str,
    /// The path.
    pub path: &'a str,
    /// The id of the request.
    pub request_id: &'a str,
    /// The status of the response; none where the client left before there was one.
    pub status: Option<u16>,
    /// How long it took.
    pub took: Duration,
}

/// A request without a response yet. It is dropped with the request of a client that leaves; then it ends the span, so that what
/// was done for the request belongs to something.
pub struct Unanswered {
    span: Option<Arc<Span>>,
    method: &'static str,
    path: String,
    request_id: String,
    start: Instant,
}

impl Unanswered {
    /// Watches over the span of a request.
    pub fn new(span: Option<Arc<Span>>, method: &'static str, path: &str, request_id: &str) -> Self {
        let is_recorded = span.as_ref().is_some_and(|span| span.is_recorded());
        let own = |text: &str| if is_recorded { text.to_owned() } else { String::new() };
        let start = Instant::now();
        Self { method, path: own(path), request_id: own(request_id), start, span }
    }

    /// There is a response.
    pub fn answered(mut self) {
        self.span = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let Some(span) = self.span.take() else { return };
        let Self { method, path, request_id, start, .. } = &*self;
        let took = start.elapsed();
        end(&span, &RequestEnd { method, route: "none", path, request_id, status: None, took });
    }
}

/// Ends the span of a request.
pub fn end(span: &Span, ended: &RequestEnd<'_>) {
    if !span.is_recorded() {
        return;
    }
    let RequestEnd { method, route, path, request_id, status, took } = *ended;
    let method = if method == "other" { "_OTHER" } else { method };
    let is_routed = route != "none";
    let name = if is_routed { format!("{method} {route}").into() } else { method.to_owned().into() };
    let mut attributes = vec![
        text("http.request.method", method),
        text("url.path", &path[..path.floor_char_boundary(PATH_MAX)]),
        text("tailback.request_id", request_id),
    ];
    attributes.extend(is_routed.then(|| text("http.route", route)));
    attributes.extend(status.map(|status| number("http.response.status_code", status)));
    let wrong = match status {
        Some(status) => (status >= 500).then(|| status.to_string()),
        None => Some("client-left".to_owned()),
    };
    let error = wrong.map(|wrong| {
        attributes.push(text("error.type", wrong));
        "".into()
    });
    span.end(End { name, kind: Kind::Server, took, attributes, error });
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn sent_by(headers: &[(&str, &[u8])]) -> Option<TraceContext> {
        let request =
            headers.iter().fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        sent(request.body(axum::body::Body::empty()).unwrap().headers())
    }

    #[test]
    fn one_traceparent_counts_and_all_of_tracestate() {
        let good = GOOD.as_bytes();
        let sent =
            sent_by(&[("Traceparent", good), ("tracestate", b"a=1"), ("TraceState", b"b=2, c=3")]).unwrap();
        assert_eq!((&*sent.traceparent(), sent.state()), (GOOD, Some("a=1,b=2,c=3")));
        assert_eq!(sent_by(&[("traceparent", good), ("traceparent", good)]), None);
        assert_eq!(sent_by(&[("tracestate", b"a=1")]), None);
        assert_eq!(sent_by(&[("traceparent", b"\xff")]), None);
        let sent = sent_by(&[("traceparent", good), ("tracestate", b"a=\xc3\xa4")]).unwrap();
        assert_eq!(sent.state(), None);
    }
}
