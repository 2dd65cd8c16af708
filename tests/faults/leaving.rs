//! Keyed reserves whose client or whose server goes away: where nothing is lost, the repeat is answered soon.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::common::fleet::{kill_9, push_many};
use crate::common::proxy::Fault;
use crate::common::server::{Place, Server, command, connections, until};
use crate::common::signal::{self, Signal};
use crate::world::{LONG_MS, Pair, SOON, WAIT_MS, begin_keyed, begin_keyed_by, has_looked, push, repeat};

/// Clients that leave a moment after they have asked, while the store has much to do.
pub async fn a_client_that_leaves_early_leaves_nothing_pending(place: &Place) {
    let server = Server::start(&place.url).await;
    let (wait, before) = (json!({"wait_ms": WAIT_MS}), connections(&server).await);
    let load = async {
        for _ in 0..40 {
            push_many(&server, "other", 500, json!({})).await;
        }
    };
    let asking = async {
        for n in 0..40_u64 {
            let url = format!("{}/v1/queues/work/reserve", server.base);
            let http = reqwest::Client::new(); // whose connection is closed with it
            let ask = http.post(url).header("idempotency-key", format!("k{n}")).json(&wait);
            let _ = tokio::time::timeout(Duration::from_micros(100 + 40 * n), ask.send()).await;
        }
    };
    tokio::join!(load, asking);
    until("the server has seen them leave", || async { connections(&server).await <= before }).await;
    let (mut all, mut others) = (Vec::new(), Vec::new());
    for n in 0..40 {
        push(&server, json!({"payload": n})).await;
        all.push(repeat(&server, &format!("k{n}"), wait.clone()).await.1);
        push(&server, json!({"payload": n})).await;
        others.push(repeat(&server, &format!("other{n}"), wait.clone()).await.1);
    }
    all.sort_unstable();
    others.sort_unstable();
    // How long the machine takes for calls that repeat none.
    let usual = others[20];
    assert!(all[20] < usual + Duration::from_secs(1) && all[39] < SOON, "{all:?}, others {others:?}");
}

/// The repeat goes to whoever is there afterwards.
pub async fn a_server_that_was_killed_leaves_nothing_pending(place: &Place) {
    let server = Server::start(&place.url).await;
    let ask = json!({"wait_ms": WAIT_MS, "lease_ms": LONG_MS});
    let first = begin_keyed(&server, "k", ask.clone());
    until("it waits", || async { has_looked(&server).await }).await;
    kill_9(&server).await;
    drop(server);
    assert!(first.await.unwrap().is_none());
    let next = Server::start(&place.url).await;
    let id = push(&next, json!({"payload": 1})).await;
    let (jobs, took) = repeat(&next, "k", ask).await;
    assert_eq!(jobs[0]["id"], json!(id));
    assert!(took < SOON, "{took:?}");
}

pub async fn a_client_that_leaves_while_its_record_is_opened_leaves_nothing_pending(place: &Place) {
    let Pair { proxy, far, near } = Pair::patient(place).await;
    push(&near, json!({"payload": 1})).await;
    let open = proxy.next("insert", "requests", Fault::HoldAfter);
    let (ask, before) = (json!({"wait_ms": WAIT_MS}), connections(&far).await);
    let first = begin_keyed_by(reqwest::Client::new(), &far, "k", ask.clone());
    open.met().await;
    first.abort();
    assert!(first.await.is_err());
    until("the server has seen it leave", || async { connections(&far).await <= before }).await;
    open.release();
    let (jobs, took) = repeat(&near, "k", ask).await;
    assert_eq!(jobs.len(), 1);
    assert!(took < SOON, "{took:?}");
}

pub async fn an_opening_that_failed_leaves_nothing_pending(place: &Place) {
    let Pair { proxy, far, near } = Pair::start(place).await;
    push(&near, json!({"payload": 1})).await;
    let (ask, open) = (json!({"wait_ms": WAIT_MS}), proxy.every("insert", "requests", Fault::SwallowReply));
    assert_eq!(begin_keyed(&far, "k", ask.clone()).await.unwrap().unwrap().0, 503);
    drop(open);
    let (jobs, took) = repeat(&near, "k", ask).await;
    assert_eq!(jobs.len(), 1);
    assert!(took < SOON, "{took:?}");
}

pub async fn a_claim_of_a_server_that_was_killed_goes_to_the_repeat(place: &Place) {
    let Pair { proxy, far, near } = Pair::patient(place).await;
    let id = push(&near, json!({"payload": 1})).await;
    push(&near, json!({"payload": 2})).await;
    let ask = json!({"wait_ms": WAIT_MS, "lease_ms": LONG_MS});
    let claim = proxy.next("update", "jobs", Fault::HoldAfter);
    let first = begin_keyed(&far, "k", ask.clone());
    claim.met().await;
    kill_9(&far).await;
    drop(far);
    assert!(first.await.unwrap().is_none());
    let (jobs, took) = repeat(&near, "k", ask).await;
    assert_eq!((jobs.len(), &jobs[0]["id"], &jobs[0]["attempt"]), (1, &json!(id), &json!(1)));
    assert!(took < SOON, "{took:?}");
}

