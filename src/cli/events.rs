//! The stream of events (`GET /v1/events`): read, and kept going.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use super::client::{Call, Client, query};
use super::failure::Failure;
use super::shown::shown;
use super::table::Tone;
use super::time::age;
use super::view::{Counts, Rates};

/// The server says every 15 s that the connection is alive; after this time without a word it is not.
const SILENCE: Duration = Duration::from_secs(45);
/// The shortest and the longest pause before the stream is asked for again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));
/// The longest message that is read.
const MESSAGE_MAX: usize = 64 << 20;

/// A message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Message {
    pub at: String,
    pub part: Option<u64>,
    pub more: bool,
    /// How many queues are in no message; in `changes` only where that has changed.
    pub left_out: Option<u64>,
    /// Whether some are, where a key is not to learn how many.
    pub incomplete: Option<bool>,
    pub queues: Vec<Queue>,
    pub gone: Vec<String>,
    pub happened: Vec<Happened>,
    pub more_happened: bool,
}

/// How many queues are in no message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LeftOut {
    /// None.
    #[default]
    None,
    /// So many.
    Number(u64),
    /// Some: a key of some queues does not learn how many.
    Some,
}

impl Message {
    /// Returns how many queues are in no message, if this one says so.
    pub fn left_out(&self) -> Option<LeftOut> {
        match (self.left_out, self.incomplete) {
            (None, None) => None,
            (_, Some(true)) => Some(LeftOut::Some),
            (Some(number @ 1..), _) => Some(LeftOut::Number(number)),
            _ => Some(LeftOut::None),
        }
    }
}

/// A queue as it is now.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Queue {
    pub queue: String,
    pub counts: Counts,
    pub paused: bool,
    pub oldest_ready_at: Option<String>,
    /// The same in milliseconds since 1970: lists are sorted by it. Read once, when the queue arrives.
    #[serde(skip)]
    pub oldest_ready_ms: Option<i64>,
    pub oldest_is_approximate: bool,
    pub rates_per_s: Rates,
    /// Why it needs a person, the most urgent reason first.
    pub attention: Vec<String>,
}

/// The reasons for attention, the most urgent first.
const REASONS: [&str; 7] = ["starved", "stuck", "blocked", "failing", "growing", "dead", "paused"];

/// Returns how a reason for attention looks. One of a later version is worth a look.
pub fn tone_of_reason(reason: &str) -> Tone {
    match reason {
        "starved" | "stuck" | "blocked" | "failing" | "dead" => Tone::Bad,
        _ => Tone::Warn,
    }
}

impl Queue {
    /// Returns why it needs attention, as it is shown beside whether it is paused.
    pub fn attention_words(&self) -> String {
        let reasons: Vec<String> = self.reasons().map(shown).collect();
        reasons.join(",")
    }

    /// Returns why it needs attention, but for that it is paused, which is said anyway.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        self.attention.iter().map(String::as_str).filter(|reason| *reason != "paused")
    }

    /// Returns how that looks.
    pub fn attention_tone(&self) -> Tone {
        self.attention.first().map_or(Tone::Plain, |reason| tone_of_reason(reason))
    }

    /// Returns how urgent that is; 0 where it needs none.
    pub fn urgency(&self) -> u64 {
        let Some(first) = self.attention.first() else { return 0 };
        let index = REASONS.iter().position(|reason| reason == first).unwrap_or(REASONS.len());
        (REASONS.len() + 1 - index) as u64
    }

    /// Returns for how long its oldest ready job has been ready, as it is shown: `~` says that it may be another job by now.
    pub fn oldest(&self) -> Option<String> {
        let about = if self.oldest_is_approximate { "~" } else { "" };
        self.oldest_ready_at.as_deref().map(|at| format!("{about}{}", age(at)))
    }
}

/// Something that has happened.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Happened {
    pub kind: String,
    pub queue: Option<String>,
    pub worker: Option<String>,
    pub jobs: Option<u64>,
}

/// A message and its text.
#[derive(Debug)]
pub struct Event {
    /// The message.
    pub message: Message,
    /// Whether it is part of a whole picture.
    pub is_snapshot: bool,
    /// Its JSON as it came.
    pub data: String,
}

/// Finds the messages in the bytes of a stream.
#[derive(Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    event: String,
    id: Option<String>,
    data: String,
}

impl Parser {
    /// Takes bytes, and returns the messages that they complete: kind, id and data.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Vec<(String, Option<String>, String)>, Failure> {
        let mut messages = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() + self.data.len() > MESSAGE_MAX {
                return Err(Failure::Failed("a message of the stream is too long".to_owned()));
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                let line = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
                messages.extend(self.take_line(&line));
            }
        }
        Ok(messages)
    }

    fn take_line(&mut self, line: &str) -> Option<(String, Option<String>, String)> {
        if line.is_empty() {
            let (event, id, data) =
                (std::mem::take(&mut self.event), self.id.take(), std::mem::take(&mut self.data));
            return (!data.is_empty()).then_some((event, id, data));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event),
            "id" => self.id = Some(value.to_owned()),
            "data" if self.data.is_empty() => value.clone_into(&mut self.data),
            "data" => self.data.extend(["\n", value]),
            _ => {}
        }
        None
    }
}

