//! What is to become of one job: made from what was read, written only if that is still so.

use mongodb::bson::{Document, doc};

use crate::job::batch::{self, Finish};
use crate::job::group::{self, Line, Vacated};
use crate::job::push::{entered, freed, taken};
use crate::job::receipt::Receipt;
use crate::job::record::KeyHold;
use crate::job::semaphore;
use crate::job::state::Verb;
use crate::job::trace::{self, OfJob};
use crate::job::transition::{Next, Operation, Outcome, Step};
use crate::job::{Child, Content, JobKey, Meta, NewJob, QueueName, State, Timestamp};
use crate::store::mongo::cache::Position;
use crate::store::mongo::jobs::document::update;
use crate::store::mongo::jobs::guard::as_read;
use crate::store::{Applied, CalledBack, Result};

/// A plan for one job.
pub struct Plan {
    pub meta: Meta,
    pub step: Step,
    /// When it was made.
    pub at: Timestamp,
    /// The jobs that are to be stored with it.
    pub pushes: Vec<NewJob>,
    /// What a receipt must say, if there must be one.
    pub receipt: Option<Verb>,
    /// What it means for the job's batch. Private, so that [`Plan::is_atomic`] cannot be bypassed.
    finish: Option<Finish>,
    /// The place in a line that the job leaves. Private likewise.
    vacated: Option<Vacated>,
    /// The line that the job comes to the end of.
    joined: Option<Line>,
    /// The key that is free from then on. Private likewise.
    freed: Option<JobKey>,
    /// The key that the job takes where it goes. Private likewise.
    taken: Option<KeyHold>,
    /// What finds the job in place of its `rev`, where it has none and is to be deleted.
    without_rev: Option<Document>,
    /// What is done.
    verb: Verb,
    /// The `rev` that the document has once the plan is carried out.
    pub rev: i64,
    /// The `rev`s of earlier plans of the same change whose outcome is unknown: one of them may land late, and then the
    /// change has happened, too.
    pub earlier: Vec<i64>,
    /// Whether its command was sent and the response lost; else MongoDB said how many jobs the command deleted.
    pub is_lost: bool,
}

impl Plan {
    /// What an operation is to do to a job, as [`step`](crate::job::transition::step) says.
    pub fn new(meta: Meta, step: Step, operation: &Operation, now: Timestamp) -> Self {
        Self {
            finish: batch::finish(&meta, &step, operation.result(), now),
            vacated: group::vacated(&meta, &step.next),
            joined: match &step.next {
                Next::Write { meta, .. } => Line::to_join(meta),
                Next::Keep | Next::Delete => None,
            },
            freed: freed(&meta, &step).cloned(),
            taken: taken(operation, &step).cloned(),
            without_rev: None,
            receipt: receipt_for(operation, &meta, &step.outcome),
            verb: operation.verb(),
            pushes: operation.pushes().to_vec(),
            meta,
            step,
            at: now,
            rev: rand::random(),
            earlier: Vec::new(),
            is_lost: false,
        }
    }

    /// The same plan for a job that cannot be read, which this filter finds where it has no `rev`. Such jobs are only deleted.
    pub fn found_by(self, without_rev: Option<Document>) -> Self {
        Self { without_rev, ..self }
    }

    /// What it pushes takes over the trace of the job, where that has one.
    pub fn inherit(&mut self, from: &OfJob) {
        if let Some(from) = from.known() {
            trace::inherit(&mut self.pushes, from);
        }
    }

    /// Whether it must happen together with other documents, or with all others of its command, and so in a transaction.
    pub fn is_atomic(&self) -> bool {
        self.receipt.is_some()
            || self.finish.is_some()
            || self.vacated.is_some()
            || self.joined.is_some()
            || self.freed.is_some()
            || self.taken.is_some()
            || self.purges()
            || self.target().is_some()
    }

    /// The key that is free once the plan is carried out, in the queue of the job.
    pub fn freed(&self) -> Option<&JobKey> {
        self.freed.as_ref()
    }

    /// The key that the job takes, the job as it is then, and its payload if that is new.
    pub fn taken(&self) -> Option<(&KeyHold, &Meta, Option<&Content>)> {
        match (&self.taken, &self.step.next) {
            (Some(hold), Next::Write { meta, payload, .. }) => Some((hold, meta, payload.as_ref())),
            _ => None,
        }
    }

    /// Whether it purges the job. Nothing protects that from others, so that a command which found a part of its jobs does not
    /// say whose doing the absence of the others is: a transaction finds all of them, or changes nothing.
    pub fn purges(&self) -> bool {
        self.verb == Verb::Purge
    }

    /// The place in a line that the job leaves.
    pub fn vacated(&self) -> Option<&Vacated> {
        self.vacated.as_ref()
    }

    /// The line that the job comes to the end of.
    pub fn joined(&self) -> Option<&Line> {
        self.joined.as_ref()
    }

