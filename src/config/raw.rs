//! The raw configuration: mirrors `config.toml`; unknown keys are rejected.

#![expect(missing_docs, reason = "config.toml documents every option")]

use std::path::PathBuf;

use figment::error::{Actual, Kind};
use figment::providers::Serialized;
use figment::value::{Dict, Map, Tag, Value};
use figment::{Error, Metadata, Profile, Provider, Source};
use serde::Deserialize;

use super::DEFAULTS;
use crate::job::Backoff;

/// See `config.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Raw {
    pub listen: String,
    pub store: String,
    pub shutdown_ms: u64,
    pub shutdown_notice_ms: u64,
    pub log: Log,
    pub http: Http,
    pub tls: Tls,
    pub auth: Auth,
    pub limits: Limits,
    pub defaults: Defaults,
    pub attention: Attention,
    pub wait: Wait,
    pub reaper: Reaper,
    pub mongodb: Mongodb,
    pub trace: Trace,
}

/// See `config.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    pub filter: String,
    pub format: LogForm,
}

/// See `config.toml`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogForm {
    Auto,
    Human,
    Json,
}

/// See `config.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    pub hosts: Vec<String>,
    pub trusted_proxies: Vec<String>,
    pub read_only: bool,
}

/// See `config.toml`. Not `Debug`: it has a secret.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    pub required: Required,
    pub admin_key: String,
    pub admin_key_file: String,
    pub open: Vec<Open>,
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auth").field("required", &self.required).finish_non_exhaustive()
    }
}

/// See `config.toml`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
pub enum Required {
    Always(bool),
    When(RequiredWhen),
}

/// See `config.toml`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequiredWhen {
    Auto,
}

/// See `config.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Open {
    Metrics,
    Docs,
}

/// See `config.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_ca: PathBuf,
    pub handshake_wait_ms: u64,
}

/// See `config.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    pub payload_bytes: u64,
    pub body_bytes: u64,
    pub answer_bytes: u64,
    pub memory_bytes: u64,
    pub body_pause_ms: u64,
    pub header_wait_ms: u64,
    pub head_bytes: u64,
    pub write_wait_ms: u64,
    pub connections: u64,
    pub connections_per_peer: u64,
    pub waiting: u64,
    pub request_ms: u64,
    pub metrics_queues: u64,
    pub event_streams: u64,
    pub queues: u64,
    pub workers: u64,
    pub schedules: u64,
    pub semaphores: u64,
    pub idempotency_keys: u64,
    pub idempotency_ttl_ms: u64,
}

/// See `config.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    pub lease_ms: u64,
    pub max_attempts: u32,
    pub key_ttl_ms: u64,
    pub semaphore_patience_ms: u64,
    pub worker_timeout_ms: u64,
    pub retain_done_ms: u64,
    pub retain_dead_ms: u64,
    pub retain_batch_ms: u64,
    pub backoff: Backoff,
}

/// See `config.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    pub idle_ms: u64,
    pub window_ms: u64,
}

/// See `config.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    pub poll_ms: u64,
}

/// See `config.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reaper {
    pub interval_ms: u64,
    pub batch: u64,
}

/// See `config.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mongodb {
    pub deadline_ms: u64,
    pub pool_size: u32,
}

/// See `config.toml`. Not `Debug`: it has secrets.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    pub endpoint: String,
    pub headers: Vec<String>,
    pub headers_file: String,
    pub ca: PathBuf,
    pub sample_ratio: f64,
    pub service_name: String,
    pub timeout_ms: u64,
    pub queue: u64,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("sample_ratio", &self.sample_ratio).finish_non_exhaustive()
    }
}

/// The environment variables that are configuration, each its own source, so that an error names it:
/// `TAILBACK_LISTEN`, `TAILBACK_STORE`, and names with `__` between section and key (`TAILBACK_REAPER__BATCH`) or
/// before a key outside every section (`TAILBACK__SHUTDOWN_MS`).
pub struct Environment(Vec<(String, String)>);

const PREFIX: &str = "TAILBACK_";
/// Keys whose value is a string even if it looks like another type.
const TEXTS: [&str; 10] = [
    "listen",
    "store",
    "log.filter",
    "log.format",
    "auth.admin_key",
    "auth.admin_key_file",
    "trace.endpoint",
    "trace.headers_file",
    "trace.ca",
    "trace.service_name",
];

impl Environment {
    /// Returns the variables that are configuration.
    pub fn new(variables: impl Iterator<Item = (String, String)>) -> Self {
        Self(variables.filter(|(name, _)| key(name).is_some()).collect())
    }
}

/// Variables of ours that are no options: of the command line, the bench and the tests.
const OTHERS: [&str; 9] = ["CONFIG", "KEY", "URL", "PROFILE", "PROFILES", "CA", "JOB_", "TEST_", "BENCH_"];

