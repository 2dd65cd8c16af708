//! That nothing is left out: each route that writes, each background task and each point of `src/faults.rs` is struck by a case here and, where
//! it concerns SQLite, in `tests/disk.rs`; or it stands here why not.

use std::collections::BTreeSet;
use std::path::Path;

use tailback::http::access::ROUTES;

use crate::case::Verb;
use crate::harm::Moment;
use crate::lane::Call;
use crate::verbs::VERBS;

/// What strikes something: verbs by their names, with bars between them; or, behind a dash, why nothing does.
type Struck = &'static str;

/// Each route that writes: the verbs here, and those of `tests/disk.rs`.
const WRITES: &[(&str, Struck, Struck)] = &[
    (
        "POST /v1/queues/{queue}/jobs",
        "push|push, idempotent|push that replaces",
        "push|push_once|push_that_replaces",
    ),
    ("POST /v1/queues/{queue}/jobs/batch", "push many|push many, idempotent", "push_many|push_many_once"),
    (
        "POST /v1/jobs",
        "push together|push together, idempotent|push beside each other|push beside each other, idempotent",
        "push_together|push_together_once|push_beside_each_other",
    ),
    (
        "PATCH /v1/jobs/{id}",
        "patch|patch of the payload|patch of the group|patch of the expiry",
        "edit|edit_the_group",
    ),
    ("DELETE /v1/jobs/{id}", "cancel|cancel, forced|cancel unless reserved", "cancel|cancel_by_force"),
    ("POST /v1/jobs/{id}/retry", "retry", "retry"),
    ("POST /v1/jobs/{id}/redrive", "redrive of a job", "redrive_a_job"),
    (
        "POST /v1/jobs/{id}/replay",
        "replay of a job|replay of a job, idempotent",
        "replay_a_job|replay_a_job_once",
    ),
    ("POST /v1/jobs/{id}/run", "run now", "run_now"),
    ("POST /v1/jobs/{id}/release", "release", "release"),
    (
        "POST /v1/queues/{queue}/reserve",
        "reserve|reserve with a key|reserve, max_bytes",
        "reserve|reserve_with_key",
    ),
    ("POST /v1/reserve", "reserve, patterns", "reserve_from_patterns"),
    ("POST /v1/queues/{queue}/pop", "pop|pop, idempotent|pop, waiting", "pop|pop_once"),
    (
        "POST /v1/jobs/{id}/commit",
        "commit|commit with the next jobs|commit with pushes and the next jobs|commit with nothing next|\
         commit with a paused queue next|commit with a full semaphore next",
        "commit|commit_with_next",
    ),
    (
        "POST /v1/jobs/{id}/rollback",
        "rollback|rollback to dead|rollback, not counted|rollback, in its place|rollback with the next jobs",
        "rollback|rollback_in_its_place",
    ),
    ("POST /v1/jobs/{id}/extend", "extend", "extend"),
    (
        "POST /v1/jobs/{id}/move",
        "move|move to a key|move without a token",
        "move_on|move_to_a_key|move_without_a_token",
    ),
    ("POST /v1/settle", "settle many|settle many with the next jobs", "settle_many|settle_many_with_next"),
    ("POST /v1/batches", "batch create|batch create, idempotent", "create_a_batch|create_a_batch_once"),
    ("POST /v1/batches/{id}/jobs", "batch add|batch add, idempotent", "add_to_a_batch|add_to_a_batch_once"),
    ("POST /v1/batches/{id}/seal", "batch seal", "seal_a_batch"),
    ("DELETE /v1/batches/{id}", "batch cancel", "cancel_a_batch"),
    ("DELETE /v1/queues", "queues delete", "delete_queues"),
    ("PUT /v1/queues/{queue}", "settings put", "settings"),
    ("PATCH /v1/queues/{queue}", "settings patch", "settings_in_part"),
    ("DELETE /v1/queues/{queue}", "queue delete", "delete_a_queue"),
    ("POST /v1/queues/{queue}/pause", "pause", "pause"),
    ("POST /v1/queues/{queue}/resume", "resume", "resume"),
    ("POST /v1/queues/{queue}/purge", "purge", "purge"),
    ("POST /v1/queues/{queue}/redrive", "redrive|redrive, idempotent", "redrive|redrive_once"),
    ("POST /v1/queues/{queue}/replay", "replay|replay, idempotent", "replay|replay_once"),
    ("POST /v1/operations", "operation begin|operation begin, idempotent", BY_KILLS),
    ("DELETE /v1/operations/{id}", "operation cancel", BY_KILLS),
    ("PUT /v1/semaphores/{name}", "semaphore put", "set_a_semaphore"),
    ("DELETE /v1/semaphores/{name}", "semaphore delete", "delete_a_semaphore"),
    ("PUT /v1/schedules/{name}", "schedule put", "set_a_schedule"),
    ("DELETE /v1/schedules/{name}", "schedule delete", "delete_a_schedule"),
    (
        "POST /v1/schedules/{name}/run",
        "schedule run|schedule run, idempotent",
        "run_a_schedule|run_a_schedule_unkeyed",
    ),
    ("POST /v1/schedules/{name}/pause", "schedule pause", "pause_a_schedule"),
    ("POST /v1/schedules/{name}/resume", "schedule resume", "resume_a_schedule"),
    ("POST /v1/workers/{name}/heartbeat", "heartbeat", "heartbeat"),
    ("DELETE /v1/workers/{name}", "worker removal", "remove_a_worker"),
    (
        "POST /v1/session",
        "- it stores nothing but the secret of all sessions, once for the store",
        "- it stores nothing but the secret of all sessions, once for the store",
    ),
    (
        "DELETE /v1/session",
        "- it only answers with an empty cookie",
        "- it only answers with an empty cookie",
    ),
    ("POST /v1/keys", "key add", "add_an_api_key"),
    ("POST /v1/keys/{id}/rotate", "key rotate", "rotate_an_api_key"),
    ("DELETE /v1/keys/{id}", "key delete", "remove_an_api_key"),
];

