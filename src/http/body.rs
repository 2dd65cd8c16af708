//! Request bodies: read at a bounded pace into bounded memory, then [parsed](super::parse) into a request type.

use std::time::Duration;

use axum::body::{Bytes, HttpBody as _};
use axum::extract::{FromRequest, Request};
use axum::http::{header, request};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;

use super::budget::{Account, LARGE};
use super::context::Context;
use super::parse::parse;
use super::peers::Share;
use super::problem::{Code, Problem};
use super::wire::{Refusal, TOO_LARGE};
use super::{AppState, Limits, access};
use crate::job::{Base64, Content, Invalid, MediaType, Payload};

/// A valid request body. An empty body is read as `{}`.
pub struct Body<T>(pub T);

/// A valid request body of a call that replaces something: it is required, since `{}` would reset everything.
pub struct Whole<T>(pub T);

impl<T: DeserializeOwned> FromRequest<AppState> for Whole<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Problem> {
        let required = || Problem::field("", "is required; send {} to reset everything to the defaults");
        parsed(request, state).await?.ok_or_else(required).map(Self)
    }
}

/// A valid request body of a call that needs no key: a stranger is given no more memory than such a body takes.
pub struct Small<T>(pub T);

impl<T: DeserializeOwned> FromRequest<AppState> for Small<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Problem> {
        let body = read_by(request, state, Most::SMALL, |text| Ok(parse(text)?)).await?;
        body.map_or_else(|| Ok(parse("{}")?), Ok).map(Self)
    }
}

impl<T: DeserializeOwned> FromRequest<AppState> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Problem> {
        Ok(Self(or_empty(request, state).await?.0))
    }
}

/// Returns a valid request body like [`Body`], and whether it was empty.
pub async fn or_empty<T: DeserializeOwned>(request: Request, state: &AppState) -> Result<(T, bool), Problem> {
    match parsed(request, state).await? {
        Some(body) => Ok((body, false)),
        None => Ok((parse("{}")?, true)),
    }
}

/// The same with a digest, which is equal for the same JSON, however it is spaced.
pub async fn with_digest<T: DeserializeOwned>(
    request: Request,
    state: &AppState,
) -> Result<(T, bool, [u8; 32]), Problem> {
    let both = |text: &str| -> Result<(T, [u8; 32]), Problem> {
        let digest = Payload::parse(text).map(|json| json.digest());
        Ok((parse(text)?, digest.unwrap_or_else(|_| Sha256::digest(text).into())))
    };
    let read = read_by(request, state, Most::of(state), both).await?;
    let is_empty = read.is_none();
    let (body, digest) = read.map_or_else(|| both("{}"), Ok)?;
    Ok((body, is_empty, digest))
}

/// Reads the body, which must be declared as JSON; nothing if it is empty.
async fn parsed<T: DeserializeOwned>(request: Request, state: &AppState) -> Result<Option<T>, Problem> {
    read_by(request, state, Most::of(state), |text| Ok(parse(text)?)).await
}

/// How large a body may be, and what is said of a larger one.
#[derive(Clone, Copy)]
struct Most {
    bytes: usize,
    detail: &'static str,
}

impl Most {
    const SMALL: Self = Self { bytes: 16 << 10, detail: "the body is larger than 16384 bytes" };

    fn of(state: &AppState) -> Self {
        Self { bytes: state.limits.body_bytes, detail: TOO_LARGE }
    }

    fn exceeded(self) -> Problem {
        Problem::new(Code::TooLarge, self.detail)
    }
}

