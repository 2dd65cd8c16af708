//! Reserves with an `Idempotency-Key`: a repeat returns the same jobs, on whichever server.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::quotas::Places;
use super::{Error, Queues, ReserveAsk, Result};
use crate::faults;
use crate::job::settings::LEASE_MAX_MS;
use crate::job::transition::Operation;
use crate::job::{Claim, Job, JobId, QueueName, State, Timestamp};
use crate::store::hold;
use crate::store::{self, Change, Denied, Opened, Request, StoreError};

/// How much longer than its wait a request may run before it counts as dead, in milliseconds.
const GRACE_MS: u64 = 10_000;
/// How long a server that is not heard of counts as alive, in milliseconds: then repeats take over what it ran. A server
/// that was only slow loses nothing but its turn.
const ALIVE_MS: u64 = 700;
/// How often a server says that it is alive, while it runs keyed reserves.
const BEAT: Duration = Duration::from_millis(200);
/// The longest pause before a repeat checks again. With it a request of a server that was killed is taken over within a second.
const PAUSE_MAX: Duration = Duration::from_millis(100);
const _: () = assert!(
    ALIVE_MS + PAUSE_MAX.as_millis() as u64 <= 800,
    "the rest of the second is for the takeover itself"
);
/// What stands for the queues in the ids of reserves whose path names none. Shorter than the hash that stands there else.
const ANY_LIST: &str = "*";
/// How long to wait before a request is closed again.
const CLOSE_AGAIN: Duration = Duration::from_millis(500);

/// The client's own name for a request: 1 to 255 visible ASCII characters. Another client may use the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    text: String,
    client: String,
    /// Whether the path of the call names no queue: then the list of queues is a part of what is asked.
    is_of_lists: bool,
}

impl std::str::FromStr for IdempotencyKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let valid = (1..=255).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        let key = || Self { text: text.to_owned(), client: String::new(), is_of_lists: false };
        if valid { Ok(key()) } else { Err("must be 1 to 255 visible ASCII characters") }
    }
}

impl IdempotencyKey {
    /// Returns this key of a client, by what identifies the client.
    pub fn of(self, client: &str) -> Self {
        Self { client: client.to_owned(), ..self }
    }

    /// Returns this key for a reserve whose path names no queue: with another list of queues it is another request under the same key.
    pub fn of_lists(self) -> Self {
        Self { is_of_lists: true, ..self }
    }

    /// Returns what identifies the client, and the client's own name for the request.
    pub(super) fn parts(&self) -> (&str, &str) {
        (&self.client, &self.text)
    }

    /// Returns what distinguishes the key from those of other requests and clients. Neither of the parts before it has a colon.
    fn id(&self) -> String {
        let by = if self.client.is_empty() { "" } else { "@" };
        format!("{by}{}:{}", self.client, self.text)
    }

    /// Returns a hash of the key and its client, a text of the same length for every key.
    pub(super) fn digest(&self) -> String {
        let mut digest = Sha256::new();
        digest.update(&self.text);
        if !self.client.is_empty() {
            digest.update([0]); // neither of the texts has it
            digest.update(&self.client);
        }
        URL_SAFE_NO_PAD.encode(digest.finalize())
    }
}

/// One run of an idempotent request.
#[derive(Clone)]
pub struct Once {
    queues: Queues,
    request: Arc<Request>,
    /// Held while a claim is under way; true once the request has won something, whatever becomes of that.
    won: Arc<Mutex<bool>>,
    alive: Arc<OnceLock<Alive>>,
}

/// A claim in flight for an idempotent request.
pub struct Claiming {
    once: Once,
    won: OwnedMutexGuard<bool>,
}

impl Once {
    /// Returns the claim that all of the request's jobs carry.
    pub fn claim(&self) -> &Claim {
        &self.request.claim
    }

    /// Waits for a claim before it, and makes [`Forget`] wait until the outcome of this one is known.
    pub async fn claiming(&self) -> Claiming {
        Claiming { once: self.clone(), won: self.won.clone().lock_owned().await }
    }

