//! The figures of queues, as they change: server-sent events.
//!
//! A client gets the whole picture first, in parts, and then what has changed, at most once a second. The id of a message says
//! which picture of which server it completes, at which version and for which queues: with it a client goes on where it was, and
//! with any other it begins anew.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::stats::CountsView;
use crate::http::access::Granted;
use crate::http::budget::Budget;
use crate::http::params::Query;
use crate::http::problem::{ApiResult, Problem};
use crate::http::waiting::{Place, Waiting};
use crate::job::{QueueName, QueuePattern, Timestamp, WorkerName};
use crate::queue::attention::Reason;
use crate::queue::meter::Event;
use crate::queue::{Changes, Error, Follower, Happening, Part, QueueState, Queues};

/// How many queues a part of the picture has at most.
const PART: usize = 500;
/// The shortest time between two messages of changes.
const PACE: Duration = Duration::from_secs(1);
/// After how long without a message a comment says that the connection is alive.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a client is asked to wait before it connects again, in milliseconds.
const RETRY_MS: u64 = 2000;
/// The most queues that may be named.
const QUEUES_NAMED_MAX: usize = 100;
/// The longest stream that ends by itself.
const FOR_MAX_MS: u64 = 86_400_000;

/// A queue in a message of `/v1/events`.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = EventsQueue)]
pub struct QueueMessage {
    /// The queue.
    queue: QueueName,
    /// How many jobs are in each state, of all servers.
    counts: CountsView,
    /// Whether delivery is stopped.
    paused: bool,
    /// Since when the oldest ready job has been ready; absent if none is, and where the queue is not among the 10,000 with the most
    /// unfinished jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_ready_at: Option<Timestamp>,
    /// Whether that job was looked up more than 30 s ago, and jobs have left the queue since: it may be another one by now. Absent where it
    /// was not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    oldest_is_approximate: bool,
    /// Why it needs attention, the most urgent reason first; absent where it needs none. `GET /v1/queues/{queue}/stats` has the details.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attention: Vec<Reason>,
    /// Events per second during the last minute, on all servers, of those that there were.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = RecentRates)]
    rates_per_s: BTreeMap<&'static str, f64>,
}

/// The schema of the rates of a queue: those that are not 0.
#[derive(Debug)]
pub struct RecentRates;

impl utoipa::PartialSchema for RecentRates {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
        let rate = ObjectBuilder::new().schema_type(Type::Number);
        let rate = rate.format(Some(SchemaFormat::KnownFormat(KnownFormat::Double)));
        let text = "Events per second, by the event. Those of which there were none are absent.";
        let rates = ObjectBuilder::new().schema_type(Type::Object).description(Some(text));
        rates.additional_properties(Some(rate)).into()
    }
}

impl utoipa::ToSchema for RecentRates {}

impl From<(QueueName, QueueState)> for QueueMessage {
    fn from((queue, state): (QueueName, QueueState)) -> Self {
        let rates = Event::ALL.into_iter().zip(state.rates).filter(|(_, rate)| *rate > 0.0);
        Self {
            queue,
            counts: state.counts.into(),
            paused: state.paused,
            oldest_ready_at: state.oldest_ready_at,
            oldest_is_approximate: state.oldest_is_approximate,
            attention: state.attention,
            rates_per_s: rates.map(|(event, rate)| (event.as_str(), rate)).collect(),
        }
    }
}

/// What has happened, in a message of `/v1/events`.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Happened {
    /// `paused`, `resumed` or `settings` (others were changed) of a queue, `dead` (some more of its jobs), `worker_lost` (noticed by this
    /// server), `store_away` (the picture stays as it was), or `store_back`.
    #[schema(value_type = String)]
    kind: &'static str,
    /// The queue that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<QueueName>,
    /// The worker that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<WorkerName>,
    /// How many jobs it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs: Option<u64>,
}

