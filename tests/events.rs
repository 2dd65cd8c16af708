//! The stream of events: a client's picture of the queues becomes right and stays so, whichever server it asks and whatever it has missed,
//! and it sees only what its key reaches.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use common::contract;
use common::server::{PATIENCE, Place, Server, metric, until};
use reqwest::{Method, Response};
use serde_json::{Value, json};

const ADMIN: &str = "admin-key-of-the-tests-0123456789abcdefgh";

/// A client that keeps a picture as the messages say.
struct Client {
    response: Response,
    text: String,
    /// The id of the last message that had one.
    id: String,
    queues: BTreeMap<String, Value>,
    happened: Vec<Value>,
    /// How many messages of each kind there were.
    snapshots: usize,
    changes: usize,
    /// The sizes of the parts of the last snapshot.
    parts: Vec<usize>,
    /// How many queues are in none of them, as the last one says.
    left_out: u64,
}

impl Client {
    async fn follow(server: &Server, query: &str, key: Option<&str>, last: Option<&str>) -> Self {
        let mut request = server.http.get(format!("{}/v1/events{query}", server.base));
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-store");
        let (text, id) = (String::new(), last.unwrap_or_default().to_owned());
        let (queues, happened, parts) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { response, text, id, queues, happened, snapshots: 0, changes: 0, parts, left_out: 0 }
    }

    /// Goes on with what another client knew.
    async fn resume(server: &Server, query: &str, known: Self) -> Self {
        let Self { queues, id, .. } = known;
        Self { queues, ..Self::follow(server, query, None, Some(&id)).await }
    }

    /// Takes the next message; `false`: the stream has ended.
    async fn next(&mut self) -> bool {
        loop {
            if let Some((message, rest)) = self.text.split_once("\n\n") {
                let (message, rest) = (message.to_owned(), rest.to_owned());
                self.text = rest;
                if self.take(&message) {
                    return true;
                }
                continue;
            }
            let chunk =
                tokio::time::timeout(PATIENCE, self.response.chunk()).await.expect("a message in time");
            match chunk.unwrap() {
                Some(bytes) => self.text.push_str(std::str::from_utf8(&bytes).unwrap()),
                None => return false,
            }
        }
    }

    /// Takes a message; `false`: it was a comment, or something for the browser.
    fn take(&mut self, message: &str) -> bool {
        let fields: BTreeMap<&str, &str> = message
            .lines()
            .filter(|line| !line.starts_with(':'))
            .map(|line| line.split_once(": ").unwrap())
            .collect();
        let Some(event) = fields.get("event") else { return false };
        let data: Value = serde_json::from_str(fields["data"]).unwrap();
        let schema = &contract::DOCUMENT["components"]["schemas"]["EventsMessage"];
        let faults: Vec<String> =
            contract::validator(schema).iter_errors(&data).map(|fault| fault.to_string()).collect();
        assert!(faults.is_empty(), "{faults:?}");
        if let Some(id) = fields.get("id") {
            (*id).clone_into(&mut self.id);
        }
        let named = data["queues"].as_array().unwrap();
        match *event {
            "snapshot" => {
                if data["part"] == 1 {
                    self.queues.clear();
                    self.parts.clear();
                }
                self.parts.push(named.len());
                assert_eq!(data["more"] == true, !fields.contains_key("id"), "only the last part has an id");
                self.snapshots += 1;
                self.left_out = data["left_out"].as_u64().unwrap_or(0);
            }
            "changes" => {
                self.changes += 1;
                self.left_out = data["left_out"].as_u64().unwrap_or(self.left_out);
            }
            other => panic!("{other}"),
        }
        for queue in named {
            self.queues.insert(queue["queue"].as_str().unwrap().to_owned(), queue.clone());
        }
        for gone in data["gone"].as_array().into_iter().flatten() {
            self.queues.remove(gone.as_str().unwrap());
        }
        self.happened.extend(data["happened"].as_array().into_iter().flatten().cloned());
        true
    }

