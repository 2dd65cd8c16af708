//! The configuration: the raw form ([`raw`]) is parsed strictly and validated into [`Config`].

mod access;
mod address;
mod memory;
pub mod raw;
pub mod secret;
mod show;
mod store_url;
mod trace;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use figment::Figment;
use figment::providers::{Format as _, Serialized, Toml};

pub use self::raw::ignored;
use self::raw::{LogForm, Raw};
pub use self::store_url::StoreUrl;
use crate::job::SecretHash;
use crate::job::backoff::YEAR_MS;
use crate::job::settings::{
    ATTEMPTS_MAX, Defaults, LEASE_MAX_MS, LEASE_MIN_MS, WORKER_TIMEOUT_MAX_MS, WORKER_TIMEOUT_MIN_MS,
};
use crate::{background, http, queue, telemetry};

/// The defaults: the file in the repository that documents every option.
pub const DEFAULTS: &str = include_str!("../../config.toml");

/// The deadline of a call of SQLite. Long, for slow disks: no other server could take over.
const SQLITE_PATIENCE: Duration = Duration::from_secs(30);

/// The validated configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The store to use.
    pub store: StoreUrl,
    /// The timeout for in-flight requests at shutdown.
    pub shutdown: Duration,
    /// For how long the server says that it will stop while it still serves.
    pub shutdown_notice: Duration,
    /// The log filter.
    pub log_filter: String,
    /// The log format.
    pub log_format: telemetry::LogFormat,
    /// See [`queue::Options`].
    pub queue: queue::Options,
    /// See [`background::Options`].
    pub background: background::Options,
    /// See [`http::origin::Hosts`].
    pub hosts: http::origin::Hosts,
    /// Whether requests may change nothing.
    pub read_only: bool,
    /// See [`http::access::Options`].
    pub access: http::access::Options,
    /// See [`http::Limits`].
    pub limits: http::Limits,
    /// The memory for requests and responses, in bytes.
    pub memory: usize,
    /// See [`http::listen::Options`].
    pub connections: http::listen::Options,
    /// See [`MongoTuning`].
    pub mongodb: MongoTuning,
    /// Where spans are exported to; `None`: nowhere.
    pub trace: Option<telemetry::trace::export::Options>,
}

/// The tuning of the MongoDB client.
#[derive(Debug, Clone, Copy)]
pub struct MongoTuning {
    /// The deadline of one call.
    pub deadline: Duration,
    /// The maximum number of connections to one member.
    pub pool_size: u32,
}

/// An error in the configuration: the key, where it was set, and the valid values.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    /// Returns the error of a configuration with which the server does not start.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// The values of command-line flags.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--listen`
    pub listen: Option<String>,
    /// `--store`
    pub store: Option<String>,
}

/// Reads the configuration. Precedence: defaults < file < environment < flags.
pub fn load(
    file: Option<&Path>,
    environment: impl Iterator<Item = (String, String)>,
    flags: &Flags,
) -> Result<Config, ConfigError> {
    let figment = sources(file, environment, flags)?;
    validate(extract(&figment)?, &figment)
}

/// Validates the configuration, and returns it as a TOML file without comments: each option with its value and, unless that is the
/// default, where it was set. Passwords and keys are masked.
pub fn show(
    file: Option<&Path>,
    environment: impl Iterator<Item = (String, String)>,
    flags: &Flags,
) -> Result<String, ConfigError> {
    let figment = sources(file, environment, flags)?;
    let config = validate(extract(&figment)?, &figment)?;
    Ok(show::effective(&figment, &config))
}

fn sources(
    file: Option<&Path>,
    environment: impl Iterator<Item = (String, String)>,
    flags: &Flags,
) -> Result<Figment, ConfigError> {
    let mut figment = Figment::from(Toml::string(DEFAULTS));
    if let Some(file) = file {
        // Its own error names neither the file's purpose nor what to do.
        std::fs::File::open(file).map_err(|error| {
            let file = secret::mask(&file.display().to_string());
            ConfigError(format!(
                "the configuration file {file} cannot be read (--config, TAILBACK_CONFIG): {error}"
            ))
        })?;
        figment = figment.merge(Toml::file_exact(file));
    }
    figment = figment.merge(raw::Environment::new(environment));
    for (key, flag) in [("listen", &flags.listen), ("store", &flags.store)] {
        if let Some(value) = flag {
            figment = figment.merge(raw::Flag(Serialized::default(key, value)));
        }
    }
    Ok(figment)
}

