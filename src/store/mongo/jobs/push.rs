//! Storing new jobs. Most travel in one insert; those with a key or a group go through a transaction with the record
//! of their key and the line of their group, so that neither stands for a job that does not exist.

use std::collections::{HashMap, HashSet};

use mongodb::bson::{Document, RawDocumentBuf, doc};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::faults;
use crate::job::group::Line;
use crate::job::push::{self as rule, Decision, Holder, Pushed, Replacement, Room};
use crate::job::record::KeyHold;
use crate::job::transition::delivery;
use crate::job::{Content, Job, JobId, JobKey, Meta, NewJob, QueueName, Rules, State, Timestamp, Visible};
use crate::store::mongo::JOBS;
use crate::store::mongo::KEYS;
use crate::store::mongo::Mongo;
use crate::store::mongo::cache::Position;
use crate::store::mongo::client::{insert_jobs, parts};
use crate::store::mongo::figures::counters::Changes;
use crate::store::mongo::indexes::Rare;
use crate::store::mongo::jobs::document::{
    from_job, only_payload, payload_of, to_meta, update, without_contents,
};
use crate::store::mongo::jobs::groups::Lines;
use crate::store::mongo::jobs::holders::{holders, id_of, key_id, read_holders, record};
use crate::store::mongo::jobs::query;
use crate::store::mongo::transaction::{self, Failed, Transaction, Tx, TxError, Verdict};
use crate::store::{Result, Store as _, StoreError};

/// Elements with their indexes in the call.
type Indexed<T> = Vec<(usize, T)>;

