//! What belongs to one client: the key of a request, and the tokens of its jobs.

use super::support::*;

pub async fn an_idempotency_key_is_its_clients(place: &Place) {
    let server = locked(place).await;
    let one = key_for(&server, &["push", "consume"], &[]).await;
    let other = key_for(&server, &["consume"], &[]).await;
    for _ in 0..2 {
        push(&server, &one, "q", json!({"payload": 1})).await;
    }
    let reserve = async |key: &str| {
        let headers = [("idempotency-key", "the-same")];
        let body = Some(json!({"worker": "w"}));
        let path = "/v1/queues/q/reserve";
        let answer = call_with(&server, Some(key), Method::POST, path, &headers, body).await;
        ok(&answer);
        answer.1["jobs"].clone()
    };
    let (first, repeated, others) = (reserve(&one).await, reserve(&one).await, reserve(&other).await);
    assert_eq!(first[0]["reservation"], repeated[0]["reservation"]);
    assert_eq!(first[0]["id"], repeated[0]["id"]);
    assert!(others[0]["id"].is_string() && others[0]["id"] != first[0]["id"], "{first} {others}");
}

pub async fn tokens_of_one_reserve_are_not_derived(place: &Place) {
    let mut server = locked(place).await;
    let key = key_for(&server, &["push", "consume"], &[]).await;
    for n in 0..2 {
        push(&server, &key, "q", json!({"payload": n})).await;
    }
    let jobs = reserve(&server, &key, "q", 2).await;
    let (mine, theirs) = (&jobs[0], &jobs[1]);
    let (own, id) = (mine["reservation"].as_str().unwrap(), theirs["id"].as_str().unwrap());
    let claim = &own[..20];
    assert!(theirs["reservation"].as_str().unwrap().starts_with(claim), "no claim of both: {jobs:?}");
    assert!(own.len() >= 20 + 11, "{own}");
    for derived in [own.to_owned(), claim.to_owned(), format!("{claim}{}", &id[id.len() - 6..])] {
        let body = json!({"reservation": derived});
        let answer = post(&server, &key, &format!("/v1/jobs/{id}/commit"), body).await;
        refused(&answer, 409, "reservation-lost");
    }
    // The secret is the store's: a server that starts later knows the tokens.
    server.terminate().await;
    let server = locked(place).await;
    ok(&settle(&server, &key, mine, "extend", json!({})).await);
    for job in &jobs {
        ok(&settle(&server, &key, job, "commit", json!({})).await);
    }
}
