//! Reserving jobs.
//!
//! The order of delivery is priority, `run_at`, id; and jobs whose `run_at` lies ahead must neither be
//! delivered nor be walked. In the index `jobs_head` the scheduled jobs of one priority lie behind its due
//! ones, so a claim reads the due range of each priority and jumps to the next lower priority: a queue
//! costs one seek for each priority in use, however many jobs wait in it: see `priorities`. (Marking jobs as due when their
//! time comes would need no jumps, but a million jobs due at midnight would then hold up the writer.)

use rusqlite::{Connection, params};

use crate::job::transition::{Refusal, delivery};
use crate::job::{Claim, Job, Mark, Meta, QueueName, Rules, Timestamp};
use crate::store::admission::{self, Given};
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::claim_limited;
use crate::store::sqlite::jobs::due::{self, DUE, DUE_FOR_POP, Most};
use crate::store::sqlite::jobs::many;
use crate::store::sqlite::jobs::priorities::{PASSED_MAX, SkippedCache, Step, WALKED_MAX, Walk};
use crate::store::sqlite::jobs::row::{self, Found, job_columns};
use crate::store::sqlite::jobs::unreadable;
use crate::store::sqlite::tx::Tx;
use crate::store::{ClaimAsk, Claims, PageBuilder};

/// Reserves what each of the requests asks for, in the order of delivery. Those for one queue share its head.
pub fn claim(tx: &Tx<'_>, asks: &[ClaimAsk], rules: &Rules, now: Timestamp) -> Result<Claims, Fault> {
    let mut won: Vec<Vec<Job>> = asks.iter().map(|_| Vec::new()).collect();
    let mut claims = Claims::default();
    for (n, first) in asks.iter().enumerate() {
        let shares = |ask: &ClaimAsk| ask.queue == first.queue && ask.pop == first.pop;
        if asks[..n].iter().any(shares) {
            continue; // served with the earlier one
        }
        let sharing = asks.iter().zip(&mut won).skip(n).filter(|(ask, _)| shares(ask));
        let (asks, results): (Vec<&ClaimAsk>, Vec<_>) = sharing.unzip();
        let given = claim_from(tx, first, &asks, rules, now)?;
        results.into_iter().zip(given.won).for_each(|(won, jobs)| *won = jobs);
        claims.resume.extend(given.resume_at.map(|at| (first.queue.clone(), at)));
        claims.again.extend(given.is_cut.then(|| first.queue.clone()));
        claims.offers.extend(given.offers);
    }
    claims.won = won.into_iter().map(Ok).collect();
    Ok(claims)
}

/// Serves requests for one queue, in order. What is read is in memory until the transaction has ended, and other writes wait for it: once
/// claims have read a lot, the requests that got nothing are for another one.
fn claim_from(
    tx: &Tx<'_>,
    ClaimAsk { queue, pop, .. }: &ClaimAsk,
    asks: &[&ClaimAsk],
    rules: &Rules,
    now: Timestamp,
) -> Result<Given, Fault> {
    if tx.is_filled() {
        return Ok(Given { is_cut: true, ..Given::default() });
    }
    // What the limit does not allow is not read.
    if admission::is_limited(queue, std::iter::empty(), rules) {
        return claim_limited::claim(tx, asks, rules, now);
    }
    let wanted = asks.iter().map(|ask| ask.count).sum();
    let Heads { jobs: heads, rest } = heads(tx, queue, wanted, *pop, rules, now)?;
    if admission::is_limited(queue, heads.iter().map(|found| &found.job.meta), rules) {
        return claim_limited::claim(tx, asks, rules, now);
    }
    let mut heads = heads.into_iter().peekable();
    let (mut reserved, mut shares) = (Vec::with_capacity(heads.len()), Vec::with_capacity(asks.len()));
    for ask in asks {
        if heads.peek().is_none() && rest != Rest::Nothing {
            break; // what was read at once went to others: there are more
        }
        let before = reserved.len();
        for mut found in heads.by_ref().take(ask.count) {
            reserve(&mut found.job, ask, now)?;
            reserved.push(found);
        }
        shares.push(reserved.len() - before);
    }
    many::reserve(tx, &mut reserved)?;
    let alone = reserved.iter().filter(|found| is_alone(&found.job.meta));
    tx.delivered.remember(alone.map(|found| (&found.job.meta, found.rowid)));
    let mut jobs = reserved.into_iter().map(|found| found.job);
    let won: Vec<Vec<Job>> = shares.into_iter().map(|share| jobs.by_ref().take(share).collect()).collect();
    let resume_at = (rest == Rest::Far).then_some(now);
    // Where none has any, what was in the way is: see `resume_at`.
    let is_cut = !won.is_empty() && won.len() < asks.len();
    Ok(Given { won, resume_at, is_cut, ..Given::default() })
}

/// The jobs at the head of a queue.
pub struct Heads {
    /// In the order of delivery.
    pub jobs: Vec<Found<Job>>,
    /// What there may be behind them.
    pub rest: Rest,
}

