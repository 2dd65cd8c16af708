//! When a schedule comes: a cron rule, a time zone, and what daylight saving time makes of them.
//!
//! A rule names local times. Twice a year a local time may not exist, or exist twice:
//!
//! - A rule whose times of day have no `*` (`30 2 * * *`, `0 8,20 * * 1-5`) means each of them **once a day**.
//!   One that does not exist comes at the end of the gap, together with all others in it; one that
//!   exists twice comes the first time.
//! - A rule with a `*` in its seconds, minutes or hours (`*/15 * * * *`, `0 * * * *`) means **an interval**. What
//!   does not exist is left out, and what exists twice comes twice, so that the distances stay what they are.

use std::fmt;
use std::str::FromStr;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{self, TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Timestamp;

/// The longest text of a rule, in bytes.
const TEXT_MAX: usize = 256;
/// After so many years the calendar repeats itself: a rule that does not come within them never comes.
const CYCLE_YEARS: i16 = 400;
/// From when on it is looked whether there is such a day at all.
const CYCLE_BEGINS: DateTime = DateTime::constant(2000, 1, 1, 0, 0, 0, 0);

const DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];

/// Why a text is not a cron rule that comes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCron {
    /// It has too few or too many fields, or something else than fields.
    #[error(
        "must be five fields (minute hour day month weekday), or six with seconds first, or @hourly, @daily, @weekly, @monthly or @yearly"
    )]
    Fields,
    /// One of its fields is not what it must be.
    #[error("is not a cron rule: {0}")]
    Field(String),
    /// There is no such day.
    #[error("never comes: there is no such day in any year")]
    Never,
}

/// Why a text is not a time zone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be the name of a time zone in the IANA database, such as Europe/Berlin or UTC")]
pub struct InvalidZone;

/// A cron rule that comes some day: five fields, or six with seconds first.
#[derive(Clone)]
pub struct CronRule {
    text: Box<str>,
    cron: Cron,
    /// Whether its times of day have a `*`.
    is_interval: bool,
}

impl CronRule {
    /// Returns the rule as a text, its fields one space apart.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Fails where the name of a day or a month stands in another field: the parser takes it for its number, whatever the field is. Rules that
    /// were stored before may have that, and stay as they are.
    pub fn check_names(&self) -> Result<(), InvalidCron> {
        for (n, field) in self.text.split(' ').rev().enumerate() {
            let field = field.to_ascii_uppercase();
            for (own, what, names) in [(0, "day of the week", &DAYS[..]), (1, "month", &MONTHS[..])] {
                if let Some(name) = names.iter().find(|name| n != own && field.contains(**name)) {
                    return Err(InvalidCron::Field(format!("{name} is not in the field of the {what}")));
                }
            }
        }
        Ok(())
    }

    /// Returns the first moment after this one at which the rule comes, in a time zone; `None`: it does not within
    /// the next 400 years, or never again.
    pub fn next(&self, after: Timestamp, zone: &Zone) -> Option<Timestamp> {
        let start = jiff::Timestamp::from_millisecond(after.millis()).ok()?;
        if self.is_interval { self.next_of_interval(start, zone) } else { self.next_time(start, zone) }
    }

    /// Searches local times, whatever the zone makes of each.
    fn next_time(&self, start: jiff::Timestamp, zone: &Zone) -> Option<Timestamp> {
        let after = Timestamp::from_millis(start.as_millisecond());
        let mut local = zone.0.to_datetime(start);
        loop {
            local = self.cron.find_next_occurrence(&local, false).ok()?;
            // Times in a gap share one moment, and those that exist twice may have come before.
            let at = zone.first_moment(local)?;
            if at > after {
                return Some(at);
            }
        }
    }

