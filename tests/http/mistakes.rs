//! What a person gets wrong at first: each is refused with the field, and with what would be right; nothing is done.

use reqwest::Method;

use super::support::*;
use crate::common::server::client_with;

/// Sends this, and returns the pointer or the parameter of the refusal with what it says.
async fn refusal(server: &Server, path: &str, body: Value) -> (u64, String, String) {
    let (status, problem) = server.post(path, body).await;
    let at = problem["pointer"].as_str().or(problem["parameter"].as_str()).unwrap_or("none");
    (status.into(), at.to_owned(), problem["detail"].as_str().unwrap_or_default().to_owned())
}

/// Asserts that a call is 422 at this field, and says this.
async fn refused(server: &Server, path: &str, body: Value, at: &str, says: &str) {
    let (status, field, detail) = refusal(server, path, body.clone()).await;
    assert_eq!((status, field.as_str()), (422, at), "{path} {body}: {detail}");
    assert!(detail.contains(says), "{path} {body}: {detail}");
}

pub async fn what_is_no_word_names_the_words(place: &Place) {
    let server = Server::start(&place.url).await;
    let states = "must be one of: ready, scheduled, blocked, done, dead";
    for (path, body, at, says) in [
        (
            "/v1/queues/q/jobs",
            json!({"payload": 1, "key": "k", "key_until": 0}),
            "/key_until",
            "must be one of: ",
        ),
        ("/v1/queues/q/jobs", json!({"payload": 1, "backoff": {"kind": 1}}), "/backoff/kind", "fixed"),
        ("/v1/queues/q/purge", json!({"state": ["ready", "dead"]}), "/state", states),
        ("/v1/queues/q/purge", json!({"state": "reserved"}), "/state", states),
        ("/v1/queues/q/redrive", json!({"state": "ready"}), "/state", "must be one of: dead"),
        (
            "/v1/operations",
            json!({"filter": {"queue": "q", "state": ["dead"]}, "action": "delete"}),
            "/filter/state",
            "must be one of: ",
        ),
        (
            "/v1/operations",
            json!({"filter": {"queue": "q", "state": "reserved"}, "action": "delete"}),
            "/filter/state",
            "must be one of: scheduled, ready, blocked, done, dead, for the action delete",
        ),
        (
            "/v1/jobs",
            json!({"jobs": [{"queue": "q", "payload": 1, "key_until": 0}]}),
            "/jobs/0/key_until",
            "must be one",
        ),
        ("/v1/queues/q/reserve", json!({"count": "5"}), "/count", "without quotes"),
    ] {
        refused(&server, path, body, at, says).await;
    }
    let attention = server.get("/v1/queues?attention=foo").await.1["detail"].as_str().unwrap().to_owned();
    assert_eq!(attention.matches("with commas").count(), 1, "{attention}");
    let (status, problem) = server.get("/v1/audit?what=queue.pausee").await;
    assert_eq!((status, &problem["parameter"]), (422, &json!("what")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("queue.pause, "), "{problem}");
}

pub async fn an_operation_is_not_begun_by_mistake(place: &Place) {
    let server = Server::start(&place.url).await;
    let job = server.push("arr", json!({"payload": 1})).await;
    let one = json!({"queue": "arr"});
    for (body, at, says) in [
        (json!({"filter": ["arr"], "action": "delete"}), "/filter", "must be an object"),
        (json!({"filter": one, "action": "delete", "dry_run": null}), "/dry_run", "must be true or false"),
        (json!({"filter": one, "action": "delete", "confirm": "another"}), "/confirm", "must be \"arr\""),
    ] {
        refused(&server, "/v1/operations", body, at, says).await;
    }
    assert_eq!(server.get("/v1/operations").await.1["operations"], json!([]));
    assert_eq!(server.get(&format!("/v1/jobs/{job}")).await.1["state"], "ready");
    let confirmed = json!({"filter": one, "action": "delete", "confirm": "arr"});
    assert_eq!(server.post("/v1/operations", confirmed).await.0, 202);
}

pub async fn a_call_without_parameters_refuses_them(place: &Place) {
    let server = Server::start(&place.url).await;
    let id = server.push("q", json!({"payload": 1})).await;
    for path in [
        "/v1/queues/q/jobs?delay_ms=60000".to_owned(),
        "/v1/queues/q/pop?count=5".to_owned(),
        "/v1/queues/q/reserve?wait_ms=1".to_owned(),
        format!("/v1/jobs/{id}/run?nonsense=1"),
    ] {
        refused(&server, &path, json!({"payload": 1}), "query", "must be empty").await;
    }
    let (status, problem) = server.get("/v1/queues/q?figures=true").await;
    assert_eq!((status, &problem["parameter"]), (422, &json!("query")), "{problem}");
    let stats = server.get("/v1/queues/q/stats?exact=true").await.1;
    assert_eq!(stats["counts"]["ready"], 1, "nothing was pushed or taken: {stats}");
    let (status, problem) = server.get("/stats?queue=q").await;
    assert_eq!((status, &problem["parameter"]), (422, &json!("query")), "{problem}");
    for probe in ["/healthz?from=monitor", "/readyz?from=monitor"] {
        // While the store is slow the server may not be ready for a moment.
        until(probe, || async { server.get(probe).await.0 == 200 }).await;
    }
    assert_eq!(server.get("/v1/queues/q?").await.0, 200, "an empty query is none");
}

pub async fn a_first_key_does_not_lock_its_maker_out(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let mailer = json!({"name": "mailer", "scopes": ["push"]});
    refused(&server, "/v1/keys", mailer.clone(), "/scopes", "must have admin").await;
    assert_eq!(server.get("/v1/keys").await, (200, json!({"keys": []})));
    let (status, admin) = server.post("/v1/keys", json!({"name": "me", "scopes": ["admin"]})).await;
    assert_eq!(status, 201, "{admin}");
    assert_eq!(server.post("/v1/keys", mailer.clone()).await.0, 401);
    let mut headers = reqwest::header::HeaderMap::new();
    headers.insert("authorization", format!("Bearer {}", admin["key"].as_str().unwrap()).parse().unwrap());
    server.http = client_with(headers);
    assert_eq!(server.post("/v1/keys", mailer).await.0, 201);
}

pub async fn a_wrong_state_says_what_is_needed(place: &Place) {
    let server = Server::start(&place.url).await;
    let id = server.push("q", json!({"payload": 1})).await;
    for (call, body, needs) in [
        ("release", json!({}), "needs a job that is reserved"),
        ("replay", json!({}), "needs a job that is done or dead"),
        ("redrive", json!({}), "dead or dead-lettered"),
    ] {
        let (status, _, detail) = refusal(&server, &format!("/v1/jobs/{id}/{call}"), body).await;
        assert!(status == 409 && detail.contains(needs), "{call}: {status} {detail}");
    }
    take(&server, "q").await;
    for (call, body, needs) in [
        ("retry", json!({}), "dead, scheduled or ready"),
        ("run", json!({}), "scheduled, ready or blocked"),
        ("move", json!({"queue": "other"}), "release it first"),
    ] {
        let (status, _, detail) = refusal(&server, &format!("/v1/jobs/{id}/{call}"), body).await;
        assert!(status == 409 && detail.contains(needs), "{call}: {status} {detail}");
    }
    let (status, problem) = server.send(Method::PUT, &format!("/v1/jobs/{id}"), Some(json!({}))).await;
    assert_eq!(status, 405);
    assert!(problem["detail"].as_str().unwrap().contains("it supports GET, "), "{problem}");
}

pub async fn times_may_have_an_offset(place: &Place) {
    let server = Server::start(&place.url).await;
    let id = server.push("q", json!({"payload": 1})).await;
    // As Python's `isoformat` writes them, into a URL that is not encoded: the `+` is read as a space.
    for time in ["2020-01-01T00:00:00+00:00", "2020-01-01T00:00:00%2B00:00", "2020-01-01T00:00:00.5-03:00"] {
        let (status, page) = server.get(&format!("/v1/jobs?created_from={time}")).await;
        assert_eq!((status, &page["jobs"][0]["id"]), (200, &json!(id)), "{time}: {page}");
        assert_eq!(server.get(&format!("/v1/series?metric=pushed&from={time}")).await.0, 200, "{time}");
    }
}

/// Readers would disagree about which of the two is meant.
pub async fn a_key_that_is_there_twice_is_refused(place: &Place) {
    let server = Server::start(&place.url).await;
    server.push("q", json!({"payload": {"tenant": "b"}})).await;
    configure(&server, "q", json!({})).await;
    for (method, path, body) in [
        ("PATCH", "/v1/queues/q", r#"{"paused":true,"paused":false}"#),
        ("PATCH", "/v1/queues/q", r#"{"rate":{"limit":1,"limit":2,"per_ms":1000}}"#),
        (
            "POST",
            "/v1/operations",
            r#"{"filter":{"queue":"q","payload":{"tenant":"a","tenant":"b"}},"action":"delete"}"#,
        ),
        (
            "POST",
            "/v1/operations",
            r#"{"filter":{"queue":"q","headers":{"tenant":"a","tenant":"b"}},"action":"delete"}"#,
        ),
    ] {
        let reply = raw(&server, method, path, &[], body).await;
        assert_eq!(reply.status, 422, "{path} {body}: {}", reply.text);
    }
    assert_eq!(server.get("/v1/operations").await.1["operations"], json!([]));
    for body in ["[]", "1", "\"x\""] {
        assert_eq!(raw(&server, "PATCH", "/v1/queues/q", &[], body).await.status, 422, "{body}");
    }
}

/// Of what a request says, the beginning is quoted.
pub async fn a_refusal_does_not_grow_with_what_it_quotes(place: &Place) {
    let server = Server::start(&place.url).await;
    for name in ["~".repeat(100_000), "ü".repeat(100_000)] {
        let beginning: String = name.chars().take(64).collect();
        let shown = format!("{}…", beginning.replace('~', "~0"));
        let push = "/v1/queues/q/jobs";
        for (path, body, at) in [
            (push, format!("{{\"payload\":1,\"{name}\":1}}"), format!("/{shown}")),
            (
                "/v1/jobs",
                format!("{{\"jobs\":[{{\"queue\":\"q\",\"{name}\":1}}]}}"),
                format!("/jobs/0/{shown}"),
            ),
            (push, format!("{{\"headers\":{{\"{name}\":1,\"{name}\":2}}}}"), format!("/headers/{shown}")),
            (push, format!("{{\"payload\":{{\"{name}\":1,\"{name}\":2}}}}"), "/payload".to_owned()),
        ] {
            let reply = post_text(&server, path, &body).await;
            assert!(reply.text.len() < 4096, "{path} {at}: {} bytes", reply.text.len());
            invalid(&reply.answer(), &at);
        }
    }
}
