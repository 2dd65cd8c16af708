//! What must be accepted as a payload is given back equal, and what must be refused is refused, alike on both stores.

use serde_json::Value;
use serde_json::value::RawValue;
use tailback::job::Payload;
use tailback::job::payload::PayloadError;

use super::cases::{self, Case, Verdict};
use super::client::{Client, Outcome};
use super::listing::survives_a_restart;
use super::target::Target;
use crate::common::server::{PATIENCE, Place};

/// Sends bytes within a body, and returns the status and the response.
async fn send(client: &mut Client, path: &str, before: &str, value: &[u8], after: &str) -> (u16, Vec<u8>) {
    let length = before.len() + value.len() + after.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let bytes = [head.as_bytes(), before.as_bytes(), value, after.as_bytes()].concat();
    match client.send(&bytes, PATIENCE).await {
        Outcome::Reply(reply) => (reply.status, reply.body),
        Outcome::Closed | Outcome::Left => panic!("{path}: no response to {}", value.escape_ascii()),
    }
}

/// The status that a value gets wherever any JSON may stand, but for success.
fn expected(bytes: &[u8], verdict: Verdict, name: &str) -> Option<u16> {
    let parsed = std::str::from_utf8(bytes).map(Payload::parse);
    let expected = match &parsed {
        Ok(Ok(_)) => None,
        Err(_) | Ok(Err(PayloadError::Malformed)) => Some(400),
        Ok(Err(PayloadError::DuplicateKey(_) | PayloadError::LoneSurrogate | PayloadError::TooDeep)) => {
            Some(422)
        }
    };
    match verdict {
        Verdict::Refuse => assert_eq!(expected, Some(400), "{name}"),
        Verdict::Accept => {
            assert!(expected.is_none() || matches!(parsed, Ok(Err(PayloadError::DuplicateKey(_)))), "{name}")
        }
        Verdict::Either => {}
    }
    expected
}

/// Whether a value that was given back is the one that was sent.
fn is_equal(sent: &[u8], given: &str) -> bool {
    let sent = std::str::from_utf8(sent).unwrap();
    let values = (serde_json::from_str::<Value>(sent), serde_json::from_str::<Value>(given));
    let same = match values {
        (Ok(sent), Ok(given)) => sent == given,
        // Too deep or too large for a value of serde.
        (sent, given) => sent.is_err() && given.is_err(),
    };
    same && Payload::parse(sent) == Payload::parse(given)
}

fn field(body: &[u8], name: &str) -> Box<RawValue> {
    let mut fields: std::collections::HashMap<String, Box<RawValue>> = serde_json::from_slice(body).unwrap();
    fields.remove(name).unwrap()
}

fn text(body: &[u8], name: &str) -> String {
    serde_json::from_str(field(body, name).get()).unwrap()
}

/// Reserves a job.
async fn reserved(client: &mut Client, queue: &str) -> (String, String) {
    let (status, _) = send(client, &format!("/v1/queues/{queue}/jobs"), "{\"payload\":", b"1", "}").await;
    assert_eq!(status, 201);
    let (_, body) =
        send(client, &format!("/v1/queues/{queue}/reserve"), "{\"lease_ms\":", b"86400000", "}").await;
    let jobs: Vec<Box<RawValue>> = serde_json::from_str(field(&body, "jobs").get()).unwrap();
    let job = jobs[0].get().as_bytes();
    (text(job, "id"), text(job, "reservation"))
}

pub async fn every_json_text_as_a_payload(place: &Place) {
    let target = Target::start(&place.url).await;
    let mut client = Client::new(&target.server);
    let settings = client.call("PUT", "/v1/queues/results", r#"{"retain_done_ms":31536000000}"#).await;
    assert_eq!(settings.status, 200);
    let (mut sent, mut accepted) = (0, 0);
    let mut holder = reserved(&mut client, "progress").await;
    for case in cases::all() {
        let Case::Json(_, bytes, verdict) = &case else { continue };
        let (name, expected) = (case.name(), expected(bytes, *verdict, &case.name()));
        let (status, body) = send(&mut client, "/v1/queues/payloads/jobs", "{\"payload\":", bytes, "}").await;
        assert_eq!(status, expected.unwrap_or(201), "{name}: {}", String::from_utf8_lossy(&body));
        let (id, token) = &holder;
        let before = format!("{{\"reservation\":\"{token}\",\"progress\":");
        let (extended, answer) =
            send(&mut client, &format!("/v1/jobs/{id}/extend"), &before, bytes, "}").await;
        assert_eq!(extended, expected.unwrap_or(200), "{name}: {}", String::from_utf8_lossy(&answer));
        sent += 2;
        if expected.is_some() {
            continue;
        }
        let job = client.call("GET", &format!("/v1/jobs/{}", text(&body, "id")), "").await;
        assert!(is_equal(bytes, field(&job.body, "payload").get()), "{name}: {}", job.text());
        let job = client.call("GET", &format!("/v1/jobs/{id}"), "").await;
        assert!(is_equal(bytes, field(&job.body, "progress").get()), "{name}: {}", job.text());
        holder = reserved(&mut client, "results").await;
        let (id, token) = &holder;
        let before = format!("{{\"reservation\":\"{token}\",\"result\":");
        let (status, answer) = send(&mut client, &format!("/v1/jobs/{id}/commit"), &before, bytes, "}").await;
        assert_eq!(status, 200, "{name}: {}", String::from_utf8_lossy(&answer));
        let job = client.call("GET", &format!("/v1/jobs/{id}"), "").await;
        assert!(is_equal(bytes, field(&job.body, "result").get()), "{name}: {}", job.text());
        holder = reserved(&mut client, "progress").await;
        (sent, accepted) = (sent + 1, accepted + 1);
    }
    println!("{sent} JSON texts as payload, progress and result; {accepted} accepted and given back equal");
    survives_a_restart(target, &place.url).await;
}
