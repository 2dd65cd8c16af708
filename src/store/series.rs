//! The part of the contract that is about the past: how much happened in each step of time, and how many jobs there were.
//!
//! Each server writes what it did itself, under a name of its own that it has for as long as it runs: what several
//! servers did adds up, and none overwrites what another wrote. What is written of a step never changes, so that a write whose
//! outcome is unknown is simply sent again, whichever of the two arrives last.
//!
//! Everything is written in one place only: of the busiest queues, and of all together, each step of ten seconds; of the others
//! what happened in a minute. [`Series::fold_series`] makes minutes of steps that are older than an hour (two at most), and
//! ten minutes of minutes that are older than a day. So the sum over any time is exact, whatever the steps are.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Counts, Result};
use crate::job::tally::{put, take};
use crate::job::{QueueName, Tally, Timestamp};

/// How much of the past one record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Span {
    /// Ten seconds, the step in which everything is measured.
    Step,
    /// A minute.
    Minute,
    /// Ten minutes.
    Coarse,
}

impl Span {
    /// All of them, the shortest first.
    pub const ALL: [Self; 3] = [Self::Step, Self::Minute, Self::Coarse];

    /// Returns its length in milliseconds.
    pub const fn ms(self) -> i64 {
        match self {
            Self::Step => 10_000,
            Self::Minute => 60_000,
            Self::Coarse => 600_000,
        }
    }

    /// Returns when the one began that this moment is in.
    pub fn start(self, at: Timestamp) -> Timestamp {
        Timestamp::from_millis(at.millis() - at.millis().rem_euclid(self.ms()))
    }

    /// Returns what it becomes with age.
    pub fn folded(self) -> Option<Self> {
        match self {
            Self::Step => Some(Self::Minute),
            Self::Minute => Some(Self::Coarse),
            Self::Coarse => None,
        }
    }

    /// For how long it is kept, in milliseconds, before it is folded or deleted: an hour, a day or a week, and somewhat longer where
    /// else the first step of a whole hour or day would be folded already.
    pub const fn kept_ms(self) -> i64 {
        match self {
            Self::Step => HOUR_MS + SLACK_MS,
            Self::Minute => 24 * HOUR_MS + SLACK_MS,
            Self::Coarse => 7 * 24 * HOUR_MS,
        }
    }
}

/// An hour, in milliseconds.
pub const HOUR_MS: i64 = 3_600_000;
/// How much longer than an hour or a day, in milliseconds.
const SLACK_MS: i64 = 300_000;
/// For so many milliseconds a server writes its turn again with all that it writes: what could not be written for as long is
/// given up, and its next turn is another one.
const TURN_WRITTEN_MS: u64 = HOUR_MS.unsigned_abs();
/// How long what servers announce to each other of a step is kept, in milliseconds.
pub const TOLD_MS: u64 = 300_000;

/// What stores keep in place of a name for the queues beyond a bound.
const OTHERS: &str = "(others)";

/// What a record is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// All queues together.
    All,
    /// The queues beyond the bound up to which a server keeps records of each, together. Servers of older versions know no such records,
    /// and pass them by.
    Others,
    /// One queue.
    Queue(QueueName),
}

impl Subject {
    /// Returns the text that stores keep: empty for all queues, which is no name, nor is that of the others.
    pub fn as_str(&self) -> &str {
        match self {
            Self::All => "",
            Self::Others => OTHERS,
            Self::Queue(queue) => queue.as_str(),
        }
    }

    /// Reads that text.
    pub fn from_text(text: &str) -> Option<Self> {
        match text {
            "" => Some(Self::All),
            OTHERS => Some(Self::Others),
            queue => queue.parse().ok().map(Self::Queue),
        }
    }
}

/// How many jobs there were at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// By state; those that are kept as history are not counted.
    pub counts: Counts,
    /// The `run_at` of the job that had been ready for longest, where that is known.
    pub oldest_ready: Option<Timestamp>,
}

impl Depth {
    /// How many jobs there were, by state; without history.
    pub fn new(counts: Counts, oldest_ready: Option<Timestamp>) -> Self {
        Self { counts: Counts { done: 0, ..counts }, oldest_ready }
    }

