//! JSON text parsed into a request type, or an error that names the invalid field and the valid values.

use serde::de::{DeserializeOwned, IgnoredAny};

use super::problem::{Code, Problem};
use crate::job::Invalid;

/// How many characters of the name of a field are shown, and of a message that may quote the request.
const NAME_SHOWN: usize = 64;
const MESSAGE_SHOWN: usize = 1000;
/// The longest text of which it is looked up which words a field takes, in bytes.
const PROBED_MAX: usize = 64 << 10;

/// Why a text is not a valid request.
#[derive(Debug)]
pub enum BodyError {
    /// It is not JSON.
    Malformed {
        /// The line of the error, from 1.
        line: usize,
        /// The column of the error, from 1.
        column: usize,
    },
    /// A field is invalid.
    Invalid(Invalid),
}

impl BodyError {
    /// Returns the error of the request that contains this text at this pointer, as valid JSON but for numbers that no
    /// type can hold.
    pub fn under(self, pointer: &str) -> Invalid {
        match self {
            Self::Malformed { line, column } => {
                Invalid::new(pointer, format!("is not JSON (line {line}, column {column})"))
            }
            Self::Invalid(invalid) => invalid.under(pointer),
        }
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Malformed { line, column } => {
                Self::new(Code::Malformed, format!("the body is not JSON (line {line}, column {column})"))
            }
            BodyError::Invalid(invalid) => invalid.into(),
        }
    }
}

/// Parses JSON text as a request, which must be an object.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, BodyError> {
    // serde would accept an array as the fields in the order of their declaration.
    if text.trim_start().starts_with('[') {
        let array: Result<IgnoredAny, _> = serde_json::from_str(text);
        array.map_err(|error| malformed(&error))?;
        return Err(BodyError::Invalid(Invalid::new("", "must be an object")));
    }
    // Nearly every body is valid: where the fault of one is, is looked for only once there is one.
    serde_json::from_str(text).or_else(|_| parse_with_path(text))
}

/// Parses text, and says of a fault where it is.
fn parse_with_path<T: DeserializeOwned>(text: &str) -> Result<T, BodyError> {
    read_with_path(text).map_err(|(pointer, error)| match error {
        error if error.is_data() => BodyError::Invalid(explain(pointer, &message(&error))),
        // serde_json also calls a text wrong that only is not what the field takes: a number for a word, or a number beyond all types.
        error => match serde_json::from_str::<IgnoredAny>(text) {
            Err(_) => malformed(&error),
            Ok(_) => BodyError::Invalid(of_another_kind::<T>(text, pointer, &message(&error))),
        },
    })
}

fn read_with_path<T: DeserializeOwned>(text: &str) -> Result<T, (String, serde_json::Error)> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| (pointer(error.path()), error.into_inner()))?;
    reader.end().map_err(|error| (String::new(), error))?;
    Ok(value)
}

fn malformed(error: &serde_json::Error) -> BodyError {
    BodyError::Malformed { line: error.line(), column: error.column() }
}

/// Returns what serde says, without the line and the column.
fn message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message).to_owned()
}

/// Returns what is wrong with a field of a JSON text that serde_json does not read as what the field takes.
fn of_another_kind<T: DeserializeOwned>(text: &str, pointer: String, message: &str) -> Invalid {
    if message == "number out of range" {
        return Invalid::new(pointer, "must be a number of no more than 1.7976931348623157e308");
    }
    if message.starts_with("recursion limit") {
        return Invalid::new(pointer, "is nested too deeply");
    }
    if message.contains("hex escape") {
        return Invalid::new(pointer, "must be Unicode text: it has half of a surrogate pair");
    }
    // What is left is something else in place of a word. Which words there are, it says of a word that is none of them. As values a large text
    // would take some forty times its size.
    let words = || {
        let small = Some(text).filter(|text| text.len() <= PROBED_MAX)?;
        let mut probe: serde_json::Value = serde_json::from_str(small).ok()?;
        *probe.pointer_mut(&pointer)? = serde_json::Value::String(String::new());
        let (at, error) = read_with_path::<T>(&probe.to_string()).err()?;
        let message = message_of_words(&error)?;
        (at == pointer).then(|| explain(pointer.clone(), &message))
    };
    words().unwrap_or_else(|| Invalid::new(pointer.clone(), "must be a string"))
}

