//! Where spans are exported to: `[trace]`.

use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};

use super::{Check, ConfigError, raw, size};
use crate::telemetry::trace::export::Options;

/// The path of OTLP's traces, behind that of the receiver.
const PATH: &str = "/v1/traces";
/// The error for an invalid URL.
const ENDPOINT: &str = "must be http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH]";
/// The most bytes of the name of a service.
const SERVICE_NAME_MAX: usize = 255;
/// Headers that belong to the form of a request.
const OWN: [&str; 5] = ["content-type", "content-length", "transfer-encoding", "connection", "host"];

/// Returns what the configuration says about traces; `None` where nothing is exported.
pub fn options(trace: &raw::Trace, check: &Check<'_>) -> Result<Option<Options>, ConfigError> {
    if !(0.0..=1.0).contains(&trace.sample_ratio) {
        let what = format!("must be 0 to 1, and is {}", trace.sample_ratio);
        return Err(check.fault("trace.sample_ratio", &what));
    }
    let service = trace.service_name.trim();
    if service.is_empty() || service.len() > SERVICE_NAME_MAX || service.chars().any(char::is_control) {
        return Err(check.fault("trace.service_name", "must be 1 to 255 bytes without control characters"));
    }
    let headers = headers(trace, check)?;
    if trace.endpoint.is_empty() {
        return Ok(None);
    }
    let endpoint = endpoint(&trace.endpoint).map_err(|what| check.fault("trace.endpoint", what))?;
    let ca = Some(&trace.ca).filter(|ca| !ca.as_os_str().is_empty());
    if ca.is_some() && endpoint.scheme_str() != Some("https") {
        return Err(check.fault("trace.ca", "needs a trace.endpoint that begins with https://"));
    }
    Ok(Some(Options {
        endpoint,
        headers,
        ca: ca.map(PathBuf::from),
        ratio: trace.sample_ratio,
        service: service.to_owned(),
        timeout: Duration::from_millis(trace.timeout_ms),
        queue: size(trace.queue),
    }))
}

fn endpoint(text: &str) -> Result<Uri, &'static str> {
    if text.contains('@') {
        return Err(
            "must be without a user and a password: those belong into trace.headers or trace.headers_file",
        );
    }
    if text.contains(['?', '#']) {
        return Err("must be without a query");
    }
    let path = if text.trim_end_matches('/').ends_with(PATH) { "" } else { PATH };
    let uri: Uri = format!("{}{path}", text.trim_end_matches('/')).parse().map_err(|_| ENDPOINT)?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_port = uri.authority().is_some_and(|authority| {
        let behind = authority.as_str().rsplit(']').next().unwrap_or_default();
        !behind.contains(':') || uri.port_u16().is_some_and(|port| port > 0)
    });
    if is_http && has_port && uri.host().is_some_and(|host| !host.is_empty()) {
        Ok(uri)
    } else {
        Err(ENDPOINT)
    }
}

