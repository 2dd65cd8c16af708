//! Who is woken for what.

use std::time::Duration;

use futures::FutureExt as _;

use super::*;

fn one(queue: &str) -> Vec<QueuePattern> {
    list(&[queue])
}

fn list(patterns: &[&str]) -> Vec<QueuePattern> {
    patterns.iter().map(|pattern| pattern.parse().unwrap()).collect()
}

fn is_woken(ticket: &Ticket<'_>) -> bool {
    ticket.woken().now_or_never().is_some()
}

#[test]
fn the_longest_waiting_is_woken_first() {
    let waiters = Waiters::default();
    let queue = "mail.out".parse().unwrap();
    let (prefix, first, second) = (
        waiters.register(&one("mail*"), false),
        waiters.register(&one("mail.out"), false),
        waiters.register(&one("mail.out"), false),
    );
    let other = waiters.register(&one("other"), false);
    waiters.wake(&queue, 2);
    assert!(is_woken(&prefix) && is_woken(&first));
    assert!(!is_woken(&second) && !is_woken(&other));
    first.begin_query();
    waiters.wake(&queue, 1);
    assert!(is_woken(&first), "it found nothing and kept its place");
    assert!(!is_woken(&second));
}

#[test]
fn an_unused_wake_up_goes_on_to_the_next() {
    let waiters = Waiters::default();
    let queue: QueueName = "a".parse().unwrap();
    let (first, second) = (waiters.register(&one("a"), false), waiters.register(&one("a"), false));
    waiters.wake(&queue, 1);
    drop(first);
    assert!(is_woken(&second));
    second.begin_query();
    drop(second);
    assert!(waiters.is_empty());
}

#[test]
fn a_wake_up_that_its_waiter_uses_otherwise_goes_on() {
    let waiters = Waiters::default();
    let (a, b): (QueueName, QueueName) = ("a".parse().unwrap(), "b".parse().unwrap());
    let both = ["a".parse().unwrap(), "b".parse().unwrap()];
    for (taken, goes_on) in [(vec![&a, &b], false), (vec![], false), (vec![&a], true)] {
        let (first, second) = (waiters.register(&both, false), waiters.register(&one("b"), false));
        waiters.wake(&b, 1);
        first.begin_query();
        first.end_query(taken.into_iter());
        drop(first);
        assert_eq!(is_woken(&second), goes_on);
    }
    // One that left during its query.
    let (first, second) = (waiters.register(&both, false), waiters.register(&one("b"), false));
    waiters.wake(&b, 1);
    first.begin_query();
    drop(first);
    assert!(is_woken(&second));
}

#[test]
fn a_waiter_that_cannot_query_leaves_its_wake_ups_to_others() {
    let waiters = Waiters::default();
    let (a, b): (QueueName, QueueName) = ("a".parse().unwrap(), "b".parse().unwrap());
    let both = list(&["a", "b"]);
    let (first, second) = (waiters.register(&both, false), waiters.register(&one("a"), false));
    waiters.wake(&a, 1);
    first.begin_query();
    first.leave();
    assert!(is_woken(&second), "it has left in its query");
    waiters.wake(&b, 1);
    first.return_to_line();
    second.begin_query();
    let third = waiters.register(&one("b"), false);
    waiters.wake(&b, 1);
    first.begin_query();
    waiters.wake(&b, 1);
    assert!(is_woken(&first) && !is_woken(&third), "it has its old place");
}

#[test]
fn the_wake_up_of_a_query_that_failed_goes_on() {
    let waiters = Waiters::default();
    let (a, b): (QueueName, QueueName) = ("a".parse().unwrap(), "b".parse().unwrap());
    let (first, second) = (waiters.register(&list(&["a", "b"]), false), waiters.register(&one("a"), false));
    waiters.wake(&a, 1);
    first.begin_query();
    waiters.wake(&b, 1);
    first.begin_query();
    first.end_query([&b].into_iter());
    drop(first);
    assert!(is_woken(&second));
}

#[test]
fn a_waiter_that_was_woken_in_turn_and_found_jobs_wakes_the_next() {
    let waiters = Waiters::default();
    let queue: QueueName = "a".parse().unwrap();
    let tickets: Vec<_> = (0..4).map(|_| waiters.register(&one("a"), false)).collect();
    let woken = || tickets.iter().map(is_woken).collect::<Vec<bool>>();
    assert!(waiters.wake_in_turn(&queue) && !waiters.wake_in_turn(&"b".parse().unwrap()));
    assert_eq!(woken(), [true, false, false, false], "it has waited longest");
    tickets[0].begin_query();
    tickets[0].end_query(std::iter::once(&queue));
    drop(waiters.register(&one("b"), false));
    // It still has its place until it leaves, and may be woken again.
    assert_eq!(woken(), [true, true, false, false]);
    tickets[1].begin_query();
    tickets[1].end_query(std::iter::empty());
    assert_eq!(woken(), [false; 4], "there was nothing more");
}

