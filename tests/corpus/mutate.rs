//! Valid requests, mutated at random: their bytes, and the trees of their bodies. `TAILBACK_HOSTILE_SEED` repeats a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Map, Value, json};

use super::attack::{Attacker, number, path};
use super::cases::{self, Case};
use super::client::Outcome;
use super::fields::Document;
use super::listing::survives_a_restart;
use super::target::{Tally, Target, healthy};
use crate::common::server::Place;

const CLIENTS: usize = 8;
/// How many mutated requests the suite sends to each store.
const SHARE: usize = 3000;

/// Any status that some request may get and that is not an error of the server.
const ANY: &[u16] = &[
    200, 201, 202, 204, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 405, 408, 409, 412, 413, 414, 415,
    421, 422, 429, 431,
];

/// Bytes that a parser may treat specially.
const TOKENS: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b",",
    b";",
    b"=",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b"%",
    b"/",
    b"?",
    b"&",
    b"#",
    b"-",
    b"0",
    b"9999999999999999999",
    b"1e400",
    b"null",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\\u0000",
    b"\\ud800",
    b"$where",
    b"\r\n\r\n",
    b"chunked",
    b"content-length: 5\r\n",
    b"transfer-encoding: chunked\r\n",
    b"host: x\r\n",
    b"expect: 100-continue\r\n",
    b"connection: upgrade\r\n",
    b"HTTP/1.1",
];

/// Changes bytes at a few places.
fn bytes(random: &mut StdRng, valid: &[u8]) -> Vec<u8> {
    let mut bytes = valid.to_vec();
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..=bytes.len());
        let end = (at + random.random_range(0..20)).min(bytes.len());
        match random.random_range(0..7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            1 if at < bytes.len() => bytes[at] = random.random(),
            2 => drop(bytes.splice(at..at, TOKENS.choose(random).unwrap().iter().copied())),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part.repeat(random.random_range(1..50)));
            }
            5 => bytes.truncate(at),
            _ => drop(bytes.splice(at..end, TOKENS.choose(random).unwrap().iter().copied())),
        }
    }
    bytes
}

/// The pointers of all values in a tree.
fn pointers(value: &Value, at: String, found: &mut Vec<String>) {
    let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| pointers(value, format!("{at}/{}", escaped(name)), found));
        }
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(n, value)| pointers(value, format!("{at}/{n}"), found));
        }
        _ => {}
    }
    found.push(at);
}

/// Changes a few values of a tree.
fn tree(random: &mut StdRng, valid: &Value, cases: &[Case]) -> Value {
    let mut tree = valid.clone();
    for _ in 0..random.random_range(1..=5) {
        let mut found = Vec::new();
        pointers(&tree, String::new(), &mut found);
        let other = tree.pointer(found.choose(random).unwrap()).unwrap().clone();
        let spot = tree.pointer_mut(found.choose(random).unwrap()).unwrap();
        match random.random_range(0..9) {
            0 => *spot = other,
            1 => *spot = json!([spot.clone()]),
            2 => *spot = json!({"$gt": spot.clone()}),
            3 => *spot = json!(spot.to_string()),
            4 => *spot = json!(random.random::<i64>()),
            5 => *spot = json!(f64::from_bits(random.random())),
            6 => {
                if let Value::Object(fields) = spot {
                    let keep = random.random_range(0..=fields.len());
                    *fields = std::mem::take(fields).into_iter().take(keep).collect::<Map<String, Value>>();
                } else if let Value::Array(list) = spot {
                    *list = std::iter::repeat_n(list.clone(), random.random_range(0..30))
                        .flatten()
                        .take(2000)
                        .collect();
                }
            }
            _ => {
                if let Ok(value) = serde_json::from_slice(&cases.choose(random).unwrap().in_body()) {
                    *spot = value;
                }
            }
        }
        if tree.to_string().len() > 200_000 {
            break;
        }
    }
    tree
}

/// A mutated request of a random call.
async fn request(
    random: &mut StdRng,
    attacker: &mut Attacker,
    document: &Document,
    cases: &[Case],
) -> Vec<u8> {
    let n = random.random_range(0..document.calls.len());
    let call = &document.calls[n];
    let (id, reservation) = attacker.names(call).await;
    let minimal = document.minimal(n);
    let is_tree = !minimal.is_empty() && random.random_bool(0.6);
    let mut body = minimal;
    if is_tree {
        let valid =
            if random.random_bool(0.5) { document.full(n) } else { serde_json::from_str(&body).unwrap() };
        body = tree(random, &valid, cases).to_string();
    }
    let body = body.replace("{id}", &id).replace("{reservation}", &reservation);
    let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    let path = path(call, &id, None);
    let head =
        format!("{} {path} HTTP/1.1\r\nhost: localhost\r\n{kind}content-length: {}", call.method, body.len());
    let valid = format!("{head}\r\n\r\n{body}").into_bytes();
    attacker.after(call, 200);
    if is_tree { valid } else { bytes(random, &valid) }
}

pub async fn mutated_requests(place: &Place) {
    let (count, seed) = (number("TAILBACK_HOSTILE_MUTATIONS", SHARE), number("TAILBACK_HOSTILE_SEED", 1));
    println!("{count} mutated requests (TAILBACK_HOSTILE_MUTATIONS), TAILBACK_HOSTILE_SEED={seed}");
    let work = Arc::new((Document::read(), cases::own(), Tally::default()));
    let (target, next) = (Target::start(&place.url).await, Arc::new(AtomicUsize::new(0)));
    let stopped = AtomicBool::new(false);
    let attack = async {
        let mut clients = Vec::new();
        for n in 0..CLIENTS {
            let (mut attacker, work, next) = (Attacker::new(&target, n), work.clone(), next.clone());
            clients.push(tokio::spawn(async move {
                let (document, cases, tally) = &*work;
                loop {
                    let step = next.fetch_add(1, Ordering::Relaxed);
                    if step >= count {
                        break;
                    }
                    let mut random = StdRng::seed_from_u64((seed * 1_000_003 + step) as u64);
                    let bytes = request(&mut random, &mut attacker, document, cases).await;
                    // Neither what is announced and never comes nor jobs are waited for.
                    let outcome = attacker.client.send(&bytes, Duration::from_millis(400)).await;
                    tally.note(&outcome, ANY, || format!("step {step}: {}", bytes.escape_ascii()));
                    if matches!(outcome, Outcome::Reply(_)) {
                        // What is left of it would be taken for the next request.
                        attacker.client.close();
                    }
                }
            }));
        }
        for client in clients {
            client.await.unwrap();
        }
        stopped.store(true, Ordering::Relaxed);
    };
    tokio::join!(attack, healthy(&target.server, &stopped));
    work.2.end("mutated requests");
    survives_a_restart(target, &place.url).await;
}
