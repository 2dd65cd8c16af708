//! Every metric: its name, its kind, its labels and what it means. Help texts, the page's order of labels, `docs/metrics.md`
//! and the checks of `ops/` come from here.

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows while the process runs.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Observations, counted by size.
    Histogram,
}

impl Kind {
    /// Returns the word for it in the text format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric.
#[derive(Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it means, in a sentence.
    pub help: &'static str,
}

macro_rules! catalog {
    ($($name:ident: $kind:ident $text:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $name: Metric =
                Metric { name: $text, kind: Kind::$kind, labels: &[$($label),*], help: $help };
        )*
        /// Every metric, in the order of `docs/metrics.md`.
        pub const ALL: &[&Metric] = &[$(&$name),*];
    };
}

catalog! {
    BUILD_INFO: Gauge "tailback_build_info" ["version", "store"]
        "Always 1; the labels say which version runs, over which kind of store";
    READY: Gauge "tailback_ready" []
        "Whether this server is ready: 1, or 0 while its store is unavailable or it is shutting down";
    CPU_SECONDS: Counter "process_cpu_seconds_total" [] "CPU time of the process, of user and system";
    RESIDENT_BYTES: Gauge "process_resident_memory_bytes" [] "Physical memory of the process";
    VIRTUAL_BYTES: Gauge "process_virtual_memory_bytes" [] "Virtual memory of the process";
    OPEN_FDS: Gauge "process_open_fds" [] "Open file descriptors";
    MAX_FDS: Gauge "process_max_fds" [] "The limit on open file descriptors; +Inf if there is none";
    THREADS: Gauge "process_threads" [] "Threads of the process";
    START_TIME: Gauge "process_start_time_seconds" [] "Unix time at which the process started";

    JOB_EVENTS: Counter "tailback_job_events_total" ["event"] "Events of jobs on this server";
    QUEUE_SECONDS: Histogram "tailback_job_queue_seconds" []
        "Time from when a job was due to its delivery, of the deliveries of this server";
    RUN_SECONDS: Histogram "tailback_job_run_seconds" []
        "Time from the delivery of a job to its commit or move, of those on this server";
    QUEUE_JOB_EVENTS: Counter "tailback_queue_job_events_total" ["queue", "event"]
        "Events of jobs on this server by queue; (others) are the queues without series of their own";
    QUEUE_QUEUE_SECONDS: Histogram "tailback_queue_job_queue_seconds" ["queue"]
        "Time from when a job was due to its delivery by queue, of the deliveries of this server";
    QUEUE_RUN_SECONDS: Histogram "tailback_queue_job_run_seconds" ["queue"]
        "Time from the delivery of a job to its commit or move by queue, of those on this server";
    QUEUES: Gauge "tailback_queues" [] "Queues that have jobs in the store";
    JOBS: Gauge "tailback_jobs" ["queue", "state"]
        "Jobs in the store; (others) are the queues without series of their own";
    OLDEST_READY_SECONDS: Gauge "tailback_oldest_ready_seconds" ["queue"]
        "For how long the oldest ready job of a queue has been ready; 0 if none is";
    QUEUE_PAUSED: Gauge "tailback_queue_paused" ["queue"] "Whether the queue is paused, 1 or 0";
    QUEUE_ATTENTION: Gauge "tailback_queue_attention" ["queue", "reason"]
        "1 while a queue needs attention for this reason; no series otherwise, and for the most urgent queues only";
    ATTENTION_QUEUES: Gauge "tailback_attention_queues" ["reason"] "Queues that need attention, by the reason";
    UNJUDGED_QUEUES: Gauge "tailback_attention_unjudged_queues" []
        "Queues of which it is not known yet whether they need attention for some reason";
    OLDEST_APPROXIMATE: Gauge "tailback_oldest_ready_approximate_queues" []
        "Queues whose oldest ready job was looked up a while ago, and may have been taken since";

    WORKERS: Gauge "tailback_workers" [] "Workers that have sent a heartbeat and are not forgotten yet";
    WAITING_CONSUMERS: Gauge "tailback_waiting_consumers" []
        "Calls on this server that wait for jobs, or for a job to finish";
    WAITING_CONSUMERS_MAX: Gauge "tailback_waiting_consumers_max" []
        "The most such calls that may wait at once (limits.waiting)";
    SEMAPHORES: Gauge "tailback_semaphores" [] "Semaphores in the store";
    SEMAPHORE_CAPACITY: Gauge "tailback_semaphore_capacity" ["semaphore"] "How many jobs may hold the semaphore at once";
    SEMAPHORE_HELD: Gauge "tailback_semaphore_held" ["semaphore"] "How many jobs hold the semaphore";
    SEMAPHORE_WAITING: Gauge "tailback_semaphore_waiting" ["semaphore"] "How many jobs wait for the semaphore";
    SCHEDULES: Gauge "tailback_schedules" [] "Schedules in the store";
    SCHEDULE_LAG_SECONDS: Gauge "tailback_schedule_lag_seconds" []
        "For how long the schedule that is due for longest has not run; 0 if none is due";

    HTTP_REQUESTS: Counter "tailback_http_requests_total" ["method", "route", "status"] "HTTP requests";
    HTTP_SECONDS: Histogram "tailback_http_request_seconds" ["method", "route"]
        "Time from the arrival of a request to its response, waits for jobs included";
    HTTP_CONNECTIONS: Gauge "tailback_http_connections" [] "Open connections";
    HTTP_MEMORY: Gauge "tailback_http_memory_bytes" [] "Memory that requests and responses take";

    STORE_SECONDS: Histogram "tailback_store_call_seconds" ["call"] "Duration of calls of the store";
    STORE_ERRORS: Counter "tailback_store_errors_total" ["kind"] "Calls of the store that failed";
    STORE_BATCH: Histogram "tailback_store_batch_size" ["call"] "Jobs, or other elements, of calls of the store";
    STORE_SIZE: Gauge "tailback_store_size_bytes" ["part"] "What the database takes on its disk, of other programs too";
    STORE_CONNECTIONS: Gauge "tailback_store_connections" ["state"] "Connections of this server to the database";
    STORE_CONNECTIONS_MAX: Gauge "tailback_store_connections_max" [] "The most connections to one member of the database";
    STORE_WAITING: Gauge "tailback_store_connections_waiting" [] "Calls that wait for a connection to the database";
    STORE_OPENED: Counter "tailback_store_connections_opened_total" [] "Connections to the database that were opened";
    STORE_UNCONNECTED: Counter "tailback_store_connection_failures_total" [] "Calls that got no connection to the database";

    ROUND_SECONDS: Histogram "tailback_round_seconds" ["lane"] "Duration of rounds";
    ROUND_SIZE: Histogram "tailback_round_size" ["lane"] "Requests that travelled together in one round";
    GATHERED_SECONDS: Histogram "tailback_rounds_gathered_seconds" ["lane"]
        "Time for which rounds waited for others to gather, because other servers were busy";
    SIGNALS_TOLD: Counter "tailback_signals_told_total" ["kind"] "Signals sent to other servers";
    SIGNALS_HEARD: Counter "tailback_signals_heard_total" ["kind"] "Signals received from other servers";
    LISTENING_BEGINS: Counter "tailback_listening_begins_total" []
        "Times the subscription to other servers' signals was opened or reopened";

    TASK_RUNS: Counter "tailback_task_runs_total" ["task", "outcome"] "Runs of background tasks";
    TASK_SECONDS: Gauge "tailback_task_last_run_seconds" ["task"] "Duration of the last run of a background task";
    TASK_LAST_RUN: Gauge "tailback_task_last_run_timestamp_seconds" ["task"]
        "Unix time at which the last run of a background task ended; at which it was started before that";
    TASK_LAST_SUCCESS: Gauge "tailback_task_last_success_timestamp_seconds" ["task"]
        "Unix time at which the last run of a background task succeeded; at which it was started before that";
    TASK_DONE: Counter "tailback_task_done_total" ["task"] "Items that background tasks have processed";
    TRACE_EXPORTED: Counter "tailback_trace_spans_exported_total" [] "Spans that the receiver has taken";
    TRACE_DROPPED: Counter "tailback_trace_spans_dropped_total" ["reason"] "Spans that were recorded and not exported";
    COUNTS_CORRECTED: Counter "tailback_counts_corrected_total" [] "By how many jobs the kept counts were corrected";
}
