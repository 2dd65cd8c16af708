//! Documents and rows that another program wrote: each field of each kind of document with many wrong values. What
//! the database takes concerns itself only: the server starts, lists, and serves what is valid.

use futures::TryStreamExt as _;
use mongodb::bson::{Bson, DateTime, Document, doc, oid::ObjectId};
use rusqlite::Connection;
use rusqlite::types::Value as Cell;
use serde_json::{Value, json};

use super::client::Client;
use super::target::{Target, judge};
use crate::common::foreign::{foreign_ids, insert};
use crate::common::server::{PATIENCE, Place, Server};

/// Which of the wrong values a field gets in one of several documents. The suite parts the values among three of them, so that the field
/// gets each; `just hostile` gives it all of them in every document.
struct Share {
    parts: usize,
    part: usize,
}

impl Share {
    /// Of this document, of so many that have the field.
    fn of(document: usize, all: usize) -> Self {
        let parts = if all < 3 || std::env::var_os("TAILBACK_HOSTILE_CASES").is_some() { 1 } else { 3 };
        Self { parts, part: document % parts }
    }

    fn has(&self, value: usize) -> bool {
        value % self.parts == self.part
    }
}

/// Something of every kind.
async fn fill(server: &Server) {
    let mut client = Client::new(server);
    let mut call = async |method: &str, path: &str, body: Value| {
        let reply = client.call(method, path, &body.to_string()).await;
        assert!(reply.status < 300, "{path}: {}", reply.text());
        serde_json::from_slice::<Value>(&reply.body).unwrap_or(Value::Null)
    };
    call(
        "PUT",
        "/v1/queues/kept",
        json!({"retain_done_ms": 31_536_000_000_u64, "max_jobs": 1000, "max_reserved": 1000}),
    )
    .await;
    call("PUT", "/v1/semaphores/kept", json!({"capacity": 5})).await;
    let rule = json!({"cron": "0 0 29 2 *", "queue": "kept", "job": {"payload": 1}});
    call("PUT", "/v1/schedules/kept", rule).await;
    let limits = json!({
        "name": "n", "scopes": ["read", "push"], "queues": ["kept", "a.*"], "expires_in_ms": 86_400_000,
        "rate": {"limit": 1, "per_ms": 1}, "max_concurrent": 1,
    });
    call("POST", "/v1/keys", limits).await;
    call("POST", "/v1/keys", json!({"name": "n", "scopes": ["admin"]})).await;
    call("POST", "/v1/workers/kept/heartbeat", json!({"slots": 1, "version": "1", "timeout_ms": 86_400_000}))
        .await;
    let whole = json!({
        "payload": {"a": 1}, "priority": 1, "key": "k", "max_attempts": 1, "backoff": {"kind": "fixed", "base_ms": 1},
        "expires_in_ms": 86_400_000, "headers": {"h": "x"}, "semaphores": ["kept"], "then": [{"queue": "later"}],
    });
    call("POST", "/v1/queues/kept/jobs", whole).await;
    call("POST", "/v1/queues/kept/jobs", json!({"payload": 1, "group": "g"})).await;
    call("POST", "/v1/queues/kept/jobs", json!({"payload": 1, "delay_ms": 86_400_000})).await;
    let queued = json!({"queue": "kept", "payload": 1});
    call("POST", "/v1/batches", json!({"jobs": [queued.clone()], "on_finished": queued})).await;
    for (end, body) in [
        ("commit", json!({"result": {"r": 1}})),
        ("rollback", json!({"error": "e"})),
        ("extend", json!({"progress": 1})),
    ] {
        call("POST", "/v1/queues/work/jobs", json!({"payload": 1, "max_attempts": 1})).await;
        call("PUT", "/v1/queues/work", json!({"retain_done_ms": 31_536_000_000_u64})).await;
        let jobs =
            call("POST", "/v1/queues/work/reserve", json!({"worker": "kept", "lease_ms": 86_400_000})).await;
        let job = &jobs["jobs"][0];
        let mut body = body;
        body["reservation"] = job["reservation"].clone();
        call("POST", &format!("/v1/jobs/{}/{end}", job["id"].as_str().unwrap()), body).await;
    }
}

/// This field of each element of a list.
fn names(list: &Value, name: &str) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|one| one[name].as_str().map(str::to_owned)).collect()
}

/// A client, and what was wrong with the responses that it got.
struct Walk {
    client: Client,
    asked: usize,
    faults: Vec<String>,
}

