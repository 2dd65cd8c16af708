//! `tailback jobs`

use serde::Deserialize;

use super::client::{Call, query};
use super::failure::{DONE, Failure};
use super::shown::shown;
use super::table::{Cell, Table, Tone, number, text, word};
use super::time::{age, ago, relative};
use super::view::Job;
use super::{Context, Run};

/// Arguments of `jobs`.
#[derive(Debug, clap::Args)]
pub struct Jobs {
    /// The newest first
    #[arg(long)]
    newest: bool,
    /// How many on a page (1 to 1000)
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Go on from this cursor
    #[arg(long, allow_hyphen_values = true)]
    cursor: Option<String>,
    /// All pages
    #[arg(long)]
    all: bool,
    /// How much of each payload: none, head or full; head for people, full with --json
    #[arg(long, value_name = "HOW", value_parser = ["none", "head", "full"])]
    payload: Option<String>,
    // The last: its head is that of all that follows.
    #[command(flatten)]
    filter: Filter,
}

/// Which jobs.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Which jobs")]
pub struct Filter {
    /// In this queue
    #[arg(long, short)]
    queue: Option<String>,
    /// In queues whose names begin so
    #[arg(long, value_name = "PREFIX", conflicts_with = "queue")]
    prefix: Option<String>,
    /// In this state, or in one of several: dead,done
    #[arg(long, short)]
    state: Option<String>,
    /// With this deduplication key
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    job_key: Option<String>,
    /// Of this group
    #[arg(long, allow_hyphen_values = true)]
    group: Option<String>,
    /// Of this batch
    #[arg(long, allow_hyphen_values = true)]
    batch: Option<String>,
    /// That this worker reserved last
    #[arg(long, allow_hyphen_values = true)]
    worker: Option<String>,
    /// That were dead-lettered into their queue
    #[arg(long)]
    dead_lettered: bool,
    /// Whose last error has this text in it
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    error: Option<String>,
    /// Whose last error is of this group, as `dead` shows it
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    error_group: Option<String>,
    /// Pushed from this time on: 2026-01-31T12:00:00Z, or how long ago: 2h
    #[arg(long, value_name = "TIME", value_parser = ago)]
    created_from: Option<String>,
    /// Pushed before this time
    #[arg(long, value_name = "TIME", value_parser = ago)]
    created_before: Option<String>,
    /// Done or dead from this time on
    #[arg(long, value_name = "TIME", value_parser = ago)]
    finished_from: Option<String>,
    /// Done or dead before this time
    #[arg(long, value_name = "TIME", value_parser = ago)]
    finished_before: Option<String>,
    /// Due from this time on
    #[arg(long, value_name = "TIME")]
    run_at_from: Option<String>,
    /// Due before this time
    #[arg(long, value_name = "TIME")]
    run_at_before: Option<String>,
    /// Of this priority or a higher one
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority_min: Option<i64>,
    /// Of this priority or a lower one
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority_max: Option<i64>,
    /// Delivered so often or more
    #[arg(long, value_name = "N")]
    attempts_min: Option<u32>,
    /// Delivered so often or less
    #[arg(long, value_name = "N")]
    attempts_max: Option<u32>,
    /// Conditions on payloads and headers: payload.user.id=42, headers.tenant=a; may be repeated
    #[arg(long = "where", value_name = "FIELD=VALUE", value_parser = condition, allow_hyphen_values = true)]
    conditions: Vec<(String, String)>,
}

/// Splits `payload.PATH=VALUE`.
pub fn condition(text: &str) -> Result<(String, String), String> {
    let (field, value) = text.split_once('=').ok_or("it must be FIELD=VALUE")?;
    if field.starts_with("payload.") || field.starts_with("headers.") {
        return Ok((field.to_owned(), value.to_owned()));
    }
    Err("the field must begin with payload. or headers.".to_owned())
}

/// A page of jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Page {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// How many were looked at.
    pub scanned: u64,
    /// Whether that were all.
    pub complete: bool,
    /// Where the next page begins.
    pub cursor: Option<String>,
    unreadable: Vec<Unreadable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Unreadable {
    id: String,
}

