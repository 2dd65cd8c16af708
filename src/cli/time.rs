//! Times as people write and read them.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Reads a time span: `250ms`, `10s`, `1m30s`, `2h`, `7d`; a number alone is seconds.
pub fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time span, such as 250ms, 10s, 1m30s, 2h or 7d");
    let (mut rest, mut total) = (text.trim(), 0_f64);
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, behind) = rest.split_at(digits);
        let letters = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(letters);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let ms = match unit {
            "ms" => 1.0,
            "s" => 1e3,
            "" if behind.is_empty() && number_alone(text) => 1e3,
            "m" | "min" => 6e4,
            "h" => 3.6e6,
            "d" => 8.64e7,
            "w" => 6.048e8,
            _ => return Err(wrong()),
        };
        total += number * ms;
        rest = behind;
    }
    // A hundred years: more than any field takes, and what a clock can add.
    if total > 3.2e12 {
        return Err(format!("{text:?} is longer than any job waits"));
    }
    Duration::try_from_secs_f64(total / 1e3).map_err(|_| wrong())
}

fn number_alone(text: &str) -> bool {
    text.trim().chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// Returns a span in milliseconds.
pub fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Reads a time: RFC 3339, or how long ago (`2h`, `-2h`), which becomes RFC 3339 by this machine's clock.
pub fn ago(text: &str) -> Result<String, String> {
    if text.parse::<Timestamp>().is_ok() {
        return Ok(text.to_owned());
    }
    let span = span(text.trim_start_matches('-')).map_err(|_| {
        format!("{text:?} is no time, such as 2026-01-31T12:00:00Z, or how long ago: 30m, 2h, 7d")
    })?;
    let at = now().checked_sub(jiff::SignedDuration::try_from(span).unwrap_or(jiff::SignedDuration::MAX));
    at.map(|at| at.to_string()).map_err(|_| format!("{text:?} is before all times"))
}

/// The time of this machine, for ages that a person reads: nothing is decided by it.
pub fn now() -> Timestamp {
    #[expect(clippy::disallowed_methods, reason = "shown to a person, decides nothing")]
    Timestamp::now()
}

/// Returns a number of milliseconds as people say it: two units at most.
pub fn human(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0 => format!("{ms}ms"),
        1..=9 if !ms.is_multiple_of(1000) => format!("{s}.{}s", ms % 1000 / 100),
        1..=59 => format!("{s}s"),
        60..=3599 => two(s / 60, "m", s % 60, "s"),
        3600..=86_399 => two(s / 3600, "h", s % 3600 / 60, "m"),
        _ => two(s / 86_400, "d", s % 86_400 / 3600, "h"),
    }
}

fn two(large: u64, unit: &str, small: u64, other: &str) -> String {
    if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{other}") }
}

/// Returns how long ago a time is, or in how long it comes: `3m12s ago`, `in 5s`. Empty where it is no time.
pub fn relative(at: &str) -> String {
    let Some(since) = since(at) else { return String::new() };
    match u64::try_from(since) {
        Ok(since) => format!("{} ago", human(since)),
        Err(_) => format!("in {}", human(since.unsigned_abs())),
    }
}

/// Returns for how long a time is over: `3m12s`; nothing for one to come.
pub fn age(at: &str) -> String {
    since(at).map_or_else(String::new, |since| human(u64::try_from(since).unwrap_or(0)))
}

/// Returns a time in milliseconds since 1970.
pub fn epoch_ms(at: &str) -> Option<i64> {
    at.parse::<Timestamp>().ok().map(Timestamp::as_millisecond)
}

/// Returns how many milliseconds ago a time is; below zero for one to come.
pub fn since(at: &str) -> Option<i64> {
    let at: Timestamp = at.parse().ok()?;
    Some(now().as_millisecond().saturating_sub(at.as_millisecond()))
}

/// Returns how many milliseconds the second time is after the first; below zero if it is before.
pub fn between(first: &str, second: &str) -> Option<i64> {
    let (first, second): (Timestamp, Timestamp) = (first.parse().ok()?, second.parse().ok()?);
    Some(second.as_millisecond().saturating_sub(first.as_millisecond()))
}

/// Returns a time on this machine's clock, with how long ago that is.
pub fn local(at: &str) -> String {
    let Ok(parsed) = at.parse::<Timestamp>() else { return super::shown::shown(at) };
    let zoned = parsed.to_zoned(TimeZone::system());
    format!("{} ({})", zoned.strftime("%Y-%m-%d %H:%M:%S %Z"), relative(at))
}

/// Returns the time of day of a time, on this machine's clock.
pub fn of_day(at: &str) -> String {
    of_day_after(at, Duration::ZERO)
}

/// Returns the time of day so long after a time.
pub fn of_day_after(at: &str, later: Duration) -> String {
    let Ok(parsed) = at.parse::<Timestamp>() else { return super::shown::shown(at) };
    let parsed = parsed.checked_add(later).unwrap_or(parsed);
    parsed.to_zoned(TimeZone::system()).strftime("%H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_people_write_them() {
        for (text, ms) in [
            ("250ms", 250),
            ("10s", 10_000),
            ("10", 10_000),
            ("1.5s", 1500),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
            ("0", 0),
        ] {
            assert_eq!(span(text).map(super::ms), Ok(ms), "{text}");
        }
        for wrong in ["", "s", "-1s", "1x", "1s2", "ten", "1e9d", "9999999999999d", "1..5s", "1 s", "∞"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_exact_or_ago() {
        assert_eq!(ago("2026-01-31T12:00:00Z").unwrap(), "2026-01-31T12:00:00Z");
        for text in ["2h", "-2h"] {
            let ago = since(&ago(text).unwrap()).unwrap();
            assert!((7_200_000..7_260_000).contains(&ago), "{text}: {ago}");
        }
        assert!(ago("yesterday").is_err());
    }

    #[test]
    fn ages_are_short() {
        for (ms, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1500, "1.5s"),
            (9000, "9s"),
            (61_000, "1m1s"),
            (3_600_000, "1h"),
            (90_061_000, "1d1h"),
            (u64::MAX, "213503982334d14h"),
        ] {
            assert_eq!(human(ms), text);
        }
    }
}
