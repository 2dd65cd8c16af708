//! What is prepared for a case of each kind, in a store that works.

use std::sync::Arc;

use mongodb::Database;
use mongodb::bson::{Document, doc};
use tailback::job::bulk::{BulkIntent, BulkState};
use tailback::job::record::KeyHold;
use tailback::job::settings::Rate;
use tailback::job::transition::{Edit, Loss, Operation};
use tailback::job::{
    ApiKey, Batch, BatchId, Bulk, Job, JobId, NewJob, OnFinished, QueueSettings, Reach, Rules, Schedule,
    ScheduleRun, Scope, SecretHash,
};
use tailback::store::fence::Fence;
use tailback::store::workers::Report;
use tailback::store::{
    AuditRow, BegunBy, BulkEffect, BulkStep, Change, Expected, Firing, Imported, KeyedCall, Saved, Store,
    StoredSettings,
};

use super::case::{ANSWER, Call, Case, IDS};
use super::kinds::Kind;
use crate::support::*;

/// The document of the secret, in the collection `meta`.
pub const SECRET: &str = "reservations";
/// For keys and delays that end behind every case.
const HOUR_MS: u64 = 3_600_000;

/// Prepares one case.
pub struct Setup<'a> {
    pub kind: Kind,
    pub tag: String,
    pub store: &'a dyn Store,
    /// For what no server writes.
    pub database: &'a Database,
    /// The mark of a restore, which is set.
    pub fence: &'a Fence,
}

