//! Listening to the other servers: by the tail of the news, or by a change stream where that does not do.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use mongodb::bson::doc;

use crate::store::mongo::client::fault;
use crate::store::mongo::signals::changes::{self, Changes};
use crate::store::mongo::signals::document::{WAKEUPS, from_document};
use crate::store::mongo::signals::news::Tail;
use crate::store::mongo::signals::{Listening, QUIET, Signals};
use crate::store::mongo::stored::Stored;
use crate::store::{Result, SignalEvent, StoreError};

/// How often a server checks whether that collection is there, and how long its documents are kept.
const CHECK_WAKEUPS: Duration = Duration::from_secs(5);
const WAKEUPS_KEPT_SECS: i32 = 60;
/// How long to wait before listening is retried.
const RETRY: Duration = Duration::from_millis(500);
/// How often a server polls for others.
const POLL_SERVERS: Duration = Duration::from_secs(1);
/// How often it does so while it is alone: so soon it listens to one that starts.
const POLL_SERVERS_ALONE: Duration = Duration::from_millis(500);
/// How often a server says that it is there.
const SAY_HERE: Duration = Duration::from_secs(4);
/// How long it has a stream where the news cannot be read, before it tries them again.
const NEWS_AGAIN: Duration = Duration::from_secs(60);

/// Where signals come from.
enum Stream {
    Changes(Changes),
    News(Box<Tail>),
}

/// Listens to the other servers; where the stream breaks, to a new one.
pub struct SignalListener {
    signals: Arc<Signals>,
    stream: Option<Stream>,
    /// What was received and not yet returned.
    heard: VecDeque<SignalEvent>,
    /// Whether listening did not work the last time.
    failing: bool,
    /// Whether it could not watch the collection that other programs write to.
    deaf_to_wakeups: bool,
    /// Whether there was no other server at the last poll.
    alone: bool,
    /// When it last polled for others.
    polled: Option<Instant>,
    /// Whether other programs say what they insert, and when it last checked whether they do.
    wakeups: bool,
    checked_wakeups: Option<Instant>,
    /// When it last said that this server is there, and how it listens.
    said: (Option<Instant>, Listening),
    /// Whether there was a server of an older version at the last poll.
    older: bool,
    /// Whether MongoDB has refused the news.
    no_news: Option<Instant>,
}

fn is_over(since: Option<Instant>, time: Duration) -> bool {
    since.is_none_or(|since| since.elapsed() >= time)
}

impl SignalListener {
    pub fn new(signals: Arc<Signals>) -> Self {
        Self {
            signals,
            stream: None,
            heard: VecDeque::new(),
            failing: false,
            deaf_to_wakeups: false,
            alone: true,
            polled: None,
            wakeups: false,
            checked_wakeups: None,
            said: (None, Listening::Not),
            older: false,
            no_news: None,
        }
    }

