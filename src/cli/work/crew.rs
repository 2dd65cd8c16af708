//! The worker itself: takes jobs, runs a command for each, and says what became of them.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::Method;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use super::ask::{Answer, Times, WAIT, is_never};
use super::command::{payload, start};
use super::lease::{Lease, LeaseState, Lost};
use super::printer::Printer;
use super::reaper::{Ended, Reaper};
use super::settle::{Settle, Unsent, let_go};
use super::{Phase, Work};
use crate::cli::Context;
use crate::cli::body::Body;
use crate::cli::client::{Call, Client, segment};
use crate::cli::failure::{DONE, FAILED, Failure, LATER, NOTHING};
use crate::cli::out::Out;
use crate::cli::payload::quoted;
use crate::cli::shown::{shown, shown_json};
use crate::cli::time::{human, ms};
use crate::cli::view::Job;

/// How long a stopping worker retries its outstanding settles.
pub const PARTING: Duration = Duration::from_secs(5);
/// How long each call may take by which a worker that has ended is taken from the list.
const SIGN_OFF: Duration = Duration::from_secs(1);
/// How long is waited after a command could not be started for a reason that may pass.
const BREATH: Duration = Duration::from_secs(1);
/// After how many milliseconds without a heartbeat a server takes a worker for dead, as long as it has not said.
const TIMEOUT_MS: u64 = 15_000;

/// A worker.
pub struct Crew {
    pub(super) shared: Arc<Shared>,
    pub(super) phase: watch::Receiver<Phase>,
    pub(super) running: JoinSet<bool>,
}

/// What its jobs share.
pub struct Shared {
    pub work: Work,
    pub client: Client,
    pub out: Out,
    pub printer: Printer,
    pub reaper: Reaper,
    pub name: String,
    /// Whether the server is sent the name; not where the key does not allow it.
    pub is_named: AtomicBool,
    /// The command cannot be started at all.
    is_broken: AtomicBool,
    /// It was said that the server is not reached.
    is_said_away: AtomicBool,
    /// What became of a job, the server was not there to take.
    is_unsure: AtomicBool,
    /// After how many milliseconds without a heartbeat the server takes this worker for dead.
    timeout_ms: AtomicU64,
    /// The outstanding settles of jobs whose commands have ended.
    parting: Mutex<JoinSet<()>>,
}

