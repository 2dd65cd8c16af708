//! A store and its model, side by side: takes a step in both, and compares.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tailback::job::transition::Operation;
use tailback::job::{BatchId, Claim, JobId, Mark, NewJob, QueueName, Rules, SemaphoreName, State, Timestamp};
use tailback::store::{
    Applied, Change, ClaimAsk, Claims, Denied, Firing, Keyed, KeyedCall, Once, Pushed, Recalled, Store,
};

use super::drafts::{Draft, hold, ms, nth, queue, spec, worker};
use super::job::Job;
use super::state::{Checked, FAR_MS, Model};
use super::steps::{Ahead, Ask, Step};
use super::words::{words_of_all, words_of_answer, words_of_change};

/// How far ahead of what a server believes the store's clock may be, in milliseconds.
pub const SLACK_MS: u64 = 1000;

pub struct World<'a> {
    pub store: &'a dyn Store,
    /// The same, for a server.
    pub shared: &'a Arc<dyn Store>,
    pub model: Model,
    /// The settings that the model has, as the store is told.
    pub rules: Rules,
    /// Every delivery there was.
    pub deliveries: Vec<(JobId, Claim)>,
    /// Every job there was, but for those of the step at hand.
    pub known: BTreeSet<JobId>,
    new: Vec<JobId>,
    /// Every change that was asked for.
    changes: Vec<Change>,
    /// Of settles that took the next jobs with them.
    pub marks: Vec<Mark>,
    pub fired: Option<Firing>,
    made: u32,
    /// What has happened, in words.
    pub log: Vec<String>,
}

pub fn fault(error: impl std::fmt::Debug) -> String {
    format!("the store failed: {error:?}")
}

impl<'a> World<'a> {
    pub fn new(shared: &'a Arc<dyn Store>) -> Self {
        let model = Model { retain_batch_ms: FAR_MS, ..Model::default() };
        let rules = model.rules();
        let (deliveries, new, changes, marks, log) = Default::default();
        Self {
            store: &**shared,
            shared,
            model,
            rules,
            deliveries,
            known: BTreeSet::new(),
            new,
            changes,
            marks,
            fired: None,
            made: 0,
            log,
        }
    }

    /// Takes a step; false where there was nothing to do.
    pub async fn step(&mut self, step: &Step) -> Result<bool, String> {
        let done = match step {
            Step::Push(drafts) => self.push(drafts).await?,
            Step::PushAll(jobs) => self.push_all(jobs).await?,
            Step::PushOnce { jobs, key, says } => self.push_once(jobs, *key, *says).await?,
            Step::Claim(asks) => self.claim(asks).await.map(|_| true)?,
            Step::Pop(ask) => self.pop(ask).await?,
            Step::Peek { queue, limit } => self.peek(*queue, *limit).await?,
            Step::Bytes { ask, max_bytes } => self.reserve_bytes(ask, *max_bytes).await?,
            Step::Apply(acts) => self.act(acts).await?,
            Step::Repeat(place) => {
                let Some(mut change) = nth(&self.changes, *place).cloned() else { return Ok(false) };
                // The client sends the same; what the server makes of it has other ids.
                if let Operation::Commit { push, .. } = &mut change.operation {
                    for job in push {
                        job.id = self.new_id('r')?;
                    }
                }
                self.apply(vec![change]).await.map(|_| true)?
            }
            Step::Next { which, act, ask } => self.next(*which, act, ask).await?,
            Step::Again(place, lease) => self.again(*place, *lease).await?,
            Step::Reap => self.reap().await?,
            other => self.other_step(other).await?,
        };
        self.settle_down().await?;
        Ok(done)
    }

    pub fn now(&self) -> Result<Timestamp, String> {
        self.store.now().map_err(fault)
    }

    /// The time of a call that began then and has just ended.
    pub fn since(&self, from: Timestamp) -> Result<super::job::When, String> {
        Ok(super::job::When { from, to: self.now()?.plus_ms(SLACK_MS) })
    }

    pub fn number(&mut self) -> u32 {
        self.made += 1;
        self.made
    }

    fn new_claim(&mut self) -> Claim {
        Claim::from_stored(&format!("claim-{:014}", self.number()))
    }

    pub fn say(&mut self, words: impl Into<String>) {
        self.log.push(words.into());
    }

    pub fn new_id(&mut self, letter: char) -> Result<JobId, String> {
        let id: JobId = format!("{letter}{:05}", self.number()).parse().map_err(fault)?;
        self.new.push(id.clone());
        Ok(id)
    }

