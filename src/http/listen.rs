//! Connections: HTTP/1.1 with a limit on their number, and timeouts for slow clients.
//!
//! `axum::serve` has no timeout for a client that connects and sends nothing, or half a request; hyper, used
//! directly, has one.

use std::convert::Infallible;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;

use super::budget::Budget;
use super::connection::Wire;
use super::context::Context;
use super::peers::{Peers, Share};
use super::problem::Code;
use super::session::{Peer, Source};
use super::stream::{self, Stream};
use super::tls::{self, Tls};
use super::waiting;
use super::wire::{Bounds, Refusal};
use crate::telemetry::{self, Throttle};

/// The configured limits on connections.
#[derive(Debug, Clone)]
pub struct Options {
    /// The maximum number of open connections; a few further ones get health and metrics only.
    pub connections: usize,
    /// The maximum number of one peer.
    pub connections_per_peer: usize,
    /// The proxies that say which client a request is from.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// The timeout for the head of a request, and for an idle connection between two requests.
    pub header_wait: Duration,
    /// How long a client may not read while a response waits for it, and over how long its pace is judged.
    pub write_wait: Duration,
    /// The limits of what is read.
    pub bounds: Bounds,
    /// How connections are encrypted, if they are.
    pub tls: Option<tls::Options>,
}

/// How many connections are served beyond `connections`, for what operators look at: health, readiness, metrics.
pub const SPARE: usize = 16;
/// The timeout for the head of a request on such a connection, which is closed after its response.
const SPARE_WAIT: Duration = Duration::from_secs(2);
/// How long the refusal of a connection may take.
const REFUSAL_WAIT: Duration = Duration::from_secs(1);
/// How many connections are refused at once with a response; more are closed without one.
const REFUSALS: usize = 64;
/// The size of the kernel's buffer for what a client has not read yet, in bytes; Linux doubles it. The default grows to megabytes
/// for each client, and takes a slow one for one that does not read.
const SEND_BUFFER: usize = 256 << 10;

/// The most bytes that are buffered of one connection.
const BUFFER: usize = 64 << 10;
/// The same for heads: as many as one may have, and some.
const HEADS: usize = 8 << 10;

/// The line that says that connections cannot be accepted.
static REFUSED: Throttle = Throttle::new();

/// The places for connections.
#[derive(Clone)]
struct Places {
    all: Arc<Semaphore>,
    spare: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
}

impl Places {
    /// Waits for a place; one of the spare ones where all others are taken.
    async fn take(&self) -> Option<(OwnedSemaphorePermit, bool)> {
        tokio::select! {
            biased;
            permit = self.all.clone().acquire_owned() => Some((permit.ok()?, false)),
            permit = self.spare.clone().acquire_owned() => Some((permit.ok()?, true)),
        }
    }

    /// Exchanges a spare place for another one that has become free since.
    fn exchange(&self, (place, is_spare): (OwnedSemaphorePermit, bool)) -> (OwnedSemaphorePermit, bool) {
        match self.all.clone().try_acquire_owned() {
            Ok(better) if is_spare => (better, false),
            _ => (place, is_spare),
        }
    }
}

/// What holds for one connection.
struct Admitted {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
    is_spare: bool,
    /// What it counts for its peer.
    _share: Option<Share>,
    /// The address of the peer.
    address: IpAddr,
    /// Where the connection is that of a trusted proxy.
    behind_proxy: Option<Proxy>,
}

/// A trusted proxy.
struct Proxy {
    address: IpAddr,
    peers: Arc<Peers>,
}

/// How many connections may wait to be accepted; the system may allow fewer (`net.core.somaxconn`). One that finds no room is
/// tried again by its client's system after a second.
const BACKLOG: u32 = 4096;

