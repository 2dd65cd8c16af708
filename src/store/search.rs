//! Searching jobs, in bounded steps: what is asked, what is found, and when a step is over.
//!
//! A search walks jobs by id, in either direction. It begins behind a job and ends behind another, so that jobs which come or go
//! meanwhile neither shift nor repeat what it finds. A step ends where enough is found, and where it has cost enough: another one goes on
//! behind the last job that it scanned.

use std::time::{Duration, Instant};

use super::{ListedJob, PageBuilder};
use crate::job::error_group::{Death, Tally};
use crate::job::{Content, Filter, JobId, Reach, Timestamp};

/// How many jobs one step scans, unless less is asked for.
pub const SCANNED_MAX: u64 = 50_000;
/// How long a step takes, in about.
const TIME: Duration = Duration::from_millis(600);
/// How many bytes of jobs a step reads, in about, also of those that are not meant.
const READ_BYTES: usize = 64 << 20;
/// How many of the dead are counted by their errors at most, and how long that takes, in about.
const TALLIED_MAX: u64 = 200_000;
const TALLY_TIME: Duration = Duration::from_millis(1000);
/// How many jobs an index that has them in another order may have for a search: they are sorted for each step.
pub const SORTED_MAX: usize = 20_000;
/// How many jobs are scanned in one go, at least and at most.
const WINDOW: (usize, usize) = (128, 8192);
/// Goes that took longer than this are followed by shorter ones.
const SLOW: Duration = Duration::from_millis(100);

/// One step of a search.
#[derive(Debug, Clone)]
pub struct Search {
    /// Which jobs.
    pub filter: Filter,
    /// Those behind this one.
    pub after: Option<JobId>,
    /// Whether ids go down.
    pub newest_first: bool,
    /// The most jobs to find.
    pub limit: usize,
    /// The most jobs to scan.
    pub scanned_max: u64,
    /// Whether payloads and results are wanted; without them jobs have `null` and none.
    pub with_contents: bool,
}

impl Search {
    /// Returns the first step of a search for whole jobs, the oldest first.
    pub fn new(filter: Filter, limit: usize) -> Self {
        let scanned_max = SCANNED_MAX;
        Self { filter, after: None, newest_first: false, limit, scanned_max, with_contents: true }
    }
}

/// What a step of a search has found.
#[derive(Debug, Default)]
pub struct Found {
    /// The jobs that are meant, by id.
    pub jobs: Vec<ListedJob>,
    /// How many jobs were scanned.
    pub scanned: u64,
    /// The last job that was scanned, where there may be more behind it. `None`: the search is over.
    pub stopped_at: Option<JobId>,
}

/// A step under way.
pub struct Walk<'a> {
    ask: &'a Search,
    now: Timestamp,
    page: PageBuilder<ListedJob>,
    scanned: u64,
    bytes: usize,
    began: Instant,
    window: usize,
    went: Instant,
    /// What was scanned last: what other programs have written may have an id that no job has.
    at: Option<String>,
    /// The last of them that is a job's id, in this step.
    last: Option<JobId>,
}

impl<'a> Walk<'a> {
    /// Begins a step.
    pub fn new(ask: &'a Search, now: Timestamp) -> Self {
        let began = Instant::now();
        let window = ask.limit.saturating_mul(2).clamp(WINDOW.0, WINDOW.1 / 4);
        let at = ask.after.as_ref().map(|after| after.as_str().to_owned());
        let page = PageBuilder::new(ask.limit);
        Self { ask, now, page, scanned: 0, bytes: 0, began, window, went: began, at, last: None }
    }

    /// Returns the id behind which it goes on.
    pub fn at(&self) -> Option<&str> {
        self.at.as_deref()
    }

    /// Returns how many more jobs are wanted.
    pub fn room(&self) -> usize {
        self.page.room()
    }

