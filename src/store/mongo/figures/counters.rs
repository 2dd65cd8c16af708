//! How many jobs of each queue are in each state: kept in the collection `counters`, never counted on demand.
//!
//! Each write of jobs is counted here once its own reply says what it did. The changes of a moment travel together
//! in one command of increments, a quarter of a second later at most; no call waits for it. Where it is not known
//! what a write has done (its reply was lost, or it was given up), its queues are only marked: `reconcile` counts them. The same holds for the increments themselves, which are never
//! sent twice.
//!
//! | field | meaning |
//! |---|---|
//! | `_id` | the queue |
//! | `ready`, `reserved`, `blocked`, `done`, `dead` | how many jobs; absent: none |
//! | `changes` | grows by each change that was counted: as large as any error of a count beside it can be |
//! | `at` | when `changes` grew last |
//! | `checked` | what `changes` was when the counters were last seen to equal a real count |
//! | `unsure` | the outcome of a write is not known: to be counted first |
//! | `fixes` | grows with each correction |

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mongodb::bson::{Document, doc};

use crate::job::transition::Next;
use crate::job::{Meta, QueueName, State};
use crate::store::mongo::COUNTERS;
use crate::store::mongo::client::{Connection, parts, write};
use crate::store::{Result, chain};

/// How long changes are gathered before they travel.
pub const GATHER: Duration = Duration::from_millis(250);
/// How long to wait after increments could not be sent.
const RETRY: Duration = Duration::from_secs(1);

/// Numbers of jobs by state, in the order of [`State::ALL`].
pub type ByState = [i64; State::ALL.len()];

/// What has happened to one queue since the last increments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Delta {
    by_state: ByState,
    changes: i64,
    unsure: bool,
}

impl Delta {
    fn add(&mut self, from: Option<State>, to: Option<State>, count: i64) {
        if let Some(from) = from {
            self.by_state[from as usize] -= count;
        }
        if let Some(to) = to {
            self.by_state[to as usize] += count;
        }
        self.changes += count;
    }

    fn merge(&mut self, other: &Self) {
        self.by_state.iter_mut().zip(other.by_state).for_each(|(own, more)| *own += more);
        self.changes += other.changes;
        self.unsure |= other.unsure;
    }

    fn statement(&self, queue: &QueueName) -> Document {
        let mut increments = doc! { "changes": self.changes };
        for (state, change) in State::ALL.into_iter().zip(self.by_state) {
            if change != 0 {
                increments.insert(state.as_str(), change);
            }
        }
        let mut update = doc! { "$inc": increments, "$currentDate": { "at": true } };
        if self.unsure {
            update.insert("$set", doc! { "unsure": true });
        }
        doc! { "q": { "_id": queue.as_str() }, "u": update, "upsert": true }
    }
}

#[derive(Default)]
struct Pending {
    deltas: HashMap<QueueName, Delta>,
    /// Whether a task will send them.
    is_scheduled: bool,
    is_closed: bool,
}

impl Pending {
    fn change(&mut self, queue: &QueueName, change: impl FnOnce(&mut Delta)) {
        match self.deltas.get_mut(queue) {
            Some(delta) => change(delta),
            None => {
                let mut delta = Delta::default();
                change(&mut delta);
                self.deltas.insert(queue.clone(), delta);
            }
        }
    }

    fn mark(&mut self, queue: &QueueName) {
        self.change(queue, |delta| {
            delta.unsure = true;
            delta.changes += 1;
        });
    }
}

/// See the module's documentation. Cheap to clone.
#[derive(Clone)]
pub struct Counters(Arc<Shared>);

struct Shared {
    connection: Arc<Connection>,
    pending: Mutex<Pending>,
    /// Held while increments are on their way, so that a read of the counters can wait for them.
    sending: tokio::sync::Mutex<()>,
}

impl Counters {
    /// Nothing is sent before something was counted.
    pub fn new(connection: Arc<Connection>) -> Self {
        let shared = Shared { connection, pending: Mutex::default(), sending: tokio::sync::Mutex::default() };
        Self(Arc::new(shared))
    }

    /// These jobs were added to the queue in this state.
    pub fn came(&self, queue: &QueueName, state: State, count: u64) {
        self.count(queue, None, Some(state), count);
    }

    /// These jobs of the queue went from one state to another.
    pub fn moved(&self, queue: &QueueName, from: State, to: State, count: u64) {
        self.count(queue, Some(from), Some(to), count);
    }

