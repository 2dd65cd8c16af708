//! What responses say, as far as it is printed. What an older or a newer server does not say is left out.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::failure::Failure;
use super::out::Out;
use super::shown::{cut, shown};
use super::table::Tone;
use super::time::{human, local, relative};

/// How much of a payload stands in a row of a table.
const IN_A_ROW: usize = 200;

/// A job. Payloads and the like are kept as they are written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Job {
    pub id: String,
    pub queue: String,
    pub state: String,
    pub priority: i64,
    pub run_at: String,
    pub attempt: u64,
    pub max_attempts: u64,
    pub max_run_ms: Option<u64>,
    pub payload: Option<Box<RawValue>>,
    pub payload_base64: Option<String>,
    pub payload_type: Option<String>,
    pub payload_head: Option<String>,
    pub payload_bytes: Option<u64>,
    pub headers: Option<Box<RawValue>>,
    pub key: Option<String>,
    pub created_at: String,
    pub started_at: Option<String>,
    pub finished_at: Option<String>,
    pub expires_at: Option<String>,
    pub worker: Option<String>,
    pub reserved_until: Option<String>,
    pub waiting_for: Vec<WaitingFor>,
    pub progress: Option<Box<RawValue>>,
    pub cancel_requested: bool,
    pub errors: Vec<Attempt>,
    pub trail: Vec<Step>,
    pub dead_lettered_from: Option<Origin>,
    pub then: Vec<Stage>,
    pub batch: Option<String>,
    pub group: Option<String>,
    pub semaphores: Vec<String>,
    pub result: Option<Box<RawValue>>,
    pub unreadable: Option<String>,
    pub reservation: Option<String>,
}

/// Why a job waits.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct WaitingFor {
    pub reason: String,
    pub detail: String,
}

/// A failed attempt.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Attempt {
    pub at: String,
    pub attempt: u64,
    pub worker: Option<String>,
    pub message: String,
}

/// A queue that a job was in.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Step {
    pub at: String,
    pub queue: String,
    pub reason: String,
}

/// Where a dead letter died.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Origin {
    pub queue: String,
}

/// A stage to come.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Stage {
    pub queue: String,
}

impl Job {
    /// Returns the attempt, of how many: `2/5`.
    pub fn attempts(&self) -> String {
        match self.max_attempts {
            0 => self.attempt.to_string(),
            most => format!("{}/{most}", self.attempt),
        }
    }

    /// Returns the payload for a row of a table.
    pub fn brief(&self) -> String {
        if let Some(base64) = &self.payload_base64 {
            let media = self.payload_type.as_deref().unwrap_or("application/octet-stream");
            let padding = base64.bytes().rev().take_while(|byte| *byte == b'=').count();
            return format!("{media}, {} bytes", (base64.len() / 4 * 3).saturating_sub(padding));
        }
        let raw = self.payload_head.as_deref().or_else(|| self.payload.as_deref().map(RawValue::get));
        match (raw, self.payload_bytes) {
            (Some(raw), _) if raw != "null" => cut(&shown(raw), IN_A_ROW),
            (_, Some(bytes)) => format!("{bytes} bytes"),
            _ => String::new(),
        }
    }

    /// Returns the last error, or the payload if there was none.
    pub fn detail(&self) -> String {
        self.errors.last().map_or_else(|| self.brief(), |last| cut(&shown(&last.message), IN_A_ROW))
    }

    /// Returns everything about it, with names.
    pub fn facts(&self, out: Out) -> Vec<(&'static str, String)> {
        let raw =
            |value: &Option<Box<RawValue>>| value.as_deref().map_or_else(String::new, |raw| shown(raw.get()));
        let text = |value: &Option<String>| value.as_deref().map_or_else(String::new, shown);
        let at = |value: &Option<String>| value.as_deref().map_or_else(String::new, local);
        let headers = raw(&self.headers);
        vec![
            ("id", shown(&self.id)),
            ("queue", shown(&self.queue)),
            ("state", out.paint(Tone::of_state(&self.state), &shown(&self.state))),
            ("reservation", text(&self.reservation)),
            ("reserved until", at(&self.reserved_until)),
            ("worker", text(&self.worker)),
            (
                "waits for",
                self.waiting_for.iter().map(|why| shown(&why.detail)).collect::<Vec<_>>().join("; "),
            ),
            ("cancel", if self.cancel_requested { "requested".to_owned() } else { String::new() }),
            ("attempt", self.attempts()),
            ("priority", if self.priority == 0 { String::new() } else { self.priority.to_string() }),
            ("created", local(&self.created_at)),
            ("due", if self.state == "scheduled" { local(&self.run_at) } else { String::new() }),
            ("started", at(&self.started_at)),
            ("finished", at(&self.finished_at)),
            ("expires", at(&self.expires_at)),
            ("key", text(&self.key)),
            ("group", text(&self.group)),
            ("batch", text(&self.batch)),
            ("semaphores", self.semaphores.iter().map(|name| shown(name)).collect::<Vec<_>>().join(", ")),
            ("route", self.then.iter().map(|stage| shown(&stage.queue)).collect::<Vec<_>>().join(" → ")),
            (
                "came from",
                self.dead_lettered_from.as_ref().map_or_else(String::new, |from| shown(&from.queue)),
            ),
            ("unreadable", text(&self.unreadable)),
            ("headers", if headers == "{}" { String::new() } else { headers }),
            ("progress", raw(&self.progress)),
            ("result", raw(&self.result)),
            ("payload", if self.payload_base64.is_some() { self.brief() } else { raw(&self.payload) }),
        ]
    }

