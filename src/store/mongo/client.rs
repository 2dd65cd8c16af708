//! The connection: options that hold whatever the URL says, deadlines, and what errors mean.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use mongodb::bson::raw::cstr;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::error::{Error, ErrorKind, WriteFailure};
use mongodb::options::{Acknowledgment, ClientOptions, ReadConcern, WriteConcern};
use mongodb::{Client, Collection, Database};
use serde::Serialize;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use crate::faults;
use crate::store::mongo::JOBS;
use crate::store::mongo::META;
use crate::store::mongo::codes::{is_own_duplicate, meaning};
use crate::store::mongo::deployment::unsuitable;
use crate::store::mongo::pool::PoolEvents;
use crate::store::mongo::term::Terms;
use crate::store::{Cause, Pool, Result, StoreError, Term};

/// How to reach the database.
#[derive(Debug, Clone)]
pub struct MongoOptions {
    /// `mongodb://…/DATABASE` or `mongodb+srv://…/DATABASE`.
    pub url: String,
    /// The longest that one verb may take.
    pub deadline: Duration,
    /// The most connections to one member.
    pub pool_size: u32,
    /// Whether the validator of `jobs` judges the server's own documents as well, which always pass: the proof of that in tests.
    pub validates_own: bool,
}

/// The `maxWireVersion` of MongoDB 7.0.
const WIRE_VERSION_OF_7_0: i32 = 21;

/// Writes return once a majority of the members has them in their journals.
pub fn durable() -> WriteConcern {
    if faults::bug("answer_early") {
        return WriteConcern::builder().w(Acknowledgment::Nodes(1)).journal(false).build();
    }
    WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build()
}

/// The same as a field of a raw command.
pub fn durable_document() -> Document {
    if faults::bug("answer_early") {
        return doc! { "w": 1, "j": false };
    }
    doc! { "w": "majority", "j": true }
}

/// One database on one deployment, connected to when it is first needed.
pub struct Connection {
    options: MongoOptions,
    database: OnceCell<Database>,
    pool: Arc<PoolEvents>,
    terms: Arc<Terms>,
    /// Whether the server's own writes to `jobs` pass by the validator.
    bypasses_validator: AtomicBool,
    /// Of the server that replied last; 0 before one has.
    wire_version: AtomicI32,
}

impl Connection {
    /// Nothing is sent yet.
    pub fn new(options: MongoOptions) -> Self {
        let bypasses_validator = AtomicBool::new(false);
        let wire_version = AtomicI32::new(0);
        let pool = Arc::new(PoolEvents::new(options.deadline));
        let terms = Arc::default();
        Self { options, database: OnceCell::new(), pool, terms, bypasses_validator, wire_version }
    }

    /// The database. Resolving the names of a `mongodb+srv` URL may fail and is then retried next time.
    pub async fn database(&self) -> Result<&Database> {
        self.database.get_or_try_init(|| connect(&self.options, &self.pool, &self.terms)).await
    }

    /// Returns how the connections are used.
    pub fn pool(&self) -> Pool {
        self.pool.figures(self.options.pool_size.into())
    }

    /// Runs a verb within its deadline. One that runs into it may still have happened.
    pub async fn within<T>(&self, verb: impl Future<Output = Result<T>>) -> Result<T> {
        self.until(self.end(), verb).await
    }

    /// The deadline of a verb that begins now.
    pub fn end(&self) -> Instant {
        Instant::now() + self.options.deadline
    }

    /// Runs a part of a verb up to the verb's deadline. What runs into it may still have happened.
    pub async fn until<T>(&self, end: Instant, part: impl Future<Output = Result<T>>) -> Result<T> {
        let deadline = self.options.deadline;
        let late =
            |_| Err(StoreError::unavailable(format_args!("no answer within {} ms", deadline.as_millis())));
        timeout_at(end, part).await.unwrap_or_else(late)
    }

