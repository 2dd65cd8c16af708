//! Claims of jobs that need semaphores, and of queues that limit their deliveries. There is one writer, so that
//! what was counted still holds when it is written.

use rusqlite::{Connection, OptionalExtension, params};

use crate::job::rate::Deliveries;
use crate::job::transition::delivery;
use crate::job::{Job, Meta, QueueName, Rules, SemaphoreName, Timestamp};
use crate::store::ClaimAsk;
use crate::store::admission::{self, Allowance, Given, Verdicts, Want};
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::claim::{self, Heads, Rest, heads, not_as_listed};
use crate::store::sqlite::jobs::many;
use crate::store::sqlite::jobs::row::{self, Found};
use crate::store::sqlite::semaphores;
use crate::store::sqlite::tx::Tx;

/// How many jobs are read at once at least behind some that were blocked.
const CHUNK: usize = 64;
/// How many jobs one transaction blocks at most, give or take a chunk: others wait for the writer, too.
const BLOCKED_MAX: usize = 2000;

/// Returns what the limits of the queue allow.
fn allowance(tx: &Tx<'_>, queue: &QueueName, rules: &Rules, now: Timestamp) -> Result<Allowance, Fault> {
    let reserved =
        rules.max_reserved(queue).map(|max| Ok::<_, Fault>((max, reserved(tx, queue)?))).transpose()?;
    let rate = rules.rate(queue).map(|rate| Ok::<_, Fault>((rate, deliveries(tx, queue)?))).transpose()?;
    Ok(Allowance::new(reserved, rate, now))
}

fn reserved(tx: &Tx<'_>, queue: &QueueName) -> Result<u64, Fault> {
    tx.flush()?;
    let mut reserved = tx.prepare_cached("SELECT reserved FROM counters WHERE queue = ?1")?;
    let reserved: Option<i64> = reserved.query_row([queue.as_str()], |row| row.get(0)).optional()?;
    Ok(reserved.unwrap_or(0).max(0).unsigned_abs())
}

/// Returns what the queue has delivered lately, where it has a rate.
pub fn deliveries(db: &Connection, queue: &QueueName) -> Result<Deliveries, Fault> {
    let mut recent = db.prepare_cached("SELECT recent FROM deliveries WHERE queue = ?1")?;
    let mut rows = recent.query([queue.as_str()])?;
    let Some(found) = rows.next()? else { return Ok(Deliveries::default()) };
    // What cannot be read must not stop the queue: the window begins anew.
    Ok(readable(row::json(found, 0, "deliveries"))?.flatten().unwrap_or_default())
}

/// Reserves what the requests for one queue ask for, as far as limits and semaphores allow.
pub fn claim(tx: &Tx<'_>, asks: &[&ClaimAsk], rules: &Rules, now: Timestamp) -> Result<Given, Fault> {
    let mut given = Given { won: asks.iter().map(|_| Vec::new()).collect(), ..Given::default() };
    let Some(first) = asks.first() else { return Ok(given) };
    let mut allowance = allowance(tx, &first.queue, rules, now)?;
    let most = allowance.most(asks.iter().map(|ask| ask.count).sum());
    let (mut granted, mut blocked) = (0, 0);
    while granted < most {
        let left = most - granted;
        let chunk = if blocked == 0 { left } else { left.max(CHUNK) };
        let Heads { jobs: found, rest } = heads(tx, &first.queue, chunk, first.pop, rules, now)?;
        let read = found.len();
        let names = found.iter().flat_map(|found| &found.job.meta.semaphores);
        let mut admission = semaphores::admission(tx, names, rules, now)?;
        let mut wants = admission::wants(asks, &given.won);
        wants.truncate(most - granted);
        let verdicts = admission::judge(found, &wants, &mut admission, |found| &found.job.meta);
        let is_stuck = verdicts.granted.is_empty() && verdicts.blocked.is_empty();
        granted += verdicts.granted.len();
        blocked += verdicts.blocked.len();
        write(tx, verdicts, &mut given, now)?;
        let all_have_some = given.won.iter().all(|won| !won.is_empty());
        match rest {
            Rest::Nothing if read < chunk => break,
            Rest::Near if all_have_some || is_stuck => break,
            _ if granted < most && tx.is_filled() => {
                given.is_cut = !all_have_some && !is_stuck;
                break;
            }
            _ => {}
        }
        if blocked >= BLOCKED_MAX || rest == Rest::Far {
            given.resume_at = Some(now);
            break;
        }
    }
    if let Some(deliveries) = allowance.note(granted, now) {
        tx.prepare_cached("INSERT OR REPLACE INTO deliveries (queue, recent) VALUES (?1, ?2)")?
            .execute(params![first.queue.as_str(), row::to_json(Some(deliveries))?])?;
    }
    if allowance.is_spent(granted) {
        given.resume_at = allowance.resumes_at();
    }
    Ok(given)
}

fn write(
    tx: &Tx<'_>,
    Verdicts { granted, blocked, offers }: Verdicts<'_, Found<Job>>,
    given: &mut Given,
    now: Timestamp,
) -> Result<(), Fault> {
    for (mut found, Want { index, ask }) in granted {
        reserve(tx, &mut found, ask, now)?;
        if let Some(won) = given.won.get_mut(index) {
            won.push(found.job);
        }
    }
    for (found, semaphore) in blocked {
        block(tx, found, &semaphore, now)?;
    }
    given.offers.extend(offers);
    Ok(())
}

fn reserve(tx: &Tx<'_>, found: &mut Found<Job>, ask: &ClaimAsk, now: Timestamp) -> Result<(), Fault> {
    if found.job.meta.semaphores.is_empty() {
        claim::reserve(&mut found.job, ask, now)?;
        return many::reserve(tx, std::slice::from_mut(found));
    }
    let before = Found { rowid: found.rowid, marked: found.marked, job: found.job.meta.clone() };
    claim::reserve(&mut found.job, ask, now)?;
    found.job.meta.rev = row::update(tx, &before, &found.job.meta, row::Contents::default(), now)?;
    Ok(())
}

fn block(tx: &Tx<'_>, found: Found<Job>, semaphore: &SemaphoreName, now: Timestamp) -> Result<(), Fault> {
    let found: Found<Meta> = Found { rowid: found.rowid, marked: found.marked, job: found.job.meta };
    let mut blocked = found.job.clone();
    delivery::block(&mut blocked, semaphore, now).map_err(not_as_listed)?;
    row::update(tx, &found, &blocked, row::Contents::default(), now).map(drop)
}
