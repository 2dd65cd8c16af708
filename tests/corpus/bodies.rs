//! Raw requests: how long a body is (`Content-Length`, `Transfer-Encoding`, chunks), its type, and requests behind each other.

use super::sockets::{Row, ending, rows};

const PUSH: &str = "POST /v1/queues/mail/jobs HTTP/1.1\r\nHost: localhost\r\n";
const JSON: &str = "Content-Type: application/json\r\n";
const BODY: &str = "{\"payload\":1}";
const CHUNK: &str = "d\r\n{\"payload\":1}\r\n0\r\n\r\n";

/// With a body of 13 bytes.
#[rustfmt::skip]
const LENGTHS: &[(&str, &str)] = &[
    ("Content-Length: 13\r\n", "201+"), ("content-length:13\r\n", "201+"), ("CONTENT-LENGTH: \t13 \t\r\n", "201+"), ("Content-Length: 013\r\n", "201+|400"), ("Content-Length: 0000000000000000000000013\r\n", "201+|400"), ("Content-Length: 13\n", "201+|400"),
    ("Content-Length: \r\n", "400"), ("Content-Length: -13\r\n", "400"), ("Content-Length: +13\r\n", "400"), ("Content-Length: 0xd\r\n", "400"), ("Content-Length: d\r\n", "400"), ("Content-Length: 13.0\r\n", "400"), ("Content-Length: 1e1\r\n", "400"), ("Content-Length: 1 3\r\n", "400"),
    ("Content-Length: 13;x\r\n", "400"), ("Content-Length: 13,13\r\n", "400"), ("Content-Length: 13, 14\r\n", "400"), ("Content-Length: ,13\r\n", "400"), ("Content-Length: \"13\"\r\n", "400"), ("Content-Length: 1_3\r\n", "400"), ("Content-Length: \u{b2}\r\n", "400"), ("Content-Length: 13\0\r\n", "400"),
    ("Content-Length: 13\u{b}\r\n", "400"), ("Content-Length: 13\r\nContent-Length: 13\r\n", "400"), ("Content-Length: 13\r\nContent-Length: 0\r\n", "400"), ("Content-Length: 0\r\ncontent-length: 13\r\n", "400"), ("Content-Length: 18446744073709551615\r\n", "400|431"), ("Content-Length: 18446744073709551616\r\n", "400"),
    ("Content-Length: 9223372036854775807\r\n", "413"), ("Content-Length: 9223372036854775808\r\n", "400"), ("Content-Length: 16777217\r\n", "413"), ("Content-Length: 99999999999999999999999999\r\n", "400"), ("Content-Length : 13\r\n", "400"), ("Content-Length\t: 13\r\n", "400"), (" Content-Length: 13\r\n", "400"),
    ("Content-Length\0: 13\r\n", "400"), ("X: y\r\n Content-Length: 13\r\n", "400"), ("Content-Length:\r\n 13\r\n", "400"), ("Content-\r\nLength: 13\r\n", "400"), ("Content_Length: 13\r\n", "422 400"), ("Content-Length\u{a0}: 13\r\n", "400"), ("", "422 400"), ("Content-Length: 0\r\n", "422 400"),
];