const BY_KILLS: &str = "- what can be seen changes by itself, so that it cannot be compared: `tests/operations.rs` kills servers over SQLite as well";
const NO_WRITE: &str = "- it writes nothing to the store, or one word to see whether it can";
const ONLY_FIGURES: &str = "- figures, which are compared with what is there, or may be lost";
const ONE_SERVER: &str = "- not with SQLite";

/// Each background task likewise.
const TASKS: &[(&str, Struck, Struck)] = &[
    ("store_probe", NO_WRITE, NO_WRITE),
    ("settings", NO_WRITE, NO_WRITE),
    (
        "reaper",
        "(lapse)|(lapse, last attempt)|(lapse of the first of a group)|(expiry)",
        "lapse|lapse_of_the_last_attempt|expiry",
    ),
    ("workers", "(worker timeout)", "remove_a_worker"),
    ("due", NO_WRITE, NO_WRITE),
    ("scheduler", "(schedule fires)", "firing"),
    ("semaphores", "(semaphore unblocks)", "unblocking"),
    ("waiter_poll", NO_WRITE, NO_WRITE),
    ("finished_jobs", NO_WRITE, NO_WRITE),
    ("operations", "(operation step)", BY_KILLS),
    ("key_uses", ONLY_FIGURES, ONLY_FIGURES),
    (
        "pruner",
        "(prune of history)|(prune of the dead)|(prune of a batch)|(prune of a key)",
        "pruning|pruning_of_a_batch",
    ),
    ("series", ONLY_FIGURES, ONLY_FIGURES),
    ("series_folder", ONLY_FIGURES, ONLY_FIGURES),
    ("reconciler", ONLY_FIGURES, ONLY_FIGURES),
    ("signal_publisher", "- signals only save time: waiters poll as well", ONE_SERVER),
    ("series_reader", NO_WRITE, ONE_SERVER),
    ("signal_listener", NO_WRITE, ONE_SERVER),
    ("histogram_drain", NO_WRITE, NO_WRITE),
];

/// Points at which no case here strikes, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("bulk.handing_over", "only of calls over thousands of jobs: `tests/operations.rs`"),
    ("bulk.handed_over", "only of calls over thousands of jobs: `tests/operations.rs`"),
    ("confirm", "only where the primary changes there: `tests/faults/taken_back.rs`"),
    ("copy.checked", "only of a copy of a store: `tests/transfer/interrupted.rs`"),
    ("copy.page", "only of a copy of a store: `tests/transfer/interrupted.rs`"),
    ("copy.equal", "only of a copy of a store: `tests/transfer/interrupted.rs`"),
    ("indexes.recorded", "beside all calls: `tests/indexes.rs`"),
    ("indexes.unused", "beside all calls: `tests/indexes.rs`"),
    ("migrate.begun", "only at a start: `tests/cli.rs`"),
    ("queue.emptied", "only where the settings change then: `tests/http/queues.rs`"),
    ("load.read", "figures, read beside `GET /stats`: `tests/http/series.rs`"),
];

/// Points that are passed once a reply is lost: each run has a part of those cases only.
const AFTER_LOSS: [&str; 2] = ["delivery.give_back", "delivery.recover"];

