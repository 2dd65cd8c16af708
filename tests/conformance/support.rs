//! The words in which the cases are written.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use tailback::job::record::{KeyConflict, KeyHold, KeyUntil};
use tailback::job::settings::Defaults;
use tailback::job::state::State;
use tailback::job::transition::{Edit, Operation, Outcome, Refusal, RollbackKind};
use tailback::job::{
    Backoff, BatchId, Binary, Claim, Content, IdSource, Job, JobId, JobSpec, NewJob, Payload, QueueName,
    QueueSettings, Rules, Stage, Timestamp, When,
};
use tailback::store::{Applied, Change, ClaimAsk, Claims, Counts, Denied, Filter, Pushed, Store};

use crate::common::server::PATIENCE;

static IDS: LazyLock<IdSource> = LazyLock::new(IdSource::default);

pub fn queue(name: &str) -> QueueName {
    name.parse().unwrap()
}

pub fn payload(text: &str) -> Payload {
    Payload::parse(text).unwrap()
}

/// What a job carries that was pushed with this JSON.
pub fn content(text: &str) -> Content {
    payload(text).into()
}

pub fn binary(bytes: &[u8], media_type: &str) -> Content {
    Binary { bytes: bytes.to_vec().into(), media_type: media_type.parse().unwrap() }.into()
}

/// The JSON of a job's payload.
pub fn text_of(job: &Job) -> &str {
    job.payload.json().unwrap().as_str()
}

pub fn id(text: &str) -> JobId {
    text.parse().unwrap()
}

/// A job that is about to be pushed: `job("mail").priority(3)`.
#[derive(Clone)]
pub struct Draft {
    queue: QueueName,
    delay_ms: i64,
    key: Option<(String, u64)>,
    lasts: KeyUntil,
    conflict: KeyConflict,
    replay_of: Option<JobId>,
    batch: Option<BatchId>,
    spec: JobSpec,
}

