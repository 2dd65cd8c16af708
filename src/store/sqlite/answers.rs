//! Calls that carry an `Idempotency-Key` and are answered once. What they were answered stands in the table `requests`, as what
//! they have `won`, beside the records of reserves.

use async_trait::async_trait;
use rusqlite::{Connection, params};

use crate::job::{NewJob, Rules, Timestamp};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::batches;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::apply;
use crate::store::sqlite::jobs::children;
use crate::store::sqlite::jobs::push::{self, New};
use crate::store::sqlite::schedules;
use crate::store::sqlite::tx::Tx;
use crate::store::{
    Answers, Applied, BatchChange, BatchChanged, BatchDenied, Change, Denied, Fired, Firing, Keyed,
    KeyedCall, Once, Pushed, Recalled, Result,
};

#[async_trait]
impl Answers for SqliteStore {
    async fn recall(&self, call: &KeyedCall) -> Result<Option<Recalled>> {
        let call = call.clone();
        self.read(move |db, now| find(db, &call, now)).await
    }

    async fn push_once(
        &self,
        jobs: Vec<NewJob>,
        rules: &Rules,
        keyed: Keyed<Vec<Pushed>>,
    ) -> Result<Once<Vec<Pushed>>> {
        let rules = rules.clone();
        let jobs: Vec<New> = jobs.into_iter().map(New::from).collect();
        let push = move |tx: &Tx<'_>, now| {
            once(tx, &keyed, now, || {
                let pushed = push::push(tx, &jobs, &rules, now)?;
                let pushed: Result<Vec<Pushed>> = pushed.into_iter().collect();
                pushed.map_err(|error| Fault::stored("job that was pushed", error))
            })
        };
        self.writer.run(push).await
    }

    async fn push_all(
        &self,
        jobs: Vec<NewJob>,
        rules: &Rules,
        keyed: Option<Keyed<Vec<Pushed>>>,
    ) -> Result<Once<Vec<Pushed>>, Denied> {
        let rules = rules.clone();
        let push = move |tx: &Tx<'_>, now| {
            if let Some(keyed) = &keyed
                && let Some(before) = find(tx, &keyed.call, now)?
            {
                return Ok(Ok(Once::Before(before)));
            }
            if let Err(refused) = children::check(tx, &jobs, None, &rules, now)? {
                return Ok(Err(Denied::PushRefused(refused)));
            }
            let new: Vec<New> = jobs.iter().cloned().map(New::from).collect();
            let pushed: Result<Vec<Pushed>> = push::push(tx, &new, &rules, now)?.into_iter().collect();
            let pushed = pushed.map_err(|error| Fault::stored("job that was pushed", error))?;
            Ok(Ok(match &keyed {
                Some(keyed) => answered(tx, keyed, pushed)?,
                None => Once::Now(pushed, None),
            }))
        };
        self.writer.run(push).await?
    }

    async fn change_batch_once(
        &self,
        change: BatchChange,
        jobs: Vec<NewJob>,
        rules: &Rules,
        keyed: Keyed<BatchChanged>,
    ) -> Result<Once<BatchChanged>, BatchDenied> {
        let rules = rules.clone();
        let change = move |tx: &Tx<'_>, now| {
            if let Some(before) = find(tx, &keyed.call, now)? {
                return Ok(Ok(Once::Before(before)));
            }
            match batches::change_by(tx, &change, &jobs, &rules, now)? {
                Ok(changed) => answered(tx, &keyed, changed).map(Ok),
                Err(denied) => Ok(Err(denied)),
            }
        };
        self.writer.run(change).await?
    }

    async fn fire_once(&self, firing: &Firing, keyed: Keyed<Fired>) -> Result<Once<Fired>> {
        let firing = firing.clone();
        let job = firing.job.clone().map(New::from);
        let fire =
            move |tx: &Tx<'_>, now| once(tx, &keyed, now, || schedules::fire(tx, &firing, job.as_ref(), now));
        self.writer.run(fire).await
    }

    async fn apply_once(
        &self,
        changes: Vec<Change>,
        rules: &Rules,
        keyed: Keyed<Vec<Result<Applied, Denied>>>,
    ) -> Result<Once<Vec<Result<Applied, Denied>>>> {
        let rules = rules.clone();
        let change =
            move |tx: &Tx<'_>, now| once(tx, &keyed, now, || apply::apply(tx, &changes, &rules, now));
        self.writer.run(change).await
    }
}

/// Does the work of a call together with its answer, unless it was answered before.
fn once<T>(
    tx: &Tx<'_>,
    keyed: &Keyed<T>,
    now: Timestamp,
    work: impl FnOnce() -> Result<T, Fault>,
) -> Result<Once<T>, Fault> {
    match find(tx, &keyed.call, now)? {
        Some(before) => Ok(Once::Before(before)),
        None => answered(tx, keyed, work()?),
    }
}

/// Remembers the answer of a call that came to this, if it is to be remembered. Where it is not, the call has stored nothing.
fn answered<T>(db: &Connection, keyed: &Keyed<T>, done: T) -> Result<Once<T>, Fault> {
    let answer = keyed.answered(&done);
    if let Some(answer) = &answer {
        keep(db, &keyed.call, answer)?;
    }
    Ok(Once::Now(done, answer))
}

/// Remembers the answer of a call.
pub fn keep(db: &Connection, call: &KeyedCall, answer: &str) -> Result<(), Fault> {
    db.prepare_cached(
        "INSERT OR REPLACE INTO requests (id, digest, claim, pending_until, won, until) \
         VALUES (?1, ?2, '', 0, ?3, ?4)",
    )?
    .execute(params![call.id, call.digest, answer, call.until.millis()])?;
    Ok(())
}

/// Returns what is remembered of a call.
pub fn find(db: &Connection, call: &KeyedCall, now: Timestamp) -> Result<Option<Recalled>, Fault> {
    let mut by_id = db.prepare_cached("SELECT digest, won, until FROM requests WHERE id = ?1")?;
    let mut rows = by_id.query([&call.id])?;
    let Some(found) = rows.next()? else { return Ok(None) };
    let until = Timestamp::from_millis(found.get(2)?);
    Ok(Recalled::decide(call, found.get(0)?, until, now, found.get(1)?))
}
