//! Looking at jobs, queues and figures.

use std::collections::{HashMap, HashSet};

use tailback::job::{JobId, QueueName, QueueSettings, Rules, Span, Visible};
use tailback::store::{Counts, Filter, Store, Summary};

use super::support::*;

async fn found(store: &dyn Store, filter: &Filter) -> Vec<JobId> {
    ids(&find(store, filter, None, 1000).await)
}

pub async fn get_answers_each_id_at_its_place(store: &dyn Store) {
    let pushed = push_all(store, vec![job("a"), job("b")]).await;
    let asked = [pushed[1].clone(), id("nobody"), pushed[0].clone(), pushed[1].clone()];
    let jobs = get(store, &asked).await;
    let got: Vec<_> = jobs.iter().map(|job| job.as_ref().map(|job| job.meta.id.clone())).collect();
    assert_eq!(got, [Some(pushed[1].clone()), None, Some(pushed[0].clone()), Some(pushed[1].clone())]);
}

pub async fn a_new_job_is_shown_as_it_was_pushed(store: &dyn Store) {
    let new = job("q").priority(-3).delay(5000).key("k", 1000).expires(9000).build(store);
    store.push(vec![new.clone()], &Rules::default()).await;
    let mut seen = see(store, &new.id).await;
    seen.meta.rev = 0;
    assert_eq!(seen, new.into_job());
}

pub async fn every_write_changes_the_revision(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    apply(store, extend(&taken, None)).await.unwrap();
    let extended = see(store, &taken.meta.id).await;
    apply(store, release(&taken)).await.unwrap();
    let released = see(store, &taken.meta.id).await;
    assert_ne!(taken.meta.rev, extended.meta.rev);
    assert_ne!(extended.meta.rev, released.meta.rev);
}

pub async fn browsing_goes_by_id_whatever_the_state(store: &dyn Store) {
    let rules = rules_of("q", with_history);
    let drafts = (0..25).map(|n| job("q").priority(n % 3).delay(i64::from(n % 2) * 600_000)).collect();
    let pushed = push_all(store, drafts).await;
    push_one(store, job("other")).await;
    for (n, taken) in claim(store, ask("q", 8)).await.iter().enumerate() {
        let settle = [commit(taken), rollback(taken, None), extend(taken, None)];
        apply_under(store, settle[n % 3].clone(), &rules).await.unwrap();
    }
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let page = find(store, &Filter::all(queue("q")), after.as_ref(), 4).await;
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 4);
        after = Some(last.meta.id.clone());
        pages.extend(ids(&page));
    }
    assert_eq!(pages, pushed);
}

pub async fn browsing_by_state(store: &dyn Store) {
    let rules = rules_of("q", with_history);
    let done = push_and_take(store, job("q")).await;
    apply_under(store, commit(&done), &rules).await.unwrap();
    let dead = push_and_take(store, job("q").max_attempts(1)).await;
    apply_under(store, rollback(&dead, None), &rules).await.unwrap();
    let reserved = push_and_take(store, job("q")).await;
    let ready = push_all(store, vec![job("q"); 3]).await;
    let scheduled = push_all(store, vec![job("q").delay(600_000); 2]).await;
    let expected = [
        (Visible::Done, vec![done.meta.id]),
        (Visible::Dead, vec![dead.meta.id]),
        (Visible::Reserved, vec![reserved.meta.id]),
        (Visible::Ready, ready.clone()),
        (Visible::Scheduled, scheduled),
        (Visible::Blocked, vec![]),
    ];
    for (state, jobs) in expected {
        assert_eq!(found(store, &Filter::state(queue("q"), state)).await, jobs, "{state:?}");
    }
    let page = Filter::state(queue("q"), Visible::Ready);
    assert_eq!(ids(&find(store, &page, Some(&ready[0]), 1).await), [ready[1].clone()]);
}

pub async fn browsing_by_key(store: &dyn Store) {
    let pushed = push_all(
        store,
        vec![job("q").key("k", 60_000), job("q").key("l", 60_000), job("r").key("k", 60_000)],
    )
    .await;
    let by_key = |name: &str| Filter { key: Some(name.parse().unwrap()), ..Filter::all(queue("q")) };
    assert_eq!(found(store, &by_key("k")).await, pushed[..1]);
    assert!(found(store, &by_key("m")).await.is_empty());
    let scheduled = Filter { states: vec![Visible::Scheduled], ..by_key("k") };
    assert!(found(store, &scheduled).await.is_empty());
}

