//! Two servers over a database of their own: `far` reaches it through a proxy, and meets the faults; `near` by itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use mongodb::Database;
use mongodb::bson::{Document, doc};
use mongodb::options::ReadConcern;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::checker::{Outcome as Recorded, Recorder};
use crate::common::own_mongod::OwnMongod;
use crate::common::proxy::Proxy;
use crate::common::server::{PATIENCE, Server};
use crate::common::signal::{self, Signal};
use crate::coverage::Met;
use crate::record;
use crate::story::{Outcome, Story};

/// How long `far` tries a call.
const DEADLINE_MS: &str = "1500";
/// The same where it is to make a mistake: also on a busy machine it lives until it can make it.
const DEADLINE_OF_MISTAKES_MS: &str = "10000";
/// The lease of what a worker takes while the rest goes on.
const WORK_LEASE_MS: u64 = 5000;

/// How long a batch that is over is kept: longer than a case takes to look at it, as a rule.
const RETAIN_BATCH_MS: &str = "5000";

/// Cases store API keys, which would else be required of every other call.
const NO_KEYS_REQUIRED: (&str, &str) = ("TAILBACK_AUTH__REQUIRED", "false");

/// A call of a client.
#[derive(Debug, Clone)]
pub struct Call {
    pub method: &'static str,
    pub path: String,
    pub body: Option<Value>,
    pub key: Option<String>,
}

impl Call {
    pub fn new(method: &'static str, path: impl Into<String>, body: Value) -> Self {
        let body = (!body.is_null()).then_some(body);
        Self { method, path: path.into(), body, key: None }
    }

    pub fn keyed(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Makes the call. Without an answer the connection broke.
    pub async fn send(
        &self,
        recorder: &Recorder,
        http: &reqwest::Client,
        base: &str,
    ) -> Option<(u16, Value)> {
        let place = record::begin(recorder, base, self);
        let answer = self.exchange(http, base).await;
        let outcome = match &answer {
            Some((status, answer)) => Recorded::of(*status, answer.clone()),
            None => Recorded::Unknown { why: "no response".to_owned() },
        };
        place.into_iter().for_each(|place| recorder.end(place, &outcome));
        answer
    }

    async fn exchange(&self, http: &reqwest::Client, base: &str) -> Option<(u16, Value)> {
        let method = reqwest::Method::from_bytes(self.method.as_bytes()).unwrap();
        let mut request = http.request(method, format!("{base}{}", self.path));
        request = match &self.body {
            Some(body) => request.json(body),
            None => request,
        };
        request = match &self.key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        };
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let text = response.text().await.ok()?;
        Some((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
    }
}

/// See the module's documentation.
pub struct Lane {
    pub number: usize,
    pub proxy: Proxy,
    pub far: Server,
    pub near: Server,
    pub database: Database,
    pub cases: usize,
    /// Which case a tag stands for.
    pub names: BTreeMap<String, String>,
    /// Every call of every case.
    pub recorder: Recorder,
    /// What its verbs have passed.
    pub met: Met,
    url: String,
    points: tempfile::TempDir,
    near_points: tempfile::TempDir,
    /// The mistake that the servers make.
    bug: &'static str,
}

fn far_environment(points: &std::path::Path, bug: &str) -> Vec<(&'static str, String)> {
    let deadline_ms = if bug.is_empty() { DEADLINE_MS } else { DEADLINE_OF_MISTAKES_MS };
    vec![
        ("TAILBACK_BUG", bug.to_owned()),
        ("TAILBACK_MONGODB__DEADLINE_MS", deadline_ms.to_owned()),
        ("TAILBACK_REAPER__INTERVAL_MS", "100".to_owned()),
        ("TAILBACK_WAIT__POLL_MS", "100".to_owned()),
        ("TAILBACK_LOG__FILTER", "error".to_owned()),
        ("TAILBACK_DEFAULTS__RETAIN_BATCH_MS", RETAIN_BATCH_MS.to_owned()),
        ("TAILBACK_FAULTS", points.display().to_string()),
        (NO_KEYS_REQUIRED.0, NO_KEYS_REQUIRED.1.to_owned()),
    ]
}

async fn start_far(url: &str, points: &std::path::Path, bug: &str) -> Server {
    let environment = far_environment(points, bug);
    let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (*name, &**value)).collect();
    Server::start_with(url, &environment).await
}

/// Lets the servers find all indexes needed before: one that is built while a call is under way makes its transactions conflict, so that
/// its steps are others the next time.
async fn have_all_indexes(database: &Database) {
    let needed = doc! { "$set": { "key": true, "group": true, "dead_lettered": true, "batch": true } };
    let meta = database.collection::<Document>("meta");
    meta.update_one(doc! { "_id": "indexes" }, needed).upsert(true).await.unwrap();
}

impl Lane {
    pub async fn start(mongod: &OwnMongod, number: usize, bug: &'static str) -> Self {
        let url = format!("mongodb://127.0.0.1:{}/lane_{number}?directConnection=true", mongod.port());
        let proxy = Proxy::before(&url).await;
        let points = tempfile::tempdir().unwrap();
        let near_points = tempfile::tempdir().unwrap();
        let near: &[(&str, &str)] = &[
            ("TAILBACK_FAULTS", near_points.path().to_str().unwrap()),
            ("TAILBACK_MONGODB__DEADLINE_MS", "3000"),
            ("TAILBACK_REAPER__INTERVAL_MS", "100"),
            ("TAILBACK_LOG__FILTER", "error"),
            ("TAILBACK_DEFAULTS__RETAIN_BATCH_MS", RETAIN_BATCH_MS),
            ("TAILBACK_BUG", bug),
            NO_KEYS_REQUIRED,
        ];
        let client = mongodb::Client::with_uri_str(&url).await.unwrap();
        let database = client.default_database().unwrap();
        have_all_indexes(&database).await;
        let near = Server::start_with(&url, near).await;
        let far = start_far(&proxy.url(&url), points.path(), bug).await;
        Self {
            number,
            proxy,
            far,
            near,
            database,
            cases: 0,
            names: BTreeMap::new(),
            recorder: Recorder::new(),
            met: Met::default(),
            url,
            points,
            near_points,
            bug,
        }
    }

