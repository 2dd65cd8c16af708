//! Lists of queues with their figures, in any order, page by page.
//!
//! The pages of a list are of one moment: the board that the first one showed is kept while its pages are read. Where it is not there any
//! more, or another server answers, the cursor also says which value the last queue had, and the next page goes on behind that value in
//! the board of now. A queue whose figure has passed it meanwhile may then come twice or not at all; by name, none does. The next list that
//! is begun has it at its position.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use super::attention::Reason;
use super::board::{BoardQueue, attention_of};
use super::history::Steps;
use super::meter::Event;
use super::{QueueView, Queues, Result};
use crate::job::{QueueName, Reach, Timestamp};

/// By what queues are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortKey {
    /// Their names.
    Name,
    /// How many jobs are ready.
    Ready,
    /// How many are scheduled.
    Scheduled,
    /// How many are reserved.
    Reserved,
    /// How many are blocked.
    Blocked,
    /// How many are dead.
    Dead,
    /// How many are done.
    Done,
    /// For how long the oldest ready job has been ready.
    Oldest,
    /// How many jobs were pushed per second.
    Pushed,
    /// How many were finished per second.
    Finished,
    /// How many attempts failed per second.
    Failed,
    /// How many calls wait.
    Waiting,
    /// The 95th percentile of the queue time.
    QueueTimeP95,
    /// The 95th percentile of the run time.
    RunTimeP95,
    /// How urgently they need attention.
    Attention,
}

impl SortKey {
    /// Every key by its name.
    pub const ALL: [(&str, Self); 15] = [
        ("name", Self::Name),
        ("ready", Self::Ready),
        ("scheduled", Self::Scheduled),
        ("reserved", Self::Reserved),
        ("blocked", Self::Blocked),
        ("dead", Self::Dead),
        ("done", Self::Done),
        ("oldest", Self::Oldest),
        ("pushed", Self::Pushed),
        ("finished", Self::Finished),
        ("failed", Self::Failed),
        ("waiting", Self::Waiting),
        ("queue_time_p95", Self::QueueTimeP95),
        ("run_time_p95", Self::RunTimeP95),
        ("attention", Self::Attention),
    ];

    fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, key)| *key == self).map_or("", |(name, _)| *name)
    }

    /// Returns what a queue is sorted by, if it has it. More is larger.
    fn value(self, queue: &BoardQueue) -> Option<u64> {
        let counts = &queue.counts.counts;
        let rate = |rate: f64| Some((rate * 1000.0).round().max(0.0) as u64);
        match self {
            Self::Name => Some(0),
            Self::Ready => Some(counts.ready),
            Self::Scheduled => Some(counts.scheduled),
            Self::Reserved => Some(counts.reserved),
            Self::Blocked => Some(counts.blocked),
            Self::Dead => Some(counts.dead),
            Self::Done => Some(counts.done),
            // The moment, not the age: that of a job that waits stays the same from page to page.
            Self::Oldest => queue.counts.oldest_ready.map(|at| u64::MAX - at.millis().unsigned_abs()),
            Self::Pushed => rate(queue.flow.rate(Event::Pushed)),
            Self::Finished => rate(queue.finished_per_s()),
            Self::Failed => rate(queue.failed_per_s()),
            Self::Waiting => Some(queue.waiting_here.saturating_add(queue.waiting_elsewhere.into())),
            Self::QueueTimeP95 => queue.flow.queue_time.map(|times| times.p95),
            Self::RunTimeP95 => queue.flow.run_time.map(|times| times.p95),
            Self::Attention => {
                let first = queue.attention.first();
                first.map(|attention| (Reason::ALL.len() - attention.reason as usize) as u64)
            }
        }
    }
}

/// An order of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sort {
    /// By what.
    pub key: SortKey,
    /// Whether what is more comes first; names from behind.
    pub descending: bool,
}

impl Sort {
    /// By name.
    pub const BY_NAME: Self = Self { key: SortKey::Name, descending: false };

    /// What has no value comes last in either direction; what has the same, by name.
    fn compare(self, one: (Option<u64>, &QueueName), other: (Option<u64>, &QueueName)) -> Ordering {
        let directed = |order: Ordering| if self.descending { order.reverse() } else { order };
        let by_value = match (one.0, other.0) {
            (Some(one), Some(other)) => directed(one.cmp(&other)),
            (one, other) => one.is_none().cmp(&other.is_none()),
        };
        let by_name = one.1.cmp(other.1);
        by_value.then(if self.key == SortKey::Name { directed(by_name) } else { by_name })
    }
}

/// What is no order, or no cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is neither an order nor a cursor")]
pub struct Unordered;

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.descending { "-" } else { "" }, self.key.as_str())
    }
}

impl FromStr for Sort {
    type Err = Unordered;

