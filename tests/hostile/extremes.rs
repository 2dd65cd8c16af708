//! The extreme of every field of every call: nothing that is accepted may spoil the store. Afterwards the server starts
//! again on the same database, and `migrate` copies it to the other store and back, each time with everything equal.

use std::process::Command;

use mongodb::bson::DateTime;
use reqwest::Method;
use serde_json::{Value, json};

use crate::common::server::{Place, Server, UNHURRIED, until};

/// What stands in the place of a number, and of what a number may be mistaken for.
const EXTREMES: [&str; 24] = [
    "0",
    "-1",
    "0.5",
    "1e3",
    "-0.0",
    "1e308",
    "1e400",
    "1000000",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "31536000000",
    "31536000001",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "123456789012345678901234567890",
    "null",
    "true",
    "[]",
];

/// What stands in the place of a text.
const TEXTS: [&str; 10] = [
    "",
    "a\n",
    "\u{0}",
    "$x",
    "0000-01-01T00:00:00Z",
    "1969-12-31T23:59:59Z",
    "9999-12-31T23:59:59.999Z",
    "-009999-01-01T00:00:00Z",
    "2026-01-31T08:00:60Z",
    "\u{10ffff}",
];

/// A call with every field at a value that it takes.
struct Call {
    method: Method,
    path: &'static str,
    body: Value,
    /// The body names a reservation, which each call needs anew.
    settles: bool,
}

fn job() -> Value {
    json!({
        "payload": {"n": 1}, "delay_ms": 31_536_000_000_u64, "priority": 2_147_483_647, "max_attempts": 1_000_000,
        "expires_in_ms": 31_536_000_000_u64, "headers": {"h": "x"}, "group": "g", "semaphores": ["s"],
        "backoff": {"kind": "fixed", "base_ms": 31_536_000_000_u64, "factor": 100.0, "max_ms": 31_536_000_000_u64,
            "jitter": 1.0},
        "then": [{"queue": "later", "delay_ms": 31_536_000_000_u64, "priority": -2_147_483_648, "max_attempts": 1}],
    })
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn settings() -> Value {
    json!({
        "lease_ms": 86_400_000, "max_attempts": 1_000_000, "retain_done_ms": 31_536_000_000_u64,
        "retain_dead_ms": 31_536_000_000_u64, "max_jobs": 9_223_372_036_854_775_807_u64,
        "max_reserved": 9_223_372_036_854_775_807_u64, "rate": {"limit": 1_000_000, "per_ms": 86_400_000},
        "backoff": {"kind": "exponential", "base_ms": 0, "factor": 1.0, "max_ms": 31_536_000_000_u64, "jitter": 0.0},
        "dead_letter": "graves", "on_group_dead": "skip", "paused": true,
    })
}

fn calls() -> Vec<Call> {
    let call = |method: Method, path, body| Call { method, path, body, settles: false };
    let settle = |path, body| Call { method: Method::POST, path, body, settles: true };
    let keyed = with(job(), json!({"key": "k", "key_ttl_ms": 31_536_000_000_u64}));
    let queued = with(job(), json!({"queue": "pushed"}));
    vec![
        call(Method::PUT, "/v1/queues/set", settings()),
        call(Method::PATCH, "/v1/queues/changed", settings()),
        call(Method::POST, "/v1/queues/jobs/jobs", keyed.clone()),
        call(Method::POST, "/v1/queues/timed/jobs", json!({"payload": 1, "run_at": "2200-01-01T00:00:00Z"})),
        call(Method::POST, "/v1/queues/many/jobs/batch", json!({"jobs": [job()]})),
        call(
            Method::POST,
            "/v1/queues/stock/reserve",
            json!({"count": 1, "lease_ms": 86_400_000, "worker": "w"}),
        ),
        call(Method::POST, "/v1/reserve", json!({"queues": ["stock"], "count": 1, "lease_ms": 86_400_000})),
        call(Method::POST, "/v1/queues/stock/pop", json!({"count": 1})),
        settle("/v1/jobs/{id}/commit", json!({"result": 1, "push": [queued.clone()]})),
        settle("/v1/jobs/{id}/rollback", json!({"delay_ms": 31_536_000_000_u64, "error": "e"})),
        settle("/v1/jobs/{id}/extend", json!({"lease_ms": 86_400_000, "progress": 1})),
        settle(
            "/v1/jobs/{id}/move",
            json!({"queue": "moved", "payload": 1, "delay_ms": 31_536_000_000_u64, "priority": 2_147_483_647}),
        ),
        call(Method::PUT, "/v1/semaphores/limit", json!({"capacity": 1_000_000})),
        call(
            Method::POST,
            "/v1/batches",
            json!({"sealed": false, "jobs": [queued.clone()], "on_finished": queued}),
        ),
        call(
            Method::PUT,
            "/v1/schedules/leap",
            json!({
                "cron": "0 0 29 2 *", "time_zone": "UTC", "queue": "timed", "job": job(), "overlap": "allow",
                "misfire": "once", "paused": false,
            }),
        ),
        call(
            Method::POST,
            "/v1/workers/w/heartbeat",
            json!({"slots": 1_000_000, "version": "1", "timeout_ms": 86_400_000}),
        ),
        call(
            Method::POST,
            "/v1/queues/gone/purge",
            json!({"state": "dead", "before": "2200-01-01T00:00:00Z"}),
        ),
        call(Method::POST, "/v1/queues/gone/redrive", json!({"state": "dead", "limit": 1})),
        call(
            Method::POST,
            "/v1/queues/gone/replay",
            json!({"from": "2000-01-01T00:00:00Z", "to": "2200-01-01T00:00:00Z", "limit": 1}),
        ),
    ]
}

/// The pointers of all numbers and texts in a body.
fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| leaves(value, &format!("{at}/{name}"), found))
        }
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(n, value)| leaves(value, &format!("{at}/{n}"), found));
        }
        _ => found.push(at.to_owned()),
    }
}

