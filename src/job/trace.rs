//! Trace contexts in the form of the W3C recommendation "Trace Context": `traceparent` and `tracestate`, as callers send them as HTTP
//! headers and as jobs have them among their headers.
//!
//! A job keeps one context from its push to its end. What its producer says of it in `headers` stands, whatever it is; else it is that of
//! the call which pushed it, and of a job that another one pushed with its commit the other's. Malformed values are no contexts, and never
//! errors.

use std::borrow::Cow;

use super::spec::{Headers, has_room};
use super::{NewJob, Payload};

/// The name of the header with the ids and the flags of a context.
pub const TRACEPARENT: &str = "traceparent";
/// The name of the header with what tracing systems say beside that.
pub const TRACESTATE: &str = "tracestate";

/// Of the flags: that the spans of the trace are recorded.
const SAMPLED: u8 = 0b01;
/// The flags that have a meaning; others are not handed on. The second says that the trace id is random.
const FLAGS: u8 = 0b11;
/// The length of a `traceparent` of version 00.
const LENGTH: usize = 55;
/// The most members of a `tracestate`.
const MEMBERS_MAX: usize = 32;
/// The most characters of a `tracestate` that are handed on.
const STATE_MAX: usize = 512;
/// Members of a `tracestate` that is too long are left out first where they are longer than this.
const MEMBER_LONG: usize = 128;
/// The most characters of a key, and of a value.
const WORD_MAX: usize = 256;

/// Where a span belongs: its trace, itself, and what tracing systems say of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// The id of the trace; never zero.
    pub trace_id: u128,
    /// The id of the span; never zero.
    pub span_id: u64,
    flags: u8,
    state: Option<Box<str>>,
}

impl TraceContext {
    /// The context of a span of this server.
    pub fn new(trace_id: u128, span_id: u64) -> Self {
        Self { trace_id, span_id, flags: SAMPLED, state: None }
    }

    /// Reads a context; `None` where `traceparent` is malformed. A malformed `tracestate` is left out.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let hex = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let (head, rest) = traceparent.split_at_checked(LENGTH)?;
        let mut parts = head.split('-');
        let (version, trace_id, span_id, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let lengths = [version.len(), trace_id.len(), span_id.len(), flags.len()];
        if parts.next().is_some() || lengths != [2, 32, 16, 2] || !head.split('-').all(hex) {
            return None;
        }
        // A later version may have more behind a further dash.
        if version == "ff" || !(rest.is_empty() || (version != "00" && rest.starts_with('-'))) {
            return None;
        }
        let context = Self {
            trace_id: u128::from_str_radix(trace_id, 16).ok().filter(|id| *id != 0)?,
            span_id: u64::from_str_radix(span_id, 16).ok().filter(|id| *id != 0)?,
            flags: u8::from_str_radix(flags, 16).ok()? & FLAGS,
            state: None,
        };
        Some(Self { state: tracestate.and_then(state), ..context })
    }

    /// Returns the context of a job with these headers, if it has one.
    pub fn of(headers: &Headers) -> Option<Self> {
        let tracestate = headers.get(TRACESTATE).and_then(string);
        Self::parse(&string(headers.get(TRACEPARENT)?)?, tracestate.as_deref())
    }

    /// Returns whether the spans of the trace are recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Returns the flags, as a byte.
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// Returns the `tracestate`, if there is one.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Returns the span of this server that belongs into the same trace.
    pub fn child(&self, span_id: u64) -> Self {
        Self { span_id, ..self.clone() }
    }

