//! Batches in the model: they count the jobs that end, and the last one calls back, once.

use std::collections::BTreeMap;

use tailback::job::batch::Endings;
use tailback::job::{BatchId, Ending, JobId, JobSpec, NewJob, OnFinished, Payload, QueueName, Timestamp};
use tailback::store::{BatchChanged, BatchDenied, CalledBack};

use super::job::{Differences, Job, When};
use super::state::{Admitted, Checked, Model};

#[derive(Debug, Clone)]
pub struct Batch {
    pub id: BatchId,
    pub sealed: bool,
    pub pending: u64,
    pub endings: Endings,
    pub created_at: Timestamp,
    pub finished_at: Option<When>,
    pub purge_at: Option<When>,
    pub callback: JobId,
    pub on_finished: Option<OnFinished>,
    pub results: BTreeMap<JobId, Ended>,
}

/// What is kept of a job that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    pub queue: QueueName,
    pub state: Ending,
    pub result: Option<Payload>,
    pub at: When,
}

impl Batch {
    pub fn check(&mut self, seen: &tailback::job::Batch) -> Checked {
        let mut found = Differences::default();
        macro_rules! same { ($($field:ident)*) => { $(found.same(stringify!($field), &self.$field, &seen.$field);)* } }
        same! { id sealed pending endings created_at callback on_finished }
        found.moment_if_any("finished_at", &mut self.finished_at, seen.finished_at);
        found.moment_if_any("purge_at", &mut self.purge_at, seen.purge_at);
        found.end(&format_args!("batch {}", self.id))
    }

    pub fn check_results(&mut self, seen: &[tailback::job::BatchResult]) -> Checked {
        let mut found = Differences::default();
        let ids: Vec<&JobId> = seen.iter().map(|result| &result.id).collect();
        found.same("the jobs with results", &self.results.keys().collect::<Vec<_>>(), &ids);
        for (own, seen) in self.results.values_mut().zip(seen) {
            found.same("result queue", &own.queue, &seen.queue);
            found.same("result state", &own.state, &seen.state);
            found.same("result", &own.result, &seen.result);
            found.moment("result finished_at", &mut own.at, seen.finished_at);
        }
        found.end(&format_args!("batch {}", self.id))
    }
}

impl Model {
    /// A job has ended: the batch counts it, and is over with the last one.
    pub fn ended(&mut self, job: &Job, state: Ending, result: Option<&Payload>, now: When) {
        let Some(batch) = job.batch.as_ref().and_then(|id| self.batches.get_mut(id)) else { return };
        batch.pending -= 1;
        match state {
            Ending::Done => batch.endings.done += 1,
            Ending::Dead => batch.endings.dead += 1,
            Ending::Cancelled => batch.endings.cancelled += 1,
        }
        let result = result.filter(|_| state == Ending::Done).cloned();
        batch.results.insert(job.id.clone(), Ended { queue: job.queue.clone(), state, result, at: now });
        let id = batch.id.clone();
        self.touched_batches.insert(id.clone());
        self.end_if_over(&id, now);
    }

    fn end_if_over(&mut self, id: &BatchId, now: When) {
        let retain_ms = self.retain_batch_ms;
        let Some(batch) = self.batches.get_mut(id) else { return };
        if !batch.sealed || batch.pending > 0 || batch.finished_at.is_some() {
            return;
        }
        batch.finished_at = Some(now);
        batch.purge_at = Some(now.plus(retain_ms));
        let Some(asked) = &batch.on_finished else { return };
        let mut headers = asked.headers.clone();
        headers.insert("batch-id".into(), Payload::string(&batch.id.to_string()));
        headers.insert("batch-done".into(), Payload::string(&batch.endings.done.to_string()));
        headers.insert("batch-dead".into(), Payload::string(&batch.endings.dead.to_string()));
        headers.insert("batch-cancelled".into(), Payload::string(&batch.endings.cancelled.to_string()));
        let spec = JobSpec { headers, ..JobSpec::from(asked.clone()) };
        let new = NewJob::new(batch.callback.clone(), asked.queue.clone(), spec, now.from);
        let run_at = now.plus(asked.delay_ms.unwrap_or(0));
        let expires_at = asked.expires_in_ms.map(|ms| now.plus(ms));
        let callback = Job { created_at: now, run_at, expires_at, ..Job::pushed(&new) };
        self.callbacks.push(callback.id.clone());
        self.put(callback);
    }

