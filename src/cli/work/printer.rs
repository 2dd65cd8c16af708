//! What a worker prints: a reader that does not read stops no job and no heartbeat.

use std::time::Duration;

use crate::lines::Lines;

/// How long is waited for the readers when the worker ends.
const LAST: Duration = Duration::from_secs(2);

/// Standard output and standard error of a worker. It never waits.
#[derive(Debug, Clone)]
pub struct Printer {
    out: Lines,
    err: Lines,
}

impl Printer {
    /// Begins to print.
    pub fn start() -> std::io::Result<Self> {
        let err = Lines::start("stderr", std::io::stderr(), unread, None)?;
        let out = Lines::start("stdout", std::io::stdout(), unread, Some(err.clone()))?;
        Ok(Self { out, err })
    }

    /// Prints a line on standard output.
    pub fn line(&self, line: &str) {
        self.out.lines(format!("{line}\n").into_bytes());
    }

    /// Prints bytes on standard error, as a command has written them.
    pub fn error(&self, bytes: Vec<u8>) {
        self.err.bytes(bytes);
    }

    /// Prints lines on standard error. What stands there unfinished is ended first.
    pub fn lines(&self, lines: Vec<u8>) {
        self.err.lines(lines);
    }

    /// Prints a note for a person, on standard error.
    pub fn note(&self, text: &str) {
        self.lines(format!("tailback: {text}\n").into_bytes());
    }

    /// Waits until all is written, but only briefly where the output is not read. Reports what is not written then.
    pub async fn flush(&self) {
        let lost = self.out.flush(LAST).await;
        if lost > 0 {
            // It may be that only standard output is not read.
            self.lines(unread(lost));
        }
        // What is lost here cannot be reported.
        let _ = self.err.flush(LAST).await;
    }
}

fn unread(lost: u64) -> Vec<u8> {
    format!("tailback: {lost} lines were not printed, since nobody has read\n").into_bytes()
}
