//! What is judged in the bytes of a connection, before hyper parses them: hyper drops a `Content-Length` beside a
//! `Transfer-Encoding` and takes requests without `Host`, so that what a proxy in front and this server read could
//! differ (request smuggling).
//!
//! [`Framing`] follows the requests of one connection as they are read: heads, and bodies by their length or in chunks. What
//! is refused is a request that hyper takes, and its response is a problem (`http/mod.rs`). A head that is too large is cut
//! off, so that hyper does not take it; the response that hyper then writes is replaced by a problem (`http/stream.rs`).

use std::mem::MaybeUninit;

use super::problem::Code;

/// The longest `Host` that is remembered, here and by [`Wire`](super::connection::Wire).
pub const HOST_MAX: usize = 128;
/// The most headers of a request; hyper's own limit.
const HEADERS_MAX: usize = 100;

/// Why a request is refused before it is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of problem.
    pub code: Code,
    /// What is wrong, for the client.
    pub detail: &'static str,
}

/// The limits of what is read.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The most bytes of a head.
    pub head: usize,
    /// The most bytes of a body.
    pub body: u64,
}

/// What is read next on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    /// So many bytes of a body.
    Body(u64),
    /// The line with the size of a chunk, as far as it is known, and whether its digits are over.
    ChunkSize {
        size: u64,
        digits_over: bool,
    },
    /// So many bytes of a chunk.
    Chunk(u64),
    /// The end of the line behind a chunk.
    ChunkEnd,
    /// The lines behind the last chunk, and how many bytes the current one has.
    Trailers(usize),
    /// What is left of [`CUT`] takes the place of what is read.
    Cut(usize),
    /// Something that hyper refuses by itself, or that has been refused.
    Over,
}

/// The end of a head that is no head: hyper parses one only where it sees its end.
const CUT: [u8; 3] = *b"\0\n\n";

/// The framing of the requests on one connection.
#[derive(Debug)]
pub struct Framing {
    bounds: Bounds,
    state: State,
    /// The last `Host` that was valid: nearly all requests of a connection have the same.
    host: Option<Box<[u8]>>,
    /// The head so far, where it comes in parts.
    head: Vec<u8>,
    /// How many heads there were.
    heads: usize,
    /// How many bytes the chunks of this body have announced.
    announced: u64,
    /// Whether the last byte of a line of a body in chunks was a CR.
    after_cr: bool,
}

/// A refusal, and where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// How many of the bytes that were read come before it, if it is within a body: what comes behind them must not be
    /// parsed as anything. A head that is refused is parsed, so that it gets its response.
    pub within_body: Option<usize>,
}

