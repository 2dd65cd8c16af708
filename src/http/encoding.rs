//! Which responses are compressed: those that are large enough, to clients that take gzip (RFC 9110, section 12.5.3). The others are sent
//! as they are, whatever else a client wants: when that is judged the call has taken effect.

use axum::http::{HeaderMap, HeaderValue, header};

/// Returns whether a client takes gzip, and leaves only that of what it said.
pub fn negotiate(headers: &mut HeaderMap) -> bool {
    if !headers.contains_key(header::ACCEPT_ENCODING) {
        return false;
    }
    let takes_gzip = takes_gzip(headers);
    if takes_gzip {
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    } else {
        headers.remove(header::ACCEPT_ENCODING);
    }
    takes_gzip
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let (mut gzip, mut any) = (None, None);
    for coding in values.flat_map(|value| value.split(',')) {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let is_taken = parts.all(|part| !is_zero(part));
        if name.eq_ignore_ascii_case("gzip") {
            gzip = Some(is_taken);
        } else if name == "*" {
            any = Some(is_taken);
        }
    }
    gzip.or(any).unwrap_or(false)
}

/// Whether this is a weight of nought.
fn is_zero(part: &str) -> bool {
    let weight = part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="));
    weight.is_some_and(|weight| weight.trim().parse::<f32>().is_ok_and(|weight| weight == 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(values: &[&'static str]) -> (bool, Option<String>) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::ACCEPT_ENCODING, HeaderValue::from_static(value));
        }
        let takes_gzip = negotiate(&mut headers);
        (takes_gzip, headers.get(header::ACCEPT_ENCODING).map(|value| value.to_str().unwrap().to_owned()))
    }

    #[test]
    fn only_gzip_is_left_of_what_a_client_takes() {
        let gzip = (true, Some("gzip".to_owned()));
        for values in
            [&["gzip"][..], &["br, GZIP;q=0.1"], &["*"], &["identity;q=0, *;q=0.5"], &["br", "gzip ; q=1"]]
        {
            assert_eq!(negotiated(values), gzip, "{values:?}");
        }
        for values in [
            &[][..],
            &["*;q=0"],
            &["br, identity;q=0"],
            &["gzip;q=0, *"],
            &["gzip; q=0.000"],
            &["gzipped"],
            &[""],
        ] {
            assert_eq!(negotiated(values), (false, None), "{values:?}");
        }
    }
}
