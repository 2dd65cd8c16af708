//! Places to wait for jobs in: a call that waits holds its connection, and must leave some for those that bring or end work.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::context::Context;
use super::peers::{Peers, Share, peer};

/// The share of its connections, and of all, that a peer may have waiting for jobs: so many of so many. The others are for what
/// pushes and commits.
const WAITING: (usize, usize) = (4, 5);

/// Returns how many of so many connections may wait for jobs.
pub fn may_wait(connections: usize) -> usize {
    (connections.saturating_mul(WAITING.0) / WAITING.1).max(1)
}

/// A request as one that may wait for jobs.
pub struct Waiting(Option<(Arc<Peers>, IpAddr)>);

impl Waiting {
    /// Returns who waits, as it is counted.
    pub fn peer(&self) -> Option<IpAddr> {
        self.0.as_ref().map(|(_, address)| peer(*address))
    }

    /// Takes a place to wait in, if the call waits at all and its peer may have one more.
    pub fn place(self, waits: bool) -> Option<Place> {
        match self.0.filter(|_| waits) {
            Some((peers, address)) => peers.enter(address).map(|share| Place(Some(share))),
            None => Some(Place(None)),
        }
    }
}

/// A place to wait in; given back when it is dropped.
pub struct Place(#[expect(dead_code, reason = "held")] Option<Share>);

impl<S: Sync> FromRequestParts<S> for Waiting {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let waiting = Context::of(&parts.extensions)
            .and_then(|context| Some((context.wire.as_ref()?.waiting.clone(), context.address()?)));
        Ok(Self(waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_the_connections_are_not_for_waiting() {
        assert_eq!((may_wait(10_000), may_wait(8), may_wait(1)), (8000, 6, 1));
    }
}
