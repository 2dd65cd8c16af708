//! Tables that fit the terminal.

use super::shown::{cut, shown, width};

/// The fewest cells to which a column is narrowed before columns are left out.
const NARROW: usize = 8;
/// Between two columns.
const GAP: &str = "  ";

/// How a cell looks on a terminal with colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    /// As the terminal's text.
    #[default]
    Plain,
    /// A head.
    Head,
    /// Less important.
    Dim,
    /// As it should be.
    Good,
    /// Worth a look.
    Warn,
    /// Wrong.
    Bad,
}

impl Tone {
    /// Returns the tone of a job's state.
    pub fn of_state(state: &str) -> Self {
        match state {
            "ready" | "running" => Self::Good,
            "reserved" | "blocked" | "scheduled" | "queued" => Self::Warn,
            "dead" | "failed" => Self::Bad,
            "done" | "cancelled" => Self::Dim,
            _ => Self::Plain,
        }
    }

    /// Returns a text in this tone.
    pub fn paint(self, text: &str) -> String {
        let code = match self {
            Self::Plain => return text.to_owned(),
            Self::Head => "1",
            Self::Dim => "2",
            Self::Good => "32",
            Self::Warn => "33",
            Self::Bad => "31",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// A column: its head, and whether it holds numbers, which stand at the right.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    head: &'static str,
    is_number: bool,
    /// May be narrowed.
    is_text: bool,
    /// How soon it is left out where there is no room: the largest first, and 0 only after all others.
    spare: u8,
}

impl Column {
    /// Returns it as one that others have room before: the larger the number, the sooner it is left out.
    pub const fn spare(self, spare: u8) -> Self {
        Self { spare, ..self }
    }
}

/// How wide each column is that is shown, and the heads of those with content that are not.
struct Fit {
    widths: Vec<Option<usize>>,
    left_out: Vec<&'static str>,
}

/// A column of short words that are never cut.
pub const fn word(head: &'static str) -> Column {
    Column { head, is_number: false, is_text: false, spare: 0 }
}

/// A column of numbers.
pub const fn number(head: &'static str) -> Column {
    Column { head, is_number: true, is_text: false, spare: 0 }
}

/// A column of text that may be cut.
pub const fn text(head: &'static str) -> Column {
    Column { head, is_number: false, is_text: true, spare: 0 }
}

/// A cell.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// Returns a cell with this text, made fit for a terminal.
    pub fn new(text: impl AsRef<str>, tone: Tone) -> Self {
        Self { text: shown(text.as_ref()), tone }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

/// A table that is printed once all of its rows are known.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Returns a table without rows.
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row: a cell for each column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns its lines: at most so many cells wide, if that is said.
    pub fn lines(&self, fit: Option<usize>, has_colours: bool) -> Vec<String> {
        let Fit { widths, .. } = self.fit(fit);
        let last = widths.iter().rposition(Option::is_some);
        let heads: Vec<Cell> = self.columns.iter().map(|column| Cell::new(column.head, Tone::Head)).collect();
        let line = |cells: &Vec<Cell>| {
            let mut parts = Vec::new();
            for (n, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                if let Some(width) = width {
                    parts.push(self.columns[n].fill(cell, *width, Some(n) == last, has_colours));
                }
            }
            parts.join(GAP)
        };
        std::iter::once(line(&heads)).chain(self.rows.iter().map(line)).collect()
    }

    /// Returns the heads of the columns that have no room in so many cells, though something stands in them.
    pub fn left_out(&self, fit: Option<usize>) -> Vec<&'static str> {
        self.fit(fit).left_out
    }

    /// Where there is no room, spare columns that are empty are left out, then those in which the same stands everywhere; texts are
    /// narrowed; then spare columns are left out, and last those at the right.
    fn fit(&self, cells: Option<usize>) -> Fit {
        let natural = |n: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(n));
            cells.map(|cell| width(&cell.text)).fold(width(self.columns[n].head), usize::max)
        };
        let widths = (0..self.columns.len()).map(|n| Some(natural(n))).collect();
        let mut fit = Fit { widths, left_out: Vec::new() };
        let Some(cells) = cells else { return fit };
        for is_dull in [Self::is_empty_column, Self::is_constant] {
            while fit.over(cells) > 0
                && let Some(n) = self.most_spare(&fit, |n| is_dull(self, n))
            {
                fit.leave_out(n, (!self.is_empty_column(n)).then_some(self.columns[n].head));
            }
        }
        loop {
            self.narrow(&mut fit, cells);
            let is_full = fit.over(cells) == 0;
            let last = fit.widths.iter().rposition(Option::is_some);
            match (self.most_spare(&fit, |_| true), last) {
                _ if is_full => return fit,
                (Some(n), _) => fit.leave_out(n, Some(self.columns[n].head)),
                (None, Some(n @ 1..)) => fit.leave_out(n, Some(self.columns[n].head)),
                (None, _) => {
                    fit.widths[0] = Some(cells);
                    return fit;
                }
            }
            // What is left may have the room again.
            for (n, width) in fit.widths.iter_mut().enumerate() {
                *width = width.map(|_| natural(n));
            }
        }
    }

    /// Returns the column of these that is left out first.
    fn most_spare(&self, fit: &Fit, is_meant: impl Fn(usize) -> bool) -> Option<usize> {
        let spare = |n: &usize| self.columns[*n].spare;
        let shown = (0..self.columns.len()).filter(|n| fit.widths[*n].is_some());
        shown.filter(|n| spare(n) > 0 && is_meant(*n)).max_by_key(spare)
    }

    fn is_empty_column(&self, n: usize) -> bool {
        self.rows.iter().all(|row| row.get(n).is_none_or(|cell| cell.text.is_empty()))
    }

    fn is_constant(&self, n: usize) -> bool {
        let mut texts = self.rows.iter().map(|row| row.get(n).map(|cell| &cell.text));
        let first = texts.next();
        self.rows.len() > 1 && texts.all(|text| Some(text) == first)
    }

    /// Narrows texts, the widest first.
    fn narrow(&self, fit: &mut Fit, cells: usize) {
        loop {
            let over = fit.over(cells);
            let of_text = fit.widths.iter().enumerate().filter(|(n, _)| self.columns[*n].is_text);
            let mut texts: Vec<(usize, usize)> = of_text
                .filter_map(|(n, width)| Some(((*width)?, n)))
                .filter(|text| text.0 > NARROW)
                .collect();
            texts.sort_unstable();
            let Some((widest, n)) = texts.pop().filter(|_| over > 0) else { return };
            // Down to the next widest one, and then both.
            let floor = texts.last().map_or(NARROW, |(next, _)| *next).min(widest - 1).max(NARROW);
            fit.widths[n] = Some(widest.saturating_sub(over).max(floor));
        }
    }
}

