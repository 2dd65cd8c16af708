//! `tailback work`: a command for each job, with everything that commands do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::path::Path;

use common::cli::{self, Beside, finish, run, zombies_of};
use common::server::{Place, Server, until};
use common::signal::Signal;
use common::worker::{Address, Notes, gone, losing, told, work};
use serde_json::{Value, json};

on_every_store! { exit_codes_decide a_reserve_whose_answer_was_lost_is_made_again }

async fn exit_codes_decide(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_DEFAULTS__WORKER_TIMEOUT_MS", "600000")]).await;
    let notes = Notes::new();
    let cases = [
        ("cat > /dev/null", "committed", 0, None),
        ("exit 0", "committed", 0, None),
        ("echo first >&2; printf 'last \\033[2J\\n' >&2; exit 3", "rolled_back", 1, Some("scheduled")),
        ("exit 75", "put_off", 1, Some("scheduled")),
        ("exit 65", "buried", 1, Some("dead")),
        ("kill -9 $$", "rolled_back", 1, Some("scheduled")),
    ];
    for (number, (script, outcome, code, state)) in cases.into_iter().enumerate() {
        // A queue of its own: what an earlier one rolled back may be due by now.
        let queue = format!("codes-{number}");
        // One that is put back is still to come when it is looked at, however slow the machine.
        let backoff = json!({"kind": "fixed", "base_ms": 600_000});
        let id = server.push(&queue, json!({"payload": {"n": 1.5}, "backoff": backoff})).await;
        let work = work(&server.base, &notes, &[&queue, "--once", "--lease", "10m"], script);
        let done = finish(work).await.with(code);
        let told = told(&done);
        assert_eq!(
            (told[0]["id"].as_str(), told[0]["outcome"].as_str()),
            (Some(id.as_str()), Some(outcome)),
            "{done:?}"
        );
        let (status, job) = server.get(&format!("/v1/jobs/{id}")).await;
        match state {
            None => assert_eq!(status, 404, "{job}"),
            Some(state) => {
                assert_eq!(job["state"], state, "{job}");
                assert_eq!(job["attempt"], i32::from(outcome != "put_off"), "{job}");
            }
        }
        if script.contains("first") {
            assert_eq!(job["errors"][0]["message"], "exit code 3: first\nlast \u{1b}[2J");
            assert!(done.err.contains("first"), "standard error is passed on: {done:?}");
        }
        if script.contains("kill") {
            assert_eq!(
                (told[0]["signal"].as_i64(), job["errors"][0]["message"].as_str()),
                (Some(9), Some("killed by signal 9"))
            );
        }
    }
    let none =
        finish(work(&server.base, &notes, &["codes-none", "--once", "--wait", "10ms"], "exit 0")).await;
    assert_eq!(none.code, Some(3), "{none:?}");
}

