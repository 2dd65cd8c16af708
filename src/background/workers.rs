//! Takes back at once what workers hold that have fallen silent. Any server does it for all.
//!
//! A server judges only silences that it has listened to itself. After a start, or after its store was away,
//! every worker seems silent, although nobody was there to hear it; so for as long as a worker may be silent, the
//! server first listens. Another one that was there all the time need not wait.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::driver::{Run, Task};
use crate::queue::{Error, Queues};

/// Whoever has not looked for so long was not there to hear anybody: the machine slept, or the store was away.
const GAP: Duration = Duration::from_secs(3);

/// See the module's documentation. Its runs count the jobs that came back.
pub struct Silence {
    queues: Queues,
    listening: Mutex<Listening>,
}

impl Silence {
    /// Listens from now on.
    pub fn new(queues: Queues) -> Self {
        Self { queues, listening: Mutex::new(Listening::begin(Instant::now())) }
    }

    fn listening(&self) -> MutexGuard<'_, Listening> {
        self.listening.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Since when this server would have heard heartbeats.
struct Listening {
    since: Instant,
    looked: Instant,
}

impl Listening {
    fn begin(now: Instant) -> Self {
        Self { since: now, looked: now }
    }

    /// The server looks now: answers for how long it has listened.
    fn look(&mut self, now: Instant) -> Duration {
        if now.saturating_duration_since(self.looked) > GAP {
            *self = Self::begin(now);
        }
        self.looked = now;
        now.saturating_duration_since(self.since)
    }
}

#[async_trait]
impl Task for Silence {
    fn name(&self) -> &'static str {
        "workers"
    }

    /// No longer than the shortest timeout: a worker that another server hears first is known in time.
    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn run_once(&self) -> Result<Run, Error> {
        let mut done = 0;
        loop {
            let heard = self.listening().look(Instant::now());
            let heard_ms = u64::try_from(heard.as_millis()).unwrap_or(u64::MAX);
            let looked = self.queues.give_back_of_silent(heard_ms).await;
            // While the store is away it takes no heartbeats either.
            let (given_back, next_in_ms) =
                looked.inspect_err(|_| *self.listening() = Listening::begin(Instant::now()))?;
            done += given_back as u64;
            if given_back == 0 {
                // A millisecond more, so that the time has surely come; what is left already waits a moment.
                let next = next_in_ms.map(|ms| Duration::from_millis(ms.max(50) + 1));
                return Ok(Run { done, again_in: next });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_not_there_has_heard_nothing() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut listening = Listening::begin(start);
        for n in 1..=20 {
            assert_eq!(listening.look(start + n * second), n * second);
        }
        assert_eq!(listening.look(start + 20 * second + 2 * GAP), Duration::ZERO);
        assert_eq!(listening.look(start + 21 * second + 2 * GAP), second);
    }
}
