//! The one thread that writes.
//!
//! An fsync costs more than all else that a push does, so callers share it: the thread takes everything
//! that waits, runs it in one transaction, commits once, and only then answers everybody. Work that
//! arrives during a commit makes up the next round, so nobody ever waits for a timer.

use std::fs::File;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::DEADLINE;
use super::clock::Clock;
use super::fault::{self, Fault};
use crate::job::Timestamp;
use crate::store::StoreError;

/// The most pieces of work in one transaction.
const ROUND_MAX: usize = 512;
/// How many pieces of work may wait; further callers wait to get into the line.
const WAITING_MAX: usize = 1024;

/// A piece of work that is all done or not at all.
trait Unit: Send {
    /// Does the work, within a transaction.
    fn run(self: Box<Self>, db: &Connection, now: Timestamp) -> Ran;
    /// Answers without having done it.
    fn fail(self: Box<Self>, error: StoreError);
}

/// What has become of a [`Unit`].
struct Ran {
    /// Why its changes must not be kept.
    failed: Option<StoreError>,
    answer: Answer,
}

/// Tells the caller, who is waiting for the commit, how that went.
type Answer = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

struct Ask<T, W> {
    work: W,
    tell: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, W> Unit for Ask<T, W>
where
    T: Send + 'static,
    W: FnOnce(&Connection, Timestamp) -> Result<T, Fault> + Send,
{
    fn run(self: Box<Self>, db: &Connection, now: Timestamp) -> Ran {
        let Self { work, tell } = *self;
        // Whoever asked has gone away or ran into its deadline: nobody would know of the outcome.
        if tell.is_closed() {
            return Ran { failed: None, answer: Box::new(drop) };
        }
        match work(db, now).map_err(StoreError::from) {
            Ok(value) => Ran {
                failed: None,
                answer: Box::new(move |committed| drop(tell.send(committed.map(|()| value)))),
            },
            Err(error) => {
                Ran { failed: Some(error.clone()), answer: Box::new(move |_| drop(tell.send(Err(error)))) }
            }
        }
    }

    fn fail(self: Box<Self>, error: StoreError) {
        drop(self.tell.send(Err(error)));
    }
}

/// The way to the thread that writes.
pub struct Writer {
    line: Mutex<Option<mpsc::Sender<Box<dyn Unit>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts the thread. It holds `lock` for as long as it has the database open.
    pub fn start(db: Connection, lock: Option<File>, clock: Arc<Clock>) -> std::io::Result<Self> {
        let (line, waiting) = mpsc::channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("sqlite-writer".into()).spawn(move || {
            serve(&db, waiting, &clock);
            drop(db); // the last connection: SQLite moves the log into the file
            drop(lock);
        })?;
        Ok(Self { line: Mutex::new(Some(line)), thread: Mutex::new(Some(thread)) })
    }

    /// Does the work in a transaction of the thread's, and answers once it is durable.
    pub async fn run<T, W>(&self, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&Connection, Timestamp) -> Result<T, Fault> + Send + 'static,
    {
        let line = held(&self.line).clone();
        let Some(line) = line else {
            return Err(StoreError::unavailable("the store is closed"));
        };
        let (tell, told) = oneshot::channel();
        let unit: Box<dyn Unit> = Box::new(Ask { work, tell });
        let answer = tokio::time::timeout(DEADLINE, async {
            line.send(unit).await.ok()?;
            told.await.ok()
        });
        match answer.await {
            Ok(Some(answer)) => answer,
            Ok(None) => Err(StoreError::unavailable("the thread that writes has ended")),
            Err(_) => Err(StoreError::unavailable("the write did not end within its deadline")),
        }
    }

    /// Lets the thread finish what waits, and waits for its end.
    pub async fn close(&self) {
        drop(held(&self.line).take());
        let thread = held(&self.thread).take();
        if let Some(thread) = thread {
            // A thread that panicked has closed the database as well.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn serve(db: &Connection, mut waiting: mpsc::Receiver<Box<dyn Unit>>, clock: &Clock) {
    while let Some(first) = waiting.blocking_recv() {
        let mut round = vec![first];
        while round.len() < ROUND_MAX
            && let Ok(unit) = waiting.try_recv()
        {
            round.push(unit);
        }
        let mut left = round.into_iter().peekable();
        while left.peek().is_some() {
            transact(db, &mut left, clock);
        }
    }
}

/// Runs units in one transaction and answers them after its commit. Leaves over what comes behind an
/// error that cost the whole transaction.
fn transact(db: &Connection, units: &mut dyn Iterator<Item = Box<dyn Unit>>, clock: &Clock) {
    if let Err(error) = execute(db, "BEGIN IMMEDIATE") {
        let error = fault::from_sql(&error);
        units.for_each(|unit| unit.fail(error.clone()));
        return;
    }
    let mut answers: Vec<Answer> = Vec::new();
    for unit in units {
        let ended = match execute(db, "SAVEPOINT unit") {
            Ok(()) => unit_ended(db, unit, clock, &mut answers),
            Err(error) => {
                let error = fault::from_sql(&error);
                unit.fail(error.clone());
                Err(error)
            }
        };
        if let Err(error) = ended {
            return abandon(db, answers, &error);
        }
    }
    match execute(db, "COMMIT") {
        Ok(()) => answers.into_iter().for_each(|answer| answer(Ok(()))),
        Err(error) => abandon(db, answers, &fault::from_sql(&error)),
    }
}

/// Runs one unit within its savepoint. An error means that the whole transaction is lost: where the disk
/// is full, SQLite may have rolled back more than the savepoint.
fn unit_ended(
    db: &Connection,
    unit: Box<dyn Unit>,
    clock: &Clock,
    answers: &mut Vec<Answer>,
) -> Result<(), StoreError> {
    let ran = unit.run(db, clock.now());
    answers.push(ran.answer);
    if let Some(error) = ran.failed {
        if db.is_autocommit() {
            return Err(error);
        }
        execute(db, "ROLLBACK TO unit").map_err(|error| fault::from_sql(&error))?;
    }
    execute(db, "RELEASE unit").map_err(|error| fault::from_sql(&error))
}

fn abandon(db: &Connection, answers: Vec<Answer>, error: &StoreError) {
    if !db.is_autocommit()
        && let Err(error) = execute(db, "ROLLBACK")
    {
        tracing::error!(%error, "a transaction could not be rolled back");
    }
    answers.into_iter().for_each(|answer| answer(Err(error.clone())));
}

fn execute(db: &Connection, sql: &str) -> rusqlite::Result<()> {
    db.prepare_cached(sql)?.execute([]).map(drop)
}