fn extract(figment: &Figment) -> Result<Raw, ConfigError> {
    figment.extract().map_err(|error| ConfigError(secret::mask(&raw::describe(error))))
}

fn check_ranges(raw: &Raw, check: &Check<'_>) -> Result<(), ConfigError> {
    check.range("shutdown_ms", raw.shutdown_ms, 0, 3_600_000)?;
    check.range("shutdown_notice_ms", raw.shutdown_notice_ms, 0, 3_600_000)?;
    check.range("limits.payload_bytes", raw.limits.payload_bytes, 1, 8 << 20)?;
    check.range("limits.body_bytes", raw.limits.body_bytes, 1024, 1 << 30)?;
    check.range("limits.answer_bytes", raw.limits.answer_bytes, 1024, 1 << 30)?;
    check.range("limits.body_pause_ms", raw.limits.body_pause_ms, 100, 3_600_000)?;
    check.range("limits.header_wait_ms", raw.limits.header_wait_ms, 100, 3_600_000)?;
    check.range("limits.head_bytes", raw.limits.head_bytes, 1024, 1 << 20)?;
    check.range("limits.write_wait_ms", raw.limits.write_wait_ms, 100, 3_600_000)?;
    check.range("limits.connections_per_peer", raw.limits.connections_per_peer, 1, 1_000_000)?;
    check.range("limits.waiting", raw.limits.waiting, 1, 1_000_000)?;
    check.range("limits.request_ms", raw.limits.request_ms, 100, 3_600_000)?;
    for (key, value) in [
        ("limits.queues", raw.limits.queues),
        ("limits.workers", raw.limits.workers),
        ("limits.schedules", raw.limits.schedules),
        ("limits.semaphores", raw.limits.semaphores),
        ("limits.idempotency_keys", raw.limits.idempotency_keys),
    ] {
        check.range(key, value, 1, 1_000_000_000)?;
    }
    check.range("limits.idempotency_ttl_ms", raw.limits.idempotency_ttl_ms, 1000, YEAR_MS)?;
    check.range("limits.metrics_queues", raw.limits.metrics_queues, 0, 1_000_000)?;
    check.range("limits.series_queues", raw.limits.series_queues, 1, 1_000_000)?;
    check.range("limits.event_streams", raw.limits.event_streams, 0, 100_000)?;
    check.range("attention.idle_ms", raw.attention.idle_ms, 1000, 86_400_000)?;
    check.range("attention.window_ms", raw.attention.window_ms, 1000, 900_000)?;
    check.range("limits.connections", raw.limits.connections, 1, 1_000_000)?;
    check.range("tls.handshake_wait_ms", raw.tls.handshake_wait_ms, 100, 3_600_000)?;
    check.range("defaults.lease_ms", raw.defaults.lease_ms, LEASE_MIN_MS, LEASE_MAX_MS)?;
    check.range("defaults.max_attempts", raw.defaults.max_attempts.into(), 1, ATTEMPTS_MAX.into())?;
    check.range("defaults.key_ttl_ms", raw.defaults.key_ttl_ms, 0, YEAR_MS)?;
    check.range("defaults.semaphore_patience_ms", raw.defaults.semaphore_patience_ms, 0, YEAR_MS)?;
    let (least, most) = (WORKER_TIMEOUT_MIN_MS, WORKER_TIMEOUT_MAX_MS);
    check.range("defaults.worker_timeout_ms", raw.defaults.worker_timeout_ms, least, most)?;
    check.range("defaults.retain_done_ms", raw.defaults.retain_done_ms, 0, YEAR_MS)?;
    check.range("defaults.retain_dead_ms", raw.defaults.retain_dead_ms, 0, YEAR_MS)?;
    check.range("defaults.retain_batch_ms", raw.defaults.retain_batch_ms, 1000, YEAR_MS)?;
    check.range("wait.poll_ms", raw.wait.poll_ms, 10, 60_000)?;
    check.range("reaper.interval_ms", raw.reaper.interval_ms, 10, 60_000)?;
    check.range("reaper.batch", raw.reaper.batch, 1, 10_000)?;
    check.range("mongodb.deadline_ms", raw.mongodb.deadline_ms, 100, 60_000)?;
    check.range("mongodb.pool_size", raw.mongodb.pool_size.into(), 2, 10_000)?;
    check.range("trace.timeout_ms", raw.trace.timeout_ms, 100, 60_000)?;
    check.range("trace.queue", raw.trace.queue, 512, 1_000_000)?;
    if let Some((field, what)) = raw.defaults.backoff.fault() {
        return Err(check.fault(&format!("defaults.backoff.{field}"), what));
    }
    Ok(())
}

