//! `tailback top` and tables on a terminal: a pseudo-terminal, and a screen that obeys what is written to it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::cli;
use common::server::{Place, Server, until};
use common::signal::{self, Signal};
use common::worker::Address;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::json;

/// Nearly as long as the stream alone is silent at a time; it is given up after 45 s.
const SILENT: Duration = Duration::from_secs(14);

/// A terminal in which a command runs.
struct Screen {
    control: OwnedFd,
    line: File,
    seen: Arc<Mutex<vt100::Parser>>,
    raw: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn cells(number: u16) -> std::num::NonZero<u16> {
    std::num::NonZero::new(number).unwrap()
}

impl Screen {
    fn start(command: &Command, rows: u16, columns: u16) -> Self {
        let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&control).unwrap();
        unlockpt(&control).unwrap();
        let name = ptsname(&control, Vec::new()).unwrap().into_string().unwrap();
        let line = File::options().read(true).write(true).open(name).unwrap();
        tcsetwinsize(&control, size(rows, columns)).unwrap();
        // The terminal is the command's own, so that it is told of a new size.
        let mut own = Command::new("setsid");
        own.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => own.env(name, value),
                None => own.env_remove(name),
            };
        }
        own.env("TERM", "xterm-256color");
        let of = |line: &File| line.try_clone().unwrap();
        let child = own.stdin(of(&line)).stdout(of(&line)).stderr(of(&line)).spawn().unwrap();
        let seen = Arc::new(Mutex::new(vt100::Parser::new(cells(rows), cells(columns), 0)));
        let raw = Arc::new(Mutex::new(Vec::new()));
        let (mut output, to, all) = (File::from(control.try_clone().unwrap()), seen.clone(), raw.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut buffer) {
                to.lock().unwrap().process(&buffer[..read]);
                all.lock().unwrap().extend_from_slice(&buffer[..read]);
            }
        });
        Self { control, line, seen, raw, child }
    }

    fn text(&self) -> String {
        self.seen.lock().unwrap().screen().contents()
    }

    async fn until(&self, text: &str) {
        until(&format!("{text:?} is on the screen: {}", self.text()), || async {
            self.text().contains(text)
        })
        .await;
    }

    fn press(&self, keys: &str) {
        File::from(self.control.try_clone().unwrap()).write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&self, rows: u16, columns: u16) {
        self.seen.lock().unwrap().screen_mut().set_size(cells(rows), cells(columns));
        tcsetwinsize(&self.control, size(rows, columns)).unwrap();
    }

    /// Waits until the command has ended and all that it wrote is on the screen, and returns its exit code.
    async fn ended(&mut self) -> Option<i32> {
        let code = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        // It comes behind all that the command wrote, and no terminal shows it.
        (&self.line).write_all(b"\0").unwrap();
        until("all is read", || async { self.raw.lock().unwrap().contains(&0) }).await;
        code
    }

    /// Waits until the terminal is as a shell left it.
    async fn restored(&self) {
        until("the terminal is as it was", || async {
            let modes = tcgetattr(&self.line).unwrap().local_modes;
            let seen = self.seen.lock().unwrap();
            let screen = seen.screen();
            modes.contains(LocalModes::ICANON | LocalModes::ECHO)
                && !screen.alternate_screen()
                && !screen.hide_cursor()
        })
        .await;
    }

    fn signal(&self, signal: Signal) {
        signal::send(self.child.id(), signal);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn filled(place: &Place) -> Server {
    let server = Server::start(&place.url).await;
    fill(&server).await;
    server
}

async fn fill(server: &Server) {
    for (queue, jobs) in [("alpha", 1), ("beta", 5), ("gamma", 3)] {
        for n in 0..jobs {
            server.push(queue, json!({"payload": {"n": n, "text": "\u{1b}[2J"}, "max_attempts": 1})).await;
        }
    }
    let job = server.reserve("beta", json!({})).await[0].clone();
    server.settle(&job, "rollback", json!({"error": "no \u{1b}]0;owned\u{7} luck"})).await;
}

/// Where lines begin with these words, in their order.
fn order(text: &str, words: [&str; 3]) -> Vec<usize> {
    words
        .iter()
        .map(|word| text.lines().position(|line| line.starts_with(word)).unwrap_or(usize::MAX))
        .collect()
}

#[tokio::test]
async fn queues_are_sorted_looked_at_and_left() {
    let place = Place::sqlite().await;
    let server = filled(&place).await;
    let mut screen = Screen::start(&cli::command(&server.base, &["top"]), 24, 100);
    screen.until("gamma").await;
    screen.until("live").await;
    until("those with the most ready jobs come first", || async {
        order(&screen.text(), ["beta", "gamma", "alpha"]).is_sorted()
    })
    .await;
    screen.until("queues").await;
    screen.press("?");
    screen.until("the other way round").await;
    screen.press("x");
    screen.press("r");
    until("it is sorted the other way round", || async {
        order(&screen.text(), ["alpha", "gamma", "beta"]).is_sorted()
    })
    .await;
    screen.press("r");
    screen.press("/bet\r");
    until("only beta is there", || async {
        screen.text().contains("beta") && !screen.text().contains("alpha")
    })
    .await;
    screen.press("\r");
    screen.until("ERROR OR PAYLOAD").await;
    screen.until("no \\u{1b}]0;owned\\u{7} luck").await;
    // One of the dead, and nothing else.
    screen.press("fffff");
    screen.until("1 dead jobs").await;
    screen.press("\r");
    screen.until("attempt 1:").await;
    screen.press("\u{1b}");
    screen.until("1 dead jobs").await;
    screen.press("q");
    assert_eq!(screen.ended().await, Some(0));
    screen.restored().await;
    let raw = screen.raw.lock().unwrap().clone();
    assert!(!raw.windows(4).any(|bytes| bytes == b"\x1b]0;"), "a payload has reached the terminal");
}

#[tokio::test]
async fn a_filter_shows_all_that_it_finds_and_an_untouched_list_its_beginning() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    for n in 10..40 {
        server.push(&format!("q{n}"), json!({"payload": 1})).await;
    }
    let mut screen = Screen::start(&cli::command(&server.base, &["top", "--sort", "name"]), 15, 100);
    screen.until("q10").await;
    screen.press("G");
    screen.until("q39").await;
    screen.press("/q2\r");
    screen.until("/q2: 10 of 30 queues").await;
    for n in 20..30 {
        screen.until(&format!("q{n}")).await;
    }
    // One after the other: a terminal reads both at once as Alt and g.
    screen.press("\u{1b}");
    until("all queues are shown", || async { !screen.text().contains("/q2:") }).await;
    screen.press("g");
    screen.until("q10").await;
    // What comes before the first is seen, as long as none is chosen.
    server.push("q00", json!({"payload": 1})).await;
    screen.until("q00").await;
    screen.press("q");
    assert_eq!(screen.ended().await, Some(0));
}

