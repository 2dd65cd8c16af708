//! Jobs in MongoDB: all queues in one collection, `jobs`, whose documents are public.
//!
//! | file or folder | what it does |
//! |---|---|
//! | `client`, `pool` | the connection, deadlines, what errors mean; how the connections are used |
//! | `stored` | documents as they are stored, also those that another program spoiled |
//! | `term` | which primary replies |
//! | `clock` | an estimate of the store's clock |
//! | `migrate` | brings the schema up to date |
//! | `indexes` | indexes that are built when they are first needed |
//! | `jobs` | pushing, claiming, changing and finding jobs |
//! | `cache` | caches that save reads |
//! | `figures` | how many jobs there are |
//! | `series` | how many there were, and what happened |
//! | `keyed_mutex` | one mutex for each of many keys |
//! | `transaction` | runs transactions: begin, retry, commit, abort |
//! | `signals` | signals between servers: by a capped collection (`news`), and those of older servers |
//! | `batches`, `schedules`, `semaphores`, `workers` | the other things that people name |
//! | `access` | API keys |
//! | `revision` | whether what servers remember has changed |
//! | `settings`, `requests`, `prune` | queues' settings, keyed reserves, forgetting what is past its time |
//! | `answers` | other keyed calls, and what they were answered |
//! | `operations`, `audit` | operations over many jobs, and what operators did |
//! | `transfer` | all of it, from and to another store |
//! | `picture` | all of it as it was at one moment, for a backup |

mod access;
mod answers;
mod audit;
mod batches;
mod cache;
mod client;
mod clock;
mod codes;
mod deployment;
mod figures;
mod indexes;
mod jobs;
mod keyed_mutex;
mod migrate;
mod operations;
mod picture;
mod pool;
mod prune;
mod requests;
mod revision;
mod schedules;
mod semaphores;
mod series;
mod settings;
mod signals;
mod stored;
mod term;
mod transaction;
mod transfer;
mod workers;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use mongodb::Collection;
use mongodb::bson::doc;

pub use self::client::MongoOptions;
use self::client::{Connection, barrier, fault};
use self::clock::{Clock, Moment};
use self::figures::counters::Counters;
use self::figures::counts::Figures;
pub use self::picture::picture;

use self::cache::{DeadlineCache, HeadCache, LeftOut, Position, SemaphoreCache};
use self::figures::reconcile::Reconciler;
use self::indexes::Indexes;
use self::jobs::document::date;
use self::jobs::query::ManyQueues;
use self::jobs::search::OwnIndexes;
use self::keyed_mutex::KeyedMutex;
use self::signals::Signals;
use self::stored::Stored;
use super::delivered::DeliveredCache;
use super::{Result, Store, StoreError, Term};
use crate::faults;
use crate::job::group::Line;
use crate::job::trace::OfJob;
use crate::job::{Claim, JobId, QueueName, Timestamp};

const API_KEYS: &str = "api_keys";
const AUDIT: &str = "audit";
const BATCHES: &str = "batches";
const BATCH_RESULTS: &str = "batch_results";
const COUNTERS: &str = "counters";
const GROUPS: &str = "groups";
const JOBS: &str = "jobs";
const KEYS: &str = "keys";
const LIMITS: &str = "limits";
const META: &str = "meta";
const OPERATIONS: &str = "operations";
const QUEUES: &str = "queues";
const RECEIPTS: &str = "receipts";
const REQUESTS: &str = "requests";
const SCHEDULES: &str = "schedules";
const SEMAPHORES: &str = "semaphores";
const WORKERS: &str = "workers";

/// For how long a write that reached a majority shows that writes do. A probe that begins then has time to end before the server
/// is not ready any more.
const PROVEN: Duration = Duration::from_millis(2500);

/// A [`Store`] in a MongoDB database. The deployment must be a replica set or a sharded cluster.
pub struct Mongo {
    connection: Arc<Connection>,
    clock: Clock,
    /// Of queues with a `max_jobs`; locked before those of groups.
    queue_mutex: KeyedMutex<QueueName>,
    group_mutex: KeyedMutex<Line>,
    /// For what raises the revision of the settings.
    revision_mutex: tokio::sync::Mutex<()>,
    /// Each with its trace, which jobs have that are pushed with it.
    delivered: DeliveredCache<OfJob>,
    heads: HeadCache,
    left_out: LeftOut,
    semaphores: SemaphoreCache,
    deadlines: DeadlineCache,
    counters: Counters,
    many_queues: ManyQueues,
    own_indexes: OwnIndexes,
    figures: Figures,
    reconciler: Reconciler,
    signals: Arc<Signals>,
    indexes: Indexes,
    last_write: LastWrite,
}