/// Returns the variables whose names look like options and are none, each with what is meant, if that is known.
pub fn ignored(names: impl Iterator<Item = String>) -> Vec<String> {
    let options = documented();
    let mut ignored: Vec<String> = names
        .filter_map(|name| {
            let rest = name.strip_prefix(PREFIX).filter(|_| key(&name).is_none())?;
            let is_other = OTHERS.iter().any(|other| match other.strip_suffix('_') {
                Some(_) => rest.starts_with(other),
                None => rest == *other,
            });
            // Kubernetes sets such variables for a service that is called tailback.
            let is_of_service = rest.starts_with("SERVICE_") || rest == "PORT" || rest.starts_with("PORT_");
            if is_other || is_of_service {
                return None;
            }
            let flat = rest.to_ascii_lowercase();
            let meant = options.iter().find(|option| option.replace('.', "_") == flat);
            Some(match meant {
                Some(option) => format!("{name} is ignored: the variable is {}", variable(option)),
                None => format!("{name} is ignored: no option is called so (sections end with two underscores: TAILBACK_LIMITS__BODY_BYTES)"),
            })
        })
        .collect();
    ignored.sort();
    ignored
}

/// Returns the keys of all options, in the order of the documented file.
pub fn documented() -> Vec<String> {
    let mut section = String::new();
    let mut keys = Vec::new();
    for line in DEFAULTS.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = format!("{name}.");
        } else if let Some((name, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            keys.push(format!("{section}{name}"));
        }
    }
    keys
}

/// Returns the variable that sets a key.
fn variable(key: &str) -> String {
    let is_outside = !key.contains('.') && !matches!(key, "listen" | "store");
    format!("{PREFIX}{}{}", if is_outside { "_" } else { "" }, key.replace('.', "__").to_ascii_uppercase())
}

/// Returns the variable among these that sets a key or something within it: a section that there is not has no variable of its own.
fn setting(names: &[String], at: &str) -> String {
    let within = format!("{at}.");
    let sets = |name: &&String| key(name).is_some_and(|key| key == at || key.starts_with(&within));
    let is_own = |name: &&String| key(name).is_some_and(|key| key == at);
    let found = names.iter().find(is_own).or_else(|| names.iter().find(sets));
    found.cloned().unwrap_or_else(|| variable(at))
}

/// Returns the key that the environment has set, where a key or something within it is from there.
fn given(metadata: &Metadata, at: &str) -> Option<String> {
    let keys: Vec<&str> = at.split('.').collect();
    let is_variable = metadata.name == "environment";
    is_variable.then(|| key(&metadata.interpolate(&Profile::Default, &keys))).flatten()
}

/// Returns the option, or the section, whose key is most like this one, if one is alike.
fn nearest(key: &str) -> Option<String> {
    let mut keys = documented();
    let sections = keys.iter().filter_map(|option| Some(option.rsplit_once('.')?.0.to_owned()));
    keys.extend(sections.collect::<Vec<_>>());
    let alike = keys.into_iter().map(|option| (distance(&option, key), option));
    let (distance, option) = alike.min_by_key(|(distance, _)| *distance)?;
    (distance <= key.len() / 4).then_some(option)
}

/// Returns how many characters are to be inserted, removed or replaced between two texts.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (n, c) in one.chars().enumerate() {
        let (mut above_left, mut left) = (n, n + 1);
        for (cell, d) in row.iter_mut().skip(1).zip(&other) {
            let replaced = above_left + usize::from(c != *d);
            above_left = *cell;
            left = replaced.min(left + 1).min(*cell + 1);
            *cell = left;
        }
        row.iter_mut().take(1).for_each(|first| *first = n + 1);
    }
    row.last().copied().unwrap_or_default()
}

/// Returns what a value must be, in words for people.
fn in_words(expected: &str) -> String {
    match expected {
        "u64" | "u32" | "usize" => "a whole number, 0 or more",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "a text",
        other => other,
    }
    .to_owned()
}

/// Returns the range of a number, as its check says it.
fn range_of(key: &str) -> Option<String> {
    [i64::MAX.unsigned_abs(), u32::MAX.into()].into_iter().find_map(|beyond| {
        let error = super::checked(Flag(Serialized::default(key, beyond))).err()?;
        let range = error.to_string();
        let range = range.strip_prefix(key)?.strip_prefix(" must be ")?.split_once(", and is ")?.0.to_owned();
        Some(range).filter(|range| range.contains(" to "))
    })
}

/// Returns the key that a variable sets.
fn key(variable: &str) -> Option<String> {
    let name = variable.strip_prefix(PREFIX)?;
    if let Some(name) = name.strip_prefix('_') {
        return Some(name.replace("__", ".").to_ascii_lowercase()); // a key outside every section
    }
    let is_key = matches!(name, "LISTEN" | "STORE") || name.contains("__");
    is_key.then(|| name.replace("__", ".").to_ascii_lowercase())
}

