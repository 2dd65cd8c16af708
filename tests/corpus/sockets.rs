//! The table of raw requests: what is sent on a connection, and the statuses that come back on it.
//!
//! Behind each row a valid request is sent. An expectation such as `201+` means: 201, and the connection serves the next
//! request; `400`: 400, and nothing behind it is read as a request (it could have been smuggled); `-`: no response. With
//! alternatives (`400|-`) either may come, where that depends on when the server looks: a client that closes its side may
//! count as gone.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::target::Target;
use super::{bodies, heads};
use crate::common::server::{PATIENCE, Place};

/// A row: bytes, and what is expected.
pub struct Row {
    pub bytes: Vec<u8>,
    pub expected: &'static str,
    /// Whether the client closes its side behind the bytes, instead of sending one more request.
    pub ends: bool,
}

/// Bytes of a text whose characters are all below U+0100.
pub fn latin(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect()
}

/// Rows made of what differs between them.
pub fn rows(make: impl Fn(&str) -> String, cases: &[(&str, &'static str)]) -> Vec<Row> {
    let row =
        |(text, expected): &(&str, &'static str)| Row { bytes: latin(&make(text)), expected, ends: false };
    cases.iter().map(row).collect()
}

/// The same, each followed by the end of what the client sends.
pub fn ending(make: impl Fn(&str) -> String, cases: &[(&str, &'static str)]) -> Vec<Row> {
    rows(make, cases).into_iter().map(|row| Row { ends: true, ..row }).collect()
}

const PROBE: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// The statuses on a connection until it is closed.
async fn statuses(address: &str, row: &Row) -> (Vec<u16>, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may refuse before it has read everything.
    let _ = stream.write_all(&row.bytes).await;
    if row.ends {
        let _ = stream.shutdown().await;
    } else {
        let _ = stream.write_all(PROBE).await;
    }
    let mut bytes = Vec::new();
    let reading = async {
        let mut part = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut part).await {
            bytes.extend_from_slice(&part[..read]);
        }
    };
    let shown = row.bytes[..row.bytes.len().min(300)].escape_ascii();
    let ended = tokio::time::timeout(PATIENCE, reading).await;
    assert!(ended.is_ok(), "the connection stays open: {shown}");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // A response begins at the start of a line or directly behind a body.
    let found = text.match_indices("HTTP/1.").filter_map(|(at, _)| {
        let rest = text.get(at + 8..at + 13)?;
        let status = rest.strip_prefix(' ')?.strip_suffix(' ')?;
        status.parse().ok()
    });
    (found.collect(), text)
}

/// Whether these statuses are what is expected.
fn is_expected(found: &[u16], expected: &str) -> bool {
    expected.split('|').any(|one| {
        let mut statuses: Vec<u16> =
            one.trim_end_matches('+').split(' ').filter_map(|status| status.parse().ok()).collect();
        if one.ends_with('+') {
            statuses.push(200);
        }
        statuses == found
    })
}

pub async fn every_raw_request(place: &Place) {
    let target = Target::start(&place.url).await;
    let address = target.server.base.trim_start_matches("http://").to_owned();
    let table: Vec<Row> = heads::table().into_iter().chain(bodies::table()).collect();
    let (mut faults, mut pushed) = (Vec::new(), 0);
    for (n, row) in table.iter().enumerate() {
        let (found, text) = statuses(&address, row).await;
        pushed += found.iter().filter(|status| **status == 201).count();
        let shown = row.bytes[..row.bytes.len().min(200)].escape_ascii();
        if !is_expected(&found, row.expected) {
            faults.push(format!("{n} {shown}: {found:?} instead of {}", row.expected));
        } else if found.iter().any(|status| *status >= 400) && !text.contains("application/problem+json") {
            faults.push(format!("{n} {shown}: no problem: {text}"));
        }
    }
    println!("{} raw requests", table.len());
    assert!(faults.is_empty(), "{} faults: {faults:#?}", faults.len());
    assert!(table.len() >= 240, "{}", table.len());
    let (_, jobs) = target.server.get("/v1/queues/mail/jobs?limit=1000").await;
    let stored = jobs["jobs"].as_array().unwrap().len();
    // Clients that close their side count as gone, and get no response.
    let gone = table.iter().filter(|row| row.expected == "-|201").count();
    assert!((pushed..=pushed + gone).contains(&stored), "{stored} jobs stored, {pushed} acknowledged");
    target.stop().await;
}
