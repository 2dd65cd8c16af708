//! Jobs as documents of the collection `jobs`. Their fields are public: see `docs/documents.md`.

use mongodb::bson::raw::{CStr, cstr};
use mongodb::bson::{Bson, Document, RawBson, RawDocumentBuf, doc};

use crate::job::spec::Headers;
use crate::job::{GroupName, Job, Meta, Payload, QueueName, State, Timestamp};
use crate::store::mongo::jobs::field::Field;
pub use crate::store::mongo::jobs::field::{Row, date, serialized};
use crate::store::mongo::jobs::payload;
use crate::store::mongo::stored::Stored;
use crate::store::{Result, StoreError};

/// The version of the documents that this server writes.
pub const VERSION: i32 = 1;

/// Every field of the metadata and its name in documents, handed to the macro `$then`: reading and writing are made from
/// this table, so that a new field stands here once. Beside it are `_id`, which is never changed, `due`, which is never
/// read, and `progress`, `turn` and `expires_at`, which are not kept as they are.
macro_rules! meta_table {
    ($then:ident) => {
        $then! {
            queue "queue",
            state "state",
            priority "priority",
            run_at "run_at",
            attempts "attempts",
            max_attempts "max_attempts",
            backoff "backoff",
            key "key",
            created_at "created_at",
            started_at "started_at",
            finished_at "finished_at",
            purge_at "purge_at",
            worker "worker",
            claim "claim",
            reserved_until "reserved_until",
            lease_ms "lease_ms",
            cancel_requested "cancel_requested",
            errors "errors",
            trail "trail",
            origin "origin",
            replay_of "replay_of",
            route "then",
            batch "batch",
            group "group",
            semaphores "semaphores",
            waits_for "waits_for",
            waiting_since "waiting_since",
            rev "rev",
        }
    };
}

/// Returns the projection without payload, headers and result, which makes reading the metadata cheap.
pub fn without_contents() -> Document {
    doc! { "payload": 0, "payload_json": 0, "headers": 0, "result": 0, "result_json": 0 }
}

/// Returns a job as a document, in the form in which it is sent: a map of it in between would cost as much again.
pub fn from_job(job: &Job, now: Timestamp) -> Result<RawDocumentBuf> {
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("_id"), job.meta.id.as_str());
    document.append(cstr!("v"), VERSION);
    put_meta(&mut document, &job.meta, now)?;
    put_exact(&mut document, (cstr!("payload"), cstr!("payload_json")), &job.payload)?;
    if !job.headers.is_empty() {
        let headers: Document = job.headers.iter().map(|(name, text)| (name.clone(), text.into())).collect();
        document.put(cstr!("headers"), Some(headers.into()))?;
    }
    if let Some(result) = &job.result {
        put_exact(&mut document, (cstr!("result"), cstr!("result_json")), result)?;
    }
    Ok(document)
}

/// Returns the update that replaces a document's metadata and, where given, its payload and its result.
pub fn update(
    meta: &Meta,
    new_payload: Option<&Payload>,
    result: Option<&Payload>,
    now: Timestamp,
) -> Result<Document> {
    let mut changes = Changes::default();
    put_meta(&mut changes, meta, now)?;
    let Changes { mut set, mut unset } = changes;
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
    Ok(update)
}

