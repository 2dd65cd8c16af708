//! Schedules: documents of the collection `schedules`, and firing them.
//!
//! A firing is a transaction over the schedule and the new job, guarded by the schedule's `rev`. Where its reply
//! is lost, a schedule that remembers its run proves that it happened.

use async_trait::async_trait;
use futures::TryStreamExt;
use mongodb::bson::{Document, doc};

use crate::job::{JobId, Schedule, ScheduleName, State, Timestamp};
use crate::store::audit;
use crate::store::fence::fence;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::SCHEDULES;
use crate::store::mongo::answers::record;
use crate::store::mongo::client::{fault, is_duplicate};
use crate::store::mongo::jobs::document::{Row, date, readable};
use crate::store::mongo::jobs::groups::Lines;
use crate::store::mongo::jobs::push::{self, Resolved};
use crate::store::mongo::jobs::query;
use crate::store::mongo::stored::{Stored, deletion};
use crate::store::mongo::transaction::{self, Transaction, Tx, TxError, Verdict};
use crate::store::schedules::FireStep;
use crate::store::settings::valid_version;
use crate::store::{
    Fired, Firing, Keyed, ListedSchedule, Once, Result, Saved, Schedules, Store as _, StoreError, chain,
};

#[async_trait]
impl Schedules for Mongo {
    async fn schedules(&self, after: Option<&ScheduleName>, limit: usize) -> Result<Vec<ListedSchedule>> {
        let behind = doc! { "_id": { "$gt": after.map_or("", ScheduleName::as_str) } };
        let reading = async {
            let all = self.collection(SCHEDULES).await?;
            let read = |document: &Document| {
                let name: ScheduleName = Row(document).text("_id")?;
                Ok(parse(document).map_err(|error| (name, chain(&error))))
            };
            query::page(all, behind, limit, read).await
        };
        self.connection.within(reading).await
    }

    async fn schedule(&self, name: &ScheduleName) -> Result<Option<Schedule>> {
        let reading = async {
            let all = self.collection(SCHEDULES).await?;
            let found = all.find_one(doc! { "_id": name.as_str() }).await.map_err(fault)?;
            found.as_deref().map(parse).transpose().map_err(StoreError::unreadable)
        };
        self.connection.within(reading).await
    }

    async fn discard_unreadable_schedule(&self, name: &ScheduleName) -> Result<()> {
        Ok(transaction::until(self, self.connection.end()).run(Discard(name)).await?)
    }

    async fn save_schedule(
        &self,
        name: &ScheduleName,
        to: Option<&Schedule>,
        seen: Option<i64>,
    ) -> Result<Saved> {
        if audit::row().is_some() || fence().is_some() {
            let saved = transaction::until(self, self.connection.end()).run(Save { name, to, seen }).await;
            return Ok(saved?);
        }
        self.connection.within(save(self, name, to, seen)).await
    }

    async fn next_occurrences(&self, limit: usize) -> Result<Vec<(ScheduleName, Timestamp)>> {
        let reading = async {
            let all = self.collection(SCHEDULES).await?;
            let find =
                all.find(doc! { "next_at": { "$exists": true } }).sort(doc! { "next_at": 1, "_id": 1 });
            let cursor = find.projection(doc! { "next_at": 1 }).limit(signed(limit)).await.map_err(fault)?;
            let documents: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
            let moment = |document: &Document| {
                let row = Row(document);
                Ok((row.text("_id")?, row.time("next_at")?.ok_or_else(|| row.fault("next_at"))?))
            };
            Ok(readable(&documents, moment))
        };
        self.connection.within(reading).await
    }

    async fn fire(&self, firing: &Firing) -> Result<Fired> {
        fire(self, firing).await
    }
}

