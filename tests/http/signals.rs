//! Several servers over one MongoDB: whoever waits on one of them is woken by what happens on another. They
//! look by themselves only once a minute, so that nothing but a signal explains an answer.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mongodb::bson::{DateTime, Document, doc};
use mongodb::{Client, Collection};
use tokio::task::JoinHandle;

use super::support::*;

const TOLD_ARRIVED: &str = "tailback_signals_told_total{kind=\"arrived\"}";
const TOLD_WAITING: &str = "tailback_signals_told_total{kind=\"waiting\"}";
const HEARD_ARRIVED: &str = "tailback_signals_heard_total{kind=\"arrived\"}";
const SWEPT: &str = "tailback_store_call_seconds_count{call=\"stocked\"}";

async fn servers<const N: usize>(place: &Place) -> [Server; N] {
    let mut servers = Vec::new();
    for _ in 0..N {
        servers.push(Server::start_with(&place.url, ONLY_WOKEN).await);
    }
    servers.try_into().ok().unwrap()
}

/// Whether a server knows that jobs of this queue are waited for on another one. That it has heard what others wait for is not enough:
/// they repeat what they have said before.
async fn knows(server: &Server, queue: &str) -> bool {
    let (status, stats) = server.get(&format!("/v1/queues/{queue}/stats")).await;
    assert_eq!(status, 200, "{stats}");
    stats["waiting"]["elsewhere"] == true
}

/// Begins to wait for a queue that nobody waited for yet. Returns once the others know of it, and once this
/// server has looked for what came before they did.
async fn wait_on(server: &Server, others: &[&Server], queue: &str) -> JoinHandle<(u16, Value)> {
    let swept = metric(server, SWEPT).await;
    let waiter = begin_reserve(server, queue);
    until("the server has looked again", || async { metric(server, SWEPT).await > swept }).await;
    for other in others {
        until("the others know", || knows(other, queue)).await;
    }
    waiter
}

pub async fn a_push_wakes_who_waits_on_another_server(place: &Place) {
    let [one, other] = servers(place).await;
    for (n, job) in [json!({"payload": 1}), json!({"payload": 1, "delay_ms": 300})].into_iter().enumerate() {
        let queue = format!("mail-{n}");
        let waiter = wait_on(&other, &[&one], &queue).await;
        let since = Instant::now();
        let pushed = one.push(&queue, job).await;
        assert_eq!(woken(since, waiter).await, [pushed]);
    }
    let since = Instant::now();
    let patterns = json!({"queues": ["letters.*"], "wait_ms": LONG_MS});
    let waiter = begin(&other, "/v1/reserve", &[], patterns);
    until("the prefix is known", || knows(&one, "letters.out")).await;
    let pushed = one.push("letters.out", json!({"payload": 1})).await;
    assert_eq!(woken(since, waiter).await, [pushed]);
}

pub async fn what_comes_back_wakes_who_waits_on_another_server(place: &Place) {
    let [one, other] = servers(place).await;
    configure(&one, "failing", json!({"max_attempts": 1})).await;
    let hold = async |queue: &str| {
        one.push(queue, json!({"payload": 1})).await;
        one.reserve(queue, json!({"lease_ms": 600_000})).await.remove(0)
    };
    let (back, moved, failed) = (hold("back").await, hold("first").await, hold("failing").await);
    let hurried = one.push("later", json!({"payload": 1, "delay_ms": 3_600_000})).await;
    assert_eq!(one.settle(&failed, "rollback", json!({})).await.1["state"], "dead");

    let waiter = wait_on(&other, &[&one], "back").await;
    let since = Instant::now();
    assert_eq!(one.settle(&back, "rollback", json!({"delay_ms": 0})).await.0, 200);
    assert_eq!(woken(since, waiter).await, [id(&back)]);

    let waiter = wait_on(&other, &[&one], "next").await;
    let since = Instant::now();
    assert_eq!(one.settle(&moved, "move", json!({"queue": "next"})).await.0, 200);
    assert_eq!(woken(since, waiter).await, [id(&moved)]);

    let waiter = wait_on(&other, &[&one], "later").await;
    let since = Instant::now();
    let change = json!({"run_at": "2000-01-01T00:00:00Z"});
    assert_eq!(one.send(reqwest::Method::PATCH, &format!("/v1/jobs/{hurried}"), Some(change)).await.0, 200);
    assert_eq!(woken(since, waiter).await, [hurried]);

    let waiter = wait_on(&other, &[&one], "failing").await;
    let since = Instant::now();
    assert_eq!(one.post("/v1/queues/failing/redrive", json!({})).await.1["affected"], 1);
    assert_eq!(woken(since, waiter).await, [id(&failed)]);
}

