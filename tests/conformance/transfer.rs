//! Copying: what one store gives and another takes.

use std::collections::HashSet;

use tailback::job::record::KeyUntil;
use tailback::job::record::{Origin, TrailReason};
use tailback::job::state::State;
use tailback::job::transition::Edit;
use tailback::job::{Claim, Failure, Job, JobId, Timestamp, TrailStep, Visible};
use tailback::store::transfer::same;
use tailback::store::{HeldKey, Imported, Pushed, Store};

use super::support::*;

const HOUR_MS: u64 = 3_600_000;

/// A job of another store, in this state.
pub fn stranger(store: &dyn Store, state: State) -> Job {
    let mut job = job("q").payload(r#"{"a":[1.0,"ü"]}"#).header("trace", "x").build(store).into_job();
    let now = store.now().unwrap();
    job.meta.state = state;
    match state {
        State::Ready => {}
        State::Blocked => {
            let semaphore: tailback::job::SemaphoreName = "s".parse().unwrap();
            job.meta.semaphores = vec![semaphore.clone()];
            (job.meta.waits_for, job.meta.waiting_since) = (Some(semaphore), Some(now));
        }
        State::Reserved => {
            job.meta.claim = Some(Claim::random());
            job.meta.reserved_until = Some(now.plus_ms(HOUR_MS));
            job.meta.lease_ms = Some(HOUR_MS);
            job.meta.attempts = 2;
            job.meta.progress = Some(payload("[1e5]"));
            job.meta.worker = Some("w-1".parse().unwrap());
        }
        State::Done | State::Dead => {
            job.meta.finished_at = Some(now);
            job.meta.purge_at = Some(now.plus_ms(HOUR_MS));
            job.meta.claim = Some(Claim::random());
            job.result = (state == State::Done).then(|| payload("null"));
        }
    }
    job
}

/// A job with everything that a job can have.
fn rich(store: &dyn Store) -> Job {
    let now = store.now().unwrap();
    let mut job = stranger(store, State::Ready);
    let attempts = 3;
    job.meta.attempts = attempts;
    job.meta.max_attempts = Some(7);
    job.meta.backoff = Some(tailback::job::Backoff { jitter: 0.1, ..Default::default() });
    job.meta.key = Some("k".parse().unwrap());
    job.meta.started_at = Some(now);
    job.meta.expires_at = Some(now.plus_ms(HOUR_MS));
    job.meta.priority = -4;
    job.meta.cancel_requested = true;
    let message = "it broke".to_owned();
    job.meta.errors = vec![Failure { at: now, attempt: 1, worker: None, message: message.clone() }];
    job.meta.trail = vec![TrailStep { at: now, queue: queue("old"), reason: TrailReason::Dead, attempts }];
    job.meta.origin = Some(Origin { queue: queue("old"), at: now, attempts, error: Some(message) });
    job.meta.replay_of = Some(id("before"));
    job.payload = content(r#"{"$oid":1.50}"#);
    job
}

async fn import(store: &dyn Store, jobs: &[Job]) -> Vec<Imported> {
    let imported = store.import(jobs.to_vec()).await;
    imported.into_iter().map(Result::unwrap).collect()
}

async fn export_by(store: &dyn Store, limit: usize) -> Vec<Job> {
    let (mut all, mut after): (Vec<Job>, Option<JobId>) = Default::default();
    loop {
        let page = store.export(after.as_ref(), limit).await.unwrap();
        assert!(page.len() <= limit);
        let Some(last) = page.last() else { return all };
        after = Some(last.meta.id.clone());
        all.extend(page);
    }
}

pub async fn every_job_comes_over_as_it_is(store: &dyn Store) {
    let mut jobs: Vec<Job> = State::ALL.into_iter().map(|state| stranger(store, state)).collect();
    jobs.push(rich(store));
    jobs.push(Job { payload: binary(&[0, 0xff, 7], "image/png"), ..stranger(store, State::Dead) });
    assert_eq!(import(store, &jobs).await, [Imported::New; 7]);
    for job in &jobs {
        let there = see(store, &job.meta.id).await;
        assert!(same(&there, job), "{there:?} is not {job:?}");
    }
    let exported = export_by(store, 100).await;
    assert!(exported.iter().zip(&jobs).all(|(one, other)| same(one, other)));
}

pub async fn what_is_there_stays_as_it_is(store: &dyn Store) {
    let jobs = [stranger(store, State::Ready), stranger(store, State::Done), stranger(store, State::Dead)];
    assert_eq!(import(store, &jobs[..2]).await, [Imported::New; 2]);
    let mut changed = jobs.clone();
    changed[1].result = Some(payload("7"));
    assert_eq!(import(store, &changed).await, [Imported::Same, Imported::Different, Imported::New]);
    assert!(same(&see(store, &jobs[1].meta.id).await, &jobs[1]));
    assert!(import(store, &[]).await.is_empty());
}

pub async fn jobs_of_all_queues_are_exported_by_id(store: &dyn Store) {
    let drafts =
        (0..20).map(|n| job(["a", "b.c", "b"][n % 3]).priority(n as i32).delay((n as i64 - 5) * 1000));
    let pushed = push_all(store, drafts.collect()).await;
    take(store, "b").await;
    let all = export_by(store, 3).await;
    assert_eq!(ids(&all), pushed);
    for job in &all {
        assert_eq!(*job, see(store, &job.meta.id).await);
    }
}

pub async fn long_jobs_make_short_pages(store: &dyn Store) {
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    for _ in 0..4 {
        push_all(store, (0..5).map(|_| job("q").payload(&long)).collect()).await;
    }
    let first = store.export(None, 1000).await.unwrap();
    assert!((1..20).contains(&first.len()), "{} jobs of a megabyte in one page", first.len());
    assert_eq!(export_by(store, 1000).await.len(), 20);
}

pub async fn an_imported_reservation_is_held(store: &dyn Store) {
    let (one, mut two) = (stranger(store, State::Reserved), stranger(store, State::Reserved));
    two.meta.reserved_until = Some(store.now().unwrap());
    import(store, &[one.clone(), two.clone()]).await;
    let held = store.held(&[queue("q")], &held_by(&one)).await.unwrap();
    assert_eq!(ids(&held), std::slice::from_ref(&one.meta.id));
    assert!(claim(store, ask("q", 5)).await.is_empty());
    apply(store, commit(&one)).await.unwrap();
    reap(store, &Default::default()).await.remove(0).unwrap();
    assert_eq!(take(store, "q").await.meta.attempts, two.meta.attempts + 1);
}

pub async fn imported_jobs_are_counted_and_delivered(store: &dyn Store) {
    let mut jobs: Vec<Job> = State::ALL.into_iter().map(|state| stranger(store, state)).collect();
    jobs.extend([stranger(store, State::Ready), stranger(store, State::Ready)]);
    jobs[5].meta.priority = 9;
    jobs[6].meta.run_at = store.now().unwrap().plus_ms(HOUR_MS);
    import(store, &jobs).await;
    let counts = counts_of(store, "q").await;
    let all = [counts.ready, counts.scheduled, counts.reserved, counts.blocked, counts.dead, counts.done];
    assert_eq!(all, [2, 1, 1, 1, 1, 1]);
    assert_eq!(store.upcoming(9).await.unwrap(), [(queue("q"), jobs[6].meta.run_at)]);
    let delivered = claim(store, ask("q", 9)).await;
    assert_eq!(ids(&delivered), [jobs[5].meta.id.clone(), jobs[0].meta.id.clone()]);
}

pub async fn imported_jobs_go_on(store: &dyn Store) {
    let (done, dead, mut letter) = (stranger(store, State::Done), stranger(store, State::Dead), rich(store));
    letter.meta.cancel_requested = false;
    import(store, &[done.clone(), dead.clone(), letter.clone()]).await;
    assert!(apply(store, commit(&done)).await.unwrap().repeated, "history tells the repeat of a commit");
    apply(store, redrive(&dead.meta.id, "q")).await.unwrap();
    apply(store, redrive(&letter.meta.id, "q")).await.unwrap();
    assert_eq!(see(store, &letter.meta.id).await.meta.queue, queue("old"));
    let edit = edit_of(Edit { priority: Some(1), ..Edit::default() });
    apply(store, change(&dead.meta.id, edit)).await.unwrap();
    assert_eq!(take(store, "q").await.meta.id, dead.meta.id);
}

async fn keys_by(store: &dyn Store, limit: usize) -> Vec<HeldKey> {
    let mut all: Vec<HeldKey> = Vec::new();
    loop {
        let page = store.export_keys(all.last(), limit).await.unwrap();
        if page.is_empty() {
            return all;
        }
        assert!(page.len() <= limit);
        all.extend(page);
    }
}

pub async fn every_key_is_exported_once(store: &dyn Store) {
    let names = ["k", "a/b", "ü", "K", "$"];
    let drafts = ["a", "a.b", "a:b", "a-b"]
        .into_iter()
        .flat_map(|queue| names.map(|name| job(queue).key(name, HOUR_MS)));
    let pushed: Vec<JobId> = push_all(store, drafts.collect()).await;
    let keys = keys_by(store, 3).await;
    assert_eq!(keys.len(), 20);
    assert_eq!(
        keys.iter().map(|key| &key.job).collect::<HashSet<_>>(),
        pushed.iter().collect::<HashSet<_>>()
    );
    let mut asked = keys.clone();
    asked[1].key = "other".parse().unwrap();
    let like = store.keys_like(&asked).await.unwrap();
    let expected = keys.iter().enumerate().map(|(n, key)| (n != 1).then(|| key.clone()));
    assert_eq!(like, expected.collect::<Vec<_>>());
    for key in keys {
        let holder = see(store, &key.job).await;
        assert_eq!((&holder.meta.queue, holder.meta.key.as_ref()), (&key.queue, Some(&key.key)));
        assert_eq!((key.digest, key.run_at), (holder.payload.digest(), holder.meta.run_at));
        assert_eq!(key.until, holder.meta.created_at.plus_ms(HOUR_MS));
    }
}

pub async fn an_imported_key_is_taken(store: &dyn Store) {
    let now = store.now().unwrap();
    let key = |name: &str, job: &str, until: Timestamp| HeldKey {
        queue: queue("q"),
        key: name.parse().unwrap(),
        job: id(job),
        digest: payload("7").digest(),
        until,
        run_at: now,
        lasts: if name == "ttl" { KeyUntil::Ttl } else { KeyUntil::Finished },
    };
    let unfinished = stranger(store, State::Reserved);
    let (long, held) = (now.plus_ms(HOUR_MS), unfinished.meta.id.as_str());
    let keys = vec![
        key("gone", "gone", long),
        key("held", held, now),
        key("over", "over", now),
        key("ttl", held, now),
    ];
    import(store, std::slice::from_ref(&unfinished)).await;
    let imported = store.import_keys(keys.clone()).await;
    assert!(imported.into_iter().all(|imported| imported.unwrap() == Imported::New));
    until_past(store, now).await;
    store.prune(100).await.unwrap();
    let pushed = ["gone", "held", "over", "ttl"].map(|name| job("q").payload("7").key(name, HOUR_MS));
    let pushed = push(store, pushed.to_vec()).await;
    let gone = Pushed::Duplicate { id: id("gone"), state: Visible::Done, run_at: now };
    assert_eq!(pushed[0], gone);
    assert!(
        matches!(&pushed[1], Pushed::Duplicate { id, state: Visible::Reserved, .. } if id.as_str() == held)
    );
    assert_eq!(pushed[2..], [Pushed::Created, Pushed::Created], "its time was over, whatever its job does");
    let again = store.import_keys(keys).await;
    let again: Vec<Imported> = again.into_iter().map(Result::unwrap).collect();
    assert_eq!(again, [Imported::Same, Imported::Same, Imported::Different, Imported::Different]);
}

pub async fn what_ran_out_long_ago_is_overdue_as_soon_as_it_comes(store: &dyn Store) {
    let now = store.now().unwrap();
    let long_ago = Timestamp::from_millis(now.millis() - 3_600_000);
    let overdue = async || {
        let changes = store.overdue(10).await.unwrap().changes;
        changes.into_iter().map(|change| change.id).collect::<Vec<_>>()
    };
    assert_eq!(overdue().await, []);
    let mut moved = stranger(store, State::Reserved);
    moved.meta.expires_at = Some(long_ago);
    let mut lapsed = stranger(store, State::Reserved);
    lapsed.meta.reserved_until = Some(long_ago.plus_ms(1));
    assert_eq!(import(store, std::slice::from_ref(&moved)).await, [Imported::New]);
    assert_eq!(overdue().await, [], "its worker may still settle it");
    apply(store, move_to(&moved, "next")).await.unwrap();
    assert_eq!(overdue().await, [moved.meta.id.clone()]);
    assert_eq!(import(store, std::slice::from_ref(&lapsed)).await, [Imported::New]);
    assert_eq!(overdue().await, [moved.meta.id, lapsed.meta.id]);
}
