//! The commands for people, on a real server: what they send, print, and end with.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

mod cli_commands {
    pub mod lists;
}

use std::path::{Path, PathBuf};

use cli_commands::lists::*;
use common::cli::{self, Beside, Done, finish, run, run_with_input};
use common::server::{Place, Server, until};
use common::signal::Signal;
use common::worker::Address;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

on_every_store! {
    a_job_from_its_push_to_its_end
    payloads_travel_as_they_were_typed
    jobs_are_found_and_listed
    dead_jobs_and_queues_are_shown_and_changed
    semaphores_schedules_and_workers_are_shown_and_changed
    operations_are_begun_watched_and_told
}

async fn a_job_from_its_push_to_its_end(place: &Place) {
    let server = Server::start(&place.url).await;
    let pushed =
        run(&server, &["push", "mail", "{\"to\": 1.10}", "--json", "--priority", "-5"]).await.with(0).json();
    let id = pushed["id"].as_str().unwrap();
    assert_eq!(pushed["queue"], "mail");
    let shown = run(&server, &["job", id]).await.with(0).out;
    assert!(shown.contains("{\"to\": 1.10}") || shown.contains("{\"to\":1.10}"), "{shown}");

    let reserved =
        run(&server, &["reserve", "mail", "--json", "--lease", "10m", "--worker", "w1"]).await.with(0);
    let job = reserved.json()["jobs"][0].clone();
    let token = job["reservation"].as_str().unwrap();
    assert_eq!((job["id"].as_str(), job["worker"].as_str()), (Some(id), Some("w1")));
    run(&server, &["reserve", "mail", "--wait", "1ms"]).await.with(3);
    let none = run(&server, &["reserve", "mail", "--json"]).await.with(3);
    assert_eq!(none.json(), json!({"jobs": []}));

    run(&server, &["extend", id, "--reservation", token, "--lease", "20m", "--progress", "[1.0]"])
        .await
        .with(0);
    let said =
        run(&server, &["rollback", id, "--reservation", token, "--error", "no\u{1b}[2Jluck", "--delay", "0"])
            .await;
    assert!(said.with(0).out.contains("ready"));
    let refused = run(&server, &["commit", id, "--reservation", token]).await.with(4);
    assert!(refused.err.contains("reservation-lost"), "{refused:?}");
    let refused = run(&server, &["commit", id, "--reservation", token, "--json"]).await.with(4);
    let problem: Value = serde_json::from_str(&refused.err).unwrap();
    assert_eq!(problem["code"], "reservation-lost");

    let again = ["reserve", "mail.*", "mail", "--json", "--lease", "10m"];
    let again = run(&server, &again).await.with(0).json();
    let job = &again["jobs"][0];
    let shown = run(&server, &["job", id]).await.with(0).out;
    assert!(shown.contains("attempt 1 at w1 failed") && shown.contains("no\\u{1b}[2Jluck"), "{shown}");
    // The token may come from the environment, as it does for the command of `work`.
    let mut commit = cli::command(&server.base, &["commit", id, "--result", "{\"n\": 1.50}", "--json"]);
    commit.env("TAILBACK_JOB_RESERVATION", job["reservation"].as_str().unwrap());
    assert_eq!(finish(commit).await.with(0).json()["state"], "done");
    run(&server, &["job", id]).await.with(3);
}

async fn payloads_travel_as_they_were_typed(place: &Place) {
    let server = Server::start(&place.url).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("payload");
    let raw = |done: Done| done.with(0).out;
    let id = |done: Done| done.with(0).json()["id"].as_str().unwrap().to_owned();
    for typed in [
        "1.10",
        "123456789012345678901234567890",
        "{\"b\":1,\"a\":{\"b\":[]}}",
        "\"grüße 日本\"",
        "-1",
        "null",
    ] {
        let pushed = id(run(&server, &["push", "exact", typed, "--json"]).await);
        assert_eq!(raw(run(&server, &["job", &pushed, "payload"]).await), typed);
        std::fs::write(&file, format!("{typed}\n")).unwrap();
        let at = format!("@{}", file.display());
        let pushed = id(run(&server, &["push", "exact", &at, "--json"]).await);
        assert_eq!(raw(run(&server, &["job", &pushed, "payload"]).await), typed);
        let pushed = id(run_with_input(&server, &["push", "exact", "-", "--json"], typed.as_bytes()).await);
        assert_eq!(raw(run(&server, &["job", &pushed, "payload"]).await), typed);
    }
    let pushed = id(run(&server, &["push", "exact", "say \"hi\"\n", "--text", "--json"]).await);
    assert_eq!(raw(run(&server, &["job", &pushed, "payload"]).await), "\"say \\\"hi\\\"\\n\"");
    let bytes: Vec<u8> = (0..=255).collect();
    let pushed = id(run_with_input(
        &server,
        &["push", "exact", "-", "--bytes", "--type", "image/png", "--json"],
        &bytes,
    )
    .await);
    let output = cli::command(&server.base, &["job", &pushed, "payload"]).output().unwrap();
    assert_eq!(output.stdout, bytes);
    let shown = run(&server, &["job", &pushed]).await.with(0).out;
    assert!(shown.contains("image/png, 256 bytes"), "{shown}");
    let job = server.get(&format!("/v1/jobs/{pushed}")).await.1;
    assert_eq!(job["payload_type"], "image/png");
    for wrong in [
        &["push", "exact", "hello"][..],
        &["push", "exact", "@/nowhere/at/all"],
        &["push", "exact", "1", "--type", "a/b"],
    ] {
        run(&server, wrong).await.with(2);
    }
}

