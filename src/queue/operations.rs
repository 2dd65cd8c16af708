//! Operations over many jobs: asked for, shown and stopped here. What they do is done in the background, step by step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use serde_json::json;

use super::audit::{Act, shown};
use super::configure::back_off;
use super::{CallKey, Error, Page, Queues, Result};
use crate::job::bulk::{BulkAction, BulkFilter, BulkIntent, BulkState};
use crate::job::{
    ApiKeyId, Bulk, BulkId, Caller, Filter, JobId, QueueName, QueuePattern, Span, Timestamp, Visible,
};
use crate::store::audit;
use crate::store::{AuditFilter, AuditRow, BulkRow, Counts, Search, StoreError};

/// How many operations may be under way, those aside that wait for room.
const OPEN_MAX: usize = 100;
/// How many may wait for room when a replay begins.
const WAITING_MAX: usize = 100;
/// How many operations are read at once.
const READ: usize = 100;
/// How often a change of an operation is tried that its own steps change as well.
const TRIES: usize = 20;
/// How long a dry run scans jobs at most.
const SAMPLE_MAX: Duration = Duration::from_secs(1);
/// How many jobs a dry run names.
const SAMPLES: usize = 10;
/// How many jobs a dry run reads at once.
const SAMPLE_STEP: usize = 500;
/// What confirms an operation in all queues.
pub const ALL_QUEUES: &str = "all queues";

/// An operation that is asked for.
#[derive(Debug, Clone)]
pub struct NewBulk {
    /// Which jobs.
    pub filter: BulkFilter,
    /// What is done to each.
    pub action: BulkAction,
    /// The queue that they are moved to.
    pub to: Option<QueueName>,
    /// The priority that they get.
    pub priority: Option<i32>,
    /// The most jobs.
    pub limit: Option<u64>,
    /// Says again which queues are meant where that is not one.
    pub confirm: Option<String>,
}

/// What an operation would do.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// How many jobs match, of those that were scanned.
    pub matched: u64,
    /// How many were scanned.
    pub scanned: u64,
    /// Whether those are all.
    pub is_complete: bool,
    /// About how many would be affected, where that is known.
    pub estimate: Option<u64>,
    /// Whether that is concluded from the share of those that match among those that were scanned.
    pub is_approximate: bool,
    /// The first of them.
    pub jobs: Vec<(JobId, QueueName, Visible)>,
}

impl NewBulk {
    /// Returns what is wanted, for a caller that may do it.
    fn into_intent(self, caller: &Caller) -> Result<BulkIntent> {
        let Self { filter, action, to, priority, limit, confirm } = self;
        let filter = filter.settled().map_err(|(pointer, what)| Error::invalid(pointer, what))?;
        let (named, is_one) = match &filter.queue {
            Some(QueuePattern::One(queue)) => (queue.to_string(), true),
            Some(QueuePattern::Prefix(prefix)) if !prefix.is_empty() => (format!("{prefix}*"), false),
            _ => (ALL_QUEUES.to_owned(), false),
        };
        let is_confirmed = confirm.map_or(is_one, |confirm| confirm == named);
        if !is_confirmed {
            let why = if is_one { "" } else { ": the filter names more than one queue" };
            return Err(Error::invalid("/confirm", format!("must be {named:?}{why}")));
        }
        let (within, owner) = bounds(caller);
        // What has unblocked the next job of a group when that is read would spare it.
        let newest_first = action == BulkAction::Delete && limit.is_none();
        let intent = BulkIntent { filter, action, to, priority, limit, newest_first, within, owner };
        match intent.fault() {
            Some((pointer, what)) => Err(Error::invalid(pointer, what)),
            None => Ok(intent),
        }
    }
}

