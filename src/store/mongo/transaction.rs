//! Transactions: the one place that begins, retries, commits and aborts them.
//!
//! A [`Transaction`] reads and writes through its [`Tx`] and says whether to commit. What can happen to an attempt:
//!
//! | failure | what is certain | what follows |
//! |---|---|---|
//! | a conflict, a network error or a step-down before the commit was sent | it is not stored | retry from the start |
//! | no server can be selected | it is not stored | the error: a retry would take as long again |
//! | the commit fails with `UnknownTransactionCommitResult` | nothing | retry the commit, which is idempotent |
//! | the commit fails with `TransientTransactionError` | it is not stored | retry from the start |
//! | the commit fails otherwise, or the deadline ends it | nothing | the outcome is unknown |
//!
//! Why a commit that fails with `TransientTransactionError` is certainly not stored, also where an earlier try of the
//! same commit got no reply: the server adds that label to a commit which finds no such transaction only
//! once a majority has confirmed a history without it, which is why commits always ask for a majority.
//!
//! So an attempt follows only those that are certainly not stored, and a transaction happens once or not at all within
//! one call. A repeat of the call finds what the first one wrote: each transaction says why that is safe.
//!
//! Attempts share one session. Should an abort get lost, the next attempt ends the old one: a session has one
//! transaction. Otherwise the new attempt would conflict with what the old one left behind.

use std::collections::HashMap;
use std::time::Duration;

use futures::TryStreamExt as _;
use mongodb::action::{Aggregate, Find};
use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::error::{Error, ErrorKind, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::options::ReadConcern;
use mongodb::{ClientSession, Collection, Database};
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout_at};

use crate::faults;
use crate::job::{QueueName, State};
use crate::store::audit::{Recording, Seen, counted, seeing};
use crate::store::fence::{Fence, fence};
use crate::store::mongo::AUDIT;
use crate::store::mongo::JOBS;
use crate::store::mongo::META;
use crate::store::mongo::Mongo;
use crate::store::mongo::audit;
use crate::store::mongo::cache::Position;
use crate::store::mongo::client::{code, count, durable, fault, is_duplicate, is_duplicate_in, write_error};
use crate::store::mongo::figures::counters::Changes;
use crate::store::mongo::stored::Stored;
use crate::store::{AuditRow, Result, StoreError};

/// The longest pause before the first retry. Doubled with each further one.
const BACKOFF: Duration = Duration::from_millis(8);
/// The longest pause before any retry.
const BACKOFF_MAX: Duration = Duration::from_millis(128);

/// What happens in a transaction.
pub trait Transaction {
    /// Its result.
    type Done;

    /// Makes one attempt, from the start: nothing of earlier ones is stored. Errors of the driver must be passed on.
    fn attempt(
        &mut self,
        tx: &mut Tx<'_>,
    ) -> impl Future<Output = Result<Verdict<Self::Done>, TxError>> + Send;
}

/// How an attempt wants to end, and its result.
pub enum Verdict<T> {
    /// Store what was written. Also where nothing was: the commit waits until what was read is durable.
    Commit(T),
    /// Store nothing.
    Abort(T),
}

/// Why an attempt did not get to its commit.
pub enum TxError {
    /// An error of the driver, which may be a conflict.
    Driver(Error),
    /// Another transaction has just written what this one read or was about to write: retry.
    Conflict,
    /// An error that a retry does not overcome.
    Store(StoreError),
}

impl From<Error> for TxError {
    fn from(error: Error) -> Self {
        Self::Driver(error)
    }
}

impl From<StoreError> for TxError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Why a transaction has no result.
pub enum Failed {
    /// It is not stored: it conflicted with others until it was too late for another attempt.
    Conflict,
    /// It is not stored.
    NotStored(StoreError),
    /// Whether it is stored is unknown.
    Unknown(StoreError),
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Conflict => {
                StoreError::unavailable("the transaction conflicted with others until its deadline")
            }
            Failed::NotStored(error) | Failed::Unknown(error) => error,
        }
    }
}

/// MongoDB's `TransactionExceededLifetimeLimitSeconds`: nothing of the transaction is stored, though the error has no label that says so.
const TRANSACTION_TOO_LONG: i32 = 290;

/// What a failed attempt means for the next one.
enum Next {
    /// The attempt is not stored; another one may succeed. Without an error, it was a conflict.
    Retry(Option<StoreError>),
    /// There is no other attempt.
    Stop(Failed),
}

impl Next {
    /// After an error that says that the attempt is certainly not stored: one of the server's own is a conflict.
    fn after_transient(error: Error) -> Self {
        let is_conflict = matches!(error.kind.as_ref(), ErrorKind::Command(_));
        Self::Retry((!is_conflict).then(|| fault(error)))
    }
}