    fn from_str(text: &str) -> Result<Self, Unordered> {
        let (name, descending) = text.strip_prefix('-').map_or((text, false), |name| (name, true));
        let (_, key) = SortKey::ALL.iter().find(|(key, _)| *key == name).ok_or(Unordered)?;
        Ok(Self { key: *key, descending })
    }
}

/// Where a page ends: in which order, at which value, and behind which queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The order.
    pub sort: Sort,
    board: u64,
    value: Option<u64>,
    name: QueueName,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sort, board, value, name } = self;
        match value {
            Some(value) => write!(f, "{sort} {board} {value} {name}"),
            None => write!(f, "{sort} {board} - {name}"),
        }
    }
}

impl FromStr for Position {
    type Err = Unordered;

    fn from_str(text: &str) -> Result<Self, Unordered> {
        let mut parts = text.splitn(4, ' ');
        let mut next = || parts.next().ok_or(Unordered);
        let (sort, board, value, name) = (next()?.parse()?, next()?, next()?, next()?);
        let board = board.parse().map_err(|_| Unordered)?;
        let value = match value {
            "-" => None,
            digits => Some(digits.parse().map_err(|_| Unordered)?),
        };
        Ok(Self { sort, board, value, name: name.parse().map_err(|_| Unordered)? })
    }
}

/// Which queues are meant, by the attention that they need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Needing {
    /// All of them.
    AnyOrNone,
    /// Those that need some.
    Any,
    /// Those that need some for one of these reasons.
    Some(Vec<Reason>),
}

impl Needing {
    fn has(&self, queue: &BoardQueue) -> bool {
        match self {
            Self::AnyOrNone => true,
            Self::Any => !queue.attention.is_empty(),
            Self::Some(reasons) => queue.attention.iter().any(|it| reasons.contains(&it.reason)),
        }
    }
}

/// Which queues are listed.
#[derive(Debug, Clone)]
pub struct ListAsk {
    /// Only those whose names begin so.
    pub prefix: String,
    /// Only those that need such attention.
    pub needing: Needing,
    /// In which order.
    pub sort: Sort,
    /// Behind which one.
    pub after: Option<Position>,
    /// How many.
    pub limit: usize,
}

/// A queue of a list.
#[derive(Debug)]
pub struct ListedQueue {
    /// Its settings.
    pub view: QueueView,
    /// Its figures.
    pub queue: BoardQueue,
    /// How many named workers hold jobs of it.
    pub workers: u64,
    /// What happened in it, step by step; `None`: nothing.
    pub steps: Option<Steps>,
}

/// A page of a list.
#[derive(Debug)]
pub struct Listed {
    /// When the figures were read, by the store's clock.
    pub at: Timestamp,
    /// The queues.
    pub queues: Vec<ListedQueue>,
    /// How many there are in all pages.
    pub matched: u64,
    /// How many queues of the prefix need attention, by the reason.
    pub attention: [u64; Reason::ALL.len()],
    /// Of how many of them it is not known yet whether they do for some reason.
    pub unjudged: u64,
    /// When the first of the steps begins.
    pub steps_from: Timestamp,
    /// Where the next page begins.
    pub next: Option<Position>,
}

impl Queues {
    /// Returns a page of the queues within reach, with their figures.
    pub async fn listed(&self, ask: &ListAsk, within: &Reach) -> Result<Listed> {
        self.refresh_settings().await?;
        let kept = ask.after.as_ref().and_then(|after| self.0.board.kept(after.board));
        let board = match kept {
            Some(board) => board,
            None => self.board().await?,
        };
        let of_prefix: Vec<&BoardQueue> = board
            .queues
            .iter()
            .filter(|queue| queue.name.as_str().starts_with(&ask.prefix) && within.has(&queue.name))
            .collect();
        let attention = attention_of(of_prefix.iter().copied());
        let unjudged = of_prefix.iter().filter(|queue| queue.is_unjudged).count() as u64;
        let meant: Vec<&BoardQueue> = of_prefix.into_iter().filter(|queue| ask.needing.has(queue)).collect();
        let matched = meant.len() as u64;
        let (page, next) = page(board.id, meant, ask);
        if next.is_some() {
            self.0.board.keep(&board);
        }
        let held: Vec<QueueName> = page
            .iter()
            .filter(|queue| queue.counts.counts.reserved > 0)
            .map(|queue| queue.name.clone())
            .collect();
        let workers =
            if held.is_empty() { Default::default() } else { self.0.store.workers_of(&held).await? };
        let names: Vec<&QueueName> = page.iter().map(|queue| &queue.name).collect();
        let (steps_from, steps) = self.0.history.steps(&names, self.now()?);
        let listed = |(queue, steps): (&BoardQueue, Option<Steps>)| ListedQueue {
            view: self.view(queue.name.clone()),
            workers: workers.get(&queue.name).copied().unwrap_or(0),
            queue: queue.clone(),
            steps,
        };
        let queues = page.into_iter().zip(steps).map(listed).collect();
        Ok(Listed { at: board.at, queues, matched, attention, unjudged, steps_from, next })
    }
}

