//! The command line as people and scripts use it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use super::server::Server;
use super::signal::{self, Signal};

/// A command of the program under test, which asks this server and knows nothing of the caller's environment.
pub fn command(base: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailback"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TAILBACK_")) {
        command.env_remove(name);
    }
    command
        .args(arguments)
        .env("TAILBACK_URL", base)
        .env("TAILBACK_PROFILES", "/dev/null")
        .env_remove("NO_COLOR");
    command.stdin(Stdio::null());
    command
}

/// What a command has printed, and how it ended.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Done {
    pub fn new(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Its standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Fails unless it ended with this code.
    pub fn with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

/// Runs a command against a server.
pub async fn run(server: &Server, arguments: &[&str]) -> Done {
    finish(command(&server.base, arguments)).await
}

/// Runs a prepared command.
pub async fn finish(mut command: Command) -> Done {
    tokio::task::spawn_blocking(move || Done::new(&command.output().unwrap())).await.unwrap()
}

/// Runs a command with this standard input.
pub async fn run_with_input(server: &Server, arguments: &[&str], input: &[u8]) -> Done {
    let mut command = command(&server.base, arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut child, input) = (command.spawn().unwrap(), input.to_vec());
    let mut stdin = child.stdin.take().unwrap();
    tokio::task::spawn_blocking(move || {
        stdin.write_all(&input).unwrap();
        drop(stdin);
        Done::new(&child.wait_with_output().unwrap())
    })
    .await
    .unwrap()
}

/// A command that goes on beside the test. Dropping it kills it.
pub struct Beside(pub Option<Child>);

impl Beside {
    /// Starts it; what it prints is kept until it ends.
    pub fn start(mut command: Command) -> Self {
        Self(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        signal::send(self.id(), signal);
    }

    /// Waits until it has said this on standard error, of which the rest is kept.
    pub async fn says(&mut self, text: &'static str) {
        let stderr = self.0.as_mut().unwrap().stderr.take().unwrap();
        let reading = tokio::task::spawn_blocking(move || {
            let (mut stderr, mut line) = (BufReader::new(stderr), String::new());
            while !line.contains(text) {
                line.clear();
                assert!(stderr.read_line(&mut line).unwrap() > 0, "it never says {text:?}");
            }
            stderr.into_inner()
        });
        self.0.as_mut().unwrap().stderr = Some(reading.await.unwrap());
    }

    /// Waits until it has ended.
    pub async fn done(mut self) -> Done {
        let child = self.0.take().unwrap();
        tokio::task::spawn_blocking(move || Done::new(&child.wait_with_output().unwrap())).await.unwrap()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a process runs: it is there, and is no zombie.
pub fn is_running(pid: &str) -> bool {
    state_of(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// How many zombies are children of this process.
pub fn zombies_of(parent: u32) -> usize {
    let all =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    all.filter_map(|pid| state_of(&pid)).filter(|(state, of)| *state == 'Z' && *of == parent).count()
}

/// The state of a process, and its parent.
fn state_of(pid: &str) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
    let behind = stat.rsplit_once(") ")?.1;
    let mut fields = behind.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
