//! The address to listen on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Parses `ADDRESS:PORT`. As in other programs, `localhost:PORT` is the loopback interface, and `:PORT` all interfaces.
pub fn parse(text: &str) -> Result<SocketAddr, &'static str> {
    const EXPECTED: &str =
        "must be ADDRESS:PORT, such as 127.0.0.1:8321, localhost:8321, or :8321 for all interfaces";
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (host, port) = text.rsplit_once(':').ok_or(EXPECTED)?;
    let host: IpAddr = match host {
        "" => Ipv6Addr::UNSPECIFIED.into(),
        "localhost" => Ipv4Addr::LOCALHOST.into(),
        _ => return Err(EXPECTED),
    };
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|_| is_number).ok_or(EXPECTED)?;
    Ok(SocketAddr::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, address) in [
            ("127.0.0.1:8321", "127.0.0.1:8321"),
            ("localhost:8432", "127.0.0.1:8432"),
            (":8432", "[::]:8432"),
            ("[::1]:0", "[::1]:0"),
        ] {
            assert_eq!(parse(text).map(|address| address.to_string()), Ok(address.to_owned()));
        }
        for text in [
            "8432",
            "localhost",
            "",
            ":",
            ":65536",
            ":+1",
            "example.org:80",
            "http://localhost:80",
            "::1:80:",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
