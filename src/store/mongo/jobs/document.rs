//! Jobs as documents of the collection `jobs`. Their fields are public: see `docs/documents.md`.

use std::collections::BTreeMap;

use bytes::Bytes;
use mongodb::bson::raw::{CStr, cstr};
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{self, Bson, Document, RawBson, RawDocumentBuf, doc};

use crate::job::rate::Deliveries;
use crate::job::spec::Headers;
use crate::job::trace::OfJob;
use crate::job::transition::Salvaged;
use crate::job::{Binary, Content, GroupName, Job, Meta, Payload, QueueName, State, Timestamp};
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
            default_lease_ms "default_lease_ms",
            max_run_ms "max_run_ms",
            backoff "backoff",
            key "key",
            created_at "created_at",
            started_at "started_at",
            finished_at "finished_at",
            purge_at "purge_at",
            retain_result_ms "retain_result_ms",
            worker "worker",
            claim "claim",
            reserved_until "reserved_until",
            lease_ms "lease_ms",
            extended_at "extended_at",
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
            came_at "came_at",
            given_back_at "given_back_at",
            rev "rev",
        }
    };
}

/// Returns the update that makes of a document the job that it was mended to. Fields that are not ours stay.
pub fn mending(job: &Job, now: Timestamp) -> Result<Document> {
    let mut update = update(&job.meta, Some(&job.payload), job.result.as_ref(), Some(&job.headers), now)?;
    let mut unset = if job.result.is_none() {
        doc! { "result": "", "result_json": "" }
    } else {
        doc! {}
    };
    unset.extend(update.remove("$unset").and_then(|unset| unset.as_document().cloned()).unwrap_or_default());
    if let Ok(set) = update.get_document_mut("$set") {
        set.insert("v", VERSION);
        set.insert("rev", rand::random::<i64>());
    }
    update.insert("$unset", unset);
    Ok(update)
}

/// Returns the projection without payload, headers and result, which makes reading the metadata cheap.
pub fn without_contents() -> Document {
    doc! { "payload": 0, "payload_json": 0, "payload_binary": 0, "headers": 0, "headers_json": 0, "result": 0, "result_json": 0 }
}

/// Returns the projection without payload and result, which may be long.
pub fn without_long() -> Document {
    doc! { "payload": 0, "payload_json": 0, "payload_binary": 0, "result": 0, "result_json": 0 }
}

/// Returns the projection of nothing but the payload.
pub fn only_payload() -> Document {
    doc! { "payload": 1, "payload_json": 1, "payload_type": 1, "payload_binary": 1 }
}

/// Reads the payload of a document that has it.
pub fn payload_of(document: &Document) -> Result<Content> {
    let row = Row(document);
    content(&row)?.ok_or_else(|| row.fault("payload"))
}

/// Returns a job as a document, in the form in which it is sent: a map of it in between would cost as much again.
pub fn from_job(job: &Job, now: Timestamp) -> Result<RawDocumentBuf> {
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("_id"), job.meta.id.as_str());
    document.append(cstr!("v"), VERSION);
    put_meta(&mut document, &job.meta, now)?;
    put_content(&mut document, &job.payload)?;
    put_headers(&mut document, &job.headers)?;
    if let Some(result) = &job.result {
        put_exact(&mut document, (cstr!("result"), cstr!("result_json")), result)?;
    }
    Ok(document)
}

