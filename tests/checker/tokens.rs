//! Deliveries and what was done with their tokens: for how long each was certainly the current one, and how each job
//! ended.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Setup;
use super::facts::{Facts, Fate, Life, NEVER, Settle, text};
use super::history::{Call, Outcome, Verb};

/// One token of one job.
#[derive(Debug)]
pub struct Token<'a> {
    pub token: &'a str,
    /// The claim was not before.
    pub from: u64,
    /// The first response that named it was here: the claim was not after.
    pub seen: u64,
    pub lease_us: u64,
    pub worker: Option<&'a str>,
    /// The job as it was delivered.
    pub job: &'a Value,
    pub settles: Vec<Settle<'a>>,
    /// Until when it was certainly the current token, from `seen` on.
    pub held_until: u64,
    /// A job that its commit pushed was seen at this time: so it happened.
    pub proven_us: Option<u64>,
}

/// What a commit, rollback or move that happened led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The job left.
    Gone,
    /// It is dead where it was.
    Dead,
    /// It is to be delivered again.
    Returned,
}

impl<'a> Token<'a> {
    fn of(&self, verb: Verb) -> impl Iterator<Item = &Settle<'a>> {
        self.settles.iter().filter(move |settle| settle.verb == verb)
    }

    /// When a settle of this verb was first sent that may have happened. A repeat succeeds by what the first one did.
    pub fn first(&self, verb: Verb) -> Option<u64> {
        self.of(verb).filter(|settle| settle.fate.may_have_happened()).map(|settle| settle.from).min()
    }

    /// The first success of this verb, and when it was known.
    pub fn success(&self, verb: Verb) -> Option<(u64, Option<&'a Value>)> {
        let acknowledged = self.of(verb).filter_map(|settle| Some((settle.to, Some(settle.fate.answer()?))));
        let proven = self.proven_us.filter(|_| verb == Verb::Commit).map(|at| (at, None));
        acknowledged.min_by_key(|(to, _)| *to).or(proven)
    }

    /// How the token ended the reservation for certain, by which verb, and when that was known.
    pub fn ending(&self) -> Option<(Verb, Ending, u64)> {
        [Verb::Commit, Verb::Rollback, Verb::Move].into_iter().find_map(|verb| {
            let (known, answer) = self.success(verb)?;
            let ending = match answer.map(|answer| text(answer, "state")) {
                Some("done" | "removed") => Ending::Gone,
                Some("dead") => Ending::Dead,
                Some(_) => Ending::Returned,
                None if self.has_route() => Ending::Returned,
                None => Ending::Gone,
            };
            Some((verb, ending, known))
        })
    }

    /// Whether a commit leads to a further stage.
    pub fn has_route(&self) -> bool {
        let has_stage = self.job["then"].as_array().is_some_and(|then| !then.is_empty());
        has_stage && self.job["dead_lettered_from"].is_null()
    }

    /// Whether the other token is certainly a later one.
    pub fn is_before(&self, other: &Self) -> bool {
        self.seen < other.from
    }
}

/// The tokens of one job, by the time of their first response.
pub fn tokens<'a>(life: &Life<'a>, facts: &Facts<'a>, setup: &Setup) -> Vec<Token<'a>> {
    let mut tokens: BTreeMap<&str, Token<'a>> = BTreeMap::new();
    for delivery in &life.deliveries {
        let Some(token) = delivery.token else { continue };
        let known = tokens.entry(token).or_insert_with(|| Token {
            token,
            from: delivery.from,
            seen: delivery.to,
            lease_us: delivery.lease_us,
            worker: delivery.worker,
            job: delivery.job,
            settles: life.settles.iter().filter(|settle| settle.token == token).copied().collect(),
            held_until: 0,
            proven_us: None,
        });
        known.from = known.from.min(delivery.from);
        known.seen = known.seen.min(delivery.to);
    }
    let mut tokens: Vec<_> = tokens.into_values().collect();
    for token in &mut tokens {
        token.proven_us = proven(token, facts);
        token.held_until = held_until(token, life, facts, setup).max(token.seen);
    }
    tokens.sort_by_key(|token| token.seen);
    tokens
}

