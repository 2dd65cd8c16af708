//! The embedded store: one SQLite file, or memory.
//!
//! One thread writes (`writer`): what waits for it shares a transaction and an fsync, so that a commit
//! per job becomes a commit per round. A few connections read beside it (`readers`). A database in
//! memory has one connection only, so there the thread that writes reads as well. The other modules hold
//! the statements, as plain functions over a connection; one statement, one index, and the tests say which.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;

use self::clock::Clock;
use self::fault::Fault;
pub use self::open::OpenError;
use self::readers::Readers;
use self::tx::Tx;
use self::writer::Writer;
use super::{
    Applied, Change, ClaimAsk, Claims, Denied, Expected, Filter, HeldKey, Imported, Opened, Overdue, Pushed,
    QueueCounts, Reconciled, Request, Result, Saved, SettingsSnapshot, Store, StoredSettings,
};
use crate::job::{Claim, Job, JobId, NewJob, QueueName, Rules, Timestamp};

mod batches;
mod clock;
mod fault;
mod jobs;
mod open;
mod prune;
mod readers;
mod requests;
mod schedules;
mod semaphores;
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
    /// Absent for a database in memory.
    readers: Option<Readers>,
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
        let writer = Writer::start(db, lock, Arc::clone(&clock)).map_err(unusable)?;
        Ok(Arc::new(Self { clock, writer, readers: path.map(Readers::new) }))
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
                    tx.flush()?; // what others of the round did counts as well
                    read(tx, now)
                };
                self.writer.run(read).await
            }
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn migrate(&self) -> Result<Vec<String>> {
        self.writer.run(|db, _| open::migrate(db)).await
    }

    async fn ping(&self) -> Result<()> {
        self.writer.run(|db, _| open::probe(db)).await
    }

    fn now(&self) -> Result<Timestamp> {
        Ok(self.clock.now())
    }

    async fn push(&self, jobs: Vec<NewJob>, rules: &Rules) -> Vec<Result<Pushed>> {
        let (count, rules) = (jobs.len(), rules.clone());
        let jobs: Vec<jobs::push::New> = jobs.into_iter().map(jobs::push::New::from).collect();
        let pushed = self.writer.run(move |tx, now| jobs::push::push(tx, &jobs, &rules, now)).await;
        pushed.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn claim(&self, asks: &[ClaimAsk], rules: &Rules) -> Claims {
        let mut offers = Vec::new();
        loop {
            let (own, rules) = (asks.to_vec(), rules.clone());
            let claimed = self.writer.run(move |tx, now| jobs::claim::claim(tx, &own, &rules, now)).await;
            let mut claims = claimed.unwrap_or_else(|error| Claims::failed(asks.len(), &error));
            offers.append(&mut claims.offers);
            // So many were blocked that the rest was left for another transaction.
            if claims.won.iter().any(|won| won.as_ref().map_or(true, |jobs| !jobs.is_empty()))
                || !claims.resume.iter().any(|(_, at)| *at <= self.clock.now())
            {
                return Claims { offers, ..claims };
            }
        }
    }

    async fn held(&self, queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>> {
        let (queues, claim) = (queues.to_vec(), claim.clone());
        self.read(move |db, _| jobs::claim::held(db, &queues, &claim)).await
    }

    async fn apply(&self, changes: Vec<Change>, rules: &Rules) -> Vec<Result<Applied, Denied>> {
        let (count, rules) = (changes.len(), rules.clone());
        let applied = self.writer.run(move |tx, now| jobs::apply::apply(tx, &changes, &rules, now)).await;
        applied.unwrap_or_else(|error| vec![Err(Denied::Store(error)); count])
    }

    async fn overdue(&self, limit: usize) -> Result<Overdue> {
        self.read(move |db, now| jobs::query::overdue(db, limit, now)).await
    }

    async fn upcoming(&self, limit: usize) -> Result<Vec<(QueueName, Timestamp)>> {
        self.read(move |db, now| jobs::query::upcoming(db, limit, now)).await
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Job>>> {
        let ids = ids.to_vec();
        self.read(move |db, _| jobs::query::get(db, &ids)).await
    }

    async fn find(&self, filter: &Filter, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>> {
        let (filter, after) = (filter.clone(), after.cloned());
        self.read(move |db, now| jobs::query::find(db, &filter, after.as_ref(), limit, now)).await
    }

    async fn queues(&self, prefix: &str, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        self.read(move |db, _| jobs::query::queues(db, &prefix, after.as_ref(), limit)).await
    }

    async fn stocked(&self, queues: &[QueueName]) -> Result<Vec<QueueName>> {
        let queues = queues.to_vec();
        self.read(move |db, now| jobs::stocked::stocked(db, &queues, now)).await
    }

    async fn counts(&self) -> Result<HashMap<QueueName, QueueCounts>> {
        self.read(jobs::query::counts).await
    }

    /// The transaction of every change counts: there is nothing to compare.
    async fn reconcile(&self) -> Result<Reconciled> {
        Ok(Reconciled { corrected: 0, again_in: Duration::MAX, is_settled: true })
    }

    async fn settings(&self, known: Option<i64>) -> Result<Option<SettingsSnapshot>> {
        self.read(move |db, _| settings::settings(db, known)).await
    }

    async fn save_settings(
        &self,
        queue: &QueueName,
        to: Option<&StoredSettings>,
        expected: &Expected,
    ) -> Result<Saved> {
        let (queue, to, expected) = (queue.clone(), to.cloned(), expected.clone());
        self.writer.run(move |db, _| settings::save(db, &queue, to.as_ref(), &expected)).await
    }

    async fn open_request(&self, request: &Request) -> Result<Opened> {
        let request = request.clone();
        self.writer.run(move |db, now| requests::open(db, &request, now)).await
    }

    async fn close_request(
        &self,
        request: &Request,
        won: Option<(&Claim, &[JobId])>,
        keep_until: Timestamp,
    ) -> Result<()> {
        let (request, won) = (request.clone(), won.map(|(claim, ids)| (claim.clone(), ids.to_vec())));
        let close = move |db: &Tx<'_>, _| {
            let won = won.as_ref().map(|(claim, ids)| (claim, ids.as_slice()));
            requests::close(db, &request, won, keep_until)
        };
        self.writer.run(close).await
    }

    async fn prune(&self, limit: usize) -> Result<u64> {
        self.writer.run(move |tx, now| prune::prune(tx, limit, now)).await
    }

    async fn export(&self, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>> {
        let after = after.cloned();
        self.read(move |db, _| transfer::export(db, after.as_ref(), limit)).await
    }

    async fn import(&self, jobs: Vec<Job>) -> Vec<Result<Imported>> {
        let count = jobs.len();
        let imported = self.writer.run(move |tx, now| transfer::import(tx, &jobs, now)).await;
        match imported {
            Ok(imported) => imported.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); count],
        }
    }

    async fn export_keys(&self, after: Option<&HeldKey>, limit: usize) -> Result<Vec<HeldKey>> {
        let after = after.cloned();
        self.read(move |db, _| transfer::export_keys(db, after.as_ref(), limit)).await
    }

    async fn import_keys(&self, keys: Vec<HeldKey>) -> Vec<Result<Imported>> {
        let count = keys.len();
        match self.writer.run(move |db, _| transfer::import_keys(db, &keys)).await {
            Ok(imported) => imported.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); count],
        }
    }

    async fn close(&self) {
        // The readers first: the last connection to go moves the log into the file.
        if let Some(readers) = &self.readers {
            readers.close().await;
        }
        self.writer.close().await;
    }
}
