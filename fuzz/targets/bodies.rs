//! Request bodies and payloads: an invalid field is named by a pointer, and a canonical payload is its own canonical form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::de::DeserializeOwned;
use tailback::http::body::parse;
use tailback::http::problem::Problem;
use tailback::http::routes::{batches, jobs, push, reserve, settle, workers};
use tailback::job::{Payload, QueueSettings, ScheduleRule};

fn refused<T: DeserializeOwned>(text: &str) {
    if let Err(error) = parse::<T>(text) {
        let _ = Problem::from(error);
    }
}

fuzz_target!(|text: &str| {
    refused::<push::PushRequest>(text);
    refused::<jobs::PushBatchRequest>(text);
    refused::<jobs::EditRequest>(text);
    refused::<batches::CreateBatchRequest>(text);
    refused::<reserve::ReserveManyRequest>(text);
    refused::<settle::SettleRequest>(text);
    refused::<workers::HeartbeatRequest>(text);
    refused::<QueueSettings>(text);
    refused::<ScheduleRule>(text);
    if let Ok(payload) = Payload::parse(text) {
        assert_eq!(Payload::parse(payload.as_str()).as_ref(), Ok(&payload));
    }
});