impl Queues {
    /// Stores an operation, which begins soon. With a key it is stored once: a repeat returns it as it is by then.
    pub async fn begin_operation(
        &self,
        new: NewBulk,
        caller: &Caller,
        key: Option<&CallKey>,
    ) -> Result<Bulk> {
        let intent = new.into_intent(caller)?;
        // What was begun before is found, also where no other one may begin now.
        if let Some(key) = key
            && let Some(id) = self.used_id(key).await?
        {
            return self.begun(id, caller).await;
        }
        if let Some(why) = self.no_room_for(intent.action).await? {
            return Err(why);
        }
        let places = self.admit_queues(self.new_queues(intent.to.iter())).await?;
        let now = self.now()?;
        let fresh = self.0.ids.next_bulk(now);
        let id = match key {
            Some(key) => self.id_once(key, fresh.to_string()).await?.parse().map_err(StoreError::internal)?,
            None => fresh,
        };
        let operation = Bulk::new(id, intent, caller.identity().to_owned(), now);
        let row = self.row_of(&operation, "operation.begin");
        let by = key.map(|key| self.id_used(key, &operation.id)).transpose()?;
        if self.0.store.add_operation(&operation, row.as_ref(), by.as_ref()).await? {
            row.iter().for_each(|row| audit::log(row, None));
            places.keep_all();
            self.0.operations.notify_one();
            return Ok(operation);
        }
        self.begun(operation.id, caller).await
    }

    /// Returns an operation that an earlier call has begun. One that is over and forgotten must not run again: many others have ended since,
    /// or the store was copied by `migrate`, which copies what calls were answered, but no operations.
    async fn begun(&self, id: BulkId, caller: &Caller) -> Result<Bulk> {
        match self.0.store.operation(&id).await? {
            Some(found) if is_seen_by(&found, caller) => Ok(found),
            Some(_) => Err(Error::UnknownOperation(id)),
            None => Err(Error::OperationGone(id)),
        }
    }

    /// Returns all operations that are not over, the oldest first.
    pub(super) async fn open_operations(&self) -> Result<Vec<Bulk>> {
        let mut open: Vec<Bulk> = Vec::new();
        loop {
            let after = open.last().map(|last| &last.id);
            let page = self.0.store.open_operations(after, READ).await?;
            if page.is_empty() {
                return Ok(open);
            }
            open.extend(page);
        }
    }

    /// Returns why no operation may begin with this action, if none may. Those that wait for room do not count among the others: what makes
    /// room for them must be able to begin.
    pub(super) async fn no_room_for(&self, action: BulkAction) -> Result<Option<Error>> {
        let open = self.open_operations().await?;
        let waiting = open.iter().filter(|operation| operation.waits_for_room).count();
        Ok(match action {
            _ if open.len() - waiting >= OPEN_MAX => Some(Error::TooManyOperations(OPEN_MAX)),
            BulkAction::Replay if waiting >= WAITING_MAX => Some(Error::TooManyReplays(WAITING_MAX)),
            _ => None,
        })
    }

    /// Returns the row of an act on an operation.
    pub(super) fn row_of(&self, operation: &Bulk, what: &'static str) -> Option<AuditRow> {
        let (queue, after) = (operation.intent.queue(), shown(&operation.intent));
        let act = Act { what, on: operation.id.as_str(), queue, before: None, after };
        let row = self.row(act)?;
        Some(AuditRow { affected: Some(operation.affected), ..row })
    }

    /// Returns what makes the row of an operation that is over by then: what it has done stays known once its record is forgotten.
    pub(super) fn row_of_end(&self, now: Timestamp) -> BulkRow {
        let id = self.0.ids.next(now);
        Arc::new(move |operation: &Bulk| {
            let Bulk { state, scanned, skipped, error, .. } = operation;
            let after =
                shown(&json!({"state": state, "scanned": scanned, "skipped": skipped, "error": error}));
            (!state.is_open()).then(|| AuditRow {
                id: id.clone(),
                at: now,
                by: operation.by.clone(),
                by_name: None,
                address: None,
                what: "operation.end".to_owned(),
                on: operation.id.to_string(),
                queue: operation.intent.queue().cloned(),
                affected: Some(operation.affected),
                before: None,
                after,
            })
        })
    }

    /// Returns an operation that the caller may see.
    pub async fn operation(&self, id: &BulkId, caller: &Caller) -> Result<Bulk> {
        let found = self.0.store.operation(id).await?;
        found
            .filter(|operation| is_seen_by(operation, caller))
            .ok_or_else(|| Error::UnknownOperation(id.clone()))
    }

    /// Returns the operations that the caller may see, the newest first.
    pub async fn operations(
        &self,
        before: Option<&BulkId>,
        limit: usize,
        caller: &Caller,
    ) -> Result<Page<Bulk, BulkId>> {
        let store = &self.0.store;
        let read = |before: Option<BulkId>, limit| {
            async move { store.operations(before.as_ref(), limit).await }.boxed()
        };
        let shown = |operation: &Bulk| is_seen_by(operation, caller);
        self.page(before, limit, None, |operation: &Bulk| operation.id.clone(), shown, read).await
    }

