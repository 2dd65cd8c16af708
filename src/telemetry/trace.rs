//! Spans: what this server does for calls whose trace is recorded, and on whose behalf.
//!
//! A [`Span`] is made for each request that belongs to a trace, for each round that carries such requests, and for each run of a
//! schedule. What goes on within it finds it with [`current`]: a task that outlives its caller takes it along ([`carrying`]), and an
//! item that waits for its round as well. Whether a span is recorded is decided at its beginning: as the caller says, and where there is
//! none by chance. A span that is not recorded costs a little memory, and where nothing is exported and the caller is in no trace there
//! is none.
//!
//! Spans are made in the form in which they are sent, and not by a tracer: they are few, some begin in the past, and a round has no one
//! parent.

mod client;
pub mod export;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

pub use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span as Recorded, Status};

use self::export::{Exporter, exporter};
use crate::job::TraceContext;

/// The most links of a span; what is more is counted.
const LINKS_MAX: usize = 128;
/// In the flags of spans and links: that the next bit has a meaning, which is that what is named is of another process.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

tokio::task_local! {
    static CURRENT: Option<Arc<Span>>;
}

/// What goes on in a trace, or in none yet: chance has not chosen most requests, and one of them may still [`adopt`] the trace
/// of a job. Those cost a few bytes each.
#[derive(Debug)]
pub struct Span(Mutex<Option<Box<State>>>);

#[derive(Debug, Default)]
struct State {
    /// Its own context where it is recorded, else that of its caller.
    context: Option<TraceContext>,
    /// The span that it is a part of.
    parent: Option<u64>,
    /// The context that the caller sent.
    remote: Option<TraceContext>,
    /// The trace that lines of the log name in place of its own: of a round, that of a request which it carries.
    about: Option<u128>,
    /// Whether it belongs to the trace of a job, and not to one that its caller named or that began with it.
    is_adopted: bool,
    is_recorded: bool,
    links: Vec<TraceContext>,
    dropped_links: u32,
}

impl State {
    /// The beginning of a trace.
    fn root(trace_id: u128) -> Self {
        let context = Some(TraceContext::new(trace_id, random_span()));
        Self { context, is_recorded: true, ..Self::default() }
    }

    fn part_of(parent: &TraceContext) -> Self {
        let context = Some(parent.child(random_span()));
        Self { context, parent: Some(parent.span_id), is_recorded: true, ..Self::default() }
    }

    fn link(&mut self, to: &TraceContext) {
        match self.links.len() {
            _ if !self.is_recorded || self.links.contains(to) => {}
            0..LINKS_MAX => self.links.push(to.clone()),
            _ => self.dropped_links += 1,
        }
    }
}

/// How a span has ended.
#[derive(Debug)]
pub struct End {
    /// What it is called: one of few names.
    pub name: Cow<'static, str>,
    /// What kind of work it was.
    pub kind: Kind,
    /// How long it took.
    pub took: Duration,
    /// What is said of it.
    pub attributes: Vec<KeyValue>,
    /// What went wrong, if something did.
    pub error: Option<Cow<'static, str>>,
}

/// What kind of work a span is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A request of a client.
    Server,
    /// A call of the store.
    Client,
    /// Anything else.
    Internal,
}

