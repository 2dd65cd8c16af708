//! A store whose calls are measured, and which is closed at first: until its schema is up to date, since
//! what would be written before would miss its validator and its indexes, and until the settings have been
//! read once, since without them no limit and no pause would hold.
//!
//! `metered!` is the table of all methods that are measured alike. Written out are those that differ: `migrate` and `settings` open
//! the store (`migrate` is not measured, since it takes as long as its migrations do), `signal` also counts what was sent, by its kind,
//! `close` is never refused and returns no `Result`, and what is not `async` sends nothing to the database.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;

use super::{
    Access, Answers, Applied, Audit, AuditFilter, AuditRow, BatchChange, BatchChanged, BatchDenied, Batches,
    BegunBy, Blockers, BulkDone, BulkStep, Change, ClaimAsk, Claims, Counts, Denied, Figures, Fired, Firing,
    Found, GroupLine, HeldKey, Holder, Holdings, Imported, Jobs, Keyed, KeyedCall, KnownServer, ListedJob,
    ListedSchedule, Load, Memo, MemoKind, Named, Obstacles, Once, Opened, Operations, Overdue, Pool, Pushed,
    QueueCounts, Recalled, RecentTally, Reconciled, Removal, Report, Request, Requests, RestoreMark, Result,
    Saved, Schedules, Search, SemaphoreUse, SemaphoreView, Semaphores, Series, SeriesRead, SeriesWrite,
    Settings, SettingsChange, SettingsSnapshot, Signal, SignalEvent, Signals, StepOfOther, Store, StoreError,
    StoreSize, StoredKeys, Subject, Summary, TakeAsk, Taken, Term, TimedOut, TokenSecret, Transfer,
    Unblocked, Worker, Workers,
};
use crate::job::error_group::Tally;
use crate::job::group::Line;
use crate::job::semaphore::Waiter;
use crate::job::{
    ApiKey, ApiKeyId, Batch, BatchId, BatchResult, Bulk, BulkId, Claim, Job, JobId, Mark, Meta, NewJob,
    QueueName, Reach, Rules, Schedule, ScheduleName, SecretHash, SemaphoreName, StoredKeyId, Timestamp,
    WorkerName,
};
use crate::telemetry::trace::{Command, End, Kind, number, text};
use crate::telemetry::{self, StoreFailure};

/// See the module's documentation.
pub struct Metered {
    inner: Arc<dyn Store>,
    migrated: AtomicBool,
    open: AtomicBool,
}

impl Metered {
    /// Measures the calls of this store; closed until [`Store::migrate`] and then [`Settings::settings`] have
    /// succeeded.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, migrated: AtomicBool::new(false), open: AtomicBool::new(false) }
    }

    fn check_open(&self) -> Result<()> {
        if self.open.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(StoreError::unavailable("the store has not been reached yet"))
        }
    }

    /// For the calls that come before the store is open.
    fn check_migrated(&self) -> Result<()> {
        if self.migrated.load(Ordering::Acquire) { Ok(()) } else { self.check_open() }
    }

    /// Measures a call if its gate is open. `elements`: how many results it returns where it returns a list;
    /// `jobs`: how many jobs it concerns.
    async fn behind<A: Answer>(
        &self,
        gate: Result<()>,
        name: &'static str,
        elements: usize,
        jobs: usize,
        call: impl Future<Output = A>,
    ) -> A {
        match gate {
            Ok(()) => self.measured(name, jobs, call).await,
            Err(error) => A::failed(elements, &error),
        }
    }

    async fn measured<A: Answer>(&self, name: &'static str, jobs: usize, call: impl Future<Output = A>) -> A {
        let (start, command) = (Instant::now(), Command::begin());
        let answer = call.await;
        let took = start.elapsed();
        telemetry::store_call(name, took, jobs);
        if let Some(error) = answer.error() {
            note(name, error);
        }
        if let Some(command) = command {
            command.end(self.ended(name, took, jobs, answer.error()));
        }
        answer
    }

    /// What is recorded of a call in a trace. Its error may name what is confidential.
    fn ended(&self, name: &'static str, took: Duration, jobs: usize, error: Option<&StoreError>) -> End {
        let system = text("db.system.name", self.inner.system());
        let mut attributes =
            vec![system, text("db.operation.name", name), number("db.operation.batch.size", jobs)];
        let error = error.map(|error| failure(error).as_str());
        attributes.extend(error.map(|kind| text("error.type", kind)));
        let (name, error) = (format!("store {name}").into(), error.map(Into::into));
        End { name, kind: Kind::Client, took, attributes, error }
    }
}

