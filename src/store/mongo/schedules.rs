//! Schedules: documents of the collection `schedules`, and firing them.
//!
//! A firing is a transaction over the schedule and the new job, guarded by the schedule's `rev`. Where its answer
//! is lost, a schedule that remembers its run proves that it happened.

use async_trait::async_trait;
use futures::TryStreamExt;
use mongodb::bson::{Document, doc};
use mongodb::error::{Error, ErrorKind};
use mongodb::{ClientSession, Database};

use crate::job::{Schedule, ScheduleName, State, Timestamp};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::SCHEDULES;
use crate::store::mongo::cache::Position;
use crate::store::mongo::client::{DUPLICATE_KEY, code, fault};
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::mongo::jobs::groups::Lines;
use crate::store::mongo::jobs::push::{self, TxError};
use crate::store::{Fired, Firing, Result, Saved, Schedules, Store as _, StoreError};

#[async_trait]
impl Schedules for Mongo {
    async fn schedules(&self, after: Option<&ScheduleName>, limit: usize) -> Result<Vec<Schedule>> {
        let behind = doc! { "_id": { "$gt": after.map_or("", ScheduleName::as_str) } };
        let reading = async {
            let all = self.collection(SCHEDULES).await?;
            let find = all.find(behind).sort(doc! { "_id": 1 }).limit(signed(limit));
            let cursor = find.await.map_err(fault)?;
            let documents: Vec<Document> = cursor.try_collect().await.map_err(fault)?;
            documents.iter().map(parse).collect()
        };
        self.connection.within(reading).await
    }

    async fn schedule(&self, name: &ScheduleName) -> Result<Option<Schedule>> {
        let reading = async {
            let all = self.collection(SCHEDULES).await?;
            let found = all.find_one(doc! { "_id": name.as_str() }).await.map_err(fault)?;
            found.as_ref().map(parse).transpose()
        };
        self.connection.within(reading).await
    }

    async fn save_schedule(
        &self,
        name: &ScheduleName,
        to: Option<&Schedule>,
        seen: Option<i64>,
    ) -> Result<Saved> {
        self.connection.within(save(self, name, to, seen)).await
    }

    async fn next_occurrences(&self, limit: usize) -> Result<Vec<(ScheduleName, Timestamp)>> {
        let reading = async {
            let all = self.collection(SCHEDULES).await?;
            let find =
                all.find(doc! { "next_at": { "$exists": true } }).sort(doc! { "next_at": 1, "_id": 1 });
            let cursor = find.projection(doc! { "next_at": 1 }).limit(signed(limit)).await.map_err(fault)?;
            let documents: Vec<Document> = cursor.try_collect().await.map_err(fault)?;
            let moment = |document: &Document| {
                let row = Row(document);
                Ok((row.text("_id")?, row.time("next_at")?.ok_or_else(|| row.fault("next_at"))?))
            };
            documents.iter().map(moment).collect()
        };
        self.connection.within(reading).await
    }

    async fn fire(&self, firing: &Firing) -> Result<Fired> {
        self.connection.within(fire(self, firing)).await
    }
}

