//! Settles that take the next jobs with them: a worker's turn in one call.
//!
//! The settle comes first, and stands whatever becomes of the rest. The call whose settle took effect takes the jobs, as a reserve does,
//! under a claim that bears the mark of what was settled. A repeat takes nothing: it finds by the mark what the first call has taken and
//! what is still held, at any server, and hands it out again. That is a write of each job, so that a server which thinks that its client
//! has left does not give back what a repeat has handed out.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use tokio::sync::SemaphorePermit;

use super::ask::Room;
use super::delivery::Delivery;
use super::once::TURN_WAIT;
use super::reserve::{QUEUES_MAX, check_reserve};
use super::settle::{Action, Settle, Settled};
use super::{Error, Queues, ReserveAsk, Result};

use crate::faults;
use crate::job::state::Verb;
use crate::job::transition::{Operation, Outcome};
use crate::job::{Claim, Ended, Job, JobId, Mark, QueueName, QueuePattern, Reach, State, Timestamp, Visible};
use crate::store::hold;
use crate::store::{Applied, Change, Denied, StoreError, TakeAsk, Taken};

/// A request for the next jobs, with a settle.
#[derive(Debug, Clone)]
pub struct NextAsk {
    /// What to take.
    pub ask: ReserveAsk,
    /// Whether [`ReserveAsk::queues`] says where from; else from the queues of the jobs that are settled.
    pub names_queues: bool,
    /// What the caller reaches.
    pub within: Reach,
}

/// What a settle has taken with it.
#[derive(Debug, Default)]
pub struct Next {
    /// The jobs, in the order of delivery.
    pub jobs: Vec<Job>,
    /// Why there are none, if something failed. The settle stands.
    pub problem: Option<Error>,
}

/// Returns the verb of a settle that ends a delivery.
fn ending(settle: &Settle) -> Option<Verb> {
    match settle.action {
        Action::Commit { .. } => Some(Verb::Commit),
        Action::Rollback { .. } => Some(Verb::Rollback),
        Action::Move { .. } => Some(Verb::Move),
        Action::Extend { .. } => None,
    }
}

/// Whether an element of the call may have taken effect by an earlier call.
fn may_be_repeated(settled: &Result<Settled>) -> bool {
    match settled {
        Ok(settled) => settled.repeated || settled.perhaps_earlier,
        Err(error) => matches!(error, Error::ReservationLost { .. }),
    }
}

/// Leaves the jobs of one call, which has taken them under one claim: of several calls the first one, whose response is most likely lost.
/// Those of the others are given back by these, or lapse.
fn keep_one_call(jobs: &mut Vec<Job>) {
    let first = jobs.iter().min_by_key(|job| job.meta.started_at);
    let claim = first.and_then(|job| job.meta.claim.clone());
    jobs.retain(|job| job.meta.claim == claim);
}

/// What is settled together, and what may be taken with it.
pub(super) struct Settling {
    pub changes: Vec<Change>,
    pub take: Option<Taking>,
}

/// How the changes of one item ended, and what was taken with them.
pub(super) type SettledAndTaken = (Vec<Result<Settled>>, Option<Delivery>);

/// What may be taken with a settle, in the round of that settle.
pub(super) struct Taking {
    ask: TakeAsk,
    room: Arc<dyn Room>,
}

impl Taking {
    /// Returns how many jobs may be taken.
    pub fn count(&self) -> usize {
        self.ask.count
    }

    /// The same for these changes of a round.
    pub fn of(mut self, changes: Range<usize>) -> Self {
        self.ask.changes = changes;
        self
    }
}

/// How many jobs a settle takes at most in its own round.
const TAKEN_IN_ROUND: usize = 16;
/// How many jobs are read at once of which only the queues matter: each may be as long as a payload and a result may be.
const READ_AT_ONCE: usize = 16;

