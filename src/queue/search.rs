//! Searching jobs, in one queue or in many.

use std::time::{Duration, Instant};

use super::pages::fitting;
use super::{Queues, Result};
use crate::job::error_group::Tally;
use crate::job::{JobId, Reach};
use crate::store::{ListedJob, PAGE_BYTES, Search, Weight as _, listed_id};

/// How long one call reads on where jobs are so long that a store returns few at once.
const TIME: Duration = Duration::from_millis(600);

/// What a search has found.
#[derive(Debug)]
pub struct Sought {
    /// The jobs that are meant, by id.
    pub jobs: Vec<ListedJob>,
    /// How many jobs were scanned.
    pub scanned: u64,
    /// Behind which job it goes on; `None`: the search is over.
    pub next: Option<JobId>,
}

impl Queues {
    /// Returns jobs that a filter means, by id, also those that cannot be read: up to the limit of the search, and as many as one
    /// response carries. Fewer where it would have to scan too many others: the next call goes on behind those.
    pub async fn search(&self, ask: Search) -> Result<Sought> {
        let (began, limit, most) = (Instant::now(), ask.limit, self.options().answer_bytes);
        let (mut jobs, mut scanned, mut bytes): (Vec<ListedJob>, u64, usize) = (Vec::new(), 0, 0);
        let mut step = ask;
        loop {
            step.limit = (limit + 1).saturating_sub(jobs.len());
            let found = self.0.store.search(&step).await?;
            let weight = found.jobs.iter().map(ListedJob::weight).sum::<usize>();
            (scanned, bytes) = (scanned + found.scanned, bytes + weight);
            step.scanned_max = step.scanned_max.saturating_sub(found.scanned);
            step.after = found.stopped_at;
            jobs.extend(found.jobs);
            // A store ends a page early where its jobs are long.
            let is_cut = weight >= PAGE_BYTES && step.after.is_some() && step.scanned_max > 0;
            if !is_cut || jobs.len() > limit || bytes > most || began.elapsed() >= TIME {
                break;
            }
        }
        let fits = fitting(&jobs, most).min(limit);
        if jobs.len() > fits {
            jobs.truncate(fits);
            step.after = jobs.last().map(|job| listed_id(job).clone());
        }
        self.bury(&mut jobs, &step.filter.within).await;
        Ok(Sought { jobs, scanned, next: step.after })
    }

    /// Counts the dead of these queues by their errors. The second value is whether all were counted.
    pub async fn dead_by_error(&self, within: &Reach) -> Result<(Tally, bool)> {
        Ok(self.0.store.tally_dead(within).await?)
    }
}
