//! The memory that requests and responses take together: bodies while they arrive and are worked on, and responses until
//! their clients have read them. What would exceed `limits.memory_bytes` is refused at once.
//!
//! - Large bodies may take half of it, so that small ones have room. They are worked on two at a time; what that takes beside
//!   is not refused, and is for the other half.
//! - Responses may take a quarter. Pages beyond it are refused, and reserves get few jobs, but one at least. What they take
//!   beyond it is not counted against requests: clients that read slowly must not keep others from pushing and committing.
//! - One peer may have so many bodies arriving at once that small ones take a quarter of it.
//! - While responses take all of their part, clients must read quickly ([`Budget::pace`]).

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::{Code, Problem};
use crate::queue::{NO_ROOM, Room};
use crate::store::hold::{self, Hold};

/// Up to this a body, or a response, is small.
pub const SMALL: usize = 64 << 10;
/// From this on a body is worked on in its turn.
pub const LARGE: usize = 1 << 20;
/// How many large bodies are worked on at once.
pub const TURNS: usize = 2;
/// How long a large body, or the read of a page, waits for its turn.
const TURN_WAIT: Duration = Duration::from_secs(10);
/// How many times its size a body takes while it is worked on: as it came, parsed into parts, and as jobs.
pub const FACTOR: usize = 3;
/// How many pages of jobs are read at once: what they take is known only then.
const PAGES: usize = 2;
/// The share of the memory that responses may take: one part of so many.
const RESPONSES: usize = 4;
/// The share of the memory that small bodies of one peer may take while they arrive: one part of so many.
const ARRIVING: usize = 4;
/// How many bodies of one peer may arrive at once at least.
const ARRIVING_LEAST: usize = 64;
/// How many bytes a second a client that the server waits for must read.
const PACE: usize = 64 << 10;
/// The same while responses take as much memory as they may.
const PACE_WHILE_CROWDED: usize = 256 << 10;

/// See the module's documentation.
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    /// What bodies take, and what working on them takes.
    bodies: AtomicUsize,
    /// What responses take.
    responses: AtomicUsize,
    /// The part of that which working on large bodies takes beside the bodies.
    working: AtomicUsize,
    turns: Arc<Semaphore>,
    pages: Arc<Semaphore>,
    scans: Arc<Semaphore>,
}

impl Shared {
    /// The part of the memory that is for responses.
    fn for_responses(&self) -> usize {
        self.limit / RESPONSES
    }

    fn used(&self) -> usize {
        self.bodies.load(Ordering::Acquire) + self.responses.load(Ordering::Acquire)
    }
}

impl Room for Shared {
    fn is_left(&self) -> bool {
        self.used() < self.limit
    }

    fn bytes(&self) -> usize {
        if self.responses.load(Ordering::Acquire) < self.for_responses() { usize::MAX } else { SMALL }
    }
}

/// What a response takes of the budget, given back when it is dropped.
pub struct Held {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.responses.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The turn to read a list: given back when this is dropped, and the last read in it is over.
pub struct Turn(Arc<OwnedSemaphorePermit>);

impl Turn {
    /// Reads in this turn. Where the caller leaves and the read goes on, the turn lasts as long.
    pub fn during<T>(&self, read: impl Future<Output = T>) -> impl Future<Output = T> {
        hold::keeping(self.0.clone(), read)
    }
}

/// What a body takes of the budget, given back when it is dropped.
struct HeldByBody {
    shared: Arc<Shared>,
    bytes: usize,
    working: usize,
    turn: Option<OwnedSemaphorePermit>,
}

impl Drop for HeldByBody {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl HeldByBody {
    fn give_back(&mut self) {
        self.shared.working.fetch_sub(mem::take(&mut self.working), Ordering::AcqRel);
        self.shared.bodies.fetch_sub(mem::take(&mut self.bytes), Ordering::AcqRel);
        self.turn = None;
    }

