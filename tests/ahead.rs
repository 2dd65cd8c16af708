//! Reading ahead on MongoDB: what a claim reads beyond its own serves the next ones, and nobody can tell but by the
//! reads. Each case meets jobs that were read ahead a moment ago and does something to them, or before them. MongoDB
//! only: SQLite reads in the transaction that claims.
//!
//! What was read ahead is forgotten after a tenth of a second, and so a machine that is busy may take a scene too late. What is
//! asserted holds all the same; the scene is played again until it was taken in time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

#[path = "conformance/support.rs"]
#[allow(dead_code, reason = "written for the conformance cases")]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::server::{PATIENCE, Place, Server};
use common::stores::{listen, open_mongo};
use futures::TryStreamExt as _;
use mongodb::bson::{Document, doc};
use mongodb::{Client, Database};
use serde_json::json;
use support::*;
use tailback::job::transition::{Edit, Operation};
use tailback::job::{Job, JobId, Payload, Reach, Rules, State};
use tailback::store::mongo::Mongo;
use tailback::store::{Change, ClaimAsk, Jobs as _, Signals as _, Store};
use tokio::task::JoinHandle;

/// For how long jobs are kept.
const KEPT_FOR: Duration = Duration::from_millis(100);
/// For how long a poll counts that found no other server.
const ALONE_FOR: Duration = Duration::from_secs(3);
/// How often a scene must be taken in time.
const TIMES: usize = 3;
/// How many jobs a scene begins with.
const JOBS: usize = 10;
/// The limits of the reads of a claim of one job and of the next one.
const AHEAD: [i64; 2] = [1, 4];

/// A store that is alone as far as it knows, and another one that does not say that it is there.
struct Bench {
    store: Arc<Mongo>,
    stranger: Arc<Mongo>,
    database: Database,
    listening: JoinHandle<()>,
    scenes: AtomicUsize,
}

