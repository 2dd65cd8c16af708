//! Calls with an `Idempotency-Key` that create or take something, but for reserves: each takes effect once, and a repeat gets
//! its answer, at whichever server. The store keeps the answer with the effect, in one transaction. Pops: see `keyed_pop`.
//!
//! Empty and refused calls are not remembered: nothing took effect.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::audit::carried;
use super::meter::Event;
use super::once::TURN_WAIT;
use super::outcomes::Noted;
use super::push::{self, Prepared};
use super::quotas::Places;
use super::rest::Remembered;
use super::{Error, IdempotencyKey, NewPush, PushAnswer, Queues, Result};
use crate::faults;
use crate::job::{BulkId, JobId, NewJob, QueueName, State, Timestamp};
use crate::store::hold;
use crate::store::{
    Answering, Applied, BegunBy, Change, Denied, Keyed, KeyedCall, Once, Pushed, Recalled, StoreError,
};

/// Identifies a call with an `Idempotency-Key`, and distinguishes a repeat of it from another call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallKey {
    pub(super) id: String,
    digest: [u8; 32],
    /// When the call began that this is a step of: all steps are forgotten at once.
    began: Option<Timestamp>,
}

impl IdempotencyKey {
    /// Returns this key for a call of this method and path; `digest` is equal where two calls say the same.
    pub fn call(&self, method: &str, path: &str, digest: [u8; 32]) -> CallKey {
        let (client, text) = self.parts();
        let mut hash = Sha256::new();
        for part in [client, method, path, text] {
            hash.update(part);
            hash.update([0]); // no part has it
        }
        CallKey { id: format!("={}", URL_SAFE_NO_PAD.encode(hash.finalize())), digest, began: None }
    }
}

/// What a keyed call has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome<T> {
    /// It came to this now, and nothing is remembered: nothing took effect.
    Plain(T),
    /// Its answer: that of this very call, or of an earlier one.
    Answer(String),
}

/// Returns the answer of an earlier call, which must have said the same.
pub(super) fn answer_of(recalled: Recalled) -> Result<String> {
    match recalled {
        Recalled::Answer(answer) => Ok(answer),
        Recalled::Different => Err(Error::IdempotencyKeyReused),
    }
}

impl Queues {
    /// Returns what this call was answered before, if it was.
    pub async fn recalled(&self, key: &CallKey) -> Result<Option<String>> {
        let recalled = self.0.store.recall(&self.keyed_call(key)?).await?;
        recalled.map(answer_of).transpose()
    }

    /// The same where the answer has jobs: it may be large, and any number of repeats may come at once.
    pub async fn recalled_jobs(&self, key: &CallKey) -> Result<Option<String>> {
        let turn = tokio::time::timeout(TURN_WAIT, self.0.repeats.acquire()).await;
        let _turn = turn.map_err(|_| Error::RequestPending)?;
        self.recalled(key).await
    }

    pub(super) fn keyed_call(&self, key: &CallKey) -> Result<KeyedCall> {
        let began = key.began.map_or_else(|| self.now(), Ok)?;
        let until = began.plus_ms(self.options().idempotency_ttl_ms);
        Ok(KeyedCall { id: key.id.clone(), digest: key.digest, until })
    }

    /// Returns what a store needs to remember the answer of a call.
    pub(super) fn keyed<T>(&self, key: &CallKey, answer: Answering<T>) -> Result<Keyed<T>> {
        Ok(Keyed { call: self.keyed_call(key)?, answer })
    }

    /// Returns the response to a call; `note` is done where it took effect now.
    pub(super) fn outcome_of<T>(
        once: Once<T>,
        place: Places,
        note: impl FnOnce(&T),
    ) -> Result<CallOutcome<T>> {
        match once {
            Once::Now(done, Some(answer)) => {
                place.keep_all(); // counted by its record from here on
                note(&done);
                Ok(CallOutcome::Answer(answer))
            }
            Once::Now(done, None) => Ok(CallOutcome::Plain(done)),
            Once::Before(recalled) => answer_of(recalled).map(CallOutcome::Answer),
        }
    }

