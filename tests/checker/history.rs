//! What clients did, and what came of it: one [`Call`] for each HTTP request.

use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A call of the HTTP contract that changes something or hands out jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    Push,
    PushMany,
    /// Jobs of several queues; all of them or none unless `atomic` is false.
    PushTogether,
    /// The target is a queue, or empty where the body has `queues`.
    Reserve,
    Pop,
    Commit,
    Rollback,
    Extend,
    Move,
    /// Many settles in one request.
    Settle,
    Cancel,
    ForceCancel,
    Edit,
    Retry,
    RunNow,
    Release,
    RedriveJob,
    ReplayJob,
    /// A move by an operator, without a token.
    Relocate,
    Heartbeat,
    RemoveWorker,
    PutSettings,
    DeleteQueue,
    /// The target is how their names begin.
    DeleteQueues,
    Pause,
    Resume,
    Purge,
    Redrive,
    Replay,
    PutSemaphore,
    DeleteSemaphore,
    PutSchedule,
    DeleteSchedule,
    RunSchedule,
    CreateBatch,
    AddToBatch,
    Seal,
    CancelBatch,
    /// The target is the queue of its filter.
    Operation,
    CancelOperation,
}

impl Verb {
    /// Whether it takes a job away that waits.
    pub fn is_cancel(self) -> bool {
        matches!(self, Self::Cancel | Self::ForceCancel)
    }

    /// Whether it is about one job that its target names, without a token.
    pub fn is_touch(self) -> bool {
        let acts = [Self::Edit, Self::Retry, Self::RunNow, Self::Release, Self::RedriveJob, Self::Relocate];
        self.is_cancel() || acts.contains(&self)
    }

    /// Returns the method and the path of the call for this target: a queue, a job, a worker, a batch, or another name.
    pub fn request(self, target: &str) -> (&'static str, String) {
        let (method, collection, rest) = match self {
            Self::Push => ("POST", "queues", "/jobs"),
            Self::PushMany => ("POST", "queues", "/jobs/batch"),
            Self::PushTogether => return ("POST", "/v1/jobs".to_owned()),
            Self::Reserve if target.is_empty() => return ("POST", "/v1/reserve".to_owned()),
            Self::Reserve => ("POST", "queues", "/reserve"),
            Self::Pop => ("POST", "queues", "/pop"),
            Self::Commit => ("POST", "jobs", "/commit"),
            Self::Rollback => ("POST", "jobs", "/rollback"),
            Self::Extend => ("POST", "jobs", "/extend"),
            Self::Move => ("POST", "jobs", "/move"),
            Self::Settle => return ("POST", "/v1/settle".to_owned()),
            Self::Cancel => ("DELETE", "jobs", ""),
            Self::ForceCancel => ("DELETE", "jobs", "?force=true"),
            Self::Edit => ("PATCH", "jobs", ""),
            Self::Retry => ("POST", "jobs", "/retry"),
            Self::RunNow => ("POST", "jobs", "/run"),
            Self::Release => ("POST", "jobs", "/release"),
            Self::RedriveJob => ("POST", "jobs", "/redrive"),
            Self::ReplayJob => ("POST", "jobs", "/replay"),
            Self::Relocate => ("POST", "jobs", "/move"),
            Self::Heartbeat => ("POST", "workers", "/heartbeat"),
            Self::RemoveWorker => ("DELETE", "workers", ""),
            Self::PutSettings => ("PUT", "queues", ""),
            Self::DeleteQueue => ("DELETE", "queues", "?force=true"),
            Self::DeleteQueues => {
                let path = format!("/v1/queues?prefix={target}&confirm={target}&force=true");
                return ("DELETE", path);
            }
            Self::Pause => ("POST", "queues", "/pause"),
            Self::Resume => ("POST", "queues", "/resume"),
            Self::Purge => ("POST", "queues", "/purge"),
            Self::Redrive => ("POST", "queues", "/redrive"),
            Self::Replay => ("POST", "queues", "/replay"),
            Self::PutSemaphore => ("PUT", "semaphores", ""),
            Self::DeleteSemaphore => ("DELETE", "semaphores", ""),
            Self::PutSchedule => ("PUT", "schedules", ""),
            Self::DeleteSchedule => ("DELETE", "schedules", ""),
            Self::RunSchedule => ("POST", "schedules", "/run"),
            Self::CreateBatch => return ("POST", "/v1/batches".to_owned()),
            Self::AddToBatch => ("POST", "batches", "/jobs"),
            Self::Seal => ("POST", "batches", "/seal"),
            Self::CancelBatch => ("DELETE", "batches", ""),
            Self::Operation => return ("POST", "/v1/operations".to_owned()),
            Self::CancelOperation => ("DELETE", "operations", ""),
        };
        (method, format!("/v1/{collection}/{target}{rest}"))
    }
}

