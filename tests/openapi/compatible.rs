//! What clients rely on stays: every call, every field of a response, and every request that was accepted.
//!
//! `openapi/promised/` has each document that was promised, the first one of the last round that changed the wire. They are never
//! written again: what is new is promised by a further file, with its digest in [`PROMISED`]. What may be added to ours is said in
//! `http/openapi/shape.rs`; all else is found here.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The documents, and the digests by which they are known to be as they were.
const PROMISED: [(&str, &str); 2] = [
    (include_str!("../../openapi/promised/0001.json"), "3g9w0R56WsgH_xbEh6EyZaoysjmP1w_WrTv7ItFmh6g"),
    (include_str!("../../openapi/promised/0002.json"), "vsG-ZCI8RTHEv3erF0Y-EpMA0ZAV4FlFJInBb4JDfp8"),
];

/// What has changed since the first document, before this test held it: the first two were broken, the others are said in another way and
/// break no client. No further one may come.
const KNOWN: [&str; 4] = [
    "/queue_time_ms may be absent",
    "/run_time_ms may be absent",
    // Only without a reservation.
    "post /v1/jobs/{id}/move demands the scope \"operate\"",
    // One word is written as before.
    "get /v1/queues/{queue}/jobs \"state\" was [String(\"string\")] and is [String(\"array\")]",
];

/// Which way a schema is used.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Request,
    Response,
}

struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    found: Vec<String>,
}

/// Returns what of the old document the new one breaks.
fn breaks(old: &Value, new: &Value) -> Vec<String> {
    let mut comparison = Comparison { old, new, found: Vec::new() };
    for (path, item) in old["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            comparison.operation(&format!("{method} {path}"), operation, &new["paths"][path][method]);
        }
    }
    comparison.found
}

