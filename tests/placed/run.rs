//! One placed case: a verb, the moment at which it fails, and the harm; then the rest of the system goes on, then the
//! first server comes back, and then everything is finished and judged.

use std::cell::Cell;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::answer::{Answer, ids, of_commit};
use crate::case::{Case, Done, Found, Prep, Verb};
use crate::common::fleet::kill_9;
use crate::common::proxy::{Fault, Placed};
use crate::common::server::{PATIENCE, client};
use crate::common::signal::{self, Signal};
use crate::harm::{Harm, Moment};
use crate::lane::{Lane, of_case};
use crate::story::{Outcome, SLACK, Story, judge};

/// How long a fault is waited for.
const MEETS: Duration = Duration::from_secs(6);
/// How much longer than a short lease the rest goes on while the first server is away.
const LONGER: Duration = Duration::from_millis(250);
/// How long a repeat is tried meanwhile.
const REPEAT: Duration = Duration::from_millis(1500);
/// Collections whose documents belong to a case by their `_id`.
const OTHERS: [&str; 7] = ["queues", "semaphores", "schedules", "workers", "groups", "limits", "keys"];

/// How a command begins that looks for what a call with a key was answered: the call is known by a hash.
const FIND_REQUESTS: &str = "find\0\u{9}\0\0\0requests\0";

/// What came of a case.
#[derive(Debug, Clone)]
pub struct Report {
    /// `None` for a background task.
    pub outcome: Option<Outcome>,
    pub done: Done,
    pub wrong: Vec<String>,
}

/// A case that has been prepared.
pub struct World<'a> {
    pub lane: &'a mut Lane,
    story: Story,
    pub case: Case,
    /// When the call was made.
    asked: Duration,
    /// When it had ended.
    answered: Cell<Duration>,
    /// Whether the client has repeated it, with an answer or without.
    is_repeated: Cell<bool>,
    /// Its places among what is settled.
    settling: Vec<usize>,
    /// The lease that a lasting fault lasts for longer than.
    short_ms: u64,
}

/// A fault that is armed.
enum Armed {
    Command(Placed),
    Point(String),
    /// The first one only leads to the second.
    Second(#[expect(dead_code, reason = "strikes until it is dropped")] Placed, Box<Armed>),
}

impl Armed {
    /// The fault that is waited for.
    fn last(&self) -> &Self {
        match self {
            Self::Second(_, then) => then.last(),
            own => own,
        }
    }
}

impl<'a> World<'a> {
    pub async fn prepare(lane: &'a mut Lane, verb: &Verb, is_lasting: bool, short_ms: u64) -> Self {
        let story = Story::new(&lane.next_tag());
        let case = (verb.prepare)(&Prep { lane, story: &story, is_lasting, short_ms }).await;
        let mut texts = case.texts.clone();
        if case.call.as_ref().is_some_and(|call| call.key.is_some()) {
            texts.push(FIND_REQUESTS.to_owned());
        }
        texts.push(format!("{}.", story.tag));
        texts.push("barrier".to_owned());
        lane.proxy.watch(&texts);
        let (answered, is_repeated) = Default::default();
        Self {
            lane,
            story,
            case,
            asked: Duration::ZERO,
            answered,
            is_repeated,
            settling: Vec::new(),
            short_ms,
        }
    }

    /// Notes that the call is about to end what is held. Returns the places.
    fn settle(&self) -> Vec<usize> {
        let Some(commits) = self.case.settles else { return Vec::new() };
        let held = self.case.held.iter().enumerate();
        held.map(|(n, held)| self.story.settling(&held.id, &held.token, n < commits)).collect()
    }

    /// Makes the call at `far`, or lets `far` alone do what it does by itself.
    pub fn begin(&mut self) -> Option<JoinHandle<Answer>> {
        self.asked = self.case.before.as_ref().map_or(self.story.now(), |before| before.asked);
        if self.case.stops_near() {
            signal::send(self.lane.near.child.id(), Signal::SIGSTOP);
        }
        let call = self.case.call.clone()?;
        self.settling = self.settle();
        let base = self.lane.far.base.clone();
        // A connection of its own, which is closed when the client leaves.
        let http = client();
        let recorder = self.lane.recorder.clone();
        let calling = tokio::spawn(async move { call.send(&recorder, &http, &base).await });
        if let Some(prompt) = self.case.prompt.clone() {
            let (http, base) = (self.lane.near.http.clone(), self.lane.near.base.clone());
            let recorder = self.lane.recorder.clone();
            tokio::spawn(async move {
                sleep(Duration::from_millis(80)).await;
                prompt.send(&recorder, &http, &base).await
            });
        }
        Some(calling)
    }