    /// Stops an operation: what was done by then stays. One that is over stays as it is.
    pub async fn cancel_operation(&self, id: &BulkId, caller: &Caller) -> Result<Bulk> {
        for attempt in 0..TRIES {
            back_off(attempt).await;
            let since = self.0.store.term();
            let found = self.operation(id, caller).await?;
            if !found.state.is_open() {
                self.0.store.confirm(since).await?;
                return Ok(found);
            }
            let (seen, row) = (found.rev, self.row_of(&found, "operation.cancel"));
            let ended = found.ended(BulkState::Cancelled, None, self.now()?);
            if self.0.store.save_operation(&ended, seen, row.as_ref()).await? {
                row.iter().for_each(|row| audit::log(row, None));
                return Ok(ended);
            }
        }
        Err(StoreError::unavailable("the operation was changed by its own steps again and again").into())
    }

    /// Scans some of the jobs that an operation would concern, and changes none.
    pub async fn sample_operation(&self, new: NewBulk, caller: &Caller) -> Result<Sample> {
        let intent = new.into_intent(caller)?;
        let (end, mut sample) =
            (Instant::now() + SAMPLE_MAX, Sample { is_complete: true, ..Sample::default() });
        let (now, mut last) = (self.now()?, None);
        let began = now.plus_ms(crate::job::bulk::CLOCKS_DIFFER_MS);
        while let Some(queue) = self.next_queue(&intent, last.as_ref()).await? {
            for part in intent.parts() {
                let filter = filter(&intent, part, queue.clone(), began);
                // What is returned of them needs no contents; where the filter does, the store reads them.
                let mut ask = Search { with_contents: false, ..Search::new(filter, SAMPLE_STEP) };
                loop {
                    if Instant::now() >= end {
                        return Ok(self.estimated(sample, &intent).await);
                    }
                    let found = self.0.store.search(&ask).await?;
                    sample.scanned += found.scanned;
                    for job in found.jobs.iter().flatten() {
                        if !(intent.operation(&job.meta, began).is_some() || intent.copies(job, began)) {
                            continue;
                        }
                        sample.matched += 1;
                        if sample.jobs.len() < SAMPLES {
                            let seen = (job.meta.id.clone(), queue.clone(), job.meta.visible(now));
                            sample.jobs.push(seen);
                        }
                    }
                    ask.after = found.stopped_at;
                    if ask.after.is_none() {
                        break;
                    }
                }
            }
            last = Some(queue);
        }
        sample.estimate = Some(at_most(sample.matched, intent.limit));
        Ok(sample)
    }

    /// Returns a sample that is not of all jobs with what it lets expect of the others.
    async fn estimated(&self, sample: Sample, intent: &BulkIntent) -> Sample {
        let whole = self.estimate(intent).await;
        let is_approximate = whole.is_none();
        let expected = match whole {
            Some(whole) => Some(whole),
            None => self.counted(intent).await.and_then(|all| expected(&sample, all)),
        };
        let estimate = expected.map(|expected| at_most(expected, intent.limit));
        Sample {
            is_complete: false,
            estimate,
            is_approximate: is_approximate && estimate.is_some(),
            ..sample
        }
    }

    /// Returns the next queue with jobs that an operation is about.
    pub(super) async fn next_queue(
        &self,
        intent: &BulkIntent,
        after: Option<&QueueName>,
    ) -> Result<Option<QueueName>> {
        if let Some(QueuePattern::One(queue)) = &intent.filter.queue {
            let is_next = after.is_none() && intent.means(queue);
            return Ok(is_next.then(|| queue.clone()));
        }
        let mut after = after.cloned();
        loop {
            let names = self.0.store.queues(intent.prefix(), after.as_ref(), NAMES).await?;
            let Some(last) = names.last() else { return Ok(None) };
            after = Some(last.clone());
            if let Some(found) = names.into_iter().find(|queue| intent.means(queue)) {
                return Ok(Some(found));
            }
        }
    }

    /// Returns about how many jobs would be affected, where the counts of the queues show it: nothing is counted for it.
    pub(super) async fn estimate(&self, intent: &BulkIntent) -> Option<u64> {
        if !intent.filter.is_whole() || intent.parts().iter().any(|part| part.dead_lettered) {
            return None;
        }
        Some(at_most(self.counted(intent).await?, intent.limit))
    }

