//! The part of the contract that is about reserves with an `Idempotency-Key`.

use async_trait::async_trait;

use super::Result;
use crate::job::{Claim, JobId, Timestamp};

/// A reserve that carries an `Idempotency-Key`.
#[derive(Debug, Clone)]
pub struct Request {
    /// The key together with the path, as one text.
    pub id: String,
    /// Equal where a repeat asks for the same.
    pub digest: [u8; 32],
    /// Marks what the request wins.
    pub claim: Claim,
    /// The server that runs it.
    pub runner: String,
    /// Until when its server counts as alive; then it does as long as [`Requests::keep_alive`] says so.
    pub alive_until: Timestamp,
    /// When it has ended at the latest.
    pub pending_until: Timestamp,
    /// When the last lease of what it may win is over.
    pub keep_until: Timestamp,
}

/// What a store has recorded of a request that is about to run.
#[derive(Debug, Clone, PartialEq)]
pub enum Opened {
    /// Nothing: run it, then close it.
    New,
    /// Its runner has died, or is past its `pending_until`: the request is the caller's now. `previous` may have won
    /// jobs, which are to be taken over; what it wins from here on its runner gives back.
    TakenOver {
        /// The claim of the runner before.
        previous: Claim,
    },
    /// It is in flight: retry in a moment.
    Pending,
    /// It has run and won these jobs.
    Finished {
        /// The claim that won them.
        claim: Claim,
        /// The jobs.
        ids: Vec<JobId>,
    },
    /// The key was used for another request.
    Different,
}

/// What a store keeps of an earlier call of a request.
#[derive(Debug, Clone)]
pub struct Earlier {
    /// See [`Request::digest`].
    pub digest: [u8; 32],
    /// The claim that it runs with or, once it is closed, that won its jobs.
    pub claim: Claim,
    /// See [`Request::pending_until`].
    pub pending_until: Timestamp,
    /// The jobs that it has won, once it is closed.
    pub won: Option<Vec<JobId>>,
    /// When it is to be forgotten; `None`: the store does not hand out what it has forgotten.
    pub until: Option<Timestamp>,
}

impl Opened {
    /// Decides what an earlier call means for this one. After [`Opened::New`] and [`Opened::TakenOver`] this request is
    /// to be stored in the place of the earlier one.
    pub fn decide(request: &Request, earlier: Option<Earlier>, now: Timestamp) -> Self {
        let Some(Earlier { digest, claim, pending_until, won, until }) = earlier else {
            return Self::New;
        };
        match won {
            _ if until.is_some_and(|until| until <= now) => Self::New,
            _ if digest != request.digest => Self::Different,
            Some(ids) => Self::Finished { claim, ids },
            None if claim == request.claim => Self::New, // a retry of this very call, whose result was lost
            None if pending_until > now => Self::Pending,
            None => Self::TakenOver { previous: claim },
        }
    }
}

/// Idempotent reserves: which request is in flight, and what each has won.
#[async_trait]
pub trait Requests: Send + Sync {
    /// Records a request that is about to run, so that any server recognises a repeat of it.
    async fn open_request(&self, request: &Request) -> Result<Opened>;

    /// Remembers until `keep_until` which jobs the request won. Idempotent. `false`: another runner has taken the
    /// request over, or it was forgotten; then no client may get the jobs.
    async fn close_request(&self, request: &Request, won: &[JobId], keep_until: Timestamp) -> Result<bool>;

    /// Requests of this server that are pending count as alive until then. A store that has one server only needs no
    /// such word: what it did not run itself is dead.
    async fn keep_alive(&self, runner: &str, until: Timestamp) -> Result<()>;

    /// Forgets a request that won nothing. Idempotent; it changes nothing once the request is closed, or another
    /// runner's.
    async fn forget_request(&self, request: &Request) -> Result<()>;

    /// Returns whether there is a record of a request with this id.
    async fn knows_request(&self, id: &str) -> Result<bool>;
}