    /// The tag of the next case.
    pub fn coming_tag(&self) -> String {
        format!("l{}c{}x", self.number, self.cases + 1)
    }

    /// The name of the last case, for what ends it early.
    pub fn last_name(&self) -> &str {
        let tag = format!("l{}c{}x", self.number, self.cases);
        self.names.get(&tag).map_or("the undisturbed call", String::as_str)
    }

    pub fn next_tag(&mut self) -> String {
        let tag = self.coming_tag();
        self.cases += 1;
        tag
    }

    /// A new server in the place of the one that was killed.
    pub async fn restart_far(&mut self) {
        self.far = start_far(&self.proxy.url(&self.url), self.points.path(), self.bug).await;
    }

    /// The file of a pause point.
    pub fn point(&self, name: &str) -> PathBuf {
        self.points.path().join(name)
    }

    /// Takes away every file of a pause point, so that none strikes, and lets go of what is paused.
    pub fn clear_points(&self) {
        for points in [&self.points, &self.near_points] {
            for entry in std::fs::read_dir(points.path()).unwrap() {
                let _ = std::fs::remove_file(entry.unwrap().path());
            }
        }
    }

    /// A call at this server whose client gets no answer. Returns what it would have been.
    pub async fn unheard_at(&self, server: &Server, call: &Call) -> Option<(u16, Value)> {
        record::begin(&self.recorder, &server.base, call);
        call.exchange(&server.http, &server.base).await
    }

    /// The same at `near`, which stands still in the middle, at this pause point.
    pub async fn stopped_at_near(&self, call: &Call, point: &str) {
        record::begin(&self.recorder, &self.near.base, call);
        std::fs::write(self.near_points.path().join(point), "pause").unwrap();
        let (call, http, base) = (call.clone(), self.near.http.clone(), self.near.base.clone());
        tokio::spawn(async move { call.exchange(&http, &base).await });
        let met = self.near_points.path().join(format!("{point}.met"));
        let end = Instant::now() + PATIENCE;
        while !met.exists() {
            assert!(Instant::now() < end, "{point} is not reached");
            sleep(Duration::from_millis(4)).await;
        }
        signal::send(self.near.child.id(), Signal::SIGSTOP);
        // Once the server goes on, so does the task.
        std::fs::write(self.near_points.path().join(format!("{point}.go")), "").unwrap();
    }

    /// From now on the points that `far` passes are noted.
    pub fn trace(&self) {
        std::fs::write(self.point("trace"), "").unwrap();
    }

    /// Whether this point was passed.
    pub fn has_passed(&self, point: &str) -> bool {
        let text = std::fs::read_to_string(self.point("trace")).unwrap_or_default();
        text.lines().any(|name| name == point)
    }

    /// The points that were passed, each once, but for those of a task beside the call.
    pub fn traced(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.point("trace")).unwrap_or_default();
        std::fs::remove_file(self.point("trace")).unwrap();
        let mut names: Vec<String> = Vec::new();
        for name in text.lines().filter(|name| !name.starts_with("indexes.")) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    }

    /// A call at `near`.
    pub async fn at_near(&self, call: &Call) -> Option<(u16, Value)> {
        call.send(&self.recorder, &self.near.http, &self.near.base).await
    }

