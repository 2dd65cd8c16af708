//! The calls about schedules.

use async_trait::async_trait;

use super::Metered;
use crate::job::{Schedule, ScheduleName, Timestamp};
use crate::store::{Fired, Firing, Result, Saved, Schedules};

#[async_trait]
impl Schedules for Metered {
    async fn schedules(&self, after: Option<&ScheduleName>, limit: usize) -> Result<Vec<Schedule>> {
        self.one("schedules", self.inner.schedules(after, limit)).await
    }

    async fn schedule(&self, name: &ScheduleName) -> Result<Option<Schedule>> {
        self.one("schedule", self.inner.schedule(name)).await
    }

    async fn save_schedule(
        &self,
        name: &ScheduleName,
        to: Option<&Schedule>,
        seen: Option<i64>,
    ) -> Result<Saved> {
        self.one("save_schedule", self.inner.save_schedule(name, to, seen)).await
    }

    async fn next_occurrences(&self, limit: usize) -> Result<Vec<(ScheduleName, Timestamp)>> {
        self.one("next_occurrences", self.inner.next_occurrences(limit)).await
    }

    async fn fire(&self, firing: &Firing) -> Result<Fired> {
        self.one("fire", self.inner.fire(firing)).await
    }
}
