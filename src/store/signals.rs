//! The part of the contract that is about signals: what servers over one database publish to each other, so
//! that a waiter on one of them is woken by what happens on another. A signal only saves time: it may be
//! lost, and may reach servers that it does not concern.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;

use super::Result;
use crate::job::{QueueName, QueuePattern, Timestamp};

/// The most queues that one signal names.
const QUEUES_MAX: usize = 256;

/// What a server publishes to the others. It replaces what the server published before of the same kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Signal {
    /// Jobs came into queues, and no waiter of the server that stored them waits for them.
    Arrived(Arrivals),
    /// The server's waiters wait for jobs of these queues; none: it has no waiters.
    Waiting {
        /// What they wait for.
        patterns: Vec<QueuePattern>,
        /// When this ends, unless the server publishes it again: it may have died.
        until: Timestamp,
    },
    /// The settings of a queue, or the API keys, have changed.
    Settings,
    /// The server is busy: while several are, each lets more requests gather for a round.
    Busy {
        /// When this ends, unless the server publishes it again.
        until: Timestamp,
    },
}

/// Jobs that came into queues.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Arrivals {
    /// How many jobs can be delivered now, by queue.
    pub ready: HashMap<QueueName, usize>,
    /// There were too many queues to name them: any queue may have got jobs.
    pub unnamed: bool,
    /// When the first of those jobs comes due that cannot be delivered yet.
    pub due: Option<Timestamp>,
}

impl Arrivals {
    /// Adds so many jobs of this queue that can be delivered now.
    pub fn add(&mut self, queue: &QueueName, jobs: usize) {
        if self.unnamed {
            return;
        }
        if let Some(known) = self.ready.get_mut(queue) {
            *known = known.saturating_add(jobs);
        } else if self.ready.len() < QUEUES_MAX {
            self.ready.insert(queue.clone(), jobs);
        } else {
            (self.ready, self.unnamed) = (HashMap::new(), true);
        }
    }

    /// Adds a job that comes due at this moment.
    pub fn add_due(&mut self, at: Timestamp) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Returns whether nothing came.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && !self.unnamed && self.due.is_none()
    }
}

/// What the stream of signals delivers.
#[derive(Debug, Clone, PartialEq)]
pub enum SignalEvent {
    /// A signal of another server.
    Received {
        /// Which one, by a name that it has for as long as it runs.
        server: Arc<str>,
        /// The signal.
        signal: Signal,
    },
    /// The subscription begins, for the first time or again: any signal may have been missed until now. What
    /// the other servers wait for follows anew.
    Subscribed,
}

/// A server over the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownServer {
    /// Its name, for as long as it runs.
    pub id: String,
    /// Its version; servers of older versions do not say it.
    pub version: Option<String>,
    /// Since when it runs, if it says so.
    pub since: Option<Timestamp>,
    /// When it last said that it is there.
    pub seen_at: Timestamp,
    /// Whether it is this one.
    pub is_own: bool,
}

impl Signal {
    /// What [`Signal::kind`] returns.
    pub const KINDS: [&'static str; 4] = ["arrived", "waiting", "settings", "busy"];

    /// Returns the word for its kind in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Arrived(_) => "arrived",
            Self::Waiting { .. } => "waiting",
            Self::Settings => "settings",
            Self::Busy { .. } => "busy",
        }
    }
}

/// Signals between the servers that share a database. The defaults are those of a store that only one server can use.
#[async_trait]
pub trait Signals: Send + Sync {
    /// Returns what other servers over this database publish from now on: a stream that never ends and
    /// reconnects by itself, also while the database is away. It begins, again after each gap, with
    /// [`SignalEvent::Subscribed`]. `None`: there can be no other servers.
    fn signals(&self) -> Option<BoxStream<'static, SignalEvent>> {
        None
    }

    /// Returns the servers over this database that have said lately that they are there, by their names: this one as well, once it has.
    async fn servers(&self) -> Result<Vec<KnownServer>>;

    /// Announces this server to the others, and returns once they listen to it; after a second at most, since one of them may have died or be
    /// of a version that does not say so.
    async fn join(&self) -> Result<()> {
        Ok(())
    }

    /// Publishes a signal to the other servers. Those that listen receive it soon, usually within
    /// milliseconds; nothing depends on it. Calls of one kind come one after the other.
    async fn signal(&self, _signal: &Signal) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_queues_are_not_named() {
        let mut arrivals = Arrivals::default();
        assert!(arrivals.is_empty());
        let queue = |n: usize| format!("q{n}").parse::<QueueName>().unwrap();
        for n in 0..QUEUES_MAX {
            arrivals.add(&queue(n), 1);
            arrivals.add(&queue(n), 2);
        }
        assert_eq!((arrivals.ready.len(), arrivals.ready[&queue(7)]), (QUEUES_MAX, 3));
        arrivals.add(&queue(QUEUES_MAX), 1);
        arrivals.add(&queue(0), 1);
        assert!(arrivals.unnamed && arrivals.ready.is_empty() && !arrivals.is_empty());
    }
}
