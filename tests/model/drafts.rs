//! Jobs that are to be pushed: what a step says of them, how often that is drawn, and what its numbers stand for.

use proptest::prelude::*;
use proptest::sample::select;
use tailback::job::record::{KeyConflict, KeyHold, KeyUntil};
use tailback::job::transition::Edit;
use tailback::job::{
    Backoff, Binary, Content, GroupName, JobSpec, Payload, QueueName, SemaphoreName, Stage, Timestamp,
    WorkerName,
};

use super::draws::{self, due, lasts, maybe, priority};
use super::state::FAR_MS;
use super::steps::{Ahead, GROUPS, KEYS, PAYLOADS, QUEUES, SEMAPHORES, WORKERS};

/// The lease that jobs have of their own, and the longest delivery: between all that is soon and all that is far.
const OWN_LEASE_MS: u64 = FAR_MS / 2;
const MAX_RUN_MS: u64 = FAR_MS / 2 + 1;
/// What is soon, in milliseconds.
const SOON_MS: u64 = 3;

/// A job that is to be pushed.
#[derive(Debug, Clone)]
pub struct Draft {
    pub queue: u8,
    pub payload: u8,
    pub priority: i32,
    /// Sorts the ids, which need not be in the order of the pushes.
    pub letter: char,
    /// So many milliseconds earlier than now, where it is due at once.
    pub early_ms: u8,
    pub due: Ahead,
    /// The key, its time, until when it is taken, and what becomes of a push that finds it so.
    pub key: Option<(u8, Ahead, KeyUntil, KeyConflict)>,
    pub expires: Option<Ahead>,
    pub retain_result: Option<Ahead>,
    pub max_attempts: Option<u32>,
    pub backoff: Option<Wait>,
    pub route: Vec<StageDraft>,
    pub has_header: bool,
    pub own_lease: bool,
    pub max_run: bool,
    pub group: Option<u8>,
    pub semaphores: Vec<u8>,
}

#[derive(Debug, Clone)]
pub struct StageDraft {
    pub queue: u8,
    pub priority: Option<i32>,
    pub due: Option<Ahead>,
    pub max_attempts: Option<u32>,
    pub backoff: Option<Wait>,
}

/// A backoff: how its first delay is, and whether the delays grow.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    pub first: Ahead,
    pub grows: bool,
}

pub fn any_wait() -> impl Strategy<Value = Wait> {
    (due(), any::<bool>()).prop_map(|(first, grows)| Wait { first, grows })
}

fn any_stage() -> impl Strategy<Value = StageDraft> {
    (draws::queue(), maybe(0.2, priority()), maybe(0.3, due()), maybe(0.2, 1..3_u32), maybe(0.1, any_wait()))
        .prop_map(|(queue, priority, due, max_attempts, backoff)| StageDraft {
            queue,
            priority,
            due,
            max_attempts,
            backoff,
        })
}

pub fn any_draft() -> impl Strategy<Value = Draft> {
    let place = (draws::queue(), 0..PAYLOADS.len() as u8, priority(), select(vec!['m', 'a', 'z']));
    let time = (prop_oneof![3 => Just(0_u8), 1 => any::<u8>()], due());
    let conflict = prop_oneof![3 => Just(KeyConflict::Return), 1 => Just(KeyConflict::Replace), 1 => Just(KeyConflict::Refuse)];
    let key = (0..KEYS.len() as u8, prop_oneof![Just(Ahead::Now), Just(Ahead::Far(0))], lasts(), conflict);
    let expires = prop_oneof![1 => Just(Ahead::Soon), 3 => (0..3_u8).prop_map(Ahead::Far)];
    let kept =
        maybe(0.15, prop_oneof![1 => Just(Ahead::Now), 1 => Just(Ahead::Soon), 4 => Just(Ahead::Far(1))]);
    let rest = (maybe(0.25, key), maybe(0.1, expires), kept, maybe(0.15, 1..3_u32), maybe(0.1, any_wait()));
    let route = prop_oneof![4 => Just(Vec::new()), 1 => prop::collection::vec(any_stage(), 1..4)];
    let group = maybe(0.35, 0..GROUPS.len() as u8);
    let some = prop::sample::subsequence(vec![0, 1, 2_u8], 1..3);
    let semaphores = prop_oneof![6 => Just(Vec::new()), 1 => some];
    let marks = (prop::bool::weighted(0.1), prop::bool::weighted(0.1), prop::bool::weighted(0.1));
    (place, time, rest, route, (marks, group, semaphores)).prop_map(
        |(
            (queue, payload, priority, letter),
            (early_ms, due),
            (key, expires, retain_result, max_attempts, backoff),
            route,
            ((has_header, own_lease, max_run), group, semaphores),
        )| {
            // Those that share a key often share a payload.
            let payload = if key.is_some() { payload % 2 } else { payload };
            Draft {
                queue,
                payload,
                priority,
                letter,
                early_ms,
                due,
                key,
                expires,
                retain_result,
                max_attempts,
                backoff,
                route,
                has_header,
                own_lease,
                max_run,
                group,
                semaphores,
            }
        },
    )
}