impl Fit {
    /// Returns how many cells too wide it is.
    fn over(&self, cells: usize) -> usize {
        let shown = self.widths.iter().flatten();
        let all = shown.clone().sum::<usize>() + GAP.len() * shown.count().saturating_sub(1);
        all.saturating_sub(cells)
    }

    fn leave_out(&mut self, n: usize, head: Option<&'static str>) {
        self.widths[n] = None;
        self.left_out.extend(head);
    }
}

impl Column {
    fn fill(&self, cell: &Cell, cells: usize, is_last: bool, has_colours: bool) -> String {
        let text = cut(&cell.text, cells);
        let space = " ".repeat(cells.saturating_sub(width(&text)));
        let painted = if has_colours { cell.tone.paint(&text) } else { text };
        match (self.is_number, is_last) {
            (true, _) => format!("{space}{painted}"),
            (false, true) => painted,
            (false, false) => format!("{painted}{space}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[text("QUEUE"), number("READY"), word("STATE"), text("ERROR")]);
        table.row(vec![
            "mail".into(),
            "12".into(),
            Cell::new("dead", Tone::Bad),
            "no\u{1b}[2J route to host".into(),
        ]);
        table.row(vec!["日本語の待ち行列".into(), "3456789".into(), "ready".into(), "".into()]);
        table
    }

    #[test]
    fn columns_stand_below_each_other() {
        assert_eq!(
            table().lines(None, false),
            [
                "QUEUE               READY  STATE  ERROR",
                "mail                   12  dead   no\\u{1b}[2J route to host",
                "日本語の待ち行列  3456789  ready  ",
            ]
        );
        assert!(table().lines(None, true)[1].contains("\u{1b}[31mdead\u{1b}[0m   no"));
    }

    #[test]
    fn what_says_least_is_left_out_first() {
        let mut table = Table::new(&[
            word("ID"),
            number("PRIORITY").spare(2),
            number("AGE").spare(1),
            word("NEXT").spare(3),
            text("ERROR"),
        ]);
        table.row(vec!["01".into(), "0".into(), "1s".into(), "".into(), "a long text that is cut".into()]);
        table.row(vec!["02".into(), "0".into(), "2s".into(), "".into(), "".into()]);
        let heads = |cells| table.lines(Some(cells), false)[0].clone();
        assert_eq!(heads(80), "ID  PRIORITY  AGE  NEXT  ERROR");
        assert_eq!((heads(43), table.left_out(Some(43))), ("ID  PRIORITY  AGE  ERROR".to_owned(), vec![]));
        assert_eq!((heads(38), table.left_out(Some(38))), ("ID  AGE  ERROR".to_owned(), vec!["PRIORITY"]));
        assert_eq!(table.lines(Some(20), false)[1], "01   1s  a long tex…");
        assert_eq!((heads(14), table.left_out(Some(14))), ("ID  ERROR".to_owned(), vec!["PRIORITY", "AGE"]));
        assert_eq!((heads(5), table.left_out(Some(5)).len()), ("ID".to_owned(), 3));
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for cells in 1..80 {
            for line in table().lines(Some(cells), false) {
                assert!(width(&line) <= cells, "{cells}: {line:?}");
            }
        }
    }
}
