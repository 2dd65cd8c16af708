//! Compares the counters with a real count, and corrects them: what a server that was killed had not sent yet,
//! what a lost answer left unknown, and what other programs did to the jobs.
//!
//! **When is a correction certain?** A queue's counters are read, with their `changes`; then its jobs are counted
//! in the index; then, after longer than any server gathers its changes, `changes` is read again. Whatever
//! happened between the first reading and the end of the count, or had happened before and was not sent yet,
//! is in what `changes` grew by. Where it did not grow, the difference is the error. Where it grew by `n`, the
//! error is at least the difference less `n`, and that is corrected; the rest waits until the queue is quieter.
//! Corrections are increments, so that whatever is counted meanwhile adds to them, and each is guarded by
//! `fixes`, so that none is made twice. An answer that comes later than that only makes the counters wrong
//! until its own change, which grows `changes`, has the queue checked again.
//!
//! **What is checked?** First the queues that are unsure, then those that have changed since they were last
//! seen to be right and are quiet now: little at a time. Beside that a walk goes through all queues, in steps
//! of [`STEP`] entries of the index: at the start, after activity, when the number of documents is not the sum
//! of the counters, and otherwise ever more rarely. It marks what seems wrong as unsure.
//!
//! One server does it for all of them: it holds a lease in `meta`, which a server that starts takes over, since
//! its predecessor may have been killed. After each step it rests for so long that it uses a
//! fiftieth of a core, or a tenth while it finds errors, by what it has counted and not by how long the store took.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::options::Hint;

use crate::job::{QueueName, State, Timestamp};
use crate::store::mongo::COUNTERS;
use crate::store::mongo::JOBS;
use crate::store::mongo::META;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{count, fault, write};
use crate::store::mongo::figures::counters::{ByState, GATHER};
use crate::store::mongo::figures::counts::{Row, rows};
use crate::store::mongo::jobs::document::{Row as Fields, date};
use crate::store::mongo::stored::Stored;
use crate::store::{Reconciled, Result, Store as _};
use crate::telemetry;

/// About so many jobs are counted in one step; a larger queue is counted at once.
const STEP: i64 = 20_000;
/// The most queues that are counted in one step.
const STEP_QUEUES: i64 = 1000;
/// What a step costs at most, by what it counts: where it took longer the store was slow, and not at work for it, so
/// that a slow store does not make the rest long. Counting takes MongoDB 0.43 µs of a core per entry (measured).
const COST: Duration = Duration::from_millis(5);
const COST_PER_ENTRY: Duration = Duration::from_nanos(1000);
/// The rest after a step, in times of what it cost.
const RESTS: u32 = 50;
/// The same after one that has found counters to be wrong: there may be more of them.
const RESTS_MENDING: u32 = 10;
/// The least rest while there is something to do, and otherwise: what a lost response leaves wrong is seen after it.
const BUSY: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(2);
/// How often the other servers check whether the one that does it is gone, and how often that one says that it is not.
const TURN: Duration = Duration::from_secs(5);
/// Within this every server that can has sent what it had gathered.
const GRACE: Duration = Duration::from_millis(3 * GATHER.as_millis() as u64 + 250);
/// How long after a missed rest another server takes over.
const LEASE: Duration = Duration::from_secs(15);
/// Between two walks, while something happens; and the most, while nothing does.
const WALK_REST: Duration = Duration::from_secs(10);
const WALK_REST_MAX: Duration = Duration::from_secs(300);
/// Counters of queues that have been empty for so long are removed.
const EMPTY: Duration = Duration::from_secs(60);

/// This server's state of the work; the lease decides whether it is the one to do it.
#[derive(Default)]
pub struct Reconciler(tokio::sync::Mutex<Work>);

#[derive(Default)]
struct Work {
    /// Marks this server's lease.
    holder: Option<i64>,
    is_mine: bool,
    kept: Option<Instant>,
    /// Behind which queue the walk goes on; `None` between two walks.
    behind: Option<String>,
    /// What there was when the walk began.
    begun: Glance,
    found: bool,
    walk_rest: Duration,
    next_walk: Option<Instant>,
    /// By how much the number of documents that MongoDB keeps was off when everything was right.
    drift: i64,
    last: Glance,
    /// When the totals were read last.
    last_read: Option<Instant>,
    /// Something is doubtful: the next step reads the totals again, else one of the next does.
    reads_soon: bool,
}

