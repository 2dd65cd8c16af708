//! One trace through the queue: what a job carries, which spans are exported, and that the export never stands in the server's way.
//! The receiver is the test itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;
mod trace {
    pub mod carried;
    pub mod causes;
    pub mod receiver;
    pub mod spans;
    pub mod trouble;
}
