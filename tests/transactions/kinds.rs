//! The kinds of transactions: what is prepared for a case, and the call that must happen once or not at all.

use std::sync::{Arc, LazyLock};

use tailback::job::bulk::{BulkIntent, BulkState};
use tailback::job::record::KeyHold;
use tailback::job::settings::Rate;
use tailback::job::transition::{Loss, Operation};
use tailback::job::{
    ApiKey, ApiKeyId, Batch, BatchId, Bulk, IdSource, NewJob, OnFinished, QueueName, QueueSettings, Reach,
    Rules, Schedule, ScheduleRun, Scope, SecretHash, SemaphoreName,
};
use tailback::store::audit::along;
use tailback::store::{
    AuditRow, BatchDenied, BulkEffect, BulkStep, Change, ClaimAsk, Denied, Expected, Fired, Firing, Pushed,
    Removal, Saved, Store, StoreError, StoredSettings,
};

use crate::support::*;

static IDS: LazyLock<IdSource> = LazyLock::new(IdSource::default);

/// Every kind of transaction.
pub const KINDS: [Kind; 28] = [
    Kind::KeyedPush,
    Kind::GroupedPush,
    Kind::CommitWithPushes,
    Kind::CommitWithKeyedPush,
    Kind::Move,
    Kind::KeyedMove,
    Kind::LastOfBatch,
    Kind::CreateBatch,
    Kind::AddToBatch,
    Kind::SealBatch,
    Kind::GroupAdvance,
    Kind::GroupEnd,
    Kind::MaxReserved,
    Kind::RateLimit,
    Kind::Semaphore,
    Kind::Fire,
    Kind::SaveSettings,
    Kind::RemoveSemaphore,
    Kind::ForcedCancel,
    Kind::Abandon,
    Kind::AddApiKey,
    Kind::RotateApiKey,
    Kind::RemoveApiKey,
    Kind::OperationStep,
    Kind::OperationPush,
    Kind::StopOperation,
    Kind::ReleaseByHand,
    Kind::MoveByHand,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    KeyedPush,
    GroupedPush,
    CommitWithPushes,
    CommitWithKeyedPush,
    Move,
    KeyedMove,
    LastOfBatch,
    CreateBatch,
    AddToBatch,
    SealBatch,
    GroupAdvance,
    GroupEnd,
    MaxReserved,
    RateLimit,
    Semaphore,
    Fire,
    SaveSettings,
    RemoveSemaphore,
    ForcedCancel,
    Abandon,
    AddApiKey,
    RotateApiKey,
    RemoveApiKey,
    OperationStep,
    OperationPush,
    StopOperation,
    ReleaseByHand,
    MoveByHand,
}

/// One call, which has a world of its own: every name in it begins with the tag and a dot.
pub struct Case {
    pub tag: String,
    pub rules: Rules,
    pub call: Call,
    pub batch: Option<BatchId>,
}

pub enum Call {
    Push(Vec<NewJob>),
    Apply(Change),
    CreateBatch(Batch, Vec<NewJob>),
    AddToBatch(BatchId, Vec<NewJob>),
    SealBatch(BatchId),
    Claim(ClaimAsk),
    Fire(Firing),
    Save(QueueName, StoredSettings, Expected),
    RemoveSemaphore(SemaphoreName),
    AddApiKey(Box<ApiKey>),
    RotateApiKey(ApiKeyId, SecretHash),
    RemoveApiKey(ApiKeyId),
    Step(Box<BulkStep>),
    SaveOperation(Box<Bulk>, i64, Box<AuditRow>),
    /// A change with the row of the act.
    Act(Change, Box<AuditRow>),
}

/// What a call says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// Nothing was stored by this call.
    Refused,
    /// It may have been done, or not.
    Unavailable,
}

fn unavailable(error: &StoreError) -> Answer {
    assert!(matches!(error, StoreError::Unavailable(_)), "not an answer to a fault: {error:?}");
    Answer::Unavailable
}

