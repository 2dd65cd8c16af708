//! The command line and the configuration, as a new operator meets them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a test waits for something that must happen, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn tailback(arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailback"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TAILBACK_")) {
        command.env_remove(name);
    }
    command.args(arguments).envs(environment.iter().copied());
    command
}

fn output(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    tailback(arguments, environment).current_dir(directory.path()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server that is killed at the end, also of a test that fails.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server, and returns it with what its first line says that it listens on.
fn serving(arguments: &[&str]) -> (Serving, String) {
    serving_with(arguments, Stdio::piped())
}

/// The same with this standard error.
fn serving_with(arguments: &[&str], error: Stdio) -> (Serving, String) {
    // Whoever listens on all interfaces needs a key.
    let key = "0123456789012345678901234567890123456789";
    let mut command =
        tailback(arguments, &[("TAILBACK_STORE", "sqlite::memory:"), ("TAILBACK_AUTH__ADMIN_KEY", key)]);
    let mut child = Serving(command.stdout(Stdio::piped()).stderr(error).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().trim_start_matches("listening on http://").to_owned())
}

/// Asks a server to stop, and returns how it has ended.
async fn stopped(child: &mut Serving) -> ExitStatus {
    let process = nix::unistd::Pid::from_raw(i32::try_from(child.0.id()).unwrap());
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM).unwrap();
    let begun = Instant::now();
    loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            return status;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not stop");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn stop(mut child: Serving) -> String {
    child.0.kill().unwrap();
    let mut log = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    log
}

#[test]
fn the_effective_configuration_is_a_file_that_says_where_each_value_is_from() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("own.toml");
    std::fs::write(&file, "shutdown_ms = 7\n[http]\nhosts = ['a.example', 'quo\"te']\n").unwrap();
    let file = file.to_str().unwrap();
    let environment = [("TAILBACK_DEFAULTS__BACKOFF__FACTOR", "3"), ("TAILBACK_CONFIG", file)];
    let shown = output(&["check-config", "--store", "mongodb://ada:pass@host/jobs"], &environment);
    assert_eq!((shown.status.code(), text(&shown.stderr).as_str()), (Some(0), ""));
    let shown = text(&shown.stdout);
    for line in [
        &format!("shutdown_ms = 7  # in {file}"),
        "store = \"mongodb://***@host/jobs\"  # --store, from the command line",
        "factor = 3  # TAILBACK_DEFAULTS__BACKOFF__FACTOR, from the environment",
        "max_attempts = 5",
        "[defaults.backoff]",
    ] {
        assert!(shown.lines().any(|other| other == line), "{line} is missing in {shown}");
    }
    // Read again it is the same, but for where its values are from.
    let again = directory.path().join("again.toml");
    std::fs::write(&again, &shown).unwrap();
    let read = output(&["check-config", "--config", again.to_str().unwrap()], &[]);
    let values =
        |text: &str| text.lines().map(|line| line.split("  # ").next().unwrap().to_owned()).collect();
    let (once, twice): (Vec<String>, Vec<String>) = (values(&shown), values(&text(&read.stdout)));
    assert_eq!(once, twice, "{}", text(&read.stderr));
}

#[test]
fn secrets_are_not_shown() {
    let key = "0123456789012345678901234567890123456789";
    let shown = output(&["check-config"], &[("TAILBACK_AUTH__ADMIN_KEY", key)]);
    let shown = text(&shown.stdout);
    assert!(
        shown.contains("admin_key = \"***\"  # TAILBACK_AUTH__ADMIN_KEY") && !shown.contains(key),
        "{shown}"
    );
}

#[test]
fn the_documented_file_is_printed() {
    assert_eq!(text(&output(&["config"], &[]).stdout), std::fs::read_to_string("config.toml").unwrap());
}

