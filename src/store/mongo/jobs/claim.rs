//! Reserving: read the jobs at the head of the queue, reserve them, return what was read.
//!
//! Optimistic concurrency: the write is guarded by the `rev` of each job that was read, a random number that every
//! write replaces. A job that it finds is the job that was read, so that nothing needs to be read back. Only after a
//! conflict with another claim, or where the result of the write is lost, the claim looks up what it won.
//! Requests for the same queue that come in one call share a round; each has a claim of its own.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use futures::TryStreamExt;
use mongodb::Database;
use mongodb::bson::{Document, doc};
use mongodb::options::Hint;
use tokio::time::Instant;

use crate::faults;
use crate::job::trace::OfJob;
use crate::job::transition::delivery::RESERVE;
use crate::job::{Claim, Job, JobId, Mark, Meta, QueueName, Rules, Timestamp};
use crate::store::admission::{self, Given};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{barrier, fault, update_jobs};
use crate::store::mongo::jobs::claim_limited;
use crate::store::mongo::jobs::document::{readable, to_job, to_meta, without_contents};
use crate::store::mongo::jobs::head::{self, Heads};
use crate::store::mongo::jobs::oversized;
use crate::store::mongo::jobs::transitions::{self, reserved};
use crate::store::mongo::stored::Stored;
use crate::store::{ClaimAsk, Claims, Result, Store as _};

/// Serves the claims of one call: those for the same queue share their rounds, the queues are served in parallel.
pub async fn claim_all(mongo: &Mongo, asks: &[ClaimAsk], rules: &Rules) -> Result<Claims> {
    let now = mongo.now()?;
    let mut queues: Vec<(&ClaimAsk, Vec<usize>)> = Vec::new();
    for (n, ask) in asks.iter().enumerate() {
        match queues.iter_mut().find(|(first, _)| first.queue == ask.queue && first.pop == ask.pop) {
            Some((_, members)) => members.push(n),
            None => queues.push((ask, vec![n])),
        }
    }
    let rounds = queues.iter().map(|(first, members)| async move {
        let asks: Vec<&ClaimAsk> = members.iter().filter_map(|n| asks.get(*n)).collect();
        let given = match claim_limited::refused_unread(mongo, &asks).await {
            Some(refused) => Ok(refused),
            None => claim(mongo, first, &asks, rules, now).await,
        };
        if let Ok(given) = &given {
            // Read before: all calls that settle or claim wait while `remember` runs.
            let won: Vec<_> =
                given.won.iter().flatten().map(|job| (&job.meta, OfJob::read(&job.headers))).collect();
            mongo.delivered.remember(won.into_iter());
        }
        (&first.queue, members, given)
    });
    let mut claims = Claims { won: asks.iter().map(|_| Ok(Vec::new())).collect(), ..Claims::default() };
    for (queue, members, given) in futures::future::join_all(rounds).await {
        match given {
            Ok(Given { won, resume_at, offers, refused, is_cut }) => {
                members.iter().zip(won).for_each(|(n, jobs)| claims.won[*n] = Ok(jobs));
                claims.resume.extend(resume_at.map(|at| (queue.clone(), at)));
                claims.again.extend(is_cut.then(|| queue.clone()));
                claims.offers.extend(offers);
                claims.refused.extend(refused.map(|semaphore| (semaphore, queue.clone())));
            }
            Err(error) => members.iter().for_each(|n| claims.won[*n] = Err(error.clone())),
        }
    }
    Ok(claims)
}