    /// Notes how the call ended.
    pub fn ended(&self, answer: &Answer) -> Outcome {
        self.answered.set(self.story.now());
        let outcome = Outcome::of(answer.as_ref());
        self.settling.iter().for_each(|place| self.story.settled(*place, of_commit(answer)));
        self.got(self.asked, answer);
        outcome
    }

    /// Notes the jobs that were handed out.
    fn got(&self, asked: Duration, answer: &Answer) {
        let (Some(lease_ms), Some((200, answer))) = (self.case.lease_ms, answer) else { return };
        let jobs = answer["jobs"].as_array().or(answer["next"]["jobs"].as_array());
        let jobs = jobs.cloned().unwrap_or_default();
        self.story.repeated_deliveries(self.asked, asked, lease_ms, &jobs);
        for job in jobs.iter().filter(|job| job["reservation"].is_null()) {
            let popped = self.story.settling(job["id"].as_str().unwrap(), "", true);
            self.story.settled(popped, Outcome::Ok);
        }
    }

    /// The client repeats its call at the other server.
    pub async fn repeat(&self) -> Answer {
        let call = self.case.call.clone().filter(|_| self.case.repeats)?;
        self.is_repeated.set(true);
        let (asked, settling) = (self.story.now(), self.settle());
        let answer = loop {
            match self.lane.at_near(&call).await {
                Some((503, _)) | None => sleep(Duration::from_millis(30)).await,
                Some((409, answer)) if answer["code"] == "request-pending" => {}
                answer => break answer,
            }
        };
        settling.iter().for_each(|place| self.story.settled(*place, of_commit(&answer)));
        self.got(asked, &answer);
        answer
    }

    /// The rest of the system goes on for longer than a lease.
    async fn rest(&self, repeat_first: bool) -> Answer {
        if self.case.stops_near() {
            signal::send(self.lane.near.child.id(), Signal::SIGCONT);
        }
        let repeat = async { timeout(REPEAT, self.repeat()).await.ok().flatten() };
        let time = Duration::from_millis(self.short_ms) + LONGER;
        if repeat_first {
            let repeated = repeat.await;
            self.lane.work_for(&self.story, time).await;
            return repeated;
        }
        self.lane.work_for(&self.story, time).await;
        repeat.await
    }

    /// Who has got jobs finishes them.
    pub async fn finish_held(&self) {
        if self.case.is_commit {
            return;
        }
        let open: Vec<(String, String)> = {
            let log = self.story.log.lock().unwrap();
            let open = log.delivered.iter().filter(|one| !one.token.is_empty());
            let is_over = |token: &str| log.settled.iter().any(|end| end.token == token && end.ends_job);
            open.filter(|one| !is_over(&one.token)).map(|one| (one.id.clone(), one.token.clone())).collect()
        };
        for (id, token) in open {
            self.lane.commit(&self.story, &id, &token, true).await;
        }
    }

    async fn jobs(&self) -> Vec<Document> {
        self.lane.documents("jobs", "queue", &self.story.tag).await
    }

    /// What is there at one moment: a server that was parted may commit between two reads.
    pub async fn found(&self, answer: Answer) -> Found<'_> {
        let tag = &self.story.tag;
        let own = |field: &str| doc! { field: of_case(tag) };
        let mut wanted: Vec<(&'static str, Document)> = OTHERS.map(|name| (name, own("_id"))).into();
        wanted.push(("api_keys", own("name")));
        // The record is a text, in which the name of a queue is.
        let of_queue = format!("\"{tag}\\.");
        wanted.push(("operations", doc! { "body": { "$regex": of_queue } }));
        wanted.extend(self.case.others.iter().map(|(name, id)| (*name, doc! { "_id": id })));
        wanted.push(("jobs", own("queue")));
        let mut others = self.lane.at_one_moment(&wanted).await;
        let jobs = others.pop().map(|(_, jobs)| jobs).unwrap_or_default();
        Found { jobs, others, story: &self.story, answer, asked: self.asked, until: self.story.now() }
    }

