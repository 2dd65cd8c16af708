//! Where a command prints to.

use std::io::{IsTerminal as _, Write as _};

use super::failure::Failure;
use super::shown::{shown_json, wrapped};
use super::table::{Table, Tone};

/// With less room nothing is wrapped.
const NARROW: usize = 10;

/// Standard output: for people or for scripts.
#[derive(Debug, Clone, Copy)]
pub struct Out {
    /// Whether responses are printed as they are (`--json`).
    pub is_json: bool,
    /// Whether colours are used.
    pub has_colours: bool,
    /// How wide the terminal is, if it is one.
    pub columns: Option<usize>,
}

impl Out {
    /// Returns standard output as it is: colours and widths are for terminals.
    pub fn new(is_json: bool) -> Self {
        let out = std::io::stdout();
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let has_colours = out.is_terminal() && !is_set("NO_COLOR") && !is_dumb;
        // A terminal that does not know its size says 0.
        let size = rustix::termios::tcgetwinsize(&out).ok().filter(|size| size.ws_col > 0);
        Self { is_json, has_colours, columns: size.map(|size| usize::from(size.ws_col)) }
    }

    /// Prints a line. What others have written in it must be [`shown`](super::shown::shown).
    pub fn line(self, line: impl AsRef<str>) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        out.write_all(line.as_ref().as_bytes())?;
        out.write_all(b"\n")?;
        Ok(out.flush()?)
    }

    /// Prints a text in a tone.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        if self.has_colours { tone.paint(text) } else { text.to_owned() }
    }

    /// Prints bytes as they are.
    pub fn raw(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }

    /// Prints the body of a response, and an end of line. It is printed as it is, but what a terminal would obey is escaped for one.
    pub fn body(self, bytes: &[u8]) -> Result<(), Failure> {
        if self.is_terminal() {
            self.raw(shown_json(&String::from_utf8_lossy(bytes)).as_bytes())?;
        } else {
            self.raw(bytes)?;
        }
        if bytes.ends_with(b"\n") { Ok(()) } else { self.raw(b"\n") }
    }

    /// Prints a table, or, if it has no rows, what is said then.
    pub fn table(self, table: &Table, nothing: &str) -> Result<(), Failure> {
        if table.is_empty() {
            return self.line(nothing);
        }
        let mut text = table.lines(self.columns, self.has_colours).join("\n");
        text.push('\n');
        self.raw(text.as_bytes())?;
        let left_out = table.left_out(self.columns);
        if !left_out.is_empty() && std::io::stderr().is_terminal() {
            note(&format!("no room for {}: a wider terminal, a pipe or --json has all", left_out.join(", ")));
        }
        Ok(())
    }

    /// Prints names and what belongs to each; those without anything are left out.
    pub fn facts(self, facts: &[(&str, String)]) -> Result<(), Failure> {
        let widest = facts.iter().filter(|(_, fact)| !fact.is_empty()).map(|(name, _)| name.len()).max();
        let widest = widest.unwrap_or(0);
        for (name, fact) in facts.iter().filter(|(_, fact)| !fact.is_empty()) {
            let name = self.paint(Tone::Dim, &format!("{name:<widest$}"));
            let lines = self.wrapped(fact, widest + 2);
            self.line(format!("{name}  {}", lines.join(&format!("\n{:1$}", "", widest + 2))))?;
        }
        Ok(())
    }

    /// Prints a text behind two cells; what is wrapped of it behind four.
    pub fn below(self, text: &str) -> Result<(), Failure> {
        self.line(format!("  {}", self.wrapped(text, 4).join("\n    ")))
    }

    /// Splits a text so that its lines fit the terminal behind so many cells; not one with colours, which is short.
    fn wrapped(self, text: &str, behind: usize) -> Vec<String> {
        let room = self.columns.map(|columns| columns.saturating_sub(behind));
        match room.filter(|room| *room >= NARROW && !text.contains('\u{1b}')) {
            Some(room) => wrapped(text, room),
            None => vec![text.to_owned()],
        }
    }

    /// Returns whether what is printed goes to a terminal.
    pub fn is_terminal(self) -> bool {
        std::io::stdout().is_terminal()
    }
}

/// Prints a text of this program's own. A closed output is no error.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    match write(text) {
        Err(Failure::Closed) => Ok(()),
        written => written,
    }
}

/// Prints a text that must be read.
///
/// # Errors
///
/// Standard output cannot be written; `Closed` where its reader has closed it.
pub fn write(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.into() {
        Failure::Failed(text) => Failure::Failed(format!("standard output cannot be written: {text}")),
        failure => failure,
    })
}

/// Prints a note for a person beside the output, on standard error. What others have written in it must be shown as by
/// [`shown_lines`](super::shown_lines).
pub fn note(text: &str) {
    // A failure here cannot be reported.
    let _ = writeln!(std::io::stderr().lock(), "tailback: {text}");
}
