//! Claims of jobs that need semaphores, and of queues that limit their deliveries. There is one writer, so that
//! what was counted still holds when it is written.

use rusqlite::{Connection, OptionalExtension, params};

use crate::job::rate::Deliveries;
use crate::job::semaphore::Admission;
use crate::job::settings::Rate;
use crate::job::{Job, Meta, QueueName, Rules, SemaphoreName, State, Timestamp};
use crate::store::ClaimAsk;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::claim::{grant, heads};
use crate::store::sqlite::jobs::row::{self, Found};
use crate::store::sqlite::semaphores;
use crate::store::sqlite::tx::Tx;

/// How many jobs are read at once at least.
const CHUNK: usize = 64;
/// How many jobs one transaction blocks at most, give or take a chunk: others wait for the writer, too.
const BLOCKED_MAX: usize = 2000;

/// What one queue has given.
#[derive(Default)]
pub struct Given {
    /// For each request, at its place.
    pub won: Vec<Vec<Job>>,
    /// When it is worth looking again.
    pub resume_at: Option<Timestamp>,
    /// Semaphores that others may have now.
    pub offers: Vec<SemaphoreName>,
}

/// Whether what was read of the queue must be claimed this way.
pub fn is_limited(queue: &QueueName, heads: &[Found<Job>], rules: &Rules) -> bool {
    rules.max_reserved(queue).is_some()
        || rules.rate(queue).is_some()
        || heads.iter().any(|found| !found.job.meta.semaphores.is_empty())
}

/// How many jobs a queue may still deliver.
struct Left {
    jobs: usize,
    rate: Option<(Rate, Deliveries)>,
    resume_at: Option<Timestamp>,
}

fn left(tx: &Tx<'_>, queue: &QueueName, rules: &Rules, now: Timestamp) -> Result<Left, Fault> {
    let mut left = Left { jobs: usize::MAX, rate: None, resume_at: None };
    if let Some(max) = rules.max_reserved(queue) {
        tx.flush()?;
        let mut reserved = tx.prepare_cached("SELECT reserved FROM counters WHERE queue = ?1")?;
        let reserved: Option<i64> = reserved.query_row([queue.as_str()], |row| row.get(0)).optional()?;
        let room = max.saturating_sub(reserved.unwrap_or(0).unsigned_abs());
        left.jobs = usize::try_from(room).unwrap_or(usize::MAX);
    }
    if let Some(rate) = rules.rate(queue) {
        let deliveries = deliveries(tx, queue)?;
        left.jobs = left.jobs.min(usize::try_from(deliveries.room(rate, now)).unwrap_or(usize::MAX));
        left.resume_at = deliveries.resumes_at(rate, now);
        left.rate = Some((rate, deliveries));
    }
    Ok(left)
}

fn deliveries(db: &Connection, queue: &QueueName) -> Result<Deliveries, Fault> {
    let mut recent = db.prepare_cached("SELECT recent FROM deliveries WHERE queue = ?1")?;
    let mut rows = recent.query([queue.as_str()])?;
    let found = rows.next()?.map(|row| row::json(row, 0, "deliveries")).transpose()?;
    Ok(found.flatten().unwrap_or_default())
}

/// Reserves what the requests for one queue ask for, as far as limits and semaphores allow.
pub fn claim(tx: &Tx<'_>, asks: &[&ClaimAsk], rules: &Rules, now: Timestamp) -> Result<Given, Fault> {
    let mut given = Given { won: asks.iter().map(|_| Vec::new()).collect(), ..Given::default() };
    let Some(first) = asks.first() else { return Ok(given) };
    let Left { jobs: limit, rate, resume_at } = left(tx, &first.queue, rules, now)?;
    let wanted: usize = asks.iter().map(|ask| ask.count).sum();
    let most = wanted.min(limit);
    let (mut granted, mut blocked) = (0, 0);
    while granted < most {
        let chunk = (most - granted).max(CHUNK);
        let found = heads(tx, &first.queue, chunk, first.pop, now)?;
        let read = found.len();
        let names = found.iter().flat_map(|found| &found.job.meta.semaphores);
        let mut admission = semaphores::admission(tx, names, rules, now)?;
        for mut found in found {
            if granted == most {
                break;
            }
            match admission.stopped_by(&found.job.meta).cloned() {
                Some(semaphore) => {
                    block(tx, found, semaphore, &admission, &mut given, now)?;
                    blocked += 1;
                }
                None => {
                    admission.grant(&found.job.meta);
                    given.offers.extend(admission.offers(&found.job.meta).cloned());
                    let (place, ask) = next(asks, &given.won)?;
                    reserve(tx, &mut found, ask, now)?;
                    given.won[place].push(found.job);
                    granted += 1;
                }
            }
        }
        if read < chunk {
            break;
        }
        if blocked >= BLOCKED_MAX {
            given.resume_at = Some(now);
            break;
        }
    }
    if granted < wanted && granted == limit {
        given.resume_at = resume_at;
    }
    if let Some((rate, mut deliveries)) = rate.filter(|_| granted > 0) {
        deliveries.note(rate, now, granted as u64);
        if granted == limit {
            given.resume_at = deliveries.resumes_at(rate, now);
        }
        tx.prepare_cached("INSERT OR REPLACE INTO deliveries (queue, recent) VALUES (?1, ?2)")?
            .execute(params![first.queue.as_str(), row::to_json(Some(&deliveries))?])?;
    }
    Ok(given)
}

/// Whose turn it is.
fn next<'a>(asks: &[&'a ClaimAsk], won: &[Vec<Job>]) -> Result<(usize, &'a ClaimAsk), Fault> {
    let unserved = asks.iter().zip(won).position(|(ask, won)| won.len() < ask.count);
    let place = unserved.ok_or_else(|| Fault::stored("head of a queue", "longer than what was asked for"))?;
    Ok((place, asks[place]))
}

fn reserve(tx: &Tx<'_>, found: &mut Found<Job>, ask: &ClaimAsk, now: Timestamp) -> Result<(), Fault> {
    if found.job.meta.semaphores.is_empty() {
        grant(&mut found.job, ask, now);
        return row::reserve(tx, found);
    }
    let before = Found { rowid: found.rowid, marked: found.marked, job: found.job.meta.clone() };
    grant(&mut found.job, ask, now);
    (found.job.meta.waits_for, found.job.meta.waiting_since) = (None, None);
    found.job.meta.rev = row::update(tx, &before, &found.job.meta, None, None, now)?;
    Ok(())
}

fn block(
    tx: &Tx<'_>,
    found: Found<Job>,
    semaphore: SemaphoreName,
    admission: &Admission<'_>,
    given: &mut Given,
    now: Timestamp,
) -> Result<(), Fault> {
    let found = Found { rowid: found.rowid, marked: found.marked, job: found.job.meta };
    let meta = &found.job;
    given.offers.extend(admission.offers(meta).filter(|name| **name != semaphore).cloned());
    let blocked = Meta {
        state: State::Blocked,
        waits_for: Some(semaphore),
        waiting_since: meta.waiting_since.or(Some(now)),
        ..meta.clone()
    };
    row::update(tx, &found, &blocked, None, None, now).map(drop)
}
