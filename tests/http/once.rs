//! `Idempotency-Key`: a reserve whose answer was lost can be repeated.

use std::time::Instant;

use super::support::*;

const PATH: &str = "/v1/queues/mail/reserve";

async fn keyed(server: &Server, path: &str, key: &str, body: Value) -> (u16, Value) {
    raw(server, "POST", path, &[("idempotency-key", key)], body.to_string()).await.answer()
}

async fn fill(server: &Server, queue: &str, count: usize) -> Vec<String> {
    let jobs: Vec<Value> = (0..count).map(|n| json!({ "payload": n })).collect();
    let (_, answer) = server.post(&format!("/v1/queues/{queue}/jobs/batch"), json!({ "jobs": jobs })).await;
    ids(answer["results"].as_array().unwrap())
}

/// What identifies the deliveries of an answer.
fn deliveries(answer: &Value) -> Vec<(String, Value)> {
    answer["jobs"].as_array().unwrap().iter().map(|job| (id(job), job["reservation"].clone())).collect()
}

pub async fn a_repeat_gets_the_same_jobs(place: &Place) {
    let server = Server::start(&place.url).await;
    let pushed = fill(&server, "mail", 5).await;
    let body = json!({"count": 3, "worker": "w1", "lease_ms": 60_000});
    let (status, first) = keyed(&server, PATH, "k1", body.clone()).await;
    assert_eq!((status, deliveries(&first).len()), (200, 3));
    for _ in 0..2 {
        let (status, again) = keyed(&server, PATH, "k1", body.clone()).await;
        assert_eq!((status, deliveries(&again)), (200, deliveries(&first)));
        assert_eq!(again["jobs"][0]["attempt"], 1);
    }
    // Another key, and no key, are other requests.
    let (_, other) = keyed(&server, PATH, "k2", json!({})).await;
    assert_eq!(deliveries(&other)[0].0, pushed[3]);
    assert_eq!(ids(&server.reserve("mail", json!({})).await), [pushed[4].clone()]);
    assert_eq!(server.settle(&first["jobs"][0], "commit", json!({})).await.0, 200);
}

/// Each queue is claimed from once, so that no failure behind it takes back what was won.
pub async fn a_keyed_reserve_of_so_many_bytes_claims_once(place: &Place) {
    let server = Server::start(&place.url).await;
    fill(&server, "a", 5).await;
    fill(&server, "b", 5).await;
    let body = json!({"queues": ["a", "b"], "count": 10, "max_bytes": 40_000, "lease_ms": 600_000});
    let (status, first) = keyed(&server, "/v1/reserve", "k", body.clone()).await;
    let queues: Vec<&str> =
        first["jobs"].as_array().unwrap().iter().map(|job| job["queue"].as_str().unwrap()).collect();
    assert_eq!((status, queues), (200, vec!["a", "a", "b", "b", "b", "b", "b"]), "{first}");
    let (status, again) = keyed(&server, "/v1/reserve", "k", body).await;
    assert_eq!((status, deliveries(&again)), (200, deliveries(&first)));
}

pub async fn a_repeat_shows_only_what_is_still_held(place: &Place) {
    let server = Server::start(&place.url).await;
    fill(&server, "mail", 4).await;
    let body = json!({"count": 4, "lease_ms": 60_000});
    let (_, first) = keyed(&server, PATH, "k", body.clone()).await;
    let jobs = first["jobs"].as_array().unwrap();
    server.settle(&jobs[0], "commit", json!({})).await;
    server.settle(&jobs[1], "rollback", json!({"delay_ms": 0})).await;
    server.settle(&jobs[2], "move", json!({"queue": "next"})).await;
    // What came back is delivered to somebody else: the repeat must not show that delivery.
    let again = server.reserve("mail", json!({})).await;
    assert_eq!(again[0]["id"], jobs[1]["id"]);
    let (status, repeat) = keyed(&server, PATH, "k", body.clone()).await;
    assert_eq!((status, deliveries(&repeat)), (200, vec![deliveries(&first)[3].clone()]));
    server.settle(&jobs[3], "commit", json!({})).await;
    fill(&server, "mail", 1).await;
    let (status, repeat) = keyed(&server, PATH, "k", body).await;
    assert_eq!((status, &repeat["jobs"]), (200, &json!([])), "a finished request takes no new jobs");
}

pub async fn a_key_belongs_to_its_request(place: &Place) {
    let server = Server::start(&place.url).await;
    fill(&server, "mail", 3).await;
    let other = fill(&server, "other", 1).await;
    for queue in ["mail", "other"] {
        configure(&server, queue, json!({"lease_ms": 600_000})).await;
    }
    let (_, first) = keyed(&server, PATH, "k", json!({"count": 1})).await;
    for body in [
        json!({"count": 2}),
        json!({"count": 1, "lease_ms": 5000}),
        json!({"count": 1, "worker": "w"}),
        json!({"count": 1, "wait_ms": 1}),
    ] {
        refused(&keyed(&server, PATH, "k", body).await, 422, "idempotency-key-reused");
    }
    // The same meaning is the same request, however it is written.
    let (status, again) = keyed(&server, PATH, "k", json!({})).await;
    assert_eq!((status, deliveries(&again)), (200, deliveries(&first)));
    // Another path is another request.
    let (status, elsewhere) = keyed(&server, "/v1/queues/other/reserve", "k", json!({"count": 1})).await;
    assert_eq!((status, deliveries(&elsewhere)[0].0.clone()), (200, other[0].clone()));
    let (status, both) = keyed(&server, "/v1/reserve", "k", json!({"queues": ["other", "mail"]})).await;
    assert_eq!(status, 200);
    assert_ne!(deliveries(&both), deliveries(&first));
    let (_, again) = keyed(&server, "/v1/reserve", "k", json!({"queues": ["other", "mail"]})).await;
    assert_eq!(deliveries(&again), deliveries(&both));
    refused(
        &keyed(&server, "/v1/reserve", "k", json!({"queues": ["other", "mail"], "count": 2})).await,
        422,
        "idempotency-key-reused",
    );
    // The list of queues is a part of what is asked, as is its order.
    for list in [json!(["other"]), json!(["mail", "other"]), json!(["mail"]), json!(["*"])] {
        let body = json!({ "queues": list });
        refused(&keyed(&server, "/v1/reserve", "k", body).await, 422, "idempotency-key-reused");
    }
}