fn signed(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Reads a schedule from its document.
pub fn parse(document: &Document) -> Result<Schedule> {
    let row = Row(document);
    let json = |field: &str| document.get_str(field).map_err(|_| row.fault(field));
    Ok(Schedule {
        name: row.text("_id")?,
        rule: serde_json::from_str(json("rule")?).map_err(|_| row.fault("rule"))?,
        version: valid_version(row.text("version")?).ok_or_else(|| row.fault("version"))?,
        rev: row.number("rev")?,
        next_at: row.time("next_at")?,
        last_job: row.some("last_job", Row::text)?,
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
        (Some(to), None) => match all.insert_one(Stored::from(document(to)?)).await {
            Ok(_) => 1,
            Err(error) if is_duplicate(&error) => 0,
            Err(error) => return Err(fault(error)),
        },
        (Some(to), Some(rev)) => {
            all.replace_one(guard(name, rev), Stored::from(document(to)?)).await.map_err(fault)?.matched_count
        }
        (None, Some(rev)) => all.delete_one(guard(name, rev)).await.map_err(fault)?.deleted_count,
        (None, None) => {
            let there = all.find_one(doc! { "_id": name.as_str() }).await.map_err(fault)?;
            u64::from(there.is_none())
        }
    };
    Ok(if found == 1 { Saved::Done } else { Saved::Conflict })
}

/// A change of a schedule, together with the row of the act.
///
/// Idempotence: guarded by the `rev` that was seen, which it replaces; what is new is inserted. A repeat after an unknown outcome is a
/// conflict, as it is without a row.
struct Save<'a> {
    name: &'a ScheduleName,
    to: Option<&'a Schedule>,
    seen: Option<i64>,
}

impl Transaction for Save<'_> {
    type Done = Saved;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Saved>, TxError> {
        let all = tx.collection(SCHEDULES);
        let by_id = doc! { "_id": self.name.as_str() };
        let found = all.find_one(by_id).projection(doc! { "rev": 1 }).session(tx.session()).await?;
        let rev = found.as_ref().map(|found| Row(found).number::<i64>("rev").ok());
        if rev != self.seen.map(Some) {
            return Ok(Verdict::Commit(Saved::Conflict)); // what was read must be durable before it is returned
        }
        let guard = match self.seen {
            Some(rev) => guard(self.name, rev),
            None => doc! { "_id": self.name.as_str() },
        };
        match self.to {
            Some(to) => {
                let statement = doc! { "q": guard, "u": document(to)?, "upsert": self.seen.is_none() };
                tx.write(doc! { "update": SCHEDULES, "updates": [statement] }).await?;
            }
            None => {
                tx.write(doc! { "delete": SCHEDULES, "deletes": [doc! { "q": guard, "limit": 1 }] }).await?;
            }
        }
        tx.record().await?;
        Ok(Verdict::Commit(Saved::Done))
    }
}

/// A schedule that cannot be read leaves.
///
/// Idempotence: what is there is read in the transaction, and what can be read stays.
struct Discard<'a>(&'a ScheduleName);

impl Transaction for Discard<'_> {
    type Done = ();

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<()>, TxError> {
        let by_id = doc! { "_id": self.0.as_str() };
        let found = tx.collection(SCHEDULES).find_one(by_id).session(tx.session()).await?;
        let Some(document) = found.filter(|document| parse(document).is_err()) else {
            return Ok(Verdict::Abort(()));
        };
        // The whole document is the guard: a valid one that was written meanwhile stays.
        if tx.write_raw(deletion(SCHEDULES, document.as_read()?)).await? > 0 {
            tx.record().await?;
        }
        Ok(Verdict::Commit(()))
    }
}

/// Fires in a transaction.
async fn fire(mongo: &Mongo, firing: &Firing) -> Result<Fired> {
    match fire_in_one(mongo, firing, None).await? {
        Once::Now(fired, _) => Ok(fired),
        Once::Before(_) => Err(StoreError::internal("a schedule was fired by a call without a key")),
    }
}

/// The same together with the answer of the call, unless it was answered before.
pub async fn fire_once(mongo: &Mongo, firing: &Firing, keyed: &Keyed<Fired>) -> Result<Once<Fired>> {
    fire_in_one(mongo, firing, Some(keyed)).await
}

