//! Which queues need a person, and why. One function judges what is known of a queue; docs/guide/attention.md says the same for
//! operators.
//!
//! That something did not happen proves nothing until it was looked for: a server reports that a queue has no consumers only once it has
//! been there for as long as the rule is about, and that a queue grows once it has been there for the whole time that is compared.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::history::{KEPT, Sum};
use crate::job::{GroupName, JobId, QueueName, SemaphoreName, Timestamp};
use crate::store::{Counts, DeadHead, SemaphoreUse};

/// From so many ready jobs on a queue can be growing, and by so many jobs at least.
pub const GROWN_MIN: u64 = 100;
/// More must have come than have left by at least one in so many that came.
pub const GROWN_SHARE: u64 = 10;
/// From so many failed attempts on a queue can be failing.
pub const FAILED_MIN: u64 = 5;
/// One in so many attempts that ended must have failed.
pub const FAILED_SHARE: u64 = 4;
/// While workers hold jobs of a queue and no call waits, it is stuck after so many times as long: jobs may take long.
pub const BUSY_TIMES: u64 = 5;

/// When a queue needs attention.
#[derive(Debug, Clone, Copy)]
pub struct Thresholds {
    /// For how long ready jobs are not delivered.
    pub idle: Duration,
    /// The time over which jobs that came, left and failed are compared.
    pub window: Duration,
}

/// Why a queue needs attention, the most urgent first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[schema(as = AttentionReason)]
pub enum Reason {
    /// It has ready jobs and no consumers.
    Starved,
    /// It has ready jobs and consumers, and nothing is delivered.
    Stuck,
    /// Jobs of it are blocked behind a dead job, or by a semaphore without room.
    Blocked,
    /// Many of its attempts fail.
    Failing,
    /// More jobs come than leave.
    Growing,
    /// It has dead jobs.
    Dead,
    /// It is paused.
    Paused,
}

impl Reason {
    /// All of them, the most urgent first.
    pub const ALL: [Self; 7] =
        [Self::Starved, Self::Stuck, Self::Blocked, Self::Failing, Self::Growing, Self::Dead, Self::Paused];

    /// Returns its name, as responses and metrics have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starved => "starved",
            Self::Stuck => "stuck",
            Self::Blocked => "blocked",
            Self::Failing => "failing",
            Self::Growing => "growing",
            Self::Dead => "dead",
            Self::Paused => "paused",
        }
    }
}

/// Why a queue needs attention, with the figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Attention {
    /// Why.
    pub reason: Reason,
    /// The same in words.
    #[schema(max_length = 2000)]
    pub detail: String,
    /// What to do about it, in words.
    #[schema(max_length = 2000)]
    pub next_step: String,
    /// Since when, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// How many jobs it is about: those that are ready, blocked or dead; the failed attempts; by how many jobs it has grown.
    pub jobs: u64,
    /// How long the time is that `jobs` was counted in, in milliseconds; absent where it is how many there are now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_ms: Option<u64>,
    /// The dead job that holds a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The group that it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// The semaphore without room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub semaphore: Option<SemaphoreName>,
}

impl Attention {
    fn new(reason: Reason, jobs: u64, detail: String, next_step: impl Into<String>) -> Self {
        Self {
            reason,
            detail,
            next_step: next_step.into(),
            since: None,
            jobs,
            over_ms: None,
            job: None,
            group: None,
            semaphore: None,
        }
    }
}

/// What keeps the blocked jobs of a queue from being delivered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Held {
    /// How many groups a dead job holds, and the oldest of those jobs.
    pub dead_heads: u64,
    /// The oldest of these jobs.
    pub head: Option<DeadHead>,
    /// A semaphore that they wait for and that is full.
    pub full: Option<SemaphoreUse>,
    /// A semaphore that they wait for and that does not exist.
    pub missing: Option<SemaphoreName>,
}

/// What is known of a queue.
#[derive(Debug, Clone)]
pub struct Seen<'a> {
    /// The queue.
    pub queue: &'a QueueName,
    /// The time by the store's clock.
    pub now: Timestamp,
    /// How many jobs are in each state.
    pub counts: Counts,
    /// Since when the oldest ready job has been ready, where that is known.
    pub oldest_ready: Option<Timestamp>,
    /// Whether delivery is stopped.
    pub paused: bool,
    /// How many jobs of it may be reserved at once.
    pub max_reserved: Option<u64>,
    /// Whether a call is known to wait for its jobs, on any server.
    pub is_waited_for: bool,
    /// For how long this server has been there, in milliseconds; 0 where what happened in the queue is not known.
    pub observed_ms: u64,
    /// When a job of it was delivered last, on any server, where that is known: it is remembered for [`remembered`].
    pub delivered_at: Option<Timestamp>,
    /// What happened on all servers within the time that is compared.
    pub recent: Sum,
    /// By how many jobs a second it grew within the last minute.
    pub growth_per_s: f64,
    /// What keeps its blocked jobs from being delivered, where that was queried.
    pub held: Option<&'a Held>,
}

