//! Pops with an `Idempotency-Key`: the jobs are taken away in one transaction with the answer that has them.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::keyed::{CallKey, CallOutcome, answer_of};
use super::outcomes::Noted;
use super::{Error, PopAsk, Queues, Result, Room};
use crate::faults;
use crate::job::transition::Operation;
use crate::job::{Claim, Job, QueueName, State};
use crate::store::{Answering, Applied, Change, Denied, Once};

/// The most bytes of jobs that a keyed pop takes, though a single job may have more: its answer is stored.
const POP_BYTES: usize = 16 << 20;

/// After which pauses a keyed pop that found nothing checks again what became of one that is in flight, in milliseconds.
const POPPING_PAUSES_MS: [u64; 6] = [20, 40, 80, 160, 320, 640];

impl Queues {
    /// Like [`pop`](Self::pop): the jobs are taken away in one transaction with the answer that has them. Where the call was
    /// answered before, or is by another server meanwhile, what was claimed is given back.
    pub async fn pop_once(
        &self,
        ask: PopAsk,
        key: &CallKey,
        answer: Answering<Vec<Job>>,
    ) -> Result<CallOutcome<Vec<Job>>> {
        let place = self.admit_request(&key.id).await?;
        let (render, answer) = (answer, Arc::default());
        let once = PopOnce { claim: Claim::of_call(&key.id), key: key.clone(), render, answer };
        let (queue, count) = (ask.queue.clone(), ask.count);
        let popped = self.pop_by(ask.bounded(), Some(once.clone())).await?;
        let told = match once.answer.get() {
            Some(answer) => Some(answer.clone()?),
            None => self.popped_by_another((&queue, count), once).await?,
        };
        Ok(match told {
            Some(answer) => {
                place.keep_all();
                CallOutcome::Answer(answer)
            }
            None => CallOutcome::Plain(popped),
        })
    }

    /// Returns the answer of the same call, where one that ran beside this, which found nothing, has the jobs. What is in flight is
    /// known by its claim: it holds jobs, or they are gone and it is answered, or it has given them back. Where it holds some for longer
    /// than a pop lasts, its server is gone, or slow: this call takes them away in its place, and one of the two is answered. Several may
    /// have claimed as many each: what is beyond `count` they give back, or it lapses.
    async fn popped_by_another(
        &self,
        (queue, count): (&QueueName, usize),
        once: PopOnce,
    ) -> Result<Option<String>> {
        let queues = std::slice::from_ref(queue);
        for pause in POPPING_PAUSES_MS {
            let since = self.0.store.term();
            let in_flight = !self.0.store.held(queues, &once.claim).await?.is_empty();
            if !in_flight {
                // They may be gone without a majority that has that and the answer, which is read there.
                self.0.store.confirm(since).await?;
            }
            let answer = self.recalled_jobs(&once.key).await?;
            if answer.is_some() || !in_flight {
                return Ok(answer);
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        let (this, taking) = (self.clone(), once.clone());
        let mut left = self.0.store.held(queues, &once.claim).await?;
        left.truncate(count);
        self.to_the_end(async move { this.finish_pop_once(left, taking).await }).await?;
        match once.answer.get() {
            Some(answer) => answer.clone().map(Some),
            None => Err(Error::RequestPending), // the other one has ended meanwhile
        }
    }

    /// Takes away the jobs that a keyed pop has claimed. Returns those that were claimed: the answer is in `once`.
    pub(super) async fn finish_pop_once(&self, jobs: Vec<Job>, once: PopOnce) -> Result<Vec<Job>> {
        if jobs.is_empty() {
            return Ok(jobs);
        }
        let now = self.now()?;
        let pop = |job: &Job| {
            let operation = Operation::Pop { claim: job.meta.claim.clone()? };
            Some(Change { id: job.meta.id.clone(), operation })
        };
        let changes: Vec<Change> = jobs.iter().filter_map(pop).collect();
        let noted: Vec<Noted> = changes.iter().map(Noted::of).collect();
        let (claimed, render) = (jobs.clone(), once.render.clone());
        let taken = move |applied: &Vec<Result<Applied, Denied>>| {
            let gone = claimed.iter().zip(applied).filter(|(_, applied)| applied.is_ok());
            let popped = gone.map(|(job, _)| {
                let mut job = job.clone();
                (job.meta.state, job.meta.reserved_until) = (State::Done, None);
                job.meta.finished_at = Some(now);
                job
            });
            popped.collect::<Vec<Job>>()
        };
        let taken = Arc::new(taken);
        let rendered = taken.clone();
        let render = move |applied: &Vec<Result<Applied, Denied>>| {
            let popped = rendered(applied);
            if popped.is_empty() { None } else { render(&popped) }
        };
        let keyed = self.keyed(&once.key, Arc::new(render))?;
        let done = self.0.store.apply_once(changes, &self.rules(), keyed).await;
        faults::point("keyed.stored").await;
        match done {
            Ok(Once::Now(applied, answer)) => {
                let lost = jobs.iter().zip(&applied).filter(|(_, applied)| applied.is_err());
                let lost: Vec<Job> = lost.map(|(job, _)| job.clone()).collect();
                let popped = taken(&applied);
                self.note_all(noted, applied, now);
                self.return_jobs(lost, false);
                self.count_deliveries(&popped);
                if let Some(answer) = answer {
                    drop(once.answer.set(Ok(answer)));
                }
                Ok(popped)
            }
            Ok(Once::Before(recalled)) => {
                self.return_jobs(jobs.clone(), false);
                drop(once.answer.set(answer_of(recalled)));
                Ok(jobs)
            }
            Err(error) => {
                // Those that were taken away after all are not there to be given back.
                self.return_jobs(jobs, false);
                Err(error.after(1).into()) // the claim is stored
            }
        }
    }
}

/// A keyed pop, whose answer is known once the jobs that it has claimed are taken away.
#[derive(Clone)]
pub(super) struct PopOnce {
    /// The same for every such call, so that one is found by others.
    pub claim: Claim,
    key: CallKey,
    render: Answering<Vec<Job>>,
    answer: Arc<OnceLock<Result<String>>>,
}

impl PopAsk {
    /// The same for what fits into an answer that is stored.
    fn bounded(self) -> Self {
        Self { room: Arc::new(Bounded(self.room)), ..self }
    }
}

#[derive(Debug)]
struct Bounded(Arc<dyn Room>);

impl Room for Bounded {
    fn is_left(&self) -> bool {
        self.0.is_left()
    }

    fn bytes(&self) -> usize {
        self.0.bytes().min(POP_BYTES)
    }
}