/// With both a body of 13 bytes in one chunk.
#[rustfmt::skip]
const CODINGS: &[(&str, &str)] = &[
    ("Transfer-Encoding: chunked\r\n", "201+"), ("transfer-encoding:CHUNKED\r\n", "201+"), ("Transfer-Encoding: \t chunked \t\r\n", "201+"), ("Transfer-Encoding: xchunked\r\n", "400"), ("Transfer-Encoding: chunkedx\r\n", "400"), ("Transfer-Encoding: chunk\r\n", "400"), ("Transfer-Encoding: \r\n", "400"),
    ("Transfer-Encoding: identity\r\n", "400"), ("Transfer-Encoding: gzip\r\n", "400"), ("Transfer-Encoding: gzip, chunked\r\n", "400"), ("Transfer-Encoding: chunked, chunked\r\n", "400"), ("Transfer-Encoding: chunked, identity\r\n", "400"), ("Transfer-Encoding: identity, chunked\r\n", "400"), ("Transfer-Encoding: chunked;q=1\r\n", "400"),
    ("Transfer-Encoding: \"chunked\"\r\n", "400"), ("Transfer-Encoding: 'chunked'\r\n", "400"), ("Transfer-Encoding: ,chunked\r\n", "400"), ("Transfer-Encoding: chunked,\r\n", "400"), ("Transfer-Encoding: chunked\0\r\n", "400"), ("Transfer-Encoding: \u{b}chunked\r\n", "400"), ("Transfer-Encoding: chunked\u{c}\r\n", "400"), ("Transfer-Encoding: \u{e9}chunked\r\n", "400"),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "400"), ("Transfer-Encoding: chunked\r\ntransfer-encoding: identity\r\n", "400"), ("Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n", "400"), ("Transfer-Encoding: chunked\r\nContent-Length: 13\r\n", "400"), ("Content-Length: 13\r\nTransfer-Encoding: chunked\r\n", "400"),
    ("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", "400"), ("Transfer-Encoding: chunked\r\nContent-Length: x\r\n", "400"), ("Transfer-Encoding : chunked\r\n", "400"), ("Transfer-Encoding\t:chunked\r\n", "400"), (" Transfer-Encoding: chunked\r\n", "400"), ("X: y\r\n Transfer-Encoding: chunked\r\n", "400"), ("Transfer-Encoding:\r\n chunked\r\n", "400"),
    ("Transfer-Encoding: chun\r\n ked\r\n", "400"), ("Transfer\u{2d}Encoding\0: chunked\r\n", "400"), ("X: x\rTransfer-Encoding: chunked\r\n", "400"), ("X: x\nTransfer-Encoding: chunked\r\n", "201+|400"), ("Transfer_Encoding: chunked\r\n", "422 400"), ("TE: chunked\r\n", "422 400"), ("Transfer-Encoding: chunked\r\nTE: trailers\r\n", "201+"),
    ("Transfer-Encoding: chunked\r\nConnection: Transfer-Encoding\r\n", "201+|400"), ("Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n", "201+"), ("Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n", "100 201+|201+"),
];

/// Behind `Transfer-Encoding: chunked`.
#[rustfmt::skip]
const CHUNKS: &[(&str, &str)] = &[
    ("D\r\n{\"payload\":1}\r\n0\r\n\r\n", "201+"), ("000000d\r\n{\"payload\":1}\r\n000\r\n\r\n", "201+"), ("5\r\n{\"pay\r\n8\r\nload\":1}\r\n0\r\n\r\n", "201+"), ("d;a\r\n{\"payload\":1}\r\n0;b=c\r\n\r\n", "201+"), ("d;a=\"b;c\"\r\n{\"payload\":1}\r\n0\r\n\r\n", "201+"), ("d ;a\r\n{\"payload\":1}\r\n0\r\n\r\n", "201+|400"),
    ("d\r\n{\"payload\":1}\r\n0\r\nA: b\r\n\r\n", "201+"), ("d\r\n{\"payload\":1}\r\n0\r\nContent-Length: 99\r\nHost: x\r\n\r\n", "201+|400"), ("d\r\n{\"payload\":1}\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n", "201+|400"), ("0\r\n\r\n", "422+"), ("d\r\n{\"payload\":x}\r\n0\r\n\r\n", "400+"),
    ("d\n{\"payload\":1}\n0\n\n", "201+|400"), ("d\r{\"payload\":1}\r0\r\r", "400"), ("0xd\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"), ("+d\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"), ("-d\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"), (" d\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"), ("\td\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"),
    ("d,d\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"), ("d.0\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"), ("g\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"), ("\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"), (";a\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"), ("d\0\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"), ("d\u{e9}\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"),
    ("d\r\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"), ("d \r\n{\"payload\":1}\r\n0\r\n\r\n", "201+|400"), ("d\r\n{\"payload\":1}0\r\n\r\n", "400"), ("d\r\n{\"payload\":1}\r\r\n0\r\n\r\n", "400"), ("d\r\n{\"payload\":1}x\r\n0\r\n\r\n", "400"), ("c\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"), ("e\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"),
    ("d\r\n{\"payload\":1}\r\n-0\r\n\r\n", "400"), ("d\r\n{\"payload\":1}\r\n\r\n0\r\n\r\n", "400"), ("ffffffffffffffff\r\n{\"payload\":1}\r\n0\r\n\r\n", "413"), ("10000000000000000\r\n{\"payload\":1}\r\n0\r\n\r\n", "413|400"), ("1000000000000000d\r\n{\"payload\":1}\r\n0\r\n\r\n", "413|400"), ("7fffffffffffffff\r\n{\"payload\":1}\r\n0\r\n\r\n", "413"),
    ("1000001\r\n{\"payload\":1}\r\n0\r\n\r\n", "413"), ("d;a=\u{1}\r\n{\"payload\":1}\r\n0\r\n\r\n", "201+|400"), ("d;a\rb\r\n{\"payload\":1}\r\n0\r\n\r\n", "400"), ("d;a\n{\"payload\":1}\r\n0\r\n\r\n", "201+|400"), ("d\r\n{\"payload\":1}\r\n0\r\nno colon\r\n\r\n", "400|201+"), ("d\r\n{\"payload\":1}\r\n0\r\n A: b\r\n\r\n", "400|201+"),
    ("d\r\n{\"payload\":1}\r\n0\r\n\0: b\r\n\r\n", "400|201+"), ("d\r\n{\"payload\":1}\r\n0\r\nA: b\r\r\n\r\n", "400|201+"),
];

