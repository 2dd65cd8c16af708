//! Indexes of `jobs` that are built when they are first needed.
//!
//! MongoDB takes the keys of a deleted document out of every index, also out of those whose partial filter leaves the document
//! out: `keysDeleted` counts one for each. So an index that lists no job still costs every job that ends. Four indexes serve
//! lists and the cancelling of batches, and nothing that decides: without one of them an answer is slow, and never wrong.
//! So they are there only in databases that have had a job for them, may come after that job, and that one is there is
//! remembered without asking.
//!
//! The document `indexes` of `meta` names those that were needed, for ever. A start drops the others where they list no job and
//! nothing else shows that the feature is used. One that begins to need an index names it there before it asks for it; one that has
//! dropped indexes reads the names again, and builds what is named: in either order of the two, the index is there in the end.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::Shared;
use mongodb::bson::{Document, doc};
use mongodb::options::Hint;
use mongodb::{Collection, Database};
use tokio::sync::oneshot;

use crate::faults;
use crate::job::{Filter, Meta};
use crate::store::mongo::BATCHES;
use crate::store::mongo::GROUPS;
use crate::store::mongo::JOBS;
use crate::store::mongo::KEYS;
use crate::store::mongo::META;
use crate::store::mongo::client::{Connection, INDEX_NOT_FOUND, code, fault};
use crate::store::mongo::migrate;
use crate::store::mongo::stored::Stored;
use crate::store::{Result, StoreError, chain};

/// How long it is remembered that an index is there: an operator, or a server that starts, may have dropped it.
const REMEMBERED: Duration = Duration::from_secs(600);
/// When what could not be built is tried again.
const AFTER_FAILURE: Duration = Duration::from_secs(60);
/// How long a drop waits for transactions that hold `jobs`; everything else waits behind it.
const DROP_WAITS_MS: i32 = 1000;
/// So many jobs are quickly read without an index.
const FEW: u64 = 10_000;

/// An index of `jobs` that is built when it is first needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rare {
    /// For lists of the jobs with a key.
    Key,
    /// For lists of the jobs of a group.
    Group,
    /// For lists, and the redrive, of dead-lettered jobs.
    DeadLettered,
    /// For cancelling a batch.
    Batch,
}

impl Rare {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Key, Self::Group, Self::DeadLettered, Self::Batch];

    /// Returns the name of the index.
    pub fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Group => "group",
            Self::DeadLettered => "dead_lettered",
            Self::Batch => "batch",
        }
    }

    /// The field that a job must have to be listed.
    fn field(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Group => "group",
            Self::DeadLettered => "origin",
            Self::Batch => "batch",
        }
    }

    /// The collection that has documents where the feature is in use, also while no job is in the index.
    fn shown_by(self) -> Option<&'static str> {
        match self {
            Self::Key => Some(KEYS),
            Self::Group => Some(GROUPS),
            Self::Batch => Some(BATCHES),
            Self::DeadLettered => None,
        }
    }

    fn lists(self, meta: &Meta) -> bool {
        match self {
            Self::Key => meta.key.is_some(),
            Self::Group => meta.group.is_some(),
            Self::DeadLettered => meta.origin.is_some(),
            Self::Batch => meta.batch.is_some(),
        }
    }

    /// Returns those that list such a job.
    pub fn of(meta: &Meta) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|rare| rare.lists(meta))
    }

    /// Returns the one that serves such a list, if one does.
    pub fn for_list(filter: &Filter) -> Option<Self> {
        match () {
            () if filter.batch.is_some() => Some(Self::Batch),
            () if filter.key.is_some() => Some(Self::Key),
            () if filter.group.is_some() => Some(Self::Group),
            () if filter.dead_lettered => Some(Self::DeadLettered),
            () => None,
        }
    }
}

/// A build under way, which all who need the index wait for.
type Build = Shared<oneshot::Receiver<Result<()>>>;

/// What is known of one index.
#[derive(Default)]
struct Known {
    /// Until when it is not asked for: it was there, or could not be built.
    until: Option<Instant>,
    /// Whether it was there when it was last asked for.
    is_there: bool,
    build: Option<Build>,
}

/// See the module's documentation.
#[derive(Clone)]
pub struct Indexes {
    connection: Arc<Connection>,
    known: Arc<[Mutex<Known>; Rare::ALL.len()]>,
}

impl Indexes {
    /// Nothing is known yet.
    pub fn new(connection: Arc<Connection>) -> Self {
        Self { connection, known: Arc::default() }
    }

    fn known(&self, rare: Rare) -> MutexGuard<'_, Known> {
        // The array has an element for each.
        let known = self.known.get(rare as usize).unwrap_or(&self.known[0]);
        known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Jobs like this one are stored: the indexes that list them are built, and not waited for.
    pub fn note(&self, meta: &Meta) {
        Rare::of(meta).for_each(|rare| drop(self.want(rare)));
    }

    /// Begins to build the index, unless it is known to be there, or was tried in vain just now. Returns the build to wait for.
    pub fn want(&self, rare: Rare) -> Option<Build> {
        let mut known = self.known(rare);
        if known.until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        if let Some(build) = known.build.as_ref().filter(|build| (*build).clone().now_or_never().is_none()) {
            return Some(build.clone());
        }
        let (done, build) = oneshot::channel();
        let build: Build = build.shared();
        known.build = Some(build.clone());
        tokio::spawn(self.clone().build(rare, done));
        Some(build)
    }

