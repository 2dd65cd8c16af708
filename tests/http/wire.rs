//! What every call has in common: paths, methods, content types, request ids, the form of problems.

use super::support::*;

pub async fn a_page_of_another_site_changes_nothing(place: &Place) {
    let server = Server::start(&place.url).await;
    let foreign = [("sec-fetch-site", "cross-site")];
    for (method, path) in
        [("POST", "/v1/queues/mail/pop"), ("POST", "/v1/queues/mail/pause"), ("DELETE", "/v1/queues/mail")]
    {
        refused(&raw(&server, method, path, &foreign, "").await.answer(), 403, "cross-site");
    }
    assert_eq!(raw(&server, "GET", "/v1/queues/mail", &foreign, "").await.answer().0, 200);
    let own = [("sec-fetch-site", "same-origin")];
    assert_eq!(raw(&server, "POST", "/v1/queues/mail/pop", &own, "").await.answer().0, 200);
}

pub async fn an_unknown_path_is_not_found(place: &Place) {
    let server = Server::start(&place.url).await;
    for path in
        ["/nothing", "/v1", "/v1/", "/v1/queues/", "/v1/queues/a/jobs/", "/v1/queues/a/b", "/v2/reserve"]
    {
        for method in ["GET", "POST", "DELETE"] {
            let reply = raw(&server, method, path, &[], "").await;
            refused(&reply.answer(), 404, "not-found");
            assert_eq!(reply.header("content-type"), "application/problem+json");
        }
    }
}

pub async fn a_method_that_a_path_has_not_is_refused(place: &Place) {
    let server = Server::start(&place.url).await;
    for (path, allowed) in [
        ("/v1/queues/a/jobs", &["GET", "HEAD", "POST"][..]),
        ("/v1/queues/a/jobs/batch", &["POST"]),
        ("/v1/queues/a", &["DELETE", "GET", "HEAD", "PATCH", "PUT"]),
        ("/v1/queues", &["DELETE", "GET", "HEAD"]),
        ("/v1/queues/a/peek", &["GET", "HEAD"]),
        ("/v1/jobs", &["GET", "HEAD", "POST"]),
        ("/v1/jobs/a/retry", &["POST"]),
        ("/v1/batches", &["GET", "HEAD", "POST"]),
        ("/v1/jobs/a", &["DELETE", "GET", "HEAD", "PATCH"]),
        ("/v1/jobs/a/commit", &["POST"]),
        ("/v1/settle", &["POST"]),
        ("/v1/reserve", &["POST"]),
        ("/v1/queues/a/reserve", &["POST"]),
        ("/v1/queues/a/pop", &["POST"]),
        ("/v1/queues/a/stats", &["GET", "HEAD"]),
        ("/stats", &["GET", "HEAD"]),
        ("/healthz", &["GET", "HEAD"]),
        ("/metrics", &["GET", "HEAD"]),
    ] {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"] {
            if allowed.contains(&method) {
                continue;
            }
            let reply = raw(&server, method, path, &[], "").await;
            refused(&reply.answer(), 405, "method-not-allowed");
            let mut allow: Vec<&str> = reply.header("allow").split(',').map(str::trim).collect();
            allow.sort_unstable();
            assert_eq!(allow, allowed, "{path}");
        }
    }
}

pub async fn head_answers_like_get_without_a_body(place: &Place) {
    let server = Server::start(&place.url).await;
    for path in ["/healthz", "/v1/queues/a", "/v1/queues/a/jobs"] {
        let (head, get) =
            (raw(&server, "HEAD", path, &[], "").await, raw(&server, "GET", path, &[], "").await);
        assert_eq!((head.status, head.text.as_str()), (200, ""));
        assert_eq!(head.header("content-type"), get.header("content-type"));
    }
}