impl Framing {
    /// Returns the framing of a new connection.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            state: State::Head,
            host: None,
            head: Vec::new(),
            heads: 0,
            announced: 0,
            after_cr: false,
        }
    }

    /// Returns how many heads there were, with that of the request that was refused.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Follows what was read.
    pub fn read(&mut self, bytes: &mut [u8]) -> Option<Refused> {
        let mut at = 0;
        while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
            let read = match self.state {
                State::Over => return None,
                State::Cut(from) => Ok(self.cut(rest, from)),
                State::Head => self.read_head(rest),
                State::Body(left) => Ok(self.skip(left, rest.len(), State::Head, State::Body)),
                State::Chunk(left) => Ok(self.skip(left, rest.len(), State::ChunkEnd, State::Chunk)),
                State::ChunkSize { .. } | State::ChunkEnd | State::Trailers(_) => self.read_line(rest),
            };
            match read {
                Ok(read) => at += read,
                Err(refusal) => {
                    self.head = Vec::new();
                    let is_of_line =
                        matches!(self.state, State::ChunkSize { .. } | State::ChunkEnd | State::Trailers(_));
                    if !matches!(self.state, State::Cut(_)) {
                        self.state = State::Over;
                    }
                    return Some(Refused { refusal, within_body: is_of_line.then_some(at) });
                }
            }
        }
        None
    }

    /// Returns whether the client may still be sending what belongs to a request that has its response.
    pub fn is_within_request(&self) -> bool {
        self.state != State::Head
    }

    /// Skips bytes of which `left` are expected.
    fn skip(&mut self, left: u64, there: usize, after: State, within: fn(u64) -> State) -> usize {
        let read = usize::try_from(left).unwrap_or(usize::MAX).min(there);
        let left = left - read as u64;
        self.state = if left == 0 { after } else { within(left) };
        read
    }

    /// Reads a head, or a part of one, and returns how many bytes of it there are.
    fn read_head(&mut self, bytes: &mut [u8]) -> Result<usize, Refusal> {
        let before = self.head.len();
        let parsed = if before == 0 {
            parse(bytes, self.host.as_deref())
        } else {
            let room = self.bounds.head.saturating_add(1).saturating_sub(before);
            self.head.extend(bytes.iter().take(room));
            // A line that is not complete changes nothing, and parsing it again for each byte would cost much.
            if bytes.contains(&b'\n') { parse(&self.head, self.host.as_deref()) } else { Ok(None) }
        };
        match parsed {
            Err(refusal) => {
                // hyper would wait for the end of the head, and keep all of it.
                self.heads += 1;
                self.cut(bytes, 0);
                Err(refusal)
            }
            Ok(None) if before.max(self.head.len()).max(bytes.len()) > self.bounds.head => {
                let refusal = self.too_long(bytes);
                self.heads += 1;
                self.cut(bytes, 0);
                Err(refusal)
            }
            Ok(None) => {
                if before == 0 {
                    self.head.extend_from_slice(bytes);
                }
                Ok(bytes.len())
            }
            Ok(Some((length, _))) if length > self.bounds.head => {
                self.heads += 1;
                Err(self.too_long(bytes))
            }
            Ok(Some((length, head))) => {
                self.heads += 1;
                (self.state, self.announced, self.after_cr) = (head.judge()?, 0, false);
                if let Some(host) = head.new_host.filter(|host| host.len() <= HOST_MAX) {
                    self.host = Some(host.into());
                }
                self.head.clear();
                Ok(length - before)
            }
        }
    }

    /// Returns why a head is refused of which these bytes are the first, or the next.
    fn too_long(&self, bytes: &[u8]) -> Refusal {
        let first = if self.head.is_empty() { bytes } else { &self.head };
        let is_path = !first.iter().take(self.bounds.head).any(|byte| *byte == b'\n');
        if is_path { PATH_TOO_LONG } else { HEAD_TOO_LONG }
    }

    /// Replaces the first of these bytes, so that no head is complete that is too large, and returns how many bytes are read.
    fn cut(&mut self, bytes: &mut [u8], from: usize) -> usize {
        let cut = CUT.get(from..).unwrap_or_default();
        bytes.iter_mut().zip(cut).for_each(|(byte, cut)| *byte = *cut);
        self.state = if bytes.len() < cut.len() { State::Cut(from + bytes.len()) } else { State::Over };
        bytes.len()
    }

    /// Reads a line of a body in chunks, or a part of one.
    fn read_line(&mut self, bytes: &[u8]) -> Result<usize, Refusal> {
        for (n, byte) in bytes.iter().enumerate() {
            // A lone CR or LF ends a line for some and not for others.
            if self.after_cr != (*byte == b'\n') {
                let detail = "the lines of a body in chunks must end in CR LF";
                return Err(Refusal { code: Code::Malformed, detail });
            }
            self.after_cr = *byte == b'\r';
            self.state = match (self.state, byte) {
                (State::ChunkSize { size: 0, .. }, b'\n') => State::Trailers(0),
                (State::ChunkSize { size, .. }, b'\n') => {
                    self.announced = self.announced.saturating_add(size);
                    if self.announced > self.bounds.body {
                        return Err(Refusal { code: Code::TooLarge, detail: TOO_LARGE });
                    }
                    State::Chunk(size)
                }
                (State::ChunkSize { size, digits_over: false }, byte) => match char::from(*byte).to_digit(16)
                {
                    Some(digit) => {
                        let size = size.saturating_mul(16).saturating_add(digit.into());
                        State::ChunkSize { size, digits_over: false }
                    }
                    None => State::ChunkSize { size, digits_over: true },
                },
                (State::ChunkEnd, b'\n') => State::ChunkSize { size: 0, digits_over: false },
                (State::Trailers(0), b'\n') => State::Head,
                (State::Trailers(_), b'\n') => State::Trailers(0),
                (State::Trailers(length), byte) if *byte != b'\r' => State::Trailers(length + 1),
                (state, _) => state,
            };
            if !matches!(self.state, State::ChunkSize { .. } | State::ChunkEnd | State::Trailers(_)) {
                return Ok(n + 1);
            }
        }
        Ok(bytes.len())
    }
}

/// What a body that is larger than the limit gets, however it was announced.
pub const TOO_LARGE: &str = "the body is larger than limits.body_bytes";

const NOT_HTTP_DETAIL: &str = "the request is not valid HTTP: in its path and query a space, a quote and other special characters must be percent-encoded (curl: -G \
     --data-urlencode)";

/// What hyper does not take, and nothing else is known of.
pub const NOT_HTTP: Refusal = Refusal { code: Code::Malformed, detail: NOT_HTTP_DETAIL };
const TOO_MANY_HEADERS: Refusal =
    Refusal { code: Code::HeadTooLarge, detail: "the request has more than 100 headers" };
