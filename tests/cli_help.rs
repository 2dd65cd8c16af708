//! What the command line says of itself, and of arguments that it refuses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::cli::{self, Done};

fn run(arguments: &[&str]) -> Done {
    Done::new(&cli::command("", arguments).output().unwrap())
}

/// The lines of a help that stand below this head.
fn below<'h>(help: &'h str, head: &str) -> Vec<&'h str> {
    let behind = help.lines().skip_while(|line| *line != head).skip(1);
    behind.take_while(|line| line.is_empty() || line.starts_with(' ')).collect()
}

#[test]
fn each_option_stands_below_its_own_head() {
    for (command, head, own, others) in [
        ("push", "The payload:", &["--text", "--bytes", "--base64", "--type"][..], "--delay"),
        ("jobs", "Which jobs:", &["--queue", "--state", "--attempts-max", "--where"], "--newest"),
        ("queues", "Which server:", &["--url", "--key", "--key-file", "--profile", "--ca"], "--json"),
        ("bench", "Which server:", &["--url", "--key", "--key-file", "--profile", "--ca"], "--jobs"),
    ] {
        let help = run(&[command, "--help"]).with(0).out;
        let named = |lines: &[&str], option: &str| {
            lines.iter().any(|line| line.split([' ', ',', '[', '<']).any(|word| word == option))
        };
        let lines = below(&help, head);
        assert!(own.iter().all(|option| named(&lines, option)), "{help}");
        assert!(!named(&lines, others), "{others} is none of {head}\n{help}");
        let count = lines.iter().filter(|line| line.trim_start().starts_with('-')).count();
        assert!(count < 25 && named(&help.lines().collect::<Vec<_>>(), others), "{help}");
    }
}

#[test]
fn exit_codes_the_environment_and_files_are_said() {
    let directory = tempfile::tempdir().unwrap();
    run(&["man", "--out", directory.path().to_str().unwrap()]).with(0);
    for (command, variables, file, codes) in [
        (
            &["queues", "show"][..],
            &["TAILBACK_URL", "TAILBACK_KEY", "TAILBACK_PROFILES"][..],
            "profiles.toml",
            7,
        ),
        (&["push"], &["TAILBACK_CA", "TRACEPARENT", "NO_COLOR"], "profiles.toml", 7),
        (&["commit"], &["TAILBACK_JOB_RESERVATION"], "profiles.toml", 7),
        (&["work"], &["TAILBACK_JOB_ID", "TAILBACK_URL"], "profiles.toml", 7),
        (&["bench"], &["TAILBACK_URL", "TAILBACK_KEY"], "profiles.toml", 7),
        (&["serve"], &["TAILBACK_CONFIG", "TAILBACK_STORE"], "config.toml", 3),
        (&["keys", "create"], &["TAILBACK_STORE"], "config.toml", 3),
        (&[], &["TAILBACK_CONFIG", "TAILBACK_URL"], "config.toml", 7),
        (&["openapi"], &[], "", 3),
    ] {
        let help = run(&[command, &["--help"]].concat()).with(0).out;
        let page = [&["tailback"], command].concat().join("-");
        let page = std::fs::read_to_string(directory.path().join(format!("{page}.1"))).unwrap();
        let page = page.replace("\\-", "-");
        assert_eq!(
            below(&help, "Exit codes:").iter().filter(|line| !line.is_empty()).count(),
            codes,
            "{help}"
        );
        assert!(page.contains(".SH \"EXIT STATUS\"\n") && page.contains("\\fB2\\fR\n"), "{page}");
        let (said, section) =
            (below(&help, "Environment:").join("\n"), page.split(".SH ENVIRONMENT\n").nth(1));
        for variable in variables {
            assert!(said.contains(variable), "{variable}: {help}");
            assert!(section.is_some_and(|section| section.contains(variable)), "{variable}: {page}");
        }
        assert_eq!(section.is_some(), !variables.is_empty(), "{page}");
        assert!(below(&help, "Files:").join("\n").contains(file), "{help}");
        assert_eq!(page.contains(".SH FILES\n"), !file.is_empty(), "{page}");
    }
}

#[test]
fn arguments_that_are_refused_are_shown_without_what_a_terminal_obeys() {
    let hostile = "\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}\nerror: \rend";
    for arguments in [
        &[hostile][..],
        &["queues", hostile],
        &["queues", &format!("--{hostile}")],
        &["queues", &format!("--{hostile}=x")],
        &["queues", &format!("--limit={hostile}")],
        &["queues", "--limit", hostile],
        &["reserve", "q", "--wait", hostile],
        &["jobs", "--payload", hostile],
        &["job", "x", hostile],
        &["queues", "pause", "q", hostile],
    ] {
        let done = run(arguments).with(2);
        let is_bad = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!done.err.contains(is_bad), "{arguments:?}: {done:?}");
        // A line of an argument is none of the program's.
        assert!(!done.err.lines().skip(1).any(|line| line.starts_with("error: ")), "{arguments:?}: {done:?}");
        assert!(done.err.contains("owned"), "{arguments:?}: {done:?}");
    }
}
