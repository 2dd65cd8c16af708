//! The bounds of each reason.

use super::*;

const NOW: i64 = 1_800_000_000_000;
const THRESHOLDS: Thresholds = Thresholds { idle: Duration::from_secs(60), window: Duration::from_secs(300) };

fn ago(seconds: u64) -> Timestamp {
    Timestamp::from_millis(NOW).minus_ms(seconds * 1000)
}

/// What is known of a queue in which all is well.
fn well_of(queue: &QueueName) -> Seen<'_> {
    Seen {
        queue,
        now: ago(0),
        counts: Counts::default(),
        oldest_ready: None,
        paused: false,
        max_reserved: None,
        is_waited_for: false,
        observed_ms: 3_600_000,
        delivered_at: None,
        recent: Sum::default(),
        growth_per_s: 0.0,
        held: None,
    }
}

/// Ready jobs, the oldest for so many seconds, the last delivery so many ago.
fn waits(seen: Seen<'_>, ready: u64, oldest: u64, delivered: Option<u64>) -> Seen<'_> {
    let counts = Counts { ready, ..seen.counts };
    Seen { counts, oldest_ready: Some(ago(oldest)), delivered_at: delivered.map(ago), ..seen }
}

fn reserved(seen: Seen<'_>, reserved: u64) -> Seen<'_> {
    Seen { counts: Counts { reserved, ..seen.counts }, ..seen }
}

fn recent(pushed: u32, finished: u32, failed: u32, gone: u32) -> Sum {
    Sum { pushed, finished, failed, gone }
}

fn semaphore(held: u64) -> SemaphoreUse {
    SemaphoreUse { name: "db".parse().unwrap(), capacity: 2, held }
}

type Row<'a> = (&'static str, Seen<'a>, &'static [Reason]);

fn check(rows: &[Row<'_>]) {
    for (what, seen, reasons) in rows {
        let found = judge(seen, &THRESHOLDS);
        let raised: Vec<Reason> = found.iter().map(|attention| attention.reason).collect();
        assert_eq!(raised, *reasons, "{what}");
        assert!(raised.is_sorted(), "{what}: the most urgent first");
        for attention in found {
            assert!(attention.detail.len() > 10 && attention.next_step.len() > 10, "{what}");
            assert!(attention.since.is_none_or(|since| since <= seen.now), "{what}");
        }
    }
}

#[test]
fn ready_jobs_that_nobody_takes_begin_and_end_to_need_attention() {
    let name: QueueName = "mail".parse().unwrap();
    let well = || well_of(&name);
    let at = |ready, oldest, delivered| waits(well(), ready, oldest, delivered);
    let rows: &[Row<'_>] = &[
        ("nothing", well(), &[]),
        // Starved.
        ("a job has waited for long enough", at(1, 60, None), &[Reason::Starved]),
        ("it has not", at(1, 59, None), &[]),
        ("one was delivered a minute ago", at(1, 60, Some(60)), &[Reason::Starved]),
        ("one was delivered since", at(1, 3600, Some(59)), &[]),
        ("the server has just started", Seen { observed_ms: 59_999, ..at(1, 3600, None) }, &[]),
        (
            "it has been there for a minute",
            Seen { observed_ms: 60_000, ..at(1, 3600, None) },
            &[Reason::Starved],
        ),
        ("nothing is ready", Seen { oldest_ready: Some(ago(60)), ..well() }, &[]),
        ("it is paused", Seen { paused: true, ..at(1, 3600, None) }, &[Reason::Paused]),
        // Stuck.
        ("somebody waits", Seen { is_waited_for: true, ..at(1, 60, None) }, &[Reason::Stuck]),
        ("somebody waits, not for long", Seen { is_waited_for: true, ..at(1, 59, None) }, &[]),
        ("workers are at work", reserved(at(1, 3600, Some(299)), 1), &[]),
        ("workers are at work for too long", reserved(at(1, 3600, Some(300)), 1), &[Reason::Stuck]),
        ("a job came a moment ago", reserved(at(1, 299, Some(3600)), 1), &[]),
        ("the server does not know", Seen { observed_ms: 299_999, ..reserved(at(1, 3600, None), 1) }, &[]),
    ];
    check(rows);
}

#[test]
fn each_other_reason_begins_and_ends_at_its_bounds() {
    let name: QueueName = "mail".parse().unwrap();
    let well = || well_of(&name);
    let head = DeadHead { id: "J1".parse().unwrap(), group: "g".parse().unwrap(), since: Some(ago(9)) };
    let dead_head = Held { dead_heads: 1, head: Some(head), ..Held::default() };
    let full = Held { full: Some(semaphore(2)), ..Held::default() };
    let missing = Held { missing: Some("db".parse().unwrap()), ..Held::default() };
    let blocked = Counts { blocked: 3, ..Counts::default() };
    let counts = |counts| Seen { counts, ..well() };
    let rows: &[Row<'_>] = &[
        // Blocked.
        ("not queried", counts(blocked), &[]),
        ("behind a dead job", Seen { held: Some(&dead_head), ..counts(blocked) }, &[Reason::Blocked]),
        ("nothing is blocked any more", Seen { held: Some(&dead_head), ..well() }, &[]),
        ("no such semaphore", Seen { held: Some(&missing), ..counts(blocked) }, &[Reason::Blocked]),
        ("a full semaphore", Seen { held: Some(&full), ..counts(blocked) }, &[Reason::Blocked]),
        ("it moves", Seen { held: Some(&full), delivered_at: Some(ago(59)), ..counts(blocked) }, &[]),
        ("it holds it", Seen { held: Some(&full), ..counts(Counts { reserved: 1, ..blocked }) }, &[]),
        ("unknown yet", Seen { held: Some(&full), observed_ms: 59_999, ..counts(blocked) }, &[]),
        // Failing.
        ("five of twenty", Seen { recent: recent(0, 15, 5, 0), ..well() }, &[Reason::Failing]),
        ("five of twenty-one", Seen { recent: recent(0, 16, 5, 0), ..well() }, &[]),
        ("four of four", Seen { recent: recent(0, 0, 4, 0), ..well() }, &[]),
        ("extremes", Seen { recent: recent(0, u32::MAX, u32::MAX, 0), ..well() }, &[Reason::Failing]),
        // Dead and paused.
        ("a dead job", counts(Counts { dead: 1, ..Counts::default() }), &[Reason::Dead]),
        ("paused and empty", Seen { paused: true, ..well() }, &[Reason::Paused]),
        (
            "all at once",
            Seen {
                held: Some(&dead_head),
                recent: recent(0, 0, 9, 0),
                ..counts(Counts { dead: 2, ..blocked })
            },
            &[Reason::Blocked, Reason::Failing, Reason::Dead],
        ),
    ];
    check(rows);
}

#[test]
fn growth_begins_and_ends_at_its_bounds() {
    let name: QueueName = "mail".parse().unwrap();
    let at = |ready, oldest, delivered| waits(well_of(&name), ready, oldest, delivered);
    let grows =
        |ready, sum| Seen { recent: sum, growth_per_s: 0.1, is_waited_for: true, ..at(ready, 50, Some(1)) };
    let rows: &[Row<'_>] = &[
        ("a hundred more", grows(100, recent(100, 0, 0, 0)), &[Reason::Growing]),
        ("fewer more", grows(100, recent(100, 1, 0, 0)), &[]),
        ("few are ready", grows(99, recent(200, 0, 0, 0)), &[]),
        ("a tenth of what came", grows(500, recent(1000, 500, 0, 400)), &[Reason::Growing]),
        ("less than a tenth", grows(500, recent(1001, 901, 0, 0)), &[]),
        ("not any more", Seen { growth_per_s: 0.0, ..grows(500, recent(1000, 0, 0, 0)) }, &[]),
        ("unknown whether it grows", Seen { observed_ms: 299_999, ..grows(500, recent(1000, 0, 0, 0)) }, &[]),
        (
            "nobody is there: that is why",
            Seen {
                is_waited_for: false,
                recent: recent(900, 0, 0, 0),
                growth_per_s: 1.0,
                ..at(900, 60, None)
            },
            &[Reason::Starved],
        ),
        (
            "it is paused: that is why",
            Seen { paused: true, ..grows(500, recent(1000, 0, 0, 0)) },
            &[Reason::Paused],
        ),
    ];
    check(rows);
}

#[test]
fn where_no_delivery_is_remembered_it_is_not_said_since_when() {
    let name: QueueName = "mail".parse().unwrap();
    let said = |oldest, delivered| judge(&waits(well_of(&name), 1, oldest, delivered), &THRESHOLDS).remove(0);
    let forgotten = said(3 * 3600, None);
    assert!(forgotten.detail.contains("for 15 minutes or longer nobody"), "{}", forgotten.detail);
    assert_eq!(forgotten.since, None);
    let young = said(600, None);
    assert!(young.detail.contains("for 10 minutes nobody"), "{}", young.detail);
    assert_eq!((young.since, said(3 * 3600, Some(300)).since), (Some(ago(600)), Some(ago(300))));
    // A threshold that is longer than what is remembered else.
    let long = Thresholds { idle: Duration::from_secs(86_400), ..THRESHOLDS };
    let seen = Seen { observed_ms: u64::MAX, ..waits(well_of(&name), 1, 86_400, None) };
    assert_eq!(judge(&seen, &long).len(), 1);
}

#[test]
fn what_is_worth_a_query_is_what_could_be_said() {
    let counts =
        |ready, reserved, blocked, dead| Counts { ready, reserved, blocked, dead, ..Counts::default() };
    assert!(may_be_held(&counts(5, 5, 1, 1)) && may_be_held(&counts(0, 0, 1, 0)));
    assert!(may_be_held(&counts(1, 1, 1, 0)), "a semaphore may be missing where other jobs flow");
    assert!(!may_be_held(&counts(5, 5, 0, 1)));
}

#[test]
fn times_and_names_are_words() {
    let words = [999, 1000, 119_999, 120_000, 7_199_999, 7_200_000, 172_800_000].map(time);
    assert_eq!(
        words,
        ["0 seconds", "1 second", "119 seconds", "2 minutes", "119 minutes", "2 hours", "2 days"]
    );
    for (n, reason) in Reason::ALL.into_iter().enumerate() {
        assert_eq!((reason as usize, serde_json::to_value(reason).unwrap()), (n, reason.as_str().into()));
    }
}