/// What was met while the verbs ran.
#[derive(Default)]
pub struct Met {
    points: BTreeSet<String>,
    routes: BTreeSet<(String, &'static str)>,
}

fn points_of(moment: &Moment) -> Option<&str> {
    match moment {
        Moment::Point(name) => Some(name),
        Moment::Second(_, then) => points_of(then),
        Moment::Command(_) => None,
    }
}

/// The route of a call, as the table names it.
fn route(call: &Call) -> String {
    let path = call.path.split('?').next().unwrap_or_default();
    let fits = |route: &str| {
        let (mut parts, mut names) = (path.split('/'), route.split('/'));
        let each =
            names.by_ref().zip(parts.by_ref()).all(|(name, part)| name.starts_with('{') || name == part);
        each && path.split('/').count() == route.split('/').count()
    };
    // One without a name in it fits better.
    let mut found: Vec<_> =
        ROUTES.iter().filter(|(method, at, _)| *method == call.method && fits(at)).collect();
    found.sort_by_key(|(_, at, _)| at.matches('{').count());
    found.first().map_or_else(|| call.path.clone(), |(method, at, _)| format!("{method} {at}"))
}

impl Met {
    pub fn note(&mut self, verb: &Verb, call: Option<&Call>, moments: &[Moment]) {
        self.points.extend(moments.iter().filter_map(points_of).map(str::to_owned));
        self.routes.extend(call.map(|call| (route(call), verb.name)));
    }

    pub fn join(&mut self, other: Self) {
        self.points.extend(other.points);
        self.routes.extend(other.routes);
    }

    /// Panics where the tables say more than what was met by all verbs.
    pub fn judge(&self, is_all: bool) {
        let is_struck = |name: &str| !is_elsewhere(name) && (is_all || !AFTER_LOSS.contains(&name));
        let unmet: Vec<String> =
            points().into_iter().filter(|name| is_struck(name) && !self.points.contains(name)).collect();
        assert!(unmet.is_empty(), "points that no verb has passed: {unmet:?}");
        let untrue: Vec<_> = WRITES
            .iter()
            .flat_map(|(route, verbs, _)| names(verbs).map(move |verb| (*route, verb)))
            .filter(|(route, verb)| !self.routes.contains(&((*route).to_owned(), *verb)))
            .collect();
        assert!(untrue.is_empty(), "verbs that make another call: {untrue:?}");
    }
}

fn is_elsewhere(point: &str) -> bool {
    ELSEWHERE.iter().any(|(name, _)| *name == point)
}

/// The verbs of an entry; none where it says why there are none.
fn names(struck: Struck) -> impl Iterator<Item = &'static str> {
    struck.split('|').filter(|name| !name.starts_with("- "))
}

fn source(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The names of all points in `src`.
fn points() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(path) {
                for call in ["faults::point(\"", "faults::point_in_thread(\""] {
                    let names = text.split(call).skip(1).filter_map(|rest| rest.split('"').next());
                    found.extend(names.map(str::to_owned));
                }
            }
        }
    }
    found
}

fn check(what: &str, table: &[(&str, Struck, Struck)], all: &BTreeSet<String>) {
    let named: BTreeSet<String> = table.iter().map(|(name, ..)| (*name).to_owned()).collect();
    assert_eq!(named.len(), table.len(), "a {what} stands twice in the table");
    let (missing, gone) = (all - &named, &named - all);
    assert!(
        missing.is_empty() && gone.is_empty(),
        "{what}s without an entry: {missing:?}; entries of none: {gone:?}"
    );
    let disk = source("tests/disk.rs");
    let lists = disk.split("each_operation_of! {").skip(1).filter_map(|rest| rest.split('}').next());
    let disk: BTreeSet<&str> = lists.flat_map(str::split_whitespace).collect();
    for (name, here, there) in table {
        for verb in names(here) {
            assert!(VERBS.iter().any(|known| known.name == verb), "{what} {name}: no verb {verb:?} here");
        }
        for verb in names(there) {
            assert!(disk.contains(verb), "{what} {name}: no verb {verb:?} in tests/disk.rs");
        }
    }
}

#[test]
fn each_route_that_writes_is_struck() {
    let reads = |method: &str| method == "GET";
    let all = ROUTES.iter().filter(|(method, ..)| !reads(method));
    check("route", WRITES, &all.map(|(method, path, _)| format!("{method} {path}")).collect());
}

#[test]
fn each_background_task_is_struck() {
    let text = source("src/background/mod.rs");
    let of_table = text.lines().filter_map(|line| line.trim().strip_prefix('"')?.split_once("\" every"));
    let by_itself = text.split("Task::new(\"").skip(1).filter_map(|rest| rest.split_once('"'));
    let all = of_table.chain(by_itself).map(|(name, _)| name.to_owned());
    check("task", TASKS, &all.collect());
}

/// The points themselves are looked for when all verbs run.
#[test]
fn each_point_that_is_struck_elsewhere_is_there() {
    let all = points();
    assert!(all.len() > 20, "the sources were not read: {all:?}");
    for (name, why) in ELSEWHERE {
        assert!(all.contains(*name), "there is no point {name:?}, {why}");
    }
    for name in AFTER_LOSS {
        assert!(all.contains(name), "there is no point {name:?}");
    }
}
