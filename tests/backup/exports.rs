//! Exports: into what, beside what, and for how long.

use std::io::Read as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use mongodb::Client;
use serde_json::{Value, json};

use super::support::{Folder, is_past, lines, moment, of_kind, refused, restore, run, tailback};
use crate::common::own_mongod::OwnMongod;
use crate::common::server::{PATIENCE, Place, Server, command, until};
use crate::common::signal::{self, Signal};

/// Only a regular file is replaced: a pipe is written, a link is followed, and a directory is refused.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_regular_file_is_replaced() {
    let (place, folder) = (Place::sqlite().await, Folder::new());
    let mut server = Server::start(&place.url).await;
    server.push("plain", json!({"payload": 1})).await;
    assert!(server.terminate().await.success());
    let to = |path: &Path| tailback(&["export", "--store", &place.url, "--out", path.to_str().unwrap()]);
    let [directory, fifo, link, dangling] =
        ["directory", "fifo", "link", "dangling"].map(|name| folder.file(name));
    std::fs::create_dir(&directory).unwrap();
    let told = refused(to(&directory)).await;
    assert!(told.contains("is a directory"), "{told}");

    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let reading = tokio::task::spawn_blocking({
        let fifo = fifo.clone();
        move || std::fs::read_to_string(fifo).unwrap()
    });
    let (done, told) = run(to(&fifo)).await;
    assert!(done, "{told}");
    let piped = tokio::time::timeout(PATIENCE, reading).await.unwrap().unwrap();
    assert!(piped.starts_with("{\"kind\":\"head\"") && piped.contains("\"kind\":\"end\""), "{piped}");
    let output = to(Path::new("/dev/stdout")).output().unwrap();
    assert!(output.status.success() && output.stdout.ends_with(b"}\n"), "{output:?}");
    let (done, told) = run(to(Path::new("/dev/null"))).await;
    assert!(done && !Path::new("/dev/null").is_file(), "{told}");

    let behind = folder.file("directory/all.jsonl");
    std::fs::write(&behind, "old").unwrap();
    std::os::unix::fs::symlink(&behind, &link).unwrap();
    std::os::unix::fs::symlink("directory/new.jsonl", &dangling).unwrap();
    for (link, file) in [(&link, behind.clone()), (&dangling, folder.file("directory/new.jsonl"))] {
        let (done, told) = run(to(link)).await;
        assert!(done && link.is_symlink(), "{told}");
        assert_eq!(of_kind(&lines(&file), "job").len(), 1);
    }
    let left = std::fs::read_dir(&directory).unwrap().count() + folder.names().len();
    assert_eq!(left, 2 + 4, "no partial file is left");
}

/// A backup never replaces a file of the store that it is taken of, whatever name of that is given.
#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_the_store_are_not_replaced() {
    let (place, folder) = (Place::sqlite().await, Folder::new());
    let path = place.url.strip_prefix("sqlite:").unwrap();
    let mut server = Server::start(&place.url).await;
    let id = server.push("plain", json!({"payload": 1})).await;
    let export = |to: &Path| tailback(&["export", "--store", &place.url, "--out", to.to_str().unwrap()]);
    let link = folder.file("link");
    std::os::unix::fs::symlink(path, &link).unwrap();
    let own = ["", "-wal", "-shm", "-lock"].map(|end| PathBuf::from(format!("{path}{end}")));
    for to in own.iter().chain([&link]) {
        let told = refused(export(to)).await;
        assert!(told.contains("--out") && told.contains("a file of the store"), "{}: {told}", to.display());
    }
    assert_eq!(folder.names(), ["link"], "no partial file is left");
    assert!(server.terminate().await.success());
    // The log is not there now, and what is there under its name would be taken for it.
    let told = refused(export(&own[1])).await;
    assert!(told.contains("a file of the store"), "{told}");
    let server = Server::start(&place.url).await;
    assert_eq!(server.get(&format!("/v1/jobs/{id}")).await.0, 200);
    let (done, told) = run(export(&folder.file("all.jsonl"))).await;
    assert!(done, "{told}");
}