    /// Announces the request, in a task that outlives the client. Where it is this run's own, or may be since the store
    /// failed, it is forgotten with what is returned, also if the client has left and gets nothing returned.
    async fn open(&self) -> Result<(Opened, Forget)> {
        let once = self.clone();
        let opening = hold::spawn(async move {
            let mut forget = Forget(Some(once.clone()));
            let opened = once.queues.0.store.open_request(&once.request).await?;
            if matches!(opened, Opened::New | Opened::TakenOver { .. }) {
                once.alive.get_or_init(|| Alive::new(once.queues.clone()));
            } else {
                forget.0 = None;
            }
            Ok((opened, forget))
        });
        opening.await.unwrap_or_else(|error| Err(StoreError::internal(error).into()))
    }

    /// Writes the jobs into the request's record; `false`: another run has taken it over.
    async fn close(&self, jobs: &[Job]) -> store::Result<bool> {
        let held_until = jobs.iter().filter_map(|job| job.meta.reserved_until).max().unwrap_or_default();
        // A repeat that comes later finds that it holds nothing any more; it does not take other jobs.
        let ttl_ms = self.queues.options().idempotency_ttl_ms;
        let until = self.queues.0.store.now()?.plus_ms(ttl_ms).max(held_until);
        let ids: Vec<JobId> = jobs.iter().map(|job| job.meta.id.clone()).collect();
        self.queues.0.store.close_request(&self.request, &ids, until).await
    }
}

impl Claiming {
    /// Returns the jobs once the request's record names them: only then may a client get them. If another run has
    /// taken the request over they are given back, and this run is a repeat of that one.
    pub async fn won(mut self, jobs: Vec<Job>) -> Result<Vec<Job>> {
        if jobs.is_empty() {
            return Ok(jobs);
        }
        *self.won = true;
        match self.once.close(&jobs).await {
            Ok(true) => Ok(jobs),
            Ok(false) if faults::bug("hand_out_dead_tokens") => Ok(jobs),
            Ok(false) => {
                self.once.queues.return_jobs(jobs, false);
                Err(Error::RequestPending)
            }
            Err(error) => {
                tracing::warn!(error = %store::chain(&error), "a keyed reserve is not remembered yet");
                tokio::spawn(self.close_later(jobs));
                Err(error.after(1).into()) // the jobs are claimed
            }
        }
    }

    /// Closes the request once the store is back, so that a repeat gets the jobs; until their leases are over.
    async fn close_later(self, jobs: Vec<Job>) {
        let queues = &self.once.queues;
        let is_held = |now: Timestamp| jobs.iter().any(|job| job.meta.reserved_until > Some(now));
        while queues.now().is_ok_and(is_held) {
            tokio::time::sleep(CLOSE_AGAIN).await;
            match self.once.close(&jobs).await {
                Ok(true) => return,
                Ok(false) => return queues.clone().give_back(jobs, false).await,
                Err(_) => {}
            }
        }
    }
}

/// Forgets a request that ends without jobs, however it ends: with an empty response, an error, a client that left.
struct Forget(Option<Once>);

impl Drop for Forget {
    fn drop(&mut self) {
        let Some(once) = self.0.take() else { return };
        tokio::spawn(async move {
            let won = once.won.lock().await;
            faults::point("request.forget").await;
            if *won {
                return;
            }
            // Once the store is back: while this goes on, the request counts as running.
            while let Err(error) = once.queues.0.store.forget_request(&once.request).await {
                tracing::debug!(error = %store::chain(&error), "a reserve could not be forgotten");
                if once.queues.now().is_ok_and(|now| now >= once.request.pending_until) {
                    return;
                }
                tokio::time::sleep(CLOSE_AGAIN).await;
            }
        });
    }
}

/// What this server runs, and for how long others may count on that.
pub(super) struct Runs {
    runner: String,
    alive: std::sync::Mutex<Beats>,
}

