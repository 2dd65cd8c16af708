//! Payloads as BSON, so that people can query them: exact, or not at all.
//!
//! Where BSON cannot hold a value exactly (integers past 64 bits, `1e5`, keys that MongoDB gives a meaning
//! to, deep nesting …), the JSON text is stored instead, invisible from outside. So it is where BSON would be much larger: a list of
//! small numbers takes six times its text, and a document of MongoDB has 16 MiB for all that a job has.

use std::fmt::Write as _;

use mongodb::bson::{Bson, Document};

use crate::job::Payload;
use crate::job::payload::{PayloadError, push_string};

/// The deepest nesting that is stored as BSON. MongoDB documents a limit of 100 levels for a document.
const DEPTH_MAX: usize = 80;
/// By how much BSON may be longer than the text.
const GROWTH_MAX: usize = 1 << 20;

/// Returns the value as BSON that turns back into the same text, if there is such BSON.
pub fn to_bson(payload: &Payload) -> Option<Bson> {
    let text = payload.as_str();
    let mut reader = Reader { text, at: 0, room: text.len() + GROWTH_MAX };
    reader.value(0)
}

/// Returns the JSON text of a value that was stored as BSON, by us or by another program.
pub fn from_bson(value: &Bson) -> Result<Payload, PayloadError> {
    let mut out = String::new();
    write_value(&mut out, value);
    Payload::from_canonical(out)
}

/// What BSON has beside the name of an element.
const TYPE_AND_END: usize = 2;
/// What BSON has beside the elements of a document or an array, or the bytes of a string.
const LENGTH_AND_END: usize = 5;

