//! Reserve and pop: claim jobs, or wait for some.
//!
//! A claim goes on without the client that asked for it; what it wins for a client that has left, or does not
//! wait any more, is given back at once, the attempt not counted.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::ask::{PopAsk, ReserveAsk};
use super::claiming::By;
use super::delivery::Delivery;
use super::keyed_pop::PopOnce;
use super::meter::Event;
use super::once::{Once, TURN_WAIT};
use super::rounds::{Item, Limits, Rounds};
use super::turns::Turns;
use super::waiters::Ticket;
use super::{Error, Queues, Result, Shared};
use crate::faults;
use crate::job::settings::{LEASE_MAX_MS, LEASE_MIN_MS};
use crate::job::transition::Operation;
use crate::job::{Caller, Claim, Job, JobId, QueueName, QueuePattern, Reservation, State, WorkerName};
use crate::store::hold;
use crate::store::{self, Change, ClaimAsk, Claims, StoreError};
use crate::telemetry::trace;

/// The most jobs of one reserve or pop.
pub const COUNT_MAX: usize = 1000;
/// After how long a call that waits checks again whether there is memory for its jobs and its response.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(100);
/// The longest that a reserve or pop may wait, in milliseconds.
pub const WAIT_MAX_MS: u64 = 60_000;
/// The most queues of one reserve.
pub const QUEUES_MAX: usize = 100;
/// How long a pop holds jobs until it has taken them away, in milliseconds.
const POP_LEASE_MS: u64 = 30_000;
/// Why a wait ends while the store stays away.
pub(super) const STAYED_AWAY: &str = "the store stayed away while the call waited";

/// What a claim is for.
#[derive(Clone)]
enum Purpose {
    /// A worker works on the jobs and settles them.
    Reserve,
    /// The same, recorded for repeats of the request.
    ReserveOnce(Once),
    /// The same, with this claim, by which a repeat of the settle that they come with finds them.
    ReserveNext(Claim),
    /// The jobs are done as soon as they are taken.
    Pop,
    /// The same, together with the answer for repeats of the request.
    PopOnce(PopOnce),
}

/// A request for jobs of the queue in whose lane it travels.
pub(super) struct Wanted {
    pub count: usize,
    /// The claim of a keyed request or of a settle; others share that of their round.
    pub claim: Option<Claim>,
    pub lease_ms: u64,
    pub yields: bool,
    pub worker: Option<WorkerName>,
    pub pop: bool,
}

/// What a round has come to for one request.
#[derive(Default)]
pub(super) struct Won {
    pub jobs: Vec<Job>,
    /// Whether there may be jobs, of which the round has none for this request: they are large, and others have got as much as one call
    /// of the store reads. It is to be sent again.
    pub is_again: bool,
}

/// Claims on their way, a lane for each queue: those that wait for one queue share a round.
pub(super) type ClaimRounds = Arc<Rounds<QueueName, Wanted, store::Result<Won>>>;

impl Item for Wanted {
    fn weight(&self) -> usize {
        self.count
    }
}

pub(super) fn rounds(shared: &Weak<Shared>, turns: &Arc<Turns>) -> ClaimRounds {
    let shared = shared.clone();
    // One at a time: two rounds of one queue would be after the same jobs.
    Rounds::taking_turns(
        Limits { round: COUNT_MAX, overlap: 1, large: COUNT_MAX, waiting: 1_000_000 },
        ("claim", turns),
        move |queue: QueueName, wanted: Vec<Wanted>| {
            let shared = shared.upgrade();
            Box::pin(async move {
                match shared {
                    Some(shared) => Queues(shared).claim_round(queue, wanted).await,
                    None => Vec::new(),
                }
            })
        },
    )
}

fn check(count: usize, wait_ms: u64) -> Result<()> {
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(Error::invalid("/count", "must be 1 to 1000"));
    }
    if wait_ms > WAIT_MAX_MS {
        return Err(Error::invalid("/wait_ms", "must be 0 to 60000"));
    }
    Ok(())
}