impl Case {
    /// Calls the store, by which the case was prepared or another.
    pub async fn run(&self, store: &dyn Store) -> Answer {
        let said = |done: bool| if done { Answer::Done } else { Answer::Refused };
        let rules = &self.rules;
        match &self.call {
            Call::Push(jobs) => {
                let answers = store.push(jobs.clone(), rules).await.into_iter().map(|answer| match answer {
                    Ok(Pushed::Created | Pushed::Blocked | Pushed::Duplicate { .. }) => Answer::Done,
                    Ok(_) => Answer::Refused,
                    Err(error) => unavailable(&error),
                });
                let answers: Vec<Answer> = answers.collect();
                assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
                answers[0]
            }
            Call::Apply(change) => match store.apply(vec![change.clone()], rules).await.remove(0) {
                Ok(_) => Answer::Done,
                Err(Denied::Store(error)) => unavailable(&error),
                Err(_) => Answer::Refused,
            },
            Call::CreateBatch(batch, jobs) => {
                batch_answer(store.create_batch(batch.clone(), jobs.clone(), rules).await)
            }
            Call::AddToBatch(id, jobs) => batch_answer(store.add_to_batch(id, jobs.clone(), rules).await),
            Call::SealBatch(id) => batch_answer(store.seal_batch(id, rules).await),
            Call::Claim(ask) => match store.claim(std::slice::from_ref(ask), rules).await.won.remove(0) {
                Ok(won) => said(!won.is_empty()),
                Err(error) => unavailable(&error),
            },
            Call::Fire(firing) => store
                .fire(firing)
                .await
                .map_or_else(|error| unavailable(&error), |fired| said(matches!(fired, Fired::Done(_)))),
            Call::Save(queue, to, expected) => store
                .save_settings(queue, Some(to), expected)
                .await
                .map_or_else(|error| unavailable(&error), |saved| said(saved == Saved::Done)),
            Call::RemoveSemaphore(name) => store
                .remove_semaphore(name)
                .await
                .map_or_else(|error| unavailable(&error), |removal| said(removal == Removal::Done)),
            Call::Step(step) => store
                .step_operation((**step).clone(), rules)
                .await
                .map_or_else(|error| unavailable(&error), |done| said(done.is_some())),
            Call::SaveOperation(to, seen, row) => store
                .save_operation(to, *seen, Some(row))
                .await
                .map_or_else(|error| unavailable(&error), said),
            Call::Act(change, row) => {
                let applied = along(Some((**row).clone()), store.apply(vec![change.clone()], rules)).await;
                match applied.into_iter().next().unwrap() {
                    Ok(_) => Answer::Done,
                    Err(Denied::Store(error)) => unavailable(&error),
                    Err(_) => Answer::Refused,
                }
            }
            Call::AddApiKey(_) | Call::RotateApiKey(..) | Call::RemoveApiKey(_) => {
                self.change_api_key(store).await.map_or_else(|error| unavailable(&error), said)
            }
        }
    }

    /// Changes an API key. Returns whether there was one to change.
    async fn change_api_key(&self, store: &dyn Store) -> Result<bool, StoreError> {
        match &self.call {
            Call::AddApiKey(key) => store.add_api_key(key).await.map(|()| true),
            Call::RotateApiKey(id, hash) => store.rotate_api_key(id, hash).await,
            Call::RemoveApiKey(id) => store.remove_api_key(&id.into()).await,
            _ => panic!("not about an API key"),
        }
    }

    /// What a client that repeats its call sends, unless that is another call.
    pub fn repeated(mut self, store: &dyn Store) -> Option<Self> {
        match &mut self.call {
            Call::Push(jobs) if jobs.iter().all(|job| job.key.is_some()) => {
                jobs.iter_mut().for_each(|job| job.id = IDS.next(store.now().unwrap()));
            }
            Call::Push(_) | Call::CreateBatch(..) | Call::AddToBatch(..) | Call::Claim(_) => return None,
            _ => {}
        }
        Some(self)
    }
}

fn batch_answer<T>(answer: Result<T, BatchDenied>) -> Answer {
    match answer {
        Ok(_) => Answer::Done,
        Err(BatchDenied::Store(error)) => unavailable(&error),
        Err(_) => Answer::Refused,
    }
}

fn of(store: &dyn Store, id: &BatchId, drafts: Vec<Draft>) -> Vec<NewJob> {
    drafts.into_iter().map(|draft| draft.of(id).build(store)).collect()
}

fn batch(store: &dyn Store, tag: &str, sealed: bool) -> Batch {
    let now = store.now().unwrap();
    let on_finished: OnFinished =
        serde_json::from_value(serde_json::json!({"queue": format!("{tag}.after"), "payload": 1})).unwrap();
    Batch::new(IDS.next_batch(now), IDS.next(now), Some(on_finished), sealed, now)
}

fn commit_pushing(store: &dyn Store, taken: &tailback::job::Job, drafts: Vec<Draft>) -> Call {
    let push = drafts.into_iter().map(|draft| draft.build(store)).collect();
    let claim = held_by(taken);
    Call::Apply(change(&taken.meta.id, Operation::Commit { claim, result: None, push }))
}

