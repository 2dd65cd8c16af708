//! Calls for jobs: each is made until its outcome is known, as far as it matters.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Phase;
use super::crew::{Crew, PARTING, Shared, Taken};
use crate::cli::body::Body;
use crate::cli::client::Call;
use crate::cli::deliver::{Reserved, reserve};
use crate::cli::failure::Failure;
use crate::cli::time::ms;
use crate::cli::view::Job;

/// How long one call waits for jobs. The server remembers each call while it waits: long ones are fewer, and shorter than the
/// patience of the proxies on the way.
pub const WAIT: Duration = Duration::from_secs(25);
/// For how long an idle worker that stops learns what its last call has reserved, as long as it does not know that it holds nothing.
const LEARNING: Duration = Duration::from_secs(2);
/// For how long the first repeat waits that asks for it: what there is, is answered at once.
const AT_ONCE: Duration = Duration::from_millis(250);
/// The first pause between two calls while the server is away.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause between two calls while the server is away.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A call for jobs. It is made again, with the same key, until it is answered: a call whose answer was lost may have reserved jobs,
/// which heartbeats would keep for ever.
pub struct Asked {
    call: Call,
    /// Whether it named the worker.
    is_named: bool,
}

/// Jobs that were reserved.
#[derive(Default)]
pub struct Answer {
    pub jobs: Vec<Job>,
    /// Nothing where nothing was answered, or nothing that says whether jobs are ready.
    pub times: Option<Times>,
}

/// When jobs were reserved, as far as this worker knows.
#[derive(Clone, Copy)]
pub struct Times {
    /// When the answered try was made: they may have been reserved as early.
    pub asked: Instant,
    /// When they arrived; or, where an earlier try may have reserved them, when that was made.
    pub since: Instant,
}

impl Shared {
    /// Returns a call for jobs that can be made again.
    pub fn ask(&self, count: usize, wait: Duration) -> Asked {
        let is_named = self.is_named.load(Ordering::Relaxed);
        let key = format!("{}-{:032x}", self.name, rand::random::<u128>());
        let body = Body::default()
            .raw("count", Some(if self.work.once { 1 } else { count }))
            .raw("wait_ms", Some(ms(wait)))
            .raw("lease_ms", Some(ms(self.work.lease)))
            .text("worker", is_named.then_some(&self.name));
        // A repeat with another body, also with another wait, is refused.
        Asked { call: reserve(&self.work.queues, body, wait).header("idempotency-key", key), is_named }
    }

    async fn reserve(&self, call: &Call) -> Result<Vec<Job>, Failure> {
        let reserved: Reserved = self.client.call(call).await?.read()?;
        Ok(reserved.jobs)
    }

    /// Returns whether the call was refused because the key does not allow the worker's name; it may allow to reserve without one.
    fn is_nameless_now(&self, asked: &Asked, failure: &Failure) -> bool {
        let is_refused = matches!(failure, Failure::Problem(problem)
            if problem.status == 403 && problem.word() == "forbidden");
        if !asked.is_named || !is_refused || !self.is_named.swap(false, Ordering::Relaxed) {
            return false;
        }
        self.printer
            .note(&format!("{failure}; trying without a name of this worker, and without heartbeats"));
        true
    }
}

