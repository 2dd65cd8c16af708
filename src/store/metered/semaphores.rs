//! The calls about semaphores.

use async_trait::async_trait;

use super::Metered;
use crate::job::{Rules, SemaphoreName};
use crate::store::{Called, Holder, Removal, Result, SemaphoreView, Semaphores};

#[async_trait]
impl Semaphores for Metered {
    async fn capacities(
        &self,
        after: Option<&SemaphoreName>,
        limit: usize,
    ) -> Result<Vec<(SemaphoreName, u64)>> {
        self.one("capacities", self.inner.capacities(after, limit)).await
    }

    async fn semaphores(&self, names: &[SemaphoreName]) -> Result<Vec<SemaphoreView>> {
        self.one("semaphores", self.inner.semaphores(names)).await
    }

    async fn holders(&self, name: &SemaphoreName, limit: usize) -> Result<Vec<Holder>> {
        self.one("holders", self.inner.holders(name, limit)).await
    }

    async fn unknown_semaphores(&self, names: &[SemaphoreName]) -> Result<Vec<SemaphoreName>> {
        self.one("unknown_semaphores", self.inner.unknown_semaphores(names)).await
    }

    async fn save_semaphore(&self, name: &SemaphoreName, capacity: u64) -> Result<()> {
        self.one("save_semaphore", self.inner.save_semaphore(name, capacity)).await
    }

    async fn remove_semaphore(&self, name: &SemaphoreName) -> Result<Removal> {
        self.one("remove_semaphore", self.inner.remove_semaphore(name)).await
    }

    async fn unblock_waiters(&self, names: Option<&[SemaphoreName]>, rules: &Rules) -> Result<Vec<Called>> {
        self.one("unblock_waiters", self.inner.unblock_waiters(names, rules)).await
    }
}
