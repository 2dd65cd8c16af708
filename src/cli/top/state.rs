//! What the view knows, and what is chosen in it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use clap::ValueEnum;
use tokio::sync::watch;
use tokio::time::Instant;

use super::feed::{Focus, Update};
use crate::cli::events::{Event, Happened, LeftOut, Queue};
use crate::cli::failure::Failure;
use crate::cli::jobs::Page;
use crate::cli::stats::Figures;
use crate::cli::time;
use crate::cli::view::Job;

/// How many happenings are remembered.
const HAPPENED: usize = 50;
/// After how long without an answer it is said that there is none: figures are asked for every two seconds.
const SILENCE: Duration = Duration::from_secs(5);
/// The states that one can choose, after all of them.
const STATES: [&str; 6] = ["ready", "reserved", "scheduled", "blocked", "dead", "done"];

/// What the queues are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    Name,
    Ready,
    Reserved,
    Dead,
    Oldest,
    In,
    Done,
    Failed,
    Scheduled,
    Blocked,
    Attention,
}

impl Sort {
    /// Each of them, in the order of the columns.
    pub const ALL: [Self; 11] = [
        Self::Name,
        Self::Attention,
        Self::Ready,
        Self::Reserved,
        Self::Dead,
        Self::Oldest,
        Self::In,
        Self::Done,
        Self::Failed,
        Self::Scheduled,
        Self::Blocked,
    ];

    fn value(self, queue: &Queue) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "compared by people")]
        let count = |count: u64| count as f64;
        match self {
            Self::Name => 0.0,
            Self::Ready => count(queue.counts.ready),
            Self::Reserved => count(queue.counts.reserved),
            Self::Dead => count(queue.counts.dead),
            // The earliest first; queues without a ready job are compared in `compare`.
            #[expect(clippy::cast_precision_loss, reason = "as above")]
            Self::Oldest => queue.oldest_ready_ms.map_or(f64::NEG_INFINITY, |at| -(at as f64)),
            Self::In => queue.rates_per_s.of("pushed"),
            Self::Done => queue.rates_per_s.finished(),
            Self::Failed => queue.rates_per_s.failed(),
            Self::Scheduled => count(queue.counts.scheduled),
            Self::Blocked => count(queue.counts.blocked),
            Self::Attention => count(queue.urgency()),
        }
    }

    fn compare(self, is_reversed: bool, a: &Queue, b: &Queue) -> Ordering {
        if self == Self::Oldest && (a.oldest_ready_ms.is_none() || b.oldest_ready_ms.is_none()) {
            let is_none = |queue: &Queue| queue.oldest_ready_ms.is_none();
            return is_none(a).cmp(&is_none(b)).then_with(|| a.queue.cmp(&b.queue));
        }
        let by_value = self.value(b).total_cmp(&self.value(a));
        let order = by_value.then_with(|| a.queue.cmp(&b.queue));
        if is_reversed { order.reverse() } else { order }
    }
}

/// What is on the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Screen {
    /// All queues.
    Overview,
    /// One queue.
    Queue,
    /// One job.
    Job,
}

/// Which line of a list is chosen, and which is the first on the screen.
#[derive(Debug, Clone, Default)]
pub struct Cursor {
    /// What is chosen, so that it stays so where lines move.
    pub name: String,
    /// Whether a person has chosen it: until then it is whatever stands in the first line.
    pub is_held: bool,
    /// Where that was last.
    pub at: usize,
    /// The first line on the screen.
    pub top: usize,
}

