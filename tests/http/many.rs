//! Settle: many jobs at once.

use super::support::*;

async fn reserved(server: &Server, count: usize, lease_ms: u64) -> Vec<Value> {
    let jobs: Vec<Value> = (0..count).map(|n| json!({ "payload": n })).collect();
    server.post("/v1/queues/mail/jobs/batch", json!({ "jobs": jobs })).await;
    let jobs = server.reserve("mail", json!({"count": count, "lease_ms": lease_ms})).await;
    assert_eq!(jobs.len(), count);
    jobs
}

fn item(job: &Value, mut more: Value) -> Value {
    more["id"] = job["id"].clone();
    more["reservation"] = job["reservation"].clone();
    more
}

pub async fn each_element_of_a_settle_stands_for_itself(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs = reserved(&server, 6, 50_000).await;
    let stranger = json!({"id": "nobody", "reservation": "x"});
    let body = json!({
        "commit": [item(&jobs[0], json!({"result": 1})), stranger, item(&jobs[1], json!({"colour": 1})), 5],
        "rollback": [item(&jobs[2], json!({"delay_ms": -1})), item(&jobs[2], json!({"delay_ms": 0, "error": "e"}))],
        "extend": [item(&jobs[3], json!({"lease_ms": 60_000, "progress": "half"})), item(&jobs[3], json!({"lease_ms": 1}))],
        "move": [item(&jobs[4], json!({"queue": "a b"})), item(&jobs[4], json!({"queue": "next"})),
            {"id": "not an id!", "reservation": "x", "queue": "next"}],
    });
    let (status, answer) = server.post("/v1/settle", body).await;
    assert_eq!(status, 200, "{answer}");
    let statuses = |list: &str| -> Vec<u64> {
        answer[list].as_array().unwrap().iter().map(|one| one["status"].as_u64().unwrap()).collect()
    };
    assert_eq!(statuses("commit"), [200, 409, 422, 422], "{answer}");
    assert_eq!(statuses("rollback"), [422, 200], "{answer}");
    assert_eq!(statuses("extend"), [200, 422], "{answer}");
    assert_eq!(statuses("move"), [422, 200, 409], "{answer}");

    let (commit, rollback, extend) = (&answer["commit"], &answer["rollback"], &answer["extend"]);
    assert_eq!(commit[0], json!({"status": 200, "id": jobs[0]["id"], "state": "done"}));
    let problem = |one: &Value| (one["status"].as_u64().unwrap() as u16, one["problem"].clone());
    lost(&problem(&commit[1]), true);
    assert_eq!(commit[1]["id"], "nobody");
    invalid(&problem(&commit[2]), "/commit/2/colour");
    assert_eq!(commit[2]["id"], jobs[1]["id"]);
    invalid(&problem(&commit[3]), "/commit/3");
    invalid(&problem(&rollback[0]), "/rollback/0/delay_ms");
    assert_eq!((&rollback[1]["state"], &rollback[1]["queue"]), (&json!("ready"), &json!("mail")));
    assert_eq!((&extend[0]["id"], &extend[0]["cancel_requested"]), (&jobs[3]["id"], &json!(false)));
    assert!(extend[0]["reserved_until"].as_str() > jobs[3]["reserved_until"].as_str());
    invalid(&problem(&extend[1]), "/extend/1/lease_ms");
    invalid(&problem(&answer["move"][0]), "/move/0/queue");
    assert_eq!((&answer["move"][1]["id"], &answer["move"][1]["queue"]), (&jobs[4]["id"], &json!("next")));
    lost(&problem(&answer["move"][2]), true);

    assert_eq!(see(&server, &id(&jobs[3])).await["progress"], "half");
    for untouched in [1, 5] {
        let seen = see(&server, &id(&jobs[untouched])).await;
        assert_eq!(seen["reserved_until"], jobs[untouched]["reserved_until"]);
    }
    assert_eq!(take(&server, "next").await["id"], jobs[4]["id"]);
}

pub async fn a_settle_takes_a_thousand_jobs(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs = reserved(&server, 1000, 600_000).await;
    let commit: Vec<Value> = jobs.iter().map(|job| item(job, json!({}))).collect();
    let mut over = json!({"commit": commit, "rollback": [item(&jobs[0], json!({}))]});
    invalid(&server.post("/v1/settle", over.clone()).await, "");
    over["rollback"] = json!([]);
    let (status, answer) = server.post("/v1/settle", over.clone()).await;
    assert_eq!(status, 200);
    let results = answer["commit"].as_array().unwrap();
    assert_eq!(ids(results), ids(&jobs));
    assert!(results.iter().all(|one| one["status"] == 200 && one["state"] == "done"));
    assert_eq!(server.get("/v1/queues/mail/jobs").await.1["jobs"], json!([]));
    // All of it once more, as after a lost answer.
    let (status, again) = server.post("/v1/settle", over).await;
    let repeats: Vec<Value> = results.iter().map(|one| repeat_of(&(200, one.clone())).1).collect();
    assert_eq!((status, &again["commit"]), (200, &json!(repeats)));
}

