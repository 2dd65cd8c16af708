//! Telemetry: the name and help text of every metric, declared once, and the format of the log.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $text;)*
    };
}

names! {
    /// HTTP requests, by `method`, `route` and `status`.
    HTTP_REQUESTS = "tailback_http_requests_total";
    /// Seconds from a request's arrival to its response, by `method` and `route`.
    HTTP_SECONDS = "tailback_http_request_seconds";
    /// Open connections.
    HTTP_CONNECTIONS = "tailback_http_connections";
    /// Bytes that requests and responses take.
    HTTP_MEMORY = "tailback_http_memory_bytes";
    /// Events of jobs, by `event`.
    JOB_EVENTS = "tailback_job_events_total";
    /// Seconds from when a job was due to its delivery.
    QUEUE_SECONDS = "tailback_job_queue_seconds";
    /// Seconds from a job's delivery to its commit or move.
    RUN_SECONDS = "tailback_job_run_seconds";
    /// Number of queues that have jobs.
    QUEUES = "tailback_queues";
    /// Number of jobs, by `queue` and `state`.
    JOBS = "tailback_jobs";
    /// Age of the oldest ready job, by `queue`.
    OLDEST_READY_SECONDS = "tailback_oldest_ready_seconds";
    /// Duration of store calls in seconds, by `call`.
    STORE_SECONDS = "tailback_store_call_seconds";
    /// Failed store calls, by `call` and `kind`.
    STORE_ERRORS = "tailback_store_errors_total";
    /// Batch size: elements per store call, by `call`.
    STORE_BATCH = "tailback_store_batch_size";
    /// Seconds for which a round waited for others to gather, because other servers were busy, by `lane`.
    GATHERED_SECONDS = "tailback_rounds_gathered_seconds";
    /// Signals sent to other servers, by `kind`.
    SIGNALS_TOLD = "tailback_signals_told_total";
    /// Signals received from other servers, by `kind`.
    SIGNALS_HEARD = "tailback_signals_heard_total";
    /// How often it was begun to listen to other servers: more than once means that it was interrupted.
    LISTENING_BEGINS = "tailback_listening_begins_total";
    /// Runs of background tasks, by `task` and `outcome`.
    TASK_RUNS = "tailback_task_runs_total";
    /// Duration of the last run of a background task in seconds, by `task`.
    TASK_SECONDS = "tailback_task_last_run_seconds";
    /// Unix time in seconds when the last run of a background task ended, by `task`.
    TASK_LAST_RUN = "tailback_task_last_run_timestamp_seconds";
    /// Items that background tasks processed, by `task`: leases expired, keys pruned …
    TASK_DONE = "tailback_task_done_total";
    /// Corrections of the counters, in jobs.
    COUNTS_CORRECTED = "tailback_counts_corrected_total";
}

/// Installs the metrics recorder of this process. Returns the handle that renders the metrics.
pub fn install_metrics() -> anyhow::Result<PrometheusHandle> {
    let seconds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
    let long = [0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0];
    let sizes = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1000.0];
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(HTTP_SECONDS.into()), &seconds)?
        .set_buckets_for_metric(Matcher::Full(STORE_SECONDS.into()), &seconds)?
        .set_buckets_for_metric(Matcher::Full(GATHERED_SECONDS.into()), &seconds)?
        .set_buckets_for_metric(Matcher::Full(QUEUE_SECONDS.into()), &long)?
        .set_buckets_for_metric(Matcher::Full(RUN_SECONDS.into()), &long)?
        .set_buckets_for_metric(Matcher::Full(STORE_BATCH.into()), &sizes)?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    describe_counter!(HTTP_REQUESTS, "HTTP requests, by method, route and status");
    describe_histogram!(HTTP_SECONDS, Unit::Seconds, "Time from a request's arrival to its response");
    describe_gauge!(HTTP_CONNECTIONS, "Open connections");
    describe_gauge!(HTTP_MEMORY, Unit::Bytes, "Memory that requests and responses take");
    describe_counter!(JOB_EVENTS, "Events of jobs on this server, by event");
    describe_histogram!(QUEUE_SECONDS, Unit::Seconds, "Time from when a job was due to its delivery");
    describe_histogram!(RUN_SECONDS, Unit::Seconds, "Time from a job's delivery to its commit or move");
    describe_histogram!(STORE_SECONDS, Unit::Seconds, "Duration of store calls, by call");
    describe_counter!(STORE_ERRORS, "Failed store calls, by call and kind");
    describe_histogram!(STORE_BATCH, "Batch size: elements per store call");
    let gathered = "Time that rounds waited for others to gather, because other servers were busy, by lane";
    describe_histogram!(GATHERED_SECONDS, Unit::Seconds, gathered);
    describe_counter!(SIGNALS_TOLD, "Signals sent to other servers, by kind");
    describe_counter!(SIGNALS_HEARD, "Signals received from other servers, by kind");
    describe_counter!(LISTENING_BEGINS, "How often this server began to listen to others, or began anew");
    describe_counter!(TASK_RUNS, "Runs of background tasks, by task and outcome");
    describe_gauge!(TASK_SECONDS, Unit::Seconds, "Duration of the last run of a background task");
    describe_gauge!(TASK_LAST_RUN, Unit::Seconds, "Unix time when the last run of a background task ended");
    describe_counter!(TASK_DONE, "Items that background tasks processed, by task");
    describe_counter!(COUNTS_CORRECTED, "Corrections of the counters, in jobs");
    Ok(handle)
}