/// Stores jobs; each element has its own result. What needs more than an insert is stored separately, so
/// that neither a slow transaction nor the counting of a limited queue delays the others.
pub async fn push(mongo: &Mongo, jobs: Vec<NewJob>, rules: &Rules) -> Vec<Result<Pushed>> {
    let mut answers: Vec<Option<Result<Pushed>>> = vec![None; jobs.len()];
    let positions: Vec<(QueueName, Position)> = jobs.iter().map(position).collect();
    let limited = |job: &NewJob| rules.max_jobs(&job.queue).is_some();
    let (limited, free): (Indexed<_>, Indexed<_>) =
        jobs.into_iter().enumerate().partition(|(_, job)| limited(job));
    let (bound, plain): (Indexed<_>, Indexed<_>) = free.into_iter().partition(needs_transaction);
    let (limited, bound, plain) = tokio::join!(
        push_limited(mongo, limited, rules),
        async { push_in_transactions(mongo, bound, Room::default()).await.0 },
        push_plain(mongo, plain)
    );
    mongo.note_ready(positions.iter().map(|(queue, position)| (queue, *position)));
    for (n, answer) in [limited, bound, plain].into_iter().flatten() {
        answers[n] = Some(answer);
    }
    let unanswered = || Err(StoreError::internal("a push was left unanswered"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
}

/// Whether the job must be stored together with something else.
fn needs_transaction((_, job): &(usize, NewJob)) -> bool {
    job.key.is_some() || job.spec.group.is_some()
}

fn all_failed<T>(jobs: &[(usize, T)], error: &StoreError) -> Indexed<Result<Pushed>> {
    jobs.iter().map(|(n, _)| (*n, Err(error.clone()))).collect()
}

/// Jobs of queues with a limit: counted and stored by one caller at a time for each queue.
async fn push_limited(mongo: &Mongo, jobs: Indexed<NewJob>, rules: &Rules) -> Indexed<Result<Pushed>> {
    if jobs.is_empty() {
        return Vec::new();
    }
    let queues: HashSet<QueueName> = jobs.iter().map(|(_, job)| job.queue.clone()).collect();
    let queues: Vec<QueueName> = queues.into_iter().collect();
    let counted = mongo.connection.within(async {
        let locks = mongo.queue_mutex.lock(queues.iter().cloned()).await;
        Ok((locks, query::room(mongo, &queues, &[], rules).await?))
    });
    let (_locks, room) = match counted.await {
        Ok(counted) => counted,
        Err(error) => return all_failed(&jobs, &error),
    };
    faults::point("push.room").await;
    let (bound, plain): (Indexed<_>, Indexed<_>) = jobs.into_iter().partition(needs_transaction);
    let (mut answers, room) = push_in_transactions(mongo, bound, room).await;
    let mut room = match room {
        Ok(room) => room,
        // Whether they were stored is unknown, and so is the room that is left for the others.
        Err(error) => return [answers, all_failed(&plain, &error)].concat(),
    };
    let (fitting, full): (Indexed<_>, Indexed<_>) =
        plain.into_iter().partition(|(_, job)| room.take(&job.queue));
    answers.extend(full.into_iter().map(|(n, _)| (n, Ok(Pushed::Full))));
    answers.extend(push_plain(mongo, fitting).await);
    answers
}

/// Keeps others of this server from the room of queues, and from the lines of groups.
pub type Locks = (Vec<OwnedMutexGuard<()>>, Vec<OwnedMutexGuard<()>>);

/// Counts the room in the queues of these jobs, and keeps other pushes of this server from it.
pub async fn locked_room(
    mongo: &Mongo,
    jobs: &[NewJob],
    rules: &Rules,
    end: Instant,
) -> Result<(Locks, Room)> {
    let limited = rule::limited(jobs.iter().map(|job| job.queue.clone()), rules);
    let counting = mongo.connection.until(end, async {
        let locks = mongo.queue_mutex.lock(limited.iter().cloned()).await;
        let group_locks = mongo.group_mutex.lock(jobs.iter().filter_map(line)).await;
        Ok(((locks, group_locks), query::room(mongo, &limited, &[], rules).await?))
    });
    counting.await
}

async fn push_plain(mongo: &Mongo, jobs: Indexed<NewJob>) -> Indexed<Result<Pushed>> {
    if jobs.is_empty() {
        return Vec::new();
    }
    let (indexes, jobs): (Vec<usize>, Vec<NewJob>) = jobs.into_iter().unzip();
    let failed = match mongo.connection.within(insert(mongo, jobs)).await {
        Ok(failed) => failed,
        Err(error) => return indexes.into_iter().map(|n| (n, Err(error.clone()))).collect(),
    };
    let mut failed: HashMap<usize, StoreError> = failed.into_iter().collect();
    let answer = |index: usize| failed.remove(&index).map_or(Ok(Pushed::Created), Err);
    let mut answer = answer;
    indexes.into_iter().enumerate().map(|(index, n)| (n, answer(index))).collect()
}

/// Inserts the jobs and returns which of them failed, and why.
async fn insert(mongo: &Mongo, jobs: Vec<NewJob>) -> Result<Vec<(usize, StoreError)>> {
    let now = mongo.now()?;
    let mut arriving = Changes::default();
    jobs.iter().for_each(|job| arriving.came(&job.queue, State::Ready, 1));
    let arriving = mongo.counters.in_flight(arriving);
    let jobs: Vec<Job> = jobs.into_iter().map(NewJob::into_job).collect();
    jobs.iter().for_each(|job| mongo.indexes.note(&job.meta));
    let documents = jobs.iter().map(|job| from_job(job, now)).collect::<Result<_>>()?;
    let failed = insert_jobs(&mongo.connection, documents).await?;
    // Ids are new: one that is there was put there by the driver's first try of this very insert.
    let failed = failed.into_iter().filter(|failed| !failed.is_there());
    let errors: Vec<_> = failed.map(|failed| (failed.index, failed.fault())).collect();
    if errors.is_empty() {
        arriving.stored(); // else they are counted later: it never happens
    }
    Ok(errors)
}

/// Where the job stands in its queue.
pub fn position(job: &NewJob) -> (QueueName, Position) {
    (job.queue.clone(), Position { priority: job.spec.priority, run_at: job.run_at })
}

/// Jobs with keys or groups, in one transaction; where one of them is refused, each half in one of its own, until that one is alone.
/// Returns what room is left as well, unless that is unknown.
async fn push_in_transactions(
    mongo: &Mongo,
    jobs: Indexed<NewJob>,
    mut room: Room,
) -> (Indexed<Result<Pushed>>, Result<Room>) {
    if jobs.is_empty() {
        return (Vec::new(), Ok(room));
    }
    let end = mongo.connection.end();
    let lines = jobs.iter().filter_map(|(_, job)| line(job));
    let locks = mongo.connection.until(end, async { Ok(mongo.group_mutex.lock(lines).await) });
    let _locks = match locks.await {
        Ok(locks) => locks,
        Err(error) => return (all_failed(&jobs, &error), Err(error)),
    };
    let mut answers = Vec::with_capacity(jobs.len());
    // The first to be stored is the last of these.
    let mut parts = vec![jobs];
    while let Some(mut part) = parts.pop() {
        let new: Vec<&NewJob> = part.iter().map(|(_, job)| job).collect();
        match transaction::until(mongo, end).run(Push { jobs: &new, room: &room }).await {
            Ok((pushed, left)) => {
                answers.extend(part.iter().map(|(n, _)| *n).zip(pushed.into_iter().map(Ok)));
                room = left;
            }
            Err(Failed::NotStored(error @ StoreError::NotUnique(_))) => match part.len() {
                1 => answers.extend(all_failed(&part, &error)),
                count => {
                    let second = part.split_off(count / 2);
                    parts.extend([second, part]);
                }
            },
            Err(failed) => {
                let error = StoreError::from(failed);
                let left = std::iter::once(&part).chain(&parts);
                answers.extend(left.flat_map(|part| all_failed(part, &error)));
                return (answers, Err(error));
            }
        }
    }
    (answers, Ok(room))
}

/// A push of jobs with keys or groups.
///
/// Idempotence: within the call, no attempt follows one that may be stored. Each job's id is made before the first
/// one, so that a key whose holder has this very id is this job's own. A client that repeats the call after an unknown
/// outcome finds its key taken by an equal payload and gets the first job; without a key it has asked for another job.
struct Push<'a> {
    jobs: &'a [&'a NewJob],
    room: &'a Room,
}