/// Returns the headers of both options. Errors do not quote them.
fn headers(trace: &raw::Trace, check: &Check<'_>) -> Result<Vec<(HeaderName, HeaderValue)>, ConfigError> {
    let (key, texts) = match (&*trace.headers, &*trace.headers_file) {
        (headers, "") => ("trace.headers", headers.to_vec()),
        ([], file) => {
            let unreadable = |error| check.fault("trace.headers_file", &format!("cannot be read: {error}"));
            let text = std::fs::read_to_string(file).map_err(unreadable)?;
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            ("trace.headers_file", lines.map(str::to_owned).collect())
        }
        _ => return Err(check.fault("trace.headers_file", "cannot be combined with trace.headers")),
    };
    let header = |(n, text): (usize, &String)| {
        let fault = |what: &str| check.fault(key, &format!("has a header {}, which {what}", n + 1));
        let (name, value) = text.split_once(':').ok_or_else(|| fault("is not NAME: VALUE"))?;
        let name: HeaderName = name.trim().parse().map_err(|_| fault("has no valid name"))?;
        if OWN.contains(&name.as_str()) {
            return Err(fault("is set by the server itself"));
        }
        let mut value: HeaderValue = value.trim().parse().map_err(|_| fault("has no valid value"))?;
        value.set_sensitive(true);
        Ok((name, value))
    };
    texts.iter().enumerate().map(header).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Flags, load, show};

    fn with(environment: &[(&str, &str)]) -> Result<Config, String> {
        let environment = environment.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        load(None, environment, &Flags::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_exported_by_default_and_other_variables_are_left_alone() {
        assert!(with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")]).unwrap().trace.is_none());
    }

    #[test]
    fn endpoints_end_with_the_path_of_traces() {
        for (text, posted_to) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
            ("https://[::1]:4318", "https://[::1]:4318/v1/traces"),
            ("https://collector/otlp", "https://collector/otlp/v1/traces"),
            ("https://collector/otlp/v1/traces", "https://collector/otlp/v1/traces"),
            ("HTTP://collector/v1/traces/", "http://collector/v1/traces"),
        ] {
            assert_eq!(endpoint(text).unwrap().to_string(), posted_to, "{text}");
        }
        for text in [
            "localhost:4318",
            "localhost",
            "grpc://localhost:4317",
            "http://",
            "http:///v1/traces",
            "http://a b",
            "http://host:0",
            "http://host:70000",
            "http://host:port",
            "http://user:password@host",
            "http://host/?key=secret",
            "/v1/traces",
        ] {
            assert!(endpoint(text).is_err(), "{text}");
        }
    }

    #[test]
    fn headers_are_read_and_never_shown() {
        let endpoint = ("TAILBACK_TRACE__ENDPOINT", "http://localhost:4318");
        let headers = ("TAILBACK_TRACE__HEADERS", r#"["authorization: Bearer canary", "x-b:2"]"#);
        let config = with(&[endpoint, headers]).unwrap();
        assert!(!format!("{config:?}").contains("canary"));
        let trace = config.trace.unwrap();
        assert_eq!(trace.headers[0].1, "Bearer canary");
        assert_eq!(
            (trace.headers[1].0.as_str(), &trace.headers[1].1),
            ("x-b", &HeaderValue::from_static("2"))
        );
        let environment = [endpoint, headers].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let shown = show(None, environment.into_iter(), &Flags::default()).unwrap();
        assert!(!shown.contains("canary") && shown.contains(r#"headers = ["***","***"]"#), "{shown}");
        for (value, says) in [
            (r#"["canary"]"#, "has a header 1, which is not NAME: VALUE"),
            (r#"["a: 1", "ca nary: 1"]"#, "has a header 2, which has no valid name"),
            ("[\"a: canary\\u0001\"]", "has a header 1, which has no valid value"),
            (r#"["Content-Type: canary"]"#, "is set by the server itself"),
            ("canary", "must be a list of texts"),
            ("[1234567]", "must be a list of texts"),
        ] {
            let error = with(&[endpoint, ("TAILBACK_TRACE__HEADERS", value)]).map(|_| ()).unwrap_err();
            assert!(error.starts_with("trace.headers") && error.contains(says), "{value}: {error}");
            assert!(!error.contains("canary") && !error.contains("1234567"), "{error}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "authorization: Bearer canary\n\n").unwrap();
        let path = ("TAILBACK_TRACE__HEADERS_FILE", file.path().to_str().unwrap());
        assert_eq!(with(&[endpoint, path]).unwrap().trace.unwrap().headers.len(), 1);
        assert!(with(&[endpoint, path, headers]).unwrap_err().contains("cannot be combined"));
    }

    #[test]
    fn mistakes_name_the_key_and_what_would_be_right() {
        for (key, value, says) in [
            ("TAILBACK_TRACE__ENDPOINT", "localhost:4318", "trace.endpoint must be http://HOST"),
            ("TAILBACK_TRACE__ENDPOINT", "http://u:p@host", "trace.endpoint must be without a user"),
            ("TAILBACK_TRACE__SAMPLE_RATIO", "1.5", "trace.sample_ratio must be 0 to 1, and is 1.5"),
            ("TAILBACK_TRACE__SAMPLE_RATIO", "nan", "trace.sample_ratio must be"),
            ("TAILBACK_TRACE__SERVICE_NAME", " ", "trace.service_name must be 1 to 255"),
            ("TAILBACK_TRACE__TIMEOUT_MS", "1", "trace.timeout_ms must be 100 to 60000, and is 1"),
            ("TAILBACK_TRACE__QUEUE", "1", "trace.queue must be 512 to 1000000, and is 1"),
            ("TAILBACK_TRACE__HEADERS_FILE", "/does/not/exist", "trace.headers_file cannot be read"),
        ] {
            let error = with(&[(key, value)]).map(|_| ()).unwrap_err();
            assert!(error.contains(says) && error.contains(key), "{key}={value}: {error}");
        }
        let ca = [("TAILBACK_TRACE__ENDPOINT", "http://host"), ("TAILBACK_TRACE__CA", "/ca.pem")];
        assert!(with(&ca).unwrap_err().contains("trace.ca needs"));
    }
}
