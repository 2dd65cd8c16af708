//! Every kind of transaction of the MongoDB store survives every kind of failure at each of its steps: what it does
//! happens once or not at all, and its answer is true. A mongod of its own makes the steps fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what came of the cases is printed")]

mod common;

#[path = "conformance/support.rs"]
#[allow(dead_code, reason = "written for the conformance cases")]
mod support;

mod transactions {
    pub mod case;
    pub mod kinds;
    pub mod observe;
    pub mod prepare;
    pub mod proxy;
}

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use common::own_mongod::OwnMongod;
use common::rare_indexes::{RARE, make};
use common::server::{PATIENCE, until};
use futures::FutureExt as _;
use futures::future::join_all;
use mongodb::Database;
use tailback::store::fence::Fence;
use tailback::store::mongo::{Mongo, MongoOptions};
use tailback::store::{RestoreMark, Store, Transfer};
use transactions::case::{Answer, Case};
use transactions::kinds::{KINDS, Kind};
use transactions::observe::{agree, observe, settled};
use transactions::prepare::Setup;
use transactions::proxy::{ALWAYS, Fault, Plan, Proxy, Step};

/// The name of the database.
const DATABASE: &str = "tailback";
/// For calls that a fault must not stop.
const UNHURRIED: Duration = Duration::from_secs(30);
/// For calls that a fault stops in the end.
const HURRIED: Duration = Duration::from_millis(1500);
/// Another try of a case whose fault hit something else.
const TRIES: usize = 5;

/// MongoDB's `WriteConflict`, `InterruptedDueToReplStateChange` and `PrimarySteppedDown`.
const ERRORS: [Fault; 3] = [Fault::Error(112), Fault::Error(11602), Fault::Error(189)];
/// MongoDB's `TransactionExceededLifetimeLimitSeconds`, which has no label. The transaction is over by then: no commit gets it.
const TOO_LONG: Fault = Fault::Error(290);

async fn open(url: &str, deadline: Duration) -> Arc<Mongo> {
    let store = Arc::new(Mongo::new(MongoOptions {
        url: url.to_owned(),
        deadline,
        pool_size: 8,
        validates_own: false,
    }));
    until("the store answers", || async { store.ping().await.is_ok() }).await;
    store
}

/// What came of the cases of one kind.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    cases: usize,
    done: usize,
    refused: usize,
    unknown_done: usize,
    unknown_not_done: usize,
}

impl Tally {
    /// Counts a case in which nothing was left in part or twice.
    fn count(&mut self, answer: Answer, is_done: bool) {
        self.cases += 1;
        match (answer, is_done) {
            (Answer::Done, _) => self.done += 1,
            (Answer::Refused, _) => self.refused += 1,
            (Answer::Unavailable, true) => self.unknown_done += 1,
            (Answer::Unavailable, false) => self.unknown_not_done += 1,
        }
    }

    /// A row of the table in `docs/reliability.md`.
    fn row(&self, name: &str, transaction: &str) -> String {
        let Self { cases, done, refused, unknown_done, unknown_not_done } = self;
        format!(
            "| {name} | {transaction} | {cases} | {done} | {refused} | {unknown_done} | {unknown_not_done} |"
        )
    }
}

impl std::iter::Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |sum, one| Self {
            cases: sum.cases + one.cases,
            done: sum.done + one.done,
            refused: sum.refused + one.refused,
            unknown_done: sum.unknown_done + one.unknown_done,
            unknown_not_done: sum.unknown_not_done + one.unknown_not_done,
        })
    }
}

/// Prints what came of all cases, as it stands in `docs/reliability.md`.
fn print(tallies: &[(Kind, Tally)]) {
    println!("| kind | transaction | cases | done | refused | 503, done | 503, not done |");
    println!("|---|---|---:|---:|---:|---:|---:|");
    for (kind, tally) in tallies {
        let (file, name) = kind.transaction();
        println!("{}", tally.row(&format!("{kind:?}"), &format!("`{file}` {name}")));
    }
    println!("{}", tallies.iter().map(|(_, tally)| *tally).sum::<Tally>().row("all", ""));
}

