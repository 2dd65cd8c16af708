//! The clock of an embedded store: the machine's, kept from running backwards.

use std::sync::{Mutex, MutexGuard};
use std::time::{Instant, SystemTime};

use rusqlite::Connection;

use crate::job::Timestamp;
use crate::store::sqlite::fault::Fault;

/// A step back of the machine's clock that is worth a warning, in milliseconds. Time services slew smaller ones.
const STEP_MS: i64 = 500;
/// Where the store's clock is ahead of the machine's, it loses one part of the time in so many.
const FALLS_BACK_IN: i64 = 8;
const US_IN_MS: i64 = 1000;
/// How old the time may be at most that is kept in the file, in milliseconds, while something is written.
const KEPT_EVERY_MS: i64 = 1000;

/// The store's clock: the machine's, but it never runs backwards, also not from one process to the next.
///
/// Where the machine's clock is set back, this one goes on from where it was, at seven eighths of its speed until the two agree: what is
/// due is delivered, leases and delays run. Time that it has lived through is kept in the table `clock`.
pub struct Clock {
    started: Instant,
    state: Mutex<State>,
    /// The last time that is known to be kept in the file; `None` until the file has been read.
    kept_ms: Mutex<Option<i64>>,
    /// What a test adds to the machine's clock.
    #[cfg(test)]
    pub shift_ms: std::sync::atomic::AtomicI64,
}

#[derive(Debug, Default)]
struct State {
    /// The machine's clock less the time since the start, at the last reading: the same but for a microsecond, unless the clock is set. Of the
    /// two in whole milliseconds the difference would change by one again and again, which would look like a clock that is set back.
    wall_at_start_us: i64,
    /// When that was, since the start.
    read_us: i64,
    /// By how much the store's clock is ahead of the machine's, in eighths of a microsecond ([`FALLS_BACK_IN`]).
    lead: i64,
    /// The latest time that was returned.
    latest_ms: i64,
}

impl State {
    /// Returns the time, and by how much the machine's clock was set back since the last reading, in milliseconds; not more than 0 if it was
    /// not. A caller that is stopped between reading the two clocks makes a step back of it, and the time is right all the same: it is
    /// that of the second reading.
    fn read(&mut self, wall_us: i64, passed_us: i64) -> (i64, i64) {
        let wall_at_start_us = wall_us.saturating_sub(passed_us);
        let back_us = self.wall_at_start_us.saturating_sub(wall_at_start_us);
        let since = passed_us.saturating_sub(self.read_us);
        let lead = self.lead.saturating_sub(since).max(0);
        self.lead = lead.saturating_add(back_us.saturating_mul(FALLS_BACK_IN)).max(0);
        (self.wall_at_start_us, self.read_us) = (wall_at_start_us, passed_us);
        let now_us = wall_us.saturating_add(self.lead / FALLS_BACK_IN);
        self.latest_ms = (now_us / US_IN_MS).max(self.latest_ms);
        (self.latest_ms, back_us / US_IN_MS)
    }

    /// Goes on from this time, if it lies ahead.
    fn go_on_from(&mut self, time_ms: i64, wall_us: i64) {
        let ahead_us = time_ms.saturating_mul(US_IN_MS).saturating_sub(wall_us);
        self.lead = self.lead.max(ahead_us.saturating_mul(FALLS_BACK_IN));
        self.latest_ms = self.latest_ms.max(time_ms);
    }
}

impl Clock {
    /// Starts to watch the machine's clock.
    pub fn new() -> Self {
        let wall_at_start_us = wall_us(); // first: a process that is stopped before the other would begin with a step back
        Self {
            started: Instant::now(),
            state: Mutex::new(State { wall_at_start_us, ..State::default() }),
            kept_ms: Mutex::default(),
            #[cfg(test)]
            shift_ms: Default::default(),
        }
    }

