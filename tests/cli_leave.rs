//! How `tailback work` leaves, and what it does where answers are odd or lost: no job stays with a worker that does not run it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead as _, BufReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::cli::{self, Beside, Done, finish};
use common::server::{PATIENCE, Place, Server, until};
use common::signal::{self, Signal};
use common::worker::{Address, Notes, gone, losing, told, work};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// An idle worker stops within this time.
const STOPS: Duration = Duration::from_millis(1500);
/// From then on one that stops may leave without knowing what its last call has reserved.
const LEARNS: Duration = Duration::from_secs(1);
const ADMIN: &str = "admin-key-of-the-tests-0123456789abcdef";

/// An answer that never comes. Without any text the connection is closed instead.
const NEVER: &str = "never";
/// The answer that there is no job.
const NO_JOBS: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{\"jobs\":[]}";

/// An answer with this status and this body, after which the connection is closed.
fn refusal(status: &str, body: &str) -> &'static str {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}").leak()
}

/// Passes connections on to a server. The first requests whose heads begin so are answered with these instead, one after the other.
/// Returns the address, and how many such requests there were.
async fn answering(to: &str, begins: &'static str, answers: Vec<&'static str>) -> (String, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let (to, count) = (to.trim_start_matches("http://").to_owned(), Arc::new(AtomicUsize::new(0)));
    let answers = Arc::new(answers);
    let counted = count.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (to, count, answers) = (to.clone(), counted.clone(), answers.clone());
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(&to).await.unwrap();
                let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
                loop {
                    tokio::select! {
                        Ok(read) = client.read(&mut asked) => {
                            if read == 0 {
                                return;
                            }
                            let is_it = asked[..read].starts_with(begins.as_bytes());
                            let instead = is_it.then(|| answers.get(count.fetch_add(1, Ordering::SeqCst)));
                            if let Some(with) = instead.flatten() {
                                if *with == NEVER {
                                    std::future::pending::<()>().await;
                                }
                                drop(client.write_all(with.as_bytes()).await);
                                return;
                            }
                            server.write_all(&asked[..read]).await.unwrap();
                        }
                        Ok(read) = server.read(&mut answered) => {
                            if read == 0 || client.write_all(&answered[..read]).await.is_err() {
                                return;
                            }
                        }
                        else => return,
                    }
                }
            });
        }
    });
    (base, count)
}

/// Sends a worker SIGTERM again and again until it has ended, and returns its exit code.
async fn ended_by_signals(worker: &mut Beside) -> Option<i32> {
    let begun = Instant::now();
    loop {
        if let Some(status) = worker.0.as_mut().unwrap().try_wait().unwrap() {
            return status.code();
        }
        assert!(begun.elapsed() < PATIENCE, "it does not end");
        worker.signal(Signal::SIGTERM);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_third_signal_ends_a_worker_whose_standard_error_is_not_read() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    server.push("full", json!({"payload": 1})).await;
    // More than a pipe takes, and nobody reads it.
    let script = "trap '' TERM; head -c 300000 /dev/zero >&2; echo $$ > own; while :; do sleep 1; done";
    let mut worker = Beside::start(work(&server.base, &notes, &["full", "--kill-after", "1h"], script));
    let own = notes.until("own").await;
    assert_eq!(ended_by_signals(&mut worker).await, Some(1));
    gone(&own).await;
}

#[tokio::test]
async fn what_was_done_is_committed_while_other_commands_are_being_stopped() {
    let (place, address) = (Place::sqlite().await, Address::take());
    let mut server = address.serve(&place, &[]).await;
    let notes = Notes::new();
    let done = server.push("done", json!({"payload": 1, "max_attempts": 2})).await;
    server.push("done", json!({"payload": 2})).await;
    let script = "n=$(cat); trap '' TERM; echo $$ > own.$n; until [ -e go.$n ]; do sleep 0.02; done";
    // Long enough for a server to start meanwhile.
    let options = ["done", "-c", "2", "--kill-after", "5m", "--grace", "0s", "--lease", "10m"];
    let mut worker = Beside::start(work(&server.base, &notes, &options, script));
    let first = notes.until("own.1").await;
    notes.until("own.2").await;
    server.kill();
    std::fs::write(notes.path("go.1"), "").unwrap();
    gone(&first).await;
    worker.signal(Signal::SIGTERM);
    // Nobody was told in time, as its line says; the other command still runs.
    let out = worker.0.as_mut().unwrap().stdout.take().unwrap();
    let line = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).unwrap();
        line
    });
    let line = line.await.unwrap();
    assert!(line.contains("\"lost\"") && line.contains(&done), "{line}");
    let server = address.serve(&place, &[]).await;
    until("the first job is settled", || {
        let (server, done) = (&server, &done);
        async move { server.get(&format!("/v1/jobs/{done}")).await.1["state"] != "reserved" }
    })
    .await;
    let (status, job) = server.get(&format!("/v1/jobs/{done}")).await;
    assert_eq!(status, 404, "it was committed, not rolled back: {job}");
    std::fs::write(notes.path("go.2"), "").unwrap();
    worker.done().await.with(0);
}

