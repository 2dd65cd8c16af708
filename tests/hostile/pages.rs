//! Foreign web pages: what a browser sends for them changes nothing here, and a name that was rebound reads nothing.

use serde_json::json;

use crate::common::server::{Place, Server};
use crate::exchange;

async fn status(server: &Server, request: &str, headers: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let bytes =
        format!("{request} HTTP/1.1\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    let answer = exchange(server, bytes.as_bytes()).await;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{bytes:?}: {answer}")), answer)
}

pub async fn a_foreign_page_changes_nothing(place: &Place) {
    let hosts = &[("TAILBACK_HTTP__HOSTS", "[localhost, queue.internal]")];
    let server = Server::start_with(&place.url, hosts).await;
    server.push("mail", json!({"payload": 1})).await;
    let pop = "POST /v1/queues/mail/pop";
    for headers in [
        "host: queue.internal:8321\r\norigin: http://evil.example\r\n",
        "host: queue.internal:8321\r\norigin: http://evil.example\r\nsec-fetch-site: same-site\r\n",
        "host: queue.internal:8321\r\norigin: http://queue.internal\r\n",
        "host: queue.internal:8321\r\norigin: null\r\n",
        "host: 127.0.0.1:8321\r\norigin: http://127.0.0.1:3000\r\n",
        "host: localhost:8321\r\nsec-fetch-site: cross-site\r\n",
        "host: localhost:8321\r\norigin: http://localhost:8321\r\norigin: http://evil.example\r\n",
    ] {
        for request in
            [pop, "POST /v1/queues/mail/pause", "DELETE /v1/queues/mail?force=true", "PUT /v1/queues/mail"]
        {
            let (status, answer) = status(&server, request, headers, "").await;
            assert_eq!(status, 403, "{request} {headers}: {answer}");
            assert!(answer.contains("\"code\":\"cross-site\""), "{answer}");
        }
        assert_eq!(status(&server, "GET /v1/queues", headers, "").await.0, 200, "{headers}");
    }
    // A body without a type, or with one that a page may send without asking, is refused.
    for content_type in
        ["", "content-type: text/plain\r\n", "content-type: application/x-www-form-urlencoded\r\n"]
    {
        let headers = format!("host: localhost\r\n{content_type}");
        assert_eq!(status(&server, pop, &headers, "{\"count\":1}").await.0, 415, "{content_type}");
    }
    assert_eq!(
        server.get("/v1/queues/mail/jobs").await.1["jobs"].as_array().unwrap().len(),
        1,
        "nothing was taken"
    );
    // Its own pages, and programs.
    for headers in [
        "host: queue.internal:8321\r\norigin: http://queue.internal:8321\r\n",
        "host: queue.internal\r\norigin: https://queue.internal\r\n",
        "host: queue.internal\r\nsec-fetch-site: same-origin\r\norigin: http://queue.internal\r\n",
        "host: queue.internal\r\nsec-fetch-site: none\r\n",
        "host: 127.0.0.1:1\r\n",
    ] {
        assert_eq!(status(&server, "POST /v1/queues/mail/resume", headers, "").await.0, 200, "{headers}");
    }
}

pub async fn a_name_that_is_not_listed_reaches_nothing(place: &Place) {
    let server = Server::start(&place.url).await;
    server.push("mail", json!({"payload": "secret"})).await;
    for host in [
        "evil.example",
        "evil.example:8321",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "queue.internal",
    ] {
        for request in ["GET /v1/queues/mail/jobs", "GET /metrics", "GET /docs/", "POST /v1/queues/mail/pop"]
        {
            let (status, answer) = status(&server, request, &format!("host: {host}\r\n"), "").await;
            assert_eq!(status, 421, "{request} {host}: {answer}");
            assert!(
                answer.contains("\"code\":\"host-not-allowed\"") && answer.contains("http.hosts"),
                "{answer}"
            );
        }
        assert_eq!(status(&server, "GET /healthz", &format!("host: {host}\r\n"), "").await.0, 200);
        let absolute = format!("GET http://{host}/v1/queues/mail/jobs");
        assert_eq!(status(&server, &absolute, "host: localhost\r\n", "").await.0, 421, "{host}");
    }
    for host in
        ["localhost", "LOCALHOST:1", "localhost.", "a.localhost", "127.0.0.1", "10.1.2.3:8321", "[::1]:8321"]
    {
        assert_eq!(
            status(&server, "GET /v1/queues", &format!("host: {host}\r\n"), "").await.0,
            200,
            "{host}"
        );
    }
}

/// What was judged of one request holds for no other host on the same connection.
pub async fn a_host_is_judged_anew_where_it_is_another(place: &Place) {
    let server = Server::start(&place.url).await;
    let statuses = async |requests: &[(&str, &str)]| -> Vec<String> {
        let last = requests.len() - 1;
        let request = |(n, (line, headers)): (usize, &(&str, &str))| {
            let close = if n == last { "connection: close\r\n" } else { "" };
            format!("{line} HTTP/1.1\r\n{headers}\r\n{close}\r\n")
        };
        let bytes: String = requests.iter().enumerate().map(request).collect();
        let answer = exchange(&server, bytes.as_bytes()).await;
        answer.split("HTTP/1.1 ").skip(1).map(|answer| answer[..3].to_owned()).collect()
    };
    let list = "GET /v1/queues";
    let several = [
        (list, "host: localhost"),
        (list, "host: localhost"),
        (list, "host: evil.example"),
        (list, "host: evil.example"),
        (list, "host: localhost"),
        (list, "host: localhost:1"),
        (list, "host: localhost.evil.example"),
        (list, "host: 127.0.0.1"),
        ("POST /v1/queues/mail/pause", "host: localhost\r\norigin: http://localhost"),
        ("POST /v1/queues/mail/pause", "host: localhost\r\norigin: http://evil.example"),
        ("GET http://evil.example/v1/queues", "host: localhost"),
        ("GET http://evil.example/v1/queues", "host: evil.example"),
        (list, "host: localhost"),
    ];
    let expected =
        ["200", "200", "421", "421", "200", "200", "421", "200", "200", "403", "421", "421", "200"];
    assert_eq!(statuses(&several).await, expected);
    for wrong in ["local host", "a@localhost", "localhost:99999", "", "localhost\r\nhost: localhost"] {
        let wrong = format!("host: {wrong}");
        let ended = [(list, "host: localhost"), (list, wrong.as_str()), (list, "host: localhost")];
        assert_eq!(statuses(&ended).await[..2], ["200", "400"], "{wrong}");
    }
}