    /// The job of a draft.
    pub fn build(&mut self, draft: &Draft, batch: Option<&BatchId>) -> Result<NewJob, String> {
        let now = self.now()?;
        let run_at = match draft.due {
            Ahead::Now => Timestamp::from_millis(now.millis() - i64::from(draft.early_ms)),
            later => now.plus_ms(ms(later)),
        };
        let id = self.new_id(draft.letter)?;
        let key = draft.key.map(|(key, until, lasts, _)| hold(key, until, lasts, now));
        let batch = batch.cloned();
        Ok(NewJob { run_at, key, batch, ..NewJob::new(id, queue(draft.queue), spec(draft), now) })
    }

    pub fn build_all(&mut self, drafts: &[Draft], batch: Option<&BatchId>) -> Result<Vec<NewJob>, String> {
        drafts.iter().map(|draft| self.build(draft, batch)).collect()
    }

    async fn push(&mut self, drafts: &[Draft]) -> Result<bool, String> {
        let mut jobs = self.build_all(drafts, None)?;
        for (job, draft) in jobs.iter_mut().zip(drafts) {
            if let (Some(hold), Some((.., conflict))) = (&mut job.key, draft.key) {
                hold.conflict = conflict;
            }
        }
        self.say(format!("push {}", words_of_all(&jobs)));
        let from = self.now()?;
        let told = self.store.push(jobs.clone(), &self.rules).await;
        let told = told.into_iter().collect::<Result<Vec<_>, _>>().map_err(fault)?;
        self.say(format!("  -> {told:?}"));
        let now = self.since(from)?;
        self.model.push(&jobs, &told, now)?;
        Ok(!jobs.is_empty())
    }

    /// A push of all or none.
    async fn push_all(&mut self, drafts: &[Draft]) -> Result<bool, String> {
        let jobs = self.build_all(drafts, None)?;
        self.say(format!("push all or none: {}", words_of_all(&jobs)));
        let from = self.now()?;
        let told = self.store.push_all(jobs.clone(), &self.rules, None).await;
        self.say(format!("  -> {told:?}"));
        let now = self.since(from)?;
        match (self.model.admit(&jobs, None, now), told) {
            (Ok(_), Ok(Once::Now(told, None))) => self.model.push(&jobs, &told, now)?,
            (Err(refused), Err(Denied::PushRefused(told))) if refused == told => {}
            (expected, told) => {
                return Err(format!("{told:?}, but is refused is {}", expected.is_err()));
            }
        }
        Ok(!jobs.is_empty())
    }

    /// A push with an idempotency key: a repeat is answered as the first time, and stores nothing.
    async fn push_once(&mut self, drafts: &[Draft], key: u8, says: u8) -> Result<bool, String> {
        let jobs = self.build_all(drafts, None)?;
        self.say(format!("push once, as {key}, saying {says}: {}", words_of_all(&jobs)));
        let from = self.now()?;
        let until = from.plus_ms(ms(Ahead::Far(0)));
        let call = KeyedCall { id: format!("={key}"), digest: [says; 32], until };
        let stored = |pushed: &Pushed| !matches!(pushed, Pushed::Full | Pushed::KeyConflict { .. });
        let answer = move |told: &Vec<Pushed>| told.iter().any(stored).then(|| format!("{told:?}"));
        let keyed = Keyed { call, answer: Arc::new(answer) };
        let told = self.store.push_once(jobs.clone(), &self.rules, keyed).await.map_err(fault)?;
        self.say(format!("  -> {told:?}"));
        let now = self.since(from)?;
        match (self.model.keyed.get(&key), told) {
            (None, Once::Now(told, told_answer)) => {
                self.model.push(&jobs, &told, now)?;
                if answer(&told) != told_answer {
                    return Err(format!("{told_answer:?} is remembered of {told:?}"));
                }
                self.model.keyed.extend(told_answer.map(|answer| (key, (says, answer))));
            }
            (Some((said, answer)), Once::Before(Recalled::Answer(told)))
                if *said == says && *answer == told => {}
            (Some((said, _)), Once::Before(Recalled::Different)) if *said != says => {}
            (known, told) => return Err(format!("{told:?}, and known is {known:?}")),
        }
        Ok(!jobs.is_empty())
    }

    pub fn ask(&mut self, ask: &Ask) -> ClaimAsk {
        ClaimAsk {
            queue: queue(ask.queue),
            count: ask.count.into(),
            claim: self.new_claim(),
            lease_ms: ms(ask.lease),
            yields: ask.yields,
            worker: ask.worker.map(worker),
            pop: false,
        }
    }

