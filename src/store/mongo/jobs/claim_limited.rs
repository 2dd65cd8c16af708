//! Claims of jobs that need semaphores, and of queues that limit their deliveries.
//!
//! Two claims that each merely count find room, and both claim. So each writes the documents of its limits in the
//! transaction that claims, before all else: of claims that conflict there one goes on, and the others retry with
//! backoff. What makes room (commits, rollbacks, lapses) writes none of these documents and conflicts with no claim.
//!
//! The head is read beforehand, and the jobs are written guarded by their `rev`, as by any claim.
//!
//! A claim that finds a semaphore full remembers it for a moment ([`cache`](crate::store::mongo::cache)): until it is released
//! here, or the moment is over, further claims of the queue are refused unasked where all of its jobs need that
//! semaphore. They wait for a little of that moment, as long as to ask would take, so that who asks again and again costs less than
//! a claim. Then jobs are delivered as there is room, and the others stay ready: to block and to unblock each of a long
//! queue would cost more than its deliveries. Who waits is woken by the release (`Claims::refused`), and at
//! the end of the moment in any case: that claim asks, and blocks what it finds, as the first one did.

use std::collections::BTreeSet;
use std::time::Duration;

use mongodb::bson::doc;
use mongodb::options::{Hint, ReturnDocument};
use tokio::time::Instant;

use crate::job::semaphore::LINE;
use crate::job::transition::delivery::{self, BLOCK, RESERVE};
use crate::job::{Job, Meta, QueueName, Rules, SemaphoreName, Timestamp};
use crate::store::admission::{self, Allowance, Given, Verdicts, Want};
use crate::store::mongo::JOBS;
use crate::store::mongo::LIMITS;
use crate::store::mongo::Mongo;
use crate::store::mongo::cache::{FULL_FOR, Known, Refused};
use crate::store::mongo::client::count;
use crate::store::mongo::jobs::document::{Row, deliveries_of, serialized};
use crate::store::mongo::jobs::head::{self, Heads};
use crate::store::mongo::jobs::oversized;
use crate::store::mongo::jobs::rewrite::{self, Rewrite};
use crate::store::mongo::jobs::transitions::{self, not_as_read, reserved};
use crate::store::mongo::semaphores;
use crate::store::mongo::transaction::{self, Failed, Transaction, Tx, TxError, Verdict};
use crate::store::{ClaimAsk, Result, Store as _};

/// How many jobs are read at once at least.
const CHUNK: usize = 32;
/// How many semaphores one transaction reads, give or take those of one job.
const SEMAPHORES_MAX: usize = 32;
/// How many jobs one transaction deals with: it is to end long before the deadline, also on a slow machine.
const JOBS_MAX: usize = 100;

/// How long a claim that is refused unasked waits for room.
const PAUSE: Duration = Duration::from_millis(10);

/// Refuses claims of one queue without reading it, where that may be. Beside other servers, which may have put other jobs there,
/// it is read.
pub async fn refused_unread(mongo: &Mongo, asks: &[&ClaimAsk]) -> Option<Given> {
    let ClaimAsk { queue, .. } = asks.first().filter(|ask| !ask.pop)?;
    let refused = || mongo.semaphores.refused(queue).filter(|refused| refused.is_full && refused.is_alike);
    refused()?;
    if !mongo.signals.is_alone() {
        return None;
    }
    mongo.semaphores.changes(queue, PAUSE).await;
    let won = asks.iter().map(|_| Vec::new()).collect();
    Some(Given { won, ..Given::default() }.refused(mongo, refused()?.semaphore, true))
}

