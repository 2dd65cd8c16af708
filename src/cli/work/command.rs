//! A job's command: started, fed, listened to, and stopped.

use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::Signal;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::crew::Shared;
use super::lease::{LeaseState, Lost};
use super::printer::Printer;
use super::reaper::{Ended, Group};
use super::{Phase, Work};
use crate::cli::client::is_traceparent;
use crate::cli::failure::Failure;
use crate::cli::view::Job;

/// How much of the end of standard error is kept for the error text: the server keeps 4096 bytes.
const TAIL: usize = 3800;
/// The longest value of a variable; the system refuses commands with much longer ones.
const VARIABLE_MAX: usize = 64 << 10;
/// The longest standard output that becomes a result.
const RESULT_MAX: usize = 16 << 20;
/// How long is waited for what stands in the pipes of a command that has ended.
const DRAIN: Duration = Duration::from_secs(1);

/// Why a command is stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The job is not this worker's any more, or may not be.
    Lost(Lost),
    /// The cancellation of the job was requested.
    Unwanted,
    /// The worker stops.
    Leaving,
    /// It took longer than it may.
    Late,
}

/// How a job's command went.
#[derive(Debug)]
pub struct Run {
    /// How it ended.
    pub ended: Ended,
    /// Why it was stopped, if it was.
    pub stop: Option<Stop>,
    /// The end of standard error.
    pub error: String,
    /// Standard output, if that is the result.
    pub output: Option<Vec<u8>>,
}

/// Returns the bytes that were pushed.
pub fn payload(job: &Job, is_text: bool) -> Result<Vec<u8>, Failure> {
    if let Some(base64) = &job.payload_base64 {
        return STANDARD.decode(base64).map_err(|_| Failure::Failed("its payload is no base64".to_owned()));
    }
    let raw = job.payload.as_deref().map_or("null", RawValue::get);
    if is_text && let Ok(text) = serde_json::from_str::<String>(raw) {
        return Ok(text.into_bytes());
    }
    Ok(raw.as_bytes().to_vec())
}

/// Sets what is known of the job.
fn describe(command: &mut Command, job: &Job, url: &str) {
    let raw = |value: &Option<Box<RawValue>>| value.as_deref().map(|raw| raw.get().to_owned());
    let facts = [
        ("ID", Some(job.id.clone())),
        ("QUEUE", Some(job.queue.clone())),
        ("RESERVATION", job.reservation.clone()),
        ("ATTEMPT", Some(job.attempt.to_string())),
        ("MAX_ATTEMPTS", Some(job.max_attempts.to_string())),
        ("PRIORITY", Some(job.priority.to_string())),
        ("CREATED_AT", Some(job.created_at.clone())),
        ("KEY", job.key.clone()),
        ("GROUP", job.group.clone()),
        ("BATCH", job.batch.clone()),
        ("HEADERS", raw(&job.headers)),
        ("PROGRESS", raw(&job.progress)),
        ("PAYLOAD_TYPE", Some(job.payload_type.clone().unwrap_or_else(|| "application/json".to_owned()))),
        ("LAST_ERROR", job.errors.last().map(|last| last.message.clone())),
        ("SERVER", Some(url.to_owned())),
    ];
    for (name, value) in facts {
        let name = format!("TAILBACK_JOB_{name}");
        // Of a worker that is itself a job's command.
        command.env_remove(&name);
        // The system knows no variables with a NUL in them.
        if let Some(value) = value.filter(|value| value.len() <= VARIABLE_MAX && !value.contains('\0')) {
            command.env(name, value);
        }
    }
}

/// The trace context among the headers of a job.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Traced {
    traceparent: Option<String>,
    tracestate: Option<String>,
}

/// Sets the trace of the job, so that what the command does belongs to it. Without one the command is in no trace: that of this
/// worker has nothing to do with the job.
fn set_trace(command: &mut Command, job: &Job) {
    let headers = job.headers.as_deref().map_or("{}", RawValue::get);
    let Traced { traceparent, tracestate } = serde_json::from_str(headers).unwrap_or_default();
    let traceparent = traceparent.filter(|value| is_traceparent(value));
    let is_fit = |value: &String| value.len() <= VARIABLE_MAX && !value.contains('\0');
    let tracestate = tracestate.filter(|value| traceparent.is_some() && is_fit(value));
    for (name, value) in [("TRACEPARENT", traceparent), ("TRACESTATE", tracestate)] {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

/// A command that was started.
pub struct Running {
    group: Group,
    ended: oneshot::Receiver<Ended>,
    input: JoinHandle<()>,
    error: JoinHandle<()>,
    tail: watch::Receiver<Vec<u8>>,
    output: Option<(JoinHandle<()>, watch::Receiver<Vec<u8>>)>,
}

/// Starts the command of a job.
pub fn start(shared: &Shared, job: &Job, payload: Vec<u8>) -> std::io::Result<Running> {
    let work = &shared.work;
    let mut command = Command::new(&work.command[0]);
    command.args(&work.command[1..]).stdin(Stdio::piped()).stderr(Stdio::piped());
    if work.result {
        command.stdout(Stdio::piped());
    } else if shared.out.is_json {
        // Standard output is the worker's own lines.
        command.stdout(std::io::stderr());
    }
    for (name, value) in shared.client.environment() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    describe(&mut command, job, &shared.client.url());
    set_trace(&mut command, job);
    let (mut child, group, ended) = shared.reaper.spawn(&mut command)?;
    let (mut stdin, stderr, stdout) = match pipes(&mut child) {
        Ok(pipes) => pipes,
        Err(error) => {
            // It runs already, and its job is given back.
            group.signal(Signal::KILL);
            return Err(error);
        }
    };
    // A command need not read its payload: then the pipe breaks.
    let input = tokio::spawn(async move { drop(stdin.write_all(&payload).await) });
    let (keep, tail) = watch::channel(Vec::new());
    let error = tokio::spawn(listen(stderr, keep, shared.printer.clone()));
    let output = stdout.map(|stdout| {
        let (keep, all) = watch::channel(Vec::new());
        (tokio::spawn(read(stdout, keep)), all)
    });
    Ok(Running { group, ended, input, error, tail, output })
}

type Pipes = (ChildStdin, ChildStderr, Option<ChildStdout>);

fn pipes(child: &mut std::process::Child) -> std::io::Result<Pipes> {
    let piped = || std::io::Error::other("a pipe is missing");
    let stdin = ChildStdin::from_std(child.stdin.take().ok_or_else(piped)?)?;
    let stderr = ChildStderr::from_std(child.stderr.take().ok_or_else(piped)?)?;
    Ok((stdin, stderr, child.stdout.take().map(ChildStdout::from_std).transpose()?))
}

/// Passes standard error on, and keeps its end.
async fn listen(mut from: impl AsyncRead + Unpin, keep: watch::Sender<Vec<u8>>, printer: Printer) {
    let (mut tail, mut buffer) = (VecDeque::new(), vec![0; 8192]);
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        tail.extend(&buffer[..read]);
        tail.drain(..tail.len().saturating_sub(TAIL));
        keep.send_replace(tail.iter().copied().collect());
        // Where this worker's own output is not read, the job goes on all the same.
        printer.error(buffer[..read].to_vec());
    }
}

async fn read(mut from: impl AsyncRead + Unpin, keep: watch::Sender<Vec<u8>>) {
    let mut buffer = vec![0; 8192];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        // What is beyond is read, so that the command goes on, and is reported as too long.
        keep.send_modify(|all| {
            all.extend_from_slice(&buffer[..read.min((RESULT_MAX + 1).saturating_sub(all.len()))]);
        });
    }
}