/// The whole at a glance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Glance {
    /// The sum of all counters.
    counted: i64,
    changes: i64,
    /// How many queues were not seen to be right since they changed.
    doubtful: u64,
    /// How many queues have counters.
    queues: u64,
    /// How many documents MongoDB says there are.
    there: i64,
}

/// One step. See the module's documentation.
pub async fn reconcile(mongo: &Mongo) -> Result<Reconciled> {
    let mut work = mongo.reconciler.0.lock().await;
    mongo.counters.flush().await?;
    if !work.take(mongo).await? {
        return Ok(Reconciled { corrected: 0, again_in: TURN, is_settled: true });
    }
    let start = Instant::now();
    let doubtful = work.queues_to_count(mongo).await?;
    let Checked { corrected, waited, counted } = check(mongo, &doubtful).await?;
    let (marked, walked) = work.walk(mongo).await?;
    work.reads_soon = marked || work.last.doubtful > 0;
    let is_busy = work.reads_soon || work.behind.is_some();
    let cost = cost(start.elapsed().saturating_sub(waited), work.last.queues + counted + walked);
    let rests = if corrected > 0 { RESTS_MENDING } else { RESTS };
    let again_in = (cost * rests).max(if is_busy { BUSY } else { IDLE });
    work.keep(mongo, again_in).await?;
    Ok(Reconciled { corrected, again_in, is_settled: !is_busy && work.last.doubtful == 0 })
}

/// What a step has cost that took so long and counted so many jobs and queues.
fn cost(took: Duration, entries: u64) -> Duration {
    let entries = u32::try_from(entries).unwrap_or(u32::MAX);
    took.min(COST + COST_PER_ENTRY.saturating_mul(entries))
}

impl Work {
    /// Whether the work is this server's: takes it over where no server does it, or at the start.
    async fn take(&mut self, mongo: &Mongo) -> Result<bool> {
        if self.is_mine {
            return Ok(true);
        }
        let now = mongo.now()?;
        let meta = mongo.collection(META).await?;
        let until = date(now.plus_ms(LEASE.as_millis() as u64));
        let starts = self.holder.is_none();
        let holder = *self.holder.get_or_insert_with(rand::random);
        let mut filter = doc! { "_id": "reconciler" };
        if !starts {
            filter.insert("until", doc! { "$lte": date(now) });
        }
        let update = doc! { "$set": { "holder": holder, "until": until } };
        let taken = meta.update_one(filter, update).upsert(starts).await;
        let taken = taken
            .inspect_err(|_| {
                if starts {
                    self.holder = None
                }
            })
            .map_err(fault)?;
        self.is_mine = taken.matched_count > 0 || taken.upserted_id.is_some();
        if self.is_mine {
            self.begin(Glance::default());
        }
        Ok(self.is_mine)
    }

    /// Keeps the lease over the coming rest, unless another server has it by now.
    async fn keep(&mut self, mongo: &Mongo, rest: Duration) -> Result<()> {
        if rest < TURN && is_within(self.kept, TURN - BUSY) {
            return Ok(());
        }
        let until = date(mongo.now()?.plus_ms((rest + LEASE).as_millis() as u64));
        let filter = doc! { "_id": "reconciler", "holder": self.holder };
        let meta = mongo.collection(META).await?;
        let kept = meta.update_one(filter, doc! { "$set": { "until": until } }).await.map_err(fault)?;
        self.is_mine = kept.matched_count > 0;
        self.kept = Some(Instant::now());
        Ok(())
    }

    /// Returns the queues that are to be counted now, if it is time to search for them.
    async fn queues_to_count(&mut self, mongo: &Mongo) -> Result<Vec<QueueName>> {
        if !self.reads_soon && is_within(self.last_read, IDLE - BUSY) {
            return Ok(Vec::new());
        }
        let now = glance(mongo).await?;
        self.note(now);
        self.last_read = Some(Instant::now());
        if now.doubtful > 0 { doubtful(mongo).await } else { Ok(Vec::new()) }
    }

    fn begin(&mut self, now: Glance) {
        self.behind = Some(String::new());
        self.begun = now;
        self.found = false;
    }

