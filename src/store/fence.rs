//! What keeps a restore that stood still from writing once another one has taken its store over: where several processes share a store,
//! each of its writes is one transaction with a check of the mark, which that must still have.

use std::sync::{Arc, Mutex, MutexGuard};

use super::RestoreMark;

/// The mark of a restore as its holder knows it; cheap to clone.
#[derive(Debug, Clone)]
pub struct Fence(Arc<Known>);

#[derive(Debug)]
struct Known {
    marks: Mutex<Vec<RestoreMark>>,
    turn: tokio::sync::Mutex<()>,
}

impl Fence {
    /// The mark has been set.
    pub fn new(mark: RestoreMark) -> Self {
        Self(Arc::new(Known { marks: Mutex::new(vec![mark]), turn: tokio::sync::Mutex::default() }))
    }

    fn known(&self) -> MutexGuard<'_, Vec<RestoreMark>> {
        self.0.marks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Any of these is the mark, while it is not known which: one that is being replaced, and what replaces it.
    pub fn set(&self, marks: Vec<RestoreMark>) {
        *self.known() = marks;
    }

    /// Returns the marks that this restore has set.
    pub fn marks(&self) -> Vec<RestoreMark> {
        self.known().clone()
    }

    /// Waits until no other write of this process checks the mark: they would conflict.
    pub async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.turn.lock().await
    }
}

tokio::task_local! {
    static FENCE: Fence;
}

/// Makes one call of a store that stores nothing unless the mark is there.
pub fn behind<T>(fence: Fence, call: impl Future<Output = T>) -> impl Future<Output = T> {
    FENCE.scope(fence, call)
}

/// Returns what the current call is behind.
pub fn fence() -> Option<Fence> {
    FENCE.try_with(Clone::clone).ok()
}
