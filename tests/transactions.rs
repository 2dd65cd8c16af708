//! Every kind of transaction of the MongoDB store survives every kind of failure at each of its steps: what it does
//! happens once or not at all, and its answer is true. A mongod of its own makes the steps fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what came of the cases is printed")]

mod common;

#[path = "conformance/support.rs"]
#[allow(dead_code, reason = "written for the conformance cases")]
mod support;

mod transactions {
    pub mod kinds;
    pub mod proxy;
}

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::own_mongod::OwnMongod;
use common::server::{PATIENCE, until};
use futures::future::join_all;
use futures::{FutureExt as _, TryStreamExt as _};
use mongodb::Database;
use mongodb::bson::{Document, doc};
use tailback::store::mongo::{Mongo, MongoOptions};
use tailback::store::{Figures as _, Store};
use transactions::kinds::{Answer, Case, KINDS, Kind};
use transactions::proxy::{ALWAYS, Fault, Plan, Proxy, Step};

/// The name of the database.
const DATABASE: &str = "tailback";
/// For calls that a fault must not stop.
const UNHURRIED: Duration = Duration::from_secs(30);
/// For calls that a fault stops in the end.
const HURRIED: Duration = Duration::from_millis(1500);
/// Within this, increments are in the database.
const SOON: Duration = Duration::from_secs(60);
/// Another try of a case whose fault hit something else.
const TRIES: usize = 5;

/// MongoDB's `WriteConflict`, `InterruptedDueToReplStateChange` and `PrimarySteppedDown`.
const ERRORS: [Fault; 3] = [Fault::Error(112), Fault::Error(11602), Fault::Error(189)];

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

/// All that there is of a case, without what differs from case to case.
async fn observe(database: &Database, Case { tag, batch, .. }: &Case) -> String {
    // What follows a dot among the characters: names of another case lie outside.
    let own = doc! { "$gte": format!("{tag}."), "$lt": format!("{tag}/") };
    let all = async |name: &str, filter: Document| -> Vec<Document> {
        let found = database.collection::<Document>(name).find(filter).await.unwrap();
        found.try_collect().await.unwrap()
    };
    let mut lines = Vec::new();
    for job in all("jobs", doc! { "queue": own.clone() }).await {
        let queue = job.get_str("queue").unwrap().trim_start_matches(tag.as_str());
        let turn = job.get_str("turn").ok().and_then(|turn| turn.rsplit('/').next());
        let (attempts, claim) = (job.get("attempts"), job.contains_key("claim"));
        lines.push(format!("job {queue} {:?} {attempts:?} {turn:?} claim {claim}", job.get("state")));
    }
    for receipt in all("receipts", doc! { "queue": own.clone() }).await {
        lines.push(format!("receipt {:?} pushed {}", receipt.get("verb"), receipt.contains_key("pushed")));
    }
    for name in ["keys", "groups", "limits", "schedules", "semaphores", "queues"] {
        for document in all(name, doc! { "_id": own.clone() }).await {
            let id = document.get_str("_id").unwrap().trim_start_matches(tag.as_str());
            let shown = ["last", "version", "capacity"].map(|field| document.get(field).cloned());
            let (rev, runs) = match name {
                "schedules" => (document.get("rev"), document.get_str("last_runs").map_or(0, runs)),
                _ => (None, 0),
            };
            lines.push(format!("{name} {id} {shown:?} {rev:?} runs {runs}"));
        }
    }
    for operation in all("operations", doc! { "_id": tag.as_str() }).await {
        lines.push(format!(
            "operation {:?} over {}",
            operation.get("rev"),
            operation.contains_key("finished_at")
        ));
    }
    for row in all("audit", doc! { "queue": own.clone() }).await {
        lines.push(format!("row {:?}", row.get("what")));
    }
    for key in all("api_keys", doc! { "name": own }).await {
        lines.push(format!("API key {:?}", key.get("hash")));
    }
    if let Some(batch) = batch {
        for document in all("batches", doc! { "_id": batch.as_str() }).await {
            let counts = ["sealed", "pending", "done", "cancelled"].map(|field| document.get(field).cloned());
            lines.push(format!("batch {counts:?} finished {}", document.contains_key("finished_at")));
        }
        let results = all("batch_results", doc! { "batch": batch.as_str() }).await.len();
        lines.push(format!("results {results}"));
    }
    lines.sort();
    lines.join("\n")
}

fn runs(text: &str) -> usize {
    serde_json::from_str::<Vec<serde_json::Value>>(text).unwrap().len()
}

/// What came of the cases of one kind.
#[derive(Debug, Default)]
struct Tally {
    cases: usize,
    done: usize,
    refused: usize,
    unknown_done: usize,
    unknown_not_done: usize,
}

/// One kind of transaction, with stores behind a proxy of its own.
struct World {
    kind: Kind,
    database: Database,
    plain: Arc<Mongo>,
    proxy: Proxy,
    unhurried: Arc<Mongo>,
    hurried: Arc<Mongo>,
    cases: usize,
    tally: Tally,
    /// Cases whose outcome was known: their counts need no correction.
    certain: BTreeSet<String>,
}