/// Serves requests for one queue, in order.
async fn claim(
    mongo: &Mongo,
    ClaimAsk { queue, pop, .. }: &ClaimAsk,
    asks: &[&ClaimAsk],
    rules: &Rules,
    now: Timestamp,
) -> Result<Given> {
    let mut won: Vec<Vec<Job>> = asks.iter().map(|_| Vec::new()).collect();
    // There may be one conflict after the other: long before the callers' deadlines, they get what there is.
    let (begin, deadline) = (Instant::now(), mongo.connection.deadline());
    // The end of a part comes before that of the verb, which returns nothing of what was won.
    let (retry_until, end) = (begin + deadline / 2, begin + deadline - deadline / 20);
    let may_read_ahead = !admission::is_limited(queue, std::iter::empty(), rules);
    let (mut is_mixed, mut is_large) = (false, false);
    loop {
        let wanted: usize = asks.iter().zip(&won).map(|(ask, jobs)| ask.count - jobs.len()).sum();
        if wanted == 0 {
            break;
        }
        let began = Instant::now();
        let mut found = match head::read(mongo, queue, wanted, *pop, may_read_ahead, rules).await {
            Err(_) if won.iter().any(|jobs| !jobs.is_empty()) => break,
            found => found?,
        };
        faults::point("claim.read").await;
        let is_stale = drop_won(&mut found.jobs, &won);
        if admission::is_limited(queue, found.jobs.iter().map(|job| &job.meta), rules) {
            return claim_limited::claim(mongo, asks, won, found, rules, (retry_until, end)).await;
        }
        let Heads { jobs: heads, read, large, rest, is_kept } = found;
        let (attempted, taken) = (heads.len(), take(mongo, asks, &won, heads, rules, now).await?);
        let all_taken = taken.len() == attempted && !is_stale;
        for (index, job) in taken {
            if let Some(jobs) = won.get_mut(index) {
                jobs.push(job);
            }
        }
        is_mixed |= !all_taken;
        rest.filter(|_| all_taken).into_iter().for_each(|rest| mongo.heads.keep(queue, rest));
        let is_at_end = (attempted == 0 && is_stale && !is_kept) || (read < wanted && all_taken && !large);
        // Where jobs that were read ahead are gone, others may be there: they are read at once.
        let is_conflict = !all_taken && !is_kept;
        // Of large jobs, and after a conflict, fewer are enough. Requests that have none are made again where others have large ones.
        is_large = large && won.iter().any(|jobs| !jobs.is_empty());
        let is_enough = is_large || (is_conflict && won.iter().all(|jobs| !jobs.is_empty()));
        if is_at_end || is_enough || Instant::now() >= retry_until {
            break;
        }
        if is_conflict {
            // Backoff with jitter: servers in step with each other would go on to read the same head at once.
            tokio::time::sleep(began.elapsed().mul_f64(rand::random())).await;
        }
    }
    if is_mixed {
        // A job that had changed since it was read ahead was read again, behind those that were won, and comes before them.
        won.iter_mut().for_each(|jobs| jobs.sort_by(in_order));
    }
    Ok(Given { is_cut: is_large && won.iter().any(Vec::is_empty), won, ..Given::default() })
}

/// Drops the jobs that these requests have won, and returns whether there were any. Another claim may have read them ahead before they
/// were won, and the requests of a round share their claim: it proves that the round has won a job, not that it did so just now.
fn drop_won(jobs: &mut Vec<Job>, won: &[Vec<Job>]) -> bool {
    let won: HashSet<&JobId> = won.iter().flatten().map(|job| &job.meta.id).collect();
    let read = jobs.len();
    jobs.retain(|job| !won.contains(&job.meta.id));
    jobs.len() < read
}

/// Compares two jobs of a queue by the order of delivery.
fn in_order(a: &Job, b: &Job) -> Ordering {
    let key = |job: &Job| (-i64::from(job.meta.priority), job.meta.run_at);
    key(a).cmp(&key(b)).then_with(|| a.meta.id.cmp(&b.meta.id))
}

