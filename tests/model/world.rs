//! A store and its model, side by side: takes a step in both, and compares.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tailback::job::record::{KeyHold, KeyUntil};
use tailback::job::transition::{Back, Edit, Fate, Loss, Operation};
use tailback::job::{
    Backoff, BatchId, Binary, Claim, Content, GroupName, JobId, JobSpec, Mark, NewJob, Payload, QueueName,
    Rules, SemaphoreName, Stage, State, Timestamp, Visible, When, WorkerName,
};
use tailback::store::{
    Applied, Change, ClaimAsk, Claims, Denied, Firing, Keyed, KeyedCall, Once, Pushed, Recalled, Store,
};

use super::job::{Job, Rev};
use super::state::{Checked, FAR_MS, Model};
use super::steps::{
    Act, Ahead, Ask, Draft, GROUPS, KEYS, PAYLOADS, QUEUES, SEMAPHORES, StageDraft, Step, WORKERS, Wait,
    Which,
};
use super::words::{words_of_all, words_of_answer, words_of_change};

/// How far ahead of what a server believes the store's clock may be, in milliseconds.
const SLACK_MS: u64 = 1000;
/// The lease that jobs have of their own, and the longest delivery: between all that is soon and all that is far.
const OWN_LEASE_MS: u64 = FAR_MS / 2;
const MAX_RUN_MS: u64 = FAR_MS / 2 + 1;
/// What is soon, in milliseconds.
const SOON_MS: u64 = 3;

pub struct World<'a> {
    pub store: &'a dyn Store,
    pub model: Model,
    /// The settings that the model has, as the store is told.
    pub rules: Rules,
    /// Every delivery there was.
    deliveries: Vec<(JobId, Claim)>,
    /// Every job there was, but for those of the step at hand.
    known: BTreeSet<JobId>,
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

pub fn ms(ahead: Ahead) -> u64 {
    match ahead {
        Ahead::Now => 0,
        Ahead::Soon => SOON_MS,
        Ahead::Far(more) => FAR_MS + u64::from(more) * 60_000,
    }
}

pub fn json(place: u8) -> Payload {
    Payload::parse(PAYLOADS[place as usize]).unwrap()
}

/// Some of them are bytes.
pub fn payload(place: u8) -> Content {
    match place {
        1 | 4 => Binary { bytes: vec![0, 0xff, place].into(), media_type: Default::default() }.into(),
        _ => json(place).into(),
    }
}

pub fn queue(place: u8) -> QueueName {
    QUEUES[place as usize].parse().unwrap()
}

pub fn worker(place: u8) -> WorkerName {
    WORKERS[place as usize].parse().unwrap()
}

pub fn group(place: u8) -> GroupName {
    GROUPS[place as usize].parse().unwrap()
}

pub fn semaphore(place: u8) -> SemaphoreName {
    SEMAPHORES[place as usize].parse().unwrap()
}

pub fn backoff(wait: Wait) -> Backoff {
    let base_ms = ms(wait.first);
    let default = Backoff::default();
    match wait.first {
        Ahead::Far(_) if wait.grows => Backoff { base_ms, max_ms: 3 * FAR_MS, ..default },
        _ => Backoff { kind: tailback::job::backoff::BackoffKind::Fixed, base_ms, jitter: 0.0, ..default },
    }
}

pub fn stage(draft: &StageDraft) -> Stage {
    Stage {
        priority: draft.priority,
        delay_ms: draft.due.map(ms),
        max_attempts: draft.max_attempts,
        backoff: draft.backoff.map(backoff),
        ..Stage::new(queue(draft.queue))
    }
}

/// What a change says beside priority, time and payload.
fn other_edit(other: u8, to: u8) -> Edit {
    let none = Edit::default();
    match other {
        0 => Edit { max_attempts: Some((to > 0).then(|| u32::from(to) - 1)), ..none },
        1 => Edit { expires_in_ms: Some((to > 0).then_some(FAR_MS)), ..none },
        2 => Edit { headers: Some([("n".to_owned(), json(to))].into()), ..none },
        3 => Edit { headers: Some(Default::default()), ..none },
        4..=7 => Edit { group: Some((usize::from(to) < GROUPS.len()).then(|| group(to))), ..none },
        _ => none,
    }
}

fn hold(key: u8, until: Ahead, lasts: KeyUntil, now: Timestamp) -> KeyHold {
    let key = KEYS[key as usize].parse().unwrap();
    KeyHold { lasts, ..KeyHold::new(key, now.plus_ms(ms(until))) }
}