    /// Returns how many jobs to scan next where a go costs the same, however many they are: they are sorted for it.
    pub fn widest(&self) -> usize {
        let left = usize::try_from(self.ask.scanned_max.saturating_sub(self.scanned)).unwrap_or(usize::MAX);
        WINDOW.1.min(left.max(1))
    }

    /// Returns how many jobs to scan next: about twice as many as the last time, or fewer where that was slow.
    pub fn window(&mut self) -> usize {
        if self.scanned > 0 {
            let is_slow = self.went.elapsed() > SLOW;
            self.window = if is_slow { (self.window / 4).max(16) } else { (self.window * 2).min(WINDOW.1) };
        }
        self.went = Instant::now();
        let left = usize::try_from(self.ask.scanned_max.saturating_sub(self.scanned)).unwrap_or(usize::MAX);
        self.window.min(left.max(1))
    }

    /// These were scanned, in this order.
    pub fn passed<'i>(&mut self, ids: impl DoubleEndedIterator<Item = &'i str> + ExactSizeIterator) {
        self.scanned += ids.len() as u64;
        let mut backwards = ids.rev().peekable();
        self.at = backwards.peek().map(|id| (*id).to_owned()).or(self.at.take());
        self.last = backwards.find_map(|id| id.parse().ok()).or(self.last.take());
    }

    /// So many bytes were read.
    pub fn read(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Adds a job that was found, if it is meant.
    pub fn add(&mut self, listed: ListedJob) {
        if !accepts(&self.ask.filter, &listed, self.now) {
            return;
        }
        self.page.push(match self.ask.with_contents {
            true => listed,
            false => without_contents(listed),
        });
    }

    /// Whether the step is over once this is scanned.
    pub fn ends_at(&self, id: &str) -> bool {
        self.is_filled() && id.parse::<JobId>().is_ok()
    }

    /// Whether enough was found or read. Time ends a step between two goes only: what a go has looked up is not looked up again.
    pub fn is_filled(&self) -> bool {
        self.page.is_full() || self.bytes >= READ_BYTES
    }

    fn is_spent(&self) -> bool {
        self.scanned >= self.ask.scanned_max || self.began.elapsed() >= TIME
    }

    /// Whether the step is over: enough was found, or it has cost enough, and there is a job behind which the next one goes on.
    pub fn is_over(&self) -> bool {
        (self.is_filled() || self.is_spent()) && self.last.is_some()
    }

    /// Ends the step; `more`: not all jobs were scanned.
    pub fn end(self, more: bool) -> Found {
        Found { jobs: self.page.into_items(), scanned: self.scanned, stopped_at: self.last.filter(|_| more) }
    }
}

/// Counting the dead, until that costs too much.
pub struct Tallying {
    tally: Tally,
    began: Instant,
}

impl Tallying {
    /// Begins to count.
    pub fn begin() -> Self {
        Self { tally: Tally::default(), began: Instant::now() }
    }

    /// Counts a dead job. Returns whether it goes on.
    pub fn add(&mut self, death: Death) -> bool {
        self.tally.add(death);
        self.tally.counted() < TALLIED_MAX && self.began.elapsed() < TALLY_TIME
    }

    /// Returns what was counted.
    pub fn end(self) -> Tally {
        self.tally
    }
}

/// Whether a job is meant. One that cannot be read is judged by what can be; of one of which nothing can be, only where it is counts,
/// which its store has judged.
fn accepts(filter: &Filter, listed: &ListedJob, now: Timestamp) -> bool {
    match listed {
        Ok(job) => filter.accepts(job, now),
        Err(unreadable) => match &unreadable.remains {
            Some(remains) => filter.accepts(remains, now),
            None => {
                Filter { within: Reach::default(), states: Vec::new(), ..filter.clone() } == Filter::default()
            }
        },
    }
}

fn without_contents(mut listed: ListedJob) -> ListedJob {
    let job = match &mut listed {
        Ok(job) => Some(job),
        Err(unreadable) => unreadable.remains.as_deref_mut(),
    };
    if let Some(job) = job {
        job.payload = Content::null();
        job.result = None;
    }
    listed
}
