//! A client that sends bytes as they are: no normalised paths, no checked headers.

use std::io;
use std::time::Duration;

use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::common::server::{PATIENCE, Server};

/// A response.
pub struct Reply {
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &'_ str| line.split_once(':').is_some_and(|(found, _)| found == name);
        self.head.lines().find(|line| named(line)).map(|line| line[name.len() + 1..].trim())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// What became of a request.
pub enum Outcome {
    Reply(Reply),
    /// The server closed the connection without a response.
    Closed,
    /// No response came while the client had patience.
    Left,
}

/// One connection at a time, opened when it is needed.
pub struct Client {
    address: String,
    stream: Option<TcpStream>,
    read: Vec<u8>,
}

impl Client {
    pub fn new(server: &Server) -> Self {
        let address = server.base.trim_start_matches("http://").to_owned();
        Self { address, stream: None, read: Vec::new() }
    }

    /// Closes the connection.
    pub fn close(&mut self) {
        self.stream = None;
        self.read.clear();
    }

    /// Sends a request and waits for its response; without one within `patience`, the connection is closed.
    pub async fn send(&mut self, bytes: &[u8], patience: Duration) -> Outcome {
        let is_used = self.stream.is_some();
        match tokio::time::timeout(patience, self.exchange(bytes)).await {
            Ok(Ok(reply)) => return Outcome::Reply(reply),
            // The server closes idle connections, also while a request is on its way.
            Ok(Err(_)) if is_used && self.read.is_empty() => {}
            Ok(Err(_)) => {
                self.close();
                return Outcome::Closed;
            }
            Err(_) => {
                self.close();
                return Outcome::Left;
            }
        }
        self.close();
        let again = tokio::time::timeout(patience, self.exchange(bytes)).await;
        match again {
            Ok(Ok(reply)) => return Outcome::Reply(reply),
            Ok(Err(_)) => self.close(),
            Err(_) => {
                self.close();
                return Outcome::Left;
            }
        }
        Outcome::Closed
    }

    /// A request with a JSON body, or none, that must get a response.
    pub async fn call(&mut self, method: &str, path: &str, body: &str) -> Reply {
        let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{kind}content-length: {length}\r\n");
        match self.send(format!("{head}\r\n{body}").as_bytes(), PATIENCE).await {
            Outcome::Reply(reply) => reply,
            Outcome::Closed | Outcome::Left => panic!("{method} {path}: no response"),
        }
    }

    async fn exchange(&mut self, bytes: &[u8]) -> io::Result<Reply> {
        self.read.clear();
        if self.stream.is_none() {
            let stream = TcpStream::connect(&self.address).await?;
            stream.set_nodelay(true)?;
            self.stream = Some(stream);
        }
        // The server may refuse before it has read everything: what it says is read all the same.
        let wrote = match &mut self.stream {
            Some(stream) => stream.write_all(bytes).await,
            None => Ok(()),
        };
        let reply = self.reply(bytes.starts_with(b"HEAD ")).await;
        if wrote.is_err() || reply.as_ref().is_ok_and(|reply| reply.header("connection") == Some("close")) {
            self.stream = None;
        }
        reply
    }

    async fn more(&mut self) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        match stream.read_buf(&mut self.read).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn reply(&mut self, is_head: bool) -> io::Result<Reply> {
        let end = loop {
            let Some(end) = memmem::find(&self.read, b"\r\n\r\n") else {
                self.more().await?;
                continue;
            };
            if !self.read.starts_with(b"HTTP/1.1 1") {
                break end;
            }
            self.read.drain(..end + 4);
        };
        let head = String::from_utf8_lossy(&self.read[..end]).to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let mut reply = Reply { status, head, body: Vec::new() };
        self.read.drain(..end + 4);
        if is_head || status == 204 || status == 304 {
            return Ok(reply);
        }
        // A stream lasts as long as the request says, up to a day: the client reads the head, and leaves.
        if reply.header("content-type") == Some("text/event-stream") {
            self.close();
            return Ok(reply);
        }
        if reply.header("transfer-encoding") == Some("chunked") {
            reply.body = self.chunks().await?;
            return Ok(reply);
        }
        let length = reply.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        while self.read.len() < length {
            self.more().await?;
        }
        reply.body = self.read.drain(..length).collect();
        Ok(reply)
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let end = loop {
                match memmem::find(&self.read, b"\r\n") {
                    Some(end) => break end,
                    None => self.more().await?,
                }
            };
            let size = String::from_utf8_lossy(&self.read[..end]).into_owned();
            let size = usize::from_str_radix(size.trim(), 16).map_err(|_| io::ErrorKind::InvalidData)?;
            while self.read.len() < end + 2 + size + 2 {
                self.more().await?;
            }
            body.extend_from_slice(&self.read[end + 2..end + 2 + size]);
            self.read.drain(..end + 2 + size + 2);
            if size == 0 {
                return Ok(body);
            }
        }
    }
}
