//! What belongs to one client: the key of a request, and the tokens of its jobs.

use mongodb::bson::{Document, doc};

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
        let body = Some(json!({"worker": "w", "lease_ms": 600_000}));
        let path = "/v1/queues/q/reserve";
        let answer = call_with(&server, Some(key), Method::POST, path, &headers, body).await;
        ok(&answer);
        answer.1["jobs"].clone()
    };
    let (first, repeated, others) = (reserve(&one).await, reserve(&one).await, reserve(&other).await);
    assert_eq!(first[0]["reservation"], repeated[0]["reservation"]);
    assert_eq!(first[0]["id"], repeated[0]["id"]);
    assert!(others[0]["id"].is_string() && others[0]["id"] != first[0]["id"], "{first} {others}");
    let other = key_for(&server, &["push"], &[]).await;
    let push = async |key: &str, payload: u8| {
        let headers = [("idempotency-key", "the-same")];
        let body = Some(json!({ "payload": payload }));
        call_with(&server, Some(key), Method::POST, "/v1/queues/q/jobs", &headers, body).await
    };
    let (first, others, repeated) = (push(&one, 1).await, push(&other, 2).await, push(&one, 1).await);
    ok(&first);
    ok(&others);
    assert_eq!(first, repeated);
    assert_ne!(first.1["id"], others.1["id"]);
}

pub async fn tokens_of_one_reserve_are_not_derived(place: &Place) {
    let mut server = locked(place).await;
    let key = key_for(&server, &["push", "consume"], &[]).await;
    for n in 0..2 {
        push(&server, &key, "q", json!({"payload": n})).await;
    }
    // A server stops and another one starts before they are settled.
    let asked = json!({"count": 2, "lease_ms": 600_000});
    let (status, answer) = post(&server, &key, "/v1/queues/q/reserve", asked).await;
    let jobs = answer["jobs"].as_array().unwrap();
    assert_eq!((status, jobs.len()), (200, 2), "{answer}");
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
    for job in jobs {
        ok(&settle(&server, &key, job, "commit", json!({})).await);
    }
}

/// Also where keys are not required: what one worker of a reserve holds is not the others'.
pub async fn a_token_is_not_derived_without_keys(place: &Place) {
    let server = Server::start(&place.url).await;
    for headers in [&[][..], &[("idempotency-key", "the-same")][..]] {
        for n in 0..2 {
            server.push("q", json!({"payload": n})).await;
        }
        let body = Some(json!({"count": 2, "lease_ms": 600_000}));
        let answer = call_with(&server, None, Method::POST, "/v1/queues/q/reserve", headers, body).await;
        ok(&answer);
        let jobs = answer.1["jobs"].as_array().unwrap();
        let (own, id) = (jobs[0]["reservation"].as_str().unwrap(), jobs[1]["id"].as_str().unwrap());
        let (claim, theirs) = (&own[..20], jobs[1]["reservation"].as_str().unwrap());
        assert!(theirs.starts_with(claim), "no claim of both: {jobs:?}");
        for derived in [own.to_owned(), claim.to_owned(), format!("{claim}{}", &id[id.len() - 6..])] {
            let commit = json!({"reservation": derived});
            let answer = server.post(&format!("/v1/jobs/{id}/commit"), commit).await;
            refused(&answer, 409, "reservation-lost");
        }
        for job in jobs {
            assert_eq!(server.settle(job, "commit", json!({})).await.0, 200);
        }
    }
}

/// A job that a server of an older version gave away before the upgrade is settled by the token that it gave.
pub async fn an_unsigned_token_of_an_older_claim_is_good(place: &Place) {
    let mut server = Server::start(&place.url).await;
    server.push("q", json!({"payload": 1})).await;
    let job = server.reserve("q", json!({"lease_ms": 3_600_000})).await.remove(0);
    let id = job["id"].as_str().unwrap();
    assert!(server.terminate().await.success());
    let older = "0123456789abcdefghij";
    match place.url.strip_prefix("sqlite:") {
        Some(path) => {
            let file = rusqlite::Connection::open(path).unwrap();
            file.execute("UPDATE jobs SET claim = ?1 WHERE id = ?2", [older, id]).unwrap();
        }
        None => {
            let client = mongodb::Client::with_uri_str(&place.url).await.unwrap();
            let jobs = client.default_database().unwrap().collection::<Document>("jobs");
            jobs.update_one(doc! { "_id": id }, doc! { "$set": { "claim": older } }).await.unwrap();
        }
    }
    let server = Server::start(&place.url).await;
    let commit = json!({"reservation": format!("{older}{}", &id[id.len() - 6..])});
    let (status, done) = server.post(&format!("/v1/jobs/{id}/commit"), commit).await;
    assert_eq!((status, &done["state"]), (200, &json!("done")), "{done}");
}
