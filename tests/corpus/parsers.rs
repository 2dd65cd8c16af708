//! Everything that parses what comes from outside, without a server around it: random texts, and mutations of texts that
//! mean something. Nothing panics, and what is accepted means the same when it is written out and read again.
//! `TAILBACK_HOSTILE_PARSES` says how many texts, `TAILBACK_HOSTILE_SEED` which.

use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts as _;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use serde::de::DeserializeOwned;
use tailback::config::{Flags, StoreUrl, load};
use tailback::http::params::{Idempotency, IfMatch, Query};
use tailback::http::parse::{BodyError, parse};
use tailback::http::routes::{batches, jobs, push, queues, reserve, semaphores, settle, workers};
use tailback::http::wire::{Bounds, Framing};
use tailback::job::cron::{CronRule, Zone};
use tailback::job::names::{KEY_RULE, NAME_RULE};
use tailback::job::{
    BatchId, GroupName, JobId, JobKey, Payload, QueueName, QueuePattern, QueueSettings, ScheduleName,
    ScheduleRule, SemaphoreName, Timestamp, Visible, WorkerName, WorkerVersion,
};
use tailback::queue::IdempotencyKey;

use super::attack::{encoded, number};
use super::fields::Document;
use super::{bodies, heads, texts};

/// How many texts the suite tries with each parser.
const SHARE: usize = 2000;

/// One change of a text: where, how many characters go, and what comes.
type Change = (Index, usize, String);

/// Texts from the corpus, changed at a few places, and random ones.
fn texts_of(seeds: Vec<String>) -> impl Strategy<Value = String> {
    let token = prop_oneof![
        4 => select(vec!["\0", "\n", " ", "*", "/", ",", "-", ".", ":", "\"", "\\", "{", "}", "[", "]", "9", "0", "e", "$", "L", "#", "W", "?"]).prop_map(str::to_owned),
        2 => any::<char>().prop_map(String::from),
        1 => select(seeds.clone()),
    ];
    let change = (any::<Index>(), 0..4_usize, token);
    let changed = (select(seeds), prop::collection::vec(change, 0..5))
        .prop_map(|(text, changes)| mutated(&text, &changes));
    prop_oneof![8 => changed, 1 => ".{0,60}", 1 => "[0-9*/,LW#?A-Za-z -]{0,40}"]
}

fn mutated(text: &str, changes: &[Change]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for (at, gone, comes) in changes {
        let at = at.index(chars.len() + 1);
        let end = (at + gone).min(chars.len());
        chars.splice(at..end, comes.chars());
    }
    chars.into_iter().collect()
}

/// Tries as many values of a strategy as are asked for.
fn each<S: Strategy>(what: &str, strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let (cases, seed) = (number("TAILBACK_HOSTILE_PARSES", SHARE), number("TAILBACK_HOSTILE_SEED", 1));
    let config = ProptestConfig {
        cases: u32::try_from(cases).unwrap(),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(seed as u64).to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    if let Err(error) = runner.run(strategy, test) {
        panic!("{what}, TAILBACK_HOSTILE_SEED={seed}: {error}");
    }
    println!("{what}: {cases} cases");
}

fn round_trip<T: FromStr + Display + PartialEq + Debug>(text: &str) -> Result<Option<T>, TestCaseError> {
    let Ok(value) = text.parse::<T>() else { return Ok(None) };
    let again = value.to_string().parse::<T>();
    prop_assert!(again.as_ref().ok() == Some(&value), "{:?} is written as {}", text, value);
    Ok(Some(value))
}

/// The rule of names, in other words than the server's.
fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    let first = chars.next().is_some_and(|c| matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9'));
    first
        && text.len() <= 128
        && chars.all(|c| matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | ':' | '-'))
}

#[test]
fn names_and_times() {
    each("names and times", &texts_of(texts::all()), |text| {
        let name = is_name(&text);
        prop_assert_eq!(round_trip::<QueueName>(&text)?.is_some(), name);
        prop_assert_eq!(round_trip::<GroupName>(&text)?.is_some(), name);
        prop_assert_eq!(round_trip::<SemaphoreName>(&text)?.is_some(), name);
        prop_assert_eq!(round_trip::<WorkerName>(&text)?.is_some(), name);
        prop_assert_eq!(round_trip::<ScheduleName>(&text)?.is_some(), name);
        let pattern = round_trip::<QueuePattern>(&text)?;
        let prefix = text.strip_suffix('*').unwrap_or(&text);
        prop_assert_eq!(pattern.is_some(), is_name(prefix) || text == "*");
        round_trip::<JobKey>(&text)?;
        round_trip::<WorkerVersion>(&text)?;
        round_trip::<JobId>(&text)?;
        round_trip::<BatchId>(&text)?;
        round_trip::<Timestamp>(&text)?;
        let _ = text.parse::<IdempotencyKey>();
        Ok(())
    });
}

