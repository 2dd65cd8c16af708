//! Semaphores: their documents, the jobs that hold them, and unblocking the jobs that wait for them.
//!
//! | field of `semaphores` | meaning |
//! |---|---|
//! | `_id` | the name |
//! | `capacity` | how many jobs may hold it at once |
//! | `rev` | random, replaced by every claim that reads it: two at once conflict, and one retries |

mod change;

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;
use futures::TryStreamExt as _;
use mongodb::bson::{Document, doc};
use mongodb::options::Hint;
use tokio::time::Instant;

use self::change::{Remove, Save, capacity};
use crate::faults;
use crate::job::semaphore::{Admission, Gauge, LINE, Waiter, others, waiting_states};
use crate::job::transition::delivery::UNBLOCK;
use crate::job::{Meta, QueueName, Rules, SemaphoreName, State, Timestamp};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::SEMAPHORES;
use crate::store::mongo::cache::{Known, Position};
use crate::store::mongo::client::{count, fault, update_jobs};
use crate::store::mongo::jobs::document::{Row, date, readable, to_meta, without_contents};
use crate::store::mongo::jobs::in_the_way;
use crate::store::mongo::jobs::query::{self, First};
use crate::store::mongo::jobs::transitions;
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{self, Tx, TxError};
use crate::store::{
    Holder, Removal, Result, SemaphoreUse, SemaphoreView, Semaphores, Store as _, StoreError,
    UNBLOCKED_QUEUES_MAX, Unblocked,
};

/// How many jobs more of a line are read at most where some are left out, of whatever queues.
const LEFT_OUT_MAX: usize = 1000;

#[async_trait]
impl Semaphores for Mongo {
    async fn capacities(
        &self,
        after: Option<&SemaphoreName>,
        limit: usize,
    ) -> Result<Vec<(SemaphoreName, u64)>> {
        let behind = doc! { "_id": { "$gt": after.map_or("", SemaphoreName::as_str) } };
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let find = async {
            let all = self.collection(SEMAPHORES).await?;
            let cursor = all.find(behind).sort(doc! { "_id": 1 }).limit(limit).await.map_err(fault)?;
            let found: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
            Ok(readable(&found, capacity))
        };
        self.connection.within(find).await
    }

    async fn semaphores(&self, names: &[SemaphoreName]) -> Result<Vec<SemaphoreView>> {
        let names: Vec<&SemaphoreName> = names.iter().collect();
        self.connection.within(views(self, &names)).await
    }

    async fn uses(&self, names: &[SemaphoreName]) -> Result<Vec<SemaphoreUse>> {
        let names: Vec<&SemaphoreName> = names.iter().collect();
        self.connection.within(uses(self, &names)).await
    }

    async fn holders(&self, name: &SemaphoreName, limit: usize) -> Result<Vec<Holder>> {
        let filter = doc! { "semaphores": name.as_str(), "state": "reserved" };
        let projection = doc! { "queue": 1, "worker": 1, "started_at": 1, "reserved_until": 1 };
        let sort = doc! { "reserved_until": 1, "_id": 1 };
        let found = self.connection.within(query::all(self, filter, sort, projection, limit)).await?;
        Ok(readable(&found, holder))
    }

    async fn unknown_semaphores(&self, names: &[SemaphoreName]) -> Result<Vec<SemaphoreName>> {
        let asked: Vec<&SemaphoreName> = names.iter().collect();
        let find = async {
            let known = Reader::Plain(self).capacities(&asked).await.map_err(plain)?;
            Ok(names.iter().filter(|name| !known.contains_key(name)).cloned().collect())
        };
        self.connection.within(find).await
    }

    async fn kept_from(&self, job: &Meta, rules: &Rules) -> Result<Option<(SemaphoreName, Waiter)>> {
        let (names, now): (Vec<&SemaphoreName>, _) = (job.semaphores.iter().collect(), self.now()?);
        let mut reader = Reader::Plain(self);
        let reading = async { admission(&mut reader, &names, rules, now).await.map_err(plain) };
        Ok(self.connection.within(reading).await?.kept_from(job))
    }

    async fn save_semaphore(&self, name: &SemaphoreName, capacity: u64) -> Result<()> {
        let capacity = i64::try_from(capacity).map_err(StoreError::internal)?;
        let transaction = transaction::until(self, self.connection.end()).retrying_duplicate_keys();
        let saved = transaction.run(Save { name, capacity }).await;
        self.semaphores.released([name]);
        Ok(saved?)
    }