impl Kind {
    /// Prepares a case in a store that works.
    pub async fn prepare(self, store: &dyn Store, tag: String) -> Case {
        let q = format!("{tag}.q");
        let next = format!("{tag}.next");
        let (mut rules, mut of_batch) = (Rules::default(), None);
        let call = match self {
            Self::KeyedPush => Call::Push(vec![
                job(&q).key("k", 60_000).build(store),
                job(&q).key("l", 60_000).group("g").build(store),
            ]),
            Self::GroupedPush => {
                Call::Push(vec![job(&q).group("g").build(store), job(&q).group("g").build(store)])
            }
            Self::CommitWithPushes => {
                let taken = push_and_take(store, job(&q)).await;
                commit_pushing(store, &taken, vec![job(&next), job(&next).group("g")])
            }
            Self::CommitWithKeyedPush => {
                let taken = push_and_take(store, job(&q)).await;
                commit_pushing(store, &taken, vec![job(&next).key("k", 60_000), job(&next)])
            }
            Self::Move => Call::Apply(move_to(&push_and_take(store, job(&q)).await, &next)),
            Self::KeyedMove => {
                let taken = push_and_take(store, job(&q).key("old", 60_000)).await;
                let Change { id, mut operation } = move_to(&taken, &next);
                if let Operation::Move { key, .. } = &mut operation {
                    *key = Some(KeyHold::new("k".parse().unwrap(), store.now().unwrap().plus_ms(60_000)));
                }
                Call::Apply(Change { id, operation })
            }
            Self::LastOfBatch | Self::CreateBatch | Self::AddToBatch | Self::SealBatch => {
                let (call, batch) = self.prepare_batch(store, &tag).await;
                of_batch = Some(batch);
                call
            }
            Self::GroupAdvance | Self::GroupEnd => {
                let count = if self == Self::GroupEnd { 1 } else { 2 };
                let jobs = (0..count).map(|_| job(&q).group("g").build(store)).collect();
                store.push(jobs, &rules).await.into_iter().for_each(|pushed| drop(pushed.unwrap()));
                Call::Apply(commit(&take(store, &q).await))
            }
            Self::MaxReserved | Self::RateLimit => {
                push_all(store, vec![job(&q); 2]).await;
                rules = rules_of(&q, |settings| match self {
                    Self::MaxReserved => settings.max_reserved = Some(1),
                    _ => settings.rate = Some(Rate { limit: 1, per_ms: 86_400_000 }),
                });
                Call::Claim(ask(&q, 2))
            }
            Self::Semaphore => {
                let name = format!("{tag}.m");
                store.save_semaphore(&name.parse().unwrap(), 1).await.unwrap();
                push_all(store, vec![job(&q).needs(&[&name]); 2]).await;
                Call::Claim(ask(&q, 2))
            }
            Self::Fire => Call::Fire(firing(store, &tag).await),
            Self::SaveSettings => {
                let save = |version: &str, settings| StoredSettings { settings, version: version.to_owned() };
                let (old, new) =
                    (QueueSettings::default(), QueueSettings { paused: Some(true), ..Default::default() });
                let saved = store.save_settings(&queue(&q), Some(&save("old", old)), &Expected::Absent).await;
                assert_eq!(saved.unwrap(), Saved::Done);
                Call::Save(queue(&q), save("new", new), Expected::Version("old".to_owned()))
            }
            Self::RemoveSemaphore => {
                let name: SemaphoreName = format!("{tag}.m").parse().unwrap();
                store.save_semaphore(&name, 1).await.unwrap();
                Call::RemoveSemaphore(name)
            }
            Self::ForcedCancel => Call::Apply(cancel(&push_and_take(store, job(&q)).await.meta.id, true)),
            Self::Abandon => {
                let taken = push_and_take(store, job(&q)).await;
                let claim = held_by(&taken);
                Call::Apply(change(&taken.meta.id, Operation::Abandon { claim, loss: Loss::Removed }))
            }
            Self::OperationStep | Self::OperationPush | Self::StopOperation => {
                self.prepare_operation(store, &tag).await
            }
            Self::ReleaseByHand => {
                let taken = push_and_take(store, job(&q)).await;
                let revoke = Operation::Revoke { within: Reach::default() };
                Call::Act(change(&taken.meta.id, revoke), Box::new(row(store, &tag)))
            }
            Self::MoveByHand => {
                let id = push_one(store, job(&q)).await;
                let (within, queue) = (Reach::default(), queue(&next));
                let relocate = Operation::Relocate { within, queue, when: None, priority: None };
                Call::Act(change(&id, relocate), Box::new(row(store, &tag)))
            }
            Self::AddApiKey => Call::AddApiKey(Box::new(api_key(store, &tag))),
            Self::RotateApiKey | Self::RemoveApiKey => {
                let key = api_key(store, &tag);
                store.add_api_key(&key).await.unwrap();
                match self {
                    Self::RotateApiKey => Call::RotateApiKey(key.id, SecretHash::of("new")),
                    _ => Call::RemoveApiKey(key.id),
                }
            }
        };
        Case { tag, rules, call, batch: of_batch }
    }

