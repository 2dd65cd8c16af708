//! `tailback work`

mod ask;
mod command;
mod crew;
mod lease;
mod printer;
mod reaper;
mod settle;

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use self::crew::Crew;
use self::printer::Printer;
use super::failure::Failure;
use super::time::{human, ms, span};
use super::{Context, Run, told};

/// Arguments of `work`.
#[derive(Debug, Clone, clap::Args)]
pub struct Work {
    /// The queue; of several, names or prefixes such as mail.*, the first that has a job
    #[arg(required = true)]
    queues: Vec<String>,
    /// The command, and its arguments
    #[arg(required = true, last = true)]
    command: Vec<String>,
    /// How many commands run at once
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    concurrency: u32,
    /// One job, then end. Exit code 3 if there is none, 1 if it was not committed
    #[arg(long, conflicts_with_all = ["drain", "concurrency"])]
    once: bool,
    /// Until no job is ready, then end. Exit code 1 if one was not committed
    #[arg(long)]
    drain: bool,
    /// How long --once waits for a job
    #[arg(long, value_name = "SPAN", value_parser = span, requires = "once", default_value = "0s", hide_default_value = true)]
    wait: Duration,
    /// The lease of a job; it is extended for as long as its command runs
    #[arg(long, value_name = "SPAN", value_parser = lease, default_value = "60s")]
    lease: Duration,
    /// A command that takes longer is stopped, and its job rolled back
    #[arg(long, value_name = "SPAN", value_parser = span)]
    timeout: Option<Duration>,
    /// For how long exit code 75 puts a job off
    #[arg(long, value_name = "SPAN", value_parser = put_off, default_value = "30s")]
    put_off: Duration,
    /// How long commands may go on after SIGTERM or SIGINT, before they are stopped and their jobs given back
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "30s")]
    grace: Duration,
    /// How long a command that is stopped has between SIGTERM and SIGKILL
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "5s")]
    kill_after: Duration,
    /// How the name of this worker begins; else with the names of the machine and the process. Each process has its own
    #[arg(long, value_name = "NAME", value_parser = worker, allow_hyphen_values = true)]
    worker: Option<String>,
    /// What the command prints on standard output becomes the job's result
    #[arg(long)]
    result: bool,
    /// A payload that is a JSON string is given as its text
    #[arg(long)]
    text: bool,
    /// Say nothing of jobs that go well
    #[arg(long)]
    quiet: bool,
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = span(text)?;
    if lease < Duration::from_secs(1) { Err("it must be 1s or more".to_owned()) } else { Ok(lease) }
}

/// The longest time for which the server puts a job off.
const PUT_OFF_MAX: Duration = Duration::from_secs(365 * 86_400);

fn put_off(text: &str) -> Result<Duration, String> {
    let put_off = span(text)?;
    if put_off > PUT_OFF_MAX { Err("it must be 365d or less".to_owned()) } else { Ok(put_off) }
}

/// The server takes names of 128 bytes; the process adds its own end.
fn worker(text: &str) -> Result<String, String> {
    let is_short = (1..=119).contains(&text.len());
    if is_short { Ok(text.to_owned()) } else { Err("it must be 1 to 119 bytes long".to_owned()) }
}

impl Run for Work {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        self.check()?;
        let (leave, leaving) = watch::channel(Phase::Working);
        let grace = self.grace;
        let mut signals = Signals::listen()?;
        let printer = Printer::start()?;
        let of_signals = printer.clone();
        tokio::spawn(async move {
            signals.next().await;
            leave.send_replace(Phase::Ending);
            of_signals.note(&format!(
                "stopping: commands have {} to end; again to stop them now",
                human(ms(grace))
            ));
            let is_second = tokio::select! {
                () = tokio::time::sleep(grace) => false,
                () = signals.next() => true,
            };
            leave.send_replace(Phase::Leaving);
            // The second one asks for what the end of the grace has done already.
            if !is_second {
                signals.next().await;
            }
            signals.next().await;
            leave.send_replace(Phase::Gone);
            // Keeps the sender: its receivers read the last value.
            std::future::pending::<()>().await;
        });
        let ended = Crew::new(self, context, leaving, printer.clone())?.run().await;
        let code = match ended {
            Err(Failure::Closed) | Ok(_) => ended,
            // Not by standard error itself: a reader that does not read would block this worker for ever.
            Err(failure) => {
                printer.lines(told(&failure, context.out.is_json));
                Ok(failure.code())
            }
        };
        printer.flush().await;
        code
    }
}

impl Work {
    /// Returns whether the worker ends by itself.
    fn is_short(&self) -> bool {
        self.once || self.drain
    }

    /// A command that is not there would fail every job.
    fn check(&self) -> Result<(), Failure> {
        let name = &self.command[0];
        let is_there = |path: &std::path::Path| {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::metadata(path).is_ok_and(|of| of.is_file() && of.permissions().mode() & 0o111 != 0)
        };
        let found = if name.contains('/') {
            is_there(std::path::Path::new(name))
        } else {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| is_there(&folder.join(name)))
        };
        if found {
            return Ok(());
        }
        Err(Failure::Usage(format!("{} is no command that can be run here", super::shown::shown(name))))
    }
}

/// How far the worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// It takes jobs.
    Working,
    /// It takes none, and those that run may end.
    Ending,
    /// Those that run are stopped.
    Leaving,
    /// Those that run are killed, and nothing is said of their jobs.
    Gone,
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    /// None where it is ignored.
    hang_up: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let hang_up = if is_hang_up_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = received(&mut self.hang_up) => {}
        }
    }
}

/// Waits for this signal; without one, for ever.
async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Returns whether this process was started with SIGHUP ignored, as `nohup` does: to listen to it would end the worker with its terminal.
/// Not where the system does not show that.
fn is_hang_up_ignored() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hang_up(&status))
}

/// Returns whether a process with this status ignores SIGHUP, which is the lowest bit of the signals.
fn ignores_hang_up(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    ignored.is_some_and(|bits| bits & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_put_off_for_a_year_at_most() {
        assert_eq!(put_off("365d"), Ok(PUT_OFF_MAX));
        for wrong in ["366d", "60w", "8760h1ms", "soon"] {
            assert!(put_off(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn it_is_read_whether_sighup_is_ignored() {
        for (bits, is_so) in [
            ("0000000000000001", true),
            ("0000000000001001", true),
            ("0000000000001000", false),
            ("x", false),
        ] {
            let status = format!("Name:\ttailback\nSigBlk:\t0000000000000001\nSigIgn:\t{bits}\nSigCgt:\t0\n");
            assert_eq!(ignores_hang_up(&status), is_so, "{bits}");
        }
        assert!(!ignores_hang_up(""));
    }
}
