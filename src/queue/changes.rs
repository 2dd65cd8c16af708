//! Changes that no holder asks for: what the server itself wants, and what is done to many jobs.

use futures::future::join_all;

use super::outcomes::Noted;
use super::{Queues, Result};
use crate::faults;
use crate::job::Timestamp;
use crate::store::{Applied, Change, Denied, StoreError};

/// Into how many parts changes are divided that failed together.
const PARTS: usize = 8;

/// How many changes there were.
pub(super) struct Tried {
    /// Those that happened.
    pub done: usize,
    /// All but those of jobs that are left out.
    pub tried: usize,
}

/// What became of changes that travelled together.
struct Part {
    done: usize,
    /// Those that the store failed.
    failed: Vec<Change>,
    error: Option<StoreError>,
}

impl Queues {
    /// Applies changes that the server itself wants, guarded by what it read. Returns how many happened, and how many were tried.
    ///
    /// Changes that travel together fail together. So those that failed are divided, and their parts applied beside each other, until
    /// each that fails does so alone, and is [left out](super::stuck); unless all parts fail, because the store is away.
    pub(super) async fn apply_overdue(&self, changes: Vec<Change>) -> Result<Tried> {
        faults::point("overdue.read").await;
        let changes = self.0.stuck.without(changes);
        let (tried, mut done, mut is_whole) = (changes.len(), 0, true);
        let mut parts = if changes.is_empty() { Vec::new() } else { vec![changes] };
        while !parts.is_empty() {
            let applied = join_all(parts.into_iter().map(|part| self.apply_part(part))).await;
            let applied = applied.into_iter().collect::<Result<Vec<Part>>>()?;
            done += applied.iter().map(|part| part.done).sum::<usize>();
            let is_one = is_whole && applied.iter().all(|part| part.failed.len() < 2);
            let is_away = is_one || (!is_whole && applied.iter().all(|part| part.error.is_some()));
            if is_away && let Some(error) = applied.iter().find_map(|part| part.error.clone()) {
                return Err(error.after(done as u64).into());
            }
            (parts, is_whole) = (Vec::new(), false);
            for Part { mut failed, .. } in applied {
                match failed.len() {
                    0 => {}
                    1 => failed.drain(..).for_each(|change| self.0.stuck.note(change.id)),
                    count => {
                        let size = count.div_ceil(PARTS);
                        while !failed.is_empty() {
                            let rest = failed.split_off(size.min(failed.len()));
                            parts.push(std::mem::replace(&mut failed, rest));
                        }
                    }
                }
            }
        }
        Ok(Tried { done, tried })
    }

    /// Applies changes together.
    async fn apply_part(&self, changes: Vec<Change>) -> Result<Part> {
        let now = self.now()?;
        let noted: Vec<Noted> = changes.iter().map(Noted::of).collect();
        let applied = self.0.store.apply(changes.clone(), &self.rules()).await;
        let is_failed = |applied: &Result<Applied, Denied>| matches!(applied, Err(Denied::Store(error)) if !matches!(error, StoreError::Unreadable(_)));
        let failed = changes.into_iter().zip(&applied).filter(|(_, applied)| is_failed(applied));
        let failed = failed.map(|(change, _)| change).collect();
        let (done, error) = self.note_all(noted, applied, now);
        Ok(Part { done: done.len(), failed, error })
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