/// What fields are written into.
trait Fields {
    /// Writes the field, or that it is absent.
    fn put(&mut self, name: &'static CStr, value: Option<Bson>) -> Result<()>;
}

/// A document: what is absent is left out.
impl Fields for RawDocumentBuf {
    fn put(&mut self, name: &'static CStr, value: Option<Bson>) -> Result<()> {
        if let Some(value) = value {
            self.append(name, RawBson::try_from(value).map_err(StoreError::internal)?);
        }
        Ok(())
    }
}

/// An update: what is absent is removed.
#[derive(Default)]
struct Changes {
    set: Document,
    unset: Document,
}

impl Fields for Changes {
    fn put(&mut self, name: &'static CStr, value: Option<Bson>) -> Result<()> {
        match value {
            Some(value) => self.set.insert(name.as_str(), value),
            None => self.unset.insert(name.as_str(), ""),
        };
        Ok(())
    }
}

/// Puts the metadata.
fn put_meta(fields: &mut impl Fields, meta: &Meta, now: Timestamp) -> Result<()> {
    macro_rules! put {
        ($($field:ident $name:literal,)*) => { $(fields.put(cstr!($name), meta.$field.write()?)?;)* };
    }
    meta_table!(put);
    fields.put(cstr!("due"), meta.due(now).map(|due| date(due).into()))?;
    let progress = meta.progress.as_ref();
    let progress_bson = progress.and_then(payload::to_bson);
    let progress_text = progress.filter(|_| progress_bson.is_none()).map(Payload::as_str);
    fields.put(cstr!("progress"), progress_bson)?;
    fields.put(cstr!("progress_json"), progress_text.map(Bson::from))?;
    fields.put(cstr!("turn"), turn(meta).map(Bson::from))?;
    for name in [EXPIRES_AT, DEAD_EXPIRES_AT] {
        let expires_at = meta.expires_at.filter(|_| expiry_of(meta.state) == name);
        fields.put(name, expires_at.map(|at| date(at).into()))?;
    }
    Ok(())
}

const EXPIRES_AT: &CStr = cstr!("expires_at");
const DEAD_EXPIRES_AT: &CStr = cstr!("dead_expires_at");

/// Returns the field that a job's expiry is kept in. That of one which cannot expire, since it is dead, lies apart: it would stay in
/// the index of what expires, in the way of all reads from its beginning.
fn expiry_of(state: State) -> &'static CStr {
    if state.is_unfinished() { EXPIRES_AT } else { DEAD_EXPIRES_AT }
}

/// Puts a JSON value as BSON under the first name or, where that cannot hold it exactly, as its text under the second.
fn put_exact(
    fields: &mut impl Fields,
    (name, name_of_text): (&'static CStr, &'static CStr),
    value: &Payload,
) -> Result<()> {
    match payload::to_bson(value) {
        Some(bson) => fields.put(name, Some(bson)),
        None => fields.put(name_of_text, Some(value.as_str().into())),
    }
}

/// Returns a job's place in its group's line as one text that sorts by queue, group and place, so that each place is
/// found by one seek. Names have no `/`.
pub fn place_in_line(queue: &QueueName, group: &GroupName, turn: i64) -> String {
    format!("{queue}/{group}/{turn:016x}")
}

fn turn(meta: &Meta) -> Option<String> {
    Some(place_in_line(&meta.queue, meta.group.as_ref()?, meta.turn?))
}

/// Puts a JSON value into a document, as BSON or, where that cannot hold it exactly, as its text.
pub fn put_json(document: &mut Document, name: &str, value: &Payload) {
    match payload::to_bson(value) {
        Some(bson) => document.insert(name, bson),
        None => document.insert(format!("{name}_json"), value.as_str()),
    };
}

/// Reads a job from a document.
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

/// Reads those of these documents that are valid. An invalid one, which another program wrote, is logged and skipped: it
/// must not make the others undeliverable, unreapable or invisible.
pub fn readable<'d, T>(documents: &'d [Stored], read: impl Fn(&'d Document) -> Result<T>) -> Vec<T> {
    let logged = |document: &'d Stored| match read(document) {
        Ok(value) => Some(value),
        Err(error) => {
            tracing::error!(error = crate::store::chain(&error), "a document cannot be read");
            None
        }
    };
    documents.iter().filter_map(logged).collect()
}

/// Reads a job's metadata from a document.
pub fn to_meta(document: &Document) -> Result<Meta> {
    meta(document, false)
}

/// Returns what can be read of the metadata of a job which is to be removed.
pub fn salvaged(document: &Document) -> Result<Meta> {
    meta(document, true)
}

/// `salvages`: what cannot be read is left out, where a job can do without it.
fn meta(document: &Document, salvages: bool) -> Result<Meta> {
    let row = Row(document);
    let state = or_instead(State::read(&row, "state"), salvages)?;
    macro_rules! read {
        ($($field:ident $name:literal,)*) => {
            Meta {
                id: row.text("_id")?,
                expires_at: or_instead(Field::read(&row, expiry_of(state).as_str()), salvages)?,
                progress: row.json("progress").or_else(|error| if salvages { Ok(None) } else { Err(error) })?,
                turn: or_instead(row.some("turn", Row::turn), salvages)?,
                $($field: or_instead(Field::read(&row, $name), salvages)?,)*
            }
        };
    }
    Ok(meta_table!(read))
}

fn or_instead<T: Field>(read: Result<T>, salvages: bool) -> Result<T> {
    match read {
        Err(error) if salvages => T::instead().ok_or(error),
        read => read,
    }
}