pub async fn a_batch_wakes_waiters_on_all_servers(place: &Place) {
    let [one, two, three] = servers(place).await;
    let mut waiters = Vec::new();
    for (server, others) in [(&two, [&one, &three]), (&three, [&one, &two])] {
        waiters.push(wait_on(server, &others, "mail").await);
        waiters.push(begin_reserve(server, "mail"));
        until_looked(server, 2).await;
    }
    let since = Instant::now();
    let jobs: Vec<Value> = (0..4).map(|n| json!({"payload": n})).collect();
    let (_, answer) = one.post("/v1/queues/mail/jobs/batch", json!({ "jobs": jobs })).await;
    let mut got = Vec::new();
    for waiter in waiters {
        got.extend(woken(since, waiter).await);
    }
    got.sort();
    assert_eq!(got, ids(answer["results"].as_array().unwrap()));
}

pub async fn a_resume_wakes_who_waits_on_another_server(place: &Place) {
    let [one, other] = servers(place).await;
    assert_eq!(one.post("/v1/queues/mail/pause", json!({})).await.0, 200);
    until("the pause is known", || async { other.get("/v1/queues/mail/stats").await.1["paused"] == true })
        .await;
    let pushed = one.push("mail", json!({"payload": 1})).await;
    // A paused queue is not looked into; the other one shows when the waiter has taken its place.
    let body = json!({"queues": ["mail", "other"], "wait_ms": LONG_MS});
    let waiter = begin(&other, "/v1/reserve", &[], body);
    until_looked(&other, 1).await;
    let since = Instant::now();
    assert_eq!(one.post("/v1/queues/mail/resume", json!({})).await.0, 200);
    assert_eq!(woken(since, waiter).await, [pushed]);
}

pub async fn a_change_of_settings_is_known_at_other_servers_by_a_signal(place: &Place) {
    const HEARD: &str = "tailback_signals_heard_total{kind=\"settings\"}";
    let [one, other] = servers(place).await;
    // Once it knows who waits here, it listens: what was told before that it reads again instead of hearing it.
    let _waiter = wait_on(&one, &[&other], "elsewhere").await;
    let mut heard = metric(&other, HEARD).await;
    let (is_paused, changed) = (Cell::new(false), Cell::new(None::<Instant>));
    for _ in 0..2 {
        changed.set(None);
        until("the other server hears of it", || async {
            // Anew after a while: of a server that has just come back, settings are read and not heard.
            if changed.get().is_none_or(|at| at.elapsed() > Duration::from_secs(10)) {
                let change = if is_paused.replace(!is_paused.get()) { "resume" } else { "pause" };
                assert_eq!(one.post(&format!("/v1/queues/mail/{change}"), json!({})).await.0, 200);
                changed.set(Some(Instant::now()));
            }
            metric(&other, HEARD).await > heard
        })
        .await;
        heard = metric(&other, HEARD).await;
    }
    assert_eq!(metric(&one, HEARD).await, 0.0, "a server does not hear itself");
}

