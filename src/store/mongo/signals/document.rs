//! The documents of signals.

use std::collections::HashMap;

use mongodb::bson::{Bson, Document, doc};

use crate::job::{QueuePattern, Timestamp};
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::{Arrivals, Signal, SignalEvent};

/// Where servers say that they are there, and what their waiters wait for; those of older versions everything.
pub const SIGNALS: &str = "signals";
/// Where other programs say for which queues they have inserted jobs.
pub const WAKEUPS: &str = "wakeups";

/// Returns the document of a signal of this server.
pub fn to_document(signal: &Signal, server: &str, now: Timestamp) -> Document {
    let mut document = doc! { "server": server, "at": date(now) };
    match signal {
        Signal::Arrived(Arrivals { ready, unnamed, due }) => {
            let ready = ready.iter().map(|(queue, jobs)| {
                let jobs = i64::try_from(*jobs).unwrap_or(i64::MAX);
                Bson::Document(doc! { "queue": queue.as_str(), "jobs": jobs })
            });
            document.extend(doc! { "ready": ready.collect::<Vec<Bson>>(), "unnamed": *unnamed });
            document.extend(due.map(|due| ("due".to_owned(), date(due).into())));
        }
        Signal::Waiting { patterns, until } => {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            document.extend(doc! { "patterns": patterns, "until": date(*until) });
        }
        Signal::Settings => drop(document.insert("settings", true)),
        Signal::Busy { until } => document.extend(doc! { "busy": true, "until": date(*until) }),
    }
    document
}

/// What another program says of jobs that it has inserted: their queue and, where there are several, how many they are.
pub fn wakeup(document: &Document) -> Option<SignalEvent> {
    let row = Row(document);
    let jobs = row.number::<i64>("jobs").map_or(1, |jobs| usize::try_from(jobs).unwrap_or(1).max(1));
    let mut arrivals = Arrivals::default();
    arrivals.add(&row.text("queue").ok()?, jobs);
    Some(SignalEvent::Received { server: WAKEUPS.into(), signal: Signal::Arrived(arrivals) })
}

/// What a document says. One that cannot be read was written by a server of another version: it says nothing.
pub fn from_document(document: &Document) -> Option<SignalEvent> {
    let row = Row(document);
    let signal = if let Ok(patterns) = document.get_array("patterns") {
        let patterns = patterns.iter().filter_map(|pattern| pattern.as_str()?.parse::<QueuePattern>().ok());
        Signal::Waiting { patterns: patterns.collect(), until: row.time("until").ok()?? }
    } else if document.contains_key("settings") {
        Signal::Settings
    } else if document.contains_key("busy") {
        Signal::Busy { until: row.time("until").ok()?? }
    } else {
        let ready = document.get_array("ready").ok()?.iter().filter_map(|entry| {
            let entry = Row(entry.as_document()?);
            Some((entry.text("queue").ok()?, entry.number("jobs").ok()?))
        });
        let ready: HashMap<_, usize> = ready.collect();
        let unnamed = document.get_bool("unnamed").unwrap_or(false);
        Signal::Arrived(Arrivals { ready, unnamed, due: row.time("due").ok()? })
    };
    Some(SignalEvent::Received { server: document.get_str("server").ok()?.into(), signal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_heard() {
        let at = Timestamp::from_millis(1_000_000);
        let mut arrivals = Arrivals::default();
        arrivals.add(&"mail.out".parse().unwrap(), 3);
        let few = Signal::Arrived(arrivals.clone());
        arrivals.add_due(at);
        let many = Signal::Arrived(Arrivals { unnamed: true, ..arrivals });
        let patterns = vec!["mail.*".parse().unwrap(), "a".parse().unwrap(), "*".parse().unwrap()];
        for signal in
            [few, many, Signal::Waiting { patterns, until: at }, Signal::Settings, Signal::Busy { until: at }]
        {
            let document = to_document(&signal, "s1", at);
            let heard = SignalEvent::Received { server: "s1".into(), signal };
            assert_eq!(from_document(&document), Some(heard));
        }
        assert_eq!(from_document(&doc! { "server": "s1", "something": "new" }), None);
    }

    #[test]
    fn what_other_programs_say_is_understood_or_ignored() {
        let jobs = |document| match wakeup(&document) {
            Some(SignalEvent::Received { signal: Signal::Arrived(arrivals), .. }) => arrivals.ready,
            _ => HashMap::new(),
        };
        let queue: crate::job::QueueName = "mail".parse().unwrap();
        assert_eq!(jobs(doc! { "queue": "mail" }), HashMap::from([(queue.clone(), 1)]));
        assert_eq!(jobs(doc! { "queue": "mail", "jobs": 7_i64 }), HashMap::from([(queue.clone(), 7)]));
        assert_eq!(jobs(doc! { "queue": "mail", "jobs": -7 }), HashMap::from([(queue, 1)]));
        assert_eq!(wakeup(&doc! { "queue": "not a name" }), None);
        assert_eq!(wakeup(&doc! {}), None);
    }
}
