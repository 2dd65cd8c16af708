//! What can be wrong with a history, one thing at a time.

use serde_json::{Value, json};

use super::story::{Story, ok, refused};
use crate::checker::{Outcome, Rule, Verb};

/// A name, what the judge must say, and how it is made.
pub type Corruption = (&'static str, Rule, fn(&mut Story));

/// A push without a response, and one that is a duplicate of it.
fn silent_key(story: &mut Story, more: Value) {
    story.call(
        Verb::Push,
        "q",
        Story::spec("silent-key", more),
        Outcome::Unknown { why: "reset".to_owned() },
    );
    let first = json!({"id": "silent-key", "queue": "q", "deduplicated": true});
    story.call(Verb::Push, "q", Story::spec("again", json!({"key": "two"})), ok(first));
}

const LATE: u64 = 60_000_000;

pub const CORRUPTIONS: &[Corruption] = &[
    ("an acknowledged push is gone", Rule::Lost, |story| story.unseen("a")),
    ("a job is gone after its move", Rule::Lost, |story| story.unseen("moved")),
    ("a job is gone after its rollback", Rule::Lost, |story| story.unseen("back")),
    ("a job is gone after the first stage of its route", Rule::Lost, |story| story.unseen("route")),
    ("an acknowledged child is gone", Rule::Lost, |story| story.unseen("p1b")),
    ("a job that only its duplicate names is gone", Rule::Lost, |story| {
        silent_key(story, json!({"key": "two"}));
    }),
    ("a dead job is gone", Rule::Lost, |story| {
        story.scan.jobs.retain(|job| job["id"] != "dead");
        story.count();
    }),
    ("a job that nobody pushed", Rule::Invented, |story| story.forget(Verb::Push, "a")),
    ("a job before its push", Rule::Invented, |story| story.shift(Verb::Push, "a", LATE, 5)),
    ("a refused push is delivered", Rule::RefusedButDone, |story| {
        story.at(Verb::Push, "a").outcome = refused(429, "queue-full");
    }),
    ("a push without a response is stored twice", Rule::StoredTwice, |story| {
        let mut job = story.job(Verb::Reserve, "silent").clone();
        job["id"] = json!("silent-2");
        story.again("silent", "t", LATE);
        story.history.calls.last_mut().unwrap().outcome = ok(json!({ "jobs": [job] }));
    }),
    ("another payload", Rule::Altered, |story| story.job(Verb::Reserve, "a")["payload"] = json!({"of": "b"})),
    ("keys of a payload in another order", Rule::Altered, |story| {
        let payload = json!({"x": 1, "y": 2});
        story.at(Verb::Push, "a").body["payload"] = payload;
        story.job(Verb::Reserve, "a")["payload"] = serde_json::from_str(r#"{"y":2,"x":1}"#).unwrap();
    }),
    ("the old payload after a move", Rule::Altered, |story| {
        story.job(Verb::Reserve, "moved")["payload"] = json!({"of": "moved"});
    }),
    ("a header is gone", Rule::Altered, |story| {
        story.at(Verb::Push, "a").body["headers"]["trace"] = json!("7");
    }),
    ("a group is gone", Rule::Altered, |story| story.job(Verb::Reserve, "g1")["group"] = Value::Null),
    ("two holders", Rule::TwoHolders, |story| {
        let at = story.begins(Verb::Reserve, "a") + 6000;
        story.again("a", "other", at);
    }),
    ("the next holder before the lease is over", Rule::TwoHolders, |story| {
        story.at(Verb::Extend, "slow").body["lease_ms"] = json!(5000);
    }),
    ("one token for two", Rule::SharedToken, |story| {
        let token = story.job(Verb::Reserve, "a")["reservation"].as_str().unwrap().to_owned();
        let at = story.begins(Verb::Reserve, "a") + 6000;
        story.again("a", &token, at);
    }),
    ("one token for two keys", Rule::SharedToken, |story| {
        story.at(Verb::Reserve, "keyed").key = Some("another".to_owned());
    }),
    ("a late token commits", Rule::StaleToken, |story| {
        let first =
            story.history.calls.iter().position(|call| call.verb == Verb::Commit && call.target == "slow");
        story.history.calls[first.unwrap()].outcome = ok(json!({"id": "slow", "state": "done"}));
    }),
    ("a late token extends", Rule::StaleToken, |story| {
        let at = story.begins(Verb::Commit, "slow") - 1000;
        story.shift(Verb::Extend, "slow", at, 500);
    }),
    ("a token that nobody was given commits", Rule::StaleToken, |story| {
        story.at(Verb::Commit, "a").body["reservation"] = json!("guessed");
    }),
    ("committed and rolled back", Rule::SettledTwice, |story| {
        let mut call = story.at(Verb::Commit, "a").clone();
        call.verb = Verb::Rollback;
        call.outcome = ok(json!({"id": "a", "state": "ready"}));
        story.history.calls.push(call);
    }),
    ("committed by two", Rule::SettledTwice, |story| {
        story.again("a", "other", LATE);
        let mut call = story.at(Verb::Commit, "a").clone();
        call.body["reservation"] = json!("other");
        (call.invoked_us, call.completed_us) = (LATE + 2000, LATE + 3000);
        story.history.calls.push(call);
    }),
    ("popped twice", Rule::SettledTwice, |story| {
        let mut call = story.at(Verb::Pop, "popped").clone();
        call.invoked_us += 1;
        story.history.calls.push(call);
    }),
    ("delivered after its commit", Rule::DeliveredAfterEnd, |story| story.again("a", "other", LATE)),
    ("delivered after its cancel", Rule::DeliveredAfterEnd, |story| {
        story.again("a", "other", LATE);
        let call = story.history.calls.last_mut().unwrap();
        let Outcome::Ok { answer, .. } = &mut call.outcome else { return };
        answer["jobs"][0] = json!({"id": "cut", "queue": "q", "reservation": "other", "payload": {"of": "cut"}, "headers": {"mark": "cut"}});
    }),
    ("delivered although it is dead", Rule::DeliveredAfterEnd, |story| story.again("dead", "other", LATE)),
    ("delivered after a commit that its child proves", Rule::DeliveredAfterEnd, |story| {
        story.again("p2", "other", LATE);
    }),
    ("still there after its commit", Rule::DeliveredAfterEnd, |story| {
        let mut job = story.job(Verb::Reserve, "a").clone();
        job["state"] = json!("ready");
        story.scan.jobs.push(job);
        story.count();
    }),
    ("in a strange queue", Rule::WrongQueue, |story| story.job(Verb::Reserve, "a")["queue"] = json!("sem")),
    ("a group out of order", Rule::GroupOrder, |story| {
        let at = story.begins(Verb::Push, "s1");
        story.shift(Verb::Reserve, "g3", at, 10);
        story.shift(Verb::Commit, "g3", at + 20, 10);
    }),
    ("two of a group at once", Rule::GroupShared, |story| {
        let at = story.begins(Verb::Reserve, "g1") + 6000;
        story.shift(Verb::Reserve, "g2", at, 1000);
    }),
    ("more holders than the semaphore takes", Rule::Capacity, |story| {
        let at = story.begins(Verb::Reserve, "s1") + 10_000;
        story.shift(Verb::Reserve, "s2", at, 1000);
    }),
    ("half of the children of an unanswered commit", Rule::Partial, |story| story.unseen("p2b")),
    ("half of the jobs of an unanswered batch", Rule::Partial, |story| {
        story.history.calls.iter_mut().for_each(|call| {
            if call.verb == Verb::CreateBatch {
                call.outcome = Outcome::Unknown { why: "reset".to_owned() };
            }
        });
        story.scan.batches.clear();
        story.unseen("m2");
    }),
    ("called back twice", Rule::Callback, |story| {
        let mut job = story.job(Verb::Reserve, "callback").clone();
        (job["id"], job["reservation"]) = (json!("callback-2"), json!("t"));
        story.again("callback", "t", LATE);
        story.history.calls.last_mut().unwrap().outcome = ok(json!({ "jobs": [job] }));
    }),
    ("called back early", Rule::Callback, |story| {
        let at = story.begins(Verb::Reserve, "m2");
        story.shift(Verb::Reserve, "callback", at, 100);
    }),
    ("never called back", Rule::Callback, |story| story.unseen("callback")),
    ("a taken key makes a second job", Rule::Key, |story| {
        story.answer(Verb::Push, "k2")["deduplicated"] = json!(false);
        story.answer(Verb::Push, "k2")["id"] = json!("k2");
    }),
    ("a duplicate of a job with another key", Rule::Key, |story| {
        story.answer(Verb::Push, "k2")["id"] = json!("b");
    }),
    ("delivered before its delay is over", Rule::Early, |story| {
        let at = story.begins(Verb::Push, "late") + 1_500_000;
        story.shift(Verb::Reserve, "late", at, 1000);
    }),
    ("delivered before the delay of its rollback is over", Rule::Early, |story| {
        let at = story.begins(Verb::Rollback, "back") + 500_000;
        story.shift(Verb::Reserve, "back", at, 1000);
    }),
    ("delivered before the delay of its stage is over", Rule::Early, |story| {
        let at = story.begins(Verb::Reserve, "route") - 900_000;
        story.shift(Verb::Reserve, "route", at, 1000);
    }),
    ("an occurrence twice", Rule::Schedule, |story| {
        story.job(Verb::Reserve, "tick-2")["run_at"] = json!("12:00:01");
    }),
    ("something is left", Rule::NotDrained, |story| {
        story.unseen("late");
        let job = json!({"id": "late", "queue": "q", "state": "blocked", "payload": {"of": "late"}, "headers": {"mark": "late"}});
        story.scan.jobs.push(job);
        story.count();
    }),
    ("a semaphore that nobody holds is held", Rule::NotDrained, |story| {
        story.scan.semaphores[0]["held"] = json!(1);
    }),
    ("a push with a key is answered otherwise", Rule::OtherAnswer, |story| {
        story.answer(Verb::Push, "once")["id"] = json!("another");
    }),
    ("a push with a key is stored twice", Rule::StoredTwice, |story| {
        for call in story.history.calls.iter_mut().filter(|call| call.key.as_deref() == Some("push-once")) {
            call.outcome = Outcome::Unknown { why: "reset".to_owned() };
        }
        let mut job = story.job(Verb::Reserve, "once").clone();
        (job["id"], job["reservation"]) = (json!("once-2"), json!("t"));
        story.again("once", "t", LATE);
        story.history.calls.last_mut().unwrap().outcome = ok(json!({ "jobs": [job] }));
    }),
    ("a pop with a key is answered otherwise", Rule::OtherAnswer, |story| {
        story.answer(Verb::Pop, "taken")["jobs"][0]["id"] = json!("left");
    }),
    ("a job is gone that a pop with a key does not name", Rule::Lost, |story| {
        story.forget(Verb::Pop, "left")
    }),
    ("half of what is pushed together without a response", Rule::Partial, |story| story.unseen("u2")),
    ("half of what is pushed together with a response", Rule::Lost, |story| story.unseen("t2")),
    ("a token commits after a release and another delivery", Rule::StaleToken, |story| {
        let first = story.history.calls.iter().find(|call| {
            call.verb == Verb::Reserve
                && call.outcome.answer().is_some_and(|answer| answer["jobs"][0]["id"] == "freed")
        });
        let token = first.unwrap().outcome.answer().unwrap()["jobs"][0]["reservation"].clone();
        let mut call = story.at(Verb::Commit, "freed").clone();
        call.body["reservation"] = token;
        (call.invoked_us, call.completed_us) = (LATE, LATE + 1000);
        story.history.calls.push(call);
    }),
    ("two holders, and no release", Rule::TwoHolders, |story| story.forget(Verb::Release, "freed")),
    ("an operation takes a job that came later", Rule::Operation, |story| {
        story.job(Verb::Reserve, "later")["priority"] = json!(1001);
    }),
    ("an operation takes a job after it was cancelled", Rule::Operation, |story| {
        story.job(Verb::Reserve, "spared")["priority"] = json!(1002);
    }),
    ("an operation takes a job although it was refused", Rule::Operation, |story| {
        story.job(Verb::Reserve, "raised")["priority"] = json!(1003);
    }),
    ("a count is off", Rule::Counts, |story| story.scan.counts["dead"] = json!(2)),
    ("a count of a queue is off", Rule::Counts, |story| {
        story.scan.queue_counts.get_mut("q").unwrap()["ready"] = json!(1);
    }),
    ("a batch counts wrongly", Rule::Counts, |story| story.scan.batches[0]["done"] = json!(1)),
];

/// What is not certain, and so no violation.
pub type Doubt = (&'static str, fn(&mut Story));

/// All of them.
pub const DOUBTS: &[Doubt] = &[
    ("a pop without a response may have taken it", |story| {
        story.unseen("a");
        story.call(Verb::Pop, "q", json!({"count": 1}), Outcome::Unknown { why: "reset".to_owned() });
    }),
    ("a commit without a response may have happened", |story| {
        story.at(Verb::Commit, "a").outcome = Outcome::Unknown { why: "503".to_owned() };
    }),
    ("a commit without a response may not have happened", |story| {
        story.at(Verb::Commit, "silent").outcome = Outcome::Unknown { why: "503".to_owned() };
        story.again("silent", "other", LATE);
        let mut call = story.at(Verb::Commit, "silent").clone();
        call.outcome = ok(json!({"id": "silent", "state": "done"}));
        call.body["reservation"] = json!("other");
        (call.invoked_us, call.completed_us) = (LATE + 2000, LATE + 3000);
        story.history.calls.push(call);
    }),
    ("the lease may have been over", |story| {
        story.at(Verb::Reserve, "p1").body["lease_ms"] = json!(100);
        let mut call = story.at(Verb::Commit, "p1").clone();
        call.outcome = refused(409, "reservation-lost");
        call.invoked_us += 50_000;
        story.history.calls.push(call);
    }),
    ("pushes at the same time have no order", |story| {
        let at = story.begins(Verb::Push, "g1");
        for job in ["g1", "g2", "g3"] {
            story.shift(Verb::Push, job, at, 25_000);
        }
        let first = story.begins(Verb::Reserve, "g1");
        let last = story.begins(Verb::Reserve, "g3");
        story.shift(Verb::Reserve, "g1", last, 5000);
        story.shift(Verb::Commit, "g1", last + 10_000, 5000);
        story.shift(Verb::Reserve, "g3", first, 5000);
        story.shift(Verb::Commit, "g3", first + 10_000, 5000);
    }),
    ("a push without a response may have stored nothing", |story| {
        story.unseen("silent");
    }),
    ("the first push with a key may have had no response, and its job expired", |story| {
        silent_key(story, json!({"key": "two", "expires_in_ms": 100}));
    }),
    ("a push may be repeated once another client knows the job", |story| {
        silent_key(story, json!({"key": "two"}));
        let mut repeat = story.at(Verb::Push, "silent-key").clone();
        (repeat.invoked_us, repeat.completed_us) = (LATE, LATE + 1000);
        repeat.outcome = ok(json!({"id": "silent-key", "queue": "q", "deduplicated": true}));
        story.history.calls.push(repeat);
        story.known("silent-key", "q", &Story::spec("silent-key", json!({"key": "two"})));
        story.wait(LATE / 1000);
        story.work("q", "silent-key");
    }),
    ("two jobs of a schedule may be moved at one moment", |story| {
        for id in ["tick-1", "tick-2"] {
            let job = story.job(Verb::Reserve, id);
            (job["run_at"], job["trail"]) = (json!("12:00:05.123"), json!([{"queue": "ticks"}]));
        }
    }),
    ("an operation may take a job while it is cancelled", |story| {
        story.job(Verb::Reserve, "spared")["priority"] = json!(1002);
        let place = story.find(Verb::CancelOperation, "op-2");
        story.history.calls[place].outcome = Outcome::Unknown { why: "reset".to_owned() };
    }),
    ("an operation takes what comes soon after it", |story| {
        story.job(Verb::Reserve, "soon")["priority"] = json!(1001);
    }),
    ("an operation without a response may begin later", |story| {
        story.job(Verb::Reserve, "later")["priority"] = json!(1001);
        let mut again =
            story.history.calls.iter().find(|call| call.body["priority"] == 1001).unwrap().clone();
        again.outcome = Outcome::Unknown { why: "reset".to_owned() };
        story.history.calls.push(again);
    }),
    ("a pop with a key that was never answered may have taken it", |story| {
        story
            .history
            .calls
            .retain(|call| call.key.as_deref() != Some("pop-once") || call.outcome.is_unknown());
    }),
    ("a cancel without a response may have happened", |story| {
        story.unseen("a");
        story.call(Verb::Cancel, "a", Value::Null, Outcome::Unknown { why: "reset".to_owned() });
    }),
    ("a batch without a response may not be there", |story| {
        story.at(Verb::CreateBatch, "").outcome = Outcome::Unknown { why: "reset".to_owned() };
        for job in ["m1", "m2", "callback"] {
            story.unseen(job);
        }
        story.scan.batches.clear();
    }),
];
