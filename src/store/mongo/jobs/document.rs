//! Jobs as documents of the collection `jobs`. Their fields are public: see `docs/documents.md`.

use mongodb::bson::{Bson, DateTime, Document, doc};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::job::spec::Headers;
use crate::job::{Claim, GroupName, Job, Meta, Payload, QueueName, State, Timestamp};
use crate::store::mongo::jobs::payload;
use crate::store::{Result, StoreError};

/// The version of the documents that this server writes.
pub const VERSION: i32 = 1;

/// The fields that hold what people put into a job; leaving them out makes reading the bookkeeping cheap.
pub fn without_contents() -> Document {
    doc! { "payload": 0, "payload_json": 0, "headers": 0, "result": 0, "result_json": 0 }
}

/// A moment as MongoDB keeps it.
pub fn date(at: Timestamp) -> DateTime {
    DateTime::from_millis(at.millis())
}

/// A whole job as a document.
pub fn from_job(job: &Job, now: Timestamp) -> Document {
    let document = doc! { "_id": job.meta.id.as_str(), "v": VERSION };
    let mut fields = Fields { set: document, unset: None };
    fields.put_meta(&job.meta, now);
    let mut document = fields.set;
    put_json(&mut document, "payload", &job.payload);
    if !job.headers.is_empty() {
        let headers: Document = job.headers.iter().map(|(name, text)| (name.clone(), text.into())).collect();
        document.insert("headers", headers);
    }
    if let Some(result) = &job.result {
        put_json(&mut document, "result", result);
    }
    document
}

/// An update that makes a document's bookkeeping what it is to be, and replaces what people put in where
/// that is given.
pub fn update(
    meta: &Meta,
    new_payload: Option<&Payload>,
    result: Option<&Payload>,
    now: Timestamp,
) -> Document {
    let mut fields = Fields { set: Document::new(), unset: Some(Document::new()) };
    fields.put_meta(meta, now);
    let (mut set, mut unset) = (fields.set, fields.unset.unwrap_or_default());
    for (name, value) in [("payload", new_payload), ("result", result)] {
        if let Some(value) = value {
            put_json(&mut set, name, value);
            let json_name = format!("{name}_json");
            let stale = if set.contains_key(name) { json_name } else { name.to_owned() };
            unset.insert(stale, "");
        }
    }
    let mut update = doc! { "$set": set };
    if !unset.is_empty() {
        update.insert("$unset", unset);
    }
    update
}

/// The fields that a document is to have and, where it is there already, those that it is not to have.
struct Fields {
    set: Document,
    unset: Option<Document>,
}

impl Fields {
    fn put(&mut self, name: &str, value: impl Into<Bson>) {
        self.set.insert(name, value);
    }

    fn maybe(&mut self, name: &str, value: Option<impl Into<Bson>>) {
        match (value, &mut self.unset) {
            (Some(value), _) => self.put(name, value),
            (None, Some(unset)) => drop(unset.insert(name, "")),
            (None, None) => {}
        }
    }