fn validate(raw: Raw, figment: &Figment) -> Result<Config, ConfigError> {
    let check = Check(figment);
    check_ranges(&raw, &check)?;
    let memory = memory::bytes(&raw.limits, &check)?;
    let ms = Duration::from_millis;
    let store: StoreUrl = raw.store.parse().map_err(|what: String| check.fault("store", &what))?;
    let queue = queue_options(&raw, &store);
    let listen: SocketAddr = address::parse(&raw.listen).map_err(|what| check.fault("listen", what))?;
    Ok(Config {
        listen,
        shutdown: ms(raw.shutdown_ms),
        shutdown_notice: ms(raw.shutdown_notice_ms),
        log_filter: check.filter(raw.log.filter)?,
        log_format: raw.log.format.resolve(),
        queue,
        background: background::Options {
            reaper_interval: ms(raw.reaper.interval_ms),
            reaper_batch: size(raw.reaper.batch),
        },
        hosts: http::origin::Hosts::new(raw.http.hosts),
        read_only: raw.http.read_only,
        access: access::options(&raw.auth, listen, &check)?,
        limits: http::Limits {
            body_bytes: size(raw.limits.body_bytes),
            body_pause: ms(raw.limits.body_pause_ms),
            request: ms(raw.limits.request_ms),
        },
        memory,
        connections: http::listen::Options {
            connections: size(raw.limits.connections),
            connections_per_peer: size(raw.limits.connections_per_peer),
            trusted_proxies: check.networks("http.trusted_proxies", &raw.http.trusted_proxies)?,
            header_wait: ms(raw.limits.header_wait_ms),
            write_wait: ms(raw.limits.write_wait_ms),
            tls: check.tls(raw.tls)?,
            bounds: http::wire::Bounds { head: size(raw.limits.head_bytes), body: raw.limits.body_bytes },
        },
        store,
        trace: trace::options(&raw.trace, &check)?,
        mongodb: MongoTuning { deadline: ms(raw.mongodb.deadline_ms), pool_size: raw.mongodb.pool_size },
    })
}

fn queue_options(raw: &Raw, store: &StoreUrl) -> queue::Options {
    let ms = Duration::from_millis;
    queue::Options {
        defaults: Arc::new(fallbacks(&raw.defaults)),
        payload_bytes: size(raw.limits.payload_bytes),
        answer_bytes: size(raw.limits.answer_bytes),
        idempotency_ttl_ms: raw.limits.idempotency_ttl_ms,
        waiting: size(raw.limits.waiting),
        metrics_queues: size(raw.limits.metrics_queues),
        series_queues: size(raw.limits.series_queues),
        event_streams: size(raw.limits.event_streams),
        attention: queue::Thresholds { idle: ms(raw.attention.idle_ms), window: ms(raw.attention.window_ms) },
        quotas: quotas(&raw.limits),
        poll: ms(raw.wait.poll_ms),
        patience: match store {
            // Longer than a call's own deadline, whose error says more.
            StoreUrl::Mongo(_) => ms(raw.mongodb.deadline_ms + 200),
            StoreUrl::Sqlite(_) => SQLITE_PATIENCE,
        },
    }
}

fn fallbacks(defaults: &raw::Defaults) -> Defaults {
    Defaults {
        lease_ms: defaults.lease_ms,
        max_attempts: defaults.max_attempts,
        backoff: defaults.backoff,
        retain_done_ms: defaults.retain_done_ms,
        retain_dead_ms: defaults.retain_dead_ms,
        retain_batch_ms: defaults.retain_batch_ms,
        key_ttl_ms: defaults.key_ttl_ms,
        semaphore_patience_ms: defaults.semaphore_patience_ms,
        worker_timeout_ms: defaults.worker_timeout_ms,
    }
}

fn quotas(limits: &raw::Limits) -> queue::Quotas {
    queue::Quotas {
        queues: limits.queues,
        workers: limits.workers,
        schedules: limits.schedules,
        semaphores: limits.semaphores,
        keys: limits.idempotency_keys,
    }
}

fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Validates values; its errors say where they were set.
struct Check<'a>(&'a Figment);

