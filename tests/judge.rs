//! The judge is judged: histories in which one thing is wrong, each of which it must see, and whole ones in which it
//! must see nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured is shown")]

mod checker;

mod judge {
    pub mod corruptions;
    pub mod story;
}

use checker::{History, Setup};
use judge::corruptions::{CORRUPTIONS, DOUBTS};
use judge::story::Story;

fn verdict(story: &Story) -> Vec<checker::Violation> {
    checker::judge(&story.history, &story.scan, &Setup::default())
}

#[test]
fn a_sound_history_has_no_violation() {
    let found = verdict(&Story::sound());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn every_corruption_is_found() {
    assert!(CORRUPTIONS.len() >= 15);
    for (name, rule, corrupt) in CORRUPTIONS {
        let mut story = Story::sound();
        corrupt(&mut story);
        let found = verdict(&story);
        println!("{name}: {found:?}");
        assert!(
            found.iter().any(|violation| violation.rule == *rule),
            "{name}: {rule:?} is not in {found:#?}"
        );
    }
}

#[test]
fn what_is_not_certain_is_no_violation() {
    for (name, change) in DOUBTS {
        let mut story = Story::sound();
        change(&mut story);
        let found = verdict(&story);
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
}

#[test]
fn a_history_can_be_written_and_read() {
    let (file, story) = (tempfile::NamedTempFile::new().unwrap(), Story::sound());
    story.history.write(file.path());
    assert_eq!(History::read(file.path()), story.history);
}
