//! News: what servers announce to each other, appended to a small capped collection that the others tail.
//!
//! A change stream makes the database examine every write there is, for every server that has one: a twelfth of its work under
//! load each. The tail of a capped collection is woken by what is written there, and by nothing else. What it says saves time
//! only, and so it is written without waiting for a majority or the journal.

use std::collections::VecDeque;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::error::Error;
use mongodb::options::SessionOptions;
use mongodb::{ClientSession, Database};

use crate::store::mongo::client::{code, fault};
use crate::store::mongo::stored::Stored;
use crate::store::{Result, StoreError};

/// The collection.
const NEWS: &str = "news";
/// Its size. An announcement is valid for some seconds: this is far more than is announced meanwhile.
const BYTES: i32 = 1 << 20;
/// More documents than it has.
const ALL: i32 = 1_000_000;
/// The code of a collection that is there already.
const EXISTS: i32 = 48;
/// The code of a right that is missing.
const UNAUTHORIZED: i32 = 13;
/// The code of a tail of a collection that is not capped (BadValue).
const NOT_CAPPED: i32 = 2;

/// Makes the collection, unless it is there.
pub async fn make(database: &Database) -> Result<()> {
    match database.run_command(doc! { "create": NEWS, "capped": true, "size": BYTES }).await {
        Err(error) if code(&error) != Some(EXISTS) => Err(refused(error)),
        _ => Ok(()),
    }
}

/// What an error means here: a right that is missing will not come by itself, and signals have another way.
fn refused(error: Error) -> StoreError {
    match code(&error) {
        Some(UNAUTHORIZED) => {
            StoreError::Unsuitable(format!("the right to the collection {NEWS} is missing"))
        }
        _ => fault(error),
    }
}

/// Appends a document.
pub async fn tell(database: &Database, document: Document) -> Result<()> {
    // As a command, since the driver's inserts may be repeated, of which MongoDB keeps a record.
    let insert = doc! { "insert": NEWS, "documents": [document], "writeConcern": { "w": 1 } };
    database.run_command(insert).await.map(drop).map_err(refused)
}

/// A cursor behind the last document. MongoDB needs the session in which it was opened.
pub struct Tail {
    session: ClientSession,
    cursor: i64,
    found: VecDeque<Stored>,
}

impl Tail {
    /// Opens one that shows what is announced from now on.
    pub async fn open(database: &Database) -> Result<Self> {
        let hello = database.run_command(doc! { "hello": 1 }).await.map_err(fault)?;
        if hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid") {
            // Each command may go to another of them, and the cursor is known to one.
            return Err(StoreError::Unsuitable("a tail is not read through a mongos".to_owned()));
        }
        make(database).await?;
        // What comes behind this one is new. And an empty collection has no tail.
        let begin = format!("{:032x}", rand::random::<u128>());
        tell(database, doc! { "begin": &begin }).await?;
        let options = SessionOptions::builder().causal_consistency(false).build();
        let mut session = database.client().start_session().with_options(options).await.map_err(fault)?;
        let find = doc! { "find": NEWS, "batchSize": ALL, "tailable": true, "awaitData": true };
        let mut reply = database.run_command(find.clone()).session(&mut session).await;
        if reply.as_ref().is_err_and(|error| code(error) == Some(NOT_CAPPED)) {
            // It had been dropped, and the next insert made it anew.
            let convert = doc! { "convertToCapped": NEWS, "size": BYTES };
            database.run_command(convert).await.map_err(refused)?;
            reply = database.run_command(find).session(&mut session).await;
        }
        let (cursor, mut found) = read(&reply.map_err(refused)?)?;
        let earlier = found.iter().position(|told| told.get_str("begin").is_ok_and(|told| told == begin));
        found.drain(..earlier.map_or(found.len(), |at| at + 1));
        Ok(Self { session, cursor, found })
    }

    /// Whether there may be more.
    pub fn is_alive(&self) -> bool {
        self.cursor != 0 || !self.found.is_empty()
    }

    /// Returns the next one; `None` where there is none for so long.
    pub async fn next_if_any(&mut self, database: &Database, patience: Duration) -> Result<Option<Stored>> {
        if self.found.is_empty() && self.cursor != 0 {
            let patience = i64::try_from(patience.as_millis()).unwrap_or(i64::MAX);
            let more =
                doc! { "getMore": self.cursor, "collection": NEWS, "batchSize": ALL, "maxTimeMS": patience };
            let reply = database.run_command(more).session(&mut self.session).await.map_err(fault)?;
            (self.cursor, self.found) = read(&reply)?;
        }
        Ok(self.found.pop_front())
    }
}

/// Returns the cursor in a reply, and the documents of its batch.
fn read(reply: &Document) -> Result<(i64, VecDeque<Stored>)> {
    let strange = || StoreError::internal("a reply has no cursor");
    let cursor = reply.get_document("cursor").map_err(|_| strange())?;
    let id = cursor.get_i64("id").map_err(|_| strange())?;
    let batch = cursor.get_array("firstBatch").or_else(|_| cursor.get_array("nextBatch"));
    let documents = batch.map_err(|_| strange())?.iter().filter_map(|document| document.as_document());
    Ok((id, documents.cloned().map(Stored::from).collect()))
}
