//! Payloads: any JSON value, given back equal to what was pushed.
//!
//! Two JSON texts are equal when they have the same keys in the same order, the same strings (however
//! they were escaped) and numbers of the same text: `1.0`, `1e5` and thirty digits stay what they were.
//! A [`Payload`] holds the one canonical text of its equals, so that text comparison is equality.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

/// A JSON value as its canonical text: no white space, strings with the fewest escapes.
#[derive(Debug, Clone)]
pub struct Payload(Arc<RawValue>);

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Payload {}

/// Why a JSON value cannot be a payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The text is not JSON.
    #[error("is not valid JSON")]
    Malformed,
    /// Its objects are open within each other more than 131,072 deep.
    #[error("has objects that are nested too deeply")]
    TooDeep,
    /// An object has the same key twice, so that readers would disagree about its value. Here are its first characters.
    #[error("has the key {0:?} twice in one object")]
    DuplicateKey(String),
    /// A `\uD800` to `\uDFFF` escape without its other half: not a character, and not storable as text.
    #[error("has a string with half a surrogate pair")]
    LoneSurrogate,
}

impl Payload {
    /// Returns the JSON value `null`.
    pub fn null() -> Self {
        Self(Arc::from(RawValue::NULL.to_owned()))
    }

    /// Returns whether it is `null`.
    pub fn is_null(&self) -> bool {
        self.as_str() == "null"
    }

    /// Parses any JSON text. Nesting may be as deep as the text is long.
    pub fn parse(text: &str) -> Result<Self, PayloadError> {
        // serde_json checks the grammar without recursion; the scan below may rely on it.
        let raw: &RawValue = serde_json::from_str(text).map_err(|_| PayloadError::Malformed)?;
        Self::from_raw(raw)
    }

    /// Converts a JSON value whose grammar has been checked.
    pub fn from_raw(raw: &RawValue) -> Result<Self, PayloadError> {
        Self::from_canonical(Canonical::of(raw)?)
    }

    /// Wraps a text that is canonical already, such as one that a store has kept.
    pub fn from_canonical(text: String) -> Result<Self, PayloadError> {
        let raw = RawValue::from_string(text).map_err(|_| PayloadError::Malformed)?;
        Ok(Self(raw.into()))
    }

    /// Returns the same value in canonical form: another program may have stored a text that is not.
    pub fn canonical(self) -> Result<Self, PayloadError> {
        let canonical = Canonical::of(&self.0)?;
        match canonical == self.as_str() {
            true => Ok(self),
            false => Self::from_canonical(canonical),
        }
    }

    /// Returns this text as a JSON string.
    pub fn string(text: &str) -> Self {
        let mut out = String::with_capacity(text.len() + 2);
        push_string(&mut out, text);
        Self::from_canonical(out).unwrap_or_else(|_| Self::null())
    }

    /// Returns the canonical JSON text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Returns the SHA-256 of the canonical text: equal payloads have equal digests.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.as_str().as_bytes()).into()
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Payload {
    /// Reads the text as it stands, so it must come from a JSON text.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(from)?;
        Self(raw.into()).canonical().map_err(serde::de::Error::custom)
    }
}

/// Reads a value that may be absent: `null` is one, not its absence.
pub fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Payload>, D::Error> {
    Payload::deserialize(from).map(Some)
}

/// The keys seen so far in an object that is still open.
enum Keys {
    /// Few: comparing beats hashing.
    Few(Vec<String>),
    Many(HashSet<String>),
}

/// How many characters of a key an error shows.
const KEY_SHOWN: usize = 64;
const FEW_KEYS: usize = 16;

impl Keys {
    /// Remembers the key; false if it was there.
    fn insert(&mut self, key: &str) -> bool {
        match self {
            Self::Few(keys) if keys.iter().any(|k| k == key) => false,
            Self::Few(keys) if keys.len() < FEW_KEYS => {
                keys.push(key.to_owned());
                true
            }
            Self::Few(keys) => {
                let mut many: HashSet<String> = keys.drain(..).collect();
                many.insert(key.to_owned());
                *self = Self::Many(many);
                true
            }
            Self::Many(keys) => keys.insert(key.to_owned()),
        }
    }
}

/// What is open where a text is being read.
enum Open {
    /// So many arrays, each directly within the one before: a text of brackets must not take many times its size.
    Arrays(usize),
    Object(Keys),
}

/// Objects may be open within each other up to this depth, arrays to any.
const DEPTH_MAX: usize = 1 << 17;

/// Copies grammatical JSON in canonical form. Iterative, so that depth costs heap and not stack.
struct Canonical {
    out: String,
    open: Vec<Open>,
}

impl Canonical {
    /// Returns the canonical form of a JSON value whose grammar has been checked.
    fn of(raw: &RawValue) -> Result<String, PayloadError> {
        let mut canonical = Self { out: String::with_capacity(raw.get().len()), open: Vec::new() };
        canonical.write(raw.get())?;
        Ok(canonical.out)
    }

