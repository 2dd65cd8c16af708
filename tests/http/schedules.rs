//! Schedules: setting them, running them, and what they push.

use std::cell::RefCell;
use std::collections::BTreeMap;

use reqwest::Method;

use super::support::*;

/// Comes long after any test.
const RARE: &str = "0 0 29 2 *";

fn rule(cron: &str) -> Value {
    json!({"cron": cron, "queue": "work", "job": {"payload": {"n": 1}}})
}

async fn send(server: &Server, method: &str, name: &str, if_match: Option<&str>, body: Value) -> Reply {
    let headers: Vec<(&str, &str)> = if_match.map(|tag| ("if-match", tag)).into_iter().collect();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    raw(server, method, &format!("/v1/schedules/{name}"), &headers, body).await
}

/// Sets a schedule that must be in order.
async fn set(server: &Server, name: &str, rule: Value) -> Value {
    let reply = send(server, "PUT", name, None, rule).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()
}

async fn get(server: &Server, name: &str) -> Value {
    let (status, schedule) = server.get(&format!("/v1/schedules/{name}")).await;
    assert_eq!(status, 200, "{schedule}");
    schedule
}

async fn run(server: &Server, name: &str, key: Option<&str>) -> (u16, Value) {
    let headers: Vec<(&str, &str)> = key.map(|key| ("idempotency-key", key)).into_iter().collect();
    raw(server, "POST", &format!("/v1/schedules/{name}/run"), &headers, "").await.answer()
}

/// The jobs of a queue, oldest first.
async fn jobs(server: &Server, queue: &str) -> Vec<Value> {
    let (status, page) = server.get(&format!("/v1/queues/{queue}/jobs?limit=1000")).await;
    assert_eq!(status, 200, "{page}");
    page["jobs"].as_array().unwrap().clone()
}

/// The runs that pushed a job.
fn pushed(schedule: &Value) -> Vec<Value> {
    let runs = schedule["last_runs"].as_array().unwrap().iter();
    runs.filter(|run| run["job_id"].is_string()).cloned().collect()
}

/// When the jobs came due that are a schedule's, sorted: of more than its last ten runs, since the first of those.
fn due(schedule: &Value, jobs: &[Value]) -> Vec<i64> {
    let mut due: Vec<i64> = jobs.iter().map(|job| millis(&job["run_at"])).collect();
    due.sort_unstable();
    let runs = pushed(schedule);
    if jobs.len() > runs.len() {
        // What was before them may have been missed.
        due.retain(|at| *at >= millis(&runs[0]["at"]));
    }
    due
}

fn millis(time: &Value) -> i64 {
    time.as_str().unwrap().parse::<tailback::job::Timestamp>().unwrap().millis()
}