async fn read_by<T>(
    request: Request,
    state: &AppState,
    most: Most,
    parse: impl Fn(&str) -> Result<T, Problem>,
) -> Result<Option<T>, Problem> {
    // Refused before it arrives: the client may wait for that (`Expect: 100-continue`).
    if request.body().size_hint().lower() > most.bytes as u64 {
        return Err(most.exceeded());
    }
    let (head, body) = request.into_parts();
    let declared = head.headers.get(header::CONTENT_TYPE).map(|value| value.to_str().map(is_json));
    let context = Context::of(&head.extensions);
    let refused = || context?.wire.as_ref()?.body_refused();
    let account = context.and_then(|context| context.account.as_deref());
    let enter = || match context.and_then(|context| Some((context.wire.as_ref()?, context.address()?))) {
        Some((wire, address)) => wire.arriving.enter(address).map(Some).ok_or(TOO_MANY),
        None => Ok(None),
    };
    let read = read(body, most, Pace::new(state.limits), refused, enter, account).await?;
    if read.bytes == 0 {
        still_granted(&head, state)?;
        return Ok(None);
    }
    // Without a type, a foreign page could make a browser send it without asking.
    if !matches!(declared, Some(Ok(true))) {
        let detail = "send JSON with the header content-type: application/json (curl: --json)";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    if let Some(account) = account {
        account.work(read.bytes).await?;
    }
    still_granted(&head, state)?;
    off_worker(read.bytes, || {
        let bytes = read.whole();
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| Problem::new(Code::Malformed, "the body is not UTF-8 and therefore not JSON"))?;
        Ok(Some(parse(text)?))
    })
}

/// Refuses a request whose key has ended while its body came.
fn still_granted(head: &request::Parts, state: &AppState) -> Result<(), Problem> {
    Ok(state.queues.check_credential(&access::of(head)?.credential)?)
}

/// Does work on so many bytes; where that takes long, other tasks go on meanwhile.
pub fn off_worker<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) if bytes >= LARGE => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// A body as it came. Parts of one size are used again for other bodies at once; a text of each size would not be.
#[derive(Default)]
struct Parts {
    /// The first chunk; the only one in the usual case, which is not copied.
    first: Bytes,
    more: Vec<Vec<u8>>,
    bytes: usize,
}

impl Parts {
    const SIZE: usize = 64 << 10;

    fn add(&mut self, data: Bytes) {
        self.bytes += data.len();
        if self.bytes == data.len() {
            self.first = data;
            return;
        }
        let mut left = &*data;
        while !left.is_empty() {
            let room = self.more.last().map_or(0, |part| Self::SIZE - part.len());
            let (now, later) = left.split_at(room.min(left.len()));
            match self.more.last_mut() {
                Some(part) if room > 0 => part.extend_from_slice(now),
                _ => self.more.push(Vec::with_capacity(Self::SIZE)),
            }
            left = later;
        }
    }

    fn whole(self) -> Bytes {
        if self.more.is_empty() {
            return self.first;
        }
        let mut whole = Vec::with_capacity(self.bytes);
        whole.extend_from_slice(&self.first);
        self.more.into_iter().for_each(|part| whole.extend_from_slice(&part));
        whole.into()
    }
}

/// Reads a whole body.
async fn read(
    mut body: axum::body::Body,
    most: Most,
    mut pace: Pace,
    refused: impl FnOnce() -> Option<Refusal>,
    enter: impl Fn() -> Result<Option<Share>, Refusal>,
    account: Option<&Account>,
) -> Result<Parts, Problem> {
    let (mut read, mut share) = (Parts::default(), None);
    while !body.is_end_stream() {
        let late = |_| Problem::new(Code::RequestTimeout, TOO_SLOW);
        let Some(frame) = tokio::time::timeout_at(pace.deadline(), body.frame()).await.map_err(late)? else {
            break;
        };
        let Ok(frame) = frame else {
            const BROKEN_OFF: &str = "the connection failed before the body was complete";
            let Refusal { code, detail } =
                refused().unwrap_or(Refusal { code: Code::Malformed, detail: BROKEN_OFF });
            return Err(Problem::new(code, detail));
        };
        let Ok(data) = frame.into_data() else { continue };
        pace.came(data.len());
        if read.bytes + data.len() > most.bytes {
            return Err(most.exceeded());
        }
        if let Some(account) = account {
            account.came(data.len())?;
        }
        read.add(data);
        // Most bodies come whole.
        if share.is_none() && !body.is_end_stream() {
            share = Some(enter().map_err(|Refusal { code, detail }| Problem::new(code, detail))?);
        }
    }
    Ok(read)
}

/// What a peer gets of whose bodies so many are arriving that they could take the memory of others.
const TOO_MANY: Refusal = Refusal {
    code: Code::Overloaded,
    detail: "the bodies of too many requests of this peer are still arriving (limits.memory_bytes)",
};

