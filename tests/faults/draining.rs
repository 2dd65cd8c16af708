//! Keyed reserves at a server that is asked to stop.

use std::time::Instant;

use mongodb::bson::{Document, doc};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::common::fleet::push_many;
use crate::common::server::{Place, Server, metric, until};
use crate::common::signal::{self, Signal};
use crate::world::{Pair, SOON, WAIT_MS, begin_keyed, has_looked, push};

/// Waits until the server has asked for the record of a request this often: those that wait ask again and again.
async fn until_polled(server: &Server, times: usize) {
    until("the repeats have asked several times", || async {
        metric(server, "tailback_store_call_seconds_count{call=\"open_request\"}").await >= times as f64
    })
    .await;
}

pub async fn waiting_repeats_end_when_the_server_drains(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let ask = json!({"wait_ms": WAIT_MS});
    let first = begin_keyed(&server, "k", ask.clone());
    until("it waits", || async { has_looked(&server).await }).await;
    let repeats: Vec<_> = (0..5).map(|_| begin_keyed(&server, "k", ask.clone())).collect();
    until_polled(&server, 1 + 4 * 5).await;
    let since = Instant::now();
    assert_eq!(server.terminate().await.code(), Some(0));
    assert!(since.elapsed() < SOON, "it took {:?}", since.elapsed());
    let nothing = json!([]);
    let first = first.await.unwrap().expect("cut off");
    assert_eq!((first.0, &first.1["jobs"]), (200, &nothing));
    for repeat in repeats {
        let (status, answer) = repeat.await.unwrap().expect("a repeat was cut off");
        let is_empty = status == 200 && answer["jobs"] == nothing;
        assert!(is_empty || (status == 503 && answer["code"] == "draining"), "{status} {answer}");
    }
}

/// The first one runs elsewhere, and ends while this server drains: its waiting repeat must not begin anew here.
pub async fn a_server_that_drains_claims_nothing_for_a_repeat(place: &Place) {
    let Pair { proxy: _proxy, mut far, near } = Pair::patient(place).await;
    let ask = json!({"wait_ms": WAIT_MS});
    let first = begin_keyed(&far, "k", ask.clone());
    until("it waits", || async { has_looked(&far).await }).await;
    let repeats: Vec<_> = (0..20).map(|_| begin_keyed(&far, "k", ask.clone())).collect();
    until_polled(&far, 1 + 4 * 20).await;
    signal::send(far.child.id(), Signal::SIGTERM);
    let address = far.base.trim_start_matches("http://").to_owned();
    until("nobody new gets in", || async { TcpStream::connect(&address).await.is_err() }).await;
    push_many(&near, "work", 30, json!({})).await;
    let mut handed_out: Vec<Value> = Vec::new();
    for call in repeats.into_iter().chain([first]) {
        if let Some((200, answer)) = call.await.unwrap() {
            handed_out.extend(answer["jobs"].as_array().unwrap().iter().cloned());
        }
    }
    assert_eq!(far.terminate().await.code(), Some(0));
    assert!(handed_out.is_empty(), "{} jobs were handed out", handed_out.len());
}

/// Who runs the only request, as its record says.
async fn run_by(place: &Place) -> Option<String> {
    let client = mongodb::Client::with_uri_str(&place.url).await.unwrap();
    let requests = client.default_database().unwrap().collection::<Document>("requests");
    let record = requests.find_one(doc! { "digest": { "$exists": true } }).await.unwrap()?;
    Some(record.get_str("claim").unwrap().to_owned())
}

/// The first one runs at another server, and goes on.
pub async fn a_repeat_that_waits_for_another_server_ends_with_its_own(place: &Place) {
    let Pair { proxy: _proxy, mut far, near } = Pair::patient(place).await;
    let ask = json!({"wait_ms": WAIT_MS});
    let first = begin_keyed(&near, "k", ask.clone());
    until("it waits", || async { has_looked(&near).await }).await;
    let runs = run_by(place).await;
    assert!(runs.is_some(), "the first one is over");
    let repeat = begin_keyed(&far, "k", ask);
    until_polled(&far, 1).await;
    let since = Instant::now();
    assert_eq!(far.terminate().await.code(), Some(0));
    assert!(since.elapsed() < SOON, "it took {:?}", since.elapsed());
    let (status, answer) = repeat.await.unwrap().expect("the repeat was cut off");
    // A server on a busy machine may say too late that it is alive: then the other one has taken its request over, and waited for a job.
    let is_over = run_by(place).await != runs && status == 200 && answer["jobs"] == json!([]);
    assert!(is_over || (status == 503 && answer["code"] == "draining"), "{status} {answer}");
    let id = push(&near, json!({"payload": 1})).await;
    let (_, answer) = first.await.unwrap().unwrap();
    assert_eq!(answer["jobs"][0]["id"], json!(id));
}
