//! The OpenAPI document. It is the same whatever the store is, and printed without one.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use tailback::http::problem::Code;

fn committed() -> Value {
    serde_json::from_str(include_str!("../../openapi/tailback.json")).unwrap()
}

#[test]
fn the_committed_document_is_what_is_printed() {
    let output = Command::new(env!("CARGO_BIN_EXE_tailback")).arg("openapi").output().unwrap();
    assert!(output.status.success());
    let same = String::from_utf8(output.stdout).unwrap() == include_str!("../../openapi/tailback.json");
    assert!(same, "openapi/tailback.json is not current: cargo run -q -- openapi > openapi/tailback.json");
}

#[test]
fn every_code_is_documented() {
    let document = committed();
    let listed = document["components"]["schemas"]["ProblemCode"].to_string();
    let told = document["paths"].to_string() + &document["components"]["responses"].to_string();
    for code in Code::ALL {
        let word = code.word();
        assert!(listed.contains(&format!("\"{word}\"")), "{word} is not listed");
        // These belong to no call.
        if ![Code::NotFound, Code::MethodNotAllowed].contains(code) {
            assert!(told.contains(&format!("`{word}`")), "no call answers {word}");
        }
    }
}

#[test]
fn calls_name_the_problems_of_their_own() {
    let document = committed();
    for (method, path, word) in [
        ("post", "/v1/queues/{queue}/reserve", "request-pending"),
        ("post", "/v1/reserve", "idempotency-key-reused"),
        ("post", "/v1/queues/{queue}/replay", "queue-full"),
        ("delete", "/v1/queues/{queue}", "queue-not-empty"),
        ("get", "/readyz", "draining"),
        ("post", "/v1/queues/{queue}/jobs", "key-conflict"),
    ] {
        let operation = &document["paths"][path][method];
        let own = operation["x-problems"].as_array().unwrap();
        assert!(own.iter().any(|own| own == word), "{method} {path}: {own:?}");
        assert!(operation["description"].as_str().unwrap().contains(&format!("`{word}`")), "{method} {path}");
    }
}

/// Nothing that a client says may be as long as it likes.
#[test]
fn every_text_of_a_request_has_an_end() {
    let document = committed();
    let mut endless = BTreeSet::new();
    let operations =
        document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap().values());
    for operation in operations {
        let id = operation["operationId"].as_str().unwrap();
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let parameter = followed(parameter, &document);
            let name = format!("{id}, {}", parameter["name"]);
            texts_without_end(&parameter["schema"], &document, &name, &mut Vec::new(), &mut endless);
        }
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        texts_without_end(body, &document, id, &mut Vec::new(), &mut endless);
    }
    assert!(endless.is_empty(), "texts without maxLength, enum or format: {endless:#?}");
}

/// Returns what a value refers to, if it is a reference.
fn followed<'d>(value: &'d Value, document: &'d Value) -> &'d Value {
    match value["$ref"].as_str() {
        Some(at) => document.pointer(at.strip_prefix('#').unwrap()).unwrap(),
        None => value,
    }
}

fn texts_without_end(
    schema: &Value,
    document: &Value,
    at: &str,
    on_the_way: &mut Vec<String>,
    endless: &mut BTreeSet<String>,
) {
    if let Some(reference) = schema["$ref"].as_str() {
        if !on_the_way.iter().any(|other| other == reference) {
            on_the_way.push(reference.to_owned());
            texts_without_end(followed(schema, document), document, at, on_the_way, endless);
            on_the_way.pop();
        }
        return;
    }
    let kind = &schema["type"];
    let is_text = kind == "string" || kind.as_array().is_some_and(|kinds| kinds.contains(&"string".into()));
    if is_text && ["maxLength", "enum", "const", "format"].iter().all(|end| schema[end].is_null()) {
        endless.insert(at.to_owned());
    }
    for field in ["allOf", "anyOf", "oneOf"] {
        for part in schema[field].as_array().into_iter().flatten() {
            texts_without_end(part, document, at, on_the_way, endless);
        }
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        texts_without_end(inner, document, &format!("{at}/{name}"), on_the_way, endless);
    }
    for field in ["items", "additionalProperties"] {
        if schema[field].is_object() {
            texts_without_end(&schema[field], document, &format!("{at}/*"), on_the_way, endless);
        }
    }
}