pub async fn a_schedule_is_shown_as_it_was_set(place: &Place) {
    let server = Server::start(&place.url).await;
    refused(&server.get("/v1/schedules/nightly").await, 404, "unknown-schedule");
    let mut rule = json!({"cron": " 30 2  * * 1-5 ", "time_zone": "europe/berlin", "queue": "work",
        "overlap": "skip", "misfire": "skip", "paused": false,
        "job": {"payload": {"n": 1.5}, "delay_ms": 5, "priority": -3, "max_attempts": 2, "expires_in_ms": 9,
            "backoff": {"kind": "fixed", "base_ms": 5, "factor": 2.0, "max_ms": 600_000, "jitter": 0.2},
            "headers": {"trace": "x"}}});
    let reply = send(&server, "PUT", "nightly", None, rule.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    rule["cron"] = json!("30 2 * * 1-5");
    rule["time_zone"] = json!("Europe/Berlin");
    rule["name"] = json!("nightly");
    rule["last_runs"] = json!([]);
    let mut shown = reply.json();
    let version = shown["version"].take();
    shown.as_object_mut().unwrap().remove("version");
    assert_eq!(reply.header("etag"), format!("\"{}\"", version.as_str().unwrap()));
    let next = shown["next_runs"].take();
    shown.as_object_mut().unwrap().remove("next_runs");
    assert_eq!(shown, rule);
    let next: Vec<i64> = next.as_array().unwrap().iter().map(millis).collect();
    assert!(next.len() == 5 && next.is_sorted() && next.iter().all(|at| at % 60_000 == 0), "{next:?}");
    let got = send(&server, "GET", "nightly", None, Value::Null).await;
    assert_eq!((got.json(), got.header("etag")), (reply.json(), reply.header("etag")));

    let unset = set(&server, "plain", self::rule(RARE)).await;
    let defaults = json!(["UTC", "allow", "once", false]);
    assert_eq!(json!([unset["time_zone"], unset["overlap"], unset["misfire"], unset["paused"]]), defaults);
    assert_eq!(unset["next_runs"].as_array().unwrap().len(), 5);
    let (status, page) = server.get("/v1/schedules?limit=1").await;
    assert_eq!((status, &page["schedules"]), (200, &json!([reply.json()])));
    let next = page["cursor"].as_str().unwrap();
    let (_, page) = server.get(&format!("/v1/schedules?limit=1&cursor={next}")).await;
    assert_eq!(page, json!({"schedules": [unset]}));
    assert_eq!(send(&server, "DELETE", "plain", None, Value::Null).await.status, 200);
    refused(&send(&server, "DELETE", "plain", None, Value::Null).await.answer(), 404, "unknown-schedule");
}

pub async fn a_schedule_changes_only_as_it_is_known(place: &Place) {
    let server = Server::start(&place.url).await;
    for unknown in ["*", "\"x\""] {
        let answer = send(&server, "PUT", "s", Some(unknown), rule(RARE)).await.answer();
        refused(&answer, 412, "settings-changed");
    }
    let first = send(&server, "PUT", "s", None, rule(RARE)).await.header("etag").to_owned();
    assert_eq!(run(&server, "s", None).await.0, 200);
    let after_a_run = send(&server, "GET", "s", None, Value::Null).await;
    assert_eq!(after_a_run.header("etag"), first, "a run does not change the rule");
    let second = send(&server, "PUT", "s", Some(&first), rule(RARE)).await;
    assert_eq!(second.status, 200, "{}", second.text);
    assert_eq!(second.json()["last_runs"], after_a_run.json()["last_runs"], "the runs stay");
    assert_ne!(second.header("etag"), first);
    refused(&send(&server, "PUT", "s", Some(&first), rule(RARE)).await.answer(), 412, "settings-changed");
    let gone = send(&server, "DELETE", "s", Some(&first), Value::Null).await.answer();
    refused(&gone, 412, "settings-changed");
    assert_eq!(send(&server, "DELETE", "s", Some("*"), Value::Null).await.status, 200);
}

pub async fn a_schedule_out_of_range_names_the_field(place: &Place) {
    let server = Server::start(&place.url).await;
    for (pointer, wrong) in [
        ("/cron", json!("0 0 30 2 *")),
        ("/cron", json!("* * * *")),
        ("/cron", json!("61 * * * *")),
        ("/cron", json!(5)),
        ("/time_zone", json!("Europe/Atlantis")),
        ("/queue", json!("a b")),
        ("/overlap", json!("never")),
        ("/misfire", json!("all")),
        ("/paused", json!(1)),
        ("/job", json!([1])),
        ("/job", json!(null)),
        ("/job/key", json!({"payload": 1, "key": "k"})),
        ("/job/run_at", json!({"payload": 1, "run_at": "2026-01-31T08:00:00Z"})),
        ("/job/delay_ms", json!({"payload": 1, "delay_ms": 31_536_000_001_u64})),
        ("/job/max_attempts", json!({"payload": 1, "max_attempts": -1})),
        (
            "/job/backoff/jitter",
            json!({"payload": 1, "backoff": {"kind": "fixed", "base_ms": 1, "jitter": 2}}),
        ),
        ("/job/expires_in_ms", json!({"payload": 1, "expires_in_ms": 0})),
        ("/job/headers", json!({"payload": 1, "headers": {"a b": "c"}})),
        ("/unknown", json!(1)),
    ] {
        let mut body = rule(RARE);
        body[pointer.split('/').nth(1).unwrap()] = wrong.clone();
        let answer = send(&server, "PUT", "s", None, body).await.answer();
        refused(&answer, 422, "invalid-field");
        assert_eq!(answer.1["pointer"], pointer, "{wrong}: {}", answer.1);
    }
    // A second of the hour that is skipped on the very day on which it is.
    let skipped = |zone: &str, paused: bool| {
        let rule = rule("* * 2 * 3 0L");
        json!({"cron": rule["cron"], "time_zone": zone, "paused": paused, "queue": "work", "job": rule["job"]})
    };
    for paused in [false, true] {
        invalid(&send(&server, "PUT", "s", None, skipped("Europe/Berlin", paused)).await.answer(), "/cron");
    }
    assert_eq!(send(&server, "PUT", "utc", None, skipped("UTC", false)).await.status, 200);
    for field in ["cron", "queue", "job"] {
        let mut body = rule(RARE);
        body.as_object_mut().unwrap().remove(field);
        invalid(&send(&server, "PUT", "s", None, body).await.answer(), &format!("/{field}"));
    }
    let twice = r#"{"cron": "* * * * *", "queue": "q", "job": {"payload": {"a": 1, "a": 2}}}"#;
    invalid(&raw(&server, "PUT", "/v1/schedules/s", &[], twice).await.answer(), "/job/payload");
    bad_parameter(&send(&server, "PUT", ".s", None, rule(RARE)).await.answer(), "name");
    bad_parameter(&server.get("/v1/schedules?limit=0").await, "limit");
    bad_parameter(&server.get("/v1/schedules?state=ready").await, "query");
    refused(&server.get("/v1/schedules/s").await, 404, "unknown-schedule");
    for call in ["run", "pause", "resume"] {
        let answer = server.post(&format!("/v1/schedules/s/{call}"), json!({})).await;
        refused(&answer, 404, "unknown-schedule");
    }
}

pub async fn a_schedule_pushes_each_occurrence(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let mut every_second = rule("* * * * * *");
    every_second["job"] = json!({"payload": {"n": 1.5}, "priority": 4, "headers": {"a": "b"},
        "max_attempts": 3, "expires_in_ms": 600_000});
    let first = millis(&set(&server, "s", every_second).await["next_runs"][0]);
    // Whoever waits is woken by what a schedule pushes.
    let taken = server.reserve("work", json!({"wait_ms": LONG_MS, "lease_ms": 600_000})).await.remove(0);
    assert_eq!((&taken["payload"], &taken["priority"]), (&json!({"n": 1.5}), &json!(4)));
    assert_eq!((&taken["headers"]["a"], &taken["max_attempts"]), (&json!("b"), &json!(3)));
    until("it has run some times", || async { pushed(&get(&server, "s").await).len() >= 4 }).await;
    assert_eq!(server.post("/v1/schedules/s/pause", json!({})).await.0, 200);
    let schedule = get(&server, "s").await;
    assert_eq!(schedule["next_runs"], json!([]));
    let jobs = jobs(&server, "work").await;
    let due = due(&schedule, &jobs);
    // On a machine that stood still for five seconds, one job stands for several.
    if pushed(&schedule).iter().all(|run| run["misfire"].is_null()) {
        let begin = if due.len() < jobs.len() { due[0] } else { first };
        let expected: Vec<i64> = (0..due.len() as i64).map(|n| begin + n * 1000).collect();
        assert_eq!(due, expected, "each second once");
        for run in pushed(&schedule) {
            let job = jobs.iter().find(|job| job["id"] == run["job_id"]).unwrap();
            assert_eq!(job["run_at"], run["at"]);
        }
    }
    // The server counts a job once it has heard that it is stored.
    let series = "tailback_job_events_total{event=\"pushed\"}";
    until("all are counted", || async { metric(&server, series).await >= jobs.len() as f64 }).await;
    assert_eq!(metric(&server, series).await, jobs.len() as f64);
    assert_eq!(server.post("/v1/schedules/s/resume", json!({})).await.0, 200);
    until("it goes on", || async { self::jobs(&server, "work").await.len() > jobs.len() }).await;
    let next = self::jobs(&server, "work").await;
    let resumed = next.iter().find(|job| !jobs.contains(job) && job["state"] == "ready").unwrap();
    assert!(millis(&resumed["run_at"]) > *due.last().unwrap());
}

/// A pipeline sends the rule that it has: that must not undo what an operator has done.
pub async fn a_rule_that_does_not_say_so_resumes_nothing(place: &Place) {
    let server = Server::start(&place.url).await;
    set(&server, "s", rule(RARE)).await;
    assert_eq!(server.post("/v1/schedules/s/pause", json!({})).await.0, 200);
    let mut said = rule(RARE);
    let kept = set(&server, "s", said.clone()).await;
    assert_eq!((&kept["paused"], &kept["next_runs"]), (&json!(true), &json!([])));
    said["paused"] = json!(false);
    assert_eq!(set(&server, "s", said.clone()).await["paused"], false);
    said["paused"] = json!(true);
    assert_eq!(set(&server, "s", said.clone()).await["paused"], true);
    assert_eq!(server.send(Method::DELETE, "/v1/schedules/s", None).await.0, 200);
    assert_eq!(set(&server, "s", rule(RARE)).await["paused"], false, "a new one is not paused");
}

pub async fn a_run_by_hand_pushes_at_once(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut paused = rule(RARE);
    paused["paused"] = json!(true);
    assert_eq!(set(&server, "s", paused).await["next_runs"], json!([]));
    let (status, first) = run(&server, "s", None).await;
    assert_eq!((status, &first["manual"]), (200, &json!(true)), "{first}");
    let job = see(&server, first["job_id"].as_str().unwrap()).await;
    assert_eq!(
        (&job["queue"], &job["payload"], &job["state"]),
        (&json!("work"), &json!({"n": 1}), &json!("ready"))
    );
    let (_, named) = run(&server, "s", Some("mine")).await;
    assert_eq!(run(&server, "s", Some("mine")).await.1, named, "the repeat is answered with the first");
    let (_, other) = run(&server, "s", Some("other")).await;
    assert_ne!(other["job_id"], named["job_id"]);
    assert_eq!(get(&server, "s").await["last_runs"], json!([first, named, other]));
    assert_eq!(jobs(&server, "work").await.len(), 3);
    let stats = server.get("/v1/queues/work/stats").await.1;
    assert_eq!(stats["counts"]["ready"], 3, "{stats}");
    bad_parameter(&run(&server, "s", Some("a b")).await, "Idempotency-Key");
}

pub async fn runs_at_once_are_all_remembered(place: &Place) {
    let server = Server::start(&place.url).await;
    set(&server, "s", rule(RARE)).await;
    let runs = (0..8).map(|n| {
        let key = if n < 4 { "same".to_owned() } else { n.to_string() };
        let server = &server;
        async move { run(server, "s", Some(&key)).await }
    });
    let answers = futures::future::join_all(runs).await;
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    assert!(answers[..4].iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(pushed(&get(&server, "s").await).len(), 5);
    assert_eq!(jobs(&server, "work").await.len(), 5);
}

pub async fn none_of_many_runs_at_once_fails(place: &Place) {
    let server = Server::start(&place.url).await;
    set(&server, "s", rule(RARE)).await;
    let answers = futures::future::join_all((0..50).map(|_| run(&server, "s", None))).await;
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    assert_eq!(jobs(&server, "work").await.len(), 50);
}

pub async fn an_overlap_is_skipped(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut rule = rule(RARE);
    rule["overlap"] = json!("skip");
    set(&server, "s", rule.clone()).await;
    let (_, first) = run(&server, "s", None).await;
    let (status, second) = run(&server, "s", None).await;
    assert_eq!(
        (status, &second["skipped"], second.get("job_id")),
        (200, &json!("overlap"), None),
        "{second}"
    );
    // The occurrences yield as well.
    rule["cron"] = json!("* * * * * *");
    set(&server, "s", rule).await;
    until("occurrences were skipped", || async {
        let runs = get(&server, "s").await["last_runs"].as_array().unwrap().clone();
        runs.iter().filter(|run| run["skipped"] == "overlap" && run["manual"].is_null()).count() >= 2
    })
    .await;
    assert_eq!(ids(&jobs(&server, "work").await), [id_of(&first)]);
    let job = take(&server, "work").await;
    assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    until("the next one is pushed", || async { jobs(&server, "work").await.len() == 1 }).await;
    assert_ne!(ids(&jobs(&server, "work").await), [id_of(&first)]);
}

fn id_of(run: &Value) -> String {
    run["job_id"].as_str().unwrap().to_owned()
}

pub async fn a_schedule_fills_a_full_queue(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "work", json!({"max_jobs": 1})).await;
    server.push("work", json!({"payload": 1})).await;
    set(&server, "s", rule(RARE)).await;
    assert!(run(&server, "s", None).await.1["job_id"].is_string());
}

/// What was missed while no server ran: one job for all of it, or none.
pub async fn missed_occurrences_are_made_up_for_once_or_not(place: &Place) {
    let mut server = Server::start(&place.url).await;
    for misfire in ["once", "skip"] {
        let mut rule = rule("*/2 * * * * *");
        rule["misfire"] = json!(misfire);
        rule["queue"] = json!(misfire);
        set(&server, misfire, rule).await;
    }
    until("both have run", || async {
        !pushed(&get(&server, "once").await).is_empty() && !pushed(&get(&server, "skip").await).is_empty()
    })
    .await;
    server.kill();
    // Not a wait for something: the time in which occurrences are missed.
    tokio::time::sleep(std::time::Duration::from_millis(8000)).await;
    let server = Server::start(&place.url).await;
    // Ten runs are remembered: what was seen once counts.
    let seen = RefCell::new(BTreeMap::<&str, (Value, Value)>::new());
    until("both have made up and gone on", || async {
        for misfire in ["once", "skip"] {
            let runs = get(&server, misfire).await["last_runs"].as_array().unwrap().clone();
            let two = runs.windows(2).find(|two| two[0]["misfire"] == true);
            let two = two.map(|two| (misfire, (two[0].clone(), two[1].clone())));
            seen.borrow_mut().extend(two);
        }
        seen.borrow().len() == 2
    })
    .await;
    for (misfire, (made_up, next)) in seen.into_inner() {
        assert_eq!(made_up["job_id"].is_string(), misfire == "once", "{made_up}");
        assert_eq!(made_up["skipped"] == "misfire", misfire == "skip", "{made_up}");
        let missed = millis(&next["at"]) - millis(&made_up["at"]);
        assert!(missed > 5000, "{missed} ms are over with one run");
        // Every job is a run's; nothing between the two was pushed.
        let between = jobs(&server, misfire).await.into_iter().filter(|job| {
            let due = millis(&job["run_at"]);
            due > millis(&made_up["at"]) && due < millis(&next["at"]) && job["id"] != made_up["job_id"]
        });
        assert_eq!(between.count(), 0);
    }
}

/// Three servers, one of which dies and comes back: every occurrence is pushed by exactly one.
pub async fn an_occurrence_is_pushed_once_by_many_servers(place: &Place) {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Server::start(&place.url).await);
    }
    for name in ["a", "b", "c", "d"] {
        let mut rule = rule("* * * * * *");
        rule["queue"] = json!(name);
        set(&servers[1], name, rule).await;
    }
    let reached = |server: Server, count: usize| async move {
        until("it has run some times", || async { jobs(&server, "a").await.len() >= count }).await;
        server
    };
    let killed = servers.remove(0);
    let mut killed = reached(killed, 3).await;
    killed.kill();
    let server = reached(servers.remove(0), 7).await;
    for name in ["a", "b", "c", "d"] {
        let path = format!("/v1/schedules/{name}/pause");
        assert_eq!(server.send(Method::POST, &path, None).await.0, 200);
    }
    for name in ["a", "b", "c", "d"] {
        let schedule = get(&server, name).await;
        if pushed(&schedule).iter().any(|run| run["misfire"] == true) {
            continue; // the machine stood still; what is asserted below does not hold then
        }
        let due = due(&schedule, &jobs(&server, name).await);
        assert!(due.windows(2).all(|pair| pair[1] - pair[0] == 1000), "{name}: {due:?}");
    }
}

pub async fn a_schedule_understands_words(place: &Place) {
    let server = Server::start(&place.url).await;
    for (word, meant) in [("@daily", "0 0 * * *"), ("@Hourly", "0 * * * *"), ("@annually", "0 0 1 1 *")] {
        let shown = set(&server, "word", rule(word)).await;
        assert_eq!(shown["cron"], meant);
    }
    for cron in ["@reboot", "@", "@daily @daily"] {
        invalid(&send(&server, "PUT", "word", None, rule(cron)).await.answer(), "/cron");
    }
    for cron in ["0 0 L * *", "0 8 * * 5L", "0 8 * * 5#2"] {
        assert_eq!(set(&server, "days", rule(cron)).await["cron"], cron);
    }
}