/// A task that ends with its owner.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Crew {
    /// Returns a worker that has taken nothing yet.
    pub fn new(
        work: Work,
        context: &Context,
        phase: watch::Receiver<Phase>,
        printer: Printer,
    ) -> Result<Self, Failure> {
        let name = name(work.worker.as_deref());
        let (client, out, reaper) = (context.client.without_trace(), context.out, Reaper::start()?);
        let shared = Shared {
            work,
            client,
            out,
            printer,
            reaper,
            name,
            is_named: AtomicBool::new(true),
            is_broken: AtomicBool::new(false),
            is_said_away: AtomicBool::new(false),
            is_unsure: AtomicBool::new(false),
            timeout_ms: AtomicU64::new(TIMEOUT_MS),
            parting: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared), phase, running: JoinSet::new() })
    }

    /// Works until it is asked to stop, or is through. Returns the exit code.
    pub async fn run(self) -> Result<u8, Failure> {
        let (shared, mut phase) = (self.shared.clone(), self.phase.clone());
        tokio::select! {
            code = self.work() => code,
            // With the work ends all that extends leases and sends heartbeats.
            Ok(_) = phase.wait_for(|phase| *phase == Phase::Gone) => {
                shared.reaper.kill_all();
                shared.parting().abort_all();
                Err(Failure::Failed("stopped at once: the commands were killed, and their jobs come back by themselves".to_owned()))
            }
        }
    }

    async fn work(mut self) -> Result<u8, Failure> {
        let heart = Task(tokio::spawn(self.shared.clone().beat()));
        let taken = self.take().await;
        if let Err(failure) = &taken
            && !self.running.is_empty()
        {
            self.shared.printer.note(&format!("{failure}; the commands that run may end"));
        }
        let mut is_well = taken.as_ref().is_ok_and(|taken| taken.is_well);
        while let Some(committed) = self.running.join_next().await {
            is_well &= committed.unwrap_or(false);
        }
        let is_all_told = self.shared.part().await;
        drop(heart);
        let Taken { jobs, .. } = taken?;
        if is_all_told {
            self.shared.sign_off().await;
        }
        if self.shared.is_broken.load(Ordering::Relaxed) {
            return Err(Failure::Failed("the command cannot be started".to_owned()));
        }
        let work = &self.shared.work;
        Ok(match (work.is_short(), is_well) {
            (true, false) if self.shared.is_unsure.load(Ordering::Relaxed) => LATER,
            (true, false) => FAILED,
            (true, true) if work.once && jobs == 0 => NOTHING,
            _ => DONE,
        })
    }

    /// Takes jobs.
    async fn take(&mut self) -> Result<Taken, Failure> {
        let most = self.shared.work.concurrency as usize;
        let (is_once, is_drain) = (self.shared.work.once, self.shared.work.drain);
        let until = Instant::now() + self.shared.work.wait;
        let mut taken = Taken { jobs: 0, is_well: true };
        loop {
            self.collect(&mut taken);
            if *self.phase.borrow() != Phase::Working || self.shared.is_broken.load(Ordering::Relaxed) {
                // What was to be done is not done.
                taken.is_well &= !is_once && !is_drain;
                return Ok(taken);
            }
            if self.running.len() >= most {
                self.one_is_over(&mut taken).await;
                continue;
            }
            let wait = match (is_once, is_drain) {
                (true, _) => until.saturating_duration_since(Instant::now()).min(WAIT),
                (_, true) => Duration::ZERO,
                _ => WAIT,
            };
            let asked = self.shared.ask(most - self.running.len(), wait);
            let answer = self.until_answered(&asked, &mut taken).await?;
            // The worker stops, or asks otherwise.
            if answer.times.is_none() {
                continue;
            }
            let found = answer.jobs.len();
            taken.jobs += found;
            self.begin(answer);
            match found {
                0 if is_once && Instant::now() >= until => return Ok(taken),
                // A job that ends may let others of its group go on.
                0 if is_drain && !self.running.is_empty() => self.one_is_over(&mut taken).await,
                0 if is_drain => return Ok(taken),
                1.. if is_once => return Ok(taken),
                _ => {}
            }
        }
    }

    async fn one_is_over(&mut self, taken: &mut Taken) {
        tokio::select! {
            Some(committed) = self.running.join_next() => taken.is_well &= committed.unwrap_or(false),
            _ = self.phase.wait_for(|phase| *phase != Phase::Working) => {}
        }
    }

    /// Counts the jobs that are over.
    pub(super) fn collect(&mut self, taken: &mut Taken) {
        while let Some(committed) = self.running.try_join_next() {
            taken.is_well &= committed.unwrap_or(false);
        }
    }

    fn begin(&mut self, Answer { jobs, times }: Answer) {
        let now = Instant::now();
        let times = times.unwrap_or(Times { asked: now, since: now });
        for job in jobs {
            let (shared, phase) = (self.shared.clone(), self.phase.clone());
            self.running.spawn(async move { shared.work_on(job, times, phase).await });
        }
    }
}

/// What was taken.
pub struct Taken {
    jobs: usize,
    is_well: bool,
}

/// What is to be done after a command, or instead of it.
struct Done {
    /// What is to be said to the server; or why it is not this worker's job any more.
    settle: Result<Settle, Lost>,
    /// How the command ended, if there was one.
    ended: Option<Ended>,
    /// Whether the next one had better not be started at once.
    is_breathless: bool,
}

impl Done {
    /// Without a command.
    fn unrun(settle: Settle) -> Self {
        Self { settle: Ok(settle), ended: None, is_breathless: false }
    }
}

/// Returns whether a command that was not started for this will not be started later either: it is not there, or cannot be run.
/// Anything else, such as too many processes or open files, may pass.
fn is_lasting(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
        || error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error())
}