fn failure(error: &StoreError) -> StoreFailure {
    match error {
        StoreError::Unavailable(_) | StoreError::Building => StoreFailure::Unavailable,
        StoreError::Damaged(_) => StoreFailure::Damaged,
        StoreError::Full(_) => StoreFailure::Full,
        StoreError::Unsuitable(_) => StoreFailure::Unsuitable,
        StoreError::Unreadable(_) | StoreError::NotUnique(_) => StoreFailure::Unreadable,
        StoreError::Internal(_) => StoreFailure::Internal,
    }
}

fn note(call: &'static str, error: &StoreError) {
    if matches!(error, StoreError::NotUnique(_)) {
        return; // the index does what it is for
    }
    telemetry::store_error(failure(error));
    let text = || super::chain(error);
    if matches!(error, StoreError::Internal(_) | StoreError::Unreadable(_)) {
        tracing::error!(call, error = text(), "a call of the store failed");
    } else if let Some(more) = telemetry::STORE_FAILURES.due() {
        tracing::warn!(
            call,
            error = text(),
            more,
            "calls of the store fail; `more` did since the last such line"
        );
    }
}

/// What a method of a store returns.
trait Answer {
    /// The return value of a call that fails with this error: a list gets it for each of its elements.
    fn failed(elements: usize, error: &StoreError) -> Self;

    /// The first failure of the store in it.
    fn error(&self) -> Option<&StoreError>;
}

/// An error type that failures of the store are a part of.
trait Failure: From<StoreError> {
    /// The failure of the store that it is, if it is one.
    fn of_store(&self) -> Option<&StoreError>;
}

impl Failure for StoreError {
    fn of_store(&self) -> Option<&StoreError> {
        Some(self)
    }
}

impl Failure for Denied {
    fn of_store(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            Self::Refused(_) | Self::PushRefused(_) | Self::KeyTaken(_) => None,
        }
    }
}

impl Failure for BatchDenied {
    fn of_store(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            Self::Unknown | Self::Sealed | Self::OnlyDuplicates(_) | Self::PushRefused(_) => None,
        }
    }
}

impl<T, E: Failure> Answer for Result<T, E> {
    fn failed(_: usize, error: &StoreError) -> Self {
        Err(error.clone().into())
    }

    fn error(&self) -> Option<&StoreError> {
        self.as_ref().err().and_then(E::of_store)
    }
}

impl<T, E: Failure> Answer for Vec<Result<T, E>> {
    fn failed(elements: usize, error: &StoreError) -> Self {
        (0..elements).map(|_| Err(error.clone().into())).collect()
    }

    fn error(&self) -> Option<&StoreError> {
        self.iter().find_map(Answer::error)
    }
}

impl Answer for Taken {
    fn failed(elements: usize, error: &StoreError) -> Self {
        Self::nothing(Answer::failed(elements, error), 0)
    }

    fn error(&self) -> Option<&StoreError> {
        self.applied.error().or_else(|| self.claims.won.error())
    }
}

impl Answer for Claims {
    fn failed(elements: usize, error: &StoreError) -> Self {
        Self::failed(elements, error)
    }

    fn error(&self) -> Option<&StoreError> {
        self.won.error()
    }
}

/// How many jobs these requests ask for.
fn asked_for(asks: &[ClaimAsk]) -> usize {
    asks.iter().map(|ask| ask.count).sum()
}