#[tokio::test]
async fn a_job_that_ran_too_long_is_rolled_back_before_a_worker_for_one_job_ends() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    let mut job = json!(null);
    // The worker has the last sixth: where that is too short on a busy machine, the server takes the job back by itself.
    for max_run_ms in [6000, 24_000, 96_000] {
        let queue = format!("late{max_run_ms}");
        let id = server.push(&queue, json!({"payload": 1, "max_run_ms": max_run_ms})).await;
        finish(work(&server.base, &notes, &[&queue, "--once"], "sleep 1000")).await.with(1);
        job = server.get(&format!("/v1/jobs/{id}")).await.1;
        if job["errors"][0]["message"] == "it takes longer than its max_run_ms" {
            return;
        }
    }
    panic!("the worker has never rolled it back: {job}");
}

#[tokio::test]
async fn odd_answers_of_others_do_not_end_a_worker() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    for with in [
        "HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
        "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n",
    ] {
        let notes = Notes::new();
        let (base, _) = answering(&server.base, "POST /v1/queues/odd/reserve", vec![with]).await;
        server.push("odd", json!({"payload": 1})).await;
        let worker = Beside::start(work(&base, &notes, &["odd"], "echo $$ > own"));
        notes.until("own").await;
        worker.signal(Signal::SIGTERM);
        assert_eq!(told(&worker.done().await.with(0))[0]["outcome"], "committed", "{with}");
    }
}

#[tokio::test]
async fn a_lost_answer_leaves_no_job_with_a_worker_that_drains() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    for n in ["a", "b"] {
        server.push("drained", json!({"payload": n})).await;
    }
    let base = losing(&server.base, b"\"c\"").await;
    let script = "n=$(cat); echo $$ > own.$n; until [ -e go.$n ]; do sleep 0.02; done";
    let options = ["drained", "--drain", "-c", "2", "--lease", "10m", "--text"];
    let worker = Beside::start(work(&base, &notes, &options, script));
    notes.until("own.a").await;
    notes.until("own.b").await;
    server.push("drained", json!({"payload": "c"})).await;
    std::fs::write(notes.path("go.b"), "").unwrap();
    // The answer with it is lost while the first one goes on.
    notes.until("own.c").await;
    for n in ["a", "c"] {
        std::fs::write(notes.path(&format!("go.{n}")), "").unwrap();
    }
    let done = worker.done().await.with(0);
    assert_eq!(told(&done).iter().filter(|job| job["outcome"] == "committed").count(), 3, "{done:?}");
}

