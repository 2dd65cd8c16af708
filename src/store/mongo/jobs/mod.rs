//! The jobs themselves: the collection `jobs`, and what is written in one transaction with it.
//!
//! | file | what it does |
//! |---|---|
//! | `document`, `payload` | jobs and payloads as BSON |
//! | `push` | new jobs, with their keys and groups |
//! | `claim`, `claim_limited` | reserving; the second where semaphores or limits apply |
//! | `plan`, `apply`, `apply_atomic` | what an operation writes; writing it alone, or in a transaction with other documents |
//! | `groups` | the order within groups |
//! | `receipts` | outcomes kept for repeated calls |
//! | `query`, `expired`, `stocked` | jobs by filter; reservations and jobs past their deadline; queues with due jobs |

pub mod apply;
pub mod apply_atomic;
pub mod claim;
pub mod claim_limited;
pub mod document;
pub mod expired;
pub mod groups;
pub mod payload;
mod plan;
pub mod push;
pub mod query;
mod receipts;
pub mod stocked;
