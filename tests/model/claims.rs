//! Claims in the model: who is delivered, who is passed over for a semaphore, and the limits of deliveries.

use std::collections::BTreeSet;

use tailback::job::{JobId, QueueName, SemaphoreName, State};
use tailback::store::ClaimAsk;

use super::job::{Job, Rev, Waits, When};
use super::settle::unheld;
use super::state::{Checked, Model};

impl Model {
    /// How many jobs of the queue may be delivered now.
    fn may_deliver(&self, queue: &QueueName) -> u64 {
        if self.is_unlimited {
            return u64::MAX;
        }
        let is_held = |job: &&Job| job.queue == *queue && job.state == State::Reserved;
        let held = self.jobs.values().filter(is_held).count() as u64;
        let delivered = self.delivered.get(queue).copied().unwrap_or(0);
        let at_once = self.setting(queue, |settings| settings.max_reserved);
        let in_time = self.setting(queue, |settings| settings.rate).map(|rate| rate.limit);
        let at_once = at_once.map_or(u64::MAX, |most| most.saturating_sub(held));
        at_once.min(in_time.map_or(u64::MAX, |most| most.saturating_sub(delivered)))
    }

    /// What a claim of several requests won. In which order several queues are served, nobody promises: so who was passed
    /// over must be stopped by what is so once all are served.
    /// Those in `left` are as they were.
    pub fn claim(
        &mut self,
        asks: &[ClaimAsk],
        told: &[Vec<tailback::job::Job>],
        left: &BTreeSet<JobId>,
        now: When,
    ) -> Checked {
        let kept = self.kept_for();
        let mut passed = Vec::new();
        for (ask, told) in asks.iter().zip(told) {
            self.serve(ask, told, &mut passed, now)?;
        }
        let won: BTreeSet<&SemaphoreName> =
            told.iter().flatten().flat_map(|job| &job.meta.semaphores).collect();
        for name in won {
            let (held, capacity) = (self.held(name), self.capacity(name));
            if held > capacity {
                return Err(format!("{held} jobs hold the semaphore {name} of {capacity}"));
            }
        }
        for id in passed {
            let Some(job) = self.jobs.get(&id).cloned() else { continue };
            let stops = |name: &&SemaphoreName| {
                let before = kept.iter().filter(|(kept, priority)| kept == *name && *priority > job.priority);
                self.held(name) + before.count() as u64 >= self.capacity(name)
            };
            let stopped_by: Vec<SemaphoreName> = job.semaphores.iter().filter(stops).cloned().collect();
            if stopped_by.is_empty() {
                return Err(format!("{id} was passed over, and there was room in {:?}", job.semaphores));
            }
            if left.contains(&id) {
                self.jobs.insert(id, Job { state: State::Ready, ..job });
                continue;
            }
            let waiting_since = job.waiting_since.or(Some(now));
            self.put(Job { waits_for: Waits::OneOf(stopped_by), waiting_since, ..job });
        }
        Ok(())
    }

    /// What one request won: all that can be delivered, in order, but for those that need semaphores.
    fn serve(
        &mut self,
        ask: &ClaimAsk,
        told: &[tailback::job::Job],
        passed: &mut Vec<JobId>,
        now: When,
    ) -> Checked {
        let most = self.may_deliver(&ask.queue).min(ask.count as u64) as usize;
        let order = self.deliverable(&ask.queue, now);
        let mut won = 0;
        for id in &order {
            let Some(mut job) = self.jobs.get(id).cloned() else { continue };
            if won == most {
                break;
            }
            if ask.pop && !job.semaphores.is_empty() {
                continue;
            }
            match told.get(won).filter(|seen| seen.meta.id == *id) {
                Some(seen) => {
                    self.reserve(ask, job, seen, now)?;
                    won += 1;
                }
                None if job.semaphores.is_empty() => break,
                None => {
                    passed.push(id.clone());
                    job.state = State::Blocked;
                    self.jobs.insert(id.clone(), job);
                }
            }
        }
        let left = self.deliverable(&ask.queue, now);
        let is_left = left.iter().any(|id| self.jobs.get(id).is_some_and(|job| job.semaphores.is_empty()));
        if won < told.len() || (won < most && is_left) {
            let seen: Vec<&JobId> = told.iter().map(|job| &job.meta.id).collect();
            return Err(format!("{} of {} won {seen:?}, expected {most} of {order:?}", ask.count, ask.queue));
        }
        if !self.is_unlimited && self.setting(&ask.queue, |settings| settings.rate).is_some() {
            *self.delivered.entry(ask.queue.clone()).or_default() += won as u64;
        }
        Ok(())
    }

