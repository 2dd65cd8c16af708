//! A cache of the jobs that this server delivered lately, as they were when it claimed or extended them.
//!
//! A settle usually comes to the server that delivered the job, which then need not read it again: like
//! every change, what it writes is guarded by the `rev` that it knows, so that an entry which is out of date
//! changes nothing and the job is read after all. Correctness never depends on the cache.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::job::{Claim, JobId, Meta};

/// How many jobs are remembered at most, in either half: a bound on memory, about 20 MB.
const HALF: usize = 10_000;

/// See the module's documentation. `P` is what the store keeps with each job, such as its rowid.
pub struct DeliveredCache<P = ()>(Mutex<Halves<P>>);

impl<P> Default for DeliveredCache<P> {
    fn default() -> Self {
        Self(Mutex::new(Halves { newer: HashMap::new(), older: HashMap::new() }))
    }
}

/// The newer half takes what comes; once it is full it becomes the older one, which is thrown away.
struct Halves<P> {
    newer: HashMap<JobId, Box<(Meta, P)>>,
    older: HashMap<JobId, Box<(Meta, P)>>,
}

/// Jobs with a long past or a long way to go are rare, and not worth the room.
fn is_small(meta: &Meta) -> bool {
    meta.progress.is_none() && meta.errors.is_empty() && meta.trail.len() <= 8 && meta.route.len() <= 8
}

impl<P> DeliveredCache<P> {
    fn halves(&self) -> MutexGuard<'_, Halves<P>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// These jobs are now like this. All in one moment: no other thread sees some of one claim's jobs as they
    /// are, and others as they were before.
    pub fn remember<'a>(&self, metas: impl Iterator<Item = (&'a Meta, P)>) {
        let mut halves = self.halves();
        for (meta, kept) in metas.filter(|(meta, _)| is_small(meta)) {
            halves.older.remove(&meta.id);
            halves.newer.insert(meta.id.clone(), Box::new((meta.clone(), kept)));
        }
        if halves.newer.len() >= HALF {
            halves.older = std::mem::take(&mut halves.newer);
        }
    }

    /// These jobs were changed by something that does not say what they are now.
    pub fn forget<'a>(&self, ids: impl Iterator<Item = &'a JobId>) {
        let mut halves = self.halves();
        for id in ids {
            halves.newer.remove(id);
            halves.older.remove(id);
        }
    }

    /// Returns what this says of the job, if this claim was the last to hold it.
    pub fn of<T>(&self, id: &JobId, claim: &Claim, read: impl FnOnce(&Meta) -> Option<T>) -> Option<T> {
        let halves = self.halves();
        let (meta, _) = &**halves.newer.get(id).or_else(|| halves.older.get(id))?;
        if meta.claim.as_ref() == Some(claim) { read(meta) } else { None }
    }

    /// Takes out what is known of this job, if this claim was the last to hold it.
    pub fn take(&self, id: &JobId, claim: &Claim) -> Option<(Meta, P)> {
        let mut halves = self.halves();
        let known = halves.newer.remove(id).or_else(|| halves.older.remove(id))?;
        (known.0.claim.as_ref() == Some(claim)).then_some(*known)
    }
}
