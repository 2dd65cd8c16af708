//! Raw requests: request lines, the header `Host`, the syntax of headers, and what is no HTTP.

use super::sockets::{Row, ending, rows};

const GET: &str = "GET /healthz HTTP/1.1\r\n";
const HOST: &str = "Host: localhost\r\n";

#[rustfmt::skip]
const LINES: &[(&str, &str)] = &[
    ("GET /healthz HTTP/1.1", "200+"), ("GET /healthz HTTP/1.0", "200"), ("HEAD /healthz HTTP/1.1", "200+"), ("GET /healthz HTTP/1.2", "400"),
    ("GET /healthz HTTP/0.9", "400"), ("GET /healthz HTTP/2.0", "400"), ("GET /healthz HTTP/2", "400"), ("GET /healthz HTTP/9.9", "400"),
    ("GET /healthz HTTP/1", "400"), ("GET /healthz HTTP/11", "400"), ("GET /healthz HTTP/1.10", "400"), ("GET /healthz http/1.1", "400"),
    ("GET /healthz HTTP 1.1", "400"), ("GET /healthz HTTPS/1.1", "400"), ("GET /healthz", "400"), ("GET", "400"), ("GET ", "400"), ("/healthz HTTP/1.1", "400"),
    (" GET /healthz HTTP/1.1", "400"), ("\tGET /healthz HTTP/1.1", "400"), ("\r\nGET /healthz HTTP/1.1", "200+"), ("\r\n\r\nGET /healthz HTTP/1.1", "200+"),
    ("\nGET /healthz HTTP/1.1", "200+"), ("\0GET /healthz HTTP/1.1", "400"), ("GET  /healthz HTTP/1.1", "400|200+"), ("GET\t/healthz HTTP/1.1", "400"),
    ("GET /healthz\tHTTP/1.1", "400"), ("GET /healthz  HTTP/1.1", "400|200+"), ("GET /healthz HTTP/1.1 ", "400"), ("GET /healthz HTTP/1.1\r", "400"), ("GET /healthz HTTP/1.1 x", "400"),
    ("GET /a b HTTP/1.1", "400"), ("GET /a\rb HTTP/1.1", "400"), ("GET /a\0b HTTP/1.1", "400"), ("GET /a\x7fb HTTP/1.1", "400|404+"), ("GET /\u{e9} HTTP/1.1", "400|404+"),
    ("BREW /healthz HTTP/1.1", "405+"), ("get /healthz HTTP/1.1", "405+"), ("G\0T /healthz HTTP/1.1", "400"), ("G:T /healthz HTTP/1.1", "400"), ("G\u{e9}T /healthz HTTP/1.1", "400"),
    ("TRACE /healthz HTTP/1.1", "405+"), ("OPTIONS /healthz HTTP/1.1", "405+"), ("OPTIONS * HTTP/1.1", "404+|405+|400"), ("GET * HTTP/1.1", "404+|405+|400"),
    ("CONNECT localhost:80 HTTP/1.1", "405"), ("CONNECT / HTTP/1.1", "405"), ("GET localhost:80 HTTP/1.1", "400+|404+"), ("GET healthz HTTP/1.1", "400|421+"),
    ("GET http://localhost/healthz HTTP/1.1", "200+"), ("GET http://localhost HTTP/1.1", "200+"), ("GET https://localhost/healthz HTTP/1.1", "200+"),
    ("GET http://127.0.0.1/v1/queues HTTP/1.1", "400+"), ("GET http://evil.example/v1/queues HTTP/1.1", "421+"), ("GET http://u:p@localhost/v1/queues HTTP/1.1", "400+|421+"),
    ("GET ftp://localhost/healthz HTTP/1.1", "200+|400"), ("GET http:///healthz HTTP/1.1", "400"), ("GET http://[::1/healthz HTTP/1.1", "400"), ("GET http://localhost:99999/healthz HTTP/1.1", "400+|400"),
    ("GET // HTTP/1.1", "404+"), ("GET //healthz HTTP/1.1", "404+"), ("GET /./healthz HTTP/1.1", "404+"), ("GET /../healthz HTTP/1.1", "404+"), ("GET /v1/../healthz HTTP/1.1", "404+"),
    ("GET /healthz/ HTTP/1.1", "404+"), ("GET /healthz?x HTTP/1.1", "200+|422+"), ("GET /healthz#x HTTP/1.1", "200+|400"), ("GET /%68ealthz HTTP/1.1", "404+|200+"), ("GET /healthz%00 HTTP/1.1", "404+"),
    ("GET /healthz%2f HTTP/1.1", "404+"), ("GET /healthz\\ HTTP/1.1", "400|404+"), ("GET /healthz;x=y HTTP/1.1", "404+"), ("GET /HEALTHZ HTTP/1.1", "404+"), ("GET /% HTTP/1.1", "404+"),
    ("GET /v1/queues/% HTTP/1.1", "422+|400"), ("GET /v1/queues/%zz HTTP/1.1", "422+|400"), ("GET /v1/queues/%ff HTTP/1.1", "422+|400"), ("GET /v1/queues/%c0%af HTTP/1.1", "422+|400"),
    ("GET /v1/queues/a%2fb HTTP/1.1", "422+"), ("GET /v1/queues/.. HTTP/1.1", "422+"), ("GET /v1/queues/%2e%2e HTTP/1.1", "422+"), ("GET /v1//queues HTTP/1.1", "404+"), ("GET /v1/queues?limit=1&limit=2 HTTP/1.1", "422+"),
    ("GET /v1/queues?limit HTTP/1.1", "422+"), ("GET /v1/queues?%00=1 HTTP/1.1", "422+"), ("GET /v1/queues?limit=%zz HTTP/1.1", "422+"), ("GET /v1/queues?&& HTTP/1.1", "200+"), ("GET /v1/queues?? HTTP/1.1", "422+"),
    ("GET /docs/../../etc/passwd HTTP/1.1", "404+"), ("GET /docs/%2e%2e/%2e%2e/etc/passwd HTTP/1.1", "404+"), ("GET /docs/..%2f..%2fetc%2fpasswd HTTP/1.1", "404+"), ("GET /docs//etc/passwd HTTP/1.1", "404+"), ("GET /docs/\\..\\x HTTP/1.1", "404+|400"),
];