    #[cfg(not(test))]
    fn wall_us(&self) -> i64 {
        wall_us()
    }

    #[cfg(test)]
    fn wall_us(&self) -> i64 {
        wall_us() + self.shift_ms.load(std::sync::atomic::Ordering::Relaxed) * US_IN_MS
    }

    /// Returns the time.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.read())
    }

    /// Reads both clocks. A thread that is stopped between the two makes a step back of it: where it looks like one from `wall_at_start_us`, they
    /// are read again, and the better of the two tries counts.
    fn clocks(&self, wall_at_start_us: i64) -> (i64, i64) {
        let read = || {
            let (wall_us, passed) = (self.wall_us(), self.started.elapsed());
            (wall_us, i64::try_from(passed.as_micros()).unwrap_or(0))
        };
        let first = read();
        if first.0 - first.1 + US_IN_MS > wall_at_start_us {
            return first;
        }
        let second = read();
        if second.0 - second.1 > first.0 - first.1 + US_IN_MS { second } else { first }
    }

    fn read(&self) -> i64 {
        self.read_with_lead().0
    }

    /// Returns the time, and by how many milliseconds it is ahead of the machine's. The first caller that notices that that was set back
    /// logs it.
    fn read_with_lead(&self) -> (i64, u64) {
        let (now_ms, back_ms, ahead_ms) = {
            let mut state = locked(&self.state);
            // Read in turn: a later reading would else be met by an earlier one.
            let (wall_us, passed_us) = self.clocks(state.wall_at_start_us);
            let (now_ms, back_ms) = state.read(wall_us, passed_us);
            (now_ms, back_ms, (state.lead / FALLS_BACK_IN / US_IN_MS).unsigned_abs())
        };
        if back_ms >= STEP_MS {
            tracing::warn!(
                back_ms,
                "the machine's clock was set back; the store's goes on from where it was, a little slower until they agree"
            );
        }
        (now_ms, ahead_ms)
    }

    /// Returns by how many milliseconds it is ahead of the machine's.
    pub fn ahead_ms(&self) -> u64 {
        self.read_with_lead().1
    }

    /// Goes on from what the file says, once it has the table.
    pub fn load(&self, db: &Connection) -> Result<(), Fault> {
        let latest: i64 = db.query_row("SELECT coalesce(max(latest), 0) FROM clock", [], |row| row.get(0))?;
        let latest_ms = Timestamp::from_millis(latest).millis();
        let now_ms = self.read();
        if latest_ms.saturating_sub(now_ms) >= STEP_MS {
            let ahead_ms = latest_ms.saturating_sub(now_ms);
            tracing::warn!(
                ahead_ms,
                "the machine's clock is behind the time that the store has lived through; the store's goes on from there"
            );
        }
        let wall_us = self.wall_us();
        locked(&self.state).go_on_from(latest_ms, wall_us);
        *locked(&self.kept_ms) = Some(latest_ms);
        Ok(())
    }

    /// Writes the time into the file, if what is there is older than `age_ms`. Returns what to note once that is committed.
    fn write(&self, db: &Connection, age_ms: i64) -> rusqlite::Result<Option<i64>> {
        let Some(kept_ms) = *locked(&self.kept_ms) else { return Ok(None) };
        let now_ms = locked(&self.state).latest_ms;
        if now_ms.saturating_sub(kept_ms) < age_ms {
            return Ok(None);
        }
        db.prepare_cached("UPDATE clock SET latest = max(latest, ?1)")?.execute([now_ms])?;
        Ok(Some(now_ms))
    }

    /// The same within a transaction that has written something else, now and then.
    pub fn keep(&self, db: &Connection) -> rusqlite::Result<Option<i64>> {
        self.write(db, KEPT_EVERY_MS)
    }

    /// The same in a transaction of its own, before the file is closed.
    pub fn keep_last(&self, db: &Connection) -> rusqlite::Result<()> {
        self.write(db, 1).map(drop)
    }

    /// This is kept now.
    pub fn kept(&self, time_ms: Option<i64>) {
        if let Some(time_ms) = time_ms {
            *locked(&self.kept_ms) = Some(time_ms);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[expect(clippy::disallowed_methods, reason = "here the machine's clock is the store's")]
fn wall_us() -> i64 {
    // A clock before 1970 is a broken one; it counts as 1970.
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wall_ms: i64) -> State {
        State { wall_at_start_us: wall_ms * US_IN_MS, ..State::default() }
    }

    fn read(state: &mut State, wall_ms: i64, passed_ms: i64) -> (i64, i64) {
        state.read(wall_ms * US_IN_MS, passed_ms * US_IN_MS)
    }

    #[test]
    fn a_step_back_is_reported_once_and_a_step_forward_never() {
        let mut state = at(1_000_000);
        assert_eq!(read(&mut state, 1_005_000, 5000), (1_005_000, 0));
        assert_eq!(read(&mut state, 946_000, 6000).1, 60_000);
        assert_eq!(read(&mut state, 947_000, 7000).1, 0);
        assert!(read(&mut state, 2_000_000, 8000).1 < 0);
    }

    #[test]
    fn time_goes_on_and_falls_back_slowly() {
        let mut state = at(1_000_000);
        assert_eq!(read(&mut state, 920_000, 0), (1_000_000, 80_000), "where it was");
        assert_eq!(read(&mut state, 928_000, 8000).0, 1_007_000, "seven eighths");
        assert_eq!(read(&mut state, 928_000 + 632_000, 640_000).0, 1_560_000, "they agree");
        assert_eq!(read(&mut state, 1_660_000, 740_000), (1_660_000, 0));
        // Set ahead for a while, and right again.
        assert_eq!(read(&mut state, 9_660_000, 740_000).0, 9_660_000);
        assert_eq!(read(&mut state, 1_660_001, 740_001).0, 9_660_001);
        assert_eq!(read(&mut state, 9_660_009, 740_009).0, 9_660_009, "ahead again");
    }

    #[test]
    fn a_clock_that_nobody_sets_is_never_ahead() {
        // The milliseconds, and the microseconds, of the two clocks begin at different moments.
        for phase_ns in [1, 300, 300_700, 700_999, 999_500] {
            let began_ns = 1_000_000_000_000 + phase_ns;
            let mut state = State { wall_at_start_us: began_ns / 1000, ..State::default() };
            for passed_ns in (0..50_000_000).step_by(37_123) {
                let wall_us = (began_ns + passed_ns) / 1000;
                let (now_ms, back_ms) = state.read(wall_us, passed_ns / 1000);
                let at = format!("{phase_ns}, {passed_ns}");
                assert!((wall_us / 1000..=(wall_us + 1) / 1000).contains(&now_ms) && back_ms == 0, "{at}");
            }
        }
    }

    #[test]
    fn no_reading_is_earlier_than_one_before() {
        let (mut state, mut last) = (at(1_000_000), 0);
        for n in 0..5000_i64 {
            let wall_ms = 1_000_000 + n + if n % 700 > 350 { -90_000 } else { n % 3 };
            let (now_ms, _) = read(&mut state, wall_ms, n);
            assert!(now_ms >= last, "{n}");
            last = now_ms;
        }
    }

    #[test]
    fn a_process_goes_on_where_the_one_before_was() {
        let mut state = at(1_000_000);
        state.go_on_from(5_000_000, 1_000_000 * US_IN_MS);
        assert_eq!(read(&mut state, 1_000_000, 0).0, 5_000_000);
        assert_eq!(read(&mut state, 1_008_000, 8000).0, 5_007_000);
        state.go_on_from(7, 1_008_000 * US_IN_MS);
        assert_eq!(read(&mut state, 1_008_000, 8000).0, 5_007_000, "never back");
    }
}
