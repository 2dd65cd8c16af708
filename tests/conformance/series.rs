//! The past: what servers write of it adds up, is read again, and gets longer steps with age.

use std::collections::HashMap;

use tailback::job::{Event, QueueName, Tally, Timestamp};
use tailback::store::{
    ALL_SCAN_LIMIT, Blockers, ClaimAsk, Counts, DUE_SCAN_LIMIT, Depth, Load, RecentTally, SeriesRow,
    SeriesRun, SeriesWrite, Span, StepOfOther, Store, Subject, ToldStep,
};

use super::support::*;

const HOUR_MS: u64 = 3_600_000;

fn tally(pushed: u32, run_ms: u64) -> Tally {
    let mut tally = Tally::default();
    (0..pushed).for_each(|_| tally.count(Event::Pushed));
    tally.run_time.record(run_ms);
    tally
}

fn of(name: &str) -> Subject {
    Subject::Queue(queue(name))
}

fn row(subject: Subject, span: Span, at: Timestamp, pushed: u32) -> SeriesRow {
    SeriesRow { subject, span, at, tally: Some(tally(pushed, u64::from(pushed))), depth: None }
}

fn depth(ready: u64) -> Depth {
    Depth { counts: Counts { ready, ..Counts::default() }, oldest_ready: Some(Timestamp::from_millis(5)) }
}

fn depth_row(subject: Subject, at: Timestamp, ready: u64) -> SeriesRow {
    SeriesRow { subject, span: Span::Step, at, tally: None, depth: Some(depth(ready)) }
}

fn write(server: &str, now: Timestamp, rows: Vec<SeriesRow>) -> SeriesWrite {
    let run = SeriesRun { server: server.into(), since: now.minus_ms(60_000), seen: now, turn: None };
    SeriesWrite { run, rows, told: None }
}

/// The sum of what is known, and how long the steps are that it is known in.
async fn sum(store: &dyn Store, subject: &Subject, from: Timestamp, to: Timestamp) -> (Tally, Vec<Span>) {
    let read = store.read_series(subject, from, to).await.unwrap();
    let (mut all, mut spans) = (Tally::default(), Vec::new());
    for (_, span, at, tally) in read.tallies {
        assert!(at == span.start(at) && (from..to).contains(&at), "{at}");
        all.add(&tally);
        spans.push(span);
    }
    spans.sort_unstable();
    spans.dedup();
    (all, spans)
}

pub async fn what_servers_write_adds_up(store: &dyn Store) {
    let at = Span::Coarse.start(store.now().unwrap());
    let later = at.plus_ms(60_000);
    let one = write(
        "1",
        later,
        vec![
            row(Subject::All, Span::Step, at, 5),
            row(of("a"), Span::Step, at, 3),
            row(of("ab"), Span::Step, at, 2),
            row(of("a"), Span::Step, at.plus_ms(10_000), 7),
            row(of("a"), Span::Minute, at, 1),
        ],
    );
    let other = write("2", later, vec![row(of("a"), Span::Step, at, 4)]);
    for written in [&one, &other, &one, &other, &one] {
        store.write_series(written).await.unwrap(); // a repeat changes nothing
    }
    let mut expected = Tally::default();
    [3, 7, 1, 4].iter().for_each(|n| expected.add(&tally(*n, u64::from(*n))));
    assert_eq!(sum(store, &of("a"), at, later).await, (expected, vec![Span::Step, Span::Minute]));
    assert_eq!(sum(store, &of("ab"), at, later).await.0, tally(2, 2));
    assert_eq!(sum(store, &Subject::All, at, later).await.0, tally(5, 5));
    assert_eq!(sum(store, &of("a"), at.plus_ms(10_000), later).await.0, tally(7, 7));
    assert_eq!(sum(store, &of("b"), at, later).await.0, Tally::NONE);
    let mut runs = store.read_series(&of("b"), at, later).await.unwrap().runs;
    runs.sort_by_key(|run| run.server.clone());
    assert_eq!(runs, [one.run.clone(), other.run.clone()]);
    // A write that was under way for long does not turn back when its server was seen.
    let again = SeriesRun { seen: later.plus_ms(10_000), turn: Some(at), ..one.run.clone() };
    store.write_series(&SeriesWrite { run: again.clone(), rows: Vec::new(), told: None }).await.unwrap();
    store.write_series(&one).await.unwrap();
    let runs = store.read_series(&of("b"), at, later).await.unwrap().runs;
    assert!(runs.contains(&again), "{runs:?}");
    let before = at.minus_ms(HOUR_MS);
    assert!(store.read_series(&of("b"), before, before.plus_ms(1)).await.unwrap().runs.is_empty());
}

