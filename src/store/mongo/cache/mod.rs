//! Caches: what this server remembers so that it reads less. Every write is guarded by `rev` all the same, so that a
//! stale entry costs a read and never correctness.
//!
//! | file | what it remembers |
//! |---|---|
//! | `head` | a lower bound of the head of each queue |
//! | `deadline` | a lower bound of the deadlines that have not passed |

mod deadline;
mod head;

pub use self::deadline::DeadlineCache;
pub use self::head::{HeadCache, Position};
