//! The mark of a store that is being filled, by a restore or by a copy of another store: it keeps servers, and other such runs, away from
//! a store that has a part of the whole.
//!
//! A run replaces a number in the mark every second, in a task of its own: also while a large page is written or nothing comes
//! from standard input. Another one that finds a mark of the same origin waits whether that number changes: if so, it is refused; if not, the
//! earlier run was interrupted, and it takes the mark over with one guarded command. The earlier one, if it only stood still, finds that
//! before each attempt of a write, and ends; what it was about to write, or had sent, is fenced by the mark (`store/fence.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::with_retries;
use crate::faults;
use crate::store::fence::{Fence, behind};
use crate::store::{RestoreMark, Result as StoreResult, Store};

/// How often the number is replaced.
const BEAT: Duration = Duration::from_secs(1);
/// After how long without another number a run has been interrupted. Much longer than a call of the store may take: what one that was
/// taken over has sent is over by then.
const SILENT: Duration = Duration::from_secs(120);
/// How often one that waits looks.
const LOOK: Duration = Duration::from_millis(500);
/// The time between two looks counts as silence only where they are no longer apart, and each has its answer as soon: the waiting
/// run may itself stand still, or have no store, meanwhile.
const PROMPT: Duration = Duration::from_secs(2);

/// After so many times the silence that is waited for, a store that answers too slowly is given up.
const GIVEN_UP_AFTER: u32 = 10;

/// The mark that a run has set. It is kept until the run ends, or this is dropped.
pub struct Hold {
    keeper: Arc<Keeper>,
    task: tokio::task::JoinHandle<()>,
}

/// Who replaces the number in the mark.
struct Keeper {
    target: Arc<dyn Store>,
    held: Mutex<Held>,
    /// Another run has taken the store over.
    lost: CancellationToken,
    /// What each write is behind.
    fence: Fence,
}

/// What is known of the mark.
struct Held {
    mark: RestoreMark,
    /// What is to replace it, where the outcome of that is not known.
    next: Option<RestoreMark>,
    /// When it was last there for certain.
    confirmed: Instant,
}

fn silent() -> Duration {
    faults::millis("restore.silent").map_or(SILENT, Duration::from_millis)
}

fn fresh(origin: &str) -> RestoreMark {
    RestoreMark { origin: origin.to_owned(), beat: rand::random_range(1..i64::MAX) }
}

fn taken_over() -> anyhow::Error {
    anyhow::anyhow!(
        "another run of this import or copy has taken the store over, since this one stood still for {} seconds: let that end",
        silent().as_secs()
    )
}

fn in_use() -> anyhow::Error {
    anyhow::anyhow!(
        "another import or copy into this store is under way: wait for its end, or stop it, and run this again"
    )
}

/// Returns the mark that an interrupted run of the same origin has left, if there is one: [`Hold::claim`] takes it over. Fails if that run
/// still goes on, or the mark is of another origin. `is_alone`: no other process can have the store open.
pub async fn interrupted(
    target: &dyn Store,
    origin: &str,
    is_alone: bool,
) -> anyhow::Result<Option<RestoreMark>> {
    let Some(there) = with_retries(async || target.restoring().await).await? else { return Ok(None) };
    if there.origin != origin {
        bail!(
            "another backup is being restored into this store, or another store copied, or that was interrupted: end that, or use an \
             empty store"
        );
    }
    if !is_alone {
        wait_for_silence(target, &there).await?;
    }
    Ok(Some(there))
}

/// Waits to see whether the run that set this mark goes on. Fails if so.
async fn wait_for_silence(target: &dyn Store, there: &RestoreMark) -> anyhow::Result<()> {
    let (mut silence, began) = (Silence::default(), Instant::now());
    if there.beat != 0 {
        let seconds = silent().as_secs();
        tracing::info!(
            seconds,
            "an earlier import or copy into this store has not ended; waiting whether it goes on"
        );
    }
    while there.beat != 0 && silence.lasted < silent() {
        anyhow::ensure!(
            began.elapsed() < GIVEN_UP_AFTER * silent(),
            "the store answers too slowly to tell whether another import or copy into it is under way: run this again when it is well"
        );
        tokio::time::sleep(LOOK).await;
        let asked = Instant::now();
        if with_retries(async || target.restoring().await).await?.as_ref() != Some(there) {
            return Err(in_use());
        }
        silence.note(asked, Instant::now());
    }
    Ok(())
}

