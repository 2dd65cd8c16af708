//! The lines of a backup: one for each thing, as JSON. The fields are named as in the HTTP contract, or else as in `docs/documents.md`; times
//! are RFC 3339, bytes are base64, and JSON values stand there byte for byte as they are stored.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::job::batch::Endings;
use crate::job::payload::present;
use crate::job::rate::Deliveries;
use crate::job::receipt::{self, Receipt, WentTo};
use crate::job::record::KeyUntil;
use crate::job::schedule::ScheduleRun;
use crate::job::spec::Headers;
use crate::job::{
    ApiKey, ApiKeyId, ApiKeyName, Base64, Batch, BatchId, BatchResult, Bulk, Child, Claim, Content, Ending,
    Job, JobId, JobKey, MediaType, Meta, OnFinished, Payload, QueueName, QueuePattern, QueueSettings, Rate,
    Schedule, ScheduleName, ScheduleRule, Scope, SecretHash, SemaphoreName, Timestamp,
};
use crate::store::picture::{Item, Kind};
use crate::store::{HeldKey, KeyedCall, Memo, StoredSettings};

/// What the first line says that the file is.
pub const FORMAT: &str = "tailback-backup";
/// The version of the format. Fields may be added without a new one where a restore may do without them.
pub const VERSION: u32 = 1;

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// What line it is.
    pub kind: String,
    /// Always `FORMAT`.
    pub format: String,
    /// See `VERSION`.
    pub version: u32,
    /// Identifies the backup.
    pub id: String,
    /// The version of the program that wrote it.
    pub tailback: String,
    /// The kind of store that it was read from.
    pub store: String,
    /// The moment that it shows.
    pub at: Timestamp,
}

/// The last line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub kind: String,
    /// How many lines there are of each kind.
    pub counts: BTreeMap<String, u64>,
    /// How many things were left out since they could not be read.
    pub left_out: u64,
    /// How many jobs stand in for such that could not be read as they are.
    #[serde(default)]
    pub salvaged: u64,
    /// The SHA-256 of all lines before this one, with their ends.
    pub sha256: String,
}

/// What a line is.
#[derive(Deserialize)]
pub struct Of {
    #[serde(default)]
    pub kind: String,
}

#[derive(Serialize, Deserialize)]
struct Secret {
    secret: Base64,
}

#[derive(Serialize, Deserialize)]
struct Settings {
    queue: QueueName,
    version: String,
    settings: QueueSettings,
}

#[derive(Serialize, Deserialize)]
struct Key {
    queue: QueueName,
    key: JobKey,
    job: JobId,
    digest: Base64,
    until: Timestamp,
    run_at: Timestamp,
    lasts: KeyUntil,
}

#[derive(Serialize, Deserialize)]
struct Access {
    id: ApiKeyId,
    name: ApiKeyName,
    hash: Base64,
    scopes: Vec<Scope>,
    queues: Vec<QueuePattern>,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    rate: Option<Rate>,
    max_concurrent: Option<u32>,
    last_used_at: Option<Timestamp>,
}

#[derive(Serialize, Deserialize)]
struct Semaphore {
    name: SemaphoreName,
    capacity: u64,
}

#[derive(Serialize, Deserialize)]
struct BatchLine {
    id: BatchId,
    sealed: bool,
    pending: u64,
    done: u64,
    dead: u64,
    cancelled: u64,
    created_at: Timestamp,
    finished_at: Option<Timestamp>,
    purge_at: Option<Timestamp>,
    callback: JobId,
    on_finished: Option<OnFinished>,
    owner: Option<ApiKeyId>,
}

#[derive(Serialize, Deserialize)]
struct ResultLine {
    batch: BatchId,
    id: JobId,
    queue: QueueName,
    state: Ending,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    result: Option<Payload>,
    finished_at: Timestamp,
}

/// What a job has beside its metadata.
#[derive(Deserialize)]
struct Contents {
    payload: Payload,
    #[serde(default)]
    payload_base64: Option<Base64>,
    #[serde(default)]
    payload_type: Option<MediaType>,
    headers: Headers,
    #[serde(default, deserialize_with = "present")]
    result: Option<Payload>,
}

