//! A job as the model has it, and whether a store's job is the same.

use tailback::job::record::TrailReason;
use tailback::job::spec::Headers;
use tailback::job::{
    Backoff, BatchId, Claim, Content, GroupName, JobId, JobKey, Meta, NewJob, Payload, QueueName,
    SemaphoreName, Stage, State, Timestamp, Visible, WorkerName,
};

/// A moment that a store chose, as far as the model knows it: not before `from`, and not after `to`. Once it has been
/// seen, both are that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When {
    pub from: Timestamp,
    pub to: Timestamp,
}

impl When {
    pub fn at(moment: Timestamp) -> Self {
        Self { from: moment, to: moment }
    }

    pub fn plus(self, ms: u64) -> Self {
        self.plus_between(ms, ms)
    }

    pub fn plus_between(self, least_ms: u64, most_ms: u64) -> Self {
        Self { from: self.from.plus_ms(least_ms), to: self.to.plus_ms(most_ms) }
    }

    /// The later of two moments.
    pub fn or_later(self, other: Self) -> Self {
        Self { from: self.from.max(other.from), to: self.to.max(other.to) }
    }

    /// The earlier of two moments.
    pub fn or_earlier(self, other: Self) -> Self {
        Self { from: self.from.min(other.from), to: self.to.min(other.to) }
    }

    pub fn has(self, moment: Timestamp) -> bool {
        (self.from..=self.to).contains(&moment)
    }

    /// Whether it has come. The harness sees to it that this is certain wherever it matters.
    pub fn is_past(self, now: When) -> bool {
        self.from <= now.to
    }
}

/// A failed attempt.
#[derive(Debug, Clone)]
pub struct Failed {
    pub at: When,
    pub attempt: u32,
    pub worker: Option<WorkerName>,
    pub message: String,
}

/// A queue that the job has left.
#[derive(Debug, Clone)]
pub struct Left {
    pub at: When,
    pub queue: QueueName,
    pub reason: TrailReason,
    pub attempts: u32,
}

/// Where a dead letter came from.
#[derive(Debug, Clone)]
pub struct Home {
    pub queue: QueueName,
    pub at: When,
    pub attempts: u32,
    pub error: Option<String>,
    /// Where that queue had it from, if it was a dead letter there.
    pub before: Option<Box<Home>>,
}

/// What is known of the number that every write replaces.
#[derive(Debug, Clone, Copy)]
pub enum Rev {
    /// It was not seen yet.
    New,
    /// Nobody has written since it was seen.
    Same(i64),
    /// It must be another one than this.
    Changed(i64),
}

/// What is known of a job's place in the line of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It stands in none.
    None,
    /// It has just come to the end of one.
    New,
    /// It keeps the place that was seen.
    Seen(i64),
}

/// The semaphore that a job is blocked by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waits {
    /// None.
    No,
    /// One of these, as the store chose.
    OneOf(Vec<SemaphoreName>),
    For(SemaphoreName),
}

#[derive(Debug, Clone)]
pub struct Job {
    pub id: JobId,
    pub queue: QueueName,
    pub state: State,
    pub priority: i32,
    pub run_at: When,
    pub attempts: u32,
    pub max_attempts: Option<u32>,
    pub backoff: Option<Backoff>,
    pub key: Option<JobKey>,
    pub created_at: When,
    pub started_at: Option<When>,
    pub finished_at: Option<When>,
    pub expires_at: Option<When>,
    pub purge_at: Option<When>,
    pub worker: Option<WorkerName>,
    pub claim: Option<Claim>,
    pub reserved_until: Option<When>,
    pub lease_ms: Option<u64>,
    pub extended_at: Option<When>,
    pub progress: Option<Payload>,
    pub cancel_requested: bool,
    pub errors: Vec<Failed>,
    pub trail: Vec<Left>,
    pub origin: Option<Home>,
    pub route: Vec<Stage>,
    pub batch: Option<BatchId>,
    pub group: Option<GroupName>,
    pub turn: Turn,
    pub semaphores: Vec<SemaphoreName>,
    pub waits_for: Waits,
    pub waiting_since: Option<When>,
    pub payload: Content,
    pub headers: Headers,
    pub result: Option<Payload>,
    pub rev: Rev,
    /// As it was pushed.
    pub first: Meta,
}

