//! Mistakes in a configuration, and what wins over what.

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
fn every_limit_stands_in_the_table_of_what_strangers_meet() {
    let table = include_str!("../../SECURITY.md");
    let names = raw::documented();
    for name in names.iter().filter_map(|name| name.strip_prefix("limits.")) {
        let is_there = table.contains(&format!("`limits.{name}`")) || table.contains(&format!(", `{name}`"));
        assert!(is_there, "SECURITY.md does not say what limits.{name} is");
    }
}

#[test]
fn flags_win_over_environment_over_file_over_defaults() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "listen = '127.0.0.1:1'\nshutdown_ms = 5\n[reaper]\nbatch = 7\ninterval_ms = 70").unwrap();
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
        ("TAILBACK_LIMIT__QUEUS", "1", "; the nearest is TAILBACK_LIMITS__QUEUES; known"),
        ("TAILBACK__SHUTDWN_MS", "1", "; the nearest is TAILBACK__SHUTDOWN_MS;"),
        (
            "TAILBACK__SHUTDOWN_MS",
            "-1",
            "shutdown_ms must be 0 to 3600000, and is -1 (TAILBACK__SHUTDOWN_MS, ",
        ),
        ("TAILBACK_LIMITS__QUEUES", "many", "limits.queues must be 1 to 1000000000, and is a text"),
        ("TAILBACK_DEFAULTS__MAX_ATTEMPTS", "0.5", "defaults.max_attempts must be 1 to "),
        ("TAILBACK_LOG__FILTER__X", "1", "log.filter must be a text, and has options of its own"),
        ("TAILBACK_LISTEN", "8321", "listen must be ADDRESS:PORT"),
        ("TAILBACK_STORE", "mongodb://host", "store must name a database"),
        ("TAILBACK_STORE", "redis://host", "store must be"),
        ("TAILBACK_LOG__FORMAT", "xml", "log.format"),
        ("TAILBACK__SHUTDOWN_MS", "x", "shutdown_ms"),
        ("TAILBACK_AUTH__REQUIRED", "maybe", "auth.required must be true, false or \"auto\""),
        ("TAILBACK_AUTH__ADMIN_KEY_FILE", "/does/not/exist", "auth.admin_key_file cannot be read"),
        ("TAILBACK_DEFAULTS__WORKER_TIMEOUT_MS", "999", "worker_timeout_ms must be 1000 to 86400000"),
        ("TAILBACK_LIMITS__MEMORY_BYTES", "1000000", "memory_bytes must be 0, or 8 times limits.body_bytes"),
        ("TAILBACK_DEFAULTS__BACKOFF__JITTER", "2", "defaults.backoff.jitter must be 0 to 1"),
    ] {
        let error = with(&[(key, value)], &flags).unwrap_err();
        assert!(error.contains(says), "{key}={value}: {error}");
        assert!(error.contains(key), "{key}={value} should be named: {error}");
    }
    let error = with(&[], &Flags { listen: None, store: Some("x".into()) }).unwrap_err();
    assert!(error.contains("--store"), "{error}");
    let five = [("TAILBACK_LIMITS__PAYLOAD_BYTES", "5000000")];
    let mongo = Flags { listen: None, store: Some("mongodb://host/jobs".into()) };
    let error = with(&five, &mongo).unwrap_err();
    assert!(error.contains("limits.payload_bytes must be at most 4194304 on MongoDB"), "{error}");
    assert!(with(&five, &flags).is_ok());
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "shutdown_ms = -1").unwrap();
    let error = load(Some(file.path()), std::iter::empty(), &flags).unwrap_err().to_string();
    let at = file.path().display();
    assert_eq!(error, format!("shutdown_ms must be 0 to 3600000, and is -1 (in {at})"));
    std::fs::write(file.path(), "[limit]\nqueues = 1").unwrap();
    let error = load(Some(file.path()), std::iter::empty(), &flags).unwrap_err().to_string();
    assert!(error.contains("; the nearest is limits; known options: "), "{error}");
    for (path, says) in [("", "is empty"), ("/tmp", "is a folder")] {
        let error = load(Some(Path::new(path)), std::iter::empty(), &flags).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("TAILBACK_CONFIG"), "{error}");
    }
    let missing = load(Some(Path::new("/does/not/exist.toml")), std::iter::empty(), &flags).unwrap_err();
    assert!(missing.to_string().contains("/does/not/exist.toml"), "{missing}");
}
