//! Searching: an index chooses jobs, their rows are judged one by one.

use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};

use crate::job::error_group::{Death, Tally};
use crate::job::{
    Failure, Filter, GroupName, JobId, JobKey, Origin, QueueName, QueuePattern, Reach, State, Timestamp,
    Visible, WorkerName,
};
use crate::store::search::{SORTED_MAX, Tallying, Walk};
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::jobs::unreadable;
use crate::store::{Found, Search, Weight as _};

/// A condition with its values.
#[derive(Default)]
struct Sql {
    text: String,
    values: Vec<Value>,
}

impl Sql {
    fn new(text: &str, values: impl IntoIterator<Item = Value>) -> Self {
        Self { text: text.to_owned(), values: values.into_iter().collect() }
    }

    fn and(&mut self, condition: &str, values: impl IntoIterator<Item = Value>) {
        if !self.text.is_empty() {
            self.text.push_str(" AND ");
        }
        self.text.push_str(condition);
        self.values.extend(values);
    }
}

/// The jobs that an index has for a search.
struct Plan {
    index: &'static str,
    /// Each is a stretch of the index.
    streams: Vec<Sql>,
}

fn text(text: &str) -> Value {
    text.to_owned().into()
}

/// Finds the jobs of one step.
pub fn search(db: &Connection, ask: &Search, now: Timestamp) -> Result<Found, Fault> {
    let plan = plan(db, &ask.filter)?;
    let rest = rest(&ask.filter, &plan, now);
    let probe = (!rest.text.is_empty()).then(|| format!("SELECT 1 FROM jobs WHERE id = ? AND {}", rest.text));
    let mut walk = Walk::new(ask, now);
    // The cursor is kept as bytes: another program may have written an id that is no text.
    let mut at = ask.after.as_ref().map(|after| after.as_str().as_bytes().to_vec());
    loop {
        let wide = if plan.streams.len() > 1 { walk.widest() } else { walk.window() };
        let window = if probe.is_some() { wide } else { wide.min(walk.room().max(1)) };
        let ids = next(db, &plan, at.as_deref(), ask.newest_first, window)?;
        let found = ids.len();
        at = ids.last().cloned().or(at);
        for id in ids {
            if walk.is_filled() && walk.is_over() {
                return Ok(walk.end(true));
            }
            let id = String::from_utf8_lossy(&id); // only counted where it is no text
            let Ok(id) = id.parse::<JobId>() else {
                walk.passed(std::iter::once(&*id)); // another program wrote it
                continue;
            };
            let is_likely = match &probe {
                Some(probe) => {
                    let values = std::iter::once(text(id.as_str())).chain(rest.values.iter().cloned());
                    db.prepare_cached(probe)?.exists(params_from_iter(values))?
                }
                None => true,
            };
            let with_contents = ask.with_contents || !ask.filter.asks_only_meta();
            if is_likely && let Some(job) = unreadable::listed(db, &id, with_contents)? {
                walk.read(job.weight());
                walk.add(job);
            }
            walk.passed(std::iter::once(id.as_str()));
        }
        if found < window {
            return Ok(walk.end(false));
        }
        if walk.is_over() {
            return Ok(walk.end(true));
        }
    }
}

/// Returns the bytes of the next ids of all streams, in their order.
fn next(
    db: &Connection,
    plan: &Plan,
    after: Option<&[u8]>,
    newest_first: bool,
    limit: usize,
) -> Result<Vec<Vec<u8>>, Fault> {
    let (behind, order) = if newest_first { ("<", "DESC") } else { (">", "ASC") };
    // No text comes before the empty one, nor behind a blob.
    let from_the_first = if newest_first { "id < x''" } else { "id >= ''" };
    let mut ids: Vec<Vec<u8>> = Vec::new();
    let first = |ids: &mut Vec<Vec<u8>>| {
        ids.sort_unstable();
        if newest_first {
            ids.reverse();
        }
        ids.truncate(limit);
    };
    for stream in &plan.streams {
        let mut condition = Sql::new(&stream.text, stream.values.iter().cloned());
        match after {
            Some(after) => condition.and(&format!("id {behind} CAST(? AS TEXT)"), [after.to_vec().into()]),
            None => condition.and(from_the_first, []),
        }
        let sql = format!(
            "SELECT id FROM jobs INDEXED BY {} WHERE {} ORDER BY id {order} LIMIT ?",
            plan.index, condition.text
        );
        condition.values.push(row::signed(limit).into());
        let mut matching = db.prepare_cached(&sql)?;
        let mut rows = matching.query(params_from_iter(condition.values))?;
        while let Some(found) = rows.next()? {
            ids.push(unreadable::bytes(found, 0, "id")?);
        }
        if ids.len() > limit.saturating_mul(4) {
            first(&mut ids);
        }
    }
    first(&mut ids);
    Ok(ids)
}