/// Serves requests for one queue, in order, beginning with a head that was read.
pub async fn claim(
    mongo: &Mongo,
    asks: &[&ClaimAsk],
    won: Vec<Vec<Job>>,
    mut found: Heads,
    rules: &Rules,
    (retry_until, end): (Instant, Instant),
) -> Result<Given> {
    let Some(ClaimAsk { queue, pop, .. }) = asks.first() else {
        return Ok(Given { won, ..Given::default() });
    };
    let mut dealing = Dealing {
        mongo,
        asks,
        rules,
        given: Given { won, ..Given::default() },
        retry_until,
        end,
        blocked: 0,
        is_mixed: false,
    };
    let mut asked_for = dealing.wants().len();
    loop {
        let Heads { jobs, read, large, .. } = found;
        let ends = read < asked_for && !large;
        if jobs.is_empty() && ends {
            return Ok(dealing.given);
        }
        // Where none of those that were read can be, those behind them are read in their places.
        if !jobs.is_empty() {
            let refusal = dealing.refusal(queue, &jobs).await;
            if let Refusal::Unasked(semaphore) = refusal {
                return Ok(dealing.given.refused(mongo, semaphore, true));
            }
            let progress = dealing.deal(queue, &jobs, refusal).await?;
            let is_over = progress == Progress::Stopped || (progress == Progress::All && ends);
            if is_over || dealing.wants().is_empty() {
                return Ok(dealing.given);
            }
            if large && dealing.has_won() {
                return Ok(dealing.given.cut());
            }
        }
        if dealing.is_late() {
            return Ok(dealing.given.resuming(mongo.now().ok()));
        }
        asked_for = dealing.wants().len().max(CHUNK);
        found = match head::read(mongo, queue, asked_for, *pop, false, rules).await {
            Err(_) if dealing.has_won() => return Ok(dealing.given.resuming(mongo.now().ok())),
            found => found?,
        };
    }
}

impl Given {
    /// The same where jobs were left ready since this semaphore is full. Another claim may win them in a moment, or now if
    /// it has been released since.
    pub fn refused(self, mongo: &Mongo, semaphore: SemaphoreName, is_full: bool) -> Self {
        let moment_ms = u64::try_from(FULL_FOR.as_millis()).unwrap_or(u64::MAX);
        let at = mongo.now().ok().map(|now| if is_full { now.plus_ms(moment_ms) } else { now });
        Self { refused: Some(semaphore), ..self }.resuming(at)
    }

    /// The same where what was won is large: requests that have none are to be made again.
    fn cut(self) -> Self {
        Self { is_cut: self.won.iter().any(Vec::is_empty), ..self }
    }

    /// The same where others may win more at this time, unless a limit says when.
    fn resuming(self, at: Option<Timestamp>) -> Self {
        Self { resume_at: self.resume_at.or(at), ..self }
    }
}

/// Requests for one queue while they are served.
struct Dealing<'a> {
    mongo: &'a Mongo,
    asks: &'a [&'a ClaimAsk],
    rules: &'a Rules,
    given: Given,
    retry_until: Instant,
    end: Instant,
    /// How many jobs were blocked.
    blocked: usize,
    /// Whether the queue has jobs that do not need the semaphore for which others are refused.
    is_mixed: bool,
}

/// What becomes of jobs that a semaphore stops.
enum Refusal {
    /// They are blocked.
    Blocks,
    /// Those that this one alone stops stay ready, as do all others of the queue.
    Leaves(SemaphoreName),
    /// It is full: nothing is asked.
    Unasked(SemaphoreName),
}

/// What became of the jobs at the head.
#[derive(PartialEq)]
enum Progress {
    /// Each was delivered or blocked.
    All,
    /// Some were not: they are not as they were read any more, or the time is over.
    Some,
    /// A limit of the queue has stopped it.
    Stopped,
}