    /// Finishes everything. Returns what is wrong if that does not end, and the jobs that are left.
    pub async fn drain(&self) -> (Vec<String>, Vec<Document>) {
        for call in &self.case.cleanup {
            self.lane.call(call).await;
        }
        let end = self.story.now() + PATIENCE;
        loop {
            let active = ["ready", "reserved", "blocked"];
            let left = doc! { "queue": of_case(&self.story.tag), "state": { "$in": active.to_vec() } };
            let left = self.lane.database.collection::<Document>("jobs").count_documents(left).await.unwrap();
            if left == 0 {
                return (Vec::new(), self.jobs().await);
            }
            if self.story.now() > end {
                let jobs = self.jobs().await;
                return (vec![format!("not drained: {jobs:?}")], jobs);
            }
            if self.lane.work(&self.story).await == 0 {
                sleep(Duration::from_millis(40)).await;
            }
        }
    }

    /// What is wrong in the end.
    pub async fn verdict(&self, found: Found<'_>, outcome: Option<Outcome>, was_repeated: bool) -> Report {
        let (mut wrong, kept) = self.drain().await;
        let done = (self.case.effect)(&found);
        match (outcome, &done) {
            (_, Done::Part(what)) => wrong.push(format!("half done: {what}")),
            (Some(Outcome::Ok), Done::No) => wrong.push("acknowledged, and not done".to_owned()),
            (Some(Outcome::Refused(409)), Done::Yes) if self.case.may_be_lost => {}
            // That it was done before is what the repeat is to be told, also by one whose answer was not waited for.
            (Some(Outcome::Refused(status)), Done::Yes) if !self.is_repeated.get() => {
                wrong.push(format!("refused with {status}, and done"));
            }
            _ => {}
        }
        wrong.extend(self.told_otherwise(&found.answer));
        wrong.extend(judge(&self.story, &self.case.rules, &kept));
        let lines = self.lane.documents("groups", "_id", &self.story.tag).await;
        // Looked at behind the lines: what comes late comes with its line.
        if !lines.is_empty() && self.jobs().await.is_empty() {
            wrong.push(format!("a line of no jobs: {lines:?}"));
        }
        if !wrong.is_empty() {
            let log = self.story.log.lock().unwrap();
            wrong.push(format!("answer {:?}, asked {:?}", found.answer, self.asked));
            wrong.push(format!("delivered {:#?}\nsettled {:#?}", log.delivered, log.settled));
        }
        let done = if outcome == Some(Outcome::Unknown) && was_repeated { Done::Unclear } else { done };
        Report { outcome, done, wrong }
    }

    /// Whether the repeat was told of other things than the call before it.
    fn told_otherwise(&self, answer: &Answer) -> Option<String> {
        let is_in_doubt =
            |now: &Value| now["next"]["problem"].is_object() || now.to_string().contains("\"status\":503");
        if answer.as_ref().is_some_and(|(_, now)| is_in_doubt(now)) {
            return None; // it says itself that it does not know
        }
        let before = self.case.before.as_ref()?;
        // The repeat of a reserve is told of what is still held.
        let lease = self.case.lease_ms.filter(|ms| *ms > 0).map(Duration::from_millis);
        if lease.is_some_and(|lease| self.answered.get() + SLACK > before.asked + lease) {
            return None;
        }
        let (_, first) = before.answer.as_ref().filter(|(status, _)| *status < 300)?;
        let (_, now) = answer.as_ref().filter(|(status, _)| *status < 300)?;
        (ids(first) != ids(now)).then(|| format!("the repeat was told {now}, and not {first}"))
    }

    fn arm(&self, moment: &Moment, harm: Harm) -> Armed {
        match moment {
            Moment::Command(step) => {
                let (fault, always) = harm.fault();
                let proxy = &self.lane.proxy;
                Armed::Command(if always { proxy.from(step, fault) } else { proxy.at(step, fault) })
            }
            Moment::Point(name) => {
                std::fs::write(self.lane.point(name), harm.action()).unwrap();
                Armed::Point(name.clone())
            }
            Moment::Second(first, then) => {
                let first = self.lane.proxy.at(first, Fault::CutAfter);
                Armed::Second(first, Box::new(self.arm(then, harm)))
            }
        }
    }