pub async fn one_depth_counts_in_a_step(store: &dyn Store) {
    let at = Span::Coarse.start(store.now().unwrap());
    let step = |n: u64| at.plus_ms(10_000 * n);
    store
        .write_series(&write("1", at, vec![depth_row(of("a"), step(1), 1), depth_row(of("a"), step(2), 2)]))
        .await
        .unwrap();
    store.write_series(&write("2", at, vec![depth_row(of("a"), step(2), 2)])).await.unwrap();
    store.write_series(&write("1", at, vec![row(of("a"), Span::Step, step(2), 1)])).await.unwrap();
    let read = store.read_series(&of("a"), step(1), step(9)).await.unwrap();
    assert_eq!(read.depths, [(step(1), depth(1)), (step(2), depth(2))]);
    assert_eq!((read.before, read.tallies.len()), (None, 1));
    let read = store.read_series(&of("a"), step(2), step(9)).await.unwrap();
    assert_eq!((read.depths, read.before), (vec![(step(2), depth(2))], Some((step(1), depth(1)))));
    // Also where it was said hours ago.
    let read = store.read_series(&of("a"), step(2000), step(2001)).await.unwrap();
    assert_eq!((read.depths, read.before), (Vec::new(), Some((step(2), depth(2)))));
    assert_eq!(store.read_series(&of("b"), step(2), step(9)).await.unwrap().before, None);
}

pub async fn every_turn_is_kept(store: &dyn Store) {
    let at = Span::Coarse.start(store.now().unwrap()).minus_ms(HOUR_MS);
    let minutes = |n: u64| at.plus_ms(60_000 * n);
    let said = |server: &str, seen, turn| {
        let written = write(server, seen, Vec::new());
        SeriesWrite { run: SeriesRun { turn: Some(turn), ..written.run }, ..written }
    };
    let first = write("1", minutes(0), vec![depth_row(of("a"), at, 5)]);
    store.write_series(&first).await.unwrap();
    let turns = [("2", 1, 1), ("2", 2, 1), ("2", 9, 8), ("3", 20, 20), ("2", 9, 8)];
    for (server, seen, turn) in turns {
        store.write_series(&said(server, minutes(seen), minutes(turn))).await.unwrap();
    }
    let read = async |from, to| {
        let mut read = store.read_series(&of("a"), minutes(from), minutes(to)).await.unwrap();
        read.turns.sort();
        read.turns
    };
    assert_eq!(read(0, 30).await, [minutes(1), minutes(8), minutes(20)]);
    assert_eq!(read(0, 20).await, [minutes(1), minutes(8)]);
    // Also those before that time, by servers that were not there any more, as far back as the queue was spoken of.
    assert_eq!(read(15, 19).await, [minutes(1), minutes(8)]);
}

async fn fold(store: &dyn Store) -> u64 {
    let mut found = 0;
    loop {
        match store.fold_series(30).await.unwrap() {
            0 => return found,
            more => found += more,
        }
    }
}

pub async fn steps_get_longer_with_age(store: &dyn Store) {
    let now = store.now().unwrap();
    let hour = |ago: u64| Timestamp::from_millis((now.millis() / 3_600_000 - ago.cast_signed()) * 3_600_000);
    let mut expected = Tally::default();
    // One server wrote the steps, the other one the minutes: in the same ten minutes.
    for ago in [0, 4, 40, 400] {
        let steps = (0..30).map(|n| row(of("a"), Span::Step, hour(ago).plus_ms(10_000 * n), 1));
        let minutes = (0..5).map(|n| row(of("a"), Span::Minute, hour(ago).plus_ms(60_000 * n), 2));
        let depths = (0..3).map(|n| depth_row(of("a"), hour(ago).plus_ms(10_000 * n), ago + n));
        store.write_series(&write("1", now, steps.chain(depths).collect())).await.unwrap();
        store.write_series(&write("2", now, minutes.clone().collect())).await.unwrap();
        store.write_series(&write("1", now, minutes.collect())).await.unwrap();
    }
    for _ in 0..30 {
        expected.add(&tally(1, 1));
    }
    for _ in 0..10 {
        expected.add(&tally(2, 2));
    }
    let of_hour = async |ago| sum(store, &of("a"), hour(ago), hour(ago).plus_ms(HOUR_MS)).await;
    assert_eq!(of_hour(40).await, (expected.clone(), vec![Span::Step, Span::Minute]));
    assert!(fold(store).await > 0);
    assert_eq!(of_hour(0).await, (expected.clone(), vec![Span::Step, Span::Minute]));
    assert_eq!(of_hour(4).await, (expected.clone(), vec![Span::Minute]));
    assert_eq!(of_hour(40).await, (expected, vec![Span::Coarse]));
    for (ago, last) in [(0, 2), (4, 6), (40, 42)] {
        let read = store.read_series(&of("a"), hour(ago), hour(ago).plus_ms(HOUR_MS)).await.unwrap();
        let (_, last_said) = read.depths.last().unwrap();
        assert_eq!((read.depths.len(), *last_said), (if ago == 0 { 3 } else { 1 }, depth(last)));
    }
    assert_eq!(fold(store).await, 0, "there is nothing left to do");
}