pub async fn browsing_the_dead_lettered(store: &dyn Store) {
    let rules = rules_of("q", |s| s.dead_letter = Some(queue("graves")));
    push_one(store, job("graves")).await;
    let mut buried = Vec::new();
    for _ in 0..3 {
        let taken = push_and_take(store, job("q").max_attempts(1)).await;
        apply_under(store, rollback(&taken, None), &rules).await.unwrap();
        buried.push(taken.meta.id);
    }
    let filter = Filter { dead_lettered: true, ..Filter::all(queue("graves")) };
    assert_eq!(found(store, &filter).await, buried);
    assert_eq!(ids(&find(store, &filter, Some(&buried[0]), 1).await), buried[1..2]);
    apply_under(store, redrive(&buried[1], "graves"), &rules).await.unwrap();
    assert_eq!(found(store, &filter).await, [buried[0].clone(), buried[2].clone()]);
}

pub async fn browsing_by_time(store: &dyn Store) {
    let rules = rules_of("q", with_history);
    let mut moments = Vec::new();
    // All pushed before the first is finished: history goes by its end.
    let done = push_all(store, vec![job("q"); 3]).await;
    for id in &done {
        let taken = take(store, "q").await;
        assert_eq!(taken.meta.id, *id);
        apply_under(store, commit(&taken), &rules).await.unwrap();
        let finished_at = see(store, &taken.meta.id).await.meta.finished_at.unwrap();
        until_past(store, finished_at.plus_ms(1)).await;
        moments.push(finished_at);
    }
    let time = Span { from: Some(moments[1]), before: Some(moments[2]) };
    let between = Filter::state(queue("q"), Visible::Done).during(time);
    assert_eq!(found(store, &between).await, done[1..2]);
    let waiting = push_one(store, job("q")).await;
    let created_at = see(store, &waiting).await.meta.created_at;
    let from = Filter::all(queue("q")).during(Span { from: Some(created_at), before: None });
    assert_eq!(found(store, &from).await, [waiting]);
    let before = Filter::all(queue("q")).during(Span { from: None, before: Some(created_at) });
    assert_eq!(found(store, &before).await, done);
}

pub async fn queues_are_listed_by_name(store: &dyn Store) {
    let names = ["mail.out", "mail", "mail.in", "a", "Z", "mail-x", "mailer"];
    push_all(store, names.map(job).to_vec()).await;
    let list = async |prefix: &str, after: Option<&str>, limit: usize| -> Vec<String> {
        let after = after.map(queue);
        let queues: Vec<QueueName> = store.queues(prefix, after.as_ref(), limit).await.unwrap();
        queues.iter().map(|name| name.as_str().to_owned()).collect()
    };
    assert_eq!(list("", None, 100).await, ["Z", "a", "mail", "mail-x", "mail.in", "mail.out", "mailer"]);
    assert_eq!(list("mail.", None, 100).await, ["mail.in", "mail.out"]);
    assert_eq!(list("mail", Some("mail"), 2).await, ["mail-x", "mail.in"]);
    assert_eq!(list("mail", Some("mail.in"), 2).await, ["mail.out", "mailer"]);
    assert!(list("nobody", None, 100).await.is_empty());
    let taken = take(store, "a").await;
    apply(store, commit(&taken)).await.unwrap();
    assert_eq!(list("", None, 2).await, ["Z", "mail"]);
}

pub async fn a_queue_without_jobs_has_no_figures(store: &dyn Store) {
    let count = async || store.summary(10).await.unwrap().count;
    assert_eq!(count().await, 0);
    let with_jobs = async || store.with_jobs(&[queue("p"), queue("q"), queue("r")]).await.unwrap();
    let taken = push_and_take(store, job("q")).await;
    assert_eq!((count().await, with_jobs().await), (1, [queue("q")].into()));
    apply(store, commit(&taken)).await.unwrap();
    assert!(with_jobs().await.is_empty());
    assert_eq!(counts_of(store, "q").await, Counts::default());
}

pub async fn the_oldest_ready_job_is_known(store: &dyn Store) {
    let oldest = async || {
        let own = store.counts(&queue("q")).await.unwrap().oldest_ready;
        let all = store.summary(1).await.unwrap();
        assert_eq!((all.total.oldest_ready, all.queues[&queue("q")].oldest_ready), (own, own));
        own
    };
    push_one(store, job("q").priority(9).delay(600_000)).await;
    assert_eq!(oldest().await, None);
    push_one(store, job("q").priority(5)).await;
    let id = push_one(store, job("q").priority(-5).delay(-90_000)).await;
    assert_eq!(oldest().await, Some(see(store, &id).await.meta.run_at));
    apply(store, cancel(&id, false)).await.unwrap();
    assert!(oldest().await.is_some());
    take(store, "q").await;
    assert_eq!(oldest().await, None);
}

