//! A unique index that another program made in MongoDB.

use mongodb::bson::{Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{Client, Collection, IndexModel};

use super::support::*;

/// The jobs, with an index of theirs that has each order of a queue once.
async fn indexed(place: &Place) -> Collection<Document> {
    let client = Client::with_uri_str(&place.url).await.unwrap();
    let jobs = client.default_database().unwrap().collection::<Document>("jobs");
    let of_mail = doc! { "queue": "mail" };
    let options = IndexOptions::builder().unique(true).partial_filter_expression(of_mail).build();
    let index = IndexModel::builder().keys(doc! { "payload.order": 1 }).options(options).build();
    jobs.create_index(index).await.unwrap();
    jobs
}

fn violates(problem: &Value) {
    assert_eq!((&problem["code"], problem.get("job_id")), (&json!("key-conflict"), None), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("payload.order_1"), "{problem}");
}

/// A job with this order, and a field that makes it travel in a transaction.
fn order(n: u64, field: Option<(&str, &str)>) -> Value {
    let mut push = json!({"payload": {"order": n}});
    if let Some((field, value)) = field {
        push[field] = json!(value);
    }
    push
}

/// An operation does what the index allows, skips the other jobs, and names them.
pub async fn an_operation_leaves_what_a_unique_index_refuses(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs = indexed(place).await;
    configure(&server, "mail", json!({"retain_done_ms": 3_600_000})).await;
    // Two that follow each other, and the last one.
    let refused = [70, 71, 150];
    for n in refused {
        server.push("mail", order(n, None)).await;
        let taken = take(&server, "mail").await;
        assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200);
    }
    let letters: Vec<Value> = (1..=150).map(|n| order(n, None)).collect();
    let (status, pushed) = server.post("/v1/queues/letters/jobs/batch", json!({"jobs": letters})).await;
    assert_eq!(status, 200, "{pushed}");
    let left = refused.map(|n| id(&pushed["results"][n as usize - 1]));

    let done = async |body: Value| {
        let (status, begun) = server.post("/v1/operations", body).await;
        assert_eq!(status, 202, "{begun}");
        let path = format!("/v1/operations/{}", id(&begun));
        until("the operation is over", || async { server.get(&path).await.1["finished_at"].is_string() })
            .await;
        let now = server.get(&path).await.1;
        assert_eq!((&now["state"], now.get("error")), (&json!("done"), None), "{now}");
        now
    };
    let figures =
        |now: &Value| [&now["scanned"], &now["affected"], &now["skipped"]].map(|n| n.as_u64().unwrap());
    let names = |now: &Value, index: usize, job: &str| {
        let error = now["errors"][index].as_str().unwrap_or_else(|| panic!("{now}"));
        assert!(error.contains(job) && error.contains("payload.order_1"), "{now}");
    };
    let moved = done(json!({"filter": {"queue": "letters"}, "action": "move", "to": "mail"})).await;
    assert_eq!(figures(&moved), [150, 147, 3], "{moved}");
    assert_eq!(moved["errors"].as_array().unwrap().len(), 3, "{moved}");
    (0..3).for_each(|n| names(&moved, n, &left[n]));
    let letters = server.get("/v1/queues/letters/jobs").await.1;
    assert_eq!(ids(letters["jobs"].as_array().unwrap()), left, "{letters}");
    assert_eq!(jobs.count_documents(doc! { "queue": "mail" }).await.unwrap(), 150);

    // Each copy has the order of its original.
    let replayed = done(json!({"filter": {"queue": "mail"}, "action": "replay"})).await;
    assert_eq!(figures(&replayed), [3, 0, 3], "{replayed}");
    assert_eq!(jobs.count_documents(doc! { "queue": "mail" }).await.unwrap(), 150);
}

/// It refuses the job that violates it, whatever that comes with, and nothing else.
pub async fn a_unique_index_of_another_program_refuses_its_own(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs = indexed(place).await;
    server.push("mail", order(7, None)).await;

    for field in [None, Some("key"), Some("group")] {
        let with = |value| field.map(|field| (field, value));
        let (status, problem) = server.post("/v1/queues/mail/jobs", order(7, with("x"))).await;
        assert_eq!(status, 409, "{problem}");
        violates(&problem);
        // Those that share its command, or its transaction, are stored.
        let n = 10 * (1 + field.map_or(0, str::len) as u64);
        let many =
            [order(n, with("a")), order(7, with("b")), order(n + 1, with("c")), order(n + 2, with("d"))];
        let (status, answer) = server.post("/v1/queues/mail/jobs/batch", json!({"jobs": many})).await;
        assert_eq!(status, 200, "{answer}");
        let results = answer["results"].as_array().unwrap();
        let statuses: Vec<u64> = results.iter().map(|one| one["status"].as_u64().unwrap()).collect();
        assert_eq!(statuses, [201, 409, 201, 201], "{answer}");
        violates(&results[1]["problem"]);
    }
    assert_eq!(jobs.count_documents(doc! { "queue": "mail" }).await.unwrap(), 10);

    // Likewise what is changed.
    let other = server.push("mail", order(8, None)).await;
    let path = format!("/v1/jobs/{other}");
    let (status, problem) = server.send(reqwest::Method::PATCH, &path, Some(order(7, None))).await;
    assert_eq!(status, 409, "{problem}");
    violates(&problem);
    server.push("letters", order(7, None)).await;
    server.push("letters", order(9, None)).await;
    let taken = server.reserve("letters", json!({"count": 2, "lease_ms": 600_000})).await;
    let moves: Vec<Value> = taken
        .iter()
        .map(|job| json!({"id": job["id"], "reservation": job["reservation"], "queue": "mail"}))
        .collect();
    let (_, answer) = server.post("/v1/settle", json!({"move": moves})).await;
    assert_eq!((&answer["move"][0]["status"], &answer["move"][1]["status"]), (&json!(409), &json!(200)));
    violates(&answer["move"][0]["problem"]);
}
