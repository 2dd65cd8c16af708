//! `tailback workers`

use clap::Subcommand;
use hyper::Method;
use serde::Deserialize;

use super::client::{Call, query, segment};
use super::failure::{DONE, Failure};
use super::jobs::{self, Page};
use super::pages::{self, Paging, page};
use super::shown::shown;
use super::table::{Cell, Table, Tone, number, text, word};
use super::time::{human, relative};
use super::{Context, Run};

/// Arguments of `workers`.
#[derive(Debug, clap::Args)]
pub struct Workers {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    paging: Paging,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show a worker, and the jobs that it holds.
    Show {
        /// The worker
        name: String,
    },
    /// Remove a worker whose machine is gone: its jobs are released at once.
    Remove {
        /// The worker
        name: String,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Worker {
    name: String,
    version: Option<String>,
    slots: Option<u64>,
    seen_at: String,
    timeout_ms: u64,
    silent: bool,
    reserved: u64,
}

page!(WorkersPage, workers: Worker);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Removed {
    more: bool,
    affected: u64,
}

impl Run for Workers {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        match self.action {
            None => {
                let table = async |page: &WorkersPage| Ok(table(page));
                pages::print(context, "/v1/workers", &[], &self.paging, table).await
            }
            Some(Action::Show { name }) => show(context, &name).await,
            Some(Action::Remove { name }) => remove(context, &name).await,
        }
    }
}

fn table(page: &WorkersPage) -> Table {
    let columns = [
        text("NAME"),
        word("STATE"),
        number("HOLDS"),
        number("SLOTS").spare(2),
        number("SEEN").spare(1),
        text("VERSION").spare(3),
    ];
    let mut table = Table::new(&columns);
    for worker in &page.workers {
        table.row(vec![
            Cell::from(&worker.name),
            if worker.silent { Cell::new("silent", Tone::Bad) } else { Cell::new("alive", Tone::Good) },
            Cell::from(worker.reserved.to_string()),
            Cell::from(worker.slots.map_or_else(String::new, |slots| slots.to_string())),
            Cell::from(relative(&worker.seen_at)),
            Cell::from(worker.version.as_deref().unwrap_or_default()),
        ]);
    }
    table
}

async fn show(context: &Context, name: &str) -> Result<u8, Failure> {
    let out = context.out;
    let path = format!("/v1/workers/{}", segment(name));
    let answer = context.client.call(&Call::get(path.clone())).await?;
    if out.is_json {
        out.body(&answer.body)?;
        return Ok(DONE);
    }
    let worker: Worker = answer.read()?;
    out.facts(&[
        ("name", shown(&worker.name)),
        ("state", if worker.silent { "silent".to_owned() } else { "alive".to_owned() }),
        ("last seen", relative(&worker.seen_at)),
        ("times out after", human(worker.timeout_ms)),
        ("slots", worker.slots.map_or_else(String::new, |slots| slots.to_string())),
        ("version", worker.version.as_deref().map_or_else(String::new, shown)),
        ("holds", format!("{} jobs", worker.reserved)),
    ])?;
    let path = query(&format!("{path}/jobs"), &[("payload", Some("head".to_owned()))]);
    let held: Page = context.client.call(&Call::get(path)).await?.read()?;
    if !held.jobs.is_empty() {
        out.line("")?;
        out.table(&jobs::table(&held.jobs), "")?;
    }
    Ok(DONE)
}

/// One that holds very many jobs is removed in steps.
async fn remove(context: &Context, name: &str) -> Result<u8, Failure> {
    let call = Call::new(Method::DELETE, format!("/v1/workers/{}", segment(name)));
    let mut released = 0;
    loop {
        let answer = context.client.call(&call).await?;
        if context.out.is_json {
            context.out.body(&answer.body)?;
        }
        let removed: Removed = answer.read()?;
        released += removed.affected;
        if !removed.more {
            break;
        }
    }
    if !context.out.is_json {
        context.out.line(format!("{}  removed, {released} jobs released", shown(name)))?;
    }
    Ok(DONE)
}