    /// Searches one offset of the zone after the other: a gap lies between two of them, and what exists twice is in both.
    fn next_of_interval(&self, start: jiff::Timestamp, zone: &Zone) -> Option<Timestamp> {
        let mut offset = zone.0.to_offset(start);
        let mut begin = offset.to_datetime(start);
        let last_year = begin.year().saturating_add(CYCLE_YEARS);
        let mut found = self.cron.find_next_occurrence(&begin, false).ok()?;
        for change in zone.0.following(start) {
            let at = offset.to_timestamp(found).ok()?;
            if at < change.timestamp() {
                return Some(Timestamp::from_millis(at.as_millisecond()));
            }
            offset = change.offset();
            let next_begin = offset.to_datetime(change.timestamp());
            if next_begin.year() > last_year {
                return None;
            }
            // The first time after `begin` is also the first from any time between the two on.
            if next_begin <= begin || next_begin > found {
                found = self.cron.find_next_occurrence(&next_begin, true).ok()?;
            }
            begin = next_begin;
        }
        let at = offset.to_timestamp(found).ok()?;
        Some(Timestamp::from_millis(at.as_millisecond()))
    }
}

/// Words that stand for rules. They are stored and shown as what they mean.
const WORDS: &[(&str, &str)] = &[
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

/// Returns the rule that a word stands for; any other text as it is.
fn expanded(text: &str) -> &str {
    let is_it = |(word, _): &&(&str, &str)| word.eq_ignore_ascii_case(text.trim());
    WORDS.iter().find(is_it).map_or(text, |(_, rule)| rule)
}

impl FromStr for CronRule {
    type Err = InvalidCron;

    fn from_str(text: &str) -> Result<Self, InvalidCron> {
        let text = expanded(text);
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let times = fields.len().checked_sub(3).filter(|times| (2..=3).contains(times));
        let times = times.filter(|_| text.len() <= TEXT_MAX && text.is_ascii() && !text.contains('@'));
        let times = times.ok_or(InvalidCron::Fields)?;
        // croner reads an empty element as nothing, and searches for minutes that never come until the year 5000.
        if let Some(field) = fields.iter().find(|field| field.split(',').any(str::is_empty)) {
            return Err(InvalidCron::Field(format!("{field} has an empty element")));
        }
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let text = fields.join(" ");
        let cron = parser.parse(&text).map_err(|error| InvalidCron::Field(error.to_string()))?;
        match cron.find_next_occurrence(&CYCLE_BEGINS, true) {
            Ok(first) if first.year() < CYCLE_BEGINS.year() + CYCLE_YEARS => {}
            _ => return Err(InvalidCron::Never),
        }
        let is_interval = fields[..times].iter().any(|field| field.contains('*'));
        Ok(Self { text: text.into(), cron, is_interval })
    }
}

/// A time zone of the IANA database: the machine's, which is kept up to date, or else the built-in one.
#[derive(Clone)]
pub struct Zone(TimeZone);

impl Zone {
    /// Returns its name in the database.
    pub fn as_str(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// Returns the moment of a local time: the first of two, and the end of the gap where there is none.
    fn first_moment(&self, local: DateTime) -> Option<Timestamp> {
        let ambiguous = self.0.to_ambiguous_timestamp(local);
        let is_gap = matches!(ambiguous.offset(), tz::AmbiguousOffset::Gap { .. });
        let earlier = ambiguous.earlier().ok()?;
        let moment = if is_gap { self.0.following(earlier).next()?.timestamp() } else { earlier };
        Some(Timestamp::from_millis(moment.as_millisecond()))
    }
}

impl Default for Zone {
    fn default() -> Self {
        Self(TimeZone::UTC)
    }
}

/// More than the longest name of a zone.
const ZONE_MAX: usize = 128;

impl FromStr for Zone {
    type Err = InvalidZone;

    fn from_str(name: &str) -> Result<Self, InvalidZone> {
        if name.eq_ignore_ascii_case("UTC") {
            return Ok(Self::default());
        }
        if name.len() > ZONE_MAX {
            return Err(InvalidZone);
        }
        let found = tz::db().get(name).or_else(|_| TimeZoneDatabase::bundled().get(name));
        found.ok().filter(|zone| zone.iana_name().is_some()).map(Self).ok_or(InvalidZone)
    }
}

macro_rules! as_text {
    ($name:ident) => {
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.as_str() == other.as_str()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self.as_str(), f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
as_text!(CronRule);
as_text!(Zone);

#[cfg(test)]
mod tests {
    use super::*;

    /// The first times that a rule comes after a moment, in UTC without the zeros at their end.
    fn times(cron: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let (cron, zone): (CronRule, Zone) = (cron.parse().unwrap(), zone.parse().unwrap());
        let mut at: Timestamp = after.parse().unwrap();
        let mut next = || {
            at = cron.next(at, &zone)?;
            Some(at.to_string().replace(":00.000Z", "Z").replace(".000Z", "Z"))
        };
        (0..count).map_while(|_| next()).collect()
    }

    const BERLIN: &str = "Europe/Berlin";
    const NEW_YORK: &str = "America/New_York";

    #[test]
    fn names_stand_in_their_own_fields() {
        let checked = |text: &str| text.parse::<CronRule>().unwrap().check_names();
        for good in ["0 8 * * MON-FRI", "0 8 * jan,Mar sun", "0 0 8 L * FRI#2", "15 8 L * *", "@monthly"] {
            assert_eq!(checked(good), Ok(()), "{good}");
        }
        for bad in ["30 7 * MON-FRI *", "0 8 MON * *", "MAR 3 * * *", "0 0 * * JAN"] {
            assert!(matches!(checked(bad), Err(InvalidCron::Field(_))), "{bad}");
        }
    }

    #[test]
    fn five_fields_or_six_with_seconds_first() {
        let after = "2026-01-31T23:59:58.250Z";
        assert_eq!(times("*/30 * * * *", "UTC", after, 2), ["2026-02-01T00:00Z", "2026-02-01T00:30Z"],);
        assert_eq!(
            times(" 59  * * * * * ", "UTC", after, 2),
            ["2026-01-31T23:59:59Z", "2026-02-01T00:00:59Z"],
        );
        assert_eq!(times("0 8 * * MON-FRI", "UTC", after, 1), ["2026-02-02T08:00Z"]);
        assert_eq!(times("0 8 L FEB *", "UTC", after, 1), ["2026-02-28T08:00Z"]);
        assert_eq!("  0 8\t* *   7".parse::<CronRule>().unwrap().as_str(), "0 8 * * 7");
        for empty in [", * * * *", "1,,2 * * * *", "0 1, * * *", "0 0 ,1 * *", "0 0 1 * MON,"] {
            let error = empty.parse::<CronRule>().err();
            assert!(matches!(error, Some(InvalidCron::Field(why)) if why.contains("empty")), "{empty}");
        }
    }

    #[test]
    fn words_stand_for_rules() {
        let after = "2026-01-31T23:30:00Z";
        for (word, rule, first) in [
            ("@hourly", "0 * * * *", "2026-02-01T00:00Z"),
            (" @Daily ", "0 0 * * *", "2026-02-01T00:00Z"),
            ("@midnight", "0 0 * * *", "2026-02-01T00:00Z"),
            ("@weekly", "0 0 * * 0", "2026-02-01T00:00Z"),
            ("@monthly", "0 0 1 * *", "2026-02-01T00:00Z"),
            ("@yearly", "0 0 1 1 *", "2027-01-01T00:00Z"),
            ("@annually", "0 0 1 1 *", "2027-01-01T00:00Z"),
        ] {
            assert_eq!(word.parse::<CronRule>().unwrap().as_str(), rule);
            assert_eq!(times(word, "UTC", after, 1), [first], "{word}");
        }
    }

    #[test]
    fn days_are_told_in_many_ways() {
        let after = "2026-01-31T23:00:00Z";
        for (cron, first) in [
            ("0 0 * * 5L", "2026-02-27T00:00Z"),
            ("0 0 L * *", "2026-02-28T00:00Z"),
            ("0 0 * * 5#2", "2026-02-13T00:00Z"),
            ("0 0 * * 1#2", "2026-02-09T00:00Z"),
            ("0 0 15W * *", "2026-02-16T00:00Z"),
            ("0 0 10 * FRI", "2026-02-06T00:00Z"),
            ("0 0 1-31/10 MAR *", "2026-03-01T00:00Z"),
            ("0 0 * * 7", "2026-02-01T00:00Z"),
        ] {
            assert_eq!(times(cron, "UTC", after, 1), [first], "{cron}");
        }
    }

    #[test]
    fn the_moment_itself_is_not_the_next_one() {
        assert_eq!(times("0 8 * * *", "UTC", "2026-01-31T08:00:00.000Z", 1), ["2026-02-01T08:00Z"]);
        assert_eq!(times("0 8 * * *", "UTC", "2026-01-31T07:59:59.999Z", 1), ["2026-01-31T08:00Z"]);
    }

    #[test]
    fn a_leap_day_comes_in_leap_years() {
        let after = "2026-01-31T08:00:00Z";
        let leap = times("0 0 29 2 *", "UTC", after, 2);
        assert_eq!(leap, ["2028-02-29T00:00Z", "2032-02-29T00:00Z"]);
        assert_eq!(times("0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", 1), ["2104-02-29T00:00Z"]);
    }

    #[test]
    fn a_time_in_the_gap_comes_at_its_end_once() {
        // Berlin, 2026-03-29: 02:00 to 03:00 does not exist; the gap ends at 01:00 UTC.
        let night = times("30 2 * * *", BERLIN, "2026-03-28T00:00:00Z", 3);
        assert_eq!(night, ["2026-03-28T01:30Z", "2026-03-29T01:00Z", "2026-03-30T00:30Z"]);
        let often = times("0,20,40 2,3 * * *", BERLIN, "2026-03-29T00:00:00Z", 4);
        assert_eq!(
            often,
            ["2026-03-29T01:00Z", "2026-03-29T01:20Z", "2026-03-29T01:40Z", "2026-03-30T00:00Z"],
        );
        // New York, 2026-03-08: 02:00 to 03:00 does not exist; the gap ends at 07:00 UTC.
        let night = times("30 2 * * *", NEW_YORK, "2026-03-07T08:00:00Z", 2);
        assert_eq!(night, ["2026-03-08T07:00Z", "2026-03-09T06:30Z"]);
        // From within the last second before the gap.
        assert_eq!(times("59 2 * * *", NEW_YORK, "2026-03-08T06:59:59.999Z", 1), ["2026-03-08T07:00Z"]);
    }

    #[test]
    fn a_time_that_exists_twice_comes_the_first_time() {
        // Berlin, 2026-10-25: 02:00 to 03:00 comes twice, from 00:00 and from 01:00 UTC.
        let night = times("30 2 * * *", BERLIN, "2026-10-24T12:00:00Z", 2);
        assert_eq!(night, ["2026-10-25T00:30Z", "2026-10-26T01:30Z"]);
        let after_the_first = times("30 2 * * *", BERLIN, "2026-10-25T01:10:00Z", 1);
        assert_eq!(after_the_first, ["2026-10-26T01:30Z"]);
        // New York, 2026-11-01: 01:00 to 02:00 comes twice, from 05:00 and from 06:00 UTC.
        let often = times("0,30 1,2 * * *", NEW_YORK, "2026-11-01T00:00:00Z", 5);
        assert_eq!(
            often,
            [
                "2026-11-01T05:00Z",
                "2026-11-01T05:30Z",
                "2026-11-01T07:00Z",
                "2026-11-01T07:30Z",
                "2026-11-02T06:00Z"
            ],
        );
    }

    #[test]
    fn an_interval_goes_on_through_both() {
        // The gap is left out: an hour later is an hour later.
        let hours = times("0 * * * *", BERLIN, "2026-03-28T23:30:00Z", 3);
        assert_eq!(hours, ["2026-03-29T00:00Z", "2026-03-29T01:00Z", "2026-03-29T02:00Z"]);
        assert_eq!(times("*/30 2 * * *", BERLIN, "2026-03-29T00:00:00Z", 1), ["2026-03-30T00:00Z"]);
        // What exists twice comes twice.
        let halves = times("*/30 * * * *", BERLIN, "2026-10-24T23:45:00Z", 5);
        assert_eq!(
            halves,
            [
                "2026-10-25T00:00Z",
                "2026-10-25T00:30Z",
                "2026-10-25T01:00Z",
                "2026-10-25T01:30Z",
                "2026-10-25T02:00Z"
            ],
        );
        let hours = times("0 * * * *", NEW_YORK, "2026-11-01T04:30:00Z", 3);
        assert_eq!(hours, ["2026-11-01T05:00Z", "2026-11-01T06:00Z", "2026-11-01T07:00Z"]);
    }

    #[test]
    fn an_interval_that_lies_in_the_gap_every_year_never_comes() {
        let after = "2026-01-31T00:00:00Z";
        assert!(times("* * 2 * 3 0L", BERLIN, after, 1).is_empty());
        assert!(times("*/7 30-40 2 * 3 0#2", NEW_YORK, after, 1).is_empty());
        assert_eq!(times("* * 2 * 3 0L", "UTC", after, 1), ["2026-03-29T02:00Z"]);
        // In 2030 that is the day on which clocks are put forward, in 2031 it is not.
        assert_eq!(
            times("*/30 2 31 3 *", BERLIN, "2029-04-01T00:00:00Z", 2),
            ["2031-03-31T00:00Z", "2031-03-31T00:30Z"]
        );
    }

    #[test]
    fn an_interval_comes_alike_whatever_is_asked_from() {
        const QUARTER_MS: u64 = 900_000;
        let cron: CronRule = "*/15 * * * *".parse().unwrap();
        for (zone, change) in [
            (BERLIN, "2026-03-29T01:00:00Z"),
            (BERLIN, "2026-10-25T01:00:00Z"),
            (NEW_YORK, "2026-11-01T06:00:00Z"),
            ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
            ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
        ] {
            let (zone, change): (Zone, Timestamp) = (zone.parse().unwrap(), change.parse().unwrap());
            let begin = change.minus_ms(8 * QUARTER_MS);
            for n in 0..16 {
                let at = begin.plus_ms(n * QUARTER_MS);
                for after in [at, at.plus_ms(QUARTER_MS - 1)] {
                    assert_eq!(cron.next(after, &zone), Some(at.plus_ms(QUARTER_MS)), "{zone:?} {after}");
                }
            }
        }
    }

    #[test]
    fn zones_may_lack_a_midnight_and_be_off_by_minutes() {
        // Cairo, 2026-04-24: the day begins at 01:00, which is 22:00 UTC of the day before.
        let midnight = times("0 0 24 4 *", "Africa/Cairo", "2026-04-01T00:00:00Z", 1);
        assert_eq!(midnight, ["2026-04-23T22:00Z"]);
        assert_eq!(times("0 9 * * *", "Asia/Kathmandu", "2026-01-31T00:00:00Z", 1), ["2026-01-31T03:15Z"]);
        // Lord Howe's gap is half an hour.
        let howe = times("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z", 1);
        assert_eq!(howe, ["2026-10-03T15:30Z"]);
    }

    #[test]
    fn rules_that_are_none_are_refused() {
        for text in
            ["", "* * * *", "* * * * * * *", "@reboot", "@", "@daily 1", "0 0 * * * 2030 *", "✓ * * * *"]
        {
            assert_eq!(text.parse::<CronRule>(), Err(InvalidCron::Fields), "{text}");
        }
        assert_eq!(format!("*{}", " *".repeat(200)).parse::<CronRule>(), Err(InvalidCron::Fields));
        for text in
            ["60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "a * * * *", "*/0 * * * *"]
        {
            assert!(matches!(text.parse::<CronRule>(), Err(InvalidCron::Field(_))), "{text}");
        }
        for text in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 0 30 FEB *"] {
            assert_eq!(text.parse::<CronRule>(), Err(InvalidCron::Never), "{text}");
        }
    }

    #[test]
    fn zones_are_known_by_name_also_without_a_database_on_the_machine() {
        assert_eq!("utc".parse::<Zone>().unwrap().as_str(), "UTC");
        assert_eq!("europe/berlin".parse::<Zone>().unwrap().as_str(), BERLIN);
        for name in ["", "Berlin", "Europe/Atlantis", "+02:00", "CET-1CEST", "../etc/passwd"] {
            assert_eq!(name.parse::<Zone>(), Err(InvalidZone), "{name}");
        }
        let carried = TimeZoneDatabase::bundled();
        for name in [BERLIN, NEW_YORK, "Asia/Kathmandu", "Etc/UTC"] {
            assert!(carried.get(name).is_ok(), "{name}");
        }
    }
}
