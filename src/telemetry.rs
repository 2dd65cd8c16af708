//! Telemetry: what is measured where it happens, and the format of the log. Every metric is declared in [`catalog`].

pub mod catalog;
mod line;
mod log;
pub mod process;
pub mod trace;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};
use std::thread::LocalKey;
use std::time::{Duration, Instant};

use metrics::{
    Counter, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use self::catalog::{
    ALL, COUNTS_CORRECTED, GATHERED_SECONDS, HTTP_CONNECTIONS, HTTP_MEMORY, HTTP_REQUESTS, HTTP_SECONDS,
    Kind, LISTENING_BEGINS, ROUND_SECONDS, ROUND_SIZE, SIGNALS_HEARD, SIGNALS_TOLD, STORE_BATCH,
    STORE_ERRORS, STORE_SECONDS, TASK_DONE, TASK_LAST_RUN, TASK_LAST_SUCCESS, TASK_RUNS, TASK_SECONDS,
    TRACE_DROPPED, TRACE_EXPORTED,
};
pub use self::log::{LogFormat, flush_log, install_log, log_filter};

/// When this process started measuring, as Unix time in seconds.
static STARTED: LazyLock<f64> = LazyLock::new(unix_seconds);

/// Returns when this process started, as Unix time in seconds.
pub fn started() -> f64 {
    *STARTED
}

/// Installs the metrics recorder of this process. Returns the handle that renders the metrics.
pub fn install_metrics() -> anyhow::Result<PrometheusHandle> {
    let seconds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
    let sizes = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1000.0];
    let mut builder = PrometheusBuilder::new();
    for metric in [HTTP_SECONDS, STORE_SECONDS, ROUND_SECONDS, GATHERED_SECONDS] {
        builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.into()), &seconds)?;
    }
    for metric in [STORE_BATCH, ROUND_SIZE] {
        builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.into()), &sizes)?;
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    for metric in ALL {
        match metric.kind {
            Kind::Counter => describe_counter!(metric.name, metric.help),
            Kind::Gauge => describe_gauge!(metric.name, metric.help),
            Kind::Histogram => describe_histogram!(metric.name, metric.help),
        }
    }
    begin_at_zero();
    LazyLock::force(&STARTED);
    Ok(handle)
}

/// Makes the series of counters that are known beforehand, so that their first increment is one: a series that begins with 1
/// has not grown.
fn begin_at_zero() {
    for reason in trace::export::Dropped::ALL {
        counter!(TRACE_DROPPED.name, "reason" => reason.as_str()).increment(0);
    }
    for metric in [LISTENING_BEGINS, COUNTS_CORRECTED, TRACE_EXPORTED] {
        counter!(metric.name).increment(0);
    }
    for kind in StoreFailure::ALL {
        counter!(STORE_ERRORS.name, "kind" => kind.as_str()).increment(0);
    }
    gauge!(HTTP_CONNECTIONS.name).set(0.0);
}