/// What the view knows.
pub struct State {
    /// The server.
    pub url: String,
    /// Whether colours are used.
    pub has_colours: bool,
    /// The queues that have jobs.
    pub queues: BTreeMap<String, Queue>,
    incoming: BTreeMap<String, Queue>,
    /// The figures of all.
    pub figures: Option<Figures>,
    /// Why there are none.
    pub no_figures: Option<String>,
    /// What has happened, the latest last.
    pub happened: VecDeque<(String, Happened)>,
    /// When the last message was read, by the server's clock, and when it came.
    pub read: Option<(String, Instant)>,
    /// When the server answered last.
    heard: Instant,
    /// Since when the connection is lost, and why.
    pub lost: Option<(Instant, String)>,
    /// How many queues are not in the picture.
    pub left_out: LeftOut,
    /// What the queues are sorted by, and whether the other way round.
    pub sort: (Sort, bool),
    /// What the names of shown queues have in them.
    pub filter: String,
    /// Whether it is being typed.
    pub is_typing: bool,
    /// What is on the screen.
    pub screen: Screen,
    /// Whether the keys are explained.
    pub is_help: bool,
    /// The queue that is chosen.
    pub queue: Cursor,
    /// Which jobs of it.
    pub of_state: Option<&'static str>,
    /// The queue that one looks at, once it is there.
    pub detail: Option<Result<Box<(Figures, Page)>, String>>,
    /// The job that is chosen.
    pub job: Cursor,
    /// The job that one looks at, once it is there.
    pub one: Option<Result<Box<Job>, String>>,
    /// The first line of it on the screen.
    pub scroll: usize,
    /// How many lines of the list there is room for.
    pub page: usize,
    focus: watch::Sender<Focus>,
}

impl State {
    /// Returns the view before anything is known.
    pub fn new(url: String, sort: Sort, has_colours: bool, focus: watch::Sender<Focus>) -> Self {
        Self {
            url,
            has_colours,
            queues: BTreeMap::new(),
            incoming: BTreeMap::new(),
            figures: None,
            no_figures: None,
            happened: VecDeque::new(),
            read: None,
            heard: Instant::now(),
            lost: None,
            left_out: LeftOut::None,
            sort: (sort, false),
            filter: String::new(),
            is_typing: false,
            screen: Screen::Overview,
            is_help: false,
            queue: Cursor::default(),
            of_state: None,
            detail: None,
            job: Cursor::default(),
            one: None,
            scroll: 0,
            page: 1,
            focus,
        }
    }

    /// Takes what the server has sent.
    pub fn take(&mut self, told: Update) {
        if told.is_answer() {
            self.heard = Instant::now();
        }
        let reason = |failure: Failure| failure.to_string();
        match told {
            Update::Event(event) => self.take_event(*event),
            Update::Lost(reason) => {
                let since = if self.silence().is_some() { self.heard } else { Instant::now() };
                let since = self.lost.take().map_or(since, |(since, _)| since);
                self.lost = Some((since, reason));
            }
            Update::Connected => self.lost = None,
            Update::Figures(Ok(figures)) => (self.figures, self.no_figures) = (Some(*figures), None),
            Update::Figures(Err(failure)) => self.no_figures = Some(reason(failure)),
            Update::Queue(of, detail) if of == *self.focus.borrow() => {
                self.detail = Some(detail.map_err(reason));
            }
            Update::Job(of, job) if of == *self.focus.borrow() => self.one = Some(job.map_err(reason)),
            // Of something that one does not look at any more.
            Update::Queue(..) | Update::Job(..) | Update::Over(_) => {}
        }
    }

    /// Returns for how long the server has not answered, if that is long.
    pub fn silence(&self) -> Option<Duration> {
        Some(self.heard.elapsed()).filter(|silence| *silence >= SILENCE)
    }

    /// Returns the time of day by the server's clock, which goes on from the last message.
    pub fn clock(&self) -> Option<String> {
        let (at, came) = self.read.as_ref()?;
        Some(time::of_day_after(at, came.elapsed()))
    }

