//! Lines of the screen: heads, tables, and what stands at the bottom.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};

use super::keys::HELP;
use super::state::{Screen, State};
use crate::cli::shown::{cut, shown, width};
use crate::cli::table::Tone;
use crate::cli::time::{human, ms, of_day};

/// A smaller screen shows nothing that can be read.
const SMALLEST: (u16, u16) = (20, 4);

/// A part of a line.
pub struct Part(pub String, pub Tone);

/// A line: parts with two cells between them.
pub type Parts = Vec<Part>;

/// A column of a table, and how many cells it takes; 0: what is left.
pub struct Column {
    /// Its head.
    pub head: &'static str,
    /// How wide it is.
    pub cells: usize,
    /// Whether it is what the table is sorted by.
    pub is_sorted: bool,
    /// Whether it has words, which begin at its left; numbers end at its right.
    pub is_word: bool,
}

/// Returns a part of a line.
pub fn part(text: impl Into<String>, tone: Tone) -> Part {
    Part(text.into(), tone)
}

impl State {
    /// Draws what is on the screen.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        frame.render_widget(Clear, area);
        if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
            frame.render_widget(Paragraph::new("too small"), area);
            return;
        }
        let cells = usize::from(area.width);
        let mut top = vec![self.title(cells)];
        // On a low screen the list counts more than the head.
        let room = usize::from(area.height);
        top.extend(
            self.head(if room < 16 { 1 } else { 3 }).into_iter().map(|parts| self.line(&parts, cells)),
        );
        let happened = if room < 16 || self.screen != Screen::Overview { 0 } else { 3 };
        let bottom = self.bottom(happened, cells);
        let room = room.saturating_sub(top.len() + bottom.len());
        let mut lines = top;
        lines.extend(if self.is_help { self.help(room, cells) } else { self.body(room, cells) });
        let until = usize::from(area.height) - bottom.len();
        lines.truncate(until);
        lines.resize(until, Line::default());
        lines.extend(bottom);
        frame.render_widget(Paragraph::new(lines), Rect { ..area });
    }

    /// Says which server this is, and whether the figures are those of now.
    fn title(&self, cells: usize) -> Line<'static> {
        let of =
            self.read.as_ref().map_or_else(String::new, |(at, _)| format!(", figures of {}", of_day(at)));
        let clock = self.clock();
        let (text, tone) = match (&self.lost, self.silence(), &clock) {
            (Some((since, reason)), ..) => {
                let old = human(ms(since.elapsed()));
                (format!(" CONNECTION LOST {old} ago{of}: {} ", shown(reason)), Tone::Bad)
            }
            (None, Some(silence), now) => {
                let (old, now) = (human(ms(silence)), now.as_deref().unwrap_or_default());
                (format!(" NO ANSWER for {old}{of}  {now}  {} ", self.url), Tone::Bad)
            }
            (None, None, None) => (format!(" reading …  {}  tailback top ", self.url), Tone::Head),
            (None, None, Some(now)) => (format!(" live  {now}  {}  tailback top ", self.url), Tone::Head),
        };
        let text = cut(&text, cells);
        let filled = format!("{text}{}", " ".repeat(cells.saturating_sub(width(&text))));
        Line::styled(filled, self.style(tone).add_modifier(Modifier::REVERSED))
    }

    /// What stands at the bottom: what has happened last, and the keys.
    fn bottom(&self, happened: usize, cells: usize) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        for (at, what) in self.happened.iter().rev().take(happened).rev() {
            let plain = crate::cli::out::Out { is_json: false, has_colours: false, columns: None };
            let tone = if matches!(what.kind.as_str(), "dead" | "worker_lost" | "store_away") {
                Tone::Bad
            } else {
                Tone::Plain
            };
            let at = part(of_day(at), Tone::Dim);
            lines.push(self.line(&[at, part(crate::cli::tail::told(plain, what), tone)], cells));
        }
        let text = if self.is_typing {
            format!("/{}▏  Enter: keep, Esc: all queues", shown(&self.filter))
        } else if self.screen == Screen::Overview && !self.filter.is_empty() {
            let (shown_now, all) = (self.found().count(), self.queues.len());
            format!(
                "/{}: {shown_now} of {all} queues  Esc: all  ↑↓ choose  Enter look  ? keys",
                shown(&self.filter)
            )
        } else {
            match self.screen {
                Screen::Overview => "↑↓ choose  Enter look  s sort  / find  ? keys  q end",
                Screen::Queue => "↑↓ choose  Enter look  f state  Esc back  ? keys  q end",
                Screen::Job => "↑↓ scroll  Esc back  ? keys  q end",
            }
            .to_owned()
        };
        lines.push(Line::styled(cut(&text, cells), self.style(Tone::Dim)));
        lines
    }

    fn help(&self, room: usize, cells: usize) -> Vec<Line<'static>> {
        let line = |(keys, meaning): &(&str, &str)| {
            let space = " ".repeat(12_usize.saturating_sub(width(keys)));
            self.line(&[part(format!("{keys}{space}"), Tone::Head), part(*meaning, Tone::Plain)], cells)
        };
        HELP.iter().map(line).take(room).collect()
    }

    /// Returns a line that is no wider than the screen.
    pub fn line(&self, parts: &[Part], cells: usize) -> Line<'static> {
        let (mut spans, mut left) = (Vec::new(), cells);
        for Part(text, tone) in parts.iter().filter(|part| !part.0.is_empty()) {
            if !spans.is_empty() {
                spans.push(Span::raw("  "));
                left = left.saturating_sub(2);
            }
            let text = cut(text, left);
            left -= width(&text).min(left);
            spans.push(Span::styled(text, self.style(*tone)));
        }
        Line::from(spans)
    }

    /// Returns the lines of a table: its head and the rows from `first` on, as far as there is room.
    pub fn table(
        &self,
        columns: &[Column],
        rows: impl Iterator<Item = Parts>,
        chosen: Option<usize>,
        cells: usize,
    ) -> Vec<Line<'static>> {
        let mut heads = Vec::new();
        for column in columns {
            // The column by which it is sorted is marked, also without colours.
            let mark = if column.is_sorted { "▼" } else { "" };
            heads.push(part(format!("{}{mark}", column.head), Tone::Head));
        }
        let mut lines = vec![self.row(columns, heads, cells)];
        for (n, row) in rows.enumerate() {
            let mut line = self.row(columns, row, cells);
            if chosen == Some(n) {
                let space = cells.saturating_sub(line.width());
                line.spans.push(Span::raw(" ".repeat(space)));
                line = line.patch_style(Style::new().add_modifier(Modifier::REVERSED));
            }
            lines.push(line);
        }
        lines
    }

    fn row(&self, columns: &[Column], parts: Parts, cells: usize) -> Line<'static> {
        let fixed: usize = columns.iter().map(|column| column.cells + usize::from(column.cells > 0)).sum();
        let rest = cells.saturating_sub(fixed);
        let mut spans = Vec::new();
        for (column, Part(text, tone)) in columns.iter().zip(parts) {
            let is_rest = column.cells == 0;
            let wide = if is_rest { rest } else { column.cells };
            let text = cut(&text, wide);
            let space = " ".repeat(wide.saturating_sub(width(&text)));
            let text = Span::styled(text, self.style(tone));
            if is_rest {
                spans.extend([text, Span::raw(space)]);
            } else if column.is_word {
                spans.extend([text, Span::raw(space), Span::raw(" ")]);
            } else {
                spans.extend([Span::raw(" "), Span::raw(space), text]);
            }
        }
        Line::from(spans)
    }

    fn style(&self, tone: Tone) -> Style {
        let style = Style::new();
        let coloured = |colour: Color| if self.has_colours { style.fg(colour) } else { style };
        match tone {
            Tone::Plain => style,
            Tone::Head => style.add_modifier(Modifier::BOLD),
            Tone::Dim => style.add_modifier(Modifier::DIM),
            Tone::Good => coloured(Color::Green),
            Tone::Warn => coloured(Color::Yellow),
            Tone::Bad => coloured(Color::Red).add_modifier(Modifier::BOLD),
        }
    }
}
