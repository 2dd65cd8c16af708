//! Jobs that are pushed together with something else: looked at before anything is written, so that one that is refused leaves
//! nothing behind.

use std::collections::HashMap;

use crate::job::transition::Next;
use crate::job::{Child, JobId, JobKey, Meta, NewJob, QueueName, Rules, Timestamp};
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::push::{self, New};
use crate::store::sqlite::tx::Tx;
use crate::store::{PushRefused, Pushed};

/// What is to become of one of them: `None` if it is to be stored, else the job that has its key.
pub type Fate = Option<Child>;

/// A job that is about to be written.
#[derive(Clone, Copy)]
pub struct Committed<'a> {
    pub before: &'a Meta,
    pub next: &'a Next,
}

impl<'a> Committed<'a> {
    /// The job as it is about to be, if it is this one: `Some(None)` if it leaves.
    pub fn after(self, id: &JobId) -> Option<Option<&'a Meta>> {
        match self.next {
            _ if self.before.id != *id => None,
            Next::Keep => Some(Some(self.before)),
            Next::Write { meta, .. } => Some(Some(meta)),
            Next::Delete => Some(None),
        }
    }
}

/// What is to become of each of them, unless one is refused. A job that is committed with that makes room in its
/// queue, and has its key no longer if it ends.
pub fn check(
    tx: &Tx<'_>,
    pushes: &[NewJob],
    committed: Option<Committed<'_>>,
    rules: &Rules,
    now: Timestamp,
) -> Result<Result<Vec<Fate>, PushRefused>, Fault> {
    let mut fates = Vec::with_capacity(pushes.len());
    let mut earlier: HashMap<(&QueueName, &JobKey), usize> = HashMap::new();
    let mut room: HashMap<&QueueName, u64> = HashMap::new();
    for (place, job) in pushes.iter().enumerate() {
        let refused = |key_of| Ok(Err(PushRefused { place, queue: job.queue.clone(), key_of }));
        if let Some(hold) = &job.key {
            let taken = match earlier.get(&(&job.queue, &hold.key)).and_then(|n| pushes.get(*n)) {
                Some(first) if first.payload.digest() == job.payload.digest() => Some(Ok(child(first, true))),
                Some(first) => Some(Err(first.id.clone())),
                None => match push::taken(tx, &job.queue, &job.payload, hold, committed, now)? {
                    Some(Pushed::Duplicate { id, run_at, .. }) => {
                        Some(Ok(Child { id, queue: job.queue.clone(), run_at, deduplicated: true }))
                    }
                    Some(Pushed::KeyConflict { id }) => Some(Err(id)),
                    _ => None,
                },
            };
            match taken {
                Some(Ok(child)) => {
                    fates.push(Some(child));
                    continue;
                }
                Some(Err(id)) => return refused(Some(id)),
                None => drop(earlier.insert((&job.queue, &hold.key), place)),
            }
        }
        let leaves = committed.is_some_and(|committed| committed.before.queue == job.queue);
        if !room.contains_key(&job.queue)
            && let Some(left) = push::room(tx, &job.queue, u64::from(leaves), rules)?
        {
            room.insert(&job.queue, left);
        }
        match room.get_mut(&job.queue) {
            Some(0) => return refused(None),
            Some(left) => *left -= 1,
            None => {}
        }
        fates.push(None);
    }
    Ok(Ok(fates))
}

/// Stores those that are to be stored.
pub fn store(tx: &Tx<'_>, pushes: &[NewJob], fates: Vec<Fate>, now: Timestamp) -> Result<Vec<Child>, Fault> {
    let mut children = Vec::with_capacity(fates.len());
    for (job, fate) in pushes.iter().zip(fates) {
        if fate.is_none() {
            push::store(tx, &New::from(job.clone()), now)?;
        }
        children.push(fate.unwrap_or_else(|| child(job, false)));
    }
    Ok(children)
}

fn child(job: &NewJob, deduplicated: bool) -> Child {
    Child { id: job.id.clone(), queue: job.queue.clone(), run_at: job.run_at, deduplicated }
}