impl Comparison<'_> {
    fn operation(&mut self, at: &str, old: &Value, new: &Value) {
        if new.is_null() {
            return self.found.push(format!("{at} is gone"));
        }
        if old["operationId"] != new["operationId"] {
            self.found.push(format!("{at} has another name"));
        }
        self.parameters(at, old, new);
        let (body, other) = (&old["requestBody"], &new["requestBody"]);
        if other["required"] == true && body["required"] != true {
            self.found.push(format!("{at} demands a body"));
        }
        self.contents(&format!("{at} request"), body, other, Side::Request);
        for (status, response) in old["responses"].as_object().into_iter().flatten() {
            let new = &new["responses"][status];
            if new.is_null() {
                self.found.push(format!("{at} does not answer {status} any more"));
            }
            let (old, new) = (resolved(self.old, response).clone(), resolved(self.new, new).clone());
            for name in old["headers"].as_object().into_iter().flat_map(|all| all.keys()) {
                if new["headers"].get(name).is_none() {
                    self.found.push(format!("{at} {status} has no header {name} any more"));
                }
            }
            self.contents(&format!("{at} {status}"), &old, &new, Side::Response);
        }
        for status in new["responses"].as_object().into_iter().flat_map(|all| all.keys()) {
            if status.starts_with('2') && old["responses"].get(status).is_none() {
                self.found.push(format!("{at} may answer {status}"));
            }
        }
        for scope in new["x-scopes"].as_array().into_iter().flatten() {
            if !old["x-scopes"].as_array().is_some_and(|scopes| scopes.contains(scope)) {
                self.found.push(format!("{at} demands the scope {scope}"));
            }
        }
        for problem in old["x-problems"].as_array().into_iter().flatten() {
            if !new["x-problems"].as_array().is_some_and(|codes| codes.contains(problem)) {
                self.found.push(format!("{at} does not name the problem {problem} any more"));
            }
        }
    }

    fn parameters(&mut self, at: &str, old: &Value, new: &Value) {
        let all = |of: &Value, document: &Value| -> Vec<Value> {
            let parameters = of["parameters"].as_array().into_iter().flatten();
            parameters.map(|parameter| resolved(document, parameter).clone()).collect()
        };
        let (before, now) = (all(old, self.old), all(new, self.new));
        for parameter in &before {
            let same = |other: &&Value| other["name"] == parameter["name"] && other["in"] == parameter["in"];
            match now.iter().find(same) {
                None => self.found.push(format!("{at} has no parameter {} any more", parameter["name"])),
                Some(other) => {
                    let at = format!("{at} {}", parameter["name"]);
                    self.schema(&at, &parameter["schema"], &other["schema"], Side::Request, 0);
                }
            }
        }
        for parameter in now.iter().filter(|parameter| parameter["required"] == true) {
            if !before.iter().any(|other| other["name"] == parameter["name"] && other["required"] == true) {
                self.found.push(format!("{at} demands the parameter {}", parameter["name"]));
            }
        }
    }

    fn contents(&mut self, at: &str, old: &Value, new: &Value, side: Side) {
        for (media, content) in old["content"].as_object().into_iter().flatten() {
            match new["content"].get(media) {
                None => self.found.push(format!("{at} is no {media} any more")),
                Some(new) => self.schema(at, &content["schema"], &new["schema"], side, 0),
            }
        }
    }

    fn schema(&mut self, at: &str, old: &Value, new: &Value, side: Side, depth: usize) {
        let (old, new) = (resolved(self.old, old).clone(), resolved(self.new, new).clone());
        if depth > 20 {
            return;
        }
        let types = |of: &Value| of["type"].as_array().cloned().unwrap_or_else(|| vec![of["type"].clone()]);
        let (before, now) = (types(&old), types(&new));
        let is_wider = now == [Value::Null] || before.iter().all(|kind| now.contains(kind));
        if before != now && !(side == Side::Request && is_wider) {
            self.found.push(format!("{at} was {before:?} and is {now:?}"));
        }
        if old["format"] != new["format"] {
            self.found.push(format!("{at} had the format {} and has {}", old["format"], new["format"]));
        }
        match side {
            Side::Request => self.narrowed(at, &old, &new),
            Side::Response if old["enum"].is_null() && !new["enum"].is_null() => {
                self.found.push(format!("{at} is closed to other words"));
            }
            Side::Response => {}
        }
        if old["additionalProperties"].is_object() {
            let values = (&old["additionalProperties"], &new["additionalProperties"]);
            self.schema(&format!("{at}/*"), values.0, values.1, side, depth + 1);
        }
        let required = |of: &Value| of["required"].as_array().cloned().unwrap_or_default();
        let (must, may) = match side {
            Side::Request => (required(&new), required(&old)),
            Side::Response => (required(&old), required(&new)),
        };
        for name in must.iter().filter(|name| !may.contains(name)) {
            let what = if side == Side::Request { "is demanded" } else { "may be absent" };
            self.found.push(format!("{at}/{} {what}", name.as_str().unwrap()));
        }
        for (name, field) in old["properties"].as_object().into_iter().flatten() {
            match new["properties"].get(name) {
                None => self.found.push(format!("{at}/{name} is gone")),
                Some(new) => self.schema(&format!("{at}/{name}"), field, new, side, depth + 1),
            }
        }
        if old["items"].is_object() {
            self.schema(&format!("{at}/[]"), &old["items"], &new["items"], side, depth + 1);
        }
        for (n, one) in old["anyOf"].as_array().into_iter().flatten().enumerate() {
            self.schema(&format!("{at}/anyOf/{n}"), one, &new["anyOf"][n], side, depth + 1);
        }
    }

    /// What was accepted still is.
    fn narrowed(&mut self, at: &str, old: &Value, new: &Value) {
        for (bound, is_upper) in [
            ("maximum", true),
            ("maxLength", true),
            ("maxItems", true),
            ("minimum", false),
            ("minLength", false),
            ("minItems", false),
        ] {
            let Some(now) = new[bound].as_f64() else { continue };
            let before = old[bound].as_f64().or_else(|| implied(old, is_upper));
            if before.is_none_or(|before| if is_upper { now < before } else { now > before }) {
                self.found.push(format!("{at}: {bound} was {before:?} and is {now}"));
            }
        }
        if new["additionalProperties"] == false && old["additionalProperties"] != false {
            self.found.push(format!("{at} refuses other fields"));
        }
        if old["enum"].is_null() && !new["enum"].is_null() {
            self.found.push(format!("{at} is closed to other words"));
        }
        if !new["pattern"].is_null() && new["pattern"] != old["pattern"] {
            self.found.push(format!("{at} has another pattern"));
        }
        for word in old["enum"].as_array().into_iter().flatten() {
            if new["enum"].as_array().is_some_and(|words| !words.contains(word)) {
                self.found.push(format!("{at} does not accept {word} any more"));
            }
        }
    }
}