    /// Returns the `traceparent`.
    pub fn traceparent(&self) -> String {
        format!("00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }

    /// Adds the context to the headers of a job, unless its producer says one, or something in its place. Where the headers have no
    /// more room it is left out: what a server adds never makes a push fail.
    pub fn carry(&self, headers: &mut Headers) {
        if !is_open(headers) {
            return;
        }
        let traceparent = self.traceparent();
        if !has_room(headers, TRACEPARENT.len() + traceparent.len()) {
            return;
        }
        headers.insert(TRACEPARENT.to_owned(), Payload::string(&traceparent));
        if let Some(state) = self.state().filter(|state| has_room(headers, TRACESTATE.len() + state.len())) {
            headers.insert(TRACESTATE.to_owned(), Payload::string(state));
        }
    }
}

/// Returns whether these headers say nothing of a trace.
fn is_open(headers: &Headers) -> bool {
    !headers.contains_key(TRACEPARENT) && !headers.contains_key(TRACESTATE)
}

/// Returns whether one of these jobs takes over the context of the job that it is pushed with, if that has one.
pub fn inherits(pushes: &[NewJob]) -> bool {
    pushes.iter().any(|job| is_open(&job.spec.headers))
}

/// Jobs are pushed with one of this context: returns what they are.
pub fn inherit(pushes: &mut [NewJob], from: &TraceContext) {
    pushes.iter_mut().for_each(|job| from.carry(&mut job.spec.headers));
}

/// What is known of the context of a job whose headers were perhaps not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfJob {
    /// The headers were not read.
    Unread,
    /// It has none.
    None,
    /// It has this one.
    Some(Box<TraceContext>),
}

impl OfJob {
    /// What its headers say.
    pub fn read(headers: &Headers) -> Self {
        TraceContext::of(headers).map_or(Self::None, |context| Self::Some(Box::new(context)))
    }

    /// Returns the context, if it is known.
    pub fn known(&self) -> Option<&TraceContext> {
        match self {
            Self::Unread | Self::None => None,
            Self::Some(context) => Some(context),
        }
    }
}

/// Returns the text of a JSON string.
fn string(value: &Payload) -> Option<Cow<'_, str>> {
    serde_json::from_str(value.as_str()).ok().map(Text::into_inner)
}

/// Borrows where nothing is escaped, which `Cow` by itself never does.
#[derive(serde::Deserialize)]
struct Text<'t>(#[serde(borrow)] Cow<'t, str>);

impl<'t> Text<'t> {
    fn into_inner(self) -> Cow<'t, str> {
        self.0
    }
}

/// Returns what is handed on of a `tracestate`: nothing where it is malformed, and whole members where it is too long.
fn state(text: &str) -> Option<Box<str>> {
    let mut members: Vec<(&str, &str)> = Vec::new();
    for member in text.split(',').map(|member| member.trim_matches([' ', '\t'])) {
        if member.is_empty() {
            continue;
        }
        let (key, value) = member.split_once('=')?;
        if !is_key(key) || !is_value(value) {
            return None;
        }
        if members.iter().all(|(other, _)| *other != key) {
            if members.len() == MEMBERS_MAX {
                return None; // at once: each member is compared with all before it
            }
            members.push((key, member));
        }
    }
    if members.is_empty() {
        return None;
    }
    let mut members: Vec<&str> = members.into_iter().map(|(_, member)| member).collect();
    let length = |members: &[&str]| members.iter().map(|member| member.len() + 1).sum::<usize>() - 1;
    while !members.is_empty() && length(&members) > STATE_MAX {
        let longest = members.iter().rposition(|member| member.len() > MEMBER_LONG);
        members.remove(longest.unwrap_or(members.len() - 1));
    }
    (!members.is_empty()).then(|| members.join(",").into())
}

fn is_key(key: &str) -> bool {
    let is_first = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=WORD_MAX).contains(&key.len())
        && key.bytes().next().is_some_and(is_first)
        && key.bytes().all(|b| is_first(b) || b"_-*/@".contains(&b))
}

