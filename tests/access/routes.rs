//! Every route of the document, with every kind of key.

use std::fmt::Write as _;

use super::support::*;

const SCOPES: [&str; 5] = ["push", "consume", "read", "operate", "admin"];

/// What either of its scopes is enough for: without a reservation an operator moves.
const ANY: &str = "/v1/jobs/{id}/move";

/// The operations of the document: method, path, and what its `security` says.
fn operations() -> Vec<(Method, String, Value)> {
    // The scopes of each; null where no key is needed.
    let document: Value = serde_json::from_str(include_str!("../../openapi/tailback.json")).unwrap();
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(_, of)| of.is_object()) {
            let method = method.to_uppercase().parse().unwrap();
            operations.push((
                method,
                path.clone(),
                if operation["security"] == json!([]) { Value::Null } else { operation["x-scopes"].clone() },
            ));
        }
    }
    assert!(operations.len() > 45, "the document was not read");
    operations
}

async fn try_route(server: &Server, key: Option<&str>, method: &Method, path: &str) -> (u16, Value) {
    // The name of a key that is not there: the keys of this case must stay.
    let path = path.replace("{id}", "AAAAAAAAAAAA").replace("{queue}", "q").replace("{name}", "n");
    let path = path.replace("/v1/events", "/v1/events?for_ms=1"); // or its response would not end
    let body = (*method != Method::GET && *method != Method::DELETE).then(|| json!({}));
    call_with(server, key, method.clone(), &path, &[], body).await
}

/// Keys that are none, or no more.
async fn bad_keys(server: &Server) -> Vec<(&'static str, Option<String>)> {
    let all = |name: &str| json!({"name": name, "scopes": ["admin"], "expires_in_ms": 1000});
    let (_, expired) = make(server, all("expired")).await;
    let (id, revoked) = make(server, json!({"name": "revoked", "scopes": ["admin"]})).await;
    ok(&delete(server, ADMIN, &format!("/v1/keys/{id}")).await);
    let (_, valid) = make(server, json!({"name": "valid", "scopes": ["admin"]})).await;
    until("the key has expired", || async { get(server, &expired, "/v1/queues").await.0 == 401 }).await;
    let end = if valid.ends_with('x') { "y" } else { "x" };
    let wrong = format!("{}{end}", &valid[..valid.len() - 1]);
    vec![
        ("none", None),
        ("wrong", Some(wrong)),
        ("expired", Some(expired)),
        ("revoked", Some(revoked)),
        ("malformed", Some("tb_x".to_owned())),
        ("of another kind", Some("f".repeat(ADMIN.len()))),
    ]
}

pub async fn each_route_needs_its_scope(place: &Place) {
    let server = locked(place).await;
    let bad = bad_keys(&server).await;
    let mut keys = Vec::new();
    for scope in SCOPES {
        keys.push((scope, key_for(&server, &[scope], &[]).await));
    }
    let mut table = format!("| route | {} |\n|---|{}\n", SCOPES.join(" | "), "---|".repeat(SCOPES.len()));
    let mut calls = 0;
    for (method, path, scopes) in operations() {
        let is_open = scopes.is_null();
        for (kind, key) in &bad {
            let answer = try_route(&server, key.as_deref(), &method, &path).await;
            calls += 1;
            match is_open {
                true => assert!(![401, 403].contains(&answer.0), "{method} {path}, {kind} key: {}", answer.1),
                false => refused(&answer, 401, "unauthorized"),
            }
        }
        let needed = scopes.as_array().cloned().unwrap_or_default();
        let mut row = format!("| `{method} {path}` |");
        for (scope, key) in &keys {
            let answer = try_route(&server, Some(key), &method, &path).await;
            calls += 1;
            let is_enough =
                needed.is_empty() || needed == [*scope] || (ANY == path && needed.contains(&json!(scope)));
            let is_allowed = is_open || *scope == "admin" || is_enough;
            match is_allowed {
                true => assert!(![401, 403].contains(&answer.0), "{method} {path}, {scope}: {}", answer.1),
                false => forbidden(&answer),
            }
            let cell = if needed.len() > 1 && needed.contains(&json!(scope)) { " both |" } else { " |" };
            row.push_str(if is_allowed { " yes |" } else { cell });
        }
        let admin = try_route(&server, Some(ADMIN), &method, &path).await;
        // A store that is slow has not been seen to take writes for a while.
        let is_unready = path == "/readyz" && admin.0 == 503;
        let is_let_in = ![401, 403].contains(&admin.0) && (admin.0 < 500 || is_unready);
        assert!(is_let_in, "{method} {path}: {}", admin.1);
        let _ = writeln!(table, "{row}");
    }
    println!("{calls} calls\n{table}");
    let documented = include_str!("../../docs/security.md");
    assert!(documented.contains(&table), "docs/security.md does not have this table:\n{table}");
}

async fn without_key(server: &Server, path: &str) -> (u16, Value) {
    call_with(server, None, Method::GET, path, &[], None).await
}

pub async fn what_is_open_needs_no_key(place: &Place) {
    let mut server = locked(place).await;
    ok(&without_key(&server, "/healthz").await);
    until("it is ready", || async { without_key(&server, "/readyz").await.0 == 200 }).await;
    for path in ["/metrics", "/docs/", "/openapi.json", "/docs/no-such-page", "/v1/nowhere", "/nowhere"] {
        refused(&without_key(&server, path).await, 401, "unauthorized");
    }
    let metrics = server.http.get(format!("{}/metrics", server.base)).send().await.unwrap();
    assert_eq!(metrics.headers()["www-authenticate"], "Bearer realm=\"tailback\"");
    let reader = key_for(&server, &["read"], &[]).await;
    for path in ["/metrics", "/docs/", "/openapi.json"] {
        ok(&get(&server, &reader, path).await);
    }
    refused(&get(&server, &reader, "/v1/nowhere").await, 404, "not-found");
    refused(&put(&server, &reader, "/v1/queues", json!({})).await, 405, "method-not-allowed");
    let mut doubled = server.http.get(format!("{}/v1/queues", server.base));
    for _ in 0..2 {
        doubled = doubled.header("authorization", format!("Bearer {reader}"));
    }
    assert_eq!(doubled.send().await.unwrap().status(), 400);
    for wrong in [format!("Basic {reader}"), reader.clone(), "Bearer".to_owned()] {
        let headers = [("authorization", wrong.as_str())];
        let answer = call_with(&server, None, Method::GET, "/v1/queues", &headers, None).await;
        refused(&answer, 401, "unauthorized");
    }
    server.terminate().await;
    let server = locked_with(place, &[("TAILBACK_AUTH__OPEN", "[metrics, docs]")]).await;
    for path in ["/metrics", "/docs/", "/openapi.json"] {
        ok(&without_key(&server, path).await);
    }
    refused(&without_key(&server, "/stats").await, 401, "unauthorized");
}

pub async fn without_keys_everything_is_open(place: &Place) {
    let server = Server::start(&place.url).await;
    for (method, path, _) in operations() {
        let answer = try_route(&server, None, &method, &path).await;
        assert!(![401, 403].contains(&answer.0), "{method} {path}: {}", answer.1);
    }
}