async fn operations_are_begun_watched_and_told(place: &Place) {
    let server = Server::start(&place.url).await;
    for _ in 0..5 {
        run(&server, &["push", "ops", "1"]).await.with(0);
    }
    // It looks for a second, and a store that is busy may be slow.
    until("a dry run finds them", || async {
        let dry = run(&server, &["operations", "delete", "--queue", "ops", "--dry-run"]).await.with(0).out;
        assert!(dry.contains("nothing was changed"), "{dry}");
        dry.contains("5 jobs")
    })
    .await;
    let unsaid = run(&server, &["operations", "delete", "--queue", "op*"]).await.with(4);
    assert!(unsaid.err.contains("confirm"), "{unsaid:?}");
    let done =
        run(&server, &["operations", "move", "--queue", "ops", "--to", "ops.b", "--limit", "2", "--wait=2m"])
            .await
            .with(0);
    assert!(done.out.contains("done") && done.out.contains("affected"), "{done:?}");
    let left = server.get("/v1/queues/ops.b/jobs").await.1;
    assert_eq!(left["jobs"].as_array().unwrap().len(), 2);
    let begun = run(&server, &["operations", "set-priority", "--priority", "-3", "--queue", "ops", "--json"])
        .await
        .with(0)
        .json();
    let id = begun["id"].as_str().unwrap();
    let shown = run(&server, &["operations", "show", id, "--wait", "--json"]).await.with(0).json();
    assert_eq!((shown["state"].as_str(), shown["affected"].as_u64()), (Some("done"), Some(3)));
    assert!(run(&server, &["operations"]).await.with(0).out.contains("set_priority"));
    run(&server, &["operations", "cancel", id]).await;
    run(&server, &["operations", "show", "nothing"]).await.with(3);
}

#[tokio::test]
async fn waiting_ends_with_the_job() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let waiting = Beside::start(cli::command(&server.base, &["push", "wait", "1", "--wait=2m", "--json"]));
    let job = server.reserve("wait", json!({"wait_ms": 60000})).await[0].clone();
    server.settle(&job, "commit", json!({"result": {"n": 1}})).await;
    assert_eq!(waiting.done().await.with(0).json()["result"]["n"], 1);
    let waiting = Beside::start(cli::command(&server.base, &["push", "wait", "1", "--wait=2m"]));
    let job = server.reserve("wait", json!({"wait_ms": 60000})).await[0].clone();
    server.settle(&job, "rollback", json!({"dead": true, "error": "never"})).await;
    let dead = waiting.done().await.with(1);
    assert!(dead.out.contains("never"), "{dead:?}");
    let late = run(&server, &["push", "wait", "1", "--wait=50ms"]).await.with(3);
    assert!(late.err.contains("ready after 50ms"), "{late:?}");
}

/// Starts a server that has nothing, and returns its URL.
async fn nowhere() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let answer = "HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\nconnection: close\r\n\r\nnone";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

#[tokio::test]
async fn mistakes_are_told_in_words_of_the_command_line() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    server.push("full.of.jobs", json!({"payload": 1})).await;
    for (arguments, says) in [
        (
            &["queues", "delete", "full.of.jobs", "--confirm", "full.of.jobs"][..],
            "--force deletes them as well",
        ),
        (&["operations", "delete", "--queue", "full.*"], "--confirm must be"),
        (&["push", "full.of.jobs", "--wait", "1s"], "write --wait=1s"),
        (&["queues", "--url", "queue:8321"], "; --url is \"queue:8321\""),
        (&["queues", "--url", &server.base.replace("http:", "https:")], "is it http:// there?"),
        (&["queues", "--key-file", "/dev/null"], "the key file /dev/null is empty"),
    ] {
        let done = run(&server, arguments).await;
        assert!(done.err.contains(says) && done.code != Some(0), "{arguments:?}: {done:?}");
    }
}