#[test]
fn cron_rules() {
    let zones: Vec<Zone> =
        ["UTC", "Europe/Berlin", "Pacific/Apia"].iter().map(|zone| zone.parse().unwrap()).collect();
    let seeds = texts::all().into_iter().filter(|text| text.split_whitespace().count() > 3).collect();
    each("cron rules", &texts_of(seeds), |text| {
        let since = Instant::now();
        let _ = text.parse::<Zone>();
        if let Ok(rule) = text.parse::<CronRule>() {
            prop_assert!(
                rule.as_str().parse::<CronRule>().is_ok_and(|again| again.as_str() == rule.as_str())
            );
            for zone in &zones {
                for after in [0, 1_774_746_000_000, 253_402_000_000_000] {
                    let after = Timestamp::from_millis(after);
                    prop_assert!(rule.next(after, zone).is_none_or(|next| next > after), "{:?}", text);
                }
            }
        }
        // Whatever the machine is busy with: a rule that takes this long could hold up the server.
        prop_assert!(since.elapsed() < Duration::from_secs(20), "{:?} takes {:?}", text, since.elapsed());
        Ok(())
    });
}

#[test]
fn zones() {
    let seeds = texts::all().into_iter().filter(|text| text.contains('/') || text.contains('T')).collect();
    each("time zones", &texts_of(seeds), |text| {
        if let Ok(zone) = text.parse::<Zone>() {
            prop_assert!(zone.as_str().parse::<Zone>().is_ok_and(|again| again.as_str() == zone.as_str()));
            prop_assert!(zone.as_str().is_ascii() && !zone.as_str().contains(".."), "{:?}", text);
        }
        Ok(())
    });
}

/// Whether parsing a text fails with a place that can be found.
fn refused<T: DeserializeOwned>(text: &str) -> Result<(), TestCaseError> {
    if let Err(BodyError::Invalid(invalid)) = parse::<T>(text) {
        let problem = tailback::http::problem::Problem::from(invalid);
        let problem = serde_json::to_value(&problem).unwrap();
        let pointer = problem["pointer"].as_str().unwrap_or("none");
        prop_assert!(pointer.is_empty() || pointer.starts_with('/'), "{}: {}", text, problem);
        prop_assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
    }
    Ok(())
}

#[test]
fn request_bodies() {
    let document = Document::read();
    let full = (0..document.calls.len()).map(|call| document.full(call).to_string());
    let minimal = (0..document.calls.len()).map(|call| document.minimal(call));
    let seeds: Vec<String> = full.chain(minimal).filter(|body| body.len() > 4).collect();
    each("request bodies", &texts_of(seeds), |text| {
        refused::<push::PushRequest>(&text)?;
        refused::<jobs::PushBatchRequest>(&text)?;
        refused::<jobs::EditRequest>(&text)?;
        refused::<batches::CreateBatchRequest>(&text)?;
        refused::<batches::AddToBatchRequest>(&text)?;
        refused::<queues::PurgeRequest>(&text)?;
        refused::<queues::RedriveRequest>(&text)?;
        refused::<queues::ReplayRequest>(&text)?;
        refused::<reserve::ReserveRequest>(&text)?;
        refused::<reserve::ReserveManyRequest>(&text)?;
        refused::<reserve::PopRequest>(&text)?;
        refused::<semaphores::SemaphoreRequest>(&text)?;
        refused::<settle::CommitRequest>(&text)?;
        refused::<settle::MoveRequest>(&text)?;
        refused::<settle::SettleRequest>(&text)?;
        refused::<workers::HeartbeatRequest>(&text)?;
        refused::<QueueSettings>(&text)?;
        refused::<ScheduleRule>(&text)
    });
}

#[test]
fn payloads() {
    let accepted = super::json::accepted().into_iter().chain(super::json::either());
    let seeds = accepted.filter(|text| text.len() < 2000).collect();
    each("payloads", &texts_of(seeds), |text| {
        if let Ok(payload) = Payload::parse(&text) {
            let again = Payload::parse(payload.as_str());
            prop_assert_eq!(again.as_ref().ok(), Some(&payload));
            let values = (
                serde_json::from_str::<serde_json::Value>(&text),
                serde_json::from_str::<serde_json::Value>(payload.as_str()),
            );
            if let (Ok(sent), Ok(kept)) = values {
                prop_assert_eq!(sent, kept);
            }
        }
        Ok(())
    });
}

