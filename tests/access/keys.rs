//! The life of a key.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document, doc};

use super::support::*;
use crate::common::foreign::{foreign_ids, insert};

pub async fn a_key_is_shown_once(place: &Place) {
    let server = locked(place).await;
    let asked = json!({"name": "mailer", "scopes": ["push", "read"], "queues": ["mail.*"], "expires_in_ms": 3_600_000});
    let (status, made) = post(&server, ADMIN, "/v1/keys", asked).await;
    assert_eq!(status, 201, "{made}");
    let text = made["key"].as_str().unwrap();
    let id = made["id"].as_str().unwrap();
    assert!(text.starts_with(&format!("tb_{id}_")) && text.len() >= 3 + id.len() + 1 + 22, "{text}");
    let (status, list) = get(&server, ADMIN, "/v1/keys").await;
    assert_eq!(status, 200, "{list}");
    assert!(!list.to_string().contains(text), "{list}");
    let mut bare = made.clone();
    bare.as_object_mut().unwrap().remove("key");
    assert_eq!(list["keys"], json!([bare]));
    assert_eq!((&bare["name"], &bare["queues"]), (&json!("mailer"), &json!(["mail.*"])));
    push(&server, text, "mail.out", json!({"payload": 1})).await;
    ok(&delete(&server, ADMIN, &format!("/v1/keys/{id}")).await);
    refused(&get(&server, text, "/v1/queues").await, 401, "unauthorized");
    refused(&delete(&server, ADMIN, &format!("/v1/keys/{id}")).await, 404, "unknown-key");
}

pub async fn a_rotated_key_has_a_new_secret(place: &Place) {
    let mut server = locked(place).await;
    let (id, before) = make(&server, json!({"name": "a", "scopes": ["read"]})).await;
    let (status, rotated) = post(&server, ADMIN, &format!("/v1/keys/{id}/rotate"), json!({})).await;
    assert_eq!((status, &rotated["id"], &rotated["scopes"]), (200, &json!(id), &json!(["read"])));
    let after = rotated["key"].as_str().unwrap().to_owned();
    refused(&get(&server, &before, "/v1/queues").await, 401, "unauthorized");
    ok(&get(&server, &after, "/v1/queues").await);
    server.terminate().await;
    let server = locked(place).await;
    refused(&get(&server, &before, "/v1/queues").await, 401, "unauthorized");
    ok(&get(&server, &after, "/v1/queues").await);
    let missing = post(&server, ADMIN, "/v1/keys/AAAAAAAAAAAA/rotate", json!({})).await;
    refused(&missing, 404, "unknown-key");
}

pub async fn what_is_wrong_with_a_new_key_is_named(place: &Place) {
    let server = locked(place).await;
    for (key, pointer) in [
        (json!({"name": "", "scopes": ["read"]}), "/name"),
        (json!({"name": "a\nb", "scopes": ["read"]}), "/name"),
        (json!({"name": "a", "scopes": []}), "/scopes"),
        (json!({"name": "a", "scopes": ["read", "read"]}), "/scopes"),
        (json!({"name": "a", "scopes": ["everything"]}), "/scopes/0"),
        (json!({"name": "a", "scopes": ["read"], "queues": ["a*b"]}), "/queues/0"),
        (json!({"name": "a", "scopes": ["admin"], "queues": ["a"]}), "/queues"),
        (json!({"name": "a", "scopes": ["read"], "expires_in_ms": 999}), "/expires_in_ms"),
        (json!({"name": "a", "scopes": ["read"], "expires_in_ms": i64::MAX}), "/expires_in_ms"),
        (json!({"name": "a", "scopes": ["read"], "rate": {"limit": 0, "per_ms": 1}}), "/rate/limit"),
        (
            json!({"name": "a", "scopes": ["read"], "rate": {"limit": 1, "per_ms": 86_400_001}}),
            "/rate/per_ms",
        ),
        (json!({"name": "a", "scopes": ["read"], "rate": {"limit": 1}}), "/rate/per_ms"),
        (json!({"name": "a", "scopes": ["read"], "max_concurrent": 0}), "/max_concurrent"),
        (json!({"name": "a", "scopes": ["read"], "max_concurrent": 100_001}), "/max_concurrent"),
    ] {
        let answer = post(&server, ADMIN, "/v1/keys", key.clone()).await;
        refused(&answer, 422, "invalid-field");
        assert_eq!(answer.1["pointer"], pointer, "{key}: {}", answer.1);
    }
    assert_eq!(get(&server, ADMIN, "/v1/keys").await.1, json!({"keys": []}));
}