impl Job {
    /// A job that was just pushed.
    pub fn pushed(new: &NewJob) -> Self {
        Self {
            id: new.id.clone(),
            queue: new.queue.clone(),
            state: State::Ready,
            priority: new.spec.priority,
            run_at: When::at(new.run_at),
            attempts: 0,
            max_attempts: new.spec.max_attempts,
            backoff: new.spec.backoff,
            key: new.key.as_ref().map(|hold| hold.key.clone()),
            created_at: When::at(new.created_at),
            started_at: None,
            finished_at: None,
            expires_at: new.expires_at().map(When::at),
            purge_at: None,
            worker: None,
            claim: None,
            reserved_until: None,
            lease_ms: None,
            extended_at: None,
            progress: None,
            cancel_requested: false,
            errors: Vec::new(),
            trail: Vec::new(),
            origin: None,
            route: new.spec.then.clone(),
            batch: new.batch.clone(),
            group: new.spec.group.clone(),
            turn: Turn::None,
            semaphores: new.spec.semaphores.clone(),
            waits_for: Waits::No,
            waiting_since: None,
            payload: new.spec.payload.clone(),
            headers: new.spec.headers.clone(),
            result: None,
            rev: Rev::New,
            first: new.clone().into_job().meta,
        }
    }

    /// When a lease ends that would last until then, of a delivery that began at `started_at`.
    pub fn within_run(&self, started_at: When, until: When) -> When {
        self.first.max_run_ms.map_or(until, |ms| until.or_earlier(started_at.plus(ms)))
    }

    pub fn is_unfinished(&self) -> bool {
        matches!(self.state, State::Ready | State::Reserved | State::Blocked)
    }

    /// Whether it waits to be delivered.
    pub fn waits(&self) -> bool {
        matches!(self.state, State::Ready | State::Blocked)
    }

    /// Whether its key is taken whatever the key's time.
    pub fn holds_key(&self) -> bool {
        self.is_unfinished() || self.state == State::Dead
    }

    /// Whether it may be delivered.
    pub fn is_deliverable(&self, now: When) -> bool {
        let expired = self.expires_at.is_some_and(|at| at.is_past(now));
        self.state == State::Ready && self.run_at.is_past(now) && !expired
    }

    /// The states as which people may see it: one, unless it comes due at this very moment.
    pub fn visible(&self, now: When) -> Vec<Visible> {
        match self.state {
            State::Ready if self.run_at.to <= now.from => vec![Visible::Ready],
            State::Ready if self.run_at.from > now.to => vec![Visible::Scheduled],
            State::Ready => vec![Visible::Ready, Visible::Scheduled],
            State::Reserved => vec![Visible::Reserved],
            State::Blocked => vec![Visible::Blocked],
            State::Done => vec![Visible::Done],
            State::Dead => vec![Visible::Dead],
        }
    }

    /// Moments at which something becomes possible that was not.
    pub fn moments(&self) -> impl Iterator<Item = Timestamp> {
        let waits = matches!(self.state, State::Ready | State::Blocked).then_some(self.run_at);
        let known = [waits, self.expires_at, self.purge_at, self.reserved_until];
        known.into_iter().flatten().map(|when| when.to)
    }
}

/// How what was seen differs from what was expected; what was expected learns the moments that the store chose.
#[derive(Default)]
pub struct Differences(pub Vec<String>);

impl Differences {
    pub fn same<T: PartialEq + std::fmt::Debug>(&mut self, field: &str, expected: &T, seen: &T) {
        if expected != seen {
            self.0.push(format!("{field} is {seen:?}, expected {expected:?}"));
        }
    }

    pub fn moment(&mut self, field: &str, expected: &mut When, seen: Timestamp) {
        if expected.has(seen) {
            *expected = When::at(seen);
        } else {
            self.0.push(format!("{field} is {seen:?}, expected {:?} to {:?}", expected.from, expected.to));
        }
    }

    pub fn moment_if_any(&mut self, field: &str, expected: &mut Option<When>, seen: Option<Timestamp>) {
        match (expected, seen) {
            (Some(expected), Some(seen)) => self.moment(field, expected, seen),
            (None, None) => {}
            (expected, seen) => self.0.push(format!("{field} is {seen:?}, expected {expected:?}")),
        }
    }

    pub fn end(self, what: &dyn std::fmt::Display) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err(format!("{what}: {}", self.0.join("; "))) }
    }
}

