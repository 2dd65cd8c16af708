//! Jobs in MongoDB: all queues in one collection, `jobs`, whose documents are public.
//!
//! | file | what it does |
//! |---|---|
//! | `client` | the connection, deadlines, what errors mean |
//! | `clock` | an estimate of the store's clock |
//! | `migrate` | brings the schema up to date |
//! | `document`, `payload` | jobs and payloads as BSON |
//! | `push`, `claim`, `apply` | the hot path |
//! | `handed`, `floors` | jobs as this server delivered them; where the heads of queues were |
//! | `query`, `overdue` | jobs by filter; what has run out |
//! | `counters`, `figures`, `reconcile` | how many jobs there are, kept, read, and compared with a real count |
//! | `stocked` | which queues have something to deliver |
//! | `signals` | what servers tell each other |
//! | `schedules` | schedules, and firing them |
//! | `workers` | who works, and who has fallen silent |
//! | `batches` | jobs that belong together |
//! | `lines` | whose turn it is in the groups |
//! | `semaphores`, `limited` | semaphores, and claims that they or their queue limit |
//! | `settings`, `requests`, `receipts` | what else is remembered |
//! | `copying` | all of it, from and to another store |

mod apply;
mod atomic;
mod batches;
mod claim;
mod client;
mod clock;
mod copying;
mod counters;
mod document;
mod figures;
mod floors;
mod gates;
mod handed;
mod history;
mod limited;
mod lines;
mod migrate;
mod overdue;
mod payload;
mod plan;
mod push;
mod query;
mod receipts;
mod reconcile;
mod requests;
mod schedules;
mod semaphores;
mod settings;
mod signals;
mod stocked;
mod workers;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::stream::BoxStream;
use mongodb::Collection;
use mongodb::bson::{Document, doc};

pub use self::client::MongoOptions;
use self::client::{Connection, fault};
use self::clock::Clock;
use self::counters::Counters;
use self::figures::Figures;
use self::floors::Floors;
use self::gates::Gates;
use self::handed::Handed;
use self::overdue::Reaped;
use self::reconcile::Reconciler;
use self::signals::Signals;
use super::{
    Applied, Change, ClaimAsk, Claims, Denied, Expected, Filter, Heard, HeldKey, Imported, Opened, Overdue,
    Pushed, QueueCounts, Reconciled, Request, Result, Saved, SettingsSnapshot, Signal, Store, StoreError,
    StoredSettings,
};
use crate::job::group::Line;
use crate::job::{Claim, Job, JobId, NewJob, QueueName, Rules, Timestamp};

const BATCHES: &str = "batches";
const BATCH_RESULTS: &str = "batch_results";
const COUNTERS: &str = "counters";
const GROUPS: &str = "groups";
const JOBS: &str = "jobs";
const KEYS: &str = "keys";
const LIMITS: &str = "limits";
const META: &str = "meta";
const QUEUES: &str = "queues";
const RECEIPTS: &str = "receipts";
const REQUESTS: &str = "requests";
const SCHEDULES: &str = "schedules";
const SEMAPHORES: &str = "semaphores";
const WORKERS: &str = "workers";

/// How many times its usual deadline reading the figures of many queues may take.
const COUNT_DEADLINES: u32 = 5;
/// How long it may take to count the jobs of one very large queue, for which nobody waits.
const PATIENCE: Duration = Duration::from_secs(120);

/// A [`Store`] in a MongoDB database. The deployment must be a replica set or a sharded cluster.
pub struct Mongo {
    connection: Arc<Connection>,
    clock: Clock,
    /// Of queues with a `max_jobs`; entered before those of lines.
    gates: Gates<QueueName>,
    line_gates: Gates<Line>,
    handed: Handed,
    floors: Floors,
    reaped: Reaped,
    counters: Counters,
    figures: Figures,
    reconciler: Reconciler,
    signals: Arc<Signals>,
}

impl Mongo {
    /// Connects when it is first used, so that a server can start while its database is away.
    pub fn new(options: MongoOptions) -> Self {
        let signals = Signals::new(options.clone());
        let connection = Arc::new(Connection::new(options));
        Self {
            counters: Counters::new(connection.clone()),
            connection,
            clock: Clock::new(),
            gates: Gates::default(),
            line_gates: Gates::default(),
            handed: Handed::default(),
            floors: Floors::default(),
            reaped: Reaped::default(),
            figures: Figures::default(),
            reconciler: Reconciler::default(),
            signals,
        }
    }

    async fn collection(&self, name: &str) -> Result<Collection<Document>> {
        Ok(self.connection.database().await?.collection(name))
    }

    async fn hello(&self) -> Result<()> {
        let database = self.connection.database().await?;
        let hello = database.run_command(doc! { "hello": 1 }).await.map_err(fault)?;
        let arrival = Instant::now();
        let local_time = hello.get_datetime("localTime").map_err(StoreError::internal)?;
        self.clock.read(Timestamp::from_millis(local_time.timestamp_millis()), arrival);
        Ok(())
    }
}

