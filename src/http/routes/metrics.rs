//! The figures for Prometheus.

use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};

use crate::http::AppState;
use crate::http::exposition::{Page, Series};
use crate::job::QueueName;
use crate::queue::attention::Reason;
use crate::queue::meter::Event;
use crate::queue::totals::{Snapshot, Times, Total};
use crate::queue::{Board, Census, Queues, Stats};
use crate::store::{Counts, Pool};
use crate::telemetry;
use crate::telemetry::catalog::{
    ATTENTION_QUEUES, BUILD_INFO, CPU_SECONDS, JOB_EVENTS, JOBS, MAX_FDS, OLDEST_APPROXIMATE,
    OLDEST_READY_SECONDS, OPEN_FDS, QUEUE_ATTENTION, QUEUE_JOB_EVENTS, QUEUE_PAUSED, QUEUE_QUEUE_SECONDS,
    QUEUE_RUN_SECONDS, QUEUE_SECONDS, QUEUES, READY, RESIDENT_BYTES, RUN_SECONDS, SCHEDULE_LAG_SECONDS,
    SCHEDULES, SEMAPHORE_CAPACITY, SEMAPHORE_HELD, SEMAPHORE_WAITING, SEMAPHORES, START_TIME,
    STORE_CONNECTIONS, STORE_CONNECTIONS_MAX, STORE_OPENED, STORE_SIZE, STORE_UNCONNECTED, STORE_WAITING,
    THREADS, UNJUDGED_QUEUES, VIRTUAL_BYTES, WAITING_CONSUMERS, WAITING_CONSUMERS_MAX, WORKERS,
};
use crate::telemetry::process::Process;

/// How long the page waits for the figures that are read from the store; then it goes without them.
const STORE_WAIT: Duration = Duration::from_secs(3);

/// The label of all queues that are not listed, together. It is no valid name of a queue.
const OTHERS: &str = "(others)";

/// Metrics
///
/// Returns the metrics in the text format of Prometheus; while the store is unavailable, without the figures that are read from
/// it. With more queues than `limits.metrics_queues`, so many have series of their own, and the others are one
/// series, `queue="(others)"`. docs/metrics.md lists them.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "operations",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain")))]
pub async fn metrics(State(state): State<AppState>) -> Response {
    let text = match &state.server.metrics {
        Some(metrics) => {
            telemetry::memory(state.budget.used());
            metrics.run_upkeep();
            metrics.render()
        }
        None => String::new(),
    };
    let queues = &state.queues;
    // Each waits for itself: where one takes long, the other is there.
    let (listed, board, census, process) = tokio::join!(
        tokio::time::timeout(STORE_WAIT, of_queues(queues)),
        tokio::time::timeout(STORE_WAIT, queues.board_for_metrics()),
        tokio::time::timeout(STORE_WAIT, queues.census()),
        tokio::task::spawn_blocking(Process::read),
    );
    let mut page = Page::new(text);
    write_server(&mut page, &state, process.ok().flatten());
    write_pool(&mut page, queues.pool());
    write_totals(&mut page, &queues.meter().totals().snapshot());
    if let Ok(Some((stats, emptied))) = listed {
        write_queues(&mut page, queues, &stats, &emptied);
    }
    if let Ok(Ok(board)) = board {
        write_attention(&mut page, &board, queues.options().metrics_queues);
    }
    if let Ok(Ok(census)) = census {
        write_census(&mut page, &census);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page.finish()).into_response()
}

/// Returns the queues that have jobs, and those that had some lately.
async fn of_queues(queues: &Queues) -> Option<(std::sync::Arc<Stats>, Vec<QueueName>)> {
    let stats = queues.stats().await.ok()?;
    let emptied = queues.emptied(&stats).await.ok()?;
    Some((stats, emptied))
}

fn write_server(page: &mut Page, state: &AppState, process: Option<Process>) {
    page.metric(BUILD_INFO).put(&[env!("CARGO_PKG_VERSION"), state.server.store], 1);
    let is_ready = state.server.readiness.get().is_ok() && !state.queues.is_leaving();
    page.single(READY, Some(u8::from(is_ready)));
    let (waiting, most) = state.queues.waiting_calls();
    page.single(WAITING_CONSUMERS, Some(waiting));
    page.single(WAITING_CONSUMERS_MAX, Some(most));
    page.single(START_TIME, Some(telemetry::started()));
    let Some(process) = process else { return };
    page.single(CPU_SECONDS, Some(process.cpu.as_secs_f64()));
    page.single(RESIDENT_BYTES, Some(process.resident_bytes));
    page.single(VIRTUAL_BYTES, Some(process.virtual_bytes));
    page.single(THREADS, Some(process.threads));
    page.single(OPEN_FDS, Some(process.open_files));
    let most = process.most_files.map_or_else(|| "+Inf".to_owned(), |most| most.to_string());
    page.single(MAX_FDS, Some(most));
}

fn write_pool(page: &mut Page, pool: Option<Pool>) {
    let Some(pool) = pool else { return };
    let mut connections = page.metric(STORE_CONNECTIONS);
    connections.put(&["idle"], pool.idle);
    connections.put(&["in_use"], pool.in_use);
    page.single(STORE_CONNECTIONS_MAX, Some(pool.most));
    page.single(STORE_WAITING, Some(pool.waiting));
    page.single(STORE_OPENED, Some(pool.opened));
    page.single(STORE_UNCONNECTED, Some(pool.failed));
}

