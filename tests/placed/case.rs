//! One call in a small world of its own: what is prepared for it, and how its effect is recognised.

use std::time::Duration;

use futures::future::BoxFuture;
use mongodb::bson::Document;
use serde_json::{Value, json};

use crate::checker::client::mark;
use crate::common::server::{PATIENCE, Server};
use crate::lane::{Call, Lane};
use crate::story::{Delivered, Outcome, Rules, Story, payload};

/// A lease that lapses while the rest goes on. A case that was too slow for it is tried again with a longer one.
pub const SHORT_MS: u64 = 700;
/// One that does not.
const LONG_MS: u64 = 30_000;

/// What a verb is prepared with.
pub struct Prep<'a> {
    pub lane: &'a Lane,
    pub story: &'a Story,
    /// Whether the fault lasts for longer than a lease.
    pub is_lasting: bool,
    /// The lease that it lasts for longer than.
    pub short_ms: u64,
}

/// A job that the first worker holds.
#[derive(Debug, Clone)]
pub struct Held {
    pub id: String,
    pub token: String,
}

/// What can be said of an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    Yes,
    No,
    /// What must happen together did not.
    Part(String),
    Unclear,
}

impl From<bool> for Done {
    fn from(done: bool) -> Self {
        if done { Self::Yes } else { Self::No }
    }
}

/// What there was once the call had ended, and what came of it later.
pub struct Found<'a> {
    pub jobs: Vec<Document>,
    /// Those of the other collections, by collection.
    pub others: Vec<(&'static str, Vec<Document>)>,
    pub story: &'a Story,
    pub answer: Option<(u16, Value)>,
    /// When the call was made.
    pub asked: Duration,
    /// When this was found: what was delivered later tells of another moment.
    pub until: Duration,
}

fn label_of(document: &Document) -> Option<&str> {
    document.get_document("payload").ok()?.get_str("label").ok()
}

impl Found<'_> {
    /// The job of this label as it was in the database then.
    pub fn job(&self, label: &str) -> Option<&Document> {
        self.jobs.iter().find(|job| label_of(job) == Some(label))
    }

    /// What was delivered of this label since the call began, until this was found.
    pub fn later(&self, label: &str) -> Vec<Delivered> {
        let mut later = self.story.of(label);
        later.retain(|one| one.got > self.asked && one.got < self.until && !one.token.is_empty());
        later
    }

    /// Whether there is, or was, such a job after the call.
    pub fn came(&self, label: &str) -> bool {
        self.job(label).is_some() || !self.later(label).is_empty()
    }

    /// Whether the job of this label is gone, and no other worker has had it since.
    pub fn is_gone(&self, label: &str) -> bool {
        !self.came(label)
    }

    pub fn state(&self, label: &str) -> Option<&str> {
        self.job(label)?.get_str("state").ok()
    }

    /// Whether the job of this label is still reserved under this token, which begins with the claim: not for somebody else, who may
    /// not even have been told.
    pub fn is_held(&self, label: &str, token: &str) -> bool {
        let claim = self.job(label).and_then(|job| job.get_str("claim").ok());
        self.state(label) == Some("reserved") && claim.is_some_and(|claim| token.starts_with(claim))
    }

    /// The documents of another collection.
    pub fn all(&self, collection: &str) -> &[Document] {
        let found = self.others.iter().find(|(name, _)| *name == collection);
        found.map_or(&[], |(_, documents)| documents)
    }

    /// A document of another collection.
    pub fn other(&self, collection: &str, id: &str) -> Option<&Document> {
        self.all(collection).iter().find(|document| document.get_str("_id").is_ok_and(|found| found == id))
    }

    /// All or none of these.
    pub fn together(what: &str, parts: &[bool]) -> Done {
        match parts.iter().filter(|part| **part).count() {
            0 => Done::No,
            n if n == parts.len() => Done::Yes,
            _ => Done::Part(format!("{what}: {parts:?}")),
        }
    }
}