    /// Prints everything about it.
    pub fn print(&self, out: Out) -> Result<(), Failure> {
        out.facts(&self.facts(out))?;
        for step in &self.trail {
            let (queue, reason) = (shown(&step.queue), shown(&step.reason));
            out.below(&format!("left {queue} ({reason}) {}", relative(&step.at)))?;
        }
        for error in &self.errors {
            let by =
                error.worker.as_deref().map_or_else(String::new, |worker| format!(" at {}", shown(worker)));
            let (at, text) = (relative(&error.at), shown(&error.message));
            out.below(&format!("attempt {}{by} failed {at}: {text}", error.attempt))?;
        }
        Ok(())
    }
}

/// A response that says what became of a job.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Settled {
    pub id: String,
    pub state: String,
    pub queue: Option<String>,
    pub run_at: Option<String>,
    pub repeated: bool,
    pub deduplicated: bool,
    pub replaced: bool,
    pub reserved_until: Option<String>,
    pub cancel_requested: bool,
    pub deleted: bool,
}

impl Settled {
    /// Prints it as one line.
    pub fn print(&self, out: Out) -> Result<(), Failure> {
        let mut words = vec![shown(&self.id)];
        if !self.state.is_empty() {
            words.push(out.paint(Tone::of_state(&self.state), &shown(&self.state)));
        }
        words.extend(self.queue.as_ref().map(|queue| format!("in {}", shown(queue))));
        let due = self.run_at.as_ref().filter(|_| self.state == "scheduled");
        words.extend(due.map(|at| format!("due {}", relative(at))));
        words.extend(self.reserved_until.as_ref().map(|at| format!("reserved until {}", local(at))));
        for (is_so, text) in [
            (self.repeated, "(a repeat: nothing was changed now)"),
            (self.deduplicated && !self.replaced, "(this job has the key already: nothing was pushed)"),
            (self.replaced, "(this job has the key: its payload and time were replaced)"),
            (self.deleted, "deleted"),
            (self.cancel_requested, "cancellation is requested: its worker is to stop"),
        ] {
            words.extend(is_so.then(|| text.to_owned()));
        }
        out.line(words.join("  "))
    }
}

/// How many jobs are in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Counts {
    pub ready: u64,
    pub scheduled: u64,
    pub reserved: u64,
    pub blocked: u64,
    pub dead: u64,
    pub done: u64,
}

impl Counts {
    /// Returns each state with its number.
    pub fn each(&self) -> [(&'static str, u64); 6] {
        [
            ("ready", self.ready),
            ("scheduled", self.scheduled),
            ("reserved", self.reserved),
            ("blocked", self.blocked),
            ("dead", self.dead),
            ("done", self.done),
        ]
    }
}

/// Returns a rate for people: `0`, `0.3`, `12`.
pub fn rate(per_s: f64) -> String {
    match per_s {
        r if r <= 0.0 => "0".to_owned(),
        r if r < 0.1 => "<0.1".to_owned(),
        r if r < 10.0 => format!("{r:.1}"),
        r => format!("{r:.0}"),
    }
}

/// How often each kind of thing happened, per second.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Rates(pub BTreeMap<String, f64>);

impl Rates {
    /// Returns how often this happened.
    pub fn of(&self, event: &str) -> f64 {
        self.0.get(event).copied().unwrap_or(0.0)
    }

    /// Returns how many jobs were finished: committed, or moved on.
    pub fn finished(&self) -> f64 {
        self.of("committed") + self.of("moved")
    }

    /// Returns how many attempts failed: rolled back, or taken back from their workers.
    pub fn failed(&self) -> f64 {
        self.of("rolled_back") + self.of("lapsed")
    }
}

/// Percentiles of a time, in milliseconds.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct Percentiles {
    pub p50: u64,
    pub p95: u64,
    pub p99: u64,
}

impl Percentiles {
    /// Returns them for people.
    pub fn text(&self) -> String {
        format!("p50 {}  p95 {}  p99 {}", human(self.p50), human(self.p95), human(self.p99))
    }
}