#[tokio::test]
async fn it_follows_the_size_of_the_terminal_and_what_happens() {
    let place = Place::sqlite().await;
    let server = filled(&place).await;
    let screen = Screen::start(&cli::command(&server.base, &["top"]), 30, 120);
    screen.until("BLOCKED").await;
    screen.resize(10, 40);
    until("it fits 40 by 10", || async {
        let text = screen.text();
        text.contains("beta")
            && text.contains("READY")
            && text.contains("choose")
            && !text.contains("BLOCKED")
    })
    .await;
    screen.resize(3, 15);
    screen.until("too small").await;
    screen.resize(30, 120);
    screen.until("BLOCKED").await;
    server.push("delta", json!({"payload": 1})).await;
    screen.until("delta").await;
    server.post("/v1/queues/delta/pause", json!({})).await;
    screen.until("delta (paused)").await;
}

#[tokio::test]
async fn a_lost_connection_is_said_and_the_terminal_is_given_back_on_sigterm() {
    let (place, address) = (Place::sqlite().await, Address::take());
    let mut server = address.serve(&place, &[]).await;
    fill(&server).await;
    let mut screen = Screen::start(&cli::command(&server.base, &["top"]), 24, 100);
    screen.until("live").await;
    screen.until("beta").await;
    server.kill();
    screen.until("CONNECTION LOST").await;
    screen.until("figures of").await;
    screen.until("beta").await; // the old figures stay
    let _again = address.serve(&place, &[]).await;
    until("it is live again", || async { !screen.text().contains("LOST") && screen.text().contains("live") })
        .await;
    screen.signal(Signal::SIGTERM);
    assert_eq!(screen.ended().await, Some(0));
    screen.restored().await;
}

