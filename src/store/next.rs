//! Jobs that are taken with the changes that end a delivery.

use std::collections::HashSet;
use std::ops::Range;

use super::{Applied, ClaimAsk, Claims, Denied};
use crate::job::{Claim, Ended, Mark, QueueName, Reach, Rules, WorkerName};

/// What is to be taken once changes have ended a delivery.
#[derive(Debug, Clone)]
pub struct TakeAsk {
    /// Which changes of the call these are.
    pub changes: Range<usize>,
    /// The mark of each, where it ends a delivery.
    pub marks: Vec<Option<Mark>>,
    /// The queue to take from; `None`: the one that the jobs were in.
    pub queue: Option<QueueName>,
    /// What the caller reaches: nothing is taken from other queues.
    pub within: Reach,
    /// The most jobs to take.
    pub count: usize,
    /// How long the reservation lasts, in milliseconds; `None`: what the queue or the job says.
    pub lease_ms: Option<u64>,
    /// The worker that asks.
    pub worker: Option<WorkerName>,
}

/// What changes have led to, and what was taken with them.
#[derive(Debug)]
pub struct Taken {
    /// For each change, in the same order.
    pub applied: Vec<Result<Applied, Denied>>,
    /// For each [`TakeAsk`], in the same order; nothing where it is to be claimed afterwards.
    pub claims: Claims,
    /// Claims that failed, of which it is not known what they have won.
    pub unknown: Vec<(QueueName, Claim)>,
}

impl Taken {
    /// Returns what so many asks get where jobs are claimed afterwards.
    pub fn nothing(applied: Vec<Result<Applied, Denied>>, asks: usize) -> Self {
        let won = (0..asks).map(|_| Ok(Vec::new())).collect();
        Self { applied, claims: Claims { won, ..Claims::default() }, unknown: Vec::new() }
    }

    /// Returns what so many asks get, of which those at these indexes have claimed.
    pub fn of(count: usize, indexes: Vec<usize>, asks: Vec<ClaimAsk>, mut claims: Claims) -> Self {
        let mut taken = Self::nothing(Vec::new(), count);
        for ((n, ask), won) in indexes.into_iter().zip(asks).zip(std::mem::take(&mut claims.won)) {
            match won {
                Ok(jobs) => taken.claims.won[n] = Ok(jobs),
                Err(_) => taken.unknown.push((ask.queue, ask.claim)),
            }
        }
        (taken.claims.resume, taken.claims.offers) = (claims.resume, claims.offers);
        taken
    }
}

impl TakeAsk {
    /// Returns the claim, where it can be made with the changes: all of them took effect, by this call, and the jobs come from one
    /// queue, which is not paused and which the caller reaches. Else the caller finds out what it means.
    pub fn claim(&self, applied: &[Result<Applied, Denied>], rules: &Rules) -> Option<ClaimAsk> {
        let applied: Vec<&Applied> = applied
            .get(self.changes.clone())?
            .iter()
            .map(|applied| applied.as_ref().ok())
            .collect::<Option<_>>()?;
        if applied.iter().any(|applied| applied.repeated || applied.perhaps_earlier) {
            return None;
        }
        let ended = |(applied, mark): (&&Applied, &Option<Mark>)| {
            let ended = Ended::of(&applied.outcome, applied.at)?;
            Some((mark.as_ref()?.claim(ended), applied.queue.clone()))
        };
        let ended: Vec<_> = applied.iter().zip(&self.marks).filter_map(ended).collect();
        let (claim, from) = ended.first()?.clone();
        let queues: HashSet<&QueueName> = ended.iter().map(|(_, queue)| queue).collect();
        if self.queue.is_none() && queues.len() > 1 {
            return None;
        }
        let queue = self.queue.clone().unwrap_or(from);
        if rules.paused(&queue) || !self.within.has(&queue) {
            return None;
        }
        let lease_ms = self.lease_ms.unwrap_or_else(|| rules.lease_ms(&queue));
        let (count, yields, worker) = (self.count, self.lease_ms.is_none(), self.worker.clone());
        Some(ClaimAsk { queue, count, claim, lease_ms, yields, worker, pop: false })
    }
}

/// Returns the claims that can be made with the changes of a call, each with the index of its ask.
pub fn claims(
    takes: &[TakeAsk],
    applied: &[Result<Applied, Denied>],
    rules: &Rules,
) -> (Vec<usize>, Vec<ClaimAsk>) {
    let claims = takes.iter().enumerate().filter_map(|(n, take)| Some((n, take.claim(applied, rules)?)));
    claims.unzip()
}
