//! Examples of bodies and responses: one story, in `examples.json` call by call. `tests/openapi/examples.rs` makes these very calls
//! and compares. What a call needs to have happened before, and is no good example, is marked `setup`.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::shape::each_operation;

/// The calls, in their order: `operation`, `path`, `query`, `headers` and `body` of each, `status` and `response`.
const STORY: &str = include_str!("examples.json");

/// What no call of the story returns as JSON.
fn others() -> [(&'static str, Value); 3] {
    let counts = json!({"ready": 3, "scheduled": 0, "reserved": 1, "blocked": 0, "dead": 0, "done": 0});
    let queue = json!({"queue": "emails", "counts": counts, "paused": false, "rates_per_s": {"pushed": 0.5}});
    [
        ("metrics", "# TYPE tailback_jobs gauge\ntailback_jobs{queue=\"emails\",state=\"ready\"} 3\n".into()),
        ("follow_queues", json!({"at": "2026-11-23T07:03:15.330Z", "part": 1, "queues": [queue]})),
        ("get_job_payload", "%PDF-1.7".into()),
    ]
}

/// Adds the examples to the document.
pub fn illustrate(api: &mut Value) {
    let others = others();
    let story: Vec<Value> = serde_json::from_str(STORY).unwrap_or_default();
    let mut calls: HashMap<&str, Vec<&Value>> = HashMap::new();
    for call in story.iter().filter(|call| call.get("setup").is_none()) {
        calls.entry(text(call, "operation")).or_default().push(call);
    }
    each_operation(api, &mut |_, operation| {
        let id = operation.get("operationId").and_then(Value::as_str).unwrap_or_default().to_owned();
        for call in calls.get(id.as_str()).into_iter().flatten().rev() {
            // The first of several calls stands last.
            illustrate_one(operation, call);
        }
        for (_, example) in others.iter().filter(|(other, _)| *other == id) {
            let contents =
                operation.get_mut("responses").and_then(|it| it.get_mut("200")?.get_mut("content"));
            for content in contents.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
                if let Some(content) = content.as_object_mut() {
                    content.entry("example").or_insert_with(|| example.clone());
                }
            }
        }
    });
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn illustrate_one(operation: &mut Map<String, Value>, call: &Value) {
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten().filter_map(Value::as_object_mut) {
        let name = parameter.get("name").and_then(Value::as_str).unwrap_or_default();
        let is_required = parameter.get("required") == Some(&Value::Bool(true));
        let is_in_path = parameter.get("in").is_some_and(|location| location == "path");
        let location = if is_in_path { "path" } else { "query" };
        if let Some(value) = call.get(location).and_then(|values| values.get(name)).filter(|_| is_required) {
            parameter.insert("example".into(), value.clone());
        }
    }
    if let (Some(body), Some(example)) = (operation.get_mut("requestBody"), call.get("body")) {
        exemplify(body, example);
    }
    let status = call.get("status").map(Value::to_string).unwrap_or_default();
    let response = operation.get_mut("responses").and_then(|responses| responses.get_mut(&status));
    if let (Some(response), Some(example)) = (response, call.get("response")) {
        exemplify(response, example);
    }
}

fn exemplify(of: &mut Value, example: &Value) {
    let contents = of.get_mut("content").and_then(Value::as_object_mut);
    let described = contents.into_iter().flatten().filter(|(media, _)| *media != "application/octet-stream");
    for content in described.filter_map(|(_, content)| content.as_object_mut()) {
        content.insert("example".into(), example.clone());
    }
}
