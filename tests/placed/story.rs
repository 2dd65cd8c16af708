//! What happened in one case, as its clients saw it, and what is wrong with that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use mongodb::bson::{Bson, Document};
use serde_json::{Value, json};

/// How far a server's estimate of the store's clock may be behind it: so much earlier a lease may be over.
pub const SLACK: Duration = Duration::from_millis(250);

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Ok,
    Refused(u16),
    /// No answer, or one that leaves open whether it happened.
    Unknown,
}

impl Outcome {
    pub fn of(answer: Option<&(u16, Value)>) -> Self {
        match answer {
            // It says itself that it is not all, and asks for a repeat.
            Some((200..=299, body)) if body["more"] == true => Self::Unknown,
            Some((409, body)) if body["code"] == "request-pending" => Self::Unknown,
            Some((200..=299, _)) => Self::Ok,
            Some((status @ 400..=499, _)) => Self::Refused(*status),
            _ => Self::Unknown,
        }
    }
}

/// A job that a reserve or a pop returned.
#[derive(Debug, Clone)]
pub struct Delivered {
    pub asked: Duration,
    /// When the first call was made that may have claimed it: its lease runs from then on, also where a repeat returned it.
    pub leased: Duration,
    pub got: Duration,
    pub lease: Duration,
    pub id: String,
    pub label: String,
    pub token: String,
    pub job: Value,
}

impl Delivered {
    /// Until when the lease lasted for certain.
    fn leased_until(&self) -> Duration {
        (self.leased + self.lease).saturating_sub(SLACK)
    }
}

/// A call that ends a hold.
#[derive(Debug, Clone)]
pub struct Settled {
    pub asked: Duration,
    pub got: Duration,
    pub id: String,
    pub token: String,
    pub outcome: Outcome,
    /// Whether it was the first that was tried with its token.
    pub is_first: bool,
    /// Whether it ends the job, too: a commit.
    pub ends_job: bool,
}

#[derive(Default)]
pub struct Log {
    /// The labels of what was pushed, and how many jobs of each there may be.
    pub pushed: BTreeMap<String, usize>,
    pub delivered: Vec<Delivered>,
    pub settled: Vec<Settled>,
}

/// See the module's documentation.
pub struct Story {
    pub tag: String,
    since: Instant,
    pub log: Mutex<Log>,
}

/// The payload of a job. What a label says is checked wherever it comes back.
pub fn payload(label: &str) -> Value {
    let check: u64 = label.bytes().map(u64::from).sum();
    json!({"label": label, "check": check, "list": [null, "ä", label.len()]})
}

fn label(job: &Value) -> String {
    let label = job["payload"]["label"].as_str().unwrap_or("?").to_owned();
    if job["payload"] == payload(&label) { label } else { format!("? {}", job["payload"]) }
}

impl Story {
    pub fn new(tag: &str) -> Self {
        Self { tag: tag.to_owned(), since: Instant::now(), log: Mutex::default() }
    }

    pub fn now(&self) -> Duration {
        self.since.elapsed()
    }

    /// A job with this label is pushed, or may be.
    pub fn pushes(&self, label: &str) {
        self.log.lock().unwrap().pushed.entry(label.to_owned()).or_insert(1);
    }

    /// So many more jobs of this label are not one too many.
    pub fn allow_more(&self, label: &str, copies: usize) {
        *self.log.lock().unwrap().pushed.entry(label.to_owned()).or_default() += copies;
    }

    /// Jobs were returned by a call.
    pub fn deliveries(&self, asked: Duration, lease_ms: u64, jobs: &[Value]) {
        self.repeated_deliveries(asked, asked, lease_ms, jobs);
    }

    /// Jobs were returned by a call that may have repeated one made at `leased`.
    pub fn repeated_deliveries(&self, leased: Duration, asked: Duration, lease_ms: u64, jobs: &[Value]) {
        let got = self.now();
        let lease = Duration::from_millis(lease_ms);
        let text = |job: &Value, field: &str| job[field].as_str().unwrap_or_default().to_owned();
        let delivered = jobs.iter().map(|job| Delivered {
            asked,
            leased,
            got,
            lease,
            id: text(job, "id"),
            label: label(job),
            token: text(job, "reservation"),
            job: job.clone(),
        });
        self.log.lock().unwrap().delivered.extend(delivered);
    }

    /// A call that ends a hold begins; returns its place.
    pub fn settling(&self, id: &str, token: &str, ends_job: bool) -> usize {
        let asked = self.now();
        let mut log = self.log.lock().unwrap();
        let is_first = !log.settled.iter().any(|settled| settled.token == token);
        let (id, token) = (id.to_owned(), token.to_owned());
        let got = Duration::MAX;
        log.settled.push(Settled { asked, got, id, token, outcome: Outcome::Unknown, is_first, ends_job });
        log.settled.len() - 1
    }

    /// It has ended so.
    pub fn settled(&self, place: usize, outcome: Outcome) {
        let got = self.now();
        let mut log = self.log.lock().unwrap();
        (log.settled[place].got, log.settled[place].outcome) = (got, outcome);
    }

    /// Every delivery of this label, in the order of their answers.
    pub fn of(&self, label: &str) -> Vec<Delivered> {
        let log = self.log.lock().unwrap();
        log.delivered.iter().filter(|one| one.label == label).cloned().collect()
    }
}

/// What the rules of a case are, beside those that hold for all.
#[derive(Default, Clone)]
pub struct Rules {
    /// Whether its call ends reservations of others, as a forced cancel does.
    pub breaks_holds: bool,
    /// Labels that come one after the other.
    pub in_order: Vec<String>,
    /// Whether only one of its jobs may be held at once.
    pub one_at_a_time: bool,
    /// Only one of its jobs may be delivered within this time.
    pub one_in: Option<Duration>,
    /// Labels that need not come: their removal is what the call is for.
    pub may_vanish: Vec<String>,
}