pub async fn only_json_is_read(place: &Place) {
    let server = Server::start(&place.url).await;
    let path = "/v1/queues/mail/jobs";
    for wrong in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "json", "\u{e4}"] {
        let header = reqwest::header::HeaderValue::from_bytes(wrong.as_bytes()).unwrap();
        let request = server.http.post(format!("{}{path}", server.base)).header("content-type", header);
        let response = request.body(r#"{"payload":1}"#).send().await.unwrap();
        let status = response.status().as_u16();
        refused(&(status, response.json().await.unwrap()), 415, "unsupported-media-type");
    }
    for right in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"] {
        let reply = raw(&server, "POST", path, &[("content-type", right)], r#"{"payload":1}"#).await;
        assert_eq!(reply.status, 201, "{right}: {}", reply.text);
    }
    // Without a declaration, the page of another site could have it sent.
    let request = server.http.post(format!("{}{path}", server.base)).body(r#"{"payload":1}"#);
    assert_eq!(request.send().await.unwrap().status(), 415);
    // Nothing has no type.
    let reply = raw(&server, "POST", "/v1/queues/mail/pause", &[("content-type", "text/plain")], "").await;
    assert_eq!(reply.status, 200);
}

pub async fn every_answer_has_the_id_of_its_request(place: &Place) {
    let server = Server::start(&place.url).await;
    let calls = [
        ("GET", "/healthz", ""),
        ("GET", "/metrics", ""),
        ("GET", "/nothing", ""),
        ("PUT", "/healthz", ""),
        ("POST", "/v1/queues/mail/jobs", r#"{"payload":1}"#),
        ("POST", "/v1/queues/mail/jobs", "{"),
        ("GET", "/v1/jobs/unknown", ""),
    ];
    let longest = "x".repeat(128);
    let mut made = Vec::new();
    for (method, path, body) in calls {
        for given in ["client-7/ä=?".trim_end_matches("ä=?"), "!~", &longest] {
            let reply = raw(&server, method, path, &[("x-request-id", given)], body).await;
            assert_eq!(reply.header("x-request-id"), given, "{path}");
            if reply.status >= 400 {
                assert_eq!(reply.json()["request_id"], given);
            }
        }
        let too_long = "x".repeat(129);
        for unusable in [None, Some(""), Some("a b"), Some(too_long.as_str())] {
            let headers: Vec<_> = unusable.map(|id| ("x-request-id", id)).into_iter().collect();
            let reply = raw(&server, method, path, &headers, body).await;
            let id = reply.header("x-request-id").to_owned();
            assert!(id.len() >= 16 && Some(id.as_str()) != unusable, "{path}: {id:?}");
            if reply.status >= 400 {
                assert_eq!(reply.json()["request_id"], id);
            }
            made.push(id);
        }
    }
    let count = made.len();
    made.sort();
    made.dedup();
    assert_eq!(made.len(), count, "each request has an id of its own");
    // The problems within an answer carry it as well.
    let body = json!({"commit": [{"id": "a", "reservation": "x"}]}).to_string();
    let reply = raw(&server, "POST", "/v1/settle", &[("x-request-id", "mine")], body).await;
    assert_eq!(reply.json()["commit"][0]["problem"]["request_id"], "mine");
}

pub async fn answers_say_what_they_are(place: &Place) {
    let server = Server::start(&place.url).await;
    for (method, path, body, status, kind) in [
        ("POST", "/v1/queues/mail/jobs", r#"{"payload":1}"#, 201, "application/json"),
        ("POST", "/v1/queues/mail/reserve", "{}", 200, "application/json"),
        ("GET", "/v1/queues/mail", "", 200, "application/json"),
        ("GET", "/stats", "", 200, "application/json"),
        ("POST", "/v1/queues/mail/jobs", r#"{"priority":"x"}"#, 422, "application/problem+json"),
        ("POST", "/v1/queues/mail/jobs", "x", 400, "application/problem+json"),
        ("POST", "/v1/jobs/a/commit", r#"{"reservation":"x"}"#, 409, "application/problem+json"),
        ("GET", "/v1/jobs/a", "", 404, "application/problem+json"),
    ] {
        let reply = raw(&server, method, path, &[], body).await;
        assert_eq!((reply.status, reply.header("content-type")), (status, kind), "{path}");
        if status >= 400 {
            assert_eq!(reply.json()["status"], status);
        }
    }
}

pub async fn a_big_answer_is_compressed_where_that_is_asked_for(place: &Place) {
    let server = Server::start(&place.url).await;
    let job = server.push("mail", json!({"payload": "x".repeat(100_000)})).await;
    let request = server.http.get(format!("{}/v1/jobs/{job}", server.base)).header("accept-encoding", "gzip");
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()["content-encoding"], "gzip");
    assert!(response.bytes().await.unwrap().len() < 10_000);
    let plain = raw(&server, "GET", &format!("/v1/jobs/{job}"), &[], "").await;
    assert_eq!(
        (plain.header("content-encoding"), plain.json()["payload"].as_str().unwrap().len()),
        ("", 100_000)
    );
}

/// What a client takes is judged before the call takes effect: whatever it is, the response is that of the call.
pub async fn no_accept_encoding_spoils_a_response(place: &Place) {
    let server = Server::start(&place.url).await;
    let body = json!({"payload": "x".repeat(100_000)}).to_string();
    let without =
        ["*;q=0", "identity;q=0", "br, identity;q=0", "gzip;q=0, *", "gzip; q=0.0, identity;q=0", "br"];
    let with = ["gzip", "*", "br;q=1, GZIP;q=0.5", "gzip;q=9, identity;q=0", "identity;q=0, *;q=0.1"];
    let cases = without.map(|value| (value, "")).into_iter().chain(with.map(|value| (value, "gzip")));
    for (value, encoding) in cases {
        let headers = [("accept-encoding", value)];
        let pushed = raw(&server, "POST", "/v1/queues/mail/jobs", &headers, body.as_str()).await;
        assert_eq!(pushed.status, 201, "{value}: {}", pushed.text);
        let pop =
            server.http.post(format!("{}/v1/queues/mail/pop", server.base)).header("accept-encoding", value);
        let popped = pop.send().await.unwrap();
        assert_eq!(popped.status(), 200, "{value}");
        let said = popped.headers().get("content-encoding").map_or("", |value| value.to_str().unwrap());
        assert_eq!(said, encoding, "{value}");
    }
}

pub async fn the_document_and_its_page_are_served(place: &Place) {
    let server = Server::start(&place.url).await;
    let (status, document) = server.get("/openapi.json").await;
    assert_eq!((status, &document["info"]["title"]), (200, &json!("Tailback")));
    let committed: Value = serde_json::from_str(include_str!("../../openapi/tailback.json")).unwrap();
    assert!(document == committed, "what is served is what is committed");
    let twin = tailback::http::openapi::twin(committed);
    assert!(server.get("/openapi-3.0.json").await.1 == twin, "likewise in 3.0");
    for part in ["swagger-ui.css", "swagger-ui-bundle.js", "swagger-initializer.js", "openapi.json"] {
        assert_eq!(raw(&server, "GET", &format!("/docs/{part}"), &[], "").await.status, 200, "{part}");
    }
    let page = |reply: &Reply, title: &str| {
        assert_eq!(reply.status, 200, "{title}");
        assert!(reply.header("content-type").starts_with("text/html"), "{title}");
        assert!(reply.text.contains(&format!("<title>{title}</title>")), "{title}: {}", reply.text);
        assert!(!reply.text.contains("://"), "the page works offline: {}", reply.text);
    };
    page(&raw(&server, "GET", "/docs/", &[], "").await, "Tailback API");
    page(&raw(&server, "GET", "/", &[], "").await, "Tailback");
}

/// The calls that each job costs pass no router, unless their path must be decoded: one cannot tell.
pub async fn a_path_that_must_be_decoded_is_served_alike(place: &Place) {
    let server = Server::start(&place.url).await;
    let bodies = ["", "{}", r#"{"payload":1}"#, r#"{"count":0}"#, r#"{"reservation":"x"}"#, "{", "[]"];
    let calls = ["queues/q/jobs", "queues/q/reserve", "queues/q/pop", "jobs/q/commit", "jobs/q/rollback"];
    let mut served = 0;
    for call in
        calls.into_iter().chain(["jobs/q/extend", "queues/q%2/jobs", "queues/q%00/pop", "jobs/q%20/commit"])
    {
        for (body, query) in bodies.iter().flat_map(|body| [(*body, ""), (*body, "?x=1")]) {
            let plain = format!("/v1/{call}{query}");
            let encoded = plain.replace("/q", "/%71").replace("/%71ueues", "/queues");
            let headers = [("x-request-id", "r")];
            let mut replies = Vec::new();
            for path in [&plain, &encoded] {
                let reply = raw(&server, "POST", path, &headers, body).await;
                let mut headers: Vec<(String, Vec<u8>)> = (reply.headers.iter())
                    .filter(|(name, _)| !["date", "location", "content-length"].contains(&name.as_str()))
                    .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                    .collect();
                headers.sort();
                let mut answer = reply.json();
                served += usize::from(reply.status < 300);
                for of_one in ["id", "run_at", "jobs"] {
                    answer.as_object_mut().unwrap().remove(of_one);
                }
                replies.push((reply.status, headers, answer));
            }
            assert_eq!(replies[0], replies[1], "{plain} {body}");
        }
    }
    assert!(served >= 8, "{served} were served");
    for route in ["queues/{queue}/jobs", "queues/{queue}/pop", "jobs/{id}/commit", "jobs/{id}/extend"] {
        let route = format!(r#"route="/v1/{route}""#);
        let text = raw(&server, "GET", "/metrics", &[], "").await.text;
        assert!(text.lines().any(|line| line.contains(&route) && !line.ends_with(" 0")), "{route}");
    }
}
