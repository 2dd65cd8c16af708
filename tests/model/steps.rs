//! What may happen: steps, and the small worlds of names that they are drawn from.
//!
//! A step names jobs by their place among those that there are, so that it means something in every state, and still
//! does when steps before it are left out.

use tailback::job::record::KeyUntil;

use super::drafts::{Draft, Wait};

/// The queues of a run. A queue's dead letters go only to those behind it.
pub const QUEUES: [&str; 5] = ["a", "b", "c", "d", "graves"];
pub const KEYS: [&str; 4] = ["k0", "k1", "k/2", "k\u{fc}3"];
pub const GROUPS: [&str; 3] = ["g0", "g1", "g2"];
pub const SEMAPHORES: [&str; 3] = ["x", "y", "z"];
pub const WORKERS: [&str; 3] = ["w0", "w1", "w2"];
pub const SCHEDULES: [&str; 2] = ["s0", "s1"];
pub const PAYLOADS: [&str; 5] =
    [r#"{"n":1}"#, "null", r#"[1.0,"$x"]"#, r#""text""#, "123456789012345678901234567890"];

/// How far ahead something lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ahead {
    Now,
    /// It comes while the test waits for it, a few milliseconds later.
    Soon,
    /// It does not come during the test.
    Far(u8),
}

#[derive(Debug, Clone)]
pub struct Ask {
    pub queue: u8,
    pub count: u8,
    pub lease: Ahead,
    pub yields: bool,
    pub worker: Option<u8>,
}

/// Which job an operation is for.
#[derive(Debug, Clone, Copy)]
pub enum Which {
    /// One that is reserved, with its token.
    Held(u8),
    /// One that was, with the token of then.
    Stale(u8),
    /// Any one that is there.
    Any(u8),
    /// One that has left.
    Gone(u8),
}

#[derive(Debug, Clone)]
pub enum Act {
    Commit {
        result: Option<u8>,
        push: Vec<Draft>,
    },
    Rollback {
        delay: Option<Ahead>,
        has_error: bool,
        /// 0: it is dead, to 3: the attempt does not count.
        kind: u8,
        in_place: bool,
    },
    Extend {
        lease: Option<Ahead>,
        progress: Option<u8>,
    },
    Move {
        queue: u8,
        payload: Option<u8>,
        delay: Option<Ahead>,
        priority: Option<i32>,
        /// The key, its time, and until when it is taken.
        key: Option<(u8, Ahead, KeyUntil)>,
    },
    Release,
    /// The reaper's; `is_right`: it names the deadline that the job has.
    Lapse {
        is_right: bool,
    },
    Silence {
        is_right: bool,
    },
    Removal,
    Expire {
        is_right: bool,
    },
    Edit {
        priority: Option<i32>,
        due: Option<Ahead>,
        payload: Option<u8>,
        /// Which of the other fields it changes, if any.
        other: u8,
        /// The group or, beyond all groups, none.
        group: u8,
    },
    Cancel {
        force: bool,
    },
    CancelUnheld,
    Retry,
    Run,
    Revoke,
    Relocate {
        queue: u8,
        delay: Option<Ahead>,
        priority: Option<i32>,
    },
    Purge {
        state: u8,
    },
    Redrive {
        is_right: bool,
    },
}

/// What a queue's owner sets.
#[derive(Debug, Clone)]
pub struct Settings {
    pub max_attempts: Option<u32>,
    pub backoff: Option<Wait>,
    pub dead_letter: Option<u8>,
    pub retain_done: Option<Ahead>,
    pub retain_result: Option<Ahead>,
    pub retain_dead: Option<Ahead>,
    pub max_jobs: Option<u64>,
    pub max_reserved: Option<u64>,
    /// So many deliveries within a time that is longer than the run.
    pub rate: Option<u64>,
    pub skips_dead: bool,
    pub lapsed_first: bool,
}

#[derive(Debug, Clone)]
pub enum Step {
    Push(Vec<Draft>),
    /// All of them or none.
    PushAll(Vec<Draft>),
    PushOnce {
        jobs: Vec<Draft>,
        key: u8,
        says: u8,
    },
    Claim(Vec<Ask>),
    Pop(Ask),
    /// What would come next is looked at.
    Peek {
        queue: u8,
        limit: u8,
    },
    /// A reserve that wants so many bytes of payloads.
    Bytes {
        ask: Ask,
        max_bytes: u8,
    },
    Apply(Vec<(Which, Act)>),
    /// What was asked for before is asked for again, the same way.
    Repeat(u8),
    /// A commit or a rollback of a job that is held, and what is next.
    Next {
        which: u8,
        act: Act,
        ask: Ask,
    },
    /// The repeat of one of those, with this lease.
    Again(u8, Ahead),
    /// All that has run out is taken back.
    Reap,
    CreateBatch {
        jobs: Vec<Draft>,
        is_sealed: bool,
        callback: Option<Draft>,
    },
    AddToBatch {
        batch: u8,
        jobs: Vec<Draft>,
    },
    SealBatch(u8),
    CancelBatch(u8),
    Heartbeat {
        worker: u8,
        timeout: Ahead,
        has_slots: bool,
    },
    /// What silent workers hold is taken back; `heard_of`: this one is heard of in between.
    Silence {
        heard_ms: u64,
        heard_of: Option<u8>,
    },
    RemoveWorker(u8),
    SaveSchedule {
        schedule: u8,
        is_seen: bool,
        is_removed: bool,
        next: Option<Ahead>,
    },
    Fire {
        schedule: u8,
        is_seen: bool,
        yields: bool,
        job: Option<Draft>,
    },
    FireAgain,
    /// `expected`: any version, none, the current one, another one.
    Set {
        queue: u8,
        settings: Option<Settings>,
        expected: u8,
    },
    RetainBatches(Ahead),
    Import {
        job: Draft,
        state: u8,
        ask: Ask,
        is_expired: bool,
    },
    /// A line of another store: the state of its first job, and the jobs.
    ImportLine {
        state: u8,
        jobs: Vec<Draft>,
        ask: Ask,
    },
    /// Made or changed; without a capacity removed.
    Semaphore {
        semaphore: u8,
        capacity: Option<u64>,
    },
    /// Those who wait for one, or for any.
    Call(Option<u8>),
    Prune,
}
