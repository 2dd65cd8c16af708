//! The OpenAPI document: what it says, that its examples are what happens, and that what it has promised once stays.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

mod openapi {
    pub mod compatible;
    pub mod document;
    pub mod examples;
}

use openapi::examples::*;

on_every_store! {
    the_examples_are_what_happens
    the_first_key_is_made_as_it_is_prefilled
}
