//! Posts batches of spans to their receiver over one connection, which is opened again when it has ended.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;

use super::export::Options;
use crate::connect::connected;
use crate::telemetry::Throttle;

/// The most bytes of a response that are read.
const RESPONSE_MAX: usize = 64 << 10;

/// Why a batch did not arrive.
pub enum Failure {
    /// The receiver does not take it.
    Refused(String),
    /// It may take it later.
    Again {
        /// What happened.
        why: String,
        /// When to try again, as the receiver said.
        after: Option<Duration>,
    },
}

/// See the module's documentation.
pub struct Client {
    endpoint: Uri,
    headers: HeaderMap,
    tls: Option<TlsConnector>,
    timeout: Duration,
    connection: Option<SendRequest<Full<Bytes>>>,
    /// What is said of batches that are tried again.
    pub trouble: Throttle,
}

impl Client {
    /// A client that has no connection yet.
    pub fn new(options: &Options) -> anyhow::Result<Self> {
        let mut headers: HeaderMap = options.headers.iter().cloned().collect();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("tailback/", env!("CARGO_PKG_VERSION"))));
        let authority = options.endpoint.authority().context("trace.endpoint names no host")?;
        headers.insert(HOST, HeaderValue::from_str(authority.as_str()).context("trace.endpoint")?);
        let is_tls = options.endpoint.scheme_str() == Some("https");
        let tls = is_tls.then(|| connector(options.ca.as_deref())).transpose()?;
        let (endpoint, timeout) = (options.endpoint.clone(), options.timeout);
        Ok(Self { endpoint, headers, tls, timeout, connection: None, trouble: Throttle::new() })
    }

    /// Posts a batch. Returns how many of its spans the receiver did not take.
    pub async fn post(&mut self, body: &Arc<[u8]>) -> Result<usize, Failure> {
        let again = |why| Err(Failure::Again { why, after: None });
        match tokio::time::timeout(self.timeout, self.exchange(body)).await {
            Ok(Ok((status, headers, body))) => judge(status, &headers, body),
            Ok(Err(error)) => again(format!("{error:#}")),
            Err(_) => again(format!("no response within {} ms", self.timeout.as_millis())),
        }
    }

    async fn exchange(&mut self, body: &Arc<[u8]>) -> anyhow::Result<(StatusCode, HeaderMap, Bytes)> {
        let kept = self.connection.take();
        let was_kept = kept.is_some();
        let mut connection = match kept {
            Some(connection) if !connection.is_closed() => connection,
            _ => self.connect().await?,
        };
        let response = match connection.send_request(self.request(body)?).await {
            // The receiver may have closed a connection that was idle.
            Err(_) if was_kept => {
                connection = self.connect().await?;
                connection.send_request(self.request(body)?).await
            }
            response => response,
        };
        let (head, body) = response.context("the receiver did not respond")?.into_parts();
        let body = Limited::new(body, RESPONSE_MAX).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("the response cannot be read: {error}"))?.to_bytes();
        self.connection = Some(connection);
        Ok((head.status, head.headers, body))
    }

    fn request(&self, body: &Arc<[u8]>) -> anyhow::Result<Request<Full<Bytes>>> {
        let path = self.endpoint.path_and_query().map_or("/", |path| path.as_str());
        let body = Full::new(Bytes::from_owner(body.clone()));
        let mut request = Request::builder().method(Method::POST).uri(path).body(body)?;
        *request.headers_mut() = self.headers.clone();
        Ok(request)
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let host = self.endpoint.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = self.endpoint.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let stream = connected(host, port).await;
        let stream = stream.with_context(|| format!("cannot connect to {host}:{port}"))?;
        stream.set_nodelay(true)?;
        let stream = match &self.tls {
            None => Either::Left(stream),
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned())?;
                Either::Right(tls.connect(name, stream).await.context("the TLS handshake failed")?)
            }
        };
        let (requests, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection); // ends with the last request, or when the receiver closes it
        Ok(requests)
    }
}

fn connector(ca: Option<&Path>) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    match ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(file) => {
            for certificate in CertificateDer::pem_file_iter(file).context("trace.ca cannot be read")? {
                roots.add(certificate.context("trace.ca is no PEM file of certificates")?)?;
            }
            anyhow::ensure!(!roots.is_empty(), "trace.ca has no certificate in it");
        }
    }
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Returns what a response means. Those statuses that OTLP lists may be tried again.
fn judge(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Result<usize, Failure> {
    let why = || format!("the receiver responded with {}", status.as_u16());
    match status.as_u16() {
        200..=299 => {
            let response = ExportTraceServiceResponse::decode(body).unwrap_or_default();
            let rejected = response.partial_success.map_or(0, |partial| partial.rejected_spans);
            Ok(usize::try_from(rejected).unwrap_or(0))
        }
        429 | 502 | 503 | 504 => {
            let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
            Err(Failure::Again { why: why(), after: seconds.map(Duration::from_secs) })
        }
        _ => Err(Failure::Refused(why())),
    }
}
