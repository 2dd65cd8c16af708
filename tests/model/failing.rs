//! What becomes of the model's jobs whose work has failed, or that their workers give back or lose.

use tailback::job::QueueName;
use tailback::job::State;
use tailback::job::backoff::BackoffKind;
use tailback::job::record::TrailReason;
use tailback::job::settings::{Lapsed, OnGroupDead};
use tailback::job::transition::{Back, RollbackKind};

use super::job::{Home, Job, Turn, When};
use super::settle::{Becomes, due, elsewhere, failed, is_over, unheld};
use super::state::Model;

impl Model {
    /// An attempt has failed: the job comes back, or is dead where it has no attempts left.
    pub fn has_failed(&mut self, job: &Job, message: String, run_at: When, now: When) -> Becomes {
        if is_over(job, now) {
            return self.leaves(job);
        }
        let of_queue = self.setting(&job.queue, |settings| settings.max_attempts);
        let most = job.max_attempts.or(of_queue).unwrap_or(self.defaults().max_attempts);
        if most == 0 || job.attempts < most {
            return self.comes_back(Job { run_at, ..failed(job, &message, now) });
        }
        self.dies(job, message, now)
    }

    /// What becomes of a job whose worker has lost it.
    pub fn has_lapsed(&mut self, job: &Job, message: &str, now: When) -> Becomes {
        let keeps = self.setting(&job.queue, |settings| settings.lapsed) == Some(Lapsed::First);
        self.has_failed(job, message.to_owned(), if keeps { job.run_at.or_earlier(now) } else { now }, now)
    }

    /// What becomes of a job that its worker gives back.
    pub fn is_given_back(
        &mut self,
        job: &Job,
        kind: RollbackKind,
        error: Option<String>,
        now: When,
    ) -> Becomes {
        if is_over(job, now) {
            return self.leaves(job);
        }
        let at = |back, backoff: When| match back {
            Back::ByBackoff => backoff,
            Back::At(when) => due(when, now),
            Back::InPlace => job.run_at.or_earlier(now),
        };
        match kind {
            RollbackKind::Retry(back) => {
                let (least, most) = self.backoff_ms(job);
                let message = error.unwrap_or_else(|| "rolled back without an error".into());
                self.has_failed(job, message, at(back, now.plus_between(least, most)), now)
            }
            RollbackKind::Snooze(back) => {
                let next = error.map_or_else(|| unheld(job), |error| failed(job, &error, now));
                self.comes_back(Job { attempts: job.attempts - 1, run_at: at(back, now), ..next })
            }
            RollbackKind::Dead => {
                self.dies(job, error.unwrap_or_else(|| "given up without an error".into()), now)
            }
        }
    }

    fn dies(&mut self, job: &Job, message: String, now: When) -> Becomes {
        let failed = failed(job, &message, now);
        // Who holds a group stays, and is not forgotten.
        let skips = self.setting(&job.queue, |settings| settings.on_group_dead) == Some(OnGroupDead::Skip);
        let turn = if skips { Turn::None } else { job.turn };
        let holds = turn != Turn::None;
        // Whoever has died there, and then only died, is not sent round in a circle.
        let deaths = job.trail.iter().rev().take_while(|left| left.reason == TrailReason::Dead);
        let died_in: Vec<&QueueName> = deaths.map(|left| &left.queue).collect();
        let moved_to = self.setting(&job.queue, |settings| settings.dead_letter.clone());
        let moved_to = moved_to.filter(|queue| !holds && !died_in.contains(&queue));
        let dead = Job { turn, ..failed };
        match &moved_to {
            Some(queue) => {
                let (from, attempts) = (job.queue.clone(), job.attempts);
                let before = job.origin.clone().map(Box::new);
                let origin = Some(Home { queue: from, at: now, attempts, error: Some(message), before });
                let letter = elsewhere(dead, queue, TrailReason::Dead, now);
                self.put(Job { origin, run_at: now, batch: None, ..letter });
            }
            None => {
                let retain_ms =
                    self.setting(&job.queue, |settings| settings.retain_dead_ms).filter(|ms| *ms > 0);
                let purge_at = retain_ms.filter(|_| !holds).map(|ms| now.plus(ms));
                self.put(Job { state: State::Dead, finished_at: Some(now), purge_at, ..dead });
            }
        }
        Becomes::Dead { moved_to }
    }

    /// The shortest and the longest that a job may wait after its attempt has failed.
    fn backoff_ms(&self, job: &Job) -> (u64, u64) {
        let of_queue = self.setting(&job.queue, |settings| settings.backoff);
        let backoff = job.backoff.or(of_queue).unwrap_or(self.defaults().backoff);
        let mut delay = backoff.base_ms as f64;
        if backoff.kind == BackoffKind::Exponential {
            (1..job.attempts).for_each(|_| delay *= backoff.factor);
            delay = delay.min(backoff.max_ms as f64);
        }
        let spread = delay * backoff.jitter;
        ((delay - spread).floor() as u64, (delay + spread).ceil() as u64)
    }
}