pub async fn the_first_job_at_a_server_that_has_just_started_wakes_who_waits_on_another(place: &Place) {
    const HEARD: &str = "tailback_signals_heard_total{kind=\"arrived\"}";
    let [one] = servers(place).await;
    let waiter = begin_reserve(&one, "mail");
    until_looked(&one, 1).await;
    let signals = collection(place, "signals").await;
    let alone = doc! { "here": true, "listens": false };
    until("it says that it does not listen", || async {
        signals.find_one(alone.clone()).await.unwrap().is_some()
    })
    .await;
    let all = servers_listed(&one, 1).await;
    let own = all[0]["id"].as_str().unwrap();
    let begins = Instant::now();
    let [other] = servers(place).await;
    let took = begins.elapsed();
    // A server that starts waits for a second until the others listen. On a busy machine that may be too short: then it serves all the
    // same, and the others find what came before they listened.
    let listens = doc! { "server": own, "here": true, "listens": true };
    let is_heard = signals.find_one(listens).await.unwrap().is_some();
    assert!(is_heard || took >= Duration::from_secs(1), "it served after {took:?}, and was not listened to");
    let since = Instant::now();
    let pushed = other.push("mail", json!({"payload": 1})).await;
    assert_eq!(woken(since, waiter).await, [pushed]);
    if is_heard {
        until("it has heard of jobs", || async { metric(&one, HEARD).await > 0.0 }).await;
    }
}

async fn collection(place: &Place, name: &str) -> Collection<Document> {
    let client = Client::with_uri_str(&place.url).await.unwrap();
    client.default_database().unwrap().collection(name)
}

pub async fn nothing_is_told_that_nobody_waits_for(place: &Place) {
    let [one, other] = servers(place).await;
    // The waiters of a server are its own affair, and those of another one concern only what they wait for.
    let since = Instant::now();
    let own = begin_reserve(&one, "own");
    until_looked(&one, 1).await;
    for n in 0..20 {
        one.push(["own", "work"][n % 2], json!({"payload": n})).await;
    }
    woken(since, own).await;
    let waited = Instant::now();
    let waiter = wait_on(&other, &[&one], "mail").await;
    until("it is told to look", || async { metric(&one, TOLD_ARRIVED).await >= 1.0 }).await;
    for n in 0..20 {
        one.push("work", json!({"payload": n})).await;
    }
    // A server that hears for the first time that another one waits tells it to look, and that is all. On a machine so busy that
    // nothing is heard for ten seconds it is forgotten, and then heard for the first time again.
    let told = metric(&one, TOLD_ARRIVED).await;
    let is_slow = || waited.elapsed() >= Duration::from_secs(10);
    assert!(told == 1.0 || is_slow(), "{told}");
    let since = Instant::now();
    let pushed = one.push("mail", json!({"payload": 1})).await;
    assert_eq!(woken(since, waiter).await, [pushed]);
    // The other one may have heard it before this one has counted it.
    until("it is counted", || async { metric(&one, TOLD_ARRIVED).await > told }).await;
    let told_then = metric(&one, TOLD_ARRIVED).await;
    assert!(told_then == told + 1.0 || (told_then > told && is_slow()), "one was wanted: {told_then}");
}

/// Two servers over a store that has the semaphore `s`.
async fn servers_with_semaphore(place: &Place) -> [Server; 2] {
    let [one, other] = servers(place).await;
    let made = one.send(reqwest::Method::PUT, "/v1/semaphores/s", Some(json!({"capacity": 9}))).await;
    assert_eq!(made.0, 200, "{}", made.1);
    [one, other]
}

/// Begins a pop that waits for `mail`. Returns once the other server knows of it.
async fn pop_on(server: &Server, other: &Server) -> JoinHandle<(u16, Value)> {
    let pop = begin(server, "/v1/queues/mail/pop", &[], json!({"wait_ms": LONG_MS}));
    until("the other knows", || knows(other, "mail")).await;
    pop
}

