//! The lines of groups, as lists show them.

use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};

use crate::job::group::Line;
use crate::job::{Reach, State, Timestamp};
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::jobs::search::in_queues;
use crate::store::sqlite::jobs::unreadable;
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
    let next = next_line(&of_queues);
    let values: Vec<Value> = values.into_iter().flatten().collect();
    // Bytes: another program may have written names that are no texts.
    let mut behind: (Vec<u8>, Vec<u8>) =
        after.map(|line| (line.queue.as_str().into(), line.group.as_str().into())).unwrap_or_default();
    let mut lines = Vec::new();
    while lines.len() < limit {
        let cursor = [behind.0.clone().into(), behind.1.clone().into()];
        let mut next = db.prepare_cached(&next)?;
        let mut rows = next.query(params_from_iter(cursor.into_iter().chain(values.iter().cloned())))?;
        let Some(found) = rows.next()? else { break };
        let (queue, group) =
            (unreadable::bytes(found, 0, "queue")?, unreadable::bytes(found, 1, "group_name")?);
        let turn = found.get(2)?;
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

/// Returns the statement that finds the first job of the line behind another one. A cast without the sign has an affinity: SQLite would seek
/// by the queue alone, and walk the lines of that each time.
fn next_line(of_queues: &str) -> String {
    format!(
        "SELECT queue, group_name, turn, id, state, run_at FROM jobs INDEXED BY jobs_turn \
         WHERE turn IS NOT NULL AND (queue, group_name) > (+CAST(? AS TEXT), +CAST(? AS TEXT)) \
         AND ({of_queues}) ORDER BY queue, group_name, turn LIMIT 1"
    )
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

#[cfg(test)]
mod tests {
    use super::next_line;
    use crate::store::Store as _;
    use crate::store::sqlite::tests::plan;
    use crate::store::sqlite::{Location, SqliteStore};

    #[tokio::test]
    async fn the_next_line_is_found_by_a_seek() {
        let store = SqliteStore::open(Location::Memory).unwrap();
        store.migrate().await.unwrap();
        let plan = store.writer.run(|db, _| Ok(plan(db, &next_line("1")))).await.unwrap();
        assert!(plan.len() == 1 && plan[0].contains("jobs_turn ((queue,group_name)>(?,?))"), "{plan:?}");
    }
}
