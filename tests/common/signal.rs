//! Signals to processes that a test has started.

use std::time::{Duration, Instant};

use nix::sys::signal::kill;
use nix::unistd::Pid;

pub use nix::sys::signal::Signal;

use super::server::PATIENCE;

/// Sends a signal. After a SIGSTOP the whole process stands still: on a busy machine its threads go on until the one that
/// takes the signal has its turn.
#[expect(clippy::disallowed_methods, reason = "some milliseconds, in which nothing is to be done")]
pub fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
    let end = Instant::now() + PATIENCE;
    while signal == Signal::SIGSTOP && !stands_still(pid) {
        assert!(Instant::now() < end, "process {pid} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn stands_still(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.into_iter().all(|thread| {
        // A thread that cannot be read has ended.
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with(['T', 't', 'Z', 'X']))
    })
}
