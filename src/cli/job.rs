//! `tailback job`

use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;
use hyper::Method;
use tokio::time::Instant;

use super::body::Body;
use super::client::{Answer, Call, query, segment};
use super::failure::{DONE, FAILED, Failure, NOTHING, printed};
use super::out::note;
use super::shown::{shown, shown_lines};
use super::time::{human, ms, span};
use super::view::{Job, Settled};
use super::{Context, Run};

/// The longest time that one call waits.
const CALL_WAIT: Duration = Duration::from_secs(60);

/// For how long a command waits until a job, or an operation, is over.
#[derive(Debug, Clone, clap::Args)]
pub struct Wait {
    /// Wait until it is over, at most this long; without a time: an hour. Exit code 3 if it is not over by then
    #[arg(long, value_name = "SPAN", value_parser = span, num_args = 0..=1, default_missing_value = "1h", require_equals = true)]
    wait: Option<Duration>,
}

impl Wait {
    /// Returns how long, if it is to wait.
    pub fn span(&self) -> Option<Duration> {
        self.wait
    }
}

/// Returns what is to be said of words such as `--wait 10s` where only `--wait=10s` is a time: what follows with a space would be
/// taken for a payload, or for what is to be done.
pub fn unclear(command: &clap::Command, words: &[String]) -> Option<String> {
    let mut command = command;
    for (n, word) in words.iter().enumerate().take_while(|(_, word)| *word != "--") {
        if let Some(own) = command.find_subcommand(word) {
            command = own;
        }
        let is_meant = word.strip_prefix("--").is_some_and(|name| {
            command.get_arguments().any(|arg| arg.get_long() == Some(name) && arg.is_require_equals_set())
        });
        if is_meant && let Some(next) = words.get(n + 1).filter(|next| span(next).is_ok()) {
            return Some(format!(
                "{word} {next}: write {word}={next} to wait so long, and whatever else it is before {word}"
            ));
        }
    }
    None
}

/// Arguments of `job`.
#[derive(Debug, clap::Args)]
pub struct JobCommand {
    /// The job
    id: String,
    /// What is done to it
    #[arg(value_enum, default_value_t = Action::Show, hide_default_value = true)]
    action: Action,
    /// The queue to which it is moved
    #[arg(long, value_name = "QUEUE", required_if_eq("action", "move"))]
    to: Option<String>,
    #[command(flatten)]
    wait: Wait,
}

/// What is done to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Print it: the default
    Show,
    /// Print its payload as it was pushed
    Payload,
    /// A dead or scheduled one is ready at once, and its attempts start again
    Retry,
    /// A scheduled one is due now
    Run,
    /// Take it back from its worker; the attempt does not count
    Release,
    /// A dead letter goes back to the queue where it died
    Redrive,
    /// Push a copy of one that is done or dead
    Replay,
    /// Put it into another queue (--to)
    Move,
    /// Remove it; the worker of a reserved one is asked to stop
    Cancel,
    /// Remove it, also if it is reserved
    Delete,
}

impl JobCommand {
    fn call(&self) -> Call {
        let path = format!("/v1/jobs/{}", segment(&self.id));
        let post = |verb: &str| Call::new(Method::POST, format!("{path}/{verb}"));
        match self.action {
            Action::Show => Call::get(path),
            Action::Payload => Call::get(format!("{path}/payload")),
            Action::Retry => post("retry"),
            Action::Run => post("run"),
            Action::Release => post("release"),
            Action::Redrive => post("redrive"),
            Action::Replay => Call::post(format!("{path}/replay"), "{}"),
            Action::Move => {
                Call::post(format!("{path}/move"), Body::default().text("queue", self.to.as_deref()).json())
            }
            Action::Cancel => Call::new(Method::DELETE, path),
            Action::Delete => Call::new(Method::DELETE, format!("{path}?force=true")),
        }
    }
}

impl Run for JobCommand {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        if let Some(wait) = self.wait.span() {
            let (mut id, is_done) = (self.id.clone(), self.action != Action::Show);
            if is_done {
                let answer = context.client.call(&self.call()).await?;
                if self.action == Action::Replay {
                    // It is the copy that is waited for.
                    id = answer.read::<Settled>()?.id;
                    note(&format!("job {} is pushed", shown(&id)));
                }
            }
            let finished = wait_for(context, &id, wait, is_done).await?;
            return print_finished(context, &finished);
        }
        let answer = context.client.call(&self.call()).await?;
        match self.action {
            Action::Payload => print_payload(context, &answer)?,
            _ if context.out.is_json => context.out.body(&answer.body)?,
            Action::Show => answer.read::<Job>()?.print(context.out)?,
            _ => {
                let settled: Settled = answer.read()?;
                let id = if settled.id.is_empty() { self.id } else { settled.id.clone() };
                Settled { id, ..settled }.print(context.out)?;
            }
        }
        Ok(DONE)
    }
}

/// Prints a payload as it is, but nothing to a terminal that it would obey.
fn print_payload(context: &Context, answer: &Answer) -> Result<(), Failure> {
    if !context.out.is_terminal() {
        return context.out.raw(&answer.body);
    }
    match std::str::from_utf8(&answer.body) {
        Ok(text) => context.out.line(shown_lines(text)),
        Err(_) => Err(Failure::Failed(format!(
            "the payload is {} bytes of {}: not for a terminal, but for a file or a pipe",
            answer.body.len(),
            shown(&answer.media)
        ))),
    }
}

/// A job that was waited for.
#[derive(Debug)]
pub struct Finished {
    body: Bytes,
    job: Job,
}

/// Waits until a job is done or dead, for so long. Goes on where the server is away meanwhile.
/// `was_there` says whether the server has just returned it.
pub async fn wait_for(
    context: &Context,
    id: &str,
    wait: Duration,
    mut was_there: bool,
) -> Result<Finished, Failure> {
    let until = Instant::now() + wait;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let now = left.min(CALL_WAIT);
        let path = query(&format!("/v1/jobs/{}", segment(id)), &[("wait_ms", Some(ms(now).to_string()))]);
        match context.client.call(&Call::get(path).waits(now)).await {
            Ok(answer) => {
                was_there = true;
                let job: Job = answer.read()?;
                if matches!(job.state.as_str(), "done" | "dead") {
                    return Ok(Finished { body: answer.body, job });
                }
                if left.is_zero() {
                    let state = shown(&job.state);
                    let text = format!("job {} is {state} after {}", shown(id), human(ms(wait)));
                    return Err(Failure::Nothing(text));
                }
            }
            Err(failure) if failure.is_passing() && was_there && !left.is_zero() => {
                note(&format!("{failure}; trying again"));
                tokio::time::sleep(Duration::from_secs(1).min(left)).await;
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Prints a job that was waited for: its result, if it is done. Exit code 1 if it is dead.
pub fn print_finished(context: &Context, finished: &Finished) -> Result<u8, Failure> {
    let code = match finished.job.state.as_str() {
        "done" => DONE,
        "dead" => FAILED,
        _ => NOTHING,
    };
    let result =
        if context.out.is_json { context.out.body(&finished.body) } else { finished.job.print(context.out) };
    printed(result, code)
}
