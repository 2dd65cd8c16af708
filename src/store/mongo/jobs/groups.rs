//! The lines of groups: a document in `groups` for each line that has jobs, with the number of the last place.
//!
//! Every transaction that puts a job into a line writes the line's document, and so does the one that leaves it empty.
//! Of several that conflict there one goes on, and the others retry: places are numbered in the order of the pushes,
//! and no job joins a line unseen that has just become empty. Where the first job leaves and another is behind it, two
//! transactions would conflict on the next job's own document, and the line's is not touched: pushes to a busy group
//! and work on it do not conflict. Jobs carry their place as one text (`turn`), so that the next jobs of many lines are
//! found by one command.
//!
//! Only jobs make a line, and its document says no more than which places were given: where the first job was removed past the servers,
//! the next job that leaves is the first, although it was blocked.

use std::collections::{HashMap, HashSet};

use mongodb::bson::{Document, RawDocumentBuf, doc};

use crate::job::group::{Line, Vacated};
use crate::job::transition::delivery::UNBLOCK;
use crate::job::{QueueName, Timestamp};
use crate::store::mongo::GROUPS;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::cache::Position;
use crate::store::mongo::client::parts;
use crate::store::mongo::jobs::document::{Row, place_in_line};
use crate::store::mongo::jobs::rewrite::{self, Rewrite};
use crate::store::mongo::jobs::transitions;
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{self, Transaction, Tx, TxError, Verdict};
use crate::store::{Result, Store as _};

/// The lines that a transaction changes: [vacate](Self::vacate) places, see [who comes next](Self::advance),
/// [load](Self::load) the lines that are [joined](Self::join) at the end, and [write](Self::write).
#[derive(Default)]
pub struct Lines {
    vacant: HashMap<Line, Vacant>,
    known: HashMap<Line, Known>,
}

/// The places in a line that are left.
#[derive(Default)]
struct Vacant {
    turns: Vec<i64>,
    /// The first place of the line, if it is among them. One that was left from the middle is not known to be before that was checked.
    first: Option<i64>,
}

impl Vacant {
    /// The first place behind those that are left, as far as they follow each other.
    fn next(&self) -> Option<i64> {
        (self.first?.checked_add(1)?..).find(|turn| !self.turns.contains(turn))
    }
}

/// What the document of a line says.
struct Known {
    /// The number of the last place; 0 for an empty line.
    last: i64,
    is_stored: bool,
    is_empty: bool,
    is_changed: bool,
}

/// A job whose turn has come.
pub struct Next {
    pub line: Line,
    pub position: Position,
    id: String,
    rev: i64,
    due: Option<Timestamp>,
    at: Timestamp,
    /// See [`rewrite::small`].
    document: Option<RawDocumentBuf>,
}

impl Next {
    /// Its queue, and when it is due.
    pub fn arrival(&self) -> (QueueName, Timestamp) {
        (self.line.queue.clone(), self.position.run_at)
    }
}

/// Returns what unblocks these jobs.
pub fn unblocking(next: &mut [Next]) -> Vec<Rewrite> {
    let rev = rand::random();
    let change = |next: &mut Next| Rewrite {
        id: next.id.clone(),
        rev: next.rev,
        from: UNBLOCK.from,
        update: transitions::unblock_first(next.due, next.at, rev),
        document: next.document.take(),
    };
    next.iter_mut().map(change).collect()
}