    fn take_event(&mut self, event: Event) {
        let message = event.message;
        let left_out = message.left_out();
        self.lost = None;
        self.read = Some((message.at.clone(), Instant::now()));
        let named = message.queues.into_iter().map(|mut queue| {
            queue.oldest_ready_ms = queue.oldest_ready_at.as_deref().and_then(time::epoch_ms);
            (queue.queue.clone(), queue)
        });
        if event.is_snapshot {
            // Nothing is taken away before the whole picture is there.
            if message.part.unwrap_or(1) == 1 {
                self.incoming.clear();
            }
            self.incoming.extend(named);
            if !message.more {
                self.queues = std::mem::take(&mut self.incoming);
                self.left_out = left_out.unwrap_or_default();
            } else if self.queues.is_empty() {
                self.queues.clone_from(&self.incoming);
            }
        } else {
            self.queues.extend(named);
            self.left_out = left_out.unwrap_or(self.left_out);
        }
        for gone in &message.gone {
            self.queues.remove(gone);
        }
        self.happened.extend(message.happened.into_iter().map(|what| (message.at.clone(), what)));
        while self.happened.len() > HAPPENED {
            self.happened.pop_front();
        }
    }

    /// Returns the queues that the filter leaves, by name.
    pub fn found(&self) -> impl Iterator<Item = &Queue> {
        self.queues.values().filter(|queue| queue.queue.contains(self.filter.as_str()))
    }

    /// Returns the queues as they are shown.
    pub fn rows(&self) -> Vec<&Queue> {
        let mut rows: Vec<&Queue> = self.found().collect();
        let (sort, is_reversed) = self.sort;
        rows.sort_by(|a, b| sort.compare(is_reversed, a, b));
        rows
    }

    /// Returns the jobs of the queue that one looks at.
    pub fn jobs(&self) -> &[Job] {
        match &self.detail {
            Some(Ok(detail)) => &detail.1.jobs,
            _ => &[],
        }
    }

    /// Returns for how many milliseconds something has been so, by the server's clock; of figures that are old, by when
    /// they were read.
    pub fn age(&self, at: &str) -> Option<u64> {
        let (read, came) = self.read.as_ref()?;
        let then = self.lost.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        let later = u64::try_from(then.saturating_duration_since(*came).as_millis()).unwrap_or(0);
        let at_reading = u64::try_from(time::between(at, read)?).unwrap_or(0);
        Some(at_reading + later)
    }

    /// Sets what is looked at closely.
    pub fn look(&mut self) {
        let focus = match self.screen {
            Screen::Overview => Focus::None,
            Screen::Queue => Focus::Queue(self.queue.name.clone(), self.of_state),
            Screen::Job => Focus::Job(self.job.name.clone()),
        };
        if *self.focus.borrow() != focus {
            self.focus.send_replace(focus);
        }
    }

    /// Chooses the next state of the jobs that are shown.
    pub fn next_state(&mut self) {
        let at = self.of_state.and_then(|state| STATES.iter().position(|other| *other == state));
        self.of_state = STATES.get(at.map_or(0, |at| at + 1)).copied();
        (self.detail, self.job) = (None, Cursor::default());
        self.look();
    }
}

