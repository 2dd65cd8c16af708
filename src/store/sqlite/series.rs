//! The past: how much happened in each step of time, and how many jobs there were.
//!
//! The rows are in the order of time. Those of no length say that a server began to say how many jobs each queue has. What is read of one queue is a seek for each moment that has rows: 2,808 at most.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::job::{QueueName, Tally, Timestamp};
use crate::store::series::HOUR_MS;
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::figures;
use crate::store::sqlite::tx::Tx;
use crate::store::{
    Counts, Depth, RecentTally, Result, Series, SeriesRead, SeriesRow, SeriesRun, SeriesWrite, Span,
    StepOfOther, Subject,
};

/// The most rows of one transaction: the jobs' own wait behind it.
const AT_ONCE: usize = 500;

#[async_trait]
impl Series for SqliteStore {
    async fn write_series(&self, write: &SeriesWrite) -> Result<()> {
        let mut left = write.rows.as_slice();
        loop {
            let (some, rest) = left.split_at(left.len().min(AT_ONCE));
            let (run, rows) = (write.run.clone(), some.to_vec());
            self.writer.run(move |tx, _| keep(tx, &run, &rows)).await?;
            if rest.is_empty() {
                return Ok(());
            }
            left = rest;
        }
    }

    async fn read_series(&self, subject: &Subject, from: Timestamp, to: Timestamp) -> Result<SeriesRead> {
        let subject = subject.clone();
        self.read(move |db, _| read(db, &subject, from, to)).await
    }

    /// A file has one server.
    async fn steps_of_others(&self, _: &str, _: Timestamp) -> Result<Vec<StepOfOther>> {
        Ok(Vec::new())
    }

    async fn take_depth_turn(&self, _: &str, _: u64) -> Result<bool> {
        Ok(true)
    }

    async fn depths(&self) -> Result<Vec<(QueueName, Counts)>> {
        self.read(figures::depths).await
    }

    async fn recent_tallies(&self, but_of: &str, from: Timestamp, to: Timestamp) -> Result<Vec<RecentTally>> {
        let server = but_of.to_owned();
        self.read(move |db, _| recent(db, &server, from, to)).await
    }

    async fn fold_series(&self, limit: usize) -> Result<u64> {
        self.writer.run(move |tx, now| fold_all(tx, limit, now)).await
    }
}

/// The length of a moment, in the place of a [`Span`].
const TURN: i64 = 0;

const INSERT: &str = "INSERT INTO series (span, at, subject, server, tally, depth) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
     ON CONFLICT (span, at, subject, server) DO UPDATE SET \
     tally = coalesce(excluded.tally, tally), depth = coalesce(excluded.depth, depth)";

fn keep(tx: &Tx<'_>, run: &SeriesRun, rows: &[SeriesRow]) -> Result<(), Fault> {
    let mut insert = tx.prepare_cached(INSERT)?;
    for SeriesRow { subject, span, at, tally, depth } in rows {
        let (tally, depth) = (tally.as_ref().map(Tally::to_bytes), depth.map(Depth::to_bytes));
        insert.execute(params![span.ms(), at.millis(), subject.as_str(), &*run.server, tally, depth])?;
    }
    tx.prepare_cached(
        "INSERT INTO series_runs (server, since, seen, turn) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (server) \
         DO UPDATE SET seen = max(seen, excluded.seen), turn = coalesce(max(coalesce(turn, 0), excluded.turn), turn)",
    )?
    .execute(params![
        &*run.server,
        run.since.millis(),
        run.seen.millis(),
        run.turn.map(Timestamp::millis)
    ])?;
    if let Some(turn) = run.new_turn() {
        tx.prepare_cached(
            "INSERT OR IGNORE INTO series (span, at, subject, server) VALUES (?1, ?2, '', ?3)",
        )?
        .execute(params![TURN, turn.millis(), &*run.server])?;
    }
    Ok(())
}

pub const NEXT: &str = "SELECT at FROM series WHERE span = ?1 AND at >= ?2 ORDER BY at LIMIT 1";
pub const LAST: &str = "SELECT at FROM series WHERE span = ?1 AND at < ?2 ORDER BY at DESC LIMIT 1";
pub const TURNS: &str = "SELECT DISTINCT at FROM series WHERE span = ?1 AND at >= ?2 AND at < ?3";
pub const LAST_TURN: &str = "SELECT max(at) FROM series WHERE span = ?1 AND at >= ?2 AND at < ?3";
pub const ROWS: &str = "SELECT server, tally, depth FROM series WHERE span = ?1 AND at = ?2 AND subject = ?3";

/// What one server has said of a subject and a span.
struct Row {
    server: Arc<str>,
    tally: Option<Tally>,
    depth: Option<Depth>,
}