/// From when until when a job was certainly held.
fn hold(one: &Delivered, log: &Log, breaks: bool) -> Option<(Duration, Duration)> {
    let ends = log.settled.iter().filter(|end| end.token == one.token).map(|end| end.asked);
    let until = ends.fold(one.leased_until(), Ord::min);
    (!breaks && !one.token.is_empty() && one.got < until).then_some((one.got, until))
}

/// What contradicts what the server promises. `kept`: the jobs that are there in the end, all of them finished.
pub fn judge(story: &Story, rules: &Rules, kept: &[Document]) -> Vec<String> {
    let log = story.log.lock().unwrap();
    let mut wrong = Vec::new();
    let mut ids: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for one in &log.delivered {
        ids.entry(&one.label).or_default().insert(&one.id);
    }
    for document in kept {
        let label = document.get_document("payload").ok().and_then(|payload| payload.get_str("label").ok());
        if let (Some(label), Ok(id)) = (label, document.get_str("_id")) {
            ids.entry(label).or_default().insert(id);
        }
    }
    for (label, ids) in &ids {
        match log.pushed.get(*label) {
            None => wrong.push(format!("invented: {label} {ids:?}")),
            Some(copies) if ids.len() > *copies => wrong.push(format!("doubled: {label} {ids:?}")),
            Some(_) => {}
        }
    }
    let may_be_over = |end: &&Settled| end.ends_job && matches!(end.outcome, Outcome::Ok | Outcome::Unknown);
    let ended: BTreeSet<&str> = log.settled.iter().filter(may_be_over).map(|end| end.id.as_str()).collect();
    for label in log.pushed.keys().filter(|label| !rules.may_vanish.contains(label)) {
        let is_there = ids.get(label.as_str()).is_some_and(|ids| {
            let there =
                |id: &&str| kept.iter().any(|job| job.get("_id") == Some(&Bson::from((*id).to_owned())));
            ids.iter().all(|id| ended.contains(id) || there(id))
        });
        if !is_there {
            wrong.push(format!("lost: {label}"));
        }
    }
    wrong.extend(after_the_end(&log));
    wrong.extend(dead_tokens(&log, rules));
    wrong.extend(holders(&log, rules));
    wrong.extend(too_often(&log, rules));
    for pair in rules.in_order.windows(2) {
        let first_end = log
            .settled
            .iter()
            .filter(|end| ids.get(pair[0].as_str()).is_some_and(|ids| ids.contains(end.id.as_str())));
        let first_end = first_end.map(|end| end.asked).min().unwrap_or(Duration::MAX);
        let next = log.delivered.iter().filter(|one| one.label == pair[1]).map(|one| one.got).min();
        if next.is_some_and(|next| next < first_end) {
            wrong.push(format!("out of order: {} before the end of {}", pair[1], pair[0]));
        }
    }
    wrong
}

/// Deliveries and effective commits after an acknowledged commit.
fn after_the_end(log: &Log) -> Vec<String> {
    let mut wrong = Vec::new();
    let done: Vec<&Settled> =
        log.settled.iter().filter(|end| end.ends_job && end.outcome == Outcome::Ok).collect();
    for end in &done {
        for one in log.delivered.iter().filter(|one| one.id == end.id && one.asked > end.got) {
            wrong.push(format!("delivered after its end: {}", one.label));
        }
        for other in done.iter().filter(|other| other.id == end.id && other.token > end.token) {
            wrong.push(format!("ended twice: {} by {} and {}", end.id, end.token, other.token));
        }
    }
    wrong
}

/// Tokens that were refused although their lease was not over.
fn dead_tokens(log: &Log, rules: &Rules) -> Vec<String> {
    let mut wrong = Vec::new();
    let refused = |end: &&Settled| end.is_first && end.outcome == Outcome::Refused(409);
    for end in log.settled.iter().filter(refused).filter(|_| !rules.breaks_holds) {
        let holds = log.delivered.iter().find(|one| one.token == end.token);
        if let Some(one) = holds.filter(|one| end.got < one.leased_until()) {
            wrong.push(format!("dead token: {} {}", one.label, one.token));
        }
    }
    wrong
}

/// Jobs that two held at once.
fn holders(log: &Log, rules: &Rules) -> Vec<String> {
    let mut wrong = Vec::new();
    let holds: Vec<_> =
        log.delivered.iter().filter_map(|one| Some((one, hold(one, log, rules.breaks_holds)?))).collect();
    for (n, (one, (from, until))) in holds.iter().enumerate() {
        for (other, (other_from, other_until)) in &holds[n + 1..] {
            let is_same = one.id == other.id;
            let meets = from.max(other_from) < until.min(other_until);
            if meets && one.token != other.token && (is_same || rules.one_at_a_time) {
                wrong.push(format!("two holders: {} and {}", one.label, other.label));
            }
        }
    }
    wrong
}

/// Deliveries that were certainly too close to each other.
fn too_often(log: &Log, rules: &Rules) -> Vec<String> {
    let Some(time) = rules.one_in else { return Vec::new() };
    let mut wrong = Vec::new();
    for (n, one) in log.delivered.iter().enumerate() {
        for other in log.delivered[n + 1..].iter().filter(|other| other.token != one.token) {
            // The claim of each lies between its request and its answer.
            let apart = other.got.max(one.got).saturating_sub(other.asked.min(one.asked));
            if apart < time {
                wrong.push(format!("too often: {} and {}, {apart:?} apart", one.label, other.label));
            }
        }
    }
    wrong
}