#[test]
fn queries_and_headers() {
    each("queries and headers", &texts_of(texts::all()), |text| {
        let query = encoded(text.as_bytes());
        let filters = format!("state={query}&group={query}&key={query}");
        let uri = format!("/?limit={query}&cursor={query}&force={query}&{filters}");
        let mut request = axum::http::Request::builder().uri(uri);
        if let Ok(value) = axum::http::HeaderValue::from_bytes(text.as_bytes()) {
            request = request.header("if-match", &value).header("idempotency-key", &value);
        }
        // Longer than any path.
        let Ok(request) = request.body(()) else { return Ok(()) };
        let (mut parts, ()) = request.into_parts();
        let query = futures::executor::block_on(Query::from_request_parts(&mut parts, &())).ok().unwrap();
        let query = query.only(&["limit", "cursor", "force", "state", "group", "key"]).ok().unwrap();
        prop_assert!(query.limit().is_err() || (1..=1000).contains(&query.limit().ok().unwrap()));
        let _ = (
            query.cursor::<JobId>(),
            query.cursor::<QueueName>(),
            query.cursor::<ScheduleName>(),
            query.force(),
        );
        let _ = query.word::<Visible>("state", "a state");
        let _ = (query.get::<GroupName>("group", NAME_RULE), query.get::<JobKey>("key", KEY_RULE));
        let _ = futures::executor::block_on(IfMatch::from_request_parts(&mut parts, &())).is_ok();
        let _ = futures::executor::block_on(Idempotency::from_request_parts(&mut parts, &())).is_ok();
        Ok(())
    });
}

/// What stands in the place of a password, and must be in no message.
const SECRET: &str = "hunter2hunter2";

#[test]
fn configuration() {
    let shipped = include_str!("../../config.toml").lines().filter(|line| !line.starts_with('#'));
    let mut seeds: Vec<String> = shipped.filter(|line| line.contains('=')).map(str::to_owned).collect();
    seeds.push(include_str!("../../config.toml").to_owned());
    seeds.push("[defaults.backoff]\nkind = \"fixed\"\nfactor = 1e400\n".to_owned());
    each("configuration files", &texts_of(seeds), |text| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        if let Err(error) = load(Some(file.path()), std::iter::empty(), &Flags::default()) {
            prop_assert!(!error.to_string().is_empty());
        }
        Ok(())
    });
    let urls = [
        format!("mongodb://user:{SECRET}@host:27017/database?replicaSet=rs"),
        format!("mongodb+srv://user:{SECRET}@host/database"),
        format!("mongodb://user:{SECRET}@[::1]:1,h2:2/database?authSource=admin&tls=true"),
    ];
    each("store URLs", &texts_of(urls.to_vec()), |text| {
        let shown = match text.parse::<StoreUrl>() {
            Ok(url) => format!("{url:?}"),
            Err(error) => error,
        };
        let by_environment = [("TAILBACK_STORE".to_owned(), text.clone())].into_iter();
        let error = load(None, by_environment, &Flags::default())
            .err()
            .map_or(String::new(), |error| error.to_string());
        // A mutation may put the secret where it is none, such as the name of a file.
        let is_secret = text.contains(&format!(":{SECRET}@")) && text.starts_with("mongodb");
        prop_assert!(!is_secret || !(shown + &error).contains(SECRET), "{}", text);
        Ok(())
    });
    each("environment", &texts_of(texts::all()), |text| {
        for key in [
            "TAILBACK_LIMITS__BODY_BYTES",
            "TAILBACK_HTTP__HOSTS",
            "TAILBACK_HTTP__TRUSTED_PROXIES",
            "TAILBACK_LOG__FILTER",
            "TAILBACK_LISTEN",
        ] {
            let _ = load(None, [(key.to_owned(), text.clone())].into_iter(), &Flags::default());
        }
        let _ = load(None, [(format!("TAILBACK_{text}"), "1".to_owned())].into_iter(), &Flags::default());
        Ok(())
    });
}

/// What the framing of a connection comes to that gets these bytes in parts of this size: how many heads there were, none if
/// something was refused.
fn framed(bytes: &[u8], part: usize) -> Option<usize> {
    let mut framing = Framing::new(Bounds { head: 4096, body: 10_000 });
    let mut bytes = bytes.to_vec();
    let refused = bytes.chunks_mut(part).any(|part| framing.read(part).is_some());
    (!refused).then(|| framing.heads())
}

#[test]
fn framing_of_connections() {
    let rows = heads::table().into_iter().chain(bodies::table());
    let seeds: Vec<String> = rows
        .filter(|row| row.bytes.len() < 3000)
        .map(|row| row.bytes.iter().map(|byte| char::from(*byte)).collect())
        .collect();
    each("framing of connections", &(texts_of(seeds), 1..200_usize), |(text, part)| {
        // A head that is invalid is refused at the latest when a line of it ends.
        let text = text + "\r\n\r\n";
        let bytes: Vec<u8> = text.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?')).collect();
        let (whole, parts) = (framed(&bytes, bytes.len()), framed(&bytes, part));
        prop_assert_eq!(whole, parts, "in parts of {}: {}", part, bytes.escape_ascii());
        Ok(())
    });
}