async fn fire_in_one(mongo: &Mongo, firing: &Firing, keyed: Option<&Keyed<Fired>>) -> Result<Once<Fired>> {
    let end = mongo.connection.end();
    let lines = firing.job.iter().filter_map(push::line);
    let locks = mongo.connection.until(end, async { Ok(mongo.group_mutex.lock(lines).await) });
    let _locks = locks.await?;
    Ok(transaction::until(mongo, end).run(Fire { firing, keyed }).await?)
}

/// A schedule's run is remembered, and its job stored.
///
/// Idempotence: the firing is guarded by the `rev` of the schedule that was read, which it replaces, so that of all
/// attempts on all servers one stores the job. After an unknown outcome the next call finds another `rev`, and the
/// schedule remembers the run, by which [`Firing::onto`] knows whether it was this firing.
struct Fire<'a> {
    firing: &'a Firing,
    keyed: Option<&'a Keyed<Fired>>,
}

impl Transaction for Fire<'_> {
    type Done = Once<Fired>;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Once<Fired>>, TxError> {
        if let Some(keyed) = self.keyed
            && let Some(before) = record::find(&keyed.call, tx).await?
        {
            return Ok(Verdict::Commit(Once::Before(before)));
        }
        let (fired, is_new) = match self.fire(tx).await? {
            Verdict::Commit(fired) => (fired, true),
            Verdict::Abort(fired) => (fired, false),
        };
        let answer = self.keyed.filter(|_| is_new).and_then(|keyed| Some((keyed, keyed.answered(&fired)?)));
        if let Some((keyed, answer)) = &answer {
            record::keep(&keyed.call, answer, tx).await?;
        }
        let once = Once::Now(fired, answer.map(|(_, answer)| answer));
        Ok(if is_new { Verdict::Commit(once) } else { Verdict::Abort(once) })
    }
}

impl Fire<'_> {
    async fn fire(&self, tx: &mut Tx<'_>) -> Result<Verdict<Fired>, TxError> {
        let firing = self.firing;
        let all = tx.collection(SCHEDULES);
        let found = all.find_one(doc! { "_id": firing.name.as_str() }).session(tx.session()).await?;
        let schedule = found.as_deref().map(parse).transpose()?;
        let last = match schedule.as_ref().and_then(|schedule| firing.yields_to(schedule)) {
            Some(id) => state_of(id, tx).await?,
            None => None,
        };
        let is_there = schedule.is_some();
        let (schedule, run) = match firing.onto(schedule, last) {
            FireStep::Answer(fired) if is_there => return Ok(Verdict::Commit(fired)), // what was read must be durable before it is answered
            FireStep::Answer(fired) => return Ok(Verdict::Abort(fired)),
            FireStep::Fire { schedule, run } => (schedule, run),
        };
        let next = Stored::from(document(&schedule)?);
        all.replace_one(guard(&firing.name, firing.seen), next).session(tx.session()).await?;
        if let Some(job) = firing.job.as_ref().filter(|_| run.job_id.is_some()) {
            let (mut lines, mut resolved) = (Lines::default(), Resolved::default());
            lines.load(push::line(job).into_iter(), tx).await?;
            resolved.add(job, &mut lines, tx.mongo.now()?)?;
            lines.write(tx).await?;
            push::write(resolved, tx).await?;
        }
        tx.record().await?;
        Ok(Verdict::Commit(Fired::Done(run)))
    }
}

/// Returns the state of this job, wherever it is now, if it is there.
async fn state_of(id: &JobId, tx: &mut Tx<'_>) -> Result<Option<State>, TxError> {
    let jobs = tx.collection(JOBS);
    let find = jobs.find_one(doc! { "_id": id.as_str() }).projection(doc! { "state": 1 });
    let found = find.session(tx.session()).await?;
    Ok(found.as_ref().and_then(|job| State::from_word(job.get_str("state").ok()?)))
}