/// What an attempt reads and writes through.
pub struct Tx<'m> {
    pub mongo: &'m Mongo,
    database: &'m Database,
    session: ClientSession,
    /// How the numbers of jobs change with the commit. The runner counts them once that is certain.
    pub changes: Changes,
    /// Jobs that are ready once this is committed.
    ready: Vec<(QueueName, Position)>,
    /// What is remembered of the administrative act that this is.
    recording: Recording,
}

impl<'m> Tx<'m> {
    /// The session, for operations of the driver. Their errors are to be passed on, not handled.
    pub fn session(&mut self) -> &mut ClientSession {
        &mut self.session
    }

    /// A collection by its name.
    pub fn collection(&self, name: &str) -> Collection<Stored> {
        self.database.collection(name)
    }

    /// Runs a raw write command, and returns how many documents it found. An own unique index that has a value is a conflict.
    pub async fn write(&mut self, command: Document) -> Result<u64, TxError> {
        self.write_raw(RawDocumentBuf::try_from(command).map_err(StoreError::internal)?).await
    }

    /// Runs a raw write command on jobs, past their validator where that is allowed.
    pub async fn write_jobs(&mut self, mut command: Document) -> Result<u64, TxError> {
        if self.mongo.connection.bypasses_validator() {
            command.insert("bypassDocumentValidation", true);
        }
        self.write(command).await
    }

    /// Inserts jobs, likewise.
    pub async fn insert_jobs(&mut self, documents: Vec<RawDocumentBuf>) -> Result<(), TxError> {
        if documents.is_empty() {
            return Ok(());
        }
        let jobs = self.database.collection::<RawDocumentBuf>(JOBS);
        let insert = jobs.insert_many(documents);
        let insert = match self.mongo.connection.bypasses_validator() {
            true => insert.bypass_document_validation(true),
            false => insert,
        };
        insert.session(&mut self.session).await?;
        Ok(())
    }

    /// The same with a command that may have bytes of another program in it.
    pub async fn write_raw(&mut self, command: RawDocumentBuf) -> Result<u64, TxError> {
        let reply = self.database.run_raw_command(command).session(&mut self.session).await?;
        let errors = reply.get_array("writeErrors").ok();
        match errors.and_then(|errors| errors.first()?.as_document()) {
            Some(error) if is_duplicate_in(error) => Err(TxError::Conflict),
            Some(error) => Err(write_error(Some(error)).into()),
            None => Ok(count(&reply, "n")),
        }
    }

    /// Writes the row of an administrative act.
    pub async fn write_row(&mut self, row: &AuditRow) -> Result<(), TxError> {
        self.write(audit::writing(row)?).await.map(drop)
    }

    /// Writes the row of the call that this is, if it has one: to be called where the act takes effect.
    pub async fn record(&mut self) -> Result<(), TxError> {
        let Some(row) = self.recording.row.clone() else { return Ok(()) };
        self.record_as(&row, 0).await
    }

    /// The same where the act changes or stores so many jobs; nothing where it does none.
    pub async fn record_jobs(&mut self, jobs: usize) -> Result<(), TxError> {
        match self.recording.row.clone() {
            Some(row) if jobs > 0 => self.record_as(&row, jobs as u64).await,
            _ => Ok(()),
        }
    }

    /// Returns whether what becomes of a job is shown in the row of an act.
    pub fn acts_on_one_job(&self) -> bool {
        self.recording.row.as_ref().is_some_and(|row| row.is_of_one_job())
    }

    /// Notes what was there before and is there now, for the row of the act that this may be.
    pub fn sees(&mut self, seen: Seen) {
        self.recording.seen = Some(seen);
    }

    async fn record_as(&mut self, row: &AuditRow, more: u64) -> Result<(), TxError> {
        let mut row = seeing(row, self.recording.seen.take());
        if row.affected.is_some() {
            let rows = self.collection(AUDIT);
            let there = rows.find_one(doc! { "_id": row.id.as_str() }).session(&mut self.session).await?;
            row = counted(&row, there.as_ref().and_then(audit::read), more);
        }
        self.write_row(&row).await?;
        self.recording.written = Some(row);
        Ok(())
    }

    /// Goes on only where the mark of a restore is there, which stays until the commit: a restore that takes it over waits for that.
    async fn check_mark(&mut self, fence: &Fence) -> Result<(), TxError> {
        let marks = fence.marks();
        let own = marks.iter().map(|mark| doc! { "backup": &mark.origin, "beat": mark.beat });
        let own = doc! { "_id": "restoring", "$or": own.collect::<Vec<Document>>() };
        let update = doc! { "q": own, "u": { "$inc": { "writes": 1_i64 } } };
        match self.write(doc! { "update": META, "updates": [update] }).await? {
            0 => Err(StoreError::unavailable("the mark of the restore is not there any more").into()),
            _ => Ok(()),
        }
    }