impl Running {
    /// Waits until the command has ended, or stops it where it must not go on.
    pub async fn finish(
        mut self,
        work: &Work,
        state: watch::Receiver<LeaseState>,
        leave: watch::Receiver<Phase>,
        printer: &Printer,
    ) -> Run {
        let mut watched = state.clone();
        let stop = tokio::select! {
            biased;
            ended = &mut self.ended => return self.done(ended, None).await,
            stop = reason(state, leave, work.timeout) => stop,
        };
        let is_allowed = self.group.signal(Signal::TERM);
        // Where the lease ends, another worker begins.
        let kill_after = match &stop {
            Stop::Lost(Lost { by: Some(by), .. }) => {
                work.kill_after.min(by.saturating_duration_since(Instant::now()))
            }
            _ => work.kill_after,
        };
        // What is stopped for another reason may lose its lease before it has ended.
        let lost = async {
            let is_lost = matches!(stop, Stop::Lost(_));
            if is_lost || watched.wait_for(|state| matches!(state, LeaseState::Lost(_))).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let in_time = tokio::select! {
            biased;
            ended = timeout(kill_after, &mut self.ended) => ended.ok(),
            () = lost => None,
        };
        let ended = match in_time {
            Some(ended) => ended,
            None if self.group.signal(Signal::KILL) && is_allowed => (&mut self.ended).await,
            None => {
                printer.note("a command cannot be stopped, and goes on: the system allows no signals to it");
                Ok(Ended::Signal(0))
            }
        };
        self.done(ended, Some(stop)).await
    }

    async fn done(mut self, ended: Result<Ended, oneshot::error::RecvError>, stop: Option<Stop>) -> Run {
        self.input.abort();
        // A process that has left the group may hold the pipes open.
        let _ = timeout(DRAIN, &mut self.error).await;
        self.error.abort();
        let error = String::from_utf8_lossy(&self.tail.borrow()).trim().to_owned();
        let output = match self.output.take() {
            Some((mut reads, all)) => {
                let _ = timeout(DRAIN, &mut reads).await;
                reads.abort();
                Some(all.borrow().clone())
            }
            None => None,
        };
        Run { ended: ended.unwrap_or(Ended::Signal(0)), stop, error, output }
    }
}

/// Waits until a command must not go on.
async fn reason(
    mut state: watch::Receiver<LeaseState>,
    mut leave: watch::Receiver<Phase>,
    limit: Option<Duration>,
) -> Stop {
    let lost = async {
        match state.wait_for(|state| *state != LeaseState::Held).await.as_deref() {
            Ok(LeaseState::Lost(lost)) => Stop::Lost(lost.clone()),
            Ok(_) => Stop::Unwanted,
            // The task that watches the lease is gone, and nothing is known of it.
            Err(_) => Stop::Lost(Lost {
                reason: "its lease is not watched any more".to_owned(),
                by: Some(Instant::now()),
            }),
        }
    };
    let leaving = async {
        let leaves = leave.wait_for(|phase| *phase >= Phase::Leaving).await.is_ok();
        if !leaves {
            std::future::pending::<()>().await;
        }
    };
    let late = async {
        match limit {
            Some(limit) => sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        stop = lost => stop,
        () = leaving => Stop::Leaving,
        () = late => Stop::Late,
    }
}

/// Returns the JSON that a command has printed as its result: itself, or a string.
pub fn result(output: &[u8]) -> Result<Option<String>, String> {
    if output.len() > RESULT_MAX {
        return Err(format!("its standard output is longer than {RESULT_MAX} bytes"));
    }
    let text = std::str::from_utf8(output).map_err(|_| "its standard output is no UTF-8".to_owned())?;
    let text = text.trim_end_matches(['\r', '\n']);
    Ok((!text.is_empty()).then(|| crate::cli::payload::value_or_text(text)))
}
