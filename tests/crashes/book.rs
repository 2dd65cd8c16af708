//! What the clients did and were told, and what must be true of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use serde_json::Value;

use crate::common::fleet::text;

/// Every queue there is.
pub const QUEUES: [&str; 7] = ["work", "in", "out", "first", "second", "after", "ticks"];

/// How much of each kind there is.
pub const GROUPS: usize = 6;
pub const PER_GROUP: usize = 25;
pub const PARENTS: usize = 40;
pub const ROUTES: usize = 30;
pub const SHARED: usize = 40;
pub const BATCHES: usize = 6;
pub const MEMBERS: usize = 5;
/// The semaphores, and how many may hold each.
pub const SEMAPHORES: [(&str, usize); 2] = [("db", 2), ("gpu", 1)];

/// What a job is for, whatever its id: its payload.
pub type Task = String;

/// One delivery.
#[derive(Clone, Copy)]
pub struct Delivery {
    /// When the answer was here.
    since: Instant,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Book {
    /// The jobs that were seen of each task.
    ids: HashMap<Task, HashSet<String>>,
    /// When the answer of its first delivery was here.
    first_seen: HashMap<Task, Instant>,
    /// When a commit of it was first sent.
    first_commit: HashMap<Task, Instant>,
    /// Finished, and when that was known.
    done: HashMap<Task, Instant>,
    /// Callbacks: the jobs that were seen for each batch.
    callbacks: HashMap<String, HashSet<String>>,
    /// Batches that were answered.
    batches: HashSet<String>,
    /// The jobs of each occurrence of the schedule.
    ticks: HashMap<String, HashSet<String>>,
    /// For how long jobs were certainly held: what (a semaphore or a group), by which job, from when to when.
    holds: Vec<(String, String, Instant, Instant)>,
}

/// What is held while a job is reserved.
fn resources(job: &Value) -> Vec<String> {
    let semaphores = job["semaphores"].as_array().into_iter().flatten();
    let mut held: Vec<String> =
        semaphores.map(|name| format!("semaphore {}", name.as_str().unwrap())).collect();
    held.extend(job["group"].as_str().map(|group| format!("group {group}")));
    held
}

/// What a job is for in the queue that it is in.
pub fn task(job: &Value) -> Task {
    format!("{} in {}", job["payload"], text(job, "queue"))
}

/// Whether the very same task may be asked for more than once: by batches whose answer was lost, or by the clock.
fn is_asked_for_twice(task: &Task) -> bool {
    ["member", "callback", "tick"].iter().any(|kind| task.contains(kind))
}

impl Book {
    pub fn batch_was_answered(&mut self, batch: &Value) {
        self.batches.insert(text(batch, "id"));
    }

    /// A reserve that was sent at `asked` has answered this job.
    pub fn delivered(&mut self, job: &Value, asked: Instant) -> Delivery {
        let (task, id, since) = (task(job), text(job, "id"), Instant::now());
        if let Some(done) = self.done.get(&task)
            && !is_asked_for_twice(&task)
        {
            assert!(asked < *done, "delivered although it was done: {job}");
        }
        self.ids.entry(task.clone()).or_default().insert(id.clone());
        self.first_seen.entry(task).or_insert(since);
        match job["payload"]["kind"].as_str().unwrap() {
            "callback" => {
                let batch = job["headers"]["batch-id"].as_str().unwrap().to_owned();
                assert_eq!(job["headers"]["batch-done"], MEMBERS.to_string(), "{job}");
                self.callbacks.entry(batch).or_default().insert(id);
            }
            // Later it is due when it came back.
            "tick" if job["attempt"] == 1 => {
                self.ticks.entry(text(job, "run_at")).or_default().insert(id);
            }
            _ => {}
        }
        Delivery { since }
    }

    /// A commit of this job is about to be sent.
    pub fn committing(&mut self, job: &Value) {
        self.first_commit.entry(task(job)).or_insert_with(Instant::now);
    }

    /// A settle that was first sent at `sent` was answered 200: until then the job was held.
    pub fn held(&mut self, job: &Value, delivery: Delivery, sent: Instant) {
        for what in resources(job) {
            self.holds.push((what, text(job, "id"), delivery.since, sent));
        }
    }

    /// The work is done.
    pub fn finished(&mut self, job: &Value) {
        self.done.entry(task(job)).or_insert_with(Instant::now);
    }

    fn done_of(&self, kind: &str) -> usize {
        let kind = format!("\"kind\":\"{kind}\"");
        self.done.keys().filter(|task| task.contains(&kind)).count()
    }

    /// What is still to be done of what producers ask for.
    pub fn missing(&self) -> Vec<String> {
        let expected = [
            ("group", GROUPS * PER_GROUP),
            ("parent", PARENTS),
            ("child", 2 * PARENTS),
            ("route", 2 * ROUTES), // in both of its queues
            ("shared", SHARED),
            ("member", BATCHES * MEMBERS),
        ];
        let mut missing: Vec<String> = Vec::new();
        for (kind, count) in expected {
            let done = self.done_of(kind);
            if done != count {
                missing.push(format!("{done} of {count} {kind} done"));
            }
        }
        let called_back = self.batches.iter().filter(|id| self.callbacks.contains_key(*id)).count();
        if called_back != BATCHES {
            missing.push(format!("{called_back} of {} batches called back", self.batches.len()));
        }
        missing
    }

    /// Fails where a guarantee was broken.
    pub fn judge(&self) {
        for (task, ids) in &self.ids {
            assert!(is_asked_for_twice(task) || ids.len() == 1, "{task} was stored more than once: {ids:?}");
        }
        for (batch, callbacks) in &self.callbacks {
            assert_eq!(
                callbacks.len(),
                1,
                "the callback of {batch} was pushed more than once: {callbacks:?}"
            );
        }
        for (moment, ticks) in &self.ticks {
            assert_eq!(ticks.len(), 1, "the occurrence {moment} was pushed more than once: {ticks:?}");
        }
        assert!(!self.ticks.is_empty(), "the schedule pushed nothing");
        self.judge_order();
        self.judge_holds();
    }

    /// No job of a group was seen before the one before it was being committed.
    fn judge_order(&self) {
        for group in 0..GROUPS {
            for n in 1..PER_GROUP {
                let task = |n| format!("{{\"kind\":\"group\",\"group\":{group},\"n\":{n}}} in work");
                let (before, seen) = (self.first_commit[&task(n - 1)], self.first_seen[&task(n)]);
                assert!(before < seen, "group {group}: {n} was delivered before {} was done", n - 1);
            }
        }
    }

    /// At no moment more held something than may.
    fn judge_holds(&self) {
        let mut by_resource: BTreeMap<&str, Vec<(Instant, i64)>> = BTreeMap::new();
        for (what, _, since, until) in &self.holds {
            by_resource.entry(what).or_default().extend([(*since, 1), (*until, -1)]);
        }
        assert!(by_resource.len() > SEMAPHORES.len(), "nothing was held");
        for (what, mut moments) in by_resource {
            moments.sort();
            let capacity =
                |(name, capacity): &(&str, usize)| (what == format!("semaphore {name}")).then_some(*capacity);
            let capacity = SEMAPHORES.iter().find_map(capacity).unwrap_or(1);
            let mut holders = 0;
            for (_, change) in moments {
                holders += change;
                assert!(holders <= capacity as i64, "{holders} at once held {what}, which takes {capacity}");
            }
        }
    }
}
