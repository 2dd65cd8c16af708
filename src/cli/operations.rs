//! `tailback operations`

use std::time::Duration;

use bytes::Bytes;
use clap::Subcommand;
use hyper::Method;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::body::Body;
use super::client::{Call, segment};
use super::failure::{DONE, FAILED, Failure, printed};
use super::job::Wait;
use super::jobs::condition;
use super::out::note;
use super::pages::{self, Paging, page};
use super::payload::value_or_text;
use super::shown::shown;
use super::table::{Cell, Table, Tone, number, text, word};
use super::time::{age, ago, human, local, ms};
use super::view::rate;
use super::{Context, Run};

/// How often the progress is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Arguments of `operations`.
#[derive(Debug, clap::Args)]
pub struct Operations {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    paging: Paging,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show an operation, or wait until it is over.
    Show {
        /// The operation
        id: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Stop an operation; what it has done stays.
    Cancel {
        /// The operation
        id: String,
    },
    /// Dead and scheduled jobs are ready at once where they are, and their attempts start again.
    Retry(Begin),
    /// Dead jobs are ready again, dead-lettered ones back where they came from.
    Redrive(Begin),
    /// Delete jobs that are not reserved.
    Delete(Begin),
    /// Push copies of done jobs.
    Replay(Begin),
    /// Put jobs into another queue.
    Move {
        /// The queue to which they are moved
        #[arg(long, value_name = "QUEUE")]
        to: String,
        /// The priority that they get
        #[arg(long, allow_negative_numbers = true)]
        priority: Option<i64>,
        #[command(flatten)]
        begin: Begin,
    },
    /// Give jobs another priority.
    SetPriority {
        /// The priority that they get
        #[arg(long, allow_negative_numbers = true)]
        priority: i64,
        #[command(flatten)]
        begin: Begin,
    },
}

/// Which jobs an operation is about.
#[derive(Debug, clap::Args)]
struct Begin {
    /// In this queue, or in those whose names begin so: mail.*
    #[arg(long, short)]
    queue: Option<String>,
    /// In this state
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
    /// From this time on, by when they were finished or else pushed: 2026-01-31T12:00:00Z, or how long ago: 2h
    #[arg(long, value_name = "TIME", value_parser = ago)]
    from: Option<String>,
    /// Before this time
    #[arg(long, value_name = "TIME", value_parser = ago)]
    before: Option<String>,
    /// Conditions on payloads and headers: payload.user.id=42, headers.tenant=a; may be repeated
    #[arg(long = "where", value_name = "FIELD=VALUE", value_parser = condition, allow_hyphen_values = true)]
    conditions: Vec<(String, String)>,
    /// How many jobs at most
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Only look which jobs it would be
    #[arg(long)]
    dry_run: bool,
    /// Where it is not about one queue: the same again, such as 'mail.*', or 'all queues'
    #[arg(long, allow_hyphen_values = true)]
    confirm: Option<String>,
    #[command(flatten)]
    wait: Wait,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Operation {
    id: String,
    state: String,
    action: String,
    filter: Option<Box<RawValue>>,
    to: Option<String>,
    created_at: String,
    finished_at: Option<String>,
    matched: Option<u64>,
    scanned: u64,
    affected: u64,
    skipped: u64,
    rate_per_s: Option<f64>,
    remaining_ms: Option<u64>,
    errors: Vec<String>,
    error: Option<String>,
}

/// What an operation would do.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DryRun {
    matched: u64,
    scanned: u64,
    complete: bool,
    estimate: Option<u64>,
    samples: Vec<Sample>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Sample {
    id: String,
    queue: String,
    state: String,
}

page!(OperationsPage, operations: Operation);

impl Begin {
    fn body(&self, action: &str, to: Option<&str>, priority: Option<i64>) -> String {
        let of = |prefix: &str| {
            let fields = self
                .conditions
                .iter()
                .filter_map(|(field, value)| Some((field.strip_prefix(prefix)?, value)));
            let body = fields
                .fold(Body::default(), |body, (name, value)| body.raw(name, Some(value_or_text(value))));
            Some(body.json()).filter(|json| json != "{}")
        };
        let filter = Body::default()
            .text("queue", self.queue.as_deref())
            .text("state", self.state.as_deref())
            .text("key", self.job_key.as_deref())
            .text("group", self.group.as_deref())
            .text("batch", self.batch.as_deref())
            .text("worker", self.worker.as_deref())
            .flag("dead_lettered", self.dead_lettered)
            .text("error", self.error.as_deref())
            .text("error_group", self.error_group.as_deref())
            .text("from", self.from.as_deref())
            .text("before", self.before.as_deref())
            .raw("payload", of("payload."))
            .raw("headers", of("headers."));
        Body::default()
            .raw("filter", Some(filter.json()))
            .text("action", Some(action))
            .text("to", to)
            .raw("priority", priority)
            .raw("limit", self.limit)
            .flag("dry_run", self.dry_run)
            .text("confirm", self.confirm.as_deref())
            .json()
    }
}

impl Run for Operations {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        let (body, begin) = match self.action {
            None => {
                let table = async |page: &OperationsPage| Ok(table(page));
                return pages::print(context, "/v1/operations", &[], &self.paging, table).await;
            }
            Some(Action::Show { id, wait }) => return show(context, &id, wait.span(), false).await,
            Some(Action::Cancel { id }) => {
                let call = Call::new(Method::DELETE, format!("/v1/operations/{}", segment(&id)));
                let answer = context.client.call(&call).await?;
                return print(context, &answer.body, &answer.read()?);
            }
            Some(Action::Retry(begin)) => (begin.body("retry", None, None), begin),
            Some(Action::Redrive(begin)) => (begin.body("redrive", None, None), begin),
            Some(Action::Delete(begin)) => (begin.body("delete", None, None), begin),
            Some(Action::Replay(begin)) => (begin.body("replay", None, None), begin),
            Some(Action::Move { to, priority, begin }) => (begin.body("move", Some(&to), priority), begin),
            Some(Action::SetPriority { priority, begin }) => {
                (begin.body("set_priority", None, Some(priority)), begin)
            }
        };
        let answer = context.client.call(&Call::post("/v1/operations", body)).await?;
        if begin.dry_run {
            return print_dry_run(context, &answer.body, &answer.read()?);
        }
        let operation: Operation = answer.read()?;
        match begin.wait.span() {
            Some(wait) => {
                note(&format!("operation {} has begun", shown(&operation.id)));
                show(context, &operation.id, Some(wait), true).await
            }
            None => {
                print(context, &answer.body, &operation)?;
                Ok(DONE)
            }
        }
    }
}

fn table(page: &OperationsPage) -> Table {
    let mut table = Table::new(&[
        word("ID"),
        word("STATE"),
        word("ACTION"),
        number("AFFECTED"),
        number("OF"),
        number("SKIPPED").spare(3),
        number("AGE").spare(1),
        text("WHICH JOBS").spare(2),
    ]);
    for operation in &page.operations {
        table.row(vec![
            Cell::from(&operation.id),
            Cell::new(&operation.state, Tone::of_state(&operation.state)),
            Cell::from(&operation.action),
            Cell::from(operation.affected.to_string()),
            Cell::from(operation.matched.map_or_else(String::new, |matched| matched.to_string())),
            Cell::from(operation.skipped.to_string()),
            Cell::from(age(&operation.created_at)),
            Cell::from(operation.filter.as_deref().map_or("", RawValue::get)),
        ]);
    }
    table
}

/// Shows an operation, once it is over if it is to wait. Exit code 1 if it failed or was cancelled.
/// `was_there` says whether the server has just returned it: then it is asked again where it does not answer.
pub async fn show(
    context: &Context,
    id: &str,
    wait: Option<Duration>,
    mut was_there: bool,
) -> Result<u8, Failure> {
    let until = wait.map(|wait| (Instant::now() + wait, wait));
    let call = Call::get(format!("/v1/operations/{}", segment(id)));
    let mut told = String::new();
    loop {
        let answer = match context.client.call(&call).await {
            Err(failure)
                if failure.is_passing() && was_there && until.is_some_and(|(at, _)| at > Instant::now()) =>
            {
                note(&format!("{failure}; trying again"));
                tokio::time::sleep(LOOK * 2).await;
                continue;
            }
            answer => answer?,
        };
        was_there = true;
        let operation: Operation = answer.read()?;
        let is_over = matches!(operation.state.as_str(), "done" | "cancelled" | "failed");
        match until {
            Some((at, wait)) if !is_over => {
                if Instant::now() >= at {
                    return Err(Failure::Nothing(format!("it is not over after {}", human(ms(wait)))));
                }
                let progress = operation.progress();
                if progress != told && !context.out.is_json {
                    note(&progress);
                    told = progress;
                }
                tokio::time::sleep(LOOK).await;
            }
            _ => {
                let is_well = until.is_none() || operation.state == "done";
                let code = if is_well { DONE } else { FAILED };
                return printed(print(context, &answer.body, &operation), code);
            }
        }
    }
}

impl Operation {
    fn progress(&self) -> String {
        let of = self.matched.map_or_else(String::new, |matched| format!(" of about {matched}"));
        let rate = self.rate_per_s.map_or_else(String::new, |per_s| format!(", {}/s", rate(per_s)));
        let left =
            self.remaining_ms.map_or_else(String::new, |left| format!(", about {} to go", human(left)));
        format!("{}: {}{of}{rate}{left}", shown(&self.state), self.affected)
    }
}

fn print(context: &Context, body: &Bytes, operation: &Operation) -> Result<u8, Failure> {
    let out = context.out;
    if out.is_json {
        out.body(body)?;
        return Ok(DONE);
    }
    let of = operation.matched.map_or_else(String::new, |matched| format!(" of about {matched}"));
    let count = |count: u64| if count > 0 { count.to_string() } else { String::new() };
    out.facts(&[
        ("id", shown(&operation.id)),
        ("state", out.paint(Tone::of_state(&operation.state), &shown(&operation.state))),
        ("action", shown(&operation.action)),
        ("to", operation.to.as_deref().map_or_else(String::new, shown)),
        ("which jobs", operation.filter.as_deref().map_or_else(String::new, |filter| shown(filter.get()))),
        ("affected", format!("{}{of}", operation.affected)),
        ("skipped", count(operation.skipped)),
        ("looked at", count(operation.scanned)),
        ("asked for", local(&operation.created_at)),
        ("over", operation.finished_at.as_deref().map_or_else(String::new, local)),
        ("error", operation.error.as_deref().map_or_else(String::new, shown)),
    ])?;
    for error in &operation.errors {
        out.below(&format!("skipped: {}", shown(error)))?;
    }
    Ok(DONE)
}

fn print_dry_run(context: &Context, body: &Bytes, dry: &DryRun) -> Result<u8, Failure> {
    let out = context.out;
    if out.is_json {
        out.body(body)?;
        return Ok(DONE);
    }
    let all = if dry.complete { "" } else { ", and there are more" };
    out.line(format!(
        "{} jobs of {} that were looked at{all}; nothing was changed",
        dry.matched, dry.scanned
    ))?;
    if let Some(estimate) = dry.estimate {
        out.line(format!("about {estimate} in all"))?;
    }
    for sample in &dry.samples {
        out.line(format!("  {}  {}  {}", shown(&sample.id), shown(&sample.state), shown(&sample.queue)))?;
    }
    Ok(DONE)
}
