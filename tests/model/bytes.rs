//! What comes next, looked at, and reserves that want so many bytes: a server claims for them step by step, and gives back what is too much.

use std::collections::BTreeSet;
use std::sync::Arc;

use tailback::job::{JobId, QueueName, QueuePattern, State, Visible};
use tailback::queue::{Credential, Options, Queues, Quotas, ReserveAsk, Room, Thresholds};
use tailback::store::{ClaimAsk, Filter};

use super::drafts::{ms, queue};
use super::job::{Job, Rev};
use super::steps::{Ahead, Ask};
use super::world::{World, fault};
use crate::common::server::{PATIENCE, until};

/// More than a run ever has of anything.
const ALL: usize = 10_000;

/// So many more jobs are wanted than by a claim: bytes are to be what ends it.
const MORE: usize = 3;

/// Responses may have any size.
#[derive(Debug)]
struct Wide;

impl Room for Wide {
    fn is_left(&self) -> bool {
        true
    }

    fn bytes(&self) -> usize {
        usize::MAX
    }
}

impl World<'_> {
    pub async fn peek(&mut self, place: u8, limit: u8) -> Result<bool, String> {
        let name = queue(place);
        let told = self.store.peek(&name, limit.into()).await.map_err(fault)?;
        let ids: Vec<&JobId> = told.iter().map(|job| &job.meta.id).collect();
        self.say(format!("peek at {limit} of {name} -> {ids:?}"));
        let order = self.model.deliverable(&name, super::job::When::at(self.now()?));
        if !ids.iter().copied().eq(order.iter().take(limit.into())) {
            return Err(format!("a peek shows {ids:?}, expected the first of {order:?}"));
        }
        for seen in &told {
            if let Some(job) = self.model.jobs.get_mut(&seen.meta.id) {
                job.check(seen)?;
            }
        }
        Ok(!told.is_empty())
    }

    /// A server over the store, which runs nothing but what it is asked for.
    async fn server(&self) -> Result<Queues, String> {
        let options = Options {
            defaults: Arc::new(self.model.defaults()),
            payload_bytes: ALL,
            answer_bytes: usize::MAX,
            waiting: 1,
            metrics_queues: 1,
            series_queues: 1,
            attention: Thresholds { idle: PATIENCE, window: PATIENCE },
            event_streams: 1,
            quotas: Quotas { queues: 100, workers: 100, schedules: 100, semaphores: 100, keys: 100 },
            poll: PATIENCE,
            idempotency_ttl_ms: ms(Ahead::Far(0)),
            patience: PATIENCE,
        };
        let server = Queues::new(self.shared.clone(), options);
        server.load_settings().await.map_err(fault)?;
        Ok(server)
    }

    pub async fn reserve_bytes(&mut self, ask: &Ask, max_bytes: u8) -> Result<bool, String> {
        let (name, now) = (queue(ask.queue), super::job::When::at(self.now()?));
        let needs = |id: &JobId| self.model.jobs.get(id).is_some_and(|job| !job.semaphores.is_empty());
        if self.model.deliverable(&name, now).iter().any(needs) {
            return Ok(false); // who is passed over is the business of other steps
        }
        let lease_ms = (!ask.yields).then_some(ms(Ahead::Far(0)));
        let wanted = ReserveAsk {
            queues: vec![QueuePattern::One(name.clone())],
            count: usize::from(ask.count) + MORE,
            max_bytes: Some(max_bytes.into()),
            wait_ms: 0,
            may_wait: true,
            lease_ms,
            worker: None,
            idempotency_key: None,
            credential: Credential::NoKey,
            room: Arc::new(Wide),
        };
        let claim = ClaimAsk {
            count: wanted.count,
            lease_ms: lease_ms.unwrap_or(self.model.defaults().lease_ms),
            worker: None,
            ..self.ask(ask)
        };
        self.say(format!("reserve {} of {name} within {max_bytes} bytes, for {lease_ms:?} ms", claim.count));
        let (server, from) = (self.server().await?, self.now()?);
        let told = server.reserve(wanted).await.map_err(fault)?;
        server.returned(PATIENCE).await; // only then what was given back is counted as well
        let back = self.given_back(&name, &told).await?;
        let now = self.since(from)?;
        let ids: Vec<&JobId> = told.iter().map(|job| &job.meta.id).collect();
        self.say(format!("  -> {ids:?}, and given back: {back:?}"));
        self.model.claim_bytes(&claim, max_bytes.into(), (&told, &back), now)?;
        let won = told.iter().filter_map(|job| Some((job.meta.id.clone(), job.meta.claim.clone()?)));
        self.deliveries.extend(won);
        Ok(true)
    }

    /// Waits until what was claimed beyond these jobs has been given back, and returns it: nothing else was written.
    async fn given_back(
        &self,
        name: &QueueName,
        told: &[tailback::job::Job],
    ) -> Result<BTreeSet<JobId>, String> {
        let told: BTreeSet<&JobId> = told.iter().map(|job| &job.meta.id).collect();
        let read = async |state| {
            let filter = Filter::state(name.clone(), state);
            let found = self.store.find(&filter, None, ALL).await.unwrap();
            found.into_iter().filter_map(Result::ok).map(|job| job.meta).collect::<Vec<_>>()
        };
        let is_held = |job: &Job| job.state == State::Reserved;
        until("what is too much is given back", || async {
            let reserved = read(Visible::Reserved).await;
            reserved
                .iter()
                .all(|job| told.contains(&job.id) || self.model.jobs.get(&job.id).is_some_and(is_held))
        })
        .await;
        let was_written = |id: &JobId, rev: i64| {
            let own = self.model.jobs.get(id).map(|job| &job.rev);
            matches!(own, Some(Rev::Same(known)) if *known != rev)
        };
        let ready = read(Visible::Ready).await;
        Ok(ready.into_iter().filter(|job| was_written(&job.id, job.rev)).map(|job| job.id).collect())
    }
}
