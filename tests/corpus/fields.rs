//! Every field of every call, derived from the OpenAPI document: path parameters, query, headers, and each place in a
//! body, with a valid request around it.

use serde_json::{Map, Value, json};

use crate::common::contract;

/// Where a case stands in a template.
pub const MARK: &str = "\"@case@\"";

/// An operation of the document.
pub struct Call {
    pub method: String,
    pub path: String,
    /// The statuses that the document lists.
    pub statuses: Vec<u16>,
    /// The schema of its body.
    schema: Option<Value>,
    parameters: Vec<(String, String)>,
}

/// Where a case is put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spot {
    Path(String),
    Query(String),
    Header(String),
    /// A value in the body, by its pointer; the body itself if that is empty.
    Body(String),
    /// The name of a field in the object with this pointer.
    Key(String),
}

/// A field of a call.
pub struct Field {
    /// The call, by its place in the list.
    pub call: usize,
    pub spot: Spot,
    /// The text of the body, with [`MARK`] where the case stands if it stands in the body.
    pub body: String,
}

/// The document with its calls.
pub struct Document {
    root: Value,
    pub calls: Vec<Call>,
}

impl Document {
    /// Reads the committed document, which a test compares with the one that is served.
    pub fn read() -> Self {
        let root: Value = serde_json::from_str(include_str!("../../openapi/tailback.json")).unwrap();
        let mut calls = Vec::new();
        for (path, methods) in root["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                if method != "parameters" {
                    calls.push(call(path, method, operation));
                }
            }
        }
        Self { root, calls }
    }

    /// Returns every field of every call.
    pub fn fields(&self) -> Vec<Field> {
        let mut fields = Vec::new();
        for (n, call) in self.calls.iter().enumerate() {
            let valid = self.minimal(n);
            for (within, name) in &call.parameters {
                let spot = match within.as_str() {
                    "path" => Spot::Path(name.clone()),
                    "query" => Spot::Query(name.clone()),
                    _ => Spot::Header(name.clone()),
                };
                fields.push(Field { call: n, spot, body: valid.clone() });
            }
            let Some(schema) = &call.schema else { continue };
            fields.push(Field { call: n, spot: Spot::Body(String::new()), body: MARK.to_owned() });
            let mut found = Vec::new();
            self.walk(schema, &mut Vec::new(), &mut Vec::new(), &mut found);
            found.sort();
            found.dedup();
            for at in found {
                let (steps, is_key) = match at.split_last() {
                    Some((last, object)) if last == KEY => (object, true),
                    _ => (&at[..], false),
                };
                let pointer = steps.iter().map(|step| format!("/{step}")).collect();
                let body = self.around(schema, steps, "", is_key).to_string();
                let body = if is_key { body.replace("\"@key@\"", MARK) } else { body };
                fields.push(Field {
                    call: n,
                    spot: if is_key { Spot::Key(pointer) } else { Spot::Body(pointer) },
                    body,
                });
            }
        }
        fields
    }

    /// Returns the smallest valid body of a call; empty if it has none.
    pub fn minimal(&self, call: usize) -> String {
        self.calls[call].schema.as_ref().map_or(String::new(), |schema| self.sample(schema, "").to_string())
    }

    /// Returns a body of a call with all of its fields; null if it has none.
    pub fn full(&self, call: usize) -> Value {
        self.calls[call].schema.as_ref().map_or(Value::Null, |schema| self.whole(schema, "", 0))
    }

    /// Follows references, and chooses the variant that is not null.
    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        if let Some(name) = schema["$ref"].as_str() {
            return self.resolve(self.root.pointer(name.trim_start_matches('#')).unwrap());
        }
        for several in ["oneOf", "anyOf", "allOf"] {
            if let Some(list) = schema[several].as_array() {
                let chosen = list.iter().find(|one| one["type"] != "null").unwrap();
                return self.resolve(chosen);
            }
        }
        schema
    }

    /// Collects the places below a schema, each as its steps.
    fn walk<'a>(
        &'a self,
        schema: &'a Value,
        at: &mut Vec<String>,
        seen: &mut Vec<*const Value>,
        found: &mut Vec<Vec<String>>,
    ) {
        let schema = self.resolve(schema);
        if seen.contains(&std::ptr::from_ref(schema)) {
            return;
        }
        seen.push(std::ptr::from_ref(schema));
        let below = schema["properties"].as_object().into_iter().flatten();
        let below = below.map(|(name, schema)| (name.clone(), schema));
        let items = schema.get("items").map(|schema| ("0".to_owned(), schema));
        let map = schema.get("additionalProperties").filter(|schema| schema.is_object());
        let is_object = schema.get("properties").is_some() || map.is_some();
        let map = map.map(|schema| ("h".to_owned(), schema));
        for (name, schema) in below.chain(items).chain(map) {
            at.push(name);
            found.push(at.clone());
            self.walk(schema, at, seen, found);
            at.pop();
        }
        if is_object {
            found.push(at.iter().cloned().chain([KEY.to_owned()]).collect());
        }
        seen.pop();
    }

    /// Returns a valid value.
    fn sample(&self, schema: &Value, name: &str) -> Value {
        let known = known(name);
        if !known.is_null() {
            return known;
        }
        let schema = self.resolve(schema);
        let kind = match &schema["type"] {
            Value::Array(several) => several[0].as_str().unwrap_or(""),
            kind => kind.as_str().unwrap_or(""),
        };
        match kind {
            _ if schema["enum"].is_array() => schema["enum"][0].clone(),
            _ if schema.get("properties").is_some() => {
                let mut object = Map::new();
                for required in schema["required"].as_array().into_iter().flatten() {
                    let name = required.as_str().unwrap();
                    object.insert(name.to_owned(), self.sample(&schema["properties"][name], name));
                }
                if schema["properties"].get("cron").is_some() {
                    object.insert("paused".to_owned(), true.into());
                }
                object.into()
            }
            "object" => json!({"h": "x"}),
            "array" => json!([self.sample(&schema["items"], name)]),
            "integer" | "number" => {
                schema["minimum"].as_f64().map_or(json!(1), |least| json!(least.max(1.0) as u64))
            }
            "boolean" => json!(true),
            "string" if schema["format"] == "date-time" => json!("2200-01-01T00:00:00Z"),
            "string" => json!("x"),
            _ => json!({"n": [1, "x", null]}),
        }
    }

    /// Returns a value with every field, some of which may contradict others.
    fn whole(&self, schema: &Value, name: &str, depth: usize) -> Value {
        let resolved = self.resolve(schema);
        match resolved["properties"].as_object() {
            Some(fields) if depth < 4 => {
                let one =
                    |(name, schema): (&String, &Value)| (name.clone(), self.whole(schema, name, depth + 1));
                Value::Object(fields.iter().map(one).collect())
            }
            _ if resolved["items"].is_object() && known(name).is_null() => {
                json!([self.whole(&resolved["items"], name, depth + 1)])
            }
            _ => self.sample(schema, name),
        }
    }

    /// Returns a valid value around the place at these steps, where the case stands.
    fn around(&self, schema: &Value, steps: &[String], name: &str, is_key: bool) -> Value {
        let Some((step, rest)) = steps.split_first() else {
            if !is_key {
                return json!("@case@");
            }
            let mut object = self.sample(schema, name);
            if let Some(fields) = object.as_object_mut() {
                fields.insert("@key@".to_owned(), json!("x"));
            }
            return object;
        };
        let schema = self.resolve(schema);
        if let Some(items) = schema.get("items") {
            return json!([self.around(items, rest, name, is_key)]);
        }
        let mut object = self.sample(schema, "");
        let below = schema["properties"].get(step).unwrap_or(&schema["additionalProperties"]);
        object[step] = self.around(below, rest, step, is_key);
        object
    }
}

