//! Signals between servers: documents that are appended to a small capped collection, whose tail the others read (`news`).
//! They have a client of their own, so that they neither keep connections from the jobs nor wait for one.
//!
//! A document in the collection `signals` says that a server is there, and how it listens; each server polls for others, and one that is
//! alone does not listen. Another one says what a server's waiters wait for, for those that begin to listen. What servers leave behind
//! that died is removed by a TTL index.
//!
//! Servers of older versions announce everything by documents in `signals`, one for each kind, replaced in place, and listen by a change
//! stream, which makes the database read every write there is, a twelfth of its work under load for each stream. Where one of them is
//! there, the others do both. A stream shows what a majority has, and asking for less makes it wait (80 ms instead of 1.3 were
//! measured); a replaced document travels whole within its event.
//!
//! Programs that insert jobs past the servers may say so in the collection `wakeups`, a document for each insert. It is there only where
//! a program uses it: where it is, every server has a stream, of both collections, also one that is alone.

mod changes;
mod document;
mod listener;
mod news;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::TryStreamExt as _;
use futures::stream::BoxStream;
use mongodb::bson::doc;

use self::document::{SIGNALS, to_document};
use self::listener::SignalListener;
use crate::job::Timestamp;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{Connection, MongoOptions, fault};
use crate::store::mongo::jobs::document::{Row, readable};
use crate::store::mongo::stored::Stored;
use crate::store::{self, KnownServer, Result, Signal, SignalEvent, Store as _};

/// One connection that the stream holds, and some for signals.
const POOL_SIZE: u32 = 4;
/// How long the database may keep a question for news open while there is none.
pub const QUIET: Duration = Duration::from_secs(5);

/// How long a server that starts waits for the others to listen to it, and how often it checks whether they do.
const JOIN_WITHIN: Duration = Duration::from_secs(1);
const JOIN_POLL: Duration = Duration::from_millis(25);
/// How long a poll that found no other server counts.
const ALONE_FOR: Duration = Duration::from_secs(3);
/// A server that has not said so for as long is gone, in milliseconds.
const GONE_AFTER_MS: i64 = 15_000;
/// The most servers that are listed.
const SERVERS_MAX: i64 = 1000;

#[async_trait]
impl store::Signals for Mongo {
    fn signals(&self) -> Option<BoxStream<'static, SignalEvent>> {
        Some(self.signals.listen())
    }

    async fn servers(&self) -> Result<Vec<KnownServer>> {
        self.signals.connection.within(self.signals.servers()).await
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
    /// Whether every other server was found to read the news.
    all_read_news: AtomicBool,
    /// Whether the collection of the news was there.
    has_news: AtomicBool,
}

/// How a server listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listening {
    /// It does not yet.
    Not,
    /// By a change stream.
    Stream,
    /// It reads the news.
    News,
}

