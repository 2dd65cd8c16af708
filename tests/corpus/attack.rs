//! Every case in every field of every call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::cases::{self, Case, Verdict};
use super::client::{Client, Outcome};
use super::fields::{Call, Document, Field, MARK, Spot};
use super::listing::survives_a_restart;
use super::target::{Tally, Target, healthy};
use crate::common::server::{PATIENCE, Place};

/// How many clients attack at once.
const CLIENTS: usize = 8;
/// How many cases the suite sends to each store; `just hostile` sends more.
const SHARE: usize = 8000;

/// Returns a number from the environment.
pub fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Percent-encodes everything but letters and digits, so that any bytes are one segment or one value.
pub fn encoded(bytes: &[u8]) -> String {
    let one = |byte: &u8| match byte {
        byte if byte.is_ascii_alphanumeric() => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    bytes.iter().map(one).collect()
}

/// One of the clients, with what its requests refer to.
pub struct Attacker {
    pub client: Client,
    number: usize,
    /// A reserved job: its id and its reservation.
    held: Option<(String, String)>,
    /// A job that is not reserved.
    job: Option<String>,
    batch: Option<String>,
}

impl Attacker {
    pub fn new(target: &Target, number: usize) -> Self {
        Self { client: Client::new(&target.server), number, held: None, job: None, batch: None }
    }

    async fn json(&mut self, path: &str, body: Value) -> Value {
        let reply = self.client.call("POST", path, &body.to_string()).await;
        assert!(reply.status < 300, "{path} {body}: {}", reply.text());
        serde_json::from_slice(&reply.body).unwrap()
    }

    /// Returns the id and the reservation that a call refers to.
    pub async fn names(&mut self, call: &Call) -> (String, String) {
        let held = format!("held-{}", self.number);
        if call.path.starts_with("/v1/batches") {
            if self.batch.is_none() {
                let batch = self.json("/v1/batches", json!({"sealed": false, "jobs": []})).await;
                self.batch = Some(batch["id"].as_str().unwrap().to_owned());
            }
            return (self.batch.clone().unwrap(), String::new());
        }
        if call.path == "/v1/jobs/{id}" {
            if self.job.is_none() {
                let job =
                    self.json(&format!("/v1/queues/idle-{}/jobs", self.number), json!({"payload": 1})).await;
                self.job = Some(job["id"].as_str().unwrap().to_owned());
            }
            return (self.job.clone().unwrap(), String::new());
        }
        if !call.path.starts_with("/v1/jobs/") && call.path != "/v1/settle" {
            return (String::new(), String::new());
        }
        // Another client that reserves from every queue may be faster.
        while self.held.is_none() {
            self.json(&format!("/v1/queues/{held}/jobs"), json!({"payload": 1})).await;
            let ask = json!({"lease_ms": 86_400_000});
            let jobs = self.json(&format!("/v1/queues/{held}/reserve"), ask).await;
            let text = |name: &str| jobs["jobs"][0][name].as_str().map(str::to_owned);
            self.held = text("id").zip(text("reservation"));
        }
        self.held.clone().unwrap_or_default()
    }

    /// Forgets what a call may have ended.
    pub fn after(&mut self, call: &Call, status: u16) {
        let ended = call.method != "GET" && (status < 300 || matches!(status, 404 | 409));
        if call.path == "/v1/settle" || ended && call.path.starts_with("/v1/jobs/{id}/") {
            self.held = None;
        } else if ended && call.path.starts_with("/v1/batches/") {
            self.batch = None;
        } else if ended && call.path == "/v1/jobs/{id}" {
            self.job = None;
        }
    }
}

/// Returns the path of a call with valid parameters, but for one of them.
pub fn path(call: &Call, id: &str, case: Option<(&str, &str)>) -> String {
    let mut path = call.path.clone();
    if let Some((name, text)) = case {
        path = path.replace(&format!("{{{name}}}"), text);
    }
    let is_settings = matches!(call.method.as_str(), "PUT" | "PATCH" | "DELETE") || path.ends_with("/pause");
    let queue = if is_settings { "settings" } else { "corpus" };
    path.replace("{queue}", queue).replace("{name}", "corpus").replace("{id}", id)
}

/// Returns the bytes of a request with a case in a field.
fn request(call: &Call, field: &Field, case: &Case, id: &str, reservation: &str) -> Vec<u8> {
    let body = field.body.replace("{id}", id).replace("{reservation}", reservation);
    let bytes = case.in_body();
    let body = match body.split_once(MARK) {
        Some((before, after)) => [before.as_bytes(), &bytes, after.as_bytes()].concat(),
        None => body.into_bytes(),
    };
    let text = encoded(case.elsewhere());
    let (mut target, mut header) = (path(call, id, None), Vec::new());
    match &field.spot {
        Spot::Path(name) => target = path(call, id, Some((name, &text))),
        Spot::Query(name) => target = format!("{target}?{name}={text}"),
        Spot::Header(name) => {
            let visible = case.elsewhere().iter().filter(|byte| !matches!(byte, b'\r' | b'\n' | 0)).copied();
            header = [name.as_bytes(), b": ", &visible.collect::<Vec<u8>>(), b"\r\n"].concat();
        }
        Spot::Body(_) | Spot::Key(_) => {}
    }
    if call.path == "/v1/events" && field.spot != Spot::Query("for_ms".to_owned()) {
        target.push_str(if target.contains('?') { "&for_ms=1" } else { "?for_ms=1" }); // or the response would not end
    }
    let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    let head = format!("{} {target} HTTP/1.1\r\nhost: localhost\r\n{kind}", call.method);
    [head.as_bytes(), &header, format!("content-length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat()
}

/// Returns the statuses that a request may get: the documented ones, and those of heads that are refused before they are
/// routed.
fn statuses(call: &Call, field: &Field, case: &Case) -> Vec<u16> {
    let mut statuses = call.statuses.clone();
    match &field.spot {
        // Nothing in this place is another path.
        Spot::Path(_) if case.elsewhere().is_empty() => statuses.extend([404, 405]),
        Spot::Path(_) | Spot::Query(_) => statuses.extend([414, 431]),
        Spot::Header(_) => statuses.extend([400, 431]),
        Spot::Body(_) | Spot::Key(_) => {}
    }
    statuses
}

/// What must hold of a response beside its status.
fn check(field: &Field, case: &Case, status: u16) -> Result<(), String> {
    let Spot::Body(pointer) = &field.spot else { return Ok(()) };
    let Case::Json(_, bytes, Verdict::Refuse) = case else { return Ok(()) };
    // Nothing at all is an empty body, and white space in an array is an empty array.
    let is_nothing = bytes.trim_ascii().is_empty() && (bytes.is_empty() || pointer.ends_with("/0"));
    if status < 300 && !is_nothing {
        return Err(format!("what is no JSON is accepted: {status}"));
    }
    Ok(())
}

/// How long a client waits: not for jobs that may never come.
fn patience(call: &Call, field: &Field) -> Duration {
    let waits =
        matches!(&field.spot, Spot::Body(pointer) if pointer.is_empty() || pointer.ends_with("wait_ms"));
    if waits && (call.path.ends_with("/reserve") || call.path.ends_with("/pop")) {
        Duration::from_millis(500)
    } else {
        PATIENCE
    }
}

/// Steps through all pairs of a field and a case, so that any long stretch of the walk has every field and every case.
fn pair(step: usize, fields: usize, cases: usize) -> (usize, usize) {
    let (round, field) = (step / fields, step % fields);
    (field, (round * 7919 + field * 31) % cases) // 7919 is a prime, larger than the number of cases
}

pub async fn every_case_in_every_field(place: &Place) {
    let document = Document::read();
    let (fields, cases) = (document.fields(), cases::all());
    let total = fields.len() * cases.len();
    let count = number("TAILBACK_HOSTILE_CASES", SHARE).min(total);
    let seed = number("TAILBACK_HOSTILE_SEED", 1);
    println!("{} fields of {} calls, {} cases", fields.len(), document.calls.len(), cases.len());
    println!("{count} of {total} (TAILBACK_HOSTILE_CASES), from TAILBACK_HOSTILE_SEED={seed}");
    let work = Arc::new((document, fields, cases, Tally::default()));
    let (target, next) = (Target::start(&place.url).await, Arc::new(AtomicUsize::new(0)));
    let stopped = AtomicBool::new(false);
    let attack = async {
        let mut clients = Vec::new();
        for n in 0..CLIENTS {
            let (mut attacker, work, next) = (Attacker::new(&target, n), work.clone(), next.clone());
            clients.push(tokio::spawn(async move {
                let (document, fields, cases, tally) = &*work;
                loop {
                    let step = next.fetch_add(1, Ordering::Relaxed);
                    if step >= count {
                        break;
                    }
                    let (field, case) = pair(step + seed * 104_729, fields.len(), cases.len());
                    one(&mut attacker, document, &fields[field], &cases[case], tally).await;
                }
            }));
        }
        for client in clients {
            client.await.unwrap();
        }
        stopped.store(true, Ordering::Relaxed);
    };
    tokio::join!(attack, healthy(&target.server, &stopped));
    work.3.end("cases in fields");
    survives_a_restart(target, &place.url).await;
}

async fn one(attacker: &mut Attacker, document: &Document, field: &Field, case: &Case, tally: &Tally) {
    let call = &document.calls[field.call];
    let (id, reservation) = attacker.names(call).await;
    let bytes = request(call, field, case, &id, &reservation);
    let outcome = attacker.client.send(&bytes, patience(call, field)).await;
    let what = || format!("{} {} {:?} = {}", call.method, call.path, field.spot, case.name());
    tally.note(&outcome, &statuses(call, field, case), what);
    match outcome {
        Outcome::Reply(reply) => {
            if let Err(fault) = check(field, case, reply.status) {
                tally.fault(format!("{}: {fault}", what()));
            }
            attacker.after(call, reply.status);
        }
        Outcome::Closed => tally.fault(format!("{}: closed without a response", what())),
        Outcome::Left if patience(call, field) == PATIENCE => tally.fault(format!("{}: no response", what())),
        Outcome::Left => {}
    }
}
