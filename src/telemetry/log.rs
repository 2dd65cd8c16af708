//! The log: lines on standard error, of a thread of their own, so that a reader that does not read stops nothing else.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use super::line::Traced;
use crate::lines::Lines;

/// How long the end of a process waits for the reader of its log.
const LAST: Duration = Duration::from_secs(1);
/// What stands for lines that were dropped.
const MISSING: &str = "lines of the log are missing: they were not read in time";

/// The log of this process.
static LOG: OnceLock<Lines> = OnceLock::new();

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable lines.
    Human,
    /// One JSON object per line.
    Json,
}

/// Reads a filter of the log: a level, or several `target=level` with commas between them. The error says which part is neither.
pub fn log_filter(text: &str) -> Result<Targets, String> {
    // `Targets` takes a word that is no level for a target whose every line is shown: a typo would silence all else.
    let wrong = text.split(',').map(str::trim).find(|part| !is_directive(part));
    if let Some(part) = wrong {
        return Err(format!("{part:?} is neither a level nor TARGET=LEVEL"));
    }
    text.parse().map_err(|error: tracing_subscriber::filter::ParseError| error.to_string())
}

/// Returns whether a part of a filter is understood as it was meant. Numbers are no levels: the parser takes 5 for `trace`.
fn is_directive(part: &str) -> bool {
    let is_level = |text: &str| text.parse::<LevelFilter>().is_ok() && !text.is_empty();
    match part.rsplit_once('=') {
        None => is_level(part) && part.parse::<u8>().is_err(),
        Some((target, level)) => {
            let is_target = !target.is_empty() && !target.contains(['[', '=']);
            let is_named = target.parse::<u64>().is_ok() || !is_level(target.trim());
            is_target && is_named && is_level(level) && level.parse::<u8>().is_err()
        }
    }
}

/// Installs the logger, which writes to standard error.
pub fn install_log(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = log_filter(filter).map_err(|what| anyhow::anyhow!("log.filter: {what}"))?;
    // Not by `Stderr`, whose mutex the thread would hold while it waits for the reader.
    let error = File::from(std::io::stderr().as_fd().try_clone_to_owned()?);
    let log = Lines::start("log", error, move |count| missing(count, format), None)?;
    let log = LOG.get_or_init(|| log).clone();
    // Where the log is not read any more, its errors could not be written either, and `eprintln!` panics.
    let lines = fmt::layer().with_writer(move || log.clone()).log_internal_errors(false);
    let lines = match format {
        LogFormat::Human => {
            let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
            let human = fmt::format().with_target(false).with_ansi(is_terminal);
            lines.with_ansi(is_terminal).event_format(Traced::human(human)).boxed()
        }
        LogFormat::Json => {
            let json = fmt::format().json().flatten_event(true);
            lines
                .with_ansi(false)
                .fmt_fields(fmt::format::JsonFields::new())
                .event_format(Traced::json(json))
                .boxed()
        }
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    Ok(())
}

/// Returns the line for so many that were dropped, in the format of the others.
fn missing(count: u64, format: LogFormat) -> Vec<u8> {
    let mut time = String::new();
    // The time is all that may be missing then.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let line = match format {
        LogFormat::Human => format!("{time}  WARN {MISSING} lines={count}\n"),
        LogFormat::Json => {
            let line =
                serde_json::json!({ "timestamp": time, "level": "WARN", "message": MISSING, "lines": count });
            format!("{line}\n")
        }
    };
    line.into_bytes()
}

/// Waits for the lines of the log at the end of the process, but only briefly where they are not read. Returns whether all are written.
pub fn flush_log() -> bool {
    LOG.get().is_none_or(|log| log.wait(LAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_of_levels_and_targets_with_levels() {
        for filter in [
            "info",
            "off",
            "INFO",
            "info,tailback::store=debug",
            "tailback=trace, mongodb=warn",
            "12345=info",
        ] {
            assert!(log_filter(filter).is_ok(), "{filter}");
        }
        for (filter, part) in [
            ("warning", "warning"),
            ("info,tailback", "tailback"),
            ("", ""),
            ("tailback=loud", "tailback=loud"),
            ("info=debug", "info=debug"),
            ("tailback[x]=info", "tailback[x]=info"),
            ("5", "5"),
            ("info,tailback=5", "tailback=5"),
            ("=info", "=info"),
        ] {
            let error = log_filter(filter).unwrap_err();
            assert_eq!(error, format!("{part:?} is neither a level nor TARGET=LEVEL"));
        }
    }

    #[test]
    fn what_is_missing_is_a_line_like_the_others() {
        let json: serde_json::Value = serde_json::from_slice(&missing(7, LogFormat::Json)).unwrap();
        assert_eq!((&json["lines"], &json["level"]), (&7.into(), &"WARN".into()));
        assert!(json["timestamp"].as_str().unwrap().ends_with('Z'), "{json}");
        let human = String::from_utf8(missing(7, LogFormat::Human)).unwrap();
        assert!(human.ends_with("in time lines=7\n") && human.contains("  WARN "), "{human}");
    }
}