#[tokio::test]
async fn attention_is_shown() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    server.push("sick", json!({"payload": 1, "max_attempts": 1})).await;
    let job = server.reserve("sick", json!({})).await[0].clone();
    server.settle(&job, "rollback", json!({"error": "never"})).await;
    until("the list says it", || async {
        let list = run(&server, &["queues"]).await.with(0).out;
        let mut lines = list.lines().map(|line| line.split_whitespace().nth(1));
        list.contains("ATTENTION") && lines.any(|reason| reason == Some("dead"))
    })
    .await;
    let stats = run(&server, &["stats", "sick"]).await.with(0).out;
    assert!(stats.lines().any(|line| line.starts_with("dead: ")), "{stats}");
    until("tail says it", || async {
        let told = run(&server, &["tail", "sick", "--for", "1s"]).await.with(0).out;
        told.contains("sick  dead  1 dead")
    })
    .await;
}

#[tokio::test]
async fn exit_codes_tell_scripts_what_happened() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let id = server.push("q", json!({"payload": 1})).await;
    let other = nowhere().await;
    for (arguments, code) in [
        (&["job", id.as_str()][..], 0),
        (&["job", "01ARZ3NDEKTSV4RRFFQ69G5FAV"], 3),
        (&["reserve", "empty"], 3),
        (&["push", "a/b\u{1b}", "1"], 4),
        (&["job", &id, "release"], 4),
        (&["reserve"], 2),
        (&["reserve", "q", "--wait", "soon"], 2),
        (&["commit", "x"], 2),
        (&["--url", "x", "job", "x"], 2),
        (&["job", "x", "--url", "ftp://x"], 2),
        (&["job", "x", "--profile", "none"], 2),
        (&["job", "x", "--url", "http://127.0.0.1:1"], 6),
        (&["job", "x", "--url", "https://127.0.0.1:1"], 6),
        (&["top"], 2),
        (&["work", "q", "--", "/no/such/command"], 2),
        // A text may begin as options do.
        (&["rollback", &id, "--reservation", "x", "--error", "-x: bad"], 4),
        (&["jobs", "--error", "-x: bad"], 0),
        // What would be pushed, or is no action.
        (&["push", "q", "--wait", "1"], 2),
        (&["job", &id, "--wait", "1s"], 2),
        // The server is there, the path is not; and what is there is no server of ours.
        (&["job", &id, "--url", &format!("{}/elsewhere", server.base)], 1),
        (&["job", &id, "--url", &other], 6),
        (&["job", &id, "--key-file", "/dev/null"], 2),
    ] {
        let done = run(&server, arguments).await;
        assert_eq!(done.code, Some(code), "{arguments:?}: {done:?}");
        assert!(code == 0 || !done.err.is_empty(), "{arguments:?}: {done:?}");
    }
    // A reader that leaves is no failure.
    let mut child =
        cli::command(&server.base, &["jobs", "--json"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A key that must be shown nowhere.
const KEY: &str = "canary-0123456789012345678901234567890123456789";

/// Starts a server that requires [`KEY`].
async fn locked(place: &Place) -> Server {
    let environment = [("TAILBACK_AUTH__ADMIN_KEY", KEY), ("TAILBACK_AUTH__REQUIRED", "true")];
    let server = Server::launch(&place.url, &environment);
    until("it is ready", || async {
        server.http.get(format!("{}/readyz", server.base)).send().await.is_ok_and(|it| it.status() == 200)
    })
    .await;
    server
}

/// Writes a file with [`KEY`], and two profiles of the server: `here` has the key, `other` names its file.
fn write_profiles(server: &Server, directory: &Path) -> [PathBuf; 2] {
    let [profiles, file] = ["profiles.toml", "key"].map(|name| directory.join(name));
    std::fs::write(&file, format!("{KEY}\n")).unwrap();
    let text = format!(
        "[here]\nurl = '{}'\nkey = '{KEY}'\n[other]\nurl = '{}'\nkey_file = '{}'\n",
        server.base,
        server.base,
        file.display()
    );
    std::fs::write(&profiles, text).unwrap();
    [profiles, file]
}

#[tokio::test]
async fn keys_come_from_the_environment_or_a_profile_and_are_never_shown() {
    let place = Place::sqlite().await;
    let server = locked(&place).await;
    let without = run(&server, &["queues"]).await.with(5);
    assert!(without.err.contains("unauthorized; the key is that of --key-file, --key, TAILBACK_KEY"));
    let mut wrong = cli::command(&server.base, &["queues", "--json"]);
    wrong.env("TAILBACK_KEY", format!("{KEY}x"));
    let wrong = finish(wrong).await.with(5);
    assert!(!wrong.err.contains("canary"), "{wrong:?}");
    let mut with = cli::command(&server.base, &["queues"]);
    with.env("TAILBACK_KEY", KEY);
    finish(with).await.with(0);
    let directory = tempfile::tempdir().unwrap();
    let [profiles, _] = write_profiles(&server, directory.path());
    for profile in ["here", "other"] {
        let mut of = cli::command("http://127.0.0.1:1", &["queues", "--profile", profile]);
        of.env("TAILBACK_PROFILES", &profiles);
        let done = finish(of).await.with(0);
        assert!(!done.err.contains("canary"), "{done:?}");
    }
    // A key with a line end in it, and one on the command line of a call that fails.
    for bad in
        [&["queues", "--key", "canary\u{1b}\n"][..], &["queues", "--key", "canary", "--no-such-option"]]
    {
        let done = run(&server, bad).await.with(2);
        assert!(!done.err.contains("canary"), "{done:?}");
    }
}

/// The load generator means the same server by the same names.
#[tokio::test]
async fn bench_takes_its_key_as_other_commands_do() {
    let place = Place::sqlite().await;
    let server = locked(&place).await;
    let directory = tempfile::tempdir().unwrap();
    let [profiles, file] = write_profiles(&server, directory.path());
    let bench = ["bench", "--jobs", "2", "--clients", "1"];
    let of = |own: &[&str], url: &str, name: &str, value: &str| {
        let mut command = cli::command(url, &[&bench[..], own].concat());
        command.env(name, value).env("TAILBACK_PROFILES", &profiles);
        finish(command)
    };
    let file = file.to_str().unwrap();
    of(&[], &server.base, "TAILBACK_KEY", KEY).await.with(0);
    of(&["--url", &server.base], &server.base, "TAILBACK_KEY", KEY).await.with(0);
    of(&["--profile", "other"], "http://127.0.0.1:1", "TAILBACK_KEY", "").await.with(0);
    of(&["--url", &server.base, "--key-file", file], "", "TAILBACK_KEY", "").await.with(0);
    let elsewhere = of(&["--url", &server.base], "http://127.0.0.1:1", "TAILBACK_KEY", KEY).await.with(1);
    assert!(
        elsewhere.err.contains("TAILBACK_KEY is not sent") && elsewhere.err.contains("401"),
        "{elsewhere:?}"
    );
}

/// They are chosen as the key is, and a command that `work` runs does not get the other ones.
#[tokio::test]
async fn authorities_come_from_a_named_profile_the_environment_or_the_default_profile() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let directory = tempfile::tempdir().unwrap();
    let profiles = directory.path().join("profiles.toml");
    let of = |name: &str, url: &str| format!("[{name}]\nurl = '{url}'\nca = '/none/{name}'\n");
    let none = "https://127.0.0.1:1";
    let text = [of("default", none), of("prod", none), of("here", &server.base)].concat();
    std::fs::write(&profiles, text).unwrap();
    let command = |arguments: &[&str], environment: &[(&str, &str)]| {
        let mut command = cli::command("", arguments);
        command.env("TAILBACK_PROFILES", &profiles).envs(environment.iter().copied());
        command
    };
    let (ca, profile) = (("TAILBACK_CA", "/none/env"), ("TAILBACK_PROFILE", "prod"));
    for (arguments, environment, which) in [
        (&["queues"][..], &[("TAILBACK_CA", "")][..], "default"),
        (&["queues"], &[ca], "env"),
        (&["queues"], &[profile], "prod"),
        (&["queues"], &[ca, profile], "env"),
        (&["queues", "--profile", "prod"], &[ca], "prod"),
        (&["queues", "--profile", "prod", "--ca", "/none/flag"], &[ca], "flag"),
    ] {
        let done = finish(command(arguments, environment)).await.with(2);
        assert!(done.err.contains(&format!("/none/{which} cannot be read")), "{arguments:?}: {done:?}");
    }
    server.push("trusted", json!({"payload": 1})).await;
    let script = "echo \"ca:${TAILBACK_CA-none}.\" >&2";
    let work = ["work", "trusted", "--once", "--profile", "here", "--", "sh", "-c", script];
    let done = finish(command(&work, &[ca])).await.with(0);
    assert!(done.err.contains("ca:none."), "{done:?}");
}

/// A command of `work` that starts a server is not warned about what it was given.
#[tokio::test]
async fn variables_that_work_sets_are_not_warned_about() {
    let mut check = cli::command("http://127.0.0.1:1", &["check-config"]);
    check.envs([
        ("TAILBACK_PROFILE", "x"),
        ("TAILBACK_CA", "x"),
        ("TAILBACK_JOB_ID", "x"),
        ("TAILBACK_KEY", "x"),
    ]);
    assert_eq!(finish(check).await.with(0).err, "");
}

#[tokio::test]
async fn nothing_that_a_terminal_obeys_is_printed() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let hostile = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}\r\n\u{0}end";
    let job = json!({"payload": {hostile: hostile}, "headers": {"h": hostile}, "max_attempts": 1});
    let id = server.push("hostile", job).await;
    let reserved = server.reserve("hostile", json!({})).await[0].clone();
    server.settle(&reserved, "rollback", json!({"error": hostile})).await;
    let binary = json!({"payload_base64": "G1sySg==", "payload_type": "a/b"});
    let second = server.push("hostile", binary).await;
    for arguments in [
        &["job", id.as_str()][..],
        &["jobs", "--queue", "hostile"],
        &["dead"],
        &["job", &second],
        &["reserve", "hostile"],
        &["job", hostile.trim_end_matches("\u{0}end")],
        &["push", hostile.trim_end_matches("\u{0}end"), "1"],
        &["job", "x", "--profile", "\u{1b}[2J"],
    ] {
        let done = run(&server, arguments).await;
        let is_bad = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!done.out.contains(is_bad) && !done.err.contains(is_bad), "{arguments:?}: {done:?}");
    }
    let raw = run(&server, &["job", &second, "payload"]).await.with(0).out;
    assert_eq!(raw, "\u{1b}[2J", "a pipe gets the payload as it is");
}