#[derive(Serialize, Deserialize)]
struct To {
    queue: QueueName,
    run_at: Timestamp,
    blocked: bool,
}

#[derive(Serialize, Deserialize)]
struct ReceiptLine {
    job: JobId,
    claim: Claim,
    verb: String,
    queue: QueueName,
    to: Option<To>,
    started_at: Option<Timestamp>,
    pushed: Vec<Child>,
    until: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct Request {
    id: String,
    digest: Base64,
    claim: Claim,
    won: Option<Vec<JobId>>,
    until: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    id: String,
    digest: Base64,
    answer: String,
    until: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct DeliveriesLine {
    queue: QueueName,
    recent: Deliveries,
}

#[derive(Serialize, Deserialize)]
struct ScheduleLine {
    name: ScheduleName,
    rule: ScheduleRule,
    version: String,
    next_at: Option<Timestamp>,
    last_job: Option<JobId>,
    last_runs: Vec<ScheduleRun>,
}

fn base64(bytes: &[u8; 32]) -> Base64 {
    Base64(bytes.to_vec().into())
}

fn bytes(base64: &Base64, field: &str) -> Result<[u8; 32], String> {
    base64.0[..].try_into().map_err(|_| format!("{field} must be 32 bytes"))
}

/// Returns the line of a thing, without its end.
pub fn write(item: &Item) -> serde_json::Result<String> {
    let fields = match item {
        Item::TokenSecret(secret) => serde_json::to_string(&Secret { secret: base64(secret) }),
        Item::Settings(queue, StoredSettings { settings, version }) => {
            let (queue, version) = (queue.clone(), version.clone());
            serde_json::to_string(&Settings { queue, version, settings: settings.clone() })
        }
        Item::ApiKey(key) => serde_json::to_string(&Access::from(key)),
        Item::Key(key) => serde_json::to_string(&Key {
            queue: key.queue.clone(),
            key: key.key.clone(),
            job: key.job.clone(),
            digest: base64(&key.digest),
            until: key.until,
            run_at: key.run_at,
            lasts: key.lasts,
        }),
        Item::Semaphore(name, capacity) => {
            serde_json::to_string(&Semaphore { name: name.clone(), capacity: *capacity })
        }
        Item::Batch(batch) => serde_json::to_string(&BatchLine::from(batch)),
        Item::BatchResult(batch, result) => serde_json::to_string(&ResultLine {
            batch: batch.clone(),
            id: result.id.clone(),
            queue: result.queue.clone(),
            state: result.state,
            result: result.result.clone(),
            finished_at: result.finished_at,
        }),
        Item::Job(job) => serde_json::to_string(job),
        Item::Memo(memo) => write_memo(memo),
        Item::Operation(operation) => serde_json::to_string(operation),
        Item::Audit(row) => serde_json::to_string(row),
        Item::Schedule(schedule) => serde_json::to_string(&ScheduleLine {
            name: schedule.name.clone(),
            rule: schedule.rule.clone(),
            version: schedule.version.clone(),
            next_at: schedule.next_at,
            last_job: schedule.last_job.clone(),
            last_runs: schedule.last_runs.clone(),
        }),
    }?;
    let kind = item.kind().as_str();
    Ok(format!("{{\"kind\":\"{kind}\",{}", fields.get(1..).unwrap_or_default()))
}

fn write_memo(memo: &Memo) -> serde_json::Result<String> {
    match memo {
        Memo::Receipt { receipt, until } => serde_json::to_string(&ReceiptLine {
            job: receipt.id.clone(),
            claim: receipt.claim.clone(),
            verb: receipt::word(receipt.verb).unwrap_or_default().to_owned(),
            queue: receipt.queue.clone(),
            to: receipt.went_to().map(|WentTo { queue, run_at, blocked }| To { queue, run_at, blocked }),
            started_at: receipt.started_at,
            pushed: receipt.pushed.clone(),
            until: *until,
        }),
        Memo::Request { id, digest, claim, won, until } => {
            let (id, claim, won) = (id.clone(), claim.clone(), won.clone());
            serde_json::to_string(&Request { id, digest: base64(digest), claim, won, until: *until })
        }
        Memo::Answer { call: KeyedCall { id, digest, until }, answer } => {
            let (id, answer) = (id.clone(), answer.clone());
            serde_json::to_string(&Answer { id, digest: base64(digest), answer, until: *until })
        }
        Memo::Deliveries { queue, recent } => {
            serde_json::to_string(&DeliveriesLine { queue: queue.clone(), recent: recent.clone() })
        }
    }
}

impl From<&ApiKey> for Access {
    fn from(key: &ApiKey) -> Self {
        Self {
            id: key.id.clone(),
            name: key.name.clone(),
            hash: base64(key.hash.as_bytes()),
            scopes: key.scopes.clone(),
            queues: key.queues.clone(),
            created_at: key.created_at,
            expires_at: key.expires_at,
            rate: key.rate,
            max_concurrent: key.max_concurrent,
            last_used_at: key.last_used_at,
        }
    }
}

impl From<&Batch> for BatchLine {
    fn from(batch: &Batch) -> Self {
        let Endings { done, dead, cancelled } = batch.endings;
        Self {
            id: batch.id.clone(),
            sealed: batch.sealed,
            pending: batch.pending,
            done,
            dead,
            cancelled,
            created_at: batch.created_at,
            finished_at: batch.finished_at,
            purge_at: batch.purge_at,
            callback: batch.callback.clone(),
            on_finished: batch.on_finished.clone(),
            owner: batch.owner.clone(),
        }
    }
}

/// Parses a line, or says which field is wrong.
pub fn parse<T: DeserializeOwned>(line: &str) -> Result<T, String> {
    let mut from = serde_json::Deserializer::from_str(line);
    let parsed = serde_path_to_error::deserialize(&mut from).map_err(|error| {
        let path = error.path().to_string();
        match path.as_str() {
            "." => error.inner().to_string(),
            path => format!("{path}: {}", error.inner()),
        }
    })?;
    from.end().map_err(|error| error.to_string())?;
    Ok(parsed)
}

/// Reads the line of a thing of this kind, and returns it with the line that this version would write: every field must say in that what it
/// says here, so that nothing is lost that this version does not know.
pub fn read(kind: Kind, line: &str) -> Result<(Item, String), String> {
    let item = match kind {
        Kind::TokenSecret => Item::TokenSecret(bytes(&parse::<Secret>(line)?.secret, "secret")?),
        Kind::Settings => {
            let Settings { queue, version, settings } = parse(line)?;
            if let Some((field, why)) = settings.fault() {
                return Err(format!("settings/{field} {why}"));
            }
            Item::Settings(queue, StoredSettings { settings, version })
        }
        Kind::ApiKey => Item::ApiKey(api_key(parse(line)?)?),
        Kind::Key => {
            let Key { queue, key, job, digest, until, run_at, lasts } = parse(line)?;
            let digest = bytes(&digest, "digest")?;
            Item::Key(HeldKey { queue, key, job, digest, until, run_at, lasts })
        }
        Kind::Semaphore => {
            let Semaphore { name, capacity } = parse(line)?;
            if i64::try_from(capacity).is_err() {
                return Err("capacity must be at most 9223372036854775807".to_owned());
            }
            Item::Semaphore(name, capacity)
        }
        Kind::Batch => Item::Batch(batch(parse(line)?)),
        Kind::BatchResult => {
            let ResultLine { batch, id, queue, state, result, finished_at } = parse(line)?;
            Item::BatchResult(batch, BatchResult { id, queue, state, result, finished_at })
        }
        Kind::Job => Item::Job(Box::new(job(line)?)),
        Kind::Receipt | Kind::Request | Kind::Answer | Kind::Deliveries => Item::Memo(memo(kind, line)?),
        Kind::Operation => Item::Operation(Box::new(operation(parse(line)?)?)),
        Kind::Audit => Item::Audit(Box::new(parse(line)?)),
        Kind::Schedule => {
            let ScheduleLine { name, rule, version, next_at, last_job, last_runs } = parse(line)?;
            let rev = rand::random();
            Item::Schedule(Box::new(Schedule { name, rule, version, rev, next_at, last_job, last_runs }))
        }
    };
    let own = write(&item).map_err(|error| error.to_string())?;
    if own != line {
        compare(line, &own)?;
    }
    Ok((item, own))
}

fn memo(kind: Kind, line: &str) -> Result<Memo, String> {
    Ok(match kind {
        Kind::Request => {
            let Request { id, digest, claim, won, until } = parse(line)?;
            Memo::Request { id, digest: bytes(&digest, "digest")?, claim, won, until }
        }
        Kind::Answer => {
            let Answer { id, digest, answer, until } = parse(line)?;
            Memo::Answer { call: KeyedCall { id, digest: bytes(&digest, "digest")?, until }, answer }
        }
        Kind::Deliveries => {
            let DeliveriesLine { queue, recent } = parse(line)?;
            Memo::Deliveries { queue, recent }
        }
        _ => {
            let ReceiptLine { job, claim, verb, queue, to, started_at, pushed, until } = parse(line)?;
            let verb = receipt::verb(&verb).ok_or("verb must be one of: commit, move, cancel")?;
            let went_to = to.map(|To { queue, run_at, blocked }| WentTo { queue, run_at, blocked });
            let (outcome, at) = (Receipt::outcome_of(verb, went_to), Receipt::made_at(until));
            Memo::Receipt {
                receipt: Receipt { id: job, claim, verb, queue, outcome, started_at, pushed, at },
                until,
            }
        }
    })
}

fn api_key(key: Access) -> Result<ApiKey, String> {
    if let Some((field, why)) = ApiKey::fault(&key.scopes, &key.queues) {
        return Err(format!("{field} {why}"));
    }
    Ok(ApiKey {
        hash: SecretHash::from_stored(bytes(&key.hash, "hash")?),
        id: key.id,
        name: key.name,
        scopes: key.scopes,
        queues: key.queues,
        created_at: key.created_at,
        expires_at: key.expires_at,
        rate: key.rate,
        max_concurrent: key.max_concurrent,
        last_used_at: key.last_used_at,
    })
}

fn operation(operation: Bulk) -> Result<Bulk, String> {
    match operation.intent.fault() {
        Some((field, why)) => Err(format!("intent{field} {why}")),
        None => Ok(operation),
    }
}

fn batch(line: BatchLine) -> Batch {
    let BatchLine {
        id,
        sealed,
        pending,
        created_at,
        finished_at,
        purge_at,
        callback,
        on_finished,
        owner,
        ..
    } = line;
    let endings = Endings { done: line.done, dead: line.dead, cancelled: line.cancelled };
    Batch { id, sealed, pending, endings, created_at, finished_at, purge_at, callback, on_finished, owner }
}

fn job(line: &str) -> Result<Job, String> {
    let meta: Meta = parse(line)?;
    if let Some(field) = meta.lacking() {
        return Err(format!("{field} is missing in a job that is {}", meta.state.as_str()));
    }
    let Contents { payload, payload_base64, payload_type, headers, result } = parse(line)?;
    Content::check_fields(&payload, payload_base64.as_ref(), payload_type.as_ref())
        .map_err(|invalid| invalid.to_string())?;
    Ok(Job { meta, payload: Content::of(payload, payload_base64, payload_type), headers, result })
}

/// Refuses a line with a field that is unknown here, or would be another one.
fn compare(line: &str, own: &str) -> Result<(), String> {
    let fields = |text| parse::<BTreeMap<String, Box<RawValue>>>(text);
    let own = fields(own)?;
    for (name, value) in fields(line)? {
        match own.get(&name) {
            None => return Err(format!("has the field {name:?}, which this version does not know")),
            Some(known) if known.get() != value.get() => {
                return Err(format!("the value of {name:?} is not as Tailback writes it"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}
