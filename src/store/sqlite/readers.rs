//! Connections that only read, beside the thread that writes: in WAL mode neither waits for the other.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;

use crate::store::hold::held;
use crate::store::sqlite::DEADLINE;
use crate::store::sqlite::fault::{Fault, Health};
use crate::store::sqlite::open;
use crate::store::{Pool, StoreError};

/// How many reads run at once.
const READERS: u32 = 4;

/// The connections for reading. They are opened when they are needed first.
pub struct Readers {
    path: PathBuf,
    idle: Arc<Mutex<Vec<Connection>>>,
    turns: Arc<Semaphore>,
    health: Arc<Health>,
    /// How many reads wait for their turn.
    waiting: AtomicU64,
    opened: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

/// Counts something for as long as it is there.
struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Readers {
    /// Readers of this file.
    pub fn new(path: PathBuf, health: Arc<Health>) -> Self {
        Self {
            path,
            idle: Arc::default(),
            turns: Arc::new(Semaphore::new(READERS as usize)),
            health,
            waiting: AtomicU64::default(),
            opened: Arc::default(),
            failed: Arc::default(),
        }
    }

    /// Returns how the connections are used.
    pub fn pool(&self) -> Pool {
        let (most, idle) = (u64::from(READERS), self.idle.lock().unwrap_or_else(|p| p.into_inner()).len());
        Pool {
            most,
            idle: idle as u64,
            in_use: most.saturating_sub(self.turns.available_permits() as u64),
            waiting: self.waiting.load(Ordering::Relaxed),
            opened: self.opened.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }

    /// Returns how long the write-ahead log is; `None` where there is none.
    pub fn log_bytes(&self) -> Option<u64> {
        let mut path = self.path.clone().into_os_string();
        path.push("-wal");
        std::fs::metadata(path).ok().map(|log| log.len())
    }

    /// Reads from the disk, by a connection that has nothing in memory yet.
    pub async fn probe(&self) -> Result<(), StoreError> {
        let path = self.path.clone();
        self.run(move |_| {
            let db = reader(&path)?;
            db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))?;
            Ok(())
        })
        .await
    }

    /// Runs a read on one snapshot of the database.
    pub async fn run<T, R>(&self, read: R) -> Result<T, StoreError>
    where
        T: Send + 'static,
        R: FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    {
        let result = tokio::time::timeout(DEADLINE, async {
            let waiting = Counted::new(&self.waiting);
            let turn = Arc::clone(&self.turns)
                .acquire_owned()
                .await
                .map_err(|_| StoreError::unavailable("the store is closed"))?;
            drop(waiting);
            let (opened, failed) = (Arc::clone(&self.opened), Arc::clone(&self.failed));
            let (idle, path, share) = (Arc::clone(&self.idle), self.path.clone(), held());
            let reading = tokio::task::spawn_blocking(move || {
                // Given back when the read has ended, also if its caller has gone away.
                let _kept = (turn, share);
                let taken = idle.lock().unwrap_or_else(|p| p.into_inner()).pop();
                let open = || {
                    let opening = reader(&path);
                    if opening.is_ok() { &opened } else { &failed }.fetch_add(1, Ordering::Relaxed);
                    opening
                };
                let db = taken.map_or_else(open, Ok)?;
                let result = snapshot(&db, read);
                idle.lock().unwrap_or_else(|p| p.into_inner()).push(db);
                result
            });
            let result = reading.await.map_err(StoreError::internal)?;
            result.map_err(StoreError::from)
        });
        result
            .await
            .unwrap_or_else(|_| Err(StoreError::unavailable("the read did not end within its deadline")))
            .inspect_err(|error| self.health.note(error))
    }

    /// Waits for the reads in flight, and closes the connections.
    pub async fn close(&self) {
        let last = self.turns.acquire_many(READERS).await;
        self.turns.close();
        self.idle.lock().unwrap_or_else(|p| p.into_inner()).clear();
        drop(last);
    }
}

fn reader(path: &std::path::Path) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    open::tune(&db)?;
    Ok(db)
}

fn snapshot<T>(db: &Connection, read: impl FnOnce(&Connection) -> Result<T, Fault>) -> Result<T, Fault> {
    let all = db.unchecked_transaction()?; // nothing else uses this connection
    let result = read(db);
    all.finish()?;
    result
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::store::hold::{Held, Hold, holding};

    struct Place;

    impl Hold for Place {
        fn release(&self) {}
    }

    #[tokio::test]
    async fn a_read_keeps_what_its_caller_held_until_it_has_ended() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("t.db");
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE t (a)").unwrap();
        let readers = Readers::new(path, Arc::default());
        let place: Held = Arc::new(Place);
        let (begin, begun) = oneshot::channel::<()>();
        let (go, gone) = mpsc::channel::<()>();
        let read = readers.run(move |_| {
            let _ = begin.send(());
            let _ = gone.recv();
            Ok(())
        });
        tokio::select! {
            _ = holding(Some(place.clone()), read) => panic!("it ends only below"),
            begun = begun => begun.unwrap(),
        }
        assert_eq!(Arc::strong_count(&place), 2, "its caller has left, and it goes on");
        drop(go);
        while Arc::strong_count(&place) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