pub async fn the_last_use_is_shown(place: &Place) {
    let server = locked(place).await;
    let (_, text) = make(&server, json!({"name": "a", "scopes": ["read"]})).await;
    let seen = async || get(&server, ADMIN, "/v1/keys").await.1["keys"][0]["last_used_at"].clone();
    assert_eq!(seen().await, Value::Null);
    ok(&get(&server, &text, "/v1/queues").await);
    assert!(seen().await.is_string());
}

/// Also on loopback, where none are required before.
pub async fn a_stored_key_makes_keys_required(place: &Place) {
    let server = Server::start(&place.url).await;
    let (status, made) = server.post("/v1/keys", json!({"name": "first", "scopes": ["admin"]})).await;
    assert_eq!(status, 201, "{made}");
    refused(&server.get("/v1/queues").await, 401, "unauthorized");
    let first = made["key"].as_str().unwrap();
    ok(&get(&server, first, "/v1/queues").await);
}

fn tailback(place: &Place, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailback"));
    command.args(arguments).args(["--store", &place.url]).env("TAILBACK_LOG__FILTER", "warn");
    command.envs([UNHURRIED]).output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap().trim().to_owned()
}

pub async fn keys_are_made_in_the_store(place: &Place) {
    let made = ["keys", "create", "--name", "ops", "--scope", "read", "--scope", "operate", "--queue", "a.*"];
    let key = said(&tailback(place, &made));
    let id = key.split('_').nth(1).unwrap().to_owned();
    let list = said(&tailback(place, &["keys", "list"]));
    assert!(list.contains(&id) && list.contains("read,operate") && list.contains("a.*"), "{list}");
    assert!(!list.contains(&key), "{list}");
    let mut server = Server::start(&place.url).await;
    refused(&server.get("/v1/queues").await, 401, "unauthorized");
    ok(&get(&server, &key, "/v1/queues/a.b").await);
    forbidden(&get(&server, &key, "/v1/queues/b").await);
    server.terminate().await;
    let rotated = said(&tailback(place, &["keys", "rotate", &id]));
    assert!(rotated.starts_with(&format!("tb_{id}_")) && rotated != key, "{rotated}");
    assert!(said(&tailback(place, &["keys", "delete", &id])).contains(&id));
    assert_eq!(said(&tailback(place, &["keys", "list"])), "no keys");
    assert_eq!(tailback(place, &["keys", "delete", &id]).status.code(), Some(1));
    assert_eq!(tailback(place, &["keys", "create", "--name", "a", "--scope", "no"]).status.code(), Some(2));
}

/// What is wanted within two seconds; a busy machine may miss it now and then.
const SOON: Duration = Duration::from_secs(2);

pub async fn a_key_changes_on_every_server_within_two_seconds(place: &Place) {
    let (one, other) = (locked(place).await, locked(place).await);
    let status = async |key: &str| get(&other, key, "/v1/queues").await.0;
    let (mut valid, mut refused) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let (id, key) = make(&one, json!({"name": "a", "scopes": ["read"]})).await;
        let begun = Instant::now();
        until("the key is valid", || async { status(&key).await == 200 }).await;
        valid.push(begun.elapsed());
        ok(&delete(&one, ADMIN, &format!("/v1/keys/{id}")).await);
        let begun = Instant::now();
        until("the key is refused", || async { status(&key).await == 401 }).await;
        refused.push(begun.elapsed());
    }
    println!("valid after {valid:?}, refused after {refused:?} at another server");
    assert!(valid.iter().min() < Some(&SOON) && refused.iter().min() < Some(&SOON), "{valid:?} {refused:?}");
}

/// What another program wrote, or spoiled.
pub async fn a_spoiled_key_opens_nothing(place: &Place) {
    let mut server = locked(place).await;
    let (_, key) = make(&server, json!({"name": "a", "scopes": ["read"]})).await;
    let (id, spoiled) = make(&server, json!({"name": "b", "scopes": ["read"], "queues": ["a"]})).await;
    server.terminate().await;
    let client = mongodb::Client::with_uri_str(&place.url).await.unwrap();
    let keys = client.default_database().unwrap().collection::<Document>("api_keys");
    keys.update_one(doc! { "_id": &id }, doc! { "$unset": { "queues": "" } }).await.unwrap();
    let server = Server::start(&place.url).await;
    ok(&get(&server, &key, "/v1/queues").await);
    refused(&get(&server, &spoiled, "/v1/queues").await, 401, "unauthorized");
    keys.delete_one(doc! { "name": "a" }).await.unwrap();
    drop(server);
    // It is no key, but there are keys: nothing is open.
    let mut server = Server::start(&place.url).await;
    refused(&server.get("/v1/queues").await, 401, "unauthorized");
    server.terminate().await;
    let server = locked(place).await;
    ok(&delete(&server, ADMIN, &format!("/v1/keys/{id}")).await);
    assert_eq!(keys.count_documents(doc! {}).await.unwrap(), 0);
}

