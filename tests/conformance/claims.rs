//! What a claim wins.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use tailback::job::{Job, JobId, QueueName, Rules, State};
use tailback::store::{ClaimAsk, Store};

use super::support::*;

pub async fn a_claim_takes_no_more_than_it_asks_for(store: &dyn Store) {
    push_all(store, vec![job("q"); 5]).await;
    assert!(claim(store, ask("q", 0)).await.is_empty());
    assert_eq!(claim(store, ask("q", 2)).await.len(), 2);
    assert_eq!(claim(store, ask("q", 100)).await.len(), 3);
    assert!(claim(store, ask("q", 1)).await.is_empty());
}

pub async fn a_queue_that_never_was_is_empty(store: &dyn Store) {
    assert!(claim(store, ask("nobody", 3)).await.is_empty());
}

pub async fn a_claim_writes_the_reservation(store: &dyn Store) {
    let id = push_one(store, job("q")).await;
    let asked = ClaimAsk { worker: Some("w-1".parse().unwrap()), ..ask_for("q", 1, 4321) };
    let meta = claim(store, asked.clone()).await.remove(0).meta;
    assert_eq!((meta.id, meta.state, meta.attempts), (id, State::Reserved, 1));
    assert_eq!(meta.claim, Some(asked.claim));
    assert_eq!(meta.worker, asked.worker);
    assert_eq!(meta.lease_ms, Some(4321));
    let (started_at, reserved_until) = (meta.started_at.unwrap(), meta.reserved_until.unwrap());
    // The start and the deadline may come from two readings of one clock.
    assert!(reserved_until.ms_since(started_at).abs_diff(4321) < 1000);
    assert!(store.now().unwrap().ms_since(started_at) < 120_000);
}

pub async fn the_answer_is_what_is_stored(store: &dyn Store) {
    let replayed = id("replayed");
    let draft = job("q").priority(3).header("a", "b").replay_of(&replayed).max_attempts(7);
    let answered = push_and_take(store, draft.key("k", 60_000).expires(60_000)).await;
    assert_eq!(answered.meta.replay_of, Some(replayed));
    assert_eq!(answered.meta.key, Some("k".parse().unwrap()));
    assert_eq!(see(store, &answered.meta.id).await, answered);
}

pub async fn each_delivery_counts_as_an_attempt(store: &dyn Store) {
    let first = push_and_take(store, job("q")).await;
    apply(store, rollback(&first, Some(0))).await.unwrap();
    let second = take(store, "q").await;
    assert_eq!((first.meta.attempts, second.meta.attempts), (1, 2));
}

pub async fn every_ask_has_its_answer_at_its_place(store: &dyn Store) {
    let pushed = push_all(store, vec![job("a"), job("c"), job("c")]).await;
    let answers = store.claim(&[ask("c", 5), ask("b", 5), ask("a", 5)], &Rules::default()).await.won;
    let answers: Vec<Vec<JobId>> = answers.into_iter().map(|jobs| ids(&jobs.unwrap())).collect();
    assert_eq!(answers, [pushed[1..].to_vec(), vec![], pushed[..1].to_vec()]);
}

pub async fn two_asks_for_one_queue_share_it(store: &dyn Store) {
    let pushed = push_all(store, vec![job("q"); 5]).await;
    let asks = [ask("q", 2), ask("q", 2), ask("q", 2)];
    let mut won = Vec::new();
    for (answer, asked) in store.claim(&asks, &Rules::default()).await.won.into_iter().zip(&asks) {
        let jobs = answer.unwrap();
        assert!(jobs.iter().all(|job| held_by(job) == asked.claim));
        won.extend(ids(&jobs));
    }
    won.sort();
    assert_eq!(won, pushed);
}

pub async fn sixteen_claimers_never_win_the_same_job(store: &dyn Store) {
    let pushed = push_all(store, vec![job("q"); 500]).await;
    let total = AtomicUsize::new(0);
    let claimers = (0..16).map(|n| {
        let total = &total;
        async move {
            let mut won = Vec::new();
            until("every job was won", async || {
                let some = ids(&claim(store, ask("q", 1 + n % 9)).await);
                total.fetch_add(some.len(), Ordering::Relaxed);
                won.extend(some);
                (total.load(Ordering::Relaxed) >= 500).then_some(())
            })
            .await;
            won
        }
    });
    let won: Vec<JobId> = join_all(claimers).await.into_iter().flatten().collect();
    let distinct: HashSet<&JobId> = won.iter().collect();
    assert_eq!((won.len(), distinct.len()), (pushed.len(), pushed.len()));
    assert!(claim(store, ask("q", 1)).await.is_empty());
}

pub async fn pushes_and_claims_at_once_lose_nothing(store: &dyn Store) {
    let pushers = join_all((0..8).map(|_| async move {
        let mut pushed = Vec::new();
        for _ in 0..10 {
            pushed.extend(push_all(store, vec![job("q"); 3]).await);
        }
        pushed
    }));
    let claimer = async {
        let mut won = Vec::new();
        until("all jobs were delivered", async || {
            won.extend(ids(&claim(store, ask("q", 16)).await));
            (won.len() >= 240).then_some(())
        })
        .await;
        won
    };
    let (pushed, mut won) = futures::future::join(pushers, claimer).await;
    let mut pushed = pushed.concat();
    pushed.sort();
    won.sort();
    assert_eq!(won, pushed);
}

pub async fn held_answers_what_a_claim_holds(store: &dyn Store) {
    push_all(store, vec![job("a"), job("a"), job("b"), job("a")]).await;
    let asked = ask("a", 2);
    let won = claim(store, asked.clone()).await;
    take(store, "a").await;
    let both = [queue("b"), queue("a")];
    // In whatever order: the contract promises none.
    let held = async |queues: &[QueueName]| {
        let mut held = ids(&store.held(queues, &asked.claim).await.unwrap());
        held.sort();
        held
    };
    assert_eq!(held(&both).await, ids(&won));
    assert!(held(&both[..1]).await.is_empty());
    apply(store, commit(&won[0])).await.unwrap();
    assert_eq!(held(&both).await, ids(&won[1..]));
}

pub async fn history_is_not_held(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    let rules = rules_of("q", with_history);
    apply_under(store, commit(&taken), &rules).await.unwrap();
    assert!(store.held(&[queue("q")], &held_by(&taken)).await.unwrap().is_empty());
}

/// However much there is to carry, one call carries a part of it, and no claim ends as if there were no jobs while there are.
pub async fn many_claims_of_large_jobs_all_win(store: &dyn Store) {
    const JOBS: usize = 36;
    let large = format!("\"{}\"", "x".repeat(1 << 20));
    for _ in 0..JOBS / 6 {
        push_all(store, vec![job("q").payload(&large); 6]).await;
    }
    push_all(store, vec![job("behind"); 2]).await;
    let asks = || -> Vec<ClaimAsk> {
        (0..JOBS).map(|_| ask("q", 1)).chain((0..2).map(|_| ask("behind", 1))).collect()
    };
    let claims = store.claim(&asks(), &Rules::default()).await;
    let mut won: Vec<Job> = claims.won.into_iter().flat_map(|jobs| jobs.unwrap()).collect();
    let bytes: usize = won.iter().map(|job| job.payload.size()).sum();
    assert!((1..20 << 20).contains(&bytes) && claims.again.contains(&queue("q")), "{bytes} bytes in a call");
    won.extend(claim_all(store, asks()).await);
    let won: HashSet<JobId> = won.into_iter().map(|job| job.meta.id).collect();
    assert_eq!(won.len(), JOBS + 2);
}