impl Check<'_> {
    fn fault(&self, key: &str, what: &str) -> ConfigError {
        let source = self.0.find_metadata(key).map(|metadata| raw::source(metadata, key)).unwrap_or_default();
        ConfigError(secret::mask(&format!("{key} {what}{source}")))
    }

    fn range(&self, key: &str, value: u64, min: u64, max: u64) -> Result<(), ConfigError> {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(self.fault(key, &format!("must be {min} to {max}, and is {value}")))
    }

    fn tls(&self, tls: raw::Tls) -> Result<Option<http::tls::Options>, ConfigError> {
        let raw::Tls { certificate, key, client_ca, handshake_wait_ms } = tls;
        let set = |path: PathBuf| Some(path).filter(|path| !path.as_os_str().is_empty());
        let client_ca = set(client_ca);
        match (set(certificate), set(key)) {
            (None, None) if client_ca.is_none() => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some(http::tls::Options {
                files: http::tls::Files { certificate, key, client_ca },
                handshake_wait: Duration::from_millis(handshake_wait_ms),
            })),
            (None, _) => Err(self.fault("tls.certificate", "must be set with tls.key and tls.client_ca")),
            (_, None) => Err(self.fault("tls.key", "must be set with tls.certificate")),
        }
    }

    fn admin_key(&self, key: &str, text: &str) -> Result<SecretHash, ConfigError> {
        match secret::admin_key_fault(text) {
            Some(what) => Err(self.fault(key, what)),
            None => Ok(SecretHash::of(text)),
        }
    }

    fn networks(&self, key: &str, texts: &[String]) -> Result<Vec<ipnet::IpNet>, ConfigError> {
        let wrong = || self.fault(key, "must be addresses or networks, such as 10.0.0.1 or 10.0.0.0/8");
        let parse = |text: &String| {
            let address = || text.parse::<std::net::IpAddr>().map(ipnet::IpNet::from);
            text.parse().or_else(|_| address()).map_err(|_| wrong())
        };
        texts.iter().map(parse).collect()
    }

    fn filter(&self, filter: String) -> Result<String, ConfigError> {
        match telemetry::log_filter(&filter) {
            Ok(_) => Ok(filter),
            // A URL may stand here by mistake, and a part of it be a password.
            Err(_) if secret::is_suspect(&filter) => Err(self.fault("log.filter", "must be a level or TARGET=LEVEL")),
            Err(what) => Err(self.fault(
                "log.filter",
                &format!("must be a level (error, warn, info, debug, trace, off) or TARGET=LEVEL, several with commas: {what}"),
            )),
        }
    }
}

impl LogForm {
    fn resolve(self) -> telemetry::LogFormat {
        let on_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
        match self {
            Self::Human => telemetry::LogFormat::Human,
            Self::Json => telemetry::LogFormat::Json,
            Self::Auto if on_terminal => telemetry::LogFormat::Human,
            Self::Auto => telemetry::LogFormat::Json,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn with(environment: &[(&str, &str)], flags: &Flags) -> Result<Config, String> {
        let environment = environment.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        load(None, environment, flags).map_err(|error| error.to_string())
    }

    #[test]
    fn an_escape_beside_long_characters_is_no_panic() {
        for text in ["\"¡¡A\\a\"", "[\"ää\\n\"]"] {
            let error = with(&[("TAILBACK_LIMITS__BODY_BYTES", text)], &Flags::default()).unwrap_err();
            assert!(error.starts_with("limits.body_bytes"), "{error}");
        }
    }

    #[test]
    fn the_documented_file_is_the_defaults() {
        let config = with(&[], &Flags::default()).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8321");
        assert_eq!(*config.queue.defaults, Defaults::default());
    }

    #[test]
    fn flags_win_over_environment_over_file_over_defaults() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "listen = '127.0.0.1:1'\nshutdown_ms = 5\n[reaper]\nbatch = 7\ninterval_ms = 70")
            .unwrap();
        let environment = [("TAILBACK_LISTEN", "127.0.0.1:2"), ("TAILBACK_REAPER__BATCH", "8")];
        let environment = environment.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let flags = Flags { listen: Some("127.0.0.1:3".into()), store: None };
        let config = load(Some(file.path()), environment.into_iter(), &flags).unwrap();
        assert_eq!(config.listen.port(), 3);
        assert_eq!(config.background.reaper_batch, 8);
        assert_eq!(config.background.reaper_interval, Duration::from_millis(70));
        assert_eq!(config.shutdown, Duration::from_millis(5));
    }

