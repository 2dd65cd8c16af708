//! Reads one HTTP/1.1 response: the subset of the protocol that the server uses.

use anyhow::{Context as _, bail};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The maximum number of headers; the server sends fewer.
const HEADERS: usize = 32;
/// The minimum free capacity of the buffer before a read, in bytes.
const ROOM: usize = 8 * 1024;

/// The head of a response and the position of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The status.
    pub status: u16,
    /// The value of `Retry-After`, in seconds.
    pub retry_after_s: Option<u64>,
    /// The offset of the body, in bytes.
    start: usize,
    /// The length of the body, in bytes; 0 until all chunks have come.
    length: usize,
    /// Whether the body comes in chunks.
    is_chunked: bool,
}

impl Head {
    /// Parses the head; returns `None` while it is incomplete.
    fn parse(text: &[u8]) -> anyhow::Result<Option<Self>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(start) = response.parse(text)? else { return Ok(None) };
        let status = response.code.unwrap_or_default();
        let (mut length, mut retry_after_s, mut is_chunked) = (None, None, false);
        for header in response.headers {
            if header.name.eq_ignore_ascii_case("content-length") {
                length = Some(number(header.value).context("the content-length is no number")?);
            } else if header.name.eq_ignore_ascii_case("retry-after") {
                retry_after_s = number(header.value);
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                is_chunked = true;
            }
        }
        let length = match (length, status) {
            (_, 204) => 0,
            (Some(length), _) => length,
            (None, _) if is_chunked => 0,
            (None, _) => bail!("a response with status {status} has no content-length"),
        };
        Ok(Some(Self { status, retry_after_s, start, length: usize::try_from(length)?, is_chunked }))
    }

    /// Returns the body in the buffer of this response.
    pub fn body<'a>(&self, response: &'a [u8]) -> &'a [u8] {
        response.get(self.start..self.start + self.length).unwrap_or_default()
    }
}

/// Parses a header's value as a whole number.
fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// Reads one whole response into `buffer`, replacing its content.
pub async fn read(stream: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> anyhow::Result<Head> {
    buffer.clear();
    let (mut head, mut chunks) = (None, None);
    loop {
        buffer.reserve(ROOM);
        let n = stream.read_buf(buffer).await.context("cannot read the response")?;
        anyhow::ensure!(n > 0, "the server closed the connection without a response");
        if head.is_none() {
            head = Head::parse(buffer)?;
            let rest = head.map_or(0, |head: Head| (head.start + head.length).saturating_sub(buffer.len()));
            buffer.reserve(rest);
        }
        if let Some(head) = head.as_mut().filter(|head| head.is_chunked) {
            let chunks = chunks.get_or_insert(Chunks { at: head.start, end: head.start });
            if chunks.join(buffer)? {
                head.length = chunks.end - head.start;
                return Ok(*head);
            }
        } else if let Some(head) = head {
            match buffer.len().checked_sub(head.start + head.length) {
                Some(0) => return Ok(head),
                Some(more) => bail!("the response is {more} bytes longer than its content-length"),
                None => {}
            }
        }
    }
}

/// The chunks of a body: those before `end` are joined, those from `at` on are as they came.
struct Chunks {
    at: usize,
    end: usize,
}

impl Chunks {
    /// Joins the chunks that are complete. Returns whether the last one was among them.
    fn join(&mut self, buffer: &mut [u8]) -> anyhow::Result<bool> {
        loop {
            let size = httparse::parse_chunk_size(&buffer[self.at..]);
            let size = size.map_err(|error| anyhow::anyhow!("the response has an invalid chunk: {error}"))?;
            let httparse::Status::Complete((line, size)) = size else { return Ok(false) };
            let (begin, size) = (self.at + line, usize::try_from(size)?);
            if buffer.len() < begin + size + 2 {
                return Ok(false);
            }
            buffer.copy_within(begin..begin + size, self.end);
            (self.at, self.end) = (begin + size + 2, self.end + size);
            if size == 0 {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    const RESPONSE: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{\"jobs\":[]}";

    /// Returns the head and the body that are read when the parts arrive one after the other.
    async fn reading(parts: &[&[u8]], window: usize) -> anyhow::Result<(Head, Vec<u8>)> {
        let (mut near, mut far) = tokio::io::duplex(window);
        let parts: Vec<Vec<u8>> = parts.iter().map(|part| part.to_vec()).collect();
        let sending = tokio::spawn(async move {
            for part in parts {
                if far.write_all(&part).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        });
        let mut buffer = b"the previous response".to_vec();
        let head = read(&mut near, &mut buffer).await;
        sending.abort();
        head.map(|head| (head, head.body(&buffer).to_vec()))
    }

    #[tokio::test]
    async fn an_answer_may_be_split_anywhere() {
        for at in 1..RESPONSE.len() {
            let (first, second) = RESPONSE.split_at(at);
            let (head, body) = reading(&[first, second], 1024).await.unwrap();
            assert_eq!((head.status, head.retry_after_s), (200, None));
            assert_eq!(body, b"{\"jobs\":[]}");
        }
        let (_, body) = reading(&[RESPONSE], 1).await.unwrap();
        assert_eq!(body, b"{\"jobs\":[]}");
    }

    #[tokio::test]
    async fn a_long_body_is_read_to_its_end() {
        let body = vec![b'x'; 300_000];
        let head = format!("HTTP/1.1 201 Created\r\ncontent-length: {}\r\n\r\n", body.len());
        let (head, read) = reading(&[head.as_bytes(), &body], 4096).await.unwrap();
        assert_eq!((head.status, read.len()), (201, body.len()));
    }

    #[tokio::test]
    async fn what_the_server_asks_for_is_seen() {
        let text = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}";
        let (head, body) = reading(&[text], 1024).await.unwrap();
        assert_eq!((head.status, head.retry_after_s, body.as_slice()), (429, Some(1), &b"{}"[..]));
    }

    #[tokio::test]
    async fn chunks_are_joined_wherever_they_are_split() {
        let text =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"job\r\n6\r\ns\":[]}\r\n0\r\n\r\n";
        for at in 1..text.len() {
            let (first, second) = text.split_at(at);
            let (head, body) = reading(&[first, second], 1024).await.unwrap();
            assert_eq!((head.status, body.as_slice()), (200, &b"{\"jobs\":[]}"[..]));
        }
    }

    #[tokio::test]
    async fn no_content_has_no_length() {
        let (head, body) = reading(&[b"HTTP/1.1 204 No Content\r\n\r\n"], 1024).await.unwrap();
        assert_eq!((head.status, body.len()), (204, 0));
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_refused() {
        let refused: [(&[&[u8]], &str); 5] = [
            (&[b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n\r\n"], "chunk"),
            (&[b"HTTP/1.1 200 OK\r\n\r\n{}"], "no content-length"),
            (&[b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n{}"], "no number"),
            (&[b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{}"], "1 bytes longer"),
            (&[b"SSH-2.0-x\r\n\r\n"], "invalid"),
        ];
        for (parts, why) in refused {
            let error = format!("{:#}", reading(parts, 1024).await.unwrap_err());
            assert!(error.contains(why), "{error:?} does not say {why:?}");
        }
        let (mut near, far) = tokio::io::duplex(64);
        drop(far);
        let error = read(&mut near, &mut Vec::new()).await.unwrap_err().to_string();
        assert!(error.contains("closed"), "{error}");
    }
}
