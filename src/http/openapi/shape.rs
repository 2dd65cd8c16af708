//! Makes schemas that generated clients can use out of those that are derived from our types.
//!
//! - Requests allow no fields beside those that they name: they would be refused. Responses allow any: a later server may say more.
//! - Nothing is null but the values of clients and the fields of a merge patch: what is absent is left out.
//! - Requests say their defaults in words: `default` makes a field required in some generators.
//! - Words in responses are open: a later server may know more of them.
//! - What is made of several objects is one object.
//!
//! A schema that requests and responses share is two: `Backoff` is a response's, `BackoffInput` a request's.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// Where the schemas with names are.
const NAMED: &str = "#/components/schemas/";

/// The operations whose body is a merge patch (RFC 7396) of the resource.
const MERGE_PATCHES: &[&str] = &["update_queue"];

/// Fields of requests that may be null, with what null says, as their descriptions do.
const NULLABLE: &[(&str, &[&str])] =
    &[("UpdateJobRequest", &["headers", "max_attempts", "expires_in_ms", "group"])];

/// The operations whose body must be there, though each of its fields may be absent.
const WHOLE_BODIES: &[&str] = &["set_queue", "push_job"];

/// Schemas of our own types whose names say less to a client, and their names in the document.
const RENAMED: &[(&str, &str)] = &[("BulkId", "OperationId"), ("StoredKeyId", "KeyId")];

type Object = Map<String, Value>;

/// Makes all schemas of the document so.
pub fn shape(api: &mut Value) {
    let mut schemas = match api.pointer_mut("/components/schemas").map(Value::take) {
        Some(Value::Object(schemas)) => schemas,
        _ => return,
    };
    rename(api, &mut schemas);
    flatten(api, &mut schemas);
    schemas.values_mut().for_each(|schema| walk(schema, &mut no_null));
    each_operation(api, &mut |_, operation| {
        bodies(operation, &mut |schema| walk(schema, &mut no_null));
        responses(operation, &mut |schema| walk(schema, &mut no_null));
    });
    for (name, fields) in NULLABLE {
        let properties = schemas.get_mut(*name).and_then(|schema| schema.get_mut("properties"));
        for (name, field) in properties.and_then(Value::as_object_mut).into_iter().flatten() {
            field.as_object_mut().filter(|_| fields.contains(&name.as_str())).into_iter().for_each(nullable);
        }
    }
    split(api, &mut schemas);
    patches(api, &mut schemas);
    each_operation(api, &mut |_, operation| optional_body(operation, &schemas));
    prune(api, &mut schemas);
    schemas.values_mut().for_each(|schema| walk(schema, &mut |schema| bounded(schema, false)));
    each_operation(api, &mut |_, operation| {
        bodies(operation, &mut |schema| walk(schema, &mut |schema| bounded(schema, true)));
    });
    if let Some(all) = api.pointer_mut("/components/schemas") {
        *all = Value::Object(schemas);
    }
}

/// Calls `at` for each operation, with its method.
pub fn each_operation(api: &mut Value, at: &mut dyn FnMut(&str, &mut Object)) {
    let paths = api.get_mut("paths").and_then(Value::as_object_mut);
    for item in paths.into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut) {
        for (method, operation) in item.iter_mut() {
            if let Some(operation) = operation.as_object_mut().filter(|it| it.contains_key("operationId")) {
                at(method, operation);
            }
        }
    }
}

/// Calls `at` for the schemas that a request is made of: of its parameters and of its body.
fn bodies(operation: &mut Object, at: &mut dyn FnMut(&mut Value)) {
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    parameters.into_iter().flatten().filter_map(|it| it.get_mut("schema")).for_each(&mut *at);
    if let Some(body) = operation.get_mut("requestBody") {
        contents(body, at);
    }
}

/// Calls `at` for the schemas of the responses.
fn responses(operation: &mut Object, at: &mut dyn FnMut(&mut Value)) {
    let responses = operation.get_mut("responses").and_then(Value::as_object_mut);
    for response in responses.into_iter().flat_map(Map::values_mut) {
        contents(response, at);
    }
}

fn contents(of: &mut Value, at: &mut dyn FnMut(&mut Value)) {
    let contents = of.get_mut("content").and_then(Value::as_object_mut);
    contents
        .into_iter()
        .flat_map(Map::values_mut)
        .filter_map(|content| content.get_mut("schema"))
        .for_each(at);
}

