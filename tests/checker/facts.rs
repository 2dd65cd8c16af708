//! The history, sorted by what it says of each job. Only what is certain is concluded: a call with an unknown outcome
//! has an end that never comes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::Value;

use super::client::MARK;
use super::history::{Call, History, Outcome, Verb};
use super::scan::Scan;

/// The end of what has no end that is known.
pub const NEVER: u64 = u64::MAX;

/// How one item of a call ended.
#[derive(Debug, Clone, Copy)]
pub enum Fate<'a> {
    Done(&'a Value),
    Refused,
    Unknown,
}

impl<'a> Fate<'a> {
    pub fn answer(self) -> Option<&'a Value> {
        match self {
            Self::Done(answer) => Some(answer),
            _ => None,
        }
    }

    pub fn may_have_happened(self) -> bool {
        !matches!(self, Self::Refused)
    }
}

/// What a pushed job belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin<'a> {
    Push,
    /// Of a call that stores all of its jobs or none.
    Together,
    /// Of a commit with this job and token.
    Child {
        id: &'a str,
        token: &'a str,
    },
    Member {
        batch: Option<&'a str>,
    },
    /// Of the `on_finished` of a batch; pushed later.
    Callback {
        batch: Option<&'a str>,
    },
    Schedule {
        name: &'a str,
    },
}

/// A job that a call was to store.
#[derive(Debug, Clone, Copy)]
pub struct Push<'a> {
    pub call: usize,
    /// Its index in the call.
    pub place: usize,
    pub mark: &'a str,
    pub queue: &'a str,
    pub spec: &'a Value,
    pub from: u64,
    /// [`NEVER`] unless the call succeeded.
    pub to: u64,
    pub fate: Fate<'a>,
    pub origin: Origin<'a>,
    /// The `Idempotency-Key` of its call.
    pub key: Option<&'a str>,
}

impl<'a> Push<'a> {
    /// The id in the response, and whether it is that of an earlier job with the same key.
    pub fn id(&self) -> Option<(&'a str, bool)> {
        let answer = self.fate.answer()?;
        Some((answer["id"].as_str()?, answer["deduplicated"] == true))
    }
}

/// A job in the response of a reserve or a pop.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'a> {
    pub call: usize,
    pub id: &'a str,
    /// `None`: popped.
    pub token: Option<&'a str>,
    pub job: &'a Value,
    /// When the request was sent that won it at the earliest: with an `Idempotency-Key`, the first one under it.
    pub from: u64,
    pub to: u64,
    pub key: Option<&'a str>,
    pub lease_us: u64,
    pub worker: Option<&'a str>,
}

impl<'a> Delivery<'a> {
    /// What is the same for a call and its repeats under a key.
    pub fn caller(&self) -> (Option<&'a str>, usize) {
        (self.key, if self.key.is_some() { 0 } else { self.call })
    }
}

/// A commit, rollback, extend or move.
#[derive(Debug, Clone, Copy)]
pub struct Settle<'a> {
    pub call: usize,
    pub verb: Verb,
    pub id: &'a str,
    pub token: &'a str,
    pub body: &'a Value,
    pub from: u64,
    pub to: u64,
    pub fate: Fate<'a>,
}

/// Everything that is known of one job.
#[derive(Debug, Default)]
pub struct Life<'a> {
    /// What may have made it; several where a push was repeated.
    pub pushes: Vec<Push<'a>>,
    pub deliveries: Vec<Delivery<'a>>,
    pub settles: Vec<Settle<'a>>,
    /// Cancels and edits.
    pub touches: Vec<&'a Call>,
    pub scanned: Vec<&'a Value>,
    /// When it was certainly there, at the latest; 0 where no response named it.
    pub known_us: u64,
    /// Whether a response named it as its new job (not as a duplicate).
    pub is_created: bool,
}

impl<'a> Life<'a> {
    fn note_known(&mut self, at: u64) {
        self.known_us = if self.known_us == 0 { at } else { self.known_us.min(at) };
    }