#[test]
fn what_is_waited_for_is_known_without_repeats() {
    let waiters = Waiters::default();
    let texts = ["mail.out", "mail.*", "mail.in.*", "a", "mail.*", "zoo*"];
    let tickets: Vec<_> = texts.iter().map(|text| waiters.register(&one(text), false)).collect();
    assert_eq!(waiters.waited_for(), (Vec::new(), Prefixes::default()), "none sleeps yet");
    tickets.iter().for_each(Ticket::sleep);
    let (mut names, prefixes) = waiters.waited_for();
    names.sort();
    assert_eq!(names, ["a", "mail.out"].map(|name| name.parse().unwrap()));
    assert_eq!(prefixes, Prefixes::of(&list(&["mail.*", "zoo*"])));
    assert_eq!(waiters.patterns().len(), 5);
    drop(tickets);
    assert_eq!(waiters.waited_for(), (Vec::new(), Prefixes::default()));
}

#[test]
fn a_wake_up_during_a_query_is_not_lost() {
    let waiters = Waiters::default();
    let ticket = waiters.register(&one("a"), false);
    ticket.begin_query();
    waiters.wake(&"a".parse().unwrap(), 1);
    assert!(is_woken(&ticket));
}

/// Every name of up to four of these letters.
fn names() -> Vec<QueueName> {
    let mut texts = vec![String::new()];
    for _ in 0..4 {
        let longer = |text: &String| ["a", "b", "."].map(|letter| format!("{text}{letter}"));
        let longer: Vec<String> = texts.iter().flat_map(longer).collect();
        texts.extend(longer);
    }
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

#[test]
fn a_queue_finds_who_waits_for_it() {
    let lists = [
        list(&["ab.*", "b.a.*"]),
        list(&["ab"]),
        list(&["b*", "ba", "ba.a", "ba*", "b*"]),
        list(&["a*", "ab.a*", "ab", "ab", "b.b"]),
        list(&["abb*", "a"]),
        list(&["*", "bb*", "aaa"]),
        list(&["abab"]),
    ];
    let waiters = Waiters::default();
    let tickets: Vec<Ticket<'_>> = lists.iter().map(|list| waiters.register(list, false)).collect();
    tickets.iter().for_each(Ticket::sleep);
    let counts = waiters.counts();
    for queue in names() {
        let is_meant = |patterns: &[QueuePattern]| patterns.iter().any(|pattern| pattern.matches(&queue));
        let meant = (0..).zip(&lists).filter(|(_, patterns)| is_meant(patterns)).map(|(number, _)| number);
        let meant: Vec<u64> = meant.collect();
        let register = lock(&waiters.register);
        let mut found: Vec<u64> = register.lines(&queue).flat_map(BTreeMap::keys).copied().collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, meant, "{queue}");
        let first = register.first(&queue, |_| true).map(|(number, _)| number);
        assert_eq!(first, meant.first().copied(), "{queue}: the one that has waited longest");
        drop(register);
        let count = meant.len() as u64;
        assert_eq!((waiters.count(Some(&queue)), counts.of(&queue)), (count, count), "{queue}");
        assert_eq!(waiters.wait_for(&queue), count > 0, "{queue}");
    }
    assert_eq!(waiters.count(None), 7);
}

#[test]
fn who_leaves_leaves_nothing_behind() {
    let waiters = Waiters::default();
    let patterns = list(&["mail.*", "mail.out", "mail.in.*", "mail.*", "a", "a"]);
    let kept = || {
        let register = lock(&waiters.register);
        [register.all.len(), register.by_name.len(), register.by_prefix.len()]
    };
    let (ticket, other) = (waiters.register(&patterns, false), waiters.register(&one("mail.*"), false));
    assert_eq!(kept(), [2, 2, 1]);
    drop(ticket);
    assert_eq!(kept(), [1, 0, 1]);
    drop(other);
    assert_eq!(kept(), [0, 0, 0]);
    let ticket = waiters.register(&patterns, false);
    waiters.wake(&"mail.x".parse().unwrap(), 1);
    assert_eq!(kept(), [0, 0, 0], "it is woken once until it queries");
    ticket.begin_query();
    assert_eq!(kept(), [1, 2, 1]);
    drop(ticket);
    assert_eq!(kept(), [0, 0, 0]);
}

#[test]
fn what_pops_pass_over_is_for_a_reserve_here_or_elsewhere() {
    let waiters = Waiters::default();
    let queue: QueueName = "a".parse().unwrap();
    waiters.peers.set("s1".into(), one("a"), Duration::from_secs(3600));
    let pop = waiters.register(&one("a"), true);
    let query_in_vain = || {
        pop.begin_query();
        pop.end_query(std::iter::empty());
    };
    let signalled = || waiters.peers.take_arrivals().map(|arrivals| arrivals.ready);
    waiters.wake(&queue, 1);
    assert_eq!(signalled(), None, "a waiter here was woken");
    query_in_vain();
    assert_eq!(signalled(), Some(HashMap::from([(queue.clone(), 1)])));
    // By a signal, and by the poll, other servers know.
    waiters.wake_here(&queue, 1);
    query_in_vain();
    waiters.wake_in_turn(&queue);
    query_in_vain();
    assert_eq!(signalled(), None);
    let reserve = waiters.register(&one("a"), false);
    waiters.wake(&queue, 1);
    query_in_vain();
    assert!(is_woken(&reserve));
    assert_eq!(signalled(), None);
}