    /// Does a keyed call in a task that outlives its client.
    pub(super) async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let lost = |error| Err(StoreError::internal(error).into());
        self.in_time(hold::spawn(carried(work))).await?.unwrap_or_else(lost)
    }

    /// Like [`push`](Self::push), with all that is stored in one transaction.
    pub async fn push_once(
        &self,
        queue: &QueueName,
        pushes: Vec<NewPush>,
        key: &CallKey,
        answer: Answering<Vec<Result<PushAnswer>>>,
    ) -> Result<CallOutcome<Vec<Result<PushAnswer>>>> {
        self.push_each_once(push::to_one(queue, pushes), key, answer).await
    }

    /// The same for jobs of several queues.
    pub async fn push_each_once(
        &self,
        pushes: Vec<(QueueName, NewPush)>,
        key: &CallKey,
        answer: Answering<Vec<Result<PushAnswer>>>,
    ) -> Result<CallOutcome<Vec<Result<PushAnswer>>>> {
        let place = self.admit_request(&key.id).await?;
        self.store_once(self.prepare(pushes).await?, place, key, answer).await
    }

    /// Stores what was prepared, in one transaction with the answer.
    pub(super) async fn store_once(
        &self,
        Prepared { jobs, refusals, mut places, named }: Prepared,
        place: Places,
        key: &CallKey,
        answer: Answering<Vec<Result<PushAnswer>>>,
    ) -> Result<CallOutcome<Vec<Result<PushAnswer>>>> {
        if jobs.is_empty() {
            return Ok(CallOutcome::Plain(push::merge_results(refusals, Vec::new())));
        }
        let facts: Vec<_> = jobs.iter().map(push::facts).collect();
        let first_expiry = jobs.iter().filter_map(NewJob::expires_at).min();
        let results = move |pushed: &Vec<Pushed>| {
            let each = pushed.iter().cloned().zip(facts.iter().cloned());
            push::merge_results(
                refusals.clone(),
                each.map(|(pushed, facts)| push::answer(pushed, facts)).collect(),
            )
        };
        let results = Arc::new(results);
        let (this, rendered) = (self.clone(), results.clone());
        let keyed = self.keyed(key, Arc::new(move |pushed: &Vec<Pushed>| answer(&rendered(pushed))))?;
        self.to_the_end(async move {
            let once = this.0.store.push_once(jobs, &this.rules(), keyed).await?;
            faults::point("keyed.stored").await;
            let told = Self::outcome_of(once, place, |pushed| {
                let stored = |pushed: &Pushed| matches!(pushed, Pushed::Created | Pushed::Blocked);
                let kept: Vec<Result<()>> = pushed
                    .iter()
                    .map(|pushed| stored(pushed).then_some(()).ok_or(Error::Overloaded))
                    .collect();
                places.keep_stored(&named, &kept);
                this.note_stored(first_expiry, &results(pushed));
            })?;
            Ok(match told {
                CallOutcome::Plain(pushed) => CallOutcome::Plain(results(&pushed)),
                CallOutcome::Answer(answer) => CallOutcome::Answer(answer),
            })
        })
        .await
    }

    /// Counts jobs that were pushed by a keyed call, and wakes waiters for them.
    pub(super) fn note_stored(&self, first_expiry: Option<Timestamp>, results: &[Result<PushAnswer>]) {
        let mut notes = self.meter().notes();
        for pushed in results.iter().flatten().filter(|pushed| !pushed.deduplicated || pushed.replaced) {
            if !pushed.replaced {
                notes.count(&pushed.queue, Event::Pushed);
            }
            if pushed.state.stored() == State::Ready {
                self.announce(&pushed.queue, pushed.run_at);
            }
        }
        drop(notes);
        if let Some(expires_at) = first_expiry {
            self.note_deadline(expires_at);
        }
    }
}

/// The steps of a keyed call that changes many jobs: each is remembered for itself, so that a repeat goes on where the call
/// was interrupted.
pub(super) struct Steps<'a> {
    key: &'a CallKey,
    /// Counts them over all parts of the call.
    next: usize,
    /// When the call began, by the first server that ran it.
    pub began: Timestamp,
}

/// What a step has come to. The next one begins behind `last`; without it there is none.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StepDone {
    pub affected: u64,
    pub last: Option<JobId>,
}

impl Steps<'_> {
    /// Goes on to the next step, and returns the key that it is remembered by.
    pub fn next(&mut self) -> CallKey {
        self.next += 1;
        CallKey { began: Some(self.began), ..step_key(self.key, self.next) }
    }
}

fn step_key(key: &CallKey, number: usize) -> CallKey {
    CallKey { id: format!("{}/step {number}", key.id), ..key.clone() }
}

impl Queues {
    /// Returns the steps of a call, if it is keyed, once there is room for its key. A repeat goes on with those of the first call.
    pub(super) async fn steps<'k>(&self, key: Option<&'k CallKey>) -> Result<Option<Steps<'k>>> {
        let Some(key) = key else { return Ok(None) };
        let begin = step_key(key, 0);
        self.admit_request(&begin.id).await?.keep_all();
        let began = self.remember(&begin, self.now()?.millis().to_string()).await?;
        let began = began.parse().map(Timestamp::from_millis).map_err(StoreError::internal)?;
        Ok(Some(Steps { key, next: 0, began }))
    }
}

impl Queues {
    /// Returns the id of what a call creates: that of the first call, where this is a repeat of it. It is there together with what
    /// [`Self::id_used`] returns.
    pub(super) async fn id_once(&self, key: &CallKey, fresh: String) -> Result<String> {
        let [begin, used] = [0, 1].map(|number| step_key(key, number));
        for step in [&begin, &used] {
            self.admit_request(&step.id).await?.keep_all();
        }
        self.remember(&begin, fresh).await
    }

