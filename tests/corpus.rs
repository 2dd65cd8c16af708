//! The standing test of hostile input: every case in every field of every call, mutated requests, and the bytes of a
//! connection. `just hostile` sends many more cases than the suite does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "it prints how many cases there were")]

mod common;

mod corpus {
    pub mod attack;
    pub mod bodies;
    pub mod cases;
    pub mod client;
    pub mod fields;
    pub mod foreign;
    pub mod heads;
    pub mod json;
    pub mod listing;
    pub mod mutate;
    mod parsers;
    pub mod payloads;
    pub mod sockets;
    pub mod target;
    pub mod texts;
}

use corpus::{attack::*, foreign::*, mutate::*, payloads::*, sockets::*};

on_every_store! {
    every_case_in_every_field
    mutated_requests
    every_json_text_as_a_payload
}

/// The bytes of a connection: the store has no part in this, so that one is enough.
mod bytes {
    use super::*;

    on_one_store! { sqlite: every_raw_request }
}

/// What only one store can hold.
mod one_store {
    use super::*;

    on_one_store! { mongo: what_another_program_inserts_stops_nothing }
    on_one_store! { sqlite: what_another_program_writes_stops_nothing }
}
