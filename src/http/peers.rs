//! How much each peer has open: no single one may use up all connections.
//!
//! Behind a proxy that is trusted (`http.trusted_proxies`) a peer is the client that the proxy names in `Forwarded` or
//! `X-Forwarded-For`, and its requests are counted in place of connections. From anyone else these headers mean nothing.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use axum::http::HeaderMap;
use axum::http::header::{FORWARDED, HeaderName};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The peers of a server.
#[derive(Debug)]
pub struct Peers {
    most: usize,
    trusted: Vec<ipnet::IpNet>,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection, or one request, of a peer; counted until it is dropped.
#[derive(Debug)]
pub struct Share {
    peers: Arc<Peers>,
    of: IpAddr,
}

impl Peers {
    /// Returns the peers, of which each may have so many connections.
    pub fn new(most: usize, trusted: Vec<ipnet::IpNet>) -> Self {
        Self { most, trusted, open: Mutex::default() }
    }

    /// Returns whether this address is that of a trusted proxy.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted.iter().any(|net| net.contains(&address))
    }

    /// Counts one more of this peer, unless it has as many as it may have.
    pub fn enter(self: &Arc<Self>, of: IpAddr) -> Option<Share> {
        let of = peer(of);
        let mut open = self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let count = open.entry(of).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Share { peers: self.clone(), of })
    }

    /// Returns the client that a trusted proxy names: the last address that is not of a trusted proxy itself. `None` if what is
    /// there cannot be read, or the two headers disagree: a client may have written the one that the proxy does not write.
    pub fn client(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let forwarded = headers.contains_key(FORWARDED).then(|| self.last(headers, FORWARDED, of_forwarded));
        let listed =
            headers.contains_key(X_FORWARDED_FOR).then(|| self.last(headers, X_FORWARDED_FOR, address));
        match (forwarded, listed) {
            (Some(one), Some(other)) => one.filter(|one| Some(*one) == other),
            (one, other) => one.or(other)?,
        }
    }

    /// Returns the last element that is no trusted proxy. What stands before it may be the client's own words, so that nothing
    /// is skipped.
    fn last(
        &self,
        headers: &HeaderMap,
        name: HeaderName,
        read: fn(&str) -> Option<IpAddr>,
    ) -> Option<IpAddr> {
        let values = headers.get_all(name);
        let elements = values.iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        let elements: Vec<&[u8]> = elements.collect();
        let read = |element: &[u8]| std::str::from_utf8(element).ok().and_then(read);
        let mut named = elements.into_iter().rev().map(read);
        named.find(|named| named.is_none_or(|address| !self.trusts(address))).flatten()
    }
}

/// Returns what stands for the peer of an address: of IPv6, the network of 64 bits that one subscriber has.
pub fn peer(of: IpAddr) -> IpAddr {
    match of.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        address => address,
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut open = self.peers.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(count) = open.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.of);
            }
        }
    }
}

/// Returns the address in an element such as `for="[2001:db8::1]:4711";proto=http`.
fn of_forwarded(element: &str) -> Option<IpAddr> {
    let pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let mut named = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case("for"));
    address(named.next()?.1.trim().trim_matches('"'))
}

/// Returns an address, with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(most: usize) -> Arc<Peers> {
        Arc::new(Peers::new(most, vec!["10.0.0.0/8".parse().unwrap()]))
    }

    #[test]
    fn a_peer_has_its_share_and_gets_it_back() {
        let peers = peers(2);
        let (one, other): (IpAddr, IpAddr) =
            ("192.0.2.1".parse().unwrap(), "::ffff:192.0.2.1".parse().unwrap());
        let first = peers.enter(one);
        let second = peers.enter(other);
        assert!(first.is_some() && second.is_some() && peers.enter(one).is_none(), "both are one address");
        assert!(peers.enter("192.0.2.2".parse().unwrap()).is_some());
        drop(first);
        assert!(peers.enter(one).is_some());
        let (near, nearer): (IpAddr, IpAddr) =
            ("2001:db8::1".parse().unwrap(), "2001:db8::ffff".parse().unwrap());
        let both = [peers.enter(near), peers.enter(nearer)];
        assert!(both.iter().all(Option::is_some) && peers.enter("2001:db8::2".parse().unwrap()).is_none());
        drop(both);
        drop(second);
        assert!(peers.open.lock().unwrap().is_empty());
    }

    #[test]
    fn the_client_is_the_last_that_is_not_a_proxy() {
        let peers = peers(1);
        let client = |name: &'static str, values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(name, value.parse().unwrap());
            }
            peers.client(&headers).map(|address| address.to_string())
        };
        let found = |text: &str| Some(text.to_owned());
        assert_eq!(client("x-forwarded-for", &["192.0.2.9, 192.0.2.1, 10.1.1.1"]), found("192.0.2.1"));
        assert_eq!(client("x-forwarded-for", &["192.0.2.9", "192.0.2.1:80"]), found("192.0.2.1"));
        assert_eq!(
            client("forwarded", &["for=\"[2001:db8::1]:4711\";proto=http, For=10.2.3.4"]),
            found("2001:db8::1")
        );
        for (name, value) in [
            ("forwarded", "for=192.0.2.1, for=_hidden"),
            ("forwarded", "for=unknown"),
            ("x-forwarded-for", "192.0.2.1, unknown"),
            ("x-forwarded-for", "192.0.2.1, fe80::1%eth0"),
            ("x-forwarded-for", "10.1.1.1"),
        ] {
            assert_eq!(client(name, &[value]), None, "{name}: {value}");
        }
        let both = |forwarded: &'static str, listed: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(FORWARDED, forwarded.parse().unwrap());
            headers.insert(X_FORWARDED_FOR, axum::http::HeaderValue::from_bytes(listed).unwrap());
            peers.client(&headers).map(|address| address.to_string())
        };
        assert_eq!(both("for=192.0.2.9", b"192.0.2.1"), None, "one of them is the client's own");
        assert_eq!(both("for=192.0.2.1", b"192.0.2.1"), found("192.0.2.1"));
        assert_eq!(both("for=192.0.2.1", b"\xe9, 192.0.2.1"), found("192.0.2.1"), "only the end counts");
        assert_eq!(client("via", &["x"]), None);
    }
}