#[tokio::test]
async fn commands_get_the_payload_and_the_facts() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    let script = "cat > payload; env | grep ^TAILBACK_JOB_ | sort > facts; echo >> facts";
    let pushed = cli::run(
        &server,
        &[
            "push",
            "facts",
            "{ \"b\": 1.10, \"a\": 123456789012345678901 }",
            "--header",
            "tenant=a b",
            "--job-key",
            "k",
        ],
    );
    pushed.await.with(0);
    finish(work(&server.base, &notes, &["facts", "--once"], script)).await.with(0);
    let payload = notes.read("payload").unwrap();
    assert_eq!(payload.replace(' ', ""), "{\"b\":1.10,\"a\":123456789012345678901}");
    let facts = notes.read("facts").unwrap();
    for fact in [
        "TAILBACK_JOB_ATTEMPT=1",
        "TAILBACK_JOB_QUEUE=facts",
        "TAILBACK_JOB_KEY=k",
        "{\"tenant\":\"a b\"}",
        "TAILBACK_JOB_PAYLOAD_TYPE=application/json",
    ] {
        assert!(facts.contains(fact), "{fact}: {facts}");
    }
    let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    cli::run_with_input(&server, &["push", "facts", "-", "--bytes"], &bytes).await.with(0);
    finish(work(&server.base, &notes, &["facts", "--once"], script)).await.with(0);
    assert!(std::fs::read(notes.path("payload")).unwrap() == bytes);
    for (pushed, options, expected) in [
        ("\"grüße\\n\"", &["--text"][..], "grüße\n"),
        ("\"a\"", &[], "\"a\""),
        ("null", &[], "null"),
        ("1.0", &["--text"], "1.0"),
    ] {
        cli::run(&server, &["push", "facts", pushed]).await.with(0);
        let all = [&["facts", "--once"], options].concat();
        finish(work(&server.base, &notes, &all, script)).await.with(0);
        assert_eq!(notes.read("payload").unwrap(), expected);
    }
    // A large payload that the command does not read.
    server.push("facts", json!({"payload": "x".repeat(300_000)})).await;
    finish(work(&server.base, &notes, &["facts", "--once"], "exit 0")).await.with(0);
    // What it prints is the result.
    let id = server.push("facts", json!({"payload": 1, "retain_result_ms": 60000})).await;
    finish(work(&server.base, &notes, &["facts", "--once", "--result"], "echo '{\"n\": 1.50}'"))
        .await
        .with(0);
    assert_eq!(server.get(&format!("/v1/jobs/{id}")).await.1["result"], json!({"n": 1.5}));
}

#[tokio::test]
async fn a_command_is_in_the_trace_of_its_job() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    let of_job = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let of_worker = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let script = "echo \"parent=$TRACEPARENT state=$TRACESTATE\" > trace";
    let header = format!("traceparent={of_job}");
    let with_trace = ["push", "traced", "1", "--header", &header, "--header", "tracestate=a=1"];
    cli::run(&server, &with_trace).await.with(0);
    server.push("traced", json!({"payload": 2, "headers": {"traceparent": "none"}})).await;
    for expected in [format!("parent={of_job} state=a=1\n"), "parent= state=\n".to_owned()] {
        let mut command = work(&server.base, &notes, &["traced", "--once"], script);
        command.env("TRACEPARENT", of_worker).env("TRACESTATE", "b=2");
        finish(command).await.with(0);
        assert_eq!(notes.read("trace").unwrap(), expected);
    }
    // What a command pushes is in the trace that its environment names.
    let mut push = cli::command(&server.base, &["push", "child", "1"]);
    push.env("TRACEPARENT", of_job);
    finish(push).await.with(0);
    assert_eq!(server.reserve("child", json!({})).await[0]["headers"]["traceparent"], json!(of_job));
}

#[tokio::test]
async fn a_worker_that_has_ended_is_no_worker_any_more() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    server.push("ends", json!({"payload": 1})).await;
    let is_there = async |name: &str| {
        let list = server.get("/v1/workers").await.1;
        list["workers"].as_array().unwrap().iter().any(|it| it["name"].as_str().unwrap().starts_with(name))
    };
    // Each call by which it leaves has a second; where that is too short on a busy machine, another one leaves.
    let name = || format!("w{:x}", rand::random::<u64>());
    until("one that has drained is gone", || async {
        let name = name();
        run(&server, &["work", "ends", "--drain", "--worker", &name, "--", "true"]).await.with(0);
        !is_there(&name).await
    })
    .await;
    until("one that was stopped is gone", || async {
        let name = name();
        let idle = cli::command(&server.base, &["work", "ends", "--worker", &name, "--", "true"]);
        let idle = Beside::start(idle);
        until("it is there", || async { is_there(&name).await }).await;
        idle.signal(Signal::SIGTERM);
        idle.done().await.with(0);
        !is_there(&name).await
    })
    .await;
}