    /// A call until it is answered with something else than 503. Returns how often it was made, as well: of each that was not the
    /// last it is unknown whether it happened.
    pub async fn call_at(&self, server: &Server, call: &Call) -> (usize, u16, Value) {
        let (deadline, mut tries) = (Instant::now() + PATIENCE, 0);
        loop {
            let answer = call.send(&self.recorder, &server.http, &server.base).await;
            tries += 1;
            match answer {
                Some((status, answer)) if status != 503 => return (tries, status, answer),
                answer => {
                    assert!(Instant::now() < deadline, "{call:?} is not done in {tries} tries: {answer:?}")
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A call at `near`, until it is answered with something else than 503.
    pub async fn call(&self, call: &Call) -> (u16, Value) {
        let (_, status, answer) = self.call_at(&self.near, call).await;
        (status, answer)
    }

    /// A call at this server that must succeed.
    pub async fn must_at(&self, server: &Server, call: &Call) -> Value {
        let (_, status, answer) = self.call_at(server, call).await;
        assert!((200..300).contains(&status), "{call:?}: {status} {answer}");
        answer
    }

    /// A call at `near` that must succeed.
    pub async fn must(&self, method: &'static str, path: impl Into<String>, body: Value) -> Value {
        self.must_at(&self.near, &Call::new(method, path, body)).await
    }

    /// Commits a job and notes how that ended.
    pub async fn commit(&self, story: &Story, id: &str, token: &str, ends_job: bool) {
        let place = story.settling(id, token, ends_job);
        let commit = Call::new("POST", format!("/v1/jobs/{id}/commit"), json!({"reservation": token}));
        let answer = self.at_near(&commit).await;
        story.settled(place, Outcome::of(answer.as_ref()));
    }

    /// Takes what there is of a case at `near`, and finishes it. Returns how many jobs that were.
    pub async fn work(&self, story: &Story) -> usize {
        let asked = story.now();
        let body = json!({"queues": [format!("{}.*", story.tag)], "count": 20, "lease_ms": WORK_LEASE_MS});
        let reserve = Call::new("POST", "/v1/reserve", body);
        let Some((200, answer)) = self.at_near(&reserve).await else {
            return 0;
        };
        let jobs = answer["jobs"].as_array().cloned().unwrap_or_default();
        story.deliveries(asked, WORK_LEASE_MS, &jobs);
        for job in &jobs {
            let text = |field: &str| job[field].as_str().unwrap_or_default().to_owned();
            let is_last_stage = job["then"].as_array().is_none_or(Vec::is_empty);
            self.commit(story, &text("id"), &text("reservation"), is_last_stage).await;
        }
        jobs.len()
    }

    /// Works for so long, as another worker of the case.
    pub async fn work_for(&self, story: &Story, time: Duration) {
        let end = story.now() + time;
        while story.now() < end {
            if self.work(story).await == 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// The documents of a collection whose `field` belongs to a case.
    pub async fn documents(&self, collection: &str, field: &str, tag: &str) -> Vec<Document> {
        let own = doc! { field: of_case(tag) };
        let found = self.database.collection::<Document>(collection).find(own).await.unwrap();
        found.try_collect().await.unwrap()
    }

    /// The documents that these queries find, all of them at one moment.
    pub async fn at_one_moment(
        &self,
        wanted: &[(&'static str, Document)],
    ) -> Vec<(&'static str, Vec<Document>)> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.snapshot(wanted).await {
                Ok(found) => return found,
                // A member that steps down, or a collection that was made since the snapshot.
                Err(error) if Instant::now() < end => drop(error),
                Err(error) => panic!("no snapshot: {error}"),
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn snapshot(
        &self,
        wanted: &[(&'static str, Document)],
    ) -> mongodb::error::Result<Vec<(&'static str, Vec<Document>)>> {
        let mut session = self.database.client().start_session().await?;
        session.start_transaction().read_concern(ReadConcern::snapshot()).await?;
        let mut found = Vec::new();
        for (name, query) in wanted {
            let documents = self.database.collection::<Document>(name);
            let mut cursor = documents.find(query.clone()).session(&mut session).await?;
            found.push((*name, cursor.stream(&mut session).try_collect().await?));
        }
        session.abort_transaction().await?;
        Ok(found)
    }

    /// Ends the transactions that a server has left open, as MongoDB would a minute later.
    pub async fn end_sessions(&self) {
        let sessions = self.proxy.sessions();
        if !sessions.is_empty() {
            let admin = self.database.client().database("admin");
            admin.run_command(doc! { "killSessions": sessions }).await.unwrap();
        }
    }
}

/// The names of a case: what follows a dot among the characters lies outside, as the names of another case do.
pub fn of_case(tag: &str) -> Document {
    doc! { "$gte": format!("{tag}."), "$lt": format!("{tag}/") }
}