const TOO_SLOW: &str = "the body comes too slowly: 1 KiB a second at least, without long pauses (limits.body_pause_ms), \
     and the whole request in time (limits.request_ms)";

/// How fast a body must come, over any [`Pace::WINDOW`], so that a client cannot hold a connection with a byte now and then.
struct Pace {
    limits: Limits,
    end: Instant,
    last: Instant,
    /// Since when how many bytes have come.
    window: (Instant, usize),
}

impl Pace {
    const WINDOW: Duration = Duration::from_secs(10);
    const BYTES: usize = 10 << 10;

    fn new(limits: Limits) -> Self {
        let now = Instant::now();
        Self { limits, end: now + limits.request, last: now, window: (now, 0) }
    }

    /// Returns until when more must come.
    fn deadline(&self) -> Instant {
        self.end.min(self.last + self.limits.body_pause).min(self.window.0 + Self::WINDOW)
    }

    fn came(&mut self, bytes: usize) {
        self.last = Instant::now();
        self.window.1 += bytes;
        if self.window.1 >= Self::BYTES {
            self.window = (self.last, 0);
        }
    }
}

fn is_json(content_type: &str) -> bool {
    if content_type == "application/json" {
        return true;
    }
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

/// Parses an optional JSON value as a payload; `pointer` is where it is in the body.
pub fn optional_payload(raw: Option<&RawValue>, pointer: &str) -> Result<Option<Payload>, Invalid> {
    let payload = |raw| Payload::from_raw(raw).map_err(|error| Invalid::new(pointer, error.to_string()));
    raw.map(payload).transpose()
}

/// Parses the fields of an optional payload, which are at the top of the body.
pub fn optional_content(
    raw: Option<&RawValue>,
    base64: Option<Base64>,
    media_type: Option<MediaType>,
) -> Result<Option<Content>, Invalid> {
    let payload = optional_payload(raw, "/payload")?;
    let is_given = payload.is_some() || base64.is_some();
    let payload = payload.unwrap_or_else(Payload::null);
    Content::check_fields(&payload, base64.as_ref(), media_type.as_ref())?;
    Ok(is_given.then(|| Content::of(payload, base64, media_type)))
}

/// Reads a field such that `null` is a value and only an absent field is `None`.
pub fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    serde::Deserialize::deserialize(from).map(Some)
}

/// Reads a field of a change such that `null` takes the value away and only an absent field is `None`.
pub fn changed<'de, T, D>(from: D) -> Result<Option<Option<T>>, D::Error>
where
    T: serde::Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    serde::Deserialize::deserialize(from).map(Some)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use super::*;
    use crate::http::peers::Peers;

    #[test]
    fn a_body_is_whole_whatever_chunks_it_came_in() {
        let text: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        for size in [1, 7, 1000, Parts::SIZE - 1, Parts::SIZE, Parts::SIZE + 1, text.len()] {
            let mut parts = Parts::default();
            text.chunks(size).for_each(|chunk| parts.add(Bytes::copy_from_slice(chunk)));
            assert!(parts.bytes == text.len() && parts.whole() == text, "{size}");
        }
    }

    #[tokio::test]
    async fn only_so_many_bodies_of_a_peer_may_come_in_parts() {
        let peers = Arc::new(Peers::new(1, Vec::new()));
        let pace = || {
            let hour = Duration::from_secs(3600);
            Pace::new(Limits { body_bytes: 100, body_pause: hour, request: hour })
        };
        let read = |body: axum::body::Body| {
            let enter = || peers.enter([127, 0, 0, 1].into()).map(Some).ok_or(TOO_MANY);
            read(body, Most::SMALL, pace(), || None, enter, None)
        };
        let parts = || {
            let parts = ["{", "}"].map(|part| Ok::<_, Infallible>(Bytes::from_static(part.as_bytes())));
            axum::body::Body::from_stream(futures::stream::iter(parts))
        };
        assert!(read(parts()).await.is_ok_and(|read| read.bytes == 2));
        let open = peers.enter([127, 0, 0, 1].into());
        assert!(open.is_some(), "the share was given back");
        assert!(read(parts()).await.is_err());
        assert!(read(axum::body::Body::from("{}")).await.is_ok(), "one that comes whole takes no share");
        drop(open);
        assert!(read(parts()).await.is_ok());
    }
}
