//! What happened to jobs in a stretch of time: counts, and times in fixed buckets. Those of several stretches, queues and
//! servers add up to what happened in all of them, and that is exact: percentiles are taken of sums, never averaged.
//!
//! The buckets are logarithmic: up to 15 ms each millisecond has its own, from there on each power of two has eight. What is
//! read of a bucket is its middle, at most 6.25 % (one sixteenth) away from any time in it.

/// Something that happened to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It was pushed.
    Pushed,
    /// It was delivered.
    Reserved,
    /// It was done.
    Committed,
    /// It failed.
    RolledBack,
    /// It was put into another queue.
    Moved,
    /// Its reservation ran out, or its worker was lost.
    Lapsed,
    /// It was removed at its `expires_at`.
    Expired,
    /// Its attempts were used up.
    Dead,
    /// It was removed by a call: cancelled, purged, or deleted with its queue.
    Cancelled,
}

/// How many kinds of events there are.
pub const EVENTS: usize = 9;

impl Event {
    /// Every kind of event.
    pub const ALL: [Self; EVENTS] = [
        Self::Pushed,
        Self::Reserved,
        Self::Committed,
        Self::RolledBack,
        Self::Moved,
        Self::Lapsed,
        Self::Expired,
        Self::Dead,
        Self::Cancelled,
    ];

    /// Returns the word for it in `/stats` and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pushed => "pushed",
            Self::Reserved => "reserved",
            Self::Committed => "committed",
            Self::RolledBack => "rolled_back",
            Self::Moved => "moved",
            Self::Lapsed => "lapsed",
            Self::Expired => "expired",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Longer times count as this long: about 25 days.
const LONGEST_MS: u64 = (1 << 31) - 1;
/// Each power of two has so many buckets, and so many have a millisecond each.
const BUCKETS: u64 = 8;

fn bucket(ms: u64) -> u8 {
    let ms = ms.min(LONGEST_MS);
    let power = u64::from(ms.max(BUCKETS).ilog2()) - 3;
    u8::try_from(power * BUCKETS + (ms >> power)).unwrap_or(u8::MAX)
}

/// The middle of a bucket.
fn middle(bucket: u8) -> u64 {
    let bucket = u64::from(bucket);
    let power = (bucket / BUCKETS).saturating_sub(1);
    ((bucket - power * BUCKETS) << power) + (1 << power) / 2
}

/// Times, counted by bucket: only those that have some.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times(Vec<(u8, u32)>);

impl Times {
    /// Adds a time.
    pub fn record(&mut self, ms: u64) {
        self.add_to(bucket(ms), 1);
    }

    /// Adds the times of another.
    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(bucket, count)| self.add_to(*bucket, *count));
    }

    fn add_to(&mut self, bucket: u8, more: u32) {
        match self.0.binary_search_by_key(&bucket, |(bucket, _)| *bucket) {
            Ok(at) => {
                if let Some((_, count)) = self.0.get_mut(at) {
                    *count = count.saturating_add(more);
                }
            }
            Err(at) => self.0.insert(at, (bucket, more)),
        }
    }

    /// Returns the time that this share of them (0 to 1) does not exceed; `None` where there are none.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let count: u64 = self.0.iter().map(|(_, count)| u64::from(*count)).sum();
        let rank = ((count as f64 * share).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        let found = self.0.iter().find(|(_, count)| {
            below += u64::from(*count);
            below >= rank
        });
        found.map(|(bucket, _)| middle(*bucket))
    }
}

/// What happened to the jobs of one queue, or of all, in a stretch of time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often, in the order of [`Event::ALL`].
    pub counts: [u32; EVENTS],
    /// From being due to being delivered.
    pub queue_time: Times,
    /// From being delivered to being done.
    pub run_time: Times,
}

impl Tally {
    /// Nothing happened.
    pub const NONE: Self =
        Self { counts: [0; EVENTS], queue_time: Times(Vec::new()), run_time: Times(Vec::new()) };

    /// Whether nothing happened.
    pub fn is_none(&self) -> bool {
        self.counts == [0; EVENTS] && self.queue_time.0.is_empty() && self.run_time.0.is_empty()
    }

