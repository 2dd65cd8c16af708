//! A minimal HTTP/1.1 client over one connection. It shares the machine with the server that it measures, so it must
//! be cheap: one write per request, reused buffers, and no parsing of what is not needed.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::response::{self, Head};

/// The server may close an idle connection; one that was idle for longer than this is reopened.
const FRESH: Duration = Duration::from_secs(5);

/// The environment variable with the key of a server that requires one.
const KEY: &str = "TAILBACK_KEY";

type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// The traffic of all clients of a run.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Responses with any status.
    pub responses: AtomicU64,
    /// Responses that asked for a retry (429 and 503 with `Retry-After`); each was retried.
    pub retries: AtomicU64,
}

/// A client with its own connection.
pub struct Client {
    host: String,
    /// The header with the key, if there is one.
    authorization: String,
    tls: Option<TlsConnector>,
    stream: Stream,
    used: Instant,
    request: Vec<u8>,
    response: Vec<u8>,
    traffic: Arc<Traffic>,
}

impl Client {
    /// Connects to `http://HOST:PORT`, or to `https://HOST:PORT` with what is trusted there.
    pub async fn connect(
        url: &str,
        tls: Option<&TlsConnector>,
        traffic: &Arc<Traffic>,
    ) -> anyhow::Result<Self> {
        let (host, tls) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(host), _) => (host, None),
            (_, Some(host)) => (host, Some(tls.context("an https:// URL needs --ca")?.clone())),
            _ => anyhow::bail!("--url must be http://HOST:PORT or https://HOST:PORT"),
        };
        let host = host.trim_end_matches('/').to_owned();
        let stream = open(&host, tls.as_ref()).await?;
        let key = std::env::var(KEY).ok();
        let authorization = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
        let (request, response) = (Vec::with_capacity(1024), Vec::with_capacity(4096));
        Ok(Self {
            host,
            authorization,
            tls,
            stream,
            used: Instant::now(),
            request,
            response,
            traffic: traffic.clone(),
        })
    }

    /// Sends a request and returns the body of the response. Retries after `Retry-After`; any other status than 2xx
    /// is an error.
    pub async fn call(&mut self, method: &str, path: &str, body: &str) -> anyhow::Result<&[u8]> {
        self.request.clear();
        write!(self.request, "{method} {path} HTTP/1.1\r\nhost: {}\r\n{}", self.host, self.authorization)?;
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
            self.stream = open(&self.host, self.tls.as_ref()).await?;
        }
        self.stream.write_all(&self.request).await.context("cannot send the request")?;
        let head = response::read(&mut self.stream, &mut self.response).await?;
        self.used = Instant::now();
        self.traffic.responses.fetch_add(1, Ordering::Relaxed);
        Ok(head)
    }
}

async fn open(host: &str, tls: Option<&TlsConnector>) -> anyhow::Result<Stream> {
    let stream = TcpStream::connect(host).await.with_context(|| format!("cannot connect to {host}"))?;
    stream.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Either::Left(stream)) };
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    let name = ServerName::try_from(name.to_owned())?;
    let encrypted = tls.connect(name, stream).await;
    Ok(Either::Right(Box::new(encrypted.with_context(|| format!("no TLS with {host}"))?)))
}

/// Returns what trusts the authority whose certificate is in this file.
pub fn trusting(ca: &Path) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for certificate in
        CertificateDer::pem_file_iter(ca).with_context(|| format!("cannot read {}", ca.display()))?
    {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()).into())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// Starts a server that sends these responses in order on one connection; returns its URL.
    async fn server(responses: Vec<String>) -> String {
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
        url
    }

    fn reply(head: &str, body: &str) -> String {
        format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn a_response_with_retry_after_is_retried() {
        let url = server(vec![
            reply("429 Too Many Requests\r\nretry-after: 0", "{}"),
            reply("503 Service Unavailable\r\nretry-after: 0", "{}"),
            reply("201 Created", "first"),
            reply("200 OK", "second"),
        ]);
        let traffic = Arc::new(Traffic::default());
        let mut client = Client::connect(&url.await, None, &traffic).await.unwrap();
        assert_eq!(client.call("POST", "/", "{}").await.unwrap(), b"first");
        assert_eq!(client.call("GET", "/", "").await.unwrap(), b"second");
        let counted = (traffic.responses.load(Ordering::Relaxed), traffic.retries.load(Ordering::Relaxed));
        assert_eq!(counted, (4, 2));
    }

    #[tokio::test]
    async fn any_other_failure_is_an_error_with_the_problem() {
        let url = server(vec![
            reply("422 Unprocessable Content", "{\"code\":\"invalid-field\"}"),
            reply("503 Service Unavailable", "no retry-after"),
        ]);
        let mut client = Client::connect(&url.await, None, &Arc::default()).await.unwrap();
        for problem in ["returned 422: {\"code\":\"invalid-field\"}", "returned 503: no retry-after"] {
            let error = client.call("POST", "/v1/x", "{}").await.unwrap_err().to_string();
            assert_eq!(error, format!("POST /v1/x {problem}"));
        }
    }

    #[tokio::test]
    async fn an_invalid_url_is_rejected() {
        for (url, what) in [("ftp://localhost", "http://HOST:PORT"), ("https://localhost", "--ca")] {
            let error = Client::connect(url, None, &Arc::default()).await.err().unwrap();
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}