    async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let all = async {
            while !is_so(self) {
                assert!(self.next().await, "the stream has ended");
            }
        };
        tokio::time::timeout(PATIENCE, all).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
    }

    /// Until the whole snapshot is there.
    async fn until_known(&mut self) {
        self.until("the picture is whole", |it| it.snapshots > 0 && !it.id.is_empty()).await;
    }

    fn ready(&self, queue: &str) -> Option<u64> {
        self.queues.get(queue)?["counts"]["ready"].as_u64()
    }

    fn has(&self, kind: &str, queue: &str) -> bool {
        self.happened.iter().any(|it| it["kind"] == kind && (queue.is_empty() || it["queue"] == queue))
    }
}

async fn push_many(server: &Server, count: usize) {
    for part in 0..count.div_ceil(1000) {
        let job = |n: usize| json!({"queue": format!("q{n:05}"), "payload": n});
        let jobs: Vec<_> = (part * 1000..count.min((part + 1) * 1000)).map(job).collect();
        assert_eq!(server.post("/v1/jobs", json!({"jobs": jobs})).await.0, 200);
    }
}

/// How often this server has read all counts.
async fn readings(server: &Server) -> f64 {
    metric(server, "tailback_store_call_seconds_count{call=\"summary\"}").await
}

async fn a_client_sees_what_changes(place: &Place) {
    let server = Server::start(&place.url).await;
    server.push("mail", json!({"payload": 1, "max_attempts": 1})).await;
    let mut client = Client::follow(&server, "", None, None).await;
    client.until_known().await;
    client.until("the first job is there", |it| it.ready("mail") == Some(1)).await;
    server.push("other", json!({"payload": 1})).await;
    client.until("the second job is there", |it| it.ready("other") == Some(1)).await;
    let jobs = server.reserve("mail", json!({"lease_ms": 600_000})).await;
    client.until("it is reserved", |it| it.queues["mail"]["counts"]["reserved"] == 1).await;
    assert_eq!(server.settle(&jobs[0], "rollback", json!({})).await.0, 200);
    client.until("it is dead", |it| it.has("dead", "mail")).await;
    assert_eq!(server.post("/v1/queues/other/pause", json!({})).await.0, 200);
    client.until("the pause is told", |it| it.has("paused", "other")).await;
    client.until("the queue is paused", |it| it.queues["other"]["paused"] == true).await;
    assert_eq!(server.post("/v1/queues/other/resume", json!({})).await.0, 200);
    client.until("it goes on", |it| it.has("resumed", "other")).await;
    let settings = Some(json!({"max_attempts": 3}));
    assert!(server.send(Method::PATCH, "/v1/queues/other", settings).await.0 < 300);
    client.until("the settings are told", |it| it.has("settings", "other")).await;
    assert_eq!(server.post("/v1/queues/other/pop", json!({})).await.0, 200);
    client.until("the queue has gone", |it| !it.queues.contains_key("other")).await;
    assert_eq!(client.snapshots, 1);
}

async fn nothing_is_read_without_a_client(place: &Place) {
    let server = Server::start(&place.url).await;
    server.push("mail", json!({"payload": 1})).await;
    let mut client = Client::follow(&server, "", None, None).await;
    client.until_known().await;
    drop(client);
    until("nobody reads any more", || async {
        let before = readings(&server).await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        // /metrics itself reads them as well, once for each page at most.
        readings(&server).await - before <= 2.0
    })
    .await;
}

async fn a_client_goes_on_where_it_was(place: &Place) {
    let server = Server::start(&place.url).await;
    push_many(&server, 600).await;
    let mut client = Client::follow(&server, "", None, None).await;
    client.until("all are known", |it| it.queues.len() == 600 && !it.id.is_empty()).await;
    assert_eq!(client.parts, [500, 100]);
    server.push("late", json!({"payload": 1})).await;
    let mut later = Client::resume(&server, "", client).await;
    later.until("what was missed is there", |it| it.ready("late") == Some(1)).await;
    assert_eq!((later.snapshots, later.queues.len()), (0, 601));
    let id = later.id.clone();
    drop(later);
    // Ids that are unknown, of another server, of other queues, of the future, or nonsense.
    let [epoch, version, scope] = id.split('-').collect::<Vec<_>>()[..] else { panic!("{id}") };
    for bad in [
        "x".to_owned(),
        String::new(),
        "-".to_owned(),
        format!("AAAAAAAAAAAA-{version}-{scope}"),
        format!("{epoch}-{version}-000000000000"),
        format!("{epoch}-99999999999-{scope}"),
        format!("{epoch}-99999999999999999999999-{scope}"),
    ] {
        let mut client = Client::follow(&server, "?for_ms=60000", None, Some(&bad)).await;
        client.until("all are known", |it| it.queues.len() == 601).await;
        assert_eq!(client.snapshots, 2, "{bad}");
    }
    let mut other = Client::follow(&server, "?queue=late", None, Some(&id)).await;
    other.until_known().await;
    assert_eq!(other.queues.len(), 1, "an id for all queues is none for this one");
}

