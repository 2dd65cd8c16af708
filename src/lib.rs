//! Tailback, a job queue server over HTTP/JSON whose jobs live in MongoDB.

pub mod job;
pub mod store;