/// How many servers are stopped until one has given back in time.
const TRIES: usize = 10;

/// Starts a server whose log is this file.
async fn logging(place: &Place, variables: &[(&str, &str)], log: &Path) -> Server {
    let mut command = command(&place.url, variables);
    command.stderr(std::fs::File::create(log).unwrap());
    let server = Server::of(command);
    server.until_ready().await;
    server
}

/// Whether a server has not waited any longer for what is given back: it does so for some seconds, which a busy machine may take.
fn has_given_up(log: &Path) -> bool {
    std::fs::read_to_string(log).unwrap().contains("giving back what clients did not receive has not ended")
}

/// Starts the next server, and looks at the job that was given back.
async fn is_given_back(place: &Place, id: &str) {
    let next = Server::start(&place.url).await;
    let job = next.get(&format!("/v1/jobs/{id}")).await.1;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("ready"), &json!(0)), "{job}");
}

/// The client of a reserve leaves while it is claimed for, and the server is asked to stop before it has given the job back.
pub async fn a_stop_waits_for_what_is_given_back(place: &Place) {
    for _ in 0..TRIES {
        if stop_while_giving_back(place).await {
            return;
        }
    }
    panic!("no server has given back in time");
}

/// Returns whether the server has waited until it was allowed to give back.
async fn stop_while_giving_back(place: &Place) -> bool {
    let points = tempfile::tempdir().unwrap();
    let file = |name: &str| points.path().join(name);
    let is_there = |name: &'static str| {
        let file = file(name);
        async move { file.exists() }
    };
    let variables = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let mut server = logging(place, &variables, &file("log")).await;
    let id = push(&server, json!({"payload": 1})).await;
    for point in ["round.begin", "delivery.give_back"] {
        std::fs::write(file(point), "pause").unwrap();
    }
    let open = connections(&server).await;
    let ask = reqwest::Client::new().post(format!("{}/v1/queues/work/reserve", server.base));
    let ask = tokio::spawn(ask.json(&json!({"lease_ms": LONG_MS})).send());
    until("its round begins", || is_there("round.begin.met")).await;
    ask.abort();
    until("its client has left", || async { connections(&server).await <= open }).await;
    std::fs::write(file("round.begin.go"), "").unwrap();
    until("the job is to be given back", || is_there("delivery.give_back.met")).await;
    signal::send(server.child.id(), Signal::SIGTERM);
    let health = format!("{}/healthz", server.base);
    until("it takes no more calls", || async { reqwest::get(&health).await.is_err() }).await;
    tokio::time::sleep(Duration::from_secs(1)).await; // it does not end meanwhile
    let has_waited = server.child.try_wait().unwrap().is_none() || has_given_up(&file("log"));
    assert!(has_waited, "it does not wait");
    std::fs::write(file("delivery.give_back.go"), "").unwrap();
    let exit = server.child.wait().unwrap();
    assert!(exit.success(), "{exit}");
    if has_given_up(&file("log")) {
        return false;
    }
    is_given_back(place, &id).await;
    true
}

/// A server is asked to stop while it claims, and the claim takes longer than it waits for its calls.
pub async fn a_stop_gives_back_what_calls_that_it_ends_have_claimed(place: &Place) {
    for _ in 0..TRIES {
        if stop_while_claiming(place).await {
            return;
        }
    }
    panic!("no server has given back in time");
}

/// Returns whether the server has waited until its claim was over.
async fn stop_while_claiming(place: &Place) -> bool {
    let points = tempfile::tempdir().unwrap();
    let file = |name: &str| points.path().join(name);
    let variables = [("TAILBACK_FAULTS", points.path().to_str().unwrap()), ("TAILBACK__SHUTDOWN_MS", "100")];
    let mut server = logging(place, &variables, &file("log")).await;
    let id = push(&server, json!({"payload": 1})).await;
    std::fs::write(file("round.end"), "pause").unwrap();
    let ask = reqwest::Client::new().post(format!("{}/v1/queues/work/reserve", server.base));
    let ask = tokio::spawn(ask.json(&json!({"lease_ms": LONG_MS})).send());
    let claimed = || async { file("round.end.met").exists() };
    until("it has claimed", claimed).await;
    signal::send(server.child.id(), Signal::SIGTERM);
    assert!(ask.await.unwrap().is_err(), "its call is ended");
    std::fs::write(file("round.end.go"), "").unwrap();
    let exit = server.child.wait().unwrap();
    assert!(exit.success(), "{exit}");
    if has_given_up(&file("log")) {
        return false;
    }
    is_given_back(place, &id).await;
    true
}