/// Returns the queues of a page, and where the next one begins.
fn page<'b>(
    board: u64,
    meant: Vec<&'b BoardQueue>,
    ask: &ListAsk,
) -> (Vec<&'b BoardQueue>, Option<Position>) {
    let ListAsk { sort, after, limit, .. } = ask;
    let valued = meant.into_iter().map(|queue| (sort.key.value(queue), queue));
    let is_behind = |(value, queue): &(Option<u64>, &BoardQueue)| {
        let after = after.as_ref();
        after.is_none_or(|after| sort.compare((*value, &queue.name), (after.value, &after.name)).is_gt())
    };
    let mut rest: Vec<(Option<u64>, &BoardQueue)> = valued.filter(is_behind).collect();
    let compare = |one: &(Option<u64>, &BoardQueue), other: &(Option<u64>, &BoardQueue)| {
        sort.compare((one.0, &one.1.name), (other.0, &other.1.name))
    };
    let has_more = rest.len() > *limit;
    if has_more {
        rest.select_nth_unstable_by(*limit, compare); // the first of them, without sorting all
        rest.truncate(*limit);
    }
    rest.sort_unstable_by(compare);
    let last = rest.last().filter(|_| has_more);
    let next =
        last.map(|(value, queue)| Position { sort: *sort, board, value: *value, name: queue.name.clone() });
    (rest.into_iter().map(|(_, queue)| queue).collect(), next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::flows::Flow;
    use crate::store::{Counts, QueueCounts};

    fn queue(name: &str, ready: u64, oldest: Option<i64>) -> BoardQueue {
        let counts = Counts { ready, ..Counts::default() };
        let oldest_ready = oldest.map(Timestamp::from_millis);
        BoardQueue {
            name: name.parse().unwrap(),
            counts: QueueCounts { counts, oldest_ready, ..QueueCounts::default() },
            is_listed: true,
            paused: false,
            flow: Flow::default(),
            waiting_here: 0,
            waiting_elsewhere: false,
            surely_elsewhere: false,
            attention: Vec::new(),
            is_unjudged: false,
        }
    }

    fn listed(queues: &[BoardQueue], sort: &str, limit: usize) -> String {
        let mut ask = ListAsk {
            prefix: String::new(),
            needing: Needing::AnyOrNone,
            sort: sort.parse().unwrap(),
            after: None,
            limit,
        };
        let mut names = Vec::new();
        loop {
            let (found, next) = page(7, queues.iter().collect(), &ask);
            names.extend(found.iter().map(|queue| queue.name.to_string()));
            match next {
                // As it travels.
                Some(next) => ask.after = Some(next.to_string().parse().unwrap()),
                None => return names.join(" "),
            }
        }
    }

    #[test]
    fn pages_are_the_whole_list_in_its_order() {
        let queues = [
            queue("c", 1, Some(30)),
            queue("a", 5, Some(20)),
            queue("e", 0, None),
            queue("b", 5, Some(10)),
            queue("d", 0, None),
        ];
        for limit in 1..=6 {
            assert_eq!(listed(&queues, "name", limit), "a b c d e");
            assert_eq!(listed(&queues, "-name", limit), "e d c b a");
            assert_eq!(listed(&queues, "ready", limit), "d e c a b");
            assert_eq!(listed(&queues, "-ready", limit), "a b c d e");
            assert_eq!(listed(&queues, "-oldest", limit), "b a c d e", "what has no age is last");
            assert_eq!(listed(&queues, "oldest", limit), "c a b d e");
        }
    }

    #[test]
    fn orders_and_cursors_are_read_strictly() {
        for (name, key) in SortKey::ALL {
            for (text, descending) in [(name.to_owned(), false), (format!("-{name}"), true)] {
                let sort: Sort = text.parse().unwrap();
                assert_eq!((sort, sort.to_string()), (Sort { key, descending }, text));
            }
        }
        for text in ["", "-", "--ready", "Ready", "ready ", "workers", "ready,dead"] {
            assert_eq!(text.parse::<Sort>(), Err(Unordered), "{text:?}");
        }
        for text in [
            "",
            "mail",
            "ready",
            "ready 1 1",
            "ready 1 1 ",
            "ready 1 x a",
            "ready 1 1 a b",
            "huh 1 1 a",
            "ready x 1 a",
        ] {
            assert_eq!(text.parse::<Position>(), Err(Unordered), "{text:?}");
        }
    }
}
