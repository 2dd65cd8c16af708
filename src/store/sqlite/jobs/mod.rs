//! The jobs themselves: the table `jobs`, and what is written in one transaction with it.
//!
//! | file | what it does |
//! |---|---|
//! | `row` | jobs as rows |
//! | `push`, `children` | new jobs, alone or together with something else |
//! | `claim`, `claim_limited` | reserving; the second where semaphores or limits apply |
//! | `apply` | operations on jobs |
//! | `groups`, `needs` | the order within groups; which jobs need which semaphore |
//! | `query`, `stocked` | jobs by filter; queues with due jobs |

pub mod apply;
pub mod children;
pub mod claim;
pub mod claim_limited;
pub mod groups;
pub mod needs;
pub mod push;
pub mod query;
pub mod row;
pub mod stocked;