#[tokio::test]
async fn a_drain_does_all_and_several_at_once() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    for n in 0..8 {
        // Each but the first of a group is there only once the one before it is done.
        server.push("many", json!({"payload": n, "group": (n >= 4).then_some("g")})).await;
    }
    // Four must run at once, or none of the first four ends.
    let script = "n=$(cat); touch at.$n; if [ $n -lt 3 ]; then until [ -e at.0 -a -e at.1 -a -e at.2 -a -e at.3 ]; do sleep 0.02; done; fi";
    let done = finish(work(&server.base, &notes, &["many", "--drain", "-c", "4"], script)).await.with(0);
    assert_eq!(told(&done).iter().filter(|job| job["outcome"] == "committed").count(), 8, "{done:?}");
    // What failed is not ready again before the next one has drained.
    let backoff = json!({"kind": "fixed", "base_ms": 600_000});
    server.push("many", json!({"payload": 1, "backoff": backoff})).await;
    finish(work(&server.base, &notes, &["many", "--drain"], "exit 1")).await.with(1);
    finish(work(&server.base, &notes, &["many", "--drain"], "exit 1")).await.with(0);
}

#[tokio::test]
async fn nothing_of_a_command_is_left_behind() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    // One stays in its group, another one leaves it and ends as an orphan.
    let script = "sleep 1000 & echo $! > child; (setsid sh -c 'echo $$ > orphan; exec sleep 0.3' &); until [ -s orphan ]; do sleep 0.02; done";
    server.push("forks", json!({"payload": 1})).await;
    let worker = Beside::start(work(&server.base, &notes, &["forks"], script));
    let child = notes.until("child").await;
    let orphan = notes.until("orphan").await;
    gone(&child).await;
    gone(&orphan).await;
    until("nothing waits to be reaped", || async { zombies_of(worker.id()) == 0 }).await;
    let jobs = server.get("/v1/queues/forks/jobs").await.1;
    until("it is committed", || async {
        server.get("/v1/queues/forks/stats").await.1["counts"]["reserved"] == 0
    })
    .await;
    assert!(jobs["jobs"].as_array().unwrap().len() <= 1);
    worker.signal(Signal::SIGTERM);
    let done = worker.done().await.with(0);
    assert_eq!(told(&done)[0]["outcome"], "committed", "{done:?}");
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_stopped_even_if_it_ignores_sigterm() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let script = "trap '' TERM; sleep 1000 & echo $! > child; echo $$ > own; while :; do sleep 1; done";
    for timeout in ["1s", "10s", "50s"] {
        let (notes, queue) = (Notes::new(), format!("slow-{timeout}"));
        let id = server.push(&queue, json!({"payload": 1})).await;
        let options = [&*queue, "--once", "--timeout", timeout, "--kill-after", "500ms"];
        let done = finish(work(&server.base, &notes, &options, script)).await.with(1);
        // On a busy machine it may be stopped before it ignores that: then another one has longer.
        let Some(own) = notes.read("own") else { continue };
        assert_eq!(told(&done)[0]["signal"], 9);
        let message = server.get(&format!("/v1/jobs/{id}")).await.1["errors"][0]["message"].clone();
        assert_eq!(message, format!("stopped after {timeout}"));
        gone(&notes.until("child").await).await;
        gone(&own).await;
        return;
    }
    panic!("no command has ignored SIGTERM in time");
}