#[rustfmt::skip]
const HOSTS: &[(&str, &str)] = &[
    ("Host: localhost\r\n", "200+"), ("host: LOCALHOST\r\n", "200+"), ("HOST: localhost:8321\r\n", "200+"), ("Host:localhost\r\n", "200+"), ("Host: \t localhost \t \r\n", "200+"),
    ("Host: localhost.\r\n", "200+"), ("Host: 127.0.0.1\r\n", "200+"), ("Host: [::1]:80\r\n", "200+"), ("Host: a.localhost\r\n", "200+"), ("", "400"), ("Host:\r\n", "400"), ("Host: \r\n", "400"),
    ("Host: localhost\r\nHost: localhost\r\n", "400"), ("Host: localhost\r\nhOsT: evil.example\r\n", "400"), ("Host: a b\r\n", "400"), ("Host: localhost, evil.example\r\n", "400"),
    ("Host: user@localhost\r\n", "400"), ("Host: localhost/x\r\n", "400"), ("Host: localhost?x\r\n", "400"), ("Host: localhost#x\r\n", "400"), ("Host: http://localhost\r\n", "400"), ("Host: localhost:\r\n", "400|200+"),
    ("Host: localhost:x\r\n", "400"), ("Host: localhost:-1\r\n", "400"), ("Host: localhost:65536\r\n", "400"), ("Host: localhost:80:80\r\n", "400"), ("Host: [::1\r\n", "400"), ("Host: ::1\r\n", "400"), ("Host: [::1]x\r\n", "400|421+"),
    ("Host: \u{e9}\r\n", "400"), ("Host: local\0host\r\n", "400"), ("Host: local%00host\r\n", "400|421+"), ("Host: .\r\n", "421+|400"), ("Host: evil.example\r\n", "421+"), ("Host: localhost.evil.example\r\n", "421+"),
    ("Host: 127.0.0.1.evil.example\r\n", "421+"), ("Host : localhost\r\n", "400"), (" Host: localhost\r\n", "400"), ("Host: localhost\r\n evil.example\r\n", "400"), ("X: y\r\n Host: localhost\r\n", "400"), ("Host\r\n", "400"), ("X-Host: localhost\r\n", "400"),
];

