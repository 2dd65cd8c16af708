//! Pushes to several queues at once.

use super::support::*;

async fn count(server: &Server, queue: &str) -> usize {
    let (status, page) = server.get(&format!("/v1/queues/{queue}/jobs?limit=1000")).await;
    assert_eq!(status, 200, "{page}");
    page["jobs"].as_array().unwrap().len()
}

fn statuses(answer: &Value) -> Vec<u64> {
    answer["results"].as_array().unwrap().iter().map(|result| result["status"].as_u64().unwrap()).collect()
}

pub async fn jobs_of_several_queues_are_pushed_together(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs = json!({"jobs": [
        {"queue": "mail", "payload": 1, "priority": 3},
        {"queue": "sms", "payload": 2, "delay_ms": 3_600_000},
        {"queue": "mail", "payload": 3, "group": "g"},
        {"queue": "mail", "payload": 4, "group": "g"},
        {"queue": "sms", "payload": 5, "key": "k"},
        {"queue": "sms", "payload": 5, "key": "k"},
    ]});
    let (status, answer) = server.post("/v1/jobs", jobs).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(statuses(&answer), [201, 201, 201, 201, 201, 200]);
    let results = answer["results"].as_array().unwrap();
    let words = |field: &str| results.iter().map(|result| result[field].clone()).collect::<Vec<_>>();
    assert_eq!(words("queue"), ["mail", "sms", "mail", "mail", "sms", "sms"]);
    assert_eq!(words("state"), ["ready", "scheduled", "ready", "blocked", "ready", "ready"]);
    assert_eq!(results[5]["id"], results[4]["id"]);
    let ids = ids(&results[..5]);
    assert!(ids.is_sorted(), "{ids:?}");
    assert_eq!((count(&server, "mail").await, count(&server, "sms").await), (3, 2));
    // A duplicate does not refuse the others.
    let jobs = json!({"jobs": [{"queue": "sms", "payload": 5, "key": "k"}, {"queue": "mail", "payload": 6}]});
    let (status, answer) = server.post("/v1/jobs", jobs).await;
    assert_eq!((status, statuses(&answer)), (200, vec![200, 201]));
}

pub async fn one_job_refuses_all_that_are_pushed_together(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "small", json!({"max_jobs": 1})).await;
    server.push("mail", json!({"payload": 1, "key": "k"})).await;
    let with = |job: Value| json!({"jobs": [{"queue": "mail", "payload": 2}, {"queue": "small", "payload": 3}, job]});
    for (job, status, code, pointer) in [
        (json!({"queue": "small", "payload": 4}), 429, "queue-full", "/jobs/2"),
        (json!({"queue": "mail", "payload": 4, "key": "k"}), 409, "key-conflict", "/jobs/2"),
        (json!({"queue": "mail", "payload": 4, "priority": "x"}), 422, "invalid-field", "/jobs/2/priority"),
        (
            json!({"queue": "mail", "payload": 4, "delay_ms": 1, "run_at": "2030-01-01T00:00:00Z"}),
            422,
            "invalid-field",
            "/jobs/2/run_at",
        ),
        (
            json!({"queue": "mail", "payload": 4, "max_attempts": -1}),
            422,
            "invalid-field",
            "/jobs/2/max_attempts",
        ),
        (
            json!({"queue": "mail", "payload": 4, "semaphores": ["none"]}),
            422,
            "invalid-field",
            "/jobs/2/semaphores/0",
        ),
        (json!({"payload": 4}), 422, "invalid-field", "/jobs/2/queue"),
    ] {
        let answer = server.post("/v1/jobs", with(job.clone())).await;
        refused(&answer, status, code);
        assert_eq!(answer.1["pointer"], pointer, "{}", answer.1);
        assert_eq!((count(&server, "mail").await, count(&server, "small").await), (1, 0), "{job}");
    }
    for jobs in [json!([]), json!(vec![json!({"queue": "mail", "payload": 1}); 1001])] {
        invalid(&server.post("/v1/jobs", json!({ "jobs": jobs })).await, "/jobs");
    }
}

pub async fn jobs_that_are_pushed_beside_each_other_stand_for_themselves(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "small", json!({"max_jobs": 1})).await;
    let jobs = json!({"atomic": false, "jobs": [
        {"queue": "small", "payload": 1}, {"queue": "small", "payload": 2}, {"queue": "mail", "payload": 3, "key": "k"},
        {"queue": "mail", "payload": 4, "key": "k"}, {"queue": "mail", "payload": 3, "key": "k"},
        {"queue": "mail", "payload": 5, "priority": "x"}, {"queue": "-", "payload": 5},
    ]});
    let (status, answer) = server.post("/v1/jobs", jobs).await;
    assert_eq!((status, statuses(&answer)), (200, vec![201, 429, 201, 409, 200, 422, 422]));
    assert_eq!(answer["results"][5]["problem"]["pointer"], "/jobs/5/priority");
    assert_eq!((count(&server, "mail").await, count(&server, "small").await), (1, 1));
}

pub async fn a_keyed_push_to_several_queues_is_done_once(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "small", json!({"max_jobs": 1})).await;
    let keyed = async |key: &str, body: &Value| {
        raw(&server, "POST", "/v1/jobs", &[("idempotency-key", key)], body.to_string()).await
    };
    let some = json!({"jobs": [{"queue": "small", "payload": 1}, {"queue": "mail", "payload": 2}]});
    let each =
        json!({"atomic": false, "jobs": [{"queue": "small", "payload": 1}, {"queue": "mail", "payload": 2}]});
    let first = keyed("a", &some).await;
    assert_eq!(first.status, 200, "{}", first.text);
    // What was refused is not remembered.
    refused(&keyed("b", &some).await.answer(), 429, "queue-full");
    let taken = take(&server, "small").await;
    assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200);
    let (second, third) = (keyed("b", &some).await, keyed("c", &each).await);
    assert_eq!((statuses(&second.json()), statuses(&third.json())), (vec![201, 201], vec![429, 201]));
    for (key, body, reply) in [("a", &some, &first), ("b", &some, &second), ("c", &each, &third)] {
        let repeat = keyed(key, body).await;
        assert_eq!((repeat.status, &repeat.text), (reply.status, &reply.text));
    }
    refused(&keyed("a", &each).await.answer(), 422, "idempotency-key-reused");
    assert_eq!((count(&server, "mail").await, count(&server, "small").await), (3, 1));
}
