//! A MongoDB of a test's own, to be stopped, frozen and started again at will.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::options::ClientOptions;

use super::server::{PATIENCE, until};
use super::signal::{self, Signal};

/// How long a command may take.
const ANSWER: Duration = Duration::from_secs(20);

const SET: &str = "rs0";

/// A mongod on a port and a directory that stay the same across its restarts; killed when dropped. Where its test fails,
/// its log is kept in `target/tmp`.
pub struct OwnMongod {
    port: u16,
    directory: tempfile::TempDir,
    child: Option<Child>,
    /// `--setParameter`s.
    parameters: Vec<&'static str>,
    /// Other arguments of the command line.
    pub arguments: Vec<String>,
    /// What the URL of each client ends with: `&tls=true…`.
    pub options: String,
}

impl OwnMongod {
    /// One that does not run yet.
    pub fn idle() -> Self {
        // Not one of those that the system gives to connections: it must be free again after a restart.
        let ports = std::iter::repeat_with(|| rand::random_range(15_000..32_000));
        let port = ports.into_iter().find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let (parameters, arguments, options) = Default::default();
        Self { port, directory, child: None, parameters, arguments, options }
    }

    /// A running replica set of one member.
    pub async fn start() -> Self {
        let mut mongod = Self::idle();
        mongod.run().await;
        mongod
    }

    /// The same with these parameters.
    pub async fn with_parameters(parameters: &[&'static str]) -> Self {
        let mut mongod = Self::idle();
        mongod.parameters.extend(parameters);
        mongod.run().await;
        mongod
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A running server without a replica set, which Tailback cannot use.
    pub async fn standalone() -> Self {
        let mut mongod = Self::idle();
        mongod.spawn(&[]);
        until("the standalone mongod answers", || async { mongod.hello().await.is_some() }).await;
        mongod
    }

    /// The URL of a database on it.
    pub fn url(&self) -> String {
        format!("mongodb://127.0.0.1:{}/tailback?replicaSet={SET}{}", self.port, self.options)
    }

    /// Starts it, again or for the first time, and waits until it takes writes.
    pub async fn run(&mut self) {
        self.spawn(&["--replSet", SET]);
        let host = format!("127.0.0.1:{}", self.port);
        until("the mongod is the primary", || async {
            let Some(hello) = self.hello().await else { return false };
            if hello.get_bool("isreplicaset").unwrap_or(false) {
                let members = vec![doc! { "_id": 0, "host": &host }];
                let initiate = doc! { "replSetInitiate": { "_id": SET, "members": members } };
                // A second try may find it under way; the next look tells.
                let _ = self.command(initiate).await;
            }
            hello.get_bool("isWritablePrimary").unwrap_or(false)
        })
        .await;
    }

    /// Starts it as a member of a set that somebody else initiates.
    pub fn launch(&mut self) {
        self.spawn(&["--replSet", SET]);
    }

    /// More `--setParameter`s for the next start.
    pub fn set_parameters(&mut self, parameters: &[&'static str]) {
        self.parameters.extend(parameters);
    }

    /// The process, where it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// SIGTERM, and waits until it is gone.
    pub async fn terminate(&mut self) {
        self.signal(Signal::SIGTERM);
        let mut child = self.child.take().unwrap();
        let ended = tokio::task::spawn_blocking(move || child.wait());
        tokio::time::timeout(PATIENCE, ended).await.expect("the mongod does not stop").unwrap().unwrap();
    }

    /// kill -9, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// It stops to answer, but its connections stay open.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// It goes on where it was.
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        signal::send(self.child.as_ref().expect("the mongod does not run").id(), signal);
    }

    fn spawn(&mut self, more: &[&str]) {
        let binary = std::env::var("TAILBACK_TEST_MONGOD").expect(
            "TAILBACK_TEST_MONGOD is not set: run the tests with scripts/test, which provides a MongoDB",
        );
        let mut command = Command::new(binary);
        command.arg("--dbpath").arg(self.directory.path());
        command.arg("--logpath").arg(self.directory.path().join("mongod.log")).arg("--logappend");
        command.args(["--bind_ip", "127.0.0.1", "--nounixsocket", "--wiredTigerCacheSizeGB", "0.25"]);
        command.args(["--port", &self.port.to_string()]).args(more);
        command.args(&self.arguments);
        command.args(self.parameters.iter().flat_map(|parameter| ["--setParameter", parameter]));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
    }

    pub async fn hello(&self) -> Option<Document> {
        self.command(doc! { "hello": 1 }).await
    }

    /// One command on a connection of its own, past all that a driver does to find a primary.
    pub async fn command(&self, command: Document) -> Option<Document> {
        let url = format!("mongodb://127.0.0.1:{}/?directConnection=true{}", self.port, self.options);
        let mut options = ClientOptions::parse(url).await.unwrap();
        options.server_selection_timeout = Some(Duration::from_millis(500));
        let client = Client::with_options(options).unwrap();
        // A driver whose server comes up in between has been seen to wait for ever.
        let asking = async {
            let answer = client.database("admin").run_command(command).await.ok();
            client.clone().shutdown().immediate(true).await;
            answer
        };
        tokio::time::timeout(ANSWER, asking).await.ok().flatten()
    }
}

impl Drop for OwnMongod {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mongod-{}.log", self.port));
            let _ = std::fs::copy(self.directory.path().join("mongod.log"), kept);
        }
    }
}
