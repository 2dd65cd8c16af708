//! The export of spans by OTLP over HTTP, with protobuf.
//!
//! Spans wait in a queue of bounded length for the next batch. Adding one never blocks: what finds the queue full is dropped, and
//! counted. A batch that the receiver cannot take now is tried again a few times, and is dropped then.
//!
//! They wait encoded, as they are sent. A span is some thirty small allocations, and a thousand of them that wait keep the allocator's pages
//! half full: later allocations miss the processor's caches more often. With a hundredth of all traces recorded that cost the
//! server 4.2 % of its CPU time on SQLite, and costs 1.1 to 2.0 % since they are encoded at once.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use metrics::counter;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::client::{Client, Failure};
use super::text;
use crate::telemetry::Throttle;
use crate::telemetry::catalog::{TRACE_DROPPED, TRACE_EXPORTED};

/// The most spans of one request to the receiver.
const BATCH: usize = 512;
/// How often spans are sent that are fewer.
const INTERVAL: Duration = Duration::from_secs(1);
/// The pauses before a batch is tried again; after the last it is dropped.
const RETRIES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)];
/// The longest pause that a receiver may ask for.
const RETRY_MOST: Duration = Duration::from_secs(30);
/// How long a server that stops takes at most to send what is left.
const FLUSH: Duration = Duration::from_secs(2);

static EXPORTER: OnceLock<Exporter> = OnceLock::new();

/// What is said of spans that are dropped.
static DROPPED: Throttle = Throttle::new();

/// Where spans go, and which.
#[derive(Clone)]
pub struct Options {
    /// The URL to which they are posted.
    pub endpoint: Uri,
    /// The headers of these requests; they may be secrets.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The authorities of the receiver's certificate, a PEM file; `None`: those that browsers trust.
    pub ca: Option<PathBuf>,
    /// The share of the traces that begin here and are recorded, 0 to 1.
    pub ratio: f64,
    /// The name of this service.
    pub service: String,
    /// The deadline of one request.
    pub timeout: Duration,
    /// The most spans that wait.
    pub queue: usize,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// The keys of fields of OTLP's messages that are messages themselves: eight times their numbers in
/// `opentelemetry/proto/trace/v1/trace.proto`, and 2. `spans` of `ScopeSpans`:
const SPANS: u8 = 2 << 3 | 2;
/// `scope_spans` of `ResourceSpans`.
const SCOPE_SPANS: u8 = 2 << 3 | 2;
/// `resource_spans` of the request.
const RESOURCE_SPANS: u8 = 1 << 3 | 2;

/// For how many bytes a batch has room at first: about what 512 spans take.
const BATCH_BYTES: usize = 128 << 10;

/// Spans that are sent together.
struct Batch {
    /// Each is a field of the message `ScopeSpans`.
    bytes: Vec<u8>,
    count: usize,
}

/// The spans on their way, the oldest batch first: all but the last one are full.
#[derive(Default)]
struct Waiting {
    batches: VecDeque<Batch>,
    count: usize,
}

impl Waiting {
    /// Adds a span as bytes. Returns whether that made a batch full.
    fn push(&mut self, span: &[u8]) -> bool {
        if self.batches.back().is_none_or(|last| last.count >= BATCH) {
            self.batches.push_back(Batch { bytes: Vec::with_capacity(BATCH_BYTES), count: 0 });
        }
        let Some(last) = self.batches.back_mut() else { return false };
        last.bytes.extend_from_slice(span);
        (last.count, self.count) = (last.count + 1, self.count + 1);
        last.count == BATCH
    }

    /// Returns how many batches are full.
    fn full(&self) -> usize {
        self.batches.iter().take_while(|batch| batch.count >= BATCH).count()
    }

    /// Takes the oldest batch.
    fn pop(&mut self) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        self.count -= batch.count;
        Some(batch)
    }
}

/// Takes spans on their way.
pub struct Exporter {
    waiting: Mutex<Waiting>,
    /// There are enough for a batch.
    enough: Notify,
    most: usize,
    /// A trace is recorded if the lower half of its id is less than this.
    below: u128,
}

/// Why spans are dropped.
#[derive(Debug, Clone, Copy)]
pub enum Dropped {
    /// The queue was full.
    QueueFull,
    /// The receiver was away, or too slow, again and again.
    Unreachable,
    /// The receiver did not take them.
    Refused,
    /// The server stopped before they were sent.
    Shutdown,
}

impl Dropped {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::QueueFull, Self::Unreachable, Self::Refused, Self::Shutdown];

    /// Returns the word for it in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue-full",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Shutdown => "shutdown",
        }
    }

    fn count(self, spans: usize) {
        counter!(TRACE_DROPPED.name, "reason" => self.as_str()).increment(spans as u64);
    }
}