/// Returns what is said of a subject and a span, as far as it can be read.
fn rows(db: &Connection, span: Span, at: i64, subject: &str) -> Result<Vec<Row>, Fault> {
    let mut rows = db.prepare_cached(ROWS)?;
    let rows = rows.query_map(params![span.ms(), at, subject], |row| {
        let server: String = row.get(0)?;
        let (tally, depth): (Option<Vec<u8>>, Option<Vec<u8>>) = (row.get(1)?, row.get(2)?);
        Ok(Row {
            server: server.into(),
            tally: tally.and_then(|bytes| Tally::from_bytes(&bytes)),
            depth: depth.and_then(|bytes| Depth::from_bytes(&bytes)),
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<Vec<Row>>>()?)
}

fn moment(db: &Connection, sql: &str, span: Span, at: i64) -> Result<Option<i64>, Fault> {
    Ok(db.prepare_cached(sql)?.query_row(params![span.ms(), at], |row| row.get(0)).optional()?)
}

/// Returns when the last turn began in this time.
fn last_turn(db: &Connection, begin: i64, end: i64) -> Result<Option<i64>, Fault> {
    Ok(db.prepare_cached(LAST_TURN)?.query_row(params![TURN, begin, end], |row| row.get(0))?)
}

/// Returns of which moment a depth is: where longer spans were made, of the last turn in it, which it has outlasted (see
/// [`fold_subject`]).
fn said_at(db: &Connection, subject: &Subject, span: Span, at: i64) -> Result<Timestamp, Fault> {
    let turn = match (subject, span) {
        (Subject::All, _) | (_, Span::Step) => None,
        _ => last_turn(db, at, at + span.ms())?,
    };
    Ok(Timestamp::from_millis(turn.unwrap_or(at)))
}

fn read(db: &Connection, subject: &Subject, from: Timestamp, to: Timestamp) -> Result<SeriesRead, Fault> {
    let mut read = SeriesRead::default();
    let mut depths = BTreeMap::new();
    for span in Span::ALL {
        let mut next = from.millis();
        while let Some(at) = moment(db, NEXT, span, next)?.filter(|at| *at < to.millis()) {
            let when = Timestamp::from_millis(at);
            let said = said_at(db, subject, span, at)?;
            for Row { server, tally, depth } in rows(db, span, at, subject.as_str())? {
                read.tallies.extend(tally.map(|tally| (server, span, when, tally)));
                depths.extend(depth.map(|depth| (said, depth)));
            }
            next = at + 1;
        }
        let mut last = from.millis();
        while read.before.is_none()
            && let Some(at) = moment(db, LAST, span, last)?
        {
            let depth = rows(db, span, at, subject.as_str())?.into_iter().find_map(|row| row.depth);
            let said = said_at(db, subject, span, at)?;
            read.before = depth.map(|depth| (said.min(from), depth));
            last = at;
        }
    }
    read.depths = depths.into_iter().collect();
    let mut runs = db.prepare_cached(
        "SELECT server, since, seen, turn FROM series_runs WHERE seen >= ?1 AND since < ?2",
    )?;
    let runs = runs.query_map(params![from.millis(), to.millis()], |row| {
        let (server, since, seen): (String, _, _) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let turn: Option<i64> = row.get(3)?;
        Ok(SeriesRun {
            server: server.into(),
            since: Timestamp::from_millis(since),
            seen: Timestamp::from_millis(seen),
            turn: turn.map(Timestamp::from_millis),
        })
    })?;
    read.runs = runs.collect::<rusqlite::Result<Vec<SeriesRun>>>()?;
    let since = read.before.map_or(from, |(at, _)| at);
    let mut turns = db.prepare_cached(TURNS)?;
    let turns = turns.query_map(params![TURN, since.millis(), to.millis()], |row| row.get(0))?;
    read.turns = turns.map(|at| at.map(Timestamp::from_millis)).collect::<rusqlite::Result<_>>()?;
    Ok(read)
}

pub const RECENT: &str = "SELECT at, subject, tally FROM series \
     WHERE span = ?1 AND at >= ?2 AND at < ?3 AND subject > '' AND server <> ?4 AND tally IS NOT NULL";

fn recent(db: &Connection, server: &str, from: Timestamp, to: Timestamp) -> Result<Vec<RecentTally>, Fault> {
    let mut recent = Vec::new();
    for span in [Span::Step, Span::Minute] {
        let mut of_span = db.prepare_cached(RECENT)?;
        let mut rows = of_span.query(params![span.ms(), from.millis(), to.millis(), server])?;
        while let Some(found) = rows.next()? {
            let at = Timestamp::from_millis(found.get(0)?);
            let queue = found.get_ref(1)?.as_str().ok().and_then(|text| text.parse().ok());
            let tally = found.get_ref(2)?.as_blob().ok().and_then(Tally::from_bytes);
            recent.extend(queue.zip(tally).map(|(queue, tally)| RecentTally { queue, span, at, tally }));
        }
    }
    Ok(recent)
}

/// Deletes what is too old, and makes longer spans of what is old.
fn fold_all(tx: &Tx<'_>, limit: usize, now: Timestamp) -> Result<u64, Fault> {
    let over = now.millis() - Span::Coarse.kept_ms();
    let limit_of = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut found = tx
        .prepare_cached(
            "DELETE FROM series WHERE (span, at, subject, server) IN \
             (SELECT span, at, subject, server FROM series WHERE span = ?1 AND at < ?2 LIMIT ?3)",
        )?
        .execute(params![Span::Coarse.ms(), over, limit_of])?;
    if found == 0 {
        tx.prepare_cached("DELETE FROM series_runs WHERE seen < ?1")?.execute([over - HOUR_MS])?;
        tx.prepare_cached("DELETE FROM series WHERE span = ?1 AND at < ?2")?
            .execute([TURN, over - HOUR_MS])?;
    }
    for span in [Span::Minute, Span::Step] {
        if found < limit {
            found += fold(tx, span, limit - found, now)?;
        }
    }
    Ok(found as u64)
}

/// Makes longer spans of the oldest of this length, of as many subjects as the limit allows.
fn fold(tx: &Tx<'_>, span: Span, limit: usize, now: Timestamp) -> Result<usize, Fault> {
    let Some(longer) = span.folded() else { return Ok(0) };
    let Some(first) = moment(tx, NEXT, span, 0)? else { return Ok(0) };
    let begin = longer.start(Timestamp::from_millis(first)).millis();
    let end = begin + longer.ms();
    if end > now.millis() - span.kept_ms() {
        return Ok(0);
    }
    let of_each = usize::try_from(longer.ms() / span.ms()).unwrap_or(1);
    let most = i64::try_from((limit / of_each).max(1)).unwrap_or(i64::MAX);
    let subjects: Vec<String> = {
        let mut subjects = tx.prepare_cached(
            "SELECT DISTINCT subject FROM series WHERE span = ?1 AND at = ?2 ORDER BY subject LIMIT ?3",
        )?;
        let subjects = subjects.query_map(params![span.ms(), first, most], |row| row.get(0))?;
        subjects.collect::<rusqlite::Result<_>>()?
    };
    let mut found = 0;
    for subject in subjects {
        found += fold_subject(tx, (span, longer), (begin, end), &subject)?;
    }
    Ok(found)
}

fn fold_subject(
    tx: &Tx<'_>,
    (span, longer): (Span, Span),
    (begin, end): (i64, i64),
    subject: &str,
) -> Result<usize, Fault> {
    // What was written of the longer span at once is a part of it as well.
    let mut sums: BTreeMap<Arc<str>, Row> =
        rows(tx, longer, begin, subject)?.into_iter().map(|row| (row.server.clone(), row)).collect();
    let mut delete = tx.prepare_cached("DELETE FROM series WHERE span = ?1 AND at = ?2 AND subject = ?3")?;
    // One depth counts: the last that was said by any server.
    let mut last: Option<(i64, Arc<str>, Depth)> = None;
    for (server, sum) in &mut sums {
        last = sum.depth.take().map(|depth| (begin, server.clone(), depth)).or(last);
    }
    let (mut found, mut at) = (0, begin);
    while at < end {
        for row in rows(tx, span, at, subject)? {
            let empty = || Row { server: row.server.clone(), tally: None, depth: None };
            let sum = sums.entry(row.server.clone()).or_insert_with(empty);
            if let Some(tally) = &row.tally {
                sum.tally.get_or_insert_default().add(tally);
            }
            last = row.depth.map(|depth| (at, row.server, depth)).or(last);
        }
        found += delete.execute(params![span.ms(), at, subject])?;
        at += span.ms();
    }
    if let Some((said, server, depth)) = last
        && let Some(sum) = sums.get_mut(&server)
    {
        // What was said before a turn, and not with it, was none from then on. A turn within a span is older than what that says.
        let turn = if subject.is_empty() { None } else { last_turn(tx, begin, end)? };
        let is_over = turn.is_some_and(|turn| turn >= said + span.ms());
        sum.depth = Some(if is_over { Depth::default() } else { depth });
    }
    let mut insert = tx.prepare_cached(INSERT)?;
    for (server, Row { tally, depth, .. }) in sums {
        let (tally, depth) = (tally.as_ref().map(Tally::to_bytes), depth.map(Depth::to_bytes));
        insert.execute(params![longer.ms(), begin, subject, &*server, tally, depth])?;
    }
    Ok(found)
}