pub async fn all_lists_of_a_settle_have_a_thousand_jobs_together(place: &Place) {
    const LISTS: [&str; 4] = ["commit", "rollback", "extend", "move"];
    let server = Server::start(&place.url).await;
    let stranger = json!({"id": "nobody", "reservation": "x"});
    let settle = async |sizes: [usize; 4]| {
        let mut body = json!({});
        for (list, size) in LISTS.into_iter().zip(sizes) {
            body[list] = json!(vec![stranger.clone(); size]);
        }
        server.post("/v1/settle", body).await
    };
    for sizes in [[1001, 0, 0, 0], [0, 0, 0, 1001], [5000, 5000, 0, 0], [400, 300, 200, 101]] {
        let answer = settle(sizes).await;
        invalid(&answer, "");
        let detail = answer.1["detail"].as_str().unwrap();
        assert!(detail.contains("must have at most 1000 jobs in all lists together"), "{sizes:?}: {detail}");
    }
    let (status, answer) = settle([400, 300, 200, 100]).await;
    let lengths = LISTS.map(|list| answer[list].as_array().unwrap().len());
    assert_eq!((status, lengths), (200, [400, 300, 200, 100]));
}

pub async fn a_settle_of_nothing_answers_nothing(place: &Place) {
    let server = Server::start(&place.url).await;
    let empty = json!({"commit": [], "rollback": [], "extend": [], "move": []});
    assert_eq!(server.post("/v1/settle", json!({})).await, (200, empty.clone()));
    assert_eq!(server.post("/v1/settle", empty.clone()).await, (200, empty.clone()));
    let reply = raw(&server, "POST", "/v1/settle", &[], "").await;
    assert_eq!(reply.answer(), (200, empty));
    invalid(&server.post("/v1/settle", json!({"cancel": []})).await, "/cancel");
    invalid(&server.post("/v1/settle", json!({"commit": {}})).await, "/commit");
}

pub async fn the_same_job_twice_in_a_settle(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs = reserved(&server, 4, 50_000).await;
    let twice = |n: usize| vec![item(&jobs[n], json!({})), item(&jobs[n], json!({}))];
    let (_, answer) = server
        .post(
            "/v1/settle",
            json!({"commit": twice(0), "extend": twice(1),
                "rollback": [item(&jobs[2], json!({"delay_ms": 0})), item(&jobs[2], json!({"delay_ms": 0}))]}),
        )
        .await;
    for list in ["commit", "extend", "rollback"] {
        assert_eq!(answer[list][0]["status"], 200, "{list}: {answer}");
        assert_eq!(answer[list][1]["status"], 200, "{list}: {answer}");
    }
    assert_eq!(answer["rollback"][0]["run_at"], answer["rollback"][1]["run_at"]);
    for (list, repeats) in [("commit", json!(true)), ("extend", Value::Null), ("rollback", json!(true))] {
        assert_eq!(answer[list][0].get("repeated"), None, "{list}: {answer}");
        assert_eq!(answer[list][1]["repeated"], repeats, "{list}: {answer}");
    }
    let back = take(&server, "mail").await;
    assert_eq!((&back["id"], &back["attempt"]), (&jobs[2]["id"], &json!(2)));
    assert_eq!(back["errors"].as_array().unwrap().len(), 1, "it failed once");

    // However often: extends of one token for the same lease are one change, of which the last progress counts.
    let mut extends = vec![item(&jobs[3], json!({"lease_ms": 60_000})); 990];
    extends.push(item(&jobs[3], json!({"lease_ms": 60_000, "progress": "half"})));
    extends.push(item(&jobs[3], json!({"lease_ms": 600_000})));
    let (_, answer) = server.post("/v1/settle", json!({ "extend": extends })).await;
    let results = answer["extend"].as_array().unwrap();
    assert!(results.len() == 992 && results.iter().all(|one| one["status"] == 200), "{answer}");
    let seen = see(&server, &id(&jobs[3])).await;
    assert_eq!(
        (&seen["progress"], &seen["reserved_until"]),
        (&json!("half"), &results[991]["reserved_until"])
    );

    // Of two calls that contradict each other, one is carried out.
    let body =
        json!({"commit": [item(&jobs[3], json!({}))], "move": [item(&jobs[3], json!({"queue": "next"}))]});
    let (_, answer) = server.post("/v1/settle", body).await;
    let mut statuses = [&answer["commit"][0]["status"], &answer["move"][0]["status"]].map(Value::as_u64);
    statuses.sort();
    assert_eq!(statuses, [Some(200), Some(409)], "{answer}");
}
