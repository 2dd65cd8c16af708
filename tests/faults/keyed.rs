//! Keyed reserves that are taken over by another server while the first one is slow, cut off or frozen: a job has
//! one holder all the same, and no token that is handed out is dead.

use std::time::{Duration, Instant};

use mongodb::bson::{DateTime, Document, doc};
use serde_json::{Value, json};

use crate::common::proxy::Fault;
use crate::common::server::{Place, Server, metric, until};
use crate::common::signal::{self, Signal};
use crate::world::{
    LONG_MS, Pair, WAIT_MS, begin_keyed, begin_until_met, has_looked, is_the_only_holder, push, repeat, take,
};

fn ask() -> Value {
    json!({"lease_ms": LONG_MS})
}

pub async fn a_claim_whose_answer_was_lost_has_one_holder(place: &Place) {
    let Pair { proxy, far, near } = Pair::start(place).await;
    let id = push(&near, json!({"payload": 1})).await;
    let claim = proxy.next("update", "jobs", Fault::HoldAfter);
    let first = begin_until_met(&far, "k", ask(), &claim).await;
    proxy.part();
    assert_eq!(first.await.unwrap().unwrap().0, 503);
    let (held, took) = repeat(&near, "k", ask()).await;
    println!("taken over after {took:?}");
    assert_eq!((held.len(), &held[0]["id"]), (1, &json!(id)));
    claim.release();
    proxy.heal();
    is_the_only_holder(&near, &held[0]).await;
}

pub async fn a_claim_whose_server_stood_still_has_one_holder(place: &Place) {
    let Pair { proxy, far, near } = Pair::patient(place).await;
    push(&near, json!({"payload": 1})).await;
    let claim = proxy.next("update", "jobs", Fault::HoldAfter);
    let first = begin_until_met(&far, "k", ask(), &claim).await;
    signal::send(far.child.id(), Signal::SIGSTOP);
    claim.release();
    let (held, took) = repeat(&near, "k", ask()).await;
    println!("taken over after {took:?}");
    signal::send(far.child.id(), Signal::SIGCONT);
    match first.await.unwrap() {
        Some((200, answer)) if answer["jobs"] != json!([]) => {
            assert_eq!(answer["jobs"][0]["reservation"], held[0]["reservation"], "a dead token");
        }
        Some((200 | 503, _)) => {}
        // It stood still for longer than a repeat waits for the call that took it over.
        Some((409, answer)) if answer["code"] == "request-pending" => {}
        other => panic!("{other:?}"),
    }
    is_the_only_holder(&near, &held[0]).await;
}

/// By then a server has given up forgetting a call without a wait: that counts as running for ten seconds.
const GIVEN_UP: Duration = Duration::from_secs(15);

/// The takeover has looked for what the first server won before that claim arrives.
pub async fn a_claim_that_lands_after_the_takeover_is_given_back(place: &Place) {
    let Pair { proxy, far, near } = Pair::start(place).await;
    let late = push(&near, json!({"payload": 1})).await;
    let claim = proxy.next("update", "jobs", Fault::HoldBefore);
    let since = Instant::now();
    let first = begin_until_met(&far, "k", ask(), &claim).await;
    proxy.part();
    let urgent = push(&near, json!({"payload": 2, "priority": 9})).await;
    let (held, _) = repeat(&near, "k", ask()).await;
    assert_eq!((held.len(), &held[0]["id"]), (1, &json!(urgent)));
    claim.release();
    assert_eq!(first.await.unwrap().unwrap().0, 503);
    let forgets = proxy.every("delete", "requests", Fault::HoldAfter);
    forgets.release(); // they are only counted
    proxy.heal();
    let taken = take(&near).await;
    assert_eq!(taken["id"], json!(late));
    let (again, _) = repeat(&near, "k", ask()).await;
    assert_eq!(again[0]["reservation"], held[0]["reservation"]);
    // It has given the job back; the last that it does is to forget its call.
    until("the first server is done", || async { forgets.times() > 0 || since.elapsed() > GIVEN_UP }).await;
    for job in [&taken, &held[0]] {
        assert_eq!(near.settle(job, "commit", json!({})).await.0, 200);
    }
}