    /// Waits until the fault has struck; `false` where the call ends without it.
    async fn met(&self, armed: &Armed, call: Option<&mut JoinHandle<Answer>>) -> bool {
        let is_second = matches!(armed, Armed::Second(..));
        let armed = armed.last();
        let struck = async {
            match armed {
                Armed::Second(..) => false,
                Armed::Command(placed) => placed.met_within(MEETS).await,
                Armed::Point(name) => {
                    let met = self.lane.point(&format!("{name}.met"));
                    let seen = async {
                        while !met.exists() {
                            sleep(Duration::from_millis(4)).await;
                        }
                    };
                    timeout(MEETS, seen).await.is_ok()
                }
            }
        };
        let Some(call) = call else { return struck.await };
        let ended = async {
            while !call.is_finished() {
                sleep(Duration::from_millis(4)).await;
            }
            // A server looks after a lost claim a second later.
            let later = if is_second && self.case.lease_ms.is_some() { 2500 } else { 15 };
            sleep(Duration::from_millis(later)).await;
        };
        tokio::select! {
            struck = struck => struck,
            () = ended => match armed {
                Armed::Second(..) => false,
                Armed::Command(placed) => placed.times() > 0,
                Armed::Point(name) => self.lane.point(&format!("{name}.met")).exists(),
            },
        }
    }

    fn release(&self, armed: &Armed) {
        match armed.last() {
            Armed::Second(..) => {}
            Armed::Command(placed) => placed.release(),
            Armed::Point(name) => std::fs::write(self.lane.point(&format!("{name}.go")), "").unwrap(),
        }
    }

    /// What happens to the first server, the rest, and its return. Returns what the repeat was answered.
    async fn suffer(
        &mut self,
        harm: Harm,
        armed: &Armed,
        call: Option<&JoinHandle<Answer>>,
        repeat_first: bool,
    ) -> Answer {
        match harm {
            Harm::Late | Harm::LateReply | Harm::Paused => {}
            Harm::PartedBefore | Harm::PartedAfter => self.lane.proxy.part(),
            Harm::Stopped => {
                signal::send(self.lane.far.child.id(), Signal::SIGSTOP);
                self.release(armed);
            }
            Harm::ClientGone => {
                call.inspect(|call| call.abort());
                sleep(Duration::from_millis(40)).await;
                self.release(armed);
            }
            Harm::KilledBefore | Harm::KilledAfter => {
                kill_9(&self.lane.far).await;
                self.release(armed);
                self.lane.end_sessions().await;
            }
            _ => return None,
        }
        let repeated = self.rest(repeat_first).await;
        match harm {
            Harm::PartedBefore | Harm::PartedAfter => {
                self.release(armed);
                self.lane.proxy.heal();
            }
            Harm::Stopped => signal::send(self.lane.far.child.id(), Signal::SIGCONT),
            Harm::KilledBefore | Harm::KilledAfter => self.lane.restart_far().await,
            _ => self.release(armed),
        }
        repeated
    }
}

/// Runs one placed case; `None` where the fault was never met. `short_ms`: the lease that a lasting fault lasts for longer than.
pub async fn run(
    lane: &mut Lane,
    verb: &Verb,
    moment: &Moment,
    harm: Harm,
    repeat_first: bool,
    short_ms: u64,
) -> Option<Report> {
    let mut world = World::prepare(lane, verb, harm.is_lasting(), short_ms).await;
    let armed = world.arm(moment, harm);
    let mut call = world.begin();
    let is_met = world.met(&armed, call.as_mut()).await;
    let mut repeated = None;
    if is_met {
        repeated = world.suffer(harm, &armed, call.as_ref(), repeat_first).await;
    } else {
        world.lane.clear_points(); // who comes to the point now is not to wait for the end of the call
    }
    let answer = match call {
        Some(call) => timeout(PATIENCE, call).await.expect("the call never ends").ok().flatten(),
        None => {
            sleep(Duration::from_millis(if is_met { 50 } else { 0 })).await;
            None
        }
    };
    let outcome = world.case.call.is_some().then(|| world.ended(&answer));
    drop(armed);
    world.lane.clear_points();
    if world.case.stops_near() {
        signal::send(world.lane.near.child.id(), Signal::SIGCONT);
    }
    if outcome == Some(Outcome::Unknown) {
        sleep(Duration::from_millis(60)).await;
    }
    let was_repeated = matches!(repeated, Some((200..=299, _)));
    let found = world.found(answer).await;
    if outcome == Some(Outcome::Unknown) && !was_repeated && world.case.repeats {
        timeout(PATIENCE, world.repeat()).await.expect("the repeat is never answered");
    }
    if harm.is_lasting() || outcome == Some(Outcome::Unknown) {
        let keeps_for = world.case.keeps_for;
        world.lane.work_for(&world.story, keeps_for).await;
    }
    world.finish_held().await;
    let report = world.verdict(found, outcome, was_repeated).await;
    if !is_met && report.wrong.is_empty() {
        return None;
    }
    Some(report)
}