    /// The bookkeeping.
    fn put_meta(&mut self, meta: &Meta, now: Timestamp) {
        self.put("queue", meta.queue.as_str());
        self.put("state", meta.state.as_str());
        self.put("priority", meta.priority);
        self.put("run_at", date(meta.run_at));
        self.maybe("due", meta.due(now).map(date));
        self.put("attempts", i64::from(meta.attempts));
        self.maybe("max_attempts", meta.max_attempts.map(i64::from));
        self.maybe("backoff", meta.backoff.as_ref().map(serialized));
        self.maybe("key", meta.key.as_ref().map(|key| key.as_str()));
        self.put("created_at", date(meta.created_at));
        self.maybe("started_at", meta.started_at.map(date));
        self.maybe("finished_at", meta.finished_at.map(date));
        self.maybe("expires_at", meta.expires_at.map(date));
        self.maybe("purge_at", meta.purge_at.map(date));
        self.maybe("worker", meta.worker.as_ref().map(|worker| worker.as_str()));
        self.maybe("claim", meta.claim.as_ref().map(Claim::as_str));
        self.maybe("reserved_until", meta.reserved_until.map(date));
        self.maybe("lease_ms", meta.lease_ms.map(u64::cast_signed));
        let progress = meta.progress.as_ref();
        let progress_bson = progress.and_then(payload::to_bson);
        let progress_text = if progress_bson.is_none() { progress.map(Payload::as_str) } else { None };
        self.maybe("progress", progress_bson);
        self.maybe("progress_json", progress_text);
        self.maybe("cancel_requested", meta.cancel_requested.then_some(true));
        self.maybe("errors", (!meta.errors.is_empty()).then(|| serialized(&meta.errors)));
        self.maybe("trail", (!meta.trail.is_empty()).then(|| serialized(&meta.trail)));
        self.maybe("origin", meta.origin.as_ref().map(serialized));
        self.maybe("replay_of", meta.replay_of.as_ref().map(|id| id.as_str()));
        self.maybe("then", (!meta.route.is_empty()).then(|| serialized(&meta.route)));
        self.maybe("batch", meta.batch.as_ref().map(|batch| batch.as_str()));
        self.maybe("group", meta.group.as_ref().map(|group| group.as_str()));
        self.maybe("turn", turn(meta));
        self.maybe("semaphores", (!meta.semaphores.is_empty()).then(|| serialized(&meta.semaphores)));
        self.maybe("waits_for", meta.waits_for.as_ref().map(|semaphore| semaphore.as_str()));
        self.maybe("waiting_since", meta.waiting_since.map(date));
        self.put("rev", meta.rev);
    }
}

/// Where a job stands, in one text that sorts by queue, group and place in the line, so that many places are found by
/// one seek each: names have no `/`.
pub fn place_in_line(queue: &QueueName, group: &GroupName, turn: i64) -> String {
    format!("{queue}/{group}/{turn:016x}")
}

fn turn(meta: &Meta) -> Option<String> {
    Some(place_in_line(&meta.queue, meta.group.as_ref()?, meta.turn?))
}

/// Small parts of the bookkeeping go through serde; their moments become text, which is fine where nobody
/// sorts by them.
pub fn serialized(value: &impl Serialize) -> Bson {
    mongodb::bson::serialize_to_bson(value).unwrap_or(Bson::Null)
}

/// Puts a JSON value into a document, as BSON or, where that cannot hold it exactly, as its text.
pub fn put_json(document: &mut Document, name: &str, value: &Payload) {
    match payload::to_bson(value) {
        Some(bson) => document.insert(name, bson),
        None => document.insert(format!("{name}_json"), value.as_str()),
    };
}

/// The whole job in a document.
pub fn to_job(document: &Document) -> Result<Job> {
    let row = Row(document);
    let headers: Option<Headers> = row.part("headers")?;
    Ok(Job {
        meta: to_meta(document)?,
        payload: row.json("payload")?.ok_or_else(|| row.fault("payload"))?,
        headers: headers.unwrap_or_default(),
        result: row.json("result")?,
    })
}

/// What can be read of these documents. One that another program spoiled is logged and passed over: it
/// must not make the others undeliverable, unreapable or invisible.
pub fn readable<T>(documents: &[Document], read: impl Fn(&Document) -> Result<T>) -> Vec<T> {
    let logged = |document| match read(document) {
        Ok(value) => Some(value),
        Err(error) => {
            tracing::error!(error = crate::store::chain(&error), "a job cannot be read");
            None
        }
    };
    documents.iter().filter_map(logged).collect()
}

