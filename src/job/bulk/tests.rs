//! Which jobs an operation means.

use super::*;
use crate::job::record::{Failure, TrailReason};
use crate::job::{JobSpec, NewJob, Payload, TrailStep};

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn intent(json: &str) -> BulkIntent {
    serde_json::from_str(json).unwrap()
}

#[test]
fn what_does_not_fit_together_is_named() {
    for (json, pointer) in [
        (r#"{"filter":{},"action":"move"}"#, "/to"),
        (r#"{"filter":{},"action":"retry","to":"q"}"#, "/to"),
        (r#"{"filter":{"queue":"q"},"action":"move","to":"q"}"#, "/to"),
        (r#"{"filter":{},"action":"set_priority"}"#, "/priority"),
        (r#"{"filter":{},"action":"delete","priority":1}"#, "/priority"),
        (r#"{"filter":{},"action":"delete","limit":0}"#, "/limit"),
        (r#"{"filter":{"state":"reserved"},"action":"delete"}"#, "/filter/state"),
        (r#"{"filter":{"state":"ready"},"action":"replay"}"#, "/filter/state"),
    ] {
        assert_eq!(intent(json).fault().map(|(pointer, _)| pointer), Some(pointer), "{json}");
    }
    assert_eq!(intent(r#"{"filter":{},"action":"move","to":"q","priority":3}"#).fault(), None);
    assert_eq!(intent(r#"{"filter":{"queue":"q*"},"action":"move","to":"q"}"#).fault(), None);
    assert!(serde_json::from_str::<BulkFilter>(r#"{"stat":"dead"}"#).is_err());
}

#[test]
fn what_came_to_match_since_it_began_is_left_alone() {
    let new = NewJob::new(
        "A".parse().unwrap(),
        "q".parse().unwrap(),
        JobSpec::new(Payload::parse("1").unwrap()),
        at(10),
    );
    let dead = Meta { state: State::Dead, finished_at: Some(at(20)), ..new.into_job().meta };
    let retry = intent(r#"{"filter":{"state":"dead"},"action":"retry"}"#);
    assert!(retry.operation(&dead, at(21)).is_some());
    assert!(retry.operation(&dead, at(20)).is_none(), "it died since");
    assert!(retry.operation(&dead, at(10)).is_none(), "it was pushed since");
    let step = TrailStep { at: at(30), queue: "p".parse().unwrap(), reason: TrailReason::Moved, attempts: 0 };
    let moved = Meta { trail: vec![step], ..dead };
    assert!(retry.operation(&moved, at(31)).is_some() && retry.operation(&moved, at(30)).is_none());
}

#[test]
fn what_was_revived_or_held_since_it_began_is_not_purged() {
    let new = NewJob::new(
        "A".parse().unwrap(),
        "q".parse().unwrap(),
        JobSpec::new(Payload::parse("1").unwrap()),
        at(10),
    );
    let waits = new.into_job().meta;
    let purge = intent(r#"{"filter":{"state":"ready"},"action":"delete"}"#);
    let any = intent(r#"{"filter":{},"action":"delete"}"#);
    let are_purged = |job: &Meta| [&purge, &any].map(|intent| intent.operation(job, at(20)).is_some());
    assert_eq!(are_purged(&waits), [true, true]);
    let revived = Meta { run_at: at(21), ..waits.clone() };
    assert_eq!(are_purged(&revived), [false, true], "it was not ready when the purge began");
    let failure = Failure { at: at(20), attempt: 1, worker: None, message: String::new() };
    let given_back = Meta { started_at: Some(at(12)), errors: vec![failure], ..waits.clone() };
    assert_eq!(are_purged(&given_back), [false, false], "a worker held it");
    let delivered = Meta { started_at: Some(at(20)), ..waits.clone() };
    assert_eq!(are_purged(&delivered), [false, false], "a worker held it");
    let held = Meta { started_at: Some(at(12)), ..waits.clone() };
    assert_eq!(
        are_purged(&held),
        [true, true],
        "it was given back before, by a server that does not note that"
    );
    let [before, since] =
        [19, 20].map(|ms| Meta { given_back_at: Some(at(ms)), came_at: Some(at(ms)), ..held.clone() });
    assert_eq!(are_purged(&before), [true, true], "it was given back before");
    assert_eq!(are_purged(&since), [false, false], "a worker held it when the purge began");
    let unblocked = Meta { came_at: Some(at(20)), ..waits };
    assert_eq!(are_purged(&unblocked), [false, true], "it was blocked when the purge began");
    let moving = intent(r#"{"filter":{},"action":"move","to":"p"}"#);
    let is_moved = |job: &Meta| moving.operation(job, at(20)).is_some();
    assert!(is_moved(&unblocked), "the move may have unblocked it itself");
    assert!(
        !is_moved(&since) && is_moved(&Meta { started_at: Some(at(21)), ..since }),
        "it was there, unheld"
    );
}

#[test]
fn an_operation_stays_in_its_queues_and_out_of_its_target() {
    let moving =
        intent(r#"{"filter":{"queue":"mail.*"},"action":"move","to":"mail.new","within":["mail.*"]}"#);
    let means = |queue: &str| moving.means(&queue.parse().unwrap());
    assert!(means("mail.old") && !means("mail.new") && !means("post"));
    let limited = intent(r#"{"filter":{},"action":"delete","within":["mail.*"]}"#);
    assert!(limited.means(&"mail.x".parse().unwrap()) && !limited.means(&"post".parse().unwrap()));
}

#[test]
fn what_older_servers_have_stored_is_read_and_what_they_can_ask_is_stored_so() {
    let old = r#"{"queue":"w.*","state":"dead","from":"2026-01-01T00:00:00.000Z"}"#;
    let filter: BulkFilter = serde_json::from_str(old).unwrap();
    assert_eq!(serde_json::to_string(&filter.clone().settled().unwrap()).unwrap(), old);
    let new = r#"{"queue_prefix":"w.","states":["dead"],"from":"2026-01-01T00:00:00.000Z"}"#;
    let settled = serde_json::from_str::<BulkFilter>(new).unwrap().settled().unwrap();
    assert_eq!(settled, filter);
    for both in [r#"{"queue":"w","queue_prefix":"w"}"#, r#"{"state":"dead","states":["done"]}"#] {
        assert!(serde_json::from_str::<BulkFilter>(both).unwrap().settled().is_err(), "{both}");
    }
}

#[test]
fn of_several_states_each_is_meant() {
    let states = |json: &str| -> Vec<(Vec<Visible>, bool)> {
        intent(json).parts().into_iter().map(|part| (part.states, part.dead_lettered)).collect()
    };
    let (ready, dead, done) = (Visible::Ready, Visible::Dead, Visible::Done);
    let delete = r#"{"filter":{"states":["ready","dead"]},"action":"delete"}"#;
    assert_eq!(states(delete), [(vec![ready, dead], false)]);
    let redrive = r#"{"filter":{"states":["dead","ready"]},"action":"redrive"}"#;
    assert_eq!(states(redrive), [(vec![ready], true), (vec![dead], false)]);
    assert_eq!(states(r#"{"filter":{},"action":"replay"}"#), [(vec![done], false)]);
    let new = NewJob::new(
        "A".parse().unwrap(),
        "q".parse().unwrap(),
        JobSpec::new(Payload::parse("1").unwrap()),
        at(10),
    );
    let waits = new.into_job().meta;
    let is_meant = |meta: &Meta| intent(delete).operation(meta, at(30)).is_some();
    assert!(is_meant(&waits));
    assert!(is_meant(&Meta { state: State::Dead, finished_at: Some(at(20)), ..waits.clone() }));
    assert!(!is_meant(&Meta { state: State::Done, finished_at: Some(at(20)), ..waits }));
}

#[test]
fn a_state_that_a_job_came_to_since_it_began_is_not_meant() {
    let new = NewJob::new(
        "A".parse().unwrap(),
        "q".parse().unwrap(),
        JobSpec::new(Payload::parse("1").unwrap()),
        at(10),
    );
    let ready = new.into_job().meta;
    let retry = intent(r#"{"filter":{},"action":"retry"}"#);
    let put_off = Meta { run_at: at(90), came_at: Some(at(15)), ..ready.clone() };
    assert!(retry.operation(&put_off, at(20)).is_some());
    let put_off_since = Meta { came_at: Some(at(20)), ..put_off };
    assert!(retry.operation(&put_off_since, at(20)).is_none(), "it was ready then, or reserved");
    assert!(retry.operation(&ready, at(20)).is_none(), "only what is dead or scheduled is retried");
    let unblocked = Meta { came_at: Some(at(20)), ..ready };
    for (states, is_meant) in [("[\"ready\"]", false), ("[\"ready\",\"blocked\"]", true)] {
        let purge = intent(&format!(r#"{{"filter":{{"states":{states}}},"action":"delete"}}"#));
        assert_eq!(purge.operation(&unblocked, at(20)).is_some(), is_meant, "{states}");
    }
}

/// The id of a callback is as old as its batch.
#[test]
fn the_callback_of_a_batch_that_the_call_has_ended_was_not_there() {
    let of = |id: JobId, created_at: i64| {
        let spec = JobSpec::new(Payload::parse("1").unwrap());
        NewJob::new(id, "q".parse().unwrap(), spec, at(created_at)).into_job().meta
    };
    let asked_at = 10_000;
    let was_there = |job: &Meta| was_there(job, at(asked_at).plus_ms(CLOCKS_DIFFER_MS));
    assert!(!was_there(&of(JobId::first_of(at(5000)), asked_at)));
    assert!(was_there(&of(JobId::first_of(at(5000)), asked_at - 1)), "the batch had ended before");
    assert!(was_there(&of(JobId::first_of(at(asked_at)), asked_at)), "the clocks may differ");
}
