//! All that a database keeps at one moment, read beside the servers that run on it.
//!
//! Every read is of one session with the read concern `snapshot`: MongoDB chooses the moment at the first read, and answers all others as of
//! that moment, over all collections. It keeps the past for `minSnapshotHistoryWindowInSeconds`, 300 by default: what takes longer
//! ends with an error that says so, and so may one beside which an index is built.
//!
//! Where nothing else is written, the read concern `majority` does as well ([`Isolation::ReadCommitted`]): a cursor in the order of `_id` survives
//! the end of that past and the build of another index, and returns each document that stays once.

use std::collections::HashSet;

use mongodb::bson::{Bson, Document, doc};
use mongodb::error::{Error, ErrorKind};
use mongodb::options::{CollectionOptions, ReadConcern};
use mongodb::{ClientSession, Collection, Database, SessionCursor};

use crate::job::{QueueSettings, Timestamp};
use crate::store::mongo::API_KEYS;
use crate::store::mongo::AUDIT;
use crate::store::mongo::BATCH_RESULTS;
use crate::store::mongo::BATCHES;
use crate::store::mongo::JOBS;
use crate::store::mongo::KEYS;
use crate::store::mongo::LIMITS;
use crate::store::mongo::META;
use crate::store::mongo::MongoOptions;
use crate::store::mongo::OPERATIONS;
use crate::store::mongo::QUEUES;
use crate::store::mongo::RECEIPTS;
use crate::store::mongo::REQUESTS;
use crate::store::mongo::SCHEDULES;
use crate::store::mongo::SEMAPHORES;
use crate::store::mongo::access;
use crate::store::mongo::answers::record;
use crate::store::mongo::audit;
use crate::store::mongo::batches::document::{to_batch, to_result};
use crate::store::mongo::client::{Connection, code, fault};
use crate::store::mongo::jobs::document::{Row, salvaged, salvaged_contents, to_job};
use crate::store::mongo::migrate;
use crate::store::mongo::operations;
use crate::store::mongo::schedules;
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transfer;
use crate::store::picture::{Isolation, Item, Kind, Pages, Picture, PictureError, Spoiled};
use crate::store::settings::valid_version;
use crate::store::{Memo, MemoKind, Result, StoreError, StoredSettings, chain};

/// How many documents come at once; fewer where they are large.
const AT_ONCE: u32 = 500;
/// MongoDB's `SnapshotTooOld`.
const TOO_OLD: i32 = 239;
/// MongoDB's `SnapshotUnavailable`.
const UNAVAILABLE: i32 = 246;

/// How one kind of things is read.
struct Table {
    kind: Kind,
    collection: &'static str,
    filter: Document,
    read: fn(&Document) -> Result<Item>,
}

/// Every kind, in the order of a picture.
fn tables() -> [Table; Kind::ALL.len()] {
    let exists = || doc! { "$exists": true };
    let table = |kind, collection, read| Table { kind, collection, filter: Document::new(), read };
    let part = |kind, collection, filter, read| Table { kind, collection, filter, read };
    [
        part(Kind::TokenSecret, META, doc! { "_id": "reservations" }, |found| {
            access::bytes(found, "secret").map(Item::TokenSecret)
        }),
        table(Kind::Settings, QUEUES, settings),
        table(Kind::ApiKey, API_KEYS, |found| access::parse(found).map(Item::ApiKey)),
        table(Kind::Key, KEYS, |found| transfer::held(found).map(Item::Key)),
        table(Kind::Semaphore, SEMAPHORES, |found| {
            let row = Row(found);
            Ok(Item::Semaphore(row.text("_id")?, row.number("capacity")?))
        }),
        table(Kind::Batch, BATCHES, |found| to_batch(found).map(Item::Batch)),
        table(Kind::BatchResult, BATCH_RESULTS, |found| {
            Ok(Item::BatchResult(Row(found).text("batch")?, to_result(found)?))
        }),
        table(Kind::Job, JOBS, |found| Ok(Item::Job(Box::new(to_job(found)?)))),
        table(Kind::Receipt, RECEIPTS, |found| transfer::memo(MemoKind::Receipts, found).map(Item::Memo)),
        part(Kind::Request, REQUESTS, doc! { "claim": exists() }, |found| {
            transfer::memo(MemoKind::Requests, found).map(Item::Memo)
        }),
        // Their further documents have no digest.
        part(Kind::Answer, REQUESTS, doc! { "digest": exists(), "answer": exists() }, |found| {
            transfer::memo(MemoKind::Answers, found).map(Item::Memo)
        }),
        part(Kind::Deliveries, LIMITS, doc! { "recent": exists() }, |found| {
            transfer::memo(MemoKind::Deliveries, found).map(Item::Memo)
        }),
        table(Kind::Operation, OPERATIONS, |found| {
            operations::parse(found).map(|operation| Item::Operation(Box::new(operation)))
        }),
        table(Kind::Audit, AUDIT, |found| audit::parse(found).map(|row| Item::Audit(Box::new(row)))),
        table(Kind::Schedule, SCHEDULES, |found| Ok(Item::Schedule(Box::new(schedules::parse(found)?)))),
    ]
}

