//! Groups, as lists show them.

use std::time::{Duration, Instant};

use super::{Queues, Result};
use crate::job::group::Line;
use crate::job::{Reach, Visible};
use crate::store::GroupLine;

/// How many groups one call scans, and for how long, in about.
const SCANNED_MAX: u64 = 5000;
const TIME: Duration = Duration::from_millis(600);
/// How many at once.
const STEP: usize = 100;

/// Some groups.
#[derive(Debug)]
pub struct GroupsFound {
    /// Each with the state of its first job, as clients see it.
    pub groups: Vec<(GroupLine, Visible)>,
    /// How many were scanned.
    pub scanned: u64,
    /// Behind which one it goes on; `None`: there are no more.
    pub next: Option<Line>,
}

impl Queues {
    /// Returns groups of these queues that have unfinished jobs, or a dead one that holds them: those whose first job is in one of these
    /// states, in any where there is none. Fewer than the limit where it would have to scan too many others.
    pub async fn groups(
        &self,
        within: &Reach,
        states: &[Visible],
        after: Option<Line>,
        limit: usize,
    ) -> Result<GroupsFound> {
        let (began, now) = (Instant::now(), self.now()?);
        let mut found = GroupsFound { groups: Vec::new(), scanned: 0, next: after };
        loop {
            let step = self.0.store.groups(within, found.next.as_ref(), STEP).await?;
            if step.is_empty() {
                found.next = None;
                return Ok(found);
            }
            for group in step {
                found.scanned += 1;
                found.next = Some(group.line.clone());
                let state = group.state.visible(group.run_at, now);
                if states.is_empty() || states.contains(&state) {
                    found.groups.push((group, state));
                }
                if found.groups.len() == limit {
                    return Ok(found);
                }
            }
            if found.scanned >= SCANNED_MAX || began.elapsed() >= TIME {
                return Ok(found);
            }
        }
    }
}