/// The rules that make generated clients pleasant, and last: see `http/openapi/shape.rs`.
#[test]
fn requests_are_closed_and_responses_open() {
    let document = committed();
    let schemas = &document["components"]["schemas"];
    let (mut requests, mut responses) = (BTreeSet::new(), BTreeSet::new());
    for operation in
        document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap().values())
    {
        reach(&operation["requestBody"], schemas, &mut requests);
        reach(&operation["parameters"], schemas, &mut requests);
        reach(&operation["responses"], schemas, &mut responses);
    }
    reach(&document["components"]["responses"], schemas, &mut responses);
    assert!(requests.contains("PushRequest") && responses.contains("Job") && responses.contains("Problem"));
    for name in &requests {
        let schema = &schemas[name];
        let is_closed = schema["type"] != "object" || schema["additionalProperties"] != Value::Null;
        assert!(is_closed, "{name} is of a request, and allows other fields");
    }
    for name in &responses {
        let text = schemas[name].to_string();
        assert!(
            !text.contains("\"additionalProperties\":false"),
            "{name} is of a response, and refuses new fields"
        );
        assert!(!text.contains("\"enum\":"), "{name} is of a response, and knows no other words");
    }
    for name in requests.union(&responses) {
        let text = schemas[name].to_string();
        assert!(!text.contains("\"default\":"), "{name} has a default");
        assert!(
            !text.contains("\"null\"") || name.ends_with("Patch") || name == "UpdateJobRequest",
            "{name} may be null"
        );
        for (field, schema) in schemas[name]["properties"].as_object().into_iter().flatten() {
            let offers =
                requests.contains(name) && schema["description"].as_str().unwrap_or("").contains("`null`");
            assert!(
                !offers || schema.to_string().contains("\"null\""),
                "{name}.{field} says that it may be null, and may not"
            );
        }
        assert!(!text.contains("\"allOf\":"), "{name} is made of several");
    }
    let unused: Vec<_> = schemas
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| !requests.contains(*name) && !responses.contains(*name))
        .collect();
    assert_eq!(unused, Vec::<&String>::new());
}

fn reach(value: &Value, schemas: &Value, reached: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            let name = object.get("$ref").and_then(|at| at.as_str()?.strip_prefix("#/components/schemas/"));
            if let Some(name) = name
                && reached.insert(name.to_owned())
            {
                assert!(schemas[name].is_object(), "{name} is not there");
                reach(&schemas[name], schemas, reached);
            }
            object.values().for_each(|value| reach(value, schemas, reached));
        }
        Value::Array(items) => items.iter().for_each(|item| reach(item, schemas, reached)),
        _ => {}
    }
}

#[test]
fn every_operation_has_a_name_of_its_own() {
    let document = committed();
    let mut names = Vec::new();
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values().filter(|operation| operation.is_object()) {
            names.push(operation["operationId"].as_str().unwrap().to_owned());
            assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{operation}");
        }
    }
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// oapi-codegen, a generator for Go, makes a type of that name for each operation: two of one name do not compile.
#[test]
fn no_schema_has_the_name_of_a_generated_response() {
    let document = committed();
    let pascal = |id: &str| -> String {
        let words = id.split('_').filter_map(|word| Some((word.get(..1)?, word.get(1..)?)));
        words.map(|(first, rest)| first.to_uppercase() + rest).collect()
    };
    let items = document["paths"].as_object().unwrap().values();
    let operations = items.flat_map(|item| item.as_object().unwrap().values());
    let ids: Vec<&str> = operations.filter_map(|operation| operation["operationId"].as_str()).collect();
    assert!(ids.len() > 50, "{ids:?}");
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let taken: Vec<String> =
        ids.iter().map(|id| pascal(id) + "Response").filter(|name| schemas.contains_key(name)).collect();
    assert_eq!(taken, Vec::<String>::new());
}