/// How a call ended for its client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// 2xx.
    Ok { status: u16, answer: Value },
    /// 4xx and 507, or the request was never sent (status 0): nothing happened.
    Refused { status: u16, code: String, answer: Value },
    /// No whole response, or a 5xx: it may have happened, and may still happen.
    Unknown { why: String },
}

impl Outcome {
    /// The response of a call that succeeded.
    pub fn answer(&self) -> Option<&Value> {
        match self {
            Self::Ok { answer, .. } => Some(answer),
            _ => None,
        }
    }

    /// The status of a response of either kind; 0 where there was none.
    pub fn status(&self) -> u16 {
        match self {
            Self::Ok { status, .. } | Self::Refused { status, .. } => *status,
            Self::Unknown { .. } => 0,
        }
    }

    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }

    /// What a status and a body mean.
    pub fn of(status: u16, answer: Value) -> Self {
        match status {
            200..300 => Self::Ok { status, answer },
            408 => Self::Unknown { why: status.to_string() },
            400..500 | 507 => {
                let code = answer["code"].as_str().unwrap_or_default().to_owned();
                Self::Refused { status, code, answer }
            }
            _ => Self::Unknown { why: format!("{status} {}", answer["code"].as_str().unwrap_or_default()) },
        }
    }
}

/// One HTTP request. Times are microseconds of one monotonic clock, since the recorder was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub client: String,
    pub server: String,
    pub verb: Verb,
    pub target: String,
    /// Its `Idempotency-Key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub body: Value,
    /// Taken before the request was sent.
    pub invoked_us: u64,
    /// Taken once the response was here, or the client gave up.
    pub completed_us: u64,
    pub outcome: Outcome,
}

impl Call {
    /// Whether it may remove jobs of this queue, those that are there.
    pub fn removes_from(&self, queue: &str) -> bool {
        match self.verb {
            Verb::Purge | Verb::DeleteQueue => self.target == queue,
            Verb::DeleteQueues => queue.starts_with(&self.target),
            Verb::Operation => self.body["action"] == "delete" && self.target == queue,
            _ => false,
        }
    }

    /// Whether it may give a dead job of this queue another chance, or make one due before its time.
    pub fn revives(&self, queue: &str) -> bool {
        let is_action = || ["redrive", "retry", "move"].iter().any(|action| self.body["action"] == *action);
        match self.verb {
            Verb::Redrive => self.target == queue,
            Verb::Operation => is_action() && self.target == queue,
            _ => false,
        }
    }

    /// When it had certainly happened, if it happened: never for an unknown outcome.
    pub fn settled_us(&self) -> u64 {
        if self.outcome.is_unknown() { u64::MAX } else { self.completed_us }
    }
}

/// All calls, in the order of their invocation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    pub calls: Vec<Call>,
}

impl History {
    /// Writes one JSON object a line.
    pub fn write(&self, path: &Path) {
        let mut file = BufWriter::new(std::fs::File::create(path).unwrap());
        for call in &self.calls {
            serde_json::to_writer(&mut file, call).unwrap();
            file.write_all(b"\n").unwrap();
        }
        file.flush().unwrap();
    }

    /// Reads what [`Self::write`] wrote.
    pub fn read(path: &Path) -> Self {
        let lines = BufReader::new(std::fs::File::open(path).unwrap()).lines();
        Self { calls: lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect() }
    }
}

/// Collects the calls of many clients.
#[derive(Clone)]
pub struct Recorder(Arc<Inner>);

struct Inner {
    origin: Instant,
    calls: Mutex<Vec<Call>>,
}

impl Recorder {
    pub fn new() -> Self {
        Self(Arc::new(Inner { origin: Instant::now(), calls: Mutex::default() }))
    }

    /// Microseconds since this recorder was made.
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.0.origin.elapsed().as_micros()).unwrap()
    }

    fn calls(&self) -> MutexGuard<'_, Vec<Call>> {
        self.0.calls.lock().unwrap()
    }

    /// Notes a call that is about to be made. Until it has ended its outcome is unknown.
    pub fn begin(&self, mut call: Call) -> usize {
        let mut calls = self.calls();
        call.invoked_us = self.now_us();
        call.completed_us = u64::MAX;
        calls.push(call);
        calls.len() - 1
    }

    /// Notes how it ended.
    pub fn end(&self, place: usize, outcome: &Outcome) {
        let now = self.now_us();
        let mut calls = self.calls();
        calls[place].completed_us = now;
        calls[place].outcome = outcome.clone();
    }

    pub fn len(&self) -> usize {
        self.calls().len()
    }

    /// Everything until now. A call that has not ended is unknown.
    pub fn history(&self) -> History {
        History { calls: self.calls().clone() }
    }
}