/// Chooses the index: the first of these that has what the filter asks for.
fn plan(db: &Connection, filter: &Filter) -> Result<Plan, Fault> {
    if let Some(batch) = &filter.batch {
        return Ok(wide("jobs_batch", Sql::new("batch = ?", [text(batch.as_str())]), &filter.within));
    }
    if let Some(worker) = filter.worker.as_ref().filter(|_| filter.states == [Visible::Reserved]) {
        let of_worker = Sql::new("state = 'reserved' AND worker = ?", [text(worker.as_str())]);
        return Ok(wide("jobs_worker", of_worker, &filter.within));
    }
    let narrow = if let Some(key) = &filter.key {
        Some(("jobs_key", Sql::new("key = ?", [text(key.as_str())])))
    } else if let Some(group) = &filter.group {
        Some(("jobs_group", Sql::new("group_name = ?", [text(group.as_str())])))
    } else if filter.dead_lettered {
        Some(("jobs_origin", Sql::new("origin IS NOT NULL", [])))
    } else {
        None
    };
    if let Some((index, condition)) = narrow {
        let of_queue = |(queue, _): (QueueName, _)| {
            let mut stream = Sql::new("queue = ?", [text(queue.as_str())]);
            stream.and(&condition.text, condition.values.iter().cloned());
            stream
        };
        return Ok(Plan { index, streams: stocks(db, filter)?.into_iter().map(of_queue).collect() });
    }
    let stocks = stocks(db, filter)?;
    let jobs = stocks.iter().flat_map(|(_, states)| states).map(|(_, jobs)| *jobs);
    let is_small = jobs.fold(0_u64, u64::saturating_add) <= SORTED_MAX as u64;
    let is_of_all = filter.within.patterns().is_none();
    if is_of_all && (filter.states.is_empty() || !is_small) {
        return Ok(Plan { index: "sqlite_autoindex_jobs_1", streams: vec![Sql::default()] });
    }
    let mut streams = Vec::new();
    for (queue, states) in stocks {
        for (state, _) in states {
            let values = [text(queue.as_str()), text(state.as_str())];
            streams.push(Sql::new("queue = ? AND state = ?", values));
        }
    }
    Ok(Plan { index: "jobs_browse", streams })
}

/// A stretch of an index that knows nothing of queues.
fn wide(index: &'static str, mut condition: Sql, within: &Reach) -> Plan {
    if let Some(patterns) = within.patterns() {
        let (texts, values): (Vec<_>, Vec<_>) = patterns.iter().map(in_queues).unzip();
        let any = if texts.is_empty() { "0".to_owned() } else { format!("({})", texts.join(" OR ")) };
        condition.and(&any, values.into_iter().flatten());
    }
    Plan { index, streams: vec![condition] }
}

/// Returns the condition on `queue` that a pattern is.
pub fn in_queues(pattern: &QueuePattern) -> (&'static str, Vec<Value>) {
    match pattern {
        QueuePattern::One(queue) => ("queue = ?", vec![text(queue.as_str())]),
        // Names are ASCII, so everything that begins with the prefix sorts below this.
        QueuePattern::Prefix(prefix) => {
            ("queue >= ? AND queue < ?", vec![text(prefix), text(&format!("{prefix}\u{10ffff}"))])
        }
    }
}

/// Counts the dead of these queues by their errors. The second value is whether all were counted.
pub fn tally_dead(db: &Connection, within: &Reach) -> Result<(Tally, bool), Fault> {
    let dead = Filter { within: within.clone(), states: vec![Visible::Dead], ..Filter::default() };
    let mut tallying = Tallying::begin();
    let mut of_queue = db.prepare_cached(
        "SELECT id, queue, finished_at, errors, origin FROM jobs INDEXED BY jobs_browse WHERE queue = ? AND state = 'dead'",
    )?;
    for (queue, _) in stocks(db, &dead)? {
        let mut rows = of_queue.query([queue.as_str()])?;
        while let Some(found) = rows.next()? {
            let Some(death) = readable(death(found))? else { continue };
            if !tallying.add(death) {
                return Ok((tallying.end(), false));
            }
        }
    }
    Ok((tallying.end(), true))
}

fn death(found: &Row<'_>) -> Result<Death, Fault> {
    let errors: Option<Vec<Failure>> = readable(row::json(found, 3, "errors"))?.flatten();
    let last = errors.and_then(|mut errors| errors.pop()).map(|failure| failure.message);
    let error = match last {
        Some(last) => Some(last),
        None => readable(row::json::<Origin>(found, 4, "origin"))?.flatten().and_then(|origin| origin.error),
    };
    Ok(Death {
        id: row::parsed(found, 0, "id")?,
        queue: row::parsed(found, 1, "queue")?,
        at: found.get::<_, Option<i64>>(2)?.map(Timestamp::from_millis),
        error: error.unwrap_or_default(),
    })
}

