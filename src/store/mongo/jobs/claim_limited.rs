//! Claims of jobs that need semaphores, and of queues that limit their deliveries.
//!
//! Two claims that each merely count find room, and both claim. So each writes the documents of its limits in the
//! transaction that claims, before all else: of claims that meet there one goes on, and the others begin again after
//! a random pause. What makes room (commits, rollbacks, lapses) writes none of these documents and meets nobody.
//!
//! The head is read beforehand, and the jobs are written guarded by their `rev`, as by any claim.

use std::collections::{BTreeMap, BTreeSet};

use mongodb::bson::{Bson, doc};
use mongodb::options::{Hint, ReturnDocument};
use tokio::time::Instant;

use crate::job::rate::Deliveries;
use crate::job::semaphore::Admission;
use crate::job::settings::Rate;
use crate::job::{Job, QueueName, Rules, SemaphoreName, State, Timestamp};
use crate::store::mongo::JOBS;
use crate::store::mongo::LIMITS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::count;
use crate::store::mongo::jobs::delivery::{changes, reserved};
use crate::store::mongo::jobs::document::{Row, date, serialized};
use crate::store::mongo::jobs::head::{self, Heads};
use crate::store::mongo::semaphores::{self, Reader};
use crate::store::mongo::transaction::{self, Failed, Transaction, Tx, TxError, Verdict};
use crate::store::{ClaimAsk, Result, Store as _};

/// How many jobs are read at once at least.
const CHUNK: usize = 32;
/// How many semaphores one transaction looks at, give or take those of one job.
const SEMAPHORES_MAX: usize = 32;

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
pub fn is_limited(queue: &QueueName, heads: &Heads, rules: &Rules) -> bool {
    rules.max_reserved(queue).is_some()
        || rules.rate(queue).is_some()
        || heads.jobs.iter().any(|job| !job.meta.semaphores.is_empty())
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
    let mut given = Given { won, ..Given::default() };
    let Some(ClaimAsk { queue, pop, .. }) = asks.first() else { return Ok(given) };
    let mut asked_for = wants(asks, &given.won).len();
    loop {
        let Heads { jobs, read, large } = found;
        let ends = read < asked_for && !large;
        if jobs.is_empty() {
            return Ok(given);
        }
        let wants: Vec<&ClaimAsk> = wants(asks, &given.won);
        let round = Round { mongo, queue, wants, rules };
        let met = round.run(&jobs, end, retry_until).await?;
        let all_met = met.as_ref().is_some_and(|met| met.granted.len() + met.blocked == jobs.len());
        if let Some(met) = met {
            given.offers.extend(met.offers);
            given.resume_at = met.resume_at;
            for job in met.granted {
                let place = asks.iter().position(|ask| job.meta.claim.as_ref() == Some(&ask.claim));
                if let Some(won) = place.and_then(|place| given.won.get_mut(place)) {
                    won.push(job);
                }
            }
            if met.is_stopped {
                return Ok(given);
            }
        }
        let left = self::wants(asks, &given.won).len();
        if left == 0 || (all_met && ends) {
            return Ok(given);
        }
        if Instant::now() >= retry_until {
            given.resume_at = given.resume_at.or(mongo.now().ok());
            return Ok(given);
        }
        asked_for = left.max(CHUNK);
        found = head::read(mongo, queue, asked_for, *pop).await?;
    }
}

/// Who is still to be served, once for each job.
fn wants<'a>(asks: &[&'a ClaimAsk], won: &[Vec<Job>]) -> Vec<&'a ClaimAsk> {
    let missing = asks.iter().zip(won).map(|(ask, won)| (*ask, ask.count.saturating_sub(won.len())));
    missing.flat_map(|(ask, count)| std::iter::repeat_n(ask, count)).collect()
}

/// What a round has done.
struct Met {
    granted: Vec<Job>,
    blocked: usize,
    /// A limit of the queue has stopped it.
    is_stopped: bool,
    resume_at: Option<Timestamp>,
    offers: Vec<SemaphoreName>,
}

/// How many jobs a queue may still deliver, at this moment.
struct Left {
    jobs: usize,
    rate: Option<(Rate, Deliveries)>,
    now: Timestamp,
}

struct Round<'a> {
    mongo: &'a Mongo,
    queue: &'a QueueName,
    wants: Vec<&'a ClaimAsk>,
    rules: &'a Rules,
}

