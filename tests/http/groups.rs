//! Groups: one job at a time, in the order of the pushes.

use std::time::Instant;

use super::support::*;

async fn reserved(server: &Server, queue: &str) -> Vec<Value> {
    server.reserve(queue, json!({"count": 9, "lease_ms": 600_000})).await
}

pub async fn a_group_goes_one_by_one(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let job = |n: u32| json!({"payload": n, "group": "customer-7"});
    let (status, first) = server.post("/v1/queues/mail/jobs", job(1)).await;
    assert_eq!((status, &first["state"]), (201, &json!("ready")), "{first}");
    let (status, second) = server.post("/v1/queues/mail/jobs", job(2)).await;
    assert_eq!((status, &second["state"]), (201, &json!("blocked")), "{second}");
    let other = server.push("mail", json!({"payload": 3})).await;
    let taken = reserved(&server, "mail").await;
    assert_eq!(ids(&taken), [id(&first), other]);
    assert_eq!(taken[0]["group"], "customer-7");
    let (_, browsed) = server.get("/v1/queues/mail/jobs?group=customer-7&state=blocked").await;
    assert_eq!(ids(browsed["jobs"].as_array().unwrap()), [id(&second)]);
    let (_, stats) = server.get("/v1/queues/mail/stats").await;
    assert_eq!((&stats["counts"]["blocked"], &stats["counts"]["reserved"]), (&json!(1), &json!(2)));
    // Whoever waits is woken when the next one's turn comes.
    let since = Instant::now();
    let waiter = begin_reserve(&server, "mail");
    until_looked(&server, 10).await;
    assert_eq!(server.settle(&taken[0], "commit", json!({})).await.0, 200);
    assert_eq!(woken(since, waiter).await, [id(&second)]);
}

pub async fn a_failed_job_holds_its_group(place: &Place) {
    let server = Server::start(&place.url).await;
    let batch = json!({"jobs": vec![json!({"payload": 1, "group": "a", "max_attempts": 1}); 3]});
    let (_, pushed) = server.post("/v1/queues/q/jobs/batch", batch).await;
    let pushed = ids(pushed["results"].as_array().unwrap());
    let kill = async || {
        let taken = reserved(&server, "q").await;
        let (status, answer) = server.settle(&taken[0], "rollback", json!({})).await;
        assert_eq!((status, &answer["state"]), (200, &json!("dead")), "{answer}");
        id(&taken[0])
    };
    assert_eq!(kill().await, pushed[0]);
    assert!(reserved(&server, "q").await.is_empty());
    let (_, answer) = server.post("/v1/queues/q/redrive", json!({})).await;
    assert_eq!(answer, json!({"affected": 1}));
    assert_eq!(kill().await, pushed[0]);
    assert_eq!(server.send(reqwest::Method::DELETE, &format!("/v1/jobs/{}", pushed[0]), None).await.0, 200);
    configure(&server, "q", json!({"on_group_dead": "skip"})).await;
    assert_eq!([kill().await, kill().await], pushed[1..]);
}

pub async fn a_move_says_that_the_job_has_to_wait(place: &Place) {
    let server = Server::start(&place.url).await;
    let here = server.push("q", json!({"payload": 1, "group": "a"})).await;
    server.push("r", json!({"payload": 1, "group": "a"})).await;
    let taken = reserved(&server, "q").await;
    let (status, moved) = server.settle(&taken[0], "move", json!({"queue": "r"})).await;
    assert_eq!((status, &moved["state"]), (200, &json!("blocked")), "{moved}");
    assert_eq!(server.settle(&taken[0], "move", json!({"queue": "r"})).await, repeat_of(&(200, moved)));
    assert_eq!(see(&server, &here).await["state"], "blocked");
}

pub async fn what_is_wrong_with_a_group_is_named(place: &Place) {
    let server = Server::start(&place.url).await;
    invalid(&server.post("/v1/queues/q/jobs", json!({"payload": 1, "group": "a b"})).await, "/group");
    let queue = |settings: Value| server.send(reqwest::Method::PUT, "/v1/queues/q", Some(settings));
    invalid(&queue(json!({"on_group_dead": "wait"})).await, "/on_group_dead");
    bad_parameter(&server.get("/v1/queues/q/jobs?group=%20").await, "group");
}
