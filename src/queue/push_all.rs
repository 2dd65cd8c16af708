//! New jobs of several queues that are stored together, or not at all.

use std::sync::Arc;

use super::push::{self, Facts};
use super::quotas::Places;
use super::semaphores::check_known;
use super::{CallKey, CallOutcome, Error, NewPush, PushAnswer, Queues, Result};
use crate::faults;
use crate::job::{NewJob, QueueName};
use crate::store::{Answering, Denied, Keyed, Named, Once, PushRefused, Pushed, StoreError};
use crate::telemetry::trace;

/// The most jobs that one call stores together.
pub const TOGETHER_MAX: usize = 1000;

impl Queues {
    /// Adds jobs to queues: all of them, or none where one is refused, which is [`Error::InJob`]. One whose key is taken by a job
    /// with an equal payload is not refused, as with [`push`](Self::push).
    pub async fn push_all(&self, pushes: Vec<(QueueName, NewPush)>) -> Result<Vec<PushAnswer>> {
        match self.push_all_by(pushes, None).await? {
            CallOutcome::Plain(pushed) => Ok(pushed),
            CallOutcome::Answer(_) => {
                Err(StoreError::internal("a call without a key was answered as one with a key").into())
            }
        }
    }

    /// The same for a keyed call.
    pub async fn push_all_once(
        &self,
        pushes: Vec<(QueueName, NewPush)>,
        key: &CallKey,
        answer: Answering<Vec<PushAnswer>>,
    ) -> Result<CallOutcome<Vec<PushAnswer>>> {
        let place = self.admit_request(&key.id).await?;
        self.push_all_by(pushes, Some((key, answer, place))).await
    }

    async fn push_all_by(
        &self,
        pushes: Vec<(QueueName, NewPush)>,
        keyed: Option<(&CallKey, Answering<Vec<PushAnswer>>, Places)>,
    ) -> Result<CallOutcome<Vec<PushAnswer>>> {
        let (jobs, mut places) = self.jobs_of_all(pushes).await?;
        let named = places.of_each(jobs.iter().map(push::queues));
        let facts: Vec<Facts> = jobs.iter().map(push::facts).collect();
        let first_expiry = jobs.iter().filter_map(NewJob::expires_at).min();
        let answers = move |pushed: &Vec<Pushed>| {
            let each = pushed.iter().cloned().zip(facts.iter().cloned());
            each.map(|(pushed, facts)| push::answer(pushed, facts)).collect::<Result<Vec<PushAnswer>>>()
        };
        let answers = Arc::new(answers);
        let (keyed, place) = match keyed {
            None => (None, self.no_places(Named::Requests)),
            Some((key, answer, place)) => {
                let rendered = answers.clone();
                let render = move |pushed: &Vec<Pushed>| answer(&rendered(pushed).ok()?);
                (Some(self.keyed(key, Arc::new(render))?), place)
            }
        };
        let this = self.clone();
        self.to_the_end(async move {
            let once = this.store_all(jobs, keyed).await?;
            let mut note = |pushed: &Vec<Pushed>| {
                let stored = |pushed: &Pushed| matches!(pushed, Pushed::Created | Pushed::Blocked);
                let kept = pushed.iter().map(|pushed| stored(pushed).then_some(()).ok_or(Error::Overloaded));
                places.keep_stored(&named, &kept.collect::<Vec<Result<()>>>());
                let each: Vec<Result<PushAnswer>> = answers(pushed).into_iter().flatten().map(Ok).collect();
                this.note_stored(first_expiry, &each);
            };
            match once {
                Once::Now(pushed, None) => {
                    note(&pushed);
                    Ok(CallOutcome::Plain(answers(&pushed)?))
                }
                once => Ok(match Self::outcome_of(once, place, note)? {
                    CallOutcome::Plain(pushed) => CallOutcome::Plain(answers(&pushed)?),
                    CallOutcome::Answer(answer) => CallOutcome::Answer(answer),
                }),
            }
        })
        .await
    }

    async fn store_all(
        &self,
        jobs: Vec<NewJob>,
        keyed: Option<Keyed<Vec<Pushed>>>,
    ) -> Result<Once<Vec<Pushed>>> {
        let stored = self.0.store.push_all(jobs, &self.rules(), keyed).await;
        faults::point("keyed.stored").await;
        stored.map_err(|denied| match denied {
            Denied::PushRefused(PushRefused { index, queue, key_of }) => {
                Error::in_job(index, key_of.map_or(Error::QueueFull(queue), Error::KeyConflict))
            }
            Denied::Store(error) => error.into(),
            Denied::Refused(_) | Denied::KeyTaken(_) => Error::Overloaded, // no push is refused so
        })
    }

    /// Returns the jobs as they are stored, which are in order by themselves, and places for the queues that they name.
    async fn jobs_of_all(&self, pushes: Vec<(QueueName, NewPush)>) -> Result<(Vec<NewJob>, Places)> {
        if !(1..=TOGETHER_MAX).contains(&pushes.len()) {
            return Err(Error::invalid("/jobs", "must be 1 to 1000 jobs"));
        }
        let (now, options) = (self.now()?, self.options());
        for (n, (_, push)) in pushes.iter().enumerate() {
            push.check(options.payload_bytes).map_err(|invalid| Error::in_job(n, invalid.into()))?;
        }
        let unknown = self.unknown_semaphores(pushes.iter().map(|(_, push)| &push.spec)).await?;
        let names = |(queue, push): &'_ (QueueName, NewPush)| {
            push.stages().chain(std::iter::once(queue)).cloned().collect::<Vec<QueueName>>()
        };
        let named: Vec<Vec<QueueName>> = pushes.iter().map(names).collect();
        let (places, full) = self.take_queues(&self.new_queues(named.iter().flatten())).await?;
        for (n, ((_, push), named)) in pushes.iter().zip(&named).enumerate() {
            let known = check_known(&push.spec, &unknown).map_err(Error::from);
            known
                .and_then(|()| self.check_queues(&full, named.iter()))
                .map_err(|error| Error::in_job(n, error))?;
        }
        let (key_ttl_ms, trace) = (options.defaults.key_ttl_ms, trace::carried());
        let job = |(queue, push): (QueueName, NewPush)| {
            push.into_job((self.0.ids.next(now), queue), now, key_ttl_ms, trace.as_ref())
        };
        Ok((pushes.into_iter().map(job).collect(), places))
    }
}