impl Signals {
    /// Nothing is sent yet.
    pub fn new(options: MongoOptions) -> Arc<Self> {
        let server = format!("{:032x}", rand::random::<u128>());
        let connection = Connection::new(MongoOptions { pool_size: POOL_SIZE, ..options });
        let (found_alone, all_read_news, has_news) = Default::default();
        Arc::new(Self { connection, server, found_alone, all_read_news, has_news })
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

    /// Says that this server is there, and whether and how it listens to others; nothing of that while it starts, since it listens as soon
    /// as it serves.
    async fn say_here(&self, listening: Option<Listening>) -> Result<()> {
        let listens = listening.map(|listening| listening != Listening::Not);
        // Of a server of an older version there is no such field.
        let news = listening.map(|listening| listening == Listening::News);
        let here = doc! { "$set": {
            "server": &self.server, "here": true, "listens": listens, "news": news, "at": "$$NOW",
            "version": env!("CARGO_PKG_VERSION"), "since": { "$ifNull": ["$since", "$$NOW"] },
        } };
        let own = doc! { "_id": format!("{}/here", self.server) };
        self.collection().await?.update_one(own, vec![here]).upsert(true).await.map(drop).map_err(fault)
    }

    /// Returns what the other servers say of themselves.
    async fn others(&self) -> Result<Vec<Stored>> {
        let lately = doc! { "$gt": ["$at", { "$subtract": ["$$NOW", GONE_AFTER_MS] }] };
        let others = doc! { "server": { "$ne": &self.server }, "here": true, "$expr": lately };
        let found = self.collection().await?.find(others).await.map_err(fault)?;
        let others: Vec<Stored> = found.try_collect().await.map_err(fault)?;
        let all_read_news = others.iter().all(|other| other.get_bool("news").unwrap_or(false));
        self.all_read_news.store(all_read_news && !others.is_empty(), Ordering::Release);
        Ok(others)
    }

    /// Returns the servers that have said lately that they are there.
    async fn servers(&self) -> Result<Vec<KnownServer>> {
        let lately = doc! { "$gt": ["$at", { "$subtract": ["$$NOW", GONE_AFTER_MS] }] };
        let signals = self.collection().await?;
        let here = signals.find(doc! { "here": true, "$expr": lately });
        let found = here.sort(doc! { "server": 1 }).limit(SERVERS_MAX).await.map_err(fault)?;
        let found: Vec<Stored> = found.try_collect().await.map_err(fault)?;
        Ok(readable(&found, |document| {
            let row = Row(document);
            let id: String = row.text("server")?;
            Ok(KnownServer {
                is_own: id == self.server,
                version: document.get_str("version").ok().map(str::to_owned),
                since: row.time("since").ok().flatten(),
                seen_at: row.time("at")?.ok_or_else(|| row.fault("at"))?,
                id,
            })
        }))
    }

    /// Announces this server, and waits until all others listen, for a while.
    async fn join(&self) -> Result<()> {
        self.connection.within(self.say_here(None)).await?;
        let until = Instant::now() + JOIN_WITHIN;
        let is_deaf = |other: &Stored| other.get_bool("listens").is_ok_and(|listens| !listens);
        while self.connection.within(self.others()).await?.iter().any(is_deaf) && Instant::now() < until {
            tokio::time::sleep(JOIN_POLL).await;
        }
        Ok(())
    }

    /// Creates the collection of the news if that was not done yet. Without the right to do so, an insert creates an ordinary one, which
    /// cannot be tailed.
    async fn make_news(&self) -> Result<()> {
        if !self.has_news.load(Ordering::Acquire) {
            news::make(self.connection.database().await?).await?;
            self.has_news.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Appends a signal to the news. For those that do not read them, and where it says what holds for a while, it also replaces this
    /// server's signal of its kind.
    pub async fn tell(&self, signal: &Signal, now: Timestamp) -> Result<()> {
        if matches!(signal, Signal::Busy { .. }) && self.is_alone() {
            return Ok(()); // it is announced again soon
        }
        let id = format!("{}/{}", self.server, signal.kind());
        let document = to_document(signal, &self.server, now);
        let told = async {
            let database = self.connection.database().await?;
            let all_read_news = self.all_read_news.load(Ordering::Acquire);
            // Replaced before it is appended: who opens a tail behind the news finds it there.
            if !all_read_news || matches!(signal, Signal::Waiting { .. }) {
                let signals = database.collection(SIGNALS);
                let stored = Stored::from(document.clone());
                let replaced = signals.replace_one(doc! { "_id": id }, stored).upsert(true);
                replaced.await.map_err(fault)?;
            }
            if self.is_alone() {
                return Ok(());
            }
            let appended = async {
                self.make_news().await?;
                news::tell(database, document).await
            };
            match appended.await {
                // Without the collection `news` no server reads it; the signal was sent by `signals` above.
                Err(error) if !error.is_away() && !all_read_news => {
                    tracing::debug!(
                        error = crate::store::chain(&error),
                        "the collection news cannot be written"
                    );
                    Ok(())
                }
                told => told,
            }
        };
        self.connection.within(told).await
    }

    /// Says to those that read the news that this server does not: else they learn it by their next poll, seconds later. It
    /// saves time only.
    async fn say_stream(&self) {
        let says = doc! { "server": &self.server, "stream": true };
        let said = async {
            self.make_news().await?; // an insert would make one that cannot be tailed
            news::tell(self.connection.database().await?, says).await
        };
        if let Err(error) = self.connection.within(said).await {
            tracing::debug!(error = crate::store::chain(&error), "cannot announce the change stream");
        }
    }

    /// The signals of the other servers.
    pub fn listen(self: &Arc<Self>) -> BoxStream<'static, SignalEvent> {
        let listener = SignalListener::new(self.clone());
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
            self.collection().await?.delete_many(own).await.map_err(fault)?;
            if self.is_alone() || !self.has_news.load(Ordering::Acquire) {
                return Ok(());
            }
            let none = Signal::Waiting { patterns: Vec::new(), until: Timestamp::default() };
            let gone = to_document(&none, &self.server, Timestamp::default());
            news::tell(self.connection.database().await?, gone).await
        };
        if let Err(error) = self.connection.within(gone).await {
            tracing::debug!(
                error = crate::store::chain(&error),
                "cannot withdraw this server's announcement"
            );
        }
        self.connection.close().await;
    }
}
