//! Holds every response of a test to the OpenAPI document.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use jsonschema::Validator;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

/// The committed document.
pub static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../openapi/tailback.json")).unwrap());

/// The same, but that a response has only the fields and the words that the document knows: what clients must expect of a later server
/// is not to be had of this one.
static STRICT: LazyLock<Value> = LazyLock::new(|| {
    let mut document = DOCUMENT.clone();
    close(&mut document);
    document
});

fn close(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(close),
        Value::Object(object) => {
            object.iter_mut().filter(|(name, _)| *name != "example").for_each(|(_, value)| close(value));
            if object.get("properties").is_some_and(Value::is_object)
                && object.get("type").is_some_and(Value::is_string)
            {
                object.entry("additionalProperties").or_insert(json!(false));
            }
            if let Some(words) = object.get("x-extensible-enum").cloned() {
                object.insert("enum".into(), words);
            }
        }
        _ => {}
    }
}

/// Headers that a response has only where the document says so.
const TELLING: [&str; 5] = ["etag", "location", "retry-after", "set-cookie", "www-authenticate"];

/// Checks the headers of a response: those that the document declares are there, where what they say is in the body or follows from the
/// status, and no others that clients would read.
fn check_headers(call: &str, declared: &Value, status: u16, headers: &HeaderMap, body: &str) {
    let body: Value = serde_json::from_str(body).unwrap_or(Value::Null);
    let is_declared = |name: &str| {
        declared.as_object().is_some_and(|all| all.keys().any(|other| other.eq_ignore_ascii_case(name)))
    };
    for name in TELLING.iter().filter(|name| headers.contains_key(**name)) {
        assert!(is_declared(name), "{call} has the header {name}, which is not documented");
    }
    for name in declared.as_object().into_iter().flat_map(|all| all.keys()) {
        let name = name.to_lowercase();
        let is_expected = match name.as_str() {
            "retry-after" => !body["retry_after_ms"].is_null(),
            "www-authenticate" => status == 401,
            "etag" => !body["version"].is_null(),
            _ => true,
        };
        assert_eq!(headers.contains_key(&name), is_expected, "{call}: the header {name}, with {body}");
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let (Some(tag), Some(version)) = (text("etag"), body["version"].as_str()) {
        assert_eq!(tag, format!("\"{version}\""), "{call}: the entity tag");
    }
    if let (Some(seconds), Some(ms)) = (text("retry-after"), body["retry_after_ms"].as_u64()) {
        assert_eq!(seconds.parse(), Ok(ms.div_ceil(1000)), "{call}: the seconds of Retry-After");
    }
}

/// Checks a response: its status is documented for the call, its media type and its headers too, and its body is as the schema says. What
/// is no call of the document (another path, another method) must be a problem.
pub fn check(method: &str, path: &str, status: u16, headers: &HeaderMap, body: &str) {
    let path = path.split('?').next().unwrap();
    let media = super::server::media(headers);
    let media = media.split(';').next().unwrap().trim();
    let content = match operation(method, path) {
        None if status < 400 => return, // the pages of the documentation
        None => json!({"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}),
        Some(operation) => {
            let responses = &operation["responses"];
            let told = responses
                .get(status.to_string())
                .or_else(|| (status >= 400).then_some(&responses["default"]));
            let told =
                told.unwrap_or_else(|| panic!("{method} {path} answers {status}, which is not documented"));
            let told = resolved(told);
            if method != "HEAD" {
                check_headers(&format!("{method} {path} {status}"), &told["headers"], status, headers, body);
            }
            told["content"].clone()
        }
    };
    if body.is_empty() || method == "HEAD" {
        assert!(
            content.is_null() || method == "HEAD",
            "{method} {path} {status}: no body, but the document says {content}"
        );
        return;
    }
    if content.get("application/octet-stream").is_some() {
        return; // whatever a client has stored
    }
    let schema = &content[media]["schema"];
    assert!(!schema.is_null(), "{method} {path} {status}: {media} is not documented: {content}");
    if media.ends_with("json") {
        assert!(body.ends_with("}\n"), "{method} {path} {status} does not end with a newline: {body:?}");
        let value: Value = match serde_json::from_str(body) {
            // Payloads may have numbers that this parser has no type for; the server hands them out as they came.
            Err(error) if is_beyond(&error.to_string()) => return,
            parsed => parsed.unwrap_or_else(|error| panic!("{method} {path}: {error}: {body}")),
        };
        let faults: Vec<String> =
            strict(schema).iter_errors(&value).map(|it| format!("{}: {it}", it.instance_path())).collect();
        assert!(
            faults.is_empty(),
            "{method} {path} {status} is not what the document says: {faults:#?}\n{body}"
        );
    }
}

/// Returns the operation of a request.
pub fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let matches = |template: &str| {
        let (mut template, mut path) = (template.split('/'), path.split('/'));
        loop {
            match (template.next(), path.next()) {
                (None, None) => return true,
                (Some(one), Some(other)) if one == other || one.starts_with('{') && !other.is_empty() => {}
                _ => return false,
            }
        }
    };
    let exact = paths.get(path).map(|item| (path, item));
    let (_, item) = exact.or_else(|| {
        paths.iter().map(|(template, item)| (template.as_str(), item)).find(|(template, _)| matches(template))
    })?;
    item.get(method.to_lowercase().replace("head", "get"))
}

/// Returns what a value refers to, if it is a reference.
pub fn resolved(value: &Value) -> &Value {
    match value["$ref"].as_str() {
        Some(at) => DOCUMENT.pointer(at.strip_prefix('#').unwrap()).unwrap(),
        None => value,
    }
}

/// Returns what judges a response of this server by a schema of the document.
fn strict(schema: &Value) -> Arc<Validator> {
    let mut schema = schema.clone();
    close(&mut schema);
    compiled(&schema, &STRICT)
}

/// Returns what judges by this schema of the document.
pub fn validator(schema: &Value) -> Arc<Validator> {
    compiled(schema, &DOCUMENT)
}

fn compiled(schema: &Value, document: &Value) -> Arc<Validator> {
    static MADE: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap();
    let make = || {
        let mut whole = schema.clone();
        whole["components"] = json!({"schemas": document["components"]["schemas"]});
        Arc::new(jsonschema::options().should_validate_formats(true).build(&whole).unwrap())
    };
    made.entry(format!("{schema}{}", std::ptr::eq(document, &*DOCUMENT))).or_insert_with(make).clone()
}

/// Whether the parser of this test has no room for a payload that the server takes.
fn is_beyond(error: &str) -> bool {
    ["number out of range", "recursion limit exceeded"].iter().any(|limit| error.starts_with(limit))
}