    /// What it means for the job's batch.
    pub fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    /// The result once it is carried out and has pushed these.
    pub fn applied(&self, pushed: Vec<Child>, callback: Option<CalledBack>) -> Applied {
        let released = semaphore::released(&self.meta, &self.step.next);
        let (outcome, queue) = (self.step.outcome.clone(), self.meta.queue.clone());
        Applied { pushed, callback, released, ..Applied::new(outcome, queue, self.meta.started_at, self.at) }
    }

    /// The same plan once the response to its command is lost.
    pub fn lost(self) -> Self {
        Self { is_lost: true, ..self }
    }

    /// Whether a document with this `rev` was written by this plan, or by an earlier one of the same change.
    pub fn wrote(&self, rev: i64) -> bool {
        self.rev == rev || self.earlier.contains(&rev)
    }

    /// Finds the job if it is as it was read.
    pub fn guard(&self) -> Document {
        doc! { "_id": self.meta.id.as_str(), "rev": self.meta.rev }
    }

    /// What this plan changes in the document, if it is to be changed.
    pub fn update(&self, now: Timestamp) -> Result<Option<Document>> {
        let Next::Write { meta, payload, result, headers } = &self.step.next else {
            return Ok(None);
        };
        let next = Meta { rev: self.rev, ..(**meta).clone() };
        update(&next, payload.as_ref(), result.as_ref(), headers.as_ref(), now).map(Some)
    }

    /// The job as it is once the plan is carried out, if it is still reserved then.
    pub fn held(&self) -> Option<Meta> {
        match &self.step.next {
            Next::Write { meta, .. } if meta.state == State::Reserved => {
                Some(Meta { rev: self.rev, ..(**meta).clone() })
            }
            _ => None,
        }
    }

    /// The receipt that must be written together with the plan, if one must.
    pub fn receipt(&self, pushed: &[Child]) -> Option<Receipt> {
        Receipt::new(self.receipt?, &self.meta, &self.step.outcome, pushed, self.at)
    }

    /// Where the job stands in its queue once the plan is carried out, if it is ready then.
    pub fn position(&self) -> Option<(&QueueName, Position)> {
        match &self.step.next {
            Next::Write { meta, .. } if meta.state == State::Ready => Some((&meta.queue, Position::of(meta))),
            _ => None,
        }
    }

    /// The job as it is once the plan is carried out, if it is still there then.
    pub fn written(&self) -> Option<&Meta> {
        match &self.step.next {
            Next::Write { meta, .. } => Some(meta),
            Next::Keep | Next::Delete => None,
        }
    }

    /// When the job expires that is not reserved once the plan is carried out.
    pub fn expires_at(&self) -> Option<Timestamp> {
        match &self.step.next {
            Next::Write { meta, .. } if matches!(meta.state, State::Ready | State::Blocked) => {
                meta.expires_at
            }
            _ => None,
        }
    }

    /// The queues whose jobs it changes.
    pub fn queues(&self) -> impl Iterator<Item = &QueueName> {
        let to = match &self.step.next {
            Next::Write { meta, .. } => Some(&meta.queue),
            _ => None,
        };
        [&self.meta.queue].into_iter().chain(to)
    }

    /// Whether the job leaves.
    pub fn deletes(&self) -> bool {
        self.step.next == Next::Delete
    }

    /// The queue that the plan brings the job into from another one, where a limit may stop it.
    pub fn target(&self) -> Option<&QueueName> {
        entered(self.verb, &self.meta, &self.step.outcome)
    }
}

/// The statements that take these jobs away: those that are as they were read.
pub fn deletions(plans: &[&Plan]) -> Vec<Document> {
    let with_rev = plans.iter().filter(|plan| plan.without_rev.is_none());
    let with_rev: Vec<_> = with_rev.map(|plan| (plan.meta.id.as_str(), plan.meta.rev)).collect();
    let together = if with_rev.is_empty() { None } else { Some(as_read(with_rev)) };
    let each = plans.iter().filter_map(|plan| plan.without_rev.clone());
    let statement = |guard: Document| doc! { "q": guard, "limit": 0, "hint": { "_id": 1 } };
    together.into_iter().chain(each).map(statement).collect()
}

/// Which operations leave a receipt: those whose outcome a repeat, or the former holder, could not
/// derive from the job alone.
fn receipt_for(operation: &Operation, meta: &Meta, outcome: &Outcome) -> Option<Verb> {
    match operation {
        // Shows a commit that finds the job gone that it was not its own doing: the next holder may have committed
        // it by then.
        Operation::Abandon { .. } => Some(Verb::Cancel),
        // The same: it was taken from its worker.
        Operation::Revoke { .. } => Some(Verb::Cancel),
        // Shows a commit that finds the job deleted that it was not its own doing.
        Operation::Cancel { force: true, .. } if meta.state == State::Reserved => Some(Verb::Cancel),
        operation => operation.leaves_receipt(meta, outcome).then_some(operation.verb()),
    }
}