#[derive(Default)]
struct Beats {
    /// How many requests run.
    running: usize,
    /// Whether a task keeps them alive.
    is_beating: bool,
}

impl Default for Runs {
    fn default() -> Self {
        Self { runner: Claim::random().as_str().to_owned(), alive: std::sync::Mutex::default() }
    }
}

impl Runs {
    fn beats(&self) -> std::sync::MutexGuard<'_, Beats> {
        self.alive.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A request that runs on this server. While there are some, a task says every [`BEAT`] that the server is alive.
struct Alive(Queues);

impl Alive {
    fn new(queues: Queues) -> Self {
        let mut beats = queues.0.runs.beats();
        beats.running += 1;
        if !std::mem::replace(&mut beats.is_beating, true) {
            tokio::spawn(beat(queues.clone()));
        }
        drop(beats);
        Self(queues)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.0.runs.beats().running -= 1;
    }
}

async fn beat(queues: Queues) {
    loop {
        tokio::time::sleep(BEAT).await;
        {
            let mut beats = queues.0.runs.beats();
            if beats.running == 0 {
                beats.is_beating = false;
                return;
            }
        }
        let Ok(now) = queues.now() else { continue };
        if let Err(error) = queues.0.store.keep_alive(&queues.0.runs.runner, now.plus_ms(ALIVE_MS)).await {
            tracing::debug!(error = %store::chain(&error), "cannot renew keyed requests; other servers may take them over");
        }
    }
}

/// How long a repeat waits for its turn to read what the first one won.
pub(super) const TURN_WAIT: Duration = Duration::from_secs(10);

impl Queues {
    /// Runs the request, or returns what it won when it ran before.
    pub(super) async fn reserve_once(&self, ask: &ReserveAsk, key: &IdempotencyKey) -> Result<Vec<Job>> {
        hold::release(); // it may wait for another run
        let mut place = Some(self.admit_request(&self.request(ask, key)?.id).await?);
        let patience = Instant::now() + Duration::from_millis(ask.wait_ms + GRACE_MS);
        let mut pause = Duration::from_millis(20);
        loop {
            match self.try_once(ask, key, &mut place).await {
                Err(Error::RequestPending) if Instant::now() < patience => {}
                ended => return ended,
            }
            // A wait like that for a job.
            let place = ask.may_wait.then(|| self.0.waiting.try_acquire().ok()).flatten();
            if place.is_none() {
                return Err(Error::RequestPending);
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // Not an empty response: what the first request wins is still to come.
                () = self.0.draining.cancelled() => return Err(Error::Draining),
            }
            self.check_credential(&ask.credential)?;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn try_once(
        &self,
        ask: &ReserveAsk,
        key: &IdempotencyKey,
        place: &mut Option<Places>,
    ) -> Result<Vec<Job>> {
        let request = Arc::new(self.request(ask, key)?);
        let once = Once { queues: self.clone(), request, won: Arc::default(), alive: Arc::default() };
        let (opened, _forget) = once.open().await?;
        // Counted by its record from here on.
        place.take().filter(|_| opened == Opened::New).into_iter().for_each(Places::keep_all);
        faults::point("request.opened").await;
        match opened {
            Opened::New => self.take_once(ask, once).await,
            Opened::TakenOver { previous } => match self.take_over(ask, &once, previous).await {
                Ok(jobs) if jobs.is_empty() => self.take_once(ask, once).await,
                ended => ended,
            },
            Opened::Finished { claim, ids } => {
                // What it won may be large, and any number of repeats may come at once.
                let turn = tokio::time::timeout(TURN_WAIT, self.0.repeats.acquire()).await;
                let turn = turn.map_err(|_| Error::RequestPending)?;
                if !ask.room.is_left() {
                    return Err(Error::NoRoom);
                }
                let held = self.still_held(&claim, &ids).await;
                drop(turn);
                held
            }
            Opened::Different => Err(Error::IdempotencyKeyReused),
            Opened::Pending => Err(Error::RequestPending),
        }
    }

    /// Gives the jobs that the run before has won to this one, in a task that outlives the client. From then on the
    /// token of that run is dead, so that what it still does, such as giving back what it takes for its own, does not
    /// concern jobs that the client of this one holds.
    async fn take_over(&self, ask: &ReserveAsk, once: &Once, previous: Claim) -> Result<Vec<Job>> {
        let (this, ask, once) = (self.clone(), ask.clone(), once.clone());
        let taking = hold::spawn(async move {
            let guard = once.claiming().await;
            let queues = this.expand(&ask.queues).await?;
            match this.move_claims(&ask, &queues, &previous, once.claim()).await {
                Ok(jobs) => guard.won(jobs).await,
                Err(error) => {
                    for claim in [&previous, once.claim()] {
                        queues.iter().for_each(|queue| this.recover(queue.clone(), claim.clone(), false));
                    }
                    Err(error.into())
                }
            }
        });
        taking.await.unwrap_or_else(|error| Err(StoreError::internal(error).into()))
    }

    /// Returns the jobs of these queues that `to` holds once it has everything that `from` held.
    async fn move_claims(
        &self,
        ask: &ReserveAsk,
        queues: &[QueueName],
        from: &Claim,
        to: &Claim,
    ) -> store::Result<Vec<Job>> {
        if faults::bug("share_claims") {
            return self.0.store.held(queues, from).await;
        }
        let rules = self.rules();
        let change = |job: Job| {
            let asked = ask.lease_ms.or(job.meta.default_lease_ms);
            let lease_ms = asked.unwrap_or_else(|| rules.lease_ms(&job.meta.queue));
            let operation = Operation::TakeOver { claim: from.clone(), to: to.clone(), lease_ms };
            Change { id: job.meta.id, operation }
        };
        let changes: Vec<Change> = self.0.store.held(queues, from).await?.into_iter().map(change).collect();
        faults::point("request.take_over").await;
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        for applied in self.0.store.apply(changes, &rules).await {
            match applied {
                // Lapsed or given back meanwhile.
                Ok(_) | Err(Denied::Refused(_) | Denied::PushRefused(_) | Denied::KeyTaken(_)) => {}
                Err(Denied::Store(error)) => return Err(error),
            }
        }
        self.0.store.held(queues, to).await
    }

    /// Those of the jobs that are still reserved as they were.
    async fn still_held(&self, claim: &Claim, ids: &[JobId]) -> Result<Vec<Job>> {
        let jobs = self.0.store.get(ids).await?;
        let held = |job: &Job| job.meta.state == State::Reserved && job.meta.claim.as_ref() == Some(claim);
        Ok(jobs.into_iter().flatten().flatten().filter(held).collect())
    }

    fn request(&self, ask: &ReserveAsk, key: &IdempotencyKey) -> Result<Request> {
        let queues: Vec<String> = ask.queues.iter().map(ToString::to_string).collect();
        let queues = URL_SAFE_NO_PAD.encode(Sha256::digest(queues.join("\n")));
        let mut body = format!("{:?}", (ask.count, ask.wait_ms, ask.lease_ms, &ask.worker));
        let mut path = queues.clone();
        if key.is_of_lists {
            body.push_str(&queues);
            path = ANY_LIST.to_owned();
        }
        if let Some(max_bytes) = ask.max_bytes {
            body.push_str(&format!(" of {max_bytes} bytes")); // without, the digest is that of older servers
        }
        let now = self.now()?;
        let pending_until = now.plus_ms(ask.wait_ms + GRACE_MS);
        Ok(Request {
            id: format!("{path}{}", key.id()),
            digest: Sha256::digest(body).into(),
            claim: Claim::random(),
            runner: self.0.runs.runner.clone(),
            alive_until: now.plus_ms(ALIVE_MS),
            pending_until,
            keep_until: pending_until.plus_ms(ask.lease_ms.unwrap_or(LEASE_MAX_MS)),
        })
    }
}