/// One kind of transaction, with stores behind a proxy of its own.
struct World {
    kind: Kind,
    database: Database,
    plain: Arc<Mongo>,
    fence: Fence,
    proxy: Proxy,
    unhurried: Arc<Mongo>,
    hurried: Arc<Mongo>,
    cases: usize,
    tally: Tally,
    /// Cases whose outcome was known: their counts need no correction.
    certain: BTreeSet<String>,
}

impl World {
    async fn new(
        kind: Kind,
        mongod: &OwnMongod,
        plain: Arc<Mongo>,
        fence: Fence,
        database: Database,
    ) -> Self {
        let proxy = Proxy::start(mongod.port(), &format!("{kind:?}")).await;
        let url = proxy.url(DATABASE);
        let (unhurried, hurried) = (open(&url, UNHURRIED).await, open(&url, HURRIED).await);
        let (tally, certain) = (Tally::default(), BTreeSet::new());
        Self { kind, database, plain, fence, proxy, unhurried, hurried, cases: 0, tally, certain }
    }

    async fn prepare(&mut self) -> Case {
        self.cases += 1;
        let tag = format!("{:?}-{}", self.kind, self.cases);
        let (store, database, fence) = (&*self.plain, &self.database, &self.fence);
        // Boxed: what each kind prepares is large, and there is one for each at once.
        Box::pin(Setup { kind: self.kind, tag, store, database, fence }.prepare()).await
    }

    /// The commands of a transaction that nothing disturbs, and what it leaves behind.
    async fn undisturbed(&mut self) -> (Vec<String>, String) {
        let (case, before, commands) = loop {
            let case = self.prepare().await;
            let before = observe(&self.database, &case).await;
            self.proxy.plan(None);
            assert_eq!(case.run(&*self.unhurried).await, Answer::Done, "{:?}", self.kind);
            // What several kinds write (the revision of the settings) may conflict: then one has tried again.
            if self.proxy.transactions() == 1 {
                break (case, before, self.proxy.seen().1);
            }
        };
        assert_eq!(commands.iter().filter(|name| *name == "commitTransaction").count(), 1, "{commands:?}");
        let after = observe(&self.database, &case).await;
        assert_ne!(before, after);
        (commands, after)
    }

    async fn run(mut self) -> Self {
        let (commands, after) = self.undisturbed().await;
        let last = commands.len() - 2;
        let each = ERRORS.into_iter().chain([Fault::Closed, Fault::LostReply, Fault::Killed]);
        for fault in each.clone() {
            for step in (0..=last).map(Step::Command).chain([Step::Commit]) {
                self.fail(Plan { step, fault, times: 1 }, &after).await;
            }
        }
        for step in (0..=last).map(Step::Command) {
            self.fail(Plan { step, fault: TOO_LONG, times: 1 }, &after).await;
        }
        for fault in each.chain([Fault::Unconfirmed]) {
            // The driver itself sends a commit twice.
            self.fail(Plan { step: Step::Commit, fault, times: 2 }, &after).await;
        }
        for (step, fault) in [
            (Step::Command(0), Fault::Error(112)),
            (Step::Command(last), Fault::Error(11602)),
            (Step::Command(last), Fault::LostReply),
            (Step::Commit, Fault::Error(112)),
            (Step::Commit, Fault::Error(11602)),
            (Step::Commit, Fault::Closed),
            (Step::Commit, Fault::LostReply),
            (Step::Commit, Fault::Killed),
            (Step::Commit, Fault::Unconfirmed),
            (Step::Begin, Fault::Away),
            (Step::Command(last), Fault::Away),
            (Step::Commit, Fault::Away),
        ] {
            self.fail(Plan { step, fault, times: ALWAYS }, &after).await;
        }
        self
    }

