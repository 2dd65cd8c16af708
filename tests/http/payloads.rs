//! Payloads come back equal to what was pushed: the text of the answers is compared.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::value::RawValue;

use super::support::*;

#[derive(serde::Deserialize)]
struct Shown {
    payload: Box<RawValue>,
}

#[derive(serde::Deserialize)]
struct Jobs {
    jobs: Vec<Shown>,
}

/// Pushes each text and compares what a look and a reserve answer with the text that is expected.
async fn survive(server: &Server, texts: &[(String, String)]) {
    let jobs: Vec<String> = texts.iter().map(|(sent, _)| format!("{{\"payload\":{sent}}}")).collect();
    let body = format!("{{\"jobs\":[{}]}}", jobs.join(","));
    let reply = post_text(server, "/v1/queues/mail/jobs/batch", &body).await;
    let results = reply.json()["results"].as_array().unwrap().clone();
    for (result, (sent, expected)) in results.iter().zip(texts) {
        assert_eq!(result["status"], 201, "{sent}: {result}");
        let reply = raw(server, "GET", &format!("/v1/jobs/{}", id(result)), &[], "").await;
        let shown: Shown = serde_json::from_str(&reply.text).unwrap();
        assert_eq!(shown.payload.get(), expected, "sent: {sent}");
    }
    let body = format!("{{\"count\":{}}}", texts.len());
    let reply = post_text(server, "/v1/queues/mail/reserve", &body).await;
    let jobs: Jobs = serde_json::from_str(&reply.text).unwrap();
    let shown: Vec<&str> = jobs.jobs.iter().map(|job| job.payload.get()).collect();
    assert_eq!(shown, texts.iter().map(|(_, expected)| expected.as_str()).collect::<Vec<_>>());
}

