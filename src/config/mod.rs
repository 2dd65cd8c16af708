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
/// A document of MongoDB is 16 MiB long at most: so payload, progress and result fit in, each with the MiB by which its BSON may be longer, and
/// all else that a job has.
const MONGO_PAYLOAD_BYTES: u64 = 4 << 20;

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
        check_file(file)?;
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

/// Fails where there is no such file: the error of the parser names neither the file's purpose nor what to do.
fn check_file(file: &Path) -> Result<(), ConfigError> {
    let shown = secret::mask(&file.display().to_string());
    if file.as_os_str().is_empty() {
        let what = "the name of the configuration file is empty (--config, TAILBACK_CONFIG): name a file, or leave it out";
        return Err(ConfigError::new(what));
    }
    if file.is_dir() {
        let what = "is a folder (--config, TAILBACK_CONFIG): name a file in it";
        return Err(ConfigError(format!("the configuration file {shown} {what}")));
    }
    let unreadable = |error| {
        ConfigError(format!(
            "the configuration file {shown} cannot be read (--config, TAILBACK_CONFIG): {error}"
        ))
    };
    std::fs::File::open(file).map(drop).map_err(unreadable)
}

fn extract(figment: &Figment) -> Result<Raw, ConfigError> {
    figment.extract().map_err(|error| ConfigError(secret::mask(&raw::describe(error))))
}

/// Checks the ranges of the defaults with something else in them.
fn checked(with: impl figment::Provider) -> Result<(), ConfigError> {
    let figment = Figment::from(Toml::string(DEFAULTS)).merge(with);
    // Its own errors are not described: that would lead back here.
    let raw: Raw = figment.extract().map_err(|_| ConfigError::new("it is no number of this size"))?;
    check_ranges(&raw, &Check(&figment))
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
    check_payload(raw.limits.payload_bytes, &store, &check)?;
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

fn check_payload(bytes: u64, store: &StoreUrl, check: &Check<'_>) -> Result<(), ConfigError> {
    if matches!(store, StoreUrl::Sqlite(_)) || bytes <= MONGO_PAYLOAD_BYTES {
        return Ok(());
    }
    let what = format!(
        "must be at most {MONGO_PAYLOAD_BYTES} on MongoDB, where payload, progress and result are one document, and is {bytes}"
    );
    Err(check.fault("limits.payload_bytes", &what))
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
mod tests;