/// The figures of all queues, with the split of now: on a busy machine it may be of a moment ago.
async fn summary(store: &dyn Store, most: usize) -> Summary {
    until("the figures are of now", async || {
        let summary = store.summary(most).await.unwrap();
        let is_old = summary.total.split_is_approximate
            || summary.queues.values().any(|figures| figures.split_is_approximate);
        (!is_old).then_some(summary)
    })
    .await
}

/// A small generator of numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

pub async fn the_figures_equal_a_count_after_a_random_mix(store: &dyn Store) {
    let keeps_history = QueueSettings { retain_done_ms: Some(3_600_000), ..Default::default() };
    let buries_elsewhere = QueueSettings { dead_letter: Some(queue("a")), ..Default::default() };
    let rules = rules([("b", keeps_history), ("c", buries_elsewhere)]);
    let names = ["a", "b", "c"];
    let mut dice = Dice(42);
    for _ in 0..120 {
        let name = names[dice.roll(3) as usize];
        if dice.roll(3) == 0 {
            let drafts = (0..=dice.roll(4))
                .map(|n| job(name).delay(if n == 2 { 600_000 } else { 0 }).max_attempts(1 + n as u32 % 2));
            push_all(store, drafts.collect()).await;
            continue;
        }
        for taken in claim(store, ask(name, 2)).await {
            let next = names[dice.roll(3) as usize];
            let delay_ms = Some(dice.roll(2) * 600_000);
            let all = [
                commit(&taken),
                rollback(&taken, delay_ms),
                move_to(&taken, next),
                release(&taken),
                extend(&taken, None),
                cancel(&taken.meta.id, true),
            ];
            let settle = all[dice.roll(6) as usize].clone();
            apply_under(store, settle, &rules).await.unwrap();
        }
    }
    store.prune(1000).await.unwrap();
    let figures = summary(store, names.len()).await;
    let mut sum = 0;
    for name in names {
        let own = store.counts(&queue(name)).await.unwrap();
        assert_eq!(own, figures.queues[&queue(name)]);
        assert_eq!(own.counts, counted(store, name).await, "{name}");
        sum += own.counts.ready;
    }
    assert_eq!(figures.total.counts.ready, sum);
}

pub async fn the_figures_of_many_queues_are_added_up(store: &dyn Store) {
    for (name, ready, ahead) in [("a", 1, 3), ("b", 3, 0), ("c", 2, 1), ("d", 1, 0), ("e", 0, 1)] {
        let drafts = (0..ready + ahead).map(|n| job(name).delay(if n < ready { 0 } else { 600_000 }));
        push_all(store, drafts.collect()).await;
    }
    let taken = take(store, "d").await;
    apply(store, commit(&taken)).await.unwrap();
    let all = Counts { ready: 6, scheduled: 5, ..Counts::default() };
    for most in [0, 2, 4, 10] {
        let summary = summary(store, most).await;
        assert_eq!((summary.count, summary.total.counts), (4, all), "{most}");
        let busiest = ["a", "b", "c", "e"].into_iter().take(most);
        assert_eq!(summary.queues.keys().cloned().collect::<HashSet<_>>(), busiest.map(queue).collect());
        for (name, figures) in &summary.queues {
            assert_eq!(*figures, store.counts(name).await.unwrap(), "{name}");
        }
    }
    assert_eq!(store.counts(&queue("d")).await.unwrap(), Default::default());
}

async fn counted(store: &dyn Store, name: &str) -> Counts {
    let mut by_state: HashMap<Visible, u64> = HashMap::new();
    for job in find(store, &Filter::all(queue(name)), None, 10_000).await {
        *by_state.entry(job.meta.visible(store.now().unwrap())).or_default() += 1;
    }
    let count = |state| by_state.get(&state).copied().unwrap_or(0);
    Counts {
        ready: count(Visible::Ready),
        scheduled: count(Visible::Scheduled),
        reserved: count(Visible::Reserved),
        blocked: count(Visible::Blocked),
        dead: count(Visible::Dead),
        done: count(Visible::Done),
    }
}

pub async fn the_figures_follow_a_job_that_comes_due(store: &dyn Store) {
    let id = push_one(store, job("q").delay(100)).await;
    until_past(store, see(store, &id).await.meta.run_at).await;
    let due = Counts { ready: 1, ..Counts::default() };
    until("the figures follow", async || (counts_of(store, "q").await == due).then_some(())).await;
    store.prune(10).await.unwrap();
    assert_eq!(counts_of(store, "q").await, due);
    take(store, "q").await;
    assert_eq!(counts_of(store, "q").await.ready, 0);
}