    /// Counts an event.
    pub fn count(&mut self, event: Event) {
        if let Some(count) = self.counts.get_mut(event as usize) {
            *count = count.saturating_add(1);
        }
    }

    /// Returns how often this happened.
    pub fn of(&self, event: Event) -> u32 {
        self.counts.get(event as usize).copied().unwrap_or(0)
    }

    /// How much happened: what makes a queue a busy one.
    pub fn events(&self) -> u64 {
        self.counts.iter().copied().map(u64::from).sum()
    }

    /// Adds what happened in another stretch, queue or server.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        self.queue_time.add(&other.queue_time);
        self.run_time.add(&other.run_time);
    }

    /// Returns it as a store keeps it: a bit for each event that has a count, the counts, and the buckets with theirs.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32);
        let some = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        put(&mut bytes, some.clone().map(|(n, _)| 1 << n).sum());
        some.for_each(|(_, count)| put(&mut bytes, u64::from(*count)));
        for times in [&self.queue_time, &self.run_time] {
            put(&mut bytes, times.0.len() as u64);
            for (bucket, count) in &times.0 {
                bytes.push(*bucket);
                put(&mut bytes, u64::from(*count));
            }
        }
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) has written; `None` where it is something else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let some = take(&mut rest)?;
        let mut tally = Self::default();
        // Also of events that only a newer version knows.
        for n in (0..u64::BITS as usize).filter(|n| some >> n & 1 != 0) {
            let count = u32::try_from(take(&mut rest)?).ok()?;
            tally.counts.get_mut(n).into_iter().for_each(|own| *own = count);
        }
        for times in [&mut tally.queue_time, &mut tally.run_time] {
            for _ in 0..take(&mut rest)?.min(256) {
                let (bucket, more) = rest.split_first()?;
                rest = more;
                times.add_to(*bucket, u32::try_from(take(&mut rest)?).ok()?);
            }
        }
        rest.is_empty().then_some(tally)
    }
}

/// Writes a number, seven bits a byte, the lowest first.
pub fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Reads such a number off the front.
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (mut number, mut shift) = (0_u64, 0);
    loop {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_a_bucket_near_it() {
        let mut before = 0;
        for ms in (0..5000).chain((13..31).flat_map(|n| [(1 << n) - 1, 1 << n, (1 << n) + (1 << (n - 1))])) {
            let bucket = bucket(ms);
            assert!(bucket >= before || ms < 5000, "{ms}");
            before = bucket;
            let off = middle(bucket).abs_diff(ms);
            assert!(off as f64 <= ms as f64 / 16.0, "{ms} is taken for {}", middle(bucket));
            assert!(ms >= 16 || off == 0);
        }
        assert_eq!(bucket(u64::MAX), bucket(LONGEST_MS));
    }

    #[test]
    fn times_of_several_add_up() {
        let (mut all, mut odd, mut even) = (Times::default(), Times::default(), Times::default());
        assert_eq!(all.quantile(0.5), None);
        for ms in 1..=1000 {
            all.record(ms);
            if ms % 2 == 0 { even.record(ms) } else { odd.record(ms) }
        }
        odd.add(&even);
        assert_eq!(odd, all);
        for share in [0.0, 0.5, 0.95, 0.99, 1.0] {
            let (exact, read) = ((share * 1000.0_f64).max(1.0), all.quantile(share).unwrap() as f64);
            assert!((read - exact).abs() <= exact / 16.0, "{share}: {read}");
        }
    }

    #[test]
    fn a_tally_comes_back_as_it_was_written() {
        let mut tally = Tally::default();
        assert_eq!(Tally::from_bytes(&tally.to_bytes()), Some(Tally::NONE));
        for (n, event) in Event::ALL.into_iter().enumerate().filter(|(n, _)| n % 2 == 0) {
            (0..=n * 100).for_each(|_| tally.count(event));
        }
        for n in 0..40 {
            tally.queue_time.record(1 << n);
            tally.run_time.record(n);
        }
        let bytes = tally.to_bytes();
        assert_eq!(Tally::from_bytes(&bytes), Some(tally));
        for end in 0..bytes.len() {
            assert_eq!(Tally::from_bytes(&bytes[..end]), None);
        }
        assert_eq!(Tally::from_bytes(&[0xff; 40]), None);
    }
}
