//! The past: how much happened in each step of time, and how many jobs there were.
//!
//! The collection `series` has a document for each server, hour, and queue in which something happened there; one for all queues
//! together has no name in its `_id`. So a week of one queue is 168 small documents of each server. A server changes only its own
//! documents, each by setting fields that are its alone and never change: a repeat sets the same.
//!
//! | field | meaning |
//! |---|---|
//! | `_id` | queue, hour since 1970, server, with a bar between them |
//! | `s` | what happened in each step of ten seconds, by its number within the hour |
//! | `m` | the same in minutes, of what is not in `s` |
//! | `t` | the same in ten minutes, of what is in neither |
//! | `d` | how many jobs there were at the begin of a step, by its number |
//! | `fold` | when `s` becomes a part of `m`, or `m` one of `t`; absent: nothing is left to be folded |
//! | `until` | when MongoDB removes the document |
//!
//! Beside them there are documents that begin with `!`, which no queue does: `!run|` and a server, since and until when that is there, and since when it says
//! how many jobs each queue has (the last time; older servers write nothing else of it); `!turn|`, a moment and a server, each time that one began to say that;
//! `!told|`, a step, a server and a number, what all other servers read of that step, for five minutes; and `!depth`, which server says
//! how many jobs there are.

mod fields;
mod fold;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use futures::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};

use crate::job::{QueueName, Timestamp};
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{fault, is_duplicate, parts, write};
use crate::store::mongo::figures::counts::{rows, split};
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::mongo::series::fields::{Hour, binary, bytes};
use crate::store::mongo::stored::Stored;
use crate::store::series::{HOUR_MS, TOLD_MS};
use crate::store::{
    Counts, Depth, RecentTally, Result, Series, SeriesRead, SeriesRow, SeriesRun, SeriesWrite, Span,
    StepOfOther, Store as _, Subject, ToldStep,
};

/// The collection.
const SERIES: &str = "series";
/// How long a document is kept behind its hour, in milliseconds.
const KEPT_MS: u64 = Span::Coarse.kept_ms().unsigned_abs() + 2 * HOUR_MS.unsigned_abs();
/// The most statements of one command: it holds up what comes behind it.
const AT_ONCE: usize = 1000;
/// The approximate size of a piece of what servers announce to each other.
const PIECE: usize = 1 << 20;
/// So many documents before some time are read for how many jobs there were.
const SCAN_LIMIT: i64 = 16;

#[async_trait]
impl Series for Mongo {
    async fn write_series(&self, series: &SeriesWrite) -> Result<()> {
        let statements = statements(series);
        let mut left = statements.as_slice();
        while !left.is_empty() {
            let (some, rest) = left.split_at(left.len().min(AT_ONCE));
            for part in parts(some.to_vec())? {
                let command = doc! { "update": SERIES, "updates": part, "ordered": false };
                let written = async { write(self.connection.database().await?, command).await };
                self.connection.within(written).await?;
            }
            left = rest;
        }
        Ok(())
    }

    async fn read_series(&self, subject: &Subject, from: Timestamp, to: Timestamp) -> Result<SeriesRead> {
        self.connection.within(read(self, subject, from, to)).await
    }

    async fn steps_of_others(&self, server: &str, from: Timestamp) -> Result<Vec<StepOfOther>> {
        self.connection.within(told(self, server, from)).await
    }

    async fn take_depth_turn(&self, server: &str, for_ms: u64) -> Result<bool> {
        let take = async {
            let now = self.now()?;
            let free =
                doc! { "_id": "!depth", "$or": [{ "server": server }, { "turn": { "$lt": date(now) } }] };
            let turn = doc! { "$set": { "server": server, "turn": date(now.plus_ms(for_ms)) } };
            let series = self.collection(SERIES).await?;
            match series.update_one(free, turn).upsert(true).await {
                Ok(_) => Ok(true),
                Err(error) if is_duplicate(&error) => Ok(false),
                Err(error) => Err(fault(error)),
            }
        };
        self.connection.within(take).await
    }

    async fn depths(&self) -> Result<Vec<(QueueName, Counts)>> {
        self.counters.flush().await?;
        let depths = async {
            let scheduled = self.figures.scheduled(self).await?;
            let all = rows(self, Document::new(), Document::new(), 0).await?;
            let some = all.into_iter().filter(|(_, row)| row.by_state.iter().any(|count| *count > 0));
            Ok(some
                .map(|(queue, row)| {
                    let ahead = scheduled.of(&queue);
                    (queue, split(&row, ahead))
                })
                .collect())
        };
        self.connection.within(depths).await
    }

