//! The settings of queues, their versions and their revision.

use tailback::job::settings::{OnGroupDead, Rate};
use tailback::job::{Backoff, QueueSettings};
use tailback::store::{Expected, Saved, SettingsChange, SettingsSnapshot, Store, StoredSettings};

use super::support::*;

fn stored(version: &str, settings: QueueSettings) -> StoredSettings {
    StoredSettings { settings, version: version.to_owned() }
}

async fn all(store: &dyn Store) -> SettingsSnapshot {
    store.settings(None).await.unwrap().unwrap()
}

async fn save(store: &dyn Store, version: Option<&str>, expected: Expected) -> Saved {
    let to = version.map(|version| stored(version, QueueSettings::default()));
    store.save_settings(&queue("q"), to.as_ref(), &expected).await.unwrap()
}

pub async fn settings_come_back_as_they_were_saved(store: &dyn Store) {
    assert!(all(store).await.queues.is_empty());
    let full = QueueSettings {
        lease_ms: Some(86_400_000),
        max_attempts: Some(1_000_000),
        backoff: Some(Backoff { jitter: 0.25, factor: 1.5, ..Backoff::default() }),
        dead_letter: Some(queue("graves")),
        retain_done_ms: Some(0),
        retain_result_ms: Some(1),
        retain_dead_ms: Some(31_536_000_000),
        max_jobs: Some(u64::from(u32::MAX) * 5),
        max_reserved: Some(7),
        rate: Some(Rate { limit: 1_000_000, per_ms: 86_400_000 }),
        on_group_dead: Some(OnGroupDead::Skip),
        lapsed: Some(tailback::job::settings::Lapsed::First),
        paused: Some(true),
    };
    let (one, two) = (stored("v1", full), stored("v2", QueueSettings::default()));
    store.save_settings(&queue("q"), Some(&one), &Expected::Any).await.unwrap();
    store.save_settings(&queue("r"), Some(&two), &Expected::Absent).await.unwrap();
    let queues = all(store).await.queues;
    assert_eq!((queues.len(), &queues[&queue("q")], &queues[&queue("r")]), (2, &one, &two));
}

pub async fn the_revision_grows_with_every_change(store: &dyn Store) {
    let first = all(store).await.revision;
    assert!(store.settings(Some(first)).await.unwrap().is_none());
    save(store, Some("a"), Expected::Any).await;
    let second = store.settings(Some(first)).await.unwrap().unwrap().revision;
    assert!(second > first);
    assert!(store.settings(Some(second)).await.unwrap().is_none());
    save(store, None, Expected::Any).await;
    assert!(store.settings(Some(second)).await.unwrap().unwrap().revision > second);
}

pub async fn a_change_needs_the_expected_version(store: &dyn Store) {
    let version = |text: &str| Expected::Version(text.to_owned());
    assert_eq!(save(store, Some("a"), version("a")).await, Saved::Conflict);
    assert_eq!(save(store, Some("a"), Expected::Absent).await, Saved::Done);
    assert_eq!(save(store, Some("b"), Expected::Absent).await, Saved::Conflict);
    assert_eq!(save(store, Some("b"), version("x")).await, Saved::Conflict);
    let before = all(store).await;
    assert_eq!(before.queues[&queue("q")].version, "a");
    assert!(store.settings(Some(before.revision)).await.unwrap().is_none(), "a refused change is none");
    assert_eq!(save(store, Some("b"), version("a")).await, Saved::Done);
    assert_eq!(save(store, Some("c"), Expected::Any).await, Saved::Done);
    assert_eq!(all(store).await.queues[&queue("q")].version, "c");
}

pub async fn settings_can_be_removed(store: &dyn Store) {
    save(store, Some("a"), Expected::Any).await;
    assert_eq!(save(store, None, Expected::Version("b".into())).await, Saved::Conflict);
    assert_eq!(save(store, None, Expected::Version("a".into())).await, Saved::Done);
    assert!(all(store).await.queues.is_empty());
    assert_eq!(save(store, None, Expected::Any).await, Saved::Done);
    assert_eq!(save(store, Some("a"), Expected::Absent).await, Saved::Done);
}

