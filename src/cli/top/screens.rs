//! What stands on each screen.

use ratatui::text::Line;

use super::draw::{Column, Part, Parts, part};
use super::state::{Screen, Sort, State};
use crate::cli::events::{LeftOut, Queue};
use crate::cli::out::Out;
use crate::cli::shown::{cut, shown, wrapped};
use crate::cli::stats::Figures;
use crate::cli::table::Tone;
use crate::cli::time::{age, human};
use crate::cli::view::{Counts, Job, Percentiles, rate};

/// The columns of queues, in the order in which they find room, with their widths.
const COLUMNS: [(Sort, &str, usize); 11] = [
    (Sort::Name, "QUEUE", 0),
    (Sort::Ready, "READY", 8),
    (Sort::Dead, "DEAD", 7),
    (Sort::Attention, " ATTENTION", 14),
    (Sort::Reserved, "RESERVED", 9),
    (Sort::Oldest, "OLDEST", 8),
    (Sort::In, "IN/S", 7),
    (Sort::Done, "DONE/S", 7),
    (Sort::Failed, "FAILED/S", 9),
    (Sort::Scheduled, "SCHEDULED", 10),
    (Sort::Blocked, "BLOCKED", 8),
];
/// The fewest cells for a name.
const NAME: usize = 14;

/// A number in a tone that says whether it is worth a look.
fn count(count: u64, tone: Tone) -> Part {
    part(count.to_string(), if count > 0 { tone } else { Tone::Dim })
}

fn counts(counts: &Counts) -> Parts {
    let tone = |state| match state {
        "dead" => Tone::Bad,
        "ready" => Tone::Good,
        _ => Tone::Plain,
    };
    let each =
        counts.each().into_iter().filter(|(state, count)| *count > 0 || matches!(*state, "ready" | "dead"));
    each.map(|(state, count)| {
        part(format!("{count} {state}"), if count > 0 { tone(state) } else { Tone::Dim })
    })
    .collect()
}

fn rates(figures: &Figures) -> Parts {
    let rates = &figures.rates_per_s;
    let failed = rates.failed();
    vec![
        part(format!("in {}/s", rate(rates.of("pushed"))), Tone::Plain),
        part(format!("done {}/s", rate(rates.finished())), Tone::Plain),
        part(format!("failed {}/s", rate(failed)), if failed > 0.0 { Tone::Warn } else { Tone::Dim }),
    ]
}

fn times(figures: &Figures) -> Parts {
    let of = |name: &str, times: &Option<Percentiles>| {
        times.as_ref().map_or_else(String::new, |times| format!("{name} {}", times.text()))
    };
    vec![
        part(of("queue time", &figures.queue_time_ms), Tone::Plain),
        part(of("run time", &figures.run_time_ms), Tone::Plain),
    ]
}

impl Figures {
    /// Returns why the queue needs attention, in words.
    fn attention_parts(&self) -> Parts {
        self.attention.iter().map(|need| part(shown(&need.reason), need.tone())).collect()
    }
}

impl State {
    /// Returns the lines above the list: as many as there is room for, the most important ones first.
    pub fn head(&self, most: usize) -> Vec<Parts> {
        let mut lines = match (&self.screen, &self.detail, &self.figures) {
            (Screen::Overview, _, Some(figures)) => self.of_all(figures),
            (Screen::Overview, _, None) => {
                let why = self.no_figures.as_deref().unwrap_or("the figures of all queues are being read");
                let queues = part(format!("{} queues", self.queues.len()), Tone::Plain);
                vec![vec![queues, part(shown(why), Tone::Dim)]]
            }
            (Screen::Queue, Some(Ok(detail)), _) => self.of_queue(&detail.0),
            (Screen::Queue, other, _) => vec![vec![
                part(shown(&self.queue.name), Tone::Head),
                match other {
                    Some(Err(reason)) => part(shown(reason), Tone::Bad),
                    _ => part("reading …", Tone::Dim),
                },
            ]],
            (Screen::Job, ..) => {
                vec![vec![
                    part(format!("job {}", shown(&self.job.name)), Tone::Head),
                    part(shown(&self.queue.name), Tone::Dim),
                ]]
            }
        };
        lines.truncate(most);
        lines
    }

    fn of_all(&self, figures: &Figures) -> Vec<Parts> {
        let mut first = counts(&figures.counts);
        first.push(part(format!("{} queues", figures.queues.unwrap_or(0)), Tone::Plain));
        match self.left_out {
            LeftOut::None => {}
            LeftOut::Number(number) => first.push(part(format!("{number} not shown"), Tone::Warn)),
            LeftOut::Some => first.push(part("some not shown", Tone::Warn)),
        }
        let mut second = rates(figures);
        second.push(part(format!("{} workers", figures.workers.unwrap_or(0)), Tone::Plain));
        let elsewhere = if figures.waiting.elsewhere { "+" } else { "" };
        second.push(part(format!("{}{elsewhere} waiting calls", figures.waiting.here), Tone::Plain));
        let oldest =
            figures.oldest_ready_age_ms.map_or_else(String::new, |ms| format!("oldest ready {}", human(ms)));
        second.push(part(oldest, Tone::Plain));
        if let Some(reason) = &self.no_figures {
            second.push(part(format!("old: {}", shown(reason)), Tone::Bad));
        }
        vec![first, second, times(figures)]
    }