impl Transaction for Push<'_> {
    type Done = (Vec<Pushed>, Room);

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Done>, TxError> {
        let (mut left, mut lines) = (self.room.clone(), Lines::default());
        let mut resolved = resolve(self.jobs, &mut left, &mut lines, tx).await?;
        let pushed = std::mem::take(&mut resolved.pushed);
        lines.write(tx).await?;
        write(resolved, tx).await?;
        Ok(Verdict::Commit((pushed, left)))
    }
}

/// What is to become of jobs within a transaction, and what is to be written for it.
#[derive(Default)]
pub struct Resolved {
    /// For each job, at its index.
    pub pushed: Vec<Pushed>,
    /// The jobs that are to be stored.
    documents: Vec<RawDocumentBuf>,
    /// The updates that take their keys.
    records: Vec<Document>,
    /// The indexes that list them, apart from those of all jobs.
    rare: HashSet<Rare>,
    /// The queues of the jobs that are to be stored, their states and their positions.
    arriving: Vec<(QueueName, State, Position)>,
    /// Those of them that have a key, by their ids, with their indexes among the documents.
    keyed: HashMap<JobId, (usize, Job)>,
    /// Jobs that are there, and what they are to be: what they do is replaced.
    replaced: HashMap<JobId, Replaced>,
}

/// A job that does something else now.
struct Replaced {
    /// The `rev` that it was read with.
    rev: i64,
    meta: Meta,
    payload: Content,
}

impl Resolved {
    /// How many jobs are to be stored.
    pub fn stored(&self) -> usize {
        self.documents.len()
    }