    async fn remove_semaphore(&self, name: &SemaphoreName) -> Result<Removal> {
        Ok(transaction::until(self, self.connection.end()).run(Remove(name)).await?)
    }

    async fn waited_for(&self, after: Option<&SemaphoreName>, limit: usize) -> Result<Vec<SemaphoreName>> {
        self.connection.within(waited_for(self, after, limit)).await
    }

    async fn unblock_waiters(&self, names: &[SemaphoreName], rules: &Rules) -> Result<Vec<Unblocked>> {
        let calling = async {
            let names: BTreeSet<&SemaphoreName> = names.iter().collect();
            let (mut unblocked, clear_until) = (Vec::new(), in_the_way::end(self));
            for name in names {
                unblocked.extend(unblock_waiters_of(self, name, clear_until, rules).await?);
            }
            Unblocked::sort(&mut unblocked);
            Ok(unblocked)
        };
        self.connection.within(calling).await
    }
}

/// The same outside of a transaction.
fn plain(trouble: TxError) -> StoreError {
    match trouble {
        TxError::Driver(error) => fault(error),
        TxError::Store(error) => error,
        TxError::Conflict => StoreError::internal("what was only read was taken"), // nothing here writes
    }
}

fn holder(document: &Document) -> Result<Holder> {
    let row = Row(document);
    Ok(Holder {
        id: row.text("_id")?,
        queue: row.text("queue")?,
        worker: document.get_str("worker").ok().and_then(|name| name.parse().ok()),
        started_at: row.time("started_at")?,
        reserved_until: row.time("reserved_until")?.unwrap_or_default(),
    })
}

/// Reads within a transaction, or without one.
pub enum Reader<'a, 'm> {
    Plain(&'m Mongo),
    Within(&'a mut Tx<'m>),
}

impl Reader<'_, '_> {
    async fn read(
        &mut self,
        collection: &str,
        pipeline: Vec<Document>,
        index: Option<&str>,
    ) -> Result<Vec<Stored>, TxError> {
        let collection = match self {
            Self::Plain(mongo) => mongo.collection(collection).await?,
            Self::Within(tx) => tx.collection(collection),
        };
        let mut find = collection.aggregate(pipeline);
        if let Some(index) = index {
            find = find.hint(Hint::Name(index.to_owned()));
        }
        match self {
            Self::Plain(_) => Ok(find.with_type::<Stored>().await?.try_collect().await?),
            Self::Within(tx) => tx.aggregate(find).await,
        }
    }

    async fn capacities(&mut self, names: &[&SemaphoreName]) -> Result<HashMap<SemaphoreName, u64>, TxError> {
        if names.is_empty() {
            return Ok(HashMap::new());
        }
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        let found = self.read(SEMAPHORES, vec![doc! { "$match": { "_id": { "$in": names } } }], None).await?;
        Ok(readable(&found, capacity).into_iter().collect())
    }

    /// How many jobs in this state, due by then where that is said, need the semaphore: counted in the index.
    async fn count(
        &mut self,
        name: &SemaphoreName,
        state: State,
        due_by: Option<Timestamp>,
    ) -> Result<u64, TxError> {
        let mut filter = doc! { "semaphores": name.as_str(), "state": state.as_str() };
        filter.extend(due_by.map(|at| ("run_at".to_owned(), doc! { "$lte": date(at) }.into())));
        let pipeline = vec![doc! { "$match": filter }, doc! { "$count": "n" }];
        let found = self.read(JOBS, pipeline, Some("needs")).await?;
        Ok(found.first().map_or(0, |found| count(found, "n")))
    }

    /// Returns the semaphore as it is now. Its line is read only where it decides: not where there is no room, nor where that is ample.
    async fn gauge(&mut self, name: &SemaphoreName, capacity: u64, ample: u64) -> Result<Gauge, TxError> {
        let held = self.count(name, State::Reserved, None).await?;
        // A job holds it by being reserved: what a test leaks is one more that nothing gives back.
        let held = held + u64::from(faults::bug("leak_semaphore"));
        let mut gauge = Gauge { capacity, held, line: Vec::new() };
        if (1..ample).contains(&gauge.room()) {
            gauge.line = self.line(name).await?;
        }
        Ok(gauge)
    }