/// Calls `at` for a schema, after each within it.
pub fn walk(schema: &mut Value, at: &mut dyn FnMut(&mut Object)) {
    let Some(object) = schema.as_object_mut() else { return };
    for (keyword, value) in object.iter_mut() {
        match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                properties.values_mut().for_each(|property| walk(property, at));
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(items)) => {
                items.iter_mut().for_each(|item| walk(item, at));
            }
            ("items" | "additionalProperties", inner) => walk(inner, at),
            _ => {}
        }
    }
    at(object);
}

/// Says the bounds of a number of 32 bits, which a format does not bound for every reader. One that is never negative may have all 32 bits
/// for its value.
fn bounded(schema: &mut Object, is_parameter: bool) {
    let is_i32 = schema.get("format").is_some_and(|format| format == "int32");
    let is_signed = !schema.contains_key("minimum");
    if is_i32 && (is_signed || is_parameter) && !schema.contains_key("maximum") {
        schema.entry("minimum").or_insert_with(|| i32::MIN.into());
        schema.insert("maximum".into(), if is_signed { i32::MAX.into() } else { u32::MAX.into() });
    }
}

/// Gives the schemas of [`RENAMED`] their names.
fn rename(api: &mut Value, schemas: &mut Object) {
    let names: BTreeMap<String, String> =
        RENAMED.iter().map(|(old, new)| ((*old).to_owned(), (*new).to_owned())).collect();
    for (old, new) in &names {
        if let Some(schema) = schemas.remove(old) {
            schemas.insert(new.clone(), schema);
        }
    }
    let mut refer_to = |schema: &mut Value| walk(schema, &mut |object| refer(object, &names));
    schemas.values_mut().for_each(&mut refer_to);
    each_operation(api, &mut |_, operation| {
        bodies(operation, &mut refer_to);
        responses(operation, &mut refer_to);
    });
}

/// Returns the name of the schema that this is a reference to.
fn named(schema: &Object) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix(NAMED)
}

// --- several objects as one -----------------------------------------------------------------------------------

/// Makes one object of what is derived as `allOf`, and of what is [`Shown`](crate::http::routes::view::Shown) of something to callers
/// without the scope `read`: it has the fields of the whole, and always those that say which it is.
fn flatten(api: &mut Value, schemas: &mut Object) {
    let mut changed = BTreeMap::new();
    for name in schemas.keys().cloned().collect::<Vec<_>>() {
        if let Some((whole, identity)) = name.strip_prefix("Shown_").and_then(|of| of.split_once('_')) {
            schemas.insert(name.clone(), Value::Object(shown(whole, identity, schemas)));
            changed.insert(name.clone(), format!("Changed{whole}"));
        }
    }
    let derived = schemas.clone();
    for schema in schemas.values_mut().filter_map(Value::as_object_mut) {
        if schema.contains_key("allOf") {
            *schema = one(schema, &derived);
        }
    }
    for (old, new) in &changed {
        if let Some(schema) = schemas.remove(old) {
            schemas.insert(new.clone(), schema);
        }
    }
    schemas.values_mut().for_each(|schema| walk(schema, &mut |schema| refer(schema, &changed)));
    each_operation(api, &mut |_, operation| {
        responses(operation, &mut |schema| walk(schema, &mut |schema| refer(schema, &changed)));
    });
}

fn shown(whole: &str, identity: &str, schemas: &Object) -> Object {
    let mut object = one(&reference(whole), schemas);
    let required = one(&reference(identity), schemas).remove("required");
    object.insert("required".into(), required.unwrap_or_else(|| json!([])));
    let own = object.get("description").and_then(Value::as_str).unwrap_or_default();
    let text = format!("{own} A caller without the scope `read` is told only which it is.");
    object.insert("description".into(), text.into());
    object
}