impl Queues {
    /// Returns what may be taken in the round of the settle itself: what is asked of one queue, by number.
    fn taking(&self, next: &NextAsk, marks: &[Option<Mark>]) -> Option<Taking> {
        let ask = &next.ask;
        let queue = match (next.names_queues, &*ask.queues) {
            (false, _) => None,
            (true, [QueuePattern::One(queue)]) => Some(queue.clone()),
            _ => return None,
        };
        let is_short = !ask.room.is_left() || ask.room.bytes() < self.options().answer_bytes;
        // Many would make the rounds of the settles long, which are everybody's.
        let is_short = is_short || ask.count > TAKEN_IN_ROUND;
        if is_short || ask.max_bytes.is_some() || self.is_draining() {
            return None;
        }
        let ask = TakeAsk {
            changes: 0..0,
            marks: marks.to_vec(),
            queue,
            within: next.within.clone(),
            count: ask.count,
            lease_ms: ask.lease_ms,
            worker: ask.worker.clone(),
        };
        Some(Taking { ask, room: next.ask.room.clone() })
    }

    /// Applies the changes of a round, and takes what may be taken with them. Returns what was taken for each item.
    pub(super) async fn apply_and_take(
        &self,
        changes: Vec<Change>,
        takes: Vec<Option<Taking>>,
    ) -> (Vec<Result<Applied, Denied>>, Vec<Option<Delivery>>) {
        let rules = self.rules();
        let asks: Vec<TakeAsk> = takes.iter().flatten().map(|take| take.ask.clone()).collect();
        if asks.is_empty() {
            let nothing = takes.iter().map(|_| None).collect();
            return (self.0.store.apply(changes, &rules).await, nothing);
        }
        let Taken { applied, claims, unknown } = self.0.store.apply_and_take(changes, &asks, &rules).await;
        unknown.into_iter().for_each(|(queue, claim)| self.recover(queue, claim, true));
        self.offer(claims.offers);
        claims.resume.into_iter().for_each(|(queue, at)| self.resume_at(queue, at));
        let mut won = claims.won.into_iter();
        let delivery = |take: Option<Taking>| {
            let (take, won) = (take?, won.next()?.ok()?);
            let (queues, room) = (self.clone(), take.room);
            let (coming, parts) = (None, Vec::new());
            let mut delivery =
                Delivery { queues, room, max_bytes: None, is_marked: true, won, coming, parts };
            delivery.cut();
            Some(delivery)
        };
        (applied, takes.into_iter().map(delivery).collect())
    }

    /// Returns the queues that these jobs are in, of those that are there.
    pub async fn queues_of_jobs(&self, ids: &[JobId]) -> Result<Vec<QueueName>> {
        let mut queues = Vec::with_capacity(ids.len());
        for ids in ids.chunks(READ_AT_ONCE) {
            let jobs = self.0.store.get(ids).await?;
            queues.extend(jobs.into_iter().flatten().flatten().map(|job| job.meta.queue));
        }
        Ok(queues)
    }

    /// Returns the queues of the jobs that these settles hold. What is not held any more may be where the caller must not know of; with its
    /// settle nothing is taken.
    pub async fn queues_of_held(&self, settles: &[Settle]) -> Result<Vec<QueueName>> {
        let mut queues = Vec::with_capacity(settles.len());
        for settles in settles.chunks(READ_AT_ONCE) {
            let ids: Vec<JobId> = settles.iter().map(|settle| settle.id.clone()).collect();
            let jobs = self.0.store.get(&ids).await?;
            queues.extend(jobs.into_iter().zip(settles).filter_map(|(job, settle)| {
                let meta = job?.ok()?.meta;
                (meta.state == State::Reserved && meta.claim == settle.claim).then_some(meta.queue)
            }));
        }
        Ok(queues)
    }

    /// Refuses a request for the next jobs that is not valid.
    fn check_next(&self, next: &NextAsk, settles: &[Settle]) -> Result<()> {
        if !settles.is_empty() && settles.iter().all(|settle| ending(settle).is_none()) {
            let detail =
                "goes with at least one commit, rollback or move: the jobs are taken where a delivery ends";
            return Err(Error::invalid("/next", detail));
        }
        let mut ask = next.ask.clone();
        if !next.names_queues {
            ask.queues = vec![QueuePattern::Prefix("".into())];
        }
        check_reserve(&ask).map_err(|error| error.under("/next"))
    }