/// A pop passes over a job that needs a semaphore: its wake-up is for a reserve, also where that waits on another server.
pub async fn a_pop_keeps_no_job_from_a_reserve_on_another_server(place: &Place) {
    let [one, other] = servers_with_semaphore(place).await;
    let pop = pop_on(&one, &other).await;
    // A server that hears of a waiter for the first time tells the other to look: before, so that nothing but the pop explains an answer.
    let _before = wait_on(&other, &[&one], "before").await;
    until("it has been told to look", || async { metric(&other, HEARD_ARRIVED).await >= 1.0 }).await;
    let waiter = wait_on(&other, &[&one], "mail").await;
    let since = Instant::now();
    let pushed = one.push("mail", json!({"payload": 1, "semaphores": ["s"]})).await;
    assert_eq!(woken(since, waiter).await, [pushed]);
    pop.abort();
}

/// Where only pops wait, it is told once, and not to and fro.
pub async fn what_only_pops_pass_over_is_told_once(place: &Place) {
    const OTHERS: usize = 5;
    let [one, other] = servers_with_semaphore(place).await;
    let began = Instant::now();
    let _pops = [pop_on(&one, &other).await, pop_on(&other, &one).await];
    let mut told = [0.0; 2];
    for (told, server) in told.iter_mut().zip([&one, &other]) {
        until("it has told the other to look", || async { metric(server, TOLD_ARRIVED).await >= 1.0 }).await;
        *told = metric(server, TOLD_ARRIVED).await;
    }
    one.push("mail", json!({"payload": 1, "semaphores": ["s"]})).await;
    until("it is told", || async { metric(&one, TOLD_ARRIVED).await > told[0] }).await;
    // Each of these is told once, and what goes to and fro meanwhile would be, too.
    for n in 0..OTHERS {
        let queue = format!("other-{n}");
        let waiter = wait_on(&one, &[&other], &queue).await;
        let since = Instant::now();
        let pushed = other.push(&queue, json!({"payload": 1})).await;
        assert_eq!(woken(since, waiter).await, [pushed]);
    }
    let expected = [told[0] + 1.0, told[1] + OTHERS as f64];
    until("all are counted", || async { metric(&other, TOLD_ARRIVED).await >= expected[1] }).await;
    // On a machine so busy that nothing is heard for ten seconds a server is forgotten, and told to look again.
    let spare = (began.elapsed().as_secs() / 10) as f64;
    for (server, expected) in [&one, &other].into_iter().zip(expected) {
        let told = metric(server, TOLD_ARRIVED).await;
        assert!(told <= expected + spare, "{told} instead of {expected}");
    }
}

pub async fn a_stream_that_ends_is_opened_again(place: &Place) {
    let [one, other] = servers(place).await;
    let waiter = wait_on(&other, &[&one], "before").await;
    let begins = "tailback_listening_begins_total";
    let mut before = Vec::new();
    for server in [&one, &other] {
        before.push(metric(server, begins).await);
    }
    for name in ["signals", "news"] {
        collection(place, name).await.drop().await.unwrap();
    }
    for (server, before) in [&one, &other].into_iter().zip(before) {
        until("it listens again", || async { metric(server, begins).await > before }).await;
    }
    until("the other knows of it again", || knows(&one, "before")).await;
    let since = Instant::now();
    let pushed = one.push("before", json!({"payload": 1})).await;
    assert_eq!(woken(since, waiter).await, [pushed]);
    let waiter = wait_on(&other, &[&one], "after").await;
    let since = Instant::now();
    let pushed = one.push("after", json!({"payload": 1})).await;
    assert_eq!(woken(since, waiter).await, [pushed]);
}

/// A server of an older version, as far as others see it.
struct Older {
    waits: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    says: JoinHandle<()>,
}

