//! Drives background tasks: each runs again and again, sleeping in between until its time comes or its alarm
//! wakes it. A run that fails is logged and retried; a task that ends or panics ends the server, which is
//! better than a server that has quietly stopped to take back reservations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::queue::{Error, Run};
use crate::telemetry;

/// The longest sleep before a run that failed is retried.
const RETRY: Duration = Duration::from_secs(1);

/// A run of a task under way.
type Running = BoxFuture<'static, Result<Run, Error>>;

/// Work that is done again and again. A run is idempotent, and safe beside runs on other servers.
pub struct Task {
    name: &'static str,
    interval: Duration,
    alarm: Option<Arc<Notify>>,
    run: Box<dyn Fn() -> Running + Send + Sync>,
}

impl Task {
    /// A task of this name in `/stats`, metrics and the log. `interval` is the longest sleep between two
    /// runs.
    pub fn new<F>(name: &'static str, interval: Duration, run: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Run, Error>> + Send + 'static,
    {
        Self { name, interval, alarm: None, run: Box::new(move || run().boxed()) }
    }

    /// The sleep ends early when this is notified.
    pub fn woken_by(self, alarm: Arc<Notify>) -> Self {
        Self { alarm: Some(alarm), ..self }
    }
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
    /// Why the last one did that failed; absent where none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// How many milliseconds ago that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error_ms_ago: Option<u64>,
    /// How many things it has done since the server started.
    pub done: u64,
    /// How many milliseconds ago the last run ended; absent before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run_ms_ago: Option<u64>,
    /// How long the last run took, in milliseconds.
    pub last_run_took_ms: f64,
    /// How many things the last run did.
    pub last_run_done: u64,
    #[serde(skip)]
    #[schema(ignore)]
    ended: Option<Instant>,
    #[serde(skip)]
    #[schema(ignore)]
    failed: Option<Instant>,
}

/// How the tasks are doing; cheap to clone.
#[derive(Clone, Default)]
pub struct Statuses(Arc<Mutex<Vec<TaskStatus>>>);

impl Statuses {
    /// Returns every task's status, in the order of their start.
    pub fn list(&self) -> Vec<TaskStatus> {
        let mut list = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        for status in &mut list {
            let ago = |at: Instant| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
            (status.last_run_ms_ago, status.last_error_ms_ago) =
                (status.ended.map(ago), status.failed.map(ago));
        }
        list
    }

    fn add(&self, name: &'static str) -> usize {
        let mut list = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        list.push(TaskStatus { name, ..TaskStatus::default() });
        list.len() - 1
    }

    fn note(&self, index: usize, took: Duration, result: &Result<Run, Error>) {
        let done = result.as_ref().ok().map(|run| run.done);
        let mut list = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(status) = list.get_mut(index) else { return };
        status.runs += 1;
        status.failures += u64::from(done.is_none());
        status.done += done.unwrap_or(0);
        status.last_run_took_ms = (took.as_secs_f64() * 1e6).round() / 1e3;
        status.last_run_done = done.unwrap_or(0);
        status.ended = Some(Instant::now());
        if let Err(error) = result {
            // What is behind it is in the log.
            (status.last_error, status.failed) = (Some(error.to_string()), status.ended);
        }
    }
}

/// Runs tasks until it is stopped.
#[derive(Default)]
pub struct Driver {
    tasks: JoinSet<()>,
    names: HashMap<tokio::task::Id, &'static str>,
    statuses: Statuses,
    stop: CancellationToken,
}

impl Driver {
    /// Returns how the tasks are doing.
    pub fn statuses(&self) -> Statuses {
        self.statuses.clone()
    }

    /// Starts a task.
    pub fn start(&mut self, task: Task) {
        let index = self.statuses.add(task.name);
        telemetry::task_known(task.name);
        let (statuses, stop) = (self.statuses.clone(), self.stop.clone());
        let name = task.name;
        let handle = self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = drive(&task, &statuses, index) => {}
            }
        });
        self.names.insert(handle.id(), name);
    }

    /// Returns when a task has ended by itself, which it should not, and why.
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

async fn drive(task: &Task, statuses: &Statuses, index: usize) {
    let mut failing = false;
    loop {
        let start = Instant::now();
        let result = (task.run)().await;
        let done = result.as_ref().ok().map(|run| run.done);
        statuses.note(index, start.elapsed(), &result);
        telemetry::task_run(task.name, start.elapsed(), done);
        let sleep = match result {
            Ok(run) => {
                if std::mem::take(&mut failing) {
                    tracing::debug!(task = task.name, "the background task works again");
                }
                run.again_in.unwrap_or(task.interval).min(task.interval)
            }
            Err(error) => {
                // Logged once, and not for each task where the store is away: that is one event, which its calls report.
                let is_away = matches!(&error, Error::Store(error) if error.is_away());
                if !std::mem::replace(&mut failing, true) && !is_away {
                    let error = crate::store::chain(&error);
                    tracing::warn!(
                        task = task.name,
                        error,
                        "a run of the background task failed; retrying until one succeeds"
                    );
                }
                task.interval.min(RETRY)
            }
        };
        let alarm = async {
            match &task.alarm {
                Some(alarm) if !failing => alarm.notified().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = alarm => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_told() {
        let statuses = Statuses::default();
        let task = statuses.add("fails");
        assert_eq!(statuses.list()[0].last_error, None);
        statuses.note(task, Duration::ZERO, &Err(Error::Overloaded));
        statuses.note(task, Duration::ZERO, &Ok(Run::default()));
        let status = statuses.list().remove(0);
        assert_eq!((status.runs, status.failures), (2, 1));
        assert_eq!(status.last_error, Some(Error::Overloaded.to_string()));
        assert!(status.last_error_ms_ago.is_some());
    }

    #[tokio::test]
    async fn a_task_that_dies_is_noticed() {
        let mut driver = Driver::default();
        driver.start(Task::new("panics", Duration::from_millis(1), || async {
            panic!("as the test wants it")
        }));
        let failure = driver.failed().await;
        assert!(
            failure.contains("task panics failed") && failure.contains("as the test wants it"),
            "{failure}"
        );
    }
}