/// The last step of a place that is the name of a field.
const KEY: &str = "\u{0}";

/// Values that must fit what the server knows. `{id}` and `{reservation}` are replaced when the request is sent.
fn known(name: &str) -> Value {
    match name {
        "queue" | "queues" => json!("corpus"),
        "id" => json!("{id}"),
        "reservation" => json!("{reservation}"),
        "cron" => json!("0 0 29 2 *"),
        "time_zone" => json!("UTC"),
        "state" => json!("dead"),
        "wait_ms" => json!(0),
        "lease_ms" => json!(60_000),
        "timeout_ms" => json!(86_400_000),
        "max_jobs" | "max_reserved" | "limit" => json!(1_000_000),
        "dead_letter" => json!("graves"),
        _ => Value::Null,
    }
}

fn call(path: &str, method: &str, operation: &Value) -> Call {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    Call {
        method: method.to_uppercase(),
        path: path.to_owned(),
        statuses: statuses(operation),
        schema: operation.pointer("/requestBody/content/application~1json/schema").cloned(),
        parameters: parameters
            .map(contract::resolved)
            .map(|one| (text(&one["in"]), text(&one["name"])))
            .collect(),
    }
}

/// Returns the statuses of an operation: of its successes, of the problems that it names, and of those that every call may return.
fn statuses(operation: &Value) -> Vec<u16> {
    let mut statuses: Vec<u16> =
        operation["responses"].as_object().unwrap().keys().filter_map(|status| status.parse().ok()).collect();
    let common = &contract::DOCUMENT["components"]["responses"]["Problem"]["description"];
    for text in [&operation["description"], common] {
        let marked = text.as_str().unwrap().split("` (").skip(1);
        statuses.extend(marked.filter_map(|rest| rest.get(..3)?.parse::<u16>().ok()));
    }
    statuses
}