pub fn job(name: &str) -> Draft {
    let spec = JobSpec::new(payload(r#"{"n":1}"#));
    let (lasts, conflict) = Default::default();
    Draft { queue: queue(name), delay_ms: 0, key: None, lasts, conflict, replay_of: None, batch: None, spec }
}

impl Draft {
    /// Changes what the producer says of it.
    pub fn with(mut self, change: impl FnOnce(&mut JobSpec)) -> Self {
        change(&mut self.spec);
        self
    }

    pub fn payload(self, text: &str) -> Self {
        self.carrying(content(text))
    }

    pub fn carrying(self, payload: Content) -> Self {
        self.with(|spec| spec.payload = payload)
    }

    pub fn priority(self, priority: i32) -> Self {
        self.with(|spec| spec.priority = priority)
    }

    /// Due this much after the push; before it where negative.
    pub fn delay(mut self, delay_ms: i64) -> Self {
        self.delay_ms = delay_ms;
        self
    }

    pub fn key(mut self, key: &str, ttl_ms: u64) -> Self {
        self.key = Some((key.to_owned(), ttl_ms));
        self
    }

    pub fn expires(self, in_ms: u64) -> Self {
        self.with(|spec| spec.expires_in_ms = Some(in_ms))
    }

    pub fn json_header(self, name: &str, value: &str) -> Self {
        self.with(|spec| drop(spec.headers.insert(name.to_owned(), payload(value))))
    }

    pub fn lease(self, ms: u64) -> Self {
        self.with(|spec| spec.lease_ms = Some(ms))
    }

    pub fn max_run(self, ms: u64) -> Self {
        self.with(|spec| spec.max_run_ms = Some(ms))
    }

    pub fn max_attempts(self, attempts: u32) -> Self {
        self.with(|spec| spec.max_attempts = Some(attempts))
    }

    pub fn backoff(self, backoff: Backoff) -> Self {
        self.with(|spec| spec.backoff = Some(backoff))
    }

    pub fn header(self, name: &str, value: &str) -> Self {
        self.with(|spec| drop(spec.headers.insert(name.to_owned(), Payload::string(value))))
    }

    pub fn replay_of(mut self, id: &JobId) -> Self {
        self.replay_of = Some(id.clone());
        self
    }

    pub fn lasts(self, lasts: KeyUntil) -> Self {
        Self { lasts, ..self }
    }

    pub fn conflict(self, conflict: KeyConflict) -> Self {
        Self { conflict, ..self }
    }

    pub fn then(self, route: Vec<Stage>) -> Self {
        self.with(|spec| spec.then = route)
    }

    pub fn of(mut self, batch: &BatchId) -> Self {
        self.batch = Some(batch.clone());
        self
    }

    pub fn group(self, name: &str) -> Self {
        self.with(|spec| spec.group = Some(name.parse().unwrap()))
    }

    pub fn needs(self, semaphores: &[&str]) -> Self {
        self.with(|spec| spec.semaphores = semaphores.iter().map(|name| name.parse().unwrap()).collect())
    }

    /// The job, by the store's clock.
    pub fn build(self, store: &dyn Store) -> NewJob {
        let now = store.now().unwrap();
        let (lasts, conflict) = (self.lasts, self.conflict);
        let hold = |(key, ttl_ms): (String, u64)| KeyHold {
            key: key.parse().unwrap(),
            until: now.plus_ms(ttl_ms),
            lasts,
            conflict,
        };
        NewJob {
            run_at: Timestamp::from_millis(now.millis() + self.delay_ms),
            key: self.key.map(hold),
            replay_of: self.replay_of,
            batch: self.batch,
            ..NewJob::new(IDS.next(now), self.queue, self.spec, now)
        }
    }
}

/// The rules of queues with these settings, over the usual defaults.
pub fn rules<const N: usize>(queues: [(&str, QueueSettings); N]) -> Rules {
    let queues: HashMap<QueueName, QueueSettings> =
        queues.into_iter().map(|(name, settings)| (queue(name), settings)).collect();
    Rules::new(Arc::new(Defaults::default()), queues)
}

/// The usual rules, but under them nobody loses patience with a semaphore, however long a case takes.
pub fn usual() -> Rules {
    let defaults = Defaults { semaphore_patience_ms: 3_600_000, ..Defaults::default() };
    Rules::new(Arc::new(defaults), HashMap::new())
}

/// The rules of one queue that is set like this.
pub fn rules_of(name: &str, set: impl FnOnce(&mut QueueSettings)) -> Rules {
    let mut settings = QueueSettings::default();
    set(&mut settings);
    rules([(name, settings)])
}

/// Settings that keep finished jobs for an hour.
pub fn with_history(settings: &mut QueueSettings) {
    settings.retain_done_ms = Some(3_600_000);
}

pub async fn push_under(store: &dyn Store, drafts: Vec<Draft>, rules: &Rules) -> Vec<Pushed> {
    let jobs = drafts.into_iter().map(|draft| draft.build(store)).collect();
    let pushed = store.push(jobs, rules).await;
    pushed.into_iter().map(Result::unwrap).collect()
}

pub async fn push(store: &dyn Store, drafts: Vec<Draft>) -> Vec<Pushed> {
    push_under(store, drafts, &Rules::default()).await
}

/// Pushes jobs that must be new, and answers their ids.
pub async fn push_all(store: &dyn Store, drafts: Vec<Draft>) -> Vec<JobId> {
    let jobs: Vec<NewJob> = drafts.into_iter().map(|draft| draft.build(store)).collect();
    let ids = jobs.iter().map(|job| job.id.clone()).collect();
    for pushed in store.push(jobs, &Rules::default()).await {
        assert_eq!(pushed.unwrap(), Pushed::Created);
    }
    ids
}

pub async fn push_one(store: &dyn Store, draft: Draft) -> JobId {
    push_all(store, vec![draft]).await.remove(0)
}

pub fn ask(name: &str, count: usize) -> ClaimAsk {
    ClaimAsk {
        queue: queue(name),
        count,
        claim: Claim::random(),
        lease_ms: 30_000,
        yields: false,
        worker: None,
        pop: false,
    }
}

pub fn ask_for(name: &str, count: usize, lease_ms: u64) -> ClaimAsk {
    ClaimAsk { lease_ms, ..ask(name, count) }
}

pub async fn claim(store: &dyn Store, ask: ClaimAsk) -> Vec<Job> {
    claim_under(store, ask, &usual()).await
}

pub async fn claim_under(store: &dyn Store, ask: ClaimAsk, rules: &Rules) -> Vec<Job> {
    let mut answers = store.claim(&[ask], rules).await.won;
    assert_eq!(answers.len(), 1);
    answers.remove(0).unwrap()
}

/// Makes these claims, and those again of large jobs that one call leaves to the next one.
pub async fn claim_all(store: &dyn Store, mut asks: Vec<ClaimAsk>) -> Vec<Job> {
    let mut all = Vec::new();
    while !asks.is_empty() {
        let Claims { won, again, .. } = store.claim(&asks, &usual()).await;
        let won: Vec<Vec<Job>> = won.into_iter().map(Result::unwrap).collect();
        let is_left = |(ask, won): &(ClaimAsk, &Vec<Job>)| won.is_empty() && again.contains(&ask.queue);
        asks = asks.into_iter().zip(&won).filter(is_left).map(|(ask, _)| ask).collect();
        assert!(asks.is_empty() || won.iter().any(|jobs| !jobs.is_empty()), "a call gets on");
        all.extend(won.into_iter().flatten());
    }
    all
}

/// Takes one job, which must be there.
pub async fn take(store: &dyn Store, name: &str) -> Job {
    let mut jobs = claim(store, ask(name, 1)).await;
    assert_eq!(jobs.len(), 1, "nothing to take in {name}");
    jobs.remove(0)
}

/// Takes one job and lets `lease_ms` run.
pub async fn take_for(store: &dyn Store, name: &str, lease_ms: u64) -> Job {
    claim(store, ask_for(name, 1, lease_ms)).await.remove(0)
}

/// Pushes one job and takes it.
pub async fn push_and_take(store: &dyn Store, draft: Draft) -> Job {
    let name = draft.queue.as_str().to_owned();
    let id = push_one(store, draft).await;
    let job = take(store, &name).await;
    assert_eq!(job.meta.id, id);
    job
}

pub fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.meta.id.clone()).collect()
}

