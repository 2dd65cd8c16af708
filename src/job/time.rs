//! Points in time, by the store's clock.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment in milliseconds since 1970-01-01T00:00:00Z; RFC 3339 in UTC with milliseconds on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

/// 9999-12-30T22:00:00.000Z, the last moment that can be written in every time zone with four-digit years.
const LAST_MILLIS: i64 = 253_402_207_200_000;

/// The rule for a time, in the words of an error response.
pub const TIME_RULE: &str =
    "a time such as 2026-01-31T08:00:00.000Z (RFC 3339), from 1970 to 9999-12-30T22:00:00Z";

impl Timestamp {
    /// Returns the moment this many milliseconds after (or before) the epoch, kept within the years 1970 to 9999.
    pub fn from_millis(millis: i64) -> Self {
        Self(millis.clamp(0, LAST_MILLIS))
    }

    /// Returns the milliseconds since the epoch.
    pub fn millis(self) -> i64 {
        self.0
    }

    /// Returns this moment plus `ms` milliseconds; stops at the year 9999.
    pub fn plus_ms(self, ms: u64) -> Self {
        Self::from_millis(self.0.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)))
    }

    /// Returns this moment less `ms` milliseconds; stops at the epoch.
    pub fn minus_ms(self, ms: u64) -> Self {
        Self::from_millis(self.0.saturating_sub(i64::try_from(ms).unwrap_or(i64::MAX)))
    }

    /// Returns the milliseconds from `earlier` to this moment; 0 if it is not earlier.
    pub fn ms_since(self, earlier: Self) -> u64 {
        u64::try_from(self.0 - earlier.0).unwrap_or(0)
    }
}

impl utoipa::PartialSchema for Timestamp {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
        let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
        let time = ObjectBuilder::new().schema_type(Type::String).format(Some(format));
        time.description(Some("A time: RFC 3339 in UTC with milliseconds.")).into()
    }
}

impl utoipa::ToSchema for Timestamp {}

/// When a job is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum When {
    /// At once.
    #[default]
    Now,
    /// So many milliseconds from now.
    In(u64),
    /// At this moment; one that has passed sorts earlier.
    At(Timestamp),
}

impl When {
    /// Returns the moment, counted from this one.
    pub fn from(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Now => now,
            Self::In(ms) => now.plus_ms(ms),
            Self::At(at) => at,
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Written::of(*self).as_str())
    }
}

/// A moment as it is written: 24 characters. Every job that is shown has several.
struct Written([u8; 24]);

impl Written {
    fn of(time: Timestamp) -> Self {
        let (days, ms) = (time.0.div_euclid(DAY_MS), time.0.rem_euclid(DAY_MS));
        let (year, month, day) = civil(days);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let parts = [
            (0, 4, year),
            (5, 2, month),
            (8, 2, day),
            (11, 2, ms / 3_600_000),
            (14, 2, ms / 60_000 % 60),
            (17, 2, ms / 1000 % 60),
            (20, 3, ms % 1000),
        ];
        for (from, len, mut number) in parts {
            for digit in text[from..from + len].iter_mut().rev() {
                *digit = b'0' + (number % 10) as u8;
                number /= 10;
            }
        }
        Self(text)
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

const DAY_MS: i64 = 86_400_000;

/// Returns the year, the month and the day of a day since 1970-01-01, by Howard Hinnant's `civil_from_days`: years begin in March, so that the day
/// that some years have more comes last, and 400 of them have always as many days.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468; // since 0000-03-01
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153; // 0: March
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year_of_era + next, month, day)
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Timestamp {
    type Err = super::names::InvalidText;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || super::names::InvalidText(TIME_RULE);
        let moment: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
        if moment < jiff::Timestamp::UNIX_EPOCH {
            Err(wrong())
        } else {
            Ok(Self::from_millis(moment.as_millisecond()))
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(Written::of(*self).as_str())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_is_written_as_it_is_called() {
        // The calendar repeats itself after 400 years.
        let (cycle, last) = (146_097, LAST_MILLIS / DAY_MS);
        for day in (0..cycle).chain((cycle..last).step_by(97)).chain([last]) {
            for ms in [0, 1, 43_199_999, 86_399_999] {
                let time = Timestamp::from_millis(day * DAY_MS + ms);
                if day % 97 == 0 || ms == 1 {
                    let moment = jiff::Timestamp::from_millisecond(time.0).unwrap();
                    assert_eq!(time.to_string(), format!("{moment:.3}"));
                }
                assert_eq!(time.to_string().len(), 24);
            }
        }
    }

    #[test]
    fn written_in_utc_with_milliseconds() {
        assert_eq!(Timestamp::from_millis(0).to_string(), "1970-01-01T00:00:00.000Z");
        let parsed: Timestamp = "2026-01-31T09:00:00.5+01:00".parse().unwrap();
        assert_eq!(parsed.to_string(), "2026-01-31T08:00:00.500Z");
        assert!("yesterday".parse::<Timestamp>().is_err());
        assert!("1969-12-31T23:59:59.999Z".parse::<Timestamp>().is_err(), "never changed in silence");
        assert_eq!("1970-01-01T00:00:00Z".parse(), Ok(Timestamp::from_millis(0)));
        assert_eq!(
            Timestamp::from_millis(i64::MAX).plus_ms(u64::MAX).to_string(),
            "9999-12-30T22:00:00.000Z"
        );
    }
}