pub async fn odd_payloads_come_back_as_they_were(place: &Place) {
    let server = Server::start(&place.url).await;
    let same = [
        "null",
        "true",
        "0",
        "-0",
        "1.0",
        "1e5",
        "1E+5",
        "-0.0",
        "1e-400",
        "1e400",
        "0.10",
        "123456789012345678901234567890",
        "-9223372036854775809",
        "18446744073709551616",
        "0.123456789012345678901234567890",
        "9007199254740993",
        "2147483648",
        r#""""#,
        r#""\u0000""#,
        r#""a\u0000b""#,
        r#""\"\\\n\t""#,
        "\"😀ü\u{7f}\u{2028}\u{feff}\"",
        "[]",
        "{}",
        "[[],{}]",
        r#"{"":{"":[]}}"#,
        r#"{"b":1,"a":2,"10":3,"9":4}"#,
        r#"{"$set":{"a":1}}"#,
        r#"{"$oid":"507f1f77bcf86cd799439011"}"#,
        r#"{"$date":"2026-01-01T00:00:00Z"}"#,
        r#"{"$numberLong":"5"}"#,
        r#"{"$":1,"$$ROOT":2,"a.b":3,".":4}"#,
        r#"{"\u0000":1,"a\u0000b":2}"#,
        r#"{"_id":1,"payload":{"payload":null}}"#,
        r#"{"$serde_json::private::RawValue":"1"}"#,
        r#"{"$serde_json::private::Number":"1"}"#,
    ];
    let mut texts: Vec<(String, String)> = same.map(|text| (text.to_owned(), text.to_owned())).to_vec();
    for (sent, expected) in [
        (r#""\u0041\/\ud83d\ude00\u00fc""#, r#""A/😀ü""#),
        (" [ 1 ,\t{ \"a\" :\r\n null } ] ", r#"[1,{"a":null}]"#),
        (r#"{"\u0024x":"\b\f\u000b"}"#, r#"{"$x":"\b\f\u000b"}"#),
    ] {
        texts.push((sent.to_owned(), expected.to_owned()));
    }
    for depth in [90, 99, 100, 101, 127, 128, 1000] {
        let arrays = "[".repeat(depth) + &"]".repeat(depth);
        let objects = r#"{"a":"#.repeat(depth) + "1.0" + &"}".repeat(depth);
        texts.extend([(arrays.clone(), arrays), (objects.clone(), objects)]);
    }
    survive(&server, &texts).await;
}

pub async fn a_payload_may_be_as_big_as_the_limit(place: &Place) {
    let server = Server::start(&place.url).await;
    let limit = 1 << 20;
    let longest = format!("\"{}\"", "ü".repeat(limit / 2 - 1));
    assert_eq!(longest.len(), limit);
    let many = format!("[{}1]", "1,".repeat((limit - 3) / 2));
    survive(&server, &[(longest.clone(), longest), (many.clone(), many)]).await;
    let over = format!("{{\"payload\":\"{}\"}}", "x".repeat(limit - 1));
    let answer = post_text(&server, "/v1/queues/mail/jobs", &over).await.answer();
    refused(&answer, 413, "too-large");
    assert_eq!(answer.1["pointer"], "/payload");
}

/// A JSON value as it may be sent, and as it must come back.
type Pair = (String, String);

fn string() -> impl Strategy<Value = Pair> {
    (prop::collection::vec(any::<char>(), 0..8), any::<bool>(), "[$.a-c\u{0} ]{0,3}").prop_map(
        |(chars, escaped, plain)| {
            let text: String = chars.into_iter().chain(plain.chars()).collect();
            let expected = serde_json::to_string(&text).unwrap();
            let escapes: String = text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
            (if escaped { format!("\"{escapes}\"") } else { expected.clone() }, expected)
        },
    )
}

fn value() -> impl Strategy<Value = Pair> {
    let number = prop_oneof![
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?",
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_filter("JSON has no such number", |n| n.is_finite()).prop_map(|n| format!("{n:?}")),
        Just("null".to_owned()),
    ];
    let leaf = prop_oneof![number.prop_map(|text| (text.clone(), text)), string()];
    leaf.prop_recursive(6, 60, 8, |inner| {
        let join = |sent: Vec<String>, expected: Vec<String>, open: &str, close: &str| {
            let sent = format!("{open} {}\n{close}", sent.join("\t, "));
            (sent, format!("{open}{}{close}", expected.join(",")))
        };
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(move |items| {
                let (sent, expected) = items.into_iter().unzip();
                join(sent, expected, "[", "]")
            }),
            prop::collection::vec((string(), inner), 0..8).prop_map(move |mut fields| {
                let mut seen = std::collections::HashSet::new();
                fields.retain(|((_, key), _)| seen.insert(key.clone()));
                let fields = fields.into_iter().map(|((sent_key, key), (sent, expected))| {
                    (format!("{sent_key} : {sent}"), format!("{key}:{expected}"))
                });
                let (sent, expected) = fields.unzip();
                join(sent, expected, "{", "}")
            }),
        ]
    })
}

pub async fn arbitrary_payloads_come_back_as_they_were(place: &Place) {
    let server = Server::start(&place.url).await;
    // One batch of many values, not one run for each: what fails is printed as it was sent.
    let mut runner = TestRunner::default();
    let texts: Vec<Pair> = (0..150).map(|_| value().new_tree(&mut runner).unwrap().current()).collect();
    survive(&server, &texts).await;
}

pub async fn ambiguous_payloads_are_refused(place: &Place) {
    let server = Server::start(&place.url).await;
    server.push("held", json!({"payload": 1})).await;
    // It is held through thirty calls.
    let taken = server.reserve("held", json!({"lease_ms": 600_000})).await.remove(0);
    for payload in [
        r#"{"a":1,"a":1}"#,
        r#"[{"x":{"a":1,"\u0061":2}}]"#,
        r#""\ud800""#,
        r#"["\udc00\ud800"]"#,
        r#"{"\ud83d":1}"#,
        r#""\ud83dx""#,
    ] {
        let push = format!("{{\"payload\":{payload}}}");
        invalid(&post_text(&server, "/v1/queues/mail/jobs", &push).await.answer(), "/payload");
        let batch = format!("{{\"jobs\":[{push},{{\"payload\":1}}]}}");
        let answer = post_text(&server, "/v1/queues/other/jobs/batch", &batch).await.json();
        invalid(&(422, answer["results"][0]["problem"].clone()), "/jobs/0/payload");
        assert_eq!(answer["results"][1]["status"], 201);
        for (call, field, more) in
            [("commit", "result", ""), ("extend", "progress", ""), ("move", "payload", r#","queue":"q""#)]
        {
            let path = format!("/v1/jobs/{}/{call}", id(&taken));
            let body = format!("{{\"reservation\":{},\"{field}\":{payload}{more}}}", taken["reservation"]);
            invalid(&post_text(&server, &path, &body).await.answer(), &format!("/{field}"));
        }
    }
    assert_eq!(see(&server, &id(&taken)).await["state"], "reserved");
}

pub async fn results_and_progress_come_back_as_they_were(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"retain_done_ms": 600_000})).await;
    let odd = r#"{"$x":[1.0,12345678901234567890123,"\u0000"],"":-0,"b":1e5,"a":null}"#;
    let taken = push_and_take(&server, "mail").await;
    for (call, field) in [("extend", "progress"), ("commit", "result")] {
        let path = format!("/v1/jobs/{}/{call}", id(&taken));
        let body = format!("{{\"reservation\":{},\"{field}\": {odd} }}", taken["reservation"]);
        assert_eq!(post_text(&server, &path, &body).await.status, 200);
        let shown = raw(&server, "GET", &format!("/v1/jobs/{}", id(&taken)), &[], "").await.text;
        assert!(shown.contains(&format!("\"{field}\":{odd}")), "{shown}");
    }
}

/// Values that are no JSON: numbers and words, strings, arrays and objects, and what stands beside a value.
const NOT_JSON: &[&str] = &[
    "nul",
    "True",
    "NaN",
    "Infinity",
    "+1",
    "01",
    "-",
    "-01",
    "1.",
    ".5",
    "1e",
    "1e+",
    "0x1",
    "1_000",
    "٣",
    "'a'",
    "\"a",
    "\"\t\"",
    "\"\n\"",
    r#""\x""#,
    r#""\u12""#,
    r#""\u12G4""#,
    "[",
    "]",
    "[1,]",
    "[,1]",
    "[1 2]",
    "[1",
    "{",
    "{\"a\"}",
    "{\"a\":}",
    "{a:1}",
    "{'a':1}",
    "{\"a\":1,}",
    "{,}",
    "{\"a\" 1}",
    "{1:2}",
    "1 2",
    "//x\n1",
    "/**/1",
    "\u{feff}1",
    "\u{a0}1",
    "undefined",
    "",
    ",",
    "[1]]",
    "{}}",
    "\"\u{1}\"",
];

/// What is no JSON must be refused wherever it stands; what is must be taken.
pub async fn what_is_not_json_is_malformed(place: &Place) {
    let server = Server::start(&place.url).await;
    let path = "/v1/queues/mail/jobs";
    for value in NOT_JSON {
        let reply = post_text(&server, path, &format!("{{\"payload\":{value}}}")).await;
        refused(&reply.answer(), 400, "malformed");
        let reply = post_text(&server, path, &format!("{{\"payload\":[0,{{\"a\":{value}}}]}}")).await;
        refused(&reply.answer(), 400, "malformed");
    }
    let open = "[".repeat(100_000);
    let deep = r#"{"payload":"#.repeat(50_000);
    for body in ["{\"payload\":1}x", "{\"payload\":1}{}", "\u{feff}{\"payload\":1}", &open, &deep] {
        let status = post_text(&server, path, body).await.status;
        assert!([400, 422].contains(&status), "{status}: {}", &body[..body.len().min(40)]);
    }
    let not_text: [&[u8]; 4] =
        [b"{\"payload\":\"\xff\"}", b"\xff\xfe{}", b"{\"payload\":\"\xed\xa0\x80\"}", b"\x00"];
    for body in not_text {
        refused(&raw(&server, "POST", path, &[], body).await.answer(), 400, "malformed");
    }
    for (body, pointer) in
        [("[]", ""), ("null", ""), ("1", ""), ("\"x\"", ""), (r#"{"payload":1,"payload":2}"#, "/payload")]
    {
        invalid(&post_text(&server, path, body).await.answer(), pointer);
    }
    // An array of values in the order of the fields is no request either.
    for path in [
        "/v1/settle",
        "/v1/reserve",
        "/v1/queues/mail/reserve",
        "/v1/queues/mail/pop",
        "/v1/queues/mail/purge",
    ] {
        for body in ["[]", "[1]", " [[\"mail\"]]", r#"["ready"]"#] {
            invalid(&post_text(&server, path, body).await.answer(), "");
        }
        refused(&post_text(&server, path, "[").await.answer(), 400, "malformed");
    }
    for body in [" \r\n\t{ \"payload\" :1 } \n", r#"{"\u0070ayload":[1e-0,"\u002F"]}"#] {
        assert_eq!(post_text(&server, path, body).await.status, 201, "{body}");
    }
    assert_eq!(server.get("/v1/queues/mail/jobs").await.1["jobs"].as_array().unwrap().len(), 2);
}

pub async fn a_header_that_is_named_twice_is_refused(place: &Place) {
    let server = Server::start(&place.url).await;
    let taken = push_and_take(&server, "held").await;
    let job = server.push("mail", json!({"payload": 1})).await;
    for (headers, at) in [(r#"{"a":1,"a":2}"#, "/headers/a"), (r#"{"b":1,"a":{"x":1,"x":2}}"#, "/headers/a")]
    {
        let body = format!("{{\"headers\":{headers}}}");
        invalid(&post_text(&server, "/v1/queues/mail/jobs", &body).await.answer(), at);
        let many = format!("{{\"jobs\":[{{\"queue\":\"mail\",\"headers\":{headers}}}]}}");
        invalid(&post_text(&server, "/v1/jobs", &many).await.answer(), &format!("/jobs/0{at}"));
        let path = format!("/v1/jobs/{}/move", id(&taken));
        let body =
            format!("{{\"reservation\":{},\"queue\":\"q\",\"headers\":{headers}}}", taken["reservation"]);
        invalid(&post_text(&server, &path, &body).await.answer(), at);
        let body = format!("{{\"headers\":{headers}}}");
        let json = [("content-type", "application/json")];
        invalid(&raw(&server, "PATCH", &format!("/v1/jobs/{job}"), &json, body.as_str()).await.answer(), at);
    }
    assert_eq!(see(&server, &job).await["headers"], json!({}));
}
