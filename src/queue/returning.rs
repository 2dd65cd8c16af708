//! Giving back jobs that their client did not receive.

use std::collections::HashSet;
use std::time::Duration;

use super::Queues;
use super::meter::Event;
use crate::faults;
use crate::job::transition::{Operation, Outcome};
use crate::job::{Claim, Job, QueueName};
use crate::store::{self, Change, Denied};

/// How many times giving back is retried while the store is away; after that the leases run out.
const GIVE_BACK_TRIES: u32 = 30;
/// After so many queries in a row that find nothing more no command of a claim is on its way any more.
const EMPTY_QUERIES: u32 = 3;

impl Queues {
    /// Begins to [give back](Self::give_back) jobs. A server that stops [waits](Self::returned) for that.
    pub(super) fn return_jobs(&self, jobs: Vec<Job>, unless_seen: bool) {
        if !jobs.is_empty() {
            self.0.returning.spawn(self.clone().give_back(jobs, unless_seen));
        }
    }

    /// Waits until all jobs are given back that their clients did not receive, for so long; the leases of others run out.
    pub async fn returned(&self, most: Duration) {
        self.0.returning.close();
        if tokio::time::timeout(most, self.0.returning.wait()).await.is_err() {
            tracing::warn!(
                "giving back what clients did not receive has not ended: the leases of what is left run out"
            );
        }
    }

    /// Gives back jobs that their client did not receive, as if they had not been delivered. `unless_seen`: but those that a repeat
    /// of the call has handed out.
    pub(super) async fn give_back(self, jobs: Vec<Job>, unless_seen: bool) {
        let release = |job: Job| {
            Some(Change {
                id: job.meta.id,
                operation: Operation::Release { claim: job.meta.claim?, unless_seen },
            })
        };
        let mut changes: Vec<Change> = jobs.into_iter().filter_map(release).collect();
        faults::point("delivery.give_back").await;
        if changes.is_empty() {
            return;
        }
        for _ in 0..GIVE_BACK_TRIES {
            let applied = self.0.store.apply(changes.clone(), &self.rules()).await;
            let mut again = Vec::new();
            for (change, applied) in changes.into_iter().zip(applied) {
                match applied {
                    Ok(applied) => {
                        self.0.endings.note(&change.id, &applied.outcome);
                        let mut notes = self.meter().notes();
                        if applied.outcome == Outcome::Removed {
                            notes.count(&applied.queue, Event::Cancelled);
                        }
                        self.note_callback(applied.callback.as_ref(), &mut notes);
                        drop(notes);
                        self.note_room(&applied);
                        applied.unblocked.iter().for_each(|(queue, run_at)| self.announce(queue, *run_at));
                        if let Outcome::Returned { queue, run_at, .. } = applied.outcome {
                            self.announce(&queue, run_at);
                        }
                    }
                    Err(Denied::Store(error)) if error.is_away() || error.is_full() => again.push(change),
                    Err(_) => {} // settled or lapsed by now
                }
            }
            if again.is_empty() {
                return;
            }
            changes = again;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Finds what a claim of unknown outcome has won, by its token, and gives it back; see [`Self::give_back`]. A claim may be several
    /// commands, of which the later ones can still be on their way: it ends once nothing more was found for some seconds.
    pub(super) fn recover(&self, queue: QueueName, claim: Claim, unless_seen: bool) {
        let this = self.clone();
        self.0.returning.spawn(async move {
            let (mut given_back, mut empty_queries) = (HashSet::new(), 0);
            for _ in 0..GIVE_BACK_TRIES {
                // First the pause: a command that is still on its way must have arrived.
                tokio::time::sleep(Duration::from_secs(1)).await;
                faults::point("delivery.recover").await;
                match this.0.store.held(std::slice::from_ref(&queue), &claim).await {
                    Ok(mut jobs) => {
                        // What a repeat has handed out is still held.
                        jobs.retain(|job| given_back.insert(job.meta.id.clone()));
                        empty_queries = if jobs.is_empty() { empty_queries + 1 } else { 0 };
                        if empty_queries == EMPTY_QUERIES {
                            return;
                        }
                        if !jobs.is_empty() {
                            this.clone().give_back(jobs, unless_seen).await;
                        }
                    }
                    Err(error) => {
                        tracing::debug!(error = %store::chain(&error), "claim not recovered yet")
                    }
                }
            }
        });
    }
}
