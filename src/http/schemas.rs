//! Which fields the schemas of the OpenAPI document allow beside those that they name. Requests allow none: they would be refused.
//! Responses allow any: a later server may say more, and some of them are made of several schemas, each of which names its part.
//!
//! A schema that requests and responses share gets a copy for responses, `QueueSettingsView` of `QueueSettings`.

use std::collections::{BTreeMap, BTreeSet};

use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{AdditionalProperties, ArrayItems};
use utoipa::openapi::{Content, OpenApi, RefOr, Schema};

type Schemas = BTreeMap<String, RefOr<Schema>>;

/// Where the schemas with names are.
const NAMED: &str = "#/components/schemas/";

/// Opens every schema that a response uses.
pub fn open_responses(api: &mut OpenApi) {
    let Some(mut components) = api.components.take() else { return };
    let schemas = &mut components.schemas;
    let (mut asked, mut shown) = (BTreeSet::new(), BTreeSet::new());
    for operation in operations(api) {
        bodies(operation).for_each(|schema| reach(schema, schemas, &mut asked));
        responses(operation).for_each(|schema| reach(schema, schemas, &mut shown));
    }
    let shared = asked.intersection(&shown).filter(|name| is_closed(name, schemas));
    let copies: BTreeMap<String, String> = shared.map(|name| (name.clone(), format!("{name}View"))).collect();
    for name in &shown {
        let Some(schema) = schemas.get(name) else { continue };
        let (mut schema, copy) = (schema.clone(), copies.get(name));
        if copy.is_none() && asked.contains(name) {
            continue; // nothing in it is closed
        }
        open(&mut schema, &copies);
        schemas.insert(copy.unwrap_or(name).clone(), schema);
    }
    for operation in operations(api) {
        responses(operation).for_each(|schema| open(schema, &copies));
    }
    api.components = Some(components);
}

fn operations(api: &mut OpenApi) -> impl Iterator<Item = &mut Operation> {
    let items = api.paths.paths.values_mut();
    items.flat_map(|item| {
        [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete]
            .into_iter()
            .flatten()
    })
}

fn bodies(operation: &mut Operation) -> impl Iterator<Item = &mut RefOr<Schema>> {
    let body = operation.request_body.as_mut().and_then(own).into_iter();
    body.flat_map(|body| body.content.values_mut()).filter_map(schema_of)
}

fn responses(operation: &mut Operation) -> impl Iterator<Item = &mut RefOr<Schema>> {
    let responses = operation.responses.responses.values_mut();
    responses.filter_map(own).flat_map(|response| response.content.values_mut()).filter_map(schema_of)
}

fn schema_of(content: &mut RefOr<Content>) -> Option<&mut RefOr<Schema>> {
    own(content)?.schema.as_mut()
}

/// Returns what is written out; only schemas have names in this document.
fn own<T>(written: &mut RefOr<T>) -> Option<&mut T> {
    match written {
        RefOr::T(written) => Some(written),
        RefOr::Ref(_) => None,
    }
}

/// Calls `at` for a schema and for each within it.
fn walk(schema: &mut RefOr<Schema>, at: &mut dyn FnMut(&mut RefOr<Schema>)) {
    at(schema);
    let RefOr::T(schema) = schema else { return };
    match schema {
        Schema::Array(array) => {
            if let ArrayItems::RefOrSchema(items) = &mut array.items {
                walk(items, at);
            }
        }
        Schema::Object(object) => {
            object.properties.values_mut().for_each(|property| walk(property, at));
            if let Some(AdditionalProperties::RefOr(others)) = object.additional_properties.as_deref_mut() {
                walk(others, at);
            }
        }
        Schema::OneOf(one) => one.items.iter_mut().for_each(|item| walk(item, at)),
        Schema::AllOf(all) => all.items.iter_mut().for_each(|item| walk(item, at)),
        Schema::AnyOf(any) => any.items.iter_mut().for_each(|item| walk(item, at)),
        _ => {}
    }
}

/// Adds the names of all schemas that this one is made of.
fn reach(schema: &RefOr<Schema>, schemas: &Schemas, reached: &mut BTreeSet<String>) {
    let mut names = Vec::new();
    walk(&mut schema.clone(), &mut |schema| {
        if let RefOr::Ref(named) = schema {
            names.extend(named.ref_location.strip_prefix(NAMED).map(str::to_owned));
        }
    });
    for name in names {
        let within = schemas.get(&name);
        if reached.insert(name)
            && let Some(within) = within
        {
            reach(within, schemas, reached);
        }
    }
}

/// Returns whether a schema allows no other fields, or one that it is made of.
fn is_closed(name: &str, schemas: &Schemas) -> bool {
    let Some(schema) = schemas.get(name) else { return false };
    let mut all = BTreeSet::from([name.to_owned()]);
    reach(schema, schemas, &mut all);
    let mut closed = false;
    for schema in all.iter().filter_map(|name| schemas.get(name)) {
        walk(&mut schema.clone(), &mut |schema| closed |= is_closed_itself(schema));
    }
    closed
}

fn is_closed_itself(schema: &RefOr<Schema>) -> bool {
    matches!(schema, RefOr::T(Schema::Object(object))
        if matches!(object.additional_properties.as_deref(), Some(AdditionalProperties::FreeForm(false))))
}

/// Lets a schema allow other fields, and makes it of the copies.
fn open(schema: &mut RefOr<Schema>, copies: &BTreeMap<String, String>) {
    walk(schema, &mut |schema| {
        if is_closed_itself(schema)
            && let RefOr::T(Schema::Object(object)) = schema
        {
            object.additional_properties = None;
        }
        if let RefOr::Ref(named) = schema
            && let Some(copy) = named.ref_location.strip_prefix(NAMED).and_then(|name| copies.get(name))
        {
            named.ref_location = format!("{NAMED}{copy}");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_allow_what_requests_refuse() {
        let mut api = crate::http::openapi::document();
        let schemas = api.components.take().unwrap().schemas;
        let closed = |root: &RefOr<Schema>| {
            let mut all = BTreeSet::new();
            reach(root, &schemas, &mut all);
            all.into_iter().filter(|name| is_closed_itself(&schemas[name])).collect::<Vec<_>>()
        };
        let (mut shown, mut asked) = (Vec::new(), Vec::new());
        for operation in operations(&mut api) {
            responses(operation).for_each(|schema| shown.extend(closed(schema)));
            bodies(operation).for_each(|schema| asked.extend(closed(schema)));
        }
        assert_eq!(shown, Vec::<String>::new(), "closed in responses");
        for name in ["QueueSettings", "ScheduleRule", "Backoff", "PushRequest"] {
            assert!(asked.iter().any(|asked| asked == name), "{name} is closed in requests");
        }
    }
}