    /// Returns every document that a query finds.
    pub async fn read(&mut self, find: Find<'_, Stored>) -> Result<Vec<Stored>, TxError> {
        let mut cursor = find.session(&mut self.session).await?;
        Ok(cursor.stream(&mut self.session).try_collect().await?)
    }

    /// Returns the bytes of every document that a query finds.
    pub async fn read_raw(&mut self, find: Find<'_, RawDocumentBuf>) -> Result<Vec<RawDocumentBuf>, TxError> {
        let mut cursor = find.session(&mut self.session).await?;
        Ok(cursor.stream(&mut self.session).try_collect().await?)
    }

    /// Returns what an aggregation finds.
    pub async fn aggregate(&mut self, find: Aggregate<'_>) -> Result<Vec<Stored>, TxError> {
        let mut cursor = find.with_type::<Stored>().session(&mut self.session).await?;
        Ok(cursor.stream(&mut self.session).try_collect().await?)
    }

    /// A job comes into a queue with the commit.
    pub fn arrives(&mut self, queue: &QueueName, state: State, position: Position) {
        self.changes.came(queue, state, 1);
        self.becomes_ready(queue, position);
    }

    /// A job may be ready at this position of its queue once this is committed.
    pub fn becomes_ready(&mut self, queue: &QueueName, position: Position) {
        self.ready.push((queue.clone(), position));
    }

    /// A snapshot is read, and the commit is durable, whatever the client's defaults are.
    async fn begin(&mut self) -> Result<(), Error> {
        (self.changes, self.ready) = Default::default();
        self.recording.begin();
        let start = self.session.start_transaction();
        start.read_concern(ReadConcern::snapshot()).write_concern(durable()).await
    }

    async fn abort(&mut self) {
        if let Err(error) = self.session.abort_transaction().await {
            tracing::debug!(%error, "a transaction was left for the server to end");
        }
    }

    /// Commits, and counts what is certain. While the outcome is unknown the commit is sent again.
    async fn commit(&mut self, end: Instant) -> Result<(), Next> {
        let counted = self.mongo.counters.in_flight(std::mem::take(&mut self.changes));
        faults::point("transaction.attempted").await;
        let committed = timeout_at(end, async {
            let mut backoff = Backoff::default();
            loop {
                match self.session.commit_transaction().await {
                    Err(error) if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) => {
                        backoff.pause().await;
                    }
                    other => return other,
                }
            }
        });
        let committed = committed.await;
        faults::point("transaction.committed").await;
        if !matches!(&committed, Ok(Err(error)) if error.contains_label(TRANSIENT_TRANSACTION_ERROR)) {
            self.mongo.note_ready(self.ready.iter().map(|(queue, position)| (queue, *position)));
        }
        match committed {
            Ok(Ok(())) => {
                counted.stored();
                self.recording.end(true);
                Ok(())
            }
            Ok(Err(error)) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => {
                counted.refused();
                Err(Next::after_transient(error))
            }
            Ok(Err(error)) => {
                self.recording.end(false);
                Err(Next::Stop(Failed::Unknown(fault(error))))
            }
            Err(_) => {
                self.recording.end(false);
                Err(Next::Stop(Failed::Unknown(StoreError::unavailable("the commit did not end in time"))))
            }
        }
    }
}

/// How a transaction is attempted.
pub struct Attempts<'m> {
    mongo: &'m Mongo,
    end: Instant,
    retry_until: Instant,
    retries_duplicate_keys: bool,
}

/// Transactions that end by the deadline of their verb.
pub fn until(mongo: &Mongo, end: Instant) -> Attempts<'_> {
    Attempts { mongo, end, retry_until: end, retries_duplicate_keys: false }
}

impl<'m> Attempts<'m> {
    /// Begins no further attempt after this, though the current one may go on until the deadline.
    pub fn retrying_until(self, retry_until: Instant) -> Self {
        Self { retry_until, ..self }
    }

    /// A duplicate key counts as a conflict: what was found to be missing is inserted.
    pub fn retrying_duplicate_keys(self) -> Self {
        Self { retries_duplicate_keys: true, ..self }
    }

