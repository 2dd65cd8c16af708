//! What many operations have in common: parameters and headers, written once.

use serde_json::{Map, Value, json};

use super::shape::each_operation;
use crate::http::params::{CURSOR_MAX, IF_MATCH_MAX, LIMIT_DEFAULT, LIMIT_MAX};

/// The parameters that stand in `components`: as they are named, and under which name.
const PARAMETERS: &[(&str, &str)] = &[
    ("Idempotency-Key", "IdempotencyKey"),
    ("If-Match", "IfMatch"),
    ("limit", "Limit"),
    ("cursor", "Cursor"),
];

/// Replaces parameters and headers that many operations have by references.
pub fn share(api: &mut Value) {
    each_operation(api, &mut |_, operation| {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten() {
            let name = parameter.get("name").and_then(Value::as_str).unwrap_or_default();
            if let Some((_, component)) = PARAMETERS.iter().find(|(shared, _)| *shared == name) {
                *parameter = json!({"$ref": format!("#/components/parameters/{component}")});
            }
        }
        let responses = operation.get_mut("responses").and_then(Value::as_object_mut);
        for response in responses.into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut) {
            if response.contains_key("$ref") {
                continue;
            }
            let headers = response.entry("headers").or_insert_with(|| json!({}));
            headers["x-request-id"] = json!({"$ref": "#/components/headers/RequestId"});
            if headers.get("ETag").is_some() {
                headers["ETag"] = json!({"$ref": "#/components/headers/ETag"});
            }
        }
    });
    api["servers"] = json!([{"url": "/", "description": "The server that this document is read from"}]);
    if let Some(components) = api.get_mut("components").and_then(Value::as_object_mut) {
        components.insert("parameters".into(), parameters());
        components.insert("headers".into(), headers());
    }
}

fn parameters() -> Value {
    json!({
        "IdempotencyKey": {
            "name": "Idempotency-Key", "in": "header", "required": false,
            "description": "Makes the call safe to repeat: the response of the first one is sent again; that of a reserve \
                has those of its jobs that are still held. It is remembered for `limits.idempotency_ttl_ms` (24 hours).",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        },
        "IfMatch": {
            "name": "If-Match", "in": "header", "required": false,
            "description": "The call is refused (412 `settings-changed`) unless this is the current version, as in `ETag`; \
                `*`: any.",
            "schema": {"type": "string", "maxLength": IF_MATCH_MAX},
        },
        "Limit": {
            "name": "limit", "in": "query", "required": false,
            "description": format!("How many at most. Default: {LIMIT_DEFAULT}."),
            "schema": {"type": "integer", "format": "int32", "minimum": 1, "maximum": LIMIT_MAX},
        },
        "Cursor": {
            "name": "cursor", "in": "query", "required": false,
            "description": "The `cursor` of the previous page.",
            "schema": {"type": "string", "maxLength": CURSOR_MAX},
        },
    })
}

fn headers() -> Value {
    json!({
        "RequestId": {
            "description": "The id of the request, as in the server's log: the client's own, if it sent one.",
            "schema": {"type": "string"},
        },
        "ETag": {
            "description": "The version, for `If-Match`: `version` in quotation marks.",
            "schema": {"type": "string"},
        },
        "RetryAfter": {
            "description": "When to try again, in seconds: where the problem has `retry_after_ms`.",
            "schema": {"type": "integer", "format": "int32", "minimum": 1},
        },
        "WwwAuthenticate": {
            "description": "How to show a key: with 401.",
            "schema": {"type": "string"},
        },
    })
}