    /// Takes more, if there is room for it.
    fn grow(&mut self, more: usize) -> Result<(), Problem> {
        let limit = match self.bytes + more > SMALL {
            true => self.shared.limit / 2 + self.shared.working.load(Ordering::Acquire),
            false => self.shared.limit,
        };
        let responses = self.shared.responses.load(Ordering::Acquire).min(self.shared.for_responses());
        let grown = |bodies: usize| bodies.checked_add(more).filter(|bodies| bodies + responses <= limit);
        self.shared
            .bodies
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, grown)
            .map_err(|_| Problem::new(Code::Overloaded, NO_ROOM))?;
        self.bytes += more;
        Ok(())
    }

    /// Takes more, whether or not there is room for it.
    fn grow_anyway(&mut self, more: usize) {
        self.shared.bodies.fetch_add(more, Ordering::AcqRel);
        self.bytes += more;
    }
}

impl Budget {
    /// Returns a budget of so many bytes.
    pub fn new(limit: usize) -> Self {
        let none = AtomicUsize::default;
        let turns = |count: usize| Arc::new(Semaphore::new(count));
        Self(Arc::new(Shared {
            limit,
            bodies: none(),
            responses: none(),
            working: none(),
            turns: turns(TURNS),
            pages: turns(PAGES),
            scans: turns(1),
        }))
    }

    /// Returns how many bodies of one peer may arrive at once: one that sends many slowly is to leave room for those of others.
    pub fn arriving_max(&self) -> usize {
        (self.0.limit / ARRIVING / SMALL).max(ARRIVING_LEAST)
    }

    /// Returns how many bytes are in use.
    pub fn used(&self) -> usize {
        self.0.used()
    }

    /// Takes so many bytes for a response, if there is room for them. A single one is not refused for its size alone.
    pub fn take(&self, bytes: usize) -> Result<Held, Problem> {
        let bodies = self.0.bodies.load(Ordering::Acquire);
        let grown = |responses: usize| {
            let sum = responses.checked_add(bytes)?;
            let fits = responses == 0 || sum <= self.0.for_responses();
            (fits && bodies + sum <= self.0.limit).then_some(sum)
        };
        self.0
            .responses
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, grown)
            .map_err(|_| Problem::new(Code::Overloaded, NO_ROOM))?;
        Ok(Held { shared: self.0.clone(), bytes })
    }

    /// Takes so many bytes for a response that are in use already, and are not to be lost.
    pub fn take_anyway(&self, bytes: usize) -> Held {
        self.0.responses.fetch_add(bytes, Ordering::AcqRel);
        Held { shared: self.0.clone(), bytes }
    }

    /// Makes bytes count until they are sent, whether or not there is room for them.
    pub fn hold(&self, bytes: Bytes) -> Bytes {
        let held = self.take_anyway(bytes.len());
        Bytes::from_owner(Counted { bytes, _held: held })
    }

    /// Refuses work whose response may be large while there is no room at all.
    pub fn check(&self) -> Result<(), Problem> {
        if self.0.is_left() { Ok(()) } else { Err(Problem::new(Code::Overloaded, NO_ROOM)) }
    }

    /// Returns the room for jobs that are delivered.
    pub fn room(&self) -> Arc<dyn Room> {
        self.0.clone()
    }

    /// Returns how many bytes a second a client that the server waits for must read now.
    pub fn pace(&self) -> usize {
        if self.0.bytes() < usize::MAX { PACE_WHILE_CROWDED } else { PACE }
    }

    /// Waits for the turn to read a page of jobs.
    pub async fn page(&self) -> Result<Turn, Problem> {
        self.page_within(TURN_WAIT).await
    }

    async fn page_within(&self, wait: Duration) -> Result<Turn, Problem> {
        self.turn(&self.0.pages, wait).await
    }

    /// Waits for the turn to read a list of which most may not be shown: that may take long, and must not keep pages waiting.
    pub async fn scan(&self) -> Result<Turn, Problem> {
        self.turn(&self.0.scans, TURN_WAIT).await
    }

    async fn turn(&self, of: &Arc<Semaphore>, wait: Duration) -> Result<Turn, Problem> {
        self.check()?;
        let late = || Problem::new(Code::Overloaded, "too many lists are being read");
        let turn = tokio::time::timeout(wait, of.clone().acquire_owned()).await;
        let turn = turn.ok().and_then(Result::ok).ok_or_else(late)?;
        Ok(Turn(Arc::new(turn)))
    }