    /// The callbacks that a call told of are those that it pushed; which of its answers tells, nobody promises.
    pub fn check_callbacks<'a>(&mut self, told: impl Iterator<Item = &'a CalledBack>) -> Checked {
        let mut expected = std::mem::take(&mut self.callbacks);
        for told in told {
            let is_it = |id: &JobId| {
                self.jobs.get(id).is_some_and(|job| {
                    let expiry = match (job.expires_at, told.expires_at) {
                        (Some(own), Some(told)) => own.has(told),
                        (own, told) => own.is_none() && told.is_none(),
                    };
                    job.queue == told.queue && job.run_at.has(told.run_at) && expiry
                })
            };
            let Some(place) = expected.iter().position(is_it) else {
                return Err(format!("told of the callback {told:?}; it pushed {expected:?}"));
            };
            expected.remove(place);
        }
        if expected.is_empty() {
            Ok(())
        } else {
            Err(format!("it did not tell of the callbacks {expected:?}"))
        }
    }

    pub fn create_batch(
        &mut self,
        batch: &tailback::job::Batch,
        jobs: &[NewJob],
        told: &Result<BatchChanged, BatchDenied>,
        now: When,
    ) -> Checked {
        let own = Batch {
            id: batch.id.clone(),
            sealed: batch.sealed,
            pending: 0,
            endings: Endings::default(),
            created_at: batch.created_at,
            finished_at: None,
            purge_at: None,
            callback: batch.callback.clone(),
            on_finished: batch.on_finished.clone(),
            results: BTreeMap::new(),
        };
        self.change_batch(own, jobs, told, now)
    }

    pub fn add_to_batch(
        &mut self,
        id: &BatchId,
        jobs: &[NewJob],
        told: &Result<BatchChanged, BatchDenied>,
        now: When,
    ) -> Checked {
        match (self.batches.get(id).cloned(), told) {
            (None, Err(BatchDenied::Unknown)) => Ok(()),
            (Some(batch), Err(BatchDenied::Sealed)) if batch.sealed => Ok(()),
            (Some(batch), told) if !batch.sealed => self.change_batch(batch, jobs, told, now),
            (batch, told) => Err(format!("an addition to {batch:?} was told {told:?}")),
        }
    }

    pub fn seal_batch(
        &mut self,
        id: &BatchId,
        told: &Result<BatchChanged, BatchDenied>,
        now: When,
    ) -> Checked {
        match (self.batches.get(id).cloned(), told) {
            (None, Err(BatchDenied::Unknown)) => Ok(()),
            (Some(batch), told) => self.change_batch(Batch { sealed: true, ..batch }, &[], told, now),
            (None, told) => Err(format!("sealing what is not there was told {told:?}")),
        }
    }

    /// The batch with more jobs: all of them, or nothing happens.
    fn change_batch(
        &mut self,
        mut batch: Batch,
        jobs: &[NewJob],
        told: &Result<BatchChanged, BatchDenied>,
        now: When,
    ) -> Checked {
        let counted = batch.pending + batch.endings.total();
        let (children, changed) = match (self.admit(jobs, None, now), told) {
            // It would count none of its jobs, and call back before they have ended.
            (Ok(children), told) if counted == 0 && Admitted::only_duplicates(&children).is_some() => {
                return match told {
                    Err(BatchDenied::OnlyDuplicates(id))
                        if Admitted::only_duplicates(&children) == Some(id) =>
                    {
                        Ok(())
                    }
                    told => Err(format!("a batch of duplicates {children:?} was told {told:?}")),
                };
            }
            (Ok(children), Ok(changed)) => (children, changed),
            (Err(refused), Err(BatchDenied::PushRefused(told))) if refused == *told => return Ok(()),
            (expected, told) => return Err(format!("expected {expected:?}, told {told:?}")),
        };
        if !Admitted::are(&children, &changed.pushed) {
            return Err(format!("pushed {:?}, expected {children:?}", changed.pushed));
        }
        batch.pending += changed.pushed.iter().filter(|child| !child.deduplicated).count() as u64;
        let id = batch.id.clone();
        self.touched_batches.insert(id.clone());
        self.batches.insert(id.clone(), batch);
        self.store_admitted(jobs, &children);
        self.end_if_over(&id, now);
        self.check_callbacks(changed.callback.iter())?;
        self.batches.get_mut(&id).map_or(Ok(()), |batch| batch.check(&changed.batch))
    }
}
