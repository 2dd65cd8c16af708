//! Why a job is not delivered: what its row does not say.

use rusqlite::{Connection, params};

use crate::job::{Meta, State};
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::claim_limited::deliveries;
use crate::store::sqlite::jobs::row;
use crate::store::{AHEAD_MAX, LineHead, Obstacles};

/// The first job of a line.
pub const HEAD: &str = "SELECT id, state FROM jobs INDEXED BY jobs_turn \
     WHERE queue = ?1 AND group_name = ?2 AND turn < ?3 ORDER BY turn LIMIT 1";
/// How many are before a place in it.
pub const AHEAD: &str = "SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_turn \
     WHERE queue = ?1 AND group_name = ?2 AND turn < ?3 LIMIT ?4)";

/// Returns what may keep this job from being delivered.
pub fn obstacles(db: &Connection, job: &Meta) -> Result<Obstacles, Fault> {
    Ok(Obstacles { head: head(db, job)?, deliveries: deliveries(db, &job.queue)? })
}

fn head(db: &Connection, job: &Meta) -> Result<Option<LineHead>, Fault> {
    let (Some(group), Some(turn)) = (&job.group, job.turn) else { return Ok(None) };
    let place = params![job.queue.as_str(), group.as_str(), turn];
    let mut first = db.prepare_cached(HEAD)?;
    let mut rows = first.query(place)?;
    let Some(found) = rows.next()? else { return Ok(None) };
    // One that cannot be read is dead.
    let state = found.get_ref(1)?.as_str().ok().and_then(State::from_word).unwrap_or(State::Dead);
    // One whose id is none leaves the line as soon as a claim or the reaper meets it.
    let Some(id) = readable(row::parsed(found, 0, "id"))? else { return Ok(None) };
    let most = AHEAD_MAX.cast_signed();
    let ahead: i64 = db
        .prepare_cached(AHEAD)?
        .query_row(params![job.queue.as_str(), group.as_str(), turn, most], |row| row.get(0))?;
    Ok(Some(LineHead { id, state, ahead: ahead.unsigned_abs() }))
}
