//! Strikes each operation that a call makes on the file, with each fault, and judges what comes of it.
//!
//! What the call does is learned first, from a run that nothing disturbs: its answer and what can be seen before and
//! after it (a "picture"), the same once more for its repeat after a restart, and its operations. After a fault the
//! picture must be one of these two, the one that the answer promises, if there was an answer; the client repeats the
//! call, and picture and answer must be those of a first call or of a repeat.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::lane::Lane;
use super::site::{Act, Answer, Call, Site};
use crate::common::server::until;
use crate::common::shim::{DiskFault, Operation};

/// What a call does where nothing disturbs it, and what its repeat does after a restart.
struct Learned {
    before: Value,
    first: Option<Answer>,
    after: Value,
    repeat: Option<Answer>,
    after_repeat: Value,
    operations: Vec<Operation>,
}

impl Learned {
    /// Returns whether this is the picture before the call or after it.
    fn has(&self, picture: &Value) -> bool {
        [&self.before, &self.after].contains(&picture)
    }
}

/// What became of the cases: by operation and fault, how often which outcome.
type Table = BTreeMap<(String, DiskFault), BTreeMap<String, usize>>;

/// Runs the cases of one verb: all of them if `TAILBACK_DISK_CASES` is `all`, else one for each operation, and
/// all for the syncs.
pub async fn run<F: Future<Output = Call>>(verb: &str, prepare: fn(Site) -> F) {
    let mut lane = Lane::start().await;
    let learned = learn(&mut lane, prepare).await;
    assert!(!learned.operations.is_empty(), "{verb} writes nothing");
    let all = std::env::var("TAILBACK_DISK_CASES").is_ok_and(|which| which == "all");
    let mut table = Table::new();
    let offset = verb.len();
    for (n, operation) in learned.operations.iter().enumerate() {
        for (f, fault) in DiskFault::SINGLE.into_iter().enumerate() {
            if all
                || f == (n + offset) % DiskFault::SINGLE.len()
                || operation.is_sync() && learned.operations.len() < 60
            {
                let outcome = case(&mut lane, prepare, &learned, n as u64, fault).await;
                *table.entry((operation.to_string(), fault)).or_default().entry(outcome).or_default() += 1;
            }
        }
    }
    lane.finish().await;
    report(verb, learned.operations.len(), &table);
}

/// Prints the table, and adds it to the file that `TAILBACK_DISK_TABLE` names.
fn report(verb: &str, operations: usize, table: &Table) {
    let cases: usize = table.values().flat_map(BTreeMap::values).sum();
    let mut text = format!("{verb}: {operations} operations, {cases} cases\n");
    for ((operation, fault), outcomes) in table {
        let outcomes: Vec<String> = outcomes.iter().map(|(outcome, n)| format!("{n} {outcome}")).collect();
        let _ = writeln!(text, "{verb}\t{operation}\t{fault:?}\t{}", outcomes.join(", "));
    }
    print!("{text}");
    if let Some(file) = std::env::var_os("TAILBACK_DISK_TABLE") {
        let mut file = std::fs::File::options().create(true).append(true).open(file).unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    }
}

async fn learn<F: Future<Output = Call>>(lane: &mut Lane, prepare: fn(Site) -> F) -> Learned {
    let site = lane.site();
    let call = prepare(site.clone()).await;
    let before = site.look(&call).await.unwrap();
    let from = lane.shim.count();
    let (site, first) = act(lane, site, &call, None, &before).await;
    let settled = until_quiet(lane).await;
    let operations = (from + 1..=settled).map(|n| lane.shim.operation(n)).collect();
    let after = site.look(&call).await.unwrap();
    drop(site.server);
    lane.restart().await;
    let site = lane.again(&site.name);
    assert_eq!(site.look(&call).await.unwrap(), after, "a restart changes something");
    let repeat = match call.act {
        Act::Request { .. } => site.make(&call.act).await,
        _ => None,
    };
    let after_repeat = site.look(&call).await.unwrap();
    let shown = |answer: Option<Answer>| answer.map(|answer| site.shown(&call, &answer));
    let learned =
        Learned { before, first: shown(first), after, repeat: shown(repeat), after_repeat, operations };
    site.clear().await;
    learned
}