    async fn recent_tallies(&self, but_of: &str, from: Timestamp, to: Timestamp) -> Result<Vec<RecentTally>> {
        self.connection.within(recent(self, but_of, from, to)).await
    }

    async fn fold_series(&self, limit: usize) -> Result<u64> {
        self.connection.within(fold::fold(self, limit)).await
    }
}

/// Returns the updates that write a step.
fn statements(SeriesWrite { run, rows, told }: &SeriesWrite) -> Vec<Document> {
    let mut hours: BTreeMap<(&str, i64), Document> = BTreeMap::new();
    for SeriesRow { subject, span, at, tally, depth } in rows {
        let (hour, number) = (at.millis() / HOUR_MS, at.millis() % HOUR_MS / span.ms());
        let fields = hours.entry((subject.as_str(), hour)).or_default();
        if let Some(tally) = tally {
            fields.insert(format!("{}.{number}", fields::name(*span)), binary(tally.to_bytes()));
        }
        if let Some(depth) = depth {
            let number = at.millis() % HOUR_MS / Span::Step.ms();
            fields.insert(format!("d.{number}"), binary(depth.to_bytes()));
        }
    }
    let server = &*run.server;
    let of_hour = |((subject, hour), fields): ((&str, i64), Document)| {
        let end = Timestamp::from_millis((hour + 1) * HOUR_MS);
        let fold = end.plus_ms(Span::Step.kept_ms().unsigned_abs());
        let new = doc! { "fold": date(fold), "until": date(end.plus_ms(KEPT_MS)) };
        let update = doc! { "$set": fields, "$setOnInsert": new };
        doc! { "q": { "_id": fields::id(subject, hour, server) }, "u": update, "upsert": true }
    };
    let mut statements: Vec<Document> = hours.into_iter().map(of_hour).collect();
    let mut latest = doc! { "seen": date(run.seen), "until": date(run.seen.plus_ms(KEPT_MS)) };
    latest.extend(run.turn.map(|turn| ("turn".to_owned(), date(turn).into())));
    let update = doc! { "$set": { "since": date(run.since) }, "$max": latest };
    statements.push(doc! { "q": { "_id": format!("!run|{server}") }, "u": update, "upsert": true });
    if let Some(turn) = run.new_turn() {
        let id = format!("{}{server}", turns_from(turn));
        let until = date(turn.plus_ms(KEPT_MS));
        let update = doc! { "$set": { "at": date(turn), "until": until } };
        statements.push(doc! { "q": { "_id": id }, "u": update, "upsert": true });
    }
    let pieces = told.iter().flat_map(|told| told.to_pieces(PIECE).into_iter().map(|piece| (told.at, piece)));
    for (n, (at, piece)) in pieces.enumerate() {
        let id = format!("!told|{:014}|{server}|{n:04}", at.millis());
        let told = doc! {
            "server": server, "at": date(at), "since": date(run.since), "told": binary(piece),
            "until": date(at.plus_ms(TOLD_MS)),
        };
        statements.push(doc! { "q": { "_id": id }, "u": { "$set": told }, "upsert": true });
    }
    statements
}

/// Returns a filter for the documents whose `_id` is within this range.
fn between(first: String, end: String) -> Document {
    doc! { "_id": { "$gte": first, "$lt": end } }
}

async fn read(mongo: &Mongo, subject: &Subject, from: Timestamp, to: Timestamp) -> Result<SeriesRead> {
    let series = mongo.collection(SERIES).await?;
    let hour = |at: Timestamp| at.millis() / HOUR_MS;
    let bound = |hour| fields::id(subject.as_str(), hour, "");
    let find = series.find(between(bound(hour(from)), bound(hour(to) + 1)));
    let documents: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let (mut read, mut depths) = (SeriesRead::default(), BTreeMap::new());
    for hour in documents.iter().filter_map(Hour::read) {
        for span in Span::ALL {
            let own = hour.tallies(span).into_iter().filter(|(at, _)| (from..to).contains(at));
            read.tallies.extend(own.map(|(at, tally)| (hour.server.clone(), span, at, tally)));
        }
        depths.extend(hour.depths());
    }
    let within = depths.split_off(&from);
    read.before = match depths.pop_last() {
        Some(before) => Some(before),
        None => before(mongo, between(bound(0), bound(hour(from)))).await?,
    };
    read.depths = within.into_iter().filter(|(at, _)| *at < to).collect();
    let since = read.before.map_or(from, |(at, _)| at);
    (read.runs, read.turns) = tokio::try_join!(runs(mongo, from, to), turns(mongo, since, to))?;
    Ok(read)
}

