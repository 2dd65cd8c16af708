//! Reading headers: a name that comes twice is refused, as readers would disagree about its value.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::Payload;
use super::spec::{HEADERS_MAX, Headers};

/// Reads headers, each of which has a name of its own.
pub fn distinct<'de, D: Deserializer<'de>>(from: D) -> Result<Headers, D::Error> {
    from.deserialize_map(Distinct)
}

/// The same where there may be none.
pub fn distinct_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Headers>, D::Error> {
    Ok(Option::<Named>::deserialize(from)?.map(|Named(headers)| headers))
}

struct Named(Headers);

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        distinct(from).map(Self)
    }
}

struct Distinct;

impl<'de> Visitor<'de> for Distinct {
    type Value = Headers;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
        let mut headers = Headers::new();
        while let Some(name) = map.next_key::<String>()? {
            if headers.len() > HEADERS_MAX {
                map.next_value::<IgnoredAny>()?; // it has too many already
                continue;
            }
            // The value is what the error points at.
            let value = map.next_value_seed(Value { is_second: headers.contains_key(&name) })?;
            headers.insert(name, value);
        }
        Ok(headers)
    }
}

struct Value {
    is_second: bool,
}

impl<'de> DeserializeSeed<'de> for Value {
    type Value = Payload;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Payload, D::Error> {
        if self.is_second {
            return Err(D::Error::custom("must be given once: there is one of this name before it"));
        }
        Payload::deserialize(from)
    }
}