    /// Settles jobs like [`Queues::settle`], and takes the next ones.
    pub async fn settle_and_take(
        &self,
        settles: Vec<Settle>,
        next: NextAsk,
    ) -> Result<(Vec<Result<Settled>>, Next)> {
        self.check_next(&next, &settles)?;
        let marks: Vec<Option<Mark>> = settles.iter().map(|settle| self.mark(settle)).collect();
        let claims: Vec<Option<Claim>> = settles.iter().map(|settle| settle.claim.clone()).collect();
        let (mut settled, taken) = match self.beside(&settles, &marks, &next) {
            Some((ask, claim)) => self.settle_beside(settles, &ask, &claim).await,
            None => self.settle_with(settles, self.taking(&next, &marks)).await,
        };
        faults::point("next.settled").await;
        if !settled.iter().any(may_be_repeated) {
            return self.taken_or_more(settled, taken, &marks, next).await;
        }
        let doubtful = settled.iter().zip(&marks).filter(|(settled, _)| may_be_repeated(settled));
        let doubtful: Vec<&Mark> = doubtful.filter_map(|(_, mark)| mark.as_ref()).collect();
        // This call's own are on their way: they are no proof, and are given back if there are others.
        let own: Vec<Claim> =
            taken.iter().flat_map(|taken| &taken.won).filter_map(|job| job.meta.claim.clone()).collect();
        match self.taken_before(&doubtful, &own, &next).await {
            Ok((jobs, _)) if jobs.is_empty() => {}
            Ok((mut jobs, _turn)) => {
                self.prove(&mut settled, &claims, &marks, &jobs, &next.within).await;
                // Its response is that the reservation is lost. The jobs stay as they are: the first call, or another repeat, may have
                // handed them to its client.
                if matches!(&*settled, [Err(Error::ReservationLost { .. })]) {
                    return Ok((settled, Next::default()));
                }
                keep_one_call(&mut jobs);
                match self.hand_out_again(jobs, &next).await {
                    // Meanwhile they were settled, or given back: a call that only repeats takes no others.
                    Ok(jobs) if jobs.is_empty() => {}
                    Ok(jobs) => return Ok((settled, Next { jobs, problem: None })),
                    Err(error) => return Ok((settled, Next { jobs: Vec::new(), problem: Some(error) })),
                }
            }
            // None of it is refused, and most likely it is this call that did it: most calls have no repeat.
            Err(_)
                if settled.iter().all(Result::is_ok) && !settled.iter().flatten().any(|one| one.repeated) => {
            }
            Err(error) => {
                // What was not found by the store alone may have happened.
                let lost = settled.iter_mut().filter(|settled| settled.is_err());
                lost.filter(|settled| may_be_repeated(settled))
                    .for_each(|settled| *settled = Err(error.clone()));
                return Ok((settled, Next { jobs: Vec::new(), problem: Some(error) }));
            }
        }
        self.taken_or_more(settled, taken, &marks, next).await
    }

    /// Hands over what was taken with settles that took effect by this call, or takes jobs now. Where a settle failed after all, what was
    /// taken with it is given back.
    async fn taken_or_more(
        &self,
        settled: Vec<Result<Settled>>,
        taken: Option<Delivery>,
        marks: &[Option<Mark>],
        next: NextAsk,
    ) -> Result<(Vec<Result<Settled>>, Next)> {
        let has_ended = |settled: &Result<Settled>| settled.as_ref().is_ok_and(|settled| !settled.repeated);
        if let Some(taken) = taken.filter(|taken| !taken.won.is_empty() && settled.iter().all(has_ended)) {
            let jobs = taken.hand_over();
            self.count_deliveries(&jobs);
            return Ok((settled, Next { jobs, problem: None }));
        }
        let next = self.take_next(&settled, marks, next).await;
        Ok((settled, next))
    }