    /// Returns it as a store keeps it.
    pub fn to_bytes(self) -> Vec<u8> {
        let Counts { ready, scheduled, reserved, blocked, dead, .. } = self.counts;
        let oldest = self.oldest_ready.map_or(0, |at| at.millis().unsigned_abs() + 1);
        let mut bytes = Vec::with_capacity(16);
        [ready, scheduled, reserved, blocked, dead, oldest].into_iter().for_each(|n| put(&mut bytes, n));
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) has written; `None` where it is something else.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let mut next = || take(&mut bytes);
        let (ready, scheduled, reserved, blocked, dead) = (next()?, next()?, next()?, next()?, next()?);
        let oldest = next()?.checked_sub(1).map(|ms| Timestamp::from_millis(ms.cast_signed()));
        let counts = Counts { ready, scheduled, reserved, blocked, dead, done: 0 };
        bytes.is_empty().then_some(Self { counts, oldest_ready: oldest })
    }
}

/// What one server writes of one queue, or of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesRow {
    /// What it is about.
    pub subject: Subject,
    /// How long `tally` took.
    pub span: Span,
    /// When that began: a multiple of its length. A depth is of this moment.
    pub at: Timestamp,
    /// What happened.
    pub tally: Option<Tally>,
    /// How many jobs there were, of [`Span::Step`]. Where several servers say so, one of them counts.
    pub depth: Option<Depth>,
}

/// A server, and since when and until when it is known to have been there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesRun {
    /// Its name, which it has for as long as it runs: no characters but `0-9a-z`.
    pub server: Arc<str>,
    /// When it began.
    pub since: Timestamp,
    /// When it was seen last.
    pub seen: Timestamp,
    /// When it last began to say how many jobs each queue has: those of which nothing is said at this moment or later had none. Servers
    /// of older versions keep the last such moment only.
    pub turn: Option<Timestamp>,
}

impl SeriesRun {
    /// Returns the beginning of its turn that is to be written, if it may not be in the store yet.
    pub fn new_turn(&self) -> Option<Timestamp> {
        self.turn.filter(|turn| self.seen.ms_since(*turn) <= TURN_WRITTEN_MS)
    }
}

/// All that a server writes at the end of a step.
#[derive(Debug, Clone)]
pub struct SeriesWrite {
    /// Which server.
    pub run: SeriesRun,
    /// What is kept.
    pub rows: Vec<SeriesRow>,
    /// What the other servers learn at once: all that happened in a step.
    pub told: Option<ToldStep>,
}

/// What happened on a server in a step, of every queue where something did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToldStep {
    /// When the step began.
    pub at: Timestamp,
    /// In each queue; [`Subject::All`] of all of them.
    pub tallies: Vec<(Subject, Tally)>,
}

impl ToldStep {
    /// Returns it in pieces of about this size, each of which is read by itself.
    pub fn to_pieces(&self, bytes: usize) -> Vec<Vec<u8>> {
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        for (subject, tally) in &self.tallies {
            if pieces.last().is_none_or(|piece| piece.len() >= bytes) {
                pieces.push(Vec::new());
            }
            if let Some(piece) = pieces.last_mut() {
                for part in [subject.as_str().as_bytes(), &tally.to_bytes()] {
                    put(piece, part.len() as u64);
                    piece.extend_from_slice(part);
                }
            }
        }
        pieces
    }

    /// Reads such a piece, as far as it can be read.
    pub fn read_piece(mut bytes: &[u8]) -> Vec<(Subject, Tally)> {
        let mut part = || {
            let length = usize::try_from(take(&mut bytes)?).ok()?;
            let (part, rest) = bytes.split_at_checked(length)?;
            bytes = rest;
            Some(part)
        };
        let mut next = || {
            let subject = Subject::from_text(std::str::from_utf8(part()?).ok()?)?;
            Some((subject, Tally::from_bytes(part()?)?))
        };
        std::iter::from_fn(&mut next).collect()
    }
}

/// A step of another server.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOfOther {
    /// Which server, and since when it is there.
    pub server: Arc<str>,
    /// When it began.
    pub since: Timestamp,
    /// What happened there.
    pub step: ToldStep,
}