/// For how long it was seen that nothing happens.
#[derive(Default)]
struct Silence {
    lasted: Duration,
    last: Option<Instant>,
}

impl Silence {
    /// A look that was begun and answered at these moments found nothing new.
    fn note(&mut self, asked: Instant, answered: Instant) {
        let is_prompt = answered.duration_since(asked) < PROMPT;
        let since = self.last.map(|last| answered.duration_since(last)).filter(|since| *since < 2 * PROMPT);
        if let Some(since) = since.filter(|_| is_prompt) {
            self.lasted += since;
        }
        self.last = is_prompt.then_some(answered);
    }
}

impl Hold {
    /// Marks a store as the target of a run of this origin, instead of the mark that an [`interrupted`] one has left. Fails where another run is quicker.
    pub async fn claim(
        target: &Arc<dyn Store>,
        origin: &str,
        interrupted: Option<&RestoreMark>,
    ) -> anyhow::Result<Self> {
        let (mark, since) = (fresh(origin), Instant::now());
        if !with_retries(async || target.mark_restoring(interrupted, Some(&mark)).await).await? {
            return Err(in_use());
        }
        if interrupted.is_some() {
            tracing::info!("an earlier run was interrupted and goes on");
        }
        Ok(Self::new(target.clone(), mark, since))
    }

    fn new(target: Arc<dyn Store>, mark: RestoreMark, since: Instant) -> Self {
        let fence = Fence::new(mark.clone());
        let held = Mutex::new(Held { mark, next: None, confirmed: since });
        let keeper = Arc::new(Keeper { target, held, lost: CancellationToken::new(), fence });
        let task = tokio::spawn(keeper.clone().keep());
        Self { keeper, task }
    }

    /// Returns the store that is filled.
    pub fn target(&self) -> &dyn Store {
        &*self.keeper.target
    }

    /// Does something with the store, and again while that is unavailable, as `with_retries` does. Before each attempt the mark is looked
    /// at; where other processes may share the store, each write looks at it once more, in its transaction. Fails where another run has taken the store over.
    pub async fn with_retries<T>(
        &self,
        mut operation: impl AsyncFnMut() -> StoreResult<T>,
    ) -> anyhow::Result<T> {
        let attempt = async || match self.keeper.confirm().await? {
            true => behind(self.keeper.fence.clone(), operation()).await.map(Some),
            false => Ok(None),
        };
        with_retries(attempt).await?.ok_or_else(taken_over)
    }

    /// Waits until another run has taken the store over, and returns the error that says so.
    pub async fn lost(&self) -> anyhow::Error {
        self.keeper.lost.cancelled().await;
        taken_over()
    }