async fn only_some_queues_are_shown(place: &Place) {
    let server = Server::start(&place.url).await;
    for queue in ["mail.a", "mail.b", "other", "reports"] {
        server.push(queue, json!({"payload": 1})).await;
    }
    let mut client = Client::follow(&server, "?queue=mail.*&queue=reports", None, None).await;
    client.until("three are known", |it| it.queues.len() == 3).await;
    server.push("other", json!({"payload": 1})).await;
    server.push("mail.c", json!({"payload": 1})).await;
    client.until("a new one is there", |it| it.ready("mail.c") == Some(1)).await;
    assert!(!client.queues.contains_key("other"));
    for (query, field) in [
        ("?queue=a*b", "queue"),
        ("?queue=", "queue"),
        ("?for_ms=0", "for_ms"),
        ("?for_ms=x", "for_ms"),
        ("?for_ms=1&for_ms=2", "query"),
        ("?prefix=a", "query"),
    ] {
        let (status, problem) = server.get(&format!("/v1/events{query}")).await;
        assert!(status == 422 && problem.to_string().contains(field), "{query}: {problem}");
    }
    let many = vec!["queue=a"; 101].join("&");
    assert_eq!(server.get(&format!("/v1/events?{many}")).await.0, 422);
    let mut short = Client::follow(&server, "?for_ms=50", None, None).await;
    while short.next().await {}
}

/// MongoDB alone: an SQLite file has one server.
async fn changes_of_another_server_are_seen(place: &Place) {
    let (one, other) = (Server::start(&place.url).await, Server::start(&place.url).await);
    let mut client = Client::follow(&one, "", None, None).await;
    client.until_known().await;
    other.push("mail", json!({"payload": 1})).await;
    client.until("the other server's job is there", |it| it.ready("mail") == Some(1)).await;
    assert_eq!(other.post("/v1/queues/mail/pause", json!({})).await.0, 200);
    client.until("the other server's pause is told", |it| it.has("paused", "mail")).await;
    // The other server knows nothing of this id: it tells all anew.
    let mut moved = Client::resume(&other, "", client).await;
    moved.until("the picture is whole", |it| it.snapshots == 1).await;
    assert_eq!((moved.ready("mail"), moved.changes), (Some(1), 0));
}

async fn a_lost_worker_is_told(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut client = Client::follow(&server, "", None, None).await;
    client.until_known().await;
    let heartbeat = json!({"timeout_ms": 1000});
    assert_eq!(server.post("/v1/workers/w7/heartbeat", heartbeat).await.0, 200);
    client.until("the worker is lost", |it| it.has("worker_lost", "")).await;
    assert!(client.happened.iter().any(|it| it["worker"] == "w7"));
}

async fn a_worker_that_was_lost_while_a_client_was_away_is_told(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut client = Client::follow(&server, "", None, None).await;
    client.until_known().await;
    let id = client.id.clone();
    drop(client);
    let job = server.push("mail", json!({"payload": 1})).await;
    assert_eq!(server.reserve("mail", json!({"worker": "w7", "lease_ms": 600_000})).await.len(), 1);
    let heartbeat = json!({"timeout_ms": 1000});
    assert_eq!(server.post("/v1/workers/w7/heartbeat", heartbeat).await.0, 200);
    until("the worker is lost", || async {
        server.get(&format!("/v1/jobs/{job}")).await.1["state"] == "ready"
    })
    .await;
    let mut back = Client::follow(&server, "", None, Some(&id)).await;
    back.until("it is told", |it| it.has("worker_lost", "")).await;
    assert_eq!(back.snapshots, 0);
}

