//! A small HTTP/1.1 client: hyper over TCP or TLS, with the connections that are idle.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::failure::{Failure, Problem};
use super::target::Target;
use super::tls;
use crate::connect::connected;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a response may take beyond what the call itself waits.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest response that is read.
const BODY_MAX: usize = 1 << 30;

type Sender = SendRequest<Full<Bytes>>;

/// A call.
#[derive(Debug, Clone)]
pub struct Call {
    method: Method,
    path: String,
    body: Option<Bytes>,
    headers: Vec<(&'static str, String)>,
    patience: Duration,
}

impl Call {
    /// Returns a call without a body.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), body: None, headers: Vec::new(), patience: PATIENCE }
    }

    /// Returns a GET.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// Returns a POST with this JSON.
    pub fn post(path: impl Into<String>, json: impl Into<Bytes>) -> Self {
        Self { body: Some(json.into()), ..Self::new(Method::POST, path) }
    }

    /// Returns a PUT with this JSON.
    pub fn put(path: impl Into<String>, json: impl Into<Bytes>) -> Self {
        Self { body: Some(json.into()), ..Self::new(Method::PUT, path) }
    }

    /// Returns a PATCH with this JSON.
    pub fn patch(path: impl Into<String>, json: impl Into<Bytes>) -> Self {
        Self { body: Some(json.into()), ..Self::new(Method::PATCH, path) }
    }

    /// The call is refused where the thing has another version than this, if one is said.
    pub fn if_version(self, version: Option<&str>) -> Self {
        match version {
            Some(version) => self.header("if-match", format!("\"{version}\"")),
            None => self,
        }
    }

    /// Adds a header.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The call itself waits this long, so that its response may take longer.
    pub fn waits(mut self, wait: Duration) -> Self {
        self.patience = PATIENCE.saturating_add(wait);
        self
    }

    /// The response must come within this time.
    pub fn within(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    fn request(
        &self,
        target: &Target,
        trace: &[(&'static str, String)],
    ) -> Result<Request<Full<Bytes>>, Failure> {
        let mut request = Request::builder()
            .method(&self.method)
            .uri(format!("{}{}", target.prefix, self.path))
            .header("host", &target.authority)
            .header("user-agent", concat!("tailback-cli/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = &target.authorization {
            request = request.header("authorization", authorization);
        }
        if self.body.is_some() {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in trace.iter().chain(&self.headers) {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(self.body.clone().unwrap_or_default()));
        request.map_err(|_| Failure::Usage("a header must be of visible ASCII characters".to_owned()))
    }
}

/// A successful response.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The body.
    pub body: Bytes,
    /// The media type, empty if there is none.
    pub media: String,
}

impl Answer {
    /// Reads the body.
    pub fn read<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Failure::Failed(format!("the server's answer is not understood: {error}")))
    }
}

/// Headers of all calls of a client.
type Headers = Arc<[(&'static str, String)]>;

/// A client of one server, and the trace that its calls are in.
#[derive(Clone)]
pub struct Client(Arc<Inner>, Headers);

struct Inner {
    target: Target,
    tls: Option<TlsConnector>,
    idle: Mutex<Vec<Sender>>,
}

/// Returns the trace that the environment names (`TRACEPARENT`, `TRACESTATE`), as headers; none where it is not valid.
fn trace_of_environment() -> Headers {
    let Some(parent) = std::env::var("TRACEPARENT").ok().filter(|value| is_traceparent(value)) else {
        return Arc::default();
    };
    let is_visible = |value: &String| value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let state = std::env::var("TRACESTATE").ok().filter(|value| !value.is_empty() && is_visible(value));
    let state = state.map(|state| ("tracestate", state));
    [("traceparent", parent)].into_iter().chain(state).collect()
}

/// Returns whether this is the `traceparent` of a trace: version, trace, span and flags in hexadecimal digits, neither id of zeros only.
pub fn is_traceparent(value: &str) -> bool {
    let parts: Vec<&str> = value.split('-').collect();
    let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_zero = |part: &str| part.bytes().all(|byte| byte == b'0');
    let [version, trace, span, flags] = parts[..] else { return false };
    let lengths = [version.len(), trace.len(), span.len(), flags.len()];
    lengths == [2, 32, 16, 2]
        && parts.iter().all(|part| is_hex(part))
        && version != "ff"
        && !is_zero(trace)
        && !is_zero(span)
}

impl Client {
    /// Returns a client that is not connected yet.
    pub fn new(target: Target) -> Result<Self, Failure> {
        let tls = if target.is_tls { Some(tls::connector(target.ca.as_deref())?) } else { None };
        Ok(Self(Arc::new(Inner { target, tls, idle: Mutex::default() }), trace_of_environment()))
    }

    /// Returns a client of the same server for what has nothing to do with the trace that the environment names.
    pub fn without_trace(&self) -> Self {
        Self(self.0.clone(), Arc::default())
    }

    /// Returns the server's URL, for people.
    pub fn url(&self) -> String {
        self.0.target.url()
    }

    /// Returns the variables with which a command that this one runs means the same server; those without a value are removed.
    pub fn environment(&self) -> &[(&'static str, Option<std::ffi::OsString>)] {
        &self.0.target.environment
    }

    /// Makes a call. Any status but 2xx is a failure.
    pub async fn call(&self, call: &Call) -> Result<Answer, Failure> {
        let late = || self.unreachable(format!("no answer within {} s", call.patience.as_secs()));
        timeout(call.patience, self.exchange(call)).await.map_err(|_| late())?
    }

    async fn exchange(&self, call: &Call) -> Result<Answer, Failure> {
        let (response, sender) = self.respond(call).await?;
        let status = response.status();
        let media = response.headers().get("content-type").and_then(|value| value.to_str().ok());
        let media = media.unwrap_or_default().to_owned();
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
        let body =
            body.map_err(|error| self.unreachable(format!("the answer breaks off: {error}")))?.to_bytes();
        self.idle().push(sender);
        if status.is_success() {
            return Ok(Answer { body, media });
        }
        Err(Failure::Problem(Box::new(Problem::new(status.as_u16(), &body))))
    }

    /// Makes a call whose response goes on and on; only its head must come in time.
    pub async fn stream(&self, call: &Call) -> Result<Incoming, Failure> {
        let late = || self.unreachable(format!("no answer within {} s", call.patience.as_secs()));
        let (response, _) = timeout(call.patience, self.respond(call)).await.map_err(|_| late())??;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body());
        }
        let body = timeout(PATIENCE, Limited::new(response.into_body(), BODY_MAX).collect()).await;
        let body =
            body.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes).unwrap_or_default();
        Err(Failure::Problem(Box::new(Problem::new(status.as_u16(), &body))))
    }

    async fn respond(&self, call: &Call) -> Result<(Response<Incoming>, Sender), Failure> {
        // An idle connection may have been closed by now: what it has not sent goes over a new one.
        let mut request = call.request(&self.0.target, &self.1)?;
        loop {
            let idle = self.idle().pop();
            let is_new = idle.is_none();
            let mut sender = match idle {
                Some(sender) => sender,
                None => self.connect().await?,
            };
            if sender.ready().await.is_err() && !is_new {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, sender)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    _ => return Err(self.unreachable(reason(&error.into_error()))),
                },
            }
        }
    }

