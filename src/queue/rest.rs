//! What a call over many jobs of a queue leaves to an operation.
//!
//! The call counts what it does itself. Once it has scanned enough jobs, and there are more behind them, it stores an operation that
//! begins there, and is over. Each job is affected by one of the two: the operation begins behind where the call has stopped, and leaves
//! alone what came to match since the call began, as every operation does.
//!
//! Of a keyed call, the id of the operation is remembered like a step, before the operation is stored, and that it was stored together
//! with it: a repeat begins no other one, one that was interrupted between the two stores it, and one that is over and forgotten is not
//! stored again.

use serde::{Deserialize, Serialize};

use super::bulk::{Affected, KEYED_STEP};
use super::keyed::{StepDone, Steps};
use super::operations::bounds;
use super::{CallKey, Queues, Result};
use crate::faults;
use crate::job::bulk::{BulkAction, BulkCursor, BulkFilter, BulkIntent};
use crate::job::{Bulk, BulkId, Caller, JobId, Timestamp};
use crate::store::audit::{self, Entry};
use crate::store::{Search, StoreError};

/// How many jobs a call scans itself, in about.
const ENOUGH: usize = 2000;

/// A call, and what it has done so far.
pub(super) struct Call<'k> {
    /// What it does.
    action: BulkAction,
    /// When it began, by the first server that ran it.
    began: Timestamp,
    steps: Option<Steps<'k>>,
    /// The row of the act.
    row: Option<Entry>,
    /// How many jobs it scans at most.
    enough: usize,
    /// How many jobs it has scanned.
    pub scanned: usize,
    /// How many jobs it has affected.
    pub affected: u64,
}

/// Where a call has come to with some of the jobs.
pub(super) enum Part {
    /// There are no more, or as many were affected as may be.
    Over,
    /// There are more behind `last`, which are for the operation.
    Behind { last: Option<JobId>, operation: BulkId },
}

/// What a call leaves to an operation.
pub(super) struct Rest {
    /// The operation.
    pub id: BulkId,
    /// Which jobs.
    pub filter: BulkFilter,
    /// What is done to them.
    pub action: BulkAction,
    /// Where it begins.
    pub cursor: BulkCursor,
    /// The most jobs, those included that the call has affected.
    pub limit: Option<u64>,
    /// Whether it scans the latest jobs first.
    pub newest_first: bool,
}

/// What is remembered of a step of a keyed call.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Remembered {
    /// What it has done.
    Done(StepDone),
    /// That an operation goes on from there.
    HandedOver { operation: BulkId },
}

impl<'k> Call<'k> {
    /// A call that does this and began then, and whose steps are remembered if it is keyed.
    pub fn new(action: BulkAction, began: Timestamp, steps: Option<Steps<'k>>) -> Self {
        Self { action, began, steps, row: None, enough: ENOUGH, scanned: 0, affected: 0 }
    }

    /// The same, as an act that is remembered.
    pub fn recorded(self, row: Option<Entry>) -> Self {
        Self { row, ..self }
    }

    /// The same, which leaves nothing to an operation.
    pub fn leaving_nothing(self) -> Self {
        Self { enough: usize::MAX, ..self }
    }

    /// Returns how many more jobs it may affect.
    pub fn left(&self, limit: Option<u64>) -> usize {
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.affected));
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// Returns the row of the act, for each of its steps.
    pub fn row(&self) -> Option<Entry> {
        self.row.clone()
    }

    /// Goes on to the next step, and returns the key that it is remembered by.
    pub fn next_step(&mut self) -> Option<CallKey> {
        self.steps.as_mut().map(Steps::next)
    }

    /// Returns what it has come to without an operation.
    pub fn over(self) -> Affected {
        Affected { affected: self.affected, operation: None }
    }
}

impl Queues {
    /// Returns what is known of a step before it is made: what it has done before, or the operation that goes on instead of it. The step
    /// reads the jobs that are asked for.
    pub(super) async fn before_step(
        &self,
        call: &mut Call<'_>,
        own: Option<&CallKey>,
        ask: &Search,
    ) -> Result<Option<Remembered>> {
        let before = match own {
            Some(own) => self.step_recalled(own).await?,
            None => None,
        };
        match before {
            Some(known) => {
                call.scanned += KEYED_STEP;
                Ok(Some(known))
            }
            None if call.scanned >= call.enough => {
                self.chosen_operation(call, own, ask).await.map_err(|error| error.after(call.affected))
            }
            None => Ok(None),
        }
    }

    /// Returns the operation that is to go on, if there are more jobs. Where as many are under way as may be, the call goes on itself.
    async fn chosen_operation(
        &self,
        call: &mut Call<'_>,
        own: Option<&CallKey>,
        ask: &Search,
    ) -> Result<Option<Remembered>> {
        if self.found(&Search { limit: 1, with_contents: false, ..ask.clone() }).await?.is_empty() {
            return Ok(None);
        }
        if self.no_room_for(call.action).await?.is_some() {
            call.scanned = 0;
            return Ok(None);
        }
        let handed = Remembered::HandedOver { operation: self.0.ids.next_bulk(self.now()?) };
        let Some(own) = own else { return Ok(Some(handed)) };
        // The same call at another server may have made this step meanwhile.
        let text = serde_json::to_string(&handed).map_err(StoreError::internal)?;
        let remembered = self.remember(own, text).await?;
        faults::point("bulk.handing_over").await;
        serde_json::from_str(&remembered).map(Some).map_err(|error| StoreError::internal(error).into())
    }

    /// Stores the operation that goes on where a call stops. One that was stored by the call before is not stored again.
    pub(super) async fn hand_over(
        &self,
        mut call: Call<'_>,
        rest: Rest,
        caller: &Caller,
    ) -> Result<Affected> {
        let (stored, began) = (call.next_step(), call.began);
        let Rest { id, filter, action, cursor, limit, newest_first } = rest;
        let answer = Affected { affected: call.affected, operation: Some(id.clone()) };
        let by = stored.map(|stored| self.begun_by(&stored, &id)).transpose()?;
        let limit = limit.map(|limit| limit.saturating_sub(call.affected));
        let (within, owner) = bounds(caller);
        let intent =
            BulkIntent { filter, action, to: None, priority: None, limit, newest_first, within, owner };
        let asker = caller.identity().to_owned();
        let operation = Bulk { cursor, ..Bulk::new(id, intent, asker, began) };
        let row = self.row_of(&operation, "operation.begin");
        let added = self.0.store.add_operation(&operation, row.as_ref(), by.as_ref()).await;
        if added.map_err(|error| error.after(call.affected))? {
            row.iter().for_each(|row| audit::log(row, None));
        }
        self.0.operations.notify_one();
        faults::point("bulk.handed_over").await;
        Ok(answer)
    }
}