/// Also one that a running server knows: what the list shows is in force.
pub async fn a_key_spoiled_past_a_server_ends_where_keys_are_listed(place: &Place) {
    let server = locked(place).await;
    let (id, spoiled) = make(&server, json!({"name": "a", "scopes": ["read"]})).await;
    let (other_id, other) = make(&server, json!({"name": "b", "scopes": ["read", "operate"]})).await;
    let pause = async || post(&server, &other, "/v1/queues/q/pause", json!({})).await;
    ok(&get(&server, &spoiled, "/v1/queues").await);
    ok(&pause().await);
    let client = mongodb::Client::with_uri_str(&place.url).await.unwrap();
    let keys = client.default_database().unwrap().collection::<Document>("api_keys");
    keys.update_one(doc! { "_id": &id }, doc! { "$unset": { "queues": "" } }).await.unwrap();
    keys.update_one(doc! { "_id": &other_id }, doc! { "$set": { "scopes": ["read"] } }).await.unwrap();
    let shown = get(&server, ADMIN, "/v1/keys").await.1;
    assert_eq!((&shown["unreadable"][0]["id"], &shown["keys"][0]["scopes"]), (&json!(id), &json!(["read"])));
    refused(&get(&server, &spoiled, "/v1/queues").await, 401, "unauthorized");
    forbidden(&pause().await);
    keys.delete_one(doc! { "_id": &other_id }).await.unwrap();
    assert_eq!(get(&server, ADMIN, "/v1/keys").await.1["keys"], json!([]));
    refused(&get(&server, &other, "/v1/queues").await, 401, "unauthorized");
}

/// Writes keys past the server: spoils those of these ids, the second one by something long, and adds some whose ids are none. Returns
/// how many were written.
async fn spoil(place: &Place, [id, long]: [&str; 2]) -> usize {
    let scope = format!("\u{1b}[31m{}", "x".repeat(20_000));
    let odd = ["no id of a key", "", "../x?y#z", "_underscored", "a.b", &"x".repeat(20_000)];
    if let Some(path) = place.url.strip_prefix("sqlite:") {
        let file = rusqlite::Connection::open(path).unwrap();
        file.execute("UPDATE api_keys SET queues = '{' WHERE id = ?1", [id]).unwrap();
        let scopes = json!([scope]).to_string();
        file.execute("UPDATE api_keys SET scopes = ?2 WHERE id = ?1", [long, &scopes]).unwrap();
        let add = "INSERT INTO api_keys (id, name, hash, scopes, queues, created_at) VALUES (?1, 'n', x'00', '[]', '[]', 0)";
        for id in odd {
            file.execute(add, [id]).unwrap();
        }
        let not_text = "INSERT INTO api_keys (id, name, hash, scopes, queues, created_at) \
                        VALUES (CAST(x'ff00fe' AS TEXT), 'n', x'00', '[]', '[]', 0)";
        file.execute(not_text, []).unwrap();
        return odd.len() + 3;
    }
    let client = mongodb::Client::with_uri_str(&place.url).await.unwrap();
    let keys = client.default_database().unwrap().collection::<Document>("api_keys");
    keys.update_one(doc! { "_id": id }, doc! { "$unset": { "queues": "" } }).await.unwrap();
    keys.update_one(doc! { "_id": long }, doc! { "$set": { "scopes": [scope] } }).await.unwrap();
    let texts = odd.iter().map(|text| Bson::from(*text));
    let others = [Bson::ObjectId(ObjectId::new()), Bson::Int32(5), Bson::Null, Bson::Double(f64::NAN)];
    let more = [doc! { "a": { "b": 1 } }.into(), Bson::MinKey, Bson::DateTime(mongodb::bson::DateTime::MAX)];
    let ids: Vec<Bson> = texts.chain(others).chain(more).collect();
    let count = ids.len() + 2;
    keys.insert_many(ids.into_iter().map(|id| doc! { "_id": id, "name": "n" })).await.unwrap();
    let ids = foreign_ids(0);
    for id in &ids {
        let key = doc! { "_id": id.clone(), "name": "n" };
        assert!(insert(&client.default_database().unwrap(), "api_keys", &key).await, "{id}");
    }
    count + ids.len()
}

