//! A store whose calls are measured, and which is closed at first: until its schema is up to date, since
//! what would be written before would miss its validator and its indexes, and until the settings have been
//! read once, since without them no limit and no pause would hold.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;

use super::*;
use crate::job::{
    Batch, BatchId, BatchResult, Claim, Job, JobId, NewJob, QueueName, Rules, Timestamp, WorkerName,
};
use crate::telemetry;

mod schedules;
mod semaphores;

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

    async fn one<T>(&self, call: &'static str, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.check_open()?;
        measured(call, work).await
    }

    async fn each<T>(
        &self,
        call: &'static str,
        count: usize,
        work: impl Future<Output = Vec<Result<T>>>,
    ) -> Vec<Result<T>> {
        if let Err(error) = self.check_open() {
            return (0..count).map(|_| Err(error.clone())).collect();
        }
        let start = Instant::now();
        let answers = work.await;
        telemetry::store_call(call, start.elapsed(), count);
        note(call, answers.iter().find_map(|answer| answer.as_ref().err()));
        answers
    }
}

async fn measured<T>(call: &'static str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let start = Instant::now();
    let answer = work.await;
    telemetry::store_call(call, start.elapsed(), 1);
    note(call, answer.as_ref().err());
    answer
}

fn note(call: &'static str, error: Option<&StoreError>) {
    let Some(error) = error else { return };
    let kind = match error {
        StoreError::Unavailable(_) => "unavailable",
        StoreError::Full(_) => "full",
        StoreError::Unsuitable(_) => "unsuitable",
        StoreError::Internal(_) => "internal",
    };
    telemetry::store_error(call, kind);
    if matches!(error, StoreError::Internal(_)) {
        tracing::error!(call, error = super::chain(error), "a call of the store failed");
    }
}

impl Metered {
    async fn batch_call(
        &self,
        call: &'static str,
        count: usize,
        work: impl Future<Output = Result<BatchChanged, BatchDenied>>,
    ) -> Result<BatchChanged, BatchDenied> {
        self.check_open()?;
        let start = Instant::now();
        let answer = work.await;
        telemetry::store_call(call, start.elapsed(), count);
        if let Err(BatchDenied::Store(error)) = &answer {
            note(call, Some(error));
        }
        answer
    }
}

#[async_trait]
impl Batches for Metered {
    async fn create_batch(
        &self,
        batch: Batch,
        jobs: Vec<NewJob>,
        rules: &Rules,
    ) -> Result<BatchChanged, BatchDenied> {
        let count = jobs.len();
        self.batch_call("create_batch", count, self.inner.create_batch(batch, jobs, rules)).await
    }

    async fn add_to_batch(
        &self,
        id: &BatchId,
        jobs: Vec<NewJob>,
        rules: &Rules,
    ) -> Result<BatchChanged, BatchDenied> {
        let count = jobs.len();
        self.batch_call("add_to_batch", count, self.inner.add_to_batch(id, jobs, rules)).await
    }

    async fn seal_batch(&self, id: &BatchId, rules: &Rules) -> Result<BatchChanged, BatchDenied> {
        self.batch_call("seal_batch", 1, self.inner.seal_batch(id, rules)).await
    }

    async fn batch(&self, id: &BatchId) -> Result<Option<Batch>> {
        self.one("batch", self.inner.batch(id)).await
    }

