//! Push: many jobs at once.

use super::support::*;

const PATH: &str = "/v1/queues/mail/jobs/batch";

pub async fn a_batch_answers_each_job_at_its_place(place: &Place) {
    let server = Server::start(&place.url).await;
    let first = server.push("mail", json!({"payload": "old", "key": "taken"})).await;
    let jobs = json!([
        {"payload": 0},
        {"payload": 1, "delay_ms": -1},
        {"payload": "old", "key": "taken"},
        {"payload": "new", "key": "taken"},
        {"payload": 4, "key": "within"},
        {"payload": 4, "key": "within"},
        {"payload": 6, "delay_ms": 1, "run_at": "2030-01-01T00:00:00Z"},
        "job",
        {"payload": 8, "delay_ms": 3_600_000},
    ]);
    let (status, answer) = server.post(PATH, json!({"jobs": jobs})).await;
    assert_eq!(status, 200, "{answer}");
    let results = answer["results"].as_array().unwrap();
    let statuses: Vec<u64> = results.iter().map(|result| result["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 422, 200, 409, 201, 200, 422, 422, 201]);
    let problem = |n: usize| (statuses[n] as u16, results[n]["problem"].clone());
    invalid(&problem(1), "/jobs/1/delay_ms");
    let detail = problem(1).1["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("/jobs/1/delay_ms "), "{detail}");
    assert_eq!((&results[2]["id"], &results[2]["deduplicated"]), (&json!(first), &json!(true)));
    refused(&problem(3), 409, "key-conflict");
    assert_eq!(problem(3).1["job_id"], first);
    assert_eq!((&results[5]["id"], &results[5]["deduplicated"]), (&results[4]["id"], &json!(true)));
    invalid(&problem(6), "/jobs/6/run_at");
    invalid(&problem(7), "/jobs/7");
    assert_eq!((&results[8]["state"], &results[8]["queue"]), (&json!("scheduled"), &json!("mail")));
    for n in [0, 2, 4, 5, 8] {
        assert!(results[n].get("problem").is_none(), "{}", results[n]);
    }
    // Ids sort in the order of the batch, and so does the delivery.
    assert!(results[0]["id"].as_str() < results[4]["id"].as_str());
    assert!(results[4]["id"].as_str() < results[8]["id"].as_str());
    let reserved = server.reserve("mail", json!({"count": 10})).await;
    assert_eq!(ids(&reserved), [first, id(&results[0]), id(&results[4])]);
}

pub async fn a_batch_takes_a_thousand_jobs(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs = |count: usize| json!({"jobs": (0..count).map(|n| json!({"payload": n})).collect::<Vec<_>>()});
    for count in [0, 1001] {
        invalid(&server.post(PATH, jobs(count)).await, "/jobs");
    }
    invalid(&server.post(PATH, json!({})).await, "/jobs");
    invalid(&server.post(PATH, json!({"jobs": {}})).await, "/jobs");
    invalid(&server.post(PATH, json!({"jobs": [], "job": 1})).await, "/job");
    let (status, answer) = server.post(PATH, jobs(1000)).await;
    assert_eq!(status, 200);
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 1000);
    assert!(results.iter().all(|result| result["status"] == 201));
    let reserved = server.reserve("mail", json!({"count": 1000})).await;
    assert_eq!(ids(&reserved), ids(results));
    let payloads = reserved.iter().map(|job| job["payload"].as_u64().unwrap());
    assert!(payloads.eq(0..1000), "the order of the batch is the order of delivery");
}

pub async fn a_full_queue_takes_a_part_of_a_batch(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_jobs": 2})).await;
    let jobs = json!([{"payload": 1}, {"payload": 2}, {"payload": 3}]);
    let (status, answer) = server.post(PATH, json!({"jobs": jobs})).await;
    assert_eq!(status, 200);
    let statuses: Vec<_> = (0..3).map(|n| answer["results"][n]["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 201, 429], "{answer}");
    refused(&(429, answer["results"][2]["problem"].clone()), 429, "queue-full");
}