/// Whatever its id is: it is named in one way, and deleted by that, over HTTP and by the command.
pub async fn a_key_that_cannot_be_read_is_shown_and_deleted(place: &Place) {
    let mut server = locked(place).await;
    let (good, _) = make(&server, json!({"name": "a", "scopes": ["read"]})).await;
    let (id, _) = make(&server, json!({"name": "b", "scopes": ["read"], "queues": ["a"]})).await;
    let (long, _) = make(&server, json!({"name": "c", "scopes": ["read"]})).await;
    server.terminate().await;
    let count = spoil(place, [&id, &long]).await;
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = crate::common::server::command(&place.url, &[("TAILBACK_AUTH__ADMIN_KEY", ADMIN)]);
    command.stderr(log.reopen().unwrap());
    let mut server = Server::of(command);
    server.until_ready().await;
    let list = async |server: &Server| get(server, ADMIN, "/v1/keys").await.1;
    make(&server, json!({"name": "d", "scopes": ["read"]})).await; // all are read again
    let shown = list(&server).await;
    assert_eq!(shown["keys"].as_array().unwrap().len(), 2, "{shown}");
    let unreadable = shown["unreadable"].as_array().unwrap();
    let is_legible = |why: &str| (1..=300).contains(&why.chars().count()) && !why.contains(char::is_control);
    assert!(unreadable.iter().all(|key| key["detail"].as_str().is_some_and(is_legible)), "{shown}");
    let mut ids: Vec<&str> = unreadable.iter().map(|key| key["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "{shown}");
    assert!(ids.contains(&id.as_str()) && ids.contains(&"a.b"), "{shown}");
    let (last, first) = ids.split_last().unwrap();
    for id in first {
        let path = format!("/v1/keys/{id}");
        let rotated = post(&server, ADMIN, &format!("{path}/rotate"), json!({})).await;
        refused(&rotated, 409, "unreadable");
        assert!(!rotated.1["detail"].as_str().unwrap().contains("PUT"), "{}", rotated.1);
        assert_eq!(delete(&server, ADMIN, &path).await.0, 200, "{id}");
        refused(&delete(&server, ADMIN, &path).await, 404, "unknown-key");
    }
    let left = list(&server).await;
    assert_eq!(
        (left["unreadable"].as_array().unwrap().len(), &left["unreadable"][0]["id"]),
        (1, &json!(last))
    );
    server.terminate().await;
    let logged = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(logged.matches("an API key cannot be read").count(), count, "each once: {logged}");
    assert!(logged.lines().all(|line| line.len() < 1000), "{logged}");

    let listed = said(&tailback(place, &["keys", "list"]));
    assert!(listed.lines().any(|line| line.starts_with(&format!("{last}  unreadable"))), "{listed}");
    assert!(said(&tailback(place, &["keys", "delete", last])).contains(last));
    let listed = said(&tailback(place, &["keys", "list"]));
    assert!(listed.contains(&good) && !listed.contains("unreadable"), "{listed}");
}

/// With the key that did it; what was refused, and what only works or looks, is not.
pub async fn acts_of_operators_are_logged(place: &Place) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = crate::common::server::command(
        &place.url,
        &[("TAILBACK_AUTH__ADMIN_KEY", ADMIN), ("TAILBACK_LOG__FILTER", "info")],
    );
    command.stderr(log.reopen().unwrap());
    let mut server = Server::of(command);
    server.until_ready().await;
    let scopes = json!(["operate", "push", "read"]);
    let (id, key) = make(&server, json!({"name": "a", "scopes": scopes, "queues": ["mail"]})).await;
    ok(&post(&server, &key, "/v1/queues/mail/pause", json!({})).await);
    ok(&post(&server, ADMIN, "/v1/queues/other/pause", json!({})).await);
    refused(&post(&server, &key, "/v1/queues/third/pause", json!({})).await, 403, "forbidden");
    ok(&post(&server, &key, "/v1/queues/mail/jobs", json!({"payload": 1})).await);
    ok(&get(&server, &key, "/v1/queues/mail/stats").await);
    server.terminate().await;
    let logged = std::fs::read_to_string(log.path()).unwrap();
    let acts: Vec<&str> = logged.lines().filter(|line| line.contains("operated")).collect();
    let is_of = |line: &str, by: &str, name: Option<&str>, queue: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        (&line["by"], line["by_name"].as_str(), &line["address"]) == (&json!(by), name, &json!("127.0.0.1"))
            && (&line["what"], &line["queue"]) == (&json!("queue.pause"), &json!(queue))
    };
    // The first one is the key.
    assert!(acts.len() == 3 && acts[0].contains("key.create"), "{logged}");
    assert!(is_of(acts[1], &id, Some("a"), "mail") && is_of(acts[2], "admin", None, "other"), "{logged}");
}

