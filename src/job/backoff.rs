//! How long a job that failed waits before it is tried again.

use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Whether the delay grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackoffKind {
    /// Every delay is `base_ms`.
    Fixed,
    /// The delay is `base_ms`, multiplied by `factor` after each further attempt, up to `max_ms`.
    Exponential,
}

/// How long a rolled back job waits before the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Backoff {
    /// Whether the delay grows from attempt to attempt.
    pub kind: BackoffKind,
    /// The first delay in milliseconds.
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    pub base_ms: u64,
    /// What each further attempt multiplies the delay by (1 to 100; exponential only).
    #[serde(default = "default_factor", deserialize_with = "finite")]
    #[schema(minimum = 1, maximum = 100, default = 2.0)]
    pub factor: f64,
    /// The longest delay in milliseconds, before jitter.
    #[serde(default = "default_max_ms")]
    #[schema(minimum = 0, maximum = 31536000000_u64, default = 600000)]
    pub max_ms: u64,
    /// The share of the delay (0 to 1) that is random, so that jobs that failed together do not all
    /// come back together: a delay of d becomes anything from d × (1 − jitter) to d × (1 + jitter).
    #[serde(default = "default_jitter", deserialize_with = "finite")]
    #[schema(minimum = 0, maximum = 1, default = 0.2)]
    pub jitter: f64,
}

/// Reads an optional object as an object only: serde would also take an array, as the fields in the order in
/// which they happen to be declared.
pub fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    struct ObjectOnly<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectOnly<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_unit<E: serde::de::Error>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<T>, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }

    from.deserialize_any(ObjectOnly(PhantomData))
}

/// Reads a number that JSON can say: BSON has others, which no answer could show.
fn finite<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let number = f64::deserialize(from)?;
    if number.is_finite() { Ok(number) } else { Err(D::Error::custom("must be a finite number")) }
}

/// The same of an object that must be there.
pub fn required_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    object(from)?.ok_or_else(|| D::Error::custom("must be an object"))
}

/// A year: the longest duration that any setting accepts.
pub const YEAR_MS: u64 = 365 * 24 * 60 * 60 * 1000;

fn default_factor() -> f64 {
    2.0
}

fn default_max_ms() -> u64 {
    600_000
}

fn default_jitter() -> f64 {
    0.2
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            kind: BackoffKind::Exponential,
            base_ms: 1000,
            factor: default_factor(),
            max_ms: default_max_ms(),
            jitter: default_jitter(),
        }
    }
}

impl Backoff {
    /// Returns the field that is out of its range and the rule for it, if any is.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        if self.base_ms > YEAR_MS {
            Some(("base_ms", "must be 0 to 31536000000 (a year)"))
        } else if !(1.0..=100.0).contains(&self.factor) {
            Some(("factor", "must be 1 to 100"))
        } else if self.max_ms > YEAR_MS {
            Some(("max_ms", "must be 0 to 31536000000 (a year)"))
        } else if !(0.0..=1.0).contains(&self.jitter) {
            Some(("jitter", "must be 0 to 1"))
        } else {
            None
        }
    }

    /// Returns the delay in milliseconds after the given attempt (from 1) failed. `chance` is a random number
    /// from 0 to 1 that places the delay within its jitter.
    pub fn delay_ms(&self, attempt: u32, chance: f64) -> u64 {
        let base = self.base_ms as f64;
        let delay = match self.kind {
            BackoffKind::Fixed => base,
            BackoffKind::Exponential => {
                let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
                // Kept finite: 0 times infinity would not be a number.
                let growth = self.factor.powi(exponent).min(f64::MAX / YEAR_MS as f64);
                (base * growth).min(self.max_ms as f64)
            }
        };
        // A cast from f64 saturates: neither infinity nor a huge delay can wrap around.
        (delay * (1.0 + self.jitter * (2.0 * chance - 1.0))).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_grows_to_its_cap() {
        let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
        let delays: Vec<u64> = (1..=4).map(|attempt| backoff.delay_ms(attempt, 0.5)).collect();
        assert_eq!(delays, [1000, 2000, 4000, 8000]);
        assert_eq!(backoff.delay_ms(11, 0.5), 600_000);
        assert_eq!(backoff.delay_ms(u32::MAX, 0.5), 600_000);
    }

    #[test]
    fn fixed_stays_and_jitter_spreads_it() {
        let backoff = Backoff { kind: BackoffKind::Fixed, base_ms: 1000, jitter: 0.5, ..Backoff::default() };
        assert_eq!(backoff.delay_ms(9, 0.0), 500);
        assert_eq!(backoff.delay_ms(9, 0.5), 1000);
        assert_eq!(backoff.delay_ms(9, 1.0), 1500);
    }

    #[test]
    fn a_zero_base_never_waits() {
        let backoff = Backoff { base_ms: 0, ..Backoff::default() };
        assert_eq!(backoff.delay_ms(u32::MAX, 1.0), 0, "0 times infinity is not a number; it must not wait");
    }
}