    /// Finds out whether writes may pass by the validator of `jobs`, which is for the documents of other programs: judging ours costs a
    /// tenth of an insert. That needs the privilege `bypassDocumentValidation`, which the role `readWrite` does not have.
    pub async fn probe_validator(&self) -> Result<()> {
        if self.options.validates_own {
            return Ok(());
        }
        let nothing = doc! { "q": { "_id": "barrier" }, "u": { "$unset": { "none": "" } } };
        let probe = doc! { "update": JOBS, "updates": [nothing], "bypassDocumentValidation": true };
        let is_allowed = match self.database().await?.run_command(probe).await {
            Ok(_) => true,
            Err(error) if code(&error) == Some(UNAUTHORIZED) => false,
            Err(error) => return Err(fault(error)),
        };
        if !is_allowed {
            tracing::info!(
                "the store's user has no privilege bypassDocumentValidation: the validator judges our jobs as well"
            );
        }
        self.bypasses_validator.store(is_allowed, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether writes to `jobs` pass by its validator.
    pub fn bypasses_validator(&self) -> bool {
        self.bypasses_validator.load(Ordering::Relaxed)
    }

    /// Returns the term in which what is read from now on is read, for [`barrier`].
    pub fn term(&self) -> Term {
        self.terms.current()
    }

    /// Notes which version has replied to a `hello`, and in which term.
    pub fn note_hello(&self, hello: &Document) {
        self.terms.note(hello);
        self.wire_version.store(hello.get_i32("maxWireVersion").unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether updates within transactions are slow, as they are up to MongoDB 6.0.
    pub fn updates_are_slow(&self) -> bool {
        self.wire_version.load(Ordering::Relaxed) < WIRE_VERSION_OF_7_0
    }

    /// Notes the outcome of a write that passed by the validator. Where the privilege was taken away, the next write goes without.
    pub fn note_bypass(&self, error: &Error) {
        if code(error) == Some(UNAUTHORIZED) && self.bypasses_validator.swap(false, Ordering::Relaxed) {
            tracing::warn!("a write was not allowed: from now on without bypassDocumentValidation");
        }
    }

    /// Whether anything was sent.
    pub fn is_used(&self) -> bool {
        self.database.initialized()
    }

    /// The longest that one verb may take.
    pub fn deadline(&self) -> Duration {
        self.options.deadline
    }

    /// Why the database cannot be used, if a member can be asked: a standalone server, or a replica set that
    /// was never initiated. A URL with `replicaSet=` never finds such a server, and says nothing useful.
    pub async fn diagnose(&self) -> Option<StoreError> {
        let options = ClientOptions::parse(&self.options.url).await.ok()?;
        for host in &options.hosts {
            let mut direct = options.clone();
            direct.hosts = vec![host.clone()];
            direct.repl_set_name = None;
            direct.direct_connection = Some(true);
            direct.server_selection_timeout = Some(Duration::from_millis(500));
            direct.connect_timeout = Some(Duration::from_millis(500));
            let client = Client::with_options(direct).ok()?;
            if let Ok(hello) = client.database("admin").run_command(doc! { "hello": 1 }).await {
                return unsuitable(&hello, host, options.repl_set_name.as_deref());
            }
        }
        None
    }

    /// Closes the connections.
    pub async fn close(&self) {
        if let Some(database) = self.database.get() {
            database.client().clone().shutdown().immediate(true).await;
        }
    }
}

async fn connect(options: &MongoOptions, pool: &Arc<PoolEvents>, terms: &Arc<Terms>) -> Result<Database> {
    let mut client = ClientOptions::parse(&options.url).await.map_err(fault)?;
    client.app_name.get_or_insert_with(|| "tailback".to_owned());
    client.read_concern = Some(ReadConcern::local());
    client.write_concern = Some(durable());
    client.selection_criteria = None; // the primary, always
    client.retry_reads = Some(true);
    client.retry_writes = Some(true);
    // A call must end in 503 within 2 seconds, even where all of this is used up.
    client.server_selection_timeout = Some(options.deadline.mul_f32(0.6));
    client.connect_timeout = Some(options.deadline.mul_f32(0.6));
    client.heartbeat_freq = Some(Duration::from_secs(1));
    client.max_pool_size = Some(options.pool_size);
    client.cmap_event_handler = Some(pool.handler());
    client.sdam_event_handler = Some(terms.handler());
    let name = client.default_database.clone();
    let name = name.ok_or_else(|| StoreError::internal("the store's URL names no database"))?;
    Ok(Client::with_options(client).map_err(fault)?.database(&name))
}

/// MongoDB's `Unauthorized`.
pub const UNAUTHORIZED: i32 = 13;
/// MongoDB's `IndexNotFound`.
pub const INDEX_NOT_FOUND: i32 = 27;
/// MongoDB's `NamespaceExists`.
pub const NAMESPACE_EXISTS: i32 = 48;
/// MongoDB's `IndexOptionsConflict` and `IndexKeySpecsConflict`: an index of these keys has other options, or one of this name other keys.
pub const INDEX_CONFLICTS: [i32; 2] = [85, 86];
/// Why a change of a collection's options is not made now: no right to, not in time, an index is being built.
pub const NOT_NOW: [i32; 3] = [UNAUTHORIZED, 50, 12587];

/// The server's error code behind an error, if it has one.
pub fn code(error: &Error) -> Option<i32> {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Write(WriteFailure::WriteError(write)) => Some(write.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(concern)) => Some(concern.code),
        ErrorKind::InsertMany(failure) => {
            let refused = failure.write_errors.iter().flatten().next().map(|error| error.code);
            refused.or(failure.write_concern_error.as_ref().map(|concern| concern.code))
        }
        _ => None,
    }
}

/// What an error of the driver means.
pub fn fault(error: Error) -> StoreError {
    let passing = match error.kind.as_ref() {
        ErrorKind::Io(_)
        | ErrorKind::ServerSelection { .. }
        | ErrorKind::ConnectionPoolCleared { .. }
        | ErrorKind::DnsResolve { .. }
        | ErrorKind::Authentication { .. }
        | ErrorKind::Shutdown
        | ErrorKind::Write(WriteFailure::WriteConcernError(_)) => true,
        ErrorKind::InsertMany(failure) => failure.write_concern_error.is_some(),
        _ => false,
    };
    let labelled = error.contains_label("TransientTransactionError")
        || error.contains_label("UnknownTransactionCommitResult")
        || error.contains_label("RetryableWriteError");
    let said = said(&error);
    match meaning(code(&error), &said, Cause(said.as_str().into())) {
        StoreError::Internal(cause) if passing || labelled => StoreError::Unavailable(cause),
        meaning => meaning,
    }
}

/// Whether the error says that a value is there already which this program wants to be there once.
pub fn is_duplicate(error: &Error) -> bool {
    is_own_duplicate(code(error), &said(error))
}

/// The same of an error within the reply to a write command.
pub fn is_duplicate_in(error: &Document) -> bool {
    is_own_duplicate(error.get_i32("code").ok(), error.get_str("errmsg").unwrap_or_default())
}

/// Returns what an error says: of a command that MongoDB refuses, its code and message, and not its whole response.
fn said(error: &Error) -> String {
    match error.kind.as_ref() {
        ErrorKind::Command(refused) => {
            format!(
                "MongoDB refuses a command: {} ({}): {}",
                refused.code_name, refused.code, refused.message
            )
        }
        ErrorKind::InvalidArgument { message, .. } => message.clone(),
        kind => kind.to_string(),
    }
}

/// Runs a raw write command. The driver neither reads the errors within its reply nor adds the write
/// concern. Returns how many documents it found.
pub async fn write(database: &Database, mut command: Document) -> Result<u64> {
    command.insert("writeConcern", durable_document());
    outcome(&database.run_command(command).await.map_err(fault)?)
}

/// The same with a command that may have bytes of another program in it.
pub async fn write_raw(database: &Database, mut command: RawDocumentBuf) -> Result<u64> {
    let durable = RawDocumentBuf::try_from(durable_document()).map_err(StoreError::internal)?;
    command.append(cstr!("writeConcern"), durable);
    outcome(&database.run_raw_command(command).await.map_err(fault)?)
}

/// Returns how many documents a write command found, from its reply.
fn outcome(answer: &Document) -> Result<u64> {
    if let Ok(concern) = answer.get_document("writeConcernError") {
        return Err(StoreError::unavailable(concern));
    }
    if let Ok(errors) = answer.get_array("writeErrors") {
        return Err(write_error(errors.first().and_then(|error| error.as_document())));
    }
    Ok(count(answer, "n"))
}

/// MongoDB's `ImmutableField`.
const IMMUTABLE_FIELD: i32 = 66;

/// An update of one document that fails where it finds none, so that the reply shows which ones did: where
/// nothing matches it would insert, and what it would insert is refused, since its `_id` would not be that of
/// the filter.
pub fn strict(filter: Document, mut update: Document) -> Document {
    update.insert("$setOnInsert", doc! { "_id": 0 });
    doc! { "q": filter, "u": update, "upsert": true }
}

/// Runs an update command on jobs, and returns how many documents it found.
pub async fn update_jobs(connection: &Connection, statements: Vec<Document>) -> Result<u64> {
    outcome(&jobs_command(connection, doc! { "update": JOBS, "updates": statements }).await?)
}

/// Runs a write command on jobs, past their validator where that is allowed.
async fn jobs_command(connection: &Connection, mut command: Document) -> Result<Document> {
    if connection.bypasses_validator() {
        command.insert("bypassDocumentValidation", true);
    }
    command.insert("writeConcern", durable_document());
    let done = connection.database().await?.run_command(command).await;
    done.map_err(|error| {
        connection.note_bypass(&error);
        fault(error)
    })
}

/// Runs an unordered command of [`strict`] updates, and returns the indexes of those that found nothing.
pub async fn write_strict(connection: &Connection, statements: Vec<Document>) -> Result<HashSet<usize>> {
    let command = doc! { "update": JOBS, "updates": statements, "ordered": false };
    let answer = jobs_command(connection, command).await?;
    if let Ok(concern) = answer.get_document("writeConcernError") {
        return Err(StoreError::unavailable(concern));
    }
    let mut in_vain = HashSet::new();
    for error in answer.get_array("writeErrors").into_iter().flatten() {
        let error = error.as_document();
        let missed = error.filter(|error| error.get_i32("code").is_ok_and(|code| code == IMMUTABLE_FIELD));
        match missed.map(|error| count(error, "index")).map(usize::try_from) {
            Some(Ok(index)) => drop(in_vain.insert(index)),
            _ => return Err(write_error(error)),
        }
    }
    Ok(in_vain)
}

/// A document that was not inserted.
pub struct NotInserted {
    pub index: usize,
    pub code: i32,
    pub message: String,
}

impl NotInserted {
    /// Returns the error of what was to be inserted.
    pub fn fault(&self) -> StoreError {
        meaning(Some(self.code), &self.message, Cause(self.message.as_str().into()))
    }

    /// Whether it is there already.
    pub fn is_there(&self) -> bool {
        is_own_duplicate(Some(self.code), &self.message)
    }
}

/// Inserts documents, each for itself, and returns those that were refused.
pub async fn insert_each<T: Serialize + Send + Sync>(
    collection: &Collection<T>,
    documents: Vec<T>,
) -> Result<Vec<NotInserted>> {
    match collection.insert_many(documents).ordered(false).await {
        Ok(_) => Ok(Vec::new()),
        Err(error) => refused(error),
    }
}

/// Returns the documents that an insert refused; an error where that is not all that happened.
fn refused(error: Error) -> Result<Vec<NotInserted>> {
    let ErrorKind::InsertMany(failure) = error.kind.as_ref() else {
        return Err(fault(error));
    };
    if let Some(concern) = &failure.write_concern_error {
        return Err(StoreError::unavailable(&concern.message));
    }
    let refused = failure.write_errors.iter().flatten();
    let refused = refused.map(|error| NotInserted {
        index: error.index,
        code: error.code,
        message: error.message.clone(),
    });
    Ok(refused.collect())
}

/// Inserts new jobs, past their validator where that is allowed, and returns those that were refused.
///
/// In a retryable session: a repeat without one could store a job anew that was stored by the first try, and delivered and
/// committed since.
pub async fn insert_jobs(
    connection: &Connection,
    documents: Vec<RawDocumentBuf>,
) -> Result<Vec<NotInserted>> {
    if faults::bug("insert_anew") {
        return insert_anew(connection, &documents).await;
    }
    let jobs = connection.database().await?.collection::<RawDocumentBuf>(JOBS);
    let insert = jobs.insert_many(documents).ordered(false);
    let insert = match connection.bypasses_validator() {
        true => insert.bypass_document_validation(true),
        false => insert,
    };
    let Err(error) = insert.await else { return Ok(Vec::new()) };
    connection.note_bypass(&error);
    refused(error)
}

/// The mistake that [`insert_jobs`] must not make: a repeat without a session. It was asked for once, since it is quicker.
async fn insert_anew(connection: &Connection, documents: &[RawDocumentBuf]) -> Result<Vec<NotInserted>> {
    let documents: Vec<Document> =
        documents.iter().map(Document::try_from).collect::<Result<_, _>>().map_err(StoreError::internal)?;
    let command = doc! { "insert": JOBS, "documents": documents, "ordered": false };
    if jobs_command(connection, command.clone()).await.is_err() {
        jobs_command(connection, command).await?;
    }
    Ok(Vec::new())
}

/// A command may be about 16 MiB long: statements in parts that fit, each with room for one large statement.
const PART_BYTES: usize = 4 << 20;

/// Splits statements into parts that fit into one command each.
pub fn parts(statements: Vec<Document>) -> Result<Vec<Vec<Document>>> {
    let mut parts: Vec<Vec<Document>> = Vec::new();
    let mut size = PART_BYTES;
    for statement in statements {
        let raw = RawDocumentBuf::try_from(&statement).map_err(StoreError::internal)?;
        if size + raw.as_bytes().len() > PART_BYTES {
            parts.push(Vec::new());
            size = 0;
        }
        size += raw.as_bytes().len();
        if let Some(part) = parts.last_mut() {
            part.push(statement);
        }
    }
    Ok(parts)
}

/// Returns when everything that could be read since this term was noted is durable: a write that changes nothing waits for a
/// majority like any other. What a read proves must not be reported before, or a failover could take it back. An error where the
/// primary has changed since: this one confirms only what it has itself.
pub async fn barrier(connection: &Connection, since: Term) -> Result<()> {
    let nothing = doc! { "q": { "_id": "barrier" }, "u": { "$unset": { "none": "" } } };
    let command = doc! { "update": META, "updates": [nothing], "writeConcern": durable_document() };
    let answer = connection.database().await?.run_command(command).await.map_err(fault)?;
    outcome(&answer)?;
    match connection.terms.note(&answer) {
        Some(term) if term != since => {
            Err(StoreError::unavailable("the primary has changed since what is to be confirmed was read"))
        }
        _ => Ok(()),
    }
}

/// What an error within the reply to a write command means.
pub fn write_error(error: Option<&Document>) -> StoreError {
    let code = error.and_then(|error| error.get_i32("code").ok());
    let cause = Cause(error.map(ToString::to_string).unwrap_or_default().into());
    meaning(code, error.and_then(|error| error.get_str("errmsg").ok()).unwrap_or_default(), cause)
}

/// A count in a reply, whichever numeric type it has.
pub fn count(answer: &Document, field: &str) -> u64 {
    match answer.get(field) {
        Some(Bson::Int32(count)) => u64::try_from(*count).unwrap_or(0),
        Some(Bson::Int64(count)) => u64::try_from(*count).unwrap_or(0),
        Some(Bson::Double(count)) => *count as u64,
        _ => 0,
    }
}