/// Returns how many operations there were once there are no more.
async fn until_quiet(lane: &Lane) -> u64 {
    loop {
        let count = lane.shim.count();
        tokio::time::sleep(Duration::from_millis(30)).await;
        if lane.shim.count() == count {
            return count;
        }
    }
}

/// Makes the call, and returns its answer. What has no answer is over when `after` can be seen, or what its last step
/// leaves and not `before` where `after` is not known yet, or when the fault has ended the server.
async fn act(
    lane: &mut Lane,
    site: Site,
    call: &Call,
    after: Option<&Value>,
    before: &Value,
) -> (Site, Option<Answer>) {
    let is_over = |picture: &Value| match after {
        Some(after) => picture == after,
        None => picture != before && !call.is_under_way(picture),
    };
    match &call.act {
        request @ Act::Request { .. } => {
            let answer = site.make(request).await;
            return (site, answer);
        }
        Act::Later => lane.wait_long(),
        Act::Start => {
            drop(site.server);
            lane.stop();
            lane.wait_long();
            if !lane.launch() || !lane.becomes_ready().await {
                lane.restart().await; // the fault has ended it
            }
            let site = lane.again(&site.name);
            until("the server has done its work", || async { is_done(&site, call, is_over).await }).await;
            return (site, None);
        }
    }
    until("the server has done its work", || async { is_done(&site, call, is_over).await }).await;
    (site, None)
}

async fn is_done(site: &Site, call: &Call, is_over: impl Fn(&Value) -> bool) -> bool {
    let ready =
        Act::Request { method: reqwest::Method::GET, path: "/readyz".to_owned(), body: None, key: None };
    match site.make(&ready).await {
        Some((200, _)) => site.look(call).await.is_none_or(|picture| is_over(&picture)),
        Some(_) => false,
        None => true, // it is gone
    }
}

/// Runs one case and returns its outcome in words.
async fn case<F: Future<Output = Call>>(
    lane: &mut Lane,
    prepare: fn(Site) -> F,
    learned: &Learned,
    n: u64,
    fault: DiskFault,
) -> String {
    let site = lane.site();
    let call = prepare(site.clone()).await;
    let name = site.name.clone();
    let before = site.look(&call).await.unwrap();
    assert_eq!(before, learned.before, "the preparations differ");
    lane.shim.arm(fault, lane.shim.count() + n + 1);
    let (site, answer) = act(lane, site, &call, Some(&learned.after), &before).await;
    // First: it may still strike what the server does by itself.
    lane.shim.heal();
    let has_struck = lane.shim.struck() > 0;
    let restarted = fault.kills() && has_struck;
    drop(site);
    if restarted {
        lane.restart().await;
    }
    let site = lane.again(&name);
    let at = format!("operation {n} ({}) of {}, {fault:?}", learned.operations[n as usize], site.name);
    if call.is_lapsing && !learned.has(&site.look(&call).await.unwrap()) {
        lane.wait_long();
        until("the lease is over", || async { learned.has(&site.look(&call).await.unwrap()) }).await;
    }
    let outcome = match call.act {
        Act::Request { .. } => {
            let last = judge_request(&site, &call, learned, answer.as_ref(), restarted, &at).await;
            check_end(lane, site, &call, fault, last.held).await;
            last.outcome
        }
        _ => {
            until("the server has done its work again", || async {
                site.look(&call).await.is_some_and(|picture| picture == learned.after)
            })
            .await;
            check_end(lane, site, &call, fault, Vec::new()).await;
            "done".to_owned()
        }
    };
    if has_struck { outcome } else { format!("not reached, {outcome}") }
}

