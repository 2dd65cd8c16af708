//! A real server process on a real port, and a client for it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;
use serde_json::Value;

use super::signal::{self, Signal};
use super::{contract, mongod};

/// How long a test waits for something that must happen, on however busy a machine.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How long a connection is kept that is not used: less than `limits.header_wait_ms`, after which a server closes it. On a machine that is
/// busy a test stands still for as long, and its next request would break off.
const IDLE: Duration = Duration::from_secs(5);

/// For a server that takes the counts of a file of SQLite as a crash has left them, so that what is wrong with them is seen.
pub const AS_LEFT: (&str, &str) = ("TAILBACK_BUG", "trust_counts");

/// The longest deadline of the store, for calls that no busy machine is to end: a mongod that makes and drops thousands of collections
/// beside other programs has stood still for 35 s.
pub const UNHURRIED: (&str, &str) = ("TAILBACK_MONGODB__DEADLINE_MS", "60000");

/// The deadline of the store that a server is shipped with, for tests in which MongoDB is away.
pub const SHIPPED_DEADLINE: (&str, &str) = ("TAILBACK_MONGODB__DEADLINE_MS", "1500");

/// Where a test's jobs live: a database or a file of its own, gone with this value.
pub struct Place {
    /// The store's URL.
    pub url: String,
    directory: Option<tempfile::TempDir>,
}

impl Place {
    /// A new file.
    pub async fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().join("tailback.db").display());
        Self { url, directory: Some(directory) }
    }

    /// A new database on the MongoDB of this run.
    pub async fn mongo() -> Self {
        Self { url: mongod::mongodb_url(), directory: None }
    }

    /// A database on a MongoDB of one's own, with which it goes.
    pub fn at(url: String) -> Self {
        Self { url, directory: None }
    }

    /// Removes what there is; to be called once the servers are gone.
    pub async fn clear(self) {
        match self.directory {
            Some(directory) => directory.close().unwrap(),
            None => mongod::drop_database(&self.url).await,
        }
    }
}

/// Returns the media type of a response.
pub fn media(headers: &HeaderMap) -> String {
    headers.get("content-type").map_or("", |value| value.to_str().unwrap()).to_owned()
}

/// A running server. Dropping it kills it.
pub struct Server {
    /// Where it serves, without a slash at the end.
    pub base: String,
    /// Its process.
    pub child: Child,
    /// A client with connections of its own.
    pub http: reqwest::Client,
    /// Whether its responses must be as the OpenAPI document says: another build has another document.
    pub is_current: bool,
}

impl Server {
    /// Starts a server and waits until it is ready.
    pub async fn start(store: &str) -> Self {
        Self::start_with(store, &[]).await
    }

    /// The same with variables in its environment, such as `TAILBACK_WAIT__POLL_MS`.
    pub async fn start_with(store: &str, environment: &[(&str, &str)]) -> Self {
        let server = Self::launch(store, environment);
        server.until_ready().await;
        server
    }

    /// Starts a server and waits only until it listens.
    pub fn launch(store: &str, environment: &[(&str, &str)]) -> Self {
        Self::launch_binary(None, store, environment)
    }

    /// The same with another build of the server.
    pub fn launch_binary(binary: Option<&str>, store: &str, environment: &[(&str, &str)]) -> Self {
        let mut server = Self::of(command_of(binary, store, environment));
        server.is_current = binary.is_none();
        server
    }

