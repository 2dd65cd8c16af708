//! A history that is as it should be, written down by hand: every kind of call, each outcome.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::checker::{Call, History, Outcome, Scan, Verb};

/// A history that grows by a call at a time, and what is left.
#[derive(Clone, Default)]
pub struct Story {
    pub history: History,
    pub scan: Scan,
    jobs: BTreeMap<String, Value>,
    now_ms: u64,
}

/// Where each call ended.
pub fn ok(answer: Value) -> Outcome {
    Outcome::Ok { status: 200, answer }
}

pub fn unknown() -> Outcome {
    Outcome::Unknown { why: "reset".to_owned() }
}

pub fn refused(status: u16, code: &str) -> Outcome {
    Outcome::Refused { status, code: code.to_owned(), answer: json!({ "code": code }) }
}

impl Story {
    /// Time passes.
    pub fn wait(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    /// A call that takes 5 ms; then 5 ms pass. Returns its place.
    pub fn call(&mut self, verb: Verb, target: &str, body: Value, outcome: Outcome) -> usize {
        let invoked_us = self.now_ms * 1000;
        self.history.calls.push(Call {
            client: "c".to_owned(),
            server: "s".to_owned(),
            verb,
            target: target.to_owned(),
            key: None,
            body,
            invoked_us,
            completed_us: invoked_us + 5000,
            outcome,
        });
        self.now_ms += 10;
        self.history.calls.len() - 1
    }

    /// Remembers a job as the server shows it; its mark and its id are the same.
    pub fn known(&mut self, id: &str, queue: &str, spec: &Value) {
        let mut job = spec.clone();
        job["id"] = json!(id);
        job["queue"] = json!(queue);
        job["attempt"] = json!(0);
        job["state"] = json!("ready");
        self.jobs.insert(id.to_owned(), job);
    }

    /// A job of this mark, and these fields beside its payload.
    pub fn spec(mark: &str, more: Value) -> Value {
        let mut spec = json!({"payload": {"of": mark}, "headers": {"mark": mark}, "max_attempts": 1000});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    }

    /// A push that succeeds; the id is the mark.
    pub fn push(&mut self, queue: &str, mark: &str, more: Value) {
        let spec = Self::spec(mark, more);
        self.known(mark, queue, &spec);
        let answer = json!({"id": mark, "queue": queue, "state": "ready", "deduplicated": false});
        self.call(Verb::Push, queue, spec, Outcome::Ok { status: 201, answer });
    }

    /// A push without an answer. It was stored.
    pub fn push_unknown(&mut self, queue: &str, mark: &str) {
        let spec = Self::spec(mark, json!({}));
        self.known(mark, queue, &spec);
        self.call(Verb::Push, queue, spec, unknown());
    }

    /// The job in its next delivery.
    fn deliver(&mut self, id: &str) -> Value {
        let job = self.jobs.get_mut(id).unwrap();
        let attempt = job["attempt"].as_u64().unwrap() + 1;
        job["attempt"] = json!(attempt);
        let mut view = job.clone();
        view["state"] = json!("reserved");
        view
    }

    /// A reserve that gets these jobs for ten seconds.
    pub fn reserve(&mut self, queue: &str, ids: &[&str]) -> Vec<Value> {
        let mut jobs: Vec<Value> = ids.iter().map(|id| self.deliver(id)).collect();
        let call = self.history.calls.len();
        for job in &mut jobs {
            job["reservation"] = json!(format!("t{call}-{}", job["id"].as_str().unwrap()));
        }
        let ask = json!({"count": ids.len(), "lease_ms": 10_000, "worker": "w"});
        self.call(Verb::Reserve, queue, ask, ok(json!({ "jobs": jobs })));
        jobs
    }

    pub fn pop(&mut self, queue: &str, id: &str) {
        let job = self.deliver(id);
        self.call(Verb::Pop, queue, json!({"count": 1}), ok(json!({"jobs": [job]})));
    }

    pub fn settle(&mut self, verb: Verb, job: &Value, mut body: Value, outcome: Outcome) -> usize {
        body["reservation"] = job["reservation"].clone();
        self.call(verb, job["id"].as_str().unwrap(), body, outcome)
    }

    pub fn commit(&mut self, job: &Value) -> usize {
        self.settle(Verb::Commit, job, json!({}), ok(json!({"id": job["id"], "state": "done"})))
    }

    /// Reserves and commits.
    pub fn work(&mut self, queue: &str, id: &str) {
        let jobs = self.reserve(queue, &[id]);
        self.commit(&jobs[0]);
    }

    /// The job is in another queue from now on.
    pub fn rehome(&mut self, id: &str, queue: &str, payload: Value) {
        let job = self.jobs.get_mut(id).unwrap();
        job["queue"] = json!(queue);
        job["payload"] = payload;
        job["then"] = json!([]);
    }

    /// Everything is over: these are left, and counted.
    pub fn end(&mut self, left: &[(&str, &str)]) {
        for (id, state) in left {
            let mut job = self.jobs[*id].clone();
            job["state"] = json!(state);
            self.scan.jobs.push(job);
        }
        self.count();
    }

    /// Counts what the scan has.
    pub fn count(&mut self) {
        let zero = json!({"ready": 0, "scheduled": 0, "reserved": 0, "blocked": 0, "dead": 0, "done": 0});
        self.scan.counts = zero.clone();
        self.scan.queue_counts.clear();
        for job in &self.scan.jobs {
            let queue = job["queue"].as_str().unwrap().to_owned();
            let state = job["state"].as_str().unwrap();
            let counts = self.scan.queue_counts.entry(queue).or_insert_with(|| zero.clone());
            for counts in [counts, &mut self.scan.counts] {
                counts[state] = json!(counts[state].as_u64().unwrap() + 1);
            }
        }
    }

    /// The whole of it.
    pub fn sound() -> Self {
        let mut story = Self::default();
        story.call(Verb::PutSemaphore, "db", json!({"capacity": 1}), ok(json!({"name": "db"})));
        story.plain();
        story.lines();
        story.stages();
        story.together();
        story.ticks();
        story.repeats();
        story.operations();
        story
            .scan
            .semaphores
            .push(json!({"name": "db", "capacity": 1, "held": 0, "holders": [], "waiting": 0}));
        story.end(&[("dead", "dead"), ("kept", "done")]);
        story
    }

    /// Pushes, settles, pops, cancels, with and without responses.
    fn plain(&mut self) {
        for mark in ["a", "b", "back", "popped", "cut", "kept", "slow", "dead"] {
            self.push("q", mark, json!({}));
        }
        self.push("q", "late", json!({"delay_ms": 2000}));
        self.push_unknown("q", "silent");
        self.call(Verb::Push, "q", Self::spec("refused", json!({})), refused(429, "queue-full"));
        self.work("q", "a");
        let twice = self.reserve("q", &["b"]);
        self.settle(Verb::Commit, &twice[0], json!({}), unknown());
        self.commit(&twice[0]);
        let back = self.reserve("q", &["back"]);
        let again = ok(json!({"id": "back", "state": "scheduled", "queue": "q"}));
        self.settle(Verb::Rollback, &back[0], json!({"delay_ms": 1000}), again);
        self.pop("q", "popped");
        self.call(
            Verb::Cancel,
            "cut",
            json!(null),
            Outcome::Ok { status: 200, answer: json!({"deleted": true, "cancel_requested": false}) },
        );
        self.work("q", "kept");
        let slow = self.reserve("q", &["slow"]);
        self.settle(Verb::Extend, &slow[0], json!({"lease_ms": 500}), ok(json!({"id": "slow"})));
        self.wait(2000);
        let other = self.reserve("q", &["slow"]);
        self.settle(Verb::Commit, &slow[0], json!({}), refused(409, "reservation-lost"));
        self.commit(&other[0]);
        let dead = self.reserve("q", &["dead"]);
        self.settle(Verb::Rollback, &dead[0], json!({}), ok(json!({"id": "dead", "state": "dead"})));
        for id in ["back", "late", "silent"] {
            self.work("q", id);
        }
    }

    /// Groups, semaphores, keys.
    fn lines(&mut self) {
        for mark in ["g1", "g2", "g3"] {
            self.push("line", mark, json!({"group": "g"}));
        }
        for mark in ["s1", "s2"] {
            self.push("sem", mark, json!({"semaphores": ["db"]}));
        }
        for (line, sem) in [("g1", "s1"), ("g2", "s2")] {
            self.work("line", line);
            let held = self.reserve("sem", &[sem]);
            self.wait(100);
            self.commit(&held[0]);
        }
        self.work("line", "g3");
        self.push("q", "k", json!({"key": "one", "key_ttl_ms": 60_000}));
        let same = json!({"id": "k", "queue": "q", "state": "ready", "deduplicated": true});
        self.call(Verb::Push, "q", Self::spec("k2", json!({"key": "one", "key_ttl_ms": 60_000})), ok(same));
        self.work("q", "k");
        // A reserve under a key whose response was lost, and its repeat.
        self.push("q", "keyed", json!({}));
        let lost = self.call(Verb::Reserve, "q", json!({"count": 1, "lease_ms": 10_000}), unknown());
        let jobs = self.reserve("q", &["keyed"]);
        let again = self.call(
            Verb::Reserve,
            "q",
            json!({"count": 1, "lease_ms": 10_000}),
            ok(json!({ "jobs": jobs })),
        );
        for place in [lost, again - 1, again] {
            self.history.calls[place].key = Some("idem".to_owned());
        }
        self.commit(&jobs[0]);
    }

    /// Moves, and routes.
    fn stages(&mut self) {
        self.push("q", "moved", json!({}));
        let job = self.reserve("q", &["moved"]);
        let there = ok(json!({"id": "moved", "state": "ready", "queue": "other"}));
        self.settle(Verb::Move, &job[0], json!({"queue": "other", "payload": 7}), there);
        self.rehome("moved", "other", json!(7));
        self.work("other", "moved");
        self.push("first", "route", json!({"then": [{"queue": "second", "delay_ms": 1000}]}));
        let job = self.reserve("first", &["route"]);
        let next = ok(json!({"id": "route", "state": "scheduled", "queue": "second"}));
        self.settle(Verb::Commit, &job[0], json!({"result": "half"}), next);
        self.rehome("route", "second", json!("half"));
        self.wait(1000);
        self.work("second", "route");
    }

    /// Commits that push, with and without a response; a batch and its callback.
    fn together(&mut self) {
        for (parent, answered) in [("p1", true), ("p2", false)] {
            self.push("in", parent, json!({}));
            let job = self.reserve("in", &[parent]);
            let names = [format!("{parent}a"), format!("{parent}b")];
            let children: Vec<Value> = names
                .iter()
                .map(|name| {
                    let mut spec = Self::spec(name, json!({}));
                    self.known(name, "out", &spec);
                    spec["queue"] = json!("out");
                    spec
                })
                .collect();
            let pushed: Vec<Value> =
                names.iter().map(|name| json!({"id": name, "queue": "out", "deduplicated": false})).collect();
            let done = ok(json!({"id": parent, "state": "done", "pushed": pushed}));
            self.settle(
                Verb::Commit,
                &job[0],
                json!({ "push": children }),
                if answered { done } else { unknown() },
            );
            for name in &names {
                self.work("out", name);
            }
        }
        let mut specs = ["m1", "m2"].map(|mark| Self::spec(mark, json!({})));
        for spec in &mut specs {
            let mark = spec["headers"]["mark"].as_str().unwrap().to_owned();
            self.known(&mark, "batch", spec);
            spec["queue"] = json!("batch");
        }
        let mut callback = Self::spec("call", json!({"queue": "after"}));
        let children = ["m1", "m2"].map(|id| json!({"id": id, "queue": "batch", "deduplicated": false}));
        let body = json!({"jobs": specs, "on_finished": callback});
        self.call(Verb::CreateBatch, "", body, ok(json!({"id": "batch-1", "jobs": children})));
        self.work("batch", "m1");
        self.work("batch", "m2");
        callback["headers"]["batch-id"] = json!("batch-1");
        self.known("callback", "after", &callback);
        self.work("after", "callback");
        self.scan.batches.push(json!({"id": "batch-1", "pending": 0, "done": 2, "dead": 0, "cancelled": 0}));
    }

    /// Two occurrences of a schedule.
    fn ticks(&mut self) {
        let job = Self::spec("tick", json!({}));
        let rule = json!({"cron": "* * * * * *", "queue": "ticks", "job": job});
        self.call(Verb::PutSchedule, "every", rule, ok(json!({"name": "every"})));
        for (id, at) in [("tick-1", "12:00:01"), ("tick-2", "12:00:02")] {
            let mut job = job.clone();
            job["run_at"] = json!(at);
            self.known(id, "ticks", &job);
            self.work("ticks", id);
        }
    }

    /// The same call once more, with another answer.
    fn again_as(&mut self, place: usize, outcome: Outcome) -> usize {
        let mut call = self.history.calls[place].clone();
        (call.invoked_us, call.completed_us) = (self.now_ms * 1000, self.now_ms * 1000 + 5000);
        call.outcome = outcome;
        self.history.calls.push(call);
        self.now_ms += 10;
        self.history.calls.len() - 1
    }

    fn with_key(&mut self, places: &[usize], key: &str) {
        places.iter().for_each(|place| self.history.calls[*place].key = Some(key.to_owned()));
    }

    /// Pushes and pops with a key, whose first responses are lost; pushes together; a release.
    fn repeats(&mut self) {
        let spec = Self::spec("once", json!({}));
        self.known("once", "q", &spec);
        let lost = self.call(Verb::Push, "q", spec, unknown());
        let answer = json!({"id": "once", "queue": "q", "state": "ready", "deduplicated": false});
        let told = self.again_as(lost, ok(answer.clone()));
        let again = self.again_as(lost, ok(answer));
        self.with_key(&[lost, told, again], "push-once");
        self.work("q", "once");
        self.push("pops", "taken", json!({}));
        let lost = self.call(Verb::Pop, "pops", json!({"count": 1}), unknown());
        self.pop("pops", "taken");
        let told = self.history.calls.len() - 1;
        let again = self.again_as(told, self.history.calls[told].outcome.clone());
        self.with_key(&[lost, told, again], "pop-once");
        self.push("pops", "left", json!({}));
        self.pop("pops", "left");
        for (marks, answered) in [(["t1", "t2"], true), (["u1", "u2"], false)] {
            let mut specs = marks.map(|mark| Self::spec(mark, json!({})));
            for (spec, mark) in specs.iter_mut().zip(marks) {
                self.known(mark, "q", spec);
                spec["queue"] = json!("q");
            }
            let results =
                marks.map(|mark| json!({"status": 201, "id": mark, "queue": "q", "deduplicated": false}));
            let outcome = if answered { ok(json!({ "results": results })) } else { unknown() };
            self.call(Verb::PushTogether, "", json!({ "jobs": specs }), outcome);
            marks.iter().for_each(|mark| self.work("q", mark));
        }
        self.push("q", "freed", json!({}));
        self.reserve("q", &["freed"]);
        self.call(Verb::Release, "freed", json!({}), ok(json!({"id": "freed", "state": "ready"})));
        self.work("q", "freed");
    }

    /// Operations that change priorities: one that is carried out, one that is cancelled, one that is refused.
    fn operations(&mut self) {
        let body =
            |priority: i64| json!({"filter": {"queue": "q"}, "action": "set_priority", "priority": priority});
        self.push("q", "raised", json!({}));
        self.call(Verb::Operation, "q", body(1001), ok(json!({"id": "op-1", "state": "queued"})));
        self.jobs.get_mut("raised").unwrap()["priority"] = json!(1001);
        self.work("q", "raised");
        self.push("q", "spared", json!({"max_attempts": 1000}));
        self.call(Verb::Operation, "q", body(1002), ok(json!({"id": "op-2", "state": "queued"})));
        self.call(
            Verb::CancelOperation,
            "op-2",
            Value::Null,
            ok(json!({"id": "op-2", "state": "cancelled"})),
        );
        let held = self.reserve("q", &["spared"]);
        let back = ok(json!({"id": "spared", "state": "ready", "queue": "q"}));
        self.settle(Verb::Rollback, &held[0], json!({}), back);
        self.work("q", "spared");
        self.call(Verb::Operation, "q", body(1003), refused(429, "too-many-operations"));
        self.push("q", "soon", json!({}));
        self.work("q", "soon");
        self.wait(1000);
        self.push("q", "later", json!({}));
        self.work("q", "later");
    }

    /// The place of the call of this verb that is about this job or name; the last one where there are some.
    pub fn find(&self, verb: Verb, about: &str) -> usize {
        let is_about = |call: &Call| {
            let jobs = call.outcome.answer().and_then(|answer| answer["jobs"].as_array());
            let mut jobs = jobs.into_iter().flatten();
            call.target == about
                || call.body["headers"]["mark"] == about
                || jobs.any(|job| job["id"] == about)
        };
        let calls = &self.history.calls;
        calls.iter().rposition(|call| call.verb == verb && is_about(call)).unwrap()
    }

    pub fn at(&mut self, verb: Verb, about: &str) -> &mut Call {
        let place = self.find(verb, about);
        &mut self.history.calls[place]
    }

    /// The response of the last such call.
    pub fn answer(&mut self, verb: Verb, about: &str) -> &mut Value {
        match &mut self.at(verb, about).outcome {
            Outcome::Ok { answer, .. } => answer,
            other => panic!("{other:?}"),
        }
    }

    /// The job in the response of the last reserve or pop that got it.
    pub fn job(&mut self, verb: Verb, id: &str) -> &mut Value {
        let jobs = self.answer(verb, id)["jobs"].as_array_mut().unwrap();
        jobs.iter_mut().find(|job| job["id"] == id).unwrap()
    }

    /// Forgets the last such call.
    pub fn forget(&mut self, verb: Verb, about: &str) {
        let place = self.find(verb, about);
        self.history.calls.remove(place);
    }

    /// Forgets the last delivery of this job, and its commit.
    pub fn unseen(&mut self, id: &str) {
        self.forget(Verb::Reserve, id);
        self.forget(Verb::Commit, id);
    }

    /// Puts a call at another time.
    pub fn shift(&mut self, verb: Verb, about: &str, invoked_us: u64, took_us: u64) {
        let call = self.at(verb, about);
        (call.invoked_us, call.completed_us) = (invoked_us, invoked_us + took_us);
    }

    /// The last reserve of this job once more, as another client's, then, with this token.
    pub fn again(&mut self, id: &str, token: &str, invoked_us: u64) {
        let mut call = self.at(Verb::Reserve, id).clone();
        (call.invoked_us, call.completed_us) = (invoked_us, invoked_us + 1000);
        if let Outcome::Ok { answer, .. } = &mut call.outcome {
            answer["jobs"][0]["reservation"] = json!(token);
        }
        self.history.calls.push(call);
    }

    pub fn begins(&self, verb: Verb, about: &str) -> u64 {
        self.history.calls[self.find(verb, about)].invoked_us
    }
}
