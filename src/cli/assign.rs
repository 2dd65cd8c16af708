//! `KEY=VALUE` of the command line: fields of JSON that are changed, and no others.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::failure::Failure;
use super::payload::value_or_text;
use super::shown::shown;
use super::time::{ms, span};

/// What a name is set to.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// The fields to it from the outermost on.
    path: Vec<String>,
    /// JSON.
    value: String,
}

type Fields = BTreeMap<String, Box<RawValue>>;

/// Reads `KEY=VALUE`, where a dot leads into an object: `rate.limit=5`. A value is JSON, or a text if it is none; a time span where the
/// name ends with `_ms`; null if there is none.
pub fn assignment(text: &str) -> Result<Assignment, String> {
    let wrong = "it must be KEY=VALUE, such as max_attempts=3";
    let (path, value) = text.split_once('=').ok_or(wrong)?;
    let path: Vec<String> = path.split('.').map(str::to_owned).collect();
    if path.iter().any(String::is_empty) {
        return Err(wrong.to_owned());
    }
    let is_time = path.last().is_some_and(|name| name.ends_with("_ms"));
    // A number alone is milliseconds there, as the name says.
    let value = match span(value) {
        _ if value.is_empty() => "null".to_owned(),
        Ok(span) if is_time && value.contains(char::is_alphabetic) => ms(span).to_string(),
        _ => value_or_text(value),
    };
    Ok(Assignment { path, value })
}

/// Returns a JSON merge patch that makes these assignments.
pub fn patch(assignments: &[Assignment]) -> Result<String, Failure> {
    made("{}", assignments, false)
}

/// Returns this JSON object with these assignments made; what is set to null is taken out. The rest stays as it is written.
pub fn merged(object: &str, assignments: &[Assignment]) -> Result<String, Failure> {
    made(object, assignments, true)
}

fn made(object: &str, assignments: &[Assignment], takes_out: bool) -> Result<String, Failure> {
    for (n, one) in assignments.iter().enumerate() {
        let mut others = assignments.iter().skip(n + 1);
        if others.any(|other| other.path.starts_with(&one.path) || one.path.starts_with(&other.path)) {
            let name = shown(&one.path.join("."));
            return Err(Failure::Usage(format!("{name} is set twice, or as a whole and in part")));
        }
    }
    let mut object = object.to_owned();
    for Assignment { path, value } in assignments {
        let is_out = takes_out && value == "null";
        object = set(&object, path, (!is_out).then_some(value.as_str()))?;
    }
    Ok(object)
}

/// Returns this object with a field set, or without it. What is no object becomes one.
fn set(object: &str, path: &[String], value: Option<&str>) -> Result<String, Failure> {
    let mut fields: Fields = serde_json::from_str(object).unwrap_or_default();
    let Some((name, rest)) = path.split_first() else { return Ok(object.to_owned()) };
    let value = match value {
        None if rest.is_empty() => None,
        Some(value) if rest.is_empty() => Some(value.to_owned()),
        _ => Some(set(fields.get(name).map_or("{}", |inner| inner.get()), rest, value)?),
    };
    let json = |error: serde_json::Error| Failure::Failed(error.to_string());
    match value {
        Some(value) => drop(fields.insert(name.clone(), RawValue::from_string(value).map_err(json)?)),
        None => drop(fields.remove(name)),
    }
    serde_json::to_string(&fields).map_err(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(texts: &[&str]) -> Vec<Assignment> {
        texts.iter().map(|text| assignment(text).unwrap()).collect()
    }

    #[test]
    fn values_are_json_texts_and_times() {
        for (text, json) in [
            ("lease_ms=30s", r#"{"lease_ms":30000}"#),
            ("lease_ms=30", r#"{"lease_ms":30}"#),
            ("dead_letter=a.b=c", r#"{"dead_letter":"a.b=c"}"#),
            ("name=30s", r#"{"name":"30s"}"#),
            ("paused=true", r#"{"paused":true}"#),
            ("rate=", r#"{"rate":null}"#),
            ("rate.limit=1.10", r#"{"rate":{"limit":1.10}}"#),
        ] {
            assert_eq!(patch(&all(&[text])).unwrap(), json);
        }
        assert!(["a", "=1", "a.=1", ".a=1"].iter().all(|text| assignment(text).is_err()));
        assert!(patch(&all(&["a=1", "a.b=1"])).is_err() && patch(&all(&["a=1", "a=1"])).is_err());
    }

    #[test]
    fn the_rest_of_an_object_stays_as_it_is_written() {
        let object = r#"{"a": {"n": 1.10, "gone": 1}, "b": 12345678901234567890}"#;
        let merged = merged(object, &all(&["a.gone=", "a.new=x", "c.d="])).unwrap();
        assert_eq!(merged, r#"{"a":{"n":1.10,"new":"x"},"b":12345678901234567890,"c":{}}"#);
    }
}