impl Span {
    fn new(state: Option<State>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(state.map(Box::new))))
    }

    /// The span of a request whose caller sent this context. `None` if the request is not recorded and not part of a trace.
    pub fn of_request(remote: Option<TraceContext>) -> Option<Arc<Self>> {
        let state = match (remote, exporter()) {
            (None, None) => return None,
            (Some(remote), Some(_)) if remote.is_sampled() => {
                Some(State { remote: Some(remote.clone()), ..State::part_of(&remote) })
            }
            (Some(remote), _) => {
                Some(State { context: Some(remote.clone()), remote: Some(remote), ..State::default() })
            }
            (None, Some(exporter)) => by_chance(exporter),
        };
        Some(Self::new(state))
    }

    /// The span of what this server does by itself, with which a trace begins, if chance wants that.
    pub fn of_own() -> Option<Arc<Self>> {
        by_chance(exporter()?).map(|state| Self::new(Some(state)))
    }

    /// The span of what is done for several at once, if one of them is in a trace. It is recorded if one of them is. Each has a trace of
    /// its own, so that it begins one, too; links lead from it to them, and back.
    pub fn of_round(carried: &[Arc<Self>]) -> Option<Arc<Self>> {
        let mut round = State::default();
        for span in carried {
            let mut of = span.state();
            let Some(of) = of.as_deref_mut() else { continue };
            let Some(context) = of.context.clone() else { continue };
            let about = Some(*round.about.get_or_insert(context.trace_id));
            if !of.is_recorded {
                continue;
            }
            if !round.is_recorded {
                round = State { about, ..State::root(random_trace()) };
            }
            round.link(&context);
            if let Some(own) = &round.context {
                of.link(own);
            }
        }
        round.about.is_some().then(|| Self::new(Some(round)))
    }

    fn state(&self) -> MutexGuard<'_, Option<Box<State>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the id of the trace that lines of the log name, if there is one.
    pub fn trace_id(&self) -> Option<u128> {
        let state = self.state();
        let state = state.as_ref()?;
        state.about.or_else(|| state.context.as_ref().map(|context| context.trace_id))
    }

    /// Returns whether it is recorded.
    pub fn is_recorded(&self) -> bool {
        self.state().as_ref().is_some_and(|state| state.is_recorded)
    }

    /// Ends the span. It is exported if it is recorded.
    pub fn end(&self, end: End) {
        let Some(state) = self.state().take() else { return };
        let (Some(exporter), Some(context), true) = (exporter(), state.context, state.is_recorded) else {
            return;
        };
        let links = state.links.iter().map(link).collect();
        let is_remote = state.remote.is_some() || state.is_adopted;
        exporter.add(&Recorded {
            links,
            dropped_links_count: state.dropped_links,
            ..recorded(&context, state.parent.map(|id| (id, is_remote)), now_ns(), end)
        });
    }
}

/// Returns the current span.
pub fn current() -> Option<Arc<Span>> {
    CURRENT.try_with(Clone::clone).ok().flatten()
}

/// Returns the id of the current trace.
pub fn current_id() -> Option<u128> {
    of_current(|span| span.trace_id())
}

/// Returns what this is of the current span, if there is one.
fn of_current<T>(of: impl FnOnce(&Arc<Span>) -> Option<T>) -> Option<T> {
    CURRENT.try_with(|span| span.as_ref().and_then(of)).ok().flatten()
}

/// Does work within this span. No `async fn`: that would have room for the work twice, in each request.
pub fn within<T>(span: Option<Arc<Span>>, work: impl Future<Output = T>) -> impl Future<Output = T> {
    CURRENT.scope(span.or_else(current), work)
}

/// Does work within this span that waits for nothing.
pub fn within_sync<T>(span: Option<Arc<Span>>, work: impl FnOnce() -> T) -> T {
    match span {
        Some(span) => CURRENT.sync_scope(Some(span), work),
        None => work(),
    }
}

/// Returns work that is done within the current span wherever it is done.
pub fn carrying<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    within(current(), work)
}

/// Returns the context that jobs carry which are pushed now: that of the caller, or of the trace that began with its request.
pub fn carried() -> Option<TraceContext> {
    let of = |span: &Arc<Span>| {
        let state = span.state();
        let state = state.as_ref()?;
        let own = || state.context.clone().filter(|_| state.is_recorded && !state.is_adopted);
        state.remote.clone().or_else(own)
    };
    of_current(of)
}

/// Returns the context that the caller of the current request sent.
pub fn sent() -> Option<TraceContext> {
    of_current(|span| span.state().as_ref()?.remote.clone())
}

/// The current request is about a job of this context, which is recorded: it is a part of its trace, unless its caller has named
/// another; then they are linked.
pub fn adopt(job: &TraceContext) {
    let Some(span) = current() else { return }; // a settle that the server makes by itself is in no request
    let mut state = span.state();
    let state = state.get_or_insert_default();
    if state.remote.is_some() || state.is_adopted {
        return state.link(job);
    }
    let links = std::mem::take(&mut state.links);
    **state = State { is_adopted: true, links, ..State::part_of(job) };
}

/// Returns whether spans are exported.
pub fn is_on() -> bool {
    exporter().is_some()
}

/// A delivery.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// The context of the job.
    pub context: &'a TraceContext,
    /// How long the job has waited for it, from when it was due.
    pub waited: Duration,
    /// What is said of it.
    pub attributes: Vec<KeyValue>,
}