impl Setup<'_> {
    pub async fn prepare(self) -> Case {
        let mut batch = None;
        let call = match self.kind {
            Kind::KeyedPush | Kind::GroupedPush | Kind::PushOnce | Kind::PushAll | Kind::PushAllOnce => {
                self.pushes()
            }
            Kind::ImportJobs | Kind::ImportLine => self.imports().await,
            Kind::CommitWithPushes | Kind::CommitWithKeyedPush | Kind::Move | Kind::KeyedMove => {
                self.settles_beside_pushes().await
            }
            Kind::GroupAdvance | Kind::GroupEnd | Kind::SettleOnce | Kind::Abandon => self.settles().await,
            Kind::ForcedCancel | Kind::ReleaseByHand | Kind::MoveByHand => self.changes().await,
            Kind::MaxReserved | Kind::RateLimit | Kind::Semaphore => self.claims().await,
            Kind::LastOfBatch
            | Kind::CreateBatch
            | Kind::CreateBatchOnce
            | Kind::AddToBatch
            | Kind::SealBatch
            | Kind::MendFirstOfGroup => {
                let (call, id) = self.batches().await;
                batch = Some(id);
                call
            }
            Kind::SaveSchedule | Kind::DiscardSchedule | Kind::Fire | Kind::FireOnce => {
                self.schedules().await
            }
            Kind::SaveSettings | Kind::SaveSemaphore | Kind::RemoveSemaphore | Kind::ForgetWorker => {
                self.administration().await
            }
            Kind::AddApiKey | Kind::RotateApiKey | Kind::RemoveApiKey => self.api_keys().await,
            Kind::MakeSecret => self.secret().await,
            Kind::BeginOperation | Kind::StopOperation | Kind::OperationStep | Kind::OperationPush => {
                self.operations().await
            }
        };
        Case { rules: self.rules(), call, batch, row: self.row(), tag: self.tag }
    }

    /// A name of this case.
    fn name(&self, name: &str) -> String {
        format!("{}.{name}", self.tag)
    }

    fn rules(&self) -> Rules {
        let set = |settings: &mut QueueSettings| match self.kind {
            Kind::MaxReserved => settings.max_reserved = Some(1),
            Kind::RateLimit => settings.rate = Some(Rate { limit: 1, per_ms: 86_400_000 }),
            _ => {}
        };
        match self.kind {
            Kind::MaxReserved | Kind::RateLimit => rules_of(&self.name("q"), set),
            _ => Rules::default(),
        }
    }

    /// The row of an act.
    fn row(&self) -> Option<AuditRow> {
        let is_act = matches!(
            self.kind,
            Kind::ReleaseByHand
                | Kind::MoveByHand
                | Kind::SaveSchedule
                | Kind::DiscardSchedule
                | Kind::SaveSemaphore
                | Kind::ForgetWorker
                | Kind::BeginOperation
                | Kind::StopOperation
        );
        let at = self.store.now().unwrap();
        is_act.then(|| AuditRow {
            id: IDS.next(at),
            at,
            by: "key".to_owned(),
            by_name: None,
            address: None,
            what: "job.move".to_owned(),
            on: self.tag.clone(),
            queue: Some(queue(&self.name("q"))),
            affected: None,
            before: None,
            after: None,
        })
    }

    /// The call with an `Idempotency-Key`.
    fn keyed(&self) -> KeyedCall {
        let until = self.store.now().unwrap().plus_ms(HOUR_MS);
        KeyedCall { id: self.name("call"), digest: [7; 32], until }
    }

    fn build(&self, drafts: Vec<Draft>) -> Vec<NewJob> {
        drafts.into_iter().map(|draft| draft.build(self.store)).collect()
    }

    fn pushes(&self) -> Call {
        let q = self.name("q");
        let keyed = vec![job(&q).key("k", 60_000), job(&q).key("l", 60_000).group("g")];
        let unkeyed = vec![job(&q).group("g"), job(&q).group("g")];
        match self.kind {
            Kind::KeyedPush => Call::Push(self.build(keyed)),
            Kind::PushOnce => Call::PushOnce(self.build(unkeyed), self.keyed()),
            Kind::PushAll => Call::PushAll(self.build(keyed), None),
            Kind::PushAllOnce => Call::PushAll(self.build(unkeyed), Some(self.keyed())),
            _ => Call::Push(self.build(unkeyed)),
        }
    }

    async fn imports(&self) -> Call {
        let q = self.name("q");
        let jobs = |draft: Draft| -> Vec<Job> {
            self.build(vec![draft; 2]).into_iter().map(NewJob::into_job).collect()
        };
        if self.kind == Kind::ImportJobs {
            return Call::Import(jobs(job(&q)), Some(self.fence.clone()));
        }
        let mut jobs = jobs(job(&q).group("g"));
        for (n, job) in jobs.iter_mut().enumerate() {
            job.meta.turn = Some(n as i64 + 4);
        }
        // The jobs are there, as after an import that was interrupted, and their line is not.
        for imported in self.store.import(jobs.clone()).await {
            assert_eq!(imported.unwrap(), Imported::New);
        }
        let line = doc! { "_id": { "$gte": &q, "$lt": format!("{q}~") } };
        let lines = self.database.collection::<Document>("groups");
        assert_eq!(lines.delete_many(line).await.unwrap().deleted_count, 1);
        Call::Import(jobs, None)
    }

    async fn settles_beside_pushes(&self) -> Call {
        let (store, q, next) = (self.store, self.name("q"), self.name("next"));
        let draft = if self.kind == Kind::KeyedMove { job(&q).key("old", 60_000) } else { job(&q) };
        let taken = push_and_take(store, draft).await;
        let pushing = |drafts| {
            let (claim, push) = (held_by(&taken), self.build(drafts));
            Call::Apply(change(&taken.meta.id, Operation::Commit { claim, result: None, push }))
        };
        match self.kind {
            Kind::CommitWithPushes => pushing(vec![job(&next), job(&next).group("g")]),
            Kind::CommitWithKeyedPush => pushing(vec![job(&next).key("k", 60_000), job(&next)]),
            _ => {
                let Change { id, mut operation } = move_to(&taken, &next);
                if let (Kind::KeyedMove, Operation::Move { key, .. }) = (self.kind, &mut operation) {
                    *key = Some(KeyHold::new("k".parse().unwrap(), store.now().unwrap().plus_ms(60_000)));
                }
                Call::Apply(Change { id, operation })
            }
        }
    }

    async fn settles(&self) -> Call {
        let (store, q) = (self.store, self.name("q"));
        match self.kind {
            Kind::SettleOnce => {
                let (one, other) = (push_and_take(store, job(&q)).await, push_and_take(store, job(&q)).await);
                Call::ApplyOnce(vec![commit(&one), rollback(&other, Some(HOUR_MS))], self.keyed())
            }
            Kind::Abandon => {
                let taken = push_and_take(store, job(&q)).await;
                let claim = held_by(&taken);
                Call::Apply(change(&taken.meta.id, Operation::Abandon { claim, loss: Loss::Removed }))
            }
            _ => {
                let count = if self.kind == Kind::GroupEnd { 1 } else { 2 };
                push(store, vec![job(&q).group("g"); count]).await;
                Call::Apply(commit(&take(store, &q).await))
            }
        }
    }

    async fn changes(&self) -> Call {
        let (store, q, within) = (self.store, self.name("q"), Reach::default());
        match self.kind {
            Kind::MoveByHand => Call::Apply(self.relocate(&push_one(store, job(&q)).await)),
            Kind::ReleaseByHand => Call::Apply(change(
                &push_and_take(store, job(&q)).await.meta.id,
                Operation::Revoke { within },
            )),
            _ => Call::Apply(cancel(&push_and_take(store, job(&q)).await.meta.id, true)),
        }
    }

    fn relocate(&self, id: &JobId) -> Change {
        let (within, queue) = (Reach::default(), queue(&self.name("next")));
        change(id, Operation::Relocate { within, queue, when: None, priority: None })
    }

    async fn claims(&self) -> Call {
        let (store, q, m) = (self.store, self.name("q"), self.name("m"));
        if self.kind == Kind::Semaphore {
            store.save_semaphore(&m.parse().unwrap(), 1).await.unwrap();
            push_all(store, vec![job(&q).needs(&[&m]); 2]).await;
        } else {
            push_all(store, vec![job(&q); 2]).await;
        }
        Call::Claim(ask(&q, 2))
    }

    async fn batches(&self) -> (Call, BatchId) {
        let (store, q, now) = (self.store, self.name("q"), self.store.now().unwrap());
        let on_finished: OnFinished =
            serde_json::from_value(serde_json::json!({"queue": self.name("after"), "payload": 1})).unwrap();
        let is_sealed = !matches!(self.kind, Kind::AddToBatch | Kind::SealBatch);
        let batch = Batch::new(IDS.next_batch(now), IDS.next(now), Some(on_finished), is_sealed, now);
        let id = batch.id.clone();
        let of = |drafts: Vec<Draft>| self.build(drafts.into_iter().map(|draft| draft.of(&id)).collect());
        let two = of(vec![job(&q), job(&q).key("k", 60_000)]);
        match self.kind {
            Kind::CreateBatch => return (Call::CreateBatch(batch, two), id),
            Kind::CreateBatchOnce => return (Call::CreateBatchOnce(batch, two, self.keyed()), id),
            _ => {}
        }
        let first = if self.kind == Kind::MendFirstOfGroup { job(&q).group("g") } else { job(&q) };
        let created = store.create_batch(batch, of(vec![first]), &Rules::default()).await.unwrap();
        let call = match self.kind {
            Kind::AddToBatch => Call::AddToBatch(id.clone(), of(vec![job(&q)])),
            Kind::MendFirstOfGroup => self.mend(&created.pushed[0].id).await,
            Kind::LastOfBatch => Call::Apply(commit(&take(store, &q).await)),
            _ => {
                apply(store, commit(&take(store, &q).await)).await.unwrap();
                Call::SealBatch(id.clone())
            }
        };
        (call, id)
    }

    /// The first job of a group cannot be read; mended, it is dead, and out of the line.
    async fn mend(&self, id: &JobId) -> Call {
        push(self.store, vec![job(&self.name("q")).group("g")]).await;
        self.spoil("jobs", id.as_str(), doc! { "priority": "high" }).await;
        let edit = Edit { group: Some(None), payload: Some(content("2")), ..Edit::default() };
        Call::Apply(change(id, edit_of(edit)))
    }

    /// Writes what no server writes.
    async fn spoil(&self, collection: &str, id: &str, set: Document) {
        let all = self.database.collection::<Document>(collection);
        let update = all.update_one(doc! { "_id": id }, doc! { "$set": set });
        assert_eq!(update.bypass_document_validation(true).await.unwrap().modified_count, 1);
    }

    async fn schedules(&self) -> Call {
        let (store, q, at) = (self.store, self.name("q"), self.store.now().unwrap());
        let rule = serde_json::json!({
            "cron": "*/5 * * * * *", "time_zone": "Europe/Berlin", "queue": q, "job": {"payload": 1}
        });
        let schedule = Schedule {
            name: self.name("s").parse().unwrap(),
            rule: serde_json::from_value(rule).unwrap(),
            version: "v".to_owned(),
            rev: 1,
            next_at: Some(at),
            last_job: None,
            last_runs: Vec::new(),
        };
        let saved = store.save_schedule(&schedule.name, Some(&schedule), None).await.unwrap();
        assert_eq!(saved, Saved::Done);
        let job = job(&q).build(store);
        let (job_id, skipped, misfire) = (Some(job.id.clone()), None, false);
        let run = ScheduleRun { at, job_id, skipped, misfire, manual: false, request: None };
        let next_at = Some(at.plus_ms(HOUR_MS));
        let name = schedule.name.clone();
        let firing = Firing { name, seen: 1, rev: 2, next_at, run, job: Some(job), yields: true };
        match self.kind {
            Kind::SaveSchedule => Call::SaveSchedule(Box::new(Schedule { rev: 2, next_at, ..schedule }), 1),
            Kind::DiscardSchedule => {
                self.spoil("schedules", schedule.name.as_str(), doc! { "rule": "none" }).await;
                Call::DiscardSchedule(schedule.name)
            }
            Kind::FireOnce => Call::FireOnce(firing, self.keyed()),
            _ => Call::Fire(firing),
        }
    }

    async fn administration(&self) -> Call {
        let (store, m) = (self.store, self.name("m"));
        match self.kind {
            Kind::SaveSettings => {
                let (old, new) =
                    (QueueSettings::default(), QueueSettings { paused: Some(true), ..Default::default() });
                let stored =
                    |version: &str, settings| StoredSettings { settings, version: version.to_owned() };
                let (queue, old) = (queue(&self.name("q")), stored("old", old));
                let saved = store.save_settings(&queue, Some(&old), &Expected::Absent).await;
                assert_eq!(saved.unwrap(), Saved::Done);
                Call::SaveSettings(queue, stored("new", new), Expected::Version("old".to_owned()))
            }
            Kind::ForgetWorker => {
                let worker = self.name("w").parse().unwrap();
                let report = Report { version: None, slots: None, timeout_ms: HOUR_MS };
                store.heartbeat(&worker, &report).await.unwrap();
                Call::ForgetWorker(worker)
            }
            kind => {
                store.save_semaphore(&m.parse().unwrap(), 1).await.unwrap();
                match kind {
                    Kind::SaveSemaphore => Call::SaveSemaphore(m.parse().unwrap(), 2),
                    _ => Call::RemoveSemaphore(m.parse().unwrap()),
                }
            }
        }
    }

    async fn api_keys(&self) -> Call {
        // The secret is the same in every case, so that the outcomes of cases can be compared.
        let key = ApiKey {
            id: ApiKey::fresh_id(),
            name: self.name("key").parse().unwrap(),
            hash: SecretHash::of("old"),
            scopes: vec![Scope::Read],
            queues: Vec::new(),
            created_at: self.store.now().unwrap(),
            expires_at: None,
            rate: None,
            max_concurrent: None,
            last_used_at: None,
        };
        if self.kind == Kind::AddApiKey {
            return Call::AddApiKey(Box::new(key));
        }
        self.store.add_api_key(&key).await.unwrap();
        match self.kind {
            Kind::RotateApiKey => Call::RotateApiKey(key.id, SecretHash::of("new")),
            _ => Call::RemoveApiKey(key.id),
        }
    }

    /// There is one secret: the one of the case before is spoiled, so that this case makes another. All cases offer the same, so that their
    /// outcomes can be compared; that one which can be read is not replaced is a case of `tests/conformance/access.rs`.
    async fn secret(&self) -> Call {
        let meta = self.database.collection::<Document>("meta");
        let spoiled = doc! { "$set": { "secret": &self.tag } };
        meta.update_one(doc! { "_id": SECRET }, spoiled).upsert(true).await.unwrap();
        Call::MakeSecret([7; 32])
    }

    async fn operations(&self) -> Call {
        let (store, q) = (self.store, self.name("q"));
        let intent = serde_json::json!({"filter": {"queue": q}, "action": "move", "to": self.name("next")});
        let intent: BulkIntent = serde_json::from_value(intent).unwrap();
        let operation = Bulk::new(self.tag.parse().unwrap(), intent, String::new(), store.now().unwrap());
        if self.kind == Kind::BeginOperation {
            let by = BegunBy { call: self.keyed(), answer: ANSWER.to_owned() };
            return Call::BeginOperation(Box::new(operation), by);
        }
        assert!(store.add_operation(&operation, None, None).await.unwrap());
        let (id, seen, next) = (operation.id.clone(), operation.rev, operation.revised());
        let effect = match self.kind {
            Kind::StopOperation => {
                let stopped = operation.ended(BulkState::Cancelled, None, next.created_at);
                return Call::SaveOperation(Box::new(stopped), seen);
            }
            Kind::OperationPush => BulkEffect::Push(self.build(vec![job(&q), job(&q).group("g")])),
            _ => {
                let pushed = push_all(store, vec![job(&q), job(&q).group("g"), job(&q).delay(60_000)]).await;
                BulkEffect::Change(pushed.iter().map(|id| self.relocate(id)).collect())
            }
        };
        let (next, row) = (Arc::new(move |_: &_| next.clone()), Arc::new(|_: &_| None));
        Call::Step(Box::new(BulkStep { effect, id, seen, next, row }))
    }
}