pub async fn a_turn_stays_between_what_was_said_before_and_with_it(store: &dyn Store) {
    let now = store.now().unwrap();
    // What is known of a queue last, and in the end.
    let left = async |name: &str, begin: Timestamp| {
        let read = store.read_series(&of(name), begin, begin.plus_ms(HOUR_MS)).await.unwrap();
        let said = read.depths.into_iter().map(|(at, depth)| (at, 1, depth.counts.ready));
        let turns = read.turns.into_iter().map(|at| (at, 0, 0));
        said.chain(turns).max().map(|(_, _, ready)| ready)
    };
    let hour = |ago: i64| Timestamp::from_millis((now.millis() / 3_600_000 - ago) * 3_600_000);
    for ago in [0, 4, 40] {
        let at = |n: u64| hour(ago).plus_ms(10_000 * n);
        let rows = vec![depth_row(of("gone"), at(1), 3), depth_row(of("there"), at(1), 4)];
        store.write_series(&write("1", at(1), rows)).await.unwrap();
        let rows = vec![depth_row(of("there"), at(2), 5), depth_row(of("new"), at(4), 6)];
        let turn = write("2", at(2), rows);
        let run = SeriesRun { turn: Some(at(2)), ..turn.run };
        store.write_series(&SeriesWrite { run, ..turn }).await.unwrap();
    }
    for is_folded in [false, true] {
        for begin in [0, 4, 40].map(hour) {
            let all = [left("gone", begin).await, left("there", begin).await, left("new", begin).await];
            assert_eq!(all, [Some(0), Some(5), Some(6)], "folded: {is_folded}, from {begin}");
        }
        assert!(is_folded || fold(store).await > 0);
    }
}

pub async fn servers_tell_each_other(store: &dyn Store) {
    let at = Span::Step.start(store.now().unwrap());
    let tallies: Vec<_> =
        (0..50).map(|n| (of(&format!("q{n}")), tally(n, 9))).chain([(Subject::All, tally(9, 1))]).collect();
    let told = |at| ToldStep { at, tallies: tallies.clone() };
    for (server, step) in [("1", at), ("1", at.plus_ms(10_000)), ("2", at), ("1", at)] {
        let told = Some(told(step));
        store.write_series(&SeriesWrite { told, ..write(server, at, Vec::new()) }).await.unwrap();
    }
    let mut read = store.steps_of_others("2", at).await.unwrap();
    read.sort_by_key(|other| other.step.at);
    let since = at.minus_ms(60_000);
    let other = |at| StepOfOther { server: "1".into(), since, step: told(at) };
    if store.signals().is_none() {
        assert!(read.is_empty(), "there is one server");
        return;
    }
    assert_eq!(read, [other(at), other(at.plus_ms(10_000))]);
    assert_eq!(store.steps_of_others("2", at.plus_ms(1)).await.unwrap(), [other(at.plus_ms(10_000))]);
    assert_eq!(store.steps_of_others("3", at).await.unwrap().len(), 3);
}

pub async fn one_server_says_how_many_jobs_there_are(store: &dyn Store) {
    let several = store.signals().is_some();
    assert!(store.take_depth_turn("1", 600_000).await.unwrap());
    assert_eq!(store.take_depth_turn("2", 600_000).await.unwrap(), !several);
    assert!(store.take_depth_turn("1", 1).await.unwrap(), "it goes on");
    crate::common::server::until("its turn is over", || async {
        store.take_depth_turn("2", 600_000).await.unwrap()
    })
    .await;
    assert_eq!(store.take_depth_turn("1", 1).await.unwrap(), !several);
}