/// On SQLite only: a worker that stops has a second to tell the server, which a MongoDB that stands still takes from it.
#[tokio::test]
async fn a_stopped_worker_gives_back_what_does_not_end() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    // It ends when it is let, within the grace.
    let first = server.push("stop", json!({"payload": 1})).await;
    let script = "echo $$ > own; until [ -e go ]; do sleep 0.02; done";
    let mut worker = Beside::start(work(&server.base, &notes, &["stop"], script));
    notes.until("own").await;
    let second = server.push("stop", json!({"payload": 2})).await;
    worker.signal(Signal::SIGTERM);
    worker.says("stopping:").await; // else it may take the second one
    std::fs::write(notes.path("go"), "").unwrap();
    let done = worker.done().await.with(0);
    assert_eq!(told(&done)[0]["outcome"], "committed", "{done:?}");
    assert_eq!(server.get(&format!("/v1/jobs/{first}")).await.0, 404);
    // It does not end, and ignores being asked to.
    let notes = Notes::new();
    let script = "trap '' TERM; echo $$ > own; while :; do sleep 1; done";
    let worker = Beside::start(work(
        &server.base,
        &notes,
        &["stop", "--grace", "300ms", "--kill-after", "300ms"],
        script,
    ));
    let own = notes.until("own").await;
    worker.signal(Signal::SIGINT);
    let done = worker.done().await.with(0);
    assert_eq!(told(&done)[0]["outcome"], "given_back", "{done:?}");
    gone(&own).await;
    let job = server.get(&format!("/v1/jobs/{second}")).await.1;
    assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("ready"), Some(0)), "{job}");
    // A second signal does not wait for the grace.
    let notes = Notes::new();
    let mut worker =
        Beside::start(work(&server.base, &notes, &["stop", "--grace", "1h"], "echo $$ > own; sleep 1000"));
    let own = notes.until("own").await;
    worker.signal(Signal::SIGTERM);
    worker.says("stopping:").await; // two signals at once are one
    worker.signal(Signal::SIGTERM);
    assert_eq!(told(&worker.done().await.with(0))[0]["outcome"], "given_back");
    gone(&own).await;
}

#[tokio::test]
async fn a_lost_lease_stops_the_whole_group() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    let id = server.push("lost", json!({"payload": 1})).await;
    let script = "trap '' TERM; sleep 1000 & echo $! > child; echo $$ > own; while :; do sleep 1; done";
    let worker = Beside::start(work(
        &server.base,
        &notes,
        // Longer than a machine stands still: it is lost by what the server says, not since it was not extended.
        &["lost", "--lease", "20s", "--kill-after", "200ms"],
        script,
    ));
    let [child, own] = [notes.until("child").await, notes.until("own").await];
    server.send(reqwest::Method::DELETE, &format!("/v1/jobs/{id}?force=true"), None).await;
    gone(&child).await;
    gone(&own).await;
    // It goes on with the next one.
    let id = server.push("lost", json!({"payload": 2})).await;
    until("the next one runs", || async { notes.read("own").is_some_and(|now| now.trim() != own) }).await;
    // To be cancelled is asked, and the job is gone once its command is.
    server.send(reqwest::Method::DELETE, &format!("/v1/jobs/{id}"), None).await;
    until("it is removed", || async { server.get(&format!("/v1/jobs/{id}")).await.0 == 404 }).await;
    worker.signal(Signal::SIGTERM);
    let outcomes: Vec<Value> =
        told(&worker.done().await.with(0)).iter().map(|job| job["outcome"].clone()).collect();
    assert_eq!(outcomes, ["lost", "cancelled"]);
}

#[tokio::test]
async fn a_server_that_is_away_for_a_while_costs_nothing() {
    let (place, address) = (Place::sqlite().await, Address::take());
    let mut server = address.serve(&place, &[]).await;
    let notes = Notes::new();
    server.push("away", json!({"payload": 1, "max_attempts": 1})).await;
    let script = "echo $$ > own.$(cat); until [ -e go ]; do sleep 0.02; done";
    let worker = Beside::start(work(&server.base, &notes, &["away", "--lease", "10m"], script));
    notes.until("own.1").await;
    server.kill();
    // It ends while nobody can be told.
    std::fs::write(notes.path("go"), "").unwrap();
    gone(&notes.read("own.1").unwrap()).await;
    let server = address.serve(&place, &[]).await;
    until("it is committed", || async {
        server.get("/v1/queues/away/stats").await.1["counts"]["reserved"] == 0
    })
    .await;
    server.push("away", json!({"payload": 2})).await;
    notes.until("own.2").await;
    worker.signal(Signal::SIGTERM);
    let outcomes: Vec<Value> =
        told(&worker.done().await.with(0)).iter().map(|job| job["outcome"].clone()).collect();
    assert_eq!(outcomes, ["committed", "committed"]);
}

