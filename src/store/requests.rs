//! The part of the contract that is about reserves with an `Idempotency-Key`.

use async_trait::async_trait;

use super::Result;
use crate::job::{Claim, JobId, Timestamp};

/// A reserve that carries an `Idempotency-Key`.
#[derive(Debug, Clone)]
pub struct Request {
    /// The key together with the queue list, as one text.
    pub id: String,
    /// Tells whether a repeat asks for the same.
    pub digest: [u8; 32],
    /// Marks what the request wins.
    pub claim: Claim,
    /// When whoever runs the request has finished, or died.
    pub pending_until: Timestamp,
}

/// What a store knows of a request that is about to run.
#[derive(Debug, Clone, PartialEq)]
pub enum Opened {
    /// Nothing: run it, then close it.
    New,
    /// Somebody was running it but is past its `pending_until`: it is yours now. `previous` may have won jobs.
    TakenOver {
        /// The claim of whoever ran it.
        previous: Claim,
    },
    /// Somebody else is running it: ask again in a moment.
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

/// Idempotent reserves: which request is in flight, and what each has won.
#[async_trait]
pub trait Requests: Send + Sync {
    /// Announces a request, so that a repeat of it is known on any server.
    async fn open_request(&self, request: &Request) -> Result<Opened>;

    /// Remembers until `keep_until` which jobs the request won, and by which claim; forgets the request if
    /// it won nothing.
    async fn close_request(
        &self,
        request: &Request,
        won: Option<(&Claim, &[JobId])>,
        keep_until: Timestamp,
    ) -> Result<()>;
}