/// Returns the update that replaces a document's metadata and, where given, its payload, its result and its headers.
pub fn update(
    meta: &Meta,
    new_payload: Option<&Content>,
    result: Option<&Payload>,
    headers: Option<&Headers>,
    now: Timestamp,
) -> Result<Document> {
    let mut changes = Changes::default();
    put_meta(&mut changes, meta, now)?;
    if let Some(headers) = headers {
        put_headers(&mut changes, headers)?;
    }
    if let Some(payload) = new_payload {
        put_content(&mut changes, payload)?;
    }
    let Changes { mut set, mut unset } = changes;
    if let Some(result) = result {
        put_json(&mut set, "result", result);
        unset.insert(if set.contains_key("result") { "result_json" } else { "result" }, "");
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

/// Puts the headers: those that are strings as a document, and all others as one JSON text, since older servers, which know
/// only strings, could not read the job.
fn put_headers(fields: &mut impl Fields, headers: &Headers) -> Result<()> {
    let (mut texts, mut others) = (Document::new(), BTreeMap::new());
    for (name, value) in headers {
        match payload::to_bson(value) {
            Some(Bson::String(text)) => drop(texts.insert(name, text)),
            _ => drop(others.insert(name, value)),
        }
    }
    fields.put(cstr!("headers"), (!texts.is_empty()).then(|| texts.into()))?;
    let others = (!others.is_empty()).then(|| serde_json::to_string(&others)).transpose();
    fields.put(cstr!("headers_json"), others.map_err(StoreError::internal)?.map(Bson::from))
}

/// Reads the headers. Another program may have written any value into the document of those that are strings.
fn headers(row: &Row<'_>) -> Result<Headers> {
    let mut headers = match row.0.get("headers_json") {
        None | Some(Bson::Null) => Headers::new(),
        Some(text) => {
            let headers = text.as_str().and_then(|text| serde_json::from_str(text).ok());
            headers.ok_or_else(|| row.fault("headers_json"))?
        }
    };
    match row.0.get("headers") {
        None | Some(Bson::Null) => {}
        Some(Bson::Document(texts)) => {
            for (name, value) in texts {
                headers.insert(name.clone(), header(value).ok_or_else(|| row.fault("headers"))?);
            }
        }
        Some(_) => return Err(row.fault("headers")),
    }
    Ok(headers)
}

fn header(value: &Bson) -> Option<Payload> {
    Some(value).filter(|value| **value != Bson::Undefined).and_then(|value| payload::from_bson(value).ok())
}

/// Returns those headers that can be read.
fn salvaged_headers(row: &Row<'_>) -> Headers {
    let others = row.0.get_str("headers_json").ok().and_then(|text| serde_json::from_str(text).ok());
    let mut headers: Headers = others.unwrap_or_default();
    let texts = row.0.get_document("headers").into_iter().flatten();
    headers.extend(texts.filter_map(|(name, value)| Some((name.clone(), header(value)?))));
    headers
}

const EXPIRES_AT: &CStr = cstr!("expires_at");
const DEAD_EXPIRES_AT: &CStr = cstr!("dead_expires_at");

/// Returns the field that a job's expiry is kept in. That of one which cannot expire, since it is dead, lies apart: it would stay in
/// the index of what expires, in the way of all reads from its beginning.
fn expiry_of(state: State) -> &'static CStr {
    if state.is_unfinished() { EXPIRES_AT } else { DEAD_EXPIRES_AT }
}

/// Puts the payload, and that it is in none of the other fields.
fn put_content(fields: &mut impl Fields, payload: &Content) -> Result<()> {
    let (mut json, mut text, mut bytes, mut media_type) = (None, None, None, None);
    match payload {
        Content::Json(value) => {
            json = payload::to_bson(value);
            text = json.is_none().then(|| value.as_str().into());
        }
        Content::Binary(binary) => {
            let subtype = BinarySubtype::Generic;
            bytes = Some(bson::Binary { subtype, bytes: binary.bytes.to_vec() }.into());
            media_type = Some(binary.media_type.as_str().into());
        }
    }
    fields.put(cstr!("payload"), json)?;
    fields.put(cstr!("payload_json"), text)?;
    fields.put(cstr!("payload_type"), media_type)?;
    fields.put(cstr!("payload_binary"), bytes)
}

/// Reads the payload. Bytes count only beside no other form: an older server does not know them, and leaves them behind where it gives the
/// job another payload.
fn content(row: &Row<'_>) -> Result<Option<Content>> {
    if let Some(payload) = row.json("payload")? {
        return Ok(Some(payload.into()));
    }
    let bytes = match row.0.get("payload_binary") {
        None | Some(Bson::Null) => return Ok(None),
        Some(Bson::Binary(binary)) => Bytes::copy_from_slice(&binary.bytes),
        Some(_) => return Err(row.fault("payload_binary")),
    };
    let media_type = row.some("payload_type", Row::text)?.unwrap_or_default();
    Ok(Some(Binary { bytes, media_type }.into()))
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
    Ok(Job {
        meta: to_meta(document)?,
        payload: payload_of(document)?,
        headers: headers(&row)?,
        result: row.json("result")?,
    })
}

/// Returns the trace of a job, as far as its document was read and says one.
pub fn trace_of(document: &Document) -> OfJob {
    OfJob::read(&salvaged_headers(&Row(document)))
}

/// Reads a job from a document that was read [without](without_long) its payload and its result: they are `null` and none.
pub fn to_job_without_contents(document: &Document) -> Result<Job> {
    let (meta, headers) = (to_meta(document)?, headers(&Row(document))?);
    Ok(Job { meta, payload: Content::null(), headers, result: None })
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

/// Returns what a queue has delivered lately, by its document in `limits`. What cannot be read must not stop the queue: the window begins anew.
pub fn deliveries_of(found: &Document) -> Deliveries {
    Row(found)
        .part("recent")
        .unwrap_or_else(|error| {
            tracing::error!(error = crate::store::chain(&error), "the deliveries of a queue cannot be read");
            None
        })
        .unwrap_or_default()
}

/// Reads a job's metadata from a document.
pub fn to_meta(document: &Document) -> Result<Meta> {
    let meta = meta(document, false)?;
    match meta.lacking() {
        Some(field) => Err(Row(document).fault(field)),
        None => Ok(meta),
    }
}

/// Returns a field that a job lacks which could be read else.
pub fn lacking(document: &Document) -> Result<Option<&'static str>> {
    Ok(meta(document, false)?.lacking())
}

/// Returns what can be read of the metadata of a job that cannot be read.
pub fn salvaged(document: &Document) -> Result<Meta> {
    meta(document, true)
}

/// Returns what can be read of the contents of such a job.
pub fn salvaged_contents(document: &Document) -> Salvaged {
    let row = Row(document);
    let json = |field| row.json(field).ok().flatten();
    let payload = content(&row).ok().flatten();
    Salvaged { payload, headers: salvaged_headers(&row), result: json("result") }
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