/// Refuses the first value of a reserve that is out of its range.
pub(super) fn check_reserve(ask: &ReserveAsk) -> Result<()> {
    check(ask.count, ask.wait_ms)?;
    if ask.lease_ms.is_some_and(|ms| !(LEASE_MIN_MS..=LEASE_MAX_MS).contains(&ms)) {
        return Err(Error::invalid("/lease_ms", "must be 100 to 86400000"));
    }
    if !(1..=QUEUES_MAX).contains(&ask.queues.len()) {
        return Err(Error::invalid("/queues", "must be 1 to 100 queues"));
    }
    if ask.max_bytes == Some(0) {
        return Err(Error::invalid("/max_bytes", "must be at least 1"));
    }
    Ok(())
}

impl Queues {
    /// Returns the token of a reserved job.
    pub fn reservation(&self, job: &Job) -> Option<Reservation> {
        Some(self.0.tokens.get()?.reservation(job.meta.claim.as_ref()?, &job.meta.id))
    }

    /// Returns the claim behind the token that a caller sends for this job, if it is one.
    pub fn claim_behind(&self, token: &str, id: &JobId, caller: &Caller) -> Option<Claim> {
        self.0.tokens.get()?.claim(&token.parse().ok()?, id, caller.is_known())
    }

    /// Takes jobs for a limited time; the most urgent first, queue by queue. Empty when nothing came in time.
    pub async fn reserve(&self, ask: ReserveAsk) -> Result<Vec<Job>> {
        check_reserve(&ask)?;
        match &ask.idempotency_key {
            None => self.take(&ask, Purpose::Reserve).await,
            Some(key) => self.reserve_once(&ask, key).await,
        }
    }

    /// Takes jobs with a settle, under a claim by which a repeat of it finds them. What is asked is valid.
    pub(super) async fn reserve_next(&self, ask: &ReserveAsk, claim: Claim) -> Result<Vec<Job>> {
        self.take(ask, Purpose::ReserveNext(claim)).await
    }

    /// Claims once, while the settle is carried out that this claim belongs to, and which waits for nothing else.
    pub(super) async fn claim_beside(&self, ask: &ReserveAsk, claim: &Claim) -> Result<Delivery> {
        let (mut delivery, parts) =
            self.claim_from_queues(ask, By::Settle(claim), false, Duration::ZERO).await?;
        delivery.parts = parts; // until the settle is done
        Ok(delivery)
    }

    /// Takes jobs away: each is delivered at most once.
    pub async fn pop(&self, ask: PopAsk) -> Result<Vec<Job>> {
        self.pop_by(ask, None).await
    }

    /// The same for a keyed pop.
    pub(super) async fn pop_by(&self, ask: PopAsk, once: Option<PopOnce>) -> Result<Vec<Job>> {
        check(ask.count, ask.wait_ms)?;
        let purpose = once.map_or(Purpose::Pop, Purpose::PopOnce);
        let ask = ReserveAsk {
            queues: vec![QueuePattern::One(ask.queue)],
            count: ask.count,
            max_bytes: None,
            wait_ms: ask.wait_ms,
            may_wait: ask.may_wait,
            lease_ms: Some(POP_LEASE_MS),
            worker: None,
            idempotency_key: None,
            credential: ask.credential,
            room: ask.room,
        };
        self.take(&ask, purpose).await
    }

    /// Reserves under an idempotent request.
    pub(super) async fn take_once(&self, ask: &ReserveAsk, once: Once) -> Result<Vec<Job>> {
        self.take(ask, Purpose::ReserveOnce(once)).await
    }

