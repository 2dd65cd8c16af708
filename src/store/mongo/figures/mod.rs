//! Figures: how many jobs there are in each state.
//!
//! | file | what it does |
//! |---|---|
//! | `counters` | counts what this server writes |
//! | `counts` | reads the figures |
//! | `reconcile` | compares them with the index and corrects them |

pub mod counters;
pub mod counts;
pub mod reconcile;
