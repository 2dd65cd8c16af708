//! Commands run in process groups of their own, and nothing of them is left behind: whatever is in a group when its command ends is
//! killed, and every process that ends below this one is reaped, also those that a command has abandoned.

use std::collections::HashMap;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// A command that runs.
#[derive(Debug, Clone, Copy)]
pub struct Group(Pid);

impl Group {
    /// Sends a signal to the command and to all that it has started, as far as they are in its group. Returns whether the system
    /// allows it: not where the command runs as another user.
    pub fn signal(self, signal: Signal) -> bool {
        // A group that is gone needs none.
        rustix::process::kill_process_group(self.0, signal) != Err(rustix::io::Errno::PERM)
    }
}

/// Starts commands and reaps them.
#[derive(Clone, Default)]
pub struct Reaper(Arc<Mutex<HashMap<Pid, oneshot::Sender<Ended>>>>);

impl Reaper {
    /// Begins to reap.
    pub fn start() -> std::io::Result<Self> {
        // What commands abandon becomes a child of this process, as it would of the first process of a container.
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let reaper = Self::default();
        let (of_task, mut ended) = (reaper.clone(), signal(SignalKind::child())?);
        tokio::spawn(async move {
            while ended.recv().await.is_some() {
                of_task.reap();
            }
        });
        Ok(reaper)
    }

    /// Starts a command in a group of its own.
    pub fn spawn(&self, command: &mut Command) -> std::io::Result<(Child, Group, oneshot::Receiver<Ended>)> {
        use std::os::unix::process::CommandExt as _;
        // Locked until it is known: nothing is reaped meanwhile, neither it nor what `spawn` itself waits for.
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.process_group(0).spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| std::io::Error::other("the system has given no process id"))?;
        let (sender, receiver) = oneshot::channel();
        running.insert(pid, sender);
        Ok((child, Group(pid), receiver))
    }

    /// Kills all commands that run.
    pub fn kill_all(&self) {
        for pid in self.0.lock().unwrap_or_else(PoisonError::into_inner).keys() {
            Group(*pid).signal(Signal::KILL);
        }
    }

    fn reap(&self) {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let over: Vec<Pid> = running
            .keys()
            .copied()
            .filter(|pid| matches!(rustix::process::waitid(WaitId::Pid(*pid), look), Ok(Some(_))))
            .collect();
        for pid in over {
            // Not reaped yet, so that the number still means this group.
            Group(pid).signal(Signal::KILL);
            if let Ok(Some((_, status))) = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG)
                && let Some(sender) = running.remove(&pid)
            {
                // No receiver is left where the worker has given up.
                let _ = sender.send(ended(status));
            }
        }
        // The others are those that commands have left behind. A command that has ended since the look above is reported here.
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if let Some(sender) = running.remove(&pid) {
                Group(pid).signal(Signal::KILL);
                let _ = sender.send(ended(status));
            }
        }
    }
}

fn ended(status: WaitStatus) -> Ended {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ended::Code(code),
        (None, signal) => Ended::Signal(signal.unwrap_or_default()),
    }
}