/// Whether what holds the blocked jobs of such a queue is worth a query.
pub fn may_be_held(counts: &Counts) -> bool {
    counts.blocked > 0
}

/// Returns why a queue needs attention, the most urgent reason first; each reason once.
pub fn judge(seen: &Seen<'_>, thresholds: &Thresholds) -> Vec<Attention> {
    let all = [
        undelivered(seen, ms(thresholds.idle)),
        blocked(seen, ms(thresholds.idle)),
        failing(seen, ms(thresholds.window)),
        growing(seen, thresholds),
        dead(seen),
        paused(seen),
    ];
    all.into_iter().flatten().collect()
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn jobs(count: u64) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}

/// Returns a time in words, rounded down.
fn time(ms: u64) -> String {
    let (count, unit) = match ms / 1000 {
        s @ 0..120 => (s, "second"),
        s @ 120..7200 => (s / 60, "minute"),
        s @ 7200..172_800 => (s / 3600, "hour"),
        s => (s / 86_400, "day"),
    };
    if count == 1 { format!("1 {unit}") } else { format!("{count} {unit}s") }
}

/// For how long it is remembered when a job was delivered, for such a threshold: as long as any rule asks.
pub fn remembered(idle: Duration) -> Duration {
    idle.saturating_mul(u32::try_from(BUSY_TIMES).unwrap_or(u32::MAX)).max(KEPT)
}

/// Returns for how long nothing was delivered, as far as this server can know. Where no delivery is known it may be longer.
fn undelivered_ms(seen: &Seen<'_>, idle_ms: u64) -> u64 {
    let remembered = ms(remembered(Duration::from_millis(idle_ms)));
    let since = seen.delivered_at.map_or(remembered, |at| seen.now.ms_since(at));
    since.min(seen.observed_ms)
}

/// Starved, or stuck.
fn undelivered(seen: &Seen<'_>, idle_ms: u64) -> Option<Attention> {
    let oldest = seen.oldest_ready.filter(|_| seen.counts.ready > 0 && !seen.paused)?;
    let (age_ms, still_ms) = (seen.now.ms_since(oldest), undelivered_ms(seen, idle_ms));
    if age_ms < idle_ms || still_ms < idle_ms {
        return None;
    }
    let Counts { ready, reserved, .. } = seen.counts;
    let is_known = seen.delivered_at.is_some() || age_ms <= still_ms;
    let since = is_known.then(|| seen.delivered_at.map_or(oldest, |delivered| delivered.max(oldest)));
    let still = format!("{}{}", time(still_ms.min(age_ms)), if is_known { "" } else { " or longer" });
    let (verb, ready_jobs) = (if ready == 1 { "is" } else { "are" }, jobs(ready));
    if !seen.is_waited_for && reserved == 0 {
        let detail = format!(
            "{ready_jobs} {verb} ready, the oldest for {}; for {still} nobody has taken any, and no call is known to wait for this queue",
            time(age_ms)
        );
        let next = format!("Start workers that reserve from {}, or see why they have stopped.", seen.queue);
        return Some(Attention { since, ..Attention::new(Reason::Starved, ready, detail, next) });
    }
    // Who holds jobs and asks for no more may be at work: jobs may take long.
    let is_at_work = !seen.is_waited_for && still_ms.min(age_ms) < idle_ms.saturating_mul(BUSY_TIMES);
    if is_at_work {
        return None;
    }
    let limit = seen.max_reserved.filter(|most| reserved >= *most);
    let (why, next) = match limit {
        Some(most) => (
            format!("{reserved} are reserved, which is its max_reserved of {most}"),
            "See what the reserved jobs do, or raise max_reserved.",
        ),
        None if seen.is_waited_for => (
            "calls wait for this queue and get none".to_owned(),
            "GET /v1/jobs/{id} of the first job says in waiting_for what holds it: a semaphore, max_reserved or a rate.",
        ),
        None => (
            format!("workers hold {}, and take no more", jobs(reserved)),
            "See what the workers do, or start more of them.",
        ),
    };
    let detail = format!("{ready_jobs} {verb} ready, and for {still} none was delivered: {why}");
    Some(Attention { since, ..Attention::new(Reason::Stuck, ready, detail, next) })
}