#[tokio::test]
async fn tables_fit_the_terminal_and_colours_can_be_refused() {
    let place = Place::sqlite().await;
    let server = filled(&place).await;
    for columns in [40, 60, 80, 200] {
        let mut screen = Screen::start(&cli::command(&server.base, &["jobs"]), 40, columns);
        assert_eq!(screen.ended().await, Some(0));
        screen.until("gamma").await;
        let raw = screen.raw.lock().unwrap().clone();
        assert!(raw.windows(4).any(|bytes| bytes == b"\x1b[31"), "there are colours");
        if columns < 80 {
            screen.until("no room for").await;
        } else {
            screen.until("ERROR OR PAYLOAD").await;
        }
        // Nine jobs and a head: no line is broken.
        let text = screen.text();
        let table = text.split("tailback: ").next().unwrap();
        let lines = table.lines().filter(|line| !line.trim().is_empty()).count();
        assert_eq!(lines, 10, "{columns}: {text}");
    }
    let mut command = cli::command(&server.base, &["jobs"]);
    command.env("NO_COLOR", "1");
    let mut screen = Screen::start(&command, 40, 100);
    assert_eq!(screen.ended().await, Some(0));
    screen.until("gamma").await;
    assert!(!screen.raw.lock().unwrap().contains(&0x1b));
}

#[tokio::test]
async fn many_queues_are_sorted_by_each_column() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    for n in 0..4 {
        let job = |m: u32| json!({"queue": format!("many{n}.{m:03}"), "payload": 1});
        let jobs: Vec<_> = (0..500).map(job).collect();
        assert_eq!(server.post("/v1/jobs", json!({"jobs": jobs, "atomic": false})).await.0, 200);
    }
    let mut screen = Screen::start(&cli::command(&server.base, &["top", "--sort", "oldest"]), 30, 150);
    screen.until("OLDEST▼").await;
    screen.until("many").await;
    for head in ["IN/S", "DONE/S", "FAILED/S", "SCHEDULED", "BLOCKED", "QUEUE", "ATTENTION", "READY"] {
        screen.press("s");
        screen.until(&format!("{head}▼")).await;
        screen.press("r");
    }
    screen.press("q");
    assert_eq!(screen.ended().await, Some(0));
}

#[tokio::test]
async fn a_named_queue_is_shown_however_many_are_fuller() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    for n in 0..10 {
        let job = |m: u32| json!({"queue": format!("many{n}.{m:03}"), "payload": 1});
        let jobs: Vec<_> = (0..1000).map(job).collect();
        assert_eq!(server.post("/v1/jobs", json!({"jobs": jobs, "atomic": false})).await.0, 200);
    }
    // Of queues with as many jobs the last by name is left out.
    server.push("small", json!({"payload": 1})).await;
    until("tail says it", || async {
        let told = cli::run(&server, &["tail", "small", "--for", "3s"]).await.with(0).out;
        assert!(!told.contains("not followed"), "{told}");
        told.contains("small  1 ready")
    })
    .await;
    let mut screen = Screen::start(&cli::command(&server.base, &["top", "small"]), 24, 100);
    screen.until("live").await;
    screen.until("small").await;
    screen.press("q");
    assert_eq!(screen.ended().await, Some(0));
    // It is found among all as well, by its whole name.
    let mut screen = Screen::start(&cli::command(&server.base, &["top"]), 24, 100);
    screen.until("1 not shown").await;
    screen.press("/small\r");
    screen.until("Enter looks at the queue of this name").await;
    screen.press("\r");
    screen.until("1 jobs of every state").await;
    screen.press("q");
    assert_eq!(screen.ended().await, Some(0));
}

