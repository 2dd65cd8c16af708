//! Builds the program anew when a migration is added: those that are there are tracked by the code that includes them.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