/// The same for the signals between servers, where there can be others.
pub fn signals_known(kinds: &[&'static str]) {
    for kind in kinds {
        counter!(SIGNALS_TOLD.name, "kind" => *kind).increment(0);
        counter!(SIGNALS_HEARD.name, "kind" => *kind).increment(0);
    }
}

/// The same for the rounds of a lane.
pub fn lane_known(lane: &'static str) {
    for metric in [ROUND_SIZE, ROUND_SECONDS, GATHERED_SECONDS] {
        drop(histogram!(metric.name, "lane" => lane));
    }
}

/// The same for the failures of a route.
pub fn route_known(method: &'static str, route: &str) {
    for status in ["500", "503"] {
        let route = route.to_owned();
        counter!(HTTP_REQUESTS.name, "method" => method, "route" => route, "status" => status).increment(0);
    }
}

/// The same for a background task that is started.
pub fn task_known(task: &'static str) {
    for outcome in ["ok", "error"] {
        counter!(TASK_RUNS.name, "task" => task, "outcome" => outcome).increment(0);
    }
    counter!(TASK_DONE.name, "task" => task).increment(0);
    for metric in [TASK_LAST_RUN, TASK_LAST_SUCCESS] {
        gauge!(metric.name, "task" => task).set(unix_seconds());
    }
}

/// The metrics of the requests of one kind.
struct Requests {
    method: &'static str,
    status: u16,
    count: Counter,
    seconds: Histogram,
}

thread_local! {
    /// The metrics of requests, by route. The recorder looks each up under a lock, by the hash of all of its labels: here that is
    /// done once for each kind of request and thread.
    static REQUESTS: RefCell<HashMap<Box<str>, Vec<Requests>>> = RefCell::default();
}

/// Counts a request and records its latency. Methods, routes and statuses must be few.
pub fn http_request(method: &'static str, route: &str, status: u16, took: Duration) {
    let record = |requests: &Requests| {
        requests.count.increment(1);
        requests.seconds.record(took);
    };
    REQUESTS.with_borrow_mut(|all| {
        let known = all.get(route).map(Vec::as_slice).unwrap_or_default();
        if let Some(known) = known.iter().find(|known| known.status == status && known.method == method) {
            return record(known);
        }
        let labels = (route.to_owned(), status.to_string());
        let new = Requests {
            method,
            status,
            count: counter!(HTTP_REQUESTS.name, "method" => method, "route" => labels.0.clone(), "status" => labels.1),
            seconds: histogram!(HTTP_SECONDS.name, "method" => method, "route" => labels.0),
        };
        record(&new);
        all.entry(route.into()).or_default().push(new);
    });
}

/// Adds `change` to the number of open connections.
pub fn connections(change: f64) {
    gauge!(HTTP_CONNECTIONS.name).increment(change);
}

/// Sets how many bytes requests and responses take.
pub fn memory(bytes: usize) {
    gauge!(HTTP_MEMORY.name).set(bytes as f64);
}

/// How long something takes, and how much it carries, by its name.
type Sized = Vec<(&'static str, Histogram, Histogram)>;

thread_local! {
    /// The same for calls of the store and for rounds: both are few.
    static STORE_CALLS: RefCell<Sized> = RefCell::default();
    static ROUNDS: RefCell<Sized> = RefCell::default();
}

/// Records a duration and a size under this name, whose metrics `make` looks up once.
fn record_sized(
    all: &'static LocalKey<RefCell<Sized>>,
    name: &'static str,
    took: Duration,
    size: usize,
    make: impl FnOnce() -> (Histogram, Histogram),
) {
    all.with_borrow_mut(|all| {
        // The same text may be in several places: it is compared where the place differs.
        let known = all.iter().position(|(known, ..)| std::ptr::eq(*known, name) || *known == name);
        let at = known.unwrap_or_else(|| {
            let (seconds, sizes) = make();
            all.push((name, seconds, sizes));
            all.len() - 1
        });
        if let Some((_, seconds, sizes)) = all.get(at) {
            seconds.record(took);
            sizes.record(size as f64);
        }
    });
}

/// Records the duration and the batch size of a store call.
pub fn store_call(call: &'static str, took: Duration, elements: usize) {
    record_sized(&STORE_CALLS, call, took, elements, || {
        (histogram!(STORE_SECONDS.name, "call" => call), histogram!(STORE_BATCH.name, "call" => call))
    });
}

/// Counts a failed store call. Which one it was is in the log.
pub fn store_error(kind: StoreFailure) {
    counter!(STORE_ERRORS.name, "kind" => kind.as_str()).increment(1);
}

/// How a call of the store failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFailure {
    /// The store was away, or did not answer in time.
    Unavailable,
    /// The file is damaged, or its disk cannot be read.
    Damaged,
    /// The disk is full.
    Full,
    /// It is no database that this server can run on.
    Unsuitable,
    /// What is stored cannot be read.
    Unreadable,
    /// Something that never should be.
    Internal,
}

impl StoreFailure {
    /// Every kind.
    pub const ALL: [Self; 6] =
        [Self::Unavailable, Self::Damaged, Self::Full, Self::Unsuitable, Self::Unreadable, Self::Internal];

    /// Returns the word for it in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Damaged => "damaged",
            Self::Full => "full",
            Self::Unsuitable => "unsuitable",
            Self::Unreadable => "unreadable",
            Self::Internal => "internal",
        }
    }
}

