//! Pops with an `Idempotency-Key`: they take jobs once.

use super::keyed::{again, count, keyed};
use super::support::*;

pub(super) const POP: &str = "/v1/queues/mail/pop";

pub async fn a_keyed_pop_takes_once(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "kept", json!({"retain_done_ms": 600_000})).await;
    // Nothing was taken: that is not remembered.
    let none = keyed(&server, POP, "k", json!({"count": 2})).await;
    assert_eq!((none.status, &none.json()["jobs"]), (200, &json!([])));
    for queue in ["mail", "kept"] {
        let path = format!("/v1/queues/{queue}/pop");
        for n in 0..3 {
            server.push(queue, json!({"payload": {"n": n, "x": 1.50}, "headers": {"a": "b"}})).await;
        }
        let first = keyed(&server, &path, "k", json!({"count": 2})).await;
        assert_eq!(
            (first.status, first.json()["jobs"].as_array().unwrap().len()),
            (200, 2),
            "{}",
            first.text
        );
        assert_eq!(first.json()["jobs"][0]["payload"], json!({"n": 0, "x": 1.5}));
        again(&server, &path, "k", json!({"count": 2}), &first).await;
        refused(
            &keyed(&server, &path, "k", json!({"count": 1})).await.answer(),
            422,
            "idempotency-key-reused",
        );
        let rest = keyed(&server, &path, "other", json!({"count": 9})).await;
        assert_eq!(rest.json()["jobs"][0]["payload"]["n"], 2);
        again(&server, &path, "k", json!({"count": 2}), &first).await;
        assert_eq!(count(&server, queue).await, if queue == "kept" { 3 } else { 0 });
    }
}

pub async fn a_keyed_pop_of_large_jobs_is_remembered(place: &Place) {
    let server = Server::start(&place.url).await;
    let large = "ä".repeat(400_000);
    for _ in 0..12 {
        server.push("mail", json!({ "payload": large })).await;
    }
    let first = keyed(&server, POP, "k", json!({"count": 12})).await;
    let jobs = first.json()["jobs"].as_array().unwrap().len();
    assert_eq!((first.status, jobs), (200, 12));
    again(&server, POP, "k", json!({"count": 12}), &first).await;
}

pub async fn a_keyed_pop_waits_and_wakes(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let since = std::time::Instant::now();
    let body = json!({"wait_ms": LONG_MS});
    let first = begin(&server, POP, &[("idempotency-key", "k")], body.clone());
    until_looked(&server, 1).await;
    let pushed = server.push("mail", json!({"payload": 1})).await;
    assert_eq!(woken(since, first).await, std::slice::from_ref(&pushed));
    let repeat = keyed(&server, POP, "k", body).await;
    assert_eq!(ids(repeat.json()["jobs"].as_array().unwrap()), [pushed]);
}

/// The server is killed once the job is claimed: the repeat pops it, and does not wait for the end of that lease.
pub async fn a_keyed_pop_of_a_server_that_was_killed_goes_on(place: &Place) {
    let points = tempfile::tempdir().unwrap();
    let environment = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let server = Server::start_with(&place.url, &environment).await;
    server.push("mail", json!({"payload": 1})).await;
    std::fs::write(points.path().join("pop.claimed"), "kill").unwrap();
    let since = std::time::Instant::now();
    let request = server.http.post(format!("{}{POP}", server.base)).header("idempotency-key", "k");
    let lost = request.json(&json!({})).send().await;
    assert!(lost.is_err(), "{lost:?}");
    drop(server);
    let server = Server::start(&place.url).await;
    let mut first = keyed(&server, POP, "k", json!({})).await;
    // Where the store was so slow that the lease has run out, the job comes back first, and this is its second attempt.
    let is_over = since.elapsed() >= std::time::Duration::from_secs(30);
    if is_over && first.json()["jobs"] == json!([]) {
        until("the job is there again", || async {
            server.get("/v1/queues/mail/peek").await.1["jobs"] != json!([])
        })
        .await;
        first = keyed(&server, POP, "k", json!({})).await;
    }
    let attempt = first.json()["jobs"][0]["attempt"].clone();
    assert!(first.status == 200 && (attempt == 1 || (is_over && attempt == 2)), "{}", first.text);
    again(&server, POP, "k", json!({}), &first).await;
}

/// Two calls with one key have claimed as many jobs as they ask for, each, and hang: the third one, which takes those away, takes no more.
pub async fn a_keyed_pop_takes_no_more_than_it_asks_for(place: &Place) {
    let points = tempfile::tempdir().unwrap();
    let environment = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let server = Server::start_with(&place.url, &environment).await;
    let (plan, body, mut hanging) = (points.path().join("pop.claimed"), json!({"count": 2}), Vec::new());
    for _ in 0..2 {
        for n in 0..2 {
            server.push("mail", json!({"payload": n})).await;
        }
        std::fs::write(&plan, "pause").unwrap();
        hanging.push(begin(&server, POP, &[("idempotency-key", "k")], body.clone()));
        until("it has claimed", || async { !plan.exists() }).await;
    }
    let third = keyed(&server, POP, "k", body.clone()).await;
    let taken = third.json()["jobs"].clone();
    assert_eq!((third.status, taken.as_array().unwrap().len()), (200, 2), "{}", third.text);
    std::fs::write(points.path().join("pop.claimed.go"), "").unwrap();
    for call in hanging {
        let (status, answer) = call.await.unwrap();
        assert_eq!((status, &answer["jobs"]), (200, &taken));
    }
    // What the others had claimed comes back.
    until("two are there again", || async {
        server.get("/v1/queues/mail/peek").await.1["jobs"].as_array().unwrap().len() == 2
    })
    .await;
}