    async fn prepare_operation(self, store: &dyn Store, tag: &str) -> Call {
        let (q, next) = (format!("{tag}.q"), format!("{tag}.next"));
        let intent: BulkIntent =
            serde_json::from_value(serde_json::json!({"filter": {"queue": q}, "action": "move", "to": next}))
                .unwrap();
        let id = tag.replace('.', "-").parse().unwrap();
        let operation = Bulk::new(id, intent, String::new(), store.now().unwrap());
        assert!(store.add_operation(&operation, None, None).await.unwrap());
        let effect = match self {
            Self::OperationPush => {
                BulkEffect::Push(vec![job(&q).build(store), job(&q).group("g").build(store)])
            }
            _ => {
                let pushed = push_all(store, vec![job(&q), job(&q).group("g"), job(&q).delay(60_000)]).await;
                let relocate = |id| {
                    let (within, queue) = (Reach::default(), queue(&next));
                    change(id, Operation::Relocate { within, queue, when: None, priority: None })
                };
                BulkEffect::Change(pushed.iter().map(relocate).collect())
            }
        };
        let (id, seen, revised) = (operation.id.clone(), operation.rev, operation.revised());
        if self == Self::StopOperation {
            let stopped = operation.ended(BulkState::Cancelled, None, revised.created_at);
            return Call::SaveOperation(Box::new(stopped), seen, Box::new(row(store, tag)));
        }
        Call::Step(Box::new(BulkStep {
            effect,
            id,
            seen,
            next: Arc::new(move |_| revised.clone()),
            row: Arc::new(|_| None),
        }))
    }

    async fn prepare_batch(self, store: &dyn Store, tag: &str) -> (Call, BatchId) {
        let q = format!("{tag}.q");
        let made = batch(store, tag, matches!(self, Self::LastOfBatch | Self::CreateBatch));
        let (id, none) = (made.id.clone(), Rules::default());
        if self == Self::CreateBatch {
            let jobs = of(store, &id, vec![job(&q), job(&q).key("k", 60_000)]);
            return (Call::CreateBatch(made, jobs), id);
        }
        store.create_batch(made, of(store, &id, vec![job(&q)]), &none).await.unwrap();
        if self == Self::AddToBatch {
            return (Call::AddToBatch(id.clone(), of(store, &id, vec![job(&q)])), id);
        }
        let last = commit(&take(store, &q).await);
        if self == Self::LastOfBatch {
            return (Call::Apply(last), id);
        }
        apply(store, last).await.unwrap();
        (Call::SealBatch(id.clone()), id)
    }
}

/// Returns a key whose secret is the same in every case, so that the outcomes of cases can be compared.
fn api_key(store: &dyn Store, tag: &str) -> ApiKey {
    ApiKey {
        id: ApiKey::fresh_id(),
        name: format!("{tag}.key").parse().unwrap(),
        hash: SecretHash::of("old"),
        scopes: vec![Scope::Read],
        queues: Vec::new(),
        created_at: store.now().unwrap(),
        expires_at: None,
        rate: None,
        max_concurrent: None,
        last_used_at: None,
    }
}

fn row(store: &dyn Store, tag: &str) -> AuditRow {
    let at = store.now().unwrap();
    AuditRow {
        id: IDS.next(at),
        at,
        by: "key".to_owned(),
        by_name: None,
        address: None,
        what: "job.move".to_owned(),
        on: tag.to_owned(),
        queue: Some(queue(&format!("{tag}.q"))),
        affected: None,
        before: None,
        after: None,
    }
}

async fn firing(store: &dyn Store, tag: &str) -> Firing {
    let q = format!("{tag}.q");
    let rule = serde_json::json!({
        "cron": "*/5 * * * * *", "time_zone": "Europe/Berlin", "queue": q, "job": {"payload": 1}
    });
    let (job, at) = (job(&q).build(store), store.now().unwrap());
    let run = ScheduleRun {
        at,
        job_id: Some(job.id.clone()),
        skipped: None,
        misfire: false,
        manual: false,
        request: None,
    };
    let schedule = Schedule {
        name: format!("{tag}.s").parse().unwrap(),
        rule: serde_json::from_value(rule).unwrap(),
        version: "v".to_owned(),
        rev: 1,
        next_at: Some(at),
        last_job: None,
        last_runs: Vec::new(),
    };
    assert_eq!(store.save_schedule(&schedule.name, Some(&schedule), None).await.unwrap(), Saved::Done);
    let next_at = Some(at.plus_ms(3_600_000));
    Firing { name: schedule.name, seen: 1, rev: 2, next_at, run, job: Some(job), yields: true }
}
