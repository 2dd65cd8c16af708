//! The jobs themselves: the table `jobs`, and what is written in one transaction with it.
//!
//! | file | what it does |
//! |---|---|
//! | `row`, `column` | jobs as rows: the table of the columns; how each type is kept |
//! | `push`, `children` | new jobs, alone or together with something else |
//! | `claim`, `claim_limited` | reserving; the second where semaphores or limits apply |
//! | `priorities`, `due` | the walk over the priorities of a queue, and what of it is remembered; the due jobs of one of them |
//! | `apply`, `receipts` | operations on jobs; what they leave for their repeats |
//! | `unreadable` | jobs that another program spoiled |
//! | `many` | what claims and commits write of many jobs, by one statement |
//! | `groups`, `needs` | the order within groups; which jobs need which semaphore |
//! | `obstacles` | why a job is not delivered |
//! | `search`, `lines` | jobs by filter; groups |
//! | `query`, `expired`, `stocked` | jobs by id; reservations and jobs past their deadline; queues with due jobs |

pub mod apply;
pub mod children;
pub mod claim;
pub mod claim_limited;
mod column;
pub mod due;
pub mod expired;
pub mod groups;
mod lines;
pub mod many;
pub mod needs;
pub mod obstacles;
pub mod priorities;
pub mod push;
pub mod query;
pub mod receipts;
pub mod row;
mod search;
pub mod stocked;
pub mod unreadable;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::job::error_group::Tally;
use crate::job::group::Line;
use crate::job::{Claim, Job, JobId, Mark, Meta, NewJob, QueueName, Reach, Rules, Timestamp};
use crate::store::next::{self, TakeAsk, Taken};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::tx::Tx;
use crate::store::{
    Applied, Change, ClaimAsk, Claims, Denied, Found, GroupLine, Jobs, ListedJob, Obstacles, Overdue, Pushed,
    Result, Search, StoreError,
};

/// How long a claim that finds nothing goes on with further transactions.
const CLAIM_MAX: Duration = Duration::from_secs(10);

/// What a call takes with its changes, as far as it has come: the thread that writes may go on with it once the caller has given up. Either
/// the caller learns of a claim, or that is not made.
#[derive(Clone, Default)]
struct Taking(Arc<Mutex<Progress>>);

#[derive(Default)]
struct Progress {
    /// The claims of the last run: what those before it wrote was rolled back.
    claims: Vec<(QueueName, Claim)>,
    is_given_up: bool,
}

impl Taking {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Notes these claims, which are made next. Returns them; none once the caller has given up.
    fn begin(&self, asks: Vec<ClaimAsk>) -> Vec<ClaimAsk> {
        let mut progress = self.progress();
        if progress.is_given_up {
            return Vec::new();
        }
        progress.claims = asks.iter().map(|ask| (ask.queue.clone(), ask.claim.clone())).collect();
        asks
    }

    /// Returns the claims of which it is not known what they have won, and makes no others.
    fn give_up(&self) -> Vec<(QueueName, Claim)> {
        let mut progress = self.progress();
        progress.is_given_up = true;
        std::mem::take(&mut progress.claims)
    }
}