    async fn connect(&self) -> Result<Sender, Failure> {
        let target = &self.0.target;
        let stream = timeout(CONNECT, connected(&target.host, target.port))
            .await
            .map_err(|_| self.unconnected(format!("no connection within {} s", CONNECT.as_secs())))?
            .map_err(|error| self.unconnected(error.to_string()))?;
        let _ = stream.set_nodelay(true); // slower without, and right
        let Some(tls) = &self.0.tls else { return self.greet(stream).await };
        let name = tls::name(&target.host)?;
        let stream = timeout(CONNECT, tls.connect(name, stream))
            .await
            .map_err(|_| self.unconnected(format!("no TLS within {} s", CONNECT.as_secs())))?
            .map_err(|error| self.unconnected(format!("TLS: {error}{}", tls::hint(&error))))?;
        self.greet(stream).await
    }

    async fn greet<S>(&self, stream: S) -> Result<Sender, Failure>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| self.unconnected(reason(&error)))?;
        // Its failure is that of the request on it.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Sender>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unreachable(&self, reason: impl AsRef<str>) -> Failure {
        Failure::Unreachable(self.not_reached(reason.as_ref()))
    }

    fn unconnected(&self, reason: impl AsRef<str>) -> Failure {
        Failure::Unconnected(self.not_reached(reason.as_ref()))
    }

    fn not_reached(&self, reason: &str) -> String {
        format!("{} is not reached: {}", self.url(), super::shown::shown(reason))
    }
}

/// Returns what an error of hyper says, with its cause.
fn reason(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error);
    let text = cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
    if error.is_parse() { format!("{text}; is it https:// there?") } else { text }
}

/// Returns a text as one segment of a path.
pub fn segment(text: &str) -> String {
    let mut segment = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                segment.push(char::from(byte))
            }
            _ => segment.push_str(&format!("%{byte:02X}")),
        }
    }
    // A server would take these for folders.
    match segment.as_str() {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        _ => segment,
    }
}

/// Returns a path with these parameters; those without a value are left out.
pub fn query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    let query = query.finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}
