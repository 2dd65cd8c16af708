//! Natural batching: what arrives while a round trip is under way travels together in the next one.
//!
//! There is no timer: an item that finds its lane idle goes at once, together with those that are as ready as
//! it is. While a round is under way items wait, and the next round takes all that wait, up to a limit; only
//! where enough for a large round waits does it begin beside the one that is under way. Large rounds are what
//! makes a store fast: most of what one costs does not depend on how much it carries. Every item gets its own
//! result, after its own round. Items of one lane start in the order of their arrival, those first that an earlier round has left to
//! another one; lanes do not wait for each other. Only while other servers are busy over the same database, a lane that was busy waits
//! a moment before its next round: see `turns`.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{Notify, oneshot};

use super::turns::{Gathering, REMEMBERED, Turns};
use crate::faults;
use crate::store::hold::{Held, held, holding};
use crate::telemetry;
use crate::telemetry::trace::{self, End, Kind, Span, number};

/// How large rounds may be.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most weight in one round; an item that is heavier by itself travels alone.
    pub round: usize,
    /// How many rounds of one lane may be under way at once.
    pub overlap: usize,
    /// The weight from which on a round begins beside others.
    pub large: usize,
    /// The most weight that may wait in one lane; what comes on top is rejected.
    pub waiting: usize,
}

/// Something that travels in rounds.
pub trait Item: Send + 'static {
    /// How much of a round it takes up, such as the number of its jobs.
    fn weight(&self) -> usize;
}

/// So many bytes of JSON weigh as much as a job: a round of a thousand is about 16 MiB at most.
const BYTES_PER_WEIGHT: usize = 16_384;

/// Returns the weight of an item with so many bytes of JSON.
pub fn weight(bytes: usize) -> usize {
    1 + bytes / BYTES_PER_WEIGHT
}

/// How many times a round yields before it begins: once for requests to be read, once more for those that had
/// to be handed to another thread.
const GATHERING: usize = 2;

type Run<K, I, O> = dyn Fn(K, Vec<I>) -> BoxFuture<'static, Vec<O>> + Send + Sync;

/// See the module's documentation. `K` names the lanes.
pub struct Rounds<K, I, O> {
    limits: Limits,
    /// What the lanes are called in metrics, and whose turn it is; `None`: they never wait for more requests.
    turns: Option<(&'static str, Arc<Turns>)>,
    run: Box<Run<K, I, O>>,
    lanes: Mutex<HashMap<K, Lane<I, O>>>,
}

/// An item that waits for its round.
struct Waiting<I, O> {
    item: I,
    answer: oneshot::Sender<O>,
    /// It may be in its lane for longer than its caller waits.
    held: Option<Held>,
    /// The span of its caller.
    span: Option<Arc<Span>>,
}

struct Lane<I, O> {
    waiting: VecDeque<Waiting<I, O>>,
    /// How many of those that come first were sent again.
    again: usize,
    weight: usize,
    running: usize,
    /// From when on a request has waited.
    since: Instant,
    /// How many a lane waits for that lets requests gather, and what wakes it.
    enough: usize,
    wake: Arc<Notify>,
}

impl<I, O> Lane<I, O> {
    fn idle() -> Self {
        let (since, enough, wake) = (Instant::now(), usize::MAX, Arc::default());
        Self { waiting: VecDeque::new(), again: 0, weight: 0, running: 0, since, enough, wake }
    }
}

/// Why an item has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundError {
    /// Too much was waiting already.
    Overloaded,
    /// The round ended without a result for it.
    Lost,
}

impl<K: Clone + Eq + Hash + Send + Sync + 'static, I: Item, O: Send + 'static> Rounds<K, I, O> {
    /// Rounds that `run` carries out; it returns a result for each item, in the same order.
    pub fn new(
        limits: Limits,
        run: impl Fn(K, Vec<I>) -> BoxFuture<'static, Vec<O>> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { limits, turns: None, run: Box::new(run), lanes: Mutex::default() })
    }

