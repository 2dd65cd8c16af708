//! `tailback work` as tests run it.

use std::path::PathBuf;

use serde_json::Value;

use super::cli::{self, Done, is_running};
use super::server::{Place, Server, until};

/// A folder in which commands leave notes.
pub struct Notes(pub tempfile::TempDir);

impl Notes {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.path(name)).ok().filter(|text| !text.is_empty())
    }

    pub async fn until(&self, name: &str) -> String {
        until(&format!("{name} is there"), || async {
            self.read(name).is_some_and(|text| text.ends_with('\n'))
        })
        .await;
        self.read(name).unwrap().trim().to_owned()
    }
}

/// The command of a worker that runs this script, in this folder.
pub fn work(base: &str, notes: &Notes, arguments: &[&str], script: &str) -> std::process::Command {
    let mut all = vec!["work"];
    all.extend(arguments);
    all.extend(["--json", "--", "sh", "-c", script]);
    let mut command = cli::command(base, &all);
    command.current_dir(notes.0.path());
    command
}

/// What a worker has told of its jobs.
pub fn told(done: &Done) -> Vec<Value> {
    done.out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits until a process is gone.
pub async fn gone(pid: &str) {
    until(&format!("{pid} is gone"), || async { !is_running(pid) }).await;
}

/// An address that nobody else is given while no server listens there: a socket stays bound to it, and does not listen.
pub struct Address(tokio::net::TcpSocket);

impl Address {
    pub fn take() -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap(); // as servers do: both may have it
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self(socket)
    }

    /// Starts a server there, with variables in its environment, and waits until it is ready.
    pub async fn serve(&self, place: &Place, environment: &[(&str, &str)]) -> Server {
        let address = self.0.local_addr().unwrap().to_string();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tailback"));
        command.args(["serve", "--listen", &address, "--store", &place.url]);
        command.env("TAILBACK_LOG__FILTER", "warn").envs(environment.iter().copied());
        command.stdout(std::process::Stdio::piped());
        let server = Server::of(command);
        server.until_ready().await;
        server
    }
}

/// Passes connections on to a server. The first answer to a reserve that has this text in it is lost. Returns its address.
pub async fn losing(to: &str, text: &'static [u8]) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let to = to.trim_start_matches("http://").to_owned();
    let is_lost = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = tokio::net::TcpStream::connect(&to).await.unwrap();
            let is_lost = is_lost.clone();
            tokio::spawn(async move {
                let (mut asks, mut answers) = client.into_split();
                let (mut from, mut into) = server.into_split();
                let requests = tokio::spawn(async move { drop(tokio::io::copy(&mut asks, &mut into).await) });
                let mut bytes = vec![0; 1 << 16];
                while let Ok(read @ 1..) = from.read(&mut bytes).await {
                    let is_it = bytes[..read].windows(text.len()).any(|part| part == text);
                    if is_it && !is_lost.swap(true, std::sync::atomic::Ordering::SeqCst)
                        || answers.write_all(&bytes[..read]).await.is_err()
                    {
                        break;
                    }
                }
                requests.abort();
            });
        }
    });
    base
}
