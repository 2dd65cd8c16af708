//! The calls as the checker takes them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::checker::{self, Client, Recorder, Scan, Setup, Verb, drain};
use crate::common::server::PATIENCE;
use crate::lane::{Call, Lane};

fn has_token(call: &Call) -> bool {
    call.body.as_ref().is_some_and(|body| body["reservation"].is_string())
}

/// Which verb a call is, and what it is about; `None`: the checker does not know it.
fn verb(call: &Call) -> Option<(Verb, String)> {
    let (path, query) = call.path.split_once('?').unwrap_or((&call.path, ""));
    let parts: Vec<&str> = path.trim_start_matches("/v1/").split('/').collect();
    let verb = match (call.method, parts.as_slice()) {
        ("POST", ["reserve"]) => Verb::Reserve,
        ("POST", ["settle"]) => Verb::Settle,
        ("POST", ["jobs"]) => Verb::PushTogether,
        ("POST", ["operations"]) => {
            let queue = call.body.as_ref().and_then(|body| body["filter"]["queue"].as_str());
            return Some((Verb::Operation, queue.unwrap_or_default().to_owned()));
        }
        ("DELETE", ["operations", _]) => Verb::CancelOperation,
        ("DELETE", ["queues"]) => {
            let prefix = query.split('&').find_map(|part| part.strip_prefix("prefix="));
            return Some((Verb::DeleteQueues, prefix.unwrap_or_default().to_owned()));
        }
        ("POST", ["jobs", _, "retry"]) => Verb::Retry,
        ("POST", ["jobs", _, "run"]) => Verb::RunNow,
        ("POST", ["jobs", _, "release"]) => Verb::Release,
        ("POST", ["jobs", _, "redrive"]) => Verb::RedriveJob,
        ("POST", ["jobs", _, "replay"]) => Verb::ReplayJob,
        ("POST", ["jobs", _, "move"]) if !has_token(call) => Verb::Relocate,
        ("POST", ["batches"]) => Verb::CreateBatch,
        ("POST", ["queues", _, "jobs"]) => Verb::Push,
        ("POST", ["queues", _, "jobs", "batch"]) => Verb::PushMany,
        ("POST", ["queues", _, "reserve"]) => Verb::Reserve,
        ("POST", ["queues", _, "pop"]) => Verb::Pop,
        ("POST", ["queues", _, "pause"]) => Verb::Pause,
        ("POST", ["queues", _, "resume"]) => Verb::Resume,
        ("POST", ["queues", _, "purge"]) => Verb::Purge,
        ("POST", ["queues", _, "redrive"]) => Verb::Redrive,
        ("POST", ["queues", _, "replay"]) => Verb::Replay,
        ("PUT", ["queues", _]) => Verb::PutSettings,
        ("DELETE", ["queues", _]) => Verb::DeleteQueue,
        ("POST", ["jobs", _, "commit"]) => Verb::Commit,
        ("POST", ["jobs", _, "rollback"]) => Verb::Rollback,
        ("POST", ["jobs", _, "extend"]) => Verb::Extend,
        ("POST", ["jobs", _, "move"]) => Verb::Move,
        ("DELETE", ["jobs", _]) if query.contains("force") => Verb::ForceCancel,
        ("DELETE", ["jobs", _]) => Verb::Cancel,
        ("PATCH", ["jobs", _]) => Verb::Edit,
        ("POST", ["workers", _, "heartbeat"]) => Verb::Heartbeat,
        ("DELETE", ["workers", _]) => Verb::RemoveWorker,
        ("PUT", ["semaphores", _]) => Verb::PutSemaphore,
        ("DELETE", ["semaphores", _]) => Verb::DeleteSemaphore,
        ("PUT", ["schedules", _]) => Verb::PutSchedule,
        ("DELETE", ["schedules", _]) => Verb::DeleteSchedule,
        ("POST", ["schedules", _, "run"]) => Verb::RunSchedule,
        ("POST", ["batches", _, "jobs"]) => Verb::AddToBatch,
        ("POST", ["batches", _, "seal"]) => Verb::Seal,
        ("DELETE", ["batches", _]) => Verb::CancelBatch,
        _ => return None,
    };
    Some((verb, parts.get(1).map(|target| (*target).to_owned()).unwrap_or_default()))
}

/// Notes that a call begins; returns its place.
pub fn begin(recorder: &Recorder, base: &str, call: &Call) -> Option<usize> {
    let (verb, target) = verb(call)?;
    Some(recorder.begin(checker::Call {
        client: "client".to_owned(),
        server: base.to_owned(),
        verb,
        target,
        key: call.key.clone(),
        body: call.body.clone().unwrap_or(Value::Null),
        invoked_us: 0,
        completed_us: u64::MAX,
        outcome: checker::Outcome::Unknown { why: "not over".to_owned() },
    }))
}

/// What the checker finds wrong with everything that happened in a lane, each with the tags of the cases that it is about.
pub async fn check(lane: &Lane) -> Vec<(BTreeSet<String>, String)> {
    // What a server had given up may have come about once the case was over.
    let client = Client::new(&lane.recorder, "end", &lane.near.base);
    drain(&client, &[lane.near.base.as_str()], &[], PATIENCE).await;
    let history = lane.recorder.history();
    let scan = Scan::read(&lane.near.base, &history).await;
    let violations = checker::judge(&history, &scan, &Setup::default());
    let tags = |about: &str| {
        let calls = history.calls.iter().map(|call| serde_json::to_string(call).unwrap());
        calls.filter(|call| call.contains(about)).flat_map(|call| tags_in(&call)).collect()
    };
    if let (Ok(directory), false) = (std::env::var("TAILBACK_PLACED_HISTORY"), violations.is_empty()) {
        history.write(&std::path::Path::new(&directory).join(format!("lane-{}.jsonl", lane.number)));
    }
    violations.iter().map(|violation| (tags(&violation.about), violation.to_string())).collect()
}

/// The names of cases in a text: up to the dot behind each.
fn tags_in(text: &str) -> Vec<String> {
    let ends = text.match_indices("x.").map(|(at, _)| &text[..=at]);
    let begins =
        ends.map(|text| text.rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default());
    begins.filter(|tag| tag.starts_with('l')).map(str::to_owned).collect()
}