    /// Returns about how many jobs there are in the queues and the states that are meant.
    async fn counted(&self, intent: &BulkIntent) -> Option<u64> {
        let counts: Vec<Counts> = match &intent.filter.queue {
            Some(QueuePattern::One(queue)) => vec![self.0.store.counts(queue).await.ok()?.counts],
            _ => {
                let all = self.0.store.depths().await.ok()?.into_iter();
                all.filter(|(queue, _)| intent.means(queue)).map(|(_, counts)| counts).collect()
            }
        };
        let parts = intent.parts();
        let states = || parts.iter().flat_map(|part| &part.states);
        Some(counts.iter().flat_map(|counts| states().map(move |state| count(counts, *state))).sum())
    }

    /// Returns what operators did, the latest first.
    pub async fn audit(
        &self,
        filter: &AuditFilter,
        before: Option<&JobId>,
        limit: usize,
    ) -> Result<Page<AuditRow, JobId>> {
        let read = self.0.store.audit(filter, before, limit.saturating_add(1)).await?;
        Ok(Page::cut(read, limit, |row: &AuditRow| row.id.clone()))
    }
}

/// Returns the queues in which an operation of this caller may act, where they are limited, and the key that may see it then.
pub(super) fn bounds(caller: &Caller) -> (Option<Vec<QueuePattern>>, Option<ApiKeyId>) {
    match caller {
        Caller::Key(key) if caller.is_limited() => (Some(caller.patterns().to_vec()), Some(key.id.clone())),
        _ => (caller.is_limited().then(|| caller.patterns().to_vec()), None),
    }
}

/// How many names of queues are read at once.
const NAMES: usize = 100;

fn is_seen_by(operation: &Bulk, caller: &Caller) -> bool {
    match caller {
        Caller::Key(key) if caller.is_limited() => operation.intent.owner.as_ref() == Some(&key.id),
        _ => true,
    }
}

fn at_most(jobs: u64, limit: Option<u64>) -> u64 {
    limit.map_or(jobs, |limit| limit.min(jobs))
}

/// Returns about how many of so many jobs match, if as many do of all as of those that were scanned.
fn expected(sample: &Sample, all: u64) -> Option<u64> {
    let share = (sample.scanned > 0).then(|| sample.matched as f64 / sample.scanned as f64)?;
    Some(((all.max(sample.scanned) as f64 * share).round() as u64).max(sample.matched))
}

/// Returns the jobs of a part of the work in a queue that were there when it began.
pub(super) fn filter(
    intent: &BulkIntent,
    part: crate::job::bulk::BulkPart,
    queue: QueueName,
    began: Timestamp,
) -> Filter {
    let BulkFilter { from, before, .. } = intent.filter;
    let before = Some(before.map_or(began, |before| before.min(began)));
    let has_ended = |state: &Visible| !state.stored().is_unfinished();
    let is_mixed = part.states.iter().any(has_ended) && !part.states.iter().all(has_ended);
    // Of other states, deaths are no time that a store knows: each job is judged by its own.
    let is_dead = part.states == [Visible::Dead];
    let died_from = intent.filter.died_from.filter(|_| is_dead);
    let from = from.max(died_from);
    let before = intent.filter.died_before.filter(|_| is_dead).into_iter().chain(before).min();
    let filter = Filter { dead_lettered: part.dead_lettered, ..intent.filter.in_queue(queue, part.states) };
    // Whatever ended before was pushed before; each job is judged by its own time as well.
    filter.during(Span { from: from.filter(|_| !is_mixed), before })
}

fn count(counts: &Counts, state: Visible) -> u64 {
    match state {
        Visible::Scheduled => counts.scheduled,
        Visible::Ready => counts.ready,
        Visible::Reserved => counts.reserved,
        Visible::Blocked => counts.blocked,
        Visible::Done => counts.done,
        Visible::Dead => counts.dead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_goes_by_the_share_that_matched() {
        let of = |matched, scanned, all| expected(&Sample { matched, scanned, ..Sample::default() }, all);
        assert_eq!(of(10, 1000, 100_000), Some(1000));
        assert_eq!(of(0, 1000, 100_000), Some(0));
        assert_eq!(
            (of(0, 0, 100), of(900, 1000, 500)),
            (None, Some(900)),
            "nothing was scanned; others came"
        );
        assert_eq!((at_most(20_000, Some(10)), at_most(5, Some(10)), at_most(5, None)), (10, 5, 5));
    }
}