    /// Waits for the index, but not for long: in a large collection it takes a while. Where it was there, it is taken for granted;
    /// where it cannot be built, the list is read without it.
    pub async fn need(&self, rare: Rare) -> Result<()> {
        let Some(build) = self.want(rare) else { return Ok(()) };
        if self.known(rare).is_there {
            return Ok(());
        }
        let (connection, half) = (&self.connection, self.connection.deadline() / 2);
        if tokio::time::timeout(half, build).await.is_ok() {
            return Ok(());
        }
        let jobs = jobs(connection.database().await?);
        let count = jobs.estimated_document_count().await.map_err(fault)?;
        if count <= FEW { Ok(()) } else { Err(StoreError::Building) }
    }

    async fn build(self, rare: Rare, done: oneshot::Sender<Result<()>>) {
        let built = self.ensure(rare).await;
        if let Err(error) = &built {
            let index = rare.name();
            tracing::warn!(
                index,
                error = chain(error),
                "an index of the jobs is not built; some lists are slow"
            );
        }
        let is_there = built.is_ok();
        let rest = if is_there { REMEMBERED } else { AFTER_FAILURE };
        *self.known(rare) = Known { until: Some(Instant::now() + rest), is_there, build: None };
        let _ = done.send(built); // all who waited may have left
    }

    /// Asks for the index, whether or not it is there: MongoDB lists also indexes that are not built yet, and who asks for one
    /// of those waits for it.
    async fn ensure(&self, rare: Rare) -> Result<()> {
        let connection = &self.connection;
        let database = connection.database().await?;
        connection.within(record(database, rare)).await?;
        faults::point("indexes.recorded").await;
        let (jobs, index, began) = (jobs(database), rare.name(), Instant::now());
        let is_new = !connection.within(names(&jobs)).await?.contains(index);
        let count = async { jobs.estimated_document_count().await.map_err(fault) };
        let jobs = connection.within(count).await?;
        if is_new {
            tracing::info!(index, jobs, "an index is needed for the first time, and is being built");
        }
        let indexes = vec![migrate::index(index)?];
        let command = doc! { "createIndexes": JOBS, "indexes": indexes };
        migrate::patiently(database, command).await.map_err(fault)?;
        if is_new {
            tracing::info!(index, took_ms = began.elapsed().as_millis() as u64, "the index is built");
        }
        Ok(())
    }

    /// Drops those that were never needed, and builds what is needed and gone. What fails is tried again at the next start.
    pub async fn tidy(&self) {
        let mut done = Ok(());
        for rare in Rare::ALL {
            done = done.and(self.drop_unused(rare).await);
        }
        if let Err(error) = done.and(self.build_needed().await) {
            tracing::info!(error = chain(&error), "the indexes that no job needs could not all be dropped");
        }
    }

    async fn drop_unused(&self, rare: Rare) -> Result<()> {
        let connection = &self.connection;
        let database = connection.database().await?;
        let is_there = connection.within(names(&jobs(database))).await?.contains(rare.name());
        if !is_there || connection.within(recorded(database)).await?.contains(&rare) {
            return Ok(());
        }
        if connection.within(is_used(database, rare)).await? {
            return connection.within(record(database, rare)).await;
        }
        faults::point("indexes.unused").await;
        let drop = doc! { "dropIndexes": JOBS, "index": rare.name(), "maxTimeMS": DROP_WAITS_MS };
        match connection.within(async { Ok(database.run_command(drop).await) }).await? {
            Err(error) if code(&error) != Some(INDEX_NOT_FOUND) => Err(fault(error)),
            _ => Ok(()),
        }
    }

    /// Begins to build what was needed and is gone: another server may have needed it while it was dropped.
    async fn build_needed(&self) -> Result<()> {
        let database = self.connection.database().await?;
        let there = self.connection.within(names(&jobs(database))).await?;
        let needed = self.connection.within(recorded(database)).await?;
        let gone = needed.into_iter().filter(|rare| !there.contains(rare.name()));
        gone.for_each(|rare| drop(self.want(rare)));
        Ok(())
    }
}

/// Whether there is a job in the index, or anything else of the feature.
async fn is_used(database: &Database, rare: Rare) -> Result<bool> {
    let listed = doc! { rare.field(): { "$exists": true } };
    let one =
        jobs(database).find_one(listed).hint(Hint::Name(rare.name().to_owned())).await.map_err(fault)?;
    let shown = match rare.shown_by() {
        Some(name) => database.collection::<Stored>(name).find_one(doc! {}).await.map_err(fault)?,
        None => None,
    };
    Ok(one.or(shown).is_some())
}

fn jobs(database: &Database) -> Collection<Stored> {
    database.collection(JOBS)
}

async fn names(jobs: &Collection<Stored>) -> Result<HashSet<String>> {
    Ok(jobs.list_index_names().await.map_err(fault)?.into_iter().collect())
}

/// Returns those that were needed at any time.
async fn recorded(database: &Database) -> Result<HashSet<Rare>> {
    let meta =
        database.collection::<Stored>(META).find_one(doc! { "_id": "indexes" }).await.map_err(fault)?;
    let is_named = |document: &Document, rare: &Rare| document.get_bool(rare.name()).unwrap_or(false);
    let named = |document: Stored| Rare::ALL.into_iter().filter(move |rare| is_named(&document, rare));
    Ok(meta.into_iter().flat_map(named).collect())
}

async fn record(database: &Database, rare: Rare) -> Result<()> {
    let update = doc! { "$set": { rare.name(): true } };
    let meta = database.collection::<Document>(META);
    meta.update_one(doc! { "_id": "indexes" }, update).upsert(true).await.map_err(fault)?;
    Ok(())
}
