//! Sessions of browsers: a cookie in place of a key, which a page can neither read nor store.
//!
//! A session is kept nowhere. Its cookie names the key, and is signed together with the hash of the key by the secret that all
//! servers share: so it ends with the key, on every server, whether that is deleted, rotated or expires.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq as _;

use super::access::Options;
use super::peers::peer;
use super::problem::{Code, Problem};
use crate::job::{Caller, SecretHash, Timestamp};
use crate::queue::Queues;

/// The name of the cookie over TLS: no other host of the same domain can set one with this prefix.
const COOKIE: &str = "__Host-tailback_session";
/// The same over plain HTTP on the machine of the server, where browsers do not take the prefix.
const PLAIN_COOKIE: &str = "tailback_session";
/// How long a session lasts, in milliseconds.
const LASTS_MS: u64 = 12 * 3_600_000;
/// What the id of the admin key is in a session; that of a stored key is longer.
const ADMIN: &str = "admin";

/// How many failed attempts one client has within [`WINDOW`].
const ATTEMPTS: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// How many clients are remembered for their failed attempts.
const CLIENTS: usize = 10_000;

/// Where a login comes from.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// The client, behind a trusted proxy the one that the proxy names.
    pub client: IpAddr,
    /// Whether others cannot listen: the client is on this machine, or came by TLS.
    pub is_private: bool,
    /// Whether it came by TLS, behind a trusted proxy by what that says.
    pub is_encrypted: bool,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Whether it is a trusted proxy.
    pub is_proxy: bool,
    /// Whether the connection is encrypted.
    pub is_encrypted: bool,
}

impl Peer {
    /// Returns whether the client came by TLS: of a trusted proxy, what it says.
    pub fn came_by_tls(self, headers: &HeaderMap) -> bool {
        if self.is_proxy { is_https(headers) } else { self.is_encrypted }
    }
}

impl Source {
    /// Returns the source of a request of this peer, which may be a proxy for `client`.
    pub fn new(connection: Peer, client: Option<IpAddr>, headers: &HeaderMap) -> Self {
        let Peer { address, is_proxy, .. } = connection;
        let address = address.to_canonical();
        let is_encrypted = connection.came_by_tls(headers);
        let is_private = is_encrypted || (!is_proxy && address.is_loopback());
        Self { client: client.map_or(address, |client| client.to_canonical()), is_private, is_encrypted }
    }
}

/// Returns whether a proxy says that the client came by TLS, to the last proxy before it if there are several.
fn is_https(headers: &HeaderMap) -> bool {
    let last = |name: &str| {
        let value = headers.get_all(name).iter().next_back()?.to_str().ok()?;
        value.rsplit(',').next()
    };
    let forwarded = last("forwarded").and_then(|element| {
        let pairs = element.split(';').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(name, _)| name.trim().eq_ignore_ascii_case("proto")).map(|(_, proto)| proto)
    });
    let proto = forwarded.or_else(|| last("x-forwarded-proto"));
    proto.is_some_and(|proto| proto.trim().trim_matches('"').eq_ignore_ascii_case("https"))
}

/// The source of a login, whose body is read only from one that is private.
impl<S: Send + Sync> FromRequestParts<S> for Source {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let detail = "a login sends the key, and a browser keeps the cookie, over TLS or on the same machine only: put a \
                      proxy that ends TLS in front, and name it in http.trusted_proxies";
        let source = parts.extensions.get::<Self>().copied().filter(|source| source.is_private);
        source.ok_or_else(|| Problem::new(Code::TlsRequired, detail))
    }
}

/// The failed attempts of clients, by what stands for their addresses. Where more clients fail than are remembered, all are
/// forgotten: a key cannot be guessed, but a client with many addresses could keep everybody else out.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<HashMap<IpAddr, (Instant, u32)>>);

impl Attempts {
    /// Counts an attempt as failed until it has succeeded. Returns how long the client has to wait if it may not try.
    pub fn begin(&self, client: IpAddr) -> Option<Duration> {
        let client = peer(client);
        let mut failed = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if failed.len() >= CLIENTS && !failed.contains_key(&client) {
            failed.retain(|_, (since, _)| since.elapsed() < WINDOW);
            if failed.len() >= CLIENTS {
                failed.clear();
            }
        }
        let (since, count) = failed.entry(client).or_insert_with(|| (Instant::now(), 0));
        if since.elapsed() >= WINDOW {
            (*since, *count) = (Instant::now(), 0);
        }
        *count = count.saturating_add(1);
        (*count > ATTEMPTS).then(|| WINDOW.saturating_sub(since.elapsed()))
    }

    /// An attempt has succeeded: it does not count. Those that failed do, also where the client has a valid key.
    pub fn succeed(&self, client: IpAddr) {
        let mut failed = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, count)) = failed.get_mut(&peer(client)) {
            *count = count.saturating_sub(1);
        }
    }
}

