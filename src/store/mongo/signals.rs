//! Signals between servers: two small documents a server in the collection `signals`, one for each kind,
//! replaced in place, and a change stream on them.
//!
//! A replaced document travels whole within its event, so that hearing costs no read. Signals are written like
//! everything else, for a majority and its journals: only then does a stream show them, and asking for less
//! makes it wait (80 ms instead of 1.3 were measured). Stream and signals have a client of their own, so that
//! neither keeps connections from the jobs nor waits for one. What servers leave behind that died is removed
//! by a TTL index.
//!
//! A change stream makes the database read every write there is, a twelfth of its work under load. A server that is
//! alone has none: a third document says that a server is there, and each server polls for others.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::TryStreamExt as _;
use futures::stream::BoxStream;
use mongodb::bson::{Bson, Document, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType};
use mongodb::options::ReadConcern;

use crate::job::{QueuePattern, Timestamp};
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{Connection, MongoOptions, fault};
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::mongo::stored::Stored;
use crate::store::{self, Arrivals, Result, Signal, SignalEvent, Store as _, StoreError};

const SIGNALS: &str = "signals";
/// One connection that the stream holds, and some for signals.
const POOL_SIZE: u32 = 4;
/// How long the database may keep a question for news open while there is none.
const QUIET: Duration = Duration::from_secs(5);
/// How long to wait before listening is retried.
const RETRY: Duration = Duration::from_millis(500);

/// How often a server polls for others.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often it does so while it is alone: so soon it listens to one that starts.
const LOOK_AROUND_ALONE: Duration = Duration::from_millis(500);
/// How long a server that starts waits for the others to listen to it, and how often it looks whether they do.
const JOIN_WITHIN: Duration = Duration::from_secs(1);
const JOIN_LOOK: Duration = Duration::from_millis(25);
/// How often a server says that it is there.
const SAY_HERE: Duration = Duration::from_secs(4);
/// How long a poll that found no other server counts.
const ALONE_FOR: Duration = Duration::from_secs(3);
/// A server that has not said so for as long is gone, in milliseconds.
const GONE_AFTER_MS: i64 = 15_000;

#[async_trait]
impl store::Signals for Mongo {
    fn signals(&self) -> Option<BoxStream<'static, SignalEvent>> {
        Some(self.signals.listen())
    }

    async fn join(&self) -> Result<()> {
        self.signals.join().await
    }

    async fn signal(&self, signal: &Signal) -> Result<()> {
        self.signals.tell(signal, self.now()?).await
    }
}

/// This server's side of the signals.
pub struct Signals {
    connection: Connection,
    /// The name of this server among the others, for as long as it runs.
    server: String,
    /// When the last poll began, if it found no other server.
    found_alone: Mutex<Option<Instant>>,
}

impl Signals {
    /// Nothing is sent yet.
    pub fn new(options: MongoOptions) -> Arc<Self> {
        let server = format!("{:032x}", rand::random::<u128>());
        let connection = Connection::new(MongoOptions { pool_size: POOL_SIZE, ..options });
        Arc::new(Self { connection, server, found_alone: Mutex::default() })
    }

    /// Whether there was no other server over this database lately. One that has just begun is not known for a second.
    pub fn is_alone(&self) -> bool {
        let found = *self.found_alone.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        found.is_some_and(|at| at.elapsed() < ALONE_FOR)
    }

    fn set_alone(&self, found: Option<Instant>) {
        *self.found_alone.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = found;
    }

    async fn collection(&self) -> Result<mongodb::Collection<Stored>> {
        Ok(self.connection.database().await?.collection(SIGNALS))
    }

    /// Says that this server is there, and whether it listens to others; nothing of that while it starts, since it listens as soon as it serves.
    async fn say_here(&self, listens: Option<bool>) -> Result<()> {
        let here = doc! {
            "$set": { "server": &self.server, "here": true, "listens": listens },
            "$currentDate": { "at": true },
        };
        let own = doc! { "_id": format!("{}/here", self.server) };
        self.collection().await?.update_one(own, here).upsert(true).await.map(drop).map_err(fault)
    }

    /// Returns one of the other servers, only of those that do not listen yet if that is asked.
    async fn other(&self, only_deaf: bool) -> Result<Option<Stored>> {
        let lately = doc! { "$gt": ["$at", { "$subtract": ["$$NOW", GONE_AFTER_MS] }] };
        let mut other = doc! { "server": { "$ne": &self.server }, "here": true, "$expr": lately };
        if only_deaf {
            other.insert("listens", false);
        }
        self.collection().await?.find_one(other).await.map_err(fault)
    }