#[tokio::test]
async fn a_server_that_is_away_for_longer_than_the_lease_costs_an_attempt() {
    let (place, address) = (Place::sqlite().await, Address::take());
    let mut server = address.serve(&place, &[]).await;
    let notes = Notes::new();
    server.push("long", json!({"payload": 1})).await;
    let script = "echo $$ > own.$TAILBACK_JOB_ATTEMPT; [ $TAILBACK_JOB_ATTEMPT = 2 ] || { sleep 1000 & echo $! > child; wait; }";
    let worker = Beside::start(work(
        &server.base,
        &notes,
        &["long", "--lease", "12s", "--kill-after", "200ms"],
        script,
    ));
    let child = notes.until("child").await;
    server.kill();
    gone(&child).await;
    // The server knows nothing of it, and heartbeats would keep the job: the worker gives it up by itself.
    let _server = address.serve(&place, &[]).await;
    notes.until("own.2").await;
    worker.signal(Signal::SIGTERM);
    let done = worker.done().await.with(0);
    let told = told(&done);
    assert!(
        told[0]["outcome"] == "lost" && told[0]["reason"].as_str().unwrap().contains("lease is over"),
        "{done:?}"
    );
    assert_eq!(told[1]["outcome"], "committed", "{done:?}");
}

async fn a_reserve_whose_answer_was_lost_is_made_again(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_DEFAULTS__WORKER_TIMEOUT_MS", "600000")]).await;
    let notes = Notes::new();
    let id = server.push("orphan", json!({"payload": 1})).await;
    let base = losing(&server.base, b"\"reservation\"").await;
    // Heartbeats keep what nobody runs: it must come with the repeat.
    let worker = Beside::start(work(&base, &notes, &["orphan", "--lease", "10m"], "echo $$ > own"));
    notes.until("own").await;
    until("it is committed", || async { server.get(&format!("/v1/jobs/{id}")).await.0 == 404 }).await;
    worker.signal(Signal::SIGTERM);
    let done = worker.done().await.with(0);
    assert_eq!(told(&done)[0]["attempt"], 1, "{done:?}");
    assert!(done.err.contains("trying again"), "the answer was lost: {done:?}");
}

#[tokio::test]
async fn a_command_that_was_asked_to_stop_commits_nothing() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let script = "trap 'exit 0' TERM; echo $$ > own; while :; do sleep 0.02; done";
    // The worker stops; and what was to be drained is not.
    let notes = Notes::new();
    let id = server.push("half", json!({"payload": 1})).await;
    let options = ["half", "--drain", "--grace", "0s", "--worker", "mail-1", "--kill-after", "10m"];
    let worker = Beside::start(work(&server.base, &notes, &options, script));
    notes.until("own").await;
    let job = server.get(&format!("/v1/jobs/{id}")).await.1;
    let name = job["worker"].as_str().unwrap();
    assert!(name.starts_with("mail-1-"), "each process has its own name: {name}");
    worker.signal(Signal::SIGTERM);
    let done = worker.done().await.with(1);
    assert_eq!((&told(&done)[0]["outcome"], &told(&done)[0]["exit_code"]), (&json!("given_back"), &json!(0)));
    let job = server.get(&format!("/v1/jobs/{id}")).await.1;
    assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("ready"), Some(0)), "{job}");
    // The job is not wanted any more.
    let notes = Notes::new();
    let options = ["half", "--once", "--lease", "20s"];
    let worker = Beside::start(work(&server.base, &notes, &options, script));
    notes.until("own").await;
    server.send(reqwest::Method::DELETE, &format!("/v1/jobs/{id}"), None).await;
    let done = worker.done().await.with(1);
    assert_eq!(told(&done)[0]["outcome"], "cancelled", "{done:?}");
}

