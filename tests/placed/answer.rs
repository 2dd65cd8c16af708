//! What calls are answered.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::story::Outcome;

/// The status and the body; `None`: there was no answer.
pub type Answer = Option<(u16, Value)>;

/// How a commit ended, also one among many.
pub fn of_commit(answer: &Answer) -> Outcome {
    let among = answer.as_ref().and_then(|(_, answer)| answer["commit"][0]["status"].as_u64());
    match among.and_then(|status| u16::try_from(status).ok()) {
        Some(status) => Outcome::of(Some(&(status, Value::Null))),
        None => Outcome::of(answer.as_ref()),
    }
}

/// The ids in an answer, without those of the requests in it.
pub fn ids(answer: &Value) -> BTreeSet<&str> {
    match answer {
        Value::Array(items) => items.iter().flat_map(ids).collect(),
        Value::Object(fields) => {
            let own = fields.get("id").and_then(Value::as_str);
            own.into_iter().chain(fields.values().flat_map(ids)).collect()
        }
        _ => BTreeSet::new(),
    }
}