/// Returns the object that a schema is: itself, the one that it refers to, or all of several.
fn one(schema: &Object, schemas: &Object) -> Object {
    if let Some(referred) = named(schema).and_then(|name| schemas.get(name)?.as_object()) {
        return one(referred, schemas);
    }
    let Some(parts) = schema.get("allOf").and_then(Value::as_array) else { return schema.clone() };
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for part in parts.iter().filter_map(Value::as_object) {
        let mut part = one(part, schemas);
        if let Some(Value::Object(of)) = part.remove("properties") {
            properties.extend(of);
        }
        if let Some(Value::Array(of)) = part.remove("required") {
            required.extend(of);
        }
    }
    let mut object = Map::from_iter([("type".to_owned(), json!("object"))]);
    object.extend(schema.get("description").map(|text| ("description".to_owned(), text.clone())));
    object.insert("required".into(), required.into());
    object.insert("properties".into(), properties.into());
    object
}

fn reference(name: &str) -> Object {
    Map::from_iter([("$ref".to_owned(), format!("{NAMED}{name}").into())])
}

/// Makes a reference one to the new name.
fn refer(schema: &mut Object, names: &BTreeMap<String, String>) {
    if let Some(new) = named(schema).and_then(|name| names.get(name)) {
        schema.insert("$ref".into(), format!("{NAMED}{new}").into());
    }
}

// --- null ------------------------------------------------------------------------------------------------------

/// An option is derived as something or null. It is left out instead.
fn no_null(schema: &mut Object) {
    schema.remove("propertyNames");
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [kind] = types.as_slice() {
            let kind = kind.clone();
            schema.insert("type".into(), kind);
        }
    }
    let is_null = |item: &Value| item.get("type").is_some_and(|kind| kind == "null");
    let Some(Value::Array(items)) = schema.get_mut("oneOf") else { return };
    items.retain(|item| !is_null(item));
    if let [Value::Object(only)] = items.as_slice() {
        let only = only.clone();
        schema.remove("oneOf");
        for (keyword, value) in only {
            schema.entry(keyword).or_insert(value);
        }
    }
}

/// Lets a field be null.
fn nullable(field: &mut Object) {
    if named(field).is_some() {
        let description = field.remove("description");
        let either = json!({"anyOf": [field.clone(), {"type": "null"}]});
        *field = either.as_object().cloned().unwrap_or_default();
        field.extend(description.map(|text| ("description".to_owned(), text)));
    } else if let Some(kind) = field.get("type").cloned() {
        field.insert("type".into(), json!([kind, "null"]));
    }
}

/// An empty body is read as `{}`, which is a request where nothing is required.
fn optional_body(operation: &mut Object, schemas: &Object) {
    let id = operation.get("operationId").and_then(Value::as_str).unwrap_or_default();
    if WHOLE_BODIES.contains(&id) {
        return;
    }
    let Some(body) = operation.get_mut("requestBody") else { return };
    let mut is_demanding = false;
    contents(body, &mut |schema| {
        let named = schema.as_object().and_then(named).and_then(|name| schemas.get(name));
        let required = named.and_then(|schema| schema.get("required")?.as_array());
        is_demanding |= required.is_some_and(|required| !required.is_empty());
    });
    if !is_demanding {
        body["required"] = json!(false);
    }
}

// --- requests and responses ------------------------------------------------------------------------------------

/// Closes the schemas of requests and opens those of responses; one that both use becomes two.
fn split(api: &mut Value, schemas: &mut Object) {
    let (mut asked, mut shown) = (BTreeSet::new(), BTreeSet::new());
    each_operation(api, &mut |_, operation| {
        bodies(operation, &mut |schema| reach(schema, schemas, &mut asked));
        responses(operation, &mut |schema| reach(schema, schemas, &mut shown));
    });
    reach(&mut Value::Object(reference("Problem")), schemas, &mut shown);
    let differs = |name: &&String| {
        let mut all = BTreeSet::new();
        reach(&mut Value::Object(reference(name)), schemas, &mut all);
        let mut differs = false;
        for name in &all {
            walk(&mut schemas[name].clone(), &mut |schema| {
                differs |= schema.contains_key("additionalProperties") || schema.contains_key("enum");
                differs |= schema.contains_key("default");
            });
        }
        differs
    };
    let shared = asked.intersection(&shown).filter(differs);
    let inputs: BTreeMap<String, String> =
        shared.map(|name| (name.clone(), format!("{name}Input"))).collect();
    for name in &asked {
        let Some(mut schema) = schemas.get(name).cloned() else { continue };
        walk(&mut schema, &mut |schema| close(schema, &inputs));
        schemas.insert(inputs.get(name).unwrap_or(name).clone(), schema);
    }
    for name in shown.iter().filter(|name| !asked.contains(*name) || inputs.contains_key(*name)) {
        if let Some(schema) = schemas.get_mut(name) {
            walk(schema, &mut open);
        }
    }
    each_operation(api, &mut |_, operation| {
        bodies(operation, &mut |schema| walk(schema, &mut |schema| close(schema, &inputs)));
        responses(operation, &mut |schema| walk(schema, &mut open));
    });
}