/// Returns the exporter, if spans are exported.
pub fn exporter() -> Option<&'static Exporter> {
    EXPORTER.get()
}

impl Exporter {
    fn new(options: &Options) -> Self {
        // The product of a share and a power of two is exact, and 1 is more than any id.
        let below = (options.ratio.clamp(0.0, 1.0) * 2f64.powi(64)) as u128;
        let (waiting, enough) = Default::default();
        Self { waiting, enough, most: options.queue, below }
    }

    /// Returns whether a trace that begins here is recorded. Every service that decides by the id and the share decides alike.
    pub fn samples(&self, trace_id: u128) -> bool {
        trace_id & u128::from(u64::MAX) < self.below
    }

    /// Adds a span, or drops it where too many wait.
    pub fn add(&self, span: &Span) {
        // What is dropped is not encoded, and nothing is while the lock is held.
        let has_room = self.waiting().count < self.most;
        let is_full = has_room.then(|| message(SPANS, &[&span.encode_to_vec()])).and_then(|bytes| {
            let mut waiting = self.waiting();
            (waiting.count < self.most).then(|| waiting.push(&bytes))
        });
        if is_full.is_none() {
            Dropped::QueueFull.count(1);
            if let Some(more) = DROPPED.due() {
                tracing::warn!(
                    more,
                    "spans are dropped: trace.queue of them wait; `more` were since the last such line"
                );
            }
        } else if is_full == Some(true) {
            self.enough.notify_one();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Returns a message of several parts as a field of another one.
fn message(key: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut bytes = Vec::with_capacity(1 + prost::length_delimiter_len(length) + length);
    bytes.push(key);
    // It fails where there is no room; a vector makes some.
    if prost::encode_length_delimiter(length, &mut bytes).is_ok() {
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
    }
    bytes
}

/// The running export.
pub struct Export {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Export {
    /// Begins to record and to export spans. Once in a process.
    pub fn begin(options: Options) -> anyhow::Result<Self> {
        let (stop, client) = (CancellationToken::new(), Client::new(&options)?);
        let sender = Sender { client, resource: resource(&options.service), stop: stop.clone() };
        let exporter = EXPORTER.get_or_init(|| Exporter::new(&options));
        Ok(Self { task: tokio::spawn(sender.run(exporter)), stop })
    }

    /// Sends what is left, for two seconds at most; what is left then is dropped.
    pub async fn stop(export: Option<Self>) {
        let Some(Self { stop, task }) = export else { return };
        stop.cancel();
        let aborted = task.abort_handle();
        if tokio::time::timeout(FLUSH, task).await.is_err() {
            aborted.abort();
        }
        let left =
            exporter().map(|exporter| std::mem::take(&mut *exporter.waiting()).count).unwrap_or_default();
        if left > 0 {
            Dropped::Shutdown.count(left);
            tracing::warn!(left, "spans are not exported: the server stops");
        }
    }
}

fn resource(service: &str) -> Resource {
    let instance = format!("{:032x}", rand::random::<u128>());
    let attributes = vec![
        text("service.name", service),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("service.instance.id", instance),
    ];
    Resource { attributes, ..Resource::default() }
}

/// Sends batches, one after the other.
struct Sender {
    client: Client,
    resource: Resource,
    stop: CancellationToken,
}

impl Sender {
    async fn run(mut self, exporter: &'static Exporter) {
        loop {
            let is_enough = tokio::select! {
                () = tokio::time::sleep(INTERVAL) => false,
                () = exporter.enough.notified() => true,
                () = self.stop.cancelled() => false,
            };
            // What comes while these are sent is sent in the next turn, also where the server stops meanwhile.
            let stops = self.stop.is_cancelled();
            let most = match exporter.waiting() {
                _ if stops => usize::MAX,
                // The last one has time to become full.
                waiting if is_enough => waiting.full(),
                waiting => waiting.batches.len(),
            };
            for _ in 0..most {
                let Some(batch) = exporter.waiting().pop() else { break };
                self.send(batch).await;
            }
            if stops {
                return;
            }
        }
    }

    /// Sends a batch, again where that may help.
    async fn send(&mut self, batch: Batch) {
        let (count, stop) = (batch.count, self.stop.clone());
        let mut unsent = Unsent(count);
        let body: Arc<[u8]> = request(&self.resource, &batch).into();
        drop(batch);
        for attempt in 0.. {
            let (why, after) = match self.client.post(&body).await {
                Ok(rejected) => {
                    unsent.0 = 0;
                    counter!(TRACE_EXPORTED.name).increment(count.saturating_sub(rejected) as u64);
                    if rejected > 0 {
                        warn(Dropped::Refused, rejected.min(count), "the receiver rejected some of them");
                    }
                    return;
                }
                Err(Failure::Refused(why)) => {
                    unsent.0 = 0;
                    return warn(Dropped::Refused, count, &why);
                }
                Err(Failure::Again { why, after }) => (why, after),
            };
            let pause = RETRIES.get(attempt).copied().map(|pause| after.unwrap_or(pause).min(RETRY_MOST));
            let Some(pause) = pause.filter(|_| !stop.is_cancelled()) else {
                unsent.0 = 0;
                let reason = if stop.is_cancelled() { Dropped::Shutdown } else { Dropped::Unreachable };
                return warn(reason, count, &why);
            };
            if let Some(more) = self.client.trouble.due() {
                tracing::warn!(
                    error = why,
                    more,
                    "spans cannot be exported; trying again, `more` failed since the last such line"
                );
            }
            tokio::select! {
                () = tokio::time::sleep_until(Instant::now() + pause) => {}
                () = stop.cancelled() => {}
            }
        }
    }
}

/// Returns an `ExportTraceServiceRequest`: of a message that is encoded in parts, the parts are put together.
fn request(resource: &Resource, batch: &Batch) -> Vec<u8> {
    let scope = Some(InstrumentationScope {
        name: env!("CARGO_PKG_NAME").to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    });
    let scope = ScopeSpans { scope, ..ScopeSpans::default() }.encode_to_vec();
    let resource = Some(resource.clone());
    let resource = ResourceSpans { resource, ..ResourceSpans::default() }.encode_to_vec();
    message(RESOURCE_SPANS, &[&resource, &message(SCOPE_SPANS, &[&scope, &batch.bytes])])
}

/// So many spans of which it is not known yet what becomes; dropped, they are lost with the server.
struct Unsent(usize);

impl Drop for Unsent {
    fn drop(&mut self) {
        Dropped::Shutdown.count(self.0);
    }
}

fn warn(reason: Dropped, spans: usize, why: &str) {
    reason.count(spans);
    if let Some(more) = DROPPED.due() {
        let reason = reason.as_str();
        tracing::warn!(
            reason,
            spans,
            error = why,
            more,
            "spans are dropped; `more` times since the last such line"
        );
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;

    use super::*;

    fn exporter(ratio: f64, queue: usize) -> Exporter {
        Exporter::new(&Options {
            endpoint: Uri::from_static("http://localhost:4318/v1/traces"),
            headers: Vec::new(),
            ca: None,
            ratio,
            service: "tailback".to_owned(),
            timeout: Duration::from_secs(1),
            queue,
        })
    }

    #[test]
    fn a_share_of_all_traces_is_recorded() {
        let [none, all, some] = [0.0, 1.0, 0.25].map(|ratio| exporter(ratio, 1));
        for id in [1, u128::MAX, u128::from(u64::MAX), 1 << 64] {
            assert!(all.samples(id) && !none.samples(id), "{id:x}");
        }
        let recorded = (0..10_000_u128).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
        let share = recorded.filter(|id| some.samples(*id)).count();
        assert!((2_000..3_000).contains(&share), "{share}");
    }

    #[test]
    fn the_queue_is_bounded_and_batches_are_the_oldest() {
        let exporter = exporter(1.0, BATCH + 10);
        for n in 0..BATCH + 20 {
            exporter.add(&Span { start_time_unix_nano: n as u64, ..Span::default() });
        }
        let resource = resource("tailback");
        let sent = |batch: &Batch| {
            let request = ExportTraceServiceRequest::decode(&*request(&resource, batch)).unwrap();
            let [of_resource] = &request.resource_spans[..] else { panic!("{request:?}") };
            assert_eq!(of_resource.resource.as_ref(), Some(&resource));
            let [of_scope] = &of_resource.scope_spans[..] else { panic!("{request:?}") };
            assert_eq!(of_scope.scope.as_ref().map(|scope| &*scope.name), Some("tailback"));
            of_scope.spans.iter().map(|span| span.start_time_unix_nano).collect::<Vec<_>>()
        };
        let mut waiting = exporter.waiting();
        let [first, second] = [(); 2].map(|()| waiting.pop().unwrap());
        assert_eq!((first.count, sent(&first)), (BATCH, Vec::from_iter(0..BATCH as u64)));
        assert_eq!((second.count, sent(&second)), (10, Vec::from_iter(BATCH as u64..BATCH as u64 + 10)));
        assert!(waiting.count == 0 && waiting.pop().is_none());
    }
}