impl Cursor {
    /// Finds what is chosen among these names; what is gone leaves its place to another.
    pub fn find<'n>(&mut self, names: impl ExactSizeIterator<Item = &'n str> + Clone) {
        let last = names.len().saturating_sub(1);
        let held = names.clone().position(|name| name == self.name).unwrap_or(self.at).min(last);
        self.at = if self.is_held { held } else { 0 };
        names.clone().nth(self.at).unwrap_or_default().clone_into(&mut self.name);
    }

    /// Chooses another line, so many further down.
    pub fn step<'n>(&mut self, by: isize, names: impl ExactSizeIterator<Item = &'n str> + Clone) {
        self.find(names.clone());
        self.is_held = true;
        self.at = self.at.saturating_add_signed(by).min(names.len().saturating_sub(1));
        names.clone().nth(self.at).unwrap_or_default().clone_into(&mut self.name);
    }

    /// Goes to the first line, whatever comes to stand there.
    pub fn rewind(&mut self) {
        *self = Self::default();
    }

    /// Returns which of so many lines is the first on the screen, where there is room for so many.
    pub fn scroll(&mut self, room: usize, lines: usize) -> usize {
        let full = lines.saturating_sub(room);
        self.top = self.top.min(self.at).min(full).max((self.at + 1).saturating_sub(room));
        self.top
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::events::Message;

    const NAMES: [&str; 4] = ["a", "b", "c", "d"];

    fn state_of(queues: impl Iterator<Item = (String, Option<String>)>) -> State {
        let mut state = State::new(String::new(), Sort::Oldest, false, watch::channel(Focus::None).0);
        let queue = |(queue, oldest_ready_at)| Queue { queue, oldest_ready_at, ..Queue::default() };
        let message = Message { queues: queues.map(queue).collect(), ..Message::default() };
        state.take_event(Event { message, is_snapshot: true, data: String::new() });
        state
    }

    #[test]
    fn many_queues_of_the_same_age_are_sorted() {
        let at = |n: u32| format!("2026-11-24T10:00:00.{:03}Z", n % 3);
        let mut state = state_of((0..10_000).map(|n| (format!("q{n:05}"), (n % 7 != 0).then(|| at(n)))));
        for is_reversed in [false, true] {
            state.sort.1 = is_reversed;
            let ages: Vec<_> = state.rows().iter().map(|queue| queue.oldest_ready_ms).collect();
            let (known, unknown) = ages.split_at(ages.iter().flatten().count());
            let in_order =
                |pair: &[Option<i64>]| if is_reversed { pair[0] >= pair[1] } else { pair[0] <= pair[1] };
            assert!(known.windows(2).all(in_order), "{is_reversed}");
            assert!(unknown.iter().all(Option::is_none), "queues without a ready job come last");
        }
    }

    /// A key of some queues is not to learn how many there are.
    #[test]
    fn a_queue_that_is_left_out_is_found_by_its_name_with_or_without_their_number() {
        use ratatui::crossterm::event::{Event as Input, KeyCode, KeyEvent, KeyModifiers};
        for (is_snapshot, json, says, is_found) in [
            (true, "{}", "", false),
            (true, r#"{"left_out": 3}"#, "3 not shown", true),
            (true, r#"{"incomplete": true}"#, "some not shown", true),
            (false, r#"{"incomplete": true}"#, "some not shown", true),
            (false, "{}", "3 not shown", true),
            (false, r#"{"left_out": 0}"#, "", false),
        ] {
            let mut state = state_of([("a".to_owned(), None)].into_iter());
            state.figures = Some(Figures::default());
            state.left_out = LeftOut::Number(3);
            let message = serde_json::from_str(json).unwrap();
            state.take_event(Event { message, is_snapshot, data: String::new() });
            let head: Vec<String> = state.head(1).remove(0).into_iter().map(|part| part.0).collect();
            let said = head.iter().find(|part| part.ends_with("not shown"));
            assert_eq!(said.map_or("", String::as_str), says, "{is_snapshot} {json}");
            state.filter = "small".to_owned();
            state.take_input(&Input::Key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE)));
            assert_eq!(state.screen == Screen::Queue, is_found, "{is_snapshot} {json}");
        }
    }

    #[test]
    fn the_first_line_is_chosen_until_a_person_chooses_another() {
        let mut cursor = Cursor::default();
        cursor.find(NAMES.into_iter());
        assert_eq!((cursor.at, cursor.name.as_str()), (0, "a"));
        cursor.find(["d", "c", "b", "a"].into_iter());
        assert_eq!((cursor.at, cursor.name.as_str()), (0, "d"));
        cursor.step(1, ["d", "c", "b", "a"].into_iter());
        cursor.find(NAMES.into_iter());
        assert_eq!((cursor.at, cursor.name.as_str()), (2, "c"));
        cursor.rewind();
        cursor.find(NAMES.into_iter());
        assert_eq!((cursor.at, cursor.name.as_str()), (0, "a"));
    }

    #[test]
    fn no_room_is_left_below_the_last_line_where_others_stand_above() {
        let mut cursor = Cursor { at: 9, is_held: true, ..Cursor::default() };
        assert_eq!(cursor.scroll(4, 10), 6);
        cursor.find(NAMES.into_iter());
        assert_eq!((cursor.at, cursor.scroll(4, NAMES.len())), (3, 0));
        assert_eq!(cursor.scroll(3, NAMES.len()), 1);
        assert_eq!(cursor.scroll(0, NAMES.len()), 4);
    }
}