impl Page {
    /// Returns whether there is nothing on it.
    fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.unreadable.is_empty()
    }
}

impl Filter {
    fn parameters(&self) -> Vec<(&'static str, Option<String>)> {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        let priority = |number: Option<i64>| number.map(|number| number.to_string());
        vec![
            ("queue", self.queue.clone()),
            ("queue_prefix", self.prefix.clone()),
            ("state", self.state.clone()),
            ("key", self.job_key.clone()),
            ("group", self.group.clone()),
            ("batch", self.batch.clone()),
            ("worker", self.worker.clone()),
            ("dead_lettered", self.dead_lettered.then(|| "true".to_owned())),
            ("error", self.error.clone()),
            ("error_group", self.error_group.clone()),
            ("created_from", self.created_from.clone()),
            ("created_before", self.created_before.clone()),
            ("finished_from", self.finished_from.clone()),
            ("finished_before", self.finished_before.clone()),
            ("run_at_from", self.run_at_from.clone()),
            ("run_at_before", self.run_at_before.clone()),
            ("priority_min", priority(self.priority_min)),
            ("priority_max", priority(self.priority_max)),
            ("attempts_min", number(self.attempts_min)),
            ("attempts_max", number(self.attempts_max)),
        ]
    }
}

impl Run for Jobs {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        let out = context.out;
        let shown = if out.is_json { "full" } else { "head" };
        let mut cursor = self.cursor.clone();
        let mut is_first = true;
        loop {
            let mut parameters = self.filter.parameters();
            parameters.extend(
                self.filter.conditions.iter().map(|(field, value)| (field.as_str(), Some(value.clone()))),
            );
            parameters.extend([
                ("order", self.newest.then(|| "newest".to_owned())),
                ("payload", Some(self.payload.as_deref().unwrap_or(shown).to_owned())),
                ("limit", Some(self.limit.unwrap_or(if self.all { 1000 } else { 50 }).to_string())),
                ("cursor", cursor.take()),
            ]);
            let answer = context.client.call(&Call::get(query("/v1/jobs", &parameters))).await?;
            let page: Page = answer.read()?;
            if out.is_json {
                out.body(&answer.body)?;
            } else if is_first || !page.is_empty() || page.cursor.is_none() {
                print(context, &page, self.all)?;
            }
            is_first = false;
            cursor = page.cursor.filter(|_| self.all);
            if cursor.is_none() {
                return Ok(DONE);
            }
        }
    }
}

fn print(context: &Context, page: &Page, is_all: bool) -> Result<(), Failure> {
    let out = context.out;
    let nothing = if page.complete { "no jobs" } else { "no jobs among those that were looked at" };
    out.table(&table(&page.jobs), nothing)?;
    for job in &page.unreadable {
        out.line(format!("{} cannot be read: another program wrote it", shown(&job.id)))?;
    }
    match &page.cursor {
        Some(cursor) if !is_all => {
            let (cursor, scanned) = (shown(cursor), page.scanned);
            out.line(out.paint(Tone::Dim, &format!("{scanned} looked at; more: --all, or --cursor {cursor}")))
        }
        _ => Ok(()),
    }
}

/// Returns jobs as a table.
pub fn table(jobs: &[Job]) -> Table {
    let mut table = Table::new(&[
        word("ID"),
        text("QUEUE"),
        word("STATE"),
        number("ATTEMPT").spare(1),
        number("PRIORITY").spare(4),
        number("AGE").spare(2),
        word("NEXT").spare(3),
        text("ERROR OR PAYLOAD"),
    ]);
    for job in jobs {
        let next = match job.state.as_str() {
            "scheduled" => relative(&job.run_at),
            "reserved" => job.reserved_until.as_deref().map_or_else(String::new, relative),
            _ => String::new(),
        };
        // What is shown of it is escaped already.
        let detail = Cell::from(job.detail());
        table.row(vec![
            Cell::from(&job.id),
            Cell::from(&job.queue),
            Cell::new(&job.state, Tone::of_state(&job.state)),
            Cell::from(job.attempts()),
            Cell::from(job.priority.to_string()),
            Cell::from(age(&job.created_at)),
            Cell::from(next),
            detail,
        ]);
    }
    table
}