const PATH_TOO_LONG: Refusal =
    Refusal { code: Code::UriTooLong, detail: "the path is larger than limits.head_bytes" };
const HEAD_TOO_LONG: Refusal =
    Refusal { code: Code::HeadTooLarge, detail: "the head of the request is larger than limits.head_bytes" };

/// What is judged of a head.
#[derive(Default)]
struct Head<'b> {
    is_1_1: bool,
    is_connect: bool,
    hosts: usize,
    is_host_invalid: bool,
    /// A host that is valid, and not the one of before.
    new_host: Option<&'b [u8]>,
    lengths: usize,
    length: Option<u64>,
    codings: usize,
    is_chunked: bool,
}

/// Parses a head: its length and what is judged of it; `None` if it is not complete. `host`: one that is known to be valid.
fn parse<'b>(bytes: &'b [u8], host: Option<&[u8]>) -> Result<Option<(usize, Head<'b>)>, Refusal> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(length)) => {
            // hyper refuses these targets, too.
            request.path.filter(|path| is_target(path)).ok_or(NOT_HTTP)?;
            let mut head = Head {
                is_1_1: request.version == Some(1),
                is_connect: request.method == Some("CONNECT"),
                ..Head::default()
            };
            request.headers.iter().for_each(|header| head.note(header, host));
            Ok(Some((length, head)))
        }
        Ok(httparse::Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(TOO_MANY_HEADERS),
        Err(_) => Err(NOT_HTTP),
    }
}

impl<'b> Head<'b> {
    fn note(&mut self, header: &httparse::Header<'b>, known: Option<&[u8]>) {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        match header.name.len() {
            4 if is("host") => {
                self.hosts += 1;
                if known != Some(header.value) {
                    self.is_host_invalid |= !is_host(header.value);
                    self.new_host = Some(header.value);
                }
            }
            14 if is("content-length") => {
                self.lengths += 1;
                let digits = std::str::from_utf8(header.value).ok().filter(|text| is_digits(text));
                self.length = digits.and_then(|digits| digits.parse().ok());
            }
            17 if is("transfer-encoding") => {
                self.codings += 1;
                self.is_chunked = header.value.trim_ascii().eq_ignore_ascii_case(b"chunked");
            }
            _ => {}
        }
    }

    /// Returns what follows the head, or why the request is refused (RFC 9112, sections 3.2 and 6).
    fn judge(&self) -> Result<State, Refusal> {
        let malformed = |detail| Err(Refusal { code: Code::Malformed, detail });
        if self.is_connect {
            // hyper would take what follows for another request, and this for the bytes of a tunnel.
            return Err(Refusal { code: Code::MethodNotAllowed, detail: "CONNECT is not supported" });
        }
        if self.hosts == 0 && self.is_1_1 {
            return malformed("the header Host is missing");
        }
        if self.hosts > 1 {
            return malformed("the header Host must not be repeated");
        }
        if self.is_host_invalid {
            return malformed(
                "the header Host must be a name or an address, and a port if that is not the usual one",
            );
        }
        if self.codings > 0 {
            if self.lengths > 0 {
                return malformed("send Content-Length or Transfer-Encoding, not both");
            }
            if self.codings > 1 || !self.is_chunked || !self.is_1_1 {
                return malformed("the only Transfer-Encoding is chunked, once, in HTTP/1.1");
            }
            return Ok(State::ChunkSize { size: 0, digits_over: false });
        }
        match (self.lengths, self.length) {
            (0, _) | (1, Some(0)) => Ok(State::Head),
            // hyper does not take longer ones.
            (1, Some(length)) if length <= i64::MAX as u64 => Ok(State::Body(length)),
            (1, Some(_)) => {
                Err(Refusal { code: Code::Malformed, detail: "the header Content-Length is too large" })
            }
            (1, None) => malformed("the header Content-Length must be a number"),
            _ => malformed("the header Content-Length must not be repeated"),
        }
    }
}