impl Crew {
    /// Makes a call for jobs again and again until it is answered. Where the worker stops meanwhile it is learnt what it has reserved.
    pub async fn until_answered(&mut self, asked: &Asked, taken: &mut Taken) -> Result<Answer, Failure> {
        let is_short = self.shared.work.is_short();
        let mut pause = FIRST_PAUSE;
        // When the first try was made that may have reserved jobs without its answer having come.
        let mut in_doubt = None;
        loop {
            let tried_at = Instant::now();
            let Some(answer) = self.answer(&asked.call).await else {
                return Ok(self.learn(asked, taken).await);
            };
            let failure = match answer {
                Ok(jobs) => {
                    self.shared.note_back();
                    // What the lost answer had may have gone back since: others may be ready, and another call asks for them.
                    if jobs.is_empty() && in_doubt.is_some() {
                        return Ok(Answer::default());
                    }
                    let since = in_doubt.unwrap_or_else(Instant::now);
                    return Ok(Answer { jobs, times: Some(Times { asked: tried_at, since }) });
                }
                Err(failure) => failure,
            };
            if self.shared.is_nameless_now(asked, &failure) {
                return Ok(Answer::default());
            }
            self.collect(taken);
            // One repeat for an answer that was lost; further ones only where heartbeats go on, and would keep what it had.
            let was_in_doubt = in_doubt.is_some();
            let is_unsent = matches!(failure, Failure::Unconnected(_));
            // The limit passes: jobs may be ready all the same.
            let is_limited = is_limited(&failure);
            let is_enough = is_short && !is_limited && (is_unsent || was_in_doubt) && self.running.is_empty();
            if is_never(&failure) || is_enough {
                return Err(failure);
            }
            if !is_unsent && !is_limited {
                in_doubt.get_or_insert(tried_at);
            }
            if !is_short || was_in_doubt || is_limited && pause > FIRST_PAUSE {
                self.shared.note_away(&failure);
            }
            self.pause(wait_after(&failure, pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Returns what the server answers; nothing where the worker stops meanwhile.
    async fn answer(&mut self, call: &Call) -> Option<Result<Vec<Job>, Failure>> {
        let mut phase = self.phase.clone();
        tokio::select! {
            biased;
            Ok(_) = phase.wait_for(|phase| *phase != Phase::Working) => None,
            answer = self.shared.reserve(call) => Some(answer),
        }
    }

    /// Learns what a call has reserved that is not waited for any more: by a repeat of it, until the server says that this worker holds
    /// nothing, but only for a short time; and for as long as commands go on, with whose heartbeats the server would keep the jobs.
    async fn learn(&mut self, asked: &Asked, taken: &mut Taken) -> Answer {
        let until = Instant::now() + LEARNING;
        let (mut pause, mut at_once) = (FIRST_PAUSE / 4, AT_ONCE);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let patience = if self.running.is_empty() { left.min(at_once) } else { PARTING };
            let tried_at = Instant::now();
            match self.shared.reserve(&asked.call.clone().within(patience)).await {
                Ok(jobs) => {
                    let times = Times { asked: tried_at, since: Instant::now() };
                    // Without jobs it does not say that none is ready: what the call had reserved may have gone back since.
                    let times = (!jobs.is_empty()).then_some(times);
                    return Answer { jobs, times };
                }
                Err(failure) if is_never(&failure) => return Answer::default(),
                Err(_) => {}
            }
            self.collect(taken);
            // Only once the repeat is dropped, which may have reserved jobs itself.
            let is_idle = self.running.is_empty();
            let is_over = is_idle && (Instant::now() + pause >= until || self.shared.holds_nothing().await);
            if is_over {
                return Answer::default();
            }
            sleep(pause).await;
            (pause, at_once) = ((pause * 2).min(Duration::from_secs(1)), at_once * 2);
        }
    }

    /// Waits so long, or until the worker stops.
    async fn pause(&mut self, pause: Duration) {
        tokio::select! {
            () = sleep(pause) => {}
            _ = self.phase.wait_for(|phase| *phase != Phase::Working) => {}
        }
    }
}

/// Returns how long is waited after a failure: not less than its `Retry-After`, and not as long as others wait.
fn wait_after(failure: &Failure, pause: Duration) -> Duration {
    retry_after(failure) + pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}

fn retry_after(failure: &Failure) -> Duration {
    let Failure::Problem(problem) = failure else { return Duration::ZERO };
    Duration::from_millis(problem.retry_after_ms().unwrap_or(0)).min(PAUSE_MAX)
}

/// Returns whether a limit on calls has refused this one, which has reserved nothing then. Such a limit passes within seconds, not so
/// that of the configuration (`limit-reached`).
fn is_limited(failure: &Failure) -> bool {
    matches!(failure, Failure::Problem(problem)
        if problem.status == 429 && problem.word() != "limit-reached")
}

/// Returns whether a server of ours has said that it will not take the same call later either. Whatever else answers may be a proxy
/// whose server is away.
pub fn is_never(failure: &Failure) -> bool {
    matches!(failure, Failure::Problem(problem)
        if (400..500).contains(&problem.status) && !problem.word().is_empty())
        && !failure.is_passing()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::failure::Problem;

    #[test]
    fn only_what_the_server_itself_refuses_ends_a_worker() {
        let ours = r#"{"code": "forbidden"}"#;
        for (status, body, is_so) in [
            (401, ours, true),
            (403, ours, true),
            (404, ours, true),
            (422, ours, true),
            (404, "<html>", false),
            (403, "", false),
            (302, "", false),
            (500, r#"{"code": "internal"}"#, false),
            (503, ours, false),
            (409, r#"{"code": "request-pending", "retryable": true}"#, false),
        ] {
            let failure = Failure::Problem(Box::new(Problem::new(status, body.as_bytes())));
            assert_eq!(is_never(&failure), is_so, "{status} {body}");
        }
        assert!(!is_never(&Failure::Failed("the server's answer is not understood".to_owned())));
        assert!(!is_never(&Failure::Unreachable(String::new())));
    }

    #[test]
    fn no_call_is_made_again_before_its_retry_after() {
        let body = r#"{"code": "key-limited", "retryable": true, "retry_after_ms": 1000}"#;
        let limited = Failure::Problem(Box::new(Problem::new(429, body.as_bytes())));
        let second = Duration::from_secs(1);
        for _ in 0..1000 {
            let waited = wait_after(&limited, FIRST_PAUSE);
            assert!((second + FIRST_PAUSE / 2..=second + FIRST_PAUSE).contains(&waited), "{waited:?}");
        }
    }

    #[test]
    fn only_limits_on_calls_are_waited_for() {
        for (status, body, is_so) in [
            (429, r#"{"code": "key-limited"}"#, true),
            (429, "<html>", true),
            (429, r#"{"code": "limit-reached"}"#, false),
            (503, r#"{"code": "overloaded"}"#, false),
        ] {
            let failure = Failure::Problem(Box::new(Problem::new(status, body.as_bytes())));
            assert_eq!(is_limited(&failure), is_so, "{status} {body}");
        }
    }
}