#[test]
fn variables_that_are_no_options_are_named() {
    let environment = [
        ("TAILBACK_SHUTDOWN_MS", "5"),
        ("TAILBACK_REAPER_BATCH", "5"),
        ("TAILBACK_NOTHING", "5"),
        ("TAILBACK_CONFIG", ""),
        ("TAILBACK_TEST_MONGODB_URI", "x"),
        ("TAILBACK_SERVICE_HOST", "10.0.0.1"),
        ("TAILBACK_PORT_8321_TCP", "x"),
    ];
    let environment: Vec<(&str, &str)> =
        environment.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let warned = text(&output(&["check-config"], &environment).stderr);
    let lines: Vec<&str> = warned.lines().collect();
    assert_eq!(lines.len(), 3, "{warned}");
    assert!(lines[0].starts_with("warning: TAILBACK_NOTHING is ignored"), "{warned}");
    assert_eq!(lines[1], "warning: TAILBACK_REAPER_BATCH is ignored: the variable is TAILBACK_REAPER__BATCH");
    assert_eq!(lines[2], "warning: TAILBACK_SHUTDOWN_MS is ignored: the variable is TAILBACK__SHUTDOWN_MS");
}

#[test]
fn every_command_that_is_configured_names_them() {
    let environment = [("TAILBACK_STORE_URL", "sqlite:other.db")];
    for arguments in [
        ["migrate", "--store", "sqlite::memory:"].as_slice(),
        &["export", "--out", "x", "--store", "sqlite:nowhere.db"],
        &["import", "--store", "sqlite:own.db"],
        &["keys", "list", "--store", "sqlite:nowhere.db"],
    ] {
        let warned = text(&output(arguments, &environment).stderr);
        assert!(warned.contains("TAILBACK_STORE_URL is ignored"), "{arguments:?}: {warned}");
    }
}

#[test]
fn a_variable_that_is_no_text_is_an_error() {
    use std::os::unix::ffi::OsStrExt as _;
    let mut command = tailback(&["check-config"], &[("ELSEWHERE", "x")]);
    command.env("ELSEWHERE", std::ffi::OsStr::from_bytes(b"\xff"));
    assert!(command.output().unwrap().status.success(), "that of another program");
    command.env("TAILBACK_LISTEN", std::ffi::OsStr::from_bytes(b"\xff"));
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("TAILBACK_LISTEN must be UTF-8") && output.status.code() == Some(2), "{said}");
}

#[test]
fn serve_need_not_be_said_and_addresses_are_short() {
    for (address, listens) in [("localhost:0", "127.0.0.1:"), ("127.0.0.1:0", "127.0.0.1:")] {
        let (child, line) = serving(&["--listen", address]);
        stop(child);
        assert!(line.starts_with(listens), "{address}: {line}");
    }
    // All interfaces: IPv4 is reached as well.
    let (child, line) = serving(&["--listen", ":0"]);
    let port = line.rsplit_once(':').unwrap().1.to_owned();
    let reached = TcpStream::connect(format!("127.0.0.1:{port}"));
    let log = stop(child);
    reached.unwrap();
    assert!(log.contains("\"address\":\"[::]:") || log.contains("\"address\":\"0.0.0.0:"), "{log}");
}

#[test]
fn the_log_has_no_colours_where_it_is_no_terminal() {
    let (child, _) = serving(&["--listen", "127.0.0.1:0", "--config", "/dev/null"]);
    stop(child);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[log]\nformat = 'human'").unwrap();
    let (child, _) = serving(&["--listen", "127.0.0.1:0", "--config", file.path().to_str().unwrap()]);
    let log = stop(child);
    assert!(log.contains("INFO listening") && !log.contains('\u{1b}'), "{log:?}");
}

/// The response to a GET, with its head.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    text(&answer)
}

