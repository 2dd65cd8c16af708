//! A call that must happen once or not at all, and what it says of itself.

use std::sync::{Arc, LazyLock};

use tailback::job::{
    ApiKey, ApiKeyId, Batch, BatchId, Bulk, IdSource, Job, NewJob, QueueName, Rules, Schedule, ScheduleName,
    SecretHash, SemaphoreName, WorkerName,
};
use tailback::store::audit::along;
use tailback::store::fence::{Fence, behind};
use tailback::store::{
    AuditRow, BatchChange, BatchDenied, BegunBy, BulkStep, Change, ClaimAsk, Denied, Expected, Fired, Firing,
    Imported, Keyed, KeyedCall, Once, Pushed, Removal, Result, Saved, Store, StoreError, StoredSettings,
    TokenSecret,
};

pub static IDS: LazyLock<IdSource> = LazyLock::new(IdSource::default);

/// What is remembered of every call with an `Idempotency-Key`.
pub const ANSWER: &str = "done";

/// One call, which has a world of its own: every name in it begins with the tag and a dot.
pub struct Case {
    pub tag: String,
    pub rules: Rules,
    pub call: Call,
    pub batch: Option<BatchId>,
    /// The row of the act, if the call is one.
    pub row: Option<AuditRow>,
}

pub enum Call {
    Push(Vec<NewJob>),
    PushOnce(Vec<NewJob>, KeyedCall),
    PushAll(Vec<NewJob>, Option<KeyedCall>),
    Apply(Change),
    ApplyOnce(Vec<Change>, KeyedCall),
    Claim(ClaimAsk),
    /// Copies jobs, for a restore behind its mark.
    Import(Vec<Job>, Option<Fence>),
    CreateBatch(Batch, Vec<NewJob>),
    CreateBatchOnce(Batch, Vec<NewJob>, KeyedCall),
    AddToBatch(BatchId, Vec<NewJob>),
    SealBatch(BatchId),
    Fire(Firing),
    FireOnce(Firing, KeyedCall),
    SaveSchedule(Box<Schedule>, i64),
    DiscardSchedule(ScheduleName),
    SaveSettings(QueueName, StoredSettings, Expected),
    SaveSemaphore(SemaphoreName, u64),
    RemoveSemaphore(SemaphoreName),
    ForgetWorker(WorkerName),
    AddApiKey(Box<ApiKey>),
    RotateApiKey(ApiKeyId, SecretHash),
    RemoveApiKey(ApiKeyId),
    MakeSecret(TokenSecret),
    BeginOperation(Box<Bulk>, BegunBy),
    SaveOperation(Box<Bulk>, i64),
    Step(Box<BulkStep>),
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

impl Answer {
    fn of(is_done: bool) -> Self {
        if is_done { Self::Done } else { Self::Refused }
    }
}

fn unavailable(error: &StoreError) -> Answer {
    assert!(matches!(error, StoreError::Unavailable(_)), "not an answer to a fault: {error:?}");
    Answer::Unavailable
}

/// The answer of a call that returned this, and was done if it passes.
fn answer<T>(returned: Result<T>, is_done: impl FnOnce(T) -> bool) -> Answer {
    returned.map_or_else(|error| unavailable(&error), |done| Answer::of(is_done(done)))
}

/// The answer of several that must have the same.
fn common(answers: Vec<Answer>) -> Answer {
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    answers[0]
}

fn denied_or_done<T>(applied: Result<T, Denied>) -> Answer {
    match applied {
        Ok(_) => Answer::Done,
        Err(Denied::Store(error)) => unavailable(&error),
        Err(_) => Answer::Refused,
    }
}

fn of_batch<T>(changed: Result<T, BatchDenied>) -> Answer {
    match changed {
        Ok(_) => Answer::Done,
        Err(BatchDenied::Store(error)) => unavailable(&error),
        Err(_) => Answer::Refused,
    }
}

/// Whether a keyed call was done: now with an answer that is remembered, or before with the same.
fn was_done<T>(once: &Once<T>) -> bool {
    match once {
        Once::Now(_, answer) => answer.is_some(),
        Once::Before(before) => {
            assert_eq!(*before, tailback::store::Recalled::Answer(ANSWER.to_owned()));
            true
        }
    }
}

fn keyed<T>(call: &KeyedCall) -> Keyed<T> {
    Keyed { call: call.clone(), answer: Arc::new(|_| Some(ANSWER.to_owned())) }
}

impl Case {
    /// Calls the store, by which the case was prepared or another.
    pub async fn run(&self, store: &dyn Store) -> Answer {
        // Boxed: each of them is large, and there is one for each kind at once.
        let call = Box::pin(async {
            match &self.call {
                Call::Push(_) | Call::PushOnce(..) | Call::PushAll(..) | Call::Import(..) => {
                    self.store_jobs(store).await
                }
                Call::Apply(_) | Call::ApplyOnce(..) | Call::Claim(_) => self.change_jobs(store).await,
                Call::CreateBatch(..)
                | Call::CreateBatchOnce(..)
                | Call::AddToBatch(..)
                | Call::SealBatch(_) => self.change_batch(store).await,
                Call::Fire(_) | Call::FireOnce(..) | Call::SaveSchedule(..) | Call::DiscardSchedule(_) => {
                    self.change_schedule(store).await
                }
                _ => self.administer(store).await,
            }
        });
        along(self.row.clone(), call).await
    }