fn blocked(seen: &Seen<'_>, idle_ms: u64) -> Option<Attention> {
    let (held, blocked) = (seen.held?, seen.counts.blocked);
    if blocked == 0 {
        return None;
    }
    if let Some(DeadHead { id, group, since }) = &held.head {
        let groups = match held.dead_heads {
            0 | 1 => format!("the group {group} is held by its first job {id}, which is dead"),
            more => format!("{more} groups are held by dead jobs, the group {group} by {id}"),
        };
        let detail = format!("{groups}; {} blocked", of_blocked(blocked));
        let next = "Retry, redrive or delete the dead job: the jobs behind it follow.";
        return Some(Attention {
            since: *since,
            job: Some(id.clone()),
            group: Some(group.clone()),
            ..Attention::new(Reason::Blocked, blocked, detail, next)
        });
    }
    if let Some(name) = &held.missing {
        let detail = format!("{} blocked by the semaphore {name}, which does not exist", of_blocked(blocked));
        let next = format!("Create it: PUT /v1/semaphores/{name}.");
        let semaphore = Some(name.clone());
        return Some(Attention { semaphore, ..Attention::new(Reason::Blocked, blocked, detail, next) });
    }
    let full = held.full.as_ref()?;
    let is_still =
        seen.counts.ready == 0 && seen.counts.reserved == 0 && undelivered_ms(seen, idle_ms) >= idle_ms;
    if !is_still || seen.paused {
        return None;
    }
    let SemaphoreUse { name, capacity, held } = full;
    let detail = format!(
        "{} blocked by the semaphore {name}, held {held} times of {capacity}; for {} none was delivered",
        of_blocked(blocked),
        time(undelivered_ms(seen, idle_ms))
    );
    let next = format!("GET /v1/semaphores/{name} names who holds it. Raise its capacity if there is room.");
    let semaphore = Some(name.clone());
    Some(Attention { semaphore, ..Attention::new(Reason::Blocked, blocked, detail, next) })
}

fn of_blocked(blocked: u64) -> String {
    format!("{} {}", jobs(blocked), if blocked == 1 { "is" } else { "are" })
}

fn failing(seen: &Seen<'_>, window_ms: u64) -> Option<Attention> {
    let (failed, finished) = (u64::from(seen.recent.failed), u64::from(seen.recent.finished));
    let ended = failed + finished;
    if failed < FAILED_MIN || failed * FAILED_SHARE < ended {
        return None;
    }
    let percent = failed * 100 / ended.max(1);
    let detail = format!("{failed} of {ended} attempts have failed within {}: {percent} %", time(window_ms));
    let next = "See the errors of its jobs (GET /v1/dead?group_by=error for those that died), and what its workers were changed by.";
    Some(Attention { over_ms: Some(window_ms), ..Attention::new(Reason::Failing, failed, detail, next) })
}

fn growing(seen: &Seen<'_>, thresholds: &Thresholds) -> Option<Attention> {
    let window_ms = ms(thresholds.window);
    let Sum { pushed, finished, gone, .. } = seen.recent;
    let (came, left) = (u64::from(pushed), u64::from(finished) + u64::from(gone));
    let grown = came.saturating_sub(left);
    let is_grown = grown >= GROWN_MIN && grown * GROWN_SHARE >= came && seen.counts.ready >= GROWN_MIN;
    let is_left_alone = seen.paused || undelivered(seen, ms(thresholds.idle)).is_some();
    if !is_grown || seen.growth_per_s <= 0.0 || seen.observed_ms < window_ms || is_left_alone {
        return None;
    }
    let detail = format!(
        "{} came within {}, and {left} left: it has grown by {grown}, and {} are ready",
        jobs(came),
        time(window_ms),
        seen.counts.ready
    );
    let next = "Start more workers, or see why they are slower than before. max_jobs bounds the queue.";
    Some(Attention { over_ms: Some(window_ms), ..Attention::new(Reason::Growing, grown, detail, next) })
}

fn dead(seen: &Seen<'_>) -> Option<Attention> {
    let dead = seen.counts.dead;
    let verb = if dead == 1 { "has" } else { "have" };
    let detail = || format!("{} {verb} used up all attempts, or {verb} been given up", jobs(dead));
    let next =
        "See their errors (GET /v1/dead?group_by=error), mend the cause, and redrive them; or purge them.";
    (dead > 0).then(|| Attention::new(Reason::Dead, dead, detail(), next))
}

fn paused(seen: &Seen<'_>) -> Option<Attention> {
    let Counts { ready, .. } = seen.counts;
    let verb = if ready == 1 { "waits" } else { "wait" };
    let detail = || format!("it is paused, and delivers nothing; {} {verb}", jobs(ready));
    let next = || format!("Resume it when the reason is gone: POST /v1/queues/{}/resume.", seen.queue);
    seen.paused.then(|| Attention::new(Reason::Paused, ready, detail(), next()))
}

#[cfg(test)]
mod tests;
