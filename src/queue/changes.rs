//! Changes that no holder asks for: what the server itself wants, and what is done to many jobs.

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use rand::seq::SliceRandom as _;

use super::outcomes::Noted;
use super::stuck::Sorted;
use super::{Error, Queues, Result};
use crate::faults;
use crate::job::Timestamp;
use crate::store::{Applied, Change, Denied, StoreError};

/// Into how many parts changes are divided that failed together, and how many parts are applied at once: each takes a connection.
const PARTS: usize = 8;
/// The most parts that are tried one after the other so, each of which may take a call's deadline.
const PARTS_MAX: usize = 32;

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
    /// Whether the store has responded to any of them.
    has_other: bool,
    /// Those that the store failed.
    failed: Vec<Change>,
    error: Option<StoreError>,
}

/// Returns whether the store failed the change: a job that another program spoiled concerns itself only.
fn is_of_store(applied: &Result<Applied, Denied>) -> bool {
    matches!(applied, Err(Denied::Store(error)) if !matches!(error, StoreError::Unreadable(_)))
}

impl Queues {
    /// Applies changes that the server itself wants, guarded by what it read. Returns how many happened, and how many were tried.
    ///
    /// Changes that travel together fail together. So those that failed are divided, and their parts applied beside each other, until
    /// each that fails does so alone, or there are too many of them: these are [left out](super::stuck) for a while. Those that were
    /// travel apart from the others, and are not divided. Where none succeeds that is not known to be stuck, the store is away.
    pub(super) async fn apply_overdue(&self, changes: Vec<Change>) -> Result<Tried> {
        faults::point("overdue.read").await;
        let Sorted { others, mut again, .. } = self.0.stuck.sort(changes, |change| &change.id);
        let tried = others.len() + again.len();
        let (mut done, mut has_succeeded, mut failure) = (0, others.is_empty(), None);
        let mut stuck = Vec::new();
        // Others in each part than the last time, so that none waits behind the same one again and again.
        again.shuffle(&mut rand::rng());
        let known = again.chunks(again.len().div_ceil(PARTS).max(1)).map(|part| (part.to_vec(), true));
        let first = (!others.is_empty()).then_some((others, false));
        let mut parts: Vec<(Vec<Change>, bool)> = first.into_iter().chain(known).collect();
        while !parts.is_empty() {
            let apply =
                |(part, is_known)| async move { Ok::<_, Error>((self.apply_part(part).await?, is_known)) };
            let applied = stream::iter(parts).map(apply).buffer_unordered(PARTS);
            let applied: Vec<(Part, bool)> = applied.try_collect().await?;
            parts = Vec::new();
            for (Part { done: changed, has_other, failed, error }, is_known) in applied {
                done += changed;
                has_succeeded |= has_other;
                failure = failure.or(error);
                match failed.len() {
                    0 => {}
                    count if count > 1 && !is_known => {
                        let divided = failed.chunks(count.div_ceil(PARTS));
                        parts.extend(divided.map(|part| (part.to_vec(), false)));
                    }
                    _ => stuck.extend(failed),
                }
            }
            parts.shuffle(&mut rand::rng());
            let too_many = parts.split_off(PARTS_MAX.min(parts.len()));
            stuck.extend(too_many.into_iter().flat_map(|(part, _)| part));
        }
        if let Some(error) = failure.filter(|_| !has_succeeded) {
            return Err(error.after(done as u64).into());
        }
        let count = stuck.len();
        if let Some(id) = self.0.stuck.note(stuck.into_iter().map(|change| change.id)) {
            let job_id = id.as_str();
            tracing::warn!(job_id, count, "the store changes some jobs and not these; they are tried again");
        }
        Ok(Tried { done, tried })
    }

    /// Applies changes together.
    async fn apply_part(&self, changes: Vec<Change>) -> Result<Part> {
        let now = self.now()?;
        let noted: Vec<Noted> = changes.iter().map(Noted::of).collect();
        let applied = self.0.store.apply(changes.clone(), &self.rules()).await;
        let failed = changes.into_iter().zip(&applied).filter(|(_, applied)| is_of_store(applied));
        let failed: Vec<Change> = failed.map(|(change, _)| change).collect();
        let count = noted.len();
        let (done, error) = self.note_all(noted, applied, now);
        Ok(Part { done: done.len(), has_other: failed.len() < count, failed, error })
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
