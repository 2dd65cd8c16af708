//! `tailback semaphores`

use clap::Subcommand;
use hyper::Method;
use serde::Deserialize;

use super::body::Body;
use super::client::{Call, segment};
use super::failure::{DONE, Failure};
use super::pages::{self, Paging, page};
use super::shown::shown;
use super::table::{Cell, Table, Tone, number, text, word};
use super::time::relative;
use super::{Context, Run};

/// Arguments of `semaphores`.
#[derive(Debug, clap::Args)]
pub struct Semaphores {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    paging: Paging,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show a semaphore, and the jobs that hold it.
    Show {
        /// The semaphore
        name: String,
    },
    /// Say how many jobs may hold it at once.
    Set {
        /// The semaphore
        name: String,
        /// How many jobs
        capacity: u32,
    },
    /// Delete a semaphore.
    Delete {
        /// The semaphore
        name: String,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Semaphore {
    name: String,
    capacity: u64,
    held: u64,
    waiting: u64,
    holders: Vec<Holder>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Holder {
    id: String,
    queue: String,
    worker: Option<String>,
    reserved_until: String,
}

page!(SemaphoresPage, semaphores: Semaphore);

impl Run for Semaphores {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        let Some(action) = self.action else {
            let table = async |page: &SemaphoresPage| Ok(table(page));
            return pages::print(context, "/v1/semaphores", &[], &self.paging, table).await;
        };
        let path = |name: &str| format!("/v1/semaphores/{}", segment(name));
        let call = match &action {
            Action::Show { name } => Call::get(path(name)),
            Action::Set { name, capacity } => {
                Call::put(path(name), Body::default().raw("capacity", Some(capacity)).json())
            }
            Action::Delete { name } => Call::new(Method::DELETE, path(name)),
        };
        let (out, answer) = (context.out, context.client.call(&call).await?);
        match &action {
            _ if out.is_json => out.body(&answer.body)?,
            Action::Show { .. } => show(context, &answer.read()?)?,
            Action::Set { name, capacity } => out.line(format!("{}  capacity {capacity}", shown(name)))?,
            Action::Delete { name } => out.line(format!("{}  deleted", shown(name)))?,
        }
        Ok(DONE)
    }
}

fn table(page: &SemaphoresPage) -> Table {
    let mut table = Table::new(&[text("NAME"), number("HELD"), number("CAPACITY"), number("WAITING")]);
    for semaphore in &page.semaphores {
        let full = if semaphore.held >= semaphore.capacity { Tone::Warn } else { Tone::Plain };
        table.row(vec![
            Cell::from(&semaphore.name),
            Cell::new(semaphore.held.to_string(), full),
            Cell::from(semaphore.capacity.to_string()),
            Cell::from(semaphore.waiting.to_string()),
        ]);
    }
    table
}

fn show(context: &Context, semaphore: &Semaphore) -> Result<(), Failure> {
    context.out.facts(&[
        ("name", shown(&semaphore.name)),
        ("held", format!("{} of {}", semaphore.held, semaphore.capacity)),
        ("waiting", semaphore.waiting.to_string()),
    ])?;
    let mut table = Table::new(&[word("HELD BY"), text("QUEUE"), text("WORKER"), number("LEASE ENDS")]);
    for holder in &semaphore.holders {
        table.row(vec![
            Cell::from(&holder.id),
            Cell::from(&holder.queue),
            Cell::from(holder.worker.as_deref().unwrap_or_default()),
            Cell::from(relative(&holder.reserved_until)),
        ]);
    }
    if table.is_empty() { Ok(()) } else { context.out.table(&table, "") }
}
