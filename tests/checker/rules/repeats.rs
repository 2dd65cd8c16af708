//! A call with an `Idempotency-Key` takes effect once, and each of its answers says the same.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::history::{Call, History, Verb};
use super::super::{Findings, Rule};

/// Those whose answers are remembered. A repeat of a reserve names those that it still holds only.
const REMEMBERED: [Verb; 7] = [
    Verb::Push,
    Verb::PushMany,
    Verb::PushTogether,
    Verb::Pop,
    Verb::CreateBatch,
    Verb::AddToBatch,
    Verb::Operation,
];

pub fn judge(history: &History, findings: &mut Findings) {
    let mut first: BTreeMap<(Verb, &str, &str), (usize, Vec<String>)> = BTreeMap::new();
    for (n, call) in history.calls.iter().enumerate() {
        let (Some(key), Some(answer)) = (call.key.as_deref(), call.outcome.answer()) else { continue };
        if !REMEMBERED.contains(&call.verb) || !is_remembered(call, answer) {
            continue;
        }
        let named = named(answer);
        let (earlier, before) =
            first.entry((call.verb, &call.target, key)).or_insert_with(|| (n, named.clone()));
        if *before != named {
            let detail = format!("call {earlier} was told of {before:?}, and {n} of {named:?}");
            findings.add(Rule::OtherAnswer, key, detail);
        }
    }
}

/// A call that did nothing is done anew by its repeat.
fn is_remembered(call: &Call, answer: &Value) -> bool {
    match call.verb {
        Verb::Pop => answer["jobs"].as_array().is_some_and(|jobs| !jobs.is_empty()),
        Verb::PushMany | Verb::PushTogether => {
            let results = answer["results"].as_array().into_iter().flatten();
            results.into_iter().any(|result| result["status"] == 201)
        }
        _ => true,
    }
}

/// The ids of what the answer is about.
fn named(answer: &Value) -> Vec<String> {
    let own = answer["id"].as_str().map(str::to_owned);
    let lists = ["jobs", "results"].iter().flat_map(|list| answer[*list].as_array().into_iter().flatten());
    own.into_iter().chain(lists.map(|item| format!("{}", item["id"]))).collect()
}
