//! Which primary replies. Each election has an id, which grows; the replies to writes and to `hello` have it, those to reads do not.
//!
//! A call notes the term before it reads, and what it has read is confirmed only by a reply of the same term ([`barrier`]). A member
//! is the primary without a break while its term lasts. What was read in between was read from this member: the driver reads from no
//! other that claims to be the primary of an older election than the newest one it has heard of. So a term counts only once the
//! driver has heard of it, too. Through a `mongos` no reply has an election, and every term is the same.
//!
//! [`barrier`]: super::client::barrier

use std::sync::{Arc, Mutex, MutexGuard};

use mongodb::bson::Document;
use mongodb::bson::oid::ObjectId;
use mongodb::event::EventHandler;
use mongodb::event::sdam::{SdamEvent, TopologyType};

use crate::store::Term;

/// What is known of elections.
#[derive(Debug, Default)]
pub struct Terms(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whether the URL names one member, to which all goes, so that the driver hears of no elections.
    is_direct: bool,
    /// The newest that the driver has heard of.
    heard: Option<ObjectId>,
    /// That of the last reply.
    replied: Option<ObjectId>,
    /// The last one that was both.
    current: Option<ObjectId>,
}

impl State {
    fn settle(&mut self) {
        if self.replied.is_some() && (self.is_direct || self.heard == self.replied) {
            self.current = self.replied;
        }
    }
}

impl Terms {
    /// Returns what the driver is to call.
    pub fn handler(self: &Arc<Self>) -> EventHandler<SdamEvent> {
        let terms = self.clone();
        EventHandler::callback(move |event: SdamEvent| {
            if let SdamEvent::TopologyDescriptionChanged(changed) = event {
                let new = &changed.new_description;
                terms.heard(new.topology_type() == TopologyType::Single, new.max_election_id());
            }
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn heard(&self, is_direct: bool, newest: Option<ObjectId>) {
        let mut state = self.state();
        state.is_direct = is_direct;
        state.heard = newest;
        state.settle();
    }

    /// Notes the term of a reply, and returns it if the reply says one.
    pub fn note(&self, reply: &Document) -> Option<Term> {
        let replied = reply.get_object_id("electionId").ok()?;
        let mut state = self.state();
        state.replied = Some(replied);
        state.settle();
        Some(Term::of(replied.bytes()))
    }

    /// Returns the term in which what is read from now on is read, or an older one.
    pub fn current(&self) -> Term {
        self.state().current.map_or(Term::default(), |id| Term::of(id.bytes()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use mongodb::bson::doc;

    use super::*;

    fn election(n: u8) -> ObjectId {
        ObjectId::from_bytes([n; 12])
    }

    fn reply(terms: &Terms, n: u8) -> Term {
        terms.note(&doc! { "ok": 1, "electionId": election(n) }).unwrap()
    }

    #[test]
    fn a_term_counts_once_the_driver_has_heard_of_it() {
        let terms = Terms::default();
        let first = reply(&terms, 1);
        assert_eq!(terms.current(), Term::default());
        terms.heard(false, Some(election(1)));
        assert_eq!(terms.current(), first);
        terms.heard(false, Some(election(2)));
        assert_eq!(terms.current(), first, "no reply has it yet");
        let second = reply(&terms, 2);
        assert_eq!(terms.current(), second);
        reply(&terms, 3);
        assert_eq!(terms.current(), second);
    }

    #[test]
    fn one_member_alone_is_believed() {
        let terms = Terms::default();
        terms.heard(true, None);
        assert_eq!(reply(&terms, 1), terms.current());
        assert_eq!(terms.note(&doc! { "ok": 1 }), None);
    }
}