/// Implements parts of the contract: a row for each method. A call concerns one job, or as many as the list
/// behind `each` has elements, or as many as the function in brackets says. It is measured under the method's name, or under the one
/// behind `as`. A row that is `#[early]` may be called before the store is open, once it is migrated. What is behind a part's `+` is
/// written out.
macro_rules! metered {
    ($($part:ident {
        $($(#[$early:ident])? $name:ident($($arg:ident: $type:ty),*) -> $answer:ty
            $(, each $list:ident $(($jobs:path))?)? $(, as $label:literal)?;)*
    } $(+ { $($written_out:tt)* })?)*) => {
        $(
            #[async_trait]
            impl $part for Metered {
                $(
                    async fn $name(&self, $($arg: $type),*) -> $answer {
                        let elements = metered!(@elements $($list)?);
                        let jobs = metered!(@jobs $($list $($jobs)?)?);
                        let gate = metered!(@gate self $($early)?);
                        let name = metered!(@name $name $($label)?);
                        self.behind(gate, name, elements, jobs, self.inner.$name($($arg),*)).await
                    }
                )*
                $($($written_out)*)?
            }
        )*
    };
    (@gate $self:ident) => { $self.check_open() };
    (@gate $self:ident early) => { $self.check_migrated() };
    (@name $name:ident) => { stringify!($name) };
    (@name $name:ident $label:literal) => { $label };
    (@elements) => { 1 };
    (@elements $list:ident) => { $list.len() };
    (@jobs) => { 1 };
    (@jobs $list:ident) => { $list.len() };
    (@jobs $list:ident $jobs:path) => { $jobs($list) };
}

metered! {
    Store {
        ping() -> Result<Instant>;
        confirm(since: Term) -> Result<()>;
        prune(limit: usize) -> Result<u64>;
    } + {
        fn system(&self) -> &'static str {
            self.inner.system()
        }

        async fn migrate(&self) -> Result<Vec<String>> {
            let run = self.inner.migrate().await?;
            self.migrated.store(true, Ordering::Release);
            Ok(run)
        }

        fn term(&self) -> Term {
            self.inner.term()
        }

        fn now(&self) -> Result<Timestamp> {
            self.check_open()?;
            self.inner.now()
        }

        fn ends_alone(&self, id: &JobId, claim: &Claim) -> Option<(QueueName, Timestamp)> {
            self.check_open().ok()?;
            self.inner.ends_alone(id, claim)
        }

        fn ahead_ms(&self) -> u64 {
            self.inner.ahead_ms()
        }

        async fn close(&self) {
            self.inner.close().await;
        }
    }
    Settings {
        save_all_settings(changes: &[SettingsChange]) -> Result<Vec<Saved>>, each changes, as "save_settings";
    } + {
        async fn settings(&self, known: Option<i64>) -> Result<Option<SettingsSnapshot>> {
            self.check_migrated()?;
            let settings = self.measured("settings", 1, self.inner.settings(known)).await?;
            self.open.store(true, Ordering::Release);
            Ok(settings)
        }
    }
    Signals {
        servers() -> Result<Vec<KnownServer>>;
        #[early] join() -> Result<()>;
    } + {
        fn signals(&self) -> Option<BoxStream<'static, SignalEvent>> {
            let count = |heard: &SignalEvent| match heard {
                SignalEvent::Received { signal, .. } => telemetry::signal_heard(signal.kind()),
                SignalEvent::Subscribed => telemetry::listening_begins(),
            };
            let signals = self.inner.signals()?;
            telemetry::signals_known(&Signal::KINDS);
            Some(Box::pin(signals.inspect(count)))
        }

        async fn signal(&self, signal: &Signal) -> Result<()> {
            self.behind(self.check_open(), "signal", 1, 1, self.inner.signal(signal)).await?;
            telemetry::signal_told(signal.kind());
            Ok(())
        }
    }
    Jobs {
        push(jobs: Vec<NewJob>, rules: &Rules) -> Vec<Result<Pushed>>, each jobs;
        claim(asks: &[ClaimAsk], rules: &Rules) -> Claims, each asks (asked_for);
        held(queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>>;
        marked(marks: &[Mark]) -> Result<Vec<Job>>;
        apply(changes: Vec<Change>, rules: &Rules) -> Vec<Result<Applied, Denied>>, each changes;
        apply_and_take(changes: Vec<Change>, takes: &[TakeAsk], rules: &Rules) -> Taken, each changes;
        prove_commit(id: &JobId, claim: &Claim, until: Timestamp) -> Result<bool>;
        overdue(limit: usize) -> Result<Overdue>;
        upcoming(limit: usize) -> Result<Vec<(QueueName, Timestamp)>>;
        get(ids: &[JobId]) -> Result<Vec<Option<ListedJob>>>;
        get_durable(ids: &[JobId]) -> Result<Vec<Option<ListedJob>>>;
        unfinished(ids: &[JobId]) -> Result<Vec<JobId>>;
        search(ask: &Search) -> Result<Found>;
        tally_dead(within: &Reach) -> Result<(Tally, bool)>;
        groups(within: &Reach, after: Option<&Line>, limit: usize) -> Result<Vec<GroupLine>>;
        peek(queue: &QueueName, limit: usize) -> Result<Vec<Job>>;
        obstacles(job: &Meta) -> Result<Obstacles>;
        queues(prefix: &str, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>>;
        stocked(queues: &[QueueName]) -> Result<Vec<QueueName>>;
    }
    Figures {
        summary(most: usize) -> Result<Summary>;
        counts(queue: &QueueName) -> Result<QueueCounts>;
        count_now(queue: &QueueName) -> Result<Counts>;
        next_due(queue: &QueueName) -> Result<Option<Timestamp>>;
        load(queue: &QueueName) -> Result<Load>;
        total_load(queues: &[QueueName]) -> Result<Load>;
        workers_of(queues: &[QueueName]) -> Result<HashMap<QueueName, u64>>, each queues;
        blockers(queue: &QueueName) -> Result<Blockers>;
        how_many(of: Named, limit: u64) -> Result<u64>;
        with_jobs(queues: &[QueueName]) -> Result<HashSet<QueueName>>;
        reconcile() -> Result<Reconciled>;
        size() -> Result<StoreSize>;
    } + {
        fn pool(&self) -> Option<Pool> {
            self.inner.pool()
        }
    }
    Series {
        write_series(write: &SeriesWrite) -> Result<()>;
        read_series(subject: &Subject, from: Timestamp, to: Timestamp) -> Result<SeriesRead>;
        steps_of_others(server: &str, from: Timestamp) -> Result<Vec<StepOfOther>>;
        take_depth_turn(server: &str, for_ms: u64) -> Result<bool>;
        depths() -> Result<Vec<(QueueName, Counts)>>;
        recent_tallies(but_of: &str, from: Timestamp, to: Timestamp) -> Result<Vec<RecentTally>>;
        fold_series(limit: usize) -> Result<u64>;
    }
    Requests {
        open_request(request: &Request) -> Result<Opened>;
        close_request(request: &Request, won: &[JobId], keep_until: Timestamp) -> Result<bool>;
        keep_alive(runner: &str, until: Timestamp) -> Result<()>;
        forget_request(request: &Request) -> Result<()>;
        knows_request(id: &str) -> Result<bool>;
    }
    Answers {
        recall(call: &KeyedCall) -> Result<Option<Recalled>>;
        push_once(jobs: Vec<NewJob>, rules: &Rules, keyed: Keyed<Vec<Pushed>>)
            -> Result<Once<Vec<Pushed>>>, each jobs;
        push_all(jobs: Vec<NewJob>, rules: &Rules, keyed: Option<Keyed<Vec<Pushed>>>)
            -> Result<Once<Vec<Pushed>>, Denied>, each jobs;
        change_batch_once(change: BatchChange, jobs: Vec<NewJob>, rules: &Rules, keyed: Keyed<BatchChanged>)
            -> Result<Once<BatchChanged>, BatchDenied>, each jobs;
        fire_once(firing: &Firing, keyed: Keyed<Fired>) -> Result<Once<Fired>>;
        apply_once(changes: Vec<Change>, rules: &Rules, keyed: Keyed<Vec<Result<Applied, Denied>>>)
            -> Result<Once<Vec<Result<Applied, Denied>>>>, each changes;
    }
    Access {
        #[early] api_keys() -> Result<StoredKeys>;
        #[early] stored_secret() -> Result<Option<TokenSecret>>;
        #[early] token_secret(fresh: TokenSecret) -> Result<TokenSecret>;
        add_api_key(key: &ApiKey) -> Result<()>;
        rotate_api_key(id: &ApiKeyId, hash: &SecretHash) -> Result<bool>;
        remove_api_key(id: &StoredKeyId) -> Result<bool>;
        note_api_key_uses(uses: &[(ApiKeyId, Timestamp)]) -> Result<()>;
    }
    Operations {
        add_operation(operation: &Bulk, row: Option<&AuditRow>, by: Option<&BegunBy>) -> Result<bool>;
        operation(id: &BulkId) -> Result<Option<Bulk>>;
        operations(before: Option<&BulkId>, limit: usize) -> Result<Vec<Bulk>>;
        open_operations(after: Option<&BulkId>, limit: usize) -> Result<Vec<Bulk>>;
        save_operation(to: &Bulk, seen: i64, row: Option<&AuditRow>) -> Result<bool>;
        step_operation(step: BulkStep, rules: &Rules) -> Result<Option<BulkDone>>;
    }
    Audit {
        audit(filter: &AuditFilter, before: Option<&JobId>, limit: usize) -> Result<Vec<AuditRow>>;
    }
    Batches {
        create_batch(batch: Batch, jobs: Vec<NewJob>, rules: &Rules)
            -> Result<BatchChanged, BatchDenied>, each jobs;
        add_to_batch(id: &BatchId, jobs: Vec<NewJob>, rules: &Rules)
            -> Result<BatchChanged, BatchDenied>, each jobs;
        seal_batch(id: &BatchId, rules: &Rules) -> Result<BatchChanged, BatchDenied>;
        count_lost(id: &BatchId, lost: u64, rules: &Rules) -> Result<BatchChanged, BatchDenied>;
        batch(id: &BatchId) -> Result<Option<Batch>>;
        batches(after: Option<&BatchId>, limit: usize) -> Result<Vec<Batch>>;
        batch_results(id: &BatchId, after: Option<&JobId>, limit: usize) -> Result<Vec<BatchResult>>;
        unfinished_in_batch(id: &BatchId, after: Option<&JobId>, limit: usize) -> Result<Vec<JobId>>;
        export_batches(after: Option<&BatchId>, limit: usize) -> Result<Vec<Batch>>;
        import_batch(batch: Batch, results: Vec<BatchResult>) -> Result<bool>;
    }
    Schedules {
        schedules(after: Option<&ScheduleName>, limit: usize) -> Result<Vec<ListedSchedule>>;
        schedule(name: &ScheduleName) -> Result<Option<Schedule>>;
        discard_unreadable_schedule(name: &ScheduleName) -> Result<()>;
        save_schedule(name: &ScheduleName, to: Option<&Schedule>, seen: Option<i64>) -> Result<Saved>;
        next_occurrences(limit: usize) -> Result<Vec<(ScheduleName, Timestamp)>>;
        fire(firing: &Firing) -> Result<Fired>;
    }
    Semaphores {
        capacities(after: Option<&SemaphoreName>, limit: usize) -> Result<Vec<(SemaphoreName, u64)>>;
        semaphores(names: &[SemaphoreName]) -> Result<Vec<SemaphoreView>>;
        uses(names: &[SemaphoreName]) -> Result<Vec<SemaphoreUse>>;
        holders(name: &SemaphoreName, limit: usize) -> Result<Vec<Holder>>;
        unknown_semaphores(names: &[SemaphoreName]) -> Result<Vec<SemaphoreName>>;
        kept_from(job: &Meta, rules: &Rules) -> Result<Option<(SemaphoreName, Waiter)>>;
        save_semaphore(name: &SemaphoreName, capacity: u64) -> Result<()>;
        remove_semaphore(name: &SemaphoreName) -> Result<Removal>;
        waited_for(after: Option<&SemaphoreName>, limit: usize) -> Result<Vec<SemaphoreName>>;
        unblock_waiters(names: &[SemaphoreName], rules: &Rules) -> Result<Vec<Unblocked>>;
    }
    Workers {
        heartbeat(worker: &WorkerName, report: &Report) -> Result<Holdings>;
        workers(after: Option<&WorkerName>, limit: usize) -> Result<Vec<Worker>>;
        worker(worker: &WorkerName) -> Result<Option<Worker>>;
        timed_out_workers(heard_ms: u64, limit: usize) -> Result<TimedOut>;
        held_by(worker: &WorkerName, limit: usize) -> Result<Vec<(JobId, Claim)>>;
        forget_worker(worker: &WorkerName) -> Result<bool>;
    }
    Transfer {
        export(after: Option<&JobId>, limit: usize) -> Result<Vec<Job>>;
        import(jobs: Vec<Job>) -> Vec<Result<Imported>>, each jobs;
        export_keys(after: Option<&HeldKey>, limit: usize) -> Result<Vec<HeldKey>>;
        keys_like(keys: &[HeldKey]) -> Result<Vec<Option<HeldKey>>>;
        import_keys(keys: Vec<HeldKey>) -> Vec<Result<Imported>>, each keys;
        export_memos(kind: MemoKind, after: Option<&Memo>, limit: usize) -> Result<Vec<Memo>>;
        import_memos(memos: Vec<Memo>) -> Vec<Result<Imported>>, each memos;
        import_audit(rows: Vec<AuditRow>) -> Vec<Result<Imported>>, each rows;
        #[early] restoring() -> Result<Option<RestoreMark>>;
        #[early] mark_restoring(seen: Option<&RestoreMark>, to: Option<&RestoreMark>) -> Result<bool>;
    }
}