pub fn held_by(job: &Job) -> Claim {
    job.meta.claim.clone().unwrap()
}

pub fn change(id: &JobId, operation: Operation) -> Change {
    Change { id: id.clone(), operation }
}

pub fn commit(job: &Job) -> Change {
    let claim = held_by(job);
    change(&job.meta.id, Operation::Commit { claim, result: None, push: Vec::new() })
}

pub fn rollback(job: &Job, delay_ms: Option<u64>) -> Change {
    let operation = Operation::Rollback {
        claim: held_by(job),
        kind: RollbackKind::retry(delay_ms),
        error: Some("it broke".into()),
    };
    change(&job.meta.id, operation)
}

pub fn extend(job: &Job, lease_ms: Option<u64>) -> Change {
    let operation = Operation::Extend { claim: held_by(job), lease_ms, progress: None };
    change(&job.meta.id, operation)
}

pub fn release(job: &Job) -> Change {
    let claim = held_by(job);
    change(&job.meta.id, Operation::Release { claim, unless_seen: false })
}

pub fn move_to(job: &Job, name: &str) -> Change {
    let operation = Operation::Move {
        claim: held_by(job),
        queue: queue(name),
        payload: None,
        when: When::Now,
        priority: None,
        headers: None,
        key: None,
    };
    change(&job.meta.id, operation)
}