/// Returns the cookie of a new session of this caller, and when it ends.
pub fn begin(
    access: &Options,
    queues: &Queues,
    caller: &Caller,
    is_encrypted: bool,
) -> Result<(String, Timestamp), Problem> {
    let name = if is_encrypted { COOKIE } else { PLAIN_COOKIE };
    let ends = queues.now()?.plus_ms(LASTS_MS);
    let (id, hash, ends) = match caller {
        Caller::Key(key) => (key.id.as_str(), key.hash, key.expires_at.map_or(ends, |at| at.min(ends))),
        _ => (ADMIN, access.admin.unwrap_or_else(|| SecretHash::of("")), ends),
    };
    let text = format!("{id}.{}", ends.millis());
    let signature = queues.sign(&signed(name, &text), &hash)?;
    Ok((cookie(name, &format!("{text}.{signature}"), LASTS_MS / 1000), ends))
}

/// Returns what is signed of a session: also the name of its cookie, so that one that was given over plain HTTP is none over TLS.
fn signed(name: &str, text: &str) -> String {
    format!("{name}={text}")
}

/// Returns the cookies that end a session in the browser.
pub fn end() -> [String; 2] {
    [COOKIE, PLAIN_COOKIE].map(|name| cookie(name, "", 0))
}

fn cookie(name: &str, value: &str, seconds: u64) -> String {
    format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; Secure; SameSite=Strict")
}

/// Returns where a request comes from, by the session in its cookies, and when that ends; `None` where there is none that is valid.
pub fn caller(
    access: &Options,
    queues: &Queues,
    headers: &HeaderMap,
    is_encrypted: bool,
) -> Result<Option<(Caller, Timestamp)>, Problem> {
    // The plain one may come from another host of the domain, which must not choose whose session this is.
    for name in [COOKIE, PLAIN_COOKIE] {
        if (name == COOKIE || !is_encrypted)
            && let Some(session) = value(headers, name)
            && let Some(found) = of_session(access, queues, name, session)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the value of the first cookie of this name.
fn value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(other, _)| *other == name).map(|(_, value)| value)
}

fn of_session(
    access: &Options,
    queues: &Queues,
    name: &str,
    session: &str,
) -> Result<Option<(Caller, Timestamp)>, Problem> {
    let Some((text, signature)) = session.rsplit_once('.') else { return Ok(None) };
    let Some((id, ends)) = text.split_once('.') else { return Ok(None) };
    let (caller, hash) = match (id, access.admin) {
        (ADMIN, Some(hash)) => (Caller::Admin, hash),
        (id, _) => match queues.valid_api_key(id)? {
            Some(key) => (Caller::Key(key.clone()), key.hash),
            None => return Ok(None),
        },
    };
    let is_signed: bool =
        queues.sign(&signed(name, text), &hash)?.as_bytes().ct_eq(signature.as_bytes()).into();
    let now = queues.now()?;
    let ends = ends.parse().ok().map(Timestamp::from_millis).filter(|ends| is_signed && *ends > now);
    let Some(ends) = ends else { return Ok(None) };
    if let Caller::Key(key) = &caller {
        queues.note_use(&key.id)?; // only now: who knows the id of a key has not used it
    }
    Ok(Some((caller, ends)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_private_on_this_machine_or_by_tls() {
        let (here, there) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 0, 0, 1]));
        let of = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.append(name, value.parse().unwrap());
            headers
        };
        let https = of("x-forwarded-proto", "https");
        let is_private = |address, is_proxy, is_encrypted, headers: &HeaderMap| {
            Source::new(Peer { address, is_proxy, is_encrypted }, None, headers).is_private
        };
        assert!(is_private(here, false, false, &HeaderMap::new()));
        assert!(is_private(there, false, true, &HeaderMap::new()));
        assert!(!is_private(there, false, false, &https), "no proxy says so");
        assert!(is_private(there, true, false, &https));
        assert!(
            !is_private(here, true, true, &HeaderMap::new()),
            "how the client came to the proxy is not known"
        );
        assert!(!is_private(here, true, false, &of("x-forwarded-proto", "https, http")));
        assert!(is_private(there, true, false, &of("forwarded", "for=1.2.3.4;Proto=\"https\"")));
        assert!(!is_private(there, true, false, &of("forwarded", "proto=https, proto=http")));
    }

    #[test]
    fn attempts_that_fail_are_limited() {
        let (attempts, one, other) =
            (Attempts::default(), IpAddr::from([1, 1, 1, 1]), IpAddr::from([2, 2, 2, 2]));
        let tried = (0..ATTEMPTS + 5).filter(|_| attempts.begin(one).is_none()).count();
        assert_eq!(tried, ATTEMPTS as usize);
        assert!(attempts.begin(other).is_none());
        attempts.succeed(other);
        assert!((0..ATTEMPTS).all(|_| attempts.begin(other).is_none()), "it did not count");
        assert!(attempts.begin(other).is_some_and(|wait| wait <= WINDOW));
    }

    #[test]
    fn many_addresses_keep_nobody_out() {
        let attempts = Attempts::default();
        let net = |n: u128| IpAddr::from((0x2001_0db8_u128 << 96 | n << 64).to_be_bytes());
        for n in 0..=CLIENTS as u128 {
            assert!(attempts.begin(net(n)).is_none(), "{n}");
        }
        assert!(attempts.begin(IpAddr::from([1, 1, 1, 1])).is_none());
        assert!(attempts.0.lock().unwrap().len() <= CLIENTS);
    }
}