    /// Begins a walk when it is time, or when there are more or fewer documents than were counted although
    /// nothing happens.
    fn note(&mut self, now: Glance) {
        let is_idle = now.changes == self.last.changes && now.there == self.last.there;
        let differs = now.there - now.counted != self.drift;
        let is_time = self.next_walk.is_none_or(|next| next <= Instant::now());
        if self.behind.is_none() && (is_time || (is_idle && differs && now.doubtful == 0)) {
            self.begin(now);
        }
        if now.changes != self.last.changes {
            // A server that was killed in the middle of it may have left something behind.
            self.walk_rest = WALK_REST;
            let soon = Instant::now() + WALK_REST;
            self.next_walk = Some(self.next_walk.map_or(soon, |next| next.min(soon)));
        }
        self.last = now;
    }

    /// One step of the walk; returns whether it has marked something, and how many jobs it has counted.
    async fn walk(&mut self, mongo: &Mongo) -> Result<(bool, u64)> {
        let Some(behind) = self.behind.clone() else { return Ok((false, 0)) };
        let Slice { counts, end, counted } = slice(mongo, &behind).await?;
        let mut range = doc! { "$gt": &behind };
        range.extend(end.as_ref().map(|end| ("$lte".to_owned(), end.into())));
        let kept = rows(mongo, doc! { "_id": range }, Document::new(), 0).await?;
        let mut differing: BTreeMap<QueueName, ByState> = counts;
        for (queue, row) in kept {
            let there = differing.remove(&queue).unwrap_or_default();
            if there != row.by_state {
                differing.insert(queue, there);
            }
        }
        self.found |= !differing.is_empty();
        mark(mongo, differing.keys()).await?;
        if end.is_none() {
            self.end(mongo).await?;
        }
        self.behind = end;
        Ok((!differing.is_empty(), counted))
    }

    async fn end(&mut self, mongo: &Mongo) -> Result<()> {
        let is_calm = !self.found && self.begun.changes == self.last.changes;
        if is_calm && self.begun.there == self.last.there {
            self.drift = self.last.there - self.last.counted;
        }
        self.walk_rest = if is_calm { (self.walk_rest * 2).min(WALK_REST_MAX) } else { WALK_REST };
        self.next_walk = Some(Instant::now() + self.walk_rest.max(WALK_REST));
        let since = ago(mongo, EMPTY)?;
        let (mut empty, none) = (doc! { "at": { "$lt": since } }, doc! { "$in": [0, Bson::Null] });
        State::ALL.iter().for_each(|state| drop(empty.insert(state.as_str(), none.clone())));
        mongo.collection(COUNTERS).await?.delete_many(empty).await.map_err(fault)?;
        Ok(())
    }
}

fn ago(mongo: &Mongo, ago: Duration) -> Result<DateTime> {
    let ago = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
    Ok(date(Timestamp::from_millis(mongo.now()?.millis() - ago)))
}

/// Whether this was less than so long ago.
fn is_within(moment: Option<Instant>, ago: Duration) -> bool {
    moment.is_some_and(|moment| moment.elapsed() < ago)
}

async fn glance(mongo: &Mongo) -> Result<Glance> {
    let states = State::ALL.map(|state| format!("${}", state.as_str())).to_vec();
    let all = doc! { "$group": {
        "_id": Bson::Null,
        "counted": { "$sum": { "$sum": states } },
        "changes": { "$sum": "$changes" },
        "queues": { "$sum": 1 },
        "doubtful": { "$sum": { "$cond": [{ "$ne": ["$changes", "$checked"] }, 1, 0] } },
    } };
    let counters = mongo.collection(COUNTERS).await?;
    let jobs = mongo.collection(JOBS).await?;
    let find = counters.aggregate([all]).with_type::<Stored>();
    let (all, there) =
        tokio::try_join!(async { find.await.map_err(fault)?.try_next().await.map_err(fault) }, async {
            jobs.estimated_document_count().await.map_err(fault)
        })?;
    let all = all.unwrap_or_default();
    let (counted, changes) = (signed(&all, "counted"), signed(&all, "changes"));
    let (doubtful, queues) = (count(&all, "doubtful"), count(&all, "queues"));
    Ok(Glance { counted, changes, doubtful, queues, there: there.cast_signed() })
}

fn signed(document: &Document, field: &str) -> i64 {
    document.get_i64(field).or_else(|_| document.get_i32(field).map(i64::from)).unwrap_or(0)
}