pub fn ms(ahead: Ahead) -> u64 {
    match ahead {
        Ahead::Now => 0,
        Ahead::Soon => SOON_MS,
        Ahead::Far(more) => FAR_MS + u64::from(more) * 60_000,
    }
}

pub fn json(place: u8) -> Payload {
    Payload::parse(PAYLOADS[place as usize]).unwrap()
}

/// Some of them are bytes.
pub fn payload(place: u8) -> Content {
    match place {
        1 | 4 => Binary { bytes: vec![0, 0xff, place].into(), media_type: Default::default() }.into(),
        _ => json(place).into(),
    }
}

pub fn queue(place: u8) -> QueueName {
    QUEUES[place as usize].parse().unwrap()
}

pub fn worker(place: u8) -> WorkerName {
    WORKERS[place as usize].parse().unwrap()
}

pub fn group(place: u8) -> GroupName {
    GROUPS[place as usize].parse().unwrap()
}

pub fn semaphore(place: u8) -> SemaphoreName {
    SEMAPHORES[place as usize].parse().unwrap()
}

pub fn backoff(wait: Wait) -> Backoff {
    let base_ms = ms(wait.first);
    let default = Backoff::default();
    match wait.first {
        Ahead::Far(_) if wait.grows => Backoff { base_ms, max_ms: 3 * FAR_MS, ..default },
        _ => Backoff { kind: tailback::job::backoff::BackoffKind::Fixed, base_ms, jitter: 0.0, ..default },
    }
}

pub fn stage(draft: &StageDraft) -> Stage {
    Stage {
        priority: draft.priority,
        delay_ms: draft.due.map(ms),
        max_attempts: draft.max_attempts,
        backoff: draft.backoff.map(backoff),
        ..Stage::new(queue(draft.queue))
    }
}

/// What a change says beside priority, time and payload.
pub fn other_edit(other: u8, to: u8) -> Edit {
    let none = Edit::default();
    match other {
        0 => Edit { max_attempts: Some((to > 0).then(|| u32::from(to) - 1)), ..none },
        1 => Edit { expires_in_ms: Some((to > 0).then_some(FAR_MS)), ..none },
        2 => Edit { headers: Some([("n".to_owned(), json(to))].into()), ..none },
        3 => Edit { headers: Some(Default::default()), ..none },
        4..=7 => Edit { group: Some((usize::from(to) < GROUPS.len()).then(|| group(to))), ..none },
        _ => none,
    }
}

pub fn hold(key: u8, until: Ahead, lasts: KeyUntil, now: Timestamp) -> KeyHold {
    let key = KEYS[key as usize].parse().unwrap();
    KeyHold { lasts, ..KeyHold::new(key, now.plus_ms(ms(until))) }
}

/// What a draft says of its job.
pub fn spec(draft: &Draft) -> JobSpec {
    let header = draft.has_header.then(|| ("trace".to_owned(), json(draft.payload)));
    JobSpec {
        headers: header.into_iter().collect(),
        priority: draft.priority,
        max_attempts: draft.max_attempts,
        backoff: draft.backoff.map(backoff),
        lease_ms: draft.own_lease.then_some(OWN_LEASE_MS),
        max_run_ms: draft.max_run.then_some(MAX_RUN_MS),
        expires_in_ms: draft.expires.map(ms),
        retain_result_ms: draft.retain_result.map(ms),
        group: draft.group.map(group),
        semaphores: draft.semaphores.iter().copied().map(semaphore).collect(),
        then: draft.route.iter().map(stage).collect(),
        ..JobSpec::new(payload(draft.payload))
    }
}

/// The element at this place, counted around and around.
pub fn nth<T>(all: &[T], place: u8) -> Option<&T> {
    all.get(usize::from(place).checked_rem(all.len())?)
}