    /// Adds a job that is stored whatever keys there are, at the end of its line, which must be loaded.
    pub fn add(&mut self, job: &NewJob, lines: &mut Lines, now: Timestamp) -> Result<State> {
        let mut stored = job.clone().into_job();
        if let Some(line) = line(job) {
            let (turn, is_first) = lines.join(&line);
            delivery::join_line(&mut stored.meta, turn, is_first);
        }
        let (queue, position) = position(job);
        self.rare.extend(Rare::of(&stored.meta));
        let state = stored.meta.state;
        self.arriving.push((queue, state, position));
        self.documents.push(from_job(&stored, now)?);
        if job.key.is_some() {
            self.keyed.insert(job.id.clone(), (self.documents.len() - 1, stored));
        }
        Ok(state)
    }

    /// Replaces what the job does that has the key of this one. Returns its state then; `None` if it does not wait any more, or cannot
    /// be read.
    async fn replace(
        &mut self,
        holder: &Holder,
        by: &NewJob,
        now: Timestamp,
        tx: &mut Tx<'_>,
    ) -> Result<Option<Visible>, TxError> {
        let by = Replacement::from(by);
        if let Some((index, job)) = self.keyed.get_mut(&holder.id) {
            let Some(meta) = by.of(&job.meta, now) else { return Ok(None) };
            let visible = meta.visible(now);
            (job.meta, job.payload) = (meta, by.payload.clone());
            let position = Position::of(&job.meta);
            if let (Some(document), Some(arriving)) =
                (self.documents.get_mut(*index), self.arriving.get_mut(*index))
            {
                *document = from_job(job, now)?;
                arriving.2 = position;
            }
            return Ok(Some(visible));
        }
        let known = self.replaced.remove(&holder.id).map(|known| (known.rev, known.meta));
        let (rev, before) = match known {
            Some(known) => known,
            None => {
                let jobs = tx.collection(JOBS);
                let find = jobs.find(doc! { "_id": holder.id.as_str() }).projection(without_contents());
                let found = tx.read(find).await?;
                let Some(found) = found.first() else { return Ok(None) };
                let Ok(meta) = to_meta(found) else { return Ok(None) }; // it stops no other push
                (meta.rev, meta)
            }
        };
        let Some(meta) = by.of(&before, now) else { return Ok(None) };
        let meta = Meta { rev: rand::random(), ..meta };
        let visible = meta.visible(now);
        self.replaced.insert(holder.id.clone(), Replaced { rev, meta, payload: by.payload.clone() });
        Ok(Some(visible))
    }
}

/// Reads the keys of jobs, decides what is to become of them, and lets them join their lines, which are still to be
/// written.
pub async fn resolve(
    jobs: &[&NewJob],
    room: &mut Room,
    lines: &mut Lines,
    tx: &mut Tx<'_>,
) -> Result<Resolved, TxError> {
    let now = tx.mongo.now()?;
    let keys = jobs.iter().filter_map(|job| Some(key_id(&job.queue, job.key.as_ref()?)));
    let (known, states) = read_holders(keys.collect(), tx).await?;
    let mut holders = holders(&known, &states, now)?;
    lines.load(jobs.iter().filter_map(|job| line(job)), tx).await?;
    let mut resolved = Resolved::default();
    for job in jobs {
        let id = job.key.as_ref().map(|hold| key_id(&job.queue, hold));
        let holder = id.as_ref().and_then(|id| holders.get(id));
        let has_room = || Ok::<_, TxError>(room.take(&job.queue));
        let asked = (holder, job.key.as_ref().map(|hold| hold.conflict).unwrap_or_default());
        match (rule::decide(&job.id, &job.spec.payload, asked, now, has_room)?, holder) {
            (Decision::Settled(pushed), _) => {
                resolved.pushed.push(pushed);
                continue;
            }
            (Decision::Replace, Some(holder)) => {
                let holder = holder.clone();
                let state = resolved.replace(&holder, job, now, tx).await?;
                let (Some(state), Some(id), Some(hold)) = (state, id, &job.key) else {
                    resolved.pushed.push(holder.stays(&job.spec.payload));
                    continue;
                };
                let after = holder.replaced((*job).into(), hold, state);
                resolved.records.push(doc! { "q": { "_id": &id }, "u": record(&after), "upsert": true });
                resolved.pushed.push(Pushed::Replaced { id: holder.id, state, run_at: job.run_at });
                holders.insert(id, after);
                continue;
            }
            _ => {}
        }
        let state = resolved.add(job, lines, now)?;
        if let (Some(id), Some(hold)) = (id, &job.key) {
            let holder = Holder::new(job, hold, state.visible(job.run_at, now));
            resolved.records.push(doc! { "q": { "_id": &id }, "u": record(&holder), "upsert": true });
            holders.insert(id, holder);
        }
        resolved.pushed.push(Pushed::stored(state));
    }
    Ok(resolved)
}