/// What is known of some time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SeriesRead {
    /// What happened, by server and span.
    pub tallies: Vec<(Arc<str>, Span, Timestamp, Tally)>,
    /// How many jobs there were, in order.
    pub depths: Vec<(Timestamp, Depth)>,
    /// How many there were last before that, and when.
    pub before: Option<(Timestamp, Depth)>,
    /// The servers that were there.
    pub runs: Vec<SeriesRun>,
    /// Each time that a server began to say how many jobs each queue has, since `before`: see [`SeriesRun::turn`].
    pub turns: Vec<Timestamp>,
}

/// What a server has said of a step of a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct RecentTally {
    /// The queue.
    pub queue: QueueName,
    /// How long the step was.
    pub span: Span,
    /// When it began.
    pub at: Timestamp,
    /// What happened.
    pub tally: Tally,
}

/// The verbs about the past; part of the contract of [`super::Store`].
#[async_trait]
pub trait Series: Send + Sync {
    /// Writes what a server says of itself. A repeat changes nothing, whenever it arrives.
    async fn write_series(&self, write: &SeriesWrite) -> Result<()>;

    /// Returns what is known of the time from `from` until before `to`; of the tallies all that begin in it.
    async fn read_series(&self, subject: &Subject, from: Timestamp, to: Timestamp) -> Result<SeriesRead>;

    /// Returns what other servers than this one announced of steps that began at `from` or later.
    async fn steps_of_others(&self, server: &str, from: Timestamp) -> Result<Vec<StepOfOther>>;

    /// Returns whether this server is the one that says how many jobs there are, which it then is for so many
    /// milliseconds: until then no other one is.
    async fn take_depth_turn(&self, server: &str, for_ms: u64) -> Result<bool>;

    /// Returns how many jobs each queue has, without counting them. Those without jobs are left out.
    async fn depths(&self) -> Result<Vec<(QueueName, Counts)>>;

    /// Returns what happened in each queue in steps that began in this time, within the last hour, as all servers but this one wrote it.
    /// It reads whole hours: for the start of a server, not for each request.
    async fn recent_tallies(&self, but_of: &str, from: Timestamp, to: Timestamp) -> Result<Vec<RecentTally>>;

    /// Makes longer spans of up to about so many records that are old enough, or deletes them where they are too old. Returns how many
    /// it found.
    async fn fold_series(&self, limit: usize) -> Result<u64>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Event;

    #[test]
    fn what_is_told_comes_back_from_its_pieces() {
        let mut step = ToldStep::default();
        for n in 0..100 {
            let mut tally = Tally::default();
            (0..n).for_each(|_| tally.count(Event::Pushed));
            tally.run_time.record(n);
            let queue = format!("q{n}").parse().unwrap();
            step.tallies.push((if n == 0 { Subject::All } else { Subject::Queue(queue) }, tally));
        }
        let pieces = step.to_pieces(100);
        assert!(pieces.len() > 5);
        let read: Vec<_> = pieces.iter().flat_map(|piece| ToldStep::read_piece(piece)).collect();
        assert_eq!(read, step.tallies);
        assert!(ToldStep::read_piece(&[3, b'q']).is_empty());
    }

    #[test]
    fn a_depth_comes_back_as_it_was_written() {
        let counts = Counts { ready: 1, scheduled: 300, reserved: 0, blocked: u64::MAX, dead: 7, done: 9 };
        for oldest in [None, Some(Timestamp::from_millis(0)), Some(Timestamp::from_millis(1 << 41))] {
            let depth = Depth::new(counts, oldest);
            assert_eq!(Depth::from_bytes(&depth.to_bytes()), Some(depth));
            assert_eq!(depth.counts.done, 0);
        }
        assert_eq!(Depth::from_bytes(&[1, 2]), None);
    }

    #[test]
    fn a_span_begins_at_multiples_of_itself() {
        let at = |ms| Timestamp::from_millis(ms);
        assert_eq!(Span::Step.start(at(29_999)), at(20_000));
        assert_eq!(Span::Coarse.start(at(600_000)), at(600_000));
        assert_eq!(Span::ALL.map(|span| span.folded()), [Some(Span::Minute), Some(Span::Coarse), None]);
    }
}