impl Walk {
    async fn ask(&mut self, method: &str, path: &str, body: &str) -> Value {
        let reply = self.client.call(method, path, body).await;
        self.asked += 1;
        assert_ne!(reply.status, 503, "{path}: the store is not away: {}", reply.text());
        if let Err(fault) = judge(&reply, &[200, 201, 202, 204, 404, 409, 422, 429]) {
            self.faults.push(format!("{method} {path} {body}: {fault}"));
        }
        // It is a valid number, which this parser does not hold.
        match serde_json::from_str::<Value>(&reply.text().replace("1e400", "0")) {
            Ok(value) => value,
            Err(error) => {
                let is_text = reply.body.is_empty() || path == "/metrics";
                assert!(is_text, "{method} {path}: {error}: {}", reply.text());
                Value::Null
            }
        }
    }

    /// Gets these queues, and gets and changes their jobs. Returns the jobs, and how many of them
    /// cannot be read.
    async fn jobs(&mut self, queues: &[String]) -> (Vec<String>, usize) {
        let (mut jobs, mut unreadable) = (Vec::new(), Vec::new());
        for queue in queues {
            self.ask("GET", &format!("/v1/queues/{queue}"), "").await;
            self.ask("GET", &format!("/v1/queues/{queue}/stats"), "").await;
            self.ask("GET", &format!("/v1/queues/{queue}/jobs?limit=1"), "").await;
            let page = self.ask("GET", &format!("/v1/queues/{queue}/jobs?limit=1000"), "").await;
            jobs.extend(names(&page["jobs"], "id"));
            unreadable.extend(names(&page["unreadable"], "id"));
        }
        let spoiled = unreadable.len();
        jobs.extend(unreadable);
        for id in &jobs {
            self.ask("GET", &format!("/v1/jobs/{id}"), "").await;
            self.ask("PATCH", &format!("/v1/jobs/{id}"), r#"{"priority":1}"#).await;
        }
        (jobs, spoiled)
    }

    /// Gets and runs each schedule.
    async fn schedules(&mut self) {
        let schedules = self.ask("GET", "/v1/schedules?limit=1000", "").await;
        let unreadable = names(&schedules["unreadable"], "name");
        for name in names(&schedules["schedules"], "name").iter().chain(&unreadable) {
            self.ask("GET", &format!("/v1/schedules/{name}"), "").await;
            self.ask("POST", &format!("/v1/schedules/{name}/run"), "").await;
        }
    }

    /// Rotates and deletes each key. Returns how many of them could not be read.
    async fn keys(&mut self) -> usize {
        let keys = self.ask("GET", "/v1/keys", "").await;
        let spoiled = names(&keys["unreadable"], "id");
        for id in names(&keys["keys"], "id").iter().chain(&spoiled) {
            self.ask("POST", &format!("/v1/keys/{id}/rotate"), "{}").await;
            self.ask("DELETE", &format!("/v1/keys/{id}"), "").await;
        }
        assert_eq!(self.ask("GET", "/v1/keys", "").await, json!({"keys": []}));
        spoiled.len()
    }

    /// Redrives, replays, and commits what can be reserved.
    async fn work(&mut self) {
        for path in [
            "/v1/queues/kept/redrive",
            "/v1/queues/kept/replay",
            "/v1/queues/work/redrive",
            "/v1/queues/work/replay",
        ] {
            self.ask("POST", path, "{}").await;
        }
        for _ in 0..5 {
            let taken = self.ask("POST", "/v1/reserve", r#"{"queues":["*"],"count":1000}"#).await;
            for job in taken["jobs"].as_array().into_iter().flatten() {
                let path = format!("/v1/jobs/{}/commit", job["id"].as_str().unwrap());
                self.ask("POST", &path, &format!("{{\"reservation\":{}}}", job["reservation"])).await;
            }
        }
    }

    /// Deletes these jobs, none of which may be left in the queues.
    async fn delete(&mut self, jobs: &[String], queues: &[String]) {
        for id in jobs {
            self.ask("DELETE", &format!("/v1/jobs/{id}?force=true"), "").await;
        }
        for queue in queues {
            let left = self.ask("GET", &format!("/v1/queues/{queue}/jobs?limit=1000"), "").await;
            let left = [names(&left["jobs"], "id"), names(&left["unreadable"], "id")].concat();
            assert!(!left.iter().any(|id| jobs.contains(id)), "{queue}: not removed: {left:?}");
        }
    }
}

/// Asks for everything. What is valid is served, and no request fails over what is spoiled. Returns how many there
/// were.
async fn walk(server: &Server) -> usize {
    let mut walk = Walk { client: Client::new(server), asked: 0, faults: Vec::new() };
    server.until_ready().await;
    for path in ["/stats", "/metrics", "/v1/semaphores?limit=1000", "/v1/workers?limit=1000"] {
        walk.ask("GET", path, "").await;
    }
    let queues = walk.ask("GET", "/v1/queues?limit=1000", "").await;
    let queues = names(&queues["queues"], "queue");
    let (jobs, jobs_spoiled) = walk.jobs(&queues).await;
    walk.schedules().await;
    let keys_spoiled = walk.keys().await;
    walk.work().await;
    walk.delete(&jobs, &queues).await;
    let pushed = walk.ask("POST", "/v1/queues/valid/jobs", r#"{"payload":1}"#).await;
    let taken = walk.ask("POST", "/v1/queues/valid/pop", r#"{"wait_ms":30000}"#).await;
    assert_eq!(taken["jobs"][0]["id"], pushed["id"], "what is valid is served: {taken}");
    let Walk { asked, faults, .. } = walk;
    let shown: Vec<String> = faults.iter().map(|fault| fault.chars().take(200).collect()).collect();
    assert!(faults.is_empty(), "{} of {asked} requests failed:\n{}", faults.len(), shown.join("\n"));
    println!(
        "{asked} requests, over {jobs_spoiled} of {} jobs and {keys_spoiled} keys that cannot be read",
        jobs.len()
    );
    asked
}

#[rustfmt::skip]
/// Values that are wrong in most fields.
fn wrong() -> Vec<Bson> {
    let text = |text: &str| Bson::String(text.to_owned());
    vec![
        Bson::Null, Bson::Boolean(true), Bson::Int32(-1), Bson::Int32(0), Bson::Int64(i64::MAX), Bson::Int64(i64::MIN), Bson::Double(f64::NAN),
        Bson::Double(f64::INFINITY), Bson::Double(0.5), Bson::Double(1e308), text(""), text("a\n"), text("not a name"), text("{"), text("null"), text("\0"),
        Bson::String("x".repeat(100_000)), Bson::Array(Vec::new()), Bson::Array(vec![Bson::Null, text("x"), Bson::Int32(1)]), Bson::Document(Document::new()),
        Bson::Document(doc! { "$gt": "" }), Bson::Document(doc! { "a": { "b": { "c": [1, 2, { "d": Bson::Null }] } } }), Bson::DateTime(DateTime::MIN),
        Bson::DateTime(DateTime::MAX), Bson::DateTime(DateTime::from_millis(0)), Bson::ObjectId(ObjectId::new()), Bson::MinKey, Bson::MaxKey, Bson::Undefined,
    ]
}

/// The same of what a driver reads in another way, or not at all: see [`insert`].
fn foreign_values() -> Vec<Bson> {
    let oid = doc! { "$oid": "507f1f77bcf86cd799439011" };
    let documents = [
        doc! { "a": "?BAD" },
        doc! { "?BAD": 1 },
        doc! { "?DUP": 1, "!DUP": 2 },
        doc! { "$oid": 5 },
        doc! { "$oid": "x" },
        oid.clone(),
        doc! { "$date": "x" },
        doc! { "$date": { "$numberLong": "1" } },
        doc! { "$numberLong": "x" },
        doc! { "$numberLong": "1" },
        doc! { "a": [oid, { "$oid": 5 }] },
    ];
    let lists = [Bson::Array(vec!["?BAD".into()]), Bson::Array(vec![doc! { "$oid": 5 }.into()])];
    documents.into_iter().map(Bson::from).chain(lists).chain(["?BAD".into()]).collect()
}

pub async fn what_another_program_inserts_stops_nothing(place: &Place) {
    let target = Target::start(&place.url).await;
    fill(&target.server).await;
    let database = mongodb::Client::with_uri_str(&place.url).await.unwrap().default_database().unwrap();
    let (mut inserted, mut refused) = (0, 0);
    for name in ["jobs", "queues", "semaphores", "schedules", "workers", "batches", "api_keys"] {
        let collection = database.collection::<Document>(name);
        let documents: Vec<Document> = collection.find(doc! {}).await.unwrap().try_collect().await.unwrap();
        assert!(!documents.is_empty(), "{name}");
        for (n, document) in documents.iter().enumerate() {
            for (m, field) in document.keys().filter(|field| *field != "_id").enumerate() {
                let values = wrong().into_iter().chain(foreign_values()).map(Some).chain([None]);
                let having = |some: &[Document]| some.iter().filter(|one| one.contains_key(field)).count();
                let share = Share::of(having(&documents[..n]), having(&documents));
                for (k, value) in values.enumerate().filter(|(k, _)| share.has(*k)) {
                    let mut document = document.clone();
                    document.insert("_id", format!("spoiled-{n}-{m}-{k}"));
                    match value {
                        Some(value) => drop(document.insert(field, value)),
                        None => drop(document.remove(field)),
                    }
                    // Unique indexes refuse some.
                    match insert(&database, name, &document).await {
                        true => inserted += 1,
                        false => refused += 1,
                    }
                }
            }
            for id in foreign_ids(n) {
                let mut document = document.clone();
                document.insert("_id", id);
                match insert(&database, name, &document).await {
                    true => inserted += 1,
                    false => refused += 1,
                }
            }
        }
    }
    let keys = database.collection::<Document>("api_keys");
    for id in wrong() {
        match keys.insert_one(doc! { "_id": id, "name": "n" }).await {
            Ok(_) => inserted += 1,
            Err(_) => refused += 1,
        }
    }
    println!("{inserted} documents inserted past the server, {refused} refused by MongoDB");
    assert!(inserted > 1000, "{inserted}");
    let asked = walk(&target.server).await;
    drop(target);
    // The next one reads all of it at its start.
    let target = Target::start(&place.url).await;
    let asked = asked + walk(&target.server).await;
    println!("{asked} requests over them; memory at most {} MB", target.peak_kb() >> 10);
}

/// The names of the columns of a table.
fn columns(file: &Connection, table: &str) -> Vec<String> {
    let mut statement = file.prepare(&format!("SELECT name FROM pragma_table_info('{table}')")).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[rustfmt::skip]
fn cells() -> Vec<Cell> {
    let text = |text: &str| Cell::Text(text.to_owned());
    vec![
        Cell::Null, Cell::Integer(-1), Cell::Integer(0), Cell::Integer(i64::MAX), Cell::Integer(i64::MIN), Cell::Real(0.5), Cell::Real(f64::INFINITY), text(""), text("a\n"),
        text("not a name"), text("{"), text("null"), text("{}"), text("[]"), text("[null]"), text("1e400"), text("\0"), text("\u{1f600}"), Cell::Text("[".repeat(10_000)), Cell::Blob(vec![0xff, 0]),
    ]
}

pub async fn what_another_program_writes_stops_nothing(place: &Place) {
    let mut target = Target::start(&place.url).await;
    fill(&target.server).await;
    assert!(target.server.terminate().await.success());
    let file = Connection::open(place.url.trim_start_matches("sqlite:")).unwrap();
    file.busy_timeout(PATIENCE).unwrap();
    let (mut written, mut refused) = (0, 0);
    for table in ["jobs", "settings", "semaphores", "schedules", "workers", "batches", "api_keys"] {
        let columns = columns(&file, table);
        assert!(!columns.is_empty(), "{table}");
        let all = columns.join(", ");
        let mut statement = file.prepare(&format!("SELECT {all} FROM {table}")).unwrap();
        let cells_of = |row: &rusqlite::Row<'_>| {
            (0..columns.len()).map(|n| row.get(n)).collect::<Result<Vec<Cell>, _>>()
        };
        let rows: Vec<Vec<Cell>> = statement.query_map([], cells_of).unwrap().map(Result::unwrap).collect();
        assert!(!rows.is_empty(), "{table}");
        let marks = vec!["?"; columns.len()].join(", ");
        for (n, row) in rows.iter().enumerate() {
            let share = Share::of(n, rows.len());
            for m in 1..columns.len() {
                for (k, cell) in cells().into_iter().enumerate().filter(|(k, _)| share.has(*k)) {
                    let mut row = row.clone();
                    row[0] = Cell::Text(format!("spoiled-{n}-{m}-{k}"));
                    row[m] = cell;
                    let insert = format!("INSERT INTO {table} ({all}) VALUES ({marks})");
                    // Types, constraints and unique indexes refuse some.
                    match file.execute(&insert, rusqlite::params_from_iter(row)) {
                        Ok(_) => written += 1,
                        Err(_) => refused += 1,
                    }
                }
            }
        }
    }
    drop(file);
    println!("{written} rows written past the server, {refused} refused by SQLite");
    assert!(written > 500, "{written}");
    let target = Target::start(&place.url).await;
    let asked = walk(&target.server).await;
    drop(target);
    let target = Target::start(&place.url).await;
    let asked = asked + walk(&target.server).await;
    println!("{asked} requests over them; memory at most {} MB", target.peak_kb() >> 10);
}