    async fn admission<'r>(
        &mut self,
        gauges: HashMap<SemaphoreName, Gauge>,
        rules: &'r Rules,
        now: Timestamp,
    ) -> Result<Admission<'r>, TxError> {
        let others: Vec<&SemaphoreName> = others(&gauges).into_iter().collect();
        let there = self.capacities(&others).await?;
        let missing = others.into_iter().filter(|name| !there.contains_key(name)).cloned().collect();
        Ok(Admission::new(gauges, missing, now, rules))
    }

    /// Returns the first of the jobs that wait for the semaphore. Others that the index lists were made dead by an older server. No room is
    /// kept for those that cannot be read and could not be made dead.
    async fn line(&mut self, name: &SemaphoreName) -> Result<Vec<Waiter>, TxError> {
        let mongo = match self {
            Self::Plain(mongo) => *mongo,
            Self::Within(tx) => tx.mongo,
        };
        let waiting = doc! {
            "semaphores": name.as_str(), "waiting_since": { "$exists": true }, "state": { "$in": ["ready", "blocked"] },
        };
        let fields = doc! {
            "queue": 1, "state": 1, "priority": 1, "run_at": 1, "waiting_since": 1, "called_at": 1, "semaphores": 1,
        };
        let pipeline = |limit: usize| {
            vec![
                doc! { "$match": &waiting },
                doc! { "$sort": { "priority": -1, "run_at": 1, "_id": 1 } },
                doc! { "$limit": i64::try_from(limit).unwrap_or(i64::MAX) },
                doc! { "$project": &fields },
            ]
        };
        let mut found = self.read(JOBS, pipeline(LINE), Some("line")).await?;
        if found.iter().any(|document| in_the_way::stays(mongo, document)) {
            let most = LINE + mongo.left_out.count().min(LEFT_OUT_MAX);
            found = self.read(JOBS, pipeline(most), Some("line")).await?;
            found.retain(|document| !in_the_way::stays(mongo, document));
            found.truncate(LINE);
        }
        Ok(readable(&found, waiter))
    }
}

fn waiter(document: &Document) -> Result<Waiter> {
    let row = Row(document);
    let time = |field| row.time(field)?.ok_or_else(|| row.fault(field));
    Ok(Waiter {
        id: row.text("_id")?,
        queue: row.text("queue")?,
        state: document.get_str("state").ok().and_then(State::from_word).ok_or_else(|| row.fault("state"))?,
        priority: row.number("priority")?,
        run_at: time("run_at")?,
        waiting_since: time("waiting_since")?,
        called_at: row.time("called_at")?,
        semaphores: row.part("semaphores")?.unwrap_or_default(),
    })
}

/// The semaphores that a claim has written.
#[derive(Default)]
pub struct Locked(Vec<(SemaphoreName, Known)>);

impl Locked {
    /// Returns what is known of them once these jobs have been admitted and that is stored.
    pub fn admitting<'j>(mut self, jobs: impl Iterator<Item = &'j Meta>) -> Vec<(SemaphoreName, Known)> {
        for name in jobs.flat_map(|job| &job.semaphores) {
            if let Some((_, known)) = self.0.iter_mut().find(|(locked, _)| locked == name) {
                known.held_at_most += 1;
            }
        }
        self.0
    }
}

/// Writes the documents of these semaphores, so that transactions that do so conflict, and returns them as they are for a claim of so
/// many jobs. It must come first in its transaction: what that reads afterwards is as it was then.
/// Where this server's last claim was the last one of anybody, it is known how many jobs hold them at most. Where that
/// leaves room for all of the jobs and for all that may have it kept for them, nothing is read.
pub async fn lock<'r>(
    names: &[&SemaphoreName],
    jobs: usize,
    rules: &'r Rules,
    now: Timestamp,
    tx: &mut Tx<'_>,
) -> Result<(Admission<'r>, Locked), TxError> {
    if names.is_empty() {
        return Ok((Admission::new(HashMap::new(), Vec::new(), now, rules), Locked::default()));
    }
    let rev = rand::random();
    let known = write_all(names, rev, tx).await?;
    let mut reader = Reader::Within(tx);
    let capacities = match &known {
        Some(known) => {
            names.iter().zip(known).map(|(name, known)| ((*name).clone(), known.capacity)).collect()
        }
        None => reader.capacities(names).await?,
    };
    let ample = (jobs + LINE) as u64;
    let (mut gauges, mut locked) = (HashMap::with_capacity(names.len()), Vec::new());
    for (n, name) in names.iter().enumerate() {
        let capacity = capacities.get(*name).copied();
        let held = known.as_ref().and_then(|known| known.get(n)).map(|known| known.held_at_most);
        let bound = held.map(|held| Gauge { capacity: capacity.unwrap_or(0), held, line: Vec::new() });
        let gauge = match bound.filter(|bound| bound.room() >= ample) {
            Some(bound) => bound,
            None => reader.gauge(name, capacity.unwrap_or(0), ample).await?,
        };
        let learned = capacity.map(|capacity| Known { rev, capacity, held_at_most: gauge.held });
        locked.extend(learned.map(|known| ((*name).clone(), known)));
        gauges.insert((*name).clone(), gauge);
    }
    Ok((reader.admission(gauges, rules, now).await?, Locked(locked)))
}

