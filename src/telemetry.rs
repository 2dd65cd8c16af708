//! What Tailback tells about itself: every metric's name and meaning, declared once, and the log's form.

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $text;)*
    };
}

names! {
    /// Requests answered, by `method`, `route` and `status`.
    HTTP_REQUESTS = "tailback_http_requests_total";
    /// Seconds from a request's arrival to its answer, by `method` and `route`.
    HTTP_SECONDS = "tailback_http_request_seconds";
    /// Connections that are open.
    HTTP_CONNECTIONS = "tailback_http_connections";
    /// What happened to jobs, by `event`.
    JOB_EVENTS = "tailback_job_events_total";
    /// Seconds from a job's being due to its delivery.
    QUEUE_SECONDS = "tailback_job_queue_seconds";
    /// Seconds from a job's delivery to its commit or move.
    RUN_SECONDS = "tailback_job_run_seconds";
    /// Jobs, by `queue` and `state`.
    JOBS = "tailback_jobs";
    /// Age of the job that has been ready for longest, by `queue`.
    OLDEST_READY_SECONDS = "tailback_oldest_ready_seconds";
    /// Seconds that calls of the store took, by `call`.
    STORE_SECONDS = "tailback_store_call_seconds";
    /// Calls of the store that failed, by `call` and `kind`.
    STORE_ERRORS = "tailback_store_errors_total";
    /// Elements that travelled together in one call of the store, by `call`.
    STORE_BATCH = "tailback_store_batch_size";
    /// Signals that other servers were told, by `kind`.
    SIGNALS_TOLD = "tailback_signals_told_total";
    /// Signals that were heard of other servers, by `kind`.
    SIGNALS_HEARD = "tailback_signals_heard_total";
    /// How often listening to other servers began: more than once means that it was interrupted.
    LISTENING_BEGINS = "tailback_listening_begins_total";
    /// Runs of background tasks, by `task` and `outcome`.
    TASK_RUNS = "tailback_task_runs_total";
    /// Seconds that the last run of a background task took, by `task`.
    TASK_SECONDS = "tailback_task_last_run_seconds";
    /// When the last run of a background task ended, in seconds since 1970, by `task`.
    TASK_LAST_RUN = "tailback_task_last_run_timestamp_seconds";
    /// What background tasks did, by `task`: jobs taken back, keys forgotten …
    TASK_DONE = "tailback_task_done_total";
    /// By how many jobs counters were found to be off, and corrected.
    COUNTS_CORRECTED = "tailback_counts_corrected_total";
}

/// Makes this process keep metrics. Answers what renders them.
pub fn install_metrics() -> anyhow::Result<PrometheusHandle> {
    let seconds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
    let long = [0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0];
    let sizes = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1000.0];
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(HTTP_SECONDS.into()), &seconds)?
        .set_buckets_for_metric(Matcher::Full(STORE_SECONDS.into()), &seconds)?
        .set_buckets_for_metric(Matcher::Full(QUEUE_SECONDS.into()), &long)?
        .set_buckets_for_metric(Matcher::Full(RUN_SECONDS.into()), &long)?
        .set_buckets_for_metric(Matcher::Full(STORE_BATCH.into()), &sizes)?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    describe_counter!(HTTP_REQUESTS, "Requests answered, by method, route and status");
    describe_histogram!(HTTP_SECONDS, Unit::Seconds, "Time from a request's arrival to its answer");
    describe_gauge!(HTTP_CONNECTIONS, "Connections that are open");
    describe_counter!(JOB_EVENTS, "What happened to jobs on this server, by event");
    describe_histogram!(QUEUE_SECONDS, Unit::Seconds, "Time from a job's being due to its delivery");
    describe_histogram!(RUN_SECONDS, Unit::Seconds, "Time from a job's delivery to its commit or move");
    describe_histogram!(STORE_SECONDS, Unit::Seconds, "Time that calls of the store took, by call");
    describe_counter!(STORE_ERRORS, "Calls of the store that failed, by call and kind");
    describe_histogram!(STORE_BATCH, "Elements that travelled together in one call of the store");
    describe_counter!(SIGNALS_TOLD, "Signals that other servers were told, by kind");
    describe_counter!(SIGNALS_HEARD, "Signals that were heard of other servers, by kind");
    describe_counter!(LISTENING_BEGINS, "How often listening to other servers began, or began again");
    describe_counter!(TASK_RUNS, "Runs of background tasks, by task and outcome");
    describe_gauge!(TASK_SECONDS, Unit::Seconds, "Time that the last run of a background task took");
    describe_gauge!(TASK_LAST_RUN, Unit::Seconds, "When the last run of a background task ended, since 1970");
    describe_counter!(TASK_DONE, "What background tasks did, by task");
    describe_counter!(COUNTS_CORRECTED, "By how many jobs counters were found to be off, and corrected");
    Ok(handle)
}

