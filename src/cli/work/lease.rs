//! The lease of a job while its command runs: extended, and watched.

use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::cli::body::Body;
use crate::cli::client::{Call, Client, segment};
use crate::cli::failure::Failure;
use crate::cli::time::ms;

/// Whether a job is still this worker's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// It is.
    Held,
    /// It is, and its cancellation was requested.
    Unwanted,
    /// It is not, or may not be.
    Lost(Lost),
}

/// Why a job is not this worker's any more, or may not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Why, for people.
    pub reason: String,
    /// When another worker may begin at the earliest; nothing where the server has said that the job is lost.
    pub by: Option<Instant>,
}

/// A lease.
#[derive(Debug, Clone)]
pub struct Lease {
    pub id: String,
    pub reservation: String,
    pub length: Duration,
    /// When the call was made that was answered with the job: it may have been reserved as early.
    pub asked: Instant,
    /// When it began: the arrival of the answer, or, where an earlier try of the call may have reserved it, when that was made.
    pub since: Instant,
    /// How long this delivery lasts at most, over all extensions.
    pub longest: Option<Duration>,
    /// How long a command that is stopped may take.
    pub kill_after: Duration,
    /// After how long it is extended first, at the latest.
    pub first: Duration,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Extended {
    cancel_requested: bool,
}

impl Lease {
    /// Returns how long before its end the lease is given up, so that the command is gone before another worker begins.
    fn margin(&self) -> Duration {
        let kill = self.kill_after.saturating_add(Duration::from_secs(1));
        (self.length / 6).max(kill).min(self.length / 2)
    }

    /// Returns how often it is extended: so that a try that fails is followed by another one.
    fn pace(&self) -> Duration {
        (self.length / 3).min((self.length - self.margin()) / 2)
    }

    /// Returns when the lease ends, as far as it is known at the time when the job has arrived.
    fn first_end(&self) -> Instant {
        self.since + self.length
    }

    /// Returns when the delivery must be over, and when it is given up for that.
    fn last(&self) -> Option<(Instant, Instant)> {
        let longest = self.longest?;
        let last = self.since.checked_add(longest)?;
        Some((last, last - longest / 6))
    }

    /// Returns whether it is given up already: the answer came so late that another worker may have begun.
    pub fn is_over(&self) -> bool {
        self.given_up(self.first_end(), self.last()).0 <= Instant::now()
    }

    /// Extends the lease again and again, until it is lost. By this machine's clock it ends no later than at the server; where
    /// the server is not reached it is given up before that.
    pub async fn keep(self, client: Client, state: watch::Sender<LeaseState>) {
        let (pace, now) = (self.pace(), Instant::now());
        let last = self.last();
        let mut ends_at = self.first_end();
        // What may have been reserved a while ago is extended at once, which also shows whether it is lost.
        let mut next =
            if now - self.asked.min(self.since) > self.length / 6 { now } else { now + pace.min(self.first) };
        loop {
            let lost = self.given_up(ends_at, last);
            sleep_until(next.min(lost.0)).await;
            if Instant::now() >= lost.0 {
                state.send_replace(LeaseState::Lost(lost.1));
                return;
            }
            let sent = Instant::now();
            let body = Body::default()
                .text("reservation", Some(&self.reservation))
                .raw("lease_ms", Some(ms(self.length)));
            let path = format!("/v1/jobs/{}/extend", segment(&self.id));
            let call = Call::post(path, body.json()).within(pace.min(lost.0 - sent));
            match client.call(&call).await.and_then(|answer| answer.read::<Extended>()) {
                Ok(extended) => {
                    ends_at = sent + self.length;
                    if extended.cancel_requested {
                        state.send_replace(LeaseState::Unwanted);
                    }
                    next = sent + pace;
                }
                Err(failure) if is_final(&failure) => {
                    state.send_replace(LeaseState::Lost(Lost { reason: failure.to_string(), by: None }));
                    return;
                }
                Err(_) => {
                    sleep((pace / 8).clamp(Duration::from_millis(50), Duration::from_secs(2))).await;
                    next = Instant::now();
                }
            }
        }
    }

    /// Returns when a lease that ends then is given up, and what is reported of it.
    fn given_up(&self, ends_at: Instant, last: Option<(Instant, Instant)>) -> (Instant, Lost) {
        let at = ends_at - self.margin();
        if let Some((by, last)) = last.filter(|(_, last)| *last <= at) {
            let reason = "it takes longer than its max_run_ms".to_owned();
            return (last, Lost { reason, by: Some(by) });
        }
        let reason = "its lease is over, and the server was not reached in time".to_owned();
        (at, Lost { reason, by: Some(ends_at) })
    }
}

/// Returns whether the server has said that the job is not this worker's.
pub fn is_final(failure: &Failure) -> bool {
    matches!(failure, Failure::Problem(problem)
        if matches!(problem.word(), "reservation-lost" | "unknown-job" | "job-gone" | "wrong-state"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(length: u64, longest: Option<u64>, waited: u64, kill_after: u64) -> Lease {
        let seconds = Duration::from_secs;
        Lease {
            id: String::new(),
            reservation: String::new(),
            length: seconds(length),
            asked: Instant::now(),
            since: Instant::now().checked_sub(seconds(waited)).unwrap(),
            longest: longest.map(seconds),
            kill_after: seconds(kill_after),
            first: seconds(5),
        }
    }

    /// However short a lease or a run may be, the command has most of the time, and what is stopped is stopped before another worker
    /// begins.
    #[test]
    fn no_job_is_given_up_at_birth_and_none_too_late() {
        for (length, longest, kill_after) in [
            (60, Some(5), 5),
            (60, Some(1), 5),
            (60, None, 5),
            (2, None, 60),
            (1, Some(86_400_000), 0),
            (60, Some(u64::MAX), 5),
            (20, None, 5),
        ] {
            let lease = lease(length, longest, 0, kill_after);
            let least = lease.length.min(lease.longest.unwrap_or(lease.length)) / 3;
            assert!(!lease.is_over() || lease.since.elapsed() >= least, "{lease:?}");
            let (at, lost) = lease.given_up(lease.first_end(), lease.last());
            assert!(at >= lease.since + least, "{lease:?}: {:?}", at - lease.since);
            let by = lost.by.unwrap();
            let half = lease.length.min(lease.longest.unwrap_or(lease.length)) / 6;
            assert!(by - at >= half.min(lease.kill_after), "{lease:?}: {:?}", by - at);
            // Twice at least before it is given up.
            assert!(lease.pace() * 2 <= lease.length - lease.margin(), "{lease:?}");
        }
    }

    #[test]
    fn a_run_is_given_up_a_sixth_before_its_end() {
        let lease = lease(60, Some(6), 0, 5);
        let (at, lost) = lease.given_up(lease.first_end(), lease.last());
        assert_eq!(
            (at - lease.since, lost.by),
            (Duration::from_secs(5), Some(lease.since + Duration::from_secs(6)))
        );
    }

    #[test]
    fn what_comes_late_with_a_repeat_counts_from_the_first_call() {
        for (length, longest, waited, is_over) in [
            (60, None, 30, false),
            (60, None, 51, true),
            (60, None, 3600, true),
            (600, Some(60), 30, false),
            (600, Some(60), 50, true),
        ] {
            let lease = lease(length, longest, waited, 5);
            assert_eq!(lease.is_over(), is_over, "{lease:?}");
        }
    }
}