    async fn batch_results(
        &self,
        id: &BatchId,
        after: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<BatchResult>> {
        self.one("batch_results", self.inner.batch_results(id, after, limit)).await
    }

    async fn waiting_in_batch(
        &self,
        id: &BatchId,
        after: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<JobId>> {
        self.one("waiting_in_batch", self.inner.waiting_in_batch(id, after, limit)).await
    }

    async fn export_batches(&self, after: Option<&BatchId>, limit: usize) -> Result<Vec<Batch>> {
        self.one("export_batches", self.inner.export_batches(after, limit)).await
    }

    async fn import_batch(&self, batch: Batch, results: Vec<BatchResult>) -> Result<bool> {
        self.one("import_batch", self.inner.import_batch(batch, results)).await
    }
}

#[async_trait]
impl Store for Metered {
    async fn migrate(&self) -> Result<Vec<String>> {
        let run = self.inner.migrate().await?;
        self.migrated.store(true, Ordering::Release);
        Ok(run)
    }

    async fn ping(&self) -> Result<()> {
        self.one("ping", self.inner.ping()).await
    }

    fn now(&self) -> Result<Timestamp> {
        self.check_open()?;
        self.inner.now()
    }

    async fn prune(&self, limit: usize) -> Result<u64> {
        self.one("prune", self.inner.prune(limit)).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[async_trait]
impl Jobs for Metered {
    async fn push(&self, jobs: Vec<NewJob>, rules: &Rules) -> Vec<Result<Pushed>> {
        let count = jobs.len();
        self.each("push", count, self.inner.push(jobs, rules)).await
    }

    async fn claim(&self, asks: &[ClaimAsk], rules: &Rules) -> Claims {
        if let Err(error) = self.check_open() {
            return Claims::failed(asks.len(), &error);
        }
        let start = Instant::now();
        let answers = self.inner.claim(asks, rules).await;
        telemetry::store_call("claim", start.elapsed(), asks.iter().map(|ask| ask.count).sum());
        note("claim", answers.won.iter().find_map(|answer| answer.as_ref().err()));
        answers
    }

    async fn held(&self, queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>> {
        self.one("held", self.inner.held(queues, claim)).await
    }

    async fn apply(&self, changes: Vec<Change>, rules: &Rules) -> Vec<Result<Applied, Denied>> {
        if let Err(error) = self.check_open() {
            return changes.iter().map(|_| Err(error.clone().into())).collect();
        }
        let (start, count) = (Instant::now(), changes.len());
        let answers = self.inner.apply(changes, rules).await;
        telemetry::store_call("apply", start.elapsed(), count);
        let failure = |answer| match answer {
            &Err(Denied::Store(ref error)) => Some(error),
            _ => None,
        };
        note("apply", answers.iter().find_map(failure));
        answers
    }

    async fn overdue(&self, limit: usize) -> Result<Overdue> {
        self.one("overdue", self.inner.overdue(limit)).await
    }

    async fn upcoming(&self, limit: usize) -> Result<Vec<(QueueName, Timestamp)>> {
        self.one("upcoming", self.inner.upcoming(limit)).await
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Job>>> {
        self.one("get", self.inner.get(ids)).await
    }

    async fn find(&self, filter: &Filter, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>> {
        self.one("find", self.inner.find(filter, after, limit)).await
    }

    async fn queues(&self, prefix: &str, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        self.one("queues", self.inner.queues(prefix, after, limit)).await
    }

    async fn stocked(&self, queues: &[QueueName]) -> Result<Vec<QueueName>> {
        self.one("stocked", self.inner.stocked(queues)).await
    }
}

#[async_trait]
impl Figures for Metered {
    async fn counts(&self) -> Result<HashMap<QueueName, QueueCounts>> {
        self.one("counts", self.inner.counts()).await
    }

    async fn reconcile(&self) -> Result<Reconciled> {
        self.one("reconcile", self.inner.reconcile()).await
    }
}

#[async_trait]
impl Settings for Metered {
    async fn settings(&self, known: Option<i64>) -> Result<Option<SettingsSnapshot>> {
        if !self.migrated.load(Ordering::Acquire) {
            self.check_open()?;
        }
        let settings = measured("settings", self.inner.settings(known)).await?;
        self.open.store(true, Ordering::Release);
        Ok(settings)
    }

    async fn save_settings(
        &self,
        queue: &QueueName,
        to: Option<&StoredSettings>,
        expected: &Expected,
    ) -> Result<Saved> {
        self.one("save_settings", self.inner.save_settings(queue, to, expected)).await
    }
}

#[async_trait]
impl Requests for Metered {
    async fn open_request(&self, request: &Request) -> Result<Opened> {
        self.one("open_request", self.inner.open_request(request)).await
    }

    async fn close_request(
        &self,
        request: &Request,
        won: Option<(&Claim, &[JobId])>,
        keep_until: Timestamp,
    ) -> Result<()> {
        self.one("close_request", self.inner.close_request(request, won, keep_until)).await
    }
}

#[async_trait]
impl Signals for Metered {
    fn signals(&self) -> Option<BoxStream<'static, Heard>> {
        let count = |heard: &Heard| match heard {
            Heard::Signal { signal, .. } => telemetry::signal_heard(signal.kind()),
            Heard::Begins => telemetry::listening_begins(),
        };
        let signals = self.inner.signals()?;
        Some(Box::pin(signals.inspect(count)))
    }

    async fn signal(&self, signal: &Signal) -> Result<()> {
        self.one("signal", self.inner.signal(signal)).await?;
        telemetry::signal_told(signal.kind());
        Ok(())
    }
}

#[async_trait]
impl Transfer for Metered {
    async fn export(&self, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>> {
        self.one("export", self.inner.export(after, limit)).await
    }

    async fn import(&self, jobs: Vec<Job>) -> Vec<Result<Imported>> {
        let count = jobs.len();
        self.each("import", count, self.inner.import(jobs)).await
    }

    async fn export_keys(&self, after: Option<&HeldKey>, limit: usize) -> Result<Vec<HeldKey>> {
        self.one("export_keys", self.inner.export_keys(after, limit)).await
    }

    async fn import_keys(&self, keys: Vec<HeldKey>) -> Vec<Result<Imported>> {
        let count = keys.len();
        self.each("import_keys", count, self.inner.import_keys(keys)).await
    }
}

#[async_trait]
impl Workers for Metered {
    async fn heartbeat(&self, worker: &WorkerName, report: &Report) -> Result<Holdings> {
        self.one("heartbeat", self.inner.heartbeat(worker, report)).await
    }

    async fn workers(&self, after: Option<&WorkerName>, limit: usize) -> Result<Vec<Worker>> {
        self.one("workers", self.inner.workers(after, limit)).await
    }

    async fn worker(&self, worker: &WorkerName) -> Result<Option<Worker>> {
        self.one("worker", self.inner.worker(worker)).await
    }

    async fn timed_out_workers(&self, heard_ms: u64, limit: usize) -> Result<TimedOut> {
        self.one("timed_out_workers", self.inner.timed_out_workers(heard_ms, limit)).await
    }

    async fn held_by(&self, worker: &WorkerName, limit: usize) -> Result<Vec<(JobId, Claim)>> {
        self.one("held_by", self.inner.held_by(worker, limit)).await
    }

    async fn forget_worker(&self, worker: &WorkerName) -> Result<bool> {
        self.one("forget_worker", self.inner.forget_worker(worker)).await
    }
}
