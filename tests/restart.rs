//! Servers that are killed, or asked to stop, in the middle of everything: what was acknowledged holds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use common::fleet::{kill_9, text};
use common::server::{AS_LEFT, Place, Server, until};
use common::signal::{self, Signal};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Short, so that what a killed server had given out is back soon; a worker that is slower loses its job.
const LEASE_MS: u64 = 1500;

/// What the clients were told.
#[derive(Default)]
struct Book {
    /// Jobs whose push was answered 201, with their number.
    pushed: HashMap<String, u64>,
    /// Jobs whose commit was answered 200, with the attempt that did it.
    committed: HashMap<String, u64>,
    /// Jobs whose commit was sent and not answered: nobody knows.
    unknown: HashSet<String>,
    /// Every delivery, as job and attempt.
    delivered: HashSet<(String, u64)>,
    /// The number of the next push.
    next: u64,
}

impl Book {
    /// Acknowledged jobs of which nothing else is known.
    fn missing(&self) -> Vec<String> {
        let settled = |id: &&String| !self.committed.contains_key(*id) && !self.unknown.contains(*id);
        self.pushed.keys().filter(settled).cloned().collect()
    }

    fn delivered(&mut self, job: &Value) {
        let (id, attempt) = (text(job, "id"), job["attempt"].as_u64().unwrap());
        assert!(self.delivered.insert((id.clone(), attempt)), "one delivery, made twice: {job}");
        if let Some(number) = self.pushed.get(&id) {
            assert_eq!(job["payload"]["number"], json!(number), "another payload: {job}");
        }
        if let Some(committed) = self.committed.get(&id) {
            assert!(attempt <= *committed, "delivered after its commit was acknowledged: {job}");
        }
    }

    fn committed(&mut self, job: &Value) {
        let (id, attempt) = (text(job, "id"), job["attempt"].as_u64().unwrap());
        let earlier = self.committed.insert(id.clone(), attempt);
        assert!(earlier.is_none(), "two commits were acknowledged: {job}");
        let later = self.delivered.iter().find(|(other, n)| *other == id && *n > attempt);
        assert!(later.is_none(), "its token was stale: {job}");
    }
}

/// Clients under load, and the server that they talk to at the moment.
struct Load {
    book: Arc<Mutex<Book>>,
    at: watch::Sender<Arc<Server>>,
    producing: watch::Sender<bool>,
    clients: JoinSet<()>,
}

impl Load {
    async fn start(place: &Place) -> Self {
        let (at, _) = watch::channel(Arc::new(Server::start_with(&place.url, &[AS_LEFT]).await));
        let (producing, _) = watch::channel(true);
        let mut load = Self { book: Arc::default(), at, producing, clients: JoinSet::new() };
        for _ in 0..3 {
            load.clients.spawn(produce(load.at.subscribe(), load.producing.subscribe(), load.book.clone()));
            load.clients.spawn(consume(load.at.subscribe(), load.book.clone()));
        }
        load
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    fn server(&self) -> Arc<Server> {
        self.at.borrow().clone()
    }

    /// Waits until this much more has been acknowledged; a client that found a mistake ends the test.
    async fn go_on(&mut self, pushes: usize, commits: usize) {
        let (pushed, committed) = {
            let book = self.book();
            (book.pushed.len() + pushes, book.committed.len() + commits)
        };
        let book = self.book.clone();
        tokio::select! {
            () = until("there is progress", || async {
                let book = book.lock().unwrap();
                book.pushed.len() >= pushed && book.committed.len() >= committed
            }) => {}
            Some(ended) = self.clients.join_next() => panic!("a client ended: {ended:?}"),
        }
    }

    async fn restart(&self, place: &Place) {
        self.at.send_replace(Arc::new(Server::start_with(&place.url, &[AS_LEFT]).await));
    }

    /// Lets the consumers empty the queue, and then compares the books.
    async fn settle_up(mut self) {
        self.producing.send_replace(false);
        let server = self.server();
        let books = self.book.clone();
        // The answer to the last commit may come later than its job has gone.
        let empty = until("the queue is empty, and every acknowledged job is accounted for", || async {
            let (status, page) = server.get("/v1/queues/work/jobs?limit=1").await;
            status == 200 && page["jobs"] == json!([]) && books.lock().unwrap().missing().is_empty()
        });
        tokio::select! {
            () = empty => {}
            Some(ended) = self.clients.join_next() => if let Err(error) = ended { panic!("{error}") },
        }
        self.clients.abort_all();
        while let Some(ended) = self.clients.join_next().await {
            assert!(!ended.is_err_and(|error| error.is_panic()), "a client found a mistake");
        }
        let missing = self.book().missing();
        assert!(missing.is_empty(), "acknowledged, and gone: {missing:?}");
    }
}

async fn call(server: &Server, path: &str, body: Value) -> Option<(u16, Value)> {
    let answer = server.try_send(Method::POST, path, Some(body)).await.ok();
    if answer.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await; // the pace of trying again
    }
    answer
}