impl Round<'_> {
    /// Deals with the head of the queue. `None`: it is not as it was read any more, or others were in the way for too
    /// long.
    async fn run(&self, heads: &[Job], end: Instant, retry_until: Instant) -> Result<Option<Met>> {
        let attempts = transaction::until(self.mongo, end).retrying_until(retry_until);
        match attempts.retrying_duplicate_keys().run(Deliver { round: self, heads }).await {
            Ok(met) => Ok(met),
            Err(Failed::Conflict) => Ok(None),
            Err(failed) => Err(failed.into()),
        }
    }

    async fn attempt(&self, heads: &[Job], tx: &mut Tx<'_>) -> Result<Verdict<Option<Met>>, TxError> {
        let left = self.left(tx).await?;
        let most = left.jobs.min(self.wants.len());
        if most == 0 {
            let resume_at = left.rate.and_then(|(rate, deliveries)| deliveries.resumes_at(rate, left.now));
            let (granted, offers) = (Vec::new(), Vec::new());
            return Ok(Verdict::Abort(Some(Met {
                granted,
                blocked: 0,
                is_stopped: true,
                resume_at,
                offers,
            })));
        }
        let (heads, names) = few_semaphores(heads);
        semaphores::lock(&names, tx).await?;
        let admission = semaphores::admission(&mut Reader::Within(tx), &names, self.rules, left.now).await?;
        // The estimate of the store's clock lags behind it, which has found all of these to be due.
        let now = heads.iter().map(|job| job.meta.run_at).fold(left.now, Ord::max);
        let verdicts = self.judge(heads, most, admission, now);
        if !write(&verdicts, now, tx).await? {
            return Ok(Verdict::Abort(None));
        }
        let Verdicts { granted, blocked, offers, .. } = verdicts;
        let is_stopped = granted.len() == left.jobs && granted.len() < self.wants.len();
        let resume_at = self.note(left, granted.len(), now, tx).await?.filter(|_| is_stopped);
        let granted: Vec<Job> = granted.into_iter().map(|(job, _)| job).collect();
        let blocked = blocked.values().map(Vec::len).sum();
        tx.changes.moved(self.queue, State::Ready, State::Reserved, granted.len() as u64);
        tx.changes.moved(self.queue, State::Ready, State::Blocked, blocked as u64);
        Ok(Verdict::Commit(Some(Met { granted, blocked, is_stopped, resume_at, offers })))
    }

    /// Says of each job whether it is delivered or blocked, until `most` are delivered.
    fn judge<'h>(
        &self,
        heads: &'h [Job],
        most: usize,
        mut admission: Admission<'_>,
        now: Timestamp,
    ) -> Verdicts<'_, 'h> {
        let (rev, mut offers) = (rand::random(), Vec::new());
        let (mut granted, mut revs) = (Vec::new(), Vec::new());
        let mut blocked: BTreeMap<&SemaphoreName, Vec<&Job>> = BTreeMap::new();
        for job in heads {
            let Some(ask) = self.wants.get(granted.len()).filter(|_| granted.len() < most) else { break };
            match admission.stopped_by(&job.meta) {
                Some(semaphore) => {
                    blocked.entry(semaphore).or_default().push(job);
                    offers.push(semaphore.clone()); // it may have been released in between, unseen
                }
                None => {
                    admission.grant(&job.meta);
                    revs.push(job.meta.rev);
                    let mut job = reserved(job.clone(), ask, rev, now);
                    (job.meta.waits_for, job.meta.waiting_since) = (None, None);
                    granted.push((job, *ask));
                }
            }
            offers.extend(admission.offers(&job.meta).cloned());
        }
        Verdicts { granted, revs, rev, blocked, offers }
    }

    /// Writes the document of the queue's limits, where it has any, and says what they allow.
    async fn left(&self, tx: &mut Tx<'_>) -> Result<Left, TxError> {
        let (max_reserved, rate) = (self.rules.max_reserved(self.queue), self.rules.rate(self.queue));
        let mut left = Left { jobs: usize::MAX, rate: None, now: self.mongo.now()? };
        if max_reserved.is_none() && rate.is_none() {
            return Ok(left);
        }
        let limits = tx.collection(LIMITS);
        let update = vec![doc! { "$set": { "at": "$$NOW", "rev": rand::random::<i64>() } }];
        let update = limits
            .find_one_and_update(doc! { "_id": self.queue.as_str() }, update)
            .upsert(true)
            .return_document(ReturnDocument::After);
        let found = update.session(tx.session()).await?.unwrap_or_default();
        if let Some(max) = max_reserved {
            let room = max.saturating_sub(self.reserved(max, tx).await?);
            left.jobs = usize::try_from(room).unwrap_or(usize::MAX);
        }
        if let Some(rate) = rate {
            let row = Row(&found);
            left.now = row.time("at")?.ok_or_else(|| row.fault("at"))?;
            let deliveries: Deliveries = row.part("recent")?.unwrap_or_default();
            left.jobs = left.jobs.min(usize::try_from(deliveries.room(rate, left.now)).unwrap_or(usize::MAX));
            left.rate = Some((rate, deliveries));
        }
        Ok(left)
    }

    /// How many jobs of the queue are reserved, counted up to `most`.
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

    /// Remembers so many deliveries. Answers when the next one is allowed, if that is later.
    async fn note(
        &self,
        left: Left,
        granted: usize,
        now: Timestamp,
        tx: &mut Tx<'_>,
    ) -> Result<Option<Timestamp>, TxError> {
        let Some((rate, mut deliveries)) = left.rate else { return Ok(None) };
        if granted > 0 {
            deliveries.note(rate, now, granted as u64);
            let limits = tx.collection(LIMITS);
            let update = doc! { "$set": { "recent": serialized(&deliveries) } };
            let update = limits.update_one(doc! { "_id": self.queue.as_str() }, update);
            update.session(tx.session()).await?;
        }
        Ok(deliveries.resumes_at(rate, now))
    }
}

