//! Configuration by environment, which needs no file: a section's value is any TOML. And URLs of stores.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailback::config::{Flags, StoreUrl, load};

fuzz_target!(|text: (String, String)| {
    let (key, value) = text;
    let variables =
        [(format!("TAILBACK_{key}"), value.clone()), ("TAILBACK_HTTP__HOSTS".to_owned(), value.clone())];
    let _ = load(None, variables.into_iter(), &Flags::default());
    let _ = load(None, std::iter::empty(), &Flags { listen: Some(value.clone()), store: None });
    let _ = value.parse::<StoreUrl>();
});