/// The line that a new job comes to, if it does.
pub fn line(job: &NewJob) -> Option<Line> {
    Some(Line { queue: job.queue.clone(), group: job.spec.group.clone()? })
}

/// Writes new jobs and their keys. A key that was taken in the meantime is a conflict: the next attempt
/// finds its holder.
pub async fn write(resolved: Resolved, tx: &mut Tx<'_>) -> Result<(), TxError> {
    let Resolved { documents, records, rare, arriving, replaced, .. } = resolved;
    for Replaced { rev, meta, payload } in replaced.into_values() {
        let update = update(&meta, Some(&payload), None, None, tx.mongo.now()?)?;
        let guard = doc! { "_id": meta.id.as_str(), "rev": rev };
        if tx.write_jobs(doc! { "update": JOBS, "updates": [{ "q": guard, "u": update }] }).await? != 1 {
            return Err(TxError::Conflict);
        }
        tx.becomes_ready(&meta.queue, Position::of(&meta));
    }
    rare.into_iter().for_each(|rare| drop(tx.mongo.indexes.want(rare)));
    for part in parts(records)? {
        tx.write(doc! { "update": KEYS, "updates": part }).await?;
    }
    tx.insert_jobs(documents).await?;
    arriving.iter().for_each(|(queue, state, position)| tx.arrives(queue, *state, *position));
    Ok(())
}

/// Frees the keys of jobs that leave, where they are still theirs.
pub async fn free(keys: &[(&Meta, &JobKey)], tx: &mut Tx<'_>) -> Result<(), TxError> {
    let deletes: Vec<Document> = keys
        .iter()
        .map(|(meta, key)| {
            let record = doc! { "_id": id_of(&meta.queue, key), "job": meta.id.as_str() };
            doc! { "q": record, "limit": 1 }
        })
        .collect();
    if !deletes.is_empty() {
        tx.write(doc! { "delete": KEYS, "deletes": deletes }).await?;
    }
    Ok(())
}

/// Takes a key for a job that is moved and written already. Returns the job that has it, and takes nothing, if that is another one.
pub async fn move_key(
    hold: &KeyHold,
    moved: &Meta,
    payload: Option<&Content>,
    tx: &mut Tx<'_>,
) -> Result<Option<JobId>, TxError> {
    let now = tx.mongo.now()?;
    let id = key_id(&moved.queue, hold);
    let (records, states) = read_holders(vec![id.clone()], tx).await?;
    let holders = holders(&records, &states, now)?;
    if let Some(other) = rule::kept_from(holders.get(&id), &moved.id, now) {
        return Ok(Some(other.clone()));
    }
    let digest = match payload {
        Some(payload) => payload.digest(),
        None => {
            let jobs = tx.collection(JOBS);
            let find = jobs.find(doc! { "_id": moved.id.as_str() }).projection(only_payload());
            let found = tx.read(find).await?;
            let Some(found) = found.first() else { return Err(TxError::Conflict) };
            payload_of(found).map_err(StoreError::unreadable)?.digest()
        }
    };
    let record = record(&Holder::moved(moved, digest, hold, now));
    tx.write(doc! { "update": KEYS, "updates": [{ "q": { "_id": id }, "u": record, "upsert": true }] })
        .await?;
    Ok(None)
}