    /// Returns what remembers that there was the operation which the id of a call names. Where that is gone by the next repeat, it is not
    /// stored again.
    pub(super) fn id_used(&self, key: &CallKey, id: &BulkId) -> Result<BegunBy> {
        self.begun_by(&step_key(key, 1), id) // there is room: see `id_once`
    }

    /// Returns the id that the first call has used, if this is a repeat of one that has stored an operation.
    pub(super) async fn used_id(&self, key: &CallKey) -> Result<Option<BulkId>> {
        let id = self.recalled(&step_key(key, 1)).await?;
        Ok(id.map(|id| id.parse()).transpose().map_err(StoreError::internal)?)
    }

    /// Returns what remembers that a step has stored an operation.
    pub(super) fn begun_by(&self, step: &CallKey, id: &BulkId) -> Result<BegunBy> {
        Ok(BegunBy { call: self.keyed_call(step)?, answer: id.to_string() })
    }

    /// Returns what is remembered of a step.
    pub(super) async fn step_recalled(&self, step: &CallKey) -> Result<Option<Remembered>> {
        let text = self.recalled(step).await?;
        text.map(|text| step_of(&text)).transpose()
    }

    /// Remembers a text of a call, unless it has remembered one before, which is returned then.
    pub(super) async fn remember(&self, step: &CallKey, text: String) -> Result<String> {
        let keyed = self.keyed(step, Arc::new(move |_: &Vec<Result<Applied, Denied>>| Some(text.clone())))?;
        match self.0.store.apply_once(Vec::new(), &self.rules(), keyed).await? {
            Once::Now(_, answer) => Ok(answer.unwrap_or_default()),
            Once::Before(recalled) => answer_of(recalled),
        }
    }

    /// Applies the changes of a step, which ends at `last`. Returns what it came to, now or before.
    pub(super) async fn apply_step(
        &self,
        step: &CallKey,
        changes: Vec<Change>,
        last: Option<JobId>,
    ) -> Result<Remembered> {
        let text = move |applied: &Vec<Result<Applied, Denied>>| {
            let affected = applied.iter().filter(|applied| applied.is_ok()).count() as u64;
            serde_json::to_string(&StepDone { affected, last: last.clone() }).ok()
        };
        let noted: Vec<Noted> = changes.iter().map(Noted::of).collect();
        let (now, keyed) = (self.now()?, self.keyed(step, Arc::new(text))?);
        match self.0.store.apply_once(changes, &self.rules(), keyed).await? {
            Once::Now(applied, answer) => {
                self.note_all(noted, applied, now);
                step_of(&answer.unwrap_or_default())
            }
            Once::Before(recalled) => step_of(&answer_of(recalled)?),
        }
    }

    /// Stores the copies of a step, the first ones that there is room for. Where there is room for none, it is refused.
    pub(super) async fn push_step(
        &self,
        step: &CallKey,
        copies: Vec<NewJob>,
        last: Option<JobId>,
    ) -> Result<Remembered> {
        let facts: Vec<_> = copies.iter().map(push::facts).collect();
        let first_expiry = copies.iter().filter_map(NewJob::expires_at).min();
        let originals: Vec<Option<JobId>> = copies.iter().map(|copy| copy.replay_of.clone()).collect();
        // They have no keys and go to one queue: where it is full in between, the first of them are stored.
        let text = move |pushed: &Vec<Pushed>| {
            let is_stored = |pushed: &&Pushed| matches!(pushed, Pushed::Created | Pushed::Blocked);
            let stored = pushed.iter().take_while(is_stored).count();
            let last = match originals.get(stored) {
                None => last.clone(),
                Some(_) => originals.get(stored.checked_sub(1)?).cloned().flatten(),
            };
            serde_json::to_string(&StepDone { affected: stored as u64, last }).ok()
        };
        let keyed = self.keyed(step, Arc::new(text))?;
        match self.0.store.push_once(copies, &self.rules(), keyed).await? {
            Once::Now(pushed, answer) => {
                let answers =
                    pushed.into_iter().zip(facts).map(|(pushed, facts)| push::answer(pushed, facts));
                let answers: Vec<Result<PushAnswer>> = answers.collect();
                match answer {
                    Some(answer) => {
                        self.note_stored(first_expiry, &answers);
                        step_of(&answer)
                    }
                    None => {
                        let refused = answers.into_iter().find_map(Result::err);
                        Err(refused.unwrap_or_else(|| StoreError::internal("a copy was not stored").into()))
                    }
                }
            }
            Once::Before(recalled) => step_of(&answer_of(recalled)?),
        }
    }
}

fn step_of(text: &str) -> Result<Remembered> {
    serde_json::from_str(text).map_err(|error| StoreError::internal(error).into())
}