fn settings(found: &Document) -> Result<Item> {
    let row = Row(found);
    let stored = found.get("settings").cloned().unwrap_or(Bson::Null);
    let (settings, wrong) = QueueSettings::stored(stored.into_relaxed_extjson());
    if let Some(why) = wrong {
        return Err(StoreError::internal(why));
    }
    let version = valid_version(row.text("version")?).ok_or_else(|| row.fault("version"))?;
    Ok(Item::Settings(row.text("_id")?, StoredSettings { settings, version }))
}

/// Begins to read a database.
pub async fn picture(options: MongoOptions, isolation: Isolation) -> Result<Picture, PictureError> {
    let connection = Connection::new(options);
    if let Some(reason) = connection.diagnose().await {
        return Err(reason.into());
    }
    let begun = begin(&connection, isolation).await;
    let (mut reader, is_part) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            connection.close().await;
            return Err(error);
        }
    };
    let (picture, mut pages) = Picture::new(reader.at(), is_part);
    tokio::spawn(async move {
        let outcome = reader.read_all(&connection, &mut pages).await;
        pages.end(outcome).await;
        drop(reader);
        connection.close().await;
    });
    Ok(picture)
}

/// Begins to read a database, and returns whether there is a part of a backup in it.
async fn begin(connection: &Connection, isolation: Isolation) -> Result<(Reader, bool), PictureError> {
    let database = connection.database().await?.clone();
    let session = database.client().start_session().snapshot(isolation == Isolation::Snapshot);
    let session = session.await.map_err(fault).map_err(PictureError::from)?;
    let began = match isolation {
        Isolation::Snapshot => Timestamp::default(), // MongoDB chooses the moment
        Isolation::ReadCommitted => now(connection, &database).await?,
    };
    let mut reader = Reader { database, session, isolation, began };
    let mut made = reader.find(connection, "migrations", Document::new()).await?;
    let mut count = 0;
    while reader.advance(connection, &mut made).await?.is_some() {
        count += 1;
    }
    let refused = |why: String| Err(PictureError::Refused(why));
    let mut known = migrate::known();
    match known.len() {
        _ if count == 0 => Err(PictureError::Absent(
            "there is no Tailback store in this database; is the URL correct?".to_owned(),
        )),
        all if count > all => refused(
            "the database was migrated by a newer version of Tailback, which may keep more than this one knows: use that \
             version"
                .to_owned(),
        ),
        all if count < all => refused(format!(
            "the database is of an older version of Tailback (the migration {} is missing); run `tailback migrate` \
             first, or the version that wrote it",
            known.nth(count).unwrap_or_default()
        )),
        _ => {
            let mut mark = reader.find(connection, META, doc! { "_id": "restoring" }).await?;
            let is_part = reader.advance(connection, &mut mark).await?.is_some();
            Ok((reader, is_part))
        }
    }
}

/// Returns what MongoDB's clock shows.
async fn now(connection: &Connection, database: &Database) -> Result<Timestamp> {
    let hello = async { database.run_command(doc! { "hello": 1 }).await.map_err(fault) };
    let hello = connection.within(hello).await?;
    let local_time = hello.get_datetime("localTime").map_err(StoreError::internal)?;
    Ok(Timestamp::from_millis(local_time.timestamp_millis()))
}

/// Returns what is stored where a name should be.
fn name_of(document: &Document) -> String {
    match document.get("_id") {
        Some(Bson::String(name)) => name.clone(),
        name => name.map(ToString::to_string).unwrap_or_default(),
    }
}

fn spoiled(kind: Kind, document: &Document, why: String, now: Timestamp) -> Spoiled {
    let remains = (kind == Kind::Job).then(|| salvaged(document).ok()).flatten();
    let stand_in = remains.and_then(|found| salvaged_contents(document).stand_in(&found, &why, now));
    Spoiled { kind, name: name_of(document), why, stand_in: stand_in.map(Box::new) }
}