    /// Returns an account for the body of a request.
    pub fn account(&self) -> Arc<Account> {
        let held = HeldByBody { shared: self.0.clone(), bytes: 0, working: 0, turn: None };
        Arc::new(Account(Mutex::new(held)))
    }

    /// Makes a large response count until its client has read it. One that is not to be lost counts although there is no
    /// room for it. `in_flight` is kept as long, and as long as one is written in pieces.
    pub async fn count<T: Send + Sync + 'static>(
        &self,
        response: Response,
        is_to_be_lost: bool,
        in_flight: Option<T>,
    ) -> Response {
        let Some(size) = response.body().size_hint().exact() else {
            return until_written(response, in_flight);
        };
        let Some(size) = usize::try_from(size).ok().filter(|size| *size > SMALL) else { return response };
        let held = match is_to_be_lost {
            true => self.take(size),
            false => Ok(self.take_anyway(size)),
        };
        let held = match held {
            Ok(held) => held,
            Err(problem) => return problem.into_response(),
        };
        let (head, body) = response.into_parts();
        // A body of known size is in memory, so that this does not wait.
        let body = match body.collect().await {
            Ok(whole) => {
                Body::from(Bytes::from_owner(Counted { bytes: whole.to_bytes(), _held: (held, in_flight) }))
            }
            Err(error) => Body::from_stream(futures::stream::once(async { Err::<Bytes, _>(error) })),
        };
        Response::from_parts(head, body)
    }
}

/// Keeps this until a response is written whose pieces are not known yet.
fn until_written<T: Send + Sync + 'static>(response: Response, kept: Option<T>) -> Response {
    let Some(kept) = kept else { return response };
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _kept = &kept;
            frame
        }))
    })
}

/// Bytes that count for as long as they are in memory.
struct Counted<T> {
    bytes: Bytes,
    _held: T,
}

impl<T> AsRef<[u8]> for Counted<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What one request takes, until its response is known and the work for it is over.
pub struct Account(Mutex<HeldByBody>);

impl Hold for Account {
    fn release(&self) {
        self.held().give_back();
    }
}

