//! Commits beside which the next jobs are claimed: the claim proves nothing of a commit that never reached MongoDB.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mongodb::bson::{Document, doc};
use reqwest::Method;
use serde_json::{Value, json};

use crate::common::proxy::Fault;
use crate::common::server::{Place, until};
use crate::world::{LONG_MS, Pair, push, take};

/// The deletion is held back while the claim is carried out, and the job is cancelled meanwhile. The repeat at the other server finds
/// what was claimed, and no job: it is refused all the same, and what was claimed goes to others.
pub async fn a_claim_beside_a_commit_that_never_arrived_proves_nothing(place: &Place) {
    let Pair { proxy, far, near } = Pair::patient(place).await;
    push(&near, json!({"payload": 1})).await;
    let held = far.reserve("work", json!({"lease_ms": LONG_MS})).await.remove(0);
    let other = push(&near, json!({"payload": 2})).await;
    let deletion = proxy.next("delete", "jobs", Fault::HoldThenCut);
    let body = json!({"reservation": held["reservation"], "next": {"lease_ms": LONG_MS}});
    let url = format!("{}/v1/jobs/{}/commit", far.base, held["id"].as_str().unwrap());
    let call = far.http.post(url).json(&body).send();
    let commit = tokio::spawn(async move { call.await.unwrap().status().as_u16() });
    deletion.met().await;
    until("the next job is claimed", || async {
        near.get(&format!("/v1/jobs/{other}")).await.1["state"] == "reserved"
    })
    .await;
    let path = format!("/v1/jobs/{}?force=true", held["id"].as_str().unwrap());
    assert_eq!(near.send(Method::DELETE, &path, None).await.0, 200);
    let (status, answer) = near.settle(&held, "commit", ask()).await;
    assert_eq!((status, &answer["gone"]), (409, &json!(true)), "{answer}");
    proxy.part();
    deletion.release();
    proxy.heal();
    assert!([409, 503].contains(&commit.await.unwrap()), "a commit that never happened is acknowledged");
    assert_eq!(take(&near).await["id"], json!(other), "it is given back, since nobody was told of it");
}

fn ask() -> Value {
    json!({"next": {"lease_ms": LONG_MS}})
}

/// Commits a job at the far server, which claims the next one beside it. Returns both as they were delivered.
async fn commit_and_take(Pair { far, near, .. }: &Pair) -> (Value, Value) {
    push(near, json!({"payload": 1})).await;
    let held = far.reserve("work", json!({"lease_ms": LONG_MS})).await.remove(0);
    let other = push(near, json!({"payload": 2})).await;
    let (status, mut answer) = far.settle(&held, "commit", ask()).await;
    assert_eq!((status, &answer["next"]["jobs"][0]["id"]), (200, &json!(other)), "{answer}");
    (held, answer["next"]["jobs"][0].take())
}

/// The claim of a job says until when the commit beside it is proven, in seconds: makes that so much earlier.
async fn age_claim(place: &Place, next: &Value, by: u32) {
    let jobs = mongodb::Client::with_uri_str(&place.url).await.unwrap();
    let jobs = jobs.default_database().unwrap().collection::<Document>("jobs");
    let by_id = doc! { "_id": next["id"].as_str().unwrap() };
    let claim = jobs.find_one(by_id.clone()).await.unwrap().unwrap().get_str("claim").unwrap().to_owned();
    let mut seconds = URL_SAFE_NO_PAD.decode(&claim[12..16]).unwrap();
    let earlier = (u32::from_be_bytes([0, seconds[0], seconds[1], seconds[2]]) + (1 << 24) - by) % (1 << 24);
    seconds.copy_from_slice(&earlier.to_be_bytes()[1..]);
    let claim = format!("{}{}{}", &claim[..12], URL_SAFE_NO_PAD.encode(&seconds), &claim[16..]);
    let changed = jobs.update_one(by_id, doc! { "$set": { "claim": claim, "rev": 7_i64 } }).await.unwrap();
    assert_eq!(changed.modified_count, 1);
}

/// A repeat that comes too late for the proof is refused. The first call may have told its client of the next job, which goes to nobody else.
pub async fn a_repeat_that_proves_nothing_leaves_the_next_job_alone(place: &Place) {
    let pair = Pair::patient(place).await;
    let (held, next) = commit_and_take(&pair).await;
    age_claim(place, &next, 600).await;
    let (status, answer) = pair.near.settle(&held, "commit", ask()).await;
    assert_eq!((status, &answer["code"]), (409, &json!("reservation-lost")), "{answer}");
    assert!(pair.near.reserve("work", json!({"wait_ms": 1000})).await.is_empty());
    let path = format!("/v1/jobs/{}", next["id"].as_str().unwrap());
    assert_eq!(pair.near.get(&path).await.1["state"], "reserved");
}

/// Another repeat came in time, and its client works on the next job: one that comes too late does not take that away.
pub async fn what_a_repeat_in_time_has_handed_out_stays_with_its_client(place: &Place) {
    let pair = Pair::patient(place).await;
    let (held, next) = commit_and_take(&pair).await;
    assert_eq!(pair.near.settle(&held, "commit", ask()).await.0, 200);
    age_claim(place, &next, 600).await;
    let (status, answer) = pair.near.settle(&held, "commit", ask()).await;
    assert_eq!((status, &answer["code"]), (409, &json!("reservation-lost")), "{answer}");
    assert!(pair.near.reserve("work", json!({"wait_ms": 1000})).await.is_empty());
}

/// Both were carried out, and the response was lost: the repeat at the other server finds the job gone while its reservation lasts.
pub async fn a_commit_and_the_claim_beside_it_are_found_by_a_repeat(place: &Place) {
    let pair = Pair::patient(place).await;
    let (held, next) = commit_and_take(&pair).await;
    age_claim(place, &next, 480).await; // as if eight minutes had passed
    let again = pair.near.settle(&held, "commit", ask()).await;
    assert_eq!((again.0, &again.1["state"]), (200, &json!("done")), "{}", again.1);
    assert_eq!(again.1["next"]["jobs"][0]["id"], next["id"]);
}