    #[test]
    fn texts_may_look_like_numbers_and_other_variables_are_left_alone() {
        let environment = [
            ("TAILBACK_LOG__FILTER", "12345=info"),
            ("TAILBACK_TEST_MONGODB_URI", "x"),
            ("TAILBACK_CONFIG", "/elsewhere"),
            ("OTHER__THING", "1"),
        ];
        assert_eq!(with(&environment, &Flags::default()).unwrap().log_filter, "12345=info");
    }

    #[test]
    fn passwords_are_not_shown() {
        let url: StoreUrl = "mongodb://ada:secret@host/jobs?replicaSet=rs0".parse().unwrap();
        assert_eq!(format!("{url:?}"), "mongodb://***@host/jobs?replicaSet=rs0");
    }

    #[test]
    fn an_admin_key_is_not_shown() {
        let canary = "canary-canary-canary-canary-canary";
        let config = with(&[("TAILBACK_AUTH__ADMIN_KEY", canary)], &Flags::default()).unwrap();
        assert_eq!(config.access.admin, Some(SecretHash::of(canary)));
        assert!(!format!("{config:?}").contains("canary"));
        for (key, value) in [
            ("TAILBACK_AUTH__ADMIN_KEY", "canary"),
            ("TAILBACK_AUTH__ADMIN_KEY", "canary canary canary canary canary canary"),
            ("TAILBACK_AUTH__ADMIN_KEY", "canary-canary-canary-canary-canary-ä"),
        ] {
            let error = with(&[(key, value)], &Flags::default()).unwrap_err();
            assert!(error.starts_with("auth.admin_key must be") && !error.contains("canary"), "{error}");
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "[auth]\nadmin_key = 1234567890").unwrap();
        let error = load(Some(file.path()), std::iter::empty(), &Flags::default()).unwrap_err().to_string();
        assert!(error.contains("auth.admin_key must be a text") && !error.contains("1234"), "{error}");
    }

    #[test]
    fn mistakes_name_the_key_and_the_place() {
        let flags = Flags::default();
        for (key, value, says) in [
            ("TAILBACK_REAPER__BATCH", "0", "reaper.batch must be 1 to 10000, and is 0"),
            ("TAILBACK_REAPER__BATCH", "many", "reaper.batch"),
            ("TAILBACK_REAPER__BACH", "1", "bach"),
            ("TAILBACK_NOWHERE__AT_ALL", "1", "nowhere"), // the section is named, the key is not reached
            ("TAILBACK_LISTEN", "8321", "listen must be ADDRESS:PORT"),
            ("TAILBACK_STORE", "mongodb://host", "store must name a database"),
            ("TAILBACK_STORE", "redis://host", "store must be"),
            ("TAILBACK_LOG__FORMAT", "xml", "log.format"),
            ("TAILBACK__SHUTDOWN_MS", "x", "shutdown_ms"),
            ("TAILBACK_AUTH__REQUIRED", "maybe", "auth.required must be true, false or \"auto\""),
            ("TAILBACK_AUTH__ADMIN_KEY_FILE", "/does/not/exist", "auth.admin_key_file cannot be read"),
            ("TAILBACK_DEFAULTS__WORKER_TIMEOUT_MS", "999", "worker_timeout_ms must be 1000 to 86400000"),
            (
                "TAILBACK_LIMITS__MEMORY_BYTES",
                "1000000",
                "memory_bytes must be 0, or 8 times limits.body_bytes",
            ),
            ("TAILBACK_DEFAULTS__BACKOFF__JITTER", "2", "defaults.backoff.jitter must be 0 to 1"),
        ] {
            let error = with(&[(key, value)], &flags).unwrap_err();
            assert!(error.contains(says), "{key}={value}: {error}");
            let named = if key.contains("NOWHERE") { "TAILBACK__NOWHERE" } else { key };
            assert!(error.contains(named), "{key}={value} should be named: {error}");
        }
        let error = with(&[], &Flags { listen: None, store: Some("x".into()) }).unwrap_err();
        assert!(error.contains("--store"), "{error}");
        let missing = load(Some(Path::new("/does/not/exist.toml")), std::iter::empty(), &flags).unwrap_err();
        assert!(missing.to_string().contains("/does/not/exist.toml"), "{missing}");
    }
}