    /// The same, and takes turns with other servers. `name`: what the lanes are called in metrics.
    pub fn taking_turns(
        limits: Limits,
        (name, turns): (&'static str, &Arc<Turns>),
        run: impl Fn(K, Vec<I>) -> BoxFuture<'static, Vec<O>> + Send + Sync + 'static,
    ) -> Arc<Self> {
        telemetry::lane_known(name);
        let turns = Some((name, turns.clone()));
        Arc::new(Self { limits, turns, run: Box::new(run), lanes: Mutex::default() })
    }

    /// Sends an item, and waits for its result.
    pub async fn travel(self: &Arc<Self>, key: K, item: I) -> Result<O, RoundError> {
        self.send(key, item)?.await.map_err(|_| RoundError::Lost)
    }

    /// Sends an item; it is carried out whether or not the caller still waits for the result. A result that
    /// never comes means that its round was lost.
    pub fn send(self: &Arc<Self>, key: K, item: I) -> Result<oneshot::Receiver<O>, RoundError> {
        self.enter(key, item, false)
    }

    /// Sends an item again which its round has left to another one: it goes before those that came since, and is not rejected.
    pub fn send_again(self: &Arc<Self>, key: K, item: I) -> Result<oneshot::Receiver<O>, RoundError> {
        self.enter(key, item, true)
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<K, Lane<I, O>>> {
        self.lanes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn enter(self: &Arc<Self>, key: K, item: I, is_again: bool) -> Result<oneshot::Receiver<O>, RoundError> {
        let (answer, answered) = oneshot::channel();
        let mut lanes = self.lanes();
        let lane = lanes.entry(key.clone()).or_insert_with(Lane::idle);
        let weight = item.weight();
        if !is_again && lane.weight > 0 && lane.weight + weight > self.limits.waiting {
            return Err(RoundError::Overloaded);
        }
        lane.weight += weight;
        if lane.waiting.is_empty() {
            lane.since = Instant::now();
        }
        let waiting = Waiting { item, answer, held: held(), span: trace::current() };
        if is_again {
            lane.waiting.insert(lane.again, waiting);
            lane.again += 1;
        } else {
            lane.waiting.push_back(waiting);
        }
        if lane.waiting.len() >= lane.enough || lane.weight >= self.limits.large {
            lane.wake.notify_one();
        }
        if lane.running == 0 || (lane.running < self.limits.overlap && lane.weight >= self.limits.large) {
            lane.running += 1;
            tokio::spawn(drive(self.clone(), key));
        }
        Ok(answered)
    }

    /// Takes the items of the next round of a lane. If nothing waits, or what waits is not worth a round
    /// beside those under way, the lane has one driver less in the same moment.
    fn next_round(&self, key: &K) -> Vec<Waiting<I, O>> {
        let mut lanes = self.lanes();
        let Some(lane) = lanes.get_mut(key) else { return Vec::new() };
        if lane.waiting.is_empty() || (lane.running > 1 && lane.weight < self.limits.large) {
            lane.running -= 1;
            if lane.running == 0 {
                lanes.remove(key);
            }
            return Vec::new();
        }
        let mut round = Vec::new();
        let mut weight = 0;
        while let Some(next) = lane.waiting.front() {
            let more = next.item.weight();
            if !round.is_empty() && weight + more > self.limits.round {
                break;
            }
            weight += more;
            round.extend(lane.waiting.pop_front());
        }
        lane.weight -= weight;
        lane.again = lane.again.saturating_sub(round.len());
        round
    }

    /// A round of a lane has ended that carried so many: lets others gather for the next one, if other servers are busy.
    async fn gather(&self, key: K, carried: usize, began: Instant) {
        let Some((name, turns)) = &self.turns else { return };
        let ended = Instant::now();
        let is_small = |lane: &&mut Lane<I, O>| lane.running == 1 && lane.weight < self.limits.large;
        let waiting = self.lanes().get_mut(&key).filter(is_small).map(|lane| lane.waiting.len());
        let Some(waiting) = waiting else { return };
        let took = ended.saturating_duration_since(began);
        let Some(Gathering { enough, most, follow }) = turns.round_ended(carried, waiting, took) else {
            return;
        };
        if self.until(&key, enough, ended + most).await == 0
            && self.until(&key, 1, ended + REMEMBERED).await > 0
        {
            self.until(&key, enough, Instant::now() + follow).await;
        }
        if let Some(lane) = self.lanes().get_mut(&key)
            && !lane.waiting.is_empty()
        {
            telemetry::gathered(name, lane.since.max(ended).elapsed());
        }
    }

    /// Waits until so many wait in a lane, or enough for a large round. Returns how many do.
    async fn until(&self, key: &K, enough: usize, end: Instant) -> usize {
        loop {
            let wake = {
                let mut lanes = self.lanes();
                let Some(lane) = lanes.get_mut(key) else { return 0 };
                let is_over = lane.weight >= self.limits.large || Instant::now() >= end;
                let waiting = lane.waiting.len();
                if waiting >= enough || is_over || self.is_draining() {
                    lane.enough = usize::MAX;
                    return waiting;
                }
                lane.enough = enough;
                lane.wake.clone()
            };
            let ended = async {
                match &self.turns {
                    Some((_, turns)) => turns.draining.cancelled().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wake.notified() => {}
                () = tokio::time::sleep_until(end.into()) => {}
                () = ended => {}
            }
        }
    }

    /// What is recorded of a round that has ended.
    fn ended(&self, carried: usize, began: Instant) -> End {
        let lane = self.turns.as_ref().map(|(name, _)| *name);
        let name = lane.map_or("round".into(), |lane| format!("round {lane}").into());
        let attributes = vec![number("tailback.round.size", carried)];
        End { name, kind: Kind::Internal, took: began.elapsed(), attributes, error: None }
    }

    fn is_draining(&self) -> bool {
        self.turns.as_ref().is_some_and(|(_, turns)| turns.draining.is_cancelled())
    }
}

/// Drives one lane until nothing waits in it.
async fn drive<K, I, O>(rounds: Arc<Rounds<K, I, O>>, key: K)
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    I: Item,
    O: Send + 'static,
{
    loop {
        // Tasks that are ready to run send their items first; an idle server loses no time.
        for _ in 0..GATHERING {
            tokio::task::yield_now().await;
        }
        let round = rounds.next_round(&key);
        if round.is_empty() {
            return;
        }
        let (mut items, mut waiting) = (Vec::with_capacity(round.len()), Vec::with_capacity(round.len()));
        let (mut held, mut spans) = (Vec::new(), Vec::new());
        for next in round {
            items.push(next.item);
            waiting.push(next.answer);
            held.extend(next.held);
            spans.extend(next.span);
        }
        let (carried, began) = (items.len(), Instant::now());
        let held = (!held.is_empty()).then(|| Arc::new(held) as Held);
        let span = Span::of_round(&spans);
        // A round that panics loses its own items only: their senders are dropped.
        let (own, lane) = (rounds.clone(), key.clone());
        faults::point("round.begin").await;
        let answers = holding(held, async move { (own.run)(lane, items).await });
        let answers = AssertUnwindSafe(trace::within(span.clone(), answers)).catch_unwind().await;
        faults::point("round.end").await;
        if let Some((name, _)) = &rounds.turns {
            telemetry::round(name, carried, began.elapsed());
        }
        if let Some(span) = span {
            span.end(rounds.ended(carried, began));
        }
        for (answer, waiting) in answers.unwrap_or_default().into_iter().zip(waiting) {
            let _ = waiting.send(answer); // the caller may have left
        }
        rounds.gather(key.clone(), carried, began).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    impl Item for Vec<u32> {
        fn weight(&self) -> usize {
            self.len()
        }
    }

    type Sums = Arc<Rounds<&'static str, Vec<u32>, u32>>;
    type Sizes = Arc<Mutex<Vec<usize>>>;

    /// Rounds that end when the semaphore lets them, and a record of how many items each had.
    fn rounds(limits: Limits) -> (Sums, Arc<Semaphore>, Sizes) {
        let (go, sizes) = (Arc::new(Semaphore::new(0)), Sizes::default());
        let (gate, record) = (go.clone(), sizes.clone());
        let rounds = Rounds::new(limits, move |_, items: Vec<Vec<u32>>| {
            record.lock().unwrap().push(items.len());
            let gate = gate.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                items.iter().map(|item| item.iter().sum()).collect()
            }
            .boxed()
        });
        (rounds, go, sizes)
    }

    async fn all(rounds: &Sums, items: Vec<Vec<u32>>) -> Vec<Result<u32, RoundError>> {
        futures::future::join_all(items.into_iter().map(|item| rounds.travel("lane", item))).await
    }

    #[tokio::test]
    async fn what_waits_travels_together_and_gets_its_own_answer() {
        let (rounds, go, sizes) = rounds(Limits { round: 100, overlap: 1, large: 1, waiting: 1000 });
        go.add_permits(2);
        let answers = all(&rounds, (0..10).map(|n| vec![n, n]).collect()).await;
        assert_eq!(answers, (0..10).map(|n| Ok(2 * n)).collect::<Vec<_>>());
        // All ten were sent before the driver ran for the first time.
        assert_eq!(*sizes.lock().unwrap(), [10]);
        while !rounds.lanes().is_empty() {
            tokio::task::yield_now().await; // an idle lane leaves nothing behind
        }
    }

    #[tokio::test]
    async fn rounds_and_what_waits_are_bounded() {
        let (rounds, go, sizes) = rounds(Limits { round: 4, overlap: 1, large: 1, waiting: 10 });
        go.add_permits(100);
        let answers = all(&rounds, vec![vec![1; 3], vec![1; 3], vec![1; 4], vec![1; 2]]).await;
        assert_eq!(answers, [Ok(3), Ok(3), Ok(4), Err(RoundError::Overloaded)]);
        assert_eq!(*sizes.lock().unwrap(), [1, 1, 1]);
    }

    #[tokio::test]
    async fn what_is_sent_again_comes_first() {
        let (rounds, _go, _sizes) = rounds(Limits { round: 2, overlap: 1, large: 100, waiting: 2 });
        rounds.lanes().insert("lane", Lane { running: 1, ..Lane::idle() });
        let again = |n| rounds.send_again("lane", vec![n]).unwrap();
        let answers = (rounds.send("lane", vec![1]).unwrap(), rounds.send("lane", vec![2]).unwrap());
        let answers = (answers, again(3), again(4), again(5));
        assert_eq!(rounds.send("lane", vec![6]).map(drop), Err(RoundError::Overloaded));
        let next = || rounds.next_round(&"lane").into_iter().map(|next| next.item[0]).collect::<Vec<_>>();
        assert_eq!(next(), [3, 4]);
        let answers = (answers, again(7));
        assert_eq!([next(), next(), next()], [vec![5, 7], vec![1, 2], vec![]]);
        drop(answers);
    }

    #[tokio::test]
    async fn only_large_rounds_begin_beside_others() {
        let (rounds, go, sizes) = rounds(Limits { round: 100, overlap: 2, large: 3, waiting: 1000 });
        let sizes = || sizes.lock().unwrap().clone();
        let until = async |wanted: &[usize]| {
            while sizes() != wanted {
                tokio::task::yield_now().await;
            }
        };
        let send = |count| (0..count).map(|_| rounds.send("lane", vec![1]).unwrap()).collect::<Vec<_>>();
        let first = send(1);
        until(&[1]).await;
        let (second, third) = (send(2), send(1));
        until(&[1, 3]).await;
        let fourth = send(1);
        go.add_permits(1);
        for answer in first.into_iter().chain(second).chain(third).take(1) {
            assert_eq!(answer.await, Ok(1));
        }
        assert_eq!(sizes(), [1, 3], "what is left waits for the other round");
        go.add_permits(2);
        for answer in fourth {
            assert_eq!(answer.await, Ok(1));
        }
        assert_eq!(sizes(), [1, 3, 1]);
    }

    /// A lane whose rounds end at once, beside another server that is busy.
    fn beside_another(limits: Limits) -> (Sums, Arc<Turns>) {
        let turns = Turns::new(Arc::default(), Default::default());
        turns.set_busy("another".into(), std::time::Duration::from_secs(3600));
        let run = |_, items: Vec<Vec<u32>>| {
            async move { items.iter().map(|item| item.iter().sum()).collect() }.boxed()
        };
        (Rounds::taking_turns(limits, ("test", &turns), run), turns)
    }

    /// A lane that waits for as long as it takes until there are so many.
    async fn gathering(rounds: &Sums, enough: usize) -> tokio::task::JoinHandle<usize> {
        let lane = Lane { running: 1, ..Lane::idle() };
        rounds.lanes().insert("lane", lane);
        let rounds = rounds.clone();
        let end = Instant::now() + std::time::Duration::from_secs(3600);
        let gathering = tokio::spawn({
            let rounds = rounds.clone();
            async move { rounds.until(&"lane", enough, end).await }
        });
        while rounds.lanes()["lane"].enough != enough {
            tokio::task::yield_now().await;
        }
        gathering
    }

    #[tokio::test]
    async fn a_lane_gathers_until_all_are_back_or_a_large_round_waits() {
        let (rounds, turns) = beside_another(Limits { round: 100, overlap: 1, large: 8, waiting: 1000 });
        let send = |weight| rounds.send("lane", vec![1; weight]).unwrap();
        let all = gathering(&rounds, 3).await;
        let answers = [send(1), send(1)];
        tokio::task::yield_now().await;
        assert!(!all.is_finished());
        let answers = (answers, send(1));
        assert_eq!(all.await.unwrap(), 3);
        drop(answers);
        rounds.lanes().clear();
        let large = gathering(&rounds, 3).await;
        let answer = send(8);
        assert_eq!(large.await.unwrap(), 1);
        drop(answer);
        rounds.lanes().clear();
        let stopped = gathering(&rounds, 3).await;
        turns.draining.cancel();
        assert_eq!(stopped.await.unwrap(), 0, "a server that stops waits for nobody");
    }

    #[tokio::test]
    async fn an_idle_lane_does_not_wait_and_leaves_nothing_behind() {
        let (rounds, _turns) = beside_another(Limits { round: 100, overlap: 1, large: 8, waiting: 1000 });
        for count in [1, 3, 1] {
            let answers = all(&rounds, vec![vec![7]; count]).await;
            assert_eq!(answers, vec![Ok(7); count]);
        }
        while !rounds.lanes().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_round_that_panics_loses_its_own_items_only() {
        let limits = Limits { round: 1, overlap: 1, large: 1, waiting: 10 };
        let rounds = Rounds::new(limits, |(), items: Vec<Vec<u32>>| {
            async move {
                assert!(items[0][0] != 0, "as the test wants it");
                vec![items[0][0]]
            }
            .boxed()
        });
        assert_eq!(rounds.travel((), vec![0]).await, Err(RoundError::Lost));
        assert_eq!(rounds.travel((), vec![7]).await, Ok(7));
    }
}