impl Provider for Environment {
    fn metadata(&self) -> Metadata {
        let names: Vec<String> = self.0.iter().map(|(name, _)| name.clone()).collect();
        Metadata::named("environment").interpolater(move |_, keys| setting(&names, &keys.join(".")))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        let mut dict = Dict::new();
        for (variable, text) in &self.0 {
            let Some(key) = key(variable) else { continue };
            insert(&mut dict, &key, value(&key, text));
        }
        Ok(Profile::Default.collect(dict))
    }
}

/// Returns the value that a text stands for.
fn value(key: &str, text: &str) -> Value {
    // figment 0.10 slices a text at a number of characters where an escape stands in it, and panics beside longer ones.
    let is_unsafe = text.contains('\\') && !text.is_ascii();
    if is_unsafe || TEXTS.contains(&key) {
        return Value::from(text);
    }
    text.parse().unwrap_or_else(|never: std::convert::Infallible| match never {})
}

/// Inserts a value at a dotted key.
fn insert(dict: &mut Dict, key: &str, value: Value) {
    match key.split_once('.') {
        None => drop(dict.insert(key.to_owned(), value)),
        Some((section, rest)) => {
            let entry =
                dict.entry(section.to_owned()).or_insert_with(|| Value::Dict(Tag::Default, Dict::new()));
            if !matches!(entry, Value::Dict(..)) {
                *entry = Value::Dict(Tag::Default, Dict::new());
            }
            if let Value::Dict(_, inner) = entry {
                insert(inner, rest, value);
            }
        }
    }
}

/// Returns a value from the command line as a source.
pub struct Flag<T>(pub Serialized<T>);

impl<T: serde::Serialize> Provider for Flag<T> {
    fn metadata(&self) -> Metadata {
        Metadata::named("command line").interpolater(|_, keys| format!("--{}", keys.join("-")))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        self.0.data()
    }
}

/// Returns where the value of a dotted key was set, as the suffix of a message.
pub fn source(metadata: &Metadata, key: &str) -> String {
    let name = metadata.interpolate(&Profile::Default, &key.split('.').collect::<Vec<_>>());
    match (&metadata.source, metadata.name.as_ref()) {
        (Some(Source::File(path)), _) => format!(" (in {})", path.display()),
        (_, from @ ("environment" | "command line")) => format!(" ({name}, from the {from})"),
        _ => String::new(),
    }
}

/// Returns an error of the TOML parser without the line that it quotes: that may be the one with the password.
fn without_quotes(text: &str) -> String {
    let is_quoted = |line: &&str| {
        let bar = line.split('|').next().unwrap_or_default();
        line.contains('|') && bar.trim().chars().all(|c| c.is_ascii_digit())
    };
    let lines: Vec<&str> = text.lines().filter(|line| !is_quoted(line)).map(str::trim).collect();
    lines.join(": ")
}

/// Translates an error of figment.
pub fn describe(error: Error) -> String {
    let mut key = error.path.join(".");
    if let Kind::UnknownField(name, _) = &error.kind
        && !key.ends_with(name.as_str())
    {
        key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
    }
    let source = error.metadata.as_ref().map(|metadata| source(metadata, &key)).unwrap_or_default();
    match key.as_str() {
        "auth.admin_key" => return format!("{key} must be a text{source}"), // its value is not to be quoted
        key if key == "trace.headers" || key.starts_with("trace.headers.") => {
            return format!("trace.headers must be a list of texts such as [\"NAME: VALUE\"]{source}");
        }
        "auth.required" => return format!("{key} must be true, false or \"auto\"{source}"),
        _ => {}
    }
    match &error.kind {
        Kind::UnknownField(_, known) => {
            let given = error.metadata.as_ref().and_then(|metadata| given(metadata, &key));
            let meant = nearest(given.as_deref().unwrap_or(&key));
            let meant = meant.map_or_else(String::new, |meant| match given {
                Some(_) => format!("; the nearest is {}", variable(&meant)),
                None => format!("; the nearest is {meant}"),
            });
            format!("{key} is an unknown option{source}{meant}; known options: {}", known.join(", "))
        }
        Kind::UnknownVariant(_, known) => format!("{key} must be one of: {}{source}", known.join(", ")),
        Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => {
            let expected = range_of(&key).unwrap_or_else(|| in_words(expected));
            match actual {
                // A text may be a URL with a password that stands at the wrong key.
                Actual::Str(_) if matches!(error.kind, Kind::InvalidValue(..)) => {
                    format!("{key} must be {expected}{source}")
                }
                Actual::Str(_) => format!("{key} must be {expected}, and is a text{source}"),
                Actual::Map => format!("{key} must be {expected}, and has options of its own{source}"),
                Actual::Signed(number) => format!("{key} must be {expected}, and is {number}{source}"),
                Actual::Unsigned(number) => format!("{key} must be {expected}, and is {number}{source}"),
                Actual::Float(number) => format!("{key} must be {expected}, and is {number}{source}"),
                actual => format!("{key} must be {expected}, and is {actual}{source}"),
            }
        }
        _ => format!("{}{source}", without_quotes(&error.to_string())),
    }
}