    /// Announces this server, and waits until all others listen, for a while.
    async fn join(&self) -> Result<()> {
        self.connection.within(self.say_here(None)).await?;
        let until = Instant::now() + JOIN_WITHIN;
        while self.connection.within(self.other(true)).await?.is_some() && Instant::now() < until {
            tokio::time::sleep(JOIN_LOOK).await;
        }
        Ok(())
    }

    /// Replaces this server's signal of this kind.
    pub async fn tell(&self, signal: &Signal, now: Timestamp) -> Result<()> {
        let id = format!("{}/{}", self.server, signal.kind());
        let document = to_document(signal, &self.server, now);
        let told = async {
            let signals = self.collection().await?;
            signals.replace_one(doc! { "_id": id }, Stored::from(document)).upsert(true).await.map_err(fault)
        };
        self.connection.within(told).await.map(drop)
    }

    /// The signals of the other servers.
    pub fn listen(self: &Arc<Self>) -> BoxStream<'static, SignalEvent> {
        let listener = Listener {
            signals: self.clone(),
            stream: None,
            heard: VecDeque::new(),
            failing: false,
            alone: true,
            looked: None,
            said: (None, false),
        };
        Box::pin(futures::stream::unfold(listener, async |mut listener| {
            let heard = listener.next().await;
            Some((heard, listener))
        }))
    }

    /// Announces to the others that this server has gone, and closes the connections, if there are any.
    pub async fn close(&self) {
        if !self.connection.is_used() {
            return;
        }
        let gone = async {
            let own = doc! { "server": &self.server };
            self.collection().await?.delete_many(own).await.map_err(fault)
        };
        if let Err(error) = self.connection.within(gone).await {
            tracing::debug!(
                error = crate::store::chain(&error),
                "the others will find out that this server has gone"
            );
        }
        self.connection.close().await;
    }
}

type Stream = ChangeStream<ChangeStreamEvent<Stored>>;

/// Listens to the other servers; where the stream breaks, to a new one.
struct Listener {
    signals: Arc<Signals>,
    stream: Option<Stream>,
    /// What was received and not yet returned.
    heard: VecDeque<SignalEvent>,
    /// Whether listening did not work the last time.
    failing: bool,
    /// Whether there was no other server at the last poll.
    alone: bool,
    /// When it last polled for others.
    looked: Option<Instant>,
    /// When it last said that this server is there, and whether that it listens.
    said: (Option<Instant>, bool),
}

fn is_over(since: Option<Instant>, time: Duration) -> bool {
    since.is_none_or(|since| since.elapsed() >= time)
}