impl Lines {
    /// Reads the lines that are not known yet.
    pub async fn load(&mut self, lines: impl Iterator<Item = Line>, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let mut unknown: HashMap<String, Line> =
            lines.filter(|line| !self.known.contains_key(line)).map(|line| (id(&line), line)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let ids: Vec<&String> = unknown.keys().collect();
        let found = tx.read(tx.collection(GROUPS).find(doc! { "_id": { "$in": ids } })).await?;
        for document in &found {
            let row = Row(document);
            let line = document.get_str("_id").ok().and_then(|id| unknown.remove(id));
            let last = row.number("last")?;
            self.known.extend(line.map(|line| (line, Known::new(last, true))));
        }
        self.known.extend(unknown.into_values().map(|line| (line, Known::new(0, false))));
        Ok(())
    }

    /// A job leaves its place.
    pub fn vacate(&mut self, vacated: &Vacated) {
        let vacant = self.vacant.entry(vacated.line.clone()).or_default();
        vacant.turns.push(vacated.turn);
        if vacated.was_first {
            vacant.first = Some(vacated.turn);
        }
    }

    /// The jobs whose turn comes by the places that were vacated; or those of them that cannot be read, by what was read of each.
    pub async fn advance(&mut self, tx: &mut Tx<'_>) -> Result<Result<Vec<Next>, Vec<Stored>>, TxError> {
        let now = tx.mongo.now()?;
        self.find_first(tx).await?;
        let ahead =
            self.vacant.iter().filter_map(|(line, vacant)| Some((place(line, vacant.next()?), line.clone())));
        let mut ahead: HashMap<String, Line> = ahead.collect();
        if ahead.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        // Places are numbered without gaps, but for those that were left from the middle.
        let places: Vec<&String> = ahead.keys().collect();
        let found = read(doc! { "turn": { "$in": places } }, ahead.len(), tx).await?;
        let (mut next, mut spoiled) = (Vec::with_capacity(ahead.len()), Vec::new());
        let mut sort = |line, read: Read| match Self::next(line, &read, now) {
            Ok(job) => next.push(job),
            Err(_) => spoiled.push(read.0),
        };
        for read in found {
            if let Some(line) = read.0.get_str("turn").ok().and_then(|turn| ahead.remove(turn)) {
                sort(line, read);
            }
        }
        self.load(ahead.values().cloned(), tx).await?;
        for line in ahead.into_values() {
            if let Some(read) = self.search(&line, tx).await? {
                sort(line, read);
            }
        }
        Ok(if spoiled.is_empty() { Ok(next) } else { Err(spoiled) })
    }

    /// Of the lines that were left from the middle alone, finds those whose first place that was: no job stands before it.
    async fn find_first(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let before = self.vacant.iter().filter(|(_, vacant)| vacant.first.is_none());
        let before = before
            .filter_map(|(line, vacant)| Some((line.clone(), vacant.turns.iter().min()?.checked_sub(1)?)));
        let before: Vec<(Line, i64)> = before.collect();
        for line in without_jobs(before, tx).await? {
            self.vacant.entry(line).and_modify(|vacant| vacant.first = vacant.turns.iter().min().copied());
        }
        Ok(())
    }

    /// The first job that stays in a line which was loaded; if there is none, the line is empty.
    async fn search(&mut self, line: &Line, tx: &mut Tx<'_>) -> Result<Option<Read>, TxError> {
        let (Some(vacant), Some(known)) = (self.vacant.get(line), self.known.get_mut(line)) else {
            return Ok(None);
        };
        let place = |turn| place(line, turn);
        let mut found = Vec::new();
        if let Some(next) = vacant.next().filter(|next| *next < known.last) {
            let behind = doc! { "$gt": place(next), "$lte": place(known.last) };
            found = read(doc! { "turn": behind }, vacant.turns.len() + 1, tx).await?;
        }
        let vacated: Vec<String> = vacant.turns.iter().map(|turn| place(*turn)).collect();
        let stays =
            |job: &Read| job.0.get_str("turn").is_ok_and(|turn| !vacated.iter().any(|own| own == turn));
        let next = found.into_iter().find(stays);
        if next.is_none() {
            (known.is_empty, known.is_changed) = (true, true);
        }
        Ok(next)
    }

    fn next(line: Line, Read(document, whole): &Read, now: Timestamp) -> Result<Next> {
        let row = Row(document);
        let run_at = row.time("run_at")?.ok_or_else(|| row.fault("run_at"))?;
        Ok(Next {
            id: row.text("_id")?,
            rev: row.number("rev")?,
            line,
            position: Position { priority: row.number("priority")?, run_at },
            due: Some(run_at).filter(|at| *at > now),
            at: now,
            document: whole.clone(),
        })
    }

    /// The next place of a line that was loaded, and whether it is the first.
    pub fn join(&mut self, line: &Line) -> (i64, bool) {
        let known = self.known.entry(line.clone()).or_insert_with(|| Known::new(0, false));
        let is_first = std::mem::replace(&mut known.is_empty, false);
        known.last += 1;
        known.is_changed = true;
        (known.last, is_first)
    }

    /// Writes the lines' documents; that of a line which is now empty is deleted.
    pub async fn write(&self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let mut changed: Vec<(String, &Known)> = Vec::new();
        changed.extend(
            self.known.iter().filter(|(_, known)| known.is_changed).map(|(line, known)| (id(line), known)),
        );
        // In the order of the names, so that of several transactions the one that is ahead stays ahead.
        changed.sort_by(|(one, _), (other, _)| one.cmp(other));
        let (gone, there): (Vec<_>, Vec<_>) = changed.into_iter().partition(|(_, known)| known.is_empty);
        let there = there.into_iter().map(|(id, known)| {
            let update = doc! { "$set": { "last": known.last }, "$inc": { "rev": 1_i64 } };
            doc! { "q": { "_id": id }, "u": update, "upsert": true }
        });
        let gone = gone.into_iter().filter(|(_, known)| known.is_stored);
        let gone = gone.map(|(id, _)| doc! { "q": { "_id": id }, "limit": 1 });
        for (verb, field, statements) in
            [("update", "updates", there.collect()), ("delete", "deletes", gone.collect())]
        {
            for part in parts(statements)? {
                tx.write(doc! { verb: GROUPS, field: part }).await?;
            }
        }
        Ok(())
    }
}

impl Known {
    fn new(last: i64, is_stored: bool) -> Self {
        Self { last, is_stored, is_empty: !is_stored, is_changed: false }
    }
}

fn id(line: &Line) -> String {
    line.to_string()
}

fn place(line: &Line, turn: i64) -> String {
    place_in_line(&line.queue, &line.group, turn)
}

/// Returns those of these lines in which no job stands at this place, nor before it.
async fn without_jobs(lines: Vec<(Line, i64)>, tx: &mut Tx<'_>) -> Result<Vec<Line>, TxError> {
    // Nearly always one stands at the place itself: all are found by one command.
    let mut lines: HashMap<String, (Line, i64)> =
        lines.into_iter().map(|(line, turn)| (place(&line, turn), (line, turn))).collect();
    if lines.is_empty() {
        return Ok(Vec::new());
    }
    let places: Vec<&String> = lines.keys().collect();
    let there = taken(doc! { "turn": { "$in": places } }, lines.len(), tx).await?;
    lines.retain(|place, _| !there.contains(place));
    let mut empty = Vec::new();
    for (last, (line, _)) in lines {
        let before = doc! { "turn": { "$gte": place(&line, 0), "$lt": last } };
        if taken(before, 1, tx).await?.is_empty() {
            empty.push(line);
        }
    }
    Ok(empty)
}

/// Returns those of these places at which jobs stand, from the index alone.
async fn taken(filter: Document, limit: usize, tx: &mut Tx<'_>) -> Result<HashSet<String>, TxError> {
    let jobs = tx.collection(JOBS);
    let find = jobs.find(filter).projection(doc! { "_id": 0, "turn": 1 });
    let find = find.hint(mongodb::options::Hint::Name("turn".into()));
    let found = tx.read(find.limit(i64::try_from(limit).unwrap_or(i64::MAX))).await?;
    found.iter().map(|document| Row(document).text("turn").map_err(TxError::Store)).collect()
}

/// Jobs by their places, in the order of these.
async fn read(filter: Document, limit: usize, tx: &mut Tx<'_>) -> Result<Vec<Read>, TxError> {
    let jobs = tx.collection(JOBS).clone_with_type::<RawDocumentBuf>();
    let find = jobs.find(filter).sort(doc! { "turn": 1 });
    let find = find.hint(mongodb::options::Hint::Name("turn".into()));
    let fields = doc! { "turn": 1, "rev": 1, "run_at": 1, "priority": 1, "whole": rewrite::small() };
    let find = find.projection(fields).limit(i64::try_from(limit).unwrap_or(i64::MAX));
    let found = tx.read_raw(find).await?.into_iter().map(|raw| {
        let whole = raw.get_document("whole").ok().map(|whole| whole.to_owned());
        Read(Stored::read(raw), whole)
    });
    Ok(found.collect())
}

/// A job in a line: what decides, and its document unless that is too large.
struct Read(Stored, Option<RawDocumentBuf>);

/// Jobs that are copied here stand where they stood: their lines go on behind them. In a transaction, as all that a restore writes: a line that
/// is made after its jobs are gone would block the next job.
pub async fn import(mongo: &Mongo, places: impl Iterator<Item = (Line, i64)>) -> Result<()> {
    let statements = places.map(|(line, turn)| {
        let update = doc! { "$max": { "last": turn }, "$inc": { "rev": 1_i64 } };
        doc! { "q": { "_id": id(&line) }, "u": update, "upsert": true }
    });
    let parts = parts(statements.collect())?;
    if parts.is_empty() {
        return Ok(());
    }
    let attempts = transaction::until(mongo, mongo.connection.end()).retrying_duplicate_keys();
    Ok(attempts.run(Extend { parts }).await?)
}

/// Lines go on behind the jobs that were copied.
///
/// Idempotence: a repeat after an unknown outcome finds the place that it wrote, or a later one.
struct Extend {
    parts: Vec<Vec<Document>>,
}

impl Transaction for Extend {
    type Done = ();

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<()>, TxError> {
        for part in &self.parts {
            tx.write(doc! { "update": GROUPS, "updates": part.clone() }).await?;
        }
        Ok(Verdict::Commit(()))
    }
}
