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
    let taken = server.reserve("letters", json!({"count": 2})).await;
    let moves: Vec<Value> = taken
        .iter()
        .map(|job| json!({"id": job["id"], "reservation": job["reservation"], "queue": "mail"}))
        .collect();
    let (_, answer) = server.post("/v1/settle", json!({"move": moves})).await;
    assert_eq!((&answer["move"][0]["status"], &answer["move"][1]["status"]), (&json!(409), &json!(200)));
    violates(&answer["move"][0]["problem"]);
}