impl Older {
    /// Says every second that it is there and, from when it is to, that it waits for `mail`: others forget what is not repeated.
    fn begin(signals: Collection<Document>) -> Self {
        let (waits, is_over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (is_waiting, is_done) = (waits.clone(), is_over.clone());
        let says = tokio::spawn(async move {
            while !is_done.load(Ordering::Relaxed) {
                say(&signals, "here", doc! { "here": true, "listens": true }).await;
                if is_waiting.load(Ordering::Relaxed) {
                    let until = DateTime::from_millis(DateTime::now().timestamp_millis() + 60_000);
                    say(&signals, "waiting", doc! { "patterns": ["mail"], "until": until }).await;
                }
                tokio::time::sleep(Duration::from_secs(1)).await; // its pace
            }
        });
        Self { waits, is_over, says }
    }

    fn wait(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    /// Returns once it says nothing more.
    async fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.says.await.unwrap();
    }
}

async fn say(signals: &Collection<Document>, kind: &str, mut said: Document) {
    said.extend(doc! { "server": "older", "at": DateTime::now() });
    let id = doc! { "_id": format!("older/{kind}") };
    signals.replace_one(id, said).upsert(true).await.unwrap();
}

/// A server of an older version replaces its signals in place, and hears those of others by a change stream.
pub async fn servers_tell_an_older_one_and_hear_it(place: &Place) {
    let [one, other] = servers(place).await;
    let signals = collection(place, "signals").await;
    let listening = |how: bool| signals.count_documents(doc! { "here": true, "listens": true, "news": how });
    let listening = async |how| listening(how).await.unwrap() == 2;
    until("they read the news", || listening(true)).await;
    let _waiter = wait_on(&other, &[&one], "first").await;
    one.push("first", json!({"payload": 1})).await;
    let arrived = doc! { "ready.queue": "mail" };
    let older = Older::begin(signals.clone());
    until("they have streams", || listening(false)).await;
    older.wait();
    until("it is known", || knows(&one, "mail")).await;
    until("the older one is told", || async {
        // What is said next takes the place of it.
        one.push("mail", json!({"payload": 1})).await;
        signals.find_one(arrived.clone()).await.unwrap().is_some()
    })
    .await;
    older.end().await;
    signals.delete_many(doc! { "server": "older" }).await.unwrap();
    until("they read the news again", || listening(true)).await;
    let waiter = wait_on(&other, &[&one], "last").await;
    let since = Instant::now();
    let pushed = one.push("last", json!({"payload": 1})).await;
    assert_eq!(woken(since, waiter).await, [pushed]);
}

/// A collection of the usual kind, such as an insert makes after somebody has dropped the other, has no tail.
pub async fn the_collection_of_the_news_is_mended(place: &Place) {
    let news = collection(place, "news").await;
    news.insert_one(doc! { "server": "gone", "patterns": ["mail"] }).await.unwrap();
    let [one, other] = servers(place).await;
    let waiter = wait_on(&other, &[&one], "mail").await;
    let since = Instant::now();
    let pushed = one.push("mail", json!({"payload": 1})).await;
    assert_eq!(woken(since, waiter).await, [pushed]);
    let signals = collection(place, "signals").await;
    until("they read the news", || async {
        signals.count_documents(doc! { "here": true, "news": true }).await.unwrap() == 2
    })
    .await;
}

pub async fn a_server_that_stops_is_not_told_any_more(place: &Place) {
    let [one, mut other] = servers(place).await;
    let waited = Instant::now();
    let waiter = wait_on(&other, &[&one], "mail").await;
    until("it is told to look", || async { metric(&one, TOLD_ARRIVED).await >= 1.0 }).await;
    assert!(other.terminate().await.success());
    assert_eq!(waiter.await.unwrap(), (200, json!({"jobs": []})));
    until("it is known", || async { !knows(&one, "mail").await }).await;
    one.push("mail", json!({"payload": 1})).await;
    let told = metric(&one, TOLD_ARRIVED).await;
    // On a machine so busy that nothing is heard for ten seconds it was forgotten before, and heard for the first time again.
    assert!(told == 1.0 || waited.elapsed() >= Duration::from_secs(10), "{told}");
    let signals = collection(place, "signals").await;
    let of = |field: &str| signals.count_documents(doc! { field: { "$exists": true } }).into_future();
    assert_eq!(of("patterns").await.unwrap(), 0, "it took its documents along");
    assert_eq!(of("here").await.unwrap(), 1, "one is still there");
    assert_eq!(metric(&one, TOLD_WAITING).await, 0.0, "it has no waiters");
}

pub async fn a_job_that_another_program_wrote_is_found(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_WAIT__POLL_MS", "100")]).await;
    let since = Instant::now();
    let waiters: Vec<_> = (0..3).map(|_| begin_reserve(&server, "mail")).collect();
    until_looked(&server, 3).await;
    let past = DateTime::from_millis(1_000_000_000_000);
    let document = |n: i32| {
        doc! {
            "_id": format!("JOB{n}"), "v": 1, "queue": "mail", "state": "ready", "priority": 0,
            "run_at": past, "attempts": 0, "created_at": past, "rev": 0, "payload": n,
        }
    };
    collection(place, "jobs").await.insert_many((0..3).map(document)).await.unwrap();
    let mut got = Vec::new();
    for waiter in waiters {
        got.extend(woken(since, waiter).await);
    }
    got.sort();
    assert_eq!(got, ["JOB0", "JOB1", "JOB2"]);
}

/// With one line beside it, in the same transaction, also at a server that is alone and looks by itself only once a minute.
pub async fn a_program_that_says_what_it_inserts_wakes_who_waits(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let client = Client::with_uri_str(&place.url).await.unwrap();
    let database = client.default_database().unwrap();
    let (jobs, wakeups) =
        (database.collection::<Document>("jobs"), database.collection::<Document>("wakeups"));
    let said = |queue: &str| doc! { "queue": queue, "at": DateTime::now() };
    // The first one makes the collection, by which servers know that it is used.
    wakeups.insert_one(said("nobody")).await.unwrap();
    until("a server has seen it", || async {
        wakeups.list_index_names().await.unwrap().contains(&"at".to_owned())
    })
    .await;
    // It listens soon. Who listens is not told whom it has woken: what it says of itself shows that it has a stream.
    let signals = database.collection::<Document>("signals");
    until("it listens", || async {
        signals.find_one(doc! { "here": true, "listens": true }).await.unwrap().is_some()
    })
    .await;
    for n in 0..2 {
        let waiters: Vec<_> = (0..=n).map(|_| begin_reserve(&server, "mail")).collect();
        until_looked(&server, if n == 0 { 1 } else { 4 }).await;
        let since = Instant::now();
        let mut session = client.start_session().await.unwrap();
        let mut wakeup = said("mail");
        let past = DateTime::from_millis(1_000_000_000_000);
        let job = |m: i32| {
            doc! {
                "_id": format!("JOB-{n}-{m}"), "v": 1, "queue": "mail", "state": "ready", "priority": 0,
                "run_at": past, "attempts": 0, "created_at": past, "rev": 0, "payload": n,
            }
        };
        if n > 0 {
            wakeup.insert("jobs", n + 1);
        }
        // As often as it takes: MongoDB ends a transaction that is open for seconds.
        let inserted = session.start_transaction().and_run2(async |session| {
            jobs.insert_many((0..=n).map(job)).session(&mut *session).await?;
            wakeups.insert_one(wakeup.clone()).session(session).await
        });
        inserted.await.unwrap();
        let mut got = Vec::new();
        for waiter in waiters {
            got.extend(woken(since, waiter).await);
        }
        got.sort();
        let all: Vec<String> = (0..=n).map(|m| format!("JOB-{n}-{m}")).collect();
        assert_eq!(got, all);
    }
}

pub async fn servers_over_one_store_know_each_other(place: &Place) {
    let [one, other] = servers(place).await;
    let mut seen = Vec::new();
    for server in [&one, &other] {
        let all = servers_listed(server, 2).await;
        let own: Vec<&Value> = all.iter().filter(|server| server["this"] == true).collect();
        assert_eq!(own.len(), 1, "{all:?}");
        seen.push(own[0]["id"].clone());
    }
    assert_ne!(seen[0], seen[1]);
}