/// What is pushed in the middle of a scene, and how.
type Arrival = (&'static str, fn(Draft) -> Draft);

/// A queue of which the first job was claimed, and the second one with those behind it read ahead.
struct Scene {
    queue: String,
    ids: Vec<JobId>,
    held: Job,
    began: Instant,
}

/// The database, which notes from now on what it is asked.
async fn profiled(place: &Place) -> Database {
    let database = Client::with_uri_str(&place.url).await.unwrap().default_database().unwrap();
    database.run_command(doc! { "profile": 2 }).await.unwrap();
    database
}

/// The limits of the reads of a queue's head, in their order.
async fn reads(database: &Database, queue: &str) -> Vec<i64> {
    let profile = database.collection::<Document>("system.profile");
    let of_heads = doc! { "command.find": "jobs", "command.filter.queue": queue, "command.sort.run_at": 1 };
    let found: Vec<Document> = profile.find(of_heads).await.unwrap().try_collect().await.unwrap();
    let limit = |entry: &Document| entry.get_document("command").unwrap().get_i64("limit").unwrap();
    found.iter().map(limit).collect()
}

impl Bench {
    async fn open(place: &Place) -> Self {
        let (store, stranger) = (open_mongo(&place.url).await, open_mongo(&place.url).await);
        let database = profiled(place).await;
        Self { listening: listen(&store), store, stranger, database, scenes: AtomicUsize::new(0) }
    }

    async fn close(self) {
        self.listening.abort();
        self.database.run_command(doc! { "profile": 0 }).await.unwrap();
        self.store.close().await;
        self.stranger.close().await;
    }

    async fn reads(&self, queue: &str) -> Vec<i64> {
        reads(&self.database, queue).await
    }

    async fn scene(&self, change: &impl Fn(usize, Draft) -> Draft) -> Scene {
        let queue = format!("q{}", self.scenes.fetch_add(1, Ordering::Relaxed));
        let draft = |n: usize| change(n, job(&queue).delay(-10_000 + 100 * n as i64));
        let ids = push_all(&*self.store, (0..JOBS).map(draft).collect()).await;
        let held = take(&*self.store, &queue).await;
        let began = Instant::now();
        let second = take(&*self.store, &queue).await;
        assert_eq!([&held.meta.id, &second.meta.id], [&ids[0], &ids[1]]);
        Scene { queue, ids, held, began }
    }

    /// Plays a scene until it was in time, some times: it answers when its decisive claim began.
    async fn play(&self, scene: impl AsyncFn(&Scene) -> Instant) {
        self.play_with(|_, draft| draft, scene).await;
    }

    /// The same with other jobs.
    async fn play_with(&self, change: impl Fn(usize, Draft) -> Draft, act: impl AsyncFn(&Scene) -> Instant) {
        let (end, mut in_time) = (Instant::now() + PATIENCE, 0);
        while in_time < TIMES {
            let scene = self.scene(&change).await;
            let decisive = act(&scene).await;
            let is_in_time = decisive.duration_since(scene.began) < KEPT_FOR;
            in_time += usize::from(is_in_time && self.reads(&scene.queue).await.starts_with(&AHEAD));
            assert!(in_time > 0 || Instant::now() < end, "nothing was ever kept for long enough");
        }
    }

    /// Claims so many jobs. Returns when that began, and which of the scene's jobs these are, or `None` for others.
    async fn claim(&self, scene: &Scene, count: usize) -> (Instant, Vec<Option<usize>>) {
        let began = Instant::now();
        let jobs = claim(&*self.store, ask(&scene.queue, count)).await;
        (began, jobs.iter().map(|job| scene.ids.iter().position(|id| *id == job.meta.id)).collect())
    }
}

fn edit(id: &JobId, priority: Option<i32>, text: Option<&str>) -> Change {
    let payload = text.map(content);
    let edit = Box::new(Edit { priority, payload, ..Edit::default() });
    change(id, Operation::Edit { within: Reach::default(), edit })
}

async fn the_next_claims_need_no_read(place: &Place) {
    let bench = Bench::open(place).await;
    bench
        .play(async |scene| {
            for n in 2..5 {
                assert_eq!(bench.claim(scene, 1).await.1, [Some(n)]);
            }
            let ended = Instant::now(); // before, the last one might still have come too late
            // A server that could not look for others for some seconds reads for each claim: such a scene is played again as well.
            let are_served = bench.reads(&scene.queue).await == AHEAD;
            assert_eq!(bench.claim(scene, JOBS).await.1, [Some(5), Some(6), Some(7), Some(8), Some(9)]);
            assert!(bench.claim(scene, 1).await.1.is_empty());
            if are_served { ended } else { scene.began + KEPT_FOR }
        })
        .await;
    bench.close().await;
}

async fn what_comes_before_is_delivered_before(place: &Place) {
    let bench = Bench::open(place).await;
    let store: &dyn Store = &*bench.store;
    let arrivals: [Arrival; 3] = [
        ("a higher priority", |draft| draft.priority(5)),
        ("one with a key, in a transaction", |draft| draft.priority(5).key("k", 60_000)),
        ("an earlier time", |draft| draft.delay(-60_000)),
    ];
    for (what, draft) in arrivals {
        bench
            .play(async |scene| {
                push_all(store, vec![draft(job(&scene.queue))]).await;
                let (began, jobs) = bench.claim(scene, 2).await;
                assert_eq!(jobs, [None, Some(2)], "{what}");
                began
            })
            .await;
    }
    bench
        .play(async |scene| {
            let mut between = job(&scene.queue).build(store);
            between.run_at = see(store, &scene.ids[3]).await.meta.run_at.plus_ms(1);
            store.push(vec![between], &Rules::default()).await.remove(0).unwrap();
            let (began, jobs) = bench.claim(scene, 3).await;
            assert_eq!(jobs, [Some(2), Some(3), None], "between two that were read ahead");
            began
        })
        .await;
    bench
        .play(async |scene| {
            apply(store, release(&scene.held)).await.unwrap();
            let (began, jobs) = bench.claim(scene, 2).await;
            assert_eq!(jobs, [Some(0), Some(2)], "what is given back stands where it stood");
            began
        })
        .await;
    bench
        .play(async |scene| {
            apply(store, edit(&scene.ids[7], Some(1), None)).await.unwrap();
            let (began, jobs) = bench.claim(scene, 2).await;
            assert_eq!(jobs, [Some(7), Some(2)], "an edit reorders");
            began
        })
        .await;
    bench.close().await;
}

/// Nothing is written at a due time. The lower bound of the head must not hide it either, for much longer.
async fn what_comes_due_with_a_higher_priority_is_next(place: &Place) {
    let bench = Bench::open(place).await;
    let store: &dyn Store = &*bench.store;
    bench
        .play(async |scene| {
            let due = push_one(store, job(&scene.queue).priority(5).delay(40)).await;
            until_past(store, see(store, &due).await.meta.run_at).await;
            let began = Instant::now();
            assert_eq!(take(store, &scene.queue).await.meta.id, due, "it came behind what was read ahead");
            began
        })
        .await;
    let by: [&dyn Store; 2] = [store, &*bench.stranger];
    for (n, delay_ms) in [(0, 100), (1, 100), (0, 400), (1, 400)] {
        for round in 0..TIMES {
            let queue = format!("due-{n}-{delay_ms}-{round}");
            push_all(store, vec![job(&queue).delay(-10_000); 300]).await;
            let due = push_one(by[n], job(&queue).priority(5).delay(delay_ms)).await;
            let run_at = see(store, &due).await.meta.run_at;
            let mut before = 0;
            while store.now().unwrap() < run_at {
                before += usize::from(take(store, &queue).await.meta.id != due);
            }
            until_past(store, run_at).await;
            claim(store, ask(&queue, 1)).await;
            let state = state_of(store, &due).await;
            assert_eq!(
                state,
                Some(State::Reserved),
                "it came behind another one, {before} before it was due"
            );
        }
    }
    bench.close().await;
}

async fn what_was_changed_meanwhile_is_delivered_as_it_is(place: &Place) {
    let bench = Bench::open(place).await;
    for store in [&bench.store, &bench.stranger] {
        bench
            .play(async |scene| {
                apply(&**store, edit(&scene.ids[2], None, Some("[2]"))).await.unwrap();
                let began = Instant::now();
                let next = take(&*bench.store, &scene.queue).await;
                assert_eq!(
                    (&next.meta.id, next.payload),
                    (&scene.ids[2], Payload::parse("[2]").unwrap().into())
                );
                began
            })
            .await;
        bench
            .play(async |scene| {
                apply(&**store, edit(&scene.ids[2], None, Some("[2]"))).await.unwrap();
                let (began, jobs) = bench.claim(scene, 2).await;
                assert_eq!(jobs, [Some(2), Some(3)], "one that is read again comes in its place");
                began
            })
            .await;
        bench
            .play(async |scene| {
                apply(&**store, cancel(&scene.ids[2], false)).await.unwrap();
                let (began, jobs) = bench.claim(scene, 2).await;
                assert_eq!(jobs, [Some(3), Some(4)], "as many as are asked for");
                began
            })
            .await;
    }
    bench.close().await;
}

async fn what_another_server_took_is_not_delivered_again(place: &Place) {
    let bench = Bench::open(place).await;
    for (stolen, left) in [(1, vec![3, 4, 5]), (3, vec![5, 6, 7]), (7, vec![9]), (8, vec![])] {
        bench
            .play(async |scene| {
                let taken = claim(&*bench.stranger, ask(&scene.queue, stolen)).await;
                assert_eq!(ids(&taken), scene.ids[2..2 + stolen]);
                let (began, jobs) = bench.claim(scene, 3).await;
                assert_eq!(jobs, left.iter().copied().map(Some).collect::<Vec<_>>(), "{stolen} were stolen");
                began
            })
            .await;
    }
    bench.close().await;
}

async fn expired_jobs_are_passed_over(place: &Place) {
    let bench = Bench::open(place).await;
    let expiring = |n, draft: Draft| if n == 2 || n == 3 { draft.expires(60) } else { draft };
    bench
        .play_with(expiring, async |scene| {
            let expires_at = see(&*bench.store, &scene.ids[3]).await.meta.expires_at.unwrap();
            until_past(&*bench.store, expires_at).await;
            let (began, jobs) = bench.claim(scene, 1).await;
            assert_eq!(jobs, [Some(4)]);
            began
        })
        .await;
    bench.close().await;
}

/// The limits of a queue are judged by each claim, and jobs that need semaphores are not read ahead.
async fn limits_hold_for_what_was_read_ahead(place: &Place) {
    let bench = Bench::open(place).await;
    bench
        .play(async |scene| {
            let rules: Rules = rules_of(&scene.queue, |settings| settings.max_reserved = Some(3));
            let began = Instant::now();
            let jobs = claim_under(&*bench.store, ask(&scene.queue, 3), &rules).await;
            assert_eq!(ids(&jobs), scene.ids[2..3], "two are reserved");
            began
        })
        .await;
    let needing = |n, draft: Draft| if n == 3 { draft.needs(&["none"]) } else { draft };
    for pop in [false, true] {
        bench
            .play_with(needing, async |scene| {
                let mut began = scene.began;
                for n in [2, 4] {
                    began = if n == 2 { Instant::now() } else { began };
                    let next = claim(&*bench.store, ClaimAsk { pop, ..ask(&scene.queue, 1) }).await;
                    assert_eq!(ids(&next), scene.ids[n..=n]);
                }
                let state = if pop { State::Ready } else { State::Blocked };
                assert_eq!(state_of(&*bench.store, &scene.ids[3]).await, Some(state));
                began
            })
            .await;
    }
    bench.close().await;
}

async fn claims_at_once_share_nothing(place: &Place) {
    let bench = Bench::open(place).await;
    bench
        .play(async |scene| {
            let began = Instant::now();
            let asks = || [ask(&scene.queue, 2), ClaimAsk { pop: true, ..ask(&scene.queue, 2) }];
            // A claim finds what it won by its token: each has its own, as those of all requests have.
            let (first, second, rules) = (asks(), asks(), Rules::default());
            let (one, two) =
                tokio::join!(bench.store.claim(&first, &rules), bench.store.claim(&second, &rules));
            let won = one.won.into_iter().chain(two.won).map(Result::unwrap);
            let mut won: Vec<JobId> = won.flat_map(|jobs| ids(&jobs)).collect();
            won.sort();
            let count = won.len();
            won.dedup();
            assert_eq!(won.len(), count, "a job was delivered twice");
            won.extend(ids(&claim(&*bench.store, ask(&scene.queue, JOBS)).await));
            won.sort();
            assert_eq!(won, scene.ids[2..], "a job was forgotten");
            began
        })
        .await;
    bench.close().await;
}

/// The requests of a round share a claim, those that pop another one. Where the one reads ahead what the other wins meanwhile, the other
/// meets its own jobs when it reads again.
async fn a_round_wins_each_job_once(place: &Place) {
    let bench = Bench::open(place).await;
    for n in 0..50 {
        let queue = format!("round{n}");
        let pushes = (0..60).map(|_| job(&queue)).collect();
        let mut pushed = push_all(&*bench.store, pushes).await;
        pushed.sort();
        // A claim lately before lets the next ones read ahead.
        let mut won = ids(&claim(&*bench.store, ask(&queue, 5)).await);
        for _ in 0..2 {
            let (reserve, pop) = (ask(&queue, 5), ClaimAsk { pop: true, ..ask(&queue, 5) });
            let of = |n| if n < 6 { pop.clone() } else { reserve.clone() };
            let asks: Vec<ClaimAsk> = (0..10).map(of).collect();
            let claims = bench.store.claim(&asks, &Rules::default()).await;
            won.extend(claims.won.into_iter().flat_map(|jobs| ids(&jobs.unwrap())));
        }
        won.extend(ids(&claim(&*bench.store, ask(&queue, 100)).await));
        won.sort();
        assert_eq!(won, pushed, "a job was delivered twice, or forgotten");
    }
    bench.close().await;
}

async fn beside_another_server_nothing_is_read_ahead(place: &Place) {
    let bench = Bench::open(place).await;
    // Whether the second claim of a new queue reads more than its own.
    let reads_ahead = async || {
        let scene = bench.scene(&|_, draft| draft).await;
        bench.reads(&scene.queue).await.iter().any(|limit| *limit > 1)
    };
    until("it reads ahead", async || reads_ahead().await.then_some(())).await;
    let listening = listen(&bench.stranger);
    until("the other one says that it is there", async || {
        (bench.store.servers().await.unwrap().len() == 2).then_some(())
    })
    .await;
    // Every poll that begins from now on finds it, and what an earlier one found is over then.
    let said = Instant::now();
    until("it knows of the other one", async || (said.elapsed() >= ALONE_FOR).then_some(())).await;
    for _ in 0..20 {
        assert!(!reads_ahead().await, "it reads ahead beside another server");
    }
    listening.abort();
    bench.stranger.close().await;
    until("it is alone again", async || reads_ahead().await.then_some(())).await;
    bench.close().await;
}

/// A server reads ahead, and judges the settings before each round of claims.
async fn a_pause_holds_for_what_was_read_ahead(place: &Place) {
    let server = Server::start(&place.url).await;
    let database = profiled(place).await;
    let (end, mut in_time) = (Instant::now() + PATIENCE, 0);
    for n in 0.. {
        let queue = format!("q{n}");
        let path = format!("/v1/queues/{queue}");
        let next = async || server.reserve(&queue, json!({})).await.first().map(|job| job["payload"].clone());
        let pause = async |is: bool| {
            let set = server.send(reqwest::Method::PUT, &path, Some(json!({"paused": is}))).await;
            assert_eq!(set.0, 200, "{}", set.1);
        };
        let jobs: Vec<_> = (0..JOBS).map(|k| json!({"payload": k})).collect();
        server.post(&format!("{path}/jobs/batch"), json!({"jobs": jobs})).await;
        assert_eq!(next().await, Some(json!(0)));
        let began = Instant::now();
        assert_eq!(next().await, Some(json!(1)));
        pause(true).await;
        let decisive = Instant::now();
        assert_eq!(next().await, None);
        pause(false).await;
        assert_eq!(next().await, Some(json!(2)));
        let is_in_time = decisive.duration_since(began) < KEPT_FOR;
        in_time += usize::from(is_in_time && reads(&database, &queue).await.starts_with(&AHEAD));
        if in_time >= TIMES {
            break;
        }
        assert!(in_time > 0 || Instant::now() < end, "nothing was ever kept for long enough");
    }
    database.run_command(doc! { "profile": 0 }).await.unwrap();
}

on_one_store! { mongo:
    the_next_claims_need_no_read
    what_comes_before_is_delivered_before
    what_comes_due_with_a_higher_priority_is_next
    what_was_changed_meanwhile_is_delivered_as_it_is
    what_another_server_took_is_not_delivered_again
    expired_jobs_are_passed_over
    limits_hold_for_what_was_read_ahead
    claims_at_once_share_nothing
    a_round_wins_each_job_once
    beside_another_server_nothing_is_read_ahead
    a_pause_holds_for_what_was_read_ahead
}
