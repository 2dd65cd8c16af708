//! The embedded store: one SQLite file, or memory.
//!
//! One thread writes (`writer`): what waits for it shares a transaction and an fsync, so that a commit
//! per job becomes a commit per round. A few connections read beside it (`readers`). A database in
//! memory has one connection only, so there the thread that writes reads as well. The other modules hold
//! the statements, as plain functions over a connection; one statement, one index, and the tests say which.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rusqlite::Connection;

use self::clock::Clock;
use self::fault::{Fault, Health};
use self::jobs::priorities::SkippedCache;
pub use self::open::OpenError;
pub use self::picture::picture;
use self::readers::Readers;
use self::tx::{Caches, Tx};
use self::writer::Writer;
use super::{KnownServer, Result, Signals, Store};
use crate::faults;
use crate::job::Timestamp;

mod access;
mod answers;
mod audit;
mod batches;
mod clock;
mod fault;
mod figures;
mod jobs;
mod open;
mod operations;
mod picture;
mod prune;
mod readers;
mod recount;
mod requests;
mod schedules;
mod semaphores;
mod series;
mod settings;
#[cfg(test)]
mod tests;
mod transfer;
mod tx;
mod workers;
mod writer;

/// How long any verb may take. It ends as `Unavailable` then; what was not begun is not done any more.
const DEADLINE: Duration = Duration::from_secs(30);

/// Where the database is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In this file, which is created if it is not there.
    Path(PathBuf),
    /// In memory, until the store is closed.
    Memory,
}

/// A [`Store`] in SQLite.
pub struct SqliteStore {
    clock: Arc<Clock>,
    writer: Writer,
    /// The priorities that claims need not walk.
    skipped: Arc<SkippedCache>,
    /// Absent for a database in memory.
    readers: Option<Readers>,
    health: Arc<Health>,
    /// Whether requests of processes before this one are known to be dead.
    is_buried: AtomicBool,
    /// Whether the counts were compared with the jobs since the start.
    is_compared: AtomicBool,
    /// The name of this server, for as long as it runs.
    server: String,
    began: Instant,
}

impl SqliteStore {
    /// Opens the database, for this process alone. [`Store::migrate`] must come before anything else.
    pub fn open(location: Location) -> Result<Arc<Self>, OpenError> {
        let clock = Arc::new(Clock::new());
        let (db, lock, path) = match location {
            Location::Memory => (open::memory()?, None, None),
            Location::Path(path) => {
                let opened = open::file(&path)?;
                (opened.db, Some(opened.lock), Some(opened.path))
            }
        };
        let unusable = |cause: std::io::Error| OpenError::Unusable {
            path: path.clone().unwrap_or_else(|| ":memory:".into()),
            cause: format!("the thread that writes does not start: {cause}"),
        };
        let health = Arc::new(Health::default());
        let caches = Caches::default();
        let skipped = Arc::clone(&caches.skipped);
        let writer =
            Writer::start(db, lock, Arc::clone(&clock), Arc::clone(&health), caches).map_err(unusable)?;
        Ok(Arc::new(Self {
            clock,
            writer,
            skipped,
            readers: path.map(|path| Readers::new(path, Arc::clone(&health))),
            health,
            is_buried: AtomicBool::new(false),
            is_compared: AtomicBool::new(false),
            server: format!("{:032x}", rand::random::<u128>()),
            began: Instant::now(),
        }))
    }

    async fn read<T, R>(&self, read: R) -> Result<T>
    where
        T: Send + 'static,
        R: Fn(&Connection, Timestamp) -> Result<T, Fault> + Send + 'static,
    {
        match &self.readers {
            Some(readers) => {
                let clock = Arc::clone(&self.clock);
                readers.run(move |db| read(db, clock.now())).await
            }
            None => {
                let read = move |tx: &Tx<'_>, now| {
                    tx.flush()?; // the other calls of the round count as well
                    read(tx, now)
                };
                self.writer.run(read).await
            }
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn system(&self) -> &'static str {
        "sqlite"
    }

    async fn migrate(&self) -> Result<Vec<String>> {
        let is_buried = self.is_buried.load(Ordering::Relaxed);
        let clock = Arc::clone(&self.clock);
        let migrate = move |db: &Tx<'_>, _| {
            faults::point_in_thread("migrate.begun");
            let made = open::migrate(db)?;
            clock.load(db)?;
            if !is_buried {
                requests::bury(db)?; // the file is this process's alone, which runs nothing yet
            }
            Ok(made)
        };
        let made = self.writer.run_to_the_end(migrate).await?; // an added column is checked in every row
        self.is_buried.store(true, Ordering::Relaxed); // only now: one that failed is retried
        Ok(made)
    }

    async fn ping(&self) -> Result<Instant> {
        let asked = Instant::now();
        if !self.health.take_failure() {
            self.writer.run(|db, _| open::probe(db)).await?;
            return Ok(asked);
        }
        // What fails once more is noted once more, and the next probe is one like this, too.
        self.writer.run(|db, _| open::probe_by_writing(db)).await?;
        if let Some(readers) = &self.readers {
            readers.probe().await?;
        }
        Ok(asked)
    }

    fn now(&self) -> Result<Timestamp> {
        Ok(self.clock.now())
    }

    fn ahead_ms(&self) -> u64 {
        self.clock.ahead_ms()
    }

    async fn prune(&self, limit: usize) -> Result<u64> {
        self.writer.run(move |tx, now| prune::prune(tx, limit, now)).await
    }

    async fn close(&self) {
        // The readers first: the last connection to go moves the log into the file.
        if let Some(readers) = &self.readers {
            readers.close().await;
        }
        self.writer.close().await;
    }
}

/// A SQLite database has one server, and so no signals.
#[async_trait]
impl Signals for SqliteStore {
    async fn servers(&self) -> Result<Vec<KnownServer>> {
        let (seen_at, runs) = (self.clock.now(), self.began.elapsed().as_millis());
        let runs = i64::try_from(runs).unwrap_or(i64::MAX);
        let since = Some(Timestamp::from_millis(seen_at.millis().saturating_sub(runs)));
        let version = Some(env!("CARGO_PKG_VERSION").to_owned());
        Ok(vec![KnownServer { id: self.server.clone(), version, since, seen_at, is_own: true }])
    }
}