    async fn fail(&mut self, plan: Plan, after: &str) {
        let mut deadline = HURRIED;
        for _ in 0..TRIES {
            if self.try_fail(plan, after).await {
                return;
            }
            // The machine may have been too busy for the call to come to the step in time.
            if plan.times == ALWAYS {
                deadline *= 2;
                let slower = open(&self.proxy.url(DATABASE), deadline).await;
                std::mem::replace(&mut self.hurried, slower).close().await;
            }
        }
        panic!("{:?} {plan:?}: the fault never hit the step", self.kind);
    }

    /// One case. False where the fault did not hit its step.
    async fn try_fail(&mut self, plan: Plan, after: &str) -> bool {
        let case = self.prepare().await;
        let before = observe(&self.database, &case).await;
        let is_lasting = plan.times == ALWAYS;
        let store = if is_lasting { &self.hurried } else { &self.unhurried };
        until("the store answers again", || async { store.ping().await.is_ok() }).await;
        self.proxy.plan(Some(plan));
        let answer = case.run(&**store).await;
        let (hits, commands) = self.proxy.seen();
        self.proxy.recover();
        // What a call left open is not to be waited for, and a commit that is still in flight lands now or never.
        self.proxy.end_sessions().await;
        if hits == 0 {
            return false;
        }
        let found = settled(&self.database, &case).await;
        let said = format!("{:?} {plan:?}: {answer:?} after {commands:?}, {}", self.kind, case.tag);
        let is_done = found == after;
        assert!(
            is_done || found == before,
            "{said}: done in part or twice\n{found}\n-- is neither\n{before}\n-- nor\n{after}"
        );
        match answer {
            Answer::Done => assert!(is_done, "{said}: it was not done"),
            Answer::Refused => assert!(!is_done, "{said}: it was done"),
            Answer::Unavailable => {}
        }
        assert!(is_lasting || answer == Answer::Done, "{said}: the failure was not survived");
        if !is_lasting {
            self.certain.insert(case.tag.clone());
        }
        self.tally.count(answer, is_done);
        if answer == Answer::Unavailable
            && let Some(again) = case.repeated(&*self.plain)
        {
            let repeated = again.run(&*self.plain).await;
            assert_ne!(repeated, Answer::Unavailable, "{said}: the repeat");
            assert!(is_done || repeated == Answer::Done, "{said}: the repeat was refused");
            let found = observe(&self.database, &again).await;
            assert_eq!(found, after, "{said}: the repeat was {repeated:?}");
        }
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_survives_each_failure_at_each_step() {
    let mongod = OwnMongod::with_parameters(&["enableTestCommands=1"]).await;
    let plain = open(&mongod.url(), PATIENCE).await;
    plain.migrate().await.unwrap();
    let client = mongodb::Client::with_uri_str(mongod.url()).await.unwrap();
    let database = client.database(DATABASE);
    // A build locks the jobs, and transactions give up at once where they must wait for a lock: on a slow disk for as long as it takes.
    make(&database, &RARE).await;
    let mark = RestoreMark { origin: "backup".to_owned(), beat: 1 };
    assert!(plain.mark_restoring(None, Some(&mark)).await.unwrap());
    let fence = Fence::new(mark);
    let worlds = KINDS.map(|kind| {
        let (mongod, plain, fence, database) = (&mongod, plain.clone(), fence.clone(), database.clone());
        let run = async move { World::new(kind, mongod, plain, fence, database).await.run().await };
        // A kind that fails does not hide the others. Boxed: all of them are too large for a stack.
        Box::pin(async move { AssertUnwindSafe(run).catch_unwind().await.map_err(|_| kind) })
    });
    let (mut certain, mut failed, mut tallies) = (BTreeSet::new(), Vec::new(), Vec::new());
    for world in join_all(worlds).await {
        match world {
            Ok(World { kind, tally, certain: own, unhurried, hurried, .. }) => {
                tallies.push((kind, tally));
                certain.extend(own);
                unhurried.close().await;
                hurried.close().await;
            }
            Err(kind) => failed.push(kind),
        }
    }
    print(&tallies);
    assert!(failed.is_empty(), "see above what is wrong with {failed:?}");
    agree(&database, &plain, Some(&certain)).await;
    agree(&database, &plain, None).await;
    plain.close().await;
}
