//! The line of a semaphore: who waits is called in order.

use std::collections::HashSet;

use super::semaphores::*;
use super::support::*;

use tailback::job::state::State;
use tailback::job::{Job, JobId};
use tailback::store::Store;

pub async fn a_long_line_is_worked_off(store: &dyn Store) {
    const JOBS: usize = 200;
    make(store, &[("s", 1)]).await;
    let pushed = push_all(store, vec![job("a").needs(&["s"]); JOBS]).await;
    let mut order = Vec::new();
    while order.len() < JOBS {
        let taken = claim(store, ask("a", 3)).await;
        assert_eq!(taken.len(), 1, "nobody was called after {}", order.len());
        apply(store, commit(&taken[0])).await.unwrap();
        order.push(taken[0].meta.id.clone());
        call(store, &["s"]).await;
    }
    assert_eq!(order, pushed, "in the order of delivery");
}

pub async fn who_asks_again_and_again_is_served_in_order(store: &dyn Store) {
    const JOBS: usize = 30;
    make(store, &[("s", 4)]).await;
    let pushed = push_all(store, vec![job("a").needs(&["s"]); JOBS]).await;
    let (mut left, mut working): (HashSet<JobId>, Vec<Job>) = (pushed.into_iter().collect(), Vec::new());
    while !left.is_empty() || !working.is_empty() {
        // All of them ask, whether or not there is room: some are refused by what was found a moment ago.
        for _ in 0..3 {
            let won = claim(store, ask("a", 9)).await;
            won.iter().for_each(|job| assert!(left.remove(&job.meta.id), "delivered twice"));
            working.extend(won);
        }
        let held = held(store, "s").await;
        assert!(held == working.len() as u64 && held <= 4, "{held}");
        assert!(held == 4 || left.is_empty(), "there is room, and jobs are there: {held}, {}", left.len());
        for job in working.split_off(working.len() / 2) {
            apply(store, commit(&job)).await.unwrap();
        }
        call(store, &["s"]).await;
    }
    assert_eq!(counts_of(store, "a").await, Default::default());
}

/// The consumers of a queue are busy with jobs before one that was called: they never come to it. One before it is called all the same.
pub async fn a_called_job_is_in_the_way_of_none_before_it(store: &dyn Store) {
    make(store, &[("s", 1)]).await;
    push_all(store, vec![job("r").needs(&["s"])]).await;
    let holder = claim(store, ask("r", 1)).await.remove(0);
    let behind = push_all(store, vec![job("q").needs(&["s"])]).await.remove(0);
    assert!(claim(store, ask("q", 1)).await.is_empty());
    apply(store, commit(&holder)).await.unwrap();
    call(store, &["s"]).await;
    assert_eq!(see(store, &behind).await.meta.state, State::Ready);
    push_all(store, vec![job("r").needs(&["s"])]).await;
    let holder = claim(store, ask("r", 1)).await.remove(0);
    let drafts = vec![job("q").needs(&["s"]).priority(5), job("q").priority(5)];
    let pushed = push_all(store, drafts).await;
    assert_eq!(claim_ids(store, "q", 1).await, pushed[1..]);
    apply(store, commit(&holder)).await.unwrap();
    call(store, &["s"]).await;
    assert_eq!(see(store, &pushed[0]).await.meta.state, State::Ready, "its semaphore is free");
}

/// One of two claims at once has won; so many jobs in the way that the other one has none is no proof that there is none.
pub async fn who_has_none_behind_many_that_wait_is_to_ask_again(store: &dyn Store) {
    let mut drafts = vec![job("q")];
    drafts.extend(vec![job("q").needs(&["none"]); 2100]);
    drafts.push(job("q"));
    for part in drafts.chunks(300) {
        push_all(store, part.to_vec()).await;
    }
    let claims = store.claim(&[ask("q", 1), ask("q", 1)], &usual()).await;
    for won in claims.won {
        let is_told = claims.again.contains(&queue("q"));
        assert!(!won.unwrap().is_empty() || is_told, "there is one more");
    }
}

pub async fn a_refusal_holds_for_those_who_need_the_same_only(store: &dyn Store) {
    make(store, &[("s", 1), ("t", 1)]).await;
    let holder = push_and_take(store, job("a").needs(&["s"])).await;
    push_all(store, vec![job("a").needs(&["s"]); 5]).await;
    for _ in 0..3 {
        assert!(claim(store, ask("a", 1)).await.is_empty());
    }
    for draft in [job("a"), job("a").needs(&["t"])] {
        let other = push_one(store, draft).await;
        assert_eq!(claim_ids(store, "a", 1).await, [other], "nothing keeps it");
        assert!(claim(store, ask("a", 1)).await.is_empty());
    }
    make(store, &[("s", 2)]).await;
    call(store, &["s"]).await;
    assert_eq!(claim(store, ask("a", 5)).await.len(), 1, "its capacity was raised");
    assert!(claim(store, ask("a", 5)).await.is_empty());
    apply(store, commit(&holder)).await.unwrap();
    call(store, &["s"]).await;
    assert_eq!(claim(store, ask("a", 5)).await.len(), 1, "it was released");
    assert_eq!(held(store, "s").await, 2);
}

