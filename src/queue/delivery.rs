//! Jobs on their way to a client: claimed, and given back where they do not get there.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::ask::{ReserveAsk, Room};
use super::large::Part;
use super::pages::fitting;
use super::reserve::{Wanted, Won};
use super::rounds::RoundError;
use super::{Queues, Result};
use crate::faults;
use crate::job::{Claim, Job, QueueName};
use crate::store::{self, Weight as _};

/// How large payloads are taken to be, where the first ones are claimed for a request that says how many bytes it wants.
const FIRST_BYTES: usize = 16 << 10;
/// The most jobs that are claimed first for such a request.
const FIRST_MOST: usize = 100;

/// Jobs on their way to a client that may leave at any moment. Dropped before it is handed over, it gives
/// back what it has, and what is still coming.
pub(super) struct Delivery {
    pub queues: Queues,
    pub room: Arc<dyn Room>,
    /// The most bytes of payloads that the client wants.
    pub max_bytes: Option<usize>,
    /// Whether a repeat of the call may find the jobs and hand them out: then they are not given back any more.
    pub is_marked: bool,
    pub won: Vec<Job>,
    pub coming: Option<Coming>,
    /// The parts of the memory of claims that it keeps as long as it is on its way.
    pub parts: Vec<Part>,
}

fn payload_bytes(job: &Job) -> usize {
    job.payload.size()
}

/// A claim in flight.
pub(super) struct Coming {
    /// The queue and the claim of a keyed request, whose jobs it finds itself where the outcome is unknown; a round finds those of the
    /// others.
    keyed: Option<(QueueName, Claim)>,
    answer: oneshot::Receiver<store::Result<Won>>,
}

impl Delivery {
    /// Nothing is won yet.
    pub fn new(queues: Queues, ask: &ReserveAsk, is_marked: bool) -> Self {
        let max_bytes = ask.max_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let (room, won, coming, parts) = (ask.room.clone(), Vec::new(), None, Vec::new());
        Self { queues, room, max_bytes, is_marked, won, coming, parts }
    }

    /// Claims from one queue; `is_again`: what its round before has left to another one. Returns whether this round does so, too, and nothing
    /// was won.
    pub async fn claim(&mut self, queue: QueueName, wanted: Wanted, is_again: bool) -> Result<bool> {
        let keyed = wanted.claim.clone().map(|claim| (queue.clone(), claim));
        let claims = &self.queues.0.claims;
        let answer = if is_again { claims.send_again(queue, wanted)? } else { claims.send(queue, wanted)? };
        let coming = self.coming.insert(Coming { keyed, answer });
        let answer = self.queues.in_time(&mut coming.answer).await?;
        let keyed = self.coming.take().and_then(|came| came.keyed);
        match answer {
            Ok(Ok(Won { jobs, is_again })) => {
                self.won.extend(jobs);
                Ok(is_again)
            }
            failed => {
                let (queues, is_marked) = (&self.queues, self.is_marked);
                keyed.into_iter().for_each(|(queue, claim)| queues.recover(queue, claim, is_marked));
                failed.map_err(|_| RoundError::Lost)??;
                Ok(false)
            }
        }
    }

    /// Returns how many bytes the response may have now.
    fn most_bytes(&self) -> usize {
        self.queues.options().answer_bytes.min(self.room.bytes())
    }

    /// Returns whether memory for responses is short.
    pub fn is_short(&self) -> bool {
        self.most_bytes() < self.queues.options().answer_bytes
    }

    /// Returns whether the response has as many bytes as it may have.
    pub fn is_full(&self) -> bool {
        self.won.iter().map(Job::weight).sum::<usize>() >= self.most_bytes() || self.more(usize::MAX) == 0
    }

    /// Returns how many jobs to claim next, of so many at most: where the client wants only so many bytes of payloads, or memory is short,
    /// what is claimed beyond that is to be given back, and so it is claimed step by step, by the size of what came before; but for a keyed
    /// request in one step of each queue.
    pub fn more(&self, most: usize) -> usize {
        let short = self.is_short().then(|| self.most_bytes());
        let Some(max_bytes) = self.max_bytes.into_iter().chain(short).min() else { return most };
        let bytes: usize = self.won.iter().map(payload_bytes).sum();
        match bytes / self.won.len().max(1) {
            _ if self.won.is_empty() => most.min((max_bytes / FIRST_BYTES).clamp(1, FIRST_MOST)),
            average => most.min(max_bytes.saturating_sub(bytes) / average.max(1)),
        }
    }

    /// Gives back what does not fit into the response.
    pub fn cut(&mut self) {
        let fitting = fitting(&self.won, self.most_bytes()).min(self.wanted());
        if fitting < self.won.len() {
            let surplus = self.won.split_off(fitting);
            self.queues.return_jobs(surplus, self.is_marked);
        }
    }

    /// Returns how many of the jobs the client wants: at least one.
    fn wanted(&self) -> usize {
        let Some(max_bytes) = self.max_bytes else { return usize::MAX };
        let mut bytes = 0;
        let fits = |job: &&Job| {
            bytes += payload_bytes(job);
            bytes <= max_bytes
        };
        self.won.iter().take_while(fits).count().max(1)
    }

    /// The client gets the jobs.
    pub fn hand_over(mut self) -> Vec<Job> {
        if faults::bug("deliver_twice") {
            return self.won.clone();
        }
        std::mem::take(&mut self.won)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let (queues, is_marked) = (&self.queues, self.is_marked);
        if !self.won.is_empty() {
            queues.return_jobs(std::mem::take(&mut self.won), is_marked);
        }
        if let Some(Coming { keyed, answer }) = self.coming.take() {
            let queues = queues.clone();
            queues.clone().0.returning.spawn(async move {
                match (answer.await, keyed) {
                    (Ok(Ok(won)), _) => queues.give_back(won.jobs, is_marked).await,
                    (_, Some((queue, claim))) => queues.recover(queue, claim, is_marked),
                    (_, None) => {}
                }
            });
        }
    }
}