/// What the first try had may have gone back since, so that others are ready.
#[tokio::test]
async fn a_repeat_without_a_job_does_not_say_that_there_is_none() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    for option in ["--drain", "--once"] {
        let notes = Notes::new();
        server.push("repeat", json!({"payload": 1})).await;
        let (base, asked) =
            answering(&server.base, "POST /v1/queues/repeat/reserve", vec!["", NO_JOBS]).await;
        let done = finish(work(&base, &notes, &["repeat", option], "exit 0")).await.with(0);
        assert_eq!(told(&done)[0]["outcome"], "committed", "{done:?}");
        assert!(asked.load(Ordering::SeqCst) > 2, "{done:?}");
    }
}

/// What its call had reserved may have gone back before the repeat, which brings nothing then.
#[tokio::test]
async fn a_drain_that_was_stopped_has_not_drained() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    server.push("halted", json!({"payload": 1})).await;
    for option in ["--drain", "--once"] {
        let notes = Notes::new();
        let (base, asked) =
            answering(&server.base, "POST /v1/queues/halted/reserve", vec![NEVER, NO_JOBS]).await;
        let worker = Beside::start(work(&base, &notes, &["halted", option], "exit 0"));
        until("it has asked", || async { asked.load(Ordering::SeqCst) > 0 }).await;
        worker.signal(Signal::SIGTERM);
        worker.done().await.with(1);
    }
}

#[tokio::test]
async fn a_drain_waits_for_the_limit_of_its_key() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let body = r#"{"code": "key-limited", "retryable": true, "retry_after_ms": 50}"#;
    let limited = refusal("429 Too Many Requests", body);
    for option in ["--drain", "--once"] {
        let notes = Notes::new();
        server.push("limited", json!({"payload": 1})).await;
        let (base, _) = answering(&server.base, "POST /v1/queues/limited/reserve", vec![limited; 3]).await;
        let done = finish(work(&base, &notes, &["limited", option], "exit 0")).await.with(0);
        assert_eq!(told(&done)[0]["outcome"], "committed", "{done:?}");
    }
}

#[tokio::test]
async fn a_job_of_which_something_is_refused_for_good_is_rolled_back() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    // By a proxy, each time; and once by a server that takes no such delay.
    let too_large = vec![refusal("413 Content Too Large", "<html>"); 20];
    let invalid = vec![refusal("422 Unprocessable Content", r#"{"code": "invalid-field"}"#)];
    for (verb, script, answers, reason) in [
        ("commit", "exit 0", too_large, "it cannot be committed"),
        ("rollback", "exit 75", invalid, "put_off was refused"),
    ] {
        let backoff = json!({"kind": "fixed", "base_ms": 600_000});
        let id = server.push(verb, json!({"payload": 1, "backoff": backoff})).await;
        let begins = format!("POST /v1/jobs/{id}/{verb}").leak();
        let (base, _) = answering(&server.base, begins, answers).await;
        let done = finish(work(&base, &notes, &[verb, "--once"], script)).await.with(1);
        let told = told(&done);
        assert_eq!(told[0]["outcome"], "rolled_back", "{done:?}");
        assert!(told[0]["reason"].as_str().unwrap().contains(reason), "{done:?}");
        let job = server.get(&format!("/v1/jobs/{id}")).await.1;
        assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("scheduled"), Some(1)), "{job}");
    }
}

#[tokio::test]
async fn a_worker_that_was_started_with_nohup_outlives_its_terminal() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    let plain = work(&server.base, &notes, &["hup"], "echo $$ > own.$(cat)");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(plain.get_program()).args(plain.get_args());
    command.current_dir(notes.0.path()).stdin(std::process::Stdio::null());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    server.push("hup", json!({"payload": 1})).await;
    let worker = Beside::start(command);
    notes.until("own.1").await;
    worker.signal(Signal::SIGHUP);
    server.push("hup", json!({"payload": 2})).await;
    notes.until("own.2").await;
    worker.signal(Signal::SIGTERM);
    worker.done().await.with(0);
}