    /// What a reserve of so many bytes won, and what of the jobs behind it claimed and gave back. It goes on while another job of their
    /// size has room, and may leave out a smaller one.
    pub fn claim_bytes(
        &mut self,
        ask: &ClaimAsk,
        max_bytes: usize,
        (told, back): (&[tailback::job::Job], &BTreeSet<JobId>),
        now: When,
    ) -> Checked {
        let most = self.may_deliver(&ask.queue).min(ask.count as u64) as usize;
        let order = self.deliverable(&ask.queue, now);
        let sizes: Vec<usize> = order.iter().map(|id| self.jobs[id].payload.size()).collect();
        let ids: Vec<&JobId> = told.iter().map(|job| &job.meta.id).collect();
        let (won, behind) = (ids.len(), ids.len() + back.len());
        let bytes: usize = sizes.iter().take(won).sum();
        let average = (bytes / won.max(1)).max(1);
        let has_room = |next: &usize| won == 0 || (bytes + average.max(*next)) <= max_bytes;
        let is_right = behind <= most.min(order.len())
            && ids.iter().copied().eq(&order[..won])
            && order[won..behind].iter().collect::<BTreeSet<_>>() == back.iter().collect()
            && (won <= 1 || bytes <= max_bytes)
            && (won == most || !sizes.get(won).is_some_and(has_room));
        if !is_right {
            return Err(format!(
                "{won} of {} within {max_bytes} bytes: {ids:?}, and {back:?} came back; {most} may come of {order:?} of {sizes:?}",
                ask.count
            ));
        }
        for seen in told {
            let claim = seen.meta.claim.clone().ok_or("a job without a claim")?;
            let job = self.jobs[&seen.meta.id].clone();
            self.reserve(&ClaimAsk { claim, ..ask.clone() }, job, seen, now)?;
        }
        for id in back {
            let started_at = Some(now);
            let released = unheld(&self.jobs[id]);
            self.put(Job { started_at, worker: ask.worker.clone(), ..released });
        }
        if self.setting(&ask.queue, |settings| settings.rate).is_some() {
            *self.delivered.entry(ask.queue.clone()).or_default() += behind as u64;
        }
        Ok(())
    }

    fn reserve(&mut self, ask: &ClaimAsk, job: Job, seen: &tailback::job::Job, now: When) -> Checked {
        let lease_ms = job.first.default_lease_ms.filter(|_| ask.yields).unwrap_or(ask.lease_ms);
        let mut reserved = Job {
            state: State::Reserved,
            attempts: job.attempts + 1,
            started_at: Some(now),
            reserved_until: Some(job.within_run(now, now.plus(lease_ms))),
            lease_ms: Some(lease_ms),
            worker: ask.worker.clone(),
            claim: Some(ask.claim.clone()),
            waiting_since: None,
            rev: match job.rev {
                Rev::Same(rev) => Rev::Changed(rev),
                other => other,
            },
            ..job
        };
        reserved.check(seen)?; // what it answers is what is stored
        self.touched.insert(reserved.id.clone());
        self.jobs.insert(reserved.id.clone(), reserved);
        Ok(())
    }
}