/// Waits until its store is there: it listens before.
async fn until_ready(address: &str) {
    let begun = Instant::now();
    loop {
        let answer = get(address, "/readyz");
        if answer.starts_with("HTTP/1.1 200") {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{answer}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An output that takes nothing, and the end at which nothing is read.
fn full_output() -> (Stdio, UnixStream) {
    let (mut output, end) = UnixStream::pair().unwrap();
    output.set_nonblocking(true).unwrap();
    while output.write(&[b'x'; 4096]).is_ok_and(|written| written > 0) {}
    output.set_nonblocking(false).unwrap();
    (OwnedFd::from(output).into(), end)
}

/// Reads the log until it has the address. Its reader stays.
fn address_in_log(child: &mut Serving) -> String {
    let mut log = BufReader::new(child.0.stderr.as_mut().unwrap());
    loop {
        let mut line = String::new();
        assert!(log.read_line(&mut line).unwrap() > 0, "it has ended");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if line["message"] == "listening" {
            return line["address"].as_str().unwrap().to_owned();
        }
    }
}

/// A server that is ready does what it does by itself, and stops when it is asked to, also where its first line is not read.
#[tokio::test]
async fn a_server_whose_first_line_is_not_read_runs_its_tasks_and_stops() {
    let (output, _end) = full_output();
    let environment = [("TAILBACK_STORE", "sqlite::memory:")];
    let mut command = tailback(&["serve", "--listen", "127.0.0.1:0"], &environment);
    let mut child = Serving(command.stdout(output).stderr(Stdio::piped()).spawn().unwrap());
    let address = address_in_log(&mut child);
    until_ready(&address).await;
    let stats = get(&address, "/stats");
    assert!(stats.starts_with("HTTP/1.1 200") && stats.contains("\"reaper\""), "{stats}");
    assert_eq!(stopped(&mut child).await.code(), Some(0));
}

/// Asks for what is a line of the log, three times.
fn pause_three_times(address: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for _ in 0..3 {
        let body = "{}";
        let request = format!(
            "POST /v1/queues/q/pause HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             authorization: Bearer 0123456789012345678901234567890123456789\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = [0; 4096];
        let read = stream.read(&mut answer).unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 200"), "{}", text(&answer[..read]));
    }
}

#[tokio::test]
async fn a_server_outlives_the_reader_of_its_log() {
    let (mut child, address) = serving(&["--listen", "127.0.0.1:0"]);
    drop(child.0.stderr.take());
    until_ready(&address).await;
    pause_three_times(&address);
    assert!(child.0.try_wait().unwrap().is_none(), "it runs");
}

/// A terminal that is stopped, or a pipe to a program that does not read.
#[tokio::test]
async fn a_server_whose_log_is_not_read_serves_and_stops() {
    let (error, _end) = full_output();
    let (mut child, address) = serving_with(&["--listen", "127.0.0.1:0"], error);
    until_ready(&address).await;
    pause_three_times(&address);
    assert_eq!(stopped(&mut child).await.code(), Some(0));
}

/// A full disk, to which its output goes.
#[tokio::test]
async fn a_server_whose_address_cannot_be_printed_serves() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let environment = [("TAILBACK_STORE", "sqlite::memory:")];
    let mut command = tailback(&["serve", "--listen", "127.0.0.1:0"], &environment);
    let mut child = Serving(command.stdout(full).stderr(Stdio::piped()).spawn().unwrap());
    let address = address_in_log(&mut child);
    until_ready(&address).await;
    assert_eq!(stopped(&mut child).await.code(), Some(0));
}

#[test]
fn mistakes_are_named_with_their_remedy() {
    let long = "x".repeat(300);
    for (arguments, code, says) in [
        (
            ["--store", "sqlite://jobs.db"],
            2,
            "store must be sqlite:jobs.db (in the working directory) or sqlite:/jobs.db",
        ),
        (["--store", "sqlite:///var/jobs.db"], 2, "or sqlite:/var/jobs.db"),
        (
            ["--store", "sqlite:/nowhere/at/all/jobs.db"],
            1,
            "there is no folder /nowhere/at/all: create it first",
        ),
        (["--store", "mongodb://ada:pass@host/jobs?maxPollSize=1"], 2, "maxpollsize is an invalid option"),
        (["--store", "sqlite:/tmp"], 1, "it is a folder: name a file in it"),
        (["--store", "sqlite:jobs.db?mode=ro"], 2, "store must be sqlite:jobs.db: "),
        (["--store", "mongodb://host/admin"], 2, "store must name a database of its own"),
        (["--config", "/tmp"], 2, "the configuration file /tmp is a folder"),
        (["--config", "nowhere.toml"], 2, "the configuration file nowhere.toml cannot be read"),
        (
            ["--listen", "8321"],
            2,
            "listen must be ADDRESS:PORT, such as 127.0.0.1:8321, localhost:8321, or :8321",
        ),
        (["--listen", &long], 2, "listen must be ADDRESS:PORT"),
        (["--lissten", ":0"], 2, "--listen"),
    ] {
        // The usual port may be taken on this machine.
        let output = output(&arguments, &[("TAILBACK_LISTEN", "127.0.0.1:0")]);
        let said = text(&output.stderr);
        assert!(said.contains(says), "{arguments:?}: {said}");
        assert_eq!(output.status.code(), Some(code), "{said}");
    }
    let said = text(&output(&["--listen", ":0", "serve"], &[]).stderr);
    assert!(said.contains("tip: put the options behind the command: tailback serve"), "{said}");
    let said = text(&output(&["export", "--out", "/nowhere/at/all/x"], &[]).stderr);
    assert!(said.contains("there is no folder /nowhere/at/all: create it first"), "{said}");
    let said = text(&output(&[], &[("TAILBACK_LOG__FILTER", "warning")]).stderr);
    assert!(said.contains("log.filter must be a level") && said.contains("\"warning\""), "{said}");
}

/// Runs it with this standard output.
fn into(out: impl Into<Stdio>, arguments: &[&str], directory: &std::path::Path) -> Output {
    let mut command = tailback(arguments, &[]);
    command
        .current_dir(directory)
        .stdout(out)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap()
}

#[test]
fn an_output_that_takes_nothing_is_said_or_left() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in
        [&["openapi"][..], &["config"], &["check-config"], &["--version"], &["--help"], &["push", "--help"]]
    {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = into(full, arguments, directory.path());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("standard output cannot be written"), "{arguments:?}: {said}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = into(writer, arguments, directory.path());
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn a_key_that_nobody_could_read_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let of = |own: &[&str]| -> Vec<String> {
        ["keys"]
            .iter()
            .chain(own)
            .chain(&["--store", "sqlite:jobs.db"])
            .map(|word| (*word).to_owned())
            .collect()
    };
    let run = |out: Stdio, own: &[&str]| {
        let words = of(own);
        into(out, &words.iter().map(String::as_str).collect::<Vec<_>>(), directory.path())
    };
    // There is nothing to list, and none is made for it.
    let none = run(Stdio::piped(), &["list"]);
    assert!(text(&none.stderr).contains("there is no file jobs.db"), "{none:?}");
    assert_eq!(none.status.code(), Some(1));
    assert!(!directory.path().join("jobs.db").exists());
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let lost = run(full.into(), &["create", "--name", "app", "--scope", "read"]);
    let said = text(&lost.stderr);
    assert_eq!(lost.status.code(), Some(1), "{said}");
    let id = said.split("the key ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let listed = run(Stdio::piped(), &["list"]);
    assert!(text(&listed.stdout).starts_with(&id), "{said}: {listed:?}");
    assert_eq!(run(Stdio::piped(), &["delete", &id]).status.code(), Some(0));
}

/// A migration of a large file may take minutes.
#[tokio::test]
async fn a_stop_does_not_wait_for_a_migration_to_end() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("migrate.begun"), "pause").unwrap();
    let store = format!("sqlite:{}", directory.path().join("tailback.db").display());
    let environment = [("TAILBACK_FAULTS", directory.path().to_str().unwrap()), ("TAILBACK_STORE", &*store)];
    let mut command = tailback(&["serve", "--listen", "127.0.0.1:0"], &environment);
    let mut child = Serving(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "{line}");
    let begun = Instant::now();
    while !directory.path().join("migrate.begun.met").exists() {
        assert!(begun.elapsed() < PATIENCE, "it does not migrate");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let status = stopped(&mut child).await;
    let mut log = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("the store is still at work"), "{log}");
}
