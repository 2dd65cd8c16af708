//! Builds the program anew when a migration is added: those that are there are tracked by the code that includes them. Tells
//! it how far it is optimised.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=migrations");
    // Set by Cargo for each build script.
    println!("cargo:rustc-env=BUILT_WITH_OPT_LEVEL={}", env::var("OPT_LEVEL").unwrap_or_default());
}