/// A signal that comes before the store is reached leaves no partial file.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_before_the_store_is_reached_leaves_no_file() {
    let folder = Folder::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap(); // it takes connections, and never replies
    let url = format!("mongodb://{}/tailback?replicaSet=rs0", silent.local_addr().unwrap());
    let file = folder.file("all.jsonl");
    let mut export = tailback(&["export", "--store", &url, "--out", file.to_str().unwrap()]);
    let export = export.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until("it has begun", || async { !folder.names().is_empty() }).await;
    signal::send(export.id(), Signal::SIGINT);
    let ended = tokio::task::spawn_blocking(move || export.wait_with_output().unwrap());
    let ended = tokio::time::timeout(PATIENCE, ended).await.expect("it does not end").unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && told.contains("SIGINT"), "{told}");
    assert!(folder.names().is_empty(), "{:?}", folder.names());
}

/// A signal ends an export whose output nobody takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_an_export_to_standard_output_at_once() {
    let place = Place::sqlite().await;
    let mut server = Server::start(&place.url).await;
    let jobs: Vec<Value> = (0..1000).map(|_| json!({"payload": "x".repeat(2000)})).collect();
    for _ in 0..3 {
        assert_eq!(server.post("/v1/queues/plain/jobs/batch", json!({"jobs": jobs})).await.0, 200);
    }
    assert!(server.terminate().await.success());
    let mut export = tailback(&["export", "--store", &place.url]);
    let mut export = export.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = export.stdout.take().unwrap();
    // It has begun; or its first read is too old already, and there is nothing.
    let _ = out.read(&mut [0; 1]).unwrap();
    signal::send(export.id(), Signal::SIGTERM);
    let ended = tokio::task::spawn_blocking(move || export.wait().unwrap());
    let ended = tokio::time::timeout(PATIENCE, ended).await.expect("it is stuck in its output").unwrap();
    assert!(!ended.success());
    drop(out);
}

/// A server that writes all the time on a file does not keep it from being read, nor the other way round.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_is_still_refused_while_a_file_is_read() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    server.push("plain", json!({"payload": 1})).await;
    // An export whose output nobody takes stays in the middle.
    let jobs: Vec<Value> = (0..1000).map(|_| json!({"payload": "x".repeat(2000)})).collect();
    for _ in 0..5 {
        assert_eq!(server.post("/v1/queues/plain/jobs/batch", json!({"jobs": jobs})).await.0, 200);
    }
    let mut export = tailback(&["export", "--store", &place.url]);
    let mut export = export.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = export.stdout.take().unwrap();
    let mut first = [0; 1];
    out.read_exact(&mut first).unwrap();
    let mut second = command(&place.url, &[]);
    second.stdin(Stdio::null());
    let told = refused(second).await;
    assert!(told.contains("in use"), "{told}");
    for _ in 0..20 {
        server.push("later", json!({"payload": 1})).await;
    }
    let file = Folder::new();
    let path = file.file("piped");
    let mut whole = first.to_vec();
    out.read_to_end(&mut whole).unwrap();
    std::fs::write(&path, whole).unwrap();
    assert!(export.wait().unwrap().success());
    let lines = lines(&path);
    assert_eq!(of_kind(&lines, "job").len(), 5001, "none of those that came later");
    let target = Place::sqlite().await;
    restore(&target, &path).await;
    assert_eq!(server.get("/v1/queues/later/stats").await.1["counts"]["ready"], 20);
}

/// An export that takes longer than MongoDB keeps the past says so, and what to do.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_takes_too_long_says_what_to_do() {
    let mongod = OwnMongod::with_parameters(&["minSnapshotHistoryWindowInSeconds=0"]).await;
    let server = Server::start(&mongod.url()).await;
    let jobs: Vec<Value> = (0..1000).map(|_| json!({"payload": "x".repeat(2000)})).collect();
    for _ in 0..5 {
        assert_eq!(server.post("/v1/queues/plain/jobs/batch", json!({"jobs": jobs})).await.0, 200);
    }
    let mut export = tailback(&["export", "--store", &mongod.url()]);
    let mut export = export.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = export.stdout.take().unwrap();
    // It has begun; or its first read is too old already, and there is nothing.
    let _ = out.read(&mut [0; 1]).unwrap();
    let client = Client::with_uri_str(mongod.url()).await.unwrap();
    let database = client.default_database().unwrap();
    let begun = moment(&database).await;
    until("the moment has passed out of the history", || async {
        server.push("later", json!({"payload": 1})).await;
        is_past(&database, begun).await
    })
    .await;
    std::io::copy(&mut out, &mut std::io::sink()).unwrap();
    let Output { status, stderr, .. } = export.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&stderr);
    assert!(!status.success() && told.contains("minSnapshotHistoryWindowInSeconds: 3600"), "{told}");
}