pub async fn it_is_told_which_jobs_have_not_finished(store: &dyn Store) {
    let rules = rules([
        ("q", QueueSettings { retain_done_ms: Some(3_600_000), ..Default::default() }),
        ("lettered", QueueSettings { dead_letter: Some(queue("letters")), ..Default::default() }),
    ]);
    let (ready, late) = (job("other"), job("other").delay(3_600_000));
    let (first, blocked) = (job("other").group("g"), job("other").group("g"));
    let pushed = push(store, vec![]).await;
    assert!(pushed.is_empty());
    let jobs: Vec<_> = [ready, late, first, blocked].map(|draft| draft.build(store)).into();
    let mut unfinished: Vec<JobId> = jobs.iter().map(|job| job.id.clone()).collect();
    store.push(jobs, &rules).await.into_iter().for_each(|pushed| drop(pushed.unwrap()));
    let mut ended = vec![id("nobody")];
    for draft in [job("q"), job("q").max_attempts(1), job("lettered").max_attempts(1)] {
        let taken = push_and_take(store, draft).await;
        let change =
            if taken.meta.max_attempts.is_none() { commit(&taken) } else { rollback(&taken, Some(0)) };
        apply_under(store, change, &rules).await.unwrap();
        ended.push(taken.meta.id);
    }
    unfinished.push(push_and_take(store, job("held")).await.meta.id);
    let asked = [unfinished.clone(), ended].concat();
    let mut told = store.unfinished(&asked).await.unwrap();
    told.sort();
    unfinished.sort();
    assert_eq!(told, unfinished);
    assert!(store.unfinished(&[]).await.unwrap().is_empty());
}

pub async fn a_peek_is_in_the_order_of_delivery(store: &dyn Store) {
    let peek = async |limit| ids(&store.peek(&queue("q"), limit).await.unwrap());
    assert!(peek(10).await.is_empty());
    let drafts = vec![
        job("q"),
        job("q").priority(5),
        job("q").delay(-5000),
        job("q").priority(-3),
        job("q").priority(5).delay(-9000),
        job("q").needs(&[]),
    ];
    let pushed = push_all(store, drafts).await;
    push_all(store, vec![job("q").delay(600_000).priority(9), job("other").priority(9)]).await;
    let expired = push_one(store, job("q").priority(7).expires(1)).await;
    until_past(store, see(store, &expired).await.meta.expires_at.unwrap()).await;
    let order: Vec<JobId> = [4, 1, 2, 0, 5, 3].map(|n: usize| pushed[n].clone()).into();
    assert_eq!(peek(100).await, order);
    assert_eq!(peek(2).await, order[..2]);
    let taken = claim(store, ask("q", 100)).await;
    assert_eq!(ids(&taken), order, "nothing has changed");
    assert!(peek(100).await.is_empty());
}

pub async fn jobs_are_counted_now(store: &dyn Store) {
    let rules = rules([("q", QueueSettings { retain_done_ms: Some(3_600_000), ..Default::default() })]);
    assert_eq!(store.count_now(&queue("q")).await.unwrap(), Counts::default());
    assert_eq!(store.next_due(&queue("q")).await.unwrap(), None);
    let commits = push_and_take(store, job("q")).await;
    apply_under(store, commit(&commits), &rules).await.unwrap();
    let dies = push_and_take(store, job("q").max_attempts(1)).await;
    apply(store, rollback(&dies, Some(0))).await.unwrap();
    push_and_take(store, job("q")).await;
    push(store, vec![job("q").group("g"), job("q").group("g"), job("q").priority(3)]).await;
    let late = vec![job("q").delay(600_000), job("q").delay(500_000).priority(3), job("q").delay(900_000)];
    let late = push_all(store, late).await;
    push_all(store, vec![job("other").delay(300_000), job("other")]).await;
    let counts = Counts { ready: 2, scheduled: 3, reserved: 1, blocked: 1, dead: 1, done: 1 };
    assert_eq!(store.count_now(&queue("q")).await.unwrap(), counts);
    let next = see(store, &late[1]).await.meta.run_at;
    assert_eq!(store.next_due(&queue("q")).await.unwrap(), Some(next));
}

pub async fn the_store_says_what_it_takes(store: &dyn Store) {
    push_all(store, (0..100).map(|_| job("q")).collect()).await;
    let size = store.size().await.unwrap();
    assert!(size.data > 0, "{size:?}");
    if store.pool().is_some() {
        // What the store does by itself may wait for a connection just now.
        let at_rest = async || store.pool().filter(|pool| pool.waiting == 0);
        let pool = until("nobody waits for a connection", at_rest).await;
        assert!(pool.opened > 0 && pool.opened >= pool.idle && pool.most > 0, "{pool:?}");
        assert_eq!(pool.failed, 0, "{pool:?}");
    }
}
