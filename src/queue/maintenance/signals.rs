//! Signals to and from the other servers over the same store: what waiters wait for, and that jobs came. They
//! save time only; nothing depends on them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::sync::Mutex;

use super::{Maintenance, Run};
use crate::queue::Result;
use crate::queue::peers::{ANNOUNCEMENT_HOLDS_MS, Announcement};
use crate::queue::turns::BUSY_HOLDS_MS;
use crate::store::{Arrivals, Signal, SignalEvent};

/// When the other servers have surely read what this server announced.
const READ_AFTER: Duration = Duration::from_millis(50);

/// What comes from the other servers.
pub(super) type SignalStream = Mutex<BoxStream<'static, SignalEvent>>;

impl Maintenance {
    /// Publishes what waiters here wait for, and the jobs that came and that no waiter here was woken for.
    /// Counts the signals. Dormant while there is nothing to publish.
    pub async fn publish_signals(self: Arc<Self>) -> Result<Run> {
        let (waiting, arrivals, settings, busy) = tokio::join!(
            self.publish_waiting(),
            self.publish_arrivals(),
            self.publish_settings(),
            self.publish_busy()
        );
        Ok(Run { done: waiting? + arrivals? + settings? + busy?, again_in: None })
    }

    async fn publish_waiting(&self) -> Result<u64> {
        let waiters = &self.queues.0.waiters;
        let Some(announcement) = waiters.peers.next_announcement(|| waiters.patterns()) else {
            return Ok(0);
        };
        let Announcement { patterns, news } = announcement;
        let until = self.queues.now()?.plus_ms(ANNOUNCEMENT_HOLDS_MS);
        let signal = Signal::Waiting { patterns: patterns.iter().cloned().collect(), until };
        self.queues.0.store.signal(&signal).await?;
        waiters.peers.announced(patterns);
        if news {
            // Finds what came after the waiters queried, and before the other servers knew of them.
            self.queues.0.poll.poll_by(Instant::now() + READ_AFTER);
        }
        Ok(1)
    }

    /// One signal after the other; what comes meanwhile travels in the next one.
    async fn publish_arrivals(&self) -> Result<u64> {
        let mut published = 0;
        while let Some(arrivals) = self.queues.0.waiters.peers.take_arrivals() {
            let told = self.queues.0.store.signal(&Signal::Arrived(arrivals)).await;
            // What could not be announced is announced in short the next time: there may be jobs in any queue.
            told.inspect_err(|_| self.queues.0.waiters.peers.note_any_arrivals())?;
            published += 1;
        }
        Ok(published)
    }

    async fn publish_settings(&self) -> Result<u64> {
        let mut published = 0;
        while self.queues.0.waiters.peers.take_settings() {
            self.queues.0.store.signal(&Signal::Settings).await?;
            published += 1;
        }
        Ok(published)
    }

    async fn publish_busy(&self) -> Result<u64> {
        if !self.queues.0.turns.take_busy() {
            return Ok(0);
        }
        let until = self.queues.now()?.plus_ms(BUSY_HOLDS_MS);
        self.queues.0.store.signal(&Signal::Busy { until }).await?;
        Ok(1)
    }

    /// Receives signals for the length of the interval, so that the task is seen to be alive, and wakes
    /// waiters for what they say. Counts the signals.
    pub async fn listen_for_signals(self: Arc<Self>, interval: Duration) -> Result<Run> {
        let Some(signals) = &self.signals else { return Ok(Run::default()) };
        let mut signals = signals.lock().await;
        let end = Instant::now() + interval;
        let mut done = 0;
        while Instant::now() < end
            && let Ok(Some(event)) = tokio::time::timeout_at(end.into(), signals.next()).await
        {
            self.receive(event);
            done += 1;
        }
        Ok(Run { done, again_in: Some(end.saturating_duration_since(Instant::now())) })
    }

    fn receive(&self, event: SignalEvent) {
        let queues = &self.queues;
        let peers = &queues.0.waiters.peers;
        match event {
            SignalEvent::Subscribed => {
                peers.forget_all();
                queues.0.poll.poll_by(Instant::now());
                // What was announced while this server did not listen is read instead.
                self.read_settings_again();
            }
            SignalEvent::Received { server, signal: Signal::Waiting { patterns, until } } => {
                let holds_ms = queues.now().map_or(0, |now| until.ms_since(now)).min(ANNOUNCEMENT_HOLDS_MS);
                if peers.set(server, patterns, Duration::from_millis(holds_ms)) {
                    // What came before this server knew of it may be what its waiters wait for.
                    peers.note_any_arrivals();
                }
            }
            SignalEvent::Received { signal: Signal::Arrived(Arrivals { ready, unnamed, due }), .. } => {
                // These are not passed on: their sender sent them to every server.
                for (queue, jobs) in ready {
                    queues.0.waiters.wake_here(&queue, jobs);
                }
                if unnamed {
                    queues.0.poll.poll_by(Instant::now());
                }
                if let Some(due) = due {
                    queues.0.due.note(due.millis());
                }
            }
            SignalEvent::Received { server, signal: Signal::Busy { until } } => {
                let holds_ms = queues.now().map_or(0, |now| until.ms_since(now)).min(BUSY_HOLDS_MS);
                queues.0.turns.set_busy(server, Duration::from_millis(holds_ms));
            }
            SignalEvent::Received { signal: Signal::Settings, .. } => self.read_settings_again(),
        }
    }

    fn read_settings_again(&self) {
        let queues = self.queues.clone();
        tokio::spawn(async move {
            if let Err(error) = queues.refresh_settings().await {
                tracing::debug!(%error, "the settings are read again soon");
            }
        });
    }
}
