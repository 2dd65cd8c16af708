//! Connections: HTTP/1.1 with a limit on their number and on the patience with slow clients.
//!
//! `axum::serve` has no timer for a client that connects and says nothing, or sends half a request; hyper
//! driven by hand has.

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

use crate::telemetry;

/// What the configuration says about connections.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The most connections that are open at once; more wait to be accepted.
    pub connections: usize,
    /// How long a connection may take to send the head of a request, or stay idle between two.
    pub header_wait: Duration,
}

/// Serves until `stop`, then lets what is running finish, for at most `patience`.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    options: Options,
    stop: CancellationToken,
    patience: Duration,
) where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: HttpBody<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(options.connections));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let Some((stream, place)) = accepted else { continue };
        let service = service.clone();
        let handler = hyper::service::service_fn(move |request: Request<Incoming>| {
            service.clone().call(request.map(Body::new))
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(options.header_wait)
            .serve_connection(TokioIo::new(stream), handler);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            telemetry::connections(1.0);
            // Clients that break off or send no HTTP are their own affair.
            if let Err(error) = connection.await {
                tracing::trace!(%error, "a connection ended early");
            }
            telemetry::connections(-1.0);
            drop(place);
        });
    }
    drop(listener); // from here on nobody new gets in
    if tokio::time::timeout(patience, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests that were still running after shutdown_ms were broken off");
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Answers are small and written at once: waiting to fill a packet only adds latency.
            let _ = stream.set_nodelay(true);
            Some((stream, place))
        }
        Err(error) => {
            // Out of file descriptors, most likely: whoever holds one needs time to give it back.
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}