fn is_value(value: &str) -> bool {
    (1..=WORD_MAX).contains(&value.len()) && value.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn contexts_come_back_as_they_were() {
        for text in [GOOD, "00-00000000000000000000000000000001-0000000000000001-00"] {
            assert_eq!(TraceContext::parse(text, None).unwrap().traceparent(), text);
        }
        // Of a later version what this one knows, and of flags those that mean something.
        for (text, handed_on) in [
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future-holds", GOOD),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", GOOD),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-", GOOD),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fd", GOOD),
        ] {
            assert_eq!(TraceContext::parse(text, None).unwrap().traceparent(), handed_on, "{text}");
        }
    }

    #[test]
    fn what_is_malformed_is_none() {
        for text in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-010",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.more",
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
            "00 4bf92f3577b34da6a3ce929d0e0e4736 00f067aa0ba902b7 01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "0g-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-0f067aa0ba902b7-01",
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(text, None), None, "{text}");
        }
    }

    #[test]
    fn states_are_handed_on_member_by_member() {
        let state = |text: &str| TraceContext::parse(GOOD, Some(text)).unwrap().state().map(str::to_owned);
        let many = |count: usize| (0..count).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        for (text, handed_on) in [
            ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", Some("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")),
            (" a=1 ,\t,b=2,", Some("a=1,b=2")),
            ("fw529a3039@dt=FfLWmvXsMzE", Some("fw529a3039@dt=FfLWmvXsMzE")),
            ("0key=1", Some("0key=1")),
            ("a=1,a=2", Some("a=1")),
            ("", None),
            (",", None),
            ("a", None),
            ("a=", None),
            ("=1", None),
            ("A=1", None),
            ("a =1", None),
            ("a=1=2", None),
            ("a=1,b=\u{7f}", None),
            ("a=ä", None),
        ] {
            assert_eq!(state(text).as_deref(), handed_on, "{text}");
        }
        assert!(state(&many(32)).is_some() && state(&many(33)).is_none());
        let long = format!("a=1,b={},c=3", "x".repeat(200));
        assert_eq!(state(&long).as_deref(), Some(&*long), "short enough together");
        let too_long = format!("a=1,b={},c={},d={},e=5", "x".repeat(200), "y".repeat(100), "z".repeat(240));
        let kept = format!("a=1,b={},c={},e=5", "x".repeat(200), "y".repeat(100));
        assert_eq!(state(&too_long).as_deref(), Some(&*kept), "long members go first");
        let words: Vec<String> = (0..6).map(|n| format!("k{n}={}", "x".repeat(97))).collect();
        assert_eq!(state(&words.join(",")), Some(words[..5].join(",")), "then those at the end");
        let widest = format!("{}={}", "k".repeat(256), "v".repeat(255));
        assert_eq!(state(&widest).as_deref(), Some(&*widest));
        assert_eq!(state(&format!("{}=1", "k".repeat(257))), None);
        assert_eq!(state(&format!("k={}", "v".repeat(257))), None);
    }

    #[test]
    fn jobs_carry_it_unless_they_say_otherwise_or_are_full() {
        let context = TraceContext::parse(GOOD, Some("a=1")).unwrap();
        let carried = |json: serde_json::Value| {
            let mut headers: Headers = serde_json::from_value(json).unwrap();
            context.carry(&mut headers);
            serde_json::to_value(&headers).unwrap()
        };
        assert_eq!(
            carried(serde_json::json!({})),
            serde_json::json!({"traceparent": GOOD, "tracestate": "a=1"})
        );
        for own in [
            serde_json::json!({"traceparent": "00-00000000000000000000000000000001-0000000000000001-00"}),
            serde_json::json!({"traceparent": "nonsense"}),
            serde_json::json!({"traceparent": null}),
            serde_json::json!({"traceparent": {"a": [1.10]}}),
            serde_json::json!({"tracestate": "b=2"}),
        ] {
            assert_eq!(carried(own.clone()), own);
        }
        let full: serde_json::Map<String, serde_json::Value> =
            (0..64).map(|n| (format!("h{n}"), n.into())).collect();
        assert_eq!(carried(full.clone().into()), serde_json::Value::from(full.clone()));
        let nearly: serde_json::Map<String, serde_json::Value> = full.into_iter().skip(1).collect();
        let carried_nearly = carried(nearly.into());
        assert_eq!(carried_nearly["traceparent"], GOOD);
        assert!(carried_nearly.get("tracestate").is_none(), "one more is all there is room for");
        let long = serde_json::json!({"h": "x".repeat(8192 - 1 - TRACEPARENT.len() - LENGTH)});
        assert_eq!(carried(long.clone())["traceparent"], GOOD);
        let longer = serde_json::json!({"h": "x".repeat(8192 - TRACEPARENT.len() - LENGTH)});
        assert_eq!(carried(longer.clone()), longer);
        let headers: Headers = serde_json::from_value(carried(serde_json::json!({}))).unwrap();
        assert_eq!(TraceContext::of(&headers), Some(context));
    }
}