/// Records how long jobs have waited for their delivery, each in its own trace, and links them with the current request.
pub fn delivered<'a>(deliveries: impl Iterator<Item = Delivery<'a>>) {
    let Some(exporter) = exporter() else { return };
    let (request, now) = (current(), now_ns());
    for Delivery { context, waited, attributes } in deliveries {
        let by = request.as_ref().and_then(|request| {
            let mut state = request.state();
            let state = state.as_mut()?;
            state.link(context);
            state.context.clone().filter(|_| state.is_recorded)
        });
        let (name, kind) = ("queue time".into(), Kind::Internal);
        let end = End { name, kind, took: waited, attributes, error: None };
        let own = context.child(random_span());
        let links = by.iter().map(link).collect();
        exporter.add(&Recorded { links, ..recorded(&own, Some((context.span_id, true)), now, end) });
    }
}

/// A call of the store on behalf of a span that is recorded.
pub struct Command(TraceContext);

impl Command {
    /// A call that begins now; `None` where it is not recorded.
    pub fn begin() -> Option<Self> {
        exporter()?;
        let of = |span: &Arc<Span>| {
            let state = span.state();
            let state = state.as_ref()?;
            state.context.clone().filter(|_| state.is_recorded).map(Self)
        };
        of_current(of)
    }

    /// It has ended.
    pub fn end(self, end: End) {
        if let Some(exporter) = exporter() {
            let own = self.0.child(random_span());
            exporter.add(&recorded(&own, Some((self.0.span_id, false)), now_ns(), end));
        }
    }
}

/// Returns an attribute that is a text.
pub fn text(key: &'static str, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

/// Returns an attribute that is a number.
pub fn number(key: &'static str, value: impl TryInto<i64>) -> KeyValue {
    attribute(key, Value::IntValue(value.try_into().unwrap_or(i64::MAX)))
}

fn attribute(key: &'static str, value: Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

/// Returns the beginning of a trace, if chance wants one.
fn by_chance(exporter: &Exporter) -> Option<State> {
    let trace_id = random_trace();
    exporter.samples(trace_id).then(|| State::root(trace_id))
}

/// Returns a span that ends at this moment.
fn recorded(context: &TraceContext, parent: Option<(u64, bool)>, now_ns: u64, end: End) -> Recorded {
    let took = u64::try_from(end.took.as_nanos()).unwrap_or(u64::MAX);
    let error =
        |message: Cow<'static, str>| Status { message: message.into_owned(), code: StatusCode::Error.into() };
    let kind = match end.kind {
        Kind::Server => SpanKind::Server,
        Kind::Client => SpanKind::Client,
        Kind::Internal => SpanKind::Internal,
    };
    let is_remote = parent.is_some_and(|(_, is_remote)| is_remote);
    Recorded {
        trace_id: context.trace_id.to_be_bytes().to_vec(),
        span_id: context.span_id.to_be_bytes().to_vec(),
        trace_state: context.state().unwrap_or_default().to_owned(),
        parent_span_id: parent.map(|(id, _)| id.to_be_bytes().to_vec()).unwrap_or_default(),
        flags: flags(context, is_remote),
        name: end.name.into_owned(),
        kind: kind.into(),
        start_time_unix_nano: now_ns.saturating_sub(took),
        end_time_unix_nano: now_ns,
        attributes: end.attributes,
        status: end.error.map(error),
        ..Recorded::default()
    }
}

fn link(to: &TraceContext) -> Link {
    Link {
        trace_id: to.trace_id.to_be_bytes().to_vec(),
        span_id: to.span_id.to_be_bytes().to_vec(),
        // Left out: with it the links of one span would take tens of kilobytes, and what is linked has it itself.
        trace_state: String::new(),
        flags: flags(to, false) & !(HAS_IS_REMOTE | IS_REMOTE), // whose it is is not known here
        ..Link::default()
    }
}

fn flags(context: &TraceContext, is_remote: bool) -> u32 {
    u32::from(context.flags()) | HAS_IS_REMOTE | if is_remote { IS_REMOTE } else { 0 }
}

fn random_trace() -> u128 {
    rand::random::<u128>().max(1)
}

fn random_span() -> u64 {
    rand::random::<u64>().max(1)
}

#[expect(clippy::disallowed_methods, reason = "when a span was, for people; no deadline")]
fn now_ns() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since_epoch.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}
