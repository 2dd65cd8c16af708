//! What must hold, a file for each subject.

pub mod ends;
pub mod holds;
pub mod lines;
pub mod lives;
pub mod operations;
pub mod repeats;
pub mod rest;
pub mod times;
pub mod together;

use std::collections::BTreeMap;

use super::Setup;
use super::facts::{Facts, Life, NEVER, may_have_happened};
use super::history::{Call, Verb};
use super::scan::Scan;
use super::tokens::Token;

/// What is to be judged.
pub struct Case<'c, 'a> {
    pub facts: &'c Facts<'a>,
    /// By id.
    pub tokens: &'c BTreeMap<&'a str, Vec<Token<'a>>>,
    pub scan: &'a Scan,
    pub setup: &'c Setup,
}

impl<'c, 'a> Case<'c, 'a> {
    pub fn tokens(&self, id: &str) -> &'c [Token<'a>] {
        self.tokens.get(id).map_or(&[], Vec::as_slice)
    }

    /// Whether a job pushed by this mark was seen, or named in a response.
    pub fn is_known(&self, mark: &str) -> bool {
        self.facts.ids.contains_key(mark)
    }

    /// How many jobs pops may have taken from this queue without saying which.
    pub fn pops_unknown(&self, queue: &str) -> u64 {
        let unknown = self.facts.pops.iter().filter(|call| call.outcome.is_unknown() && call.target == queue);
        unknown.map(|call| call.body["count"].as_u64().unwrap_or(1)).sum()
    }

    /// When a purge, or the deletion of a queue, was sent that may have removed a job of these queues born then.
    pub fn purged(&self, queues: &[&str], born_us: u64) -> u64 {
        let removes = |call: &&Call| queues.iter().any(|queue| call.removes_from(queue));
        let calls = self.facts.removals().filter(removes).filter(|call| call.settled_us() >= born_us);
        calls.map(|call| call.invoked_us).min().unwrap_or(NEVER)
    }

    /// When the job may have left its first queue at the earliest.
    pub fn leaves(&self, id: &str, life: &Life<'a>) -> u64 {
        self.finishes(life)
            .min(self.tokens(id).iter().filter_map(|token| token.first(Verb::Move)).min().unwrap_or(NEVER))
    }

    /// When the job, or its first stage, may have been finished at the earliest, unless by running out of attempts.
    pub fn finishes(&self, life: &Life<'a>) -> u64 {
        let queues = self.queues(life);
        let commits = life.settles.iter().filter(|settle| settle.verb == Verb::Commit);
        let commits = commits.filter(|settle| settle.fate.may_have_happened()).map(|settle| settle.from);
        let popped = life.deliveries.iter().filter(|delivery| delivery.token.is_none());
        let unknown = self.facts.pops.iter().filter(|call| call.outcome.is_unknown());
        let unknown = unknown.filter(|call| queues.contains(&call.target.as_str()));
        let expiries = life.pushes.iter().filter_map(|push| {
            let ms = push.spec["expires_in_ms"].as_u64()?;
            Some((push.from + ms * 1000).saturating_sub(self.setup.slack_us()))
        });
        let all = commits
            .chain(popped.map(|delivery| delivery.from))
            .chain(unknown.map(|call| call.invoked_us))
            .chain(expiries)
            .chain([self.cancelled(life)]);
        all.min().unwrap_or(NEVER)
    }

    /// When the job may have been cancelled or purged at the earliest, by itself or with others.
    pub fn cancelled(&self, life: &Life<'a>) -> u64 {
        let cancels = life.touches.iter().filter(|call| call.verb.is_cancel() && may_have_happened(call));
        let batch = life.batch();
        let batches = self.facts.possible(&[Verb::CancelBatch]);
        let batches =
            batches.filter(|call| batch.is_none_or(|batch| batch == call.target) && self.is_member(life));
        let purged = self.purged(&self.queues(life), life.born_us());
        let cancels = cancels.map(|call| call.invoked_us);
        cancels.chain(batches.map(|call| call.invoked_us)).chain([purged]).min().unwrap_or(NEVER)
    }

    fn is_member(&self, life: &Life<'a>) -> bool {
        let is_member =
            |push: &super::facts::Push<'_>| matches!(push.origin, super::facts::Origin::Member { .. });
        life.pushes.iter().any(is_member)
    }

    /// Every queue that the job may have been in.
    pub fn queues(&self, life: &Life<'a>) -> Vec<&'a str> {
        let mut queues: Vec<&str> = Vec::new();
        for push in &life.pushes {
            queues.push(push.queue);
            let then = push.spec["then"].as_array().into_iter().flatten();
            queues.extend(then.filter_map(|stage| stage["queue"].as_str()));
        }
        let moves = life.settles.iter().filter(|settle| settle.verb == Verb::Move);
        let moves = moves.filter(|settle| settle.fate.may_have_happened());
        queues.extend(moves.filter_map(|settle| settle.body["queue"].as_str()));
        let acts = life.touches.iter().filter(|call| call.verb == Verb::Relocate && may_have_happened(call));
        queues.extend(acts.filter_map(|call| call.body["queue"].as_str()));
        // A dead-letter queue leads to its own, and back by redrive to one that is here already.
        let mut next = 0;
        while let Some(queue) = queues.get(next).copied() {
            next += 1;
            let leads = self.facts.possible(&[Verb::PutSettings, Verb::Operation]);
            for call in leads.filter(|call| call.target == queue) {
                let name = if call.verb == Verb::Operation { "to" } else { "dead_letter" };
                if let Some(next) = call.body[name].as_str()
                    && !queues.contains(&next)
                {
                    queues.push(next);
                }
            }
        }
        queues
    }
}
