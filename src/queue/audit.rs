//! Who is acting, and the rows of the audit: made here, and written by the store in the transaction of the act.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Queues;
use crate::job::audit::ACTS;
pub(super) use crate::job::audit::shown;
use crate::job::{Payload, QueueName};
use crate::store::AuditRow;
use crate::store::audit::{Entry, along, row};
use crate::telemetry::trace;

/// Who is acting.
#[derive(Debug, Clone)]
pub struct Actor {
    /// Identifies the caller: see [`Caller::identity`](crate::job::Caller::identity).
    pub by: String,
    /// The name of the key.
    pub name: Option<String>,
    /// The address of the client.
    pub address: Option<IpAddr>,
    /// Whether what it does is an act that has an entry in the audit, or would have if it changed something.
    pub is_recorded: Arc<AtomicBool>,
}

impl Actor {
    /// Who is about to act.
    pub fn new(by: &str, name: Option<String>, address: Option<IpAddr>) -> Self {
        Self { by: by.to_owned(), name, address, is_recorded: Arc::default() }
    }
}

tokio::task_local! {
    static ACTOR: Actor;
}

/// Does the work of a call that this one makes.
pub fn acting<T>(actor: Actor, work: impl Future<Output = T>) -> impl Future<Output = T> {
    ACTOR.scope(actor, work)
}

/// Returns work that goes on as a task of its own, and is still attributed to the caller, with its row and within the same trace.
pub(super) fn carried<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let (actor, row) = (ACTOR.try_with(Clone::clone).ok(), row());
    trace::carrying(async move {
        let work = along(row, work);
        match actor {
            Some(actor) => acting(actor, work).await,
            None => work.await,
        }
    })
}

/// An act.
#[derive(Debug, Default)]
pub(super) struct Act<'a> {
    /// What is done, such as `queue.pause`.
    pub what: &'static str,
    /// What it is done to.
    pub on: &'a str,
    /// The queue that it is about.
    pub queue: Option<&'a QueueName>,
    /// What that was before.
    pub before: Option<Payload>,
    /// What it is from then on, or what was asked for.
    pub after: Option<Payload>,
}

impl Queues {
    /// Returns the row of an act whose jobs the store counts.
    pub(super) fn counting_row(&self, act: Act<'_>) -> Option<Entry> {
        self.row(act).map(|row| AuditRow { affected: Some(0), ..row }.into())
    }

    /// Returns the row of an act; nothing where no client asks for it, but the server itself.
    pub(super) fn row(&self, act: Act<'_>) -> Option<AuditRow> {
        let Actor { by, name: by_name, address, is_recorded } = ACTOR.try_with(Clone::clone).ok()?;
        is_recorded.store(true, Ordering::Relaxed);
        let at = self.now().ok()?;
        let Act { what, on, queue, before, after } = act;
        debug_assert!(ACTS.contains(&what), "{what} is not among the acts that can be searched for");
        Some(AuditRow {
            id: self.0.ids.next(at),
            at,
            by,
            by_name,
            address,
            what: what.to_owned(),
            on: on.to_owned(),
            queue: queue.cloned(),
            affected: None,
            before,
            after,
        })
    }
}
