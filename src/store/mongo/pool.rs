//! How the driver's connections are used, from what it reports of its pools.
//!
//! Not every report has its counterpart: a verb that is dropped at its deadline while it waits for a connection says no more of it, and
//! the connection that it would have got may be given back without having been handed out. So it is kept which connections are out, and
//! since when who waits.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mongodb::event::EventHandler;
use mongodb::event::cmap::CmapEvent;
use mongodb::options::ServerAddress;

use crate::store::Pool;

/// What the driver has reported since the start.
#[derive(Debug)]
pub struct PoolEvents {
    /// The limit of a wait for a connection.
    longest: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    created: u64,
    closed: u64,
    failed: u64,
    /// The connections that are in use: their ids are of one member's pool.
    out: HashSet<(ServerAddress, u32)>,
    /// When those that wait for a connection began to.
    waiting: VecDeque<Instant>,
}

impl State {
    /// One more begins to wait. Those that were dropped are not kept, even if the figures are never read.
    fn asked(&mut self, now: Instant, longest: Duration) {
        self.forget_before(now.checked_sub(longest));
        self.waiting.push_back(now);
    }

    /// Forgets who began to wait before this.
    fn forget_before(&mut self, begin: Option<Instant>) {
        let Some(begin) = begin else { return };
        while self.waiting.front().is_some_and(|at| *at < begin) {
            self.waiting.pop_front();
        }
    }

    /// The one that has waited for so long waits no more.
    fn got(&mut self, now: Instant, waited: Duration) {
        let Some(began) = now.checked_sub(waited) else { return };
        // The driver has taken both times itself, a little before this did.
        let after = self.waiting.partition_point(|at| *at < began);
        let off = |at: usize| {
            let noted = *self.waiting.get(at)?;
            Some((noted.max(began) - noted.min(began), at))
        };
        let nearest = [after.checked_sub(1), Some(after)].into_iter().flatten().filter_map(off).min();
        if let Some((_, at)) = nearest {
            self.waiting.remove(at);
        }
    }
}

impl PoolEvents {
    /// Nothing was reported. Who waits for longer than this is gone.
    pub fn new(longest: Duration) -> Self {
        Self { longest, state: Mutex::default() }
    }

    /// Returns what the driver is to call.
    pub fn handler(self: &Arc<Self>) -> EventHandler<CmapEvent> {
        let events = self.clone();
        EventHandler::callback(move |event: CmapEvent| events.note(event))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn note(&self, event: CmapEvent) {
        let now = Instant::now();
        let mut state = self.state();
        match event {
            CmapEvent::ConnectionCreated(_) => state.created += 1,
            CmapEvent::ConnectionClosed(closed) => {
                state.closed += 1;
                state.out.remove(&(closed.address, closed.connection_id));
            }
            CmapEvent::ConnectionCheckoutStarted(_) => state.asked(now, self.longest),
            CmapEvent::ConnectionCheckedOut(got) => {
                state.got(now, got.duration);
                state.out.insert((got.address, got.connection_id));
            }
            CmapEvent::ConnectionCheckoutFailed(failed) => {
                state.failed += 1;
                state.got(now, failed.duration);
            }
            CmapEvent::ConnectionCheckedIn(back) => {
                state.out.remove(&(back.address, back.connection_id));
            }
            _ => {}
        }
    }

    /// Returns how the connections are used, of which there may be so many to each member.
    pub fn figures(&self, most: u64) -> Pool {
        let mut state = self.state();
        state.forget_before(Instant::now().checked_sub(self.longest));
        let (in_use, waiting) = (state.out.len() as u64, state.waiting.len() as u64);
        let open = state.created.saturating_sub(state.closed);
        let idle = open.saturating_sub(in_use);
        Pool { most, idle, in_use, waiting, opened: state.created, failed: state.failed }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::event::cmap::{ConnectionCheckedInEvent, ConnectionCheckedOutEvent, ConnectionClosedEvent};
    use serde_json::{from_value, json};

    use super::*;

    const LONGEST: Duration = Duration::from_secs(10);

    #[test]
    fn who_was_dropped_while_waiting_waits_no_longer_than_a_verb_may() {
        let (mut state, start) = (State::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        state.asked(at(0), LONGEST); // dropped
        for n in 1..100 {
            state.asked(at(n * 100), LONGEST);
            state.got(at(n * 100 + 50), Duration::from_millis(49 + n % 3)); // about
        }
        assert_eq!(state.waiting, [at(0)], "the others have left, each of them itself");
        state.asked(at(10_001), LONGEST);
        assert_eq!(state.waiting, [at(10_001)]);
        state.forget_before(Some(at(20_002)));
        assert!(state.waiting.is_empty());
    }

    #[test]
    fn a_connection_counts_once_whatever_is_reported_of_it() {
        let events = PoolEvents::new(LONGEST);
        let of = |id: u32| json!({"connectionId": id, "reason": "error"});
        let back = |id: u32| events.note(from_value::<ConnectionCheckedInEvent>(of(id)).unwrap().into());
        let out = |id: u32| events.note(from_value::<ConnectionCheckedOutEvent>(of(id)).unwrap().into());
        back(1); // the verb was dropped before it got the connection
        out(1);
        back(2);
        assert_eq!(events.figures(9).in_use, 1);
        back(1);
        assert_eq!(events.figures(9).in_use, 0);
        out(3);
        events.note(from_value::<ConnectionClosedEvent>(of(3)).unwrap().into());
        assert_eq!(events.figures(9).in_use, 0, "it is closed without having been given back");
    }
}
