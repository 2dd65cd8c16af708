//! Digests for the comparison of two stores, and the fields in which two jobs differ.

use std::fmt;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::job::{Batch, BatchResult, Claim, Job, Meta, Payload};
use crate::store::HeldKey;

/// An order-independent digest over many items: the sum of their SHA-256 digests, in four lanes. It detects
/// accidental differences, not forged ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest([u64; 4]);

impl Digest {
    /// Adds a job, without its `rev`.
    pub fn add_job(&mut self, job: &Job) {
        let mut sum = Sha256::new();
        for (name, text) in fields(job) {
            // The lengths make the encoding unambiguous.
            sum.update(format!("{name} {} ", text.len()));
            sum.update(text);
        }
        self.add(sum.finalize().as_slice());
    }

    /// Adds a key.
    pub fn add_key(&mut self, key: &HeldKey) {
        let HeldKey { queue, key, job, digest, until, run_at } = key;
        self.add(Sha256::digest(text(&(queue, key, job, digest, until, run_at))).as_slice());
    }

    /// Adds a batch.
    pub fn add_batch(&mut self, batch: &Batch) {
        self.add(Sha256::digest(format!("{batch:?}")).as_slice());
    }

    /// Adds a result of a batch.
    pub fn add_result(&mut self, batch: &Batch, result: &BatchResult) {
        self.add(Sha256::digest(format!("{} {result:?}", batch.id)).as_slice());
    }

    fn add(&mut self, digest: &[u8]) {
        for (lane, part) in self.0.iter_mut().zip(digest.chunks_exact(8)) {
            let part = part.iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
            *lane = lane.wrapping_add(part);
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|lane| write!(f, "{lane:016x}"))
    }
}

/// Returns the names of the fields in which two jobs differ.
pub fn differences(one: &Job, other: &Job) -> Vec<&'static str> {
    let pairs = fields(one).into_iter().zip(fields(other));
    pairs.filter(|(one, other)| one.1 != other.1).map(|(one, _)| one.0).collect()
}

/// Returns a job's fields as JSON. Every field is named, so that the compiler reports new ones that are missing.
fn fields(Job { meta, payload, headers, result }: &Job) -> Vec<(&'static str, String)> {
    let mut fields = Vec::from(bookkeeping(meta));
    fields.extend([
        ("origin", text(&meta.origin)),
        ("replay_of", text(&meta.replay_of)),
        ("then", text(&meta.route)),
        ("batch", text(&meta.batch)),
        ("group", text(&meta.group)),
        ("turn", text(&meta.turn)),
        ("semaphores", text(&meta.semaphores)),
        ("waits_for", text(&meta.waits_for)),
        ("waiting_since", text(&meta.waiting_since)),
        ("payload", json(Some(payload))),
        ("headers", text(headers)),
        ("result", json(result.as_ref())),
    ]);
    fields
}

fn bookkeeping(meta: &Meta) -> [(&'static str, String); 22] {
    let Meta {
        id,
        queue,
        state,
        priority,
        run_at,
        attempts,
        max_attempts,
        backoff,
        key,
        created_at,
        started_at,
        finished_at,
        expires_at,
        purge_at,
        worker,
        claim,
        reserved_until,
        lease_ms,
        progress,
        cancel_requested,
        errors,
        trail,
        origin: _,
        replay_of: _, // added above
        route: _,
        batch: _,
        group: _,
        turn: _,
        semaphores: _,
        waits_for: _,
        waiting_since: _,
        rev: _,
    } = meta;
    [
        ("id", text(id)),
        ("queue", text(queue)),
        ("state", text(state)),
        ("priority", text(priority)),
        ("run_at", text(run_at)),
        ("attempts", text(attempts)),
        ("max_attempts", text(max_attempts)),
        ("backoff", text(backoff)),
        ("key", text(key)),
        ("created_at", text(created_at)),
        ("started_at", text(started_at)),
        ("finished_at", text(finished_at)),
        ("expires_at", text(expires_at)),
        ("purge_at", text(purge_at)),
        ("worker", text(worker)),
        ("reservation", text(&claim.as_ref().map(Claim::as_str))),
        ("reserved_until", text(reserved_until)),
        ("lease_ms", text(lease_ms)),
        ("progress", json(progress.as_ref())),
        ("cancel_requested", text(cancel_requested)),
        ("errors", text(errors)),
        ("trail", text(trail)),
    ]
}

/// Returns the canonical text; empty, which is no JSON, for `None`.
fn json(payload: Option<&Payload>) -> String {
    payload.map_or_else(String::new, |payload| payload.as_str().to_owned())
}

fn text(value: &impl Serialize) -> String {
    // Serialization cannot fail: these values are numbers, strings and lists of such.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> HeldKey {
        let (queue, job) = ("q".parse().unwrap(), "j".parse().unwrap());
        let (until, run_at) = (crate::job::Timestamp::default(), crate::job::Timestamp::default());
        HeldKey { queue, key: name.parse().unwrap(), job, digest: [7; 32], until, run_at }
    }

    #[test]
    fn a_digest_depends_on_what_went_in_and_not_on_the_order() {
        let of = |names: &[&str]| {
            let mut digest = Digest::default();
            names.iter().for_each(|name| digest.add_key(&key(name)));
            digest
        };
        assert_eq!(of(&["a", "b", "c"]), of(&["c", "a", "b"]));
        assert_ne!(of(&["a", "b"]), of(&["a", "c"]));
        assert_ne!(of(&["a"]), of(&["a", "a"]));
        assert_eq!(Digest::default().to_string(), "0".repeat(64));
        assert_ne!(of(&["a"]).to_string(), of(&["b"]).to_string());
    }
}