/// Records a round of a lane: how many requests it carried, and how long it took.
pub fn round(lane: &'static str, carried: usize, took: Duration) {
    record_sized(&ROUNDS, lane, took, carried, || {
        (histogram!(ROUND_SECONDS.name, "lane" => lane), histogram!(ROUND_SIZE.name, "lane" => lane))
    });
}

/// Measures how long a round waited for others to gather.
pub fn gathered(lane: &'static str, took: Duration) {
    histogram!(GATHERED_SECONDS.name, "lane" => lane).record(took);
}

/// Counts a signal sent to other servers.
pub fn signal_told(kind: &'static str) {
    counter!(SIGNALS_TOLD.name, "kind" => kind).increment(1);
}

/// Counts a signal received from another server.
pub fn signal_heard(kind: &'static str) {
    counter!(SIGNALS_HEARD.name, "kind" => kind).increment(1);
}

/// Counts that it is begun to listen to other servers.
pub fn listening_begins() {
    counter!(LISTENING_BEGINS.name).increment(1);
}

#[expect(clippy::disallowed_methods, reason = "for operators of this machine, not for deadlines")]
fn unix_seconds() -> f64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    since_epoch.unwrap_or_default().as_secs_f64()
}

/// Records a run of a background task; `done` is `None` if it failed.
pub fn task_run(task: &'static str, took: Duration, done: Option<u64>) {
    let outcome = if done.is_some() { "ok" } else { "error" };
    counter!(TASK_RUNS.name, "task" => task, "outcome" => outcome).increment(1);
    gauge!(TASK_SECONDS.name, "task" => task).set(took.as_secs_f64());
    let now = unix_seconds();
    gauge!(TASK_LAST_RUN.name, "task" => task).set(now);
    if done.is_some() {
        gauge!(TASK_LAST_SUCCESS.name, "task" => task).set(now);
    }
    counter!(TASK_DONE.name, "task" => task).increment(done.unwrap_or(0));
}

/// Counts a correction of the counters by `jobs` jobs.
pub fn counts_corrected(jobs: u64) {
    counter!(COUNTS_CORRECTED.name).increment(jobs);
}

/// How often a line stands for many events.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// A line of the log that stands for many events, so that an outage is a few lines: at most one in five seconds.
#[derive(Default)]
pub struct Throttle(Mutex<Throttled>);

#[derive(Default)]
struct Throttled {
    last: Option<Instant>,
    since: u64,
}

impl Throttle {
    /// A line that has not been written yet.
    pub const fn new() -> Self {
        Self(Mutex::new(Throttled { last: None, since: 0 }))
    }

    /// Returns how many events there were since the last line, and begins anew: what they were about is over.
    pub fn end(&self) -> u64 {
        let mut throttled = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        std::mem::take(&mut *throttled).since
    }

    /// Notes an event. Where a line is due, returns how many events there were since the last one, without this one.
    pub fn due(&self) -> Option<u64> {
        self.due_at(Instant::now())
    }

    fn due_at(&self, now: Instant) -> Option<u64> {
        let mut throttled = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if throttled.last.is_some_and(|last| now.saturating_duration_since(last) < LINE_EVERY) {
            throttled.since += 1;
            return None;
        }
        throttled.last = Some(now);
        Some(std::mem::take(&mut throttled.since))
    }
}

/// The line that says that calls of the store fail.
pub static STORE_FAILURES: Throttle = Throttle::new();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_events_are_few_lines() {
        let (throttle, start) = (Throttle::new(), Instant::now());
        let lines: Vec<_> =
            (0..100).filter_map(|n| throttle.due_at(start + n * Duration::from_millis(100))).collect();
        assert_eq!(lines, [0, 49]);
        assert_eq!(throttle.due_at(start + Duration::from_secs(100)), Some(49));
        assert_eq!(throttle.due_at(start + Duration::from_secs(101)), None);
        assert_eq!((throttle.end(), throttle.end()), (1, 0), "what no line has said is said at the end");
    }
}
