//! Calls that carry an `Idempotency-Key` and are answered once: each verb in its own module, with its answer. [`record`] has
//! what is remembered.

pub mod record;

use async_trait::async_trait;

use crate::job::{NewJob, Rules};
use crate::store::mongo::Mongo;
use crate::store::mongo::batches;
use crate::store::mongo::jobs::apply_once;
use crate::store::mongo::jobs::push_once;
use crate::store::mongo::schedules;
use crate::store::{
    Answers, Applied, BatchChange, BatchChanged, BatchDenied, Change, Denied, Fired, Firing, Keyed,
    KeyedCall, Once, Pushed, Recalled, Result,
};

#[async_trait]
impl Answers for Mongo {
    async fn recall(&self, call: &KeyedCall) -> Result<Option<Recalled>> {
        self.connection.within(record::recall(self, call)).await
    }

    async fn push_once(
        &self,
        jobs: Vec<NewJob>,
        rules: &Rules,
        keyed: Keyed<Vec<Pushed>>,
    ) -> Result<Once<Vec<Pushed>>> {
        push_once::push(self, &jobs, rules, &keyed).await
    }

    async fn push_all(
        &self,
        jobs: Vec<NewJob>,
        rules: &Rules,
        keyed: Option<Keyed<Vec<Pushed>>>,
    ) -> Result<Once<Vec<Pushed>>, Denied> {
        let pushed = push_once::push_all(self, &jobs, rules, keyed.as_ref()).await?;
        if matches!(pushed, Ok(Once::Now(..))) {
            self.last_write.note();
        }
        pushed.map_err(Denied::PushRefused)
    }

    async fn change_batch_once(
        &self,
        change: BatchChange,
        jobs: Vec<NewJob>,
        rules: &Rules,
        keyed: Keyed<BatchChanged>,
    ) -> Result<Once<BatchChanged>, BatchDenied> {
        batches::change_once(self, change, &jobs, rules, &keyed).await
    }

    async fn fire_once(&self, firing: &Firing, keyed: Keyed<Fired>) -> Result<Once<Fired>> {
        schedules::fire_once(self, firing, &keyed).await
    }

    async fn apply_once(
        &self,
        changes: Vec<Change>,
        rules: &Rules,
        keyed: Keyed<Vec<Result<Applied, Denied>>>,
    ) -> Result<Once<Vec<Result<Applied, Denied>>>> {
        apply_once::apply(self, &changes, rules, &keyed).await
    }
}
