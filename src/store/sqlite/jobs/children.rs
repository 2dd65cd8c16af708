//! Jobs that are pushed together with something else: decided about before anything is written, so that one that is
//! refused leaves nothing behind.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::job::push::{self as rule, Decision, Holder, PushRefused, Room};
use crate::job::spec::Headers;
use crate::job::trace;
use crate::job::transition::Next;
use crate::job::{Child, JobId, JobKey, Meta, NewJob, QueueName, Rules, State, Timestamp, TraceContext};
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::push::{self, New};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::tx::Tx;

/// Returns the jobs with the trace of the one that they are pushed with, where they are in none.
pub fn inheriting<'p>(tx: &Tx<'_>, rowid: i64, pushes: &'p [NewJob]) -> Result<Cow<'p, [NewJob]>, Fault> {
    if !trace::inherits(pushes) {
        return Ok(Cow::Borrowed(pushes));
    }
    let mut by_rowid = tx.prepare_cached("SELECT headers FROM jobs WHERE rowid = ?1")?;
    let mut rows = by_rowid.query([rowid])?;
    // What another program has made of the headers decides nothing about the commit.
    let headers: Option<Headers> = match rows.next()? {
        Some(row) => row::json(row, 0, "headers").unwrap_or_default(),
        None => None,
    };
    let mut pushes = Cow::Borrowed(pushes);
    if let Some(from) = headers.as_ref().and_then(TraceContext::of) {
        trace::inherit(pushes.to_mut(), &from);
    }
    Ok(pushes)
}

/// What is decided about one of them.
pub enum ChildDecision {
    /// It is to be stored.
    Store,
    /// Nothing is stored: its key is taken by this job, which has an equal payload.
    Exists(Child),
    /// What this job does, which has the key, is replaced.
    Replace(Holder),
}

/// A job that is about to be written.
#[derive(Clone, Copy)]
pub struct Committed<'a> {
    pub before: &'a Meta,
    pub next: &'a Next,
}

impl<'a> Committed<'a> {
    /// Returns the job as it is about to be, if it is this one: `Some(None)` if it leaves.
    pub fn after(self, id: &JobId) -> Option<Option<&'a Meta>> {
        match self.next {
            _ if self.before.id != *id => None,
            Next::Keep => Some(Some(self.before)),
            Next::Write { meta, .. } => Some(Some(meta)),
            Next::Delete => Some(None),
        }
    }
}

/// Returns what is decided about each of them, unless one is refused. A job that is committed with that makes room in
/// its queue, and has its key no longer if it ends.
pub fn check(
    tx: &Tx<'_>,
    pushes: &[NewJob],
    committed: Option<Committed<'_>>,
    rules: &Rules,
    now: Timestamp,
) -> Result<Result<Vec<ChildDecision>, PushRefused>, Fault> {
    let mut decisions = Vec::with_capacity(pushes.len());
    let mut earlier: HashMap<(&QueueName, &JobKey), Holder> = HashMap::new();
    let mut room = Room::default();
    for (index, job) in pushes.iter().enumerate() {
        let holder = match &job.key {
            None => None,
            Some(hold) => match earlier.get(&(&job.queue, &hold.key)) {
                Some(first) => Some(first.clone()),
                None => push::holder(tx, &job.queue, hold, committed, now)?,
            },
        };
        let conflict = job.key.as_ref().map(|hold| hold.conflict).unwrap_or_default();
        let asked = (holder.as_ref(), conflict);
        let decision = rule::decide(&job.id, &job.spec.payload, asked, now, || {
            let leaves = committed.is_some_and(|committed| committed.before.queue == job.queue);
            if !room.knows(&job.queue)
                && let Some(left) = push::room(tx, &job.queue, u64::from(leaves), rules)?
            {
                room.set(job.queue.clone(), left);
            }
            Ok::<_, Fault>(room.take(&job.queue))
        })?;
        decisions.push(match decision {
            Decision::Store => {
                let state = State::Ready.visible(job.run_at, now);
                if let Some(hold) = &job.key {
                    earlier.insert((&job.queue, &hold.key), Holder::new(job, hold, state));
                }
                ChildDecision::Store
            }
            Decision::Replace => {
                let (Some(holder), Some(hold)) = (holder, &job.key) else { continue };
                let state = State::Ready.visible(job.run_at, now);
                let after = holder.replaced(job.into(), hold, state);
                earlier.insert((&job.queue, &hold.key), after);
                ChildDecision::Replace(holder)
            }
            Decision::Settled(pushed) => match pushed.into_child(index, job) {
                Ok(child) => ChildDecision::Exists(child),
                Err(refused) => return Ok(Err(refused)),
            },
        });
    }
    Ok(Ok(decisions))
}

/// What is said of a job that replaces what its key's holder does.
fn replaced(holder: &Holder, by: &NewJob) -> Child {
    let (id, queue) = (holder.id.clone(), by.queue.clone());
    Child { id, queue, run_at: by.run_at, deduplicated: true, replaced: true }
}

/// Returns what will be said of the jobs once they are stored.
pub fn foreseen(pushes: &[NewJob], decisions: &[ChildDecision]) -> Vec<Child> {
    let each = pushes.iter().zip(decisions).map(|(job, decision)| match decision {
        ChildDecision::Exists(child) => child.clone(),
        ChildDecision::Replace(holder) => replaced(holder, job),
        ChildDecision::Store => Child::new(job),
    });
    each.collect()
}

/// Stores those that are to be stored.
pub fn store(
    tx: &Tx<'_>,
    pushes: &[NewJob],
    decisions: Vec<ChildDecision>,
    now: Timestamp,
) -> Result<Vec<Child>, Fault> {
    let mut children = Vec::with_capacity(decisions.len());
    for (job, decision) in pushes.iter().zip(decisions) {
        children.push(match decision {
            ChildDecision::Exists(child) => child,
            ChildDecision::Replace(holder) => {
                if let Some(hold) = &job.key {
                    push::replace(tx, &holder, hold, job.into(), now)?;
                }
                replaced(&holder, job)
            }
            ChildDecision::Store => {
                push::store(tx, &New::from(job.clone()), now)?;
                Child::new(job)
            }
        });
    }
    Ok(children)
}
