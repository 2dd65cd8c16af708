//! The commands that belong to one case of a test, among all those that a server sends.

use std::collections::{HashMap, HashSet};
use std::fmt;

use memchr::memmem::Finder;
use mongodb::bson::{Document, RawBsonRef};

use super::op_msg::Message;

/// A command as faults see it.
pub struct Command {
    pub name: String,
    pub collection: String,
}

impl Command {
    /// The command of a message, if it has one.
    pub fn of(message: &Message) -> Option<Self> {
        let (name, value) = message.document()?.iter().next()?.ok()?;
        let collection = match value {
            RawBsonRef::String(collection) => collection.to_owned(),
            _ => String::new(),
        };
        Some(Self { name: name.to_string(), collection })
    }

    /// Whether MongoDB may reply after a long time only.
    pub fn waits_for_news(&self) -> bool {
        ["hello", "isMaster", "ismaster", "getMore"].contains(&self.name.as_str())
    }
}

/// Written beside what a call does, whether or not it happens.
const BESIDE: [&str; 2] = ["counters", "signals"];

/// The nth command of a kind in a case, from 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Step {
    pub name: String,
    pub collection: String,
    pub nth: usize,
    pub in_transaction: bool,
}

impl Step {
    /// Whether it is this other one, or comes after it and is like it.
    pub fn is_again(&self, other: &Self) -> bool {
        self.name == other.name && self.collection == other.collection && self.nth >= other.nth
    }

    /// Whether it writes.
    pub fn writes(&self) -> bool {
        !["find", "aggregate", "distinct", "count", "abortTransaction"].contains(&self.name.as_str())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if !self.collection.is_empty() {
            write!(f, " {}", self.collection)?;
        }
        if self.nth > 0 { write!(f, " #{}", self.nth + 1) } else { Ok(()) }
    }
}

/// Tells the commands of one case from all others, by texts that only they contain.
#[derive(Default)]
pub struct Watch {
    texts: Vec<Finder<'static>>,
    transactions: HashSet<String>,
    sessions: Vec<Document>,
    counts: HashMap<(String, String), usize>,
    steps: Vec<Step>,
}

impl Watch {
    pub fn new(texts: &[String]) -> Self {
        assert!(texts.iter().all(|text| !text.is_empty()), "an empty text is in every command");
        let texts = texts.iter().map(|text| Finder::new(text).into_owned());
        Self { texts: texts.collect(), ..Self::default() }
    }

    pub fn steps(&self) -> Vec<Step> {
        self.steps.clone()
    }

    pub fn sessions(&self) -> Vec<Document> {
        self.sessions.clone()
    }

    /// Returns which step of the case this is, if it is one.
    pub fn note(&mut self, Command { name, collection }: &Command, message: &Message) -> Option<Step> {
        let document = message.document()?;
        if self.texts.is_empty() || BESIDE.contains(&collection.as_str()) || name == "endSessions" {
            return None;
        }
        let transaction = match document.get_bool("autocommit") {
            Ok(false) => Some(format!("{:?} {:?}", document.get("lsid"), document.get("txnNumber"))),
            _ => None,
        };
        let in_transaction = transaction.is_some();
        let contains = |text: &Finder<'_>| text.find(&message.0).is_some();
        let is_known = transaction.as_ref().is_some_and(|own| self.transactions.contains(own));
        if !is_known && !self.texts.iter().any(contains) {
            return None;
        }
        if let Some(own) = transaction.filter(|_| !is_known) {
            self.transactions.insert(own);
            self.sessions.extend(document.get_document("lsid").ok().and_then(|lsid| lsid.try_into().ok()));
        }
        let nth = self.counts.entry((name.clone(), collection.clone())).or_default();
        let step = Step { name: name.clone(), collection: collection.clone(), nth: *nth, in_transaction };
        *nth += 1;
        self.steps.push(step.clone());
        Some(step)
    }
}
