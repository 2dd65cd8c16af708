//! Claims of jobs that need semaphores, and of queues that limit their deliveries.
//!
//! Two claims that each merely count find room, and both claim. So each writes the documents of its limits in the
//! transaction that claims, before all else: of claims that conflict there one goes on, and the others retry with
//! backoff. What makes room (commits, rollbacks, lapses) writes none of these documents and conflicts with no claim.
//!
//! The head is read beforehand, and the jobs are written guarded by their `rev`, as by any claim.

use std::collections::{BTreeMap, BTreeSet};

use mongodb::bson::doc;
use mongodb::options::{Hint, ReturnDocument};
use tokio::time::Instant;

use crate::job::transition::delivery::{self, BLOCK, RESERVE};
use crate::job::{Job, Meta, QueueName, Rules, SemaphoreName, Timestamp};
use crate::store::admission::{self, Allowance, Given, Verdicts, Want};
use crate::store::mongo::JOBS;
use crate::store::mongo::LIMITS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::count;
use crate::store::mongo::jobs::document::{Row, serialized};
use crate::store::mongo::jobs::head::{self, Heads};
use crate::store::mongo::jobs::transitions::{self, not_as_read, reserved};
use crate::store::mongo::semaphores::{self, Reader};
use crate::store::mongo::transaction::{self, Failed, Transaction, Tx, TxError, Verdict};
use crate::store::{ClaimAsk, Result, Store as _};

/// How many jobs are read at once at least.
const CHUNK: usize = 32;
/// How many semaphores one transaction reads, give or take those of one job.
const SEMAPHORES_MAX: usize = 32;
/// How many jobs one transaction deals with: it is to end long before the deadline, also on a slow machine.
const JOBS_MAX: usize = 100;

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
    let mut dealing =
        Dealing { mongo, asks, rules, given: Given { won, ..Given::default() }, retry_until, end };
    let mut asked_for = dealing.wants().len();
    loop {
        let Heads { jobs, read, large, .. } = found;
        let ends = read < asked_for && !large;
        if jobs.is_empty() {
            return Ok(dealing.given);
        }
        let progress = dealing.deal(queue, &jobs).await?;
        let left = dealing.wants().len();
        if left == 0 || progress == Progress::Stopped || (progress == Progress::All && ends) {
            return Ok(dealing.given);
        }
        if dealing.is_late() {
            return Ok(dealing.given.resuming(mongo.now().ok()));
        }
        asked_for = left.max(CHUNK);
        found = match head::read(mongo, queue, asked_for, *pop, false).await {
            Err(_) if dealing.has_won() => return Ok(dealing.given.resuming(mongo.now().ok())),
            found => found?,
        };
    }
}

impl Given {
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

    /// Deals with the head of the queue, some jobs after the other: each part ends in time, and what was won by then is not
    /// lost to one that does not.
    async fn deal(&mut self, queue: &QueueName, heads: &[Job]) -> Result<Progress> {
        let mut rest = heads;
        while !rest.is_empty() {
            let (few, _) = few_semaphores(rest);
            let round = Round { mongo: self.mongo, queue, wants: self.wants(), rules: self.rules };
            let dealt = match round.run(few, self.end, self.retry_until).await {
                Ok(Some(dealt)) => dealt,
                Ok(None) | Err(Failed::Conflict) => return Ok(Progress::Some),
                // What was won before goes to those who asked. Where this part may be stored all of it is found again by its claim.
                Err(Failed::NotStored(error)) if self.has_won() => {
                    tracing::warn!(error = crate::store::chain(&error), %queue, "a claim ended before its time");
                    self.given.resume_at = self.given.resume_at.or(self.mongo.now().ok());
                    return Ok(Progress::Stopped);
                }
                Err(failed) => return Err(failed.into()),
            };
            let all_done = dealt.granted.len() + dealt.blocked == few.len();
            self.given.offers.extend(dealt.offers);
            self.given.resume_at = dealt.resume_at;
            for (index, job) in dealt.granted {
                if let Some(won) = self.given.won.get_mut(index) {
                    won.push(job);
                }
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
        semaphores::lock(&names, tx).await?;
        let read_at = allowance.now();
        let reader = &mut Reader::Within(tx);
        let mut admission = semaphores::admission(reader, &names, self.rules, read_at).await?;
        // The estimate of the store's clock lags behind it, which has found all of these to be due.
        let now = heads.iter().map(|job| job.meta.run_at).fold(read_at, Ord::max);
        let verdicts = admission::judge(heads, &self.wants[..most], &mut admission, |job| &job.meta);
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
        Ok(Verdict::Commit(Some(Dealt { granted, blocked, is_stopped, resume_at, offers })))
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
            recent = Some((rate, row.part("recent")?.unwrap_or_default()));
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
    let mut statements = Vec::new();
    let rev = rand::random();
    let reserved = granted.iter().map(|(job, want)| reserved((*job).clone(), want.ask, rev, now));
    let reserved: Vec<Job> = reserved.collect::<Result<_>>()?;
    if !reserved.is_empty() {
        let revs: Vec<i64> = granted.iter().map(|(job, _)| job.meta.rev).collect();
        statements.push(transitions::reserve(&reserved, &revs, true));
    }
    let mut alike: BTreeMap<(&SemaphoreName, Option<Timestamp>), Vec<Meta>> = BTreeMap::new();
    for (job, semaphore) in blocked {
        let mut meta = job.meta.clone();
        delivery::block(&mut meta, semaphore, now).map_err(not_as_read)?;
        alike.entry((semaphore, meta.waiting_since)).or_default().push(meta);
    }
    statements.extend(alike.values().map(|jobs| transitions::block(jobs)));
    let found = tx.write(doc! { "update": JOBS, "updates": statements }).await?;
    let expected = reserved.len() + blocked.len();
    let reserved = granted.iter().map(|(_, want)| want.index).zip(reserved).collect();
    Ok((found == expected as u64).then_some((reserved, blocked.len())))
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