/// Reads the documents of some hours, whatever they are about: those that are folded at these times.
async fn recent(mongo: &Mongo, server: &str, from: Timestamp, to: Timestamp) -> Result<Vec<RecentTally>> {
    let hours = from.millis() / HOUR_MS..=to.millis() / HOUR_MS;
    let folded = |hour: i64| {
        let end = Timestamp::from_millis((hour + 1) * HOUR_MS);
        date(end.plus_ms(Span::Step.kept_ms().unsigned_abs()))
    };
    let folds: Vec<Bson> = hours.map(|hour| folded(hour).into()).collect();
    let series = mongo.collection(SERIES).await?;
    let find = series.find(doc! { "fold": { "$in": folds } }).projection(doc! { "s": 1, "m": 1 });
    let mut found = find.await.map_err(fault)?;
    let mut recent = Vec::new();
    while let Some(document) = found.try_next().await.map_err(fault)? {
        let subject = document.get_str("_id").ok().and_then(|id| id.split('|').next()?.parse().ok());
        let (Some(hour), Some(queue)) = (Hour::read(&document), subject) else { continue };
        let queue: QueueName = queue;
        if &*hour.server == server {
            continue;
        }
        for span in [Span::Step, Span::Minute] {
            let own = hour.tallies(span).into_iter().filter(|(at, _)| (from..to).contains(at));
            recent.extend(own.map(|(at, tally)| RecentTally { queue: queue.clone(), span, at, tally }));
        }
    }
    Ok(recent)
}

/// Returns what the `_id` begins with of each turn that began at this moment.
fn turns_from(at: Timestamp) -> String {
    format!("!turn|{:014}|", at.millis())
}

async fn turns(mongo: &Mongo, from: Timestamp, to: Timestamp) -> Result<Vec<Timestamp>> {
    let series = mongo.collection(SERIES).await?;
    let find = series.find(between(turns_from(from), turns_from(to)));
    let documents: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    Ok(documents.iter().filter_map(|document| Row(document).time("at").ok().flatten()).collect())
}

/// Returns how many jobs there were last in these documents.
async fn before(mongo: &Mongo, mut within: Document) -> Result<Option<(Timestamp, Depth)>> {
    within.insert("d", doc! { "$exists": true });
    let series = mongo.collection(SERIES).await?;
    let find = series.find(within).sort(doc! { "_id": -1 }).limit(SCAN_LIMIT);
    let documents: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let depths = documents.iter().filter_map(Hour::read).flat_map(|hour| hour.depths());
    Ok(depths.max_by_key(|(at, _)| *at))
}

async fn runs(mongo: &Mongo, from: Timestamp, to: Timestamp) -> Result<Vec<SeriesRun>> {
    let mut filter = between("!run|".into(), "!run}".into());
    filter.extend(doc! { "seen": { "$gte": date(from) }, "since": { "$lt": date(to) } });
    let series = mongo.collection(SERIES).await?;
    let documents: Vec<Stored> =
        series.find(filter).await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let run = |document: &Stored| {
        let server = document.get_str("_id").ok()?.strip_prefix("!run|")?.into();
        let time = |field| Row(document).time(field).ok().flatten();
        Some(SeriesRun { server, since: time("since")?, seen: time("seen")?, turn: time("turn") })
    };
    Ok(documents.iter().filter_map(run).collect())
}

/// Returns what other servers announced of steps from `from` on.
async fn told(mongo: &Mongo, server: &str, from: Timestamp) -> Result<Vec<StepOfOther>> {
    let mut filter = between(format!("!told|{:014}", from.millis()), "!told}".into());
    filter.insert("server", doc! { "$ne": server });
    let series = mongo.collection(SERIES).await?;
    let documents: Vec<Stored> =
        series.find(filter).await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let mut steps: HashMap<(Arc<str>, Timestamp), StepOfOther> = HashMap::new();
    for document in &documents {
        let row = Row(document);
        let (Ok(Some(at)), Ok(Some(since))) = (row.time("at"), row.time("since")) else { continue };
        let (Ok(server), Some(piece)) = (document.get_str("server"), document.get("told").and_then(bytes))
        else {
            continue;
        };
        let server: Arc<str> = server.into();
        let new =
            || StepOfOther { server: server.clone(), since, step: ToldStep { at, ..ToldStep::default() } };
        let step = steps.entry((server.clone(), at)).or_insert_with(new);
        step.step.tallies.extend(ToldStep::read_piece(piece));
    }
    Ok(steps.into_values().collect())
}
