//! Passwords are printed nowhere: a canary in URLs and files, valid and malformed, in every place of the command line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::{Command, Output};

const CANARY: &str = "c4nary";

/// URLs with the canary as their password, each wrong in its own way but the first.
fn urls() -> Vec<String> {
    let texts = [
        "mongodb://ada:CANARY@127.0.0.1:1/jobs?replicaSet=rs0",
        "mongodb://ada:CANARY@127.0.0.1:1",
        "mongodb://ada:CANARY@/jobs",
        "mongodb://ada:CANARY@host:port/jobs",
        "mongodb://ada:CANARY@host:99999999/jobs",
        "mongodb://ada:CANARY@ho st/jobs",
        "mongodb://ada:CANARY@[::1/jobs",
        "mongodb://ada:x@CANARY@host/jobs",
        "mongodb://ada:CANARY:x@host/jobs",
        "mongodb://ada:CANARY/x@host/jobs",
        "mongodb://ada:CANARY %@host/jobs",
        "mongodb://ada:CANARY%zz@host/jobs",
        "mongodb://ada:CANARY'\"@host/jobs",
        "mongodb://ada:CANARY@host/jobs?replicaSet",
        "mongodb://ada:CANARY@host/jobs?nonsense=1",
        "mongodb://ada:CANARY@host/jobs?maxPoolSize=x",
        "mongodb://ada:CANARY@host/jobs?authMechanism=x",
        "mongodb+srv://ada:CANARY@host:1/jobs",
        "mongodb+srv://ada:CANARY@a,b/jobs",
        "mongo://ada:CANARY@host/jobs",
        "mongodb:/ada:CANARY@host/jobs",
        "mongodb//ada:CANARY@host/jobs",
        "ada:CANARY@host/jobs",
        "postgres://ada:CANARY@host/jobs",
        " mongodb://ada:CANARY@host/jobs",
        "mongodb://u?ser:CANARYLx://user:CANARY@host/jobs@host/jobs?replicaSet=rs",
        "mongodb://ada:CANARY@host/jobs?appName=CANARY%zz",
    ];
    texts.iter().map(|text| text.replace("CANARY", CANARY)).collect()
}

fn tailback(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailback"));
    command.args(arguments).envs(environment.iter().copied()).current_dir(directory.path()).output().unwrap()
}

fn says_nothing(what: &str, output: &Output) {
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains(CANARY), "{what} printed the password: {text}");
}

#[test]
fn no_command_line_prints_a_password() {
    for url in &urls() {
        let joined = |flag: &str| format!("{flag}={url}");
        for arguments in [
            vec!["check-config", "--store", url],
            vec!["check-config", &joined("--store")],
            vec!["check-config", "--listen", url],
            vec!["check-config", "--config", url],
            vec!["check-config", url],
            vec!["migrate", "--from", url],
            vec!["migrate", "--from", url, "--to", "sqlite::memory:"],
            vec!["migrate", "--to", url, "--from", "sqlite:x.db"],
            vec!["migrate", &joined("--from"), &joined("--to")],
            vec!["migrate", "--form", url],
            vec!["migrate", &joined("--form")],
            vec!["migrate", "--from", "sqlite:a.db", "--to", "sqlite:b.db", url],
            vec!["migrate", "--store", url, "--from", url, "--to", url],
            vec![url],
            vec!["serve", url],
        ] {
            // One that is valid would be waited for.
            if *url == urls()[0] && arguments.iter().filter(|word| word.contains(url.as_str())).count() != 1 {
                continue;
            }
            says_nothing(&format!("{arguments:?}"), &tailback(&arguments, &[]));
        }
        for variable in [
            "TAILBACK_STORE",
            "TAILBACK_LISTEN",
            "TAILBACK_LOG__FILTER",
            "TAILBACK_LIMITS__BODY_BYTES",
            "TAILBACK_LOG__FORMAT",
            "TAILBACK_DEFAULTS__BACKOFF",
            "TAILBACK_CONFIG",
        ] {
            says_nothing(variable, &tailback(&["check-config"], &[(variable, url)]));
        }
    }
}

#[test]
fn no_configuration_file_prints_a_password() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tailback.toml");
    for url in &urls() {
        for text in [
            format!("store = '{url}'"),
            format!("store = {url}"),
            format!("store = \"{url}"),
            format!("store = '{url}' x"),
            format!("store = '{url}'\nstore = '{url}'"),
            format!("store = ['{url}']"),
            format!("store = {{ url = '{url}' }}"),
            format!("stor = '{url}'"),
            format!("shutdown_ms = '{url}'"),
            format!("[log]\nformat = '{url}'"),
            format!("[log]\nfilter = '{url}'"),
            format!("listen = '{url}'"),
            format!("'{url}' = 1"),
            format!("[limits]\nbody_bytes = '{url}'"),
            url.clone(),
        ] {
            std::fs::write(&file, &text).unwrap();
            says_nothing(&text, &tailback(&["check-config", "--config", file.to_str().unwrap()], &[]));
        }
    }
}

#[test]
fn what_is_wrong_is_still_said() {
    let output = tailback(&["migrate", "--from", "redis://host", "--to", "sqlite:x.db"], &[]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("--from") && text.contains("must be sqlite:PATH"), "{text}");
    assert_eq!(output.status.code(), Some(2));
    let output =
        tailback(&["check-config", "--store", "mongodb://ada:x@host/jobs?replicaSet=a&replicaSet=b"], &[]);
    let text =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("ada:x"), "{text}");
    assert_eq!(tailback(&["--version"], &[]).status.code(), Some(0));
    assert_eq!(tailback(&["--help"], &[]).status.code(), Some(0));
}
