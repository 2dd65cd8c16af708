//! Why a reservation is lost, in words for people.

use super::Queues;
use super::outcomes::Ended;
use crate::job::record::TrailReason;
use crate::job::state::Verb;
use crate::job::transition::Outcome;
use crate::job::{Caller, Claim, Job, JobId, Scope, Timestamp, Visible};

/// How many characters of a failure's message are repeated.
const MESSAGE_SHOWN: usize = 200;
/// How a reservation may have been settled with its token.
const SETTLES: [(Verb, &str); 3] =
    [(Verb::Commit, "committed"), (Verb::Rollback, "rolled back"), (Verb::Move, "moved")];

impl Queues {
    /// Returns what has become of a job whose reservation was given once to this caller and is not held any more. `None` where that is
    /// not known, or the job is where the caller does not reach.
    pub async fn why_lost(&self, id: &JobId, claim: &Claim, caller: &Caller) -> Option<String> {
        let now = self.now().ok()?;
        let found = self.0.store.get(std::slice::from_ref(id)).await.ok()?.into_iter().next()?;
        let settled = self.settled_before(id, claim);
        match found {
            None => Some(match settled {
                Some(settled) => format!("{settled}, and there is no such job any more"),
                None => "there is no such job any more: it was settled, cancelled or purged, or has expired"
                    .to_owned(),
            }),
            Some(Err(_)) => None,
            Some(Ok(job)) if !caller.reaches(&job.meta.queue) => None,
            Some(Ok(job)) => {
                let may_read = caller.may(Scope::Read, &job.meta.queue);
                let since = since(&job, job.meta.visible(now), may_read);
                Some(match settled {
                    Some(settled) => format!("{settled}; {since}"),
                    None => since,
                })
            }
        }
    }

    /// Returns how this very reservation was settled, where this server remembers it.
    fn settled_before(&self, id: &JobId, claim: &Claim) -> Option<String> {
        SETTLES.iter().find_map(|(verb, how)| {
            let Ended { outcome, at, .. } = self.0.outcomes.recall(id, claim, *verb)?;
            // Of a commit that ends a job no time is remembered.
            Some(match outcome {
                Outcome::Done => format!("it was {how} with this reservation"),
                _ => format!("it was {how} with this reservation at {at}"),
            })
        })
    }
}

/// What has happened to a job last, and is known of it. What another worker has said of its failure is shown to those who may read jobs.
fn since(job: &Job, state: Visible, may_read: bool) -> String {
    let meta = &job.meta;
    let state = match state {
        Visible::Reserved => "it was delivered again".to_owned(),
        Visible::Done => "the job was committed".to_owned(),
        other => format!("the job is {}", other.as_str()),
    };
    let failed_at = meta.errors.last().map(|failure| failure.at);
    // A job that leaves its queue is given back by that as well.
    if let Some(step) = meta.trail.last().filter(|step| is_last(step.at, [failed_at, meta.given_back_at]))
        && step.reason == TrailReason::Moved
    {
        return format!("{state}; it was moved to {} at {}", meta.queue, step.at);
    }
    if let Some(at) = meta.given_back_at.filter(|at| is_last(*at, [failed_at.map(next), None])) {
        return format!("{state}; it was taken back, or given back without an error, at {at}");
    }
    let Some(failure) = meta.errors.last() else { return state };
    let ended = format!("{state}; delivery {} ended at {}", failure.attempt, failure.at);
    if !may_read {
        return ended;
    }
    let message: String = failure.message.chars().take(MESSAGE_SHOWN).collect();
    format!("{ended} ({message:?})")
}

/// Returns whether a moment is not before any of these.
fn is_last(at: Timestamp, others: [Option<Timestamp>; 2]) -> bool {
    others.into_iter().flatten().all(|other| other <= at)
}

/// Returns the moment behind one: what happens with a failure has its time.
fn next(at: Timestamp) -> Timestamp {
    at.plus_ms(1)
}
