//! Logins of browsers.

use super::support::*;
use crate::common::contract;
use crate::common::server::client;

/// A login: the response, and the cookie without its attributes.
async fn log_in(server: &Server, key: &str, headers: &[(&str, &str)]) -> (u16, Value, String, String) {
    let mut request = server.http.post(format!("{}/v1/session", server.base)).json(&json!({"key": key}));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let cookie = response.headers().get("set-cookie").map_or("", |value| value.to_str().unwrap()).to_owned();
    let bare = cookie.split(';').next().unwrap().to_owned();
    (status, response.json().await.unwrap(), cookie, bare)
}

async fn with_cookie(server: &Server, cookie: &str, method: Method, path: &str) -> (u16, Value) {
    call_with(server, None, method, path, &[("cookie", cookie)], None).await
}

pub async fn a_session_stands_for_its_key(place: &Place) {
    let mut server = locked(place).await;
    let (id, key) = make(&server, json!({"name": "ada", "scopes": ["read"], "queues": ["a.*"]})).await;
    let (status, session, cookie, bare) = log_in(&server, &key, &[]).await;
    assert_eq!((status, &session["name"], &session["queues"]), (200, &json!("ada"), &json!(["a.*"])));
    for attribute in ["HttpOnly", "Secure", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(!cookie.contains(&key) && !session.to_string().contains(&key));
    let second = format!("theme=dark; {bare}");
    ok(&with_cookie(&server, &second, Method::GET, "/v1/queues/a.b").await);
    forbidden(&with_cookie(&server, &bare, Method::GET, "/v1/queues/b").await);
    let (status, who) = with_cookie(&server, &bare, Method::GET, "/v1/session").await;
    assert_eq!((status, &who["name"], &who["queues"]), (200, &json!("ada"), &json!(["a.*"])));
    assert_eq!((&who["scopes"], &who["ends_at"]), (&json!(["read"]), &session["ends_at"]));
    assert_eq!((&who["keys_required"], &who["read_only"]), (&json!(true), &json!(false)));
    refused(&with_cookie(&server, "a=b", Method::GET, "/v1/session").await, 401, "unauthorized");
    forbidden(&with_cookie(&server, &bare, Method::POST, "/v1/queues/a.b/pause").await);
    let (_, _, _, admin) = log_in(&server, ADMIN, &[]).await;
    ok(&with_cookie(&server, &admin, Method::GET, "/v1/keys").await);
    // Another key, a later end and another signature are not what was signed.
    let value = bare.split_once('=').unwrap().1;
    let parts: Vec<&str> = value.split('.').collect();
    let (ends, signature) = (parts[1], parts[2]);
    for forged in [
        format!("admin.{ends}.{signature}"),
        format!("{id}.{}9.{signature}", ends),
        format!("{id}.{ends}.{}x", &signature[..signature.len() - 1]),
        format!("{id}.{ends}"),
        String::new(),
    ] {
        let cookie = format!("tailback_session={forged}");
        refused(&with_cookie(&server, &cookie, Method::GET, "/v1/queues").await, 401, "unauthorized");
    }
    let (status, cleared) = with_cookie(&server, &bare, Method::DELETE, "/v1/session").await;
    assert_eq!((status, cleared), (200, json!({"deleted": true})));
    // It ends with its key, and begins again with nothing: the new secret is another.
    server.terminate().await;
    let server = locked(place).await;
    ok(&with_cookie(&server, &bare, Method::GET, "/v1/queues").await);
    ok(&post(&server, ADMIN, &format!("/v1/keys/{id}/rotate"), json!({})).await);
    refused(&with_cookie(&server, &bare, Method::GET, "/v1/queues").await, 401, "unauthorized");
}

/// Who knows the id of a key has not used it.
pub async fn a_forged_session_does_not_use_its_key(place: &Place) {
    let server = locked(place).await;
    let (id, key) = make(&server, json!({"name": "ada", "scopes": ["read"]})).await;
    let seen = async || {
        let keys = get(&server, ADMIN, "/v1/keys").await.1;
        keys["keys"][0].get("last_used_at").map(|at| at.as_str().unwrap().to_owned())
    };
    let forged = format!("tailback_session={id}.9999999999999.x");
    refused(&with_cookie(&server, &forged, Method::GET, "/v1/queues").await, 401, "unauthorized");
    assert_eq!(seen().await, None);
    let (status, _, _, bare) = log_in(&server, &key, &[]).await;
    let used = seen().await;
    assert!(status == 200 && used.is_some(), "{status} {used:?}");
    // Both may be in the same millisecond.
    until("a call with the cookie counts", || async {
        ok(&with_cookie(&server, &bare, Method::GET, "/v1/queues").await);
        seen().await > used
    })
    .await;
}

/// Sends this as a login, over a connection of its own: the server ends one of which it does not read the body.
async fn send_login(server: &Server, body: String) -> (u16, String) {
    let request = client().post(format!("{}/v1/session", server.base));
    let response = request.header("content-type", "application/json").body(body).send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.unwrap();
    contract::check("POST", "/v1/session", status, &headers, &text);
    (status, text)
}

pub async fn a_login_has_a_small_body(place: &Place) {
    let server = locked(place).await;
    let login = |length: usize| format!("{{\"key\":\"{}\"}}", "k".repeat(length - 10));
    for (length, expected, code) in
        [(16_384, 422, "invalid-field"), (16_385, 413, "too-large"), (100_000, 413, "too-large")]
    {
        let (status, text) = send_login(&server, login(length)).await;
        refused(&(status, serde_json::from_str(&text).unwrap()), expected, code);
    }
    assert_eq!(log_in(&server, ADMIN, &[]).await.0, 200);
}

pub async fn a_refused_login_gets_a_short_response(place: &Place) {
    let server = locked(place).await;
    let body = format!("{{\"key\":\"k\",\"{}\":1}}", "~".repeat(10_000));
    let (status, text) = send_login(&server, body).await;
    assert!(text.len() < 4096, "{} bytes", text.len());
    let problem: Value = serde_json::from_str(&text).unwrap();
    let pointer = problem["pointer"].as_str().unwrap().to_owned();
    assert!(pointer.starts_with("/~0~0") && pointer.ends_with('…'), "{pointer}");
    refused(&(status, problem), 422, "invalid-field");
}

pub async fn logins_are_limited_and_need_tls(place: &Place) {
    let proxy = [("TAILBACK_HTTP__TRUSTED_PROXIES", "[\"127.0.0.1\"]")];
    let server = locked_with(place, &proxy).await;
    let plain = [("x-forwarded-for", "10.0.0.7"), ("x-forwarded-proto", "http")];
    let secure = [("x-forwarded-for", "10.0.0.7"), ("x-forwarded-proto", "https")];
    let (status, problem, cookie, _) = log_in(&server, ADMIN, &plain).await;
    refused(&(status, problem), 403, "tls-required");
    assert_eq!(cookie, "");
    assert_eq!(log_in(&server, ADMIN, &secure).await.0, 200);
    for _ in 0..10 {
        let (status, problem, cookie, _) = log_in(&server, "wrong", &secure).await;
        refused(&(status, problem), 401, "unauthorized");
        assert_eq!(cookie, "");
    }
    let (status, problem, ..) = log_in(&server, ADMIN, &secure).await;
    let wait = problem["retry_after_ms"].as_u64().unwrap();
    assert!(wait > 0 && wait <= 60_000, "the rest of the minute: {wait}");
    refused(&(status, problem), 429, "too-many-attempts");
    let other = [("x-forwarded-for", "10.0.0.8"), ("x-forwarded-proto", "https")];
    assert_eq!(log_in(&server, ADMIN, &other).await.0, 200);
}

/// Somebody who has a key of his own, or many addresses, tries as little as others.
pub async fn a_login_that_succeeds_forgives_no_other(place: &Place) {
    let proxy = [("TAILBACK_HTTP__TRUSTED_PROXIES", "[\"127.0.0.1\"]")];
    let server = locked_with(place, &proxy).await;
    let key = key_for(&server, &["push"], &["a"]).await;
    let from = |address: &'static str| [("x-forwarded-for", address), ("x-forwarded-proto", "https")];
    for n in 0..10 {
        assert_eq!(log_in(&server, &key, &from("10.0.0.7")).await.0, 200, "{n}");
        assert_eq!(log_in(&server, "wrong", &from("10.0.0.7")).await.0, 401, "{n}");
    }
    let (status, problem, ..) = log_in(&server, &key, &from("10.0.0.7")).await;
    refused(&(status, problem), 429, "too-many-attempts");
    for address in ["2001:db8::1", "2001:db8::2"] {
        for _ in 0..5 {
            assert_eq!(log_in(&server, "wrong", &from(address)).await.0, 401);
        }
    }
    let (status, problem, ..) = log_in(&server, ADMIN, &from("2001:db8::3")).await;
    refused(&(status, problem), 429, "too-many-attempts");
    assert_eq!(log_in(&server, ADMIN, &from("2001:db8:0:1::1")).await.0, 200);
}

/// A page of another host of the same domain may set a cookie for all of them, but none with the prefix.
pub async fn a_session_over_tls_has_a_cookie_that_no_other_host_can_set(place: &Place) {
    let proxy = [("TAILBACK_HTTP__TRUSTED_PROXIES", "[\"127.0.0.1\"]")];
    let mut server = locked(place).await;
    let (_, _, plain, _) = log_in(&server, ADMIN, &[]).await;
    assert!(plain.starts_with("tailback_session="), "browsers want TLS for the prefix: {plain}");
    server.terminate().await;
    let server = locked_with(place, &proxy).await;
    let secure = [("x-forwarded-for", "10.0.0.7"), ("x-forwarded-proto", "https")];
    let (_, _, cookie, bare) = log_in(&server, ADMIN, &secure).await;
    assert!(cookie.starts_with("__Host-tailback_session="), "{cookie}");
    assert!(
        cookie.contains("Path=/;") && cookie.contains("Secure") && !cookie.contains("Domain"),
        "{cookie}"
    );
    ok(&with_cookie(&server, &bare, Method::GET, "/v1/keys").await);
    let fixed = bare.strip_prefix("__Host-").unwrap();
    refused(&with_cookie(&server, fixed, Method::GET, "/v1/keys").await, 401, "unauthorized");
    // Nor is the plain one that was given over plain HTTP a session over TLS: another host of the domain may have set it.
    let plain = plain.split(';').next().unwrap();
    ok(&with_cookie(&server, plain, Method::GET, "/v1/keys").await);
    let call = server.http.get(format!("{}/v1/keys", server.base)).header("cookie", plain);
    let call = secure.into_iter().fold(call, |call, (name, value)| call.header(name, value));
    assert_eq!(call.send().await.unwrap().status(), 401);
    let both = format!("{fixed}; {bare}");
    ok(&with_cookie(&server, &both, Method::GET, "/v1/keys").await);
    let end = server.http.delete(format!("{}/v1/session", server.base)).send().await.unwrap();
    let ended: Vec<&str> =
        end.headers().get_all("set-cookie").iter().map(|one| one.to_str().unwrap()).collect();
    assert!(ended.iter().any(|one| one.starts_with("__Host-tailback_session=; ")), "{ended:?}");
    assert!(ended.iter().any(|one| one.starts_with("tailback_session=; ")), "{ended:?}");
}
