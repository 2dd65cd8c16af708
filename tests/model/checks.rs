//! What is compared: what a call has changed after each call, and all that a store shows every few steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tailback::job::transition::Operation;
use tailback::job::{BatchId, JobId, QueueName, State, Timestamp, Visible, WorkerName};
use tailback::store::{Change, ClaimAsk, Counts, Filter, Worker};

use super::drafts::group;
use super::job::{Differences, Job, When};
use super::state::{Checked, Model};
use super::steps::QUEUES;
use super::world::{World, fault};

/// So old may the split of ready and scheduled jobs be, which nothing depends on.
const SPLIT_AGE: Duration = Duration::from_secs(10);
/// More than a run ever has of anything.
const ALL: usize = 10_000;

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, seen: &T, expected: &T) -> Checked {
    let mut found = Differences::default();
    found.same(what, expected, seen);
    found.end(&"the store")
}

impl Model {
    /// What has run out: reservations, and jobs past their expiry that nobody holds; the longest overdue first.
    pub fn check_overdue(&self, told: &[Change], now: When) -> Checked {
        let deadline = |job: &Job| match job.state {
            State::Reserved => job.reserved_until,
            State::Ready | State::Blocked => job.expires_at,
            State::Done | State::Dead => None,
        };
        let late: BTreeMap<&JobId, Timestamp> = (self.jobs.values())
            .filter_map(|job| Some((&job.id, deadline(job)?)))
            .filter(|(_, at)| at.is_past(now))
            .map(|(id, at)| (id, at.from))
            .collect();
        let named = |change: &Change| match (&change.operation, self.jobs.get(&change.id)) {
            (Operation::Lapse { claim, reserved_until }, Some(job)) if job.claim.as_ref() == Some(claim) => {
                Some((job.state == State::Reserved, *reserved_until))
            }
            (Operation::Expire { expires_at }, Some(job)) => {
                Some((matches!(job.state, State::Ready | State::Blocked), *expires_at))
            }
            _ => None,
        };
        let is_right = |change: &Change| {
            named(change).is_some_and(|(fits, at)| fits && late.get(&change.id) == Some(&at))
        };
        let in_order = told.windows(2).all(|pair| late.get(&pair[0].id) <= late.get(&pair[1].id));
        if told.len() == late.len() && told.iter().all(is_right) && in_order {
            return Ok(());
        }
        Err(format!("overdue are {told:?}, expected {late:?}"))
    }

    fn counts(&self, now: When) -> BTreeMap<QueueName, Counts> {
        let mut all: BTreeMap<QueueName, Counts> = BTreeMap::new();
        for job in self.jobs.values() {
            let counts = all.entry(job.queue.clone()).or_default();
            match job.visible(now).first() {
                Some(Visible::Ready) => counts.ready += 1,
                Some(Visible::Scheduled) => counts.scheduled += 1,
                Some(Visible::Reserved) => counts.reserved += 1,
                Some(Visible::Blocked) => counts.blocked += 1,
                Some(Visible::Dead) => counts.dead += 1,
                Some(Visible::Done) => counts.done += 1,
                None => {}
            }
        }
        all
    }
}