    /// Some view or specification of it, for what never changes.
    pub fn view(&self) -> Option<&'a Value> {
        self.deliveries.first().map(|delivery| delivery.job).or(self.scanned.first().copied())
    }

    pub fn batch(&self) -> Option<&'a str> {
        let pushed = self.pushes.iter().find_map(|push| match push.origin {
            Origin::Member { batch } => batch,
            _ => None,
        });
        pushed.or_else(|| self.view()?["batch"].as_str())
    }

    /// When its first push was sent.
    pub fn born_us(&self) -> u64 {
        self.pushes
            .iter()
            .filter(|push| push.fate.may_have_happened())
            .map(|push| push.from)
            .min()
            .unwrap_or(0)
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct Facts<'a> {
    pub pushes: Vec<Push<'a>>,
    pub deliveries: Vec<Delivery<'a>>,
    pub settles: Vec<Settle<'a>>,
    /// Pops that may have happened.
    pub pops: Vec<&'a Call>,
    /// Every other call.
    pub others: Vec<&'a Call>,
    /// Heartbeats and removals that may have happened, by worker.
    pub workers: HashMap<&'a str, Vec<&'a Call>>,
    /// In the order of ids.
    pub lives: BTreeMap<&'a str, Life<'a>>,
    /// The ids that were seen or created for each mark.
    pub ids: HashMap<&'a str, BTreeSet<&'a str>>,
    /// The places in `pushes` for each mark.
    pub marks: HashMap<&'a str, Vec<usize>>,
}

/// The mark of a job as a client sent it or as the server shows it.
pub fn mark_of(job: &Value) -> Option<&str> {
    job["headers"][MARK].as_str()
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value[name].as_array().into_iter().flatten()
}

/// What tells a call that hands out jobs from others than its repeats: its key or, of a settle that takes the next jobs, the first token.
fn key_of(call: &Call) -> Option<&str> {
    let items = ["commit", "rollback", "move"].into_iter().flat_map(|name| list(&call.body, name));
    let tokens = std::iter::once(&call.body).chain(items).filter_map(|item| item["reservation"].as_str());
    let of_next = || call.body["next"].is_object().then(|| tokens.into_iter().next()).flatten();
    call.key.as_deref().or_else(of_next)
}

fn has_jobs(call: &Call) -> bool {
    call.outcome.answer().is_some_and(|answer| list(answer, "jobs").next().is_some())
}

impl<'a> Facts<'a> {
    pub fn new(history: &'a History, scan: &'a Scan) -> Self {
        let mut facts = Self::default();
        let mut first_of_key: HashMap<&str, u64> = HashMap::new();
        for call in &history.calls {
            if let Some(key) = key_of(call) {
                first_of_key.entry(key).or_insert(call.invoked_us);
            }
        }
        // What a pop with a key has taken, its answer names, whichever of its calls was answered.
        let named = history.calls.iter().filter(|call| call.verb == Verb::Pop && has_jobs(call));
        let named: HashSet<&str> = named.filter_map(|call| call.key.as_deref()).collect();
        let mut asked: HashSet<&str> = HashSet::new();
        for (n, call) in history.calls.iter().enumerate() {
            let own = call.key.as_deref().filter(|_| call.verb == Verb::Pop && call.outcome.is_unknown());
            let is_told = own.is_some_and(|key| named.contains(key) || !asked.insert(key));
            facts.add(n, call, &first_of_key, is_told);
        }
        facts.sort(scan);
        facts
    }

