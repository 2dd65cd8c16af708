//! Caches: what this server remembers so that it reads less. Every write is guarded by `rev` all the same, so that a
//! stale entry costs a read and never correctness.
//!
//! | file | what it remembers |
//! |---|---|
//! | `head` | a lower bound of the head of each queue, and when something comes due before it |
//! | `ahead` | jobs at the head of a queue that were read ahead |
//! | `position` | positions in the order of delivery |
//! | `full` | semaphores: who admits, and which are full |
//! | `left_out` | jobs that cannot be read and could not be made dead, which reads of a queue leave out |
//! | `deadline` | a lower bound of the deadlines that have not passed |

mod ahead;
mod deadline;
mod full;
mod head;
mod left_out;
mod position;
#[cfg(test)]
mod tests;

pub use self::ahead::AHEAD_BYTES;
pub use self::deadline::DeadlineCache;
pub use self::full::{FULL_FOR, Known, Refused, SemaphoreCache};
pub use self::head::{Begun, HeadCache, Reading, Rest, Window};
pub use self::left_out::LeftOut;
pub use self::position::Position;
