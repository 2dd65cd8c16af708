//! Drives background tasks: each runs again and again, sleeping in between until its time comes or its bell
//! rings. A run that fails is logged and repeated; a task that ends or panics ends the server, which is
//! better than a server that has quietly stopped to take back reservations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::queue::Error;
use crate::telemetry;

/// The longest sleep after a run that failed.
const RETRY: Duration = Duration::from_secs(5);

/// Work that is done again and again. A run is idempotent, and safe beside runs on other servers.
#[async_trait]
pub trait Task: Send + Sync + 'static {
    /// The word for it in `/stats`, metrics and the log.
    fn name(&self) -> &'static str;

    /// The longest sleep between two runs.
    fn interval(&self) -> Duration;

    /// Ends the sleep when it rings.
    fn bell(&self) -> Option<&Notify> {
        None
    }

    /// Does what there is to do now.
    async fn run_once(&self) -> Result<Run, Error>;
}

/// What a run has done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Run {
    /// How many things it did; what they are, the task's documentation says.
    pub done: u64,
    /// When it wants to run again; `None`: after its interval.
    pub again_in: Option<Duration>,
}

/// A task as operators see it in `/stats`.
#[derive(Debug, Clone, Default, serde::Serialize, utoipa::ToSchema)]
pub struct TaskStatus {
    /// The task.
    pub name: &'static str,
    /// How often it has run since the server started.
    pub runs: u64,
    /// How many of these runs failed.
    pub failures: u64,
    /// How many things it has done since the server started.
    pub done: u64,
    /// How many milliseconds ago the last run ended.
    pub last_run_ms_ago: Option<u64>,
    /// How long the last run took, in milliseconds.
    pub last_run_took_ms: f64,
    /// How many things the last run did.
    pub last_run_done: u64,
    #[serde(skip)]
    #[schema(ignore)]
    ended: Option<Instant>,
}

/// How the tasks are doing; cheap to clone.
#[derive(Clone, Default)]
pub struct Statuses(Arc<Mutex<Vec<TaskStatus>>>);

impl Statuses {
    /// Every task's status, in the order of their start.
    pub fn list(&self) -> Vec<TaskStatus> {
        let mut list = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        for status in &mut list {
            let ago = status.ended.map(|ended| ended.elapsed().as_millis());
            status.last_run_ms_ago = ago.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX));
        }
        list
    }

    fn add(&self, name: &'static str) -> usize {
        let mut list = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        list.push(TaskStatus { name, ..TaskStatus::default() });
        list.len() - 1
    }

    fn note(&self, place: usize, took: Duration, done: Option<u64>) {
        let mut list = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(status) = list.get_mut(place) else { return };
        status.runs += 1;
        status.failures += u64::from(done.is_none());
        status.done += done.unwrap_or(0);
        status.last_run_took_ms = (took.as_secs_f64() * 1e6).round() / 1e3;
        status.last_run_done = done.unwrap_or(0);
        status.ended = Some(Instant::now());
    }
}

/// Runs tasks until it is told to stop.
#[derive(Default)]
pub struct Driver {
    tasks: JoinSet<()>,
    names: HashMap<tokio::task::Id, &'static str>,
    statuses: Statuses,
    stop: CancellationToken,
}

impl Driver {
    /// How the tasks are doing.
    pub fn statuses(&self) -> Statuses {
        self.statuses.clone()
    }

    /// Starts a task.
    pub fn start(&mut self, task: impl Task) {
        let place = self.statuses.add(task.name());
        let (statuses, stop) = (self.statuses.clone(), self.stop.clone());
        let name = task.name();
        let handle = self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = drive(&task, &statuses, place) => {}
            }
        });
        self.names.insert(handle.id(), name);
    }

    /// Returns when a task has ended although nobody told it to, with what is known of it.
    pub async fn failed(&mut self) -> String {
        let name = |id| self.names.get(&id).copied().unwrap_or("?");
        match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => format!("the background task {} ended", name(id)),
            Some(Err(error)) => format!("the background task {} failed: {error}", name(error.id())),
            None => std::future::pending().await,
        }
    }

    /// Stops all tasks and waits for them.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn drive(task: &impl Task, statuses: &Statuses, place: usize) {
    let mut failing = false;
    loop {
        let start = Instant::now();
        let result = task.run_once().await;
        let done = result.as_ref().ok().map(|run| run.done);
        statuses.note(place, start.elapsed(), done);
        telemetry::task_run(task.name(), start.elapsed(), done);
        let sleep = match result {
            Ok(run) => {
                if std::mem::take(&mut failing) {
                    tracing::info!(task = task.name(), "the background task works again");
                }
                run.again_in.unwrap_or(task.interval()).min(task.interval())
            }
            Err(error) => {
                // Once: the store being away for an hour is one event, not 3,600.
                if !std::mem::replace(&mut failing, true) {
                    let error = crate::store::chain(&error);
                    tracing::warn!(
                        task = task.name(),
                        error,
                        "a run of the background task failed; it goes on trying"
                    );
                }
                task.interval().min(RETRY)
            }
        };
        let bell = async {
            match task.bell() {
                Some(bell) if !failing => bell.notified().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = bell => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Panics;

    #[async_trait]
    impl Task for Panics {
        fn name(&self) -> &'static str {
            "panics"
        }

        fn interval(&self) -> Duration {
            Duration::from_millis(1)
        }

        async fn run_once(&self) -> Result<Run, Error> {
            panic!("as the test wants it")
        }
    }

    #[tokio::test]
    async fn a_task_that_dies_is_noticed() {
        let mut driver = Driver::default();
        driver.start(Panics);
        let failure = driver.failed().await;
        assert!(
            failure.contains("task panics failed") && failure.contains("as the test wants it"),
            "{failure}"
        );
    }
}