/// Writes this `rev` into the documents. Returns what is known of them where that was true until now.
async fn write_all(
    names: &[&SemaphoreName],
    rev: i64,
    tx: &mut Tx<'_>,
) -> Result<Option<Vec<Known>>, TxError> {
    let touch = doc! { "$set": { "rev": rev } };
    if let Some(known) = tx.mongo.semaphores.known(names) {
        let statement = |(name, known): (&&SemaphoreName, &Known)| doc! { "q": { "_id": name.as_str(), "rev": known.rev, "capacity": known.capacity.cast_signed() }, "u": &touch };
        let statements: Vec<Document> = names.iter().zip(&known).map(statement).collect();
        if tx.write(doc! { "update": SEMAPHORES, "updates": statements }).await? == names.len() as u64 {
            return Ok(Some(known));
        }
    }
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let all = tx.collection(SEMAPHORES);
    let update = all.update_many(doc! { "_id": { "$in": names } }, touch);
    update.session(tx.session()).await?;
    Ok(None)
}

/// These semaphores as they are now; one that there is not has no room.
async fn admission<'r>(
    reader: &mut Reader<'_, '_>,
    names: &[&SemaphoreName],
    rules: &'r Rules,
    now: Timestamp,
) -> Result<Admission<'r>, TxError> {
    let known = reader.capacities(names).await?;
    let mut gauges = HashMap::with_capacity(names.len());
    for name in names {
        let capacity = known.get(name).copied().unwrap_or(0);
        gauges.insert((*name).clone(), reader.gauge(name, capacity, u64::MAX).await?);
    }
    reader.admission(gauges, rules, now).await
}

async fn uses(mongo: &Mongo, names: &[&SemaphoreName]) -> Result<Vec<SemaphoreUse>> {
    let (mut reader, mut uses) = (Reader::Plain(mongo), Vec::new());
    for (name, capacity) in reader.capacities(names).await.map_err(plain)? {
        let held = reader.count(&name, State::Reserved, None).await.map_err(plain)?;
        uses.push(SemaphoreUse { name, capacity, held });
    }
    Ok(uses)
}

async fn views(mongo: &Mongo, names: &[&SemaphoreName]) -> Result<Vec<SemaphoreView>> {
    let (mut reader, now, mut views) = (Reader::Plain(mongo), mongo.now()?, Vec::new());
    for SemaphoreUse { name, capacity, held } in uses(mongo, names).await? {
        let mut waiting = 0;
        for (state, due_by) in waiting_states(capacity, held, now) {
            waiting += reader.count(&name, state, due_by).await.map_err(plain)?;
        }
        views.push(SemaphoreView { name, capacity, held, waiting });
    }
    Ok(views)
}

/// The semaphores by which jobs are blocked: a seek in the index for each.
async fn waited_for(
    mongo: &Mongo,
    after: Option<&SemaphoreName>,
    limit: usize,
) -> Result<Vec<SemaphoreName>> {
    let pipeline = vec![
        doc! { "$match": { "waits_for": { "$gt": after.map_or("", SemaphoreName::as_str) } } },
        doc! { "$sort": { "waits_for": 1 } },
        doc! { "$group": { "_id": "$waits_for" } },
        doc! { "$sort": { "_id": 1 } },
        doc! { "$limit": i64::try_from(limit).unwrap_or(i64::MAX) },
    ];
    let found = Reader::Plain(mongo).read(JOBS, pipeline, Some("waits")).await.map_err(plain)?;
    Ok(readable(&found, |document| Row(document).text("_id")))
}

