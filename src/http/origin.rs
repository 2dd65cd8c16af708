//! Requests that a browser sends on behalf of a foreign page, and names under which this server is not meant to be reached.
//!
//! A page of another site can make a browser post to any address that the browser reaches. Browsers say so: with
//! `Sec-Fetch-Site`, which they send to https and to loopback only, and with `Origin`. A page can also have its own name
//! resolved to this server (DNS rebinding); then all is of one origin, and the name is all that is wrong.

use std::borrow::Cow;
use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{self, HeaderName};
use axum::http::uri::Authority;

use super::context::Context;
use super::problem::{Code, Problem};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The names in `config.toml`.
const DEFAULT: [&str; 2] = ["localhost", "*.localhost"];

/// The names under which the server is reached.
#[derive(Debug, Clone)]
pub struct Hosts {
    names: Vec<String>,
    /// Whether these are the names that apply unless others are configured.
    pub is_default: bool,
}

impl Hosts {
    /// Returns the allow-list of these names; `*.NAME` allows every name below one, `*` all.
    pub fn new(names: Vec<String>) -> Self {
        let names: Vec<String> = names.into_iter().map(|name| name.to_ascii_lowercase()).collect();
        Self { is_default: names == DEFAULT, names }
    }

    /// Returns whether a request for this host is meant for this server. An address cannot be rebound.
    fn allows(&self, host: &str) -> bool {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if bare.parse::<IpAddr>().is_ok() {
            return true;
        }
        let host = host.trim_end_matches('.');
        self.names.iter().any(|name| match name.strip_prefix('*') {
            Some("") => true,
            // With the dot, so that it is a name below this one.
            Some(suffix) => {
                let start = host.len().checked_sub(suffix.len()).filter(|start| *start > 0);
                start.and_then(|start| host.get(start..)).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
            }
            None => host.eq_ignore_ascii_case(name),
        })
    }
}

/// Refuses a request that is not meant for this server, by its host if the names are to be compared, or that a foreign page
/// sends.
pub fn check(request: &Request, hosts: &Hosts, are_judged: bool) -> Result<(), Problem> {
    let wire = Context::of(request.extensions()).and_then(|context| context.wire.as_deref());
    let (host, url) = (request.headers().get(header::HOST), request.uri().authority());
    let is_known = url.is_none() && host.zip(wire).is_some_and(|(host, wire)| wire.is_known(host));
    if !is_known {
        let named = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        check_host(request, named.as_ref(), hosts, are_judged)?;
        if named.is_some_and(|named| hosts.allows(named.host())) {
            host.zip(wire).into_iter().for_each(|(host, wire)| wire.know(host));
        }
    }
    if !request.method().is_safe() && is_foreign(request) {
        let detail = "cross-site requests of a browser may not change anything here";
        return Err(Problem::new(Code::CrossSite, detail));
    }
    Ok(())
}

/// Returns the host that a request is for.
fn authority(request: &Request) -> Option<Cow<'_, Authority>> {
    let named = || Authority::try_from(request.headers().get(header::HOST)?.as_bytes()).ok();
    request.uri().authority().map(Cow::Borrowed).or_else(|| named().map(Cow::Owned))
}

/// Refuses a request by its host; `named`: that of the header `Host`.
fn check_host(
    request: &Request,
    named: Option<&Authority>,
    hosts: &Hosts,
    are_judged: bool,
) -> Result<(), Problem> {
    let authority = request.uri().authority().or(named);
    // Whether the server is alive is no secret, and probes have names of their own for it.
    let is_probe = matches!(request.uri().path(), "/healthz" | "/readyz");
    let is_allowed = |authority: &&Authority| is_probe || !are_judged || hosts.allows(authority.host());
    if let Some(authority) = authority.filter(|authority| !is_allowed(authority)) {
        let detail = format!(
            "{} is not in http.hosts, the names under which this server is reached",
            authority.host()
        );
        return Err(Problem::new(Code::HostNotAllowed, detail));
    }
    let differs = |url: &Authority, host: &Authority| !url.as_str().eq_ignore_ascii_case(host.as_str());
    if request.uri().authority().zip(named).is_some_and(|(url, host)| differs(url, host)) {
        let detail = "the header Host must be the host of the URL (RFC 9112, section 3.2.2)";
        return Err(Problem::new(Code::Malformed, detail));
    }
    Ok(())
}

/// Returns whether a browser says that a page of another origin sends this.
fn is_foreign(request: &Request) -> bool {
    let headers = request.headers();
    match headers.get(SEC_FETCH_SITE).map(|site| site.as_bytes()) {
        Some(b"same-origin" | b"none") => false,
        Some(b"cross-site") => true,
        _ if !headers.contains_key(header::ORIGIN) => false,
        _ => {
            let authority = authority(request);
            headers.get_all(header::ORIGIN).iter().any(|origin| {
                let origin = origin.to_str().unwrap_or_default();
                !authority.as_ref().is_some_and(|authority| is_origin_of(origin, authority))
            })
        }
    }
}

/// Returns whether this is the origin of pages of this authority. A proxy may have ended TLS, so that the scheme is not
/// compared.
fn is_origin_of(origin: &str, authority: &Authority) -> bool {
    let Some((scheme, rest)) = origin.split_once("://") else { return false };
    let Ok(from) = Authority::try_from(rest) else { return false };
    let usual = match scheme {
        "https" => 443,
        "http" => 80,
        _ => return false,
    };
    if rest.contains('@') {
        return false;
    }
    let port = |authority: &Authority| authority.port_u16().unwrap_or(usual);
    from.host().eq_ignore_ascii_case(authority.host()) && port(&from) == port(authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_listed_names_are_allowed() {
        let hosts = Hosts::new(vec!["LocalHost".to_owned(), "*.queue.internal".to_owned()]);
        for host in [
            "127.0.0.1",
            "[::1]",
            "10.1.2.3",
            "localhost",
            "LOCALHOST.",
            "a.queue.internal",
            "b.a.queue.internal",
        ] {
            assert!(hosts.allows(host), "{host}");
        }
        for host in [
            "evil.example",
            "queue.internal",
            "xqueue.internal",
            "localhost.evil.example",
            "",
            "127.0.0.1.evil",
        ] {
            assert!(!hosts.allows(host), "{host}");
        }
        assert!(Hosts::new(vec!["*".to_owned()]).allows("evil.example"));
    }

    #[test]
    fn an_origin_is_compared_with_its_port() {
        let is = |origin, host: &str| is_origin_of(origin, &host.parse().unwrap());
        assert!(
            is("http://a:8321", "A:8321")
                && is("https://a", "a:443")
                && is("http://a", "a")
                && is("http://[::1]:1", "[::1]:1")
        );
        for (origin, host) in [
            ("http://a:1", "a:2"),
            ("http://b", "a"),
            ("null", "a"),
            ("http://a", "a:8321"),
            ("", "a"),
            ("://a", "a"),
            ("file://a", "a"),
            ("http://u@a", "a"),
        ] {
            assert!(!is(origin, host), "{origin} {host}");
        }
    }
}