    /// Ends the run: servers may start.
    pub async fn end(self) -> anyhow::Result<()> {
        let target = self.target();
        // An outcome that is not known is settled first. The holder of the lock is the only writer.
        let held = self.keeper.held.lock().await;
        if let Some(next) = &held.next {
            let settled = async || target.mark_restoring(Some(&held.mark), Some(next)).await;
            if !with_retries(settled).await? {
                return Err(taken_over());
            }
        }
        let mark = held.next.as_ref().unwrap_or(&held.mark);
        match with_retries(async || target.mark_restoring(Some(mark), None).await).await? {
            true => {
                self.task.abort(); // it waits for the lock, or for its time
                Ok(())
            }
            false => Err(taken_over()),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Keeper {
    /// Replaces the number again and again, until another run has taken the store over.
    async fn keep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(BEAT).await;
            match self.confirm().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(%error, "the mark of the store was not renewed; it is tried again")
                }
            }
        }
    }

    /// Makes sure that the mark was there a moment ago. Returns whether it is still that of this run.
    async fn confirm(&self) -> StoreResult<bool> {
        let mut held = self.held.lock().await;
        if self.lost.is_cancelled() {
            return Ok(false);
        }
        let now = Instant::now();
        if held.next.is_none() && now.duration_since(held.confirmed) < BEAT {
            return Ok(true);
        }
        // One that may have been written is written again, not another one.
        let next = held.next.take().unwrap_or_else(|| fresh(&held.mark.origin));
        held.next = Some(next.clone());
        self.fence.set(vec![held.mark.clone(), next.clone()]);
        if !self.target.mark_restoring(Some(&held.mark), Some(&next)).await? {
            self.lost.cancel();
            return Ok(false);
        }
        self.fence.set(vec![next.clone()]);
        *held = Held { mark: next, next: None, confirmed: now };
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Transfer as _;
    use crate::store::sqlite::{Location, SqliteStore};

    async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
        let waiting = async {
            while !is_so().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(60), waiting).await.is_ok(), "{what}");
    }

    #[tokio::test]
    async fn a_hold_shows_that_it_goes_on_and_finds_that_it_was_taken_over() {
        let store = SqliteStore::open(Location::Memory).unwrap();
        store.migrate().await.unwrap();
        let mark = fresh("b");
        assert!(store.mark_restoring(None, Some(&mark)).await.unwrap());
        let hold = Hold::new(store.clone(), mark.clone(), Instant::now());
        until("the number is replaced, though nothing is written", async || {
            store.restoring().await.unwrap().is_some_and(|there| there.beat != mark.beat)
        })
        .await;
        hold.with_retries(async || hold.target().ping().await).await.unwrap();
        // Another one takes it over, in between two of its numbers.
        let other = fresh("b");
        until("it is taken over", async || {
            let there = store.restoring().await.unwrap();
            store.mark_restoring(there.as_ref(), Some(&other)).await.unwrap()
        })
        .await;
        assert!(hold.lost().await.to_string().contains("taken the store over"));
        let mut attempts = 0;
        let written = hold
            .with_retries(async || {
                attempts += 1;
                hold.target().ping().await
            })
            .await;
        assert!(written.is_err() && attempts == 0, "it writes nothing more");
        assert!(hold.end().await.is_err());
        assert_eq!(store.restoring().await.unwrap(), Some(other), "the mark of the other one stays");
    }

    #[test]
    fn silence_is_what_was_seen_not_what_was_slept_through() {
        let (begin, ms) = (Instant::now(), Duration::from_millis);
        let mut silence = Silence::default();
        let mut note = |asked, answered| {
            silence.note(begin + ms(asked), begin + ms(answered));
            silence.lasted
        };
        assert_eq!(note(500, 510), ms(0));
        assert_eq!(note(1010, 1020), ms(510));
        assert_eq!(note(1520, 61_520), ms(510), "the look hung");
        assert_eq!(note(62_020, 62_030), ms(510));
        assert_eq!(note(62_530, 62_540), ms(1020));
        assert_eq!(note(200_000, 200_010), ms(1020), "it stood still itself");
        assert_eq!(note(200_510, 200_520), ms(1530));
    }

    #[tokio::test]
    async fn an_attempt_whose_outcome_is_unknown_is_settled_before_the_end() {
        let store = SqliteStore::open(Location::Memory).unwrap();
        store.migrate().await.unwrap();
        let (mark, next) = (fresh("b"), fresh("b"));
        assert!(store.mark_restoring(None, Some(&mark)).await.unwrap());
        let hold = Hold::new(store.clone(), mark.clone(), Instant::now());
        let mut held = hold.keeper.held.lock().await;
        held.next = Some(next.clone());
        assert!(
            store.mark_restoring(Some(&held.mark), Some(&next)).await.unwrap(),
            "it was written after all"
        );
        drop(held);
        hold.end().await.unwrap();
        assert_eq!(store.restoring().await.unwrap(), None);
    }
}
