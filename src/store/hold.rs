//! What a call holds for as long as work for it goes on, such as its part of the memory, its place among the requests of its key,
//! its turn to read a list: also where its client has left, or where it has stopped waiting.
//!
//! A call's own future carries it ([`holding`], [`keeping`]). Whatever outlives that future takes a share ([`held`]) along with what it
//! has to do: a spawned task ([`spawn`]), an item that waits for its round, a write that waits for the thread that writes, a read in a
//! thread of its own.

use std::sync::Arc;

use tokio::task::JoinHandle;

/// What a call holds. It is given back with the last share of it.
pub trait Hold: Send + Sync {
    /// Gives back early what a call that only waits does not need.
    fn release(&self);
}

/// A share of what a call holds.
pub type Held = Arc<dyn Hold>;

/// Work that is done for several calls at once.
impl Hold for Vec<Held> {
    fn release(&self) {
        self.iter().for_each(|held| held.release());
    }
}

tokio::task_local! {
    static HELD: Option<Held>;
}

/// Does the work of a call that holds this. No `async fn`: that would have room for the work twice, in each request.
pub fn holding<T>(share: Option<Held>, work: impl Future<Output = T>) -> impl Future<Output = T> {
    HELD.scope(share.or_else(held), work)
}

/// A share with something beside it, which a call keeps also while it only waits.
struct Beside<K> {
    before: Option<Held>,
    _kept: K,
}

impl<K: Send + Sync> Hold for Beside<K> {
    fn release(&self) {
        self.before.iter().for_each(|held| held.release());
    }
}

/// Does work of the current call that keeps this, beside what the call holds, until all of it is over: also what goes on without the call.
pub fn keeping<T>(
    kept: impl Send + Sync + 'static,
    work: impl Future<Output = T>,
) -> impl Future<Output = T> {
    holding(Some(Arc::new(Beside { before: held(), _kept: kept })), work)
}

/// Returns a share of what the current call holds.
pub fn held() -> Option<Held> {
    HELD.try_with(Clone::clone).ok().flatten()
}

/// Gives back what the current call holds: from here on it only waits, and has nothing large in memory.
pub fn release() {
    if let Some(held) = held() {
        held.release();
    }
}

/// Does work that goes on where its caller leaves.
pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(holding(held(), work))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[derive(Default)]
    struct Account(AtomicBool);

    impl Hold for Account {
        fn release(&self) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[tokio::test]
    async fn what_only_waits_holds_nothing() {
        release(); // nothing is held
        let account = Arc::new(Account::default());
        holding(Some(account.clone()), async { release() }).await;
        assert!(account.0.load(Ordering::Acquire));
    }

    #[tokio::test]
    async fn what_is_kept_beside_is_not_given_back_by_a_wait() {
        let (account, kept) = (Arc::new(Account::default()), Arc::new(()));
        let waits = async {
            let work = async {
                release();
                held()
            };
            keeping(kept.clone(), work).await
        };
        let share = holding(Some(account.clone()), waits).await;
        assert!(account.0.load(Ordering::Acquire));
        assert_eq!(Arc::strong_count(&kept), 2, "what goes on has a share");
        drop(share);
        assert_eq!((Arc::strong_count(&kept), Arc::strong_count(&account)), (1, 1));
    }

    #[tokio::test]
    async fn what_goes_on_keeps_its_share() {
        let account: Held = Arc::new(Account::default());
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let call = holding(Some(account.clone()), async {
            let work = spawn(async {
                let _ = gone.await;
            });
            (work, held().is_some())
        });
        let (work, is_held) = call.await;
        assert!(is_held && held().is_none());
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&account), 2, "the task has a share");
        drop(go);
        work.await.unwrap();
        assert_eq!(Arc::strong_count(&account), 1);
    }
}
