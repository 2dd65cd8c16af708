//! Shows the progress of a copy on standard error: one line that is rewritten on a terminal, a line every few seconds
//! elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

const ON_TERMINAL: Duration = Duration::from_millis(200);
const ELSEWHERE: Duration = Duration::from_secs(5);

/// Shows progress; see the module's documentation.
pub struct Progress {
    terminal: bool,
    shown: Option<Instant>,
    /// The current phase and when it began, for the rate.
    phase: (&'static str, Instant),
    /// Whether the cursor is at the end of a line that is to be rewritten.
    open: bool,
}

impl Progress {
    /// Returns a progress that has shown nothing yet.
    pub fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { terminal, shown: None, phase: ("", Instant::now()), open: false }
    }

    /// Shows that `done` of `total` are done, unless it did so a moment ago. The total is an estimate.
    pub fn report(&mut self, what: &'static str, done: u64, total: u64) {
        let now = Instant::now();
        let new_phase = self.phase.0 != what;
        if new_phase {
            self.phase = (what, now);
        }
        let every = if self.terminal { ON_TERMINAL } else { ELSEWHERE };
        let fresh = self.shown.is_some_and(|shown| now.duration_since(shown) < every);
        if fresh && !new_phase {
            return;
        }
        self.shown = Some(now);
        let seconds = now.duration_since(self.phase.1).as_secs_f64();
        let speed = if seconds < 1.0 { String::new() } else { format!(", {:.0}/s", done as f64 / seconds) };
        self.write(&format!("{what}: {done} of {}{speed}", total.max(done)));
    }

    /// Ends the line that is being rewritten.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.open) {
            self.put("\n");
        }
    }

    fn write(&mut self, line: &str) {
        if self.terminal {
            self.put(&format!("\r\x1b[K{line}"));
            self.open = true;
        } else {
            self.put(&format!("{line}\n"));
        }
    }

    fn put(&self, text: &str) {
        // Standard error may be closed; the copy continues.
        let mut out = std::io::stderr().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