impl From<Happening> for Happened {
    fn from(happening: Happening) -> Self {
        let of = |kind, queue| Self { kind, queue, worker: None, jobs: None };
        match happening {
            Happening::Paused(queue) => of("paused", Some(queue)),
            Happening::Resumed(queue) => of("resumed", Some(queue)),
            Happening::Settings(queue) => of("settings", Some(queue)),
            Happening::Dead(queue, jobs) => Self { jobs: Some(jobs), ..of("dead", Some(queue)) },
            Happening::WorkerLost(worker) => Self { worker: Some(worker), ..of("worker_lost", None) },
            Happening::StoreAway => of("store_away", None),
            Happening::StoreBack => of("store_back", None),
        }
    }
}

/// The data of a message of `/v1/events`: a `snapshot`, whose first part replaces all that was known, or `changes`.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct EventsMessage {
    /// When it was read, by the store's clock.
    at: Timestamp,
    /// Only in a `snapshot`: which part of it this is, from 1 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<u64>,
    /// Whether further parts follow, of a `snapshot` or of `changes`; only the last one has an id.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
    /// How many queues are beyond the 10,000 with the most unfinished jobs. They are in no part, but for those that a client names. In a
    /// `snapshot` absent where there are none, in `changes` where that has not changed, and in both where all queues are named.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
    /// Only for a key of some queues: queues of it may be in no part, because there are more than 10,000 in all. In a `snapshot` absent
    /// where they may not, in `changes` where that has not changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    incomplete: Option<bool>,
    /// The queues that have jobs; in `changes` those that have changed, as they are now.
    queues: Vec<QueueMessage>,
    /// The queues that have no jobs any more, or are neither named nor among the 10,000 with the most unfinished ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone: Vec<QueueName>,
    /// What has happened since the message before, in its order. In a `snapshot` only `store_away`, while the store cannot be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    happened: Vec<Happened>,
    /// Whether more has happened that is not told, because it was too much: more than a thousand happenings.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more_happened: bool,
}

/// Follow the queues
///
/// Server-sent events: first messages `snapshot` with all queues that have jobs, 500 in each, then `changes`, at most once a second and in parts of 500 as well, with what
/// has changed on whatever server. Each queue in them is as it is now, so that a client needs only the last it was told of each.
/// With `Last-Event-ID` a client goes on where it was; if that cannot be told any more, or another server answers, it gets
/// snapshots again. A comment every 15 s says that the connection is alive. The stream ends when the server stops, when the
/// key or the session does not hold any more, and when its client does not read.
#[utoipa::path(get, path = "/v1/events", operation_id = "follow_queues", tag = "operations",
    params(("queue" = Option<Vec<QueuePattern>>, Query, description = "Only these queues: names, or prefixes of names followed by `*`. \
            May be repeated, up to 100 times.", style = Form, explode),
        ("for_ms" = Option<u64>, Query, description = "End the stream after so long, in milliseconds, up to a day.", minimum = 1, maximum = 86400000),
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last message that was received.", max_length = 64)),
    responses((status = 200, description = "Messages `snapshot` and `changes`, whose `data` is an `EventsMessage`", body = EventsMessage,
        content_type = "text/event-stream")))]