/// A server that needs keys, and a key for these queues.
async fn locked(place: &Place, queues: &[&str], more: &[(&str, &str)]) -> (Server, String, String) {
    let environment = [&[("TAILBACK_AUTH__ADMIN_KEY", ADMIN)], more].concat();
    let server = Server::start_with(&place.url, &environment).await;
    let body = json!({"name": "k", "scopes": ["read", "push"], "queues": queues});
    let made =
        server.http.post(format!("{}/v1/keys", server.base)).bearer_auth(ADMIN).json(&body).send().await;
    let made: Value = made.unwrap().json().await.unwrap();
    let text = |field: &str| made[field].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    (server, text("key"), text("id"))
}

async fn push_as(server: &Server, key: &str, queue: &str) {
    let url = format!("{}/v1/queues/{queue}/jobs", server.base);
    let pushed = server.http.post(url).bearer_auth(key).json(&json!({"payload": 1})).send().await.unwrap();
    assert_eq!(pushed.status(), 201);
}

async fn a_key_sees_its_queues_only(place: &Place) {
    let (server, key, _) = locked(place, &["mail.*"], &[]).await;
    for queue in ["mail.a", "secret"] {
        push_as(&server, ADMIN, queue).await;
    }
    let mut client = Client::follow(&server, "", Some(&key), None).await;
    client.until("its queue is known", |it| it.ready("mail.a") == Some(1)).await;
    push_as(&server, ADMIN, "secret").await;
    push_as(&server, ADMIN, "mail.b").await;
    client.until("its other queue is known", |it| it.ready("mail.b") == Some(1)).await;
    assert!(!client.queues.contains_key("secret"));
    let mut wide = Client::follow(&server, "?queue=*", Some(&key), None).await;
    wide.until_known().await;
    assert!(wide.queues.len() == 2 && !wide.queues.contains_key("secret"));
    // An id of somebody who saw more is none for this key.
    let mut admin = Client::follow(&server, "", Some(ADMIN), None).await;
    admin.until("all are known", |it| it.queues.len() == 3 && !it.id.is_empty()).await;
    let mut borrowed = Client::follow(&server, "", Some(&key), Some(&admin.id)).await;
    borrowed.until("the picture is told anew", |it| it.snapshots == 1).await;
    assert_eq!(borrowed.queues.len(), 2);
    let hidden = server.http.get(format!("{}/v1/events?queue=secret", server.base)).bearer_auth(&key);
    assert_eq!(hidden.send().await.unwrap().status(), 403);
}

async fn a_revoked_key_ends_its_stream(place: &Place) {
    let (server, key, id) = locked(place, &[], &[]).await;
    let mut client = Client::follow(&server, "", Some(&key), None).await;
    client.until_known().await;
    let url = format!("{}/v1/keys/{id}", server.base);
    assert!(server.http.delete(url).bearer_auth(ADMIN).send().await.unwrap().status().is_success());
    while client.next().await {}
    let again = server.http.get(format!("{}/v1/events", server.base)).bearer_auth(&key);
    assert_eq!(again.send().await.unwrap().status(), 401);
}

async fn a_stream_ends_when_the_server_stops(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let mut client = Client::follow(&server, "", None, None).await;
    client.until_known().await;
    let (status, ()) = tokio::join!(server.terminate(), async { while client.next().await {} });
    assert!(status.success(), "it stops cleanly, within its time: {status}");
}

async fn streams_are_limited(place: &Place) {
    let (server, key, _) = locked(place, &[], &[("TAILBACK_LIMITS__EVENT_STREAMS", "3")]).await;
    let refused = |key: String| {
        let request = server.http.get(format!("{}/v1/events?for_ms=1", server.base)).bearer_auth(key);
        async { request.send().await.unwrap().json::<Value>().await.ok() }
    };
    let mut first = Client::follow(&server, "", Some(ADMIN), None).await;
    first.until_known().await;
    let problem = refused(ADMIN.to_owned()).await.unwrap();
    let detail = problem["detail"].as_str().unwrap();
    assert!(problem["code"] == "overloaded" && detail.contains("this caller has 1 streams"), "{problem}");
    let mut other = Client::follow(&server, "", Some(&key), None).await; // it has places of its own
    other.until_known().await;
    drop(first);
    until("the place is free again", || async { refused(ADMIN.to_owned()).await.is_none() }).await;
}

