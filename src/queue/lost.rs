//! Why a reservation is lost, in words for people.

use super::Queues;
use crate::job::{Caller, Job, JobId, Scope, Visible};

/// How many characters of a failure's message are repeated.
const MESSAGE_SHOWN: usize = 200;

impl Queues {
    /// Returns what has become of a job whose reservation was given once to this caller and is not held any more. `None` where that is
    /// not known, or the job is where the caller does not reach.
    pub async fn why_lost(&self, id: &JobId, caller: &Caller) -> Option<String> {
        let now = self.now().ok()?;
        let found = self.0.store.get(std::slice::from_ref(id)).await.ok()?.into_iter().next()?;
        match found {
            None => Some(
                "there is no such job any more: it was settled, cancelled or purged, or has expired"
                    .to_owned(),
            ),
            Some(Err(_)) => None,
            Some(Ok(job)) if !caller.reaches(&job.meta.queue) => None,
            Some(Ok(job)) => {
                let may_read = caller.may(Scope::Read, &job.meta.queue);
                Some(since(&job, job.meta.visible(now), may_read))
            }
        }
    }
}

/// What another worker has said of its failure is shown to those who may read jobs.
fn since(job: &Job, state: Visible, may_read: bool) -> String {
    let state = match state {
        Visible::Reserved => "it was delivered again".to_owned(),
        Visible::Done => "the job was committed".to_owned(),
        other => format!("the job is {}", other.as_str()),
    };
    let Some(failure) = job.meta.errors.last() else { return state };
    let ended = format!("{state}; delivery {} ended at {}", failure.attempt, failure.at);
    if !may_read {
        return ended;
    }
    let message: String = failure.message.chars().take(MESSAGE_SHOWN).collect();
    format!("{ended} ({message:?})")
}