pub async fn every_queue_has_a_depth(store: &dyn Store) {
    push_all(store, vec![job("a"), job("a"), job("a").delay(600_000), job("b"), job("c")]).await;
    take(store, "b").await;
    let taken = take(store, "c").await;
    apply(store, commit(&taken)).await.unwrap();
    let mut depths = store.depths().await.unwrap();
    depths.sort_by_key(|(queue, _)| queue.clone());
    let a = Counts { ready: 2, scheduled: 1, ..Counts::default() };
    let b = Counts { reserved: 1, ..Counts::default() };
    assert_eq!(depths, [(queue("a"), a), (queue("b"), b)]);
}

pub async fn a_load_tells_what_is_tried_again(store: &dyn Store) {
    assert_eq!(store.load(&queue("a")).await.unwrap(), Load::default());
    push_all(store, vec![job("b"), job("a").delay(600_000), job("a").delay(-7000).priority(-1)]).await;
    // Two that failed: one waits, one is due again.
    for delay in [Some(600_000), Some(0)] {
        let taken = push_and_take(store, job("a").priority(5)).await;
        apply(store, rollback(&taken, delay)).await.unwrap();
    }
    let taken = take(store, "b").await;
    let load = store.load(&queue("a")).await.unwrap();
    assert_eq!((load.backoff, load.reserved, load.workers, load.is_partial), (1, [0; 4], 0, false));
    let now = store.now().unwrap();
    assert!(now.ms_since(load.oldest_first.unwrap()) >= 7000 && load.oldest_retried > load.oldest_first);
    let load = store.load(&queue("b")).await.unwrap();
    assert_eq!((load.reserved, load.oldest_first, load.oldest_retried), ([1, 0, 0, 0], None, None));
    assert_eq!(load.workers, u64::from(taken.meta.worker.is_some()));
}

pub async fn the_load_of_all_queues_is_theirs_together(store: &dyn Store) {
    let (a, b) = (queue("a"), queue("b"));
    assert_eq!(store.total_load(&[]).await.unwrap(), Load::default());
    push_all(store, vec![job("a").delay(-7000), job("b").delay(-9000).priority(-1), job("b").delay(600_000)])
        .await;
    for (name, delay) in [("a", 600_000), ("b", 600_000), ("b", 0), ("c", 0)] {
        let taken = push_and_take(store, job(name).priority(5)).await;
        apply(store, rollback(&taken, Some(delay))).await.unwrap();
    }
    push_and_take(store, job("a").priority(9)).await;
    push_and_take(store, job("d")).await;
    let of_a = store.total_load(std::slice::from_ref(&a)).await.unwrap();
    let of_both = store.total_load(&[a.clone(), b.clone()]).await.unwrap();
    // What waits and what is held is of all of them, the oldest are of those that are named.
    for load in [of_a, of_both] {
        assert_eq!((load.backoff, load.reserved, load.is_partial), (2, [2, 0, 0, 0], false));
    }
    let [alone_a, alone_b] = [store.load(&a).await.unwrap(), store.load(&b).await.unwrap()];
    assert_eq!((of_a.oldest_first, of_a.oldest_retried), (alone_a.oldest_first, None));
    assert_eq!(
        (of_both.oldest_first, of_both.oldest_retried),
        (alone_b.oldest_first, alone_b.oldest_retried)
    );
    assert!(alone_b.oldest_first < alone_a.oldest_first && alone_b.oldest_retried.is_some());
}

pub async fn a_load_of_all_queues_says_what_it_leaves_out(store: &dyn Store) {
    let (a, jobs) = (queue("a"), DUE_SCAN_LIMIT as usize);
    push_all(store, (1..jobs).map(|_| job("a")).collect()).await;
    let is_part = async |queues: &[QueueName]| {
        let load = store.total_load(queues).await.unwrap();
        (load.is_partial, load.ages_are_partial)
    };
    let a = [a];
    assert_eq!(is_part(&a).await, (false, false));
    push_all(store, vec![job("a")]).await;
    assert_eq!((is_part(&a).await, is_part(&[]).await), ((false, true), (false, false)));
    push_all(store, (0..ALL_SCAN_LIMIT).map(|_| job("b").delay(600_000)).collect()).await;
    assert_eq!(is_part(&[]).await, (true, false));
}

