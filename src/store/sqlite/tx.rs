//! A transaction under way: the connection, and how it changes the number of jobs in each state.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;

use rusqlite::{Connection, params};

use crate::faults;
use crate::job::{QueueName, SemaphoreName, State};
use crate::store::audit::Seen;
use crate::store::delivered::DeliveredCache;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::priorities::{PASSED_MAX, SkippedCache};
use crate::store::sqlite::jobs::row::HEAD_BYTES;

/// See the module's documentation. Every write to the table `jobs` must be counted here; the table
/// `counters` is brought up to date once, before the commit, however many jobs a queue won or lost.
pub struct Tx<'c> {
    db: &'c Connection,
    changes: RefCell<Changes>,
    /// How many jobs the current piece of work has changed or stored, where it says so.
    acted: Cell<Option<u64>>,
    /// What the current piece of work has found and made, for the row of the act that it is.
    seen: Cell<Option<Seen>>,
    /// Whether the current piece of work is an act on one job.
    acts_on_one: Cell<bool>,
    /// How many bytes of jobs the claims of the transaction have read.
    claimed: Cell<usize>,
    /// How many jobs that cannot be read it has made dead.
    buried: Cell<usize>,
    /// The semaphores whose holders were compared with the jobs.
    compared: RefCell<HashSet<SemaphoreName>>,
    /// The jobs that were delivered lately, and their rowids.
    pub delivered: &'c DeliveredCache<i64>,
    /// The priorities that claims need not walk.
    pub skipped: &'c SkippedCache,
}

/// What the thread that writes remembers from one transaction to the next.
#[derive(Default)]
pub struct Caches {
    /// See [`Tx::delivered`].
    pub delivered: DeliveredCache<i64>,
    /// See [`Tx::skipped`]. Readers use it as well.
    pub skipped: Arc<SkippedCache>,
}

/// By how much the counts of a queue change, in the order of the columns.
#[derive(Default)]
struct Change {
    by_state: [i64; 5],
    marked: i64,
}

/// The changes by queue. A round has one queue or a few: to search them one by one is faster than to hash.
#[derive(Default)]
struct Changes {
    list: Vec<(QueueName, Change)>,
    /// Where a queue is in the list, once there are many.
    index: HashMap<QueueName, usize>,
}

impl Changes {
    const FEW: usize = 16;

    fn of(&mut self, queue: &QueueName) -> &mut Change {
        let found = match self.index.is_empty() {
            true => self.list.iter().position(|(known, _)| known == queue),
            false => self.index.get(queue).copied(),
        };
        let at = found.unwrap_or_else(|| {
            self.list.push((queue.clone(), Change::default()));
            let added = if self.index.is_empty() { 0 } else { self.list.len() - 1 };
            if self.list.len() > Self::FEW {
                let indexed = self.list.iter().enumerate().skip(added);
                self.index.extend(indexed.map(|(at, (queue, _))| (queue.clone(), at)));
            }
            self.list.len() - 1
        });
        &mut self.list[at].1
    }
}

impl Deref for Tx<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.db
    }
}

impl<'c> Tx<'c> {
    /// Returns the transaction that has just begun on this connection.
    pub fn new(db: &'c Connection, Caches { delivered, skipped }: &'c Caches) -> Self {
        Self {
            db,
            changes: RefCell::default(),
            acted: Cell::default(),
            seen: Cell::default(),
            acts_on_one: Cell::default(),
            claimed: Cell::default(),
            buried: Cell::default(),
            compared: RefCell::default(),
            delivered,
            skipped,
        }
    }

    /// Notes that so many jobs were changed or stored, for the row of the act that this may be: see `store/audit.rs`.
    pub fn acts_on(&self, jobs: usize) {
        self.acted.set(Some(self.acted.get().unwrap_or(0) + jobs as u64));
    }

    /// Returns what was noted, and forgets it.
    pub fn take_acted(&self) -> Option<u64> {
        self.acted.take()
    }

    /// Begins another piece of work, which may be an act on one job.
    pub fn begin_work(&self, acts_on_one: bool) {
        self.acted.take();
        self.seen.take();
        self.acts_on_one.set(acts_on_one);
    }

