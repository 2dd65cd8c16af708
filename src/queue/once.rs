//! Reserves with an `Idempotency-Key`: a repeat returns the same jobs, on whichever server.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::{Error, Queues, ReserveAsk, Result};
use crate::job::{Claim, Job, JobId, State};
use crate::store::{Opened, Request, Store};

/// How much longer than its wait a request may run before it counts as dead, in milliseconds.
const GRACE_MS: u64 = 10_000;

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
    store: Arc<dyn Store>,
    request: Arc<Request>,
    /// Held while a claim is in flight; true once the request has won something and been recorded.
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

    /// Delays forgetting the request until the outcome of this claim is known.
    pub async fn claiming(&self) -> Claiming {
        Claiming { once: self.clone(), won: self.won.clone().lock_owned().await }
    }
}

impl Claiming {
    /// Records the jobs for repeats of the request, until the last of their leases is over.
    pub async fn won(mut self, jobs: &[Job]) {
        let until = jobs.iter().filter_map(|job| job.meta.reserved_until).max();
        let claim = jobs.iter().find_map(|job| job.meta.claim.as_ref());
        let (Some(until), Some(claim)) = (until, claim) else {
            return;
        };
        *self.won = true;
        let ids: Vec<JobId> = jobs.iter().map(|job| job.meta.id.clone()).collect();
        let Once { store, request, .. } = &self.once;
        if let Err(error) = store.close_request(request, Some((claim, &ids)), until).await {
            // A repeat finds the jobs all the same, by the claim, once the request counts as dead.
            tracing::warn!(error = %crate::store::chain(&error), "a reserve could not be remembered");
        }
    }
}

/// Forgets a request that ends without jobs, however it ends: an empty response, an error, a client that
/// left.
struct Forget(Once);

impl Drop for Forget {
    fn drop(&mut self) {
        let once = self.0.clone();
        tokio::spawn(async move {
            let won = once.won.lock().await;
            if *won {
                return;
            }
            let end = once.request.pending_until;
            if let Err(error) = once.store.close_request(&once.request, None, end).await {
                tracing::debug!(error = %crate::store::chain(&error), "a reserve could not be forgotten");
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
            let request = self.request(ask, key)?;
            let once =
                Once { store: self.0.store.clone(), request: Arc::new(request.clone()), won: Arc::default() };
            match self.0.store.open_request(&request).await? {
                Opened::New => {
                    let _forget = Forget(once.clone());
                    return self.take_once(ask, once).await;
                }
                Opened::TakenOver { previous } => {
                    let _forget = Forget(once.clone());
                    let queues = self.expand(&ask.queues).await?;
                    let jobs = self.0.store.held(&queues, &previous).await?;
                    if jobs.is_empty() {
                        return self.take_once(ask, once).await;
                    }
                    once.claiming().await.won(&jobs).await;
                    return Ok(jobs);
                }
                Opened::Finished { claim, ids } => return self.still_held(&claim, &ids).await,
                Opened::Different => return Err(Error::IdempotencyKeyReused),
                Opened::Pending if Instant::now() >= patience => return Err(Error::RequestPending),
                Opened::Pending => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(Duration::from_millis(250));
        }
    }

    /// Returns those of the jobs that are still reserved as they were.
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
