//! What is remembered, and what is not known.

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_200_000_000 + seconds * 1000)
}

fn tally(pushed: u32, reserved: u32) -> Tally {
    let mut tally = Tally::default();
    (0..pushed).for_each(|_| tally.count(Event::Pushed));
    (0..reserved).for_each(|_| tally.count(Event::Reserved));
    tally
}

fn pushed(history: &History, queue: &QueueName, window: u64, now: i64) -> u32 {
    history.recent([queue].into_iter(), Duration::from_secs(window), at(now))[0].sum.pushed
}

#[test]
fn steps_pass_out_of_the_window_and_out_of_memory() {
    let (history, queue): (_, QueueName) = (History::default(), "q".parse().unwrap());
    let part = |seconds: i64, pushed: u32| {
        let queues = HashMap::from([(queue.clone(), tally(pushed, 1))]);
        vec![std::sync::Arc::new(Step { at: at(seconds), queues, ..Step::default() })]
    };
    history.note_own(&part(0, 1), at(0), at(5));
    history.note_own(&part(30, 2), at(0), at(45));
    history.note_own(&part(600, 4), at(0), at(605));
    let recent = history.recent([&queue].into_iter(), KEPT, at(610))[0];
    assert_eq!((recent.sum.pushed, recent.delivered_at), (7, Some(at(605))));
    assert_eq!(pushed(&history, &queue, 60, 610), 4);
    assert_eq!(pushed(&history, &queue, 1, 631), 0);
    assert_eq!(pushed(&history, &queue, 900, 905), 6, "the first step is over");
    // Around the ring: what was there before does not count again.
    history.note_own(&part(930, 8), at(0), at(935));
    assert_eq!(pushed(&history, &queue, 900, 935), 12);
    let (from, steps) = history.steps(&[&queue], at(935));
    assert_eq!((from, steps[0].as_ref().unwrap().len()), (at(60), STEPS));
    history.note_own(&[], at(0), at(3000));
    assert!(history.state().own.queues.is_empty());
}

#[test]
fn what_was_told_and_what_is_read_count_once() {
    let (history, queue): (_, QueueName) = (History::default(), "q".parse().unwrap());
    let told = tally(1, 0);
    history.note_told(at(0), [(&queue, &told)].into_iter());
    assert_eq!(pushed(&history, &queue, 900, 100), 0, "nobody listens yet");
    history.note_heard(at(10), at(90), false);
    history.note_told(at(50), [(&queue, &told)].into_iter());
    history.note_told(at(60), [(&queue, &told)].into_iter());
    assert_eq!(pushed(&history, &queue, 900, 100), 1, "from the next minute on");
    assert_eq!(history.unfilled(true, at(70)), None, "the minute before may not be written yet");
    assert_eq!(history.unfilled(true, at(80)), Some((at(60), 0)));
    assert_eq!(history.unfilled(true, at(81)), None, "it is being read");
    let tally = tally(2, 0);
    history.fill(
        at(-810),
        0,
        vec![RecentTally { queue: queue.clone(), span: Span::Minute, at: at(0), tally }],
    );
    assert_eq!(pushed(&history, &queue, 900, 100), 3);
    assert_eq!(history.steps(&[&queue], at(80)).0, at(-810));
}

#[test]
fn deliveries_are_remembered_for_as_long_as_is_asked_and_too_many_queues_are_unknown() {
    let (history, queue): (_, QueueName) = (History::default(), "q".parse().unwrap());
    let part = |seconds: i64, queue: &QueueName| {
        let queues = HashMap::from([(queue.clone(), tally(0, 1))]);
        vec![std::sync::Arc::new(Step { at: at(seconds), queues, ..Step::default() })]
    };
    let recent = |queue: &QueueName, now| history.recent([queue].into_iter(), KEPT, at(now))[0];
    history.remember_for(2 * KEPT);
    history.note_own(&part(0, &queue), at(0), at(5));
    history.note_own(&[], at(0), at(1200));
    assert_eq!(recent(&queue, 1200).delivered_at, Some(at(5)), "nothing has happened for twenty minutes");
    history.note_own(&[], at(0), at(2000));
    assert!(history.state().own.queues.is_empty());
    for n in 0..=QUEUES_MAX {
        history.note_own(&part(2000, &format!("q{n}").parse().unwrap()), at(0), at(2005));
    }
    let refused = format!("q{QUEUES_MAX}").parse().unwrap();
    assert!(recent(&refused, 2100).is_unknown && !recent(&"q7".parse().unwrap(), 2100).is_unknown);
    history.note_own(&[], at(0), at(4000));
    assert!(!recent(&refused, 4000).is_unknown);
}