    /// Claims jobs until there are some or the time is over.
    async fn take(&self, ask: &ReserveAsk, purpose: Purpose) -> Result<Vec<Job>> {
        let deadline = Instant::now() + Duration::from_millis(ask.wait_ms);
        // Waiting calls have places of their own, so that they leave connections for those that bring or end work.
        let may_wait = ask.wait_ms > 0 && ask.may_wait;
        let place = if may_wait { self.0.waiting.try_acquire().ok() } else { None };
        let is_pop = matches!(purpose, Purpose::Pop | Purpose::PopOnce(_));
        let ticket = place.as_ref().map(|_| self.0.waiters.register(&ask.queues, is_pop));
        if ticket.is_some() {
            hold::release(); // what came with the request is parsed, and a settle is done
        }
        // Who waits tries again, and lets others go on meanwhile; the response of a settle waits for nothing else.
        let is_at_once = ticket.is_some() || matches!(purpose, Purpose::ReserveNext(_));
        let patience = if is_at_once { Duration::ZERO } else { TURN_WAIT };
        loop {
            // A stop ends what waits. A call that does not wait is carried out: empty, its response says that no job is ready.
            if ask.wait_ms > 0 && self.is_draining() {
                return Ok(Vec::new());
            }
            let claimed = if ask.room.is_left() {
                ticket.iter().for_each(Ticket::begin_query);
                self.claim(ask, purpose.clone(), patience).await
            } else {
                Err(Error::NoRoom)
            };
            let jobs = match (claimed, &ticket) {
                (Err(Error::NoRoom), Some(ticket)) => {
                    self.pause_without_room(ask, ticket, deadline).await?;
                    continue;
                }
                (claimed, _) => claimed?,
            };
            let Some(ticket) = &ticket else {
                return if jobs.is_empty() && ask.wait_ms > 0 {
                    Err(Error::TooManyWaiting)
                } else {
                    Ok(jobs)
                };
            };
            ticket.end_query(jobs.iter().map(|job| &job.meta.queue));
            if !jobs.is_empty() || Instant::now() >= deadline {
                return Ok(jobs);
            }
            ticket.sleep();
            self.0.due.wake_if_dormant();
            tokio::select! {
                () = ticket.woken() => {}
                () = tokio::time::sleep_until(deadline) => return Ok(Vec::new()),
                () = self.0.draining.cancelled() => return Ok(Vec::new()),
                () = self.0.away.notified() => return Err(StoreError::unavailable(STAYED_AWAY).into()),
                ended = self.ended(&ask.credential) => return Err(ended),
            }
            self.check_credential(&ask.credential)?; // both may have come
        }
    }