impl Job {
    /// Compares every field with the store's job.
    pub fn check(&mut self, seen: &tailback::job::Job) -> Result<(), String> {
        let (meta, mut found) = (&seen.meta, Differences::default());
        macro_rules! same { ($($field:ident)*) => { $(found.same(stringify!($field), &self.$field, &meta.$field);)* } }
        same! {
            id queue state priority attempts max_attempts backoff key worker claim lease_ms progress
            cancel_requested route batch group
        }
        found.same("what stays as it was pushed", &self.constant(meta), meta);
        found.same("payload", &self.payload, &seen.payload);
        found.same("headers", &self.headers, &seen.headers);
        found.same("result", &self.result, &seen.result);
        found.moment("run_at", &mut self.run_at, meta.run_at);
        found.moment("created_at", &mut self.created_at, meta.created_at);
        found.moment_if_any("started_at", &mut self.started_at, meta.started_at);
        found.moment_if_any("finished_at", &mut self.finished_at, meta.finished_at);
        found.moment_if_any("expires_at", &mut self.expires_at, meta.expires_at);
        found.moment_if_any("purge_at", &mut self.purge_at, meta.purge_at);
        found.moment_if_any("extended_at", &mut self.extended_at, meta.extended_at);
        found.moment_if_any("reserved_until", &mut self.reserved_until, meta.reserved_until);
        self.check_past(meta, &mut found);
        self.check_waiting(meta, &mut found);
        match self.rev {
            Rev::Same(rev) if rev != meta.rev => {
                found.0.push("it was written, although nothing happened to it".into())
            }
            Rev::Changed(rev) if rev == meta.rev => {
                found.0.push("its rev is that of before the write".into())
            }
            _ => self.rev = Rev::Same(meta.rev),
        }
        found.end(&format_args!("job {}", self.id))
    }

    /// The bookkeeping as seen, but as it was pushed in all fields that no operation changes: also in those that this
    /// model does not know.
    fn constant(&self, seen: &Meta) -> Meta {
        macro_rules! changing { ($($field:ident)*) => { Meta { $($field: seen.$field.clone(),)* ..self.first.clone() } } }
        changing! {
            state priority run_at attempts max_attempts backoff queue key created_at started_at finished_at
            expires_at purge_at worker claim reserved_until lease_ms extended_at progress cancel_requested errors
            trail origin route batch group turn waits_for waiting_since came_at given_back_at rev
        }
    }

    /// What it waits for.
    fn check_waiting(&mut self, meta: &tailback::job::Meta, found: &mut Differences) {
        match (self.turn, meta.turn) {
            (Turn::None, None) => {}
            (Turn::New, Some(turn)) => self.turn = Turn::Seen(turn),
            (Turn::Seen(own), Some(turn)) if own == turn => {}
            (own, seen) => found.0.push(format!("turn is {seen:?}, expected {own:?}")),
        }
        match (&self.waits_for, &meta.waits_for) {
            (Waits::No, None) => {}
            (Waits::For(own), Some(seen)) if own == seen => {}
            (Waits::OneOf(names), Some(seen)) if names.contains(seen) => {
                self.waits_for = Waits::For(seen.clone());
            }
            (own, seen) => found.0.push(format!("waits_for is {seen:?}, expected {own:?}")),
        }
        found.moment_if_any("waiting_since", &mut self.waiting_since, meta.waiting_since);
    }

    /// What it has been through.
    fn check_past(&mut self, meta: &tailback::job::Meta, found: &mut Differences) {
        found.same("the number of errors", &self.errors.len(), &meta.errors.len());
        for (own, seen) in self.errors.iter_mut().zip(&meta.errors) {
            found.same("error attempt", &own.attempt, &seen.attempt);
            found.same("error worker", &own.worker, &seen.worker);
            found.same("error message", &own.message, &seen.message);
            found.moment("error at", &mut own.at, seen.at);
        }
        found.same("the length of the trail", &self.trail.len(), &meta.trail.len());
        for (own, seen) in self.trail.iter_mut().zip(&meta.trail) {
            found.same("trail queue", &own.queue, &seen.queue);
            found.same("trail reason", &own.reason, &seen.reason);
            found.same("trail attempts", &own.attempts, &seen.attempts);
            found.moment("trail at", &mut own.at, seen.at);
        }
        found.same("being a dead letter", &self.origin.is_some(), &meta.origin.is_some());
        if let (Some(own), Some(seen)) = (&mut self.origin, &meta.origin) {
            found.same("origin queue", &own.queue, &seen.queue);
            found.same("origin attempts", &own.attempts, &seen.attempts);
            found.same("origin error", &own.error, &seen.error);
            found.moment("origin at", &mut own.at, seen.at);
        }
    }
}