    /// Returns what comes next, however long that takes.
    pub async fn next(&mut self) -> SignalEvent {
        loop {
            if let Some(heard) = self.heard.pop_front() {
                return heard;
            }
            let every = if self.alone { POLL_SERVERS_ALONE } else { POLL_SERVERS };
            let outcome = if is_over(self.polled, every) {
                self.poll_servers().await
            } else if is_over(self.checked_wakeups, CHECK_WAKEUPS) {
                self.check_wakeups().await;
                Ok(())
            } else if self.alone && !self.wakeups {
                self.stream = None;
                tokio::time::sleep(POLL_SERVERS_ALONE).await;
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
                            "cannot receive signals from other servers; falling back to polling"
                        );
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Says that this server is there, and polls for others.
    async fn poll_servers(&mut self) -> Result<()> {
        let listening = self.listening();
        let saying = is_over(self.said.0, SAY_HERE) || self.said.1 != listening;
        let begin = Instant::now();
        let polled = async {
            if saying {
                self.signals.say_here(Some(listening)).await?;
            }
            self.signals.others().await
        };
        let others = self.signals.connection.within(polled).await?;
        self.alone = others.is_empty();
        self.older = others.iter().any(|other| !other.contains_key("news"));
        self.signals.set_alone(self.alone.then_some(begin));
        self.polled = Some(Instant::now());
        if saying {
            self.said = (self.polled, listening);
        }
        if self.stream.is_some() && (listening == Listening::Stream) != self.needs_stream() {
            self.stream = None;
        }
        Ok(())
    }

    fn listening(&self) -> Listening {
        match self.stream {
            None => Listening::Not,
            Some(Stream::Changes(_)) => Listening::Stream,
            Some(Stream::News(_)) => Listening::News,
        }
    }

    /// Whether what is to be heard is not all in the news.
    fn needs_stream(&self) -> bool {
        self.wakeups || self.older || self.no_news.is_some_and(|since| since.elapsed() < NEWS_AGAIN)
    }

    /// Checks whether other programs say what they insert. Where they begin to, or end, another stream is opened.
    async fn check_wakeups(&mut self) {
        let checked = async {
            let database = self.signals.connection.database().await?;
            let names = database.list_collection_names().filter(doc! { "name": WAKEUPS }).await;
            let is_there = !names.map_err(fault)?.is_empty();
            if is_there && !self.wakeups {
                // The programs that insert need not know of it.
                let index =
                    doc! { "name": "at", "key": { "at": 1 }, "expireAfterSeconds": WAKEUPS_KEPT_SECS };
                let made = database.run_command(doc! { "createIndexes": WAKEUPS, "indexes": [index] }).await;
                if let Err(error) = made {
                    let error = crate::store::chain(&error);
                    tracing::warn!(error, "documents of wakeups are not removed: there is no index at");
                }
            }
            Ok(is_there)
        };
        self.checked_wakeups = Some(Instant::now());
        match self.signals.connection.within(checked).await {
            Ok(is_there) if is_there != self.wakeups => (self.wakeups, self.stream) = (is_there, None),
            Ok(_) => {}
            // Who may not list collections has signals all the same.
            Err(error) => {
                let error = crate::store::chain(&error);
                tracing::debug!(error, "whether other programs say what they insert is not known");
            }
        }
    }

    /// Begins to listen to what is announced from now on, and only then reads what the others' waiters wait for.
    async fn begin(&mut self) -> Result<()> {
        let mut tail = None;
        if !self.needs_stream() {
            let opened = async { Tail::open(self.signals.connection.database().await?).await };
            match self.signals.connection.within(opened).await {
                Ok(opened) => tail = Some(opened),
                Err(error) if error.is_away() => return Err(error),
                Err(error) => self.warn_no_news(&error),
            }
        }
        let stream = match tail {
            Some(tail) => Stream::News(Box::new(tail)),
            None => Stream::Changes(self.changes().await?),
        };
        let waiting = doc! { "server": { "$ne": &self.signals.server }, "patterns": { "$exists": true } };
        let waiting = async {
            let found = self.signals.collection().await?.find(waiting).await.map_err(fault)?;
            found.try_collect::<Vec<Stored>>().await.map_err(fault)
        };
        let waiting = self.signals.connection.within(waiting).await?;
        if let Stream::Changes(_) = stream {
            self.signals.say_stream().await;
        }
        self.stream = Some(stream);
        self.polled = None; // those who wait to be listened to learn of it
        self.heard.push_back(SignalEvent::Subscribed);
        self.heard.extend(waiting.iter().filter_map(|waiting| from_document(waiting)));
        Ok(())
    }

    /// Without the right to make the collection, signals come as those of older servers do.
    fn warn_no_news(&mut self, error: &StoreError) {
        if self.no_news.replace(Instant::now()).is_some() {
            return;
        }
        let error = crate::store::chain(error);
        tracing::warn!(
            error,
            "cannot read the collection news; signals come by a change stream, which costs MongoDB more"
        );
    }

    /// Opens a stream of the changes of signals.
    async fn changes(&mut self) -> Result<Changes> {
        let Signals { connection, server, .. } = &*self.signals;
        let opened = connection.within(changes::open(connection, server, self.wakeups)).await?;
        match opened.refused {
            Some(error) => warn_deaf(&mut self.deaf_to_wakeups, error),
            None => self.deaf_to_wakeups &= !self.wakeups,
        }
        Ok(opened.stream)
    }

    /// Waits for what comes on the stream, for a while.
    async fn hear(&mut self, stream: Stream) -> Result<()> {
        // The driver has no deadline for a reply, and a connection may be dead without a sign.
        let patience = QUIET + self.signals.connection.deadline();
        let late = |_| StoreError::unavailable("the stream of signals does not answer");
        let (heard, stream) = match stream {
            Stream::Changes(mut stream) => {
                let event = tokio::time::timeout(patience, stream.next_if_any()).await.map_err(late)?;
                // The driver has tried to go on where it was. A new stream and reading everything again always help, also
                // where that position in the oplog is gone.
                let event = event.map_err(StoreError::unavailable)?;
                let goes_on = event.is_some() || stream.is_alive();
                (
                    event.and_then(|event| changes::read(event, &self.signals.server)),
                    goes_on.then_some(Stream::Changes(stream)),
                )
            }
            Stream::News(mut tail) => {
                let database = self.signals.connection.database().await?;
                let news = tail.next_if_any(database, QUIET);
                let document = tokio::time::timeout(patience, news).await.map_err(late)??;
                let of_others = document
                    .filter(|told| told.get_str("server").is_ok_and(|server| server != self.signals.server));
                let goes_on = tail.is_alive();
                if of_others.as_ref().is_some_and(|told| told.contains_key("stream")) {
                    self.signals.all_read_news.store(false, Ordering::Release);
                    self.polled = None;
                }
                (
                    of_others.and_then(|document| from_document(&document)),
                    goes_on.then_some(Stream::News(tail)),
                )
            }
        };
        self.stream = stream;
        self.heard.extend(heard);
        Ok(())
    }
}

/// Without the right to watch the whole database, what other programs insert is found by polls, and the signals of servers go on.
fn warn_deaf(is_deaf: &mut bool, error: StoreError) {
    if !std::mem::replace(is_deaf, true) {
        let error = crate::store::chain(&error);
        tracing::warn!(
            error,
            "cannot listen to the collection wakeups, for which the whole database is watched; jobs that other programs insert are found by polls"
        );
    }
}