#[async_trait]
impl Jobs for SqliteStore {
    async fn push(&self, jobs: Vec<NewJob>, rules: &Rules) -> Vec<Result<Pushed>> {
        let (count, rules) = (jobs.len(), rules.clone());
        let jobs: Vec<push::New> = jobs.into_iter().map(push::New::from).collect();
        let pushed = self.writer.run(move |tx, now| push::push(tx, &jobs, &rules, now)).await;
        pushed.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn claim(&self, asks: &[ClaimAsk], rules: &Rules) -> Claims {
        let (began, mut offers) = (Instant::now(), Vec::new());
        loop {
            let (own, rules) = (asks.to_vec(), rules.clone());
            let claimed = self.writer.run(move |tx, now| claim::claim(tx, &own, &rules, now)).await;
            let mut claims = claimed.unwrap_or_else(|error| Claims::failed(asks.len(), &error));
            offers.append(&mut claims.offers);
            // So much was in the way that the rest was left for another transaction. Where it is large, or some have won, it is for the caller
            // to go on.
            let now = self.clock.now();
            let cut = claims.resume.iter().filter(|(_, at)| *at <= now).map(|(queue, _)| queue.clone());
            let cut: Vec<QueueName> = cut.collect();
            if claims.won.iter().any(|won| won.as_ref().map_or(true, |jobs| !jobs.is_empty())) {
                claims.again.extend(cut);
                return Claims { offers, ..claims };
            }
            if !claims.again.is_empty() || cut.is_empty() {
                return Claims { offers, ..claims };
            }
            if began.elapsed() > CLAIM_MAX {
                let error = StoreError::unavailable("too many jobs that may not be delivered come first");
                return Claims { offers, ..Claims::failed(asks.len(), &error) };
            }
        }
    }

    async fn held(&self, queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>> {
        let (queues, claim) = (queues.to_vec(), claim.clone());
        // The claim may be one whose transaction has not ended yet, on a disk that stalls: its jobs can be read once what was begun before
        // this has ended.
        self.writer.run(|_, _| Ok(())).await?;
        self.read(move |db, _| claim::held(db, &queues, &claim)).await
    }

    async fn marked(&self, marks: &[Mark]) -> Result<Vec<Job>> {
        let marks = marks.to_vec();
        self.read(move |db, _| claim::marked(db, &marks)).await
    }

    async fn apply(&self, changes: Vec<Change>, rules: &Rules) -> Vec<Result<Applied, Denied>> {
        let changes: Arc<[Change]> = changes.into();
        let apply = async |part: Range<usize>| {
            let (changes, rules) = (Arc::clone(&changes), rules.clone());
            let apply = move |tx: &Tx<'_>, now| apply::apply(tx, &changes[part.clone()], &rules, now);
            self.writer.run(apply).await
        };
        let failed = |error| vec![Err(Denied::Store(error))];
        match apply(0..changes.len()).await {
            Ok(applied) => applied,
            // One may have met behind a write what another program spoiled: the others go on without it.
            Err(StoreError::Internal(_)) if changes.len() > 1 => {
                let mut applied = Vec::with_capacity(changes.len());
                for n in 0..changes.len() {
                    applied.extend(apply(n..n + 1).await.unwrap_or_else(failed));
                }
                applied
            }
            Err(error) => changes.iter().flat_map(|_| failed(error.clone())).collect(),
        }
    }

    async fn apply_and_take(&self, changes: Vec<Change>, takes: &[TakeAsk], rules: &Rules) -> Taken {
        let (own, asks, under) = (changes.clone(), takes.to_vec(), rules.clone());
        let taking = Taking::default();
        let taken = taking.clone();
        let both = move |tx: &Tx<'_>, now| {
            let applied = apply::apply(tx, &own, &under, now)?;
            let (indexes, asks) = next::claims(&asks, &applied, &under);
            let asks = taken.begin(asks);
            let claims = claim::claim(tx, &asks, &under, now)?;
            Ok((applied, indexes, asks, claims))
        };
        match self.writer.run(both).await {
            Ok((applied, indexes, asks, claims)) => {
                Taken { applied, ..Taken::of(takes.len(), indexes, asks, claims) }
            }
            // What cannot be claimed must not keep anything from being settled. Where the store is away both fail.
            Err(error) if !error.is_away() => Taken::nothing(self.apply(changes, rules).await, takes.len()),
            // Or they are still under way, and take jobs that no client gets.
            Err(error) => {
                let failed = changes.iter().map(|_| Err(Denied::Store(error.clone()))).collect();
                Taken { unknown: taking.give_up(), ..Taken::nothing(failed, takes.len()) }
            }
        }
    }

    async fn overdue(&self, limit: usize) -> Result<Overdue> {
        expired::overdue(self, limit).await
    }

    async fn upcoming(&self, limit: usize) -> Result<Vec<(QueueName, Timestamp)>> {
        self.read(move |db, now| query::upcoming(db, limit, now)).await
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<ListedJob>>> {
        let ids = ids.to_vec();
        self.read(move |db, _| query::get(db, &ids)).await
    }

    async fn unfinished(&self, ids: &[JobId]) -> Result<Vec<JobId>> {
        let ids = ids.to_vec();
        self.read(move |db, _| query::unfinished(db, &ids)).await
    }

    async fn search(&self, ask: &Search) -> Result<Found> {
        let ask = ask.clone();
        self.read(move |db, now| search::search(db, &ask, now)).await
    }

    async fn tally_dead(&self, within: &Reach) -> Result<(Tally, bool)> {
        let within = within.clone();
        self.read(move |db, _| search::tally_dead(db, &within)).await
    }

    async fn groups(&self, within: &Reach, after: Option<&Line>, limit: usize) -> Result<Vec<GroupLine>> {
        let (within, after) = (within.clone(), after.cloned());
        self.read(move |db, _| lines::groups(db, &within, after.as_ref(), limit)).await
    }

    async fn peek(&self, queue: &QueueName, limit: usize) -> Result<Vec<Job>> {
        let (queue, skipped) = (queue.clone(), Arc::clone(&self.skipped));
        self.read(move |db, now| claim::peek(db, &skipped, &queue, limit, now)).await
    }

    async fn obstacles(&self, job: &Meta) -> Result<Obstacles> {
        let job = job.clone();
        self.read(move |db, _| obstacles::obstacles(db, &job)).await
    }

    async fn queues(&self, prefix: &str, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        self.read(move |db, _| query::queues(db, &prefix, after.as_ref(), limit)).await
    }

    async fn stocked(&self, queues: &[QueueName]) -> Result<Vec<QueueName>> {
        let (queues, skipped) = (queues.to_vec(), Arc::clone(&self.skipped));
        self.read(move |db, now| stocked::stocked(db, &skipped, &queues, now)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_known_to_its_caller_or_is_not_made() {
        let queue: QueueName = "q".parse().unwrap();
        let (first, last) = (Claim::random(), Claim::random());
        let ask = |claim: &Claim| ClaimAsk {
            queue: queue.clone(),
            count: 1,
            claim: claim.clone(),
            lease_ms: 1000,
            yields: false,
            worker: None,
            pop: false,
        };
        let taking = Taking::default();
        for claim in [&first, &last] {
            assert_eq!(taking.begin(vec![ask(claim)]).len(), 1);
        }
        assert_eq!(taking.give_up(), vec![(queue.clone(), last)]);
        assert!(taking.begin(vec![ask(&first)]).is_empty());
    }
}
