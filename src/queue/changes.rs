//! Changes that no holder asks for: what the server itself wants, and what is done to many jobs.

use super::outcomes::Noted;
use super::{Queues, Result};
use crate::faults;
use crate::job::Timestamp;
use crate::store::{Applied, Change, Denied, StoreError};

impl Queues {
    /// Applies changes that the server itself wants, guarded by what it read. Returns how many happened.
    pub(super) async fn apply_overdue(&self, changes: Vec<Change>) -> Result<usize> {
        faults::point("overdue.read").await;
        let (done, failed) = self.apply_all(changes).await?;
        failed.map_or(Ok(done.len()), |error| Err(error.after(done.len() as u64).into()))
    }

    /// Applies changes. Returns what happened, which is announced, and the first failure of the store.
    pub(super) async fn apply_all(&self, changes: Vec<Change>) -> Result<(Vec<Applied>, Option<StoreError>)> {
        let now = self.now()?;
        let noted: Vec<Noted> = changes.iter().map(Noted::of).collect();
        let applied = self.0.store.apply(changes, &self.rules()).await;
        Ok(self.note_all(noted, applied, now))
    }

    /// Counts what happened, and wakes waiters for what came back: also behind a change that the store failed.
    pub(super) fn note_all(
        &self,
        changes: Vec<Noted>,
        applied: Vec<Result<Applied, Denied>>,
        now: Timestamp,
    ) -> (Vec<Applied>, Option<StoreError>) {
        let mut notes = self.meter().notes();
        let (mut done, mut failed) = (Vec::with_capacity(applied.len()), None);
        for (Noted { id, verb }, applied) in changes.into_iter().zip(applied) {
            match applied {
                Ok(applied) => {
                    self.0.endings.note(&id, &applied.outcome);
                    self.note(verb, &applied, now, &mut notes);
                    done.push(applied);
                }
                // A conflict: extended, settled, or done by another server.
                Err(Denied::Refused(_) | Denied::PushRefused(_) | Denied::KeyTaken(_)) => {}
                // A job that another program spoiled, which concerns no other.
                Err(Denied::Store(StoreError::Unreadable(_))) => {}
                Err(Denied::Store(error)) => drop(failed.get_or_insert(error)),
            }
        }
        (done, failed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::job::SemaphoreName;
    use crate::job::state::Verb;
    use crate::job::transition::Outcome;
    use crate::queue::{Options, Quotas, Thresholds};
    use crate::store::sqlite::{Location, SqliteStore};

    #[tokio::test]
    async fn what_comes_behind_a_failure_is_announced() {
        let quotas = Quotas { queues: 1, workers: 1, schedules: 1, semaphores: 1, keys: 1 };
        let options = Options {
            defaults: Arc::default(),
            payload_bytes: 1000,
            answer_bytes: 1000,
            idempotency_ttl_ms: 1000,
            waiting: 1,
            metrics_queues: 1,
            series_queues: 1,
            event_streams: 1,
            attention: Thresholds { idle: Duration::from_secs(1), window: Duration::from_secs(1) },
            quotas,
            poll: Duration::from_secs(1),
            patience: Duration::from_secs(1),
        };
        let queues = Queues::new(SqliteStore::open(Location::Memory).unwrap(), options);
        let released: SemaphoreName = "s".parse().unwrap();
        let removed = || Applied::new(Outcome::Removed, "q".parse().unwrap(), None, Timestamp::default());
        let applied = || Applied { released: vec![released.clone()], ..removed() };
        let noted = || Noted { id: "j".parse().unwrap(), verb: Verb::Cancel };
        let failed = || Err(StoreError::unavailable("away").into());
        let all = vec![failed(), Ok(applied()), failed()];
        let (done, error) = queues.note_all([(); 3].map(|()| noted()).into(), all, Timestamp::from_millis(0));
        assert_eq!((done.len(), error.is_some()), (1, true));
        assert_eq!(queues.0.semaphores.take_offers(), [released]);
    }
}