impl Mongo {
    /// Connects when it is first used, so that a server can start while its database is away.
    pub fn new(options: MongoOptions) -> Self {
        let signals = Signals::new(options.clone());
        let connection = Arc::new(Connection::new(options));
        Self {
            counters: Counters::new(connection.clone()),
            indexes: Indexes::new(connection.clone()),
            connection,
            clock: Clock::new(),
            many_queues: ManyQueues::default(),
            own_indexes: OwnIndexes::default(),
            queue_mutex: KeyedMutex::default(),
            group_mutex: KeyedMutex::default(),
            revision_mutex: tokio::sync::Mutex::default(),
            delivered: DeliveredCache::default(),
            heads: HeadCache::default(),
            left_out: LeftOut::default(),
            semaphores: SemaphoreCache::default(),
            deadlines: DeadlineCache::default(),
            figures: Figures::default(),
            reconciler: Reconciler::default(),
            signals,
            last_write: LastWrite::default(),
        }
    }

    async fn collection(&self, name: &str) -> Result<Collection<Stored>> {
        Ok(self.connection.database().await?.collection(name))
    }

    fn moment(&self) -> Result<Moment> {
        self.clock.moment().ok_or_else(|| StoreError::unavailable("the store's clock has not been read yet"))
    }

    /// Jobs have become ready in these positions: they are stored, and no waiter has been woken yet.
    fn note_ready<'a>(&self, positions: impl IntoIterator<Item = (&'a QueueName, Position)>) {
        let positions: Vec<(&QueueName, Position)> = positions.into_iter().collect();
        self.semaphores.came(positions.iter().map(|(queue, _)| *queue));
        self.heads.note_ready(self.clock.moment(), positions);
    }

    /// Asks for the time, and proves that writes reach a majority unless one just has: a primary that has lost its
    /// secondaries goes on to say hello.
    async fn prove(&self) -> Result<Instant> {
        self.hello().await?;
        if let Some(at) = self.last_write.recent() {
            return Ok(at);
        }
        // Not a write that changes nothing, which waits for what came before it only.
        let (meta, now) = (self.collection(META).await?, date(self.now()?));
        let update = doc! { "$set": { "at": now } };
        let sent = Instant::now();
        meta.update_one(doc! { "_id": "probe" }, update).upsert(true).await.map_err(fault)?;
        self.last_write.note();
        Ok(sent)
    }

    async fn hello(&self) -> Result<()> {
        let database = self.connection.database().await?;
        let sent = Instant::now();
        let hello = database.run_command(doc! { "hello": 1 }).await.map_err(fault)?;
        let arrival = Instant::now();
        self.connection.note_hello(&hello);
        let local_time = hello.get_datetime("localTime").map_err(StoreError::internal)?;
        self.clock.read(Timestamp::from_millis(local_time.timestamp_millis()), sent, arrival);
        Ok(())
    }
}

/// When a write of this server was last seen to have reached a majority.
#[derive(Default)]
struct LastWrite(Mutex<Option<Instant>>);

impl LastWrite {
    fn last(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// One has.
    fn note(&self) {
        *self.last() = Some(Instant::now());
    }

    /// When that was, if it was so lately that the store takes writes for all that is known.
    fn recent(&self) -> Option<Instant> {
        self.last().filter(|at| at.elapsed() < PROVEN)
    }
}

#[async_trait]
impl Store for Mongo {
    fn system(&self) -> &'static str {
        "mongodb"
    }

    async fn migrate(&self) -> Result<Vec<String>> {
        if let Some(reason) = self.connection.diagnose().await {
            return Err(reason);
        }
        self.connection.within(self.hello()).await?; // writes nothing: the collections are still to be made
        let migrated = migrate::migrate(self.connection.database().await?).await?;
        self.connection.within(self.connection.probe_validator()).await?;
        self.indexes.tidy().await;
        Ok(migrated)
    }

    async fn ping(&self) -> Result<Instant> {
        self.connection.within(self.prove()).await
    }

    fn term(&self) -> Term {
        self.connection.term()
    }

    async fn confirm(&self, since: Term) -> Result<()> {
        faults::point("confirm").await;
        self.connection.within(barrier(&self.connection, since)).await
    }

    fn now(&self) -> Result<Timestamp> {
        self.moment().map(|moment| moment.at_least)
    }

    fn ends_alone(&self, id: &JobId, claim: &Claim) -> Option<(QueueName, Timestamp)> {
        jobs::next::ends_alone(self, id, claim)
    }

    async fn prune(&self, limit: usize) -> Result<u64> {
        prune::prune(self, limit).await
    }

    async fn close(&self) {
        self.signals.close().await;
        self.counters.close().await;
        self.connection.close().await;
    }
}
