//! Workers: heartbeats and timeouts. `store/workers.rs` says why a worker whose heartbeat succeeds loses
//! nothing.
//!
//! | field of `workers` | meaning |
//! |---|---|
//! | `_id` | the worker's name |
//! | `version`, `slots`, `timeout_ms` | what its last heartbeat said |
//! | `seen_at` | when that came, by the store's clock |
//! | `beat` | a random number that every heartbeat replaces: guards what follows from its timeout |
//! | `silent_at` | when it times out; absent: it is not checked any more |
//! | `forget_at` | when MongoDB removes a worker that has timed out |

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use futures::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::Hint;

use crate::job::backoff::YEAR_MS;
use crate::job::settings::LEASE_MAX_MS;
use crate::job::{Claim, JobId, Timestamp, WorkerName};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::WORKERS;
use crate::store::mongo::client::{fault, is_duplicate, update_jobs, write};
use crate::store::mongo::jobs::document::{Row, date, readable};
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{self, Transaction, Tx, TxError, Verdict};
use crate::store::workers::{Holding, Suspect, TIMED_OUT_KEPT_MS, TimeoutDecision, WORKERS_PER_CHECK};
use crate::store::{Holdings, Report, Result, Store as _, StoreError, TimedOut, Worker, Workers};

/// The index of what workers hold.
const INDEX: &str = "worker";
/// How often a first heartbeat is retried that conflicts with another one of the same worker.
const TRIES: usize = 5;

#[async_trait]
impl Workers for Mongo {
    async fn heartbeat(&self, worker: &WorkerName, report: &Report) -> Result<Holdings> {
        self.connection.within(heartbeat(self, worker, report)).await
    }

    async fn workers(&self, after: Option<&WorkerName>, limit: usize) -> Result<Vec<Worker>> {
        let filter = after.map_or_else(Document::new, |after| doc! { "_id": { "$gt": after.as_str() } });
        self.connection.within(read(self, filter, limit)).await
    }

    async fn worker(&self, worker: &WorkerName) -> Result<Option<Worker>> {
        let filter = doc! { "_id": worker.as_str() };
        Ok(self.connection.within(read(self, filter, 1)).await?.into_iter().next())
    }

    async fn timed_out_workers(&self, heard_ms: u64, limit: usize) -> Result<TimedOut> {
        self.connection.within(timed_out_workers(self, heard_ms, limit)).await
    }

    async fn held_by(&self, worker: &WorkerName, limit: usize) -> Result<Vec<(JobId, Claim)>> {
        let held = async {
            let filter = doc! { "worker": worker.as_str(), "state": "reserved" };
            let documents = held(self, filter, doc! { "claim": 1 }, limit).await?;
            Ok(readable(&documents, |document| Ok((Row(document).text("_id")?, claim(document)?))))
        };
        self.connection.within(held).await
    }

    async fn forget_worker(&self, worker: &WorkerName) -> Result<bool> {
        Ok(transaction::until(self, self.connection.end()).run(Forget(worker)).await?)
    }
}

/// A worker leaves.
///
/// Idempotence: a repeat finds none.
struct Forget<'a>(&'a WorkerName);

impl Transaction for Forget<'_> {
    type Done = bool;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<bool>, TxError> {
        let statement = doc! { "q": { "_id": self.0.as_str() }, "limit": 1 };
        let was_there = tx.write(doc! { "delete": WORKERS, "deletes": [statement] }).await? > 0;
        if was_there {
            tx.record().await?;
        }
        Ok(Verdict::Commit(was_there))
    }
}

