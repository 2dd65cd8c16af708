//! The same document as OpenAPI 3.0.3, for generators that do not read 3.1.

use serde_json::{Map, Value, json};

use super::shape::each_operation;

/// Returns the twin of a document.
pub fn twin(mut api: Value) -> Value {
    api["openapi"] = json!("3.0.3");
    if let Some(text) = api.pointer_mut("/info/description") {
        let own = text.as_str().unwrap_or_default();
        *text = format!(
            "{own}\n\nThis is the twin of the document in OpenAPI 3.1, for generators that read 3.0 only: problems stand at 4XX and \
             5XX, and are called application/json; what a field says beside the name of its type is left out."
        )
        .into();
    }
    if let Some(license) = api.pointer_mut("/info/license").and_then(Value::as_object_mut) {
        license.remove("identifier"); // since 3.1
        license.insert("url".into(), json!("https://www.apache.org/licenses/LICENSE-2.0"));
    }
    each_operation(&mut api, &mut |_, operation| {
        // Generators of 3.0 take `default` for what a success looks like, too.
        if let Some(Value::Object(responses)) = operation.get_mut("responses")
            && let Some(problem) = responses.remove("default")
        {
            responses.insert("5XX".into(), problem);
        }
    });
    // They take a body for JSON only where it is called so, and a problem is JSON.
    if let Some(content) =
        api.pointer_mut("/components/responses/Problem/content").and_then(Value::as_object_mut)
        && let Some(problem) = content.remove("application/problem+json")
    {
        content.insert("application/json".into(), problem);
    }
    let schemas = api.pointer("/components/schemas").cloned().unwrap_or_default();
    rewrite(&mut api, &schemas);
    api
}

/// Rewrites what 3.0 says otherwise, wherever it stands. What clients send, and examples of it, is left as it is.
fn rewrite(value: &mut Value, schemas: &Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite(item, schemas)),
        Value::Object(object) => {
            let inner = object.iter_mut().filter(|(name, _)| *name != "example");
            inner.for_each(|(_, value)| rewrite(value, schemas));
            nullable(object, schemas);
            if object.get("contentEncoding").is_some_and(|encoding| encoding == "base64") {
                object.remove("contentEncoding"); // since 3.1
                object.insert("format".into(), json!("byte"));
            }
            if let Some(reference) = object.get("$ref").filter(|at| at.is_string()).cloned() {
                *object = Map::from_iter([("$ref".to_owned(), reference)]); // beside a reference 3.0 allows nothing
            }
        }
        _ => {}
    }
}

/// In 3.0 null is no type, and what is nullable says its type.
fn nullable(schema: &mut Map<String, Value>, schemas: &Value) {
    if let Some(Value::Array(types)) = schema.get("type")
        && let [kind, null] = types.as_slice()
        && null == "null"
    {
        let kind = kind.clone();
        schema.insert("type".into(), kind);
        schema.insert("nullable".into(), true.into());
    }
    if let Some(Value::Array(items)) = schema.get("anyOf")
        && let [of, null] = items.as_slice()
        && null.get("type").is_some_and(|kind| kind == "null")
    {
        let of = of.clone();
        let name = of.get("$ref").and_then(|at| at.as_str()?.rsplit('/').next());
        let kind = name.and_then(|name| schemas.get(name)?.get("type")).cloned();
        schema.extend(kind.map(|kind| ("type".to_owned(), kind)));
        schema.remove("anyOf");
        schema.insert("allOf".into(), json!([of]));
        schema.insert("nullable".into(), true.into());
    }
}