#[tokio::test]
async fn a_drain_takes_what_is_ready_from_a_server_that_stops() {
    let (place, address) = (Place::sqlite().await, Address::take());
    let points = tempfile::tempdir().unwrap();
    let faults = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let mut server = address.serve(&place, &faults).await;
    let notes = Notes::new();
    let id = server.push("stops", json!({"payload": 1})).await;
    let point = |name: &str| points.path().join(format!("request.opened{name}"));
    std::fs::write(point(""), "pause").unwrap();
    let worker = Beside::start(work(&server.base, &notes, &["stops", "--drain", "--lease", "10m"], "exit 0"));
    until("it asks", || async { point(".met").exists() }).await;
    signal::send(server.child.id(), Signal::SIGTERM);
    let listens = server.base.trim_start_matches("http://").to_owned();
    until("nobody new gets in", || async { tokio::net::TcpStream::connect(&listens).await.is_err() }).await;
    std::fs::write(point(".go"), "").unwrap();
    assert_eq!(server.terminate().await.code(), Some(0));
    let server = address.serve(&place, &[]).await;
    let done = worker.done().await.with(0);
    assert_eq!(told(&done)[0]["outcome"], "committed", "{done:?}");
    assert_eq!(server.get(&format!("/v1/jobs/{id}")).await.0, 404);
}

/// Runs a worker whose command ends once the server has gone away, and returns how the worker ends.
async fn left_alone(option: &str, lease: &str) -> Done {
    let place = Place::sqlite().await;
    let mut server = Server::start(&place.url).await;
    let notes = Notes::new();
    server.push("gone", json!({"payload": 1})).await;
    let script = "echo $$ > own; until [ -e go ]; do sleep 0.02; done";
    let options = ["gone", option, "--lease", lease, "--kill-after", "100ms"];
    let worker = Beside::start(work(&server.base, &notes, &options, script));
    let own = notes.until("own").await;
    server.kill();
    std::fs::write(notes.path("go"), "").unwrap();
    gone(&own).await;
    gone(&worker.id().to_string()).await;
    worker.done().await
}

#[tokio::test]
async fn a_worker_that_ends_by_itself_does_so_where_the_server_has_gone_away() {
    for option in ["--once", "--drain"] {
        let mut done = left_alone(option, "10s").await;
        // On a busy machine the lease may be over before the command has ended, and stops it.
        if told(&done)[0]["exit_code"] != 0 {
            done = left_alone(option, "2m").await;
        }
        let done = done.with(6);
        assert_eq!((&told(&done)[0]["outcome"], &told(&done)[0]["exit_code"]), (&json!("lost"), &json!(0)));
        assert_eq!(done.err.matches("trying again").count(), 1, "{done:?}");
    }
}

#[tokio::test]
async fn a_worker_stops_in_time_where_nobody_answers() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    let (base, asked) = answering(&server.base, "POST /v1/queues/mute/reserve", vec![NEVER; 100]).await;
    let worker = Beside::start(work(&base, &notes, &["mute"], "exit 0"));
    until("it has asked", || async { asked.load(Ordering::SeqCst) > 0 }).await;
    let begun = Instant::now();
    worker.signal(Signal::SIGTERM);
    worker.done().await.with(0);
    // Its request may take 25 seconds.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_idle_worker_stops_at_once_and_has_done_nothing() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    for (options, code) in [(&["idle"][..], 0), (&["idle", "--once", "--wait", "1h"], 1)] {
        let mut took = Duration::MAX;
        // One that waits for its request leaves after two seconds or more, each time; a busy machine is slow for many of them.
        for _ in 0..40 {
            let (base, asked) = answering(&server.base, "POST /v1/queues/idle/reserve", vec![]).await;
            let worker = Beside::start(work(&base, &notes, options, "exit 0"));
            until("it has asked", || async { asked.load(Ordering::SeqCst) > 0 }).await;
            let begun = Instant::now();
            worker.signal(Signal::SIGTERM);
            worker.done().await.with(code);
            took = took.min(begun.elapsed());
            if took < STOPS {
                break;
            }
        }
        assert!(took < STOPS, "{took:?}");
    }
}