/// The first server learns that it won, and stands still before it can say so in the record.
pub async fn a_server_that_was_taken_over_hands_out_no_dead_token(place: &Place) {
    let Pair { proxy, far, near } = Pair::patient(place).await;
    push(&near, json!({"payload": 1})).await;
    let close = proxy.next("update", "requests", Fault::HoldBefore);
    let first = begin_until_met(&far, "k", ask(), &close).await;
    signal::send(far.child.id(), Signal::SIGSTOP);
    let (held, _) = repeat(&near, "k", ask()).await;
    assert_eq!(held.len(), 1);
    close.release();
    signal::send(far.child.id(), Signal::SIGCONT);
    if let Some((200, answer)) = first.await.unwrap() {
        for job in answer["jobs"].as_array().unwrap() {
            let (status, answer) = near.settle(job, "extend", json!({"lease_ms": LONG_MS})).await;
            assert_eq!(status, 200, "a dead token was handed out: {answer}");
        }
    }
    let (again, _) = repeat(&far, "k", ask()).await;
    assert_eq!(again[0]["reservation"], held[0]["reservation"]);
    is_the_only_holder(&near, &held[0]).await;
}

pub async fn a_record_that_cannot_be_closed_is_closed_in_the_end(place: &Place) {
    let Pair { proxy, far, near } = Pair::patient(place).await;
    push(&near, json!({"payload": 1})).await;
    let close = proxy.every("update", "requests", Fault::CutAfter);
    let first = begin_until_met(&far, "k", ask(), &close).await;
    until("it has tried again", || async { close.times() > 1 }).await;
    drop(close);
    let first = first.await.unwrap();
    let (held, _) = repeat(&near, "k", ask()).await;
    assert_eq!(held.len(), 1);
    if let Some((200, answer)) = first {
        assert_eq!(answer["jobs"][0]["reservation"], held[0]["reservation"]);
    }
    let (again, _) = repeat(&far, "k", ask()).await;
    assert_eq!(again[0]["reservation"], held[0]["reservation"]);
    is_the_only_holder(&near, &held[0]).await;
}

/// A server whose word of being alive is late knows all the same what it runs. Here the word is taken out of the database.
pub async fn a_server_takes_nothing_over_from_itself(place: &Place) {
    let server = Server::start(&place.url).await;
    let ask = json!({"wait_ms": WAIT_MS});
    let first = begin_keyed(&server, "k", ask.clone());
    until("it waits", || async { has_looked(&server).await }).await;
    let client = mongodb::Client::with_uri_str(&place.url).await.unwrap();
    let requests = client.default_database().unwrap().collection::<Document>("requests");
    let run = doc! { "digest": { "$exists": true } };
    let claim = requests.find_one(run.clone()).await.unwrap().unwrap().get_str("claim").unwrap().to_owned();
    let repeat = begin_keyed(&server, "k", ask);
    until("the repeat has asked ten times", || async {
        let silent = doc! { "$set": { "alive_until": DateTime::from_millis(0) } };
        requests.update_one(run.clone(), silent).await.unwrap();
        requests.delete_many(doc! { "digest": { "$exists": false } }).await.unwrap();
        metric(&server, "tailback_store_call_seconds_count{call=\"open_request\"}").await >= 11.0
    })
    .await;
    assert_eq!(requests.find_one(run).await.unwrap().unwrap().get_str("claim").unwrap(), claim);
    let id = server.push("work", json!({"payload": 1})).await;
    for call in [first, repeat] {
        let (status, answer) = call.await.unwrap().unwrap();
        assert_eq!((status, &answer["jobs"][0]["id"]), (200, &json!(id)), "{answer}");
    }
}