#[rustfmt::skip]
const HEADERS: &[(&str, &str)] = &[
    ("no colon\r\n", "400"), (": value\r\n", "400"), ("a b: x\r\n", "400"), ("a\tb: x\r\n", "400"), ("a\0: x\r\n", "400"), ("a\x01: x\r\n", "400"), ("\u{e9}: x\r\n", "400"), ("a(b: x\r\n", "400"), ("a/b: x\r\n", "400"), ("\"a\": x\r\n", "400"),
    ("a: x\0y\r\n", "400"), ("a: x\x01y\r\n", "400"), ("a: x\x7fy\r\n", "400"), ("a: x\ry\r\n", "400"), ("a: x\n", "200+|400"), ("a: \u{e9}\u{ff}\r\n", "200+"), ("a:\r\n", "200+"), ("a: \t\r\n", "200+"), ("a: x\r\n\ty\r\n", "400"), ("a:\r\n x\r\n", "400"),
    ("a: x\r\n \r\n", "400"), ("\tx: y\r\n", "400"), ("a: x\r\r\n", "400"), ("a : x\r\n", "400"), ("a\r\n: x\r\n", "400"), ("a: x\u{b}\r\n", "400"), ("{: x\r\n", "400"), ("a!#$%&'*+-.^_`|~: x\r\n", "200+"), ("$where: x\r\n", "200+"), ("__proto__: x\r\n", "200+"),
    ("Connection: keep-alive\r\n", "200+"), ("Connection: close\r\n", "200"), ("Connection: \r\n", "200+"), ("Connection: Host\r\n", "200+"), ("Connection: close, keep-alive\r\n", "200|200+"), ("Connection: x\r\nConnection: close\r\n", "200"), ("Connection: Content-Length\r\n", "200+"),
    ("Connection: Upgrade\r\nUpgrade: websocket\r\n", "200+"), ("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n", "200+"), ("Expect: x\r\n", "200+|417+|417"), ("Expect: 100-continue\r\n", "200+|100 200+"),
    ("Authorization: Bearer x\r\n", "200+"), ("Authorization: Basic \r\n", "200+"), ("Cookie: a=b; c=\"d\r\n", "200+"), ("Accept: \u{ff}\r\n", "200+"), ("Accept-Encoding: gzip;q=x, \0\r\n", "400"), ("Accept-Encoding: gzip;q=9, *;q=-1\r\n", "200+"), ("Range: bytes=0-0\r\n", "200+"),
    ("If-None-Match: *\r\n", "200+"), ("X-Forwarded-For: , ,,\r\n", "200+"), ("X-Forwarded-Host: evil.example\r\n", "200+"), ("Forwarded: for=\"[\r\n", "200+"), ("X-Request-Id: a\r\nX-Request-Id: b\r\n", "200+"), ("X-HTTP-Method-Override: DELETE\r\n", "200+"), ("X-Original-URL: /v1/queues\r\n", "200+"),
    ("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Site: none\r\n", "200+"), ("Origin: null\r\n", "200+"), ("Content-Type: application/json\r\nContent-Type: text/plain\r\n", "200+"), ("Keep-Alive: timeout=999999\r\n", "200+"), ("TE: trailers, x;q=2\r\n", "200+"), ("Max-Forwards: 0\r\n", "200+"),
    ("Trailer: Content-Length\r\n", "200+"), ("Proxy: http://evil.example\r\n", "200+"), ("Via: 1.1 x\r\n", "200+"),
];