fn signed(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn parse(document: &Document) -> Result<Schedule> {
    let row = Row(document);
    let json = |field: &str| document.get_str(field).map_err(|_| row.fault(field));
    let last_job = document.get_str("last_job").ok().map(|_| row.text("last_job"));
    Ok(Schedule {
        name: row.text("_id")?,
        rule: serde_json::from_str(json("rule")?).map_err(|_| row.fault("rule"))?,
        version: row.text("version")?,
        rev: row.number("rev")?,
        next_at: row.time("next_at")?,
        last_job: last_job.transpose()?,
        last_runs: serde_json::from_str(json("last_runs")?).map_err(|_| row.fault("last_runs"))?,
    })
}

/// The rule and the runs are JSON texts: a payload must come back exactly.
fn document(schedule: &Schedule) -> Result<Document> {
    let mut document = doc! {
        "_id": schedule.name.as_str(),
        "version": &schedule.version,
        "rev": schedule.rev,
        "rule": serde_json::to_string(&schedule.rule).map_err(StoreError::internal)?,
        "last_runs": serde_json::to_string(&schedule.last_runs).map_err(StoreError::internal)?,
    };
    document.extend(schedule.next_at.map(|at| ("next_at".to_owned(), date(at).into())));
    document.extend(schedule.last_job.as_ref().map(|id| ("last_job".to_owned(), id.as_str().into())));
    Ok(document)
}

fn guard(name: &ScheduleName, rev: i64) -> Document {
    doc! { "_id": name.as_str(), "rev": rev }
}

/// Each case is a write of one document, which the driver repeats once by itself without doing it twice.
async fn save(mongo: &Mongo, name: &ScheduleName, to: Option<&Schedule>, seen: Option<i64>) -> Result<Saved> {
    let all = mongo.collection(SCHEDULES).await?;
    let found = match (to, seen) {
        (Some(to), None) => match all.insert_one(document(to)?).await {
            Ok(_) => 1,
            Err(error) if code(&error) == Some(DUPLICATE_KEY) => 0,
            Err(error) => return Err(fault(error)),
        },
        (Some(to), Some(rev)) => {
            all.replace_one(guard(name, rev), document(to)?).await.map_err(fault)?.matched_count
        }
        (None, Some(rev)) => all.delete_one(guard(name, rev)).await.map_err(fault)?.deleted_count,
        (None, None) => {
            let there = all.find_one(doc! { "_id": name.as_str() }).await.map_err(fault)?;
            u64::from(there.is_none())
        }
    };
    Ok(if found == 1 { Saved::Done } else { Saved::Conflict })
}

/// Fires in a transaction that is repeated while others get in its way, up to the verb's deadline.
async fn fire(mongo: &Mongo, firing: &Firing) -> Result<Fired> {
    let sending = mongo.counters.sending(firing.job.iter().map(|job| &job.queue));
    let _locks = mongo.group_mutex.lock(firing.job.iter().filter_map(push::line)).await;
    let mut attempts = 0;
    let (fired, stored) = loop {
        attempts += 1;
        match try_fire(mongo, firing).await {
            Ok(tried) => break tried,
            Err(TxError::Conflict) => {}
            Err(TxError::Driver(error)) if is_conflict(&error) => tokio::task::yield_now().await,
            Err(TxError::Driver(error)) => return Err(fault(error)),
            Err(TxError::Store(error)) => return Err(error),
        }
    };
    match (stored, &firing.job) {
        (Some(state), Some(job)) => {
            mongo.counters.came(&job.queue, state, 1);
            sending.answered();
            let place = Position { priority: job.priority, run_at: job.run_at };
            mongo.heads.note_ready([(&job.queue, place)]);
        }
        // What an earlier call has stored is not counted again.
        _ if attempts == 1 => sending.answered(),
        _ => {} // an attempt whose outcome never became known may have stored the job after all
    }
    Ok(fired)
}

/// Errors that mean "again, from the start".
fn is_conflict(error: &Error) -> bool {
    let no_server = matches!(error.kind.as_ref(), ErrorKind::ServerSelection { .. });
    error.contains_label("TransientTransactionError") && !no_server
}

/// What has become of the firing, and the state of its job, if this very attempt has stored it.
async fn try_fire(mongo: &Mongo, firing: &Firing) -> Result<(Fired, Option<State>), TxError> {
    let database = mongo.connection.database().await?;
    let all = database.collection::<Document>(SCHEDULES);
    let mut session = mongo.transaction().await?;
    let found = all.find_one(doc! { "_id": firing.name.as_str() }).session(&mut session).await?;
    let Some(mut schedule) = found.as_ref().map(parse).transpose()? else {
        return Ok((Fired::Conflict, None));
    };
    if schedule.rev != firing.seen {
        commit(&mut session).await?; // what was read must be durable before it is answered
        return Ok((firing.found_in(&schedule.last_runs).unwrap_or(Fired::Conflict), None));
    }
    let yields = firing.yields && is_unfinished(database, &schedule, &mut session).await?;
    let run = if yields { firing.yielded() } else { firing.run.clone() };
    schedule.remember(run.clone());
    let next = document(&Schedule { rev: firing.rev, next_at: firing.next_at, ..schedule })?;
    all.replace_one(guard(&firing.name, firing.seen), next).session(&mut session).await?;
    let mut stored = None;
    if let Some(job) = firing.job.as_ref().filter(|_| !yields) {
        let mut lines = Lines::default();
        lines.load(mongo, push::line(job).into_iter(), &mut session).await?;
        let (document, state) = push::stored(job, &mut lines, mongo.now()?);
        stored = Some(state);
        lines.write(mongo, &mut session).await?;
        database.collection::<Document>(JOBS).insert_one(document).session(&mut session).await?;
    }
    commit(&mut session).await?;
    Ok((Fired::Done(run), stored))
}

async fn commit(session: &mut ClientSession) -> Result<(), Error> {
    loop {
        match session.commit_transaction().await {
            Err(error) if error.contains_label("UnknownTransactionCommitResult") => {
                tokio::task::yield_now().await; // the verb's deadline ends this
            }
            other => return other,
        }
    }
}

/// Whether the job that the schedule pushed last is unfinished, wherever it is now.
async fn is_unfinished(
    database: &Database,
    schedule: &Schedule,
    session: &mut ClientSession,
) -> Result<bool, Error> {
    let Some(id) = &schedule.last_job else { return Ok(false) };
    let jobs = database.collection::<Document>(JOBS);
    let find = jobs.find_one(doc! { "_id": id.as_str() }).projection(doc! { "state": 1 });
    let found = find.session(session).await?;
    let state = found.as_ref().and_then(|job| State::from_word(job.get_str("state").ok()?));
    Ok(state.is_some_and(State::is_unfinished))
}