/// Adds the names of all schemas that this one is made of.
fn reach(schema: &mut Value, schemas: &Object, reached: &mut BTreeSet<String>) {
    let mut names = Vec::new();
    walk(schema, &mut |schema| names.extend(named(schema).map(str::to_owned)));
    for name in names {
        if let Some(within) = schemas.get(&name)
            && reached.insert(name)
        {
            reach(&mut within.clone(), schemas, reached);
        }
    }
}

/// Makes a schema one of a request.
fn close(schema: &mut Object, inputs: &BTreeMap<String, String>) {
    refer(schema, inputs);
    if let Some(default) = schema.remove("default") {
        let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        if !text.contains("efault:") {
            let shown = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
            let text = format!("{text} Default: `{shown}`.");
            schema.insert("description".into(), text.trim().into());
        }
    }
    if let Some(Value::Array(words)) = schema.get("enum") {
        let names: Vec<Value> = words.iter().filter_map(Value::as_str).map(in_pascal_case).collect();
        schema.insert("x-enum-varnames".into(), names.into());
    }
}

fn in_pascal_case(word: &str) -> Value {
    let parts = word.split(['_', '-']).map(|part| {
        let mut letters = part.chars();
        letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect::<String>()
    });
    parts.collect::<String>().into()
}

/// Makes a schema one of a response.
fn open(schema: &mut Object) {
    if schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        schema.remove("additionalProperties");
    }
    schema.remove("default");
    let Some(Value::Array(words)) = schema.remove("enum") else { return };
    let known: Vec<String> = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`")).collect();
    let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    let text = format!("{text} One of {}; later versions may add others.", known.join(", "));
    schema.insert("description".into(), text.trim().into());
    schema.insert("x-extensible-enum".into(), words.into());
}

// --- merge patches ---------------------------------------------------------------------------------------------

/// Gives merge patches schemas of their own, in which every field may be absent, or null: the default again.
fn patches(api: &mut Value, schemas: &mut Object) {
    let mut made = Map::new();
    each_operation(api, &mut |_, operation| {
        let id = operation.get("operationId").and_then(Value::as_str).unwrap_or_default();
        if !MERGE_PATCHES.contains(&id) {
            return;
        }
        if let Some(body) = operation.get_mut("requestBody") {
            contents(body, &mut |schema| {
                schema.as_object_mut().into_iter().for_each(|schema| patch(schema, schemas, &mut made));
            });
        }
    });
    schemas.extend(made);
}

/// Replaces the reference by one to the patch of what it refers to, if that is an object.
fn patch(schema: &mut Object, schemas: &Object, made: &mut Object) {
    let Some(name) = named(schema).map(str::to_owned) else { return };
    let Some(whole) = schemas.get(&name).and_then(Value::as_object) else { return };
    let Some(fields) = whole.get("properties").and_then(Value::as_object) else { return };
    let patched = format!("{}Patch", name.strip_suffix("Input").unwrap_or(&name));
    schema.insert("$ref".into(), format!("{NAMED}{patched}").into());
    let mut fields = fields.clone();
    for field in fields.values_mut().filter_map(Value::as_object_mut) {
        patch(field, schemas, made);
        nullable(field);
    }
    let text = "What to change; what is absent stays as it is, null is the default again (RFC 7396).";
    let patch =
        json!({"type": "object", "description": text, "properties": fields, "additionalProperties": false});
    made.insert(patched, patch);
}

/// Removes the schemas that nothing refers to.
fn prune(api: &mut Value, schemas: &mut Object) {
    let mut used = BTreeSet::new();
    let mut find = |schema: &mut Value| reach(schema, schemas, &mut used);
    find(&mut Value::Object(reference("Problem")));
    each_operation(api, &mut |_, operation| {
        bodies(operation, &mut find);
        responses(operation, &mut find);
    });
    schemas.retain(|name, _| used.contains(name));
    schemas.sort_keys();
}