    fn of_queue(&self, figures: &Figures) -> Vec<Parts> {
        let mut first = vec![part(shown(&self.queue.name), Tone::Head)];
        if figures.paused == Some(true) {
            first.push(part("paused", Tone::Warn));
        }
        first.extend(counts(&figures.counts));
        let mut second = rates(figures);
        let oldest =
            figures.oldest_ready_age_ms.map_or_else(String::new, |ms| format!("oldest ready {}", human(ms)));
        second.push(part(oldest, Tone::Plain));
        second.push(part(format!("{} workers", figures.workers.unwrap_or(0)), Tone::Plain));
        let nobody = figures.waiting.here == 0 && !figures.waiting.elsewhere;
        let waits = if nobody {
            ("nobody waits for jobs".to_owned(), Tone::Dim)
        } else {
            (format!("{} waiting calls", figures.waiting.here), Tone::Plain)
        };
        second.push(part(waits.0, waits.1));
        let mut third = figures.attention_parts();
        third.extend(times(figures));
        vec![first, second, third]
    }

    /// Returns the list, or the job.
    pub fn body(&mut self, room: usize, cells: usize) -> Vec<Line<'static>> {
        self.page = room.saturating_sub(1).max(1);
        match self.screen {
            Screen::Overview => self.queues_body(cells),
            Screen::Queue => self.jobs_body(cells),
            Screen::Job => self.job_body(room, cells),
        }
    }

    fn queues_body(&mut self, cells: usize) -> Vec<Line<'static>> {
        // Sorting is what a frame of many queues costs: once, and the cursor is taken out for it.
        let mut cursor = std::mem::take(&mut self.queue);
        let rows = self.rows();
        cursor.find(rows.iter().map(|row| row.queue.as_str()));
        let first = cursor.scroll(self.page, rows.len());
        let lines = self.queue_lines(&rows, first, cursor.at.saturating_sub(first), cells);
        self.queue = cursor;
        lines
    }

    /// Returns the lines of the queues from `first` on.
    fn queue_lines(
        &self,
        rows: &[&Queue],
        first: usize,
        chosen_row: usize,
        cells: usize,
    ) -> Vec<Line<'static>> {
        if rows.is_empty() {
            let text = match (&self.read, self.filter.is_empty(), self.left_out) {
                (None, ..) => "reading …",
                (_, true, _) => "no queue has jobs",
                (_, false, LeftOut::None) => "no queue with jobs has this in its name: Esc shows all",
                (_, false, _) => {
                    "none of the fullest queues has this in its name: Enter looks at the queue of this name"
                }
            };
            return vec![self.line(&[part(text, Tone::Dim)], cells)];
        }
        let mut left = cells.saturating_sub(NAME);
        // The column by which it is sorted is there, if any is.
        let is_sorted = |sort: Sort| sort == self.sort.0;
        let mut chosen: Vec<_> =
            COLUMNS.iter().filter(|(sort, ..)| is_sorted(*sort) || *sort == Sort::Name).collect();
        left = left.saturating_sub(chosen.iter().map(|(.., cells)| cells + 1).sum());
        for column in COLUMNS.iter().filter(|(sort, ..)| !is_sorted(*sort) && *sort != Sort::Name) {
            let Some(rest) = left.checked_sub(column.2 + 1) else { break };
            left = rest;
            chosen.push(column);
        }
        chosen.sort_by_key(|(sort, ..)| Sort::ALL.iter().position(|other| other == sort));
        let columns: Vec<Column> = chosen
            .iter()
            .map(|(sort, head, cells)| Column {
                head,
                cells: *cells,
                is_sorted: is_sorted(*sort),
                is_word: *sort == Sort::Attention,
            })
            .collect();
        let rows = rows.iter().skip(first).take(self.page);
        let rows: Vec<Parts> =
            rows.map(|row| chosen.iter().map(|(sort, ..)| self.cell(*sort, row)).collect()).collect();
        self.table(&columns, rows.into_iter(), Some(chosen_row), cells)
    }

    fn cell(&self, column: Sort, queue: &Queue) -> Part {
        let failed = queue.rates_per_s.failed();
        match column {
            Sort::Name if queue.paused => part(format!("{} (paused)", shown(&queue.queue)), Tone::Warn),
            Sort::Name => part(shown(&queue.queue), Tone::Plain),
            Sort::Ready => count(queue.counts.ready, Tone::Plain),
            Sort::Reserved => count(queue.counts.reserved, Tone::Plain),
            Sort::Dead => count(queue.counts.dead, Tone::Bad),
            Sort::Oldest => {
                let about = if queue.oldest_is_approximate { "~" } else { "" };
                let oldest = queue.oldest_ready_at.as_deref().and_then(|at| self.age(at));
                part(oldest.map_or_else(String::new, |age| format!("{about}{}", human(age))), Tone::Plain)
            }
            Sort::In => part(rate(queue.rates_per_s.of("pushed")), Tone::Plain),
            Sort::Done => part(rate(queue.rates_per_s.finished()), Tone::Plain),
            Sort::Failed => part(rate(failed), if failed > 0.0 { Tone::Warn } else { Tone::Plain }),
            Sort::Scheduled => count(queue.counts.scheduled, Tone::Plain),
            Sort::Blocked => count(queue.counts.blocked, Tone::Plain),
            Sort::Attention => part(format!(" {}", queue.attention_words()), queue.attention_tone()),
        }
    }

    fn jobs_body(&mut self, cells: usize) -> Vec<Line<'static>> {
        let ids: Vec<String> = self.jobs().iter().map(|job| job.id.clone()).collect();
        let of_state =
            self.of_state.map_or_else(|| "jobs of every state".to_owned(), |state| format!("{state} jobs"));
        self.job.find(ids.iter().map(String::as_str));
        if ids.is_empty() {
            let text = if self.detail.is_some() {
                format!("no {of_state}; f: of another state")
            } else {
                "reading …".to_owned()
            };
            return vec![self.line(&[part(text, Tone::Dim)], cells)];
        }
        let (first, page) = (self.job.scroll(self.page.saturating_sub(1).max(1), ids.len()), self.page);
        let all = [("ID", 27), ("STATE", 9), ("TRY", 6), ("AGE", 7), (" ERROR OR PAYLOAD", 0)];
        // On a narrow screen the id gives way: it is in the line above, once it is chosen.
        let columns: Vec<Column> = all
            .iter()
            .filter(|(head, _)| cells >= 70 || !matches!(*head, "ID"))
            .filter(|(head, _)| cells >= 50 || !matches!(*head, "AGE"))
            .map(|(head, cells)| Column {
                head,
                cells: *cells,
                is_sorted: false,
                is_word: matches!(*head, "ID" | "STATE"),
            })
            .collect();
        let row = |job: &Job| -> Parts {
            let cell = |column: &Column| match column.head {
                "ID" => part(shown(&job.id), Tone::Plain),
                "STATE" => part(shown(&job.state), Tone::of_state(&job.state)),
                "TRY" => part(job.attempts(), Tone::Plain),
                "AGE" => part(age(&job.created_at), Tone::Plain),
                _ => part(
                    format!(" {}", job.detail()),
                    if job.errors.is_empty() { Tone::Plain } else { Tone::Bad },
                ),
            };
            columns.iter().map(cell).collect()
        };
        let rows: Vec<Parts> = self.jobs().iter().skip(first).take(page).map(row).collect();
        let mut lines = self.table(&columns, rows.into_iter(), Some(self.job.at - first), cells);
        let more = matches!(&self.detail, Some(Ok(detail)) if detail.1.cursor.is_some());
        let more = if more { ", and there are more" } else { "" };
        lines.truncate(page);
        lines.push(self.line(&[part(format!("{} {of_state}{more}", ids.len()), Tone::Dim)], cells));
        lines
    }

    fn job_body(&mut self, room: usize, cells: usize) -> Vec<Line<'static>> {
        let plain = Out { is_json: false, has_colours: false, columns: None };
        let mut texts = Vec::new();
        match &self.one {
            None => texts.push(("", "reading …".to_owned())),
            Some(Err(reason)) => texts.push(("", shown(reason))),
            Some(Ok(job)) => {
                texts.extend(job.facts(plain).into_iter().filter(|(_, fact)| !fact.is_empty()));
                for error in &job.errors {
                    texts.push(("failed", format!("attempt {}: {}", error.attempt, shown(&error.message))));
                }
            }
        }
        let name = texts.iter().map(|(name, _)| name.len()).max().unwrap_or(0).min(cells / 3);
        let mut lines = Vec::new();
        for (of, text) in &texts {
            for (n, part_of) in wrapped(text, cells.saturating_sub(name + 2)).into_iter().enumerate() {
                let head = format!("{:<name$}", if n == 0 { cut(of, name) } else { String::new() });
                lines.push(self.line(&[part(head, Tone::Dim), part(part_of, Tone::Plain)], cells));
            }
        }
        self.scroll = self.scroll.min(lines.len().saturating_sub(room));
        lines.into_iter().skip(self.scroll).take(room).collect()
    }
}
