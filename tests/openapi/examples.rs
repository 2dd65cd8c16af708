//! The examples of the document are what happens.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use reqwest::Method;
use serde_json::{Value, json};

use crate::common::contract;
use crate::common::server::{PATIENCE, Place, Server};

const ADMIN: &str = "admin-key-of-the-examples-0123456789abcd";

/// Tasks differ from store to store; an operation that is stopped may have begun on a busy machine; and figures of the last minutes are there once
/// they have been read.
const DIFFERING: [&str; 5] =
    ["get_server_stats", "cancel_operation", "get_operation", "list_operations", "list_queues"];

fn document() -> Value {
    serde_json::from_str(include_str!("../../openapi/tailback.json")).unwrap()
}

fn story() -> Vec<Value> {
    serde_json::from_str(include_str!("../../src/http/openapi/examples.json")).unwrap()
}

/// Every call is made as the example has it, in order; only ids and tokens are those of this server. The response has the status
/// and the fields of the example.
pub async fn the_examples_are_what_happens(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_AUTH__ADMIN_KEY", ADMIN)]).await;
    let document = document();
    let mut known = BTreeMap::new();
    for call in story() {
        let id = call["operation"].as_str().unwrap();
        let (method, template) = place_of(&document, id);
        let made = async || send(&server, &method, &template, &call, &known).await;
        let (status, mut response) = answered(&call["response"], made).await;
        // On a slow machine a job that was rolled back is due again by now.
        response.as_object_mut().map(|fields| fields.remove("oldest_retry_age_ms"));
        assert_eq!(status, call["status"], "{id}: {response}");
        learn(&call["response"], &response, &mut known);
        if !DIFFERING.contains(&id) {
            assert_eq!(form(&response), form(&call["response"]), "{id}: {response}");
        }
    }
}

/// The body of the page `/docs` makes a key also where there is none, not even an admin key.
pub async fn the_first_key_is_made_as_it_is_prefilled(place: &Place) {
    let server = Server::start(&place.url).await;
    let content = &document()["paths"]["/v1/keys"]["post"]["requestBody"]["content"]["application/json"];
    let (status, made) = server.post("/v1/keys", content["example"].clone()).await;
    assert_eq!(status, 201, "{made}");
    // And it is one that can make others.
    let key = made["key"].as_str().unwrap();
    let keys = server.http.get(format!("{}/v1/keys", server.base)).bearer_auth(key);
    assert_eq!(keys.send().await.unwrap().status(), 200);
}

fn place_of(document: &Value, id: &str) -> (String, String) {
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if operation["operationId"] == id {
                return (method.to_uppercase(), path.clone());
            }
        }
    }
    panic!("there is no operation {id}");
}

/// Makes a call. Some end early where the store is slow, and say so: these are made again, until they end as in the example.
async fn answered(example: &Value, call: impl AsyncFn() -> (u16, Value)) -> (u16, Value) {
    let began = Instant::now();
    loop {
        let (status, response) = call().await;
        let ends_early = [("complete", false), ("more", true)].iter().any(|(field, is_early)| {
            response[*field] == json!(is_early) && example[*field] == json!(!is_early)
        });
        if !ends_early {
            return (status, response);
        }
        assert!(began.elapsed() < PATIENCE, "{response}");
    }
}

async fn send(
    server: &Server,
    method: &str,
    template: &str,
    call: &Value,
    known: &BTreeMap<String, String>,
) -> (u16, Value) {
    let mut path = template.to_owned();
    for (name, value) in call["path"].as_object().into_iter().flatten() {
        path = path.replace(&format!("{{{name}}}"), actual(value.as_str().unwrap(), known));
    }
    for (n, (name, value)) in call["query"].as_object().into_iter().flatten().enumerate() {
        let separator = if n == 0 { '?' } else { '&' };
        path.push_str(&format!("{separator}{name}={}", actual(value.as_str().unwrap(), known)));
    }
    let method_of: Method = method.parse().unwrap();
    let mut request = server.http.request(method_of, format!("{}{path}", server.base)).bearer_auth(ADMIN);
    for (name, value) in call["headers"].as_object().into_iter().flatten() {
        request = request.header(name, value.as_str().unwrap());
    }
    if let Some(body) = call.get("body") {
        let mut body = body.clone();
        substitute(&mut body, known);
        request = request.json(&body);
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.unwrap();
    contract::check(method, &path, status, &headers, &text);
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

fn actual<'a>(text: &'a str, known: &'a BTreeMap<String, String>) -> &'a str {
    known.get(text).map_or(text, String::as_str)
}

fn substitute(value: &mut Value, known: &BTreeMap<String, String>) {
    match value {
        Value::String(text) => *text = actual(text, known).to_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| substitute(item, known)),
        Value::Object(object) => object.values_mut().for_each(|item| substitute(item, known)),
        _ => {}
    }
}

/// Learns what stands here for the ids and tokens of the example.
fn learn(example: &Value, actual: &Value, known: &mut BTreeMap<String, String>) {
    match (example, actual) {
        (Value::String(example), Value::String(actual)) if example.len() > 10 && example != actual => {
            known.entry(example.clone()).or_insert_with(|| actual.clone());
        }
        (Value::Array(examples), Value::Array(actuals)) => {
            examples.iter().zip(actuals).for_each(|(example, actual)| learn(example, actual, known));
        }
        (Value::Object(examples), Value::Object(_)) => {
            examples.iter().for_each(|(name, example)| learn(example, &actual[name], known));
        }
        _ => {}
    }
}

/// Returns the names and kinds of all fields; of lists, those of the first item.
fn form(value: &Value) -> String {
    match value {
        Value::Object(object) => {
            let fields: BTreeSet<String> =
                object.iter().map(|(name, value)| format!("{name}: {}", form(value))).collect();
            format!("{fields:?}")
        }
        Value::Array(items) => format!("[{}]", items.first().map(form).unwrap_or_default()),
        Value::String(_) => "text".to_owned(),
        Value::Number(_) => "number".to_owned(),
        other => other.to_string(),
    }
}

#[test]
fn every_body_and_response_has_an_example() {
    let document = document();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let request = operation["requestBody"]["content"].as_object().into_iter().flatten();
            for (kind, content) in request {
                // Where a body may be absent, or is an empty object, there is nothing to show.
                let example = &content["example"];
                assert!(
                    !example.is_null() || operation["requestBody"]["required"] != true,
                    "{method} {path} {kind}"
                );
                let faults: Vec<String> = contract::validator(&content["schema"])
                    .iter_errors(example)
                    .map(|it| it.to_string())
                    .collect();
                assert!(example.is_null() || faults.is_empty(), "{method} {path}: {faults:?}");
            }
            for (status, response) in operation["responses"].as_object().unwrap() {
                for (kind, content) in response["content"].as_object().into_iter().flatten() {
                    assert!(!content["example"].is_null(), "{method} {path} {status} {kind} has no example");
                }
            }
        }
    }
}