#[tokio::test]
async fn what_a_command_prints_is_kept_and_stays_apart() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    // Something that has left the group holds its standard output open.
    let id = server.push("prints", json!({"payload": 1, "retain_result_ms": 60000})).await;
    let script = "setsid sleep 20 & echo '{\"n\": 1}'";
    finish(work(&server.base, &notes, &["prints", "--once", "--result"], script)).await.with(0);
    assert_eq!(server.get(&format!("/v1/jobs/{id}")).await.1["result"], json!({"n": 1}));
    // Without --result it would stand among the worker's own lines; and what the command asks goes to the worker's server.
    server.push("prints", json!({"payload": 1})).await;
    let mut command =
        work(&server.base, &notes, &["prints", "--once", "--url", &server.base], "echo url:$TAILBACK_URL");
    command.env("TAILBACK_URL", "http://127.0.0.1:1").env("TAILBACK_KEY", "canary");
    let done = finish(command).await.with(0);
    assert!(done.err.contains(&format!("url:{}", server.base)) && done.out.lines().count() == 1, "{done:?}");
    assert!(done.err.contains("TAILBACK_KEY is not sent"), "{done:?}");
}

/// A run that is shorter than the margin of the lease.
#[tokio::test]
async fn a_job_that_may_run_only_shortly_runs() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    server.push("short", json!({"payload": 1, "max_run_ms": 300_000})).await;
    let options = ["short", "--once", "--lease", "1h"];
    let done = finish(work(&server.base, &notes, &options, "sleep 0.2")).await.with(0);
    assert_eq!(told(&done)[0]["outcome"], "committed", "{done:?}");
    // One that takes longer is stopped, and the server is told so.
    let id = server.push("short", json!({"payload": 1, "max_run_ms": 6000})).await;
    let done = finish(work(&server.base, &notes, &["short", "--once"], "sleep 1000")).await.with(1);
    assert!(told(&done)[0]["reason"].as_str().unwrap().contains("max_run_ms"), "{done:?}");
    assert!(server.get(&format!("/v1/jobs/{id}")).await.0 == 200);
}

#[tokio::test]
async fn a_reader_that_does_not_read_stops_nothing() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    for n in 0..3 {
        server.push("unread", json!({"payload": n})).await;
    }
    // More than a pipe takes, of each of them; nobody reads it before the worker has ended.
    let script = "head -c 300000 /dev/zero >&2";
    let mut worker = Beside::start(work(&server.base, &notes, &["unread", "--drain"], script));
    let mut child = worker.0.take().unwrap();
    let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(server.get("/v1/queues/unread/stats").await.1["counts"]["ready"], 0);
}

#[tokio::test]
async fn a_note_begins_its_own_line() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    server.push("progress", json!({"payload": 1})).await;
    let script = "printf '10%%\\r50%%' >&2";
    let done = cli::run(&server, &["work", "progress", "--once", "--", "sh", "-c", script]).await.with(0);
    assert!(done.err.contains("10%\r50%\ntailback: ") && !done.err.contains("\n\n"), "{done:?}");
}

#[tokio::test]
async fn a_command_that_cannot_be_started_costs_no_job() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    // Found, and no program: the interpreter is missing.
    std::fs::write(&program, "#!/no/such/interpreter\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    let id = server.push("broken", json!({"payload": 1})).await;
    let done = cli::run(&server, &["work", "broken", "--", program.to_str().unwrap()]).await.with(1);
    assert!(done.err.contains("cannot be started"), "{done:?}");
    let job = server.get(&format!("/v1/jobs/{id}")).await.1;
    assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("ready"), Some(0)), "{job}");
    assert!(Path::new(&program).exists());
}