/// Reserves the jobs for the requests in order. Returns those that it won, as they are now, each with the index of its request.
async fn take(
    mongo: &Mongo,
    asks: &[&ClaimAsk],
    won: &[Vec<Job>],
    heads: Vec<Job>,
    rules: &Rules,
    now: Timestamp,
) -> Result<Vec<(usize, Job)>> {
    let Some(queue) = heads.first().map(|job| job.meta.queue.clone()) else {
        return Ok(Vec::new());
    };
    let (database, counters) = (mongo.connection.database().await?, &mongo.counters);
    // The estimate of the store's clock lags behind it, which has found all of these to be due.
    let now = heads.iter().map(|job| job.meta.run_at).fold(now, Ord::max);
    let wants = admission::wants(asks, won);
    let revs: Vec<i64> = heads.iter().map(|job| job.meta.rev).collect();
    let rev: i64 = rand::random();
    let indexes: Vec<usize> = wants.iter().map(|want| want.index).collect();
    let taken = heads.into_iter().zip(wants).map(|(job, want)| reserved(job, want.ask, rev, now));
    let taken: Vec<Job> = taken.collect::<Result<_>>()?;
    let statement = transitions::reserve(&taken, &revs);
    let sent = counters.sending([&queue]);
    let written = update_jobs(&mongo.connection, vec![statement]).await;
    faults::point("claim.written").await;
    if let Ok(count) = &written {
        counters.moved(&queue, RESERVE.from, RESERVE.to, *count);
        sent.answered();
        if *count == 0 {
            return Ok(Vec::new()); // other claims have won all of them
        }
        if *count == taken.len() as u64 {
            return Ok(indexes.into_iter().zip(taken).collect());
        }
    }
    // A conflict with another claim, or the result is lost: what bears its claim was won.
    let since = mongo.connection.term();
    let mut found = won_of(database, &taken).await?;
    // What the reply counts is with a majority.
    if let Err(error) = written {
        // Where MongoDB has refused a document those before it are won, and nothing is under way.
        let is_unknown = error.is_away() && found.len() < taken.len();
        let has_some =
            !found.is_empty() || (!error.is_away() && oversized::bury(mongo, &taken, rules).await?);
        if is_unknown || !has_some {
            return Err(error); // what may still be written bears the claim, and is given back
        }
        barrier(&mongo.connection, since).await?;
        counters.moved(&queue, RESERVE.from, RESERVE.to, found.len() as u64);
    }
    let own = |(index, job): (usize, Job)| {
        let meta = found.remove(&job.meta.id).filter(|meta| meta.claim == job.meta.claim)?;
        Some((index, Job { meta, ..job }))
    };
    Ok(indexes.into_iter().zip(taken).filter_map(own).collect())
}

/// Returns what a claim has won of these jobs, as they are by now: a heartbeat, or a request to cancel, may have written them since.
async fn won_of(database: &Database, taken: &[Job]) -> Result<HashMap<JobId, Meta>> {
    let ids: Vec<&str> = taken.iter().map(|job| job.meta.id.as_str()).collect();
    let claims: HashSet<&str> =
        taken.iter().filter_map(|job| Some(job.meta.claim.as_ref()?.as_str())).collect();
    let claims: Vec<&str> = claims.into_iter().collect();
    let filter = doc! { "_id": { "$in": ids }, "state": "reserved", "claim": { "$in": claims } };
    let jobs = database.collection::<Stored>(JOBS);
    let find = jobs.find(filter).projection(without_contents());
    let documents: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    documents.iter().map(|document| to_meta(document).map(|meta| (meta.id.clone(), meta))).collect()
}

/// Returns the jobs that a claim holds in these queues, in the order of delivery.
pub async fn held(database: &Database, queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>> {
    let names: Vec<&str> = queues.iter().map(QueueName::as_str).collect();
    let filter = doc! { "queue": { "$in": names }, "state": "reserved", "claim": claim.as_str() };
    let cursor = database.collection::<Stored>(JOBS).find(filter).await.map_err(fault)?;
    let documents: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
    let mut jobs = readable(&documents, to_job);
    jobs.sort_by(in_order);
    Ok(jobs)
}

/// Returns the reserved jobs whose claims bear one of these marks, in the order of delivery.
pub async fn marked(database: &Database, marks: &[Mark]) -> Result<Vec<Job>> {
    if marks.is_empty() {
        return Ok(Vec::new()); // `$or` takes no empty list
    }
    // Every character of a claim is before a tilde.
    let of_mark = |mark: &Mark| {
        let from = mark.as_str();
        doc! { "claim": { "$gte": from, "$lt": format!("{from}~") } }
    };
    let claims: Vec<Document> = marks.iter().map(of_mark).collect();
    let filter = doc! { "state": "reserved", "$or": claims };
    let jobs = database.collection::<Stored>(JOBS);
    let find = jobs.find(filter).hint(Hint::Name("lease".to_owned()));
    let documents: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let mut jobs = readable(&documents, to_job);
    jobs.sort_by(in_order);
    Ok(jobs)
}
