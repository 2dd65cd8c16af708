//! What is no backup is refused, and wrong usage named.

use std::path::Path;

use serde_json::json;

use super::support::{Folder, Home, export, import, lines, put, refused, restore, run, tailback};
use crate::common::server::{Place, Server};

/// A file with these lines between a head and an end that counts them, or with lines that are no backup at all.
fn forged(lines: &[&[u8]]) -> Vec<u8> {
    lines.iter().flat_map(|line| [line, &b"\n"[..]].concat()).collect()
}

/// Files made of a backup's lines, and what each is refused with.
fn hostile(whole: &[&str]) -> Vec<(Vec<Vec<u8>>, &'static [&'static str])> {
    let (head, secret, semaphore, job, last, act, end) =
        (whole[0], whole[1], whole[2], whole[3], whole[4], whole[5], whole[6]);
    let deep = format!(r#"{{"kind":"job","payload":{}1{}}}"#, "[".repeat(300_000), "]".repeat(300_000));
    let changed = |line: &str, from: &str, to: &str| {
        assert!(line.contains(from), "{from} in {line}");
        line.replacen(from, to, 1).into_bytes()
    };
    let h = head.as_bytes();
    vec![
        (vec![], &["empty"]),
        (vec![b"hello".to_vec()], &["line 1", "head"]),
        (vec![b"null".to_vec()], &["line 1"]),
        (vec![changed(head, "\"version\":1", "\"version\":2")], &["version 2", "newer"]),
        (vec![changed(head, "tailback-backup", "dump")], &["line 1", "dump"]),
        (vec![h.into()], &["breaks off"]),
        (vec![h.into(), b"\xff\xfe".to_vec()], &["line 2", "UTF-8"]),
        (vec![h.into(), br#"{"kind":"__proto__"}"#.to_vec()], &["line 2", "__proto__"]),
        (vec![h.into(), br#"{"kind":"job"}"#.to_vec()], &["line 2", "missing field"]),
        (vec![h.into(), br#"{"kind":["job"]}"#.to_vec()], &["line 2", "kind"]),
        (vec![h.into(), deep.into_bytes()], &["line 2"]),
        (vec![h.into(), changed(secret, ":\"", ":1,\"")], &["line 2"]),
        (vec![h.into(), br#"{"kind":"token_secret","secret":"AA=="}"#.to_vec()], &["line 2", "32 bytes"]),
        (vec![h.into(), changed(semaphore, "1}", "-1}")], &["line 2", "capacity"]),
        (vec![h.into(), changed(semaphore, "1}", "18446744073709551615}")], &["line 2", "capacity"]),
        (vec![h.into(), changed(semaphore, "1}", "1,\"__proto__\":{}}")], &["line 2", "__proto__"]),
        (vec![h.into(), changed(semaphore, "1}", "1,\"capacity\":2}")], &["line 2", "duplicate field"]),
        (vec![h.into(), changed(job, "\"state\":\"ready\"", "\"state\":\"odd\"")], &["line 2", "state"]),
        (vec![h.into(), changed(job, "\"state\":\"ready\"", "\"state\":\"reserved\"")], &["line 2", "claim"]),
        (vec![h.into(), changed(job, "\"attempts\":0", "\"attempts\":-1")], &["line 2", "attempts"]),
        (vec![h.into(), changed(job, "\"queue\":\"plain\"", "\"queue\":\"a/b\"")], &["line 2", "queue"]),
        (vec![h.into(), changed(act, "\"at\":\"", "\"at\":\"x")], &["line 2", "at"]),
        (vec![h.into(), changed(act, "\"by\":", "\"bye\":")], &["line 2", "by"]),
        (vec![h.into(), br#"{"kind":"operation","id":"x"}"#.to_vec()], &["line 2", "missing field"]),
        (vec![h.into(), job.into(), job.into()], &["line 3", "twice"]),
        (vec![h.into(), last.into(), job.into()], &["line 3", "not in its place"]),
        (vec![h.into(), job.into(), semaphore.into()], &["line 3", "not in its place"]),
        (vec![h.into(), secret.into(), semaphore.into(), job.into(), end.into()], &["counts"]),
        (
            vec![
                h.into(),
                secret.into(),
                semaphore.into(),
                job.into(),
                changed(last, "\"payload\":1", "\"payload\":2"),
                act.into(),
                end.into(),
            ],
            &["SHA-256"],
        ),
        (
            [whole, &[job]].concat().iter().map(|line| line.as_bytes().to_vec()).collect(),
            &["line 8", "behind the end"],
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_files_are_refused_by_their_line() {
    let place = Place::sqlite().await;
    let folder = Folder::new();
    let (file, bad) = (folder.file("all.jsonl"), folder.file("bad.jsonl"));
    let mut server = Server::start(&place.url).await;
    put(&server, "/v1/semaphores/database", json!({"capacity": 1})).await;
    for n in 0..2 {
        server.push("plain", json!({"payload": n})).await;
    }
    assert!(server.terminate().await.success());
    export(&place, &file).await;
    let text = std::fs::read_to_string(&file).unwrap();
    let whole: Vec<&str> = text.lines().collect();
    for (lines, expected) in hostile(&whole) {
        let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
        std::fs::write(&bad, forged(&lines)).unwrap();
        let told = refused(tailback(&["import", "--dry-run", "--in", bad.to_str().unwrap()])).await;
        let is_told = expected.iter().all(|part| told.contains(part)) && told.len() < 2000;
        assert!(is_told && !told.contains("panicked"), "{expected:?} in {told:.2000}");
    }
    // A file that is cut anywhere is refused, and nothing is written.
    let target = Place::sqlite().await;
    let (head, end) = (whole[0], whole[whole.len() - 1]);
    for cut in [1, head.len(), text.len() / 2, text.len() - end.len() - 1, text.len() - 1] {
        std::fs::write(&bad, &text[..cut]).unwrap();
        refused(import(&target.url, &bad)).await;
        assert!(!Path::new(target.url.strip_prefix("sqlite:").unwrap()).exists(), "{cut}");
    }
    restore(&target, &file).await;
}

/// What others have chosen, and a terminal would obey, is escaped in what the commands print.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_a_terminal_would_obey_are_escaped() {
    let (place, folder) = (Place::sqlite().await, Folder::new());
    let (file, bad) = (folder.file("all.jsonl"), folder.file("bad.jsonl"));
    let mut server = Server::start(&place.url).await;
    for key in ["\u{1b}]0;owned\u{7}", "plain"] {
        server.push("mail", json!({"payload": 1, "key": key})).await;
    }
    assert!(server.terminate().await.success());
    export(&place, &file).await;
    let mut all = lines(&file);
    let is_key = |n: &usize| all[*n].starts_with("{\"kind\":\"key\",");
    let keys: Vec<usize> = (0..all.len()).filter(is_key).collect();
    all.swap(keys[0], keys[1]);
    std::fs::write(&bad, all.join("\n") + "\n").unwrap();
    let told = refused(tailback(&["import", "--dry-run", "--in", bad.to_str().unwrap()])).await;
    let expected = "the key mail/\\u{1b}]0;owned\\u{7} is there twice, or not in its place";
    assert!(told.contains(expected) && !told.contains(['\u{1b}', '\u{7}']), "{told:?}");

    let name = "for\u{202e}eyes";
    let create = ["keys", "create", "--store", &place.url, "--name", name, "--scope", "read"];
    let (done, told) = run(tailback(&create)).await;
    assert!(done, "{told}");
    let (done, told) = run(tailback(&["keys", "list", "--store", &place.url])).await;
    assert!(done && told.contains("for\\u{202e}eyes") && !told.contains('\u{202e}'), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_is_told() {
    let place = Place::sqlite().await;
    let told = refused(tailback(&["export", "--store", &place.url])).await;
    assert!(told.contains("no file"), "{told}");
    for (arguments, expected) in [
        (["export", "--store", "sqlite::memory:"], "in memory"),
        (["import", "--store", "sqlite::memory:"], "in memory"),
    ] {
        let told = refused(tailback(&arguments)).await;
        assert!(told.contains(expected), "{told}");
    }
    // Another program's file, and one of nothing.
    let path = place.url.strip_prefix("sqlite:").unwrap();
    std::fs::write(
        path,
        "no database, but long enough to be read as the head of one, which it is not at all",
    )
    .unwrap();
    let told = refused(tailback(&["export", "--store", &place.url])).await;
    assert!(told.contains("not a database"), "{told}");
    std::fs::remove_file(path).unwrap();
    rusqlite::Connection::open(path).unwrap().execute_batch("CREATE TABLE notes (text)").unwrap();
    let told = refused(tailback(&["export", "--store", &place.url])).await;
    assert!(told.contains("another program"), "{told}");
    let empty = Home::mongo().await;
    let told = refused(tailback(&["export", "--store", &empty.place.url])).await;
    assert!(told.contains("no Tailback store"), "{told}");
    empty.clear().await;
    let folder = Folder::new();
    let nowhere = folder.file("none/all.jsonl");
    let told =
        refused(tailback(&["export", "--store", &place.url, "--out", nowhere.to_str().unwrap()])).await;
    assert!(told.contains("cannot create"), "{told}");
}