fn message_of_words(error: &serde_json::Error) -> Option<String> {
    Some(message(error)).filter(|message| error.is_data() && message.starts_with("unknown variant"))
}

/// Returns what serde says that it expected instead of a name, which may be any text.
fn expected(message: &str) -> Option<&str> {
    message.rsplit_once("`, expected ").map(|(_, expected)| expected)
}

/// Translates a message of serde into one that names the field and the valid values.
fn explain(pointer: String, message: &str) -> Invalid {
    let quoted = |text: &str| escaped(text.split('`').nth(1).unwrap_or_default());
    let child = |name: String| format!("{pointer}/{name}");
    if message.starts_with("unknown field") {
        let known = expected(message).unwrap_or("none").replace('`', "");
        let known = known.trim_start_matches("one of ").to_owned();
        // The path ends in the unknown field itself.
        let beneath = child(quoted(message));
        let own = beneath.strip_prefix(&pointer).is_some_and(|name| pointer.ends_with(name));
        let pointer = if own { pointer } else { beneath };
        let detail = format!("is an unknown field; known fields: {known}");
        return Invalid::new(pointer, shown(&detail, MESSAGE_SHOWN));
    }
    if message.starts_with("missing field") {
        return Invalid::new(child(quoted(message)), "is required");
    }
    if message.starts_with("duplicate field") {
        return Invalid::new(child(quoted(message)), "is a duplicate");
    }
    if let Some(variants) = message.strip_prefix("unknown variant") {
        let known = expected(variants).unwrap_or_default();
        let known = known.replace("` or `", "`, `").replace('`', "");
        let detail = format!("must be one of: {}", known.trim_start_matches("one of "));
        return Invalid::new(pointer, shown(&detail, MESSAGE_SHOWN));
    }
    // The messages of our own types need no translation. They may quote the request, such as a key in a payload.
    match message.rsplit_once("expected ") {
        Some((given, expected)) if message.starts_with("invalid ") => {
            let is_quoted =
                given.starts_with("invalid type: string") && expected_type(expected).contains("number");
            let unquoted = if is_quoted { ", without quotes" } else { "" };
            let detail = format!("must be {}{unquoted}", expected_type(expected));
            Invalid::new(pointer, shown(&detail, MESSAGE_SHOWN))
        }
        _ => Invalid::new(pointer, shown(message, MESSAGE_SHOWN)),
    }
}

fn expected_type(expected: &str) -> &str {
    match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "usize" | "u64" => "a whole number from 0 to 18446744073709551615",
        "i32" => "a whole number from -2147483648 to 2147483647",
        "i64" => "a whole number",
        "f64" | "f32" => "a number",
        "a string" | "a borrowed string" | "string or map" => "a string",
        "a boolean" => "true or false",
        "a sequence" => "an array",
        "a map" => "an object",
        text if text.starts_with("struct ") => "an object",
        text => text,
    }
}