pub async fn several_queues_are_changed_at_once(store: &dyn Store) {
    let change = |name: &str, version: Option<&str>, expected: Expected| SettingsChange {
        queue: queue(name),
        to: version.map(|version| stored(version, QueueSettings::default())),
        expected,
        rows: Vec::new(),
    };
    let is = |version: &str| Expected::Version(version.to_owned());
    let first = store.save_all_settings(&[]).await.unwrap();
    assert!(first.is_empty());
    let changes = [
        change("a", Some("1"), Expected::Absent),
        change("b", Some("1"), Expected::Any),
        change("c", Some("1"), is("0")),
        // Each meets what those before it left.
        change("a", Some("2"), Expected::Absent),
        change("a", Some("3"), is("1")),
        change("d", Some("1"), Expected::Absent),
        change("d", None, is("1")),
        change("e", None, Expected::Any),
    ];
    use Saved::{Conflict, Done};
    let saved = store.save_all_settings(&changes).await.unwrap();
    assert_eq!(saved, [Done, Done, Conflict, Conflict, Done, Done, Done, Done]);
    let before = all(store).await;
    let version = |name: &str| before.queues.get(&queue(name)).map(|stored| stored.version.as_str());
    assert_eq!(["a", "b", "c", "d", "e"].map(version), [Some("3"), Some("1"), None, None, None]);
    // Where nothing is changed, nothing is written.
    let nothing = [change("a", Some("4"), is("1")), change("e", None, Expected::Any)];
    assert_eq!(store.save_all_settings(&nothing).await.unwrap(), [Conflict, Done]);
    assert!(store.settings(Some(before.revision)).await.unwrap().is_none());
    let mixed = [change("a", None, is("3")), change("b", Some("2"), is("0"))];
    assert_eq!(store.save_all_settings(&mixed).await.unwrap(), [Done, Conflict]);
    let after = all(store).await;
    assert!(after.revision > before.revision);
    assert_eq!(after.queues.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["b"]);
}

pub async fn of_two_changes_at_once_one_is_made(store: &dyn Store) {
    let tries = (0..8).map(|n| save(store, Some(["a", "b"][n % 2]), Expected::Absent));
    let saved = futures::future::join_all(tries).await;
    assert_eq!(saved.iter().filter(|saved| **saved == Saved::Done).count(), 1);
}

pub async fn dead_letter_queues_close_no_circle(store: &dyn Store) {
    let to = |dead_letter: Option<&str>| QueueSettings {
        dead_letter: dead_letter.map(queue),
        ..QueueSettings::default()
    };
    let save = async |name: &str, dead_letter: Option<&str>, expected: Expected| {
        let to = stored("v", to(dead_letter));
        store.save_settings(&queue(name), Some(&to), &expected).await.unwrap()
    };
    assert_eq!(save("a", Some("b"), Expected::Any).await, Saved::Done);
    assert_eq!(save("b", Some("c"), Expected::Absent).await, Saved::Done);
    let before = all(store).await;
    let circle = Saved::Circle(["c", "a", "b", "c"].map(queue).to_vec());
    assert_eq!(save("c", Some("a"), Expected::Absent).await, circle);
    assert_eq!(save("c", Some("a"), Expected::Version("v".into())).await, Saved::Conflict);
    assert_eq!(save("d", Some("d"), Expected::Any).await, Saved::Circle(["d", "d"].map(queue).to_vec()));
    assert!(store.settings(Some(before.revision)).await.unwrap().is_none(), "nothing was stored");
    assert_eq!(save("b", None, Expected::Any).await, Saved::Done);
    assert_eq!(save("c", Some("a"), Expected::Absent).await, Saved::Done);
    assert_eq!(save("c", Some("a"), Expected::Any).await, Saved::Done);
    let circle = Saved::Circle(["b", "c", "a", "b"].map(queue).to_vec());
    assert_eq!(save("b", Some("c"), Expected::Version("v".into())).await, circle);
}

pub async fn of_the_dead_letter_queues_of_a_ring_one_is_refused(store: &dyn Store) {
    for (round, length) in [2, 3, 5].into_iter().enumerate() {
        let name = |n: usize| queue(&format!("ring-{round}-{}", n % length));
        let saves = (0..length).map(|n| {
            let dead_letter = Some(name(n + 1));
            let to = stored("v", QueueSettings { dead_letter, ..QueueSettings::default() });
            async move { store.save_settings(&name(n), Some(&to), &Expected::Absent).await.unwrap() }
        });
        let saved = futures::future::join_all(saves).await;
        assert_eq!(saved.iter().filter(|saved| **saved == Saved::Done).count(), length - 1, "{saved:?}");
        assert_eq!(saved.iter().filter(|saved| matches!(saved, Saved::Circle(_))).count(), 1, "{saved:?}");
    }
}