/// Returns whether this is the target of a request, as hyper sees it.
fn is_target(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~:?=&%".contains(&byte);
    path.starts_with('/') && path.bytes().all(is_plain) || axum::http::Uri::try_from(path).is_ok()
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether this is a host and perhaps a port, without user information.
fn is_host(value: &[u8]) -> bool {
    let authority = axum::http::uri::Authority::try_from(value);
    authority.is_ok_and(|authority| {
        let has_valid_port = authority.as_str() == authority.host() || authority.port_u16().is_some();
        !authority.host().is_empty() && has_valid_port && !value.contains(&b'@')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { head: 200, body: 100 };

    /// What a connection comes to that gets these bytes in parts of this size.
    fn outcome(text: &str, part: usize) -> (Option<Refusal>, State, Vec<u8>) {
        let mut framing = Framing::new(BOUNDS);
        let (mut bytes, mut refusal) = (text.as_bytes().to_vec(), None);
        for part in bytes.chunks_mut(part) {
            refusal = refusal.or(framing.read(part).map(|refused| refused.refusal));
        }
        (refusal, framing.state, bytes)
    }

    #[test]
    fn framing_is_the_same_in_whatever_parts_it_comes() {
        let push = "POST / HTTP/1.1\r\nHost: [::1]:80\r\n";
        let whole = [
            "GET / HTTP/1.0\r\n\r\n".to_owned(),
            format!("{push}content-length: 3\r\n\r\nabc"),
            format!("{push}content-length: 0\r\n\r\n"),
            format!("{push}Transfer-Encoding: Chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nt: v\r\n\r\n"),
            format!("{push}transfer-encoding: chunked\n\nA\r\n0123456789\r\n0\r\n\r\n"),
        ];
        for text in whole.iter().chain([&whole.concat()]) {
            for part in 1..text.len() {
                let (refusal, state, bytes) = outcome(text, part);
                assert_eq!((refusal, state), (None, State::Head), "{text:?} in parts of {part}");
                assert_eq!(bytes, text.as_bytes(), "what is valid is not changed");
            }
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let host = "Host: a\r\n";
        for (headers, code) in [
            (String::new(), Code::Malformed),
            (format!("{host}{host}"), Code::Malformed),
            ("Host: a b\r\n".to_owned(), Code::Malformed),
            ("Host: a@b\r\n".to_owned(), Code::Malformed),
            ("Host: \r\n".to_owned(), Code::Malformed),
            (format!("{host}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"), Code::Malformed),
            (format!("{host}Transfer-Encoding: chunked\r\nContent-Length: 1\r\n"), Code::Malformed),
            (format!("{host}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), Code::Malformed),
            (format!("{host}Transfer-Encoding: gzip, chunked\r\n"), Code::Malformed),
            (format!("{host}Transfer-Encoding: chunked, identity\r\n"), Code::Malformed),
            (format!("{host}Content-Length: 1\r\nContent-Length: 1\r\n"), Code::Malformed),
            (format!("{host}Content-Length: +1\r\n"), Code::Malformed),
            (format!("{host}Content-Length: 1, 1\r\n"), Code::Malformed),
            (format!("{host}x: {}\r\n", "y".repeat(200)), Code::HeadTooLarge),
        ] {
            let text = format!("POST / HTTP/1.1\r\n{headers}\r\n");
            for part in 1..=text.len() {
                let (refusal, state, bytes) = outcome(&text, part);
                assert_eq!(
                    (refusal.map(|refusal| refusal.code), state),
                    (Some(code), State::Over),
                    "{text:?}"
                );
                let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
                let parsed = httparse::Request::new(&mut headers).parse(&bytes);
                assert!(
                    parsed.is_err() || bytes == text.as_bytes(),
                    "{text:?}: hyper refuses it or takes it"
                );
            }
        }
    }

    #[test]
    fn a_chunk_is_refused_when_its_size_is_read() {
        let text = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n60\r\n";
        let text = format!("{text}{}\r\n5\r\n", "x".repeat(0x60));
        assert_eq!(outcome(&text, 7).0.unwrap().code, Code::TooLarge);
        assert_eq!(outcome(&text[..text.len() - 1], 7).0, None);
    }

    #[test]
    fn what_is_no_request_is_counted_behind_those_before_it() {
        for garbage in ["\0", "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", "GET < HTTP/1.1\r\nHost: a\r\n\r\n"]
        {
            let mut framing = Framing::new(BOUNDS);
            let mut bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n\r\n{garbage}").into_bytes();
            let refusal = framing.read(&mut bytes).unwrap();
            let code = refusal.refusal.code;
            assert!([Code::Malformed, Code::MethodNotAllowed].contains(&code), "{garbage:?}: {code:?}");
            assert_eq!(framing.heads(), 2, "{garbage:?}");
        }
    }

    #[test]
    fn a_head_that_is_too_large_is_cut_whatever_comes_behind_it() {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}\r\n\r\n", "y".repeat(200));
        let text = format!("{head}GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        for part in 1..head.len() {
            let (refusal, _, bytes) = outcome(&text, part);
            assert_eq!(refusal.unwrap().code, Code::HeadTooLarge);
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            assert!(httparse::Request::new(&mut headers).parse(&bytes).is_err(), "in parts of {part}");
        }
    }
}