impl Dealing<'_> {
    fn wants(&self) -> Vec<Want<'_>> {
        admission::wants(self.asks, &self.given.won)
    }

    fn has_won(&self) -> bool {
        self.given.won.iter().any(|jobs| !jobs.is_empty())
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.retry_until
    }

    /// What becomes of these jobs at the head if a semaphore stops them.
    async fn refusal(&mut self, queue: &QueueName, heads: &[Job]) -> Refusal {
        // Who is the first to find it full blocks as many as are considered for room.
        let blocks = self.is_mixed || (1..LINE).contains(&self.blocked);
        let known = if blocks { None } else { self.mongo.semaphores.refused(queue) };
        let Some(Refused { semaphore, is_full, is_alike }) = known else { return Refusal::Blocks };
        if !heads.iter().all(|job| job.meta.semaphores.contains(&semaphore)) {
            return Refusal::Blocks;
        }
        if !is_alike {
            let begin = Instant::now();
            // Where that takes too long, or fails, jobs are blocked, which gets them out of the way.
            self.is_mixed = !head::all_need(self.mongo, queue, &semaphore).await.unwrap_or(false);
            if self.is_mixed {
                return Refusal::Blocks;
            }
            self.mongo.semaphores.note_alike(queue, &semaphore, begin.elapsed());
        }
        if is_full { Refusal::Unasked(semaphore) } else { Refusal::Leaves(semaphore) }
    }

    /// Deals with the head of the queue, some jobs after the other: each part ends in time, and what was won by then is not
    /// lost to one that does not.
    async fn deal(&mut self, queue: &QueueName, heads: &[Job], refusal: Refusal) -> Result<Progress> {
        let leaves = if let Refusal::Leaves(semaphore) = &refusal { Some(semaphore) } else { None };
        let mut rest = heads;
        while !rest.is_empty() {
            let (few, _) = few_semaphores(rest);
            let round = Round { mongo: self.mongo, queue, wants: self.wants(), rules: self.rules, leaves };
            let releases = self.mongo.semaphores.releases();
            let dealt = match round.run(few, self.end, self.retry_until).await {
                Ok(Some(dealt)) => dealt,
                Ok(None) | Err(Failed::Conflict) => return Ok(Progress::Some),
                Err(Failed::NotStored(error))
                    if !error.is_away() && oversized::bury(self.mongo, few, self.rules).await? =>
                {
                    return Ok(Progress::Some); // those behind them are read in their places
                }
                // What was won before goes to those who asked. Where this part may be stored all of it is found again by its claim.
                Err(Failed::NotStored(error)) if self.has_won() => {
                    tracing::warn!(error = crate::store::chain(&error), %queue, "a claim ended before its time");
                    self.given.resume_at = self.given.resume_at.or(self.mongo.now().ok());
                    return Ok(Progress::Stopped);
                }
                Err(failed) => return Err(failed.into()),
            };
            self.mongo.semaphores.learn(dealt.known);
            let full_until =
                dealt.full.as_ref().map(|full| self.mongo.semaphores.found_full(queue, full, releases));
            self.blocked += dealt.blocked;
            let all_done = dealt.granted.len() + dealt.blocked == few.len();
            self.given.offers.extend(dealt.offers);
            self.given.resume_at = dealt.resume_at;
            for (index, job) in dealt.granted {
                if let Some(won) = self.given.won.get_mut(index) {
                    won.push(job);
                }
            }
            if let (true, Some(full)) = (dealt.left > 0, dealt.full) {
                let given = std::mem::take(&mut self.given);
                self.given = given.refused(self.mongo, full, full_until.flatten().is_some());
                return Ok(Progress::Stopped);
            }
            if dealt.is_stopped {
                return Ok(Progress::Stopped);
            }
            rest = &rest[few.len()..];
            if !all_done || (self.is_late() && !rest.is_empty()) {
                return Ok(Progress::Some);
            }
        }
        Ok(Progress::All)
    }
}

/// What a round has done.
#[derive(Default)]
struct Dealt {
    /// With the index of the request that each is for.
    granted: Vec<(usize, Job)>,
    blocked: usize,
    /// How many are as they were, since a semaphore stops them that is full.
    left: usize,
    /// The only semaphore that has stopped any, if there is no room in it.
    full: Option<SemaphoreName>,
    /// What is known of the semaphores now.
    known: Vec<(SemaphoreName, Known)>,
    /// Whether a limit of the queue has stopped it.
    is_stopped: bool,
    resume_at: Option<Timestamp>,
    offers: Vec<SemaphoreName>,
}

struct Round<'a> {
    mongo: &'a Mongo,
    queue: &'a QueueName,
    wants: Vec<Want<'a>>,
    rules: &'a Rules,
    /// Jobs that this one stops stay ready.
    leaves: Option<&'a SemaphoreName>,
}