/// Says that the worker was seen, then extends what it holds, then reads that: in this order, which
/// `store/workers.rs` depends on.
async fn heartbeat(mongo: &Mongo, worker: &WorkerName, report: &Report) -> Result<Holdings> {
    see(mongo, worker, report).await?;
    let filter = doc! { "worker": worker.as_str(), "state": "reserved" };
    // As `Meta::kept_until` says. Another program may have written anything.
    let most = LEASE_MAX_MS.cast_signed();
    let lease = doc! { "$min": [{ "$max": ["$lease_ms", 0] }, most] };
    let lease = doc! { "$cond": [{ "$isNumber": "$lease_ms" }, lease, 0] };
    // No longer than the delivery may last; `$min` passes over what is absent.
    let most = YEAR_MS.cast_signed();
    let ends = doc! { "$and": [
        { "$gte": ["$max_run_ms", 0] },
        { "$lte": ["$max_run_ms", most] },
        { "$eq": [{ "$type": "$started_at" }, "date"] },
    ] };
    let end = doc! { "$cond": [ends, { "$add": ["$started_at", "$max_run_ms"] }, Bson::Null] };
    let until = doc! { "$min": [{ "$add": ["$$NOW", lease] }, end] };
    let until = doc! { "$max": ["$reserved_until", until] };
    let set = doc! { "reserved_until": until, "rev": rand::random::<i64>() };
    let update = vec![doc! { "$set": set }];
    let statement = doc! { "q": filter.clone(), "u": update, "multi": true, "hint": INDEX };
    // No job changes its state, so that nothing is to be counted.
    if update_jobs(&mongo.connection, vec![statement]).await? == 0 {
        return Ok(Holdings::default());
    }
    let fields = doc! { "queue": 1, "reserved_until": 1, "cancel_requested": 1 };
    let documents = held(mongo, filter, fields, usize::MAX).await?;
    let rows = readable(&documents, |document| {
        let row = Row(document);
        let until = row.time("reserved_until")?.ok_or_else(|| row.fault("reserved_until"))?;
        let cancel_requested = document.get_bool("cancel_requested").unwrap_or(false);
        Ok((row.text::<JobId>("_id")?, row.text("queue")?, until, cancel_requested))
    });
    mongo.delivered.forget(rows.iter().map(|(id, ..)| id));
    let mut holdings = Holdings::default();
    for (id, queue, until, cancel_requested) in rows {
        holdings.add(id, queue, until, cancel_requested);
    }
    Ok(holdings)
}

/// Writes that the worker was seen now.
async fn see(mongo: &Mongo, worker: &WorkerName, report: &Report) -> Result<()> {
    let timeout_ms = report.timeout_ms.cast_signed();
    let literal = |value: Bson| Bson::from(doc! { "$literal": value });
    let maybe = |value: Option<Bson>| value.map_or_else(|| "$$REMOVE".into(), literal);
    let set = doc! {
        "seen_at": "$$NOW",
        "silent_at": { "$add": ["$$NOW", timeout_ms] },
        "timeout_ms": timeout_ms,
        "beat": rand::random::<i64>(),
        "version": maybe(report.version.as_ref().map(|version| version.as_str().into())),
        "slots": maybe(report.slots.map(|slots| i64::from(slots).into())),
        "forget_at": "$$REMOVE",
    };
    let workers = mongo.collection(WORKERS).await?;
    for _ in 0..TRIES {
        let update = vec![doc! { "$set": set.clone() }];
        match workers.update_one(doc! { "_id": worker.as_str() }, update).upsert(true).await {
            Ok(_) => return Ok(()),
            // A conflict: another first heartbeat of this worker was quicker. Now there is something to update.
            Err(error) if is_duplicate(&error) => {}
            Err(error) => return Err(fault(error)),
        }
    }
    Err(StoreError::unavailable("the worker was seen by others again and again"))
}

/// What the index says that workers hold: by worker, the latest delivery first.
async fn held(mongo: &Mongo, filter: Document, fields: Document, limit: usize) -> Result<Vec<Stored>> {
    let limit = i64::try_from(limit).unwrap_or(0); // MongoDB's word for all
    let jobs = mongo.collection(JOBS).await?;
    let cursor = jobs
        .find(filter)
        .sort(doc! { "worker": 1, "state": 1, "started_at": -1 })
        .projection(fields)
        .limit(limit)
        .hint(Hint::Name(INDEX.to_owned()))
        .await
        .map_err(fault)?;
    cursor.try_collect().await.map_err(fault)
}

fn claim(document: &Document) -> Result<Claim> {
    document.get_str("claim").map(Claim::from_stored).map_err(|_| Row(document).fault("claim"))
}

