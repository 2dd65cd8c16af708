//! The commands `export` and `import`, and what the tests of them need beside.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use mongodb::bson::{Timestamp, doc};
use mongodb::{Client, Database};
use serde_json::{Value, json};

use crate::common::own_mongod::OwnMongod;
use crate::common::rare_indexes::{RARE, make};
use crate::common::server::{PATIENCE, Place, Server, UNHURRIED};

pub fn tailback(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailback"));
    command.args(arguments).env("TAILBACK_LOG__FILTER", "warn").envs([UNHURRIED]).stdin(Stdio::null());
    command
}

pub async fn run(mut command: Command) -> (bool, String) {
    let running = tokio::task::spawn_blocking(move || command.output().unwrap());
    let Output { status, stdout, stderr } = tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.success(), text(&stdout) + &text(&stderr))
}

/// A store of a test, on a MongoDB of its own: the shared one keeps no past.
pub struct Home {
    pub place: Place,
    mongod: Option<OwnMongod>,
}

impl Home {
    pub async fn sqlite() -> Self {
        Self { place: Place::sqlite().await, mongod: None }
    }

    pub async fn mongo() -> Self {
        let mongod = OwnMongod::start().await;
        Self { place: Place::at(mongod.url()), mongod: Some(mongod) }
    }

    pub async fn clear(self) {
        match self.mongod {
            Some(mongod) => drop(mongod),
            None => self.place.clear().await,
        }
    }
}

/// Has the indexes built that a server builds beside its first jobs: MongoDB cannot read a moment before the end of a build.
pub async fn indexed(place: &Place) {
    if place.url.starts_with("mongodb") {
        let client = Client::with_uri_str(&place.url).await.unwrap();
        make(&client.default_database().unwrap(), &RARE).await;
    }
}

/// The moment that a snapshot shows which is taken now.
pub async fn moment(database: &Database) -> Timestamp {
    let pong = database.run_command(doc! { "ping": 1 }).await.unwrap();
    pong.get_timestamp("operationTime").unwrap()
}

/// Whether MongoDB cannot read this moment any more.
pub async fn is_past(database: &Database, moment: Timestamp) -> bool {
    let concern = doc! { "level": "snapshot", "atClusterTime": moment };
    let read = doc! { "find": "jobs", "limit": 1, "readConcern": concern };
    database.run_command(read).await.is_err_and(|error| error.to_string().contains("SnapshotTooOld"))
}

/// A folder for backups.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

pub async fn export(store: &Place, file: &Path) -> String {
    let (done, told) =
        run(tailback(&["export", "--store", &store.url, "--out", file.to_str().unwrap()])).await;
    assert!(done, "{told}");
    told
}

pub fn import(store: &str, file: &Path) -> Command {
    tailback(&["import", "--store", store, "--in", file.to_str().unwrap()])
}

pub async fn restore(store: &Place, file: &Path) -> String {
    let (done, told) = run(import(&store.url, file)).await;
    assert!(done && told.contains("verified"), "{told}");
    told
}

pub async fn refused(command: Command) -> String {
    let (done, told) = run(command).await;
    assert!(!done, "{told}");
    told
}

pub fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
}

/// The lines of this kind.
pub fn of_kind(lines: &[String], kind: &str) -> Vec<Value> {
    let parsed = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    parsed.filter(|line| line["kind"] == kind).collect()
}

pub async fn put(server: &Server, path: &str, body: Value) {
    let (status, answer) = server.send(reqwest::Method::PUT, path, Some(body)).await;
    assert!(status < 300, "{answer}");
}

pub async fn taken(server: &Server, queue: &str, job: Value) -> Value {
    server.push(queue, job).await;
    server.reserve(queue, json!({"worker": "w-1", "lease_ms": 3_600_000})).await.remove(0)
}

pub async fn keyed(server: &Server, path: &str, body: Value) -> (u16, String) {
    let call = server.http.post(format!("{}{path}", server.base)).header("idempotency-key", "once");
    let answer = call.json(&body).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}