/// Listens on an address.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(all) if all.ip().is_unspecified() => match TcpSocket::new_v6() {
            Ok(socket) => {
                rustix::net::sockopt::set_ipv6_v6only(&socket, false)?; // IPv4 as well, whatever the system's default
                socket
            }
            // A machine without IPv6 has only the other interfaces.
            Err(_) => return bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, all.port()))),
        },
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?; // else a restart waits until the connections of before are forgotten
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `stop`, then lets in-flight requests finish within `drain_timeout`.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    options: Options,
    tls: Option<Arc<Tls>>,
    budget: Budget,
    stop: CancellationToken,
    drain_timeout: Duration,
) where
    S: Handler<B>,
    B: HttpBody<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let graceful = GracefulShutdown::new();
    let (all, spare) = (Semaphore::new(options.connections), Semaphore::new(SPARE));
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    let places = Places { all: Arc::new(all), spare: Arc::new(spare), refusals };
    if let Err(error) = rustix::net::sockopt::set_socket_send_buffer_size(&listener, SEND_BUFFER) {
        tracing::warn!(%error, "cannot limit the buffers of connections");
    }
    let peers = Arc::new(Peers::new(options.connections_per_peer, options.trusted_proxies.clone()));
    let of_each = |most: usize| Arc::new(Peers::new(most, Vec::new()));
    let waiting = of_each(waiting::may_wait(options.connections_per_peer));
    let arriving = of_each(budget.arriving_max());
    let shared = Arc::new(Shared { options, budget, waiting, arriving });
    let follow = tls.clone().map(|tls| tokio::spawn(async move { tls.follow().await }));
    let (open, abort) = (TaskTracker::new(), CancellationToken::new());
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &places, &peers, tls.is_some()) => accepted,
        };
        let Some(admitted) = accepted else { continue };
        let connection = Connection { service: service.clone(), shared: shared.clone() };
        let (tls, watcher, stop) = (tls.clone(), graceful.watcher(), stop.clone());
        let abort = abort.child_token(); // which is polled without a lock that all connections share
        open.spawn(async move {
            telemetry::connections(1.0);
            abort.run_until_cancelled(connection.run(admitted, tls, watcher, stop)).await;
            telemetry::connections(-1.0);
        });
    }
    drop(listener); // no new connections from here on
    follow.inspect(|follow| follow.abort());
    if tokio::time::timeout(drain_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("aborted requests that were still in flight after shutdown_ms");
        // Their clients have left then: what is claimed for them is given back.
        abort.cancel();
    }
    open.close();
    open.wait().await;
}

/// What handles the requests.
pub trait Handler<B>:
    Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

impl<B, S> Handler<B> for S where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// A connection that is served.
struct Connection<S> {
    service: S,
    shared: Arc<Shared>,
}

/// What all connections share.
struct Shared {
    options: Options,
    budget: Budget,
    /// What each peer has waiting for jobs.
    waiting: Arc<Peers>,
    /// Of how many requests of each peer the body is still coming.
    arriving: Arc<Peers>,
}

impl<S> Connection<S> {
    /// Serves the requests of the connection, after its handshake, which a stop ends.
    async fn run<B>(
        self,
        admitted: Admitted,
        tls: Option<Arc<Tls>>,
        watcher: Watcher,
        stop: CancellationToken,
    ) where
        S: Handler<B>,
        B: HttpBody<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let Admitted { stream, _place, is_spare, _share, address, behind_proxy } = admitted;
        let marks = Marks { is_spare, is_encrypted: tls.is_some(), address, behind_proxy };
        match tls {
            None => self.requests(stream, marks, watcher).await,
            Some(tls) => {
                // Silent clients must not hold the spare places.
                let wait = if is_spare { SPARE_WAIT } else { Duration::MAX };
                let handshake = stop.run_until_cancelled(tls.accept(stream, wait)).await;
                if let Some(stream) = handshake.flatten() {
                    self.requests(stream, marks, watcher).await;
                }
            }
        }
    }

    async fn requests<B, I>(self, stream: I, marks: Marks, watcher: Watcher)
    where
        S: Handler<B>,
        B: HttpBody<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { service, shared } = self;
        let Shared { options, budget, waiting, arriving } = &*shared;
        let wire = Arc::new(Wire::new(marks.address, waiting.clone(), arriving.clone()));
        let is_spare = marks.is_spare;
        let within = |wait: Duration| if is_spare { wait.min(SPARE_WAIT) } else { wait };
        let (header_wait, write_wait) = (within(options.header_wait), within(options.write_wait));
        let stream = Stream::new(stream, options.bounds, write_wait, budget.clone(), wire.clone());
        let handler = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            let share = marks.set(&mut request, &wire);
            let response = service.clone().call(request.map(Body::new));
            async move {
                let response = response.await;
                drop(share);
                response
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(header_wait)
            .max_buf_size(BUFFER.max(options.bounds.head + HEADS))
            .keep_alive(!is_spare)
            .serve_connection(TokioIo::new(stream), handler);
        // A client that disconnects or sends no valid HTTP is no error of the server.
        if let Err(error) = watcher.watch(connection).await {
            tracing::trace!(%error, "connection ended early");
        }
    }
}

