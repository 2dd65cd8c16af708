//! The stream of one connection: judges what is read (`http/wire.rs`), replaces the empty responses that hyper itself
//! writes to what it cannot parse by problems, and ends a connection whose client does not read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::budget::Budget;
use super::connection::Wire;
use super::problem::{Code, Problem};
use super::reader::Reader;
use super::wire::{Bounds, Framing, NOT_HTTP, Refusal, Refused};
use super::{request_id, security};
use crate::telemetry;

/// How long what a refused client still sends is read, so that it can read the response: with unread bytes, closing the
/// connection would discard it.
const LINGER: Duration = Duration::from_secs(10);
/// The longest pause of such a client.
const LINGER_PAUSE: Duration = Duration::from_secs(2);

/// The stream of a connection. See the module's documentation.
pub struct Stream<S> {
    inner: S,
    framing: Framing,
    wire: Arc<Wire>,
    refusal: Option<Refusal>,
    /// The problem that is still to be written, in place of hyper's response.
    problem: Option<(Vec<u8>, usize)>,
    reader: Reader,
    /// Until when, and until when at most, what the client still sends is read.
    lingering: Option<[Pin<Box<Sleep>>; 2]>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream<S> {
    /// Returns the stream of a new connection.
    pub fn new(inner: S, bounds: Bounds, write_wait: Duration, budget: Budget, wire: Arc<Wire>) -> Self {
        let framing = Framing::new(bounds);
        let reader = Reader::new(write_wait, budget, wire.clone());
        Self { inner, framing, wire, refusal: None, problem: None, reader, lingering: None }
    }

    /// Reads what a client still sends of a request that was refused, for a while.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = |time| Box::pin(tokio::time::sleep(time));
        let [pause, end] = self.lingering.get_or_insert_with(|| [sleep(LINGER_PAUSE), sleep(LINGER)]);
        let mut bytes = [0; 8192];
        loop {
            if end.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut buf = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.inner).poll_read(cx, &mut buf) {
                Poll::Pending => return pause.as_mut().poll(cx),
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    pause.as_mut().reset(tokio::time::Instant::now() + LINGER_PAUSE);
                }
                Poll::Ready(_) => return Poll::Ready(()),
            }
        }
    }

    /// Returns whether hyper is about to write its own response to what it could not parse: one without a request id.
    fn is_hypers_own(&self, bytes: &[u8]) -> bool {
        self.problem.is_none()
            && self.refusal.is_some()
            && self.wire.body_refused().is_none() // the handler of the request responds
            && bytes.starts_with(b"HTTP/1.")
            && bytes.get(9) != Some(&b'1') // `100 Continue`
            && !bytes.windows(REQUEST_ID.len()).any(|window| window.eq_ignore_ascii_case(REQUEST_ID))
    }

    /// Takes hyper's own response, and has the problem written instead.
    fn replace(&mut self, bytes: &[u8]) {
        let status = bytes.get(9..12).and_then(|status| StatusCode::from_bytes(status).ok());
        self.problem = self.refusal.map(|refusal| (refused(refusal, status), 0));
    }

    /// Writes what is left of the problem.
    fn poll_problem(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some((bytes, written)) = &mut self.problem {
            let Some(rest) = bytes.get(*written..).filter(|rest| !rest.is_empty()) else { break };
            let wrote = Pin::new(&mut self.inner).poll_write(cx, rest);
            *written += ready!(self.reader.wrote(wrote, |bytes| *bytes, cx))?;
        }
        Poll::Ready(Ok(()))
    }
}

const REQUEST_ID: &[u8] = b"x-request-id:";

/// Writes a problem to a connection that is not served, and ends it.
pub async fn refuse(mut tcp: TcpStream, refusal: Refusal) -> io::Result<()> {
    tcp.write_all(&refused(refusal, None)).await?;
    tcp.shutdown().await?;
    // Until the client has seen it: what it has sent, unread, would discard the response.
    let mut bytes = [0; 1024];
    while tcp.read(&mut bytes).await? > 0 {}
    Ok(())
}

/// Returns the whole response to a request that was refused before it was parsed.
fn refused(Refusal { code, detail }: Refusal, status: Option<StatusCode>) -> Vec<u8> {
    // hyper knows what is wrong with what only hyper refuses.
    let status = status.filter(|_| detail == NOT_HTTP.detail);
    let (code, detail) = match status {
        Some(StatusCode::URI_TOO_LONG) => (Code::UriTooLong, "the path is too long"),
        Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE) => {
            (Code::HeadTooLarge, "the request has too many headers, or they are too large")
        }
        _ => (code, detail),
    };
    let id = ulid::Ulid::new().to_string();
    let problem = request_id::scope_sync(id.clone(), || Problem::new(code, detail));
    let body = serde_json::to_string(&problem).unwrap_or_default();
    telemetry::http_request("other", "none", code.status().as_u16(), Duration::ZERO);
    tracing::debug!(request_id = id, status = code.status().as_u16(), detail, "request refused");
    let headers = security::HEADERS.map(|(name, value)| format!("{name}: {value}\r\n")).concat();
    format!(
        "HTTP/1.1 {}\r\ncontent-type: application/problem+json\r\nx-request-id: {id}\r\n{headers}\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        code.status(),
        body.len()
    )
    .into_bytes()
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(refusal) = this.wire.body_refused() {
            // What came before has been handed on, and the handler of the request finds the reason in `wire`.
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, refusal.detail)));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        let Some(read) = buf.filled_mut().get_mut(before..) else { return Poll::Ready(Ok(())) };
        if let Some(Refused { refusal, within_body }) = this.framing.read(read) {
            this.refusal = Some(refusal);
            // There is one at most.
            match within_body {
                Some(good) => {
                    this.wire.refuse_body(refusal);
                    buf.set_filled(before + good);
                    if good == 0 {
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, refusal.detail)));
                    }
                }
                None => this.wire.refuse(this.framing.heads(), refusal),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.is_hypers_own(bytes) {
            this.replace(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        ready!(this.poll_problem(cx))?;
        let wrote = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.reader.wrote(wrote, |bytes| *bytes, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(first) = parts.first().filter(|first| this.is_hypers_own(first)) {
            this.replace(first);
            return Poll::Ready(Ok(parts.iter().map(|part| part.len()).sum()));
        }
        ready!(this.poll_problem(cx))?;
        let wrote = Pin::new(&mut this.inner).poll_write_vectored(cx, parts);
        this.reader.wrote(wrote, |bytes| *bytes, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_problem(cx))?;
        // TLS keeps what it could not write, and hyper waits for it here.
        let flushed = Pin::new(&mut this.inner).poll_flush(cx);
        this.reader.wrote(flushed, |()| 0, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_problem(cx))?;
        let shut = Pin::new(&mut this.inner).poll_shutdown(cx);
        ready!(this.reader.wrote(shut, |()| 0, cx))?;
        if this.framing.is_within_request() {
            ready!(this.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }
}