/// Returns the bound that a format has without saying so.
fn implied(of: &Value, is_upper: bool) -> Option<f64> {
    let bounds = (of["format"] == "int32").then_some((f64::from(i32::MIN), f64::from(i32::MAX)))?;
    Some(if is_upper { bounds.1 } else { bounds.0 })
}

fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(at) => document.pointer(at.strip_prefix('#').unwrap()).unwrap_or(&Value::Null),
        None => value,
    }
}

/// Returns the documents in the order in which they were promised.
fn promised() -> [Value; 2] {
    PROMISED.map(|(text, _)| serde_json::from_str(text).unwrap())
}

#[test]
fn what_was_promised_is_kept() {
    let now: Value = serde_json::from_str(include_str!("../../openapi/tailback.json")).unwrap();
    for (n, document) in promised().iter().enumerate() {
        let mut found = breaks(document, &now);
        found.retain(|found| n > 0 || !KNOWN.iter().any(|known| found.ends_with(known)));
        assert!(found.is_empty(), "clients of document {} would break:\n{}", n + 1, found.join("\n"));
    }
}

#[test]
fn no_promise_is_written_again() {
    for (n, (text, digest)) in PROMISED.into_iter().enumerate() {
        assert_eq!(
            URL_SAFE_NO_PAD.encode(Sha256::digest(text)),
            digest,
            "openapi/promised/{:04}.json",
            n + 1
        );
    }
}

#[test]
fn a_broken_promise_is_found() {
    let [_, document] = promised();
    assert_eq!(breaks(&document, &document), Vec::<String>::new());
    let changes: &[(&str, Value, &str)] = &[
        ("/paths/~1v1~1jobs~1{id}/get", Value::Null, "get /v1/jobs/{id} is gone"),
        ("/paths/~1v1~1jobs~1{id}/get/operationId", json!("fetch_job"), "has another name"),
        ("/paths/~1v1~1jobs~1{id}/get/x-problems", json!([]), "does not name the problem \"unknown-job\""),
        ("/components/schemas/Job/properties/state", json!({"type": "integer"}), "/state was"),
        ("/components/schemas/Job/required", json!(["id"]), "/queue may be absent"),
        ("/components/schemas/PushRequest/required", json!(["payload", "key"]), "/key is demanded"),
        (
            "/components/schemas/PushRequest/properties/priority/maximum",
            json!(9),
            "maximum was Some(2147483647.0) and is 9",
        ),
        ("/components/schemas/JobStateInput/enum", json!(["ready"]), "does not accept \"dead\""),
        ("/components/schemas/QueueName/pattern", json!("^[a-z]+$"), "another pattern"),
        ("/components/parameters/Limit/schema/maximum", json!(10), "maximum was"),
        ("/components/schemas/Timestamp/format", Value::Null, "had the format"),
        ("/components/schemas/JobState/enum", json!(["ready"]), "is closed to other words"),
        ("/components/schemas/GroupName/enum", json!(["g"]), "is closed to other words"),
        ("/components/schemas/JobHeadersInput/additionalProperties", json!(false), "refuses other fields"),
        ("/paths/~1v1~1jobs~1{id}/get/responses/206", json!({}), "may answer 206"),
        ("/paths/~1v1~1jobs~1{id}/get/x-scopes", json!(["admin"]), "demands the scope \"admin\""),
        ("/paths/~1v1~1queues~1{queue}/get/responses/200/headers", json!({}), "has no header ETag"),
    ];
    for (pointer, value, message) in changes {
        let mut changed = document.clone();
        let (parent, last) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[last.replace("~1", "/")] = value.clone();
        let found = breaks(&document, &changed);
        assert!(
            found.iter().any(|found| found.contains(message)),
            "{pointer}: {message:?} is not among {found:#?}"
        );
    }
    let mut more = document.clone();
    more["paths"]["/v1/new"] = json!({});
    more["components"]["schemas"]["Job"]["properties"]["new"] = json!({"type": "string"});
    more["components"]["schemas"]["Job"]["required"].as_array_mut().unwrap().push(json!("new"));
    more["components"]["schemas"]["PushRequest"]["properties"]["new"] = json!({"type": "string"});
    assert_eq!(breaks(&document, &more), Vec::<String>::new(), "what is added breaks nobody");
}