/// Unblocks jobs that wait for one semaphore, if it has room for them, and returns them. `clear_until`: when it makes no more jobs dead.
async fn unblock_waiters_of(
    mongo: &Mongo,
    name: &SemaphoreName,
    clear_until: Instant,
    rules: &Rules,
) -> Result<Vec<Unblocked>> {
    let mut reader = Reader::Plain(mongo);
    let pipeline = vec![
        doc! { "$match": { "waits_for": name.as_str() } },
        doc! { "$sort": { "waits_for": 1, "queue": 1 } },
        doc! { "$group": { "_id": "$queue" } },
        doc! { "$limit": i64::try_from(UNBLOCKED_QUEUES_MAX).unwrap_or(i64::MAX) },
    ];
    let queues = reader.read(JOBS, pipeline, Some("waits")).await.map_err(plain)?;
    if queues.is_empty() {
        return Ok(Vec::new());
    }
    let now = mongo.now()?;
    let admission = admission(&mut reader, &[name], rules, now).await.map_err(plain)?;
    let by_name = readable(&queues, |queue| Row(queue).text::<QueueName>("_id"));
    let mut chosen: Vec<Meta> = Vec::new();
    for (queue, calls) in admission.turns(name, &by_name) {
        let calls = usize::try_from(calls).unwrap_or(usize::MAX);
        let filter =
            doc! { "waits_for": name.as_str(), "queue": queue.as_str(), "state": UNBLOCK.from.as_str() };
        let metas = first_waiting(mongo, queue, filter, calls, clear_until, rules).await?;
        let called = metas.iter().take(calls).enumerate();
        chosen.extend(called.filter_map(|(before, meta)| admission.called(name, meta, before)));
    }
    unblock(mongo, &chosen).await?;
    let unblocked = |Meta { queue, priority, run_at, .. }: Meta| Unblocked { queue, priority, run_at };
    Ok(chosen.into_iter().map(unblocked).collect())
}

/// Returns the first blocked jobs of a queue that a filter means. Those that cannot be read are made dead, since they would be the first for
/// ever; where they stay, those behind them are read in their place.
async fn first_waiting(
    mongo: &Mongo,
    queue: &QueueName,
    filter: Document,
    limit: usize,
    clear_until: Instant,
    rules: &Rules,
) -> Result<Vec<Meta>> {
    let mut rounds = in_the_way::Rounds::of(mongo, queue);
    loop {
        let limit = limit + rounds.more();
        let (filter, projection) = (filter.clone(), without_contents());
        let first = First { filter, index: "waits", projection, limit, left_out: rounds.left_out() };
        let first = first.read(mongo).await?.with_type::<Stored>();
        let first: Vec<Stored> = first.try_collect().await.map_err(fault)?;
        let (metas, are_all) = (readable(&first, to_meta), first.len() < limit);
        let spoiled: Vec<Stored> = first.into_iter().filter(|found| to_meta(found).is_err()).collect();
        let stay = in_the_way::clear(mongo, queue, &spoiled, clear_until, rules).await;
        let is_enough = !metas.is_empty() || are_all;
        let Some(stay) = stay.filter(|_| !is_enough) else { return Ok(metas) };
        if !rounds.go_on(stay) {
            return Ok(metas);
        }
    }
}

/// Unblocks these jobs, except those with a conflict: changed since they were read.
async fn unblock(mongo: &Mongo, chosen: &[Meta]) -> Result<()> {
    if chosen.is_empty() {
        return Ok(());
    }
    let statement = transitions::unblock_waiters(chosen);
    let sent = mongo.counters.sending(chosen.iter().map(|meta| &meta.queue));
    let found = update_jobs(&mongo.connection, vec![statement]).await;
    // Also where the outcome is unknown.
    mongo.semaphores.unblocked(chosen.iter().map(|meta| (&meta.queue, meta.semaphores.as_slice())));
    let positions = chosen.iter().map(|meta| (&meta.queue, Position::of(meta)));
    mongo.heads.note_ready(mongo.clock.moment(), positions);
    let found = found?;
    if found == chosen.len() as u64 {
        chosen.iter().for_each(|meta| mongo.counters.moved(&meta.queue, UNBLOCK.from, UNBLOCK.to, 1));
        sent.answered();
    } else if found == 0 {
        sent.answered();
    }
    Ok(())
}