/// The queues to count now: those that are unsure, then those that have been quiet since they changed.
async fn doubtful(mongo: &Mongo) -> Result<Vec<QueueName>> {
    let quiet = ago(mongo, GRACE)?;
    let filter = doc! {
        "$or": [{ "unsure": true }, { "at": { "$lte": quiet } }],
        "$expr": { "$ne": ["$changes", "$checked"] },
    };
    let sort = doc! { "unsure": -1, "at": 1 };
    let mut left = STEP;
    let mut some = Vec::new();
    for (queue, row) in rows(mongo, filter, sort, STEP_QUEUES).await? {
        let jobs: i64 = row.by_state.iter().sum();
        if jobs > left && !some.is_empty() {
            break;
        }
        left -= jobs.max(1);
        some.push(queue);
    }
    Ok(some)
}

/// Counts what the filter means by queue and state, in the index `head` alone.
async fn count_jobs(
    mongo: &Mongo,
    filter: Document,
    most: Option<i64>,
) -> Result<BTreeMap<QueueName, ByState>> {
    let mut pipeline = vec![doc! { "$match": filter }];
    if let Some(most) = most {
        pipeline.push(doc! { "$sort": { "queue": 1, "state": 1 } });
        pipeline.push(doc! { "$limit": most });
    }
    let id = doc! { "queue": "$queue", "state": "$state" };
    pipeline.push(doc! { "$group": { "_id": id, "count": { "$sum": 1 } } });
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.aggregate(pipeline).with_type::<Stored>().hint(Hint::Name("head".to_owned()));
    let groups: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let mut counts: BTreeMap<QueueName, ByState> = BTreeMap::new();
    for group in &groups {
        let Ok(id) = group.get_document("_id") else { continue };
        let state = id.get_str("state").ok().and_then(State::from_word);
        if let (Ok(queue), Some(state)) = (Fields(id).text("queue"), state) {
            counts.entry(queue).or_default()[state as usize] = signed(group, "count");
        }
    }
    Ok(counts)
}

/// A stretch of the index, counted.
struct Slice {
    counts: BTreeMap<QueueName, ByState>,
    /// How many jobs were counted for it.
    counted: u64,
    /// Its last queue; `None`: there are no more.
    end: Option<String>,
}

/// Counts about [`STEP`] jobs of the queues behind this name: as many queues as fit, and one at least.
async fn slice(mongo: &Mongo, behind: &str) -> Result<Slice> {
    let mut counts = count_jobs(mongo, doc! { "queue": { "$gt": behind } }, Some(STEP + 1)).await?;
    let jobs = total(&counts);
    if jobs <= STEP.unsigned_abs() {
        return Ok(Slice { counts, counted: jobs, end: None });
    }
    // The last queue may go on.
    let cut = counts.pop_last().map(|(queue, _)| queue);
    if let (true, Some(large)) = (counts.is_empty(), cut) {
        counts = count_jobs(mongo, doc! { "queue": large.as_str() }, None).await?;
        let counted = jobs + total(&counts);
        return Ok(Slice { counts, counted, end: Some(large.as_str().to_owned()) });
    }
    let end = counts.keys().next_back().map(|queue| queue.as_str().to_owned());
    Ok(Slice { counts, counted: jobs, end })
}

fn total(counts: &BTreeMap<QueueName, ByState>) -> u64 {
    counts.values().flatten().sum::<i64>().unsigned_abs()
}

/// Has these queues counted first.
async fn mark(mongo: &Mongo, queues: impl Iterator<Item = &QueueName>) -> Result<()> {
    let statement = |queue: &QueueName| {
        let marked = doc! {
            "$inc": { "changes": 1_i64 }, "$set": { "unsure": true }, "$currentDate": { "at": true },
        };
        doc! { "q": { "_id": queue.as_str() }, "u": marked, "upsert": true }
    };
    send(mongo, queues.map(statement).collect()).await
}

async fn send(mongo: &Mongo, statements: Vec<Document>) -> Result<()> {
    if statements.is_empty() {
        return Ok(());
    }
    let database = mongo.connection.database().await?;
    write(database, doc! { "update": COUNTERS, "updates": statements, "ordered": false }).await.map(drop)
}

/// The counters of these queues.
async fn kept(mongo: &Mongo, queues: &[QueueName]) -> Result<HashMap<QueueName, Row>> {
    let names: Vec<&str> = queues.iter().map(QueueName::as_str).collect();
    let rows = rows(mongo, doc! { "_id": { "$in": names } }, Document::new(), 0).await?;
    Ok(rows.into_iter().collect())
}