pub async fn follow(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    waiting: Waiting,
    by: Granted,
    query: Query,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let query = query.only_repeating(&["for_ms"], "queue")?;
    let for_ms: Option<u64> = query.get("for_ms", "1 to 86400000")?;
    if for_ms.is_some_and(|ms| !(1..=FOR_MAX_MS).contains(&ms)) {
        return Err(Problem::parameter("for_ms", "must be 1 to 86400000"));
    }
    let named: Vec<QueuePattern> = query.all("queue", "a queue, or the beginning of names followed by *")?;
    if named.len() > QUEUES_NAMED_MAX {
        return Err(Problem::parameter("queue", "must be given at most 100 times"));
    }
    let patterns = if named.is_empty() { by.caller.patterns().to_vec() } else { by.patterns(named)? };
    let who = match by.caller.identity() {
        "" => waiting.peer().map_or_else(String::new, |peer| peer.to_string()),
        id => id.to_owned(),
    };
    let place = waiting.place(true).ok_or(Error::TooManyStreams)?;
    let lasts = lasts(for_ms, by.session_ends, queues.now());
    let ends = lasts.map(|lasts| Instant::now() + lasts);
    let follower = queues.follow(&who, names(&patterns)).await?; // reads the picture where it had no follower lately
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let stream = Stream::new(queues, follower, by, patterns, place, budget, ends).behind(last);
    let body = futures::stream::unfold(stream, |mut stream| async {
        let message = stream.next().await?;
        Some((Ok::<_, std::convert::Infallible>(message), stream))
    });
    let kind = HeaderValue::from_static("text/event-stream");
    // Some proxies would collect what is written until there is more of it.
    let unbuffered = ("x-accel-buffering", HeaderValue::from_static("no"));
    let response = ([(header::CONTENT_TYPE, kind)], [unbuffered], Body::from_stream(body));
    Ok(response.into_response())
}

/// Returns after which time a stream ends by itself: as its client asks, or with the session by which it came.
fn lasts(
    for_ms: Option<u64>,
    session_ends: Option<Timestamp>,
    now: Result<Timestamp, Error>,
) -> Option<Duration> {
    let of_session = session_ends.map(|ends| now.map_or(0, |now| ends.ms_since(now)));
    for_ms.into_iter().chain(of_session).min().map(Duration::from_millis)
}

/// Where a stream stands.
enum Position {
    /// The parts of the picture behind this queue are still to be sent; `parts` were. What has changed since this version comes
    /// afterwards.
    Within { version: u64, after: Option<QueueName>, parts: u64 },
    /// All until this version was sent.
    Sent(u64),
    /// The same, and of what has changed since, up to another version, the queues up to this one.
    Changing { told: u64, version: u64, after: QueueName },
}

impl Position {
    const BEGIN: Self = Self::Within { version: u64::MAX, after: None, parts: 0 };
}

/// The messages to one client.
struct Stream {
    queues: Queues,
    follower: Follower,
    by: Granted,
    patterns: Vec<QueuePattern>,
    /// What the ids of its messages begin and end with.
    scope: (String, String),
    position: Position,
    /// Until when no changes are sent.
    pause: Instant,
    /// When it was heard of last.
    spoke: Instant,
    ends: Option<Instant>,
    is_begun: bool,
    budget: Budget,
    _place: Place,
}

/// Returns what distinguishes the messages about these queues from those about others.
fn digest(patterns: &[QueuePattern]) -> String {
    let mut names: Vec<String> = patterns.iter().map(ToString::to_string).collect();
    names.sort_unstable();
    let hash = Sha256::digest(names.join(" "));
    hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the queues that are named as a whole.
fn names(patterns: &[QueuePattern]) -> Vec<QueueName> {
    let name = |pattern: &QueuePattern| match pattern {
        QueuePattern::One(name) => Some(name.clone()),
        QueuePattern::Prefix(_) => None,
    };
    patterns.iter().filter_map(name).collect()
}

fn is_among(patterns: &[QueuePattern], queue: &QueueName) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(queue))
}

impl Stream {
    fn new(
        queues: Queues,
        follower: Follower,
        by: Granted,
        patterns: Vec<QueuePattern>,
        place: Place,
        budget: Budget,
        ends: Option<Instant>,
    ) -> Self {
        let scope = (follower.epoch().to_owned(), digest(&patterns));
        let (pause, spoke) = (Instant::now(), Instant::now());
        Self {
            queues,
            follower,
            by,
            patterns,
            scope,
            position: Position::BEGIN,
            pause,
            spoke,
            ends,
            is_begun: false,
            budget,
            _place: place,
        }
    }