/// Counts an event of `jobs` jobs.
pub fn count_events(event: &'static str, jobs: u64) {
    counter!(JOB_EVENTS, "event" => event).increment(jobs);
}

/// Records the time from when a job was due to its delivery.
pub fn queue_time(ms: u64) {
    static HANDLE: LazyLock<Histogram> = LazyLock::new(|| histogram!(QUEUE_SECONDS));
    HANDLE.record(Duration::from_millis(ms));
}

/// Records the time from a job's delivery to its commit or move.
pub fn run_time(ms: u64) {
    static HANDLE: LazyLock<Histogram> = LazyLock::new(|| histogram!(RUN_SECONDS));
    HANDLE.record(Duration::from_millis(ms));
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
            count: counter!(HTTP_REQUESTS, "method" => method, "route" => labels.0.clone(), "status" => labels.1),
            seconds: histogram!(HTTP_SECONDS, "method" => method, "route" => labels.0),
        };
        record(&new);
        all.entry(route.into()).or_default().push(new);
    });
}

/// Adds `change` to the number of open connections.
pub fn connections(change: f64) {
    gauge!(HTTP_CONNECTIONS).increment(change);
}

/// Sets how many bytes requests and responses take.
pub fn memory(bytes: usize) {
    gauge!(HTTP_MEMORY).set(bytes as f64);
}

/// Records the duration and the batch size of a store call.
pub fn store_call(call: &'static str, took: Duration, elements: usize) {
    histogram!(STORE_SECONDS, "call" => call).record(took);
    histogram!(STORE_BATCH, "call" => call).record(elements as f64);
}

/// Counts a failed store call.
pub fn store_error(call: &'static str, kind: &'static str) {
    counter!(STORE_ERRORS, "call" => call, "kind" => kind).increment(1);
}

/// Measures how long a round waited for others to gather.
pub fn gathered(lane: &'static str, took: Duration) {
    histogram!(GATHERED_SECONDS, "lane" => lane).record(took);
}

/// Counts a signal sent to other servers.
pub fn signal_told(kind: &'static str) {
    counter!(SIGNALS_TOLD, "kind" => kind).increment(1);
}

/// Counts a signal received from another server.
pub fn signal_heard(kind: &'static str) {
    counter!(SIGNALS_HEARD, "kind" => kind).increment(1);
}

/// Counts that it is begun to listen to other servers.
pub fn listening_begins() {
    counter!(LISTENING_BEGINS).increment(1);
}

#[expect(clippy::disallowed_methods, reason = "for operators of this machine, not for deadlines")]
fn unix_seconds() -> f64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    since_epoch.unwrap_or_default().as_secs_f64()
}

/// Records a run of a background task; `done` is `None` if it failed.
pub fn task_run(task: &'static str, took: Duration, done: Option<u64>) {
    let outcome = if done.is_some() { "ok" } else { "error" };
    counter!(TASK_RUNS, "task" => task, "outcome" => outcome).increment(1);
    gauge!(TASK_SECONDS, "task" => task).set(took.as_secs_f64());
    gauge!(TASK_LAST_RUN, "task" => task).set(unix_seconds());
    counter!(TASK_DONE, "task" => task).increment(done.unwrap_or(0));
}

/// Counts a correction of the counters by `jobs` jobs.
pub fn counts_corrected(jobs: u64) {
    counter!(COUNTS_CORRECTED).increment(jobs);
}

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable lines.
    Human,
    /// One JSON object per line.
    Json,
}

/// Reads a filter of the log: a level, or several `target=level` with commas between them. The error says which part is neither.
pub fn log_filter(text: &str) -> Result<Targets, String> {
    // `Targets` takes a word that is no level for a target whose every line is shown: a typo would silence all else.
    let wrong = text.split(',').map(str::trim).find(|part| !is_directive(part));
    if let Some(part) = wrong {
        return Err(format!("{part:?} is neither a level nor TARGET=LEVEL"));
    }
    text.parse().map_err(|error: tracing_subscriber::filter::ParseError| error.to_string())
}

fn is_directive(part: &str) -> bool {
    let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
    !level.is_empty() && level.parse::<LevelFilter>().is_ok()
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

/// Installs the logger, which writes to standard error.
pub fn install_log(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = log_filter(filter).map_err(|what| anyhow::anyhow!("log.filter: {what}"))?;
    // Where nobody reads the log any more, its errors could not be written either, and `eprintln!` panics.
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let lines = match format {
        LogFormat::Human => {
            let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
            lines.with_target(false).with_ansi(is_terminal).boxed()
        }
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_of_levels_and_targets_with_levels() {
        for filter in [
            "info",
            "off",
            "INFO",
            "info,tailback::store=debug",
            "tailback=trace, mongodb=warn",
            "12345=info",
        ] {
            assert!(log_filter(filter).is_ok(), "{filter}");
        }
        for (filter, part) in [
            ("warning", "warning"),
            ("info,tailback", "tailback"),
            ("", ""),
            ("tailback=loud", "tailback=loud"),
        ] {
            let error = log_filter(filter).unwrap_err();
            assert_eq!(error, format!("{part:?} is neither a level nor TARGET=LEVEL"));
        }
    }

    #[test]
    fn many_events_are_few_lines() {
        let (throttle, start) = (Throttle::new(), Instant::now());
        let lines: Vec<_> =
            (0..100).filter_map(|n| throttle.due_at(start + n * Duration::from_millis(100))).collect();
        assert_eq!(lines, [0, 49]);
        assert_eq!(throttle.due_at(start + Duration::from_secs(100)), Some(49));
    }
}