#[test]
fn what_cannot_be_read_is_tried_again_more_and_more_seldom() {
    let minutes = |times| filled_again(times).as_secs() / 60;
    assert_eq!([1, 2, 3, 4, 5, 40].map(minutes), [1, 2, 4, 8, 15, 15]);
}

#[test]
fn what_is_known_begins_with_the_server() {
    let (history, queue): (_, QueueName) = (History::default(), "q".parse().unwrap());
    history.note_own(&[], at(95), at(100));
    assert_eq!(history.steps(&[&queue], at(130)), (at(90), vec![None]));
}

fn told(history: &History, queue: &QueueName, seconds: i64, tally: Tally) {
    history.note_told(at(seconds), [(queue, &tally)].into_iter());
}

#[test]
fn what_others_told_meanwhile_is_read_as_long_as_it_is_there() {
    let history = History::default();
    assert_eq!(history.heard(at(0)), (at(-80), false), "it begins");
    history.note_heard(at(-80), at(0), false);
    assert_eq!(history.heard(at(10)), (at(-40), false));
    assert_eq!(history.heard(at(200)), (at(-40), false), "it failed, or stood still, for three minutes");
    assert_eq!(history.heard(at(260)), (at(-40), false));
    assert_eq!(history.heard(at(261)), (at(21), true), "a part of it is not there any more");
    assert_eq!(history.heard(at(-5)), (at(-45), false), "the clock was set back");
}

#[test]
fn what_was_missed_is_no_silence() {
    let (history, queue): (_, QueueName) = (History::default(), "q".parse().unwrap());
    let observed = |now| history.observed_ms(at(0), true, at(now)) / 1000;
    assert_eq!((observed(10), history.observed_ms(at(0), false, at(10))), (0, 10_000), "nothing was heard");
    history.note_heard(at(-80), at(0), false);
    told(&history, &queue, 0, tally(1, 1));
    history.note_heard(at(-50), at(600), false);
    assert_eq!((observed(610), observed(640), observed(641)), (610, 640, 0), "it is deaf for too long");
    let (until, old) = history.unfilled(true, at(610)).unwrap();
    assert_eq!(until, at(-60));
    // It stands still for twenty minutes: what began before is of no use.
    let (from, is_broken) = history.heard(at(1800));
    history.note_heard(from, at(1800), is_broken);
    told(&history, &queue, 1600, tally(0, 3));
    history.fill(at(-810), old, vec![]);
    assert_eq!((from, observed(1800)), (at(1560), 240), "what is known began a moment ago");
    let recent = || history.recent([&queue].into_iter(), KEPT, at(1800))[0];
    assert_eq!(recent().delivered_at, Some(at(1610)));
    assert_eq!(history.steps(&[&queue], at(1800)).0, at(1560), "nothing is shown as zero");
    let (until, reading) = history.unfilled(true, at(1800)).unwrap();
    let row =
        |seconds, tally| RecentTally { queue: queue.clone(), span: Span::Minute, at: at(seconds), tally };
    history.fill(at(930), reading, vec![row(960, tally(7, 0))]);
    assert_eq!((until, recent().sum.pushed, observed(1800)), (at(1560), 7, 870));
    assert_eq!(history.steps(&[&queue], at(1800)).0, at(930));
}

#[test]
fn what_happened_in_queues_without_names_may_be_a_delivery_of_any() {
    let (history, queue): (_, QueueName) = (History::default(), "q".parse().unwrap());
    history.note_heard(at(-80), at(0), false);
    told(&history, &queue, 0, tally(1, 1));
    let is_unknown = |now| history.recent([&queue].into_iter(), KEPT, at(now))[0].is_unknown;
    assert!(!is_unknown(100));
    history.note_unnamed(at(10));
    assert!(!is_unknown(100), "one is known that was no earlier");
    history.note_unnamed(at(60));
    assert!(is_unknown(100));
    told(&history, &queue, 60, tally(0, 1));
    assert!(!is_unknown(100), "there was one since");
    history.note_unnamed(at(80));
    assert!(is_unknown(100) && !is_unknown(981), "that is too long ago to matter");
}