    /// Claims, and answers what was won.
    async fn claim(&mut self, asks: &[Ask]) -> Result<Vec<(JobId, Claim)>, String> {
        let asks: Vec<ClaimAsk> = asks.iter().map(|one| self.ask(one)).collect();
        self.claim_all(&asks).await
    }

    pub async fn claim_all(&mut self, asks: &[ClaimAsk]) -> Result<Vec<(JobId, Claim)>, String> {
        for ClaimAsk { queue, count, claim, lease_ms, worker, .. } in asks {
            self.say(format!("claim {count} of {queue} as {claim:?} for {lease_ms} ms, {worker:?}"));
        }
        let from = self.now()?;
        let Claims { won, refused, .. } = self.store.claim(asks, &self.rules).await;
        let told = won.into_iter().collect::<Result<Vec<_>, _>>().map_err(fault)?;
        for won in &told {
            self.say(format!("  -> {:?}", won.iter().map(|job| &job.meta.id).collect::<Vec<_>>()));
        }
        let now = self.since(from)?;
        let left = self.left_ready(&refused).await?;
        self.model.claim(asks, &told, &left, now)?;
        let won = asks
            .iter()
            .zip(&told)
            .flat_map(|(ask, won)| won.iter().map(|job| (job.meta.id.clone(), ask.claim.clone())));
        let won: Vec<(JobId, Claim)> = won.collect();
        self.deliveries.extend(won.iter().cloned());
        Ok(won)
    }

    /// The jobs that a claim has left ready, since it says that it knows the semaphore that they need to be full.
    async fn left_ready(&self, refused: &[(SemaphoreName, QueueName)]) -> Result<BTreeSet<JobId>, String> {
        let is_meant = |job: &&Job| {
            let needs = |(name, queue): &(SemaphoreName, QueueName)| {
                job.queue == *queue && job.semaphores.contains(name)
            };
            job.state == State::Ready && refused.iter().any(needs)
        };
        let ids: Vec<JobId> = self.model.jobs.values().filter(is_meant).map(|job| job.id.clone()).collect();
        let seen = self.store.get(&ids).await.map_err(fault)?.into_iter().flatten().flatten();
        Ok(seen.filter(|job| job.meta.state == State::Ready).map(|job| job.meta.id).collect())
    }

    /// Reserve and commit in one call: at most once.
    async fn pop(&mut self, ask: &Ask) -> Result<bool, String> {
        let ask = ClaimAsk { pop: true, ..self.ask(ask) };
        let won = self.claim_all(&[ask]).await?;
        self.after_call().await?;
        let pop = |(id, claim)| Change { id, operation: Operation::Pop { claim } };
        self.apply(won.into_iter().map(pop).collect()).await?;
        Ok(true)
    }

    /// Takes back all that has run out.
    pub async fn reap(&mut self) -> Result<bool, String> {
        let from = self.now()?;
        let overdue = self.store.overdue(10_000).await.map_err(fault)?.changes;
        self.say(format!("{} jobs have run out", overdue.len()));
        let now = self.since(from)?;
        self.model.check_overdue(&overdue, now)?;
        let found_some = !overdue.is_empty();
        self.apply(overdue).await?;
        Ok(found_some)
    }

    /// Carries out changes together. The answers are compared one after the other.
    pub async fn apply(&mut self, changes: Vec<Change>) -> Checked {
        if changes.is_empty() {
            return Ok(());
        }
        changes.iter().for_each(|change| self.log.push(words_of_change(change)));
        self.changes.extend(changes.iter().cloned());
        let blocked = self.model.contest(&changes);
        let from = self.now()?;
        let told = self.store.apply(changes.clone(), &self.rules).await;
        for told in &told {
            self.log.push(format!("  -> {}", words_of_answer(told)));
        }
        let now = self.since(from)?;
        for (change, told) in changes.iter().zip(&told) {
            if let Err(Denied::Store(error)) = told {
                return Err(fault(error));
            }
            let wrong = |wrong| format!("{}: {wrong}", words_of_change(change));
            self.model.settle(change, told, now).map_err(wrong)?;
        }
        let callbacks = told.iter().flatten().filter_map(|applied: &Applied| applied.callback.as_ref());
        self.model.check_callbacks(callbacks)?;
        self.line_up(&told, &blocked).await?;
        self.after_call().await
    }

    /// Waits until everything has come that comes at all: so it is certain what has, whenever a call is made.
    pub async fn settle_down(&mut self) -> Checked {
        self.after_call().await?;
        self.known.extend(self.new.drain(..));
        let near = self.now()?.plus_ms(SLACK_MS);
        let last = self.model.moments().filter(|moment| *moment < near).max();
        while last.is_some_and(|last| self.store.now().is_ok_and(|now| now <= last)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}
