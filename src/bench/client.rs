//! One connection, and HTTP/1.1 over it by hand. It shares the machine with what it measures, so that it must
//! cost little: one write for a request, buffers that are used again, and nothing is built that nobody reads.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::response::{self, Head};

/// A server may close a connection that nobody has used for long; one idle for longer than this is made anew.
const FRESH: Duration = Duration::from_secs(5);

/// What the clients of a run have seen together.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Answers of every kind.
    pub answers: AtomicU64,
    /// Answers that asked to come back later (429 and 503 with `Retry-After`), which was done.
    pub retries: AtomicU64,
}

/// A client with a connection of its own.
pub struct Client {
    host: String,
    stream: TcpStream,
    used: Instant,
    request: Vec<u8>,
    answer: Vec<u8>,
    traffic: Arc<Traffic>,
}

impl Client {
    /// Connects to `http://HOST:PORT`.
    pub async fn connect(url: &str, traffic: &Arc<Traffic>) -> anyhow::Result<Self> {
        let host = url.strip_prefix("http://").context("--url must be http://HOST:PORT")?;
        let host = host.trim_end_matches('/').to_owned();
        let stream = open(&host).await?;
        let (request, answer) = (Vec::with_capacity(1024), Vec::with_capacity(4096));
        Ok(Self { host, stream, used: Instant::now(), request, answer, traffic: traffic.clone() })
    }

    /// Sends a request and answers the body of what came back. A server that asks for patience is given some;
    /// everything else but success is an error.
    pub async fn call(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<&[u8]> {
        self.request.clear();
        write!(self.request, "{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.host)?;
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
                    let problem = String::from_utf8_lossy(head.body(&self.answer));
                    anyhow::bail!("{method} {path} answered {status}: {problem}");
                }
            }
        };
        Ok(head.body(&self.answer))
    }

    /// Sends the request that is ready, and reads its answer.
    async fn exchange(&mut self) -> anyhow::Result<Head> {
        if self.used.elapsed() > FRESH {
            self.stream = open(&self.host).await?;
        }
        self.stream.write_all(&self.request).await.context("cannot send the request")?;
        let head = response::read(&mut self.stream, &mut self.answer).await?;
        self.used = Instant::now();
        self.traffic.answers.fetch_add(1, Ordering::Relaxed);
        Ok(head)
    }
}

async fn open(host: &str) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(host).await.with_context(|| format!("cannot connect to {host}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// A server that gives these answers in turn, on one connection; answers where it listens.
    async fn server(answers: Vec<String>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for answer in answers {
                let mut request = [0; 1024];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        url
    }

    fn answer(head: &str, body: &str) -> String {
        format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn a_server_that_asks_for_patience_is_asked_again() {
        let url = server(vec![
            answer("429 Too Many Requests\r\nretry-after: 0", "{}"),
            answer("503 Service Unavailable\r\nretry-after: 0", "{}"),
            answer("201 Created", "first"),
            answer("200 OK", "second"),
        ]);
        let traffic = Arc::new(Traffic::default());
        let mut client = Client::connect(&url.await, &traffic).await.unwrap();
        assert_eq!(client.call("POST", "/", "{}").await.unwrap(), b"first");
        assert_eq!(client.call("GET", "/", "").await.unwrap(), b"second");
        let counted = (traffic.answers.load(Ordering::Relaxed), traffic.retries.load(Ordering::Relaxed));
        assert_eq!(counted, (4, 2));
    }

    #[tokio::test]
    async fn any_other_refusal_is_an_error_with_the_problem() {
        let url = server(vec![
            answer("422 Unprocessable Content", "{\"code\":\"invalid-field\"}"),
            answer("503 Service Unavailable", "no word of when"),
        ]);
        let mut client = Client::connect(&url.await, &Arc::default()).await.unwrap();
        for problem in ["answered 422: {\"code\":\"invalid-field\"}", "answered 503: no word of when"] {
            let error = client.call("POST", "/v1/x", "{}").await.unwrap_err().to_string();
            assert_eq!(error, format!("POST /v1/x {problem}"));
        }
    }

    #[tokio::test]
    async fn what_is_no_address_is_refused() {
        let error = Client::connect("https://localhost", &Arc::default()).await.err().unwrap();
        assert!(error.to_string().contains("http://HOST:PORT"));
    }
}
