//! Claims from the queues that a call names, one after the other, with the memory for what comes.

use std::time::Duration;

use tokio::time::Instant;

use super::ask::ReserveAsk;
use super::delivery::Delivery;
use super::large::Part;
use super::once::TURN_WAIT;
use super::reserve::Wanted;
use super::{Error, Queues, Result};
use crate::job::{Claim, Job, QueueName};
use crate::store::{Weight as _, hold};

/// The most jobs of one call while memory for responses is short.
const COUNT_WHILE_SHORT: usize = 100;

/// By which claim jobs are won.
#[derive(Clone, Copy)]
pub(super) enum By<'a> {
    /// That of the round, which others share.
    Round,
    /// That of a keyed request.
    Request(&'a Claim),
    /// That of a settle which takes them with it.
    Settle(&'a Claim),
}

impl<'a> By<'a> {
    fn claim(self) -> Option<&'a Claim> {
        match self {
            Self::Round => None,
            Self::Request(claim) | Self::Settle(claim) => Some(claim),
        }
    }
}

/// What comes next for a queue.
enum Step {
    /// Its claim, with the part that it needs.
    Claim(Option<Part>),
    /// There is no part for it now. The next queues may have one, or need none.
    PassOver,
    /// There is none for a call that has jobs already.
    End,
}

impl Queues {
    /// Claims from the queues, one after the other. Returns also the parts of the memory of claims ([`LargeClaims`]) that it has
    /// for what it has won, which are kept until a response has the jobs. `patience`: for how long it waits for
    /// the first one.
    ///
    /// [`LargeClaims`]: super::large::LargeClaims
    pub(super) async fn claim_from_queues(
        &self,
        ask: &ReserveAsk,
        by: By<'_>,
        pop: bool,
        patience: Duration,
    ) -> Result<(Delivery, Vec<Part>)> {
        let (claim, is_marked) = (by.claim(), matches!(by, By::Settle(_)));
        let mut delivery = Delivery::new(self.clone(), ask, is_marked);
        let mut from = self.expand(&ask.queues).await?.into_iter().peekable();
        let (mut parts, mut kept, mut is_again, began) = (Vec::new(), None, false, Instant::now());
        let (mut lacks_part, until) = (false, began + patience);
        while let Some(queue) = from.peek() {
            // What does not fit would be claimed for nothing, and be missing elsewhere meanwhile.
            let (before, is_short) = (delivery.won.len(), delivery.is_short());
            let most = if is_short { ask.count.min(COUNT_WHILE_SHORT) } else { ask.count };
            if before >= most || delivery.is_full() {
                break;
            }
            let count = delivery.more(most - before);
            let part = match self.claim_part(ask, queue, count, (until, before > 0), kept.take()).await? {
                Step::Claim(part) => part,
                Step::PassOver => {
                    (lacks_part, is_again) = (true, false);
                    from.next();
                    continue;
                }
                Step::End => break,
            };
            let wanted = self.wanted(ask, claim, queue, count, pop);
            let (claimed, part) = self.claim_one(&mut delivery, queue, wanted, is_again, part).await;
            match claimed {
                Ok(is_left) => is_again = is_left,
                Err(error) if delivery.won.is_empty() => return Err(error),
                Err(_) => break, // what other queues gave is not lost to an error of this one
            }
            if is_again {
                if !delivery.won.is_empty() {
                    break;
                }
                // Others have got large jobs. It is sent again while there is room for more of them, but not for ever.
                if !ask.room.is_left() || began.elapsed() >= TURN_WAIT {
                    return Err(Error::NoRoom);
                }
                kept = part;
                continue;
            }
            parts.extend(part);
            // Where as many came as were asked for, there may be more. But the claims of a keyed request are all one claim: where a
            // later one of the same queue fails, what it has won is found by that, and with it what the others have won.
            let is_last = (delivery.max_bytes.is_none() && !is_short) || claim.is_some();
            if is_last || delivery.won.len() - before < count {
                from.next();
            }
        }
        delivery.cut();
        if lacks_part && delivery.won.is_empty() { Err(Error::NoRoom) } else { Ok((delivery, parts)) }
    }

    fn wanted(
        &self,
        ask: &ReserveAsk,
        claim: Option<&Claim>,
        queue: &QueueName,
        count: usize,
        pop: bool,
    ) -> Wanted {
        let lease_ms = ask.lease_ms.unwrap_or_else(|| self.rules().lease_ms(queue));
        let (yields, worker) = (ask.lease_ms.is_none(), ask.worker.clone());
        Wanted { count, claim: claim.cloned(), lease_ms, yields, worker, pop }
    }

    /// Claims from one queue. Returns whether the round leaves what there is to another one, and what is needed of the part from now on.
    async fn claim_one(
        &self,
        delivery: &mut Delivery,
        queue: &QueueName,
        wanted: Wanted,
        is_again: bool,
        part: Option<Part>,
    ) -> (Result<bool>, Option<Part>) {
        let (before, count) = (delivery.won.len(), wanted.count);
        let claiming = delivery.claim(queue.clone(), wanted, is_again);
        let claimed = match part.clone() {
            None => claiming.await,
            Some(part) => hold::keeping(part, claiming).await,
        };
        if matches!(claimed, Ok(true)) {
            return (claimed, part);
        }
        let won = delivery.won.get(before..).unwrap_or_default();
        self.0.large.note(queue, count, won.iter().map(Job::weight));
        let part = part.filter(|_| !won.is_empty());
        part.iter().for_each(|part| part.shrink(won.iter().map(Job::weight).sum()));
        (claimed, part)
    }

    /// Returns the part of a claim, if it needs one: the one that it has, or a new one. A call that has some jobs waits for none; it would keep
    /// others from their parts.
    async fn claim_part(
        &self,
        ask: &ReserveAsk,
        queue: &QueueName,
        count: usize,
        (until, has_some): (Instant, bool),
        kept: Option<Part>,
    ) -> Result<Step> {
        if kept.is_some() {
            return Ok(Step::Claim(kept));
        }
        let patience =
            if has_some { Duration::ZERO } else { until.saturating_duration_since(Instant::now()) };
        match self.0.large.part(queue, count, patience).await {
            Err(_) => Ok(if has_some { Step::End } else { Step::PassOver }),
            // Those before it may have taken all the room that there was.
            Ok(Some(_)) if !ask.room.is_left() => {
                if has_some {
                    Ok(Step::End)
                } else {
                    Err(Error::NoRoom)
                }
            }
            Ok(part) => Ok(Step::Claim(part)),
        }
    }
}