    /// Returns whether what becomes of a job is shown in the row of an act.
    pub fn acts_on_one_job(&self) -> bool {
        self.acts_on_one.get()
    }

    /// Notes what was there before and is there now, for the row of the act that this may be.
    pub fn sees(&self, seen: Seen) {
        self.seen.set(Some(seen));
    }

    /// Returns what was noted so, and forgets it.
    pub fn take_seen(&self) -> Option<Seen> {
        self.seen.take()
    }

    /// Notes that a claim has read so many bytes of jobs, which are in memory until the transaction has ended.
    pub fn claims(&self, bytes: usize) {
        self.claimed.set(self.claimed.get().saturating_add(bytes));
    }

    /// Returns whether the claims of this transaction have read as much as they may together: further ones are for the next one.
    pub fn is_filled(&self) -> bool {
        self.claimed.get() >= HEAD_BYTES
    }

    /// Notes that so many jobs were made dead that cannot be read, or that something was done which costs as much.
    pub fn buries(&self, jobs: usize) {
        self.buried.set(self.buried.get().saturating_add(jobs));
    }

    /// Returns how many these are so far.
    pub fn buried(&self) -> usize {
        self.buried.get()
    }

    /// Returns whether they are as many as a transaction makes dead: others wait for the thread that writes. The next ones are for another
    /// transaction.
    pub fn has_buried_enough(&self) -> bool {
        self.buried() >= PASSED_MAX
    }

    /// Returns whether the holders of this semaphore were not compared with the jobs before, and notes that they are now.
    pub fn is_first_comparison_of(&self, semaphore: &SemaphoreName) -> bool {
        self.compared.borrow_mut().insert(semaphore.clone())
    }

    /// Counts a job that is in this state now; `marked`: it has a due mark.
    pub fn enters(&self, queue: &QueueName, state: State, marked: bool) {
        self.count(queue, state, marked, 1);
    }

    /// Counts a job that is in this state no longer.
    pub fn leaves(&self, queue: &QueueName, state: State, marked: bool) {
        self.count(queue, state, marked, -1);
    }

    /// Counts a due mark of a ready job that was cleared.
    pub fn unmarks(&self, queue: &QueueName) {
        self.change(queue, |change| change.marked -= 1);
    }

    fn count(&self, queue: &QueueName, state: State, marked: bool, by: i64) {
        if faults::bug("miscount") {
            return;
        }
        self.change(queue, |change| {
            change.by_state[state as usize] += by;
            change.marked += if marked { by } else { 0 };
        });
    }

    fn change(&self, queue: &QueueName, by: impl FnOnce(&mut Change)) {
        by(self.changes.borrow_mut().of(queue));
    }

    /// Brings the table `counters` up to date. A queue without jobs has no row there.
    pub fn flush(&self) -> Result<(), Fault> {
        for (queue, Change { by_state, marked }) in self.changes.take().list {
            if by_state == [0; 5] && marked == 0 {
                continue;
            }
            let by = |state: State| by_state[state as usize];
            self.prepare_cached(
                "INSERT INTO counters (queue, ready, marked, reserved, blocked, done, dead) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (queue) DO UPDATE SET \
                 ready = ready + excluded.ready, marked = marked + excluded.marked, \
                 reserved = reserved + excluded.reserved, blocked = blocked + excluded.blocked, \
                 done = done + excluded.done, dead = dead + excluded.dead",
            )?
            .execute(params![
                queue.as_str(),
                by(State::Ready),
                marked,
                by(State::Reserved),
                by(State::Blocked),
                by(State::Done),
                by(State::Dead),
            ])?;
            // Otherwise as many came as left, and the queue is as empty as it was.
            if by_state.iter().sum::<i64>() < 0 {
                self.prepare_cached(
                    "DELETE FROM counters WHERE queue = ?1 AND ready = 0 AND reserved = 0 AND blocked = 0 \
                     AND done = 0 AND dead = 0",
                )?
                .execute([queue.as_str()])?;
            }
        }
        Ok(())
    }
}