/// The same, where the client ends in the middle.
#[rustfmt::skip]
const CUT: &[(&str, &str)] = &[
    ("", "400|-"), ("d", "400|-"), ("d\r\n", "400|-"), ("d\r\n{\"pay", "400|-"), ("d\r\n{\"payload\":1}", "400|-"), ("d\r\n{\"payload\":1}\r\n", "400|-"), ("d\r\n{\"payload\":1}\r\n0", "400|-"), ("d\r\n{\"payload\":1}\r\n0\r\n", "400|-"), ("d\r\n{\"payload\":1}\r\n0\r\n\r", "400|-"), ("d\r\n{\"payload\":1}\r\n0\r\n\r\n", "-|201"),
    ("d\r\n{\"payload\":1}\r\n0\r\nA: b", "400|-"), ("d\r\n{\"payload\":1}\r\n0\r\n\r\nGET", "-|201"),
];

/// With a body of 13 bytes and its length.
#[rustfmt::skip]
const TYPES: &[(&str, &str)] = &[
    ("", "415+"), ("Content-Type: \r\n", "415+"), ("Content-Type: text/plain\r\n", "415+"), ("Content-Type: text/json\r\n", "415+"), ("Content-Type: application/x-www-form-urlencoded\r\n", "415+"), ("Content-Type: multipart/form-data; boundary=x\r\n", "415+"), ("Content-Type: application/jsonx\r\n", "415+"), ("Content-Type: application\r\n", "415+"),
    ("Content-Type: */*\r\n", "415+"), ("Content-Type: application/json; charset=utf-16\r\n", "201+|415+"), ("Content-Type: APPLICATION/JSON\r\n", "201+"), ("Content-Type: application/json;;;\r\n", "201+|415+"), ("Content-Type: application/problem+json\r\n", "201+|415+"), ("Content-Type: application/json, text/plain\r\n", "415+"), ("Content-Type: \u{e9}\r\n", "415+"),
    ("Content-Type: application/json\r\nContent-Type: text/plain\r\n", "415+|400+|201+"), ("Content-Type: application/json\r\nContent-Encoding: gzip\r\n", "201+|415+|400+"), ("Content-Type: application/json\r\nContent-Encoding: identity\r\n", "201+"), ("Content-Type: application/json\r\nSec-Fetch-Site: cross-site\r\n", "403+"), ("Content-Type: application/json\r\nOrigin: http://evil.example\r\n", "403+"),
    ("Content-Type: application/json\r\nOrigin: null\r\n", "403+"), ("Content-Type: application/json\r\nOrigin: http://localhost\r\n", "201+"), ("Content-Type: application/json\r\nOrigin: http://localhost.evil.example\r\n", "403+"), ("Content-Type: application/json\r\nOrigin: \u{e9}\r\n", "403+"), ("Content-Type: application/json\r\nOrigin: http://localhost\r\nOrigin: http://localhost\r\n", "201+|403+"),
    ("Content-Type: application/json\r\nExpect: 100-continue\r\n", "100 201+|201+"), ("Content-Type: application/json\r\nExpect: x\r\n", "201+|417|417+"), ("Content-Type: application/json\r\nConnection: close\r\n", "201"), ("Content-Type: application/json\r\nIf-Match: \"\r\n", "201+|400+"), ("Content-Type: application/json\r\nIdempotency-Key: \u{e9}\r\n", "201+|400+"),
];

