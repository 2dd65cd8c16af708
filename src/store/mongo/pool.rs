//! How the driver's connections are used, from what it reports of its pools.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mongodb::event::EventHandler;
use mongodb::event::cmap::CmapEvent;

use crate::store::Pool;

/// What the driver has reported since the start.
#[derive(Debug, Default)]
pub struct PoolEvents {
    created: AtomicU64,
    closed: AtomicU64,
    /// Calls that have begun to wait for a connection, got one, got none, and gave one back.
    asked: AtomicU64,
    got: AtomicU64,
    failed: AtomicU64,
    returned: AtomicU64,
}

impl PoolEvents {
    /// Returns what the driver is to call.
    pub fn handler(self: &Arc<Self>) -> EventHandler<CmapEvent> {
        let events = self.clone();
        EventHandler::callback(move |event: CmapEvent| events.note(&event))
    }

    fn note(&self, event: &CmapEvent) {
        let count = match event {
            CmapEvent::ConnectionCreated(_) => &self.created,
            CmapEvent::ConnectionClosed(_) => &self.closed,
            CmapEvent::ConnectionCheckoutStarted(_) => &self.asked,
            CmapEvent::ConnectionCheckedOut(_) => &self.got,
            CmapEvent::ConnectionCheckoutFailed(_) => &self.failed,
            CmapEvent::ConnectionCheckedIn(_) => &self.returned,
            _ => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how the connections are used, of which there may be so many to each member. The counts are read one after the
    /// other, so that under load they are about right.
    pub fn figures(&self, most: u64) -> Pool {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (created, failed, got) = (read(&self.created), read(&self.failed), read(&self.got));
        let in_use = got.saturating_sub(read(&self.returned));
        let open = created.saturating_sub(read(&self.closed));
        let waiting = read(&self.asked).saturating_sub(got + failed);
        Pool { most, idle: open.saturating_sub(in_use), in_use, waiting, opened: created, failed }
    }
}
