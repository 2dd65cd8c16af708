//! The OpenAPI document. It is the same whatever the store is, and printed without one.

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
    let paths = document["paths"].to_string();
    for code in Code::ALL {
        let word = code.word();
        assert!(listed.contains(&format!("\"{word}\"")), "{word} is not listed");
        // These belong to no call in particular.
        if ![Code::NotFound, Code::MethodNotAllowed].contains(code) {
            assert!(paths.contains(&format!("`{word}`")), "no call answers {word}");
        }
    }
}

#[test]
fn calls_name_the_codes_of_their_own() {
    let document = committed();
    for (method, path, status, word) in [
        ("post", "/v1/queues/{queue}/reserve", "409", "request-pending"),
        ("post", "/v1/reserve", "422", "idempotency-key-reused"),
        ("post", "/v1/queues/{queue}/replay", "429", "queue-full"),
        ("delete", "/v1/queues/{queue}", "400", "malformed"),
        ("delete", "/v1/queues/{queue}", "409", "queue-not-empty"),
        ("get", "/readyz", "503", "draining"),
        ("post", "/v1/queues/{queue}/jobs", "503", "overloaded"),
        ("post", "/v1/queues/{queue}/jobs", "409", "key-conflict"),
    ] {
        let told = document["paths"][path][method]["responses"][status]["description"].as_str().unwrap();
        assert!(told.contains(&format!("`{word}`")), "{method} {path} {status}: {told}");
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