/// The bookkeeping in a document.
pub fn to_meta(document: &Document) -> Result<Meta> {
    let row = Row(document);
    Ok(Meta {
        id: row.text("_id")?,
        queue: row.text("queue")?,
        state: document.get_str("state").ok().and_then(State::from_word).ok_or_else(|| row.fault("state"))?,
        priority: row.number("priority")?,
        run_at: row.time("run_at")?.ok_or_else(|| row.fault("run_at"))?,
        attempts: row.number("attempts")?,
        max_attempts: row.some("max_attempts", Row::number)?,
        backoff: row.part("backoff")?,
        key: row.some("key", Row::text)?,
        created_at: row.time("created_at")?.ok_or_else(|| row.fault("created_at"))?,
        started_at: row.time("started_at")?,
        finished_at: row.time("finished_at")?,
        expires_at: row.time("expires_at")?,
        purge_at: row.time("purge_at")?,
        worker: row.some("worker", Row::text)?,
        claim: document.get_str("claim").ok().map(Claim::from_stored),
        reserved_until: row.time("reserved_until")?,
        lease_ms: row.some("lease_ms", Row::number)?,
        progress: row.json("progress")?,
        cancel_requested: document.get_bool("cancel_requested").unwrap_or(false),
        errors: row.part("errors")?.unwrap_or_default(),
        trail: row.part("trail")?.unwrap_or_default(),
        origin: row.part("origin")?,
        replay_of: row.some("replay_of", Row::text)?,
        route: row.part("then")?.unwrap_or_default(),
        batch: row.some("batch", Row::text)?,
        group: row.some("group", Row::text)?,
        turn: row.some("turn", Row::turn)?,
        semaphores: row.part("semaphores")?.unwrap_or_default(),
        waits_for: row.some("waits_for", Row::text)?,
        waiting_since: row.time("waiting_since")?,
        rev: row.number("rev")?,
    })
}

/// Reads fields of one document; what is not as the schema says is an error that names the field.
pub struct Row<'a>(pub &'a Document);

impl Row<'_> {
    /// The error that this field is not what it should be.
    pub fn fault(&self, field: &str) -> StoreError {
        let id = self.0.get("_id").map(ToString::to_string).unwrap_or_default();
        StoreError::internal(format_args!("the document {id} has no valid field {field}"))
    }

    /// A text that must parse.
    pub fn text<T: std::str::FromStr>(&self, field: &str) -> Result<T> {
        self.0.get_str(field).ok().and_then(|text| text.parse().ok()).ok_or_else(|| self.fault(field))
    }

    /// An integer of either width that must fit.
    pub fn number<T: TryFrom<i64>>(&self, field: &str) -> Result<T> {
        let value = match self.0.get(field) {
            Some(Bson::Int32(number)) => i64::from(*number),
            Some(Bson::Int64(number)) => *number,
            _ => return Err(self.fault(field)),
        };
        T::try_from(value).map_err(|_| self.fault(field))
    }

    /// The end of what [`place_in_line`] made.
    fn turn(&self, field: &str) -> Result<i64> {
        let text = self.0.get_str(field).map_err(|_| self.fault(field))?;
        let number = text.rsplit('/').next().and_then(|number| i64::from_str_radix(number, 16).ok());
        number.ok_or_else(|| self.fault(field))
    }

    /// A date, if the field is there.
    pub fn time(&self, field: &str) -> Result<Option<Timestamp>> {
        match self.0.get(field) {
            None | Some(Bson::Null) => Ok(None),
            Some(Bson::DateTime(at)) => Ok(Some(Timestamp::from_millis(at.timestamp_millis()))),
            Some(_) => Err(self.fault(field)),
        }
    }

    fn some<T>(&self, field: &str, read: impl Fn(&Self, &str) -> Result<T>) -> Result<Option<T>> {
        match self.0.get(field) {
            None | Some(Bson::Null) => Ok(None),
            Some(_) => read(self, field).map(Some),
        }
    }

    /// A part that goes through serde, if the field is there.
    pub fn part<T: DeserializeOwned>(&self, field: &str) -> Result<Option<T>> {
        self.some(field, |row, field| {
            let value = row.0.get(field).cloned().unwrap_or(Bson::Null);
            mongodb::bson::deserialize_from_bson(value).map_err(|_| row.fault(field))
        })
    }

    /// A JSON value that [`put_json`] put there.
    pub fn json(&self, field: &str) -> Result<Option<Payload>> {
        if let Some(value) = self.0.get(field) {
            return payload::from_bson(value).map(Some).map_err(|_| self.fault(field));
        }
        let text = self.0.get_str(format!("{field}_json")).ok();
        text.map(|text| Payload::parse(text).map_err(|_| self.fault(field))).transpose()
    }
}