/// Reads canonical JSON, whose grammar has been checked and which has no white space.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// How long the BSON of the rest may be.
    room: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips the byte if it is the next one.
    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    /// Takes the room of a part of the BSON, if there is so much.
    fn take_room(&mut self, bytes: usize) -> Option<()> {
        self.room = self.room.checked_sub(bytes)?;
        Some(())
    }

    fn value(&mut self, depth: usize) -> Option<Bson> {
        let value = self.next(depth)?;
        self.take_room(match &value {
            Bson::String(text) => text.len() + LENGTH_AND_END,
            Bson::Document(_) | Bson::Array(_) => LENGTH_AND_END,
            Bson::Int64(_) | Bson::Double(_) => 8,
            Bson::Int32(_) => 4,
            Bson::Boolean(_) => 1,
            _ => 0,
        })?;
        Some(value)
    }

    fn next(&mut self, depth: usize) -> Option<Bson> {
        match self.peek()? {
            b'{' if depth < DEPTH_MAX => self.object(depth),
            b'[' if depth < DEPTH_MAX => self.array(depth),
            b'{' | b'[' => None,
            b'"' => self.string().map(Bson::String),
            b't' => self.word("true", Bson::Boolean(true)),
            b'f' => self.word("false", Bson::Boolean(false)),
            b'n' => self.word("null", Bson::Null),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &str, value: Bson) -> Option<Bson> {
        self.at += word.len();
        Some(value)
    }

    fn object(&mut self, depth: usize) -> Option<Bson> {
        let mut object = Document::new();
        self.take(b'{');
        while !self.take(b'}') {
            self.take(b',');
            let key = self.string()?;
            // `$ref`, `$oid` and the like mean something to MongoDB and its tools; NUL ends a key in BSON.
            if key.starts_with('$') || key.contains('\0') {
                return None;
            }
            self.take_room(key.len() + TYPE_AND_END)?;
            self.take(b':');
            object.insert(key, self.value(depth + 1)?);
        }
        Some(Bson::Document(object))
    }

    fn array(&mut self, depth: usize) -> Option<Bson> {
        let mut array = Vec::new();
        self.take(b'[');
        while !self.take(b']') {
            self.take(b',');
            let digits = array.len().checked_ilog10().unwrap_or(0) as usize + 1;
            self.take_room(digits + TYPE_AND_END)?;
            array.push(self.value(depth + 1)?);
        }
        Some(Bson::Array(array))
    }

    fn string(&mut self) -> Option<String> {
        let start = self.at;
        let bytes = self.text.as_bytes();
        self.at += 1;
        loop {
            match bytes.get(self.at)? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        let token = &self.text[start..self.at];
        let inner = &token[1..token.len() - 1];
        if inner.contains('\\') { serde_json::from_str(token).ok() } else { Some(inner.to_owned()) }
    }

    fn number(&mut self) -> Option<Bson> {
        let start = self.at;
        while self.peek().is_some_and(|b| !matches!(b, b',' | b']' | b'}')) {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        let number = match text.parse::<i64>() {
            Ok(integer) => i32::try_from(integer).map_or(Bson::Int64(integer), Bson::Int32),
            Err(_) => Bson::Double(text.parse().ok()?),
        };
        let mut back = String::new();
        write_value(&mut back, &number);
        (back == text).then_some(number)
    }
}

fn write_value(out: &mut String, value: &Bson) {
    match value {
        Bson::Document(object) => {
            out.push('{');
            for (n, (key, item)) in object.iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                push_string(out, key);
                out.push(':');
                write_value(out, item);
            }
            out.push('}');
        }
        Bson::Array(items) => {
            out.push('[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    out.push(',');
                }
                write_value(out, item);
            }
            out.push(']');
        }
        Bson::String(text) => push_string(out, text),
        Bson::Boolean(true) => out.push_str("true"),
        Bson::Boolean(false) => out.push_str("false"),
        Bson::Null => out.push_str("null"),
        Bson::Int32(number) => push(out, format_args!("{number}")),
        Bson::Int64(number) => push(out, format_args!("{number}")),
        Bson::Double(number) if number.is_finite() => push(out, format_args!("{number:?}")),
        // What JSON has no word for comes from other programs; it reads as MongoDB's extended JSON.
        other => out.push_str(&other.clone().into_relaxed_extjson().to_string()),
    }
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(text: &str) -> Payload {
        Payload::parse(text).unwrap()
    }

    #[test]
    fn what_bson_holds_exactly_is_stored_as_bson() {
        let deep = "[".repeat(80) + &"]".repeat(80);
        for text in [
            "null",
            "true",
            "0",
            "-1",
            "2147483648",
            "9223372036854775807",
            "-9223372036854775808",
            "1.0",
            "0.1",
            "1e100",
            "-0.0",
            r#""a\u0000b""#,
            r#"{"z":1,"a":{"":[],"b.c":{}},"m":[1,"x",null]}"#,
            deep.as_str(),
        ] {
            let payload = payload(text);
            let bson = to_bson(&payload).unwrap_or_else(|| panic!("{text} is exact in BSON"));
            assert_eq!(from_bson(&bson).unwrap(), payload, "{text}");
        }
    }

    #[test]
    fn what_bson_would_change_is_not() {
        let deep = "[".repeat(81) + &"]".repeat(81);
        for text in [
            "-0",
            "1e5",
            "1E400",
            "1.10",
            "9223372036854775808",
            "123456789012345678901234567890",
            r#"{"$oid":"x"}"#,
            r#"{"a\u0000":1}"#,
            r#"[{"deep":[1.50]}]"#,
            deep.as_str(),
        ] {
            assert_eq!(to_bson(&payload(text)), None, "{text}");
        }
    }

    #[test]
    fn what_bson_would_make_much_larger_is_not() {
        let list = |items: usize| payload(&format!("[{}1]", "1,".repeat(items)));
        let small = to_bson(&list(50_000)).unwrap();
        assert_eq!(from_bson(&small).unwrap(), list(50_000));
        assert_eq!(to_bson(&list(500_000)), None);
        let long = payload(&format!("[\"{}\"]", "x".repeat(4 << 20)));
        assert!(to_bson(&long).is_some(), "BSON is as long as the text");
    }

    /// By which the room is taken.
    #[test]
    fn the_length_of_bson_is_known_before_it_is_written() {
        let text = r#"{"a":[1,2,3,4,5,6,7,8,9,10,11,{"bc":-0.5}],"d":9223372036854775807,"e":"é\u0000","f":[true,null]}"#;
        let mut reader = Reader { text, at: 0, room: 1000 };
        let Some(Bson::Document(read)) = reader.value(0) else { panic!("it is exact in BSON") };
        assert_eq!(1000 - reader.room, read.to_vec().unwrap().len());
    }

    #[test]
    fn what_other_programs_store_reads_as_extended_json() {
        let when = mongodb::bson::DateTime::from_millis(0);
        let text = from_bson(&Bson::Document(mongodb::bson::doc! { "at": when })).unwrap();
        assert_eq!(text.as_str(), r#"{"at":{"$date":"1970-01-01T00:00:00Z"}}"#);
        assert_eq!(from_bson(&Bson::Double(f64::NAN)).unwrap().as_str(), r#"{"$numberDouble":"NaN"}"#);
    }
}
