//! The steps that are about batches, workers, schedules, settings and copying.

use tailback::job::schedule::Skipped;
use tailback::job::settings::{Lapsed, OnGroupDead, Rate};
use tailback::job::{
    Batch, BatchId, JobSpec, OnFinished, QueueSettings, Schedule, ScheduleName, ScheduleRule, ScheduleRun,
    State,
};
use tailback::store::{Expected, Fired, Firing, Imported, Report, Saved, StoredSettings};

use super::drafts::{Draft, backoff, json, ms, nth, queue, spec, worker};
use super::job::{Job, When};
use super::state::{Checked, FAR_MS};
use super::steps::{Ahead, Ask, SCHEDULES, Settings, Step};
use super::world::{World, fault};

/// How many runs a schedule remembers.
const RUNS_KEPT: usize = 10;

impl World<'_> {
    pub async fn other_step(&mut self, step: &Step) -> Result<bool, String> {
        match step {
            Step::CreateBatch { jobs, is_sealed, callback } => {
                self.create_batch(jobs, *is_sealed, callback.as_ref()).await?;
            }
            Step::AddToBatch { batch, jobs } => self.add_to_batch(*batch, jobs).await?,
            Step::SealBatch(batch) => self.seal_batch(*batch).await?,
            Step::CancelBatch(batch) => return self.cancel_batch(*batch).await,
            Step::Heartbeat { worker, timeout, has_slots } => {
                self.heartbeat(*worker, *timeout, *has_slots).await?;
            }
            Step::Silence { heard_ms, heard_of } => return self.silence(*heard_ms, *heard_of).await,
            Step::RemoveWorker(worker) => self.remove_worker(*worker).await?,
            Step::SaveSchedule { schedule, is_seen, is_removed, next } => {
                self.save_schedule(*schedule, *is_seen, *is_removed, *next).await?;
            }
            Step::Fire { schedule, is_seen, yields, job } => {
                return self.fire(*schedule, *is_seen, *yields, job.as_ref()).await;
            }
            Step::FireAgain => match self.fired.clone() {
                Some(firing) => self.fire_this(firing).await?,
                None => return Ok(false),
            },
            Step::Set { queue, settings, expected } => self.set(*queue, settings.as_ref(), *expected).await?,
            Step::RetainBatches(ahead) => {
                self.say(format!("batches are kept for {} ms", ms(*ahead)));
                self.model.retain_batch_ms = ms(*ahead);
                self.rules = self.model.rules();
            }
            Step::Import { job, state, ask, is_expired } => {
                self.import(job, *state, ask, *is_expired).await?
            }
            Step::ImportLine { state, jobs, ask } => return self.import_line(*state, jobs, ask).await,
            Step::Semaphore { semaphore, capacity } => self.save_semaphore(*semaphore, *capacity).await?,
            Step::Call(place) => return self.call(*place).await,
            Step::Prune => {
                self.say("prune");
                let from = self.now()?;
                self.store.prune(10_000).await.map_err(fault)?;
                let now = self.since(from)?;
                self.model.prune(now);
                self.check_keys().await?;
            }
            step => return Err(format!("nobody takes the step {step:?}")),
        }
        Ok(true)
    }

    async fn create_batch(&mut self, jobs: &[Draft], is_sealed: bool, callback: Option<&Draft>) -> Checked {
        let now = self.now()?;
        let id: BatchId = format!("b{:05}", self.number()).parse().map_err(fault)?;
        let callback_id = format!("c{:05}", self.number()).parse().map_err(fault)?;
        let on_finished = callback.map(|draft| {
            let headers = [("trace".to_owned(), json(1))].into();
            let delay_ms = (draft.due != Ahead::Now).then_some(ms(draft.due));
            OnFinished::new(JobSpec { headers, ..spec(draft) }, queue(draft.queue), delay_ms)
        });
        let batch = Batch::new(id.clone(), callback_id, on_finished, is_sealed, now);
        let jobs = self.build_all(jobs, Some(&id))?;
        let of = jobs.iter().map(|job| job.id.to_string()).collect::<Vec<_>>();
        self.say(format!("create batch {id}, sealed {is_sealed}, of {of:?}, then {:?}", batch.on_finished));
        let from = self.now()?;
        let told = self.store.create_batch(batch.clone(), jobs.clone(), &self.rules).await;
        self.say(format!("  -> {told:?}"));
        let now = self.since(from)?;
        self.model.create_batch(&batch, &jobs, &told, now)?;
        self.after_call().await
    }

    /// A batch that there is or, now and then, is not.
    fn some_batch(&self, place: u8) -> Result<BatchId, String> {
        let batches: Vec<&BatchId> = self.model.batches.keys().collect();
        match nth(&batches, place) {
            Some(id) if !place.is_multiple_of(20) => Ok((*id).clone()),
            _ => "b-unknown".parse().map_err(fault),
        }
    }

    async fn add_to_batch(&mut self, place: u8, jobs: &[Draft]) -> Checked {
        let id = self.some_batch(place)?;
        let jobs = self.build_all(jobs, Some(&id))?;
        let more = jobs.iter().map(|job| job.id.to_string()).collect::<Vec<_>>();
        self.say(format!("add {more:?} to batch {id}"));
        let from = self.now()?;
        let told = self.store.add_to_batch(&id, jobs.clone(), &self.rules).await;
        self.say(format!("  -> {told:?}"));
        let now = self.since(from)?;
        self.model.add_to_batch(&id, &jobs, &told, now)
    }

    async fn seal_batch(&mut self, place: u8) -> Checked {
        let id = self.some_batch(place)?;
        self.say(format!("seal batch {id}"));
        let from = self.now()?;
        let told = self.store.seal_batch(&id, &self.rules).await;
        self.say(format!("  -> {told:?}"));
        let now = self.since(from)?;
        self.model.seal_batch(&id, &told, now)
    }

    /// Takes away what waits of a batch, and asks for the rest.
    async fn cancel_batch(&mut self, place: u8) -> Result<bool, String> {
        let id = self.some_batch(place)?;
        let unfinished = self.store.unfinished_in_batch(&id, None, 1000).await.map_err(fault)?;
        self.say(format!("cancel what is unfinished of batch {id}: {unfinished:?}"));
        let jobs = self.model.jobs.values().filter(|job| job.is_unfinished());
        let expected = jobs.filter(|job| job.batch.as_ref() == Some(&id));
        let expected: Vec<_> = expected.map(|job| job.id.clone()).collect();
        if unfinished != expected {
            return Err(format!("{unfinished:?} are unfinished in batch {id}, expected {expected:?}"));
        }
        let cancel = tailback::job::transition::Operation::CancelOfBatch {
            within: tailback::job::Reach::default(),
            batch: id,
        };
        let changes =
            unfinished.into_iter().map(|id| tailback::store::Change { id, operation: cancel.clone() });
        self.apply(changes.collect()).await?;
        Ok(!expected.is_empty())
    }

    async fn heartbeat(&mut self, place: u8, timeout: Ahead, has_slots: bool) -> Checked {
        let name = worker(place);
        let version = has_slots.then(|| "1.0 (x)".parse().unwrap());
        let report = Report { version, slots: has_slots.then_some(7), timeout_ms: ms(timeout) };
        self.say(format!("heartbeat of {name}, {report:?}"));
        let from = self.now()?;
        let told = self.store.heartbeat(&name, &report).await.map_err(fault)?;
        self.say(format!("  -> {told:?}"));
        let now = self.since(from)?;
        self.model.heartbeat(&name, &report, &told, now)?;
        self.check_worker(&name).await?;
        self.after_call().await
    }

    async fn silence(&mut self, heard_ms: u64, heard_of: Option<u8>) -> Result<bool, String> {
        let from = self.now()?;
        let changes = self.store.timed_out_workers(heard_ms, 10_000).await.map_err(fault)?.changes;
        self.say(format!("{} jobs of workers that are silent for {heard_ms}", changes.len()));
        let now = self.since(from)?;
        self.model.timed_out_workers(heard_ms, &changes, now)?;
        if let (Some(place), false) = (heard_of, changes.is_empty()) {
            self.heartbeat(place, Ahead::Far(0), false).await?;
        }
        let found_some = !changes.is_empty();
        self.apply(changes).await?;
        Ok(found_some)
    }

    async fn remove_worker(&mut self, place: u8) -> Checked {
        let name = worker(place);
        let mut held = self.store.held_by(&name, 10_000).await.map_err(fault)?;
        held.sort_by(|a, b| a.0.cmp(&b.0));
        let expected = self.model.held_by(&name);
        if held.iter().map(|(id, _)| id).ne(&expected) {
            return Err(format!("{name} holds {held:?}, expected {expected:?}"));
        }
        let was_there = self.store.forget_worker(&name).await.map_err(fault)?;
        self.say(format!("remove {name}: {was_there}"));
        if was_there != self.model.workers.remove(&name).is_some() {
            return Err(format!("the removal of {name} told {was_there}"));
        }
        let abandon = |(id, claim)| tailback::store::Change {
            id,
            operation: tailback::job::transition::Operation::Abandon {
                claim,
                loss: tailback::job::transition::Loss::Removed,
            },
        };
        self.apply(held.into_iter().map(abandon).collect()).await
    }

    async fn save_schedule(
        &mut self,
        place: u8,
        is_seen: bool,
        is_removed: bool,
        next: Option<Ahead>,
    ) -> Checked {
        let name: ScheduleName = SCHEDULES[place as usize].parse().map_err(fault)?;
        let there = self.model.schedules.get(&name).cloned();
        let rev = there.as_ref().map(|schedule| schedule.rev);
        let seen = if is_seen { rev } else { Some(-1) };
        let now = self.now()?;
        let rule: ScheduleRule =
            serde_json::from_str(r#"{"cron":"0 3 * * *","queue":"a","job":{"payload":[1.50]}}"#)
                .map_err(fault)?;
        let number = self.number();
        let schedule = Schedule {
            name: name.clone(),
            rule,
            version: format!("v{number}"),
            rev: number.into(),
            next_at: next.map(|next| now.plus_ms(ms(next))),
            last_job: there.as_ref().and_then(|schedule| schedule.last_job.clone()),
            last_runs: there.map(|schedule| schedule.last_runs).unwrap_or_default(),
        };
        let to = (!is_removed).then_some(&schedule);
        let told = self.store.save_schedule(&name, to, seen).await.map_err(fault)?;
        self.say(format!("save schedule {to:?}, seen {seen:?} -> {told:?}"));
        let expected = if seen == rev { Saved::Done } else { Saved::Conflict };
        if told != expected {
            return Err(format!("schedule {name} was {told:?}, expected {expected:?}"));
        }
        if expected == Saved::Done {
            match to {
                Some(_) => drop(self.model.schedules.insert(name, schedule)),
                None => drop(self.model.schedules.remove(&name)),
            }
        }
        Ok(())
    }

    async fn fire(
        &mut self,
        place: u8,
        is_seen: bool,
        yields: bool,
        job: Option<&Draft>,
    ) -> Result<bool, String> {
        let name: ScheduleName = SCHEDULES[place as usize].parse().map_err(fault)?;
        let Some(schedule) = self.model.schedules.get(&name).cloned() else { return Ok(false) };
        let mut job = job.map(|draft| self.build(draft, None)).transpose()?;
        job.iter_mut().for_each(|job| job.key = None);
        let at = schedule.next_at.unwrap_or(self.now()?);
        let skipped = job.is_none().then_some(Skipped::Misfire);
        let job_id = job.as_ref().map(|job| job.id.clone());
        let run = ScheduleRun { at, job_id, skipped, misfire: job.is_none(), manual: false, request: None };
        let rev = self.number().into();
        let seen = if is_seen { schedule.rev } else { -1 };
        self.fire_this(Firing { name, seen, rev, next_at: Some(at.plus_ms(FAR_MS)), run, job, yields })
            .await?;
        Ok(true)
    }

    async fn fire_this(&mut self, firing: Firing) -> Checked {
        let told = self.store.fire(&firing).await.map_err(fault)?;
        self.say(format!("fire {firing:?} -> {told:?}"));
        self.fired = Some(firing.clone());
        let last = |schedule: &Schedule| self.model.jobs.get(schedule.last_job.as_ref()?);
        let schedule = self.model.schedules.get(&firing.name);
        let Some(schedule) = schedule.filter(|schedule| schedule.rev == firing.seen) else {
            // A run that is remembered is told of; nothing happens again.
            let yielded = ScheduleRun { job_id: None, skipped: Some(Skipped::Overlap), ..firing.run.clone() };
            let runs = schedule.map_or(&[][..], |schedule| &schedule.last_runs);
            let known = runs.iter().rev().find(|run| **run == firing.run || **run == yielded);
            let expected = known.cloned().map_or(Fired::Conflict, Fired::Done);
            let is_right = told == expected;
            return is_right.then_some(()).ok_or_else(|| {
                format!("a firing of what has changed was told {told:?}, expected {expected:?}")
            });
        };
        let yields = firing.yields && last(schedule).is_some_and(Job::is_unfinished);
        let run = match yields {
            true => ScheduleRun { job_id: None, skipped: Some(Skipped::Overlap), ..firing.run.clone() },
            false => firing.run.clone(),
        };
        if told != Fired::Done(run.clone()) {
            return Err(format!("told {told:?}, expected {run:?}"));
        }
        let mut schedule = schedule.clone();
        schedule.rev = firing.rev;
        schedule.next_at = firing.next_at;
        schedule.last_job = run.job_id.clone().or(schedule.last_job);
        schedule.last_runs.push(run);
        if schedule.last_runs.len() > RUNS_KEPT {
            schedule.last_runs.remove(0);
        }
        self.model.schedules.insert(firing.name.clone(), schedule);
        if let (Some(job), false) = (&firing.job, yields) {
            self.model.put(Job::pushed(job));
        }
        Ok(())
    }

    async fn set(&mut self, place: u8, settings: Option<&Settings>, expected: u8) -> Checked {
        let name = queue(place);
        let to = settings.map(|drawn| StoredSettings {
            settings: QueueSettings {
                max_attempts: drawn.max_attempts,
                backoff: drawn.backoff.map(backoff),
                dead_letter: drawn.dead_letter.map(queue),
                retain_done_ms: drawn.retain_done.map(ms),
                retain_result_ms: drawn.retain_result.map(ms),
                retain_dead_ms: drawn.retain_dead.map(ms),
                max_jobs: drawn.max_jobs,
                max_reserved: drawn.max_reserved,
                rate: drawn.rate.map(|limit| Rate { limit, per_ms: FAR_MS }),
                on_group_dead: drawn.skips_dead.then_some(OnGroupDead::Skip),
                lapsed: drawn.lapsed_first.then_some(Lapsed::First),
                ..QueueSettings::default()
            },
            version: format!("v{}", self.number()),
        });
        let there = self.model.settings.get(&name).map(|(_, version)| version.clone());
        let current = there.clone().map_or(Expected::Absent, Expected::Version);
        let expected = match expected {
            0 => Expected::Any,
            1 => Expected::Absent,
            2 => Expected::Version("another".into()),
            _ => current.clone(),
        };
        let told = self.store.save_settings(&name, to.as_ref(), &expected).await.map_err(fault)?;
        self.say(format!("set {name} to {to:?}, expecting {expected:?} -> {told:?}"));
        let circle = to.as_ref().and_then(|to| self.model.circle(&name, &to.settings));
        let right = match circle {
            _ if expected != Expected::Any && expected != current => Saved::Conflict,
            Some(circle) => Saved::Circle(circle),
            None => Saved::Done,
        };
        if told != right {
            return Err(format!(
                "settings of {name} were {told:?}, expecting {expected:?} of {there:?}: {right:?}"
            ));
        }
        match to {
            Some(to) if told == Saved::Done => {
                drop(self.model.settings.insert(name, (to.settings, to.version)));
            }
            None if told == Saved::Done => drop(self.model.settings.remove(&name)),
            _ => {}
        }
        self.rules = self.model.rules();
        self.check_settings().await
    }

    /// A job of another store, in any state.
    async fn import(&mut self, draft: &Draft, state: u8, ask: &Ask, is_expired: bool) -> Checked {
        let mut new = self.build(draft, None)?;
        (new.key, new.spec.expires_in_ms, new.spec.group) = (None, None, None); // lines are imported whole
        let (ask, now) = (self.ask(ask), self.now()?);
        let mut job = new.clone().into_job();
        let meta = &mut job.meta;
        meta.state = [State::Ready, State::Reserved, State::Done, State::Dead][state as usize % 4];
        match meta.state {
            State::Reserved => {
                meta.attempts = 1;
                meta.started_at = Some(now);
                meta.claim = Some(ask.claim);
                meta.lease_ms = Some(ask.lease_ms);
                meta.reserved_until = Some(now.plus_ms(ask.lease_ms));
                meta.worker = ask.worker;
                // It expires while it is held: nobody can wait for that in a pushed job without a race.
                meta.expires_at =
                    is_expired.then_some(tailback::job::Timestamp::from_millis(now.millis() - 1));
            }
            State::Done | State::Dead => {
                meta.finished_at = Some(now);
                meta.purge_at = is_expired.then_some(now.plus_ms(FAR_MS));
                job.result = (meta.state == State::Done).then(|| json(1));
            }
            _ => {}
        }
        let told = self.store.import(vec![job.clone()]).await.into_iter().next();
        self.say(format!("import {} as {:?} into {} -> {told:?}", new.id, job.meta.state, new.queue));
        if !matches!(told, Some(Ok(Imported::New))) {
            return Err(format!("an import was told {told:?}"));
        }
        let meta = job.meta;
        self.model.put(Job {
            state: meta.state,
            attempts: meta.attempts,
            started_at: meta.started_at.map(When::at),
            claim: meta.claim,
            lease_ms: meta.lease_ms,
            reserved_until: meta.reserved_until.map(When::at),
            worker: meta.worker,
            expires_at: meta.expires_at.map(When::at),
            finished_at: meta.finished_at.map(When::at),
            purge_at: meta.purge_at.map(When::at),
            result: job.result,
            ..Job::pushed(&new)
        });
        Ok(())
    }
}