/// A change of a job in any queue.
pub fn edit_of(edit: Edit) -> Operation {
    Operation::Edit { within: tailback::job::Reach::default(), edit: Box::new(edit) }
}

/// Gives a job back, to become of it what this says.
pub fn give_back(job: &Job, kind: RollbackKind, error: Option<&str>) -> Change {
    let operation = Operation::Rollback { claim: held_by(job), kind, error: error.map(str::to_owned) };
    change(&job.meta.id, operation)
}

pub fn redrive(id: &JobId, name: &str) -> Change {
    change(
        id,
        Operation::Redrive {
            within: tailback::job::Reach::one(&queue(name)),
            home: tailback::job::Reach::default(),
        },
    )
}

pub fn cancel(id: &JobId, force: bool) -> Change {
    change(id, Operation::Cancel { within: tailback::job::Reach::default(), force })
}

pub async fn apply_all(
    store: &dyn Store,
    changes: Vec<Change>,
    rules: &Rules,
) -> Vec<Result<Applied, Refusal>> {
    let count = changes.len();
    let applied = store.apply(changes, rules).await;
    assert_eq!(applied.len(), count);
    let answers = applied.into_iter().map(|answer| match answer {
        Ok(applied) => Ok(applied),
        Err(Denied::Refused(refusal)) => Err(refusal),
        Err(denied) => panic!("the store failed: {denied:?}"),
    });
    answers.collect()
}

pub async fn apply_under(store: &dyn Store, change: Change, rules: &Rules) -> Result<Applied, Refusal> {
    apply_all(store, vec![change], rules).await.remove(0)
}

pub async fn apply(store: &dyn Store, change: Change) -> Result<Applied, Refusal> {
    apply_under(store, change, &Rules::default()).await
}

/// Applies what must succeed, and answers the outcome.
pub async fn outcome(store: &dyn Store, change: Change, rules: &Rules) -> Outcome {
    apply_under(store, change, rules).await.unwrap().outcome
}

pub async fn look(store: &dyn Store, id: &JobId) -> Option<Job> {
    get(store, std::slice::from_ref(id)).await.remove(0)
}

/// Jobs by their ids, which must be readable.
pub async fn get(store: &dyn Store, ids: &[JobId]) -> Vec<Option<Job>> {
    let jobs = store.get(ids).await.unwrap();
    jobs.into_iter().map(|job| job.map(Result::unwrap)).collect()
}

/// The jobs that a filter means, which must be readable.
pub async fn find(store: &dyn Store, filter: &Filter, after: Option<&JobId>, limit: usize) -> Vec<Job> {
    let jobs = store.find(filter, after, limit).await.unwrap();
    jobs.into_iter().map(Result::unwrap).collect()
}

/// The job, which must be there.
pub async fn see(store: &dyn Store, id: &JobId) -> Job {
    look(store, id).await.expect("the job is gone")
}

pub async fn state_of(store: &dyn Store, id: &JobId) -> Option<State> {
    look(store, id).await.map(|job| job.meta.state)
}

pub async fn counts_of(store: &dyn Store, name: &str) -> Counts {
    store.counts(&queue(name)).await.unwrap().counts
}

/// Asks again and again until there is an answer.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < end, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the store's clock has passed this moment.
pub async fn until_past(store: &dyn Store, moment: Timestamp) {
    until("the moment has passed", async || {
        store.ping().await.unwrap();
        (store.now().unwrap() > moment).then_some(())
    })
    .await;
}

/// Waits until something is overdue, and answers it.
pub async fn overdue(store: &dyn Store) -> Vec<Change> {
    until("something is overdue", async || {
        let changes = store.overdue(100).await.unwrap().changes;
        (!changes.is_empty()).then_some(changes)
    })
    .await
}

/// Waits until something is overdue, and applies that.
pub async fn reap(store: &dyn Store, rules: &Rules) -> Vec<Result<Applied, Refusal>> {
    let changes = overdue(store).await;
    apply_all(store, changes, rules).await
}