/// Returns the beginning of a text of the request that an error quotes: a response must not grow with what a stranger sends.
fn shown(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the part of a JSON pointer for a field of this name.
fn escaped(name: &str) -> String {
    shown(name, NAME_SHOWN).replace('~', "~0").replace('/', "~1")
}

fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Map { key } => {
                pointer.push('/');
                pointer.push_str(&escaped(key));
            }
            Segment::Seq { index } => {
                pointer.push('/');
                pointer.push_str(&index.to_string());
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    pointer
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::value::RawValue;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its parsing is tested")]
    struct Sample {
        count: u32,
        #[serde(default, deserialize_with = "crate::http::body::present")]
        payload: Option<Box<RawValue>>,
        inner: Option<Inner>,
        word: Option<Word>,
        share: Option<f64>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        First,
        Last,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its parsing is tested")]
    struct Inner {
        list: Vec<i32>,
    }

    fn problem(text: &str) -> (u16, Option<String>, String) {
        let problem = serde_json::to_value(Problem::from(parse::<Sample>(text).unwrap_err())).unwrap();
        let pointer = problem["pointer"].as_str().map(str::to_owned);
        (problem["status"].as_u64().unwrap() as u16, pointer, problem["detail"].as_str().unwrap().to_owned())
    }

    #[test]
    fn problems_point_at_the_field() {
        for (text, pointer, detail) in [
            ("{}", "/count", "/count is required"),
            (
                r#"{"count":1,"x~/y":1}"#,
                "/x~0~1y",
                "is an unknown field; known fields: count, payload, inner, word, share",
            ),
            (r#"{"count":-1}"#, "/count", "must be a whole number from 0 to 4294967295"),
            (r#"{"count":1,"inner":{"list":[1,"x"]}}"#, "/inner/list/1", "must be a whole number from"),
            (r#"{"count":1,"inner":{"lost":[]}}"#, "/inner/lost", "known fields: list"),
            (r#"{"count":1,"count":2}"#, "/count", "is a duplicate"),
            (r#"{"count":1,"inner":[]}"#, "/inner", "must be"),
            (r#"{"count":"1"}"#, "/count", "must be a whole number from 0 to 4294967295, without quotes"),
            (r#"{"count":1,"word":0}"#, "/word", "must be one of: first, last"),
            (r#"{"count":1,"word":["first"]}"#, "/word", "must be one of: first, last"),
            (r#"{"count":1,"word":"second"}"#, "/word", "must be one of: first, last"),
            (r#"{"word":true,"count":1e400}"#, "/word", "must be a string"),
            (r#"{"count":1,"share":1e400}"#, "/share", "must be a number of no more than"),
            (r#"{"count":1,"word":"\ud800"}"#, "/word", "must be Unicode text"),
            ("[]", "", "the body"),
        ] {
            let (status, at, says) = problem(text);
            assert_eq!((status, at.as_deref()), (422, Some(pointer)), "{text}: {says}");
            assert!(says.contains(detail), "{text}: {says}");
        }
    }

    #[test]
    fn of_a_long_name_the_beginning_is_shown() {
        for name in ["~".repeat(100_000), "é/".repeat(100_000)] {
            let (status, at, detail) = problem(&format!(r#"{{"count":1,"{name}":1}}"#));
            let at = at.unwrap();
            assert_eq!((status, at.ends_with('…')), (422, true), "{at}");
            assert!(at.len() < 200 && detail.len() < 400, "{at} {detail}");
        }
        let long = format!("expected {}", "a".repeat(100_000));
        for (text, says) in [
            (format!(r#"{{"count":1,"{long}":1}}"#), "known fields: count, payload, inner, word, share"),
            (format!(r#"{{"count":1,"word":"{long}"}}"#), "must be one of: first, last"),
            (
                format!(r#"{{"count":"{long}"}}"#),
                "must be a whole number from 0 to 4294967295, without quotes",
            ),
        ] {
            let (status, _, detail) = problem(&text);
            assert_eq!((status, detail.ends_with(says), detail.len() < 400), (422, true, true), "{detail}");
        }
    }

    #[test]
    fn what_is_not_json_is_malformed() {
        for text in ["{", "nul", "{\"count\":1}x", "{'count':1}", "{\"count\":01}"] {
            assert_eq!(problem(text).0, 400, "{text}");
        }
    }

    #[test]
    fn null_is_present() {
        let sample: Sample = parse(r#"{"count":1,"payload":null}"#).unwrap();
        assert_eq!(sample.payload.unwrap().get(), "null");
        assert!(parse::<Sample>(r#"{"count":1}"#).unwrap().payload.is_none());
        let exact: Sample =
            parse(r#"{"count":1,"payload":{"n":1.00, "big":123456789012345678901234567890}}"#).unwrap();
        assert_eq!(exact.payload.unwrap().get(), r#"{"n":1.00, "big":123456789012345678901234567890}"#);
    }
}