/// Writes what happened on this server.
fn write_totals(page: &mut Page, totals: &Snapshot) {
    let mut events = page.metric(JOB_EVENTS);
    for (event, count) in Event::ALL.into_iter().zip(totals.all.events) {
        events.put(&[event.as_str()], count);
    }
    put_times(&mut page.metric(QUEUE_SECONDS), &[], &totals.all.queue_time);
    put_times(&mut page.metric(RUN_SECONDS), &[], &totals.all.run_time);
    let own = totals.queues.iter().map(|(queue, total)| (queue.as_str(), total));
    let rows: Vec<(&str, &Total)> = own.chain([(OTHERS, &totals.others)]).collect();
    let mut events = page.metric(QUEUE_JOB_EVENTS);
    for (queue, total) in &rows {
        for (event, count) in Event::ALL.into_iter().zip(total.events) {
            events.put(&[*queue, event.as_str()], count);
        }
    }
    let mut queue_times = page.metric(QUEUE_QUEUE_SECONDS);
    rows.iter().for_each(|(queue, total)| put_times(&mut queue_times, &[*queue], &total.queue_time));
    let mut run_times = page.metric(QUEUE_RUN_SECONDS);
    rows.iter().for_each(|(queue, total)| put_times(&mut run_times, &[*queue], &total.run_time));
}

/// Writes times: those of a queue with fewer bounds.
fn put_times(series: &mut Series<'_>, labels: &[&str], times: &Times) {
    series.histogram(labels, times.within(!labels.is_empty()), times.count(), times.sum_s());
}

/// Writes the figures of the queues directly from the counts, so that no series of a deleted queue remains for long.
fn write_queues(page: &mut Page, queues: &Queues, stats: &Stats, emptied: &[QueueName]) {
    let mut listed: Vec<_> = stats.queues.iter().map(|(queue, counts)| (queue, Some(counts))).collect();
    listed.extend(emptied.iter().map(|queue| (queue, None)));
    listed.sort_unstable_by_key(|(queue, _)| *queue);
    let mut jobs = page.metric(JOBS);
    let mut put = |queue: &str, counts: Counts| {
        for (state, count) in [
            ("ready", counts.ready),
            ("scheduled", counts.scheduled),
            ("reserved", counts.reserved),
            ("blocked", counts.blocked),
            ("dead", counts.dead),
            ("done", counts.done),
        ] {
            jobs.put(&[queue, state], count);
        }
    };
    for (queue, figures) in &listed {
        put(queue.as_str(), figures.map(|figures| figures.counts).unwrap_or_default());
    }
    if let Some(counts) = stats.others {
        put(OTHERS, counts);
    }
    let mut ages = page.metric(OLDEST_READY_SECONDS);
    for (queue, figures) in &listed {
        let age_ms = figures.and_then(|figures| stats.age_ms(figures)).unwrap_or(0);
        ages.put(&[queue.as_str()], age_ms as f64 / 1e3);
    }
    let rules = queues.rules();
    let mut paused = page.metric(QUEUE_PAUSED);
    for (queue, _) in &listed {
        paused.put(&[queue.as_str()], u8::from(rules.paused(queue)));
    }
    page.single(QUEUES, Some(stats.count));
}

/// Writes which queues need attention: so many of them, the most urgent first.
fn write_attention(page: &mut Page, board: &Board, most: usize) {
    let mut needing: Vec<_> = board.queues.iter().filter(|queue| !queue.attention.is_empty()).collect();
    needing.sort_by_key(|queue| queue.attention.first().map(|attention| attention.reason));
    let mut series = page.metric(QUEUE_ATTENTION);
    for queue in needing.into_iter().take(most) {
        for attention in &queue.attention {
            series.put(&[queue.name.as_str(), attention.reason.as_str()], 1);
        }
    }
    let mut totals = page.metric(ATTENTION_QUEUES);
    for (reason, count) in Reason::ALL.into_iter().zip(board.attention()) {
        totals.put(&[reason.as_str()], count);
    }
    page.single(UNJUDGED_QUEUES, Some(board.unjudged()));
    page.single(OLDEST_APPROXIMATE, Some(board.approximate()));
}

fn write_census(page: &mut Page, census: &Census) {
    page.single(WORKERS, census.workers);
    page.single(SCHEDULES, census.schedules);
    page.single(SCHEDULE_LAG_SECONDS, census.schedule_lag_ms.map(|ms| ms as f64 / 1e3));
    page.single(SEMAPHORES, census.semaphores);
    let mut capacities = page.metric(SEMAPHORE_CAPACITY);
    census.listed.iter().for_each(|semaphore| capacities.put(&[semaphore.name.as_str()], semaphore.capacity));
    let mut held = page.metric(SEMAPHORE_HELD);
    census.listed.iter().for_each(|semaphore| held.put(&[semaphore.name.as_str()], semaphore.held));
    let mut waiting = page.metric(SEMAPHORE_WAITING);
    census.listed.iter().for_each(|semaphore| waiting.put(&[semaphore.name.as_str()], semaphore.waiting));
    let Some(size) = census.size else { return };
    let mut sizes = page.metric(STORE_SIZE);
    for (part, bytes) in [("data", Some(size.data)), ("indexes", size.indexes), ("log", size.log)] {
        bytes.into_iter().for_each(|bytes| sizes.put(&[part], bytes));
    }
}