    /// Goes on behind the message with this id, if it is one of these.
    fn behind(mut self, last: Option<&str>) -> Self {
        let told = last.and_then(|id| {
            let id = id.strip_prefix(&*self.scope.0)?.strip_prefix('-')?;
            id.strip_suffix(&*self.scope.1)?.strip_suffix('-')?.parse().ok()
        });
        self.position = told.map_or(Position::BEGIN, Position::Sent);
        self
    }

    /// Returns the next piece of the response; `None` where it ends.
    async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.is_begun, true) {
            return Some(format!("retry: {RETRY_MS}\n\n").into());
        }
        loop {
            if self.queues.is_draining() || self.is_over() {
                return None;
            }
            // The store's clock may be unknown while the store is away; what is wrong with the key is found later then.
            if let Err(Error::Unauthorized(_)) = self.queues.check_credential(&self.by.credential) {
                return None;
            }
            // While there is no memory left, nothing is written that others would have to wait for.
            let is_crowded = self.budget.check().is_err();
            if !is_crowded && let Some(message) = self.message() {
                self.spoke = Instant::now();
                return Some(self.budget.hold(message));
            }
            if !self.wait(is_crowded).await {
                return None;
            }
            if self.spoke.elapsed() >= HEARTBEAT {
                self.spoke = Instant::now();
                return Some(Bytes::from_static(b":\n\n"));
            }
        }
    }

    fn is_over(&self) -> bool {
        self.ends.is_some_and(|ends| ends <= Instant::now())
    }

    /// Returns the next message, if there is one already.
    fn message(&mut self) -> Option<Bytes> {
        match &self.position {
            Position::Within { version, after, parts } => {
                let (version, after, parts) = (*version, after.clone(), *parts + 1);
                Some(self.part(version, after, parts))
            }
            Position::Changing { told, version, after } => {
                let (told, version, after) = (*told, *version, after.clone());
                self.changes(told, Some((version, after)))
            }
            Position::Sent(_) if self.pause > Instant::now() => None,
            Position::Sent(told) => self.changes(*told, None),
        }
    }

    /// Returns the next part of what has changed, if anything has. `begun`: until which version, and up to which queue it was sent. What
    /// changes while parts are sent is sent again afterwards.
    fn changes(&mut self, told: u64, begun: Option<(u64, QueueName)>) -> Option<Bytes> {
        let (patterns, caller) = (&self.patterns, &self.by.caller);
        let is_wanted = |queue: &QueueName| is_among(patterns, queue);
        let is_shown = |worker: &WorkerName| caller.reaches_name(worker.as_str());
        let after = begun.as_ref().map(|(_, after)| after);
        let Some(changes) = self.follower.since(told, (after, PART), is_wanted, is_shown) else {
            self.position = Position::BEGIN;
            return self.message();
        };
        let has_changed = begun.is_some() || !changes.is_empty();
        let Changes { version, at, queues, more, gone, happened, is_cut, left_out, incomplete } = changes;
        let (left_out, incomplete) = self.beyond(left_out, incomplete);
        let version = begun.map_or(version, |(first, _)| first);
        let last = queues.last().filter(|_| more).map(|(queue, _)| queue.clone());
        self.position = match last {
            Some(after) => Position::Changing { told, version, after },
            None => Position::Sent(version),
        };
        if !has_changed && left_out.is_none() && incomplete.is_none() {
            return None;
        }
        self.pause = Instant::now() + PACE;
        let data = EventsMessage {
            at,
            part: None,
            more,
            left_out,
            incomplete,
            queues: queues.into_iter().map(QueueMessage::from).collect(),
            gone,
            happened: happened.into_iter().map(Happened::from).collect(),
            more_happened: is_cut,
        };
        Some(self.write("changes", (!more).then_some(version), &data))
    }

    /// Returns the next part of the picture. What changes while parts are sent is sent again afterwards: from the version of the first
    /// one on.
    fn part(&mut self, version: u64, after: Option<QueueName>, parts: u64) -> Bytes {
        let Part { version: now, at, queues, more, left_out, is_away } =
            self.follower.part(after.as_ref(), PART, |queue| is_among(&self.patterns, queue));
        let is_some = left_out > 0;
        let (left_out, incomplete) = self.beyond(is_some.then_some(left_out), is_some.then_some(true));
        let version = version.min(now);
        let after = queues.last().map(|(queue, _)| queue.clone());
        self.position = match more {
            true => Position::Within { version, after, parts },
            false => Position::Sent(version),
        };
        self.pause = Instant::now() + PACE;
        let data = EventsMessage {
            at,
            part: Some(parts),
            more,
            left_out,
            incomplete,
            queues: queues.into_iter().map(QueueMessage::from).collect(),
            gone: Vec::new(),
            happened: (is_away && parts == 1).then(|| Happening::StoreAway.into()).into_iter().collect(),
            more_happened: false,
        };
        self.write("snapshot", (!more).then_some(version), &data)
    }

    /// Returns what this client learns of the queues that are in no part: how many there are, or only whether there are any.
    fn beyond(&self, left_out: Option<u64>, incomplete: Option<bool>) -> (Option<u64>, Option<bool>) {
        let are_named = !self.patterns.is_empty() && names(&self.patterns).len() == self.patterns.len();
        match self.by.caller.is_limited() {
            _ if are_named => (None, None), // those that are named as a whole are all there
            true => (None, incomplete),     // how many queues there are is not for those who may see some
            false => (left_out, None),
        }
    }

    fn write(&self, event: &str, version: Option<u64>, data: &EventsMessage) -> Bytes {
        // What is made of our own types can be written as JSON, which has no line breaks.
        let data = serde_json::to_string(data).unwrap_or_default();
        let (epoch, digest) = &self.scope;
        let id = version.map(|version| format!("id: {epoch}-{version}-{digest}\n")).unwrap_or_default();
        format!("event: {event}\n{id}data: {data}\n\n").into()
    }

    /// Waits until there may be something to send. Returns whether the stream goes on.
    async fn wait(&mut self, is_crowded: bool) -> bool {
        let (pause, heartbeat) = (self.pause, self.spoke + HEARTBEAT);
        let until = self.ends.map_or(heartbeat, |ends| ends.min(heartbeat));
        let Self { queues, follower, by, position, .. } = self;
        let newer = async {
            match position {
                _ if is_crowded => tokio::time::sleep(PACE).await,
                Position::Sent(told) => {
                    follower.newer_than(*told).await;
                    tokio::time::sleep_until(pause).await;
                }
                Position::Within { .. } | Position::Changing { .. } => {}
            }
        };
        tokio::select! {
            () = newer => true,
            () = tokio::time::sleep_until(until) => true,
            () = queues.drained() => false,
            _ = queues.ended(&by.credential) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_the_queues_does_not_matter() {
        let patterns = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        assert_eq!(digest(&patterns(&["a", "b.*"])), digest(&patterns(&["b.*", "a"])));
        assert_ne!(digest(&patterns(&["a"])), digest(&patterns(&["a*"])));
        assert_eq!(digest(&[]).len(), 12);
    }

    #[test]
    fn a_stream_ends_with_the_session_it_came_by() {
        let (ends, now) = (Timestamp::from_millis(5000), || Ok(Timestamp::from_millis(2000)));
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(lasts(None, Some(ends), now()), ms(3000));
        assert_eq!(lasts(Some(10_000), Some(ends), now()), ms(3000));
        assert_eq!(lasts(Some(1000), Some(ends), now()), ms(1000));
        assert_eq!((lasts(Some(1000), None, now()), lasts(None, None, now())), (ms(1000), None));
    }
}