    /// Runs the transaction, again after each attempt that is certainly not stored, until the deadline.
    pub async fn run<T: Transaction>(self, mut transaction: T) -> Result<T::Done, Failed> {
        let fence = fence();
        let _turn = match &fence {
            Some(fence) => Some(fence.turn().await),
            None => None,
        };
        let mut tx = self.session().await.map_err(Failed::NotStored)?;
        let mut backoff = Backoff::default();
        loop {
            let attempt = timeout_at(self.end, async {
                tx.begin().await?;
                if let Some(fence) = &fence {
                    tx.check_mark(fence).await?;
                }
                transaction.attempt(&mut tx).await
            });
            let next = match attempt.await {
                Ok(Ok(Verdict::Commit(done))) => match tx.commit(self.end).await {
                    Ok(()) => return Ok(done),
                    Err(next) => next,
                },
                Ok(Ok(Verdict::Abort(done))) => {
                    let _ = timeout_at(self.end, tx.abort()).await;
                    return Ok(done);
                }
                Ok(Err(error)) => {
                    let next = self.after(error);
                    // Where no attempt follows, the driver ends the transaction once the session is dropped.
                    if matches!(next, Next::Retry(_)) {
                        let _ = timeout_at(self.end, tx.abort()).await;
                    }
                    next
                }
                Err(_) => Next::Stop(Failed::NotStored(StoreError::unavailable(
                    "the transaction did not end in time",
                ))),
            };
            let error = match next {
                Next::Stop(failed) => return Err(failed),
                Next::Retry(error) => error,
            };
            if Instant::now() >= self.retry_until {
                return Err(error.map_or(Failed::Conflict, Failed::NotStored));
            }
            if timeout_at(self.end, backoff.pause()).await.is_err() {
                return Err(error.map_or(Failed::Conflict, Failed::NotStored));
            }
        }
    }

    async fn session(&self) -> Result<Tx<'m>> {
        let database = self.mongo.connection.database().await?;
        let session = database.client().start_session().await.map_err(fault)?;
        let (changes, recording) = (Changes::default(), Recording::of_call());
        Ok(Tx { mongo: self.mongo, database, session, changes, ready: Vec::new(), recording })
    }

    /// Whether an attempt that failed before its commit is worth another one.
    fn after(&self, error: TxError) -> Next {
        if let TxError::Driver(error) = &error {
            self.mongo.connection.note_bypass(error);
        }
        match error {
            TxError::Conflict => Next::Retry(None),
            TxError::Store(error) => Next::Stop(Failed::NotStored(error)),
            TxError::Driver(error) if matches!(error.kind.as_ref(), ErrorKind::ServerSelection { .. }) => {
                Next::Stop(Failed::NotStored(fault(error)))
            }
            TxError::Driver(error)
                if error.contains_label(TRANSIENT_TRANSACTION_ERROR)
                    || code(&error) == Some(TRANSACTION_TOO_LONG) =>
            {
                Next::after_transient(error)
            }
            TxError::Driver(error) if self.retries_duplicate_keys && is_duplicate(&error) => {
                Next::Retry(None)
            }
            TxError::Driver(error) => Next::Stop(Failed::NotStored(fault(error))),
        }
    }
}

/// Documents that are inserted unless their ids are there; its result is what is.
///
/// Idempotence: a repeat after an unknown outcome finds them.
pub struct InsertMissing<'a, T> {
    /// Into which collection.
    pub collection: &'a str,
    /// The documents.
    pub documents: &'a [T],
    /// Their ids.
    pub ids: &'a [&'a str],
}

impl<T: Serialize + Send + Sync> Transaction for InsertMissing<'_, T> {
    type Done = HashMap<String, Stored>;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Done>, TxError> {
        let all = tx.collection(self.collection);
        let found = tx.read(all.find(doc! { "_id": { "$in": self.ids } })).await?;
        let named =
            found.into_iter().filter_map(|found| Some((found.get_str("_id").ok()?.to_owned(), found)));
        let there: HashMap<String, Stored> = named.collect();
        let own = self.documents.iter().zip(self.ids);
        let missing: Vec<&T> =
            own.filter(|(_, id)| !there.contains_key(**id)).map(|(document, _)| document).collect();
        if !missing.is_empty() {
            let all = all.clone_with_type::<T>();
            all.insert_many(missing).session(tx.session()).await?;
        }
        Ok(Verdict::Commit(there))
    }
}

/// Random pauses that grow: transactions that conflicted are not to conflict again.
#[derive(Default)]
struct Backoff {
    retries: u32,
}

impl Backoff {
    async fn pause(&mut self) {
        let most = BACKOFF.saturating_mul(1 << self.retries.min(8)).min(BACKOFF_MAX);
        self.retries += 1;
        sleep(most.mul_f64(rand::random())).await;
    }
}
