//! One connection and JSON over it: thin, so that the measured thing is the server.

use std::time::Duration;

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// A client with a connection of its own.
pub struct Client {
    host: String,
    sender: SendRequest<Full<Bytes>>,
}

impl Client {
    /// Connects to `http://HOST:PORT`.
    pub async fn connect(url: &str) -> anyhow::Result<Self> {
        let host = url.strip_prefix("http://").context("--url must be http://HOST:PORT")?;
        let host = host.trim_end_matches('/').to_owned();
        let stream = TcpStream::connect(&host).await.with_context(|| format!("cannot connect to {host}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { host, sender })
    }

    /// Posts JSON text and answers the JSON that came back; anything but success is an error, except that a
    /// server which asks for patience is given some.
    pub async fn post(&mut self, path: &str, body: String) -> anyhow::Result<Value> {
        let body = Bytes::from(body);
        loop {
            let request = Request::post(path)
                .header(header::HOST, &self.host)
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(body.clone()))?;
            self.sender.ready().await?;
            let response = self.sender.send_request(request).await?;
            let status = response.status();
            let bytes = response.into_body().collect().await?.to_bytes();
            match status.as_u16() {
                200 | 201 => return Ok(serde_json::from_slice(&bytes)?),
                429 => tokio::time::sleep(Duration::from_millis(20)).await,
                _ => anyhow::bail!("{path} answered {status}: {}", String::from_utf8_lossy(&bytes)),
            }
        }
    }
}