/// What other protocols say first.
#[rustfmt::skip]
const FOREIGN: &[(&str, &str)] = &[
    ("\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03", "400|-"), ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400|-"), ("SSH-2.0-OpenSSH_9.2\r\n", "400|-"), ("EHLO x\r\n", "400|-"), ("*1\r\n$4\r\nPING\r\n", "400|-"), ("stats\r\n", "400|-"), ("\x05\x01\0", "400|-"),
    ("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "400|-"), ("\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", "400|-"), ("\0\0\0\x3a\x01\0\0\0\0\0\0\0\u{d4}\x07\0\0", "400|-"), ("\0\0\0\x08\x04\u{d2}\x16\x2f", "400|-"), ("GIOP\x01\0", "400|-"),
    ("<policy-file-request/>\0", "400|-"), ("{\"jsonrpc\":\"2.0\"}\n", "400|-"), ("USER root\r\nPASS x\r\n", "400|-"), ("\0", "400|-"), ("\u{ff}\u{ff}\u{ff}\u{ff}", "400|-"), ("\x03\0\0\x13\x0e\u{e0}", "400|-"), ("GNUTELLA CONNECT/0.6\r\n\r\n", "400|-"),
    ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "400|-"), ("GET / HTTP/1.1\rHost: localhost\r\r", "400|-"), ("\r\n", "-"), ("\n\n\n\n", "-"), ("\r", "-|400"), ("", "-"), ("G", "-"), ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n", "-"), ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "-|200"),
    ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea", "-|200"), ("GET /healthz HTTP/1.1\nHost: localhost\n\n", "-|200"), ("POST /v1/queues/mail/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"payl", "400|-"),
    ("POST /v1/queues/mail/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"payload\":1}", "400|-"), ("POST /v1/queues/mail/pop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", "-|200"),
];

/// Returns the rows.
pub fn table() -> Vec<Row> {
    let mut table = rows(|line| format!("{line}\r\n{HOST}\r\n"), LINES);
    table.extend(rows(|host| format!("GET /v1/queues HTTP/1.1\r\n{host}\r\n"), HOSTS));
    table.extend(rows(|header| format!("{GET}{HOST}{header}\r\n"), HEADERS));
    table.extend(ending(str::to_owned, FOREIGN));
    let many = |count: usize| (0..count).map(|n| format!("h{n}: x\r\n")).collect::<String>();
    let long = |length: usize| "a".repeat(length);
    for (bytes, expected) in [
        (format!("{GET}{HOST}{}\r\n", many(99)), "200+"),
        (format!("{GET}{HOST}{}\r\n", many(100)), "431|400"),
        (format!("{GET}{HOST}{}\r\n", many(5000)), "431|400"),
        (format!("{GET}{HOST}a: {}\r\n\r\n", long(15_000)), "200+"),
        (format!("{GET}{HOST}a: {}\r\n\r\n", long(17_000)), "431"),
        (format!("{GET}{HOST}a: {}\r\n\r\n", long(1_000_000)), "431"),
        (format!("{GET}{HOST}{}: x\r\n\r\n", long(17_000)), "431|400"),
        (format!("GET /{} HTTP/1.1\r\n{HOST}\r\n", long(10_000)), "404+"),
        (format!("GET /{} HTTP/1.1\r\n{HOST}\r\n", long(17_000)), "414"),
        (format!("GET /{} HTTP/1.1\r\n{HOST}\r\n", long(1_000_000)), "414"),
        (format!("GET /healthz?{} HTTP/1.1\r\n{HOST}\r\n", long(17_000)), "414"),
        (format!("{} /healthz HTTP/1.1\r\n{HOST}\r\n", long(1000)), "405+|400"),
        (format!("{} /healthz HTTP/1.1\r\n{HOST}\r\n", long(17_000)), "414|400"),
        (format!("GET /{} HTTP/1.1\r\n{HOST}\r\n", "%".repeat(10_000)), "404+"),
        (format!("GET /{} HTTP/1.1\r\n{HOST}\r\n", "/".repeat(10_000)), "404+"),
        (format!("GET /v1/queues?{} HTTP/1.1\r\n{HOST}\r\n", "a&".repeat(5000)), "422+"),
        (format!("GET /v1/queues/{}a HTTP/1.1\r\n{HOST}\r\n", "%61".repeat(4000)), "422+"),
        (format!("{}{GET}{HOST}\r\n", "\r\n".repeat(2000)), "200+"),
        (
            format!("{GET}{HOST}\r\n").repeat(50),
            "200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200+",
        ),
    ] {
        table.push(Row { bytes: bytes.into_bytes(), expected, ends: false });
    }
    table
}
