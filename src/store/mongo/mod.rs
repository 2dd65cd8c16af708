//! Jobs in MongoDB: all queues in one collection, `jobs`, whose documents are public.
//!
//! | file or folder | what it does |
//! |---|---|
//! | `client` | the connection, deadlines, what errors mean |
//! | `clock` | an estimate of the store's clock |
//! | `migrate` | brings the schema up to date |
//! | `jobs` | pushing, claiming, changing and finding jobs |
//! | `cache` | what saves reads |
//! | `figures` | how many jobs there are |
//! | `keyed_mutex` | one mutex for each of many keys |
//! | `signals` | signals between servers |
//! | `batches`, `schedules`, `semaphores`, `workers` | the other things that people name |
//! | `settings`, `requests`, `prune` | queues' settings, keyed reserves, forgetting what is past its time |
//! | `transfer` | all of it, from and to another store |

mod batches;
mod cache;
mod client;
mod clock;
mod figures;
mod jobs;
mod keyed_mutex;
mod migrate;
mod prune;
mod requests;
mod schedules;
mod semaphores;
mod settings;
mod signals;
mod transfer;
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
use self::figures::counters::Counters;
use self::figures::counts::Figures;

use self::cache::{DeadlineCache, DeliveredCache, HeadCache};
use self::figures::reconcile::Reconciler;
use self::keyed_mutex::KeyedMutex;
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
    /// Of queues with a `max_jobs`; locked before those of groups.
    queue_mutex: KeyedMutex<QueueName>,
    group_mutex: KeyedMutex<Line>,
    delivered: DeliveredCache,
    heads: HeadCache,
    deadlines: DeadlineCache,
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
            queue_mutex: KeyedMutex::default(),
            group_mutex: KeyedMutex::default(),
            delivered: DeliveredCache::default(),
            heads: HeadCache::default(),
            deadlines: DeadlineCache::default(),
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
        jobs::push::push(self, jobs, rules).await
    }

    async fn claim(&self, asks: &[ClaimAsk], rules: &Rules) -> Claims {
        let claims = self.connection.within(jobs::claim::claim_all(self, asks, rules)).await;
        claims.unwrap_or_else(|error| Claims::failed(asks.len(), &error))
    }

    async fn held(&self, queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>> {
        self.connection
            .within(async { jobs::claim::held(self.connection.database().await?, queues, claim).await })
            .await
    }

    async fn apply(&self, changes: Vec<Change>, rules: &Rules) -> Vec<Result<Applied, Denied>> {
        jobs::apply::apply(self, changes, rules).await
    }

    async fn overdue(&self, limit: usize) -> Result<Overdue> {
        self.connection.within(jobs::expired::expired(self, limit)).await
    }

    async fn upcoming(&self, limit: usize) -> Result<Vec<(QueueName, Timestamp)>> {
        self.connection.within(jobs::query::upcoming(self, limit)).await
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Job>>> {
        self.connection.within(jobs::query::get(self, ids)).await
    }

    async fn find(&self, filter: &Filter, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>> {
        self.connection.within(jobs::query::find(self, filter, after, limit)).await
    }

    async fn queues(&self, prefix: &str, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        self.connection.within(jobs::query::queues(self, prefix, after, limit)).await
    }

    async fn stocked(&self, queues: &[QueueName]) -> Result<Vec<QueueName>> {
        self.connection.within(jobs::stocked::stocked(self, queues)).await
    }

    async fn counts(&self) -> Result<HashMap<QueueName, QueueCounts>> {
        let deadline = self.connection.deadline() * COUNT_DEADLINES;
        let late = |_| StoreError::unavailable(format_args!("no counts within {} ms", deadline.as_millis()));
        tokio::time::timeout(deadline, figures::counts::counts(self)).await.map_err(late)?
    }

    async fn reconcile(&self) -> Result<Reconciled> {
        let late = |_| StoreError::unavailable("the counters were not compared in time");
        tokio::time::timeout(PATIENCE, figures::reconcile::reconcile(self)).await.map_err(late)?
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
        let forgotten = forgotten + self.connection.within(prune::prune(self, left)).await?;
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
        self.connection.within(transfer::export(self, after, limit)).await
    }

    async fn import(&self, jobs: Vec<Job>) -> Vec<Result<Imported>> {
        let count = jobs.len();
        let imported = self.connection.within(transfer::import(self, jobs)).await;
        imported.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn export_keys(&self, after: Option<&HeldKey>, limit: usize) -> Result<Vec<HeldKey>> {
        self.connection.within(transfer::export_keys(self, after, limit)).await
    }

    async fn import_keys(&self, keys: Vec<HeldKey>) -> Vec<Result<Imported>> {
        let count = keys.len();
        let imported = self.connection.within(transfer::import_keys(self, keys)).await;
        imported.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn close(&self) {
        self.signals.close().await;
        self.counters.close().await;
        self.connection.close().await;
    }
}