    /// Returns what may be claimed while this settle is carried out, and the claim: it is a commit that surely ends its job, and nothing
    /// that it frees comes before what is there.
    fn beside(
        &self,
        settles: &[Settle],
        marks: &[Option<Mark>],
        next: &NextAsk,
    ) -> Option<(ReserveAsk, Claim)> {
        let ([Settle { id, claim, action: Action::Commit { push, .. } }], [Some(mark)]) = (settles, marks)
        else {
            return None;
        };
        if !push.is_empty() || self.is_draining() || !next.ask.room.is_left() {
            return None;
        }
        let (from, until) = self.0.store.ends_alone(id, claim.as_ref()?)?;
        let mut ask = next.ask.clone();
        if !next.names_queues {
            if !next.within.has(&from) {
                return None;
            }
            ask.queues = vec![QueuePattern::One(from)];
        }
        Some((ask, mark.claim_beside(until)))
    }

    /// Settles, and meanwhile claims once, without waiting. What is claimed is given back where the job is not done then; whether it is
    /// where that is in doubt, is the caller's business.
    async fn settle_beside(&self, settles: Vec<Settle>, ask: &ReserveAsk, claim: &Claim) -> SettledAndTaken {
        let (settled, taken) = tokio::join!(self.settle_with(settles, None), self.claim_beside(ask, claim));
        let is_done = |settled: &Result<Settled>| {
            let is_done = |settled: &Settled| settled.outcome == Outcome::Done;
            settled.as_ref().is_ok_and(is_done) || may_be_repeated(settled)
        };
        let taken = taken.ok().filter(|_| settled.0.iter().all(is_done));
        (settled.0, taken)
    }

    fn mark(&self, settle: &Settle) -> Option<Mark> {
        Some(self.0.tokens.get()?.mark(settle.claim.as_ref()?, &settle.id, ending(settle)?))
    }

    /// Takes jobs where this call has ended a delivery.
    async fn take_next(&self, settled: &[Result<Settled>], marks: &[Option<Mark>], next: NextAsk) -> Next {
        let ended = |(settled, mark): (&Result<Settled>, &Option<Mark>)| {
            let Settled { outcome, at, .. } = settled.as_ref().ok().filter(|settled| !settled.repeated)?;
            Some(mark.as_ref()?.claim(Ended::of(outcome, *at)?))
        };
        let Some(claim) = settled.iter().zip(marks).find_map(ended) else { return Next::default() };
        let mut ask = next.ask;
        if !next.names_queues {
            let mut seen = HashSet::new();
            let from = settled.iter().flatten().filter_map(|settled| settled.from.clone());
            let from = from.filter(|queue| next.within.has(queue) && seen.insert(queue.clone()));
            ask.queues = from.take(QUEUES_MAX).map(QueuePattern::One).collect();
        }
        match self.reserve_next(&ask, claim).await {
            Ok(jobs) => Next { jobs, problem: None },
            Err(error) => Next { jobs: Vec::new(), problem: Some(error) },
        }
    }

    /// Returns what other calls of these settles have taken and what is still held, and the turn for it: any number of repeats may come at
    /// once.
    async fn taken_before(
        &self,
        marks: &[&Mark],
        own: &[Claim],
        next: &NextAsk,
    ) -> Result<(Vec<Job>, SemaphorePermit<'_>)> {
        hold::release(); // what came with the request has had its effect
        let turn = tokio::time::timeout(TURN_WAIT, self.0.repeats.acquire()).await;
        let turn = turn.map_err(|_| Error::Overloaded)?.map_err(|_| Error::Overloaded)?;
        if !next.ask.room.is_left() {
            return Err(Error::NoRoom);
        }
        let marks: Vec<Mark> = marks.iter().map(|mark| (*mark).clone()).collect();
        let mut jobs = self.0.store.marked(&marks).await?;
        let is_own = |job: &Job| job.meta.claim.as_ref().is_some_and(|claim| own.contains(claim));
        jobs.retain(|job| next.within.has(&job.meta.queue) && !is_own(job));
        faults::point("next.found").await;
        Ok((jobs, turn))
    }