/// What the handlers are to know of the connection of a request.
struct Marks {
    is_spare: bool,
    is_encrypted: bool,
    address: IpAddr,
    behind_proxy: Option<Proxy>,
}

impl Marks {
    /// Marks a request. Returns what it counts for the client that a proxy names: behind one, requests are counted in
    /// place of connections.
    fn set(&self, request: &mut Request<Incoming>, wire: &Arc<Wire>) -> Option<Option<Share>> {
        // A client that the proxy does not name counts as the proxy itself.
        let client = self
            .behind_proxy
            .as_ref()
            .map(|Proxy { address, peers }| (peers, peers.client(request.headers()).unwrap_or(*address)));
        let share = client.map(|(peers, address)| peers.enter(address));
        let Self { is_encrypted, address, .. } = *self;
        let peer = Peer { address, is_proxy: self.behind_proxy.is_some(), is_encrypted };
        if request.uri().path() == "/v1/session" {
            let source = Source::new(peer, client.map(|(_, address)| address), request.headers());
            request.extensions_mut().insert(source);
        }
        let is_encrypted = peer.came_by_tls(request.headers());
        let refused = wire.next_request();
        request.extensions_mut().insert(Context {
            wire: Some(wire.clone()),
            client: client.map(|(_, address)| address),
            is_encrypted,
            refusal: if matches!(share, Some(None)) { Some(TOO_MANY) } else { refused },
            is_spare: self.is_spare,
            ..Context::default()
        });
        share
    }
}

/// What a peer gets that has as much open as it may have.
const TOO_MANY: Refusal =
    Refusal { code: Code::Overloaded, detail: "this peer has too much open (limits.connections_per_peer)" };

async fn accept(
    listener: &TcpListener,
    places: &Places,
    peers: &Arc<Peers>,
    is_encrypted: bool,
) -> Option<Admitted> {
    let place = places.take().await?;
    let (stream, address) = match listener.accept().await {
        Ok(accepted) => accepted,
        Err(error) => {
            // Most likely out of file descriptors: wait until some are closed.
            if let Some(more) = REFUSED.due() {
                tracing::warn!(%error, more, "cannot accept a connection");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            return None;
        }
    };
    // Responses are small and written at once: waiting to fill a packet (Nagle) only adds latency.
    let _ = stream.set_nodelay(true);
    let (place, is_spare) = places.exchange(place);
    let address = address.ip();
    let behind_proxy = peers.trusts(address).then(|| Proxy { address, peers: peers.clone() });
    let share = if behind_proxy.is_none() { peers.enter(address) } else { None };
    if behind_proxy.is_none() && share.is_none() {
        // A peer that goes on and on takes no place from others. Without a handshake it could not read why.
        if let (Ok(refusal), false) = (places.refusals.clone().try_acquire_owned(), is_encrypted) {
            tokio::spawn(async move {
                let _ = tokio::time::timeout(REFUSAL_WAIT, stream::refuse(stream, TOO_MANY)).await;
                drop(refusal);
            });
        }
        return None;
    }
    Some(Admitted { stream, _place: place, is_spare, _share: share, address, behind_proxy })
}