    fn add(&mut self, n: usize, call: &'a Call, first_of_key: &HashMap<&str, u64>, is_told: bool) {
        let whole = match &call.outcome {
            Outcome::Ok { answer, .. } => Fate::Done(answer),
            Outcome::Refused { .. } => Fate::Refused,
            Outcome::Unknown { .. } => Fate::Unknown,
        };
        for job in whole.answer().into_iter().flat_map(|answer| list(&answer["next"], "jobs")) {
            self.add_delivery(n, call, job, first_of_key);
        }
        match call.verb {
            Verb::Push => self.add_push(n, 0, call, &call.target, &call.body, whole, Origin::Push),
            Verb::PushMany => {
                for (place, job) in list(&call.body, "jobs").enumerate() {
                    let fate = item(whole, "results", place);
                    self.add_push(n, place, call, &call.target, job, fate, Origin::Push);
                }
            }
            Verb::PushTogether => {
                let origin = if call.body["atomic"] == false { Origin::Push } else { Origin::Together };
                for (place, job) in list(&call.body, "jobs").enumerate() {
                    let fate = item(whole, "results", place);
                    self.add_push(n, place, call, text(job, "queue"), job, fate, origin);
                }
            }
            Verb::CreateBatch | Verb::AddToBatch => self.add_batch(n, call, whole),
            Verb::PutSchedule => {
                let origin = Origin::Schedule { name: &call.target };
                self.add_push(n, 0, call, text(&call.body, "queue"), &call.body["job"], whole, origin);
                self.others.push(call);
            }
            Verb::Reserve | Verb::Pop => {
                for job in whole.answer().into_iter().flat_map(|answer| list(answer, "jobs")) {
                    self.add_delivery(n, call, job, first_of_key);
                }
                if call.verb == Verb::Pop && may_have_happened(call) && !is_told {
                    self.pops.push(call);
                }
            }
            Verb::Commit | Verb::Rollback | Verb::Extend | Verb::Move => {
                self.add_settle(n, call, call.verb, &call.target, &call.body, whole);
            }
            Verb::Settle => {
                for (verb, name) in [
                    (Verb::Commit, "commit"),
                    (Verb::Rollback, "rollback"),
                    (Verb::Extend, "extend"),
                    (Verb::Move, "move"),
                ] {
                    for (place, body) in list(&call.body, name).enumerate() {
                        self.add_settle(n, call, verb, text(body, "id"), body, item(whole, name, place));
                    }
                }
            }
            _ => self.others.push(call),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "each is a column of the record")]
    fn add_push(
        &mut self,
        n: usize,
        place: usize,
        call: &'a Call,
        queue: &'a str,
        spec: &'a Value,
        fate: Fate<'a>,
        origin: Origin<'a>,
    ) {
        let mark = mark_of(spec).unwrap_or("unmarked");
        let to = if fate.answer().is_some() { call.completed_us } else { NEVER };
        self.marks.entry(mark).or_default().push(self.pushes.len());
        let (from, key) = (call.invoked_us, call.key.as_deref());
        self.pushes.push(Push { call: n, place, mark, queue, spec, from, to, fate, origin, key });
    }

    fn add_batch(&mut self, n: usize, call: &'a Call, whole: Fate<'a>) {
        let batch = match call.verb {
            Verb::AddToBatch => Some(call.target.as_str()),
            _ => whole.answer().and_then(|answer| answer["id"].as_str()),
        };
        for (place, job) in list(&call.body, "jobs").enumerate() {
            let fate = item(whole, "jobs", place);
            self.add_push(n, place, call, text(job, "queue"), job, fate, Origin::Member { batch });
        }
        let callback = &call.body["on_finished"];
        if callback.is_object() {
            let origin = Origin::Callback { batch };
            self.add_push(n, usize::MAX, call, text(callback, "queue"), callback, whole, origin);
        }
        self.others.push(call);
    }

    fn add_delivery(&mut self, n: usize, call: &'a Call, job: &'a Value, first_of_key: &HashMap<&str, u64>) {
        let key = key_of(call);
        let ask = if call.body["next"].is_object() { &call.body["next"] } else { &call.body };
        self.deliveries.push(Delivery {
            call: n,
            id: text(job, "id"),
            token: job["reservation"].as_str(),
            job,
            from: key.and_then(|key| first_of_key.get(key).copied()).unwrap_or(call.invoked_us),
            to: call.completed_us,
            key,
            lease_us: ask["lease_ms"].as_u64().unwrap_or(0) * 1000,
            worker: ask["worker"].as_str(),
        });
    }

    fn add_settle(
        &mut self,
        n: usize,
        call: &'a Call,
        verb: Verb,
        id: &'a str,
        body: &'a Value,
        fate: Fate<'a>,
    ) {
        let token = text(body, "reservation");
        let to = if fate.answer().is_some() { call.completed_us } else { NEVER };
        self.settles.push(Settle { call: n, verb, id, token, body, from: call.invoked_us, to, fate });
        for (place, job) in list(body, "push").enumerate() {
            let fate = item(fate, "pushed", place);
            self.add_push(n, place, call, text(job, "queue"), job, fate, Origin::Child { id, token });
        }
    }