    /// Hands out again what is still held of these jobs, for another lease.
    async fn hand_out_again(&self, jobs: Vec<Job>, next: &NextAsk) -> Result<Vec<Job>> {
        let rules = self.rules();
        let change = |job: &Job| {
            let claim = job.meta.claim.clone()?;
            let asked = next.ask.lease_ms.or(job.meta.default_lease_ms);
            let lease_ms = asked.unwrap_or_else(|| rules.lease_ms(&job.meta.queue));
            let operation = Operation::TakeOver { claim: claim.clone(), to: claim, lease_ms };
            Some(Change { id: job.meta.id.clone(), operation })
        };
        let changes: Vec<Change> = jobs.iter().filter_map(change).collect();
        let mut held = Vec::with_capacity(jobs.len());
        for (mut job, applied) in jobs.into_iter().zip(self.0.store.apply(changes, &rules).await) {
            match applied.map(|applied| applied.outcome) {
                Ok(Outcome::Held { reserved_until, cancel_requested }) => {
                    self.note_deadline(reserved_until);
                    job.meta.reserved_until = Some(reserved_until);
                    job.meta.cancel_requested = cancel_requested;
                    held.push(job);
                }
                // Settled, lapsed or given back meanwhile.
                Ok(_) | Err(Denied::Refused(_) | Denied::PushRefused(_) | Denied::KeyTaken(_)) => {}
                Err(Denied::Store(StoreError::Unreadable(_))) => {}
                Err(Denied::Store(error)) => return Err(error.into()),
            }
        }
        Ok(held)
    }

    /// Says of settles that seem to be lost what the jobs prove that were taken with them: they took effect, and how they ended. Of a queue
    /// that the caller does not reach it says nothing.
    async fn prove(
        &self,
        settled: &mut [Result<Settled>],
        claims: &[Option<Claim>],
        marks: &[Option<Mark>],
        jobs: &[Job],
        within: &Reach,
    ) {
        for ((settled, claim), mark) in settled.iter_mut().zip(claims).zip(marks) {
            let Err(Error::ReservationLost { id, gone }) = &*settled else { continue };
            let (Some(mark), Some(claim)) = (mark, claim) else { continue };
            let ended_by = |job: &Job| Some((mark.ended(job.meta.claim.as_ref()?)?, job.meta.clone()));
            let Some((ended, meta)) = jobs.iter().find_map(ended_by) else { continue };
            let until = || mark.proven_until(meta.claim.as_ref()?, meta.started_at?);
            let proven = match ended {
                // A job that is there is not done: a primary that was lost may have taken its end with it.
                Ended::Sent | Ended::Done if !*gone => Ok(false),
                Ended::Sent => match until() {
                    Some(until) => self.0.store.prove_commit(id, claim, until).await,
                    None => Ok(false),
                },
                _ => Ok(true),
            };
            match proven {
                Ok(true) => *settled = self.ended_so(id.clone(), ended, meta.queue, within).await,
                Ok(false) => {}
                Err(error) => *settled = Err(error.into()),
            }
        }
    }

    /// Returns the response to a retried settle with this outcome. Where a job that came back is, and when it is due, is read of the job
    /// as it is now; for one that has gone, or is where the caller does not reach, it is omitted.
    async fn ended_so(
        &self,
        id: JobId,
        ended: Ended,
        somewhere: QueueName,
        within: &Reach,
    ) -> Result<Settled> {
        let now = self.now()?;
        let found = self.0.store.get(std::slice::from_ref(&id)).await?;
        let meta = found.into_iter().flatten().flatten().next().map(|job| job.meta);
        let meta = meta.filter(|meta| within.has(&meta.queue));
        let has_gone = meta.is_none();
        let (outcome, at) = match ended {
            Ended::Done | Ended::Sent => (Outcome::Done, now),
            Ended::Removed => (Outcome::Removed, now),
            Ended::Dead { moved } => {
                let moved_to = meta.filter(|_| moved).map(|meta| meta.queue);
                (Outcome::Dead { moved_to }, now)
            }
            Ended::Returned(state) => {
                let (queue, run_at) = meta.map_or((somewhere, now), |meta| (meta.queue, meta.run_at));
                let before = Timestamp::from_millis(run_at.millis().saturating_sub(1));
                let at = if state == Visible::Scheduled { before } else { run_at };
                (Outcome::Returned { queue, run_at, blocked: state == Visible::Blocked }, at)
            }
        };
        let (pushed, repeated, perhaps_earlier) = (Vec::new(), true, false);
        Ok(Settled { id, outcome, from: None, has_gone, pushed, at, repeated, perhaps_earlier })
    }
}