/// What a failed read means.
fn failed(error: Error) -> PictureError {
    match (code(&error), error.kind.as_ref()) {
        (Some(TOO_OLD), _) => PictureError::Refused(
            "it took longer than MongoDB keeps the past, 300 seconds by default. Let it keep more: \
             db.adminCommand({setParameter: 1, minSnapshotHistoryWindowInSeconds: 3600}) on every member, which costs \
             room in its cache and on its disk while much is written, and run this again"
                .to_owned(),
        ),
        (Some(UNAVAILABLE), _) => PictureError::Refused(format!(
            "MongoDB cannot read this moment any more, as after an index was built or a collection made: run this again \
             ({error})"
        )),
        (_, ErrorKind::IncompatibleServer { .. }) => {
            PictureError::Refused("reading one moment of a database takes MongoDB 5.0 or later".to_owned())
        }
        _ => fault(error).into(),
    }
}

/// Reads a database, all of it in one session.
struct Reader {
    database: Database,
    session: ClientSession,
    isolation: Isolation,
    /// When it began, where the session has no moment.
    began: Timestamp,
}

impl Reader {
    /// Returns the moment that it shows, to the second, or when it began.
    fn at(&self) -> Timestamp {
        let moment = self.session.snapshot_time();
        moment.map_or(self.began, |at| Timestamp::from_millis(i64::from(at.time) * 1000))
    }

    fn collection(&self, name: &str) -> Collection<Stored> {
        let concern = match self.isolation {
            // Without it the driver would ask for the concern of the client, and MongoDB would choose no moment.
            Isolation::Snapshot => ReadConcern::snapshot(),
            // A failover takes nothing back of what was compared.
            Isolation::ReadCommitted => ReadConcern::majority(),
        };
        let options = CollectionOptions::builder().read_concern(concern).build();
        self.database.collection_with_options(name, options)
    }

    async fn find(
        &mut self,
        connection: &Connection,
        collection: &str,
        filter: Document,
    ) -> Result<SessionCursor<Stored>, PictureError> {
        let all = self.collection(collection);
        let find = all.find(filter).sort(doc! { "_id": 1 }).batch_size(AT_ONCE);
        let find = find.session(&mut self.session);
        connection.within(async { Ok(find.await.map_err(failed)) }).await?
    }

    async fn advance(
        &mut self,
        connection: &Connection,
        cursor: &mut SessionCursor<Stored>,
    ) -> Result<Option<Stored>, PictureError> {
        let next = cursor.next(&mut self.session);
        connection.within(async { Ok(next.await.transpose().map_err(failed)) }).await?
    }

    async fn read_all(&mut self, connection: &Connection, pages: &mut Pages) -> Result<(), PictureError> {
        let mut batches = HashSet::new();
        for Table { kind, collection, filter, read } in tables() {
            let mut all = self.find(connection, collection, filter).await?;
            while let Some(document) = self.advance(connection, &mut all).await? {
                if kind == Kind::Batch {
                    batches.insert(name_of(&document)); // also where it cannot be read: it is there
                }
                let read = match kind {
                    Kind::Answer => self.answer(connection, &document).await?,
                    _ => read(&document).map(Some),
                };
                let found = match read {
                    Ok(Some(Item::BatchResult(batch, _))) if !batches.contains(batch.as_str()) => {
                        let why = format!("there is no batch {batch}");
                        Err(Spoiled { kind, name: name_of(&document), why, stand_in: None })
                    }
                    Ok(Some(item)) => Ok(item),
                    Ok(None) => continue,
                    Err(error) => Err(spoiled(kind, &document, chain(&error), self.at())),
                };
                if !pages.put(found).await {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads an answer, which may be in several documents; nothing where MongoDB was removing it.
    async fn answer(
        &mut self,
        connection: &Connection,
        first: &Document,
    ) -> Result<Result<Option<Item>>, PictureError> {
        let further = record::further(first.get_str("_id").unwrap_or_default(), first);
        let mut pieces = Vec::new();
        if !further.is_empty() {
            let filter = doc! { "_id": { "$in": further } };
            let mut found = self.find(connection, REQUESTS, filter).await?;
            while let Some(piece) = self.advance(connection, &mut found).await? {
                pieces.push(piece);
            }
            pieces.sort_by_key(|piece| piece.get_i32("part").unwrap_or_default());
        }
        let read = record::read(first, &pieces);
        Ok(read.map(|read| read.map(|(call, answer)| Item::Memo(Memo::Answer { call, answer }))))
    }
}
