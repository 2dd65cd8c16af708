//! Responses that list jobs. One that is large is written job by job while the client reads it, and is never in memory as a
//! whole beside the jobs.

use std::io::Write as _;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures::StreamExt as _;
use serde::Serialize;

use super::budget::Held;
use super::problem::{ApiResult, Code, Problem};
use super::security;

/// About how many bytes are written at once. A response that is no longer has its length in its head.
const PIECE: usize = 256 << 10;

/// The pieces of `{"jobs":[…],"unreadable":[…],"scanned":…,"complete":…,"cursor":…}`, within something else.
struct Pieces<T, U> {
    /// What the jobs take of the budget.
    _held: Option<Held>,
    /// What comes before the jobs; it opens the object that they are in.
    head: Vec<u8>,
    /// What comes behind the object.
    tail: &'static [u8],
    jobs: std::vec::IntoIter<T>,
    unreadable: Vec<U>,
    /// How many jobs were looked at, where that is said.
    scanned: Option<u64>,
    cursor: Option<String>,
    begun: bool,
    ended: bool,
}

impl<T: Serialize, U: Serialize> Pieces<T, U> {
    fn new(jobs: Vec<T>, unreadable: Vec<U>, held: Held) -> Self {
        let (head, tail, jobs): (_, &[u8], _) = (b"{".to_vec(), b"", jobs.into_iter());
        let (scanned, cursor, begun, ended) = Default::default();
        Self { _held: Some(held), head, tail, jobs, unreadable, scanned, cursor, begun, ended }
    }

    fn piece(&mut self) -> serde_json::Result<Vec<u8>> {
        let mut piece = Vec::with_capacity(1024);
        let mut separator: &[u8] = if self.begun { b"," } else { b"\"jobs\":[" };
        piece.append(&mut self.head);
        while piece.len() < PIECE {
            let Some(job) = self.jobs.next() else {
                if !self.begun {
                    piece.extend_from_slice(separator);
                }
                piece.push(b']');
                if !self.unreadable.is_empty() {
                    piece.extend_from_slice(b",\"unreadable\":");
                    serde_json::to_writer(&mut piece, &self.unreadable)?;
                }
                if let Some(scanned) = self.scanned {
                    let complete = self.cursor.is_none();
                    write!(piece, ",\"scanned\":{scanned},\"complete\":{complete}")
                        .map_err(serde_json::Error::io)?;
                }
                if let Some(cursor) = self.cursor.take() {
                    piece.extend_from_slice(b",\"cursor\":");
                    serde_json::to_writer(&mut piece, &cursor)?;
                }
                piece.push(b'}');
                piece.extend_from_slice(self.tail);
                piece.push(b'\n');
                self.ended = true;
                break;
            };
            piece.extend_from_slice(separator);
            serde_json::to_writer(&mut piece, &job)?;
            (separator, self.begun) = (b",", true);
        }
        Ok(piece)
    }
}

impl<T: Serialize, U: Serialize> Iterator for Pieces<T, U> {
    type Item = serde_json::Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let piece = self.piece();
        self.ended |= piece.is_err(); // the connection ends in the middle of the response
        Some(piece.map(Bytes::from))
    }
}

/// Returns the response that lists these jobs, which count until the client has read them.
pub fn jobs<T: Serialize + Send + 'static>(jobs: Vec<T>, held: Held) -> Response {
    in_pieces(Pieces::new(jobs, Vec::<()>::new(), held))
}

/// Returns the response that is a page of a search, which has looked at so many jobs; those that cannot be read come behind the others.
pub fn page<T, U>(
    jobs: Vec<T>,
    unreadable: Vec<U>,
    scanned: u64,
    cursor: Option<String>,
    held: Held,
) -> Response
where
    T: Serialize + Send + 'static,
    U: Serialize + Send + 'static,
{
    in_pieces(Pieces { scanned: Some(scanned), cursor, ..Pieces::new(jobs, unreadable, held) })
}

/// Returns the response that says this, and lists jobs as its field `next`; why there are none, if something failed.
pub fn with_next<T: Serialize + Send + 'static>(
    told: &impl Serialize,
    jobs: Vec<T>,
    problem: Option<&Problem>,
    held: Held,
) -> ApiResult<Response> {
    let unwritable = |error: serde_json::Error| {
        tracing::error!(%error, "a response could not be written");
        Problem::new(Code::Internal, "the response could not be written")
    };
    let mut head = serde_json::to_vec(told).map_err(unwritable)?;
    head.pop(); // the end of the object: there is more to come
    head.extend_from_slice(if head.len() > 1 { b",\"next\":{" } else { b"\"next\":{" });
    if let Some(problem) = problem {
        head.extend_from_slice(b"\"problem\":");
        serde_json::to_writer(&mut head, problem).map_err(unwritable)?;
        head.push(b',');
    }
    Ok(in_pieces(Pieces { head, tail: b"}", ..Pieces::new(jobs, Vec::<()>::new(), held) }))
}

fn in_pieces<T, U>(mut pieces: Pieces<T, U>) -> Response
where
    T: Serialize + Send + 'static,
    U: Serialize + Send + 'static,
{
    let body = match pieces.next() {
        Some(Ok(whole)) if pieces.ended => Body::from(whole),
        first => {
            // A client that reads as fast as this is written must not keep the thread from others.
            let in_turns = |piece| async {
                tokio::task::yield_now().await;
                piece
            };
            Body::from_stream(futures::stream::iter(first.into_iter().chain(pieces)).then(in_turns))
        }
    };
    let mut response = Response::new(body);
    *response.headers_mut() = security::of_json();
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_one_object() {
        for count in [0, 1, 2, 5000] {
            for cursor in [None, Some("c\"".to_owned())] {
                let jobs: Vec<String> = (0..count).map(|n| format!("job {n} {}", "x".repeat(50))).collect();
                let unreadable: Vec<String> = cursor.iter().map(|_| "bad".to_owned()).collect();
                let pieces = Pieces {
                    _held: None,
                    head: b"{".to_vec(),
                    tail: b"",
                    jobs: jobs.clone().into_iter(),
                    unreadable: unreadable.clone(),
                    scanned: cursor.as_ref().map(|_| 7),
                    cursor: cursor.clone(),
                    begun: false,
                    ended: false,
                };
                let text: Vec<u8> = pieces.flat_map(|piece| piece.unwrap().to_vec()).collect();
                let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
                assert_eq!(
                    (&value["jobs"], value["cursor"].as_str()),
                    (&serde_json::json!(jobs), cursor.as_deref())
                );
                let seen = cursor.as_ref().map(|_| (Some(7), Some(false))).unwrap_or_default();
                assert_eq!((value["scanned"].as_u64(), value["complete"].as_bool()), seen);
                let others = cursor.as_ref().map(|_| serde_json::json!(unreadable));
                assert_eq!(value.get("unreadable"), others.as_ref());
            }
        }
    }
}
