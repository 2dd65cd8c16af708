//! The records of keys: which job has one.

use std::collections::HashMap;

use mongodb::bson::{Binary, Document, doc, spec::BinarySubtype};

use crate::job::push::Holder;
use crate::job::record::{KeyHold, KeyUntil};
use crate::job::{JobKey, QueueName, State, Timestamp};
use crate::store::Result;
use crate::store::mongo::JOBS;
use crate::store::mongo::KEYS;
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{Tx, TxError};

/// The records of these keys, and what there is of the jobs that have them.
pub async fn read_holders(ids: Vec<String>, tx: &mut Tx<'_>) -> Result<(Vec<Stored>, Vec<Stored>), TxError> {
    if ids.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let records = tx.read(tx.collection(KEYS).find(doc! { "_id": { "$in": ids } })).await?;
    let job_ids: Vec<&str> = records.iter().filter_map(|record| record.get_str("job").ok()).collect();
    if job_ids.is_empty() {
        return Ok((records, Vec::new()));
    }
    let jobs = tx.collection(JOBS);
    let projection = doc! { "state": 1, "run_at": 1, "queue": 1, "key": 1 };
    let find = jobs.find(doc! { "_id": { "$in": job_ids } }).projection(projection);
    let states = tx.read(find).await?;
    Ok((records, states))
}

/// Returns the holders of the keys of these records, by their ids.
pub fn holders(records: &[Stored], states: &[Stored], now: Timestamp) -> Result<HashMap<String, Holder>> {
    let states: HashMap<&str, Facts> = states.iter().filter_map(|state| state_of(state)).collect();
    let mut holders = HashMap::with_capacity(records.len());
    for record in records {
        let (id, mut holder) = holder(record)?;
        if let Some((state, run_at, home)) = states.get(holder.id.as_str()) {
            holder.run_at = *run_at;
            holder.is_home = home.as_ref() == Some(&id);
            holder.state = Some(state.visible(*run_at, now));
        }
        holders.insert(id, holder);
    }
    Ok(holders)
}

/// The state of a job, when it is due, and the id of the key that it knows.
type Facts = (State, Timestamp, Option<String>);

fn state_of(document: &Document) -> Option<(&str, Facts)> {
    let (row, state) = (Row(document), State::from_word(document.get_str("state").ok()?)?);
    let home = row.text::<JobKey>("key").and_then(|key| Ok(id_of(&row.text("queue")?, &key))).ok();
    Some((document.get_str("_id").ok()?, (state, row.time("run_at").ok()??, home)))
}

/// Queue names have no slash, so that no two pairs of queue and key share an id.
pub fn id_of(queue: &QueueName, key: &JobKey) -> String {
    format!("{queue}/{key}")
}

/// Returns the id of the record of a key.
pub fn key_id(queue: &QueueName, hold: &KeyHold) -> String {
    id_of(queue, &hold.key)
}

/// Returns the record of a key that this job has.
pub fn record(holder: &Holder) -> Document {
    let digest = Binary { subtype: BinarySubtype::Generic, bytes: holder.digest.to_vec() };
    let (until, run_at) = (date(holder.until), date(holder.run_at));
    let mut record = doc! {
        "job": holder.id.as_str(), "digest": digest, "until": until, "run_at": run_at, "check_at": until,
    };
    if !holder.lasts.is_usual() {
        record.insert("lasts", holder.lasts.as_str()); // older servers do not know it, and keep the key for longer
    }
    record
}

fn holder(record: &Document) -> Result<(String, Holder)> {
    let row = Row(record);
    let digest =
        record.get_binary_generic("digest").ok().and_then(|digest| digest.as_slice().try_into().ok());
    let digest = digest.ok_or_else(|| row.fault("digest"))?;
    let until = row.time("until")?.ok_or_else(|| row.fault("until"))?;
    let run_at = row.time("run_at")?.ok_or_else(|| row.fault("run_at"))?;
    let lasts = KeyUntil::from_word(record.get_str("lasts").ok());
    let (id, is_home, is_readable) = (row.text("job")?, false, true);
    let holder = Holder { id, digest, until, lasts, is_home, is_readable, run_at, state: None };
    Ok((row.text("_id")?, holder))
}