type Effect = Box<dyn Fn(&Found<'_>) -> Done + Send + Sync>;

/// See the module's documentation.
pub struct Case {
    /// `None`: a background task does it by itself.
    pub call: Option<Call>,
    /// Whether a client may repeat the call after an unknown outcome.
    pub repeats: bool,
    /// What the first worker holds, and settles in the end.
    pub held: Vec<Held>,
    /// Whether the call ends these holds, and how many of them, from the first on, by a commit.
    pub settles: Option<usize>,
    /// Whether a commit by those who hold the jobs would be the call once more.
    pub is_commit: bool,
    /// The lease, where the call hands out jobs.
    pub lease_ms: Option<u64>,
    /// What shows that a command is one of this case, beside the tag.
    pub texts: Vec<String>,
    pub rules: Rules,
    pub effect: Effect,
    /// Calls that make the case drain.
    pub cleanup: Vec<Call>,
    /// What happens at `near` once the call waits.
    pub prompt: Option<Call>,
    /// Documents that belong to the case by this id.
    pub others: Vec<(&'static str, String)>,
    /// For how long who got jobs keeps them, once the first server is back.
    pub keeps_for: Duration,
    /// The same call, which a server has had before.
    pub before: Option<Before>,
    /// Whether the reservation may be lost to the call: another server has had it before, and nothing proves that here.
    pub may_be_lost: bool,
    /// The pause point that a background task passes last, behind what can be seen of it.
    pub last_point: Option<&'static str>,
}

/// A call that was made before, and whose client got no answer.
pub struct Before {
    /// When it was made.
    pub asked: Duration,
    /// What the client was not told.
    pub answer: Option<(u16, Value)>,
    /// Whether `near` stands still in the middle of it, until `far` has met its fault.
    pub is_stopped: bool,
}

impl Case {
    pub fn of(call: Call, effect: impl Fn(&Found<'_>) -> Done + Send + Sync + 'static) -> Self {
        Self {
            call: Some(call),
            repeats: false,
            held: Vec::new(),
            settles: None,
            is_commit: false,
            lease_ms: None,
            texts: Vec::new(),
            rules: Rules::default(),
            effect: Box::new(effect),
            cleanup: Vec::new(),
            prompt: None,
            others: Vec::new(),
            keeps_for: Duration::ZERO,
            before: None,
            may_be_lost: false,
            last_point: None,
        }
    }

    /// Whether `near` stands still while `far` begins.
    pub fn stops_near(&self) -> bool {
        self.call.is_none() || self.before.as_ref().is_some_and(|before| before.is_stopped)
    }

    /// Whether a call that nothing disturbs may end so.
    pub fn expects(&self, outcome: Outcome) -> bool {
        outcome == Outcome::Ok || (self.may_be_lost && outcome == Outcome::Refused(409))
    }

    /// Nothing is called; a background task does it.
    pub fn background(effect: impl Fn(&Found<'_>) -> Done + Send + Sync + 'static) -> Self {
        Self { call: None, ..Self::of(Call::new("GET", "/", Value::Null), effect) }
    }

    pub fn repeats(self) -> Self {
        Self { repeats: true, ..self }
    }

    pub fn holding(mut self, held: &[Held]) -> Self {
        self.texts.extend(held.iter().map(|held| held.id.clone()));
        self.held.extend(held.iter().cloned());
        self
    }

    /// The call ends what is held, by a commit or otherwise.
    pub fn settling(self, commits: bool) -> Self {
        Self { settles: Some(if commits { self.held.len() } else { 0 }), ..self }
    }

    pub fn about(mut self, ids: &[String]) -> Self {
        self.texts.extend(ids.iter().cloned());
        self
    }

    pub fn with(self, change: impl FnOnce(&mut Self)) -> Self {
        let mut changed = self;
        change(&mut changed);
        changed
    }
}

impl Prep<'_> {
    pub fn tag(&self) -> &str {
        &self.story.tag
    }

    /// A name of this case.
    pub fn name(&self, of: &str) -> String {
        format!("{}.{of}", self.story.tag)
    }

    /// The lease of the first worker.
    pub fn lease_ms(&self) -> u64 {
        if self.is_lasting { self.short_ms } else { LONG_MS }
    }

    /// A job of this label, for a push.
    pub fn job(&self, label: &str, more: Value) -> Value {
        self.story.pushes(label);
        let mut job = json!({"payload": payload(label)});
        if let (Some(job), Value::Object(more)) = (job.as_object_mut(), more) {
            job.extend(more);
        }
        mark(&mut job);
        job
    }

    /// The same with the queue that it is for.
    pub fn job_for(&self, queue: &str, label: &str, mut more: Value) -> Value {
        more["queue"] = json!(self.name(queue));
        self.job(label, more)
    }

    /// Pushes a job, and returns its id. The key makes it one job, however often it takes on a slow machine.
    pub async fn push(&self, queue: &str, label: &str, more: Value) -> String {
        let path = format!("/v1/queues/{}/jobs", self.name(queue));
        let push = Call::new("POST", path, self.job(label, more)).keyed(self.name(&format!("push-{label}")));
        let answer = self.lane.must_at(&self.lane.near, &push).await;
        answer["id"].as_str().unwrap().to_owned()
    }

    /// Gives a queue settings, which both servers know then: who is asked for them reads them.
    pub async fn settings(&self, queue: &str, settings: Value) {
        let path = format!("/v1/queues/{}", self.name(queue));
        self.lane.must_at(&self.lane.far, &Call::new("PUT", path.clone(), settings)).await;
        self.lane.must("GET", path, Value::Null).await;
    }

    /// The first worker settles a job, at `far` or at `near`. A repeat of what a slow machine has not answered may find its token used.
    pub async fn settle(&self, held: &Held, verb: &str, at_far: bool) {
        let server = if at_far { &self.lane.far } else { &self.lane.near };
        let path = format!("/v1/jobs/{}/{verb}", held.id);
        let settle = Call::new("POST", path, json!({"reservation": held.token}));
        let (tries, status, answer) = self.lane.call_at(server, &settle).await;
        assert!(status == 200 || (tries > 1 && status == 409), "{settle:?}: {status} {answer}");
    }

    /// The first worker takes so many jobs, at `far` or at `near`.
    pub async fn take(&self, queue: &str, count: usize, at_far: bool) -> Vec<Held> {
        let server = if at_far { &self.lane.far } else { &self.lane.near };
        self.take_at(server, queue, count, self.lease_ms()).await
    }

    /// Takes a job that is settled before the call, or held beside it: no fault must find its lease over.
    pub async fn take_long(&self, queue: &str, at_far: bool) -> Held {
        let server = if at_far { &self.lane.far } else { &self.lane.near };
        self.take_at(server, queue, 1, LONG_MS).await.remove(0)
    }

    /// Pushes a job and takes it, with this lease.
    pub async fn take_for(&self, lease_ms: u64, label: &str) -> Held {
        self.push("q", label, json!({})).await;
        self.take_at(&self.lane.near, "q", 1, lease_ms).await.remove(0)
    }

    async fn take_at(&self, server: &Server, queue: &str, count: usize, lease_ms: u64) -> Vec<Held> {
        let body = json!({"count": count, "lease_ms": lease_ms, "worker": self.name("w")});
        let reserve = Call::new("POST", format!("/v1/queues/{}/reserve", self.name(queue)), body);
        let mut held = Vec::new();
        while held.len() < count {
            let asked = self.story.now();
            let answer = reserve.send(&self.lane.recorder, &server.http, &server.base).await;
            let Some((200, answer)) = answer else { continue };
            let jobs = answer["jobs"].as_array().cloned().unwrap_or_default();
            self.story.deliveries(asked, lease_ms, &jobs);
            held.extend(jobs.iter().map(|job| Held {
                id: job["id"].as_str().unwrap().to_owned(),
                token: job["reservation"].as_str().unwrap().to_owned(),
            }));
            assert!(self.story.now() < PATIENCE, "nothing to take");
        }
        held
    }

    /// Pushes a job and takes it.
    pub async fn taken(&self, queue: &str, label: &str, more: Value, at_far: bool) -> Held {
        self.push(queue, label, more).await;
        self.take(queue, 1, at_far).await.remove(0)
    }
}

/// A verb, and how a case of it is prepared.
pub struct Verb {
    pub name: &'static str,
    pub prepare: for<'a> fn(&'a Prep<'a>) -> BoxFuture<'a, Case>,
}

impl Verb {
    /// Whether servers do it by themselves.
    pub fn is_background(&self) -> bool {
        self.name.starts_with('(')
    }
}
