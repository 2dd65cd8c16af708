//! The part of the contract that is about calls with an `Idempotency-Key` which create or take something: what they were
//! answered is stored in the transaction of their effect, so that there is either both or neither.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Applied, BatchChange, BatchChanged, BatchDenied, Change, Denied, Fired, Firing, Pushed, Result};
use crate::job::{NewJob, Rules, Timestamp};

/// A call that carries an `Idempotency-Key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedCall {
    /// Distinguishes the key of this client, method and path from all others. It begins with a character that no id of a
    /// [`Request`](super::Request) begins with.
    pub id: String,
    /// Equal where a repeat says the same.
    pub digest: [u8; 32],
    /// Until when it is remembered.
    pub until: Timestamp,
}

/// Returns what a call is answered that came to this, as one text that no store reads. `None`: nothing is to be stored.
pub type Answering<T> = Arc<dyn Fn(&T) -> Option<String> + Send + Sync>;

/// A call whose answer is to be remembered together with what it does.
#[derive(Clone)]
pub struct Keyed<T> {
    /// The call.
    pub call: KeyedCall,
    /// Its answer.
    pub answer: Answering<T>,
}

impl<T> Keyed<T> {
    /// Returns the answer of a call that came to this.
    pub fn answered(&self, done: &T) -> Option<String> {
        (self.answer)(done)
    }
}

/// What is known of an earlier call with the same id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recalled {
    /// It said the same, and was answered this.
    Answer(String),
    /// It said something else.
    Different,
}

impl Recalled {
    /// Decides what the record of an earlier call means for this one: nothing once its time is over.
    pub fn decide(
        call: &KeyedCall,
        digest: [u8; 32],
        until: Timestamp,
        now: Timestamp,
        answer: String,
    ) -> Option<Self> {
        match digest == call.digest {
            _ if until <= now => None,
            true => Some(Self::Answer(answer)),
            false => Some(Self::Different),
        }
    }
}

/// What has become of a keyed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Once<T> {
    /// It came to this now. With the answer that is remembered of it; without one nothing was stored.
    Now(T, Option<String>),
    /// It was found to have happened before; nothing was stored now.
    Before(Recalled),
}

/// Calls that are answered once, and their repeats with the same answer, at whichever server. Of several at once one takes
/// effect, and the others find its answer.
#[async_trait]
pub trait Answers: Send + Sync {
    /// Returns what is remembered of a call, once that is durable.
    async fn recall(&self, call: &KeyedCall) -> Result<Option<Recalled>>;

    /// Like [`Jobs::push`](super::Jobs::push), all in one transaction.
    async fn push_once(
        &self,
        jobs: Vec<NewJob>,
        rules: &Rules,
        keyed: Keyed<Vec<Pushed>>,
    ) -> Result<Once<Vec<Pushed>>>;

    /// Stores jobs in one transaction: all of them, or none where one is refused, with [`Denied::PushRefused`]. Without a key nothing
    /// is remembered.
    async fn push_all(
        &self,
        jobs: Vec<NewJob>,
        rules: &Rules,
        keyed: Option<Keyed<Vec<Pushed>>>,
    ) -> Result<Once<Vec<Pushed>>, Denied>;

    /// Changes a batch. One that is denied is not remembered.
    async fn change_batch_once(
        &self,
        change: BatchChange,
        jobs: Vec<NewJob>,
        rules: &Rules,
        keyed: Keyed<BatchChanged>,
    ) -> Result<Once<BatchChanged>, BatchDenied>;

    /// Like [`Schedules::fire`](super::Schedules::fire).
    async fn fire_once(&self, firing: &Firing, keyed: Keyed<Fired>) -> Result<Once<Fired>>;

    /// Like [`Jobs::apply`](super::Jobs::apply) for changes of different jobs that push nothing, all in one transaction; those
    /// that are denied are left out of it.
    async fn apply_once(
        &self,
        changes: Vec<Change>,
        rules: &Rules,
        keyed: Keyed<Vec<Result<Applied, Denied>>>,
    ) -> Result<Once<Vec<Result<Applied, Denied>>>>;
}