/// How a request and its repeat ended.
struct Last {
    outcome: String,
    /// The jobs that the client holds now.
    held: Vec<Value>,
}

async fn judge_request(
    site: &Site,
    call: &Call,
    learned: &Learned,
    answer: Option<&Answer>,
    restarted: bool,
    at: &str,
) -> Last {
    let first = learned.first.as_ref().unwrap();
    let seen = site.look(call).await.unwrap();
    let is_done = seen == learned.after;
    let is_partly = !is_done && seen != learned.before;
    assert!(!is_partly || call.is_stepwise, "{at}: half done: {seen:#}, not {:#}", learned.after);
    let word = match answer.map(|(status, body)| (failed_item(body).unwrap_or(*status), body)) {
        None => "no answer",
        Some((status, _)) if status == first.0 => {
            assert!(is_done, "{at}: acknowledged, and not there: {seen:#}");
            "acknowledged"
        }
        Some((507, _)) => {
            assert!(!is_done || learned.before == learned.after, "{at}: refused, and there: {seen:#}");
            "507"
        }
        Some((503, _)) => "503",
        Some((status, body)) => panic!("{at}: {status} {body}"),
    };
    let answer = site.make(&call.act).await.unwrap();
    let shown = Some(site.shown(call, &answer));
    let seen = site.look(call).await.unwrap();
    let is_first = seen == learned.after && shown == learned.first;
    let is_repeat = seen == learned.after_repeat && shown == learned.repeat;
    // A server that goes on remembers what it has answered.
    let is_right = match is_done {
        true => is_repeat || !restarted && is_first,
        false => is_first || is_partly && is_completed(learned, &shown, &seen),
    };
    assert!(
        is_right,
        "{at}: was done: {is_done}; the repeat: {shown:?}, then {seen:#}\nnot {:?}, {:#}\nand not {:?}, {:#}",
        learned.first, learned.after, learned.repeat, learned.after_repeat
    );
    let held =
        answer.1["jobs"].as_array().or(answer.1["next"]["jobs"].as_array()).cloned().unwrap_or_default();
    let held =
        held.into_iter().filter(|job| job["reservation"].is_string() && job["state"] == "reserved").collect();
    let state = if is_partly {
        "partly done"
    } else if is_done {
        "done"
    } else {
        "not done"
    };
    Last { outcome: format!("{word}, {state}"), held }
}

/// Returns the status of an item of a list that the store failed to do.
fn failed_item(body: &Value) -> Option<u16> {
    match body {
        Value::Array(items) => items.iter().find_map(failed_item),
        Value::Object(fields) => {
            let status = fields.get("status").and_then(Value::as_u64).filter(|status| *status >= 500);
            let status = status.and_then(|status| u16::try_from(status).ok());
            status.or_else(|| fields.values().find_map(failed_item))
        }
        _ => None,
    }
}

/// Returns whether a repeat has completed what was done in part. Its answer may count what it found left only.
fn is_completed(learned: &Learned, shown: &Option<Answer>, seen: &Value) -> bool {
    let status = |answer: &Option<Answer>| answer.as_ref().map(|(status, _)| *status);
    [(&learned.first, &learned.after), (&learned.repeat, &learned.after_repeat)]
        .iter()
        .any(|(answer, picture)| status(answer) == status(shown) && *picture == seen)
}

/// What was acknowledged after an error survives a power cut; then the site is emptied.
async fn check_end(lane: &mut Lane, mut site: Site, call: &Call, fault: DiskFault, held: Vec<Value>) {
    if fault == DiskFault::ErrorOnce {
        let seen = site.look(call).await;
        let name = site.name.clone();
        lane.cut_power(site).await;
        site = lane.again(&name);
        assert_eq!(site.look(call).await, seen, "acknowledged, and not saved");
    }
    site.drain(&held).await;
    site.clear().await;
    let left = site.picture(&[]).await.unwrap();
    for queue in ["", ".next", ".dead"] {
        assert_eq!(left[queue], json!([]), "left");
    }
}