/// Requests behind each other, each list of statuses in their order.
#[rustfmt::skip]
const BEHIND: &[(&str, &str)] = &[
    ("POST /v1/queues/mail/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\nSMUGGLED", "422 405"), ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", "200"), ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "200"),
    ("HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", "200 404+"), ("GET /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 48\r\n\r\nDELETE /v1/queues/mail HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"), ("DELETE /v1/queues/none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n{}{}", "200+|415+"),
    ("POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 41\r\n\r\nGET /v1/queues HTTP/1.1\r\nHost: localhost\r\n", "405+"), ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n\r\n", "200+"), ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "200"),
    ("GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "200+"), ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n", "200 400"), ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n\0", "200 400"), ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "200 400|200"),
    ("POST /v1/queues/mail/pop HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 2\r\n\r\n{}", "421+"), ("POST /v1/queues/mail/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\n{\"payload\":1}", "415+"), ("TRACE / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", "405"), ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "200+"),
    ("CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
];

/// Returns the rows.
pub fn table() -> Vec<Row> {
    let chunked = |rest: &str| format!("{PUSH}{JSON}Transfer-Encoding: chunked\r\n\r\n{rest}");
    let mut table = rows(|header| format!("{PUSH}{JSON}{header}\r\n{BODY}"), LENGTHS);
    table.extend(rows(|header| format!("{PUSH}{JSON}{header}\r\n{CHUNK}"), CODINGS));
    table.extend(rows(chunked, CHUNKS));
    table.extend(ending(chunked, CUT));
    table.extend(rows(|header| format!("{PUSH}{header}Content-Length: 13\r\n\r\n{BODY}"), TYPES));
    table.extend(rows(str::to_owned, BEHIND));
    let old = PUSH.replace("HTTP/1.1", "HTTP/1.0");
    for (bytes, expected) in [
        (format!("{old}{JSON}Transfer-Encoding: chunked\r\n\r\n{CHUNK}"), "400"),
        (format!("{old}{JSON}Content-Length: 13\r\n\r\n{BODY}"), "201"),
        (chunked(&format!("d;{}\r\n{BODY}\r\n0\r\n\r\n", "a".repeat(100_000))), "400|413|431"),
        (chunked(&format!("{}d\r\n{BODY}\r\n0\r\n\r\n", "0".repeat(100_000))), "201+|400|413"),
        (chunked(&format!("d\r\n{BODY}\r\n0\r\n{}\r\n", "a: b\r\n".repeat(50_000))), "400|413|431|201+|201"),
        (
            chunked(&format!("d\r\n{BODY}\r\n0\r\na: {}\r\n\r\n", "b".repeat(1_000_000))),
            "400|413|431|201+|201",
        ),
        (chunked(&format!("{}d\r\n{BODY}\r\n0\r\n\r\n", "1\r\n \r\n".repeat(20_000))), "201+"),
        (chunked(&format!("{}d\r\n{BODY}\r\n0\r\n\r\n", "1;a=b\r\n \r\n".repeat(20_000))), "201+|400"),
    ] {
        table.push(Row { bytes: bytes.into_bytes(), expected, ends: false });
    }
    table
}