    /// Gives each job what is known of it.
    fn sort(&mut self, scan: &'a Scan) {
        for delivery in &self.deliveries {
            let life = self.lives.entry(delivery.id).or_default();
            life.deliveries.push(*delivery);
            life.note_known(delivery.to);
            self.ids.entry(mark_of(delivery.job).unwrap_or("unmarked")).or_default().insert(delivery.id);
        }
        for job in &scan.jobs {
            let id = text(job, "id");
            self.lives.entry(id).or_default().scanned.push(job);
            self.ids.entry(mark_of(job).unwrap_or("unmarked")).or_default().insert(id);
        }
        for push in &self.pushes {
            let Some((id, is_duplicate)) = push.id().filter(|_| is_immediate(push.origin)) else { continue };
            let life = self.lives.entry(id).or_default();
            life.note_known(push.to);
            if !is_duplicate {
                life.is_created = true;
                self.ids.entry(push.mark).or_default().insert(id);
            }
        }
        for (mark, places) in &self.marks {
            for id in self.ids.get(mark).into_iter().flatten() {
                let life = self.lives.entry(id).or_default();
                life.pushes.extend(places.iter().map(|place| self.pushes[*place]));
            }
        }
        self.attribute_duplicates();
        for settle in &self.settles {
            self.lives.entry(settle.id).or_default().settles.push(*settle);
        }
        for call in &self.others {
            if matches!(call.verb, Verb::Heartbeat | Verb::RemoveWorker) && may_have_happened(call) {
                self.workers.entry(&call.target).or_default().push(call);
            }
            if call.verb.is_touch() {
                self.lives.entry(&call.target).or_default().touches.push(call);
            }
        }
    }

    /// A job that only its duplicates name was made by a push with the same key that had no response.
    fn attribute_duplicates(&mut self) {
        for duplicate in &self.pushes {
            let (Some((id, true)), key) = (duplicate.id(), &duplicate.spec["key"]) else { continue };
            let life = self.lives.entry(id).or_default();
            if life.pushes.is_empty() {
                let is_like = |push: &&Push<'_>| push.queue == duplicate.queue && push.spec["key"] == *key;
                let silent =
                    self.pushes.iter().filter(is_like).filter(|push| matches!(push.fate, Fate::Unknown));
                life.pushes.extend(silent);
            }
        }
        // A push that replaces what a job does is one more of its pushes.
        for push in self.pushes.iter().filter(|push| push.spec["key_conflict"] == "replace") {
            let answered = push.id().map(|(id, _)| id);
            let is_same = |life: &Life<'_>| {
                let of_key = |other: &Push<'_>| {
                    other.queue == push.queue
                        && other.spec["key"] == push.spec["key"]
                        && other.call != push.call
                };
                life.pushes.iter().any(of_key)
            };
            for (id, life) in &mut self.lives {
                if is_same(life)
                    && answered.is_none_or(|answered| answered == *id)
                    && push.fate.may_have_happened()
                {
                    life.pushes.push(*push);
                }
            }
        }
    }

    /// The calls that may have removed jobs of whole queues.
    pub fn removals(&self) -> impl Iterator<Item = &'a Call> {
        self.possible(&[Verb::Purge, Verb::DeleteQueue, Verb::DeleteQueues, Verb::Operation])
            .filter(|call| call.verb != Verb::Operation || call.body["action"] == "delete")
    }

    /// The other calls of these verbs that may have happened.
    pub fn possible(&self, verbs: &'static [Verb]) -> impl Iterator<Item = &'a Call> {
        self.others.iter().copied().filter(move |call| verbs.contains(&call.verb) && may_have_happened(call))
    }
}

/// Whether the job is stored by the call itself, not later.
pub fn is_immediate(origin: Origin<'_>) -> bool {
    !matches!(origin, Origin::Callback { .. } | Origin::Schedule { .. })
}

pub fn may_have_happened(call: &Call) -> bool {
    !matches!(call.outcome, Outcome::Refused { .. })
}

pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// What a response of many items says of one.
fn item<'a>(whole: Fate<'a>, list: &str, place: usize) -> Fate<'a> {
    let Fate::Done(answer) = whole else { return whole };
    let item = &answer[list][place];
    match item["status"].as_u64() {
        Some(200..300) => Fate::Done(item),
        Some(400..500 | 507) => Fate::Refused,
        Some(_) => Fate::Unknown,
        None if item.is_null() => Fate::Unknown,
        None => Fate::Done(item),
    }
}
