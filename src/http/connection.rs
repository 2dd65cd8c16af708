//! What is known of one connection: who its peer is, and what its stream reports to the handlers of its requests.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use axum::http::HeaderValue;

use super::peers::Peers;
use super::wire::{HOST_MAX, Refusal};

/// What the stream reports to the handlers of its requests.
#[derive(Debug)]
pub struct Wire {
    /// The peer.
    pub address: IpAddr,
    /// What each peer has waiting for jobs.
    pub waiting: Arc<Peers>,
    /// Of how many requests of each peer the body is still coming.
    pub arriving: Arc<Peers>,
    /// Why a body was not read to its end.
    body: OnceLock<Refusal>,
    /// Which request is refused, counted from 1, and why.
    refused: OnceLock<(usize, Refusal)>,
    /// How many requests there were.
    requests: AtomicUsize,
    /// A `Host` that is a name of this server.
    host: OnceLock<HeaderValue>,
}

impl Wire {
    /// Returns what is known of a new connection.
    pub fn new(address: IpAddr, waiting: Arc<Peers>, arriving: Arc<Peers>) -> Self {
        Self {
            address,
            waiting,
            arriving,
            body: OnceLock::new(),
            refused: OnceLock::new(),
            requests: AtomicUsize::default(),
            host: OnceLock::new(),
        }
    }

    /// Counts a request, and returns why it is refused, if it is.
    pub fn next_request(&self) -> Option<Refusal> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        self.refused.get().filter(|(refused, _)| *refused == request).map(|(_, refusal)| *refusal)
    }

    /// Returns whether this `Host` is the one that is remembered.
    pub fn is_known(&self, host: &HeaderValue) -> bool {
        self.host.get() == Some(host)
    }

    /// Remembers a `Host` that is a name of this server: nearly all requests of a connection have the same.
    pub fn know(&self, host: &HeaderValue) {
        if host.len() <= HOST_MAX && self.host.get().is_none() {
            // A copy, since its bytes are a part of the buffer that the request was read into.
            HeaderValue::from_bytes(host.as_bytes()).into_iter().for_each(|host| drop(self.host.set(host)));
        }
    }

    /// Returns how many requests there were.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Says why the request of this number, counted from 1, is refused. There is one at most.
    pub fn refuse(&self, request: usize, refusal: Refusal) {
        let _ = self.refused.set((request, refusal));
    }

    /// Says why a body is not read to its end. There is one at most.
    pub fn refuse_body(&self, refusal: Refusal) {
        let _ = self.body.set(refusal);
    }

    /// Returns why the body was not read to its end, if that is not the client's or the network's doing: it is too large,
    /// or could be read in two ways.
    pub fn body_refused(&self) -> Option<Refusal> {
        self.body.get().copied()
    }
}
