//! What every command says to MongoDB, whatever the URL asks for: writes wait for the journals of a majority,
//! reads go to the primary. MongoDB only: its profiler tells what it was told.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::mongod::{drop_database, mongodb_url};
use common::stores::open_mongo;
use futures::TryStreamExt as _;
use mongodb::Client;
use mongodb::bson::{Document, doc};
use tailback::job::record::KeyHold;
use tailback::job::transition::Operation;
use tailback::job::{Claim, IdSource, JobSpec, NewJob, Payload, Rules};
use tailback::store::mongo::Mongo;
use tailback::store::{Change, ClaimAsk, Jobs as _, Store};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_url_cannot_weaken_a_write_or_a_read() {
    let url = mongodb_url();
    let weak =
        format!("{url}&w=1&journal=false&readPreference=secondaryPreferred&readConcernLevel=available");
    let store = open_mongo(&weak).await;
    let database = Client::with_uri_str(&url).await.unwrap().default_database().unwrap();
    database.run_command(doc! { "profile": 2 }).await.unwrap();

    live(&store).await;

    database.run_command(doc! { "profile": 0 }).await.unwrap();
    let entries = database.collection::<Document>("system.profile").find(Document::new()).await.unwrap();
    let entries: Vec<Document> = entries.try_collect().await.unwrap();
    let commands = entries.iter().filter_map(|entry| entry.get_document("command").ok());
    let (mut writes, mut reads) = (0, 0);
    for command in commands.filter(|command| !command.contains_key("profile")) {
        if ["insert", "update", "delete", "commitTransaction"].iter().any(|name| command.contains_key(name))
            && !command.contains_key("autocommit")
        {
            let concern = command.get_document("writeConcern").unwrap();
            assert_eq!((concern.get_str("w"), concern.get_bool("j")).0.unwrap(), "majority", "{command}");
            assert!(concern.get_bool("j").unwrap(), "{command}");
            writes += 1;
        }
        if command.contains_key("find") {
            let preference = command.get_document("$readPreference");
            let mode = preference.map_or("primary", |preference| preference.get_str("mode").unwrap());
            assert_eq!(mode, "primary", "{command}");
            reads += 1;
        }
    }
    assert!(writes > 0 && reads > 0, "the profiler saw {writes} writes and {reads} reads");
    store.close().await;
    drop_database(&url).await;
}

/// A push without and one with a key, a claim, a commit, a look.
async fn live(store: &Mongo) {
    let (ids, rules) = (IdSource::default(), Rules::default());
    let now = store.now().unwrap();
    let job = |key: Option<&str>| NewJob {
        key: key.map(|key| KeyHold::new(key.parse().unwrap(), now)),
        ..NewJob::new(ids.next(now), "q".parse().unwrap(), JobSpec::new(Payload::null()), now)
    };
    for pushed in store.push(vec![job(None), job(Some("k"))], &rules).await {
        pushed.unwrap();
    }
    let ask = ClaimAsk {
        queue: "q".parse().unwrap(),
        count: 2,
        claim: Claim::random(),
        lease_ms: 60_000,
        yields: false,
        worker: None,
        pop: false,
    };
    let claim = ask.claim.clone();
    let jobs = store.claim(&[ask], &rules).await.won.remove(0).unwrap();
    assert_eq!(jobs.len(), 2);
    let commit = |id| Change {
        id,
        operation: Operation::Commit { claim: claim.clone(), result: None, push: Vec::new() },
    };
    let changes = jobs.into_iter().map(|job| commit(job.meta.id)).collect();
    assert!(store.apply(changes, &rules).await.iter().all(Result::is_ok));
    store.find(&tailback::store::Filter::all("q".parse().unwrap()), None, 10).await.unwrap();
}