impl World<'_> {
    /// Reads what the model says has changed, and compares it.
    pub async fn after_call(&mut self) -> Checked {
        let ids: Vec<JobId> = std::mem::take(&mut self.model.touched).into_iter().collect();
        if !ids.is_empty() {
            let seen = self.store.get(&ids).await.map_err(fault)?;
            for (id, seen) in ids.iter().zip(&seen) {
                match (self.model.jobs.get_mut(id), seen) {
                    (Some(job), Some(Ok(seen))) => job.check(seen)?,
                    (None, None) => {}
                    (_, Some(Err(spoiled))) => return Err(format!("a job cannot be read: {spoiled:?}")),
                    (Some(_), None) => return Err(format!("job {id} is lost")),
                    (None, Some(seen)) => return Err(format!("job {id} is still there: {seen:?}")),
                }
            }
        }
        for id in std::mem::take(&mut self.model.touched_batches) {
            self.check_batch(&id).await?;
        }
        Ok(())
    }

    async fn check_batch(&mut self, id: &BatchId) -> Checked {
        let seen = self.store.batch(id).await.map_err(fault)?;
        let results = self.store.batch_results(id, None, ALL).await.map_err(fault)?;
        match (self.model.batches.get_mut(id), seen) {
            (Some(batch), Some(seen)) => batch.check(&seen).and_then(|()| batch.check_results(&results)),
            (None, None) => Ok(()),
            (own, seen) => Err(format!("batch {id} is {seen:?}, expected {own:?}")),
        }
    }

    pub async fn check_worker(&mut self, name: &WorkerName) -> Checked {
        let seen = self.store.worker(name).await.map_err(fault)?;
        self.compare_worker(name, seen.as_ref())
    }

    fn compare_worker(&mut self, name: &WorkerName, seen: Option<&Worker>) -> Checked {
        let reserved = self.model.held_by(name).len() as u64;
        match (self.model.workers.get_mut(name), seen) {
            (Some(worker), Some(seen)) => {
                let mut found = Differences::default();
                found.same("report", &worker.report, &seen.report);
                found.same("reserved", &reserved, &seen.reserved);
                found.moment("seen_at", &mut worker.seen_at, seen.seen_at);
                found.end(&format_args!("worker {name}"))
            }
            (own, seen) => Err(format!("worker {name} is {seen:?}, expected {own:?}")),
        }
    }

    pub async fn check_settings(&mut self) -> Checked {
        let snapshot = self.store.settings(None).await.map_err(fault)?.ok_or("there are no settings")?;
        let stored: BTreeMap<_, _> = (snapshot.queues.into_iter())
            .map(|(queue, stored)| (queue, (stored.settings, stored.version)))
            .collect();
        equal("the settings", &stored, &self.model.settings)
    }

    /// Compares all that the store shows.
    pub async fn check_all(&mut self) -> Checked {
        self.check_jobs().await?;
        self.check_figures().await?;
        self.check_browsing().await?;
        self.check_keys().await?;
        self.model.check_lines()?;
        self.check_semaphores().await?;
        let batches = self.store.export_batches(None, ALL).await.map_err(fault)?;
        let ids: Vec<&BatchId> = batches.iter().map(|batch| &batch.id).collect();
        equal("the batches", &ids, &self.model.batches.keys().collect())?;
        for seen in &batches {
            self.model.batches.get_mut(&seen.id).map_or(Ok(()), |batch| batch.check(seen))?;
        }
        let workers = self.store.workers(None, ALL).await.map_err(fault)?;
        let names: Vec<&WorkerName> = workers.iter().map(|worker| &worker.name).collect();
        equal("the workers", &names, &self.model.workers.keys().collect())?;
        for seen in &workers {
            self.compare_worker(&seen.name, Some(seen))?;
        }
        let schedules = self.store.schedules(None, ALL).await.map_err(fault)?;
        equal(
            "the schedules",
            &schedules.iter().flatten().collect(),
            &self.model.schedules.values().collect::<Vec<_>>(),
        )?;
        let mut next: Vec<_> = (self.model.schedules.values())
            .filter_map(|schedule| Some((schedule.next_at?, schedule.name.clone())))
            .collect();
        next.sort();
        let next: Vec<_> = next.into_iter().map(|(at, name)| (name, at)).collect();
        equal("the next occurrences", &self.store.next_occurrences(ALL).await.map_err(fault)?, &next)?;
        self.check_settings().await
    }

    /// Every job is in exactly one place: the one where the model has it.
    async fn check_jobs(&mut self) -> Checked {
        let mut seen: Vec<tailback::job::Job> = Vec::new();
        loop {
            let after = seen.last().map(|job| job.meta.id.clone());
            let page = self.store.export(after.as_ref(), 100).await.map_err(fault)?;
            if page.is_empty() {
                break;
            }
            seen.extend(page);
        }
        let ids: Vec<&JobId> = seen.iter().map(|job| &job.meta.id).collect();
        let expected: Vec<&JobId> = self.model.jobs.keys().collect();
        if ids != expected {
            let (ids, expected): (BTreeSet<_>, BTreeSet<_>) =
                (ids.into_iter().collect(), expected.into_iter().collect());
            let (lost, more) = (expected.difference(&ids), ids.difference(&expected));
            return Err(format!(
                "lost {:?}, and too much {:?}",
                lost.collect::<Vec<_>>(),
                more.collect::<Vec<_>>()
            ));
        }
        for seen in &seen {
            self.model.jobs.get_mut(&seen.meta.id).map_or(Ok(()), |job| job.check(seen))?;
        }
        Ok(())
    }

    async fn check_figures(&mut self) -> Checked {
        let from = self.now()?;
        let expected = self.model.counts(When::at(from));
        let end = Instant::now() + SPLIT_AGE;
        loop {
            // Judged before the counts are read: a slow read must not make them late.
            let is_last = Instant::now() > end;
            let counts = self.store.summary(usize::MAX).await.map_err(fault)?.queues;
            let seen: BTreeMap<QueueName, Counts> =
                counts.into_iter().map(|(queue, figures)| (queue, figures.counts)).collect();
            let wait =
                |counts: &Counts| Counts { ready: counts.ready + counts.scheduled, scheduled: 0, ..*counts };
            let unsplit = |all: &BTreeMap<QueueName, Counts>| all.values().map(wait).collect::<Vec<_>>();
            if unsplit(&seen) != unsplit(&expected) || seen == expected || is_last {
                equal("the counts", &seen, &expected)?;
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let queues = self.store.queues("", None, ALL).await.map_err(fault)?;
        equal("the queues", &queues, &expected.keys().cloned().collect())?;
        let (now, names) = (When::at(from), QUEUES.map(|name| name.parse().unwrap()).to_vec());
        let stocked: BTreeSet<_> = self.store.stocked(&names).await.map_err(fault)?.into_iter().collect();
        for queue in &names {
            // Those whose due jobs have all expired may be among them.
            if !self.model.deliverable(queue, now).is_empty() && !stocked.contains(queue) {
                return Err(format!("{queue} has jobs to deliver, and is not stocked"));
            }
            let is_due =
                |job: &&Job| job.queue == *queue && job.state == State::Ready && job.run_at.is_past(now);
            if stocked.contains(queue) && !self.model.jobs.values().any(|job| is_due(&job)) {
                return Err(format!("{queue} is stocked, and has nothing that is due"));
            }
        }
        let waits =
            self.model.jobs.values().filter(|job| job.state == State::Ready && !job.run_at.is_past(now));
        let first = waits.map(|job| job.run_at.from).min();
        let upcoming = self.store.upcoming(1).await.map_err(fault)?;
        equal("what comes next", &upcoming.first().map(|(_, at)| *at), &first)?;
        let overdue = self.store.overdue(ALL).await.map_err(fault)?.changes;
        let now = self.since(from)?;
        self.model.check_overdue(&overdue, now)
    }

    /// One queue by every filter.
    async fn check_browsing(&mut self) -> Checked {
        let queue: QueueName = QUEUES[self.number() as usize % QUEUES.len()].parse().map_err(fault)?;
        let now = When::at(self.now()?);
        let all = [
            None,
            Some(Visible::Ready),
            Some(Visible::Scheduled),
            Some(Visible::Reserved),
            Some(Visible::Blocked),
            Some(Visible::Done),
            Some(Visible::Dead),
        ];
        for state in all {
            let filter = Filter { states: state.into_iter().collect(), ..Filter::all(queue.clone()) };
            self.check_filter(&filter, |job| state.is_none_or(|state| job.visible(now).contains(&state)))
                .await?;
        }
        let filter = Filter { dead_lettered: true, ..Filter::all(queue.clone()) };
        self.check_filter(&filter, |job| job.origin.is_some()).await?;
        let group = group(self.number() as u8 % 3);
        let filter = Filter { group: Some(group.clone()), ..Filter::all(queue.clone()) };
        self.check_filter(&filter, |job| job.group.as_ref() == Some(&group)).await?;
        let key = self.model.jobs.values().filter(|job| job.queue == queue).find_map(|job| job.key.clone());
        if let Some(key) = key {
            let filter = Filter { key: Some(key.clone()), ..Filter::all(queue) };
            self.check_filter(&filter, |job| job.key.as_ref() == Some(&key)).await?;
        }
        Ok(())
    }

    async fn check_filter(&self, filter: &Filter, is_meant: impl Fn(&Job) -> bool) -> Checked {
        let found = self.store.find(filter, None, ALL).await.map_err(fault)?;
        let ids: Vec<&JobId> = found.iter().map(tailback::store::listed_id).collect();
        let jobs = self.model.jobs.values().filter(|job| filter.within.has(&job.queue) && is_meant(job));
        let expected: Vec<&JobId> = jobs.map(|job| &job.id).collect();
        equal(&format!("what {filter:?} finds"), &ids, &expected)
    }

    /// What is taken is remembered; what is free may have been forgotten, and then its job does not get it back when it
    /// gets another chance.
    pub async fn check_keys(&mut self) -> Checked {
        let mut seen = BTreeMap::new();
        let mut after = None;
        loop {
            let page = self.store.export_keys(after.as_ref(), 100).await.map_err(fault)?;
            let Some(last) = page.last() else { break };
            after = Some(last.clone());
            seen.extend(page.into_iter().map(|key| ((key.queue.clone(), key.key.clone()), key)));
        }
        let now = When::at(self.now()?);
        for (name, key) in self.model.keys.clone() {
            let is_taken = self.model.is_taken((&name.0, &name.1), &key, now);
            let own = (&key.job, &key.payload.digest(), &key.until, &key.run_at, &key.lasts);
            match seen.remove(&name) {
                Some(seen) if (&seen.job, &seen.digest, &seen.until, &seen.run_at, &seen.lasts) == own => {}
                None if !is_taken => drop(self.model.keys.remove(&name)),
                seen => return Err(format!("the key {name:?} is {seen:?}, expected {key:?}")),
            }
        }
        if seen.is_empty() { Ok(()) } else { Err(format!("keys that nobody took: {seen:?}")) }
    }

    /// In the end all that can be delivered is, in order.
    pub async fn drain(&mut self) -> Checked {
        self.claim_everything().await?;
        self.check_all().await?;
        self.give_all().await?;
        self.check_all().await
    }

    /// Claims all that can be delivered, and answers whether there was anything.
    pub async fn claim_everything(&mut self) -> Result<bool, String> {
        let asks = QUEUES.map(|name| {
            let claim = tailback::job::Claim::random();
            ClaimAsk {
                queue: name.parse().unwrap(),
                count: ALL,
                claim,
                lease_ms: super::state::FAR_MS,
                yields: false,
                worker: None,
                pop: false,
            }
        });
        let won = self.claim_all(&asks).await?;
        self.after_call().await?;
        Ok(!won.is_empty())
    }
}