async fn produce(at: watch::Receiver<Arc<Server>>, producing: watch::Receiver<bool>, book: Arc<Mutex<Book>>) {
    while *producing.borrow() {
        let server = at.borrow().clone();
        let number = {
            let mut book = book.lock().unwrap();
            book.next += 1;
            book.next
        };
        // No job may die of the deliveries that are lost here.
        let job = json!({"payload": {"number": number, "filler": "x".repeat(500)}, "max_attempts": 1000});
        match call(&server, "/v1/queues/work/jobs", job).await {
            Some((201, answer)) => drop(book.lock().unwrap().pushed.insert(text(&answer, "id"), number)),
            Some((503, _)) => tokio::time::sleep(Duration::from_millis(10)).await, // it stops, or starts
            Some((status, answer)) => panic!("push: {status} {answer}"),
            None => {}
        }
        tokio::time::sleep(Duration::from_millis(2)).await; // the consumers must keep up
    }
    std::future::pending().await
}

async fn consume(at: watch::Receiver<Arc<Server>>, book: Arc<Mutex<Book>>) {
    loop {
        let server = at.borrow().clone();
        let ask = json!({"count": 20, "lease_ms": LEASE_MS, "wait_ms": 200});
        let jobs = match call(&server, "/v1/queues/work/reserve", ask).await {
            Some((200, answer)) => answer["jobs"].as_array().unwrap().clone(),
            Some((503, _)) | None => continue,
            Some((status, answer)) => panic!("reserve: {status} {answer}"),
        };
        for job in &jobs {
            book.lock().unwrap().delivered(job);
        }
        for job in &jobs {
            let commit = json!({"reservation": job["reservation"]});
            let answer = call(&server, &format!("/v1/jobs/{}/commit", text(job, "id")), commit).await;
            let mut book = book.lock().unwrap();
            match answer {
                Some((200, _)) => book.committed(job),
                Some((409, _)) => {} // it was too slow
                Some((503, _)) | None => drop(book.unknown.insert(text(job, "id"))),
                Some((status, answer)) => panic!("commit: {status} {answer}"),
            }
        }
    }
}

async fn kill_again_and_again(place: &Place) {
    // An embedded store has only this server to rely on.
    let usual = if place.url.starts_with("sqlite") { 20 } else { 5 };
    // `just kills` asks for more of them than fits into every run.
    let rounds = std::env::var("TAILBACK_TEST_KILLS").map_or(usual, |rounds| rounds.parse().unwrap());
    let mut load = Load::start(place).await;
    for _ in 0..rounds {
        load.go_on(15, 8).await;
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..60))).await; // somewhere within the work
        kill_9(&load.server()).await;
        load.restart(place).await;
    }
    load.settle_up().await;
}

async fn ask_to_stop_in_the_middle_of_everything(place: &Place) {
    let mut load = Load::start(place).await;
    for _ in 0..5 {
        let server = load.server();
        let waiting = tokio::spawn({
            let server = server.clone();
            let ask = json!({"wait_ms": 60_000});
            async move { server.try_send(Method::POST, "/v1/queues/idle/reserve", Some(ask)).await }
        });
        load.go_on(15, 8).await;
        assert_eq!(stop(&server).await, Some(0));
        if let Ok((status, answer)) = waiting.await.unwrap() {
            assert!(answer["jobs"] == json!([]) || status == 503, "{status} {answer}");
        }
        load.restart(place).await;
    }
    load.settle_up().await;
}

/// SIGTERM for a server that others are talking to; its exit code.
async fn stop(server: &Server) -> Option<i32> {
    let pid = server.child.id();
    signal::send(pid, Signal::SIGTERM);
    let mut code = None;
    until("the server has stopped", || {
        // The last fields of the line are those of a process that has ended: its wait status.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let ended = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'));
        if ended {
            let status: Option<i32> = stat.split_whitespace().last().and_then(|field| field.parse().ok());
            code = status.map(|status| if status & 0x7f == 0 { status >> 8 } else { -(status & 0x7f) });
        }
        async move { ended }
    })
    .await;
    code
}

on_every_store! {
    kill_again_and_again
    ask_to_stop_in_the_middle_of_everything
}