impl Listener {
    async fn next(&mut self) -> SignalEvent {
        loop {
            if let Some(heard) = self.heard.pop_front() {
                return heard;
            }
            let every = if self.alone { LOOK_AROUND_ALONE } else { LOOK_AROUND };
            let outcome = if is_over(self.looked, every) {
                self.look_around().await
            } else if self.alone {
                self.stream = None;
                tokio::time::sleep(LOOK_AROUND_ALONE).await;
                Ok(())
            } else {
                // Taken out while it is in use: one that fails or does not reply is gone.
                match self.stream.take() {
                    Some(stream) => self.hear(stream).await,
                    None => self.begin().await,
                }
            };
            match outcome {
                Ok(()) if std::mem::take(&mut self.failing) => {
                    tracing::info!("listening to other servers again")
                }
                Ok(()) => {}
                Err(error) => {
                    if !std::mem::replace(&mut self.failing, true) {
                        let error = crate::store::chain(&error);
                        tracing::warn!(
                            error,
                            "cannot listen to other servers; waiters look by themselves meanwhile"
                        );
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Says that this server is there, and polls for others.
    async fn look_around(&mut self) -> Result<()> {
        let listens = self.stream.is_some();
        let saying = is_over(self.said.0, SAY_HERE) || self.said.1 != listens;
        let begin = Instant::now();
        let looked = async {
            if saying {
                self.signals.say_here(Some(listens)).await?;
            }
            self.signals.other(false).await
        };
        self.alone = self.signals.connection.within(looked).await?.is_none();
        self.signals.set_alone(self.alone.then_some(begin));
        self.looked = Some(Instant::now());
        if saying {
            self.said = (self.looked, listens);
        }
        Ok(())
    }

    /// Opens a stream of the signals from now on, and only then reads the earlier ones.
    async fn begin(&mut self) -> Result<()> {
        let me = &self.signals.server;
        let said =
            doc! { "operationType": { "$in": ["insert", "replace"] }, "fullDocument.server": { "$ne": me } };
        let others = doc! { "$match": { "$or": [said, { "operationType": "delete" }] } };
        let opened = async {
            let signals = self.signals.collection().await?;
            let stream = signals
                .watch()
                .pipeline([others])
                .read_concern(ReadConcern::majority())
                .max_await_time(QUIET);
            let stream = stream.await.map_err(fault)?;
            let waiting = doc! { "server": { "$ne": me }, "patterns": { "$exists": true } };
            let waiting: Vec<Stored> =
                signals.find(waiting).await.map_err(fault)?.try_collect().await.map_err(fault)?;
            Ok((stream, waiting))
        };
        let (stream, waiting) = self.signals.connection.within(opened).await?;
        self.stream = Some(stream);
        self.looked = None; // those who wait to be listened to learn of it
        self.heard.push_back(SignalEvent::Subscribed);
        self.heard.extend(waiting.iter().filter_map(|waiting| from_document(waiting)));
        Ok(())
    }

    /// Waits for news on the stream, for a while.
    async fn hear(&mut self, mut stream: Stream) -> Result<()> {
        // The driver has no deadline for a reply, and a connection may be dead without a sign.
        let patience = QUIET + self.signals.connection.deadline();
        let late = |_| StoreError::unavailable("the stream of signals does not answer");
        let news = tokio::time::timeout(patience, stream.next_if_any()).await.map_err(late)?;
        // The driver has tried to go on where it was. A new stream and reading everything again always help, also
        // where that place in the oplog is gone.
        let event = news.map_err(StoreError::unavailable)?;
        if event.is_some() || stream.is_alive() {
            self.stream = Some(stream);
        }
        self.heard.extend(event.and_then(|event| self.read(event)));
        Ok(())
    }

    fn read(&self, event: ChangeStreamEvent<Stored>) -> Option<SignalEvent> {
        if event.operation_type != OperationType::Delete {
            let document = event.full_document?;
            return from_document(&document);
        }
        let key = event.document_key?;
        let (server, kind) = key.get_str("_id").ok()?.split_once('/')?;
        if kind != "waiting" || server == self.signals.server {
            return None;
        }
        let signal = Signal::Waiting { patterns: Vec::new(), until: Timestamp::default() };
        Some(SignalEvent::Received { server: server.into(), signal })
    }
}

fn to_document(signal: &Signal, server: &str, now: Timestamp) -> Document {
    let mut document = doc! { "server": server, "at": date(now) };
    match signal {
        Signal::Arrived(Arrivals { ready, unnamed, due }) => {
            let ready = ready.iter().map(|(queue, jobs)| {
                let jobs = i64::try_from(*jobs).unwrap_or(i64::MAX);
                Bson::Document(doc! { "queue": queue.as_str(), "jobs": jobs })
            });
            document.extend(doc! { "ready": ready.collect::<Vec<Bson>>(), "unnamed": *unnamed });
            document.extend(due.map(|due| ("due".to_owned(), date(due).into())));
        }
        Signal::Waiting { patterns, until } => {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            document.extend(doc! { "patterns": patterns, "until": date(*until) });
        }
        Signal::Settings => drop(document.insert("settings", true)),
    }
    document
}

/// What a document says. One that cannot be read was written by a server of another version: it says nothing.
fn from_document(document: &Document) -> Option<SignalEvent> {
    let row = Row(document);
    let signal = if let Ok(patterns) = document.get_array("patterns") {
        let patterns = patterns.iter().filter_map(|pattern| pattern.as_str()?.parse::<QueuePattern>().ok());
        Signal::Waiting { patterns: patterns.collect(), until: row.time("until").ok()?? }
    } else if document.contains_key("settings") {
        Signal::Settings
    } else {
        let ready = document.get_array("ready").ok()?.iter().filter_map(|entry| {
            let entry = Row(entry.as_document()?);
            Some((entry.text("queue").ok()?, entry.number("jobs").ok()?))
        });
        let ready: HashMap<_, usize> = ready.collect();
        let unnamed = document.get_bool("unnamed").unwrap_or(false);
        Signal::Arrived(Arrivals { ready, unnamed, due: row.time("due").ok()? })
    };
    Some(SignalEvent::Received { server: document.get_str("server").ok()?.into(), signal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_heard() {
        let at = Timestamp::from_millis(1_000_000);
        let mut arrivals = Arrivals::default();
        arrivals.add(&"mail.out".parse().unwrap(), 3);
        let few = Signal::Arrived(arrivals.clone());
        arrivals.add_due(at);
        let many = Signal::Arrived(Arrivals { unnamed: true, ..arrivals });
        let patterns = vec!["mail.*".parse().unwrap(), "a".parse().unwrap(), "*".parse().unwrap()];
        for signal in [few, many, Signal::Waiting { patterns, until: at }, Signal::Settings] {
            let document = to_document(&signal, "s1", at);
            let heard = SignalEvent::Received { server: "s1".into(), signal };
            assert_eq!(from_document(&document), Some(heard));
        }
        assert_eq!(from_document(&doc! { "server": "s1", "something": "new" }), None);
    }
}