    async fn store_jobs(&self, store: &dyn Store) -> Answer {
        let rules = &self.rules;
        match &self.call {
            Call::Push(jobs) => {
                let pushed = store.push(jobs.clone(), rules).await.into_iter();
                let is_done =
                    |pushed| matches!(pushed, Pushed::Created | Pushed::Blocked | Pushed::Duplicate { .. });
                common(pushed.map(|pushed| answer(pushed, is_done)).collect())
            }
            Call::PushOnce(jobs, call) => {
                answer(store.push_once(jobs.clone(), rules, keyed(call)).await, |once| was_done(&once))
            }
            Call::PushAll(jobs, call) => {
                denied_or_done(store.push_all(jobs.clone(), rules, call.as_ref().map(keyed)).await)
            }
            Call::Import(jobs, fence) => {
                let import = store.import(jobs.clone());
                let imported = match fence {
                    Some(fence) => behind(fence.clone(), import).await,
                    None => import.await,
                };
                let is_done = |imported| imported != Imported::Different;
                common(imported.into_iter().map(|imported| answer(imported, is_done)).collect())
            }
            _ => panic!("stores no jobs"),
        }
    }

    async fn change_jobs(&self, store: &dyn Store) -> Answer {
        let rules = &self.rules;
        match &self.call {
            Call::Apply(change) => denied_or_done(store.apply(vec![change.clone()], rules).await.remove(0)),
            Call::ApplyOnce(changes, call) => {
                match store.apply_once(changes.clone(), rules, keyed(call)).await {
                    Ok(Once::Now(applied, _)) => common(applied.into_iter().map(denied_or_done).collect()),
                    once => answer(once, |once| was_done(&once)),
                }
            }
            Call::Claim(ask) => {
                answer(store.claim(std::slice::from_ref(ask), rules).await.won.remove(0), |won| {
                    !won.is_empty()
                })
            }
            _ => panic!("changes no jobs"),
        }
    }

    async fn change_batch(&self, store: &dyn Store) -> Answer {
        let rules = &self.rules;
        match &self.call {
            Call::CreateBatch(batch, jobs) => {
                of_batch(store.create_batch(batch.clone(), jobs.clone(), rules).await)
            }
            Call::CreateBatchOnce(batch, jobs, call) => {
                let create = BatchChange::Create(Box::new(batch.clone()));
                let changed = store.change_batch_once(create, jobs.clone(), rules, keyed(call)).await;
                of_batch(changed.inspect(|once| assert!(was_done(once))))
            }
            Call::AddToBatch(id, jobs) => of_batch(store.add_to_batch(id, jobs.clone(), rules).await),
            Call::SealBatch(id) => of_batch(store.seal_batch(id, rules).await),
            _ => panic!("changes no batch"),
        }
    }

    async fn change_schedule(&self, store: &dyn Store) -> Answer {
        match &self.call {
            Call::Fire(firing) => answer(store.fire(firing).await, |fired| matches!(fired, Fired::Done(_))),
            Call::FireOnce(firing, call) => {
                answer(store.fire_once(firing, keyed(call)).await, |once| was_done(&once))
            }
            Call::SaveSchedule(to, seen) => {
                answer(store.save_schedule(&to.name, Some(to), Some(*seen)).await, |saved| {
                    saved == Saved::Done
                })
            }
            Call::DiscardSchedule(name) => answer(store.discard_unreadable_schedule(name).await, |()| true),
            _ => panic!("changes no schedule"),
        }
    }

    async fn administer(&self, store: &dyn Store) -> Answer {
        match &self.call {
            Call::SaveSettings(queue, to, expected) => {
                answer(store.save_settings(queue, Some(to), expected).await, |saved| saved == Saved::Done)
            }
            Call::SaveSemaphore(name, capacity) => {
                answer(store.save_semaphore(name, *capacity).await, |()| true)
            }
            Call::RemoveSemaphore(name) => {
                answer(store.remove_semaphore(name).await, |removal| removal == Removal::Done)
            }
            Call::ForgetWorker(name) => answer(store.forget_worker(name).await, |was_there| was_there),
            Call::AddApiKey(key) => answer(store.add_api_key(key).await, |()| true),
            Call::RotateApiKey(id, hash) => {
                answer(store.rotate_api_key(id, hash).await, |was_there| was_there)
            }
            Call::RemoveApiKey(id) => answer(store.remove_api_key(&id.into()).await, |was_there| was_there),
            Call::MakeSecret(fresh) => answer(store.token_secret(*fresh).await, |secret| secret == *fresh),
            Call::BeginOperation(operation, by) => {
                let row = self.row.as_ref();
                answer(store.add_operation(operation, row, Some(by)).await, |is_new| is_new)
            }
            Call::SaveOperation(to, seen) => {
                answer(store.save_operation(to, *seen, self.row.as_ref()).await, |was_seen| was_seen)
            }
            Call::Step(step) => {
                answer(store.step_operation((**step).clone(), &self.rules).await, |done| done.is_some())
            }
            _ => panic!("not administration"),
        }
    }

    /// What a client that repeats its call sends, unless that is another call.
    pub fn repeated(mut self, store: &dyn Store) -> Option<Self> {
        match &mut self.call {
            Call::Push(jobs) | Call::PushAll(jobs, None) if jobs.iter().all(|job| job.key.is_some()) => {
                jobs.iter_mut().for_each(|job| job.id = IDS.next(store.now().unwrap()));
            }
            Call::Push(_)
            | Call::PushAll(_, None)
            | Call::CreateBatch(..)
            | Call::AddToBatch(..)
            | Call::Claim(_) => return None,
            _ => {}
        }
        Some(self)
    }
}