/// What became of queues that were counted.
#[derive(Default)]
struct Checked {
    /// By how many jobs their counters were certainly wrong.
    corrected: u64,
    /// How long it waited in between.
    waited: Duration,
    /// How many jobs were counted.
    counted: u64,
}

/// Counts the jobs of these queues and corrects their counters where they are certainly wrong.
async fn check(mongo: &Mongo, queues: &[QueueName]) -> Result<Checked> {
    if queues.is_empty() {
        return Ok(Checked::default());
    }
    let before = kept(mongo, queues).await?;
    let names: Vec<&str> = queues.iter().map(QueueName::as_str).collect();
    let there = count_jobs(mongo, doc! { "queue": { "$in": names } }, None).await?;
    let difference = |queue: &QueueName, row: &Row| {
        let there = there.get(queue).copied().unwrap_or_default();
        std::array::from_fn(|state| there[state] - row.by_state[state])
    };
    let (right, wrong): (Vec<_>, Vec<_>) = before
        .iter()
        .map(|(queue, row)| (queue, row, difference(queue, row)))
        .partition(|(_, _, difference)| *difference == ByState::default());
    let confirmed = right.into_iter().map(|(queue, row, _)| {
        let as_it_was = doc! { "_id": queue.as_str(), "changes": row.changes };
        doc! { "q": as_it_was, "u": { "$set": { "checked": row.changes }, "$unset": { "unsure": "" } } }
    });
    send(mongo, confirmed.collect()).await?;
    let counted = total(&there);
    if wrong.is_empty() {
        return Ok(Checked { counted, ..Checked::default() });
    }
    tokio::time::sleep(GRACE).await;
    mongo.counters.flush().await?;
    let after = kept(mongo, queues).await?;
    let (mut corrected, mut statements) = (0, Vec::new());
    for (queue, row, difference) in wrong {
        let Some(now) = after.get(queue).filter(|now| now.fixes == row.fixes) else { continue };
        let Ok(changes) = u64::try_from(now.changes - row.changes) else { continue };
        let certain = difference.map(|difference| shrunk(difference, changes));
        statements.push(correction(queue, now, certain, changes == 0));
        let jobs: u64 = certain.iter().map(|count| count.unsigned_abs()).sum();
        if jobs > 0 {
            tracing::info!(%queue, ?certain, "the counters of the queue were wrong and are corrected");
        }
        corrected += jobs;
    }
    send(mongo, statements).await?;
    telemetry::counts_corrected(corrected);
    Ok(Checked { corrected, waited: GRACE, counted })
}

/// What is left of a difference once as much as may be in flight is taken off.
fn shrunk(difference: i64, in_flight: u64) -> i64 {
    let certain = difference.unsigned_abs().saturating_sub(in_flight).cast_signed();
    if difference < 0 { -certain } else { certain }
}

fn correction(queue: &QueueName, now: &Row, certain: ByState, is_quiet: bool) -> Document {
    let mut increments = Document::new();
    for (state, count) in State::ALL.into_iter().zip(certain) {
        if count != 0 {
            increments.insert(state.as_str(), count);
        }
    }
    let mut update = doc! { "$unset": { "unsure": "" } };
    if !increments.is_empty() {
        increments.insert("fixes", 1_i64);
        update.insert("$inc", increments);
    }
    if is_quiet {
        update.insert("$set", doc! { "checked": now.changes });
    }
    let guard = now.fixes.map_or_else(|| doc! { "$exists": false }.into(), Bson::from);
    doc! { "q": { "_id": queue.as_str(), "fixes": guard }, "u": update }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_store_does_not_make_the_rest_long() {
        let minute = Duration::from_secs(60);
        assert_eq!(cost(Duration::from_millis(2), 0), Duration::from_millis(2));
        assert!(cost(minute, 50) * RESTS < BUSY);
        assert!(cost(minute, STEP.unsigned_abs()) * RESTS < IDLE);
        assert!(cost(minute, 1_000_000) > Duration::from_secs(1));
    }

    #[test]
    fn only_what_cannot_be_in_flight_is_corrected() {
        assert_eq!(shrunk(7, 0), 7);
        assert_eq!(shrunk(-7, 0), -7);
        assert_eq!(shrunk(7, 3), 4);
        assert_eq!(shrunk(-7, 3), -4);
        assert_eq!(shrunk(7, 7), 0);
        assert_eq!(shrunk(-7, 70), 0);
    }
}