    /// Lets a call that waits pause where there is no room for what it asks for: one wake-up would else throw out all, one after the other.
    /// Others, which may ask for less, get its wake-ups meanwhile.
    async fn pause_without_room(
        &self,
        ask: &ReserveAsk,
        ticket: &Ticket<'_>,
        deadline: Instant,
    ) -> Result<()> {
        let now = Instant::now();
        if now >= deadline {
            return Err(Error::NoRoom);
        }
        let until = deadline.min(now + NO_ROOM_PAUSE);
        ticket.leave();
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            () = self.0.draining.cancelled() => {}
        }
        ticket.return_to_line();
        self.check_credential(&ask.credential)
    }

    /// Claims once. `patience`: for how long it waits for its part of the memory.
    async fn claim(&self, ask: &ReserveAsk, purpose: Purpose, patience: Duration) -> Result<Vec<Job>> {
        let jobs = match purpose {
            Purpose::Reserve => self.claim_from_queues(ask, By::Round, false, patience).await?.0.hand_over(),
            Purpose::ReserveNext(claim) => {
                self.claim_from_queues(ask, By::Settle(&claim), false, patience).await?.0.hand_over()
            }
            Purpose::Pop => {
                let (won, _parts) = self.claim_from_queues(ask, By::Round, true, patience).await?;
                let jobs = won.hand_over();
                faults::point("pop.claimed").await;
                self.finish_pop(&jobs).await?
            }
            Purpose::ReserveOnce(once) => return self.claim_once(ask, once, patience).await,
            Purpose::PopOnce(once) => {
                let (this, ask) = (self.clone(), ask.clone());
                // In a task that outlives the client: what it has claimed is answered, or given back.
                let popping = hold::spawn(trace::carrying(async move {
                    let by = By::Request(&once.claim);
                    let (won, _parts) = this.claim_from_queues(&ask, by, true, patience).await?;
                    let jobs = won.hand_over();
                    faults::point("pop.claimed").await;
                    this.finish_pop_once(jobs, once).await
                }));
                return popping.await.unwrap_or_else(|error| Err(StoreError::internal(error).into()));
            }
        };
        self.count_deliveries(&jobs);
        Ok(jobs)
    }

    /// Claims once for an idempotent request, in a task that outlives the client: what it wins waits for a
    /// repeat.
    async fn claim_once(&self, ask: &ReserveAsk, once: Once, patience: Duration) -> Result<Vec<Job>> {
        let (this, ask) = (self.clone(), ask.clone());
        let claiming = hold::spawn(trace::carrying(async move {
            let guard = once.claiming().await;
            let by = By::Request(once.claim());
            let (won, _parts) = this.claim_from_queues(&ask, by, false, patience).await?;
            let jobs = won.hand_over();
            faults::point("request.claimed").await;
            let jobs = guard.won(jobs).await?;
            faults::point("request.closed").await;
            this.count_deliveries(&jobs);
            Ok(jobs)
        }));
        claiming.await.unwrap_or_else(|error| Err(StoreError::internal(error).into()))
    }

    /// Runs one round of claims, and passes on which semaphores and queues may have room for others.
    ///
    /// The requests of one round share a claim, those that pop another one, so that what all of them win is written alike: their tokens
    /// differ by their signatures. What such a claim may have won where it failed, the round itself gives back, since only it knows
    /// that it failed for all.
    async fn claim_round(&self, queue: QueueName, wanted: Vec<Wanted>) -> Vec<store::Result<Won>> {
        let rules = self.rules();
        // Only now: the requests may have waited for the round before while the queue was paused.
        if rules.paused(&queue) {
            return wanted.iter().map(|_| Ok(Won::default())).collect();
        }
        let (for_reserves, for_pops) = (Claim::random(), Claim::random());
        let shared = |pop: bool| if pop { &for_pops } else { &for_reserves };
        let ask = |Wanted { count, claim, lease_ms, yields, worker, pop }| {
            let claim = claim.unwrap_or_else(|| shared(pop).clone());
            ClaimAsk { queue: queue.clone(), count, claim, lease_ms, yields, worker, pop }
        };
        let asks: Vec<ClaimAsk> = wanted.into_iter().map(ask).collect();
        let Claims { won, resume, offers, refused, again } = self.0.store.claim(&asks, &rules).await;
        for claim in [&for_reserves, &for_pops] {
            let failed = |(ask, won): (&ClaimAsk, &store::Result<_>)| ask.claim == *claim && won.is_err();
            if asks.iter().zip(&won).any(failed) {
                self.recover(queue.clone(), claim.clone(), false);
            }
        }
        self.offer(offers);
        self.note_refused(refused);
        resume.into_iter().for_each(|(queue, at)| self.resume_at(queue, at));
        let is_left = |jobs: &[Job]| jobs.is_empty() && again.contains(&queue);
        won.into_iter().map(|won| won.map(|jobs| Won { is_again: is_left(&jobs), jobs })).collect()
    }

    /// Finishes the jobs that a pop holds, and returns them without those that it lost in the meantime.
    async fn finish_pop(&self, jobs: &[Job]) -> Result<Vec<Job>> {
        if jobs.is_empty() || faults::bug("keep_popped") {
            return Ok(jobs.to_vec());
        }
        let pop = |job: &Job| {
            let operation = Operation::Pop { claim: job.meta.claim.clone()? };
            Some(Change { id: job.meta.id.clone(), operation })
        };
        let changes: Vec<Change> = jobs.iter().filter_map(pop).collect();
        let mut popped = Vec::with_capacity(jobs.len());
        let (mut unsure, mut failure) = (Vec::new(), None);
        for (job, settled) in jobs.iter().zip(self.settle_changes(changes).await) {
            match settled {
                Ok(_) => {
                    let mut job = job.clone();
                    (job.meta.state, job.meta.reserved_until) = (State::Done, None);
                    job.meta.finished_at = self.now().ok();
                    popped.push(job);
                }
                Err(error) => {
                    unsure.push(job.clone());
                    failure = Some(error);
                }
            }
        }
        // Those that were taken away after all are not there to be given back.
        self.return_jobs(unsure, false);
        match failure {
            // The claim is stored, whatever became of the rest.
            Some(error) if popped.is_empty() => Err(error.after(1)),
            _ => Ok(popped),
        }
    }

    pub(super) fn count_deliveries(&self, jobs: &[Job]) {
        let mut notes = self.meter().notes();
        for Job { meta, .. } in jobs {
            notes.count(&meta.queue, Event::Reserved);
            if let Some(started_at) = meta.started_at {
                notes.queue_time(&meta.queue, started_at.ms_since(meta.run_at));
            }
        }
        drop(notes);
        self.trace_deliveries(jobs);
        if let Some(first) = jobs.iter().filter_map(|job| job.meta.reserved_until).min() {
            self.note_deadline(first);
        }
    }
}