/// Workers, by name, with how many jobs they hold.
async fn read(mongo: &Mongo, filter: Document, limit: usize) -> Result<Vec<Worker>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let workers = mongo.collection(WORKERS).await?;
    // Before anything is read: what comes meanwhile is later.
    let now = mongo.now()?;
    let cursor = workers.find(filter).sort(doc! { "_id": 1 }).limit(limit).await.map_err(fault)?;
    let documents: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
    if documents.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<&str> = documents.iter().filter_map(|document| document.get_str("_id").ok()).collect();
    let pipeline = [
        doc! { "$match": { "worker": { "$in": names }, "state": "reserved" } },
        doc! { "$group": { "_id": "$worker", "reserved": { "$sum": 1 } } },
    ];
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.aggregate(pipeline).with_type::<Stored>().hint(Hint::Name(INDEX.to_owned()));
    let counts: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let count = |row: &Document| Ok((Row(row).text("_id")?, Row(row).number("reserved")?));
    let counts: HashMap<WorkerName, u64> = readable(&counts, count).into_iter().collect();
    let mut workers = readable(&documents, |document| {
        let row = Row(document);
        let name: WorkerName = row.text("_id")?;
        let seen_at = row.time("seen_at")?.ok_or_else(|| row.fault("seen_at"))?;
        let timeout_ms = row.number("timeout_ms")?;
        Ok(Worker {
            seen_at,
            is_silent: seen_at.plus_ms(timeout_ms) <= now,
            report: Report {
                version: document.get_str("version").ok().and_then(|version| version.parse().ok()),
                slots: row.number("slots").ok(),
                timeout_ms,
            },
            reserved: counts.get(&name).copied().unwrap_or(0),
            name,
        })
    });
    hear(mongo, &mut workers, now).await?;
    Ok(workers)
}