/// What is on its way may be done all the same. A pause point in the changes of jobs is only in one store; the log is the same for both.
pub async fn an_act_whose_client_leaves_is_logged(place: &Place) {
    let (log, points) = (tempfile::NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());
    let environment = [
        ("TAILBACK_AUTH__ADMIN_KEY", ADMIN),
        ("TAILBACK_LOG__FILTER", "info"),
        ("TAILBACK_FAULTS", points.path().to_str().unwrap()),
    ];
    let mut command = crate::common::server::command(&place.url, &environment);
    command.stderr(log.reopen().unwrap());
    let server = Server::of(command);
    server.until_ready().await;
    let (_, job) = post(&server, ADMIN, "/v1/queues/mail/jobs", json!({"payload": 1})).await;
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    std::fs::write(points.path().join("apply.planned"), "pause").unwrap();
    let request = server.http.delete(format!("{}{path}", server.base)).bearer_auth(ADMIN);
    let call = tokio::spawn(request.send());
    until("it is worked on", || async { points.path().join("apply.planned.met").exists() }).await;
    call.abort();
    until("it is in the log", || async {
        let logged = std::fs::read_to_string(log.path()).unwrap();
        logged.lines().any(|line| {
            line.contains("request of an operator") && line.contains("DELETE") && line.contains(&path)
        })
    })
    .await;
}

/// In no log however long, and in nothing that operators look at.
pub async fn keys_are_printed_nowhere(place: &Place) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let environment = [("TAILBACK_AUTH__ADMIN_KEY", ADMIN), ("TAILBACK_LOG__FILTER", "trace,tailback=trace")];
    let mut command = crate::common::server::command(&place.url, &environment);
    command.stderr(log.reopen().unwrap());
    let mut server = Server::of(command);
    server.until_ready().await;
    let (id, key) = make(&server, json!({"name": "a", "scopes": ["admin"]})).await;
    ok(&get(&server, &key, "/v1/queues").await);
    let login = server.http.post(format!("{}/v1/session", server.base)).json(&json!({"key": key}));
    let cookie = login.send().await.unwrap().headers()["set-cookie"].to_str().unwrap().to_owned();
    let session = cookie.split([';', '=']).nth(1).unwrap().to_owned();
    let cookies = [("cookie", cookie.split(';').next().unwrap())];
    ok(&call_with(&server, None, Method::GET, "/v1/queues", &cookies, None).await);
    let (_, rotated) = post(&server, ADMIN, &format!("/v1/keys/{id}/rotate"), json!({})).await;
    let fresh = rotated["key"].as_str().unwrap().to_owned();
    let wrong = format!("wrong-{ADMIN}");
    refused(&get(&server, &wrong, "/v1/queues").await, 401, "unauthorized");
    let in_body = post(&server, ADMIN, "/v1/session", json!({"key": [wrong.clone()]})).await;
    let mut seen = in_body.1.to_string();
    for path in ["/stats", "/metrics", "/v1/keys"] {
        let request = server.http.get(format!("{}{path}", server.base)).bearer_auth(ADMIN);
        seen.push_str(&request.send().await.unwrap().text().await.unwrap());
    }
    server.terminate().await;
    let mut check = Command::new(env!("CARGO_BIN_EXE_tailback"));
    let checked = check.arg("check-config").envs(environment).output().unwrap();
    seen.push_str(&said(&checked));
    let logged = std::fs::read_to_string(log.path()).unwrap();
    assert!(logged.contains("API key created") && logged.contains("logged in"), "{logged}");
    for secret in [ADMIN, &key, &fresh, &session, &wrong] {
        assert!(!logged.contains(secret), "a secret is in the log: {secret}");
        assert!(!seen.contains(secret), "a secret is shown: {secret}");
    }
}
