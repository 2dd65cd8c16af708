//! What becomes of a job whose command has ended.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::ask::is_never;
use super::command::{Run, Stop, result};
use super::crew::{PARTING, Shared};
use super::lease::{LeaseState, Lost, is_final};
use super::printer::Printer;
use super::reaper::Ended;
use super::{Phase, Work};
use crate::cli::body::Body;
use crate::cli::client::{Call, Client, segment};
use crate::cli::failure::Failure;
use crate::cli::shown::shown;
use crate::cli::time::{human, ms};
use crate::cli::view::Settled;

/// Exit code of a command: try again later, the job is not at fault (`EX_TEMPFAIL`).
const LATER: i32 = 75;
/// Exit code of a command: the job can never succeed (`EX_DATAERR`).
const NEVER: i32 = 65;
/// The longest error text, in bytes: what the server keeps.
const ERROR_MAX: usize = 4096;
/// What a worker says to the server of a job.
#[derive(Debug)]
pub struct Settle {
    verb: &'static str,
    body: Body,
    /// What it is, for people and scripts.
    pub outcome: &'static str,
    /// Why, where it is no commit.
    pub reason: String,
}

/// What the server has not taken.
#[derive(Debug)]
pub struct Unsent {
    /// What was to be said.
    pub settle: Settle,
    /// Why it was not taken.
    pub failure: Failure,
}

impl Settle {
    fn rollback(body: Body, outcome: &'static str, reason: String) -> Self {
        Self { verb: "rollback", body: body.text("error", Some(&reason)), outcome, reason }
    }

    /// Gives the job back to its place, as if it had not been delivered.
    pub fn give_back(reason: &str) -> Self {
        let body = Body::default().raw("count_attempt", Some(false)).flag("keep_place", true);
        Self { verb: "rollback", body, outcome: "given_back", reason: reason.to_owned() }
    }