    /// The same with a command of one's own, whose standard output is a pipe.
    pub fn of(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let base =
            line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("first line: {line:?}"));
        let base = base.replace("0.0.0.0", "127.0.0.1");
        Self { base, child, http: client(), is_current: true }
    }

    /// Waits until `/readyz` answers 200.
    pub async fn until_ready(&self) {
        until("the server is ready", || async {
            match self.try_send(reqwest::Method::GET, "/readyz", None).await {
                Ok((status, _)) => status == 200,
                Err(error) => self.broke_off(&error).await,
            }
        })
        .await;
    }

    /// Fails, and says whether the server goes on: one that ends says why a moment later.
    async fn broke_off(&self, error: &reqwest::Error) -> bool {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let process = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let state = process.ok().and_then(|status| Some(status.lines().nth(2)?.to_owned()));
        let again = self.try_send(reqwest::Method::GET, "/readyz", None).await;
        panic!("{error:?}; the process: {state:?}; once more: {again:?}");
    }

    /// A GET: status and JSON body (null where there is none).
    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.send(reqwest::Method::GET, path, None).await
    }

    /// A POST with a JSON body.
    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send(reqwest::Method::POST, path, Some(body)).await
    }

    /// Any method, with or without a JSON body.
    pub async fn send(&self, method: reqwest::Method, path: &str, body: Option<Value>) -> (u16, Value) {
        self.try_send(method, path, body).await.unwrap()
    }

    /// The same where the server may break off.
    pub async fn try_send(
        &self,
        method: reqwest::Method,
        path: &str,
        body: Option<Value>,
    ) -> reqwest::Result<(u16, Value)> {
        let mut request = self.http.request(method.clone(), format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await?;
        if self.is_current {
            contract::check(method.as_str(), path, status, &headers, &text);
        }
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
    }

    /// Pushes a job that must be stored, and answers its id.
    pub async fn push(&self, queue: &str, job: Value) -> String {
        let (status, answer) = self.post(&format!("/v1/queues/{queue}/jobs"), job).await;
        assert_eq!(status, 201, "{answer}");
        answer["id"].as_str().unwrap().to_owned()
    }

    /// Reserves jobs and answers them.
    pub async fn reserve(&self, queue: &str, ask: Value) -> Vec<Value> {
        let (status, answer) = self.post(&format!("/v1/queues/{queue}/reserve"), ask).await;
        assert_eq!(status, 200, "{answer}");
        answer["jobs"].as_array().unwrap().clone()
    }

    /// Settles a job that a reserve answered: `call` is commit, rollback, extend or move.
    pub async fn settle(&self, job: &Value, call: &str, mut body: Value) -> (u16, Value) {
        body["reservation"] = job["reservation"].clone();
        self.post(&format!("/v1/jobs/{}/{call}", job["id"].as_str().unwrap()), body).await
    }

    /// SIGKILL: the process is gone at once.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and how the process ended.
    pub async fn terminate(&mut self) -> ExitStatus {
        signal::send(self.child.id(), Signal::SIGTERM);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not stop");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The command that serves this store on a port that the system chooses.
pub fn command(store: &str, environment: &[(&str, &str)]) -> Command {
    command_of(None, store, environment)
}

fn command_of(binary: Option<&str>, store: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(binary.unwrap_or(env!("CARGO_BIN_EXE_tailback")));
    command.args(["serve", "--listen", "127.0.0.1:0", "--store", store]);
    command.env("TAILBACK_LOG__FILTER", "warn").envs([UNHURRIED]).envs(environment.iter().copied());
    command.stdout(Stdio::piped());
    command
}

/// A client that opens as many connections as it needs.
pub fn client() -> reqwest::Client {
    client_with(HeaderMap::new())
}

/// The same with these headers in every request that does not have them.
pub fn client_with(headers: HeaderMap) -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // No certificates: reading those of the machine would take longer than most tests do.
    let builder = reqwest::Client::builder().timeout(PATIENCE).pool_idle_timeout(IDLE).tls_certs_only([]);
    builder.default_headers(headers).build().unwrap()
}

/// A figure of `/metrics`; 0 where there is none.
pub async fn metric(server: &Server, series: &str) -> f64 {
    let answer = server.http.get(format!("{}/metrics", server.base)).send().await.unwrap();
    let text = answer.text().await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().unwrap())
}

/// How many connections a server has beside the one that asks: as many as before once a client has left.
pub async fn connections(server: &Server) -> f64 {
    let http = client(); // its connection is closed with it
    let answer = http.get(format!("{}/metrics", server.base)).send().await.unwrap();
    let text = answer.text().await.unwrap();
    let open = text.lines().find_map(|line| line.strip_prefix("tailback_http_connections "));
    open.unwrap().parse::<f64>().unwrap() - 1.0
}

/// For how many jobs the store has been asked; calls for some each may share one question.
pub const LOOKED: &str = "tailback_store_batch_size_sum{call=\"claim\"}";

/// The same, or how often, where that is more: a histogram may lose a value that is recorded at the moment in which it is read
/// (`AtomicBucket` of metrics-util: the block that the value is for has just been taken away).
pub async fn looked(server: &Server) -> f64 {
    let calls = metric(server, "tailback_store_call_seconds_count{call=\"claim\"}").await;
    calls.max(metric(server, LOOKED).await)
}

/// Waits until the store has been asked for so many jobs. A waiter registers before it looks, so that what is
/// pushed afterwards finds it waiting.
pub async fn until_looked(server: &Server, times: u32) {
    until("the waiters have looked", || async { looked(server).await >= f64::from(times) }).await;
}

/// Waits until a condition holds; fails after [`PATIENCE`].
pub async fn until<F: Future<Output = bool>>(what: &str, condition: impl FnMut() -> F) {
    until_within(PATIENCE, what, condition).await;
}

/// The same with another patience.
pub async fn until_within<F: Future<Output = bool>>(
    patience: Duration,
    what: &str,
    mut condition: impl FnMut() -> F,
) {
    let deadline = Instant::now() + patience;
    while !condition().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// One list of cases, each an `async fn(&Place)`, as a module of tests for each store.
#[macro_export]
macro_rules! on_every_store {
    ($($case:ident)*) => {
        $crate::on_one_store! { mongo: $($case)* }
        $crate::on_one_store! { sqlite: $($case)* }
    };
}

/// The same for one store only; whoever uses it says why.
#[macro_export]
macro_rules! on_one_store {
    ($store:ident: $($case:ident)*) => {
        mod $store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let place = $crate::common::server::Place::$store().await;
                super::$case(&place).await;
                place.clear().await;
            })*
        }
    };
}
