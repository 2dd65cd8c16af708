//! Connections: HTTP/1.1 with a limit on their number, and timeouts for slow clients.
//!
//! `axum::serve` has no timeout for a client that connects and sends nothing, or half a request; hyper, used
//! directly, has one.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::stream::{Stream, Wire};
use super::wire::Bounds;
use crate::telemetry;

/// The configured limits on connections.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The maximum number of open connections; further ones wait to be accepted.
    pub connections: usize,
    /// The timeout for the head of a request, and for an idle connection between two requests.
    pub header_wait: Duration,
    /// How long a client may not read while a response waits for it.
    pub write_wait: Duration,
    /// The limits of what is read.
    pub bounds: Bounds,
}

/// Serves until `stop`, then lets in-flight requests finish within `drain_timeout`.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    options: Options,
    stop: CancellationToken,
    drain_timeout: Duration,
) where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: HttpBody<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let graceful = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(options.connections));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &permits) => accepted,
        };
        let Some((stream, permit)) = accepted else { continue };
        let service = service.clone();
        let wire = Arc::new(Wire::default());
        let stream = Stream::new(stream, options.bounds, options.write_wait, wire.clone());
        let handler = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            if let Some(refusal) = wire.next_request() {
                request.extensions_mut().insert(refusal);
            }
            request.extensions_mut().insert(wire.clone());
            service.clone().call(request.map(Body::new))
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(options.header_wait)
            .serve_connection(TokioIo::new(stream), handler);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            telemetry::connections(1.0);
            // A client that disconnects or sends no valid HTTP is no error of the server.
            if let Err(error) = connection.await {
                tracing::trace!(%error, "connection ended early");
            }
            telemetry::connections(-1.0);
            drop(permit);
        });
    }
    drop(listener); // no new connections from here on
    if tokio::time::timeout(drain_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("aborted requests that were still in flight after shutdown_ms");
    }
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = permits.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Responses are small and written at once: waiting to fill a packet (Nagle) only adds latency.
            let _ = stream.set_nodelay(true);
            Some((stream, permit))
        }
        Err(error) => {
            // Most likely out of file descriptors: wait until some are closed.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}