impl Account {
    fn held(&self) -> MutexGuard<'_, HeldByBody> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn grow(&self, more: usize) -> Result<(), Problem> {
        self.held().grow(more)
    }

    /// Takes what has come of the body.
    pub fn came(&self, bytes: usize) -> Result<(), Problem> {
        self.grow(bytes)
    }

    /// Takes what working on a body of this size needs; for a large one, waits for its turn.
    pub async fn work(&self, bytes: usize) -> Result<(), Problem> {
        if bytes < LARGE {
            return self.grow(bytes * (FACTOR - 1));
        }
        let turns = self.held().shared.turns.clone();
        let late = || Problem::new(Code::Overloaded, "too many large requests are waiting; nothing was done");
        let turn = tokio::time::timeout(TURN_WAIT, turns.acquire_owned()).await;
        let turn = turn.ok().and_then(Result::ok).ok_or_else(late)?;
        let mut held = self.held();
        held.turn = Some(turn);
        held.working = bytes * (FACTOR - 1);
        held.shared.working.fetch_add(held.working, Ordering::AcqRel);
        let more = held.working;
        held.grow_anyway(more);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_bodies_leave_room_for_small_ones() {
        let budget = Budget::new(400 << 10);
        let (large, small) = (budget.account(), budget.account());
        large.came(200 << 10).unwrap();
        assert!(budget.account().came(SMALL + 1).is_err(), "a half is for small ones");
        small.came(SMALL).unwrap();
        drop(large);
        assert_eq!(budget.used(), SMALL);
    }

    #[tokio::test]
    async fn responses_leave_room_for_bodies() {
        let budget = Budget::new(400 << 10);
        assert_eq!((budget.room().bytes(), budget.pace()), (usize::MAX, PACE));
        let first = budget.take(200 << 10).unwrap(); // a single one may be larger than their part
        assert!(budget.take(1).is_err());
        assert_eq!((budget.room().bytes(), budget.pace()), (SMALL, PACE_WHILE_CROWDED));
        let further = budget.take_anyway(500 << 10);
        assert!(budget.check().is_err(), "all is in use");
        let large = budget.account();
        large.came(100 << 10).unwrap();
        let small: Vec<_> = (0..3).map(|_| budget.account()).collect();
        assert!(small.iter().all(|account| account.came(SMALL).is_ok()));
        assert!(
            budget.account().came(SMALL).is_err(),
            "three quarters are for bodies whatever responses take"
        );
        drop((first, further));
        assert!(budget.account().came(SMALL).is_ok());
        drop((large, small));
        assert_eq!((budget.used(), budget.check().is_ok()), (0, true));
    }

    #[tokio::test]
    async fn a_body_counts_as_it_comes_and_more_while_it_is_worked_on() {
        let budget = Budget::new(100 << 20);
        let account = budget.account();
        for _ in 0..4 {
            account.came(1 << 20).unwrap();
        }
        assert_eq!(budget.used(), 4 << 20);
        account.work(4 << 20).await.unwrap();
        assert_eq!(budget.used(), (4 << 20) * FACTOR);
        let (second, third) = (budget.account(), budget.account());
        second.work(LARGE).await.unwrap();
        third.work(LARGE - 1).await.unwrap();
        let fourth = budget.account();
        let mut waits = Box::pin(fourth.work(LARGE));
        assert!(futures::poll!(&mut waits).is_pending(), "two are worked on");
        account.release();
        waits.await.unwrap();
        assert_eq!(budget.used(), LARGE * (2 * (FACTOR - 1)) + (LARGE - 1) * (FACTOR - 1));
        drop(account);
        assert_eq!(budget.used(), LARGE * (2 * (FACTOR - 1)) + (LARGE - 1) * (FACTOR - 1), "given back once");
    }

    #[tokio::test]
    async fn a_page_is_not_waited_for_without_end() {
        let budget = Budget::new(1 << 20);
        let mut turns = Vec::new();
        for _ in 0..PAGES {
            turns.push(budget.page().await.unwrap());
        }
        let late = budget.page_within(Duration::from_millis(20)).await;
        assert_eq!(late.err().map(|problem| problem.status()), Some(503));
        turns.pop();
        assert!(budget.page().await.is_ok());
    }

    #[tokio::test]
    async fn a_turn_lasts_as_long_as_what_is_read_in_it() {
        let budget = Budget::new(1 << 20);
        let turn = budget.scan().await.unwrap();
        let goes_on = turn.during(async { hold::held() }).await;
        drop(turn);
        assert_eq!((goes_on.is_some(), budget.0.scans.available_permits()), (true, 0));
        drop(goes_on);
        assert_eq!(budget.0.scans.available_permits(), 1);
    }

    #[test]
    fn a_piece_of_a_stream_counts_until_it_is_dropped() {
        let budget = Budget::new(1 << 20);
        let held = budget.hold(Bytes::from_static(b"data"));
        let part = held.slice(1..3);
        drop(held);
        assert_eq!((&*part, budget.used()), (&b"at"[..], 4));
        drop(part);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_large_response_counts_until_it_is_dropped() {
        let budget = Budget::new(1 << 20);
        let response = |size: usize| Response::new(Body::from(vec![0_u8; size]));
        let counted = budget.count(response(SMALL + 1), true, None::<()>).await;
        let bytes = counted.into_body().collect().await.unwrap().to_bytes();
        assert_eq!((bytes.len(), budget.used()), (SMALL + 1, SMALL + 1));
        drop(bytes);
        assert_eq!(budget.used(), 0);
        assert_eq!(budget.count(response(2 << 20), true, None::<()>).await.status(), 503);
        let kept = budget.count(response(2 << 20), false, None::<()>).await;
        assert_eq!((kept.status().as_u16(), budget.used()), (200, 2 << 20));
        budget.count(response(SMALL), true, None::<()>).await;
        assert_eq!(budget.used(), 2 << 20, "a small one does not count");
    }
}