#[tokio::test]
async fn tail_goes_on_where_the_server_was_away() {
    let (place, address) = (Place::sqlite().await, Address::take());
    let mut server = address.serve(&place, &[]).await;
    let directory = tempfile::tempdir().unwrap();
    let [out, err] = ["out", "err"].map(|name| directory.path().join(name));
    let mut command = cli::command(&server.base, &["tail", "followed"]);
    command.stdout(std::fs::File::create(&out).unwrap()).stderr(std::fs::File::create(&err).unwrap());
    let tail = Beside(Some(command.spawn().unwrap()));
    let has = |file: &std::path::Path, text: &str| std::fs::read_to_string(file).unwrap().contains(text);
    server.push("followed", json!({"payload": 1})).await;
    server.push("unfollowed", json!({"payload": 1})).await;
    until("the push is told", || async { has(&out, "followed  1 ready") }).await;
    server.kill();
    until("the loss is told", || async { has(&err, "trying again") }).await;
    let mut again = address.serve(&place, &[]).await;
    until("the connection is told", || async { has(&err, "connected again") }).await;
    again.push("followed", json!({"payload": 2})).await;
    until("the second push is told", || async { has(&out, "followed  2 ready") }).await;
    again.post("/v1/queues/followed/pause", json!({})).await;
    until("the pause is told", || async { has(&out, "paused") }).await;
    assert!(!has(&out, "unfollowed"));
    tail.signal(Signal::SIGINT);
    again.kill();
    let ended = run(&again, &["tail", "--for", "1s"]).await;
    assert_eq!(ended.code, Some(6), "{ended:?}");
}

#[test]
fn completions_and_man_pages_are_made() {
    let directory = tempfile::tempdir().unwrap();
    for (shell, has) in
        [("bash", "_tailback"), ("zsh", "#compdef tailback"), ("fish", "complete -c tailback")]
    {
        let output = cli::command("", &["completions", shell]).output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(has) && text.contains("rollback"), "{shell}");
        if shell == "bash" {
            let file = directory.path().join("completions");
            std::fs::write(&file, &text).unwrap();
            assert!(std::process::Command::new("bash").arg("-n").arg(&file).status().unwrap().success());
        }
    }
    let pages = directory.path().join("man/pages");
    assert!(cli::command("", &["man", "--out", pages.to_str().unwrap()]).status().unwrap().success());
    for page in ["tailback.1", "tailback-work.1", "tailback-operations-move.1"] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.starts_with(".ie") && text.contains(".TH"), "{page}: {text}");
    }
    let work = std::fs::read_to_string(pages.join("tailback-work.1")).unwrap();
    let synopsis = "SYNOPSIS\ntailback work [OPTIONS] <QUEUES>... \\-\\- <COMMAND>...\n";
    assert!(work.contains(synopsis), "{work}");
}
