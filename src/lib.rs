//! Tailback, a job queue server over HTTP/JSON whose jobs live in one SQLite file, or in MongoDB.
//!
//! The modules in reading order; which may import which is in `tests/tidy/layers.rs`:
//!
//! - [`server`]: wiring and ordered shutdown. Read this first.
//! - [`config`]: raw, then validated.
//! - [`http`], [`background`]: the two ways in. They know [`queue`] and no store.
//! - [`dashboard`]: the page at `/`; static files that use the HTTP API.
//! - [`queue`]: the product, one method for each operation.
//! - [`transfer`]: copies one store into another, beside all of the above.
//! - [`backup`]: a store as it was at one moment, in a file, and back.
//! - [`keys`]: API keys from the command line.
//! - [`store`]: the contract of a database, and the databases that keep it.
//! - [`job`]: the vocabulary, and what an operation does to a job.
//! - [`cli`]: the commands that ask a running server; knows nothing of the others.
//! - [`mod@bench`]: a load generator that measures a server from outside.
//! - [`telemetry`]: metrics and logs, declared once.
//! - [`faults`]: where tests stop this program, or plant a mistake; not in releases.

pub mod background;
pub mod backup;
pub mod bench;
pub mod cli;
pub mod config;
pub mod connect;
pub mod dashboard;
pub mod faults;
pub mod http;
pub mod job;
pub mod keys;
pub mod lines;
pub mod queue;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod transfer;