/// When a job was seen that only a commit with this token can have pushed.
fn proven<'a>(token: &Token<'a>, facts: &Facts<'a>) -> Option<u64> {
    let commits = token.of(Verb::Commit).filter(|settle| matches!(settle.fate, Fate::Unknown));
    let children = commits.flat_map(|settle| settle.body["push"].as_array().into_iter().flatten());
    let seen = children.filter_map(|child| {
        let mark = super::facts::mark_of(child)?;
        let is_own = |place: &usize| {
            let push = &facts.pushes[*place];
            matches!(push.origin, super::facts::Origin::Child { token: of, .. } if of == token.token)
        };
        facts.marks.get(mark)?.iter().all(is_own).then_some(())?;
        facts
            .ids
            .get(mark)?
            .iter()
            .map(|id| facts.lives[id].known_us)
            .map(|at| if at == 0 { NEVER } else { at })
            .min()
    });
    seen.min()
}

/// Until when it was certainly the current token.
fn held_until<'a>(token: &Token<'a>, life: &Life<'a>, facts: &Facts<'a>, setup: &Setup) -> u64 {
    // What succeeds later proves that nothing took the job away before.
    let settles = [Verb::Commit, Verb::Rollback, Verb::Move];
    let by_settle = settles.into_iter().filter(|verb| token.success(*verb).is_some());
    let by_settle = by_settle.filter_map(|verb| token.first(verb)).max().unwrap_or(0);
    let extends = token.of(Verb::Extend).filter(|settle| settle.fate.answer().is_some());
    let proven = extends.map(|settle| settle.from).max().unwrap_or(0).max(by_settle);
    // The lease protects it, unless something else ends the reservation.
    let mut until = lease_end(token).saturating_sub(setup.slack_us());
    until = until.min(settles.into_iter().filter_map(|verb| token.first(verb)).min().unwrap_or(NEVER));
    let cancels = life.touches.iter().filter(|call| call.verb == Verb::ForceCancel);
    let cancels = cancels.filter(|call| super::facts::may_have_happened(call)).map(|call| call.invoked_us);
    until = until.min(cancels.min().unwrap_or(NEVER));
    let releases = life.touches.iter().filter(|call| call.verb == Verb::Release);
    let releases =
        releases.filter(|call| super::facts::may_have_happened(call) && call.settled_us() > token.from);
    until = until.min(releases.map(|call| call.invoked_us).min().unwrap_or(NEVER));
    let removals = facts.removals();
    let removals = removals.filter(|call| call.settled_us() > token.from).map(|call| call.invoked_us);
    until = until.min(removals.min().unwrap_or(NEVER));
    if let Some(worker) = token.worker {
        until = until.min(alive_until(worker, token, facts).saturating_sub(setup.slack_us()));
    }
    until.max(proven)
}

/// When the lease ends at the earliest.
fn lease_end(token: &Token<'_>) -> u64 {
    let mut end = token.from + token.lease_us;
    let mut extends: Vec<_> =
        token.of(Verb::Extend).filter(|settle| settle.fate.may_have_happened()).collect();
    extends.sort_by_key(|settle| settle.from);
    let mut last = 0;
    for settle in extends {
        let lease_us = settle.body["lease_ms"].as_u64().map_or(token.lease_us, |ms| ms * 1000);
        let is_alone = settle.from > last && settle.fate.answer().is_some();
        last = last.max(settle.to);
        end = if is_alone { settle.from + lease_us } else { end.min(settle.from + lease_us) };
    }
    end
}

/// Until when the worker is certainly not taken for lost: one that sent heartbeats is, when they cease.
fn alive_until(worker: &str, token: &Token<'_>, facts: &Facts<'_>) -> u64 {
    let heartbeats: Vec<_> = facts.workers.get(worker).into_iter().flatten().collect();
    let removal =
        heartbeats.iter().filter(|call| call.verb == Verb::RemoveWorker && call.settled_us() > token.from);
    let removal = removal.map(|call| call.invoked_us).min().unwrap_or(NEVER);
    let beats = || heartbeats.iter().filter(|call| call.verb == Verb::Heartbeat);
    let timeout_ms = |call: &&&&Call| match &call.outcome {
        Outcome::Ok { answer, .. } => answer["timeout_ms"].as_u64(),
        _ => call.body["timeout_ms"].as_u64(),
    };
    let Some(timeout_ms) = beats().map(|call| timeout_ms(&call).unwrap_or(0)).min() else { return removal };
    let mut until = token.from + timeout_ms * 1000;
    for call in beats().filter(|call| call.outcome.answer().is_some()) {
        if (token.from..until).contains(&call.invoked_us) {
            until = call.invoked_us + timeout_ms * 1000;
        }
    }
    until.min(removal)
}