/// What a draft says of its job.
pub fn spec(draft: &Draft) -> JobSpec {
    let header = draft.has_header.then(|| ("trace".to_owned(), json(draft.payload)));
    JobSpec {
        headers: header.into_iter().collect(),
        priority: draft.priority,
        max_attempts: draft.max_attempts,
        backoff: draft.backoff.map(backoff),
        lease_ms: draft.own_lease.then_some(OWN_LEASE_MS),
        max_run_ms: draft.max_run.then_some(MAX_RUN_MS),
        expires_in_ms: draft.expires.map(ms),
        retain_result_ms: draft.retain_result.map(ms),
        group: draft.group.map(group),
        semaphores: draft.semaphores.iter().copied().map(semaphore).collect(),
        then: draft.route.iter().map(stage).collect(),
        ..JobSpec::new(payload(draft.payload))
    }
}

impl<'a> World<'a> {
    pub fn new(store: &'a dyn Store) -> Self {
        let model = Model { retain_batch_ms: FAR_MS, ..Model::default() };
        let rules = model.rules();
        let (deliveries, new, changes, marks, log) = Default::default();
        Self {
            store,
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

    fn new_id(&mut self, letter: char) -> Result<JobId, String> {
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

    async fn act(&mut self, acts: &[(Which, Act)]) -> Result<bool, String> {
        let mut calls: Vec<Vec<Change>> = vec![Vec::new()];
        let (mut settled, mut touched) = (BTreeSet::new(), BTreeSet::new());
        for (which, act) in acts {
            let Some(change) = self.resolve(*which, act)? else { continue };
            let repeatable = matches!(change.operation, Operation::Commit { .. } | Operation::Move { .. });
            // Another call with the same token would be taken for a repeat: repeats are steps of their own.
            if repeatable && (self.model.is_remembered(&change) || !settled.insert(change.id.clone())) {
                continue;
            }
            // What has just come back may be due, or not, and what was just extended may last as long as before: nobody
            // waits within a step.
            let depends = matches!(change.operation, Operation::Purge { .. } | Operation::Lapse { .. });
            if depends && !touched.insert(change.id.clone()) {
                continue;
            }
            touched.insert(change.id.clone());
            if self.stands_alone(&change) {
                calls.extend([vec![change], Vec::new()]);
            } else if let Some(call) = calls.last_mut() {
                call.push(change);
            }
        }
        let has_some = calls.iter().any(|call| !call.is_empty());
        for call in calls {
            self.apply(call).await?;
        }
        Ok(has_some)
    }

    /// Changes of different jobs in one call have no order: one whose answer depends on the others goes alone.
    fn stands_alone(&self, change: &Change) -> bool {
        let is_limited = |queue: &QueueName| self.model.max_jobs(queue).is_some();
        match &change.operation {
            Operation::Move { queue, key, .. } => key.is_some() || is_limited(queue),
            // Whether it is blocked depends on those before it.
            Operation::Purge { .. } | Operation::Retry { .. } => {
                self.model.jobs.get(&change.id).is_some_and(|job| job.group.is_some())
            }
            Operation::Commit { push, .. } => {
                push.iter().any(|job| job.key.is_some() || is_limited(&job.queue))
            }
            _ => false,
        }
    }

    /// The job and, where it has one, the token that an operation shows.
    fn find(&self, which: Which) -> Option<(JobId, Option<Claim>)> {
        let jobs = self.model.jobs.values();
        match which {
            Which::Held(place) => {
                let held: Vec<_> = jobs.filter(|job| job.state == State::Reserved).collect();
                nth(&held, place).map(|job| (job.id.clone(), job.claim.clone()))
            }
            Which::Any(place) => nth(&jobs.collect::<Vec<_>>(), place).map(|job| (job.id.clone(), None)),
            Which::Stale(place) => {
                let now_has = |id: &JobId| self.model.jobs.get(id).and_then(|job| job.claim.as_ref());
                let (others, old): (Vec<_>, Vec<_>) = (self.deliveries.iter())
                    .filter(|(id, claim)| now_has(id) != Some(claim))
                    .partition(|(id, _)| now_has(id).is_some());
                // The tokens of jobs that somebody else has now are the ones that matter.
                let stale = if place.is_multiple_of(2) && !others.is_empty() { &others } else { &old };
                nth(stale, place / 2).map(|(id, claim)| (id.clone(), Some(claim.clone())))
            }
            Which::Gone(place) => {
                let gone: Vec<_> =
                    self.known.iter().filter(|id| !self.model.jobs.contains_key(*id)).collect();
                nth(&gone, place).map(|id| ((*id).clone(), None))
            }
        }
    }

    pub fn resolve(&mut self, which: Which, act: &Act) -> Result<Option<Change>, String> {
        let Some((id, claim)) = self.find(which) else { return Ok(None) };
        let claim = claim.unwrap_or_else(|| Claim::from_stored("nobody"));
        let job = self.model.jobs.get(&id).cloned();
        let off_by = |is_right: bool| if is_right { 0 } else { 1 };
        let operation = match act {
            Act::Commit { result, push } => {
                let push = self.build_all(push, None)?;
                Operation::Commit { claim, result: result.map(json), push }
            }
            Act::Rollback { delay, has_error, kind, in_place } => {
                let error = has_error.then(|| "it broke".to_owned());
                let back = match (delay, in_place) {
                    (Some(delay), _) => Back::At(When::In(ms(*delay))),
                    (None, true) => Back::InPlace,
                    (None, false) => Back::ByBackoff,
                };
                let fate = match kind {
                    0 => Fate::Dead,
                    1..=3 => Fate::Snooze(back),
                    _ => Fate::Retry(back),
                };
                Operation::Rollback { claim, fate, error }
            }
            Act::Extend { lease, progress } => {
                Operation::Extend { claim, lease_ms: lease.map(ms), progress: progress.map(json) }
            }
            Act::Move { queue: to, payload: new, delay, priority, key } => Operation::Move {
                claim,
                queue: queue(*to),
                payload: new.map(payload),
                when: delay.map_or(When::Now, |delay| When::In(ms(delay))),
                priority: *priority,
                headers: None,
                key: match key {
                    Some((key, until, lasts)) => Some(hold(*key, *until, *lasts, self.now()?)),
                    None => None,
                },
            },
            Act::Release => Operation::Release { claim, unless_seen: false },
            Act::Lapse { is_right } => {
                let until = job.and_then(|job| job.reserved_until).map_or(Timestamp::default(), |at| at.from);
                Operation::Lapse { claim, reserved_until: until.plus_ms(off_by(*is_right)) }
            }
            Act::Silence { is_right } => {
                let rev = match job.map(|job| job.rev) {
                    Some(Rev::Same(rev)) => rev.wrapping_add(off_by(*is_right).cast_signed()),
                    _ => 0,
                };
                Operation::Abandon { claim, loss: Loss::TimedOut { rev } }
            }
            Act::Removal => Operation::Abandon { claim, loss: Loss::Removed },
            Act::Expire { is_right } => {
                let at = job.and_then(|job| job.expires_at).map_or(Timestamp::default(), |at| at.from);
                Operation::Expire { expires_at: at.plus_ms(off_by(*is_right)) }
            }
            Act::Edit { priority, due, payload: new, other, group: to } => {
                let now = self.now()?;
                let run_at = due.map(|due| now.plus_ms(ms(due)));
                let edit = Edit {
                    priority: *priority,
                    run_at,
                    payload: new.map(payload),
                    ..other_edit(*other, *to)
                };
                Operation::Edit { within: tailback::job::Reach::default(), edit: Box::new(edit) }
            }
            Act::Cancel { force } => {
                Operation::Cancel { within: tailback::job::Reach::default(), force: *force }
            }
            Act::CancelUnheld => Operation::CancelUnheld { within: tailback::job::Reach::default() },
            Act::Retry => Operation::Retry { within: tailback::job::Reach::default() },
            Act::Run => Operation::Run { within: tailback::job::Reach::default() },
            Act::Revoke => Operation::Revoke { within: tailback::job::Reach::default() },
            Act::Relocate { queue: to, delay, priority } => Operation::Relocate {
                within: tailback::job::Reach::default(),
                queue: queue(*to),
                when: delay.map(|delay| When::In(ms(delay))),
                priority: *priority,
            },
            Act::Purge { state } => {
                let states = [
                    Visible::Ready,
                    Visible::Scheduled,
                    Visible::Reserved,
                    Visible::Blocked,
                    Visible::Done,
                    Visible::Dead,
                ];
                Operation::Purge {
                    within: tailback::job::Reach::default(),
                    states: vec![states[*state as usize]],
                }
            }
            Act::Redrive { is_right } => {
                let own = job.filter(|_| *is_right).map(|job| job.queue);
                let within = tailback::job::Reach::one(&own.unwrap_or_else(|| queue(0)));
                Operation::Redrive { within, home: tailback::job::Reach::default() }
            }
        };
        Ok(Some(Change { id, operation }))
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

/// The element at this place, counted around and around.
pub fn nth<T>(all: &[T], place: u8) -> Option<&T> {
    all.get(usize::from(place).checked_rem(all.len())?)
}