/// Queries what those of these workers have done whose heartbeat is older than their timeout, and that hold something.
async fn hear(mongo: &Mongo, workers: &mut [Worker], now: Timestamp) -> Result<()> {
    let late = workers.iter().filter(|worker| worker.reserved > 0 && worker.is_silent);
    let names: Vec<&str> = late.map(|worker| worker.name.as_str()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let latest = |field: &str| doc! { "$max": { "$cond": [{ "$eq": [{ "$type": field }, "date"] }, field, Bson::Null] } };
    let pipeline = [
        doc! { "$match": { "worker": { "$in": names }, "state": "reserved" } },
        doc! { "$group": { "_id": "$worker", "started": latest("$started_at"), "extended": latest("$extended_at") } },
    ];
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.aggregate(pipeline).with_type::<Stored>().hint(Hint::Name(INDEX.to_owned()));
    let found: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let read = |document: &Document| {
        let row = Row(document);
        Ok((row.text("_id")?, row.time("started")?.max(row.time("extended")?)))
    };
    let heard: HashMap<WorkerName, Option<Timestamp>> = readable(&found, read).into_iter().collect();
    for worker in workers {
        let heard_at = heard.get(&worker.name).copied().flatten();
        worker.is_silent &= heard_at.is_none_or(|at| at.plus_ms(worker.report.timeout_ms) <= now);
    }
    Ok(())
}

async fn timed_out_workers(mongo: &Mongo, heard_ms: u64, limit: usize) -> Result<TimedOut> {
    let Suspects { suspects, beats, ahead_ms } = suspects(mongo, heard_ms).await?;
    if suspects.is_empty() {
        return Ok(TimedOut { next_in_ms: ahead_ms, ..TimedOut::default() });
    }
    let found = suspects.len();
    let names: Vec<&str> = suspects.iter().map(|worker| worker.name.as_str()).collect();
    let of_them = doc! { "worker": { "$in": &names }, "state": "reserved" };
    let fields = doc! { "worker": 1, "claim": 1, "rev": 1, "started_at": 1, "extended_at": 1 };
    let documents = held(mongo, of_them, fields, limit).await?;
    let complete = documents.len() < limit;
    let holdings = readable(&documents, |document| {
        let row = Row(document);
        Ok(Holding {
            worker: row.text("worker")?,
            id: row.text("_id")?,
            claim: claim(document)?,
            rev: row.number("rev")?,
            started_at: row.time("started_at")?.unwrap_or_default(),
            extended_at: row.time("extended_at")?,
        })
    });
    // The second check: a worker whose heartbeat came before its jobs were read has not timed out.
    let all: Vec<i64> = beats.values().copied().collect();
    let still = doc! { "_id": { "$in": names }, "beat": { "$in": all } };
    let workers = mongo.collection(WORKERS).await?;
    let cursor = workers.find(still).projection(doc! { "_id": 1 }).await.map_err(fault)?;
    let still: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
    let still: HashSet<&str> = still.iter().filter_map(|document| document.get_str("_id").ok()).collect();
    let mut suspects: Vec<Suspect> =
        suspects.into_iter().filter(|worker| still.contains(worker.name.as_str())).collect();
    let last = holdings.last().filter(|_| !complete).map(|holding| &holding.worker);
    if let Some(cut) = last.and_then(|last| suspects.iter_mut().find(|worker| worker.name == *last)) {
        cut.extended_at = extended_at(mongo, &cut.name).await?;
    }
    let now = mongo.now()?;
    let decision = TimeoutDecision::of(&suspects, holdings, complete, now);
    note(mongo, &decision, &beats, now).await?;
    let next_in_ms = decision.next_in_ms(now, found, ahead_ms);
    Ok(TimedOut { changes: decision.changes, workers: decision.workers, next_in_ms })
}

/// When this worker last extended something that it holds, if it has.
async fn extended_at(mongo: &Mongo, worker: &WorkerName) -> Result<Option<Timestamp>> {
    let extended =
        doc! { "worker": worker.as_str(), "state": "reserved", "extended_at": { "$type": "date" } };
    let latest = doc! { "_id": Bson::Null, "at": { "$max": "$extended_at" } };
    let jobs = mongo.collection(JOBS).await?;
    let pipeline = vec![doc! { "$match": extended }, doc! { "$group": latest }];
    let find = jobs.aggregate(pipeline).with_type::<Stored>().hint(Hint::Name(INDEX.to_owned()));
    let found: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    found.first().map_or(Ok(None), |row| Row(row).time("at"))
}

/// The workers that have timed out by the store's clock.
struct Suspects {
    suspects: Vec<Suspect>,
    /// The `beat` of each.
    beats: HashMap<WorkerName, i64>,
    /// Milliseconds until the next one is.
    ahead_ms: Option<u64>,
}

/// One query, which finds nothing where no worker has sent a heartbeat.
async fn suspects(mongo: &Mongo, heard_ms: u64) -> Result<Suspects> {
    let heard_ms = i64::try_from(heard_ms).unwrap_or(i64::MAX);
    let filter = doc! { "silent_at": { "$exists": true }, "timeout_ms": { "$lte": heard_ms } };
    let in_ms = doc! { "$subtract": ["$silent_at", "$$NOW"] };
    let workers = mongo.collection(WORKERS).await?;
    let cursor = workers
        .find(filter)
        .sort(doc! { "silent_at": 1 })
        .projection(doc! { "timeout_ms": 1, "beat": 1, "in_ms": in_ms })
        .limit(i64::try_from(WORKERS_PER_CHECK).unwrap_or(0))
        .await
        .map_err(fault)?;
    let documents: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
    let mut suspects = Suspects { suspects: Vec::new(), beats: HashMap::new(), ahead_ms: None };
    let read = |document: &Document| {
        let row = Row(document);
        let suspect =
            Suspect { name: row.text("_id")?, timeout_ms: row.number("timeout_ms")?, extended_at: None };
        Ok((row.number::<i64>("in_ms")?, row.number("beat")?, suspect))
    };
    for (in_ms, beat, suspect) in readable(&documents, read) {
        if in_ms > 0 {
            suspects.ahead_ms = Some(in_ms.unsigned_abs());
            break;
        }
        suspects.beats.insert(suspect.name.clone(), beat);
        suspects.suspects.push(suspect);
    }
    Ok(suspects)
}

/// Writes which workers' timeouts are over, and which come later, unless a heartbeat came in between.
async fn note(
    mongo: &Mongo,
    decision: &TimeoutDecision,
    beats: &HashMap<WorkerName, i64>,
    now: Timestamp,
) -> Result<()> {
    let forget = doc! {
        "$unset": { "silent_at": "" },
        "$set": { "forget_at": date(now.plus_ms(TIMED_OUT_KEPT_MS)) },
    };
    let idle = decision.idle.iter().map(|name| (name, forget.clone()));
    let later = decision.later.iter();
    let later = later.map(|(name, at)| (name, doc! { "$set": { "silent_at": date(*at) } }));
    let statements: Vec<Document> = idle
        .chain(later)
        .filter_map(|(name, update)| {
            let guard = doc! { "_id": name.as_str(), "beat": *beats.get(name)? };
            Some(doc! { "q": guard, "u": update })
        })
        .collect();
    if statements.is_empty() {
        return Ok(());
    }
    let database = mongo.connection.database().await?;
    write(database, doc! { "update": WORKERS, "updates": statements, "ordered": false }).await.map(drop)
}
