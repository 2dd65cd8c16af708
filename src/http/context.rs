//! What is known of a request beside what its client sent.
//!
//! One extension of the request holds all of it, since each one costs an allocation and a place in a map.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::Extensions;

use super::access::Granted;
use super::budget::Account;
use super::connection::Wire;
use super::wire::Refusal;

/// See the module's documentation.
#[derive(Clone, Default)]
pub struct Context {
    /// The connection.
    pub wire: Option<Arc<Wire>>,
    /// The client that a trusted proxy names.
    pub client: Option<IpAddr>,
    /// Whether the client came by TLS, behind a trusted proxy by what that says.
    pub is_encrypted: bool,
    /// Why the request is refused before it is routed.
    pub refusal: Option<Refusal>,
    /// Whether the connection is one beyond `limits.connections`.
    pub is_spare: bool,
    /// What the body counts.
    pub account: Option<Arc<Account>>,
    /// What the request may do, once that was checked.
    pub granted: Option<Granted>,
    /// The only parameter of the path, where the request did not pass the router.
    pub segment: Option<String>,
}

impl Context {
    /// Returns what is known; `None` for a request that came over no connection.
    pub fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// Returns the address of the client, as far as it is known.
    pub fn address(&self) -> Option<IpAddr> {
        self.client.or(self.wire.as_ref().map(|wire| wire.address))
    }

    /// Returns it to be added to.
    pub fn of_mut(extensions: &mut Extensions) -> &mut Self {
        extensions.get_or_insert_default()
    }
}