/// The body with this text of JSON at this place.
fn varied(body: &Value, at: &str, json: &str) -> String {
    let mut body = body.clone();
    *body.pointer_mut(at).unwrap() = "@@".into();
    body.to_string().replace("\"@@\"", json)
}

async fn send(server: &Server, call: &Call, body: &str) -> (u16, String) {
    let (mut path, mut body) = (call.path.to_owned(), body.to_owned());
    if call.settles {
        server.push("held", json!({"payload": 1})).await;
        let job = server.reserve("held", json!({"lease_ms": 86_400_000})).await.remove(0);
        path = path.replace("{id}", job["id"].as_str().unwrap());
        body = format!("{{\"reservation\":{},{}", job["reservation"], &body[1..]);
    }
    let request = server.http.request(call.method.clone(), format!("{}{path}", server.base));
    let response = request.header("content-type", "application/json").body(body).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

/// Everything that the server shows and that does not change by itself.
async fn everything(server: &Server) -> Value {
    let mut all = serde_json::Map::new();
    let mut get = async |path: String| {
        let (status, answer) = server.get(&path).await;
        assert_eq!(status, 200, "{path}: {answer}");
        all.insert(path, answer.clone());
        answer
    };
    let queues = get("/v1/queues?limit=1000".to_owned()).await;
    for queue in queues["queues"].as_array().unwrap() {
        let name = queue["queue"].as_str().unwrap();
        get(format!("/v1/queues/{name}")).await;
        get(format!("/v1/queues/{name}/jobs?limit=1000")).await;
    }
    get("/v1/schedules".to_owned()).await;
    get("/v1/semaphores".to_owned()).await;
    all.into()
}

/// Returns whether a job of these lists is over, or due, within the next minutes.
fn changes_soon(all: &Value) -> bool {
    let soon = DateTime::from_millis(DateTime::now().timestamp_millis() + 300_000);
    let soon = soon.try_to_rfc3339_string().unwrap();
    let is_soon = |at: &Value| at.as_str().is_some_and(|at| at < soon.as_str());
    let lists = all.as_object().unwrap().values().filter_map(|answer| answer["jobs"].as_array());
    let mut jobs = lists.flatten();
    jobs.any(|job| is_soon(&job["expires_at"]) || job["state"] == "scheduled" && is_soon(&job["run_at"]))
}

async fn migrate(from: &str, to: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailback"));
    command.args(["migrate", "--from", from, "--to", to]);
    command.env("TAILBACK_LOG__FILTER", "warn").envs([UNHURRIED]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

async fn starts_with(url: &str, before: &Value) {
    let mut server = Server::start(url).await;
    assert_eq!(everything(&server).await, *before);
    assert!(server.terminate().await.success());
}

/// A place on the other store, and one more on the same.
async fn others(place: &Place) -> (Place, Place) {
    if place.url.starts_with("sqlite:") {
        (Place::mongo().await, Place::sqlite().await)
    } else {
        (Place::sqlite().await, Place::mongo().await)
    }
}

pub async fn no_extreme_spoils_the_store(place: &Place) {
    let mut server = Server::start(&place.url).await;
    assert_eq!(server.send(Method::PUT, "/v1/semaphores/s", Some(json!({"capacity": 1}))).await.0, 200);
    let stock: Vec<Value> = (0..1000).map(|n| json!({"payload": n})).collect();
    assert_eq!(server.post("/v1/queues/stock/jobs/batch", json!({"jobs": stock})).await.0, 200);
    let (mut sent, mut accepted) = (0, 0);
    for call in calls() {
        let (status, answer) = send(&server, &call, &call.body.to_string()).await;
        assert!(status < 300, "every field is at its bound: {} {answer}", call.path);
        let mut places = Vec::new();
        leaves(&call.body, "", &mut places);
        for at in places {
            let is_text = call.body.pointer(&at).unwrap().is_string();
            let texts = TEXTS.iter().map(|text| Value::from(*text).to_string());
            let texts = texts.chain([Value::from("x".repeat(300)).to_string()]);
            let numbers = EXTREMES.iter().map(|json| (*json).to_owned());
            let values: Vec<String> = if is_text { texts.collect() } else { numbers.collect() };
            for json in values {
                let (status, answer) = send(&server, &call, &varied(&call.body, &at, &json)).await;
                assert!(status < 500, "{} {at} = {json}: {status} {answer}", call.path);
                assert_ne!(status, 404, "{} {at} = {json}: {answer}", call.path);
                if status == 422 {
                    let problem: Value = serde_json::from_str(&answer).unwrap();
                    assert!(problem["pointer"].is_string(), "{} {at} = {json}: {answer}", call.path);
                }
                (sent, accepted) = (sent + 1, accepted + u32::from(status < 300));
            }
        }
    }
    assert!(sent > 1000 && accepted > 100, "{sent} sent, {accepted} accepted");
    // What ends by itself must not end in the middle of the comparison.
    for queue in ["held", "stock"] {
        assert_eq!(server.send(Method::DELETE, &format!("/v1/queues/{queue}?force=true"), None).await.0, 200);
    }
    until("nothing ends soon", || async { !changes_soon(&everything(&server).await) }).await;
    let before = everything(&server).await;
    assert!(server.terminate().await.success());
    starts_with(&place.url, &before).await;
    let (other, same) = others(place).await;
    migrate(&place.url, &other.url).await;
    starts_with(&other.url, &before).await;
    migrate(&other.url, &same.url).await;
    starts_with(&same.url, &before).await;
    other.clear().await;
    same.clear().await;
}

/// The values that broke a store: they are refused, and name their fields.
pub async fn a_count_that_no_store_holds_is_refused(place: &Place) {
    let mut server = Server::start(&place.url).await;
    for field in ["max_jobs", "max_reserved"] {
        for count in [9_223_372_036_854_775_808_u64, u64::MAX] {
            let (status, problem) =
                server.send(Method::PUT, "/v1/queues/x", Some(json!({field: count}))).await;
            assert_eq!((status, &problem["pointer"]), (422, &json!(format!("/{field}"))), "{problem}");
            assert!(problem["detail"].as_str().unwrap().contains("9223372036854775807"), "{problem}");
        }
        let most = json!({field: 9_223_372_036_854_775_807_u64});
        assert_eq!(
            server.send(Method::PUT, "/v1/queues/most", Some(most.clone())).await.1[field],
            most[field]
        );
        server.push("most", json!({"payload": 1})).await;
        let job = server.reserve("most", json!({"wait_ms": 60_000, "lease_ms": 600_000})).await.remove(0);
        let on = json!({"push": [{"queue": "most", "payload": 2}]});
        assert_eq!(server.settle(&job, "commit", on).await.0, 200);
    }
    assert!(server.terminate().await.success());
    let server = Server::start(&place.url).await;
    assert_eq!(server.get("/v1/queues/most").await.0, 200);
}

/// In BSON they would be six times as long, and all three are one document of MongoDB.
pub async fn long_lists_of_small_numbers_fit_into_a_job(place: &Place) {
    let server = Server::start(&place.url).await;
    let settings = json!({"retain_done_ms": 600_000});
    assert_eq!(server.send(Method::PUT, "/v1/queues/work", Some(settings)).await.0, 200);
    let list = |n: u8| json!(vec![n; 500_000]);
    let id = server.push("work", json!({"payload": list(1)})).await;
    let job = server.reserve("work", json!({"lease_ms": 600_000})).await.remove(0);
    assert!(job["payload"] == list(1));
    assert_eq!(server.settle(&job, "extend", json!({"progress": list(2)})).await.0, 200);
    assert_eq!(server.settle(&job, "commit", json!({"result": list(3)})).await.0, 200);
    let (status, done) = server.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!((status, &done["state"]), (200, &json!("done")));
    assert!(done["payload"] == list(1) && done["progress"] == list(2) && done["result"] == list(3));
}
