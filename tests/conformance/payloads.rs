//! Payloads come back equal to what was pushed.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tailback::job::transition::{Edit, Operation};
use tailback::job::{Content, Job, JobId, Payload, Rules, Stage};
use tailback::store::{Change, Filter, Store};

use super::support::*;

/// Pushes each text and compares it with what `get` and a claim give back.
async fn survive(store: &dyn Store, texts: &[String]) {
    let pushed = push_all(store, texts.iter().map(|text| job("q").payload(text)).collect()).await;
    for (id, text) in pushed.iter().zip(texts) {
        assert_eq!(see(store, id).await.payload, payload(text));
    }
    let mut taken = claim(store, ask("q", texts.len())).await;
    taken.sort_by(|a, b| a.meta.id.cmp(&b.meta.id));
    assert_eq!(ids(&taken), pushed);
    for (job, text) in taken.iter().zip(texts) {
        assert_eq!(job.payload, payload(text));
    }
    let gone = taken.iter().map(commit).collect();
    apply_all(store, gone, &Rules::default()).await;
}

async fn all_survive(store: &dyn Store, texts: &[&str]) {
    let wrapped = texts
        .iter()
        .flat_map(|text| [(*text).to_owned(), format!("[{text}]"), format!(r#"{{"a":{{"b":{text}}}}}"#)]);
    survive(store, &wrapped.collect::<Vec<_>>()).await;
}

pub async fn numbers_keep_their_text(store: &dyn Store) {
    let numbers = [
        "0",
        "-0",
        "0.0",
        "-0.0",
        "1.0",
        "1.50",
        "1e5",
        "1E5",
        "1e+5",
        "1E-7",
        "100000.0",
        "0.1",
        "1e400",
        "-1e-400",
        "123456789012345678901234567890",
        "0.1234567890123456789012345678901",
        "3.0000000000000000000000001",
        "2147483647",
        "2147483648",
        "-2147483648",
        "-2147483649",
        "4294967296",
        "9007199254740991",
        "9007199254740993",
        "9223372036854775806",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775807",
        "-9223372036854775808",
        "-9223372036854775809",
        "18446744073709551615",
        "5e-324",
        "1.7976931348623157e308",
    ];
    all_survive(store, &numbers).await;
}

pub async fn strings_stay_what_they_are(store: &dyn Store) {
    let strings = [
        r#""""#,
        r#""$x""#,
        r#""\u0000""#,
        r#""a\u0000b""#,
        r#""\"\\\/\b\f\n\r\t""#,
        r#""\ud83d\ude00 ü \u2028""#,
        "\"\u{7f}\u{80}\u{feff}\u{ffff}\u{10ffff}\"",
        r#""2026-01-31T08:00:00Z""#,
        r#""507f1f77bcf86cd799439011""#,
    ];
    all_survive(store, &strings).await;
}

pub async fn any_key_may_occur(store: &dyn Store) {
    let objects = [
        r#"{"":1}"#,
        r#"{"$set":{"a":1}}"#,
        r#"{"$":1,"$$ROOT":2,"$literal":3}"#,
        r#"{"a.b":1,"a":{"b":2},".":3}"#,
        r#"{"\u0000":1,"a\u0000b":2}"#,
        r#"{"_id":1,"id":2}"#,
        r#"{"ü":1,"😀":2,"\"":3,"\\":4}"#,
        r#"{"$date":"2026-01-31T08:00:00Z"}"#,
        r#"{"$oid":"507f1f77bcf86cd799439011"}"#,
        r#"{"$numberLong":"5"}"#,
        r#"{"$numberDecimal":"1.0"}"#,
        r#"{"$binary":{"base64":"","subType":"00"}}"#,
        r#"{"__proto__":1}"#,
        r#"{"$serde_json::private::RawValue":"1"}"#,
        r#"{"$serde_json::private::Number":"1"}"#,
    ];
    all_survive(store, &objects).await;
}

pub async fn keys_keep_their_order(store: &dyn Store) {
    let objects = [r#"{"b":1,"a":2,"C":3,"10":4,"9":5}"#, r#"{"z":{"y":1,"x":2},"a":[{"b":1,"a":2}]}"#];
    all_survive(store, &objects).await;
}

pub async fn any_value_is_a_payload(store: &dyn Store) {
    let values =
        ["null", "true", "false", "0", r#""x""#, "[]", "{}", "[[]]", "[{}]", r#"{"a":[]}"#, "[null,[null]]"];
    all_survive(store, &values).await;
}

pub async fn nesting_may_be_deep(store: &dyn Store) {
    let mut texts = Vec::new();
    for depth in [90, 99, 100, 101, 150, 180, 200, 5000] {
        texts.push("[".repeat(depth) + &"]".repeat(depth));
        texts.push(r#"{"a":"#.repeat(depth) + "1.0" + &"}".repeat(depth));
    }
    survive(store, &texts).await;
}

pub async fn a_payload_may_be_long(store: &dyn Store) {
    let words: Vec<String> = (0..60_000).map(|n| format!("\"word {n}\"")).collect();
    let long = format!("[{}]", words.join(","));
    assert!(long.len() > 700_000);
    survive(store, &[long, format!("\"{}\"", "x".repeat(1_000_000))]).await;
}

pub async fn headers_come_back(store: &dyn Store) {
    let draft = job("q").header("traceparent", "00-ab-cd-01").header("", "").header("$a.b", "\u{0}ü\"");
    let taken = push_and_take(store, draft.clone()).await;
    assert_eq!(taken.headers, draft.build(store).spec.headers);
    assert_eq!(taken.headers.len(), 3);
}

pub async fn results_and_progress_are_exact_as_well(store: &dyn Store) {
    let odd = payload(r#"{"$x":[1.0,12345678901234567890123,"\u0000"],"":-0}"#);
    let taken = push_and_take(store, job("q")).await;
    let extend = Operation::Extend { claim: held_by(&taken), lease_ms: None, progress: Some(odd.clone()) };
    apply(store, change(&taken.meta.id, extend)).await.unwrap();
    let commit = Operation::Commit { claim: held_by(&taken), result: Some(odd.clone()), push: Vec::new() };
    apply_under(store, change(&taken.meta.id, commit), &rules_of("q", with_history)).await.unwrap();
    let done = see(store, &taken.meta.id).await;
    assert_eq!((done.meta.progress, done.result), (Some(odd.clone()), Some(odd)));
}

pub async fn a_result_of_null_is_a_result(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    let commit =
        Operation::Commit { claim: held_by(&taken), result: Some(Payload::null()), push: Vec::new() };
    apply_under(store, change(&taken.meta.id, commit), &rules_of("q", with_history)).await.unwrap();
    assert_eq!(see(store, &taken.meta.id).await.result, Some(Payload::null()));
}

/// All bytes, none, many, and text that is JSON.
fn binaries() -> Vec<Content> {
    let all: Vec<u8> = (0..=255).collect();
    vec![
        binary(&all, "application/octet-stream"),
        binary(&[], "application/x-empty"),
        binary(&[0], "application/x-protobuf; messageType=\"a.B\""),
        binary(b"null", "application/json"),
        binary("\u{fc}\r\n".as_bytes(), "text/plain; charset=utf-8"),
        binary(&all.repeat(4000), "image/png"),
    ]
}

pub async fn binary_payloads_come_back_as_they_were(store: &dyn Store) {
    let rules = rules_of("q", with_history);
    let all = binaries();
    let drafts = all.iter().map(|payload| job("q").carrying(payload.clone())).collect();
    let pushed = push_all(store, drafts).await;
    let carried = |jobs: &[Job]| jobs.iter().map(|job| job.payload.clone()).collect::<Vec<_>>();
    for (id, payload) in pushed.iter().zip(&all) {
        assert_eq!(see(store, id).await.payload, *payload);
    }
    assert_eq!(carried(&store.peek(&queue("q"), 9).await.unwrap()), all);
    let listed = store.find(&Filter::all(queue("q")), None, 9).await.unwrap();
    assert_eq!(carried(&listed.into_iter().map(Result::unwrap).collect::<Vec<_>>()), all);
    // Failed, delivered again, and kept in history.
    let taken = claim(store, ask("q", all.len())).await;
    assert_eq!(carried(&taken), all);
    apply_all(store, taken.iter().map(|job| rollback(job, Some(0))).collect(), &rules).await;
    let again = claim(store, ask("q", all.len())).await;
    assert_eq!(ids(&again).len(), all.len());
    apply_all(store, again.iter().map(commit).collect(), &rules).await;
    for (id, payload) in pushed.iter().zip(&all) {
        assert_eq!(see(store, id).await.payload, *payload);
    }
}

/// Each form of a payload takes the place of each other.
pub async fn a_payload_may_change_its_form(store: &dyn Store) {
    let (bytes, other) = (binary(&[0, 255], "a/b"), binary(&[], "c/d"));
    let forms = [content("1e5"), bytes.clone(), content(r#"{"a":1}"#), other, bytes, content("null")];
    let id = push_one(store, job("a").payload("[2]")).await;
    for form in &forms {
        let edit = edit_of(Edit { payload: Some(form.clone()), ..Edit::default() });
        apply(store, change(&id, edit)).await.unwrap();
        assert_eq!(see(store, &id).await.payload, *form);
        assert_eq!(push_one_beside(store, &id).await.payload, *form);
    }
    let mut taken = take(store, "a").await;
    for form in &forms {
        let Change { id, mut operation } = move_to(&taken, "a");
        if let Operation::Move { payload, .. } = &mut operation {
            *payload = Some(form.clone());
        }
        apply(store, change(&id, operation)).await.unwrap();
        taken = take(store, "a").await;
        assert_eq!(taken.payload, *form);
    }
    // Without one, all of it stays.
    apply(store, move_to(&taken, "b")).await.unwrap();
    assert_eq!(take(store, "b").await.payload, content("null"));
}

/// What a change of something else leaves of a job's payload.
async fn push_one_beside(store: &dyn Store, id: &JobId) -> Job {
    let edit = edit_of(Edit { priority: Some(3), ..Edit::default() });
    apply(store, change(id, edit)).await.unwrap();
    see(store, id).await
}

pub async fn a_result_takes_the_place_of_bytes(store: &dyn Store) {
    let bytes = binary(&[1, 2, 3], "a/b");
    let stages = vec![Stage::new(queue("b")), Stage::new(queue("c"))];
    let taken = push_and_take(store, job("a").carrying(bytes.clone()).then(stages)).await;
    apply(store, commit(&taken)).await.unwrap();
    let second = take(store, "b").await;
    assert_eq!(second.payload, bytes);
    let done =
        Operation::Commit { claim: held_by(&second), result: Some(payload("[1.0]")), push: Vec::new() };
    apply(store, change(&second.meta.id, done)).await.unwrap();
    assert_eq!(take(store, "c").await.payload, content("[1.0]"));
}

/// JSON texts of all shapes, with keys that differ within one object.
fn json_text() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?",
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_filter("JSON has no such number", |n| n.is_finite()).prop_map(|n| format!("{n:?}")),
    ];
    let string = any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap());
    let leaf = prop_oneof![Just("null".to_owned()), Just("true".to_owned()), number, string];
    leaf.prop_recursive(6, 60, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(|items| format!("[{}]", items.join(" , "))),
            prop::collection::hash_map("[$.a-z\\x00 ü]{0,4}", inner, 0..8).prop_map(|fields| {
                let fields = fields
                    .into_iter()
                    .map(|(key, value)| format!("{}: {value}", serde_json::to_string(&key).unwrap()));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
            }),
        ]
    })
}

pub async fn arbitrary_values_survive(store: &dyn Store) {
    let config = Config { cases: 24, failure_persistence: None, ..Config::default() };
    let texts = prop::collection::vec(json_text(), 1..12);
    let here = tokio::runtime::Handle::current();
    let outcome = tokio::task::block_in_place(|| {
        TestRunner::new(config).run(&texts, |texts| {
            let survived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                here.block_on(survive(store, &texts));
            }));
            survived.map_err(|_| TestCaseError::fail("a payload came back changed"))
        })
    });
    outcome.unwrap();
}