/// A client that never reads: its stream ends, and what it held is free.
async fn a_client_that_does_not_read_is_cut_off(place: &Place) {
    let limits = [("TAILBACK_LIMITS__EVENT_STREAMS", "1"), ("TAILBACK_LIMITS__WRITE_WAIT_MS", "1000")];
    let server = Server::start_with(&place.url, &limits).await;
    push_many(&server, 10_000).await; // more than the buffers of the system take
    let address = server.base.strip_prefix("http://").unwrap();
    let mut deaf = TcpStream::connect(address).unwrap();
    deaf.write_all(format!("GET /v1/events HTTP/1.1\r\nhost: {address}\r\n\r\n").as_bytes()).unwrap();
    let mut first = [0; 12];
    deaf.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    until("its place is free again", || async { server.get("/v1/events?for_ms=1").await.0 == 200 }).await;
    drop(deaf);
}

async fn ten_thousand_queues_come_in_parts(place: &Place) {
    let server = Server::start(&place.url).await;
    push_many(&server, 10_000).await;
    let mut client = Client::follow(&server, "", None, None).await;
    client.until("all are known", |it| it.queues.len() == 10_000 && !it.id.is_empty()).await;
    assert_eq!(client.parts, [500; 20]);
    server.push("q00007", json!({"payload": 1})).await;
    let told = client.changes;
    client.until("the change is there", |it| it.ready("q00007") == Some(2)).await;
    assert!(client.changes > told && client.snapshots == 20);
}

async fn a_named_queue_is_followed_however_many_are_fuller(place: &Place) {
    let server = Server::start(&place.url).await;
    push_many(&server, 10_000).await;
    // Of queues with as many jobs the last by name is left out.
    server.push("small", json!({"payload": 1})).await;
    let mut all = Client::follow(&server, "", None, None).await;
    all.until("the fullest are known", |it| it.queues.len() == 10_000 && !it.id.is_empty()).await;
    assert_eq!((all.ready("small"), all.left_out), (None, 1));
    let mut client = Client::follow(&server, "?queue=small", None, None).await;
    client.until_known().await;
    assert_eq!((client.ready("small"), client.left_out), (Some(1), 0));
    server.push("small", json!({"payload": 1})).await;
    client.until("the change is there", |it| it.ready("small") == Some(2)).await;
    let mut wide = Client::follow(&server, "?queue=small&queue=none.*", None, None).await;
    wide.until_known().await;
    assert_eq!((wide.ready("small"), wide.queues.len()), (Some(2), 1));
}

async fn how_many_queues_are_left_out_is_told_as_it_changes(place: &Place) {
    let server = Server::start(&place.url).await;
    push_many(&server, 9999).await;
    server.push("small", json!({"payload": 1})).await;
    let mut client = Client::follow(&server, "", None, None).await;
    client.until("all are known", |it| it.queues.len() == 10_000 && !it.id.is_empty()).await;
    assert_eq!((client.ready("small"), client.left_out), (Some(1), 0));
    // Of queues with as many jobs the last by name is left out.
    server.push("late", json!({"payload": 1})).await;
    client.until("one is left out", |it| it.left_out == 1).await;
    assert_eq!((client.ready("late"), client.ready("small")), (Some(1), None));
    assert_eq!(server.post("/v1/queues/late/purge", json!({"state": "ready"})).await.0, 200);
    client.until("none is left out", |it| it.left_out == 0 && it.ready("small") == Some(1)).await;
    assert_eq!((client.ready("late"), client.snapshots), (None, 20));
}

on_every_store! {
    a_client_sees_what_changes
    nothing_is_read_without_a_client
    a_client_goes_on_where_it_was
    only_some_queues_are_shown
    a_lost_worker_is_told
    a_worker_that_was_lost_while_a_client_was_away_is_told
    a_key_sees_its_queues_only
    a_revoked_key_ends_its_stream
    a_stream_ends_when_the_server_stops
    streams_are_limited
    a_client_that_does_not_read_is_cut_off
    ten_thousand_queues_come_in_parts
    a_named_queue_is_followed_however_many_are_fuller
    how_many_queues_are_left_out_is_told_as_it_changes
}

mod several {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn changes_of_another_server_are_seen() {
        let place = crate::common::server::Place::mongo().await;
        super::changes_of_another_server_are_seen(&place).await;
        place.clear().await;
    }
}
