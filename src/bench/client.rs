//! A minimal HTTP/1.1 client over one connection. It shares the machine with the server that it measures, so it must
//! be cheap: one write per request, reused buffers, and no parsing of what is not needed.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::response::{self, Head};
use crate::cli::{Failure, Target, tls};

/// The server may close an idle connection; one that was idle for longer than this is reopened.
const FRESH: Duration = Duration::from_secs(5);

type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// The traffic of all clients of a run.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Responses with any status.
    pub responses: AtomicU64,
    /// Responses that asked for a retry (429 and 503 with `Retry-After`); each was retried.
    pub retries: AtomicU64,
}

/// A server, and how it is reached.
pub struct Server {
    target: Target,
    tls: Option<TlsConnector>,
}

impl Server {
    /// Returns the server that is meant.
    pub fn new(target: Target) -> Result<Self, Failure> {
        let tls = if target.is_tls { Some(tls::connector(target.ca.as_deref())?) } else { None };
        Ok(Self { target, tls })
    }

    async fn open(&self) -> anyhow::Result<Stream> {
        let Target { host, port, .. } = &self.target;
        let stream = TcpStream::connect((host.as_str(), *port)).await;
        let stream = stream.with_context(|| format!("cannot connect to {}", self.target.url()))?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Either::Left(stream)) };
        let encrypted = tls.connect(tls::name(host)?, stream).await;
        let encrypted = encrypted.with_context(|| format!("no TLS with {}", self.target.url()))?;
        Ok(Either::Right(Box::new(encrypted)))
    }

    /// Returns the headers of each request: the host, and the key if there is one.
    fn headers(&self) -> String {
        let key = self.target.authorization.as_ref().and_then(|value| value.to_str().ok());
        let key = key.map(|value| format!("authorization: {value}\r\n")).unwrap_or_default();
        format!("host: {}\r\n{key}", self.target.authority)
    }
}

/// A client with its own connection.
pub struct Client {
    server: Arc<Server>,
    /// The headers of each request.
    headers: String,
    stream: Stream,
    used: Instant,
    request: Vec<u8>,
    response: Vec<u8>,
    traffic: Arc<Traffic>,
}

impl Client {
    /// Connects to a server.
    pub async fn connect(server: &Arc<Server>, traffic: &Arc<Traffic>) -> anyhow::Result<Self> {
        let stream = server.open().await?;
        Ok(Self {
            server: server.clone(),
            headers: server.headers(),
            stream,
            used: Instant::now(),
            request: Vec::with_capacity(1024),
            response: Vec::with_capacity(4096),
            traffic: traffic.clone(),
        })
    }

    /// Sends a request and returns the body of the response. Retries after `Retry-After`; any other status than 2xx
    /// is an error.
    pub async fn call(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<&[u8]> {
        self.request.clear();
        let prefix = &self.server.target.prefix;
        write!(self.request, "{method} {prefix}{path} HTTP/1.1\r\n{}", self.headers)?;
        if !body.is_empty() {
            let length = body.len();
            write!(self.request, "content-type: application/json\r\ncontent-length: {length}\r\n")?;
        }
        self.request.extend_from_slice(b"\r\n");
        self.request.extend_from_slice(body.as_bytes());
        let head = loop {
            let head = self.exchange().await.with_context(|| format!("{method} {path}"))?;
            match (head.status, head.retry_after_s) {
                (200..=299, _) => break head,
                (429 | 503, Some(seconds)) => {
                    self.traffic.retries.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                }
                (status, _) => {
                    let problem = String::from_utf8_lossy(head.body(&self.response));
                    anyhow::bail!("{method} {path} returned {status}: {problem}");
                }
            }
        };
        Ok(head.body(&self.response))
    }

    /// Sends the prepared request and reads its response.
    async fn exchange(&mut self) -> anyhow::Result<Head> {
        if self.used.elapsed() > FRESH {
            self.stream = self.server.open().await?;
        }
        self.stream.write_all(&self.request).await.context("cannot send the request")?;
        let head = response::read(&mut self.stream, &mut self.response).await?;
        self.used = Instant::now();
        self.traffic.responses.fetch_add(1, Ordering::Relaxed);
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;
    use crate::cli::Access;

    /// Starts a server that sends these responses in order on one connection; returns it.
    async fn server(responses: Vec<String>) -> Arc<Server> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for response in responses {
                let mut request = [0; 1024];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                stream.write_all(response.as_bytes()).await.unwrap();
            }
        });
        Arc::new(Server::new(Access::default().target(Some(&url)).unwrap()).unwrap())
    }

    fn reply(head: &str, body: &str) -> String {
        format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn a_response_with_retry_after_is_retried() {
        let server = server(vec![
            reply("429 Too Many Requests\r\nretry-after: 0", "{}"),
            reply("503 Service Unavailable\r\nretry-after: 0", "{}"),
            reply("201 Created", "first"),
            reply("200 OK", "second"),
        ]);
        let traffic = Arc::new(Traffic::default());
        let mut client = Client::connect(&server.await, &traffic).await.unwrap();
        assert_eq!(client.call("POST", "/", "{}").await.unwrap(), b"first");
        assert_eq!(client.call("GET", "/", "").await.unwrap(), b"second");
        let counted = (traffic.responses.load(Ordering::Relaxed), traffic.retries.load(Ordering::Relaxed));
        assert_eq!(counted, (4, 2));
    }

    #[tokio::test]
    async fn any_other_failure_is_an_error_with_the_problem() {
        let server = server(vec![
            reply("422 Unprocessable Content", "{\"code\":\"invalid-field\"}"),
            reply("503 Service Unavailable", "no retry-after"),
        ]);
        let mut client = Client::connect(&server.await, &Arc::default()).await.unwrap();
        for problem in ["returned 422: {\"code\":\"invalid-field\"}", "returned 503: no retry-after"] {
            let error = client.call("POST", "/v1/x", "{}").await.unwrap_err().to_string();
            assert_eq!(error, format!("POST /v1/x {problem}"));
        }
    }
}
