//! The lines of groups, as lists show them.

use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};

use crate::job::group::Line;
use crate::job::{Reach, State, Timestamp};
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::jobs::search::in_queues;
use crate::store::{AHEAD_MAX, GroupLine};

/// Returns the lines of these queues that have jobs.
pub fn groups(
    db: &Connection,
    within: &Reach,
    after: Option<&Line>,
    limit: usize,
) -> Result<Vec<GroupLine>, Fault> {
    let (conditions, values): (Vec<_>, Vec<_>) =
        within.patterns().unwrap_or_default().iter().map(in_queues).unzip();
    let of_queues = match within.patterns() {
        None => "1".to_owned(),
        Some([]) => "0".to_owned(),
        Some(_) => conditions.join(" OR "),
    };
    let next = format!(
        "SELECT queue, group_name, turn, id, state, run_at FROM jobs INDEXED BY jobs_turn \
         WHERE turn IS NOT NULL AND (queue, group_name) > (?, ?) AND ({of_queues}) \
         ORDER BY queue, group_name, turn LIMIT 1"
    );
    let values: Vec<Value> = values.into_iter().flatten().collect();
    let mut behind = after.map(|line| (line.queue.to_string(), line.group.to_string())).unwrap_or_default();
    let mut lines = Vec::new();
    while lines.len() < limit {
        let place = [behind.0.clone().into(), behind.1.clone().into()];
        let mut next = db.prepare_cached(&next)?;
        let mut rows = next.query(params_from_iter(place.into_iter().chain(values.iter().cloned())))?;
        let Some(found) = rows.next()? else { break };
        let (queue, group, turn): (String, String, i64) = (found.get(0)?, found.get(1)?, found.get(2)?);
        let state = found.get_ref(4)?.as_str().ok().and_then(State::from_word).unwrap_or(State::Dead);
        let run_at = found.get::<_, Option<i64>>(5)?.map(Timestamp::from_millis).unwrap_or_default();
        let line =
            readable(row::parsed(found, 0, "queue"))?.zip(readable(row::parsed(found, 1, "group_name"))?);
        let head = readable(row::parsed(found, 3, "id"))?;
        if let Some(((queue, group), head)) = line.zip(head) {
            let line = Line { queue, group };
            let waiting = waiting(db, &line, turn)?;
            lines.push(GroupLine { line, head, state, run_at, waiting });
        }
        behind = (queue, group);
    }
    Ok(lines)
}

/// Returns how many jobs are behind a place in a line.
fn waiting(db: &Connection, line: &Line, turn: i64) -> Result<u64, Fault> {
    let mut behind = db.prepare_cached(
        "SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_turn \
         WHERE queue = ?1 AND group_name = ?2 AND turn > ?3 LIMIT ?4)",
    )?;
    let values = params![line.queue.as_str(), line.group.as_str(), turn, AHEAD_MAX.cast_signed()];
    let waiting: i64 = behind.query_row(values, |row| row.get(0))?;
    Ok(waiting.unsigned_abs())
}