pub async fn an_empty_answer_is_not_remembered(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"lease_ms": 600_000})).await;
    for wait_ms in [0, 50] {
        let body = json!({ "wait_ms": wait_ms });
        let key = format!("k{wait_ms}");
        let (status, first) = keyed(&server, PATH, &key, body.clone()).await;
        assert_eq!((status, &first["jobs"]), (200, &json!([])));
        let pushed = fill(&server, "mail", 1).await;
        let (status, again) = keyed(&server, PATH, &key, body).await;
        assert_eq!((status, deliveries(&again)[0].0.clone()), (200, pushed[0].clone()));
    }
    // Neither is a request that was refused.
    invalid(&keyed(&server, PATH, "bad", json!({"count": 0})).await, "/count");
    let pushed = fill(&server, "mail", 1).await;
    let (_, good) = keyed(&server, PATH, "bad", json!({})).await;
    assert_eq!(deliveries(&good)[0].0, pushed[0]);
}

pub async fn a_repeat_while_the_first_runs_waits_for_it(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let since = Instant::now();
    let body = json!({"wait_ms": LONG_MS, "lease_ms": 600_000});
    let first = begin(&server, PATH, &[("idempotency-key", "k")], body.clone());
    until_looked(&server, 1).await;
    let second = begin(&server, PATH, &[("idempotency-key", "k")], body);
    until("the repeat has asked for the request", || async {
        metric(&server, "tailback_store_call_seconds_count{call=\"open_request\"}").await >= 2.0
    })
    .await;
    let pushed = fill(&server, "mail", 2).await;
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.0, second.0), (200, 200));
    assert_eq!(deliveries(&first.1), deliveries(&second.1));
    assert_eq!(deliveries(&first.1)[0].0, pushed[0]);
    assert!(since.elapsed() < WOKEN);
}

pub async fn a_key_must_be_visible_ascii(place: &Place) {
    let server = Server::start(&place.url).await;
    for key in ["", "a b", &"k".repeat(256)] {
        bad_parameter(&keyed(&server, PATH, key, json!({})).await, "Idempotency-Key");
    }
    let header = reqwest::header::HeaderValue::from_bytes("schlüssel".as_bytes()).unwrap();
    let request = server.http.post(format!("{}{PATH}", server.base)).header("idempotency-key", header);
    let response = request.send().await.unwrap();
    refused(&(response.status().as_u16(), response.json().await.unwrap()), 400, "malformed");
    let (status, _) = keyed(&server, PATH, &"k".repeat(255), json!({})).await;
    assert_eq!(status, 200);
}

/// For MongoDB alone: one SQLite file has one server.
pub async fn a_repeat_at_another_server_gets_the_same_jobs(place: &Place) {
    let (one, two) = (Server::start(&place.url).await, Server::start(&place.url).await);
    fill(&one, "mail", 3).await;
    let body = json!({"count": 2, "lease_ms": 60_000});
    let (_, first) = keyed(&one, PATH, "k", body.clone()).await;
    let (status, again) = keyed(&two, PATH, "k", body.clone()).await;
    assert_eq!((status, deliveries(&again)), (200, deliveries(&first)));
    assert_eq!(two.settle(&again["jobs"][0], "commit", json!({})).await.0, 200);
    let (_, rest) = keyed(&one, PATH, "k", body).await;
    assert_eq!(deliveries(&rest), deliveries(&first)[1..]);
    refused(&keyed(&two, PATH, "k", json!({"count": 1})).await, 422, "idempotency-key-reused");
}

/// For MongoDB alone: one SQLite file has one server.
pub async fn a_repeat_at_another_server_waits_for_the_first(place: &Place) {
    let (one, two) =
        (Server::start_with(&place.url, ONLY_WOKEN).await, Server::start_with(&place.url, ONLY_WOKEN).await);
    let since = Instant::now();
    let body = json!({"wait_ms": LONG_MS, "lease_ms": 600_000});
    let first = begin(&one, PATH, &[("idempotency-key", "k")], body.clone());
    until_looked(&one, 1).await;
    let second = begin(&two, PATH, &[("idempotency-key", "k")], body);
    until("the repeat has asked for the request", || async {
        metric(&two, "tailback_store_call_seconds_count{call=\"open_request\"}").await >= 1.0
    })
    .await;
    fill(&one, "mail", 2).await;
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.0, deliveries(&first.1)), (second.0, deliveries(&second.1)));
    assert_eq!(deliveries(&first.1).len(), 1);
    assert!(since.elapsed() < WOKEN);
}