    /// Rolls the job back, with this reason.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::rollback(Body::default(), "rolled_back", bounded(reason.into()))
    }

    /// Returns what is to be said after this run.
    pub fn of(run: &Run, work: &Work) -> Result<Self, Lost> {
        let told = |what: String| {
            bounded(if run.error.is_empty() { what } else { format!("{what}: {}", run.error) })
        };
        // A command that was asked to stop may well end with 0, with its work half done.
        Ok(match (&run.stop, run.ended) {
            (Some(Stop::Lost(lost)), _) => return Err(lost.clone()),
            (Some(Stop::Unwanted), _) => Self::rollback(
                Body::default(),
                "cancelled",
                told("stopped: its cancellation was requested".to_owned()),
            ),
            (Some(Stop::Leaving), _) => Self::give_back("the worker stopped"),
            (Some(Stop::Late), _) => {
                let limit = human(work.timeout.map_or(0, ms));
                Self::failed(told(format!("stopped after {limit}")))
            }
            (None, Ended::Code(0)) => Self::commit(run),
            (None, Ended::Code(LATER)) => {
                let body =
                    Body::default().raw("count_attempt", Some(false)).raw("delay_ms", Some(ms(work.put_off)));
                Self::rollback(body, "put_off", told(format!("exit code {LATER}")))
            }
            (None, Ended::Code(NEVER)) => Self::rollback(
                Body::default().flag("dead", true),
                "buried",
                told(format!("exit code {NEVER}")),
            ),
            (None, Ended::Code(code)) => Self::failed(told(format!("exit code {code}"))),
            (None, Ended::Signal(signal)) => Self::failed(told(format!("killed by signal {signal}"))),
        })
    }

    fn commit(run: &Run) -> Self {
        match run.output.as_deref().map(result).transpose() {
            Ok(result) => {
                let body = Body::default().raw("result", result.flatten());
                Self { verb: "commit", body, outcome: "committed", reason: String::new() }
            }
            Err(reason) => Self::failed(reason),
        }
    }

    /// Says it, until the server has taken it or has said that the job is not this worker's. While the worker leaves, not for long:
    /// then it comes back with the error; and so it does where the lease is over and the server takes nothing of this key any more, or
    /// the worker is to end by itself.
    pub async fn send(
        self,
        shared: &Shared,
        id: &str,
        reservation: &str,
        (held, mut phase): (watch::Receiver<LeaseState>, watch::Receiver<Phase>),
    ) -> Result<Self, Unsent> {
        let Shared { work, client, printer, .. } = shared;
        let mut settle = self;
        let (mut pause, mut until, mut is_told) = (Duration::from_millis(100), None, false);
        loop {
            if *phase.borrow() >= Phase::Leaving {
                until.get_or_insert_with(|| Instant::now() + PARTING);
            }
            let call = settle.call(id, reservation);
            let answer = match until {
                Some(until) => {
                    client.call(&call.within(until.saturating_duration_since(Instant::now()))).await
                }
                None => tokio::select! {
                    answer = client.call(&call) => answer,
                    () = leaves(&mut phase) => continue,
                },
            };
            let failure = match answer.and_then(|answer| answer.read::<Settled>().map(drop)) {
                Ok(()) => return Ok(settle),
                Err(failure) => failure,
            };
            let is_refused = is_refused(&failure);
            let is_lost = matches!(*held.borrow(), LeaseState::Lost(_)) || held.has_changed().is_err();
            let is_over = until.is_some_and(|until| Instant::now() >= until)
                || is_lost && (work.is_short() || is_never(&failure));
            if is_over || settle.is_refused_by(&failure) {
                return Err(Unsent { settle, failure });
            }
            if is_refused {
                settle = settle.instead(&failure);
                continue;
            }
            if failure.is_passing() {
                shared.note_away(&failure);
            } else if !std::mem::replace(&mut is_told, true) {
                let verb = settle.verb;
                printer.note(&format!("{} has ended, and its {verb} is tried again: {failure}", shown(id)));
            }
            // Sooner where the worker begins to leave.
            let next = Instant::now() + pause.mul_f64(0.5 + rand::random::<f64>() / 2.0);
            match until {
                Some(until) => sleep_until(next.min(until)).await,
                None => drop(timeout_at(next, leaves(&mut phase)).await),
            }
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    /// Returns whether the server has said that it will take nothing of the job, however little is said.
    pub fn is_refused_by(&self, failure: &Failure) -> bool {
        is_final(failure) || is_refused(failure) && self.is_bare()
    }

    /// Returns whether this is a rollback, and nothing else is said.
    fn is_bare(&self) -> bool {
        self.verb == "rollback" && self.body.json() == "{}"
    }

    /// Returns what is said where this is refused. A job for which the server takes nothing would stay with this worker, whose
    /// heartbeats extend it.
    fn instead(&self, failure: &Failure) -> Self {
        if self.verb == "commit" {
            // Such as a result that is too large.
            return Self::failed(format!("it cannot be committed: {failure}"));
        }
        let reason = bounded(format!("{}; {} was refused: {failure}", self.reason, self.outcome));
        Self { verb: "rollback", body: Body::default(), outcome: "rolled_back", reason }
    }

    fn call(&self, id: &str, reservation: &str) -> Call {
        let json = self.body.json();
        let body = Body::default().fields(&json[1..json.len() - 1]).text("reservation", Some(reservation));
        Call::post(format!("/v1/jobs/{}/{}", segment(id), self.verb), body.json())
    }
}

/// Says something of a job for which the worker does not wait any more, until the server has answered: as long as it counts the job
/// as this worker's, the worker's heartbeats keep it reserved.
pub async fn let_go(client: Client, id: String, reservation: String, mut settle: Settle, printer: Printer) {
    let mut pause = Duration::from_millis(200);
    loop {
        let call = settle.call(&id, &reservation);
        match client.call(&call).await {
            Ok(_) if settle.verb == "commit" => {
                printer.note(&format!("{} is not lost: it was committed after all", shown(&id)));
                return;
            }
            Ok(_) => return,
            Err(failure) if settle.is_refused_by(&failure) => return,
            Err(failure) if is_refused(&failure) => settle = settle.instead(&failure),
            Err(_) => sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await,
        }
        pause = (pause * 2).min(PARTING / 2);
    }
}

/// Waits until the worker leaves.
async fn leaves(phase: &mut watch::Receiver<Phase>) {
    if phase.wait_for(|phase| *phase >= Phase::Leaving).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Returns whether what was said is refused, and will be each time: by a server of ours, or for its size, which a proxy may limit as
/// well. Anything else may pass: a proxy that is being restarted, a key that is being replaced.
fn is_refused(failure: &Failure) -> bool {
    let Failure::Problem(problem) = failure else { return false };
    problem.status == 413 || matches!(problem.status, 400 | 422) && !problem.word().is_empty()
}

/// Returns the end of a text that is too long: the last words say most.
fn bounded(text: String) -> String {
    if text.len() <= ERROR_MAX {
        return text;
    }
    let mut from = text.len() - ERROR_MAX + '…'.len_utf8();
    while !text.is_char_boundary(from) {
        from += 1;
    }
    format!("…{}", &text[from..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::failure::Problem;

    #[test]
    fn only_what_the_server_refuses_for_good_is_not_said_again() {
        let ours = r#"{"code": "too-large"}"#;
        for (status, body, is_so) in [
            (413, ours, true),
            (422, ours, true),
            (413, "<html>", true),
            (413, "", true),
            (400, "<html>", false),
            (422, "", false),
            (401, ours, false),
            (403, ours, false),
            (404, "<html>", false),
            (500, ours, false),
        ] {
            let failure = Failure::Problem(Box::new(Problem::new(status, body.as_bytes())));
            assert_eq!(is_refused(&failure), is_so, "{status} {body}");
        }
    }

    #[test]
    fn what_is_refused_is_said_with_less_until_it_is_a_rollback_alone() {
        let failure = Failure::Problem(Box::new(Problem::new(413, b"<html>")));
        let body = Body::default().raw("result", Some(1));
        let commit = Settle { verb: "commit", body, outcome: "committed", reason: String::new() };
        let rollback = commit.instead(&failure);
        assert_eq!((rollback.verb, rollback.is_bare()), ("rollback", false), "{rollback:?}");
        let bare = rollback.instead(&failure);
        assert!(bare.is_bare() && bare.reason.contains("it cannot be committed"), "{bare:?}");
        let refused = [&commit, &rollback, &bare].map(|settle| settle.is_refused_by(&failure));
        assert_eq!(refused, [false, false, true]);
    }

    #[test]
    fn errors_are_as_long_as_the_server_keeps_them() {
        for text in ["ü".repeat(3000), "日本".repeat(2000), "x".repeat(5000), "short".to_owned()] {
            let bounded = bounded(text.clone());
            assert!(
                bounded.len() <= ERROR_MAX && text.ends_with(bounded.trim_start_matches('…')),
                "{}",
                bounded.len()
            );
        }
    }
}