/// The jobs at the head are delivered or blocked, as the limits allow.
///
/// Idempotence: the jobs are guarded by the `rev` that was read, so that one attempt at most has them. Where the
/// outcome is unknown, the claim's token finds what it won, and the caller gives it back.
struct Deliver<'a> {
    round: &'a Round<'a>,
    heads: &'a [Job],
}

impl Transaction for Deliver<'_> {
    type Done = Option<Met>;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Option<Met>>, TxError> {
        self.round.attempt(self.heads, tx).await
    }
}

/// What is to become of the jobs at the head.
struct Verdicts<'a, 'h> {
    /// The jobs as they are once they are delivered, and to whom.
    granted: Vec<(Job, &'a ClaimAsk)>,
    /// The `rev`s that these had.
    revs: Vec<i64>,
    /// The one that they have then.
    rev: i64,
    /// Those that are blocked, by the semaphore.
    blocked: BTreeMap<&'h SemaphoreName, Vec<&'h Job>>,
    offers: Vec<SemaphoreName>,
}

/// Writes who is delivered and who is blocked. False if one of the jobs is not as it was read.
async fn write(
    Verdicts { granted, revs, rev, blocked, .. }: &Verdicts<'_, '_>,
    now: Timestamp,
    tx: &mut Tx<'_>,
) -> Result<bool, TxError> {
    let guarded = |jobs: &[&Job], revs: &[i64], update: Bson| {
        let ids: Vec<&str> = jobs.iter().map(|job| job.meta.id.as_str()).collect();
        let guard = doc! { "_id": { "$in": ids }, "rev": { "$in": revs }, "state": "ready" };
        doc! { "q": guard, "u": update, "multi": true, "hint": { "_id": 1 } }
    };
    let mut statements = Vec::with_capacity(blocked.len() + 1);
    if !granted.is_empty() {
        let jobs: Vec<&Job> = granted.iter().map(|(job, _)| job).collect();
        statements.push(guarded(&jobs, revs, delivered(changes(granted, *rev, now))));
    }
    for (semaphore, jobs) in blocked {
        let revs: Vec<i64> = jobs.iter().map(|job| job.meta.rev).collect();
        let set = doc! {
            "state": "blocked", "waits_for": semaphore.as_str(),
            "waiting_since": { "$ifNull": ["$waiting_since", date(now)] },
            "rev": rand::random::<i64>(), "due": "$$REMOVE", "called_at": "$$REMOVE",
        };
        statements.push(guarded(jobs, &revs, vec![doc! { "$set": set }].into()));
    }
    let expected = granted.len() + blocked.values().map(Vec::len).sum::<usize>();
    let found = tx.write(doc! { "update": JOBS, "updates": statements }).await?;
    Ok(found == expected as u64)
}

/// As many of the first jobs as one transaction deals with, and what they need: it reads each semaphore on its own.
fn few_semaphores(heads: &[Job]) -> (&[Job], Vec<&SemaphoreName>) {
    let mut names = BTreeSet::new();
    let mut few = 0;
    for job in heads {
        if few > 0 && names.len() + job.meta.semaphores.len() > SEMAPHORES_MAX {
            break;
        }
        names.extend(&job.meta.semaphores);
        few += 1;
    }
    (&heads[..few], names.into_iter().collect())
}

/// The update of a delivery, for jobs that may have waited.
fn delivered(update: Bson) -> Bson {
    const GONE: [&str; 3] = ["waits_for", "waiting_since", "called_at"];
    match update {
        Bson::Document(mut update) => {
            if let Ok(unset) = update.get_document_mut("$unset") {
                unset.extend(GONE.map(|field| (field.to_owned(), "".into())));
            }
            Bson::Document(update)
        }
        Bson::Array(mut stages) => {
            stages.push(Bson::Document(doc! { "$unset": GONE.to_vec() }));
            Bson::Array(stages)
        }
        other => other,
    }
}
