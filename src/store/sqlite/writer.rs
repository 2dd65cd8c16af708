//! The one thread that writes.
//!
//! An fsync costs more than all else that a push does, so callers share it (group commit): the thread takes everything
//! that waits, runs it in one transaction, commits once, and only then returns the results. Work that arrives during a
//! commit makes up the next round, so that no caller waits for a timer.

use std::fs::File;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::faults;
use crate::job::Timestamp;
use crate::store::audit::{Entry, row, seeing};
use crate::store::hold::{Held, held};
use crate::store::sqlite::DEADLINE;
use crate::store::sqlite::audit;
use crate::store::sqlite::clock::Clock;
use crate::store::sqlite::fault::{self, Fault, Health};
use crate::store::sqlite::tx::{Caches, Tx};
use crate::store::{AuditRow, StoreError};

/// The most pieces of work in one transaction.
const ROUND_MAX: usize = 512;
/// How many pieces of work may be queued; further callers wait for a place.
const WAITING_MAX: usize = 1024;

/// A piece of work that is all done or not at all. It may be run more than once; only the last time counts.
trait Unit: Send {
    /// Does the work, within a transaction. After an error its changes must not be kept.
    fn run(&mut self, tx: &Tx<'_>, now: Timestamp) -> Result<(), StoreError>;
    /// Sends the outcome of the commit to the caller, which waits for it.
    fn reply(self: Box<Self>, committed: Result<(), StoreError>);
}

struct Ask<T, W> {
    work: W,
    /// What is remembered of it, if it is an administrative act.
    row: Option<Entry>,
    /// That as it was written.
    written: Option<AuditRow>,
    value: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
    /// The work may wait for longer than its caller.
    held: Option<Held>,
}

impl<T, W> Unit for Ask<T, W>
where
    T: Send + 'static,
    W: FnMut(&Tx<'_>, Timestamp) -> Result<T, Fault> + Send,
{
    fn run(&mut self, tx: &Tx<'_>, now: Timestamp) -> Result<(), StoreError> {
        (self.value, self.written) = (None, None); // of an earlier run, which was rolled back
        // Skipped where the caller has gone away or ran into its deadline: it would not learn the outcome.
        if !self.reply.is_closed() {
            if self.row.is_some() {
                tx.flush()?; // what others of the round have counted is none of its changes
            }
            let before = tx.total_changes();
            tx.begin_work(self.row.as_ref().is_some_and(|row| row.is_of_one_job()));
            self.value = Some((self.work)(tx, now)?);
            self.written = match &self.row {
                Some(row) => record(tx, row, before)?,
                None => None,
            };
        }
        Ok(())
    }

    fn reply(self: Box<Self>, committed: Result<(), StoreError>) {
        let Self { work, row, written, value, reply, held } = *self;
        if let (Some(row), Some(written)) = (row, written) {
            match &committed {
                Ok(()) => row.stored(written),
                Err(StoreError::Unavailable(_)) => row.perhaps_stored(written),
                Err(_) => {}
            }
        }
        let result = match (committed, value) {
            (Ok(()), Some(value)) => Ok(value),
            (Ok(()), None) => return, // it was not run
            (Err(error), _) => Err(error),
        };
        drop((work, held));
        drop(reply.send(result));
    }
}

/// Writes the row of an act that has changed something, and returns it as it is then. `before`: what was changed on the connection before it.
fn record(tx: &Tx<'_>, row: &AuditRow, before: u64) -> Result<Option<AuditRow>, Fault> {
    let acted = tx.take_acted();
    let row = seeing(row, tx.take_seen());
    match acted {
        Some(more) if row.affected.is_some() => audit::count(tx, &row, more).map(Some),
        _ if row.affected.is_none() && tx.total_changes() > before => {
            audit::write(tx, &row)?;
            Ok(Some(row))
        }
        _ => Ok(None),
    }
}

/// A handle to the thread that writes.
pub struct Writer {
    line: Mutex<Option<mpsc::Sender<Box<dyn Unit>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    health: Arc<Health>,
}

impl Writer {
    /// Starts the thread. It holds `lock` for as long as it has the database open.
    pub fn start(
        db: Connection,
        lock: Option<File>,
        clock: Arc<Clock>,
        health: Arc<Health>,
        caches: Caches,
    ) -> std::io::Result<Self> {
        let (line, waiting) = mpsc::channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("sqlite-writer".into()).spawn(move || {
            serve(&db, waiting, &caches, &clock);
            if let Err(error) = clock.keep_last(&db) {
                tracing::debug!(%error, "cannot store the clock at shutdown");
            }
            drop(db); // the last connection: SQLite moves the log into the file
            drop(lock);
        })?;
        Ok(Self { line: Mutex::new(Some(line)), thread: Mutex::new(Some(thread)), health })
    }

    /// Does the work in a transaction of the thread's, and returns once it is durable.
    pub async fn run<T, W>(&self, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnMut(&Tx<'_>, Timestamp) -> Result<T, Fault> + Send + 'static,
    {
        let late = |_| Err(StoreError::unavailable("the write did not end within its deadline"));
        tokio::time::timeout(DEADLINE, self.run_to_the_end(work))
            .await
            .unwrap_or_else(late)
            .inspect_err(|error| self.health.note(error))
    }

    /// The same for work that may take as long as the file is large.
    pub async fn run_to_the_end<T, W>(&self, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnMut(&Tx<'_>, Timestamp) -> Result<T, Fault> + Send + 'static,
    {
        let line = locked(&self.line).clone();
        let Some(line) = line else {
            return Err(StoreError::unavailable("the store is closed"));
        };
        let (reply, outcome) = oneshot::channel();
        let unit: Box<dyn Unit> =
            Box::new(Ask { work, row: row(), written: None, value: None, reply, held: held() });
        let ended = || StoreError::unavailable("the thread that writes has ended");
        line.send(unit).await.map_err(|_| ended())?;
        outcome.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Lets the thread finish what is queued, and waits for its end.
    pub async fn close(&self) {
        drop(locked(&self.line).take());
        let thread = locked(&self.thread).take();
        if let Some(thread) = thread {
            // A thread that panicked has closed the database as well.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn serve(db: &Connection, mut waiting: mpsc::Receiver<Box<dyn Unit>>, caches: &Caches, clock: &Clock) {
    while let Some(first) = waiting.blocking_recv() {
        let mut round = vec![first];
        while round.len() < ROUND_MAX
            && let Ok(unit) = waiting.try_recv()
        {
            round.push(unit);
        }
        transact(db, round, caches, clock);
    }
}

/// Why a transaction was not committed.
enum RoundError {
    /// It was rolled back as a whole.
    Whole(StoreError),
    /// One of its units failed, or all of them need more room than there is; the others may succeed without it.
    One(StoreError),
}

impl RoundError {
    /// Where there is no room nothing was stored, also where SQLite has rolled back more than the statement that hit it.
    fn of(error: StoreError) -> Self {
        if error.is_full() { Self::One(error) } else { Self::Whole(error) }
    }
}

/// Runs units in one transaction and sends their results after its commit. Where one of them fails, all are run
/// again, each in a transaction of its own: units rarely fail, and so need no savepoints, whose journals cost
/// more than all else that a unit does. So it is where there is no room for all: what ends a job needs little.
fn transact(db: &Connection, mut units: Vec<Box<dyn Unit>>, caches: &Caches, clock: &Clock) {
    match commit(db, &mut units, caches, clock) {
        Ok(()) => units.into_iter().for_each(|unit| unit.reply(Ok(()))),
        Err(RoundError::One(_)) if units.len() > 1 => {
            units.into_iter().for_each(|unit| transact(db, vec![unit], caches, clock));
        }
        Err(RoundError::One(error) | RoundError::Whole(error)) => {
            units.into_iter().for_each(|unit| unit.reply(Err(error.clone())));
        }
    }
}

fn commit(
    db: &Connection,
    units: &mut [Box<dyn Unit>],
    caches: &Caches,
    clock: &Clock,
) -> Result<(), RoundError> {
    let whole = |error: rusqlite::Error| RoundError::of(fault::from_sql(&error));
    execute(db, "BEGIN IMMEDIATE").map_err(whole)?;
    let tx = Tx::new(db, caches);
    let before = db.total_changes();
    let run = || -> Result<(), RoundError> {
        caches.skipped.clear_if_stale(db).map_err(whole)?;
        for unit in units {
            unit.run(&tx, clock.now()).map_err(RoundError::One)?;
        }
        tx.flush().map_err(|fault| RoundError::of(fault.into()))?;
        // What only reads leaves the disk alone.
        let kept = if db.total_changes() > before { clock.keep(db).map_err(whole)? } else { None };
        execute(db, if faults::bug("answer_early") { "ROLLBACK" } else { "COMMIT" })
            .map_err(|error| RoundError::of(fault::of_commit(&error)))?;
        clock.kept(kept);
        Ok(())
    };
    run().inspect_err(|_| caches.skipped.clear()).map_err(|trouble| match trouble {
        RoundError::One(error) if db.is_autocommit() => RoundError::of(error),
        trouble => {
            roll_back(db);
            trouble
        }
    })
}

fn roll_back(db: &Connection) {
    if !db.is_autocommit()
        && let Err(error) = execute(db, "ROLLBACK")
    {
        tracing::error!(%error, "a transaction could not be rolled back");
    }
}

fn execute(db: &Connection, sql: &str) -> rusqlite::Result<()> {
    db.prepare_cached(sql)?.execute([]).map(drop)
}