/// A stream that is asked for again whenever it ends.
pub struct Stream {
    client: Client,
    path: String,
    body: Option<(Incoming, Parser)>,
    waiting: std::collections::VecDeque<Event>,
    last_id: Option<String>,
    pause: Duration,
    /// It has ended, and that was not printed yet.
    has_ended: bool,
}

/// What the stream has to say.
pub enum News {
    /// A message.
    Event(Box<Event>),
    /// The connection is lost, for this reason; it is tried again.
    Lost(Failure),
    /// There is a connection again. What has changed meanwhile follows.
    Connected,
}

impl Stream {
    /// Returns the stream of these queues, of all if none are named.
    pub fn new(client: Client, queues: &[String], ends_in: Option<Duration>) -> Self {
        let mut parameters: Vec<(&str, Option<String>)> =
            queues.iter().map(|queue| ("queue", Some(queue.clone()))).collect();
        parameters.push(("for_ms", ends_in.map(|span| super::time::ms(span).to_string())));
        let path = query("/v1/events", &parameters);
        Self { client, path, body: None, waiting: [].into(), last_id: None, pause: PAUSE.0, has_ended: false }
    }

    /// Connects. A failure is not tried again.
    pub async fn connect(&mut self) -> Result<(), Failure> {
        let mut call = Call::get(self.path.clone());
        if let Some(id) = &self.last_id {
            call = call.header("last-event-id", id);
        }
        self.body = Some((self.client.stream(&call).await?, Parser::default()));
        Ok(())
    }

    /// Returns the next message of this connection; nothing where it has ended.
    pub async fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(Some(event));
            }
            let Some((body, parser)) = &mut self.body else { return Ok(None) };
            let lost = |reason: String| Failure::Unreachable(reason);
            let frame = timeout(SILENCE, body.frame()).await;
            let frame = frame.map_err(|_| lost("the server has fallen silent".to_owned()))?;
            let Some(frame) = frame else {
                (self.body, self.has_ended) = (None, true);
                return Ok(None);
            };
            let frame = frame.map_err(|error| lost(format!("the connection broke: {error}")))?;
            let bytes = frame.into_data().unwrap_or_else(|_| Bytes::new());
            for (kind, id, data) in parser.take(&bytes)? {
                if let Some(id) = id {
                    self.last_id = Some(id);
                }
                let message = serde_json::from_str(&data)
                    .map_err(|error| Failure::Failed(format!("a message is not understood: {error}")))?;
                self.pause = PAUSE.0;
                self.waiting.push_back(Event { message, is_snapshot: kind == "snapshot", data });
            }
        }
    }

    /// Returns what comes next, over however many connections. A failure that would come again is an error.
    pub async fn follow(&mut self) -> Result<News, Failure> {
        let lost = match self.next().await {
            Ok(Some(event)) => return Ok(News::Event(Box::new(event))),
            Ok(None) => None,
            Err(failure) if failure.is_passing() => Some(failure),
            Err(failure) => return Err(failure),
        };
        let was_open = self.body.take().is_some();
        if let Some(failure) = lost.filter(|_| was_open) {
            return Ok(News::Lost(failure));
        }
        if std::mem::take(&mut self.has_ended) {
            return Ok(News::Lost(Failure::Unreachable("the server has ended the stream".to_owned())));
        }
        // A server that ends each stream at once is not asked in a tight loop either.
        sleep(self.pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await;
        self.pause = (self.pause * 2).min(PAUSE.1);
        match self.connect().await {
            Ok(()) => Ok(News::Connected),
            Err(failure) if failure.is_passing() => Ok(News::Lost(failure)),
            Err(failure) => Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_however_they_are_cut() {
        let text = ": hello\nretry: 2000\n\nevent: snapshot\ndata: {\"a\":1}\n\nevent: changes\r\nid: 7\r\ndata:x\r\ndata: ü\r\n\r\nid: 8\n\n";
        let expected = vec![
            ("snapshot".to_owned(), None, "{\"a\":1}".to_owned()),
            ("changes".to_owned(), Some("7".to_owned()), "x\nü".to_owned()),
        ];
        for size in 1..=text.len() {
            let mut parser = Parser::default();
            let parts = text.as_bytes().chunks(size);
            let found: Vec<_> = parts.flat_map(|part| parser.take(part).unwrap()).collect();
            assert_eq!(found, expected, "{size}");
        }
    }
}
