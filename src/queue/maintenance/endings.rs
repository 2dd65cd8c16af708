//! One query on behalf of all that wait for jobs to finish: how it is noticed that other servers finished them. No query
//! without waiters.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Maintenance, Run, lock};
use crate::job::JobId;
use crate::queue::Result;

/// How long to rest between two queries where there can be other servers.
const REST: Duration = Duration::from_millis(100);
/// How many times as long as a query took to rest at least; a single slow one does not make all callers wait for minutes.
const RESTS: u32 = 10;
const REST_MAX: Duration = Duration::from_secs(5);
/// How many jobs one command asks for.
const AT_ONCE: usize = 1000;
/// So many failures in a row mean that the store stays away, and who waits should learn it.
const STAYS_AWAY: u32 = 2;

/// When the next query comes, and how the last ones ended.
#[derive(Default)]
pub(super) struct EndingsState {
    next: Option<Instant>,
    failures: u32,
}

impl Maintenance {
    /// Finds which of the jobs that are waited for have finished or are gone, and wakes those that wait for them. Counts those.
    pub async fn wake_for_finished_jobs(self: Arc<Self>) -> Result<Run> {
        let (endings, now) = (&self.queues.0.endings, Instant::now());
        let ids = endings.waited_for();
        let rest = if self.has_peers() { REST } else { self.poll_interval() };
        let next = {
            let mut state = lock(&self.endings);
            if ids.is_empty() {
                *state = EndingsState::default();
                return Ok(Run::default());
            }
            // Who waits has just read the job.
            *state.next.get_or_insert(now + rest)
        };
        if next > now {
            return Ok(Run { done: 0, again_in: Some(next - now) });
        }
        match self.wake_for(&ids).await {
            Ok(done) => {
                let rest = rest_after(now.elapsed(), rest);
                *lock(&self.endings) = EndingsState { next: Some(Instant::now() + rest), failures: 0 };
                Ok(Run { done, again_in: Some(rest) })
            }
            Err(error) => {
                let mut state = lock(&self.endings);
                state.failures += 1;
                if state.failures >= STAYS_AWAY {
                    self.queues.0.away.notify_waiters();
                }
                Err(error)
            }
        }
    }

    async fn wake_for(&self, ids: &[JobId]) -> Result<u64> {
        let mut woken = 0;
        for part in ids.chunks(AT_ONCE) {
            let unfinished: HashSet<JobId> =
                self.queues.0.store.unfinished(part).await?.into_iter().collect();
            let ended = part.iter().filter(|id| !unfinished.contains(*id));
            woken += ended.map(|id| self.queues.0.endings.wake(id) as u64).sum::<u64>();
        }
        Ok(woken)
    }
}

/// Returns the pause after a query that took this long, which is not shorter than this.
fn rest_after(took: Duration, least: Duration) -> Duration {
    least.max((took * RESTS).min(REST_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_query_does_not_hold_up_callers_for_minutes() {
        let ms = Duration::from_millis;
        let rests = [1, 100, 60_000].map(|took| rest_after(ms(took), REST));
        assert_eq!(rests, [REST, ms(1000), REST_MAX]);
        assert_eq!(rest_after(ms(60_000), REST_MAX * 2), REST_MAX * 2);
    }
}