impl Round<'_> {
    /// Deals with the head of the queue. `None`: it is not as it was read any more.
    async fn run(&self, heads: &[Job], end: Instant, retry_until: Instant) -> Result<Option<Dealt>, Failed> {
        let attempts = transaction::until(self.mongo, end).retrying_until(retry_until);
        attempts.retrying_duplicate_keys().run(Deliver { round: self, heads }).await
    }

    async fn attempt(&self, heads: &[Job], tx: &mut Tx<'_>) -> Result<Verdict<Option<Dealt>>, TxError> {
        let mut allowance = self.allowance(tx).await?;
        let most = allowance.most(self.wants.len());
        if most == 0 {
            let resume_at = allowance.resumes_at();
            return Ok(Verdict::Abort(Some(Dealt { is_stopped: true, resume_at, ..Dealt::default() })));
        }
        let (heads, names) = few_semaphores(heads);
        let read_at = allowance.now();
        let (mut admission, locked) = semaphores::lock(&names, heads.len(), self.rules, read_at, tx).await?;
        // The estimate of the store's clock lags behind it, which has found all of these to be due.
        let now = heads.iter().map(|job| job.meta.run_at).fold(read_at, Ord::max);
        let mut verdicts = admission::judge(heads, &self.wants[..most], &mut admission, |job| &job.meta);
        let full = only(verdicts.blocked.iter().map(|(_, semaphore)| semaphore)).cloned();
        let full = full.filter(|semaphore| !admission.has_room(semaphore));
        let stopped = verdicts.blocked.len();
        if full.is_some() && full.as_ref() == self.leaves {
            // Those that have waited keep their place in the line.
            verdicts.blocked.retain(|(job, _)| job.meta.waiting_since.is_some());
        }
        let left = stopped - verdicts.blocked.len();
        if verdicts.granted.is_empty() && verdicts.blocked.is_empty() {
            return Ok(Verdict::Abort(Some(Dealt { left, full, ..Dealt::default() })));
        }
        let known = locked.admitting(verdicts.granted.iter().map(|(job, _)| &job.meta));
        let Some((granted, blocked)) = write(&verdicts, now, tx).await? else {
            return Ok(Verdict::Abort(None));
        };
        // What blocks a job may have been released in between, unseen.
        let blocking = verdicts.blocked.into_iter().map(|(_, semaphore)| semaphore);
        let offers = verdicts.offers.into_iter().chain(blocking).collect();
        if let Some(deliveries) = allowance.note(granted.len(), now) {
            let update = doc! { "$set": { "recent": serialized(deliveries)? } };
            let limits = tx.collection(LIMITS);
            let update = limits.update_one(doc! { "_id": self.queue.as_str() }, update);
            update.session(tx.session()).await?;
        }
        let is_spent = allowance.is_spent(granted.len());
        let resume_at = if is_spent { allowance.resumes_at() } else { None };
        let is_stopped = is_spent && granted.len() < self.wants.len();
        tx.changes.moved(self.queue, RESERVE.from, RESERVE.to, granted.len() as u64);
        tx.changes.moved(self.queue, BLOCK.from, BLOCK.to, blocked as u64);
        Ok(Verdict::Commit(Some(Dealt {
            granted,
            blocked,
            left,
            full,
            known,
            is_stopped,
            resume_at,
            offers,
        })))
    }

    /// Writes the document of the queue's limits, where it has any. Returns what they allow.
    async fn allowance(&self, tx: &mut Tx<'_>) -> Result<Allowance, TxError> {
        let (max_reserved, rate) = (self.rules.max_reserved(self.queue), self.rules.rate(self.queue));
        let mut now = self.mongo.now()?;
        if max_reserved.is_none() && rate.is_none() {
            return Ok(Allowance::new(None, None, now));
        }
        let limits = tx.collection(LIMITS);
        let update = vec![doc! { "$set": { "at": "$$NOW", "rev": rand::random::<i64>() } }];
        let update = limits
            .find_one_and_update(doc! { "_id": self.queue.as_str() }, update)
            .upsert(true)
            .return_document(ReturnDocument::After)
            .projection(doc! { "at": 1, "recent": 1 }); // not what another program added
        let found = update.session(tx.session()).await?.unwrap_or_default();
        let reserved = match max_reserved {
            Some(max) => Some((max, self.reserved(max, tx).await?)),
            None => None,
        };
        let mut recent = None;
        if let Some(rate) = rate {
            let row = Row(&found);
            now = row.time("at")?.ok_or_else(|| row.fault("at"))?;
            recent = Some((rate, deliveries_of(&found)));
        }
        Ok(Allowance::new(reserved, recent, now))
    }

    /// Counts the reserved jobs of the queue, up to `most`.
    async fn reserved(&self, most: u64, tx: &mut Tx<'_>) -> Result<u64, TxError> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let pipeline = [
            doc! { "$match": { "queue": self.queue.as_str(), "state": "reserved" } },
            doc! { "$limit": most },
            doc! { "$count": "n" },
        ];
        let jobs = tx.collection(JOBS);
        let counted = jobs.aggregate(pipeline).hint(Hint::Name("browse".to_owned()));
        let found = tx.aggregate(counted).await?;
        Ok(found.first().map_or(0, |found| count(found, "n")))
    }
}