pub async fn what_was_before_a_server_is_read_at_once(store: &dyn Store) {
    let now = store.now().unwrap();
    let minute = Span::Minute.start(now.minus_ms(120_000));
    let step = |n: u64| minute.plus_ms(n * 10_000);
    let rows = vec![
        row(Subject::All, Span::Step, step(0), 9),
        row(of("a"), Span::Step, step(0), 1),
        row(of("a"), Span::Step, step(3), 2),
        row(of("b"), Span::Minute, step(0), 3),
        row(of("a"), Span::Step, step(9), 4),
        depth_row(of("c"), step(0), 1),
    ];
    store.write_series(&write("1", now, rows)).await.unwrap();
    store.write_series(&write("2", now, vec![row(of("a"), Span::Step, step(0), 5)])).await.unwrap();
    store.write_series(&write("me", now, vec![row(of("a"), Span::Step, step(0), 6)])).await.unwrap();
    let read = async |from, to| {
        let recent = store.recent_tallies("me", from, to).await.unwrap();
        let pushed = |it: &RecentTally| (it.queue.to_string(), it.span, it.at, it.tally.of(Event::Pushed));
        let mut all: Vec<_> = recent.iter().map(pushed).collect();
        all.sort();
        all
    };
    let of_queue = |name: &str, span, at, pushed| (name.to_owned(), span, at, pushed);
    assert_eq!(
        read(step(0), step(9)).await,
        [
            of_queue("a", Span::Step, step(0), 1),
            of_queue("a", Span::Step, step(0), 5),
            of_queue("a", Span::Step, step(3), 2),
            of_queue("b", Span::Minute, step(0), 3),
        ]
    );
    assert_eq!(read(step(3), step(10)).await.len(), 2, "from that moment on");
    assert!(read(step(10), step(20)).await.is_empty());
}

pub async fn workers_are_counted_queue_by_queue(store: &dyn Store) {
    for (name, worker) in
        [("a", Some("w1")), ("a", Some("w1")), ("a", Some("w2")), ("a", None), ("b", None), ("c", Some("w1"))]
    {
        push_all(store, vec![job(name)]).await;
        let worker = worker.map(|worker| worker.parse().unwrap());
        assert_eq!(claim(store, ClaimAsk { worker, ..ask(name, 1) }).await.len(), 1);
    }
    push_all(store, vec![job("d")]).await;
    let found = store.workers_of(&["a", "b", "d", "e"].map(queue)).await.unwrap();
    assert_eq!(found, HashMap::from([(queue("a"), 2)]));
    let many: Vec<_> = (0..120).map(|n| queue(&format!("none{n}"))).chain([queue("a")]).collect();
    assert_eq!(
        store.workers_of(&many).await.unwrap(),
        HashMap::from([(queue("a"), 2)]),
        "behind many others"
    );
    assert!(store.workers_of(&[]).await.unwrap().is_empty());
}

pub async fn what_holds_blocked_jobs_is_found(store: &dyn Store) {
    let none = Blockers::default();
    assert_eq!(store.blockers(&queue("a")).await.unwrap(), none);
    let dead = async |group: &str| {
        let job = push_and_take(store, job("a").group(group).max_attempts(1)).await;
        apply(store, rollback(&job, None)).await.unwrap();
        job.meta.id
    };
    // Dead without a group, in another queue, and behind one that lives.
    let alone = push_and_take(store, job("a").max_attempts(1)).await;
    apply(store, rollback(&alone, None)).await.unwrap();
    push(store, vec![job("a").group("alive"), job("a").group("alive"), job("b")]).await;
    assert_eq!(store.blockers(&queue("a")).await.unwrap(), none);
    take(store, "a").await; // of the group that lives
    let first = dead("g1").await;
    dead("g2").await;
    push(store, vec![job("a").group("g1"), job("a").group("g2")]).await;
    let found = store.blockers(&queue("a")).await.unwrap();
    let head = found.head.unwrap();
    assert_eq!((found.dead_heads, &head.id, head.group.to_string()), (2, &first, "g1".to_owned()));
    assert!(head.since.is_some_and(|since| since <= store.now().unwrap()));
    assert_eq!(store.blockers(&queue("b")).await.unwrap(), none);

    let (database, missing) = ("database".parse().unwrap(), "missing".parse().unwrap());
    store.save_semaphore(&database, 1).await.unwrap();
    push_all(store, vec![job("holds").needs(&["database"])]).await;
    take(store, "holds").await;
    push_all(store, vec![job("needs").needs(&["database"]), job("needs").needs(&["missing"])]).await;
    assert!(claim(store, ask("needs", 2)).await.is_empty());
    let found = store.blockers(&queue("needs")).await.unwrap();
    let expected = Blockers { semaphores: vec![database, missing], ..Blockers::default() };
    assert_eq!(found, expected);
}
