//! Who may use the server: `[auth]`.

use std::net::SocketAddr;

use super::{Check, ConfigError, raw};
use crate::http;

/// Returns what the configuration says about access.
pub fn options(
    auth: &raw::Auth,
    listen: SocketAddr,
    check: &Check<'_>,
) -> Result<http::access::Options, ConfigError> {
    let admin = match (auth.admin_key.as_str(), auth.admin_key_file.as_str()) {
        ("", "") => None,
        (key, "") => Some(check.admin_key("auth.admin_key", key)?),
        ("", file) => {
            let unreadable = |error| check.fault("auth.admin_key_file", &format!("cannot be read: {error}"));
            let text = std::fs::read_to_string(file).map_err(unreadable)?;
            let first = text.lines().next().unwrap_or_default();
            Some(check.admin_key("auth.admin_key_file", first.trim_end())?)
        }
        _ => return Err(check.fault("auth.admin_key_file", "cannot be combined with auth.admin_key")),
    };
    Ok(http::access::Options {
        required: match auth.required {
            raw::Required::Always(required) => Some(required),
            raw::Required::When(raw::RequiredWhen::Auto) => None,
        },
        admin,
        is_exposed: !listen.ip().to_canonical().is_loopback(),
        open_metrics: auth.open.contains(&raw::Open::Metrics),
        open_docs: auth.open.contains(&raw::Open::Docs),
    })
}