#[async_trait]
impl Store for Mongo {
    async fn migrate(&self) -> Result<Vec<String>> {
        if let Some(reason) = self.connection.diagnose().await {
            return Err(reason);
        }
        self.ping().await?;
        migrate::migrate(self.connection.database().await?).await
    }

    async fn ping(&self) -> Result<()> {
        self.connection.within(self.hello()).await
    }

    fn now(&self) -> Result<Timestamp> {
        self.clock.now().ok_or_else(|| StoreError::unavailable("the store's clock has not been read yet"))
    }

    async fn push(&self, jobs: Vec<NewJob>, rules: &Rules) -> Vec<Result<Pushed>> {
        push::push(self, jobs, rules).await
    }

    async fn claim(&self, asks: &[ClaimAsk], rules: &Rules) -> Claims {
        let claims = self.connection.within(claim::claim_all(self, asks, rules)).await;
        claims.unwrap_or_else(|error| Claims::failed(asks.len(), &error))
    }

    async fn held(&self, queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>> {
        self.connection
            .within(async { claim::held(self.connection.database().await?, queues, claim).await })
            .await
    }

    async fn apply(&self, changes: Vec<Change>, rules: &Rules) -> Vec<Result<Applied, Denied>> {
        apply::apply(self, changes, rules).await
    }

    async fn overdue(&self, limit: usize) -> Result<Overdue> {
        self.connection.within(overdue::overdue(self, limit)).await
    }

    async fn upcoming(&self, limit: usize) -> Result<Vec<(QueueName, Timestamp)>> {
        self.connection.within(query::upcoming(self, limit)).await
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Job>>> {
        self.connection.within(query::get(self, ids)).await
    }

    async fn find(&self, filter: &Filter, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>> {
        self.connection.within(query::find(self, filter, after, limit)).await
    }

    async fn queues(&self, prefix: &str, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        self.connection.within(query::queues(self, prefix, after, limit)).await
    }

    async fn stocked(&self, queues: &[QueueName]) -> Result<Vec<QueueName>> {
        self.connection.within(stocked::stocked(self, queues)).await
    }

    async fn counts(&self) -> Result<HashMap<QueueName, QueueCounts>> {
        let deadline = self.connection.deadline() * COUNT_DEADLINES;
        let late = |_| StoreError::unavailable(format_args!("no counts within {} ms", deadline.as_millis()));
        tokio::time::timeout(deadline, figures::counts(self)).await.map_err(late)?
    }

    async fn reconcile(&self) -> Result<Reconciled> {
        let late = |_| StoreError::unavailable("the counters were not compared in time");
        tokio::time::timeout(PATIENCE, reconcile::reconcile(self)).await.map_err(late)?
    }

    async fn settings(&self, known: Option<i64>) -> Result<Option<SettingsSnapshot>> {
        self.connection.within(settings::load(self, known)).await
    }

    async fn save_settings(
        &self,
        queue: &QueueName,
        to: Option<&StoredSettings>,
        expected: &Expected,
    ) -> Result<Saved> {
        self.connection.within(settings::save(self, queue, to, expected)).await
    }

    async fn open_request(&self, request: &Request) -> Result<Opened> {
        self.connection.within(requests::open(self, request)).await
    }

    async fn close_request(
        &self,
        request: &Request,
        won: Option<(&Claim, &[JobId])>,
        keep_until: Timestamp,
    ) -> Result<()> {
        self.connection.within(requests::close(self, request, won, keep_until)).await
    }

    async fn prune(&self, limit: usize) -> Result<u64> {
        let forgotten = self.connection.within(requests::prune_keys(self, limit)).await?;
        let left = limit.saturating_sub(usize::try_from(forgotten).unwrap_or(limit));
        let forgotten = forgotten + self.connection.within(history::prune(self, left)).await?;
        let left = limit.saturating_sub(usize::try_from(forgotten).unwrap_or(limit));
        Ok(forgotten + self.connection.within(batches::prune(self, left)).await?)
    }

    fn signals(&self) -> Option<BoxStream<'static, Heard>> {
        Some(self.signals.listen())
    }

    async fn signal(&self, signal: &Signal) -> Result<()> {
        self.signals.tell(signal, self.now()?).await
    }

    async fn export(&self, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>> {
        self.connection.within(copying::export(self, after, limit)).await
    }

    async fn import(&self, jobs: Vec<Job>) -> Vec<Result<Imported>> {
        let count = jobs.len();
        let imported = self.connection.within(copying::import(self, jobs)).await;
        imported.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn export_keys(&self, after: Option<&HeldKey>, limit: usize) -> Result<Vec<HeldKey>> {
        self.connection.within(copying::export_keys(self, after, limit)).await
    }

    async fn import_keys(&self, keys: Vec<HeldKey>) -> Vec<Result<Imported>> {
        let count = keys.len();
        let imported = self.connection.within(copying::import_keys(self, keys)).await;
        imported.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn close(&self) {
        self.signals.close().await;
        self.counters.close().await;
        self.connection.close().await;
    }
}