/// Delivers or blocks the jobs at the head, as the limits allow.
///
/// Idempotence: the jobs are guarded by the `rev` that was read, so that one attempt at most has them. Where the
/// outcome is unknown, the claim's token finds what it won, and the caller gives it back.
struct Deliver<'a> {
    round: &'a Round<'a>,
    heads: &'a [Job],
}

impl Transaction for Deliver<'_> {
    type Done = Option<Dealt>;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Option<Dealt>>, TxError> {
        self.round.attempt(self.heads, tx).await
    }
}

/// Writes which jobs are delivered and which are blocked. Returns the former, as they are then, with the index of the request that
/// each is for, and how many the latter are; `None` if one of the jobs is not as it was read.
async fn write(
    Verdicts { granted, blocked, .. }: &Verdicts<'_, &Job>,
    now: Timestamp,
    tx: &mut Tx<'_>,
) -> Result<Option<(Vec<(usize, Job)>, usize)>, TxError> {
    let rev = rand::random();
    let reserved = granted.iter().map(|(job, want)| reserved((*job).clone(), want.ask, rev, now));
    let reserved: Vec<Job> = reserved.collect::<Result<_>>()?;
    let change = |before: &Meta, update| Rewrite {
        id: before.id.as_str().to_owned(),
        rev: before.rev,
        from: before.state,
        update,
        document: None,
    };
    let reserving = granted.iter().zip(&reserved);
    let mut changes: Vec<Rewrite> =
        reserving.map(|((job, _), then)| change(&job.meta, transitions::reserve_one(&then.meta))).collect();
    for (job, semaphore) in blocked {
        let mut meta = job.meta.clone();
        delivery::block(&mut meta, semaphore, now).map_err(not_as_read)?;
        changes.push(change(&job.meta, transitions::block_one(&meta, rev)));
    }
    let found = rewrite::write(changes, Vec::new(), tx).await?;
    let expected = reserved.len() + blocked.len();
    let reserved = granted.iter().map(|(_, want)| want.index).zip(reserved).collect();
    Ok((found == expected as u64).then_some((reserved, blocked.len())))
}

/// Returns what all of these are.
fn only<T: PartialEq>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

/// Returns as many of the first jobs as one transaction deals with, and what they need: it reads each semaphore on its own.
fn few_semaphores(heads: &[Job]) -> (&[Job], Vec<&SemaphoreName>) {
    let mut names = BTreeSet::new();
    let mut few = 0;
    for job in heads {
        if few == JOBS_MAX || (few > 0 && names.len() + job.meta.semaphores.len() > SEMAPHORES_MAX) {
            break;
        }
        names.extend(&job.meta.semaphores);
        few += 1;
    }
    (&heads[..few], names.into_iter().collect())
}
