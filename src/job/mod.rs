//! The domain: what a job is, what may happen to it, and its names and tokens.
//!
//! Nothing here talks to a database or to a client. Values are parsed into types that can only be made
//! valid ([`QueueName`], [`JobId`], [`Payload`] …), so that inner code never checks them again, and
//! [`transition`] says, for both stores alike, what an operation does to a job.

pub mod access;
pub mod audit;
pub mod backoff;
pub mod batch;
pub mod bulk;
pub mod content;
pub mod cron;
pub mod error_group;
pub mod filter;
pub mod group;
pub mod headers;
pub mod ids;
pub mod invalid;
pub mod list;
pub mod names;
pub mod next;
pub mod payload;
pub mod push;
pub mod rate;
pub mod receipt;
pub mod record;
pub mod route;
pub mod schedule;
pub mod semaphore;
pub mod settings;
pub mod spec;
pub mod state;
pub mod tally;
pub mod time;
pub mod trace;
pub mod transition;

pub use access::{ApiKey, ApiKeyId, ApiKeyName, Caller, Reach, Scope, SecretHash, StoredKeyId};
pub use backoff::Backoff;
pub use batch::{Batch, BatchResult, Ending, OnFinished};
pub use bulk::Bulk;
pub use content::{Base64, Binary, Content, MediaType};
pub use filter::{FieldIs, Filter, HeaderIs, Span};
pub use ids::{BatchId, BulkId, Claim, IdSource, JobId, Reservation, Tokens};
pub use invalid::Invalid;
pub use names::{GroupName, JobKey, QueueName, QueuePattern, SemaphoreName, WorkerName, WorkerVersion};
pub use next::{Ended, Mark, PROOF_MS, proven_by_absence_until};
pub use payload::Payload;
pub use record::{Failure, Job, Meta, NewJob, Origin, TrailStep};
pub use route::{Child, Stage};
pub use schedule::{Schedule, ScheduleName, ScheduleRule, ScheduleRun};
pub use settings::{QueueSettings, Rate, Rules};
pub use spec::JobSpec;
pub use state::{State, Visible};
pub use tally::{Event, Tally, Times};
pub use time::{Timestamp, When};
pub use trace::TraceContext;