#[tokio::test]
async fn jobs_that_move_on_count_as_done() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    server.push("first", json!({"payload": 1})).await;
    // The rates are of the last minute: for each look one moves on.
    let moves_on = async || {
        server.push("first", json!({"payload": 2})).await;
        let job = server.reserve("first", json!({})).await[0].clone();
        assert_eq!(server.settle(&job, "move", json!({"queue": "second"})).await.0, 200);
    };
    moves_on().await;
    let mut screen = Screen::start(&cli::command(&server.base, &["top", "first"]), 24, 150);
    let is_some = |rest: &str| {
        rest.split_once("/s").is_some_and(|(rate, _)| rate.trim().parse().is_ok_and(|rate: f64| rate > 0.0))
    };
    let has_done = || async { screen.text().split("done ").skip(1).any(is_some) };
    until("one is done of all", has_done).await;
    moves_on().await;
    screen.press("\r");
    screen.until("jobs of every state").await;
    until("one is done of the queue", has_done).await;
    until("tail says it", || async {
        moves_on().await;
        cli::run(&server, &["tail", "first", "--for", "1s"]).await.with(0).out.contains(" done/s")
    })
    .await;
    screen.press("q");
    assert_eq!(screen.ended().await, Some(0));
}

#[tokio::test]
async fn a_server_that_hangs_is_said_and_the_clock_goes_on() {
    let place = Place::sqlite().await;
    let server = filled(&place).await;
    let mut screen = Screen::start(&cli::command(&server.base, &["top"]), 24, 100);
    let clock = || screen.text().lines().next().and_then(|title| title.split("  ").nth(1)).map(str::to_owned);
    screen.until("live").await;
    screen.until("beta").await;
    let at = clock();
    until("its clock goes on while nothing happens", || async { clock() != at }).await;
    let mut took = SILENT;
    // On a busy machine it may be said late, but not each time.
    for _ in 0..5 {
        signal::send(server.child.id(), Signal::SIGSTOP);
        let begun = Instant::now();
        screen.until("NO ANSWER for").await;
        took = begun.elapsed();
        until("the old figures stay", || async {
            screen.text().contains("figures of") && screen.text().contains("beta")
        })
        .await;
        let at = clock();
        until("its clock goes on", || async { clock() != at }).await;
        signal::send(server.child.id(), Signal::SIGCONT);
        until("it is live again", || async { screen.text().contains(" live ") }).await;
        if took < SILENT {
            break;
        }
    }
    assert!(took < SILENT, "{took:?}");
    server.push("delta", json!({"payload": 1})).await;
    screen.until("delta").await;
    screen.press("q");
    assert_eq!(screen.ended().await, Some(0));
}

#[tokio::test]
async fn long_facts_are_wrapped_behind_their_names() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let text = (0..60).map(|n| format!("word{n:02}")).collect::<Vec<_>>().join(" ");
    let id = server.push("long", json!({"payload": text, "max_attempts": 1})).await;
    let job = server.reserve("long", json!({"worker": "w1"})).await[0].clone();
    server.settle(&job, "rollback", json!({"error": text})).await;
    let mut screen = Screen::start(&cli::command(&server.base, &["job", &id]), 50, 60);
    assert_eq!(screen.ended().await, Some(0));
    screen.until("attempt 1 at w1").await;
    until("all of both is there", || async { screen.text().matches("word59").count() == 2 }).await;
    let shown = screen.text();
    let lines: Vec<&str> = shown.lines().filter(|line| line.contains("word")).collect();
    assert!(lines.len() > 14, "{shown}");
    for line in &lines {
        let is_first = line.starts_with("payload ") || line.starts_with("  attempt 1");
        assert!(is_first || line.starts_with("    "), "{line:?}: {shown}");
        let is_whole = line.split(['"', ' ']).all(|word| !word.contains("word") || word.len() == 6);
        assert!(is_whole, "words stay whole: {line:?}");
    }
    let piped = cli::run(&server, &["job", &id]).await.with(0).out;
    assert!(piped.lines().any(|line| line.contains("word00") && line.contains("word59")), "{piped}");
}
