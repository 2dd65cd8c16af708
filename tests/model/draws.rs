//! How often each step is drawn.

use proptest::prelude::*;
use proptest::sample::select;
use tailback::job::record::KeyUntil;

use super::drafts::{Draft, any_draft, any_wait};
use super::steps::{
    Act, Ahead, Ask, GROUPS, KEYS, PAYLOADS, QUEUES, SCHEDULES, SEMAPHORES, Settings, Step, WORKERS, Which,
};

/// The queues behind these are drawn less often.
const USUAL: u8 = 3;

pub fn maybe<T: std::fmt::Debug + Clone>(
    part: f64,
    some: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<T>> {
    proptest::option::weighted(part, some)
}

pub fn queue() -> impl Strategy<Value = u8> {
    prop_oneof![2 => 0..USUAL, 1 => 0..QUEUES.len() as u8]
}

pub fn priority() -> impl Strategy<Value = i32> {
    prop_oneof![6 => Just(0), 3 => -2..3_i32, 1 => select(vec![i32::MIN, i32::MAX])]
}

pub fn due() -> impl Strategy<Value = Ahead> {
    prop_oneof![24 => Just(Ahead::Now), 1 => Just(Ahead::Soon), 3 => (0..3_u8).prop_map(Ahead::Far)]
}

fn lease() -> impl Strategy<Value = Ahead> {
    prop_oneof![1 => Just(Ahead::Soon), 9 => (0..3_u8).prop_map(Ahead::Far)]
}

pub fn lasts() -> impl Strategy<Value = KeyUntil> {
    prop_oneof![3 => Just(KeyUntil::Finished), 1 => Just(KeyUntil::Reserved), 1 => Just(KeyUntil::Ttl)]
}

fn drafts(most: usize) -> impl Strategy<Value = Vec<Draft>> {
    prop_oneof![3 => any_draft().prop_map(|draft| vec![draft]), 2 => prop::collection::vec(any_draft(), 0..=most)]
}

fn ask() -> impl Strategy<Value = Ask> {
    let worker = maybe(0.5, 0..WORKERS.len() as u8);
    (queue(), prop_oneof![3 => Just(1_u8), 2 => 1..5_u8], lease(), any::<bool>(), worker)
        .prop_map(|(queue, count, lease, yields, worker)| Ask { queue, count, lease, yields, worker })
}

fn payload() -> impl Strategy<Value = u8> {
    0..PAYLOADS.len() as u8
}

/// What the holder of a job does, and what is done in the holder's name.
fn settling() -> impl Strategy<Value = Act> {
    let no_push = Just(Vec::new()).boxed();
    let push = prop_oneof![3 => no_push, 1 => prop::collection::vec(any_draft(), 1..4).boxed()];
    let commit = (maybe(0.4, payload()), push).prop_map(|(result, push)| Act::Commit { result, push });
    let rollback = (maybe(0.7, due()), any::<bool>(), 0..12_u8, any::<bool>())
        .prop_map(|(delay, has_error, kind, in_place)| Act::Rollback { delay, has_error, kind, in_place });
    let extend = (maybe(0.5, lease()), maybe(0.3, payload()))
        .prop_map(|(lease, progress)| Act::Extend { lease, progress });
    let key = (0..KEYS.len() as u8, prop_oneof![Just(Ahead::Now), Just(Ahead::Far(0))], lasts());
    let moving = (queue(), maybe(0.3, payload()), maybe(0.3, due()), maybe(0.3, priority()), maybe(0.4, key))
        .prop_map(|(queue, payload, delay, priority, key)| Act::Move {
            queue,
            payload,
            delay,
            priority,
            key,
        });
    let is_right = || prop::bool::weighted(0.8);
    prop_oneof![
        10 => commit,
        6 => rollback,
        2 => extend,
        3 => moving,
        2 => Just(Act::Release),
        2 => is_right().prop_map(|is_right| Act::Lapse { is_right }),
        1 => is_right().prop_map(|is_right| Act::Silence { is_right }),
        1 => Just(Act::Removal),
        1 => prop::bool::weighted(0.3).prop_map(|force| Act::Cancel { force }),
    ]
}

/// What anybody does to a job.
fn meddling() -> impl Strategy<Value = Act> {
    let rest = (0..12_u8, 0..GROUPS.len() as u8 + 1);
    let edit = (maybe(0.5, priority()), maybe(0.5, due()), maybe(0.3, payload()), rest).prop_map(
        |(priority, due, payload, (other, group))| Act::Edit { priority, due, payload, other, group },
    );
    let relocation = (queue(), maybe(0.3, due()), maybe(0.3, priority()))
        .prop_map(|(queue, delay, priority)| Act::Relocate { queue, delay, priority });
    let is_right = || prop::bool::weighted(0.8);
    prop_oneof![
        4 => edit,
        2 => any::<bool>().prop_map(|force| Act::Cancel { force }),
        1 => Just(Act::CancelUnheld),
        3 => Just(Act::Retry),
        2 => Just(Act::Run),
        2 => Just(Act::Revoke),
        3 => relocation,
        3 => (0..6_u8).prop_map(|state| Act::Purge { state }),
        5 => is_right().prop_map(|is_right| Act::Redrive { is_right }),
        1 => is_right().prop_map(|is_right| Act::Expire { is_right }),
    ]
}

fn act() -> impl Strategy<Value = (Which, Act)> {
    let held = any::<u8>().prop_map(Which::Held);
    let stale = any::<u8>().prop_map(Which::Stale);
    let there = any::<u8>().prop_map(Which::Any);
    let gone = any::<u8>().prop_map(Which::Gone);
    prop_oneof![
        14 => (held, settling()),
        2 => (stale, settling()),
        5 => (there, meddling()),
        1 => (gone, meddling()),
    ]
}

fn settings() -> impl Strategy<Value = Settings> {
    let retain =
        || maybe(0.5, prop_oneof![1 => Just(Ahead::Now), 1 => Just(Ahead::Soon), 5 => Just(Ahead::Far(0))]);
    let most = (maybe(0.3, 1..8_u64), maybe(0.2, 1..6_u64), maybe(0.1, 1..40_u64), any::<(bool, bool)>());
    (
        maybe(0.4, 1..4_u32),
        maybe(0.5, any_wait()),
        maybe(0.6, 0..QUEUES.len() as u8),
        (retain(), retain(), retain()),
        most,
    )
        .prop_map(
            |(max_attempts, backoff, dead_letter, (retain_done, retain_result, retain_dead), most)| {
                Settings {
                    max_attempts,
                    backoff,
                    dead_letter,
                    retain_done,
                    retain_result,
                    retain_dead,
                    max_jobs: most.0,
                    max_reserved: most.1,
                    rate: most.2,
                    skips_dead: most.3.0,
                    lapsed_first: most.3.1,
                }
            },
        )
}

fn of_batches() -> impl Strategy<Value = Step> {
    let create = (drafts(5), prop::bool::weighted(0.6), maybe(0.8, any_draft()))
        .prop_map(|(jobs, is_sealed, callback)| Step::CreateBatch { jobs, is_sealed, callback });
    prop_oneof![
        4 => create,
        3 => (any::<u8>(), drafts(3)).prop_map(|(batch, jobs)| Step::AddToBatch { batch, jobs }),
        2 => any::<u8>().prop_map(Step::SealBatch),
        1 => any::<u8>().prop_map(Step::CancelBatch),
        1 => prop_oneof![1 => Just(Ahead::Soon), 2 => Just(Ahead::Far(0))].prop_map(Step::RetainBatches),
    ]
}

fn of_workers() -> impl Strategy<Value = Step> {
    let (worker, timeout) =
        (0..WORKERS.len() as u8, prop_oneof![1 => Just(Ahead::Soon), 2 => Just(Ahead::Far(0))]);
    let beat = (worker.clone(), timeout, any::<bool>())
        .prop_map(|(worker, timeout, has_slots)| Step::Heartbeat { worker, timeout, has_slots });
    let silence = (select(vec![1, u64::MAX, u64::MAX]), maybe(0.3, worker.clone()))
        .prop_map(|(heard_ms, heard_of)| Step::Silence { heard_ms, heard_of });
    prop_oneof![4 => beat, 3 => silence, 1 => worker.prop_map(Step::RemoveWorker)]
}

fn of_schedules() -> impl Strategy<Value = Step> {
    let (schedule, is_seen) = (0..SCHEDULES.len() as u8, prop::bool::weighted(0.9));
    let next = maybe(0.8, prop_oneof![Just(Ahead::Now), Just(Ahead::Far(1))]);
    let save = (schedule.clone(), is_seen, prop::bool::weighted(0.2), next).prop_map(
        |(schedule, is_seen, is_removed, next)| Step::SaveSchedule { schedule, is_seen, is_removed, next },
    );
    let fire = (schedule, is_seen, any::<bool>(), maybe(0.8, any_draft()))
        .prop_map(|(schedule, is_seen, yields, job)| Step::Fire { schedule, is_seen, yields, job });
    prop_oneof![2 => save, 4 => fire, 1 => Just(Step::FireAgain)]
}

fn of_semaphores() -> impl Strategy<Value = Step> {
    let (semaphore, capacity) = (0..SEMAPHORES.len() as u8, maybe(0.85, 1..4_u64));
    let save = (semaphore.clone(), capacity)
        .prop_map(|(semaphore, capacity)| Step::Semaphore { semaphore, capacity });
    prop_oneof![2 => save, 3 => maybe(0.6, semaphore).prop_map(Step::Call)]
}

/// Any step.
pub fn step() -> BoxedStrategy<Step> {
    let set = (0..QUEUES.len() as u8, maybe(0.9, settings()), 0..6_u8)
        .prop_map(|(queue, settings, expected)| Step::Set { queue, settings, expected });
    let import = (any_draft(), 0..4_u8, ask(), any::<bool>())
        .prop_map(|(job, state, ask, is_expired)| Step::Import { job, state, ask, is_expired });
    let import_line = (0..3_u8, prop::collection::vec(any_draft(), 1..4), ask())
        .prop_map(|(state, jobs, ask)| Step::ImportLine { state, jobs, ask });
    let push_once = (drafts(3), 0..6_u8, maybe(0.1, Just(1_u8)))
        .prop_map(|(jobs, key, says)| Step::PushOnce { jobs, key, says: says.unwrap_or(0) });
    let rollback = Act::Rollback { delay: None, has_error: false, kind: 9, in_place: false };
    let snooze = Act::Rollback { delay: Some(Ahead::Now), has_error: false, kind: 1, in_place: false };
    let commit = Act::Commit { result: None, push: Vec::new() };
    let next = (any::<u8>(), prop_oneof![3 => Just(commit), 1 => Just(rollback), 1 => Just(snooze)], ask())
        .prop_map(|(which, act, ask)| Step::Next { which, act, ask });
    prop_oneof![
        20 => drafts(5).prop_map(Step::Push),
        3 => push_once,
        3 => prop::collection::vec(any_draft(), 1..4).prop_map(Step::PushAll),
        20 => prop::collection::vec(ask(), 1..4).prop_map(Step::Claim),
        2 => ask().prop_map(Step::Pop),
        2 => (queue(), 1..8_u8).prop_map(|(queue, limit)| Step::Peek { queue, limit }),
        4 => (ask(), select(vec![1, 8, 14, 20, 40, 200]))
            .prop_map(|(ask, max_bytes)| Step::Bytes { ask, max_bytes }),
        36 => prop::collection::vec(act(), 1..5).prop_map(Step::Apply),
        4 => any::<u8>().prop_map(Step::Repeat),
        4 => next,
        2 => (any::<u8>(), prop_oneof![Just(Ahead::Soon), any::<u8>().prop_map(Ahead::Far)])
            .prop_map(|(place, lease)| Step::Again(place, lease)),
        4 => Just(Step::Reap),
        6 => of_batches(),
        5 => of_workers(),
        3 => of_schedules(),
        4 => set,
        1 => import,
        1 => import_line,
        5 => of_semaphores(),
        2 => Just(Step::Prune),
    ]
    .boxed()
}