#[tokio::test]
async fn a_job_that_is_handed_out_while_an_idle_worker_stops_is_given_back_or_done() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    for n in 0..20 {
        let queue = format!("late{n}");
        let (base, asked) = answering(&server.base, "POST /v1/queues/late", vec![]).await;
        let worker = Beside::start(work(&base, &notes, &[&queue, "--lease", "10m"], "exit 0"));
        until("it has asked", || async { asked.load(Ordering::SeqCst) > 0 }).await;
        let begun = Instant::now();
        let stop = async {
            tokio::time::sleep(Duration::from_millis(n % 5)).await;
            worker.signal(Signal::SIGTERM);
        };
        let (id, ()) = tokio::join!(server.push(&queue, json!({"payload": n})), stop);
        worker.done().await.with(0);
        let may_be_lost = begun.elapsed() >= LEARNS;
        let path = format!("/v1/jobs/{id}");
        until("it is not reserved", || async { server.get(&path).await.1["state"] != "reserved" }).await;
        let (status, job) = server.get(&path).await;
        // Of a worker that is lost with its job the attempt counts, and is an error.
        let is_given_back = job["state"] == "ready" && job["errors"] == json!([]);
        assert!(status == 404 || is_given_back || may_be_lost, "{n}: {job}");
    }
}

#[tokio::test]
async fn a_command_that_cannot_be_started_now_is_started_later() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let notes = Notes::new();
    let program = notes.path("program");
    std::fs::write(&program, "#!/bin/sh\nexit 0\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    // The system starts no program that is being written.
    let being_written = std::fs::OpenOptions::new().append(true).open(&program).unwrap();
    let id = server.push("busy", json!({"payload": 1})).await;
    let mut worker = Beside::start(cli::command(
        &server.base,
        &["work", "busy", "--json", "--", program.to_str().unwrap()],
    ));
    let out = worker.0.as_mut().unwrap().stdout.take().unwrap();
    let line = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        let mut out = BufReader::new(out);
        out.read_line(&mut line).unwrap();
        (line, out)
    });
    let (line, _out) = line.await.unwrap();
    assert!(line.contains("given_back") && line.contains("cannot be started now"), "{line}");
    drop(being_written);
    until("it is committed", || async { server.get(&format!("/v1/jobs/{id}")).await.0 == 404 }).await;
    worker.signal(Signal::SIGTERM);
    worker.done().await.with(0);
}

#[tokio::test]
async fn a_key_that_does_not_allow_the_name_of_a_worker_lets_it_work() {
    let place = Place::sqlite().await;
    let server = Server::start_with(&place.url, &[("TAILBACK_AUTH__ADMIN_KEY", ADMIN)]).await;
    let made = server
        .http
        .post(format!("{}/v1/keys", server.base))
        .bearer_auth(ADMIN)
        .json(&json!({"name": "mail", "scopes": ["push", "consume", "read"], "queues": ["mail"]}))
        .send()
        .await
        .unwrap();
    let made: serde_json::Value = made.json().await.unwrap();
    let key = made["key"].as_str().unwrap();
    for options in [&["mail", "--once"][..], &["mail", "--once", "--worker", "mail"]] {
        let mut push = cli::command(&server.base, &["push", "mail", "1"]);
        push.env("TAILBACK_KEY", key);
        finish(push).await.with(0);
        let notes = Notes::new();
        let mut command = work(&server.base, &notes, options, "exit 0");
        command.env("TAILBACK_KEY", key);
        let done = finish(command).await.with(0);
        assert_eq!(told(&done)[0]["outcome"], "committed", "{done:?}");
        assert!(done.err.contains("without a name"), "{done:?}");
    }
}