pub async fn a_refusal_ends_where_another_job_is_unblocked(store: &dyn Store) {
    make(store, &[("s", 1), ("t", 1)]).await;
    push_and_take(store, job("x").needs(&["s"])).await;
    let holder = push_and_take(store, job("y").needs(&["t"])).await;
    let other = push_one(store, job("a").needs(&["t"]).priority(-1)).await;
    assert!(claim(store, ask("a", 1)).await.is_empty());
    // More than are blocked before it is found that all of them need the same.
    push_all(store, vec![job("a").needs(&["s"]); 40]).await;
    apply(store, commit(&holder)).await.unwrap();
    assert!(claim(store, ask("a", 1)).await.is_empty(), "it is blocked until it is called");
    assert_eq!(call(store, &["t"]).await, ["a"]);
    assert_eq!(claim_ids(store, "a", 1).await, [other], "what has refused the others does not concern it");
}

pub async fn a_head_that_is_read_in_parts_is_judged_in_each(store: &dyn Store) {
    make(store, &[("s", 1)]).await;
    let large = job("a").payload(&format!("\"{}\"", "x".repeat(1 << 20))).priority(1);
    for _ in 0..6 {
        push_all(store, vec![large.clone(); 3]).await;
    }
    push_all(store, vec![job("a").needs(&["s"]); 9]).await;
    let won = claim_all(store, vec![ask("a", 500), ask("a", 10)]).await;
    let holding = won.iter().filter(|job| !job.meta.semaphores.is_empty()).count();
    assert_eq!((won.len(), holding, held(store, "s").await), (19, 1, 1));
    let counts = counts_of(store, "a").await;
    assert_eq!((counts.reserved, counts.blocked, counts.ready), (19, 8, 0));
}

pub async fn a_queue_that_misses_its_call_keeps_nothing(store: &dyn Store) {
    make(store, &[("s", 1)]).await;
    let rules = impatient([]);
    let holder = push_and_take(store, job("x").needs(&["s"])).await;
    let idle = push_all(store, vec![job("a").needs(&["s"]); 2]).await;
    assert!(claim_under(store, ask("a", 2), &rules).await.is_empty());
    let behind = push_one(store, job("b").needs(&["s"])).await;
    assert!(claim_under(store, ask("b", 1), &rules).await.is_empty());
    apply(store, commit(&holder)).await.unwrap();
    assert_eq!(call_under(store, &["s"], &rules).await, ["a"]);
    // Nobody comes for the first: neither it nor the one behind it in its queue keeps the place from others.
    let won = until("the place is given to the other queue", async || {
        call_under(store, &["s"], &rules).await;
        claim_under(store, ask("b", 1), &rules).await.pop()
    })
    .await;
    assert_eq!(won.meta.id, behind);
    assert_eq!(state_of(store, &idle[1]).await, Some(State::Blocked));
    // Its queue is served again: the line is as it was.
    apply(store, commit(&won)).await.unwrap();
    assert_eq!(ids(&claim_under(store, ask("a", 2), &rules).await), idle[..1]);
}

pub async fn who_is_first_in_line_is_called_whatever_its_queue(store: &dyn Store) {
    make(store, &[("s", 1)]).await;
    let rules = impatient([]);
    let holder = push_and_take(store, job("x").needs(&["s"])).await;
    let first = push_one(store, job("z").needs(&["s"])).await;
    let others: Vec<String> = (0..70).map(|n| format!("a{n:02}")).collect();
    push_all(store, others.iter().map(|queue| job(queue).needs(&["s"])).collect()).await;
    for queue in others.iter().map(String::as_str).chain(["z"]) {
        assert!(claim_under(store, ask(queue, 1), &rules).await.is_empty());
    }
    apply(store, commit(&holder)).await.unwrap();
    assert_eq!(call_under(store, &["s"], &rules).await, ["z"], "room is kept for it from all others");
    assert_eq!(ids(&claim_under(store, ask("z", 1), &rules).await), [first]);
}

pub async fn semaphores_that_jobs_wait_for_are_listed_by_name(store: &dyn Store) {
    make(store, &[("b", 1), ("c", 1), ("a", 1), ("d", 1)]).await;
    assert_eq!(store.waited_for(None, 10).await.unwrap(), []);
    push_and_take(store, job("x").needs(&["a", "b", "c"])).await;
    push_all(store, ["c", "a", "b", "a", "d"].map(|text| job("q").needs(&[text])).to_vec()).await;
    assert_eq!(claim(store, ask("q", 5)).await.len(), 1);
    let names = ["a", "b", "c"].map(name);
    assert_eq!(store.waited_for(None, 10).await.unwrap(), names);
    assert_eq!(store.waited_for(None, 2).await.unwrap(), names[..2]);
    assert_eq!(store.waited_for(Some(&names[1]), 2).await.unwrap(), names[2..]);
}
