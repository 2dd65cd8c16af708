//! Digests for the comparison of two stores, and the fields in which two jobs differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::job::{Batch, BatchResult, Job};
use crate::store::{HeldKey, Memo};

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
            sum.update(format!("{name} {} ", text.get().len()));
            sum.update(text.get());
        }
        self.add(sum.finalize().as_slice());
    }

    /// Adds a key.
    pub fn add_key(&mut self, key: &HeldKey) {
        let HeldKey { queue, key, job, digest, until, run_at, lasts } = key;
        self.add(Sha256::digest(text(&(queue, key, job, digest, until, run_at, lasts))).as_slice());
    }

    /// Adds what is remembered.
    pub fn add_memo(&mut self, memo: &Memo) {
        self.add(Sha256::digest(format!("{memo:?}")).as_slice());
    }

    /// Adds a batch.
    pub fn add_batch(&mut self, batch: &Batch) {
        self.add(Sha256::digest(format!("{batch:?}")).as_slice());
    }

    /// Adds a result of a batch.
    pub fn add_result(&mut self, batch: &Batch, result: &BatchResult) {
        self.add(Sha256::digest(format!("{} {result:?}", batch.id)).as_slice());
    }

    /// Adds a text.
    pub fn add_text(&mut self, text: &str) {
        self.add(Sha256::digest(text).as_slice());
    }

    /// Adds what went into another digest.
    pub fn merge(&mut self, Digest(other): Self) {
        for (lane, part) in self.0.iter_mut().zip(other) {
            *lane = lane.wrapping_add(part);
        }
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
pub fn differences(one: &Job, other: &Job) -> Vec<String> {
    let (one, other) = (fields(one), fields(other));
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let differs =
        |name: &&String| one.get(*name).map(|text| text.get()) != other.get(*name).map(|text| text.get());
    names.into_iter().filter(differs).cloned().collect()
}

/// A job's fields as JSON.
type Fields = BTreeMap<String, Box<RawValue>>;

/// Returns every field that a job has, also those that this module does not know.
fn fields(job: &Job) -> Fields {
    serde_json::from_str(&text(job)).unwrap_or_default()
}

fn text(value: &impl Serialize) -> String {
    // Serialization cannot fail: these values are numbers, strings and lists of such.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::record::KeyUntil;

    fn key(name: &str) -> HeldKey {
        let (queue, job) = ("q".parse().unwrap(), "j".parse().unwrap());
        let (until, run_at) = (crate::job::Timestamp::default(), crate::job::Timestamp::default());
        HeldKey {
            queue,
            key: name.parse().unwrap(),
            job,
            digest: [7; 32],
            until,
            run_at,
            lasts: KeyUntil::Finished,
        }
    }

    #[test]
    fn every_field_of_a_job_counts_but_the_guard_of_its_writes() {
        let payload = |text| crate::job::Payload::parse(text).unwrap();
        let spec = crate::job::JobSpec::new(payload("1.0"));
        let (id, queue) = ("j".parse().unwrap(), "q".parse().unwrap());
        let job = crate::job::NewJob::new(id, queue, spec, Default::default()).into_job();
        let other = Job { payload: payload("1.00").into(), result: Some(payload("null")), ..job.clone() };
        assert_eq!(differences(&job, &other), ["payload", "result"]);
        let mut written = job.clone();
        (written.meta.rev, written.meta.group) = (7, Some("g".parse().unwrap()));
        assert_eq!(differences(&job, &written), ["group"]);
        let counted = fields(&job);
        assert!(["id", "run_at", "headers", "payload"].iter().all(|name| counted.contains_key(*name)));
        assert!(!counted.contains_key("rev"));
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