/// Returns a name for this process that no other one has: after a restart under the same name, heartbeats would keep the jobs of the
/// process that is gone.
fn name(own: Option<&str>) -> String {
    let random = rand::random::<u32>();
    if let Some(own) = own {
        return format!("{own}-{random:08x}");
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(60).collect();
    format!("{host}-{}-{random:08x}", std::process::id())
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Beat {
    timeout_ms: u64,
    /// How many jobs the server knows that this worker holds.
    held: Option<u64>,
}

impl Shared {
    /// Returns a third of the time after which the server takes this worker for dead.
    fn third(&self) -> Duration {
        Duration::from_millis((self.timeout_ms.load(Ordering::Relaxed) / 3).clamp(300, 60_000))
    }

    fn heartbeat(&self) -> Call {
        let body = Body::default()
            .raw("slots", Some(self.work.concurrency))
            .text("version", Some(concat!("tailback work ", env!("CARGO_PKG_VERSION"))));
        Call::post(format!("/v1/workers/{}/heartbeat", segment(&self.name)), body.json())
    }

    /// Takes this worker from the server's list, where it would stand as silent for an hour. What cannot be done, or is not allowed, is
    /// left to that hour. A worker that holds a job stays: its attempt would have failed.
    async fn sign_off(&self) {
        if self.holds_nothing().await {
            let call = Call::new(Method::DELETE, format!("/v1/workers/{}", segment(&self.name)));
            let _ = self.client.call(&call.within(SIGN_OFF)).await;
        }
    }

    /// Returns whether the server says that this worker holds no job; without a name it knows nothing of that.
    pub(super) async fn holds_nothing(&self) -> bool {
        if !self.is_named.load(Ordering::Relaxed) {
            return false;
        }
        let last = self.client.call(&self.heartbeat().within(SIGN_OFF)).await;
        last.and_then(|answer| answer.read::<Beat>()).is_ok_and(|beat| beat.held == Some(0))
    }

    /// Says that this worker is there: should its machine die, its jobs are released before their leases end. From the first
    /// success on the server counts on it, so that nothing but the worker's end ends it.
    async fn beat(self: Arc<Self>) {
        let call = self.heartbeat();
        let (mut was_heard, mut is_told) = (false, false);
        loop {
            let (begun, third) = (Instant::now(), self.third());
            let call = call.clone().within(third);
            match self.client.call(&call).await.and_then(|answer| answer.read::<Beat>()) {
                Ok(Beat { timeout_ms, .. }) => {
                    (was_heard, is_told) = (true, false);
                    if timeout_ms > 0 {
                        self.timeout_ms.store(timeout_ms, Ordering::Relaxed);
                    }
                }
                // Without heartbeats it is the leases that count.
                Err(failure) if !was_heard && is_never(&failure) => {
                    self.printer.note(&format!("no heartbeats: {failure}"));
                    return;
                }
                Err(failure) => {
                    if failure.code() != LATER && !std::mem::replace(&mut is_told, true) {
                        self.printer.note(&format!("no heartbeats: {failure}; trying again"));
                    }
                }
            }
            sleep_until(begun + self.third()).await;
        }
    }

    /// Says once that the server is not reached.
    pub(super) fn note_away(&self, failure: &Failure) {
        if !self.is_said_away.swap(true, Ordering::Relaxed) {
            self.printer.note(&format!("{failure}; trying again"));
        }
    }

    /// Says that the server is reached again, where it was said that it is not.
    pub(super) fn note_back(&self) {
        if self.is_said_away.swap(false, Ordering::Relaxed) {
            self.printer.note("the server is there again");
        }
    }

    fn parting(&self) -> std::sync::MutexGuard<'_, JoinSet<()>> {
        self.parting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits briefly until the outstanding settles are sent. Returns whether all were.
    async fn part(&self) -> bool {
        let mut parting = std::mem::take(&mut *self.parting());
        // What is not settled in time is released when its lease expires.
        timeout(PARTING, async { while parting.join_next().await.is_some() {} }).await.is_ok()
    }

    /// Goes on saying something of a job whose command is over.
    fn say_later(&self, job: &Job, reservation: String, settle: Settle) {
        let (client, id, printer) = (self.client.clone(), job.id.clone(), self.printer.clone());
        let mut parting = self.parting();
        while parting.try_join_next().is_some() {}
        parting.spawn(let_go(client, id, reservation, settle, printer));
    }

    /// Does one job. Returns whether it was committed.
    async fn work_on(&self, job: Job, times: Times, mut phase: watch::Receiver<Phase>) -> bool {
        let begun = Instant::now();
        let reservation = job.reservation.clone().unwrap_or_default();
        let lease = Lease {
            id: job.id.clone(),
            reservation: reservation.clone(),
            length: self.work.lease,
            asked: times.asked,
            since: times.since,
            longest: job.max_run_ms.map(Duration::from_millis),
            kill_after: self.work.kill_after,
            first: self.third(),
        };
        let (state, held) = watch::channel(LeaseState::Held);
        let mut keeper = None;
        let Done { settle, ended, is_breathless } = if lease.is_over() {
            Done::unrun(Settle::give_back("its time may be over: the answer came late"))
        } else {
            keeper = Some(Task(tokio::spawn(lease.keep(self.client.clone(), state))));
            self.execute(&job, held.clone(), phase.clone()).await
        };
        let (outcome, reason) = match settle {
            Ok(settle) => match settle.send(self, &job.id, &reservation, (held, phase.clone())).await {
                Ok(settle) => (settle.outcome, settle.reason),
                Err(Unsent { settle, failure }) => {
                    let reason = failure.to_string();
                    if !settle.is_refused_by(&failure) {
                        self.is_unsure.fetch_or(!is_never(&failure), Ordering::Relaxed);
                        self.say_later(&job, reservation, settle);
                    }
                    ("lost", reason)
                }
            },
            Err(Lost { reason, by }) => {
                if by.is_some() {
                    self.say_later(&job, reservation, Settle::failed(reason.clone()));
                }
                ("lost", reason)
            }
        };
        drop(keeper);
        self.tell(&job, outcome, &reason, ended, begun.elapsed());
        if is_breathless {
            let _ = timeout(BREATH, phase.wait_for(|phase| *phase != Phase::Working)).await;
        }
        outcome == "committed"
    }

    /// Runs the command, and returns what is to be said to the server.
    async fn execute(
        &self,
        job: &Job,
        held: watch::Receiver<LeaseState>,
        phase: watch::Receiver<Phase>,
    ) -> Done {
        if *phase.borrow() != Phase::Working {
            return Done::unrun(Settle::give_back("the worker stopped"));
        }
        let bytes = match payload(job, self.work.text) {
            Ok(bytes) => bytes,
            Err(failure) => return Done::unrun(Settle::failed(failure.to_string())),
        };
        let running = match start(self, job, bytes) {
            Ok(running) => running,
            Err(error) if error.kind() == ErrorKind::ArgumentListTooLong => {
                return Done::unrun(Settle::failed(format!("the command cannot be started: {error}")));
            }
            Err(error) => return self.unstarted(&error),
        };
        let run = running.finish(&self.work, held, phase, &self.printer).await;
        Done { settle: Settle::of(&run, &self.work), ended: Some(run.ended), is_breathless: false }
    }

    /// Gives back a job whose command cannot be started, which is no fault of the job.
    fn unstarted(&self, error: &std::io::Error) -> Done {
        if is_lasting(error) {
            // No job would do better.
            self.printer.note(&format!("the command cannot be started: {error}"));
            self.is_broken.store(true, Ordering::Relaxed);
            return Done::unrun(Settle::give_back("the command cannot be started"));
        }
        let settle = Settle::give_back(&format!("the command cannot be started now: {error}"));
        Done { is_breathless: true, ..Done::unrun(settle) }
    }

    /// Reports the outcome of a job: a line of JSON for scripts, one on standard error for people.
    fn tell(&self, job: &Job, outcome: &str, reason: &str, ended: Option<Ended>, took: Duration) {
        if self.out.is_json {
            let (code, signal) = match ended {
                Some(Ended::Code(code)) => (Some(code), None),
                Some(Ended::Signal(signal)) => (None, Some(signal)),
                None => (None, None),
            };
            let line = Body::default()
                .text("id", Some(&job.id))
                .text("queue", Some(&job.queue))
                .raw("attempt", Some(job.attempt))
                .text("outcome", Some(outcome))
                .raw("exit_code", code)
                .raw("signal", signal)
                .raw("took_ms", Some(ms(took)))
                .raw("reason", (!reason.is_empty()).then(|| quoted(reason)));
            let line = line.json();
            self.printer.line(&if self.out.is_terminal() { shown_json(&line) } else { line });
            return;
        }
        if outcome == "committed" && self.work.quiet {
            return;
        }
        let why = if reason.is_empty() { String::new() } else { format!(": {}", shown(reason)) };
        let (id, queue, attempts) = (shown(&job.id), shown(&job.queue), job.attempts());
        let (outcome, took) = (outcome.replace('_', " "), human(ms(took)));
        self.printer.note(&format!("{id} of {queue}, attempt {attempts}: {outcome} after {took}{why}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_command_that_cannot_be_run_ends_the_worker() {
        use rustix::io::Errno;
        for (errno, is_so) in [
            (Errno::NOENT, true),
            (Errno::ACCESS, true),
            (Errno::NOEXEC, true),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::AGAIN, false),
            (Errno::NOMEM, false),
            (Errno::TXTBSY, false),
        ] {
            assert_eq!(is_lasting(&std::io::Error::from(errno)), is_so, "{errno}");
        }
    }
}
