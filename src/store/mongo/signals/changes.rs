//! Change streams: of the signals of servers of older versions, and of what other programs say that they have inserted.

use mongodb::bson::doc;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType};
use mongodb::options::ReadConcern;

use crate::job::Timestamp;
use crate::store::mongo::client::{Connection, code, fault};
use crate::store::mongo::signals::QUIET;
use crate::store::mongo::signals::document::{SIGNALS, WAKEUPS, from_document, wakeup};
use crate::store::mongo::stored::Stored;
use crate::store::{Result, Signal, SignalEvent, StoreError};

/// A stream.
pub type Changes = ChangeStream<ChangeStreamEvent<Stored>>;

/// A stream that was opened.
pub struct Opened {
    pub stream: Changes,
    /// Why it does not show what other programs say, if that was asked.
    pub refused: Option<StoreError>,
}

/// Opens a stream of what others than this server say from now on; with `wakeups`, also other programs.
pub async fn open(connection: &Connection, server: &str, wakeups: bool) -> Result<Opened> {
    let said =
        doc! { "operationType": { "$in": ["insert", "replace"] }, "fullDocument.server": { "$ne": server } };
    // What the TTL index removes says nothing.
    let left = doc! { "operationType": "delete", "ns.coll": SIGNALS };
    let others = doc! { "$match": { "$or": [said, left] } };
    let of_both = doc! { "$match": { "ns.coll": { "$in": [SIGNALS, WAKEUPS] } } };
    let database = connection.database().await?;
    let mut refused = None;
    if wakeups {
        let watch = database.watch().pipeline([of_both, others.clone()]);
        match watch.read_concern(ReadConcern::majority()).max_await_time(QUIET).await {
            Ok(stream) => return Ok(Opened { stream: stream.with_type(), refused }),
            // MongoDB has refused it.
            Err(error) if code(&error).is_some() => refused = Some(fault(error)),
            Err(error) => return Err(fault(error)),
        }
    }
    // Of one collection, a stream needs no right to others.
    let signals = database.collection::<Stored>(SIGNALS);
    let own = signals.watch().pipeline([others]).read_concern(ReadConcern::majority());
    let stream = own.max_await_time(QUIET).await.map_err(fault)?;
    Ok(Opened { stream, refused })
}

/// Returns what an event says.
pub fn read(event: ChangeStreamEvent<Stored>, server: &str) -> Option<SignalEvent> {
    if event.operation_type != OperationType::Delete {
        let document = event.full_document?;
        let is_wakeup = event.ns.is_some_and(|ns| ns.coll.is_some_and(|name| name == WAKEUPS));
        return if is_wakeup { wakeup(&document) } else { from_document(&document) };
    }
    let key = event.document_key?;
    let (other, kind) = key.get_str("_id").ok()?.split_once('/')?;
    if kind != "waiting" || other == server {
        return None;
    }
    let signal = Signal::Waiting { patterns: Vec::new(), until: Timestamp::default() };
    Some(SignalEvent::Received { server: other.into(), signal })
}