impl World {
    async fn new(kind: Kind, mongod: &OwnMongod, plain: Arc<Mongo>, database: Database) -> Self {
        let proxy = Proxy::start(mongod.port(), &format!("{kind:?}")).await;
        let url = proxy.url(DATABASE);
        let (unhurried, hurried) = (open(&url, UNHURRIED).await, open(&url, HURRIED).await);
        let (tally, certain) = (Tally::default(), BTreeSet::new());
        Self { kind, database, plain, proxy, unhurried, hurried, cases: 0, tally, certain }
    }

    async fn prepare(&mut self) -> Case {
        self.cases += 1;
        self.kind.prepare(&*self.plain, format!("{:?}-{}", self.kind, self.cases)).await
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
        for _ in 0..TRIES {
            if self.try_fail(plan, after).await {
                return;
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
        if hits == 0 {
            return false;
        }
        // What a call left open is not to be waited for, and a commit that is still in flight lands now or never.
        self.proxy.end_sessions().await;
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
        self.tally.cases += 1;
        match (answer, is_done) {
            (Answer::Done, _) => self.tally.done += 1,
            (Answer::Refused, _) => self.tally.refused += 1,
            (Answer::Unavailable, true) => self.tally.unknown_done += 1,
            (Answer::Unavailable, false) => self.tally.unknown_not_done += 1,
        }
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

type Counted = BTreeSet<(String, String, i64)>;

/// How many jobs there are in each state of each queue, and how many the counters say.
async fn figures(database: &Database) -> (Counted, Counted, Vec<String>) {
    let all =
        async |cursor: mongodb::Cursor<Document>| -> Vec<Document> { cursor.try_collect().await.unwrap() };
    let group = doc! { "$group": { "_id": { "queue": "$queue", "state": "$state" }, "n": { "$sum": 1 } } };
    let counted = all(database.collection::<Document>("jobs").aggregate([group]).await.unwrap()).await;
    let text = |row: &Document, name: &str| row.get_str(name).unwrap().to_owned();
    let number = |row: &Document, name: &str| {
        row.get_i64(name).or_else(|_| row.get_i32(name).map(i64::from)).unwrap_or(0)
    };
    let there = counted.iter().map(|row| {
        let id = row.get_document("_id").unwrap();
        (text(id, "queue"), text(id, "state"), number(row, "n"))
    });
    let rows = all(database.collection::<Document>("counters").find(doc! {}).await.unwrap()).await;
    let states = ["ready", "reserved", "blocked", "done", "dead"];
    let kept = rows
        .iter()
        .flat_map(|row| states.map(|state| (text(row, "_id"), state.to_owned(), number(row, state))));
    let unsure = rows.iter().filter(|row| row.contains_key("unsure")).map(|row| text(row, "_id"));
    (there.collect(), kept.filter(|(.., n)| *n != 0).collect(), unsure.collect())
}

/// What there is of a case once two looks in a row have seen the same: one look reads several collections.
async fn settled(database: &Database, case: &Case) -> String {
    let mut before = observe(database, case).await;
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = observe(database, case).await;
        if now == before {
            return now;
        }
        before = now;
    }
}

/// Waits until the counters are what is there: in the queues of these cases without a correction, or in all with it.
async fn agree(database: &Database, plain: &Mongo, certain: Option<&BTreeSet<String>>) {
    let is_asked = |queue: &str| {
        queue.split_once('.').is_some_and(|(tag, _)| certain.is_none_or(|tags| tags.contains(tag)))
    };
    let end = Instant::now() + if certain.is_some() { SOON } else { PATIENCE };
    loop {
        if certain.is_none() {
            plain.reconcile().await.unwrap();
        }
        let (there, kept, unsure) = figures(database).await;
        // On a busy machine an increment may be late, and marks its queue: that one is left to the comparison.
        let is_judged = |queue: &String| is_asked(queue) && (certain.is_none() || !unsure.contains(queue));
        let wrong: Vec<_> =
            there.symmetric_difference(&kept).filter(|(queue, ..)| is_judged(queue)).collect();
        if wrong.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "wrong: {wrong:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_survives_each_failure_at_each_step() {
    let mongod = OwnMongod::with_parameters(&["enableTestCommands=1"]).await;
    let plain = open(&mongod.url(), PATIENCE).await;
    plain.migrate().await.unwrap();
    let client = mongodb::Client::with_uri_str(mongod.url()).await.unwrap();
    let database = client.database(DATABASE);
    let worlds = KINDS.map(|kind| {
        let (mongod, plain, database) = (&mongod, plain.clone(), database.clone());
        let run = async move { World::new(kind, mongod, plain, database).await.run().await };
        // A kind that fails does not hide the others. Boxed: all of them are too large for a stack.
        Box::pin(async move { AssertUnwindSafe(run).catch_unwind().await.map_err(|_| kind) })
    });
    let (mut certain, mut failed) = (BTreeSet::new(), Vec::new());
    for world in join_all(worlds).await {
        match world {
            Ok(World { kind, tally, certain: own, unhurried, hurried, .. }) => {
                println!("{kind:?}: {tally:?}");
                certain.extend(own);
                unhurried.close().await;
                hurried.close().await;
            }
            Err(kind) => failed.push(kind),
        }
    }
    assert!(failed.is_empty(), "see above what is wrong with {failed:?}");
    agree(&database, &plain, Some(&certain)).await;
    agree(&database, &plain, None).await;
    plain.close().await;
}