    /// These jobs left the queue, and no other has them.
    pub fn left(&self, queue: &QueueName, state: State, count: u64) {
        self.count(queue, Some(state), None, count);
    }

    /// A job that was `meta` is now what its step says.
    pub fn stepped(&self, meta: &Meta, next: &Next) {
        let mut changes = Changes::default();
        changes.stepped(meta, next);
        self.add(&changes);
    }

    /// It is not known what a write has done to the queue.
    pub fn unsure(&self, queue: &QueueName) {
        let mut pending = self.pending();
        pending.mark(queue);
        self.schedule(&mut pending, GATHER);
    }

    /// A write to these queues is about to be sent. Unless its outcome becomes known, they are unsure: also
    /// where the write is given up half-way.
    pub fn sending<'a>(&self, queues: impl IntoIterator<Item = &'a QueueName>) -> Sending {
        let distinct: HashSet<&QueueName> = queues.into_iter().collect();
        Sending { counters: self.clone(), queues: distinct.into_iter().cloned().collect() }
    }

    /// A write that does all of this, or nothing, is about to be sent.
    pub fn in_flight(&self, changes: Changes) -> InFlight {
        InFlight { sending: self.sending(changes.0.keys()), changes }
    }

    fn add(&self, changes: &Changes) {
        if changes.0.is_empty() {
            return;
        }
        let mut pending = self.pending();
        for (queue, change) in &changes.0 {
            pending.change(queue, |delta| delta.merge(change));
        }
        self.schedule(&mut pending, GATHER);
    }

    fn count(&self, queue: &QueueName, from: Option<State>, to: Option<State>, count: u64) {
        if count == 0 {
            return;
        }
        let mut pending = self.pending();
        pending.change(queue, |delta| delta.add(from, to, count.cast_signed()));
        self.schedule(&mut pending, GATHER);
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.0.pending.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Spawns a task that sends what is pending, unless there is one.
    fn schedule(&self, pending: &mut Pending, after: Duration) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if pending.is_scheduled || pending.is_closed {
            return;
        }
        pending.is_scheduled = true;
        let this = self.clone();
        runtime.spawn(async move {
            tokio::time::sleep(after).await;
            this.pending().is_scheduled = false;
            if let Err(error) = this.flush().await {
                tracing::debug!(error = chain(&error), "counters could not be sent");
            }
        });
    }

    /// Returns when everything that was counted before is in the database.
    pub async fn flush(&self) -> Result<()> {
        self.send(|pending| std::mem::take(&mut pending.deltas)).await
    }

    /// Returns when everything that was counted of this queue before is in the database.
    pub async fn flush_queue(&self, queue: &QueueName) -> Result<()> {
        self.send(|pending| pending.deltas.remove_entry(queue).into_iter().collect()).await
    }

    async fn send(&self, take: impl FnOnce(&mut Pending) -> HashMap<QueueName, Delta>) -> Result<()> {
        let _sending = self.0.sending.lock().await;
        let deltas = take(&mut self.pending());
        if deltas.is_empty() {
            return Ok(());
        }
        // Also where this is given up: what has been sent is not known then.
        let mut unsent = Unsent { counters: self, deltas };
        let statements = unsent.deltas.iter().map(|(queue, delta)| delta.statement(queue)).collect();
        self.0
            .connection
            .within(async {
                let database = self.0.connection.database().await?;
                for part in parts(statements)? {
                    write(database, doc! { "update": COUNTERS, "updates": part, "ordered": false }).await?;
                }
                Ok(())
            })
            .await?;
        unsent.deltas.clear();
        Ok(())
    }

    /// Sends what is left. Nothing is sent afterwards.
    pub async fn close(&self) {
        self.pending().is_closed = true;
        if let Err(error) = self.flush().await {
            tracing::debug!(error = chain(&error), "the last counters could not be sent");
        }
    }
}

/// Increments on their way. Unless they are known to have arrived, their queues are unsure.
struct Unsent<'a> {
    counters: &'a Counters,
    deltas: HashMap<QueueName, Delta>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if self.deltas.is_empty() {
            return;
        }
        let mut pending = self.counters.pending();
        self.deltas.keys().for_each(|queue| pending.mark(queue));
        self.counters.schedule(&mut pending, RETRY);
    }
}

/// A write on its way. Unless it is [answered](Sending::answered), its queues are unsure.
pub struct Sending {
    counters: Counters,
    queues: Vec<QueueName>,
}