/// Something happened to so many jobs.
pub fn count_events(event: &'static str, jobs: u64) {
    counter!(JOB_EVENTS, "event" => event).increment(jobs);
}

/// A job was delivered so many milliseconds after it was due.
pub fn queue_time(ms: u64) {
    histogram!(QUEUE_SECONDS).record(Duration::from_millis(ms));
}

/// A job was done so many milliseconds after it was delivered.
pub fn run_time(ms: u64) {
    histogram!(RUN_SECONDS).record(Duration::from_millis(ms));
}

/// A request was answered.
pub fn http_request(method: &'static str, route: &str, status: u16, took: Duration) {
    let route = route.to_owned();
    counter!(HTTP_REQUESTS, "method" => method, "route" => route.clone(), "status" => status.to_string())
        .increment(1);
    histogram!(HTTP_SECONDS, "method" => method, "route" => route).record(took);
}

/// So many more connections are open.
pub fn connections(change: f64) {
    gauge!(HTTP_CONNECTIONS).increment(change);
}

/// A call of the store took so long, for so many elements.
pub fn store_call(call: &'static str, took: Duration, elements: usize) {
    histogram!(STORE_SECONDS, "call" => call).record(took);
    histogram!(STORE_BATCH, "call" => call).record(elements as f64);
}

/// A call of the store failed.
pub fn store_error(call: &'static str, kind: &'static str) {
    counter!(STORE_ERRORS, "call" => call, "kind" => kind).increment(1);
}

/// Other servers were told something.
pub fn signal_told(kind: &'static str) {
    counter!(SIGNALS_TOLD, "kind" => kind).increment(1);
}

/// Another server told something.
pub fn signal_heard(kind: &'static str) {
    counter!(SIGNALS_HEARD, "kind" => kind).increment(1);
}

/// Listening to other servers begins.
pub fn listening_begins() {
    counter!(LISTENING_BEGINS).increment(1);
}

#[expect(clippy::disallowed_methods, reason = "for people who watch this machine, not for deadlines")]
fn unix_seconds() -> f64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    since_epoch.unwrap_or_default().as_secs_f64()
}

/// A background task ran.
pub fn task_run(task: &'static str, took: Duration, done: Option<u64>) {
    let outcome = if done.is_some() { "ok" } else { "error" };
    counter!(TASK_RUNS, "task" => task, "outcome" => outcome).increment(1);
    gauge!(TASK_SECONDS, "task" => task).set(took.as_secs_f64());
    gauge!(TASK_LAST_RUN, "task" => task).set(unix_seconds());
    counter!(TASK_DONE, "task" => task).increment(done.unwrap_or(0));
}

/// Counters were off by so many jobs.
pub fn counts_corrected(jobs: u64) {
    counter!(COUNTS_CORRECTED).increment(jobs);
}

/// How the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    Human,
    /// One JSON object a line.
    Json,
}

/// Begins to log to standard error. `filter` is a level, or directives as of `tracing_subscriber`.
pub fn install_log(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Human => builder.with_target(false).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}