/// What there may be behind the jobs that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// They are all that is due, or as many as were wanted.
    Nothing,
    /// They are fewer since they are long: the others are left for another transaction.
    Near,
    /// So many priorities were walked, or jobs passed over or made dead, that the others are left for another transaction.
    Far,
}

/// Returns the first jobs of a queue in the order of delivery. A pop passes over those that need semaphores. What cannot be read is dead then.
pub fn heads(
    tx: &Tx<'_>,
    queue: &QueueName,
    wanted: usize,
    pop: bool,
    rules: &Rules,
    now: Timestamp,
) -> Result<Heads, Fault> {
    let (mut heads, mut bytes, mut passed, mut rest) = (Vec::new(), 0, 0, Rest::Nothing);
    let sql = if pop { DUE_FOR_POP } else { DUE };
    let mut walk = Walk::begin(tx, tx.skipped, (queue, pop), WALKED_MAX, now);
    while heads.len() < wanted && rest == Rest::Nothing {
        let priority = match walk.next()? {
            Step::Due(priority) => priority,
            Step::End => break,
            Step::Enough => {
                rest = Rest::Far;
                break;
            }
        };
        let most = Most {
            jobs: wanted - heads.len(),
            bytes: row::HEAD_BYTES.saturating_sub(bytes),
            passed: PASSED_MAX.saturating_sub(passed + tx.buried()),
        };
        let from = tx.skipped.floor(queue, pop, priority);
        let due = due::read(tx, sql, (queue, priority), &from, &most, now)?;
        passed += due.passed;
        walk.raise(tx.skipped, priority, &from, due.ahead)?;
        let has_spoiled = !due.spoiled.is_empty();
        if has_spoiled {
            walk.remember(tx.skipped)?; // what is written now may come due before
            walk.again(priority); // others are read in their places
        }
        let is_cut = unreadable::bury_some(tx, &due.spoiled, rules, now)? || due.is_cut;
        if has_spoiled && !is_cut {
            continue;
        }
        if !due.jobs.is_empty() {
            walk.found();
            heads.extend(due.jobs);
            bytes += due.bytes;
        } else if !is_cut {
            walk.pass_over(priority, due.passed)?;
        }
        if is_cut {
            rest = Rest::Far;
        } else if bytes >= row::HEAD_BYTES {
            rest = Rest::Near;
        }
    }
    walk.remember(tx.skipped)?;
    tx.claims(bytes);
    Ok(Heads { jobs: heads, rest })
}

/// Returns the first jobs of a queue that may be delivered, and leaves them as they are.
pub fn peek(
    db: &Connection,
    cache: &SkippedCache,
    queue: &QueueName,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<Job>, Fault> {
    let mut page = PageBuilder::new(limit);
    let mut walk = Walk::begin(db, cache, (queue, false), usize::MAX, now);
    while !page.is_full()
        && let Step::Due(priority) = walk.next()?
    {
        let from = cache.floor(queue, false, priority);
        due::peek(db, (queue, priority), &from, now, &mut page)?;
    }
    Ok(page.into_items())
}

/// Whether nothing but the job itself changes when it ends.
fn is_alone(meta: &Meta) -> bool {
    meta.group.is_none() && meta.batch.is_none() && meta.semaphores.is_empty()
}

/// Makes the job the request's. What writes it gives it a new `rev`.
pub fn reserve(job: &mut Job, ask: &ClaimAsk, now: Timestamp) -> Result<(), Fault> {
    delivery::reserve(&mut job.meta, ask.delivery(now)).map_err(not_as_listed)
}

/// The fault where an index lists a job that the rules refuse.
pub fn not_as_listed(refusal: Refusal) -> Fault {
    Fault::stored("state", format!("{refusal:?}"))
}

/// Returns the jobs of these queues that the claim holds, in the order of delivery within each queue.
pub fn held(db: &Connection, queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>, Fault> {
    // Called rarely: after a repeat of a request whose runner died. Walks the queue's reserved jobs.
    let mut held = db.prepare_cached(concat!(
        "SELECT ",
        job_columns!(),
        " FROM jobs INDEXED BY jobs_browse WHERE queue = ?1 AND state = 'reserved' AND claim = ?2 \
         ORDER BY priority DESC, run_at, id"
    ))?;
    let mut jobs = Vec::new();
    for queue in queues {
        jobs.extend(row::jobs(&mut held, [queue.as_str(), claim.as_str()])?);
    }
    Ok(jobs)
}

pub const MARKED: &str = concat!(
    "SELECT ",
    job_columns!(),
    " FROM jobs INDEXED BY jobs_reserved_until WHERE state = 'reserved' \
     AND substr(claim, 1, ?2) IN (SELECT value FROM json_each(?1)) ORDER BY priority DESC, run_at, id"
);

/// Returns the reserved jobs whose claims bear one of these marks, in the order of delivery.
pub fn marked(db: &Connection, marks: &[Mark]) -> Result<Vec<Job>, Fault> {
    let texts: Vec<&str> = marks.iter().map(Mark::as_str).collect();
    let mut marked = db.prepare_cached(MARKED)?;
    row::jobs(&mut marked, params![row::to_json(Some(&texts))?, row::signed(Mark::LEN)])
}