impl Sending {
    /// What the write has done is known, and counted.
    pub fn answered(mut self) {
        self.queues.clear();
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| self.counters.unsure(queue));
    }
}

/// How a write changes the numbers of jobs of its queues.
#[derive(Debug, Default)]
pub struct Changes(HashMap<QueueName, Delta>);

impl Changes {
    /// These jobs are added to the queue in this state.
    pub fn came(&mut self, queue: &QueueName, state: State, count: u64) {
        self.count(queue, None, Some(state), count);
    }

    /// These jobs of the queue go from one state to another.
    pub fn moved(&mut self, queue: &QueueName, from: State, to: State, count: u64) {
        self.count(queue, Some(from), Some(to), count);
    }

    /// These jobs leave the queue, and no other has them.
    pub fn left(&mut self, queue: &QueueName, state: State, count: u64) {
        self.count(queue, Some(state), None, count);
    }

    /// A job that was `meta` becomes what its step says.
    pub fn stepped(&mut self, meta: &Meta, next: &Next) {
        match next {
            Next::Keep => {}
            Next::Delete => self.left(&meta.queue, meta.state, 1),
            Next::Write { meta: now, .. } if now.queue != meta.queue => {
                self.left(&meta.queue, meta.state, 1);
                self.came(&now.queue, now.state, 1);
            }
            // One that stays ready may have another `run_at`, which may make it the oldest.
            Next::Write { meta: now, .. } if now.state != meta.state || now.state == State::Ready => {
                self.moved(&meta.queue, meta.state, now.state, 1);
            }
            Next::Write { .. } => {}
        }
    }

    fn count(&mut self, queue: &QueueName, from: Option<State>, to: Option<State>, count: u64) {
        if count > 0 {
            self.0.entry(queue.clone()).or_default().add(from, to, count.cast_signed());
        }
    }
}

/// A write on its way that does all of its changes or none. Unless it is known which, its queues are unsure.
pub struct InFlight {
    sending: Sending,
    changes: Changes,
}

impl InFlight {
    /// It did all of them.
    pub fn stored(self) {
        self.sending.counters.add(&self.changes);
        self.sending.answered();
    }

    /// It did none of them.
    pub fn refused(self) {
        self.sending.answered();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::mongo::MongoOptions;

    fn counters() -> Counters {
        let (url, deadline) = ("mongodb://127.0.0.1:1/away".to_owned(), Duration::from_millis(50));
        Counters::new(Arc::new(Connection::new(MongoOptions {
            url,
            deadline,
            pool_size: 1,
            validates_own: false,
        })))
    }

    fn queue(name: &str) -> QueueName {
        name.parse().unwrap()
    }

    #[test]
    fn what_is_counted_adds_up() {
        let (counters, q) = (counters(), queue("q"));
        counters.came(&q, State::Ready, 5);
        counters.moved(&q, State::Ready, State::Reserved, 2);
        counters.left(&q, State::Reserved, 1);
        counters.left(&q, State::Reserved, 0);
        let delta = counters.pending().deltas[&q];
        assert_eq!(delta, Delta { by_state: [3, 1, 0, 0, 0], changes: 8, unsure: false });
    }

    #[test]
    fn a_write_without_an_answer_leaves_its_queues_unsure() {
        let (counters, q, r) = (counters(), queue("q"), queue("r"));
        counters.sending([&q, &q]).answered();
        let arriving = || {
            let mut changes = Changes::default();
            changes.came(&r, State::Ready, 1);
            changes.came(&r, State::Ready, 1);
            counters.in_flight(changes)
        };
        arriving().refused();
        assert!(counters.pending().deltas.is_empty());
        drop(counters.sending([&q, &q]));
        arriving().stored();
        let unsure = Delta { changes: 1, unsure: true, ..Delta::default() };
        assert_eq!(counters.pending().deltas[&q], unsure);
        assert_eq!(counters.pending().deltas[&r].by_state, [2, 0, 0, 0, 0]);
    }

    #[tokio::test]
    async fn increments_that_may_have_arrived_are_not_sent_again() {
        let (counters, q) = (counters(), queue("q"));
        counters.came(&q, State::Ready, 5);
        counters.flush().await.unwrap_err();
        let delta = counters.pending().deltas[&q];
        assert_eq!(delta, Delta { changes: 1, unsure: true, ..Delta::default() });
    }
}