    fn write(&mut self, text: &str) -> Result<(), PayloadError> {
        let bytes = text.as_bytes();
        let mut at = 0;
        // In an object, a string is a key when it follows `{` or `,`.
        let mut key_next = false;
        while at < bytes.len() {
            match bytes[at] {
                b' ' | b'\t' | b'\n' | b'\r' => at += 1,
                b'"' => {
                    let (end, is_plain) = string_end(text, at).ok_or(PayloadError::Malformed)?;
                    self.string(&text[at..end], is_plain, key_next)?;
                    key_next = false;
                    at = end;
                }
                other => {
                    match other {
                        b'{' if self.open.len() >= DEPTH_MAX => return Err(PayloadError::TooDeep),
                        b'{' => self.open.push(Open::Object(Keys::Few(Vec::new()))),
                        b'[' => match self.open.last_mut() {
                            Some(Open::Arrays(arrays)) => *arrays += 1,
                            _ => self.open.push(Open::Arrays(1)),
                        },
                        b'}' | b']' => match self.open.last_mut() {
                            Some(Open::Arrays(arrays @ 2..)) => *arrays -= 1,
                            _ => drop(self.open.pop()),
                        },
                        _ => {}
                    }
                    key_next =
                        matches!(other, b'{' | b',') && matches!(self.open.last(), Some(Open::Object(_)));
                    self.out.push(char::from(other));
                    at += 1;
                }
            }
        }
        Ok(())
    }

    /// Copies a string; `is_plain`: it has no escapes.
    fn string(&mut self, token: &str, is_plain: bool, is_key: bool) -> Result<(), PayloadError> {
        let value: Cow<'_, str> = match is_plain {
            true => Cow::Borrowed(&token[1..token.len() - 1]),
            false => Cow::Owned(serde_json::from_str(token).map_err(|_| PayloadError::LoneSurrogate)?),
        };
        if is_key
            && let Some(Open::Object(keys)) = self.open.last_mut()
            && !keys.insert(&value)
        {
            // Of a long one the beginning: an error must not grow with the payload.
            return Err(PayloadError::DuplicateKey(value.chars().take(KEY_SHOWN).collect()));
        }
        match is_plain {
            true => self.out.push_str(token), // a string of the grammar without escapes needs none
            false => push_string(&mut self.out, &value),
        }
        Ok(())
    }
}

/// The index behind the string token that starts at `start`, and whether it has no escapes.
fn string_end(text: &str, start: usize) -> Option<(usize, bool)> {
    let first = start + 1 + text.get(start + 1..)?.find('"')?;
    if !text[start..first].contains('\\') {
        return Some((first + 1, true));
    }
    let (bytes, mut at) = (text.as_bytes(), start + 1);
    loop {
        match bytes.get(at)? {
            b'"' => return Some((at + 1, false)),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Appends a string token as serde_json writes it, which is the canonical form.
pub fn push_string(out: &mut String, value: &str) {
    let plain = value.bytes().all(|b| b >= 0x20 && b != b'"' && b != b'\\');
    if plain {
        out.push('"');
        out.push_str(value);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(value).to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        Payload::parse(text).unwrap().as_str().to_owned()
    }

    #[test]
    fn equal_texts_have_one_form() {
        assert_eq!(canonical(" { \"b\" : [ 1 , 2.50 ], \"a\":null } "), r#"{"b":[1,2.50],"a":null}"#);
        assert_eq!(canonical(r#""\u0041\/\ud83d\ude00\n""#), "\"A/😀\\n\"");
        assert_eq!(canonical("\"\u{7f}\\u0000\""), "\"\u{7f}\\u0000\"");
    }

    #[test]
    fn numbers_keep_their_text() {
        for number in ["1.0", "1e5", "-0", "1E+5", "123456789012345678901234567890", "0.10", "-1.5e-300"] {
            assert_eq!(canonical(number), number);
        }
    }

    #[test]
    fn ambiguous_values_are_refused() {
        assert_eq!(Payload::parse(r#"{"a":1,"a":2}"#), Err(PayloadError::DuplicateKey("a".into())));
        assert_eq!(
            Payload::parse(r#"[{"x":{"a":1,"\u0061":2}}]"#),
            Err(PayloadError::DuplicateKey("a".into()))
        );
        assert!(Payload::parse(r#"[{"a":1},{"a":2},{"b":"a","a":"b"}]"#).is_ok());
        let many: String = (0..40).map(|n| format!("\"k{n}\":0,")).collect();
        assert!(Payload::parse(&format!("{{{many}\"k39\":1}}")).is_err());
        assert_eq!(Payload::parse(r#""\ud800""#), Err(PayloadError::LoneSurrogate));
        for bad in ["", "nul", "01", "[1,]", "{\"a\"}", "\"\t\"", "\"\\x\"", "1 2", "+1", "NaN"] {
            assert_eq!(Payload::parse(bad), Err(PayloadError::Malformed), "{bad}");
        }
    }

    #[test]
    fn depth_costs_no_stack() {
        let deep = "[".repeat(200_000) + &"]".repeat(200_000);
        assert_eq!(canonical(&deep), deep);
        assert_eq!(serde_json::to_string(&Payload::parse(&deep).unwrap()).unwrap(), deep);
        let objects = |depth: usize| format!("{}1{}", "[[{\"a\":".repeat(depth), "}]]".repeat(depth));
        assert_eq!(canonical(&objects(DEPTH_MAX / 2)), objects(DEPTH_MAX / 2));
        assert_eq!(Payload::parse(&objects(DEPTH_MAX)), Err(PayloadError::TooDeep));
    }
}
