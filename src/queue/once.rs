//! Reserves with an `Idempotency-Key`: a repeat returns the same jobs, on whichever server.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::{Error, Queues, ReserveAsk, Result};
use crate::job::transition::Operation;
use crate::job::{Claim, Job, JobId, QueueName, State, Timestamp};
use crate::store::{self, Change, Denied, Opened, Request, StoreError};

/// How much longer than its wait a request may run before it counts as dead, in milliseconds.
const GRACE_MS: u64 = 10_000;
/// How long to wait before a request is closed again.
const CLOSE_AGAIN: Duration = Duration::from_millis(500);

/// The client's own name for a request: 1 to 255 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

impl std::str::FromStr for IdempotencyKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let valid = (1..=255).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        if valid { Ok(Self(text.to_owned())) } else { Err("must be 1 to 255 visible ASCII characters") }
    }
}

impl IdempotencyKey {
    /// Returns a hash of the key, a text of the same length for every key.
    pub(super) fn digest(&self) -> String {
        URL_SAFE_NO_PAD.encode(Sha256::digest(&self.0))
    }
}

/// One run of an idempotent request.
#[derive(Clone)]
pub struct Once {
    queues: Queues,
    request: Arc<Request>,
    /// Held while a claim is under way; true once the request has won something, whatever becomes of that.
    won: Arc<Mutex<bool>>,
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

    /// Writes the jobs into the request's record; `false`: another run has taken it over.
    async fn close(&self, jobs: &[Job]) -> store::Result<bool> {
        let until = jobs.iter().filter_map(|job| job.meta.reserved_until).max().unwrap_or_default();
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
            Ok(false) => {
                tokio::spawn(self.once.queues.clone().give_back(jobs));
                Err(Error::RequestPending)
            }
            Err(error) => {
                tracing::warn!(error = %store::chain(&error), "a keyed reserve is not remembered yet");
                tokio::spawn(self.close_later(jobs));
                Err(error.into())
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
                Ok(false) => return queues.clone().give_back(jobs).await,
                Err(_) => {}
            }
        }
    }
}

/// Forgets a request that ends without jobs, however it ends: with an empty response, an error, a client that left.
struct Forget(Once);

impl Drop for Forget {
    fn drop(&mut self) {
        let once = self.0.clone();
        tokio::spawn(async move {
            let won = once.won.lock().await;
            if *won {
                return;
            }
            if let Err(error) = once.queues.0.store.forget_request(&once.request).await {
                tracing::debug!(error = %store::chain(&error), "a reserve could not be forgotten");
            }
        });
    }
}

impl Queues {
    /// Runs the request, or returns what it won when it ran before.
    pub(super) async fn reserve_once(&self, ask: &ReserveAsk, key: &IdempotencyKey) -> Result<Vec<Job>> {
        let patience = Instant::now() + Duration::from_millis(ask.wait_ms + GRACE_MS);
        let mut pause = Duration::from_millis(20);
        loop {
            let request = Arc::new(self.request(ask, key)?);
            let once = Once { queues: self.clone(), request, won: Arc::default() };
            let ran = match self.0.store.open_request(&once.request).await? {
                Opened::New => {
                    let _forget = Forget(once.clone());
                    self.take_once(ask, once).await
                }
                Opened::TakenOver { previous } => {
                    let _forget = Forget(once.clone());
                    match self.take_over(ask, &once, previous).await {
                        Ok(jobs) if jobs.is_empty() => self.take_once(ask, once).await,
                        ended => ended,
                    }
                }
                Opened::Finished { claim, ids } => return self.still_held(&claim, &ids).await,
                Opened::Different => return Err(Error::IdempotencyKeyReused),
                Opened::Pending => Err(Error::RequestPending),
            };
            match ran {
                Err(Error::RequestPending) if Instant::now() < patience => tokio::time::sleep(pause).await,
                ended => return ended,
            }
            pause = (pause * 2).min(Duration::from_millis(250));
        }
    }

    /// Gives the jobs that the run before has won to this one, in a task that outlives the client. From then on the
    /// token of that run is dead, so that what it still does, such as giving back what it takes for its own, does not
    /// concern jobs that the client of this one holds.
    async fn take_over(&self, ask: &ReserveAsk, once: &Once, previous: Claim) -> Result<Vec<Job>> {
        let (this, ask, once) = (self.clone(), ask.clone(), once.clone());
        let taking = tokio::spawn(async move {
            let guard = once.claiming().await;
            let queues = this.expand(&ask.queues).await?;
            match this.move_claims(&ask, &queues, &previous, once.claim()).await {
                Ok(jobs) => guard.won(jobs).await,
                Err(error) => {
                    for claim in [&previous, once.claim()] {
                        queues.iter().for_each(|queue| this.recover(queue.clone(), claim.clone()));
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
        let rules = self.rules();
        let change = |job: Job| {
            let lease_ms = ask.lease_ms.unwrap_or_else(|| rules.lease_ms(&job.meta.queue));
            let operation = Operation::TakeOver { claim: from.clone(), to: to.clone(), lease_ms };
            Change { id: job.meta.id, operation }
        };
        let changes: Vec<Change> = self.0.store.held(queues, from).await?.into_iter().map(change).collect();
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        for applied in self.0.store.apply(changes, &rules).await {
            match applied {
                // Lapsed or given back meanwhile.
                Ok(_) | Err(Denied::Refused(_) | Denied::PushRefused(_)) => {}
                Err(Denied::Store(error)) => return Err(error),
            }
        }
        self.0.store.held(queues, to).await
    }

    /// Those of the jobs that are still reserved as they were.
    async fn still_held(&self, claim: &Claim, ids: &[JobId]) -> Result<Vec<Job>> {
        let jobs = self.0.store.get(ids).await?;
        let held = |job: &Job| job.meta.state == State::Reserved && job.meta.claim.as_ref() == Some(claim);
        Ok(jobs.into_iter().flatten().filter(held).collect())
    }

    fn request(&self, ask: &ReserveAsk, key: &IdempotencyKey) -> Result<Request> {
        let queues: Vec<String> = ask.queues.iter().map(ToString::to_string).collect();
        let queues = URL_SAFE_NO_PAD.encode(Sha256::digest(queues.join("\n")));
        let body = format!("{:?}", (ask.count, ask.wait_ms, ask.lease_ms, &ask.worker));
        Ok(Request {
            id: format!("{queues}:{}", key.0),
            digest: Sha256::digest(body).into(),
            claim: Claim::random(),
            pending_until: self.now()?.plus_ms(ask.wait_ms + GRACE_MS),
        })
    }
}
