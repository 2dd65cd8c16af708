//! What the numbers of a step stand for.

use tailback::job::record::{KeyHold, KeyUntil};
use tailback::job::transition::Edit;
use tailback::job::{
    Backoff, Binary, Content, GroupName, JobSpec, Payload, QueueName, SemaphoreName, Stage, Timestamp,
    WorkerName,
};

use super::state::FAR_MS;
use super::steps::{Ahead, Draft, GROUPS, KEYS, PAYLOADS, QUEUES, SEMAPHORES, StageDraft, WORKERS, Wait};

/// The lease that jobs have of their own, and the longest delivery: between all that is soon and all that is far.
const OWN_LEASE_MS: u64 = FAR_MS / 2;
const MAX_RUN_MS: u64 = FAR_MS / 2 + 1;
/// What is soon, in milliseconds.
const SOON_MS: u64 = 3;

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