/// A queue, and of which states it has how many jobs.
type Stock = (QueueName, Vec<(State, u64)>);

/// Returns the queues of a filter that have jobs in its states. Of one queue alone that is not asked.
fn stocks(db: &Connection, filter: &Filter) -> Result<Vec<Stock>, Fault> {
    let wanted = |state: &State| {
        filter.states.is_empty() || filter.states.iter().any(|wanted| wanted.stored() == *state)
    };
    let states: Vec<State> = State::ALL.into_iter().filter(wanted).collect();
    if let Some(queue) = filter.queue() {
        return Ok(vec![(queue.clone(), states.into_iter().map(|state| (state, 0)).collect())]);
    }
    let columns: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
    let all = [QueuePattern::Prefix("".into())];
    let mut stocks = Vec::new();
    for pattern in filter.within.patterns().unwrap_or(&all) {
        let (condition, values) = in_queues(pattern);
        let sql = format!("SELECT queue, {} FROM counters WHERE {condition}", columns.join(", "));
        let mut counted = db.prepare_cached(&sql)?;
        let mut rows = counted.query(params_from_iter(values))?;
        while let Some(found) = rows.next()? {
            let Some(queue) = readable(row::parsed::<QueueName>(found, 0, "queue"))? else { continue };
            let mut there = Vec::new();
            for (n, state) in states.iter().enumerate() {
                let jobs = found.get::<_, i64>(n + 1)?;
                there.extend((jobs > 0).then(|| (*state, jobs.unsigned_abs())));
            }
            if !there.is_empty() {
                stocks.push((queue, there));
            }
        }
    }
    // A key may have patterns that lie within others.
    stocks.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    stocks.dedup_by(|(one, _), (other, _)| one == other);
    Ok(stocks)
}

/// Returns what an SQL statement can say of a filter beyond what its index has served: no more than what it means.
fn rest(filter: &Filter, plan: &Plan, now: Timestamp) -> Sql {
    let mut rest = Sql::default();
    let is_served = |condition: &str| plan.streams.iter().all(|stream| stream.text.contains(condition));
    let has = |state: Visible| filter.states.contains(&state);
    if has(Visible::Ready) && !has(Visible::Scheduled) {
        rest.and("(state <> 'ready' OR run_at <= ?)", [now.millis().into()]);
    }
    if has(Visible::Scheduled) && !has(Visible::Ready) {
        rest.and("(state <> 'ready' OR run_at > ?)", [now.millis().into()]);
    }
    if !filter.states.is_empty() && !is_served("state = ") {
        let states: Vec<Value> = filter.states.iter().map(|state| text(state.stored().as_str())).collect();
        rest.and(&format!("state IN ({})", vec!["?"; states.len()].join(", ")), states);
    }
    let texts = [
        ("key = ?", filter.key.as_ref().map(JobKey::as_str)),
        ("group_name = ?", filter.group.as_ref().map(GroupName::as_str)),
        ("worker = ?", filter.worker.as_ref().map(WorkerName::as_str)),
    ];
    for (condition, value) in texts.into_iter().filter(|(condition, _)| !is_served(condition)) {
        if let Some(value) = value {
            rest.and(condition, [text(value)]);
        }
    }
    if filter.dead_lettered && !is_served("origin IS NOT NULL") {
        rest.and("origin IS NOT NULL", []);
    }
    put_spans(&mut rest, filter);
    if filter.error.is_some() || filter.error_group.as_ref().is_some_and(|group| !group.is_empty()) {
        rest.and("(errors IS NOT NULL OR origin IS NOT NULL)", []);
    }
    for token in filter.payload.iter().filter_map(|field| field.token()) {
        rest.and("instr(payload, ?) > 0", [text(&format!("{token}:"))]);
    }
    if !filter.headers.is_empty() {
        rest.and("headers IS NOT NULL", []);
    }
    rest
}

fn put_spans(rest: &mut Sql, filter: &Filter) {
    let time = |at: Option<Timestamp>| at.map(Timestamp::millis);
    let spans = [
        ("created_at", time(filter.created.from), time(filter.created.before)),
        ("finished_at", time(filter.finished.from), time(filter.finished.before)),
        ("run_at", time(filter.run_at.from), time(filter.run_at.before)),
        ("priority", filter.priority.from, filter.priority.before),
        ("attempts", filter.attempts.from, filter.attempts.before),
    ];
    for (column, from, before) in spans {
        if let Some(from) = from {
            rest.and(&format!("{column} >= ?"), [from.into()]);
        }
        if let Some(before) = before {
            rest.and(&format!("{column} < ?"), [before.into()]);
        }
    }
}
