//! `tailback schedules`

use std::collections::BTreeMap;

use clap::Subcommand;
use hyper::Method;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::assign::{Assignment, assignment, merged};
use super::client::{Call, segment};
use super::failure::{DONE, Failure};
use super::pages::{self, Paging, page};
use super::shown::shown;
use super::table::{Cell, Table, Tone, number, text, word};
use super::time::{local, relative};
use super::{Context, Run};

/// Arguments of `schedules`.
#[derive(Debug, clap::Args)]
pub struct Schedules {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    paging: Paging,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show a schedule: its next times, and its last runs.
    Show {
        /// The schedule
        name: String,
    },
    /// Make a schedule, or change its rule: cron='0 3 * * *' queue=reports job.payload='{}'. The rest stays; KEY= removes a part.
    Set {
        /// The schedule
        name: String,
        /// Parts of the rule, as the API names them: cron, queue, time_zone, overlap, misfire, paused, job.payload and others of the job
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = assignment)]
        rule: Vec<Assignment>,
        /// Only if the rule has this version
        #[arg(long, value_name = "VERSION", allow_hyphen_values = true)]
        if_version: Option<String>,
    },
    /// Run a schedule now.
    Run {
        /// The schedule
        name: String,
    },
    /// It has no occurrences for now.
    Pause {
        /// The schedule
        name: String,
    },
    /// It has occurrences again.
    Resume {
        /// The schedule
        name: String,
    },
    /// Delete a schedule.
    Delete {
        /// The schedule
        name: String,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Schedule {
    name: String,
    cron: String,
    time_zone: String,
    queue: String,
    paused: bool,
    next_runs: Vec<String>,
    last_runs: Vec<Fired>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fired {
    at: String,
    job_id: Option<String>,
    skipped: Option<String>,
    manual: bool,
    misfire: bool,
}

page!(SchedulesPage, schedules: Schedule);

impl Run for Schedules {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        let Some(action) = self.action else {
            let table = async |page: &SchedulesPage| Ok(table(page));
            return pages::print(context, "/v1/schedules", &[], &self.paging, table).await;
        };
        let path = |name: &str| format!("/v1/schedules/{}", segment(name));
        let post = |name: &str, verb: &str| Call::new(Method::POST, format!("{}/{verb}", path(name)));
        let call = match &action {
            Action::Show { name } => Call::get(path(name)),
            Action::Set { name, rule, if_version } => {
                set(context, path(name), rule, if_version.as_deref()).await?
            }
            Action::Run { name } => post(name, "run"),
            Action::Pause { name } => post(name, "pause"),
            Action::Resume { name } => post(name, "resume"),
            Action::Delete { name } => Call::new(Method::DELETE, path(name)),
        };
        let (out, answer) = (context.out, context.client.call(&call).await?);
        if out.is_json {
            out.body(&answer.body)?;
            return Ok(DONE);
        }
        match &action {
            Action::Show { .. } => show(context, &answer.read()?)?,
            Action::Set { name, .. } => match answer.read::<Schedule>()? {
                // A key that may not read gets the version alone.
                Schedule { cron, .. } if cron.is_empty() => out.line(format!("{}  set", shown(name)))?,
                schedule => show(context, &schedule)?,
            },
            Action::Run { name } => {
                out.line(format!("{}  {}", shown(name), answer.read::<Fired>()?.text()))?
            }
            Action::Pause { name } => out.line(format!("{}  paused", shown(name)))?,
            Action::Resume { name } => out.line(format!("{}  goes on", shown(name)))?,
            Action::Delete { name } => out.line(format!("{}  deleted", shown(name)))?,
        }
        Ok(DONE)
    }
}

/// Returns the call that makes a schedule, or changes these parts of its rule unless another call has changed it meanwhile.
async fn set(
    context: &Context,
    path: String,
    rule: &[Assignment],
    if_version: Option<&str>,
) -> Result<Call, Failure> {
    let answer = match context.client.call(&Call::get(path.clone())).await {
        Ok(answer) => answer,
        Err(Failure::Problem(problem)) if problem.word() == "unknown-schedule" => {
            return Ok(Call::put(path, merged(r#"{"job":{}}"#, rule)?).if_version(if_version));
        }
        Err(failure) => return Err(failure),
    };
    let mut fields: BTreeMap<String, Box<RawValue>> = answer.read()?;
    let version: String = fields
        .get("version")
        .and_then(|version| serde_json::from_str(version.get()).ok())
        .unwrap_or_default();
    // What is no part of the rule.
    fields.retain(|field, _| !matches!(field.as_str(), "name" | "version" | "next_runs" | "last_runs"));
    let known = serde_json::to_string(&fields).map_err(|error| Failure::Failed(error.to_string()))?;
    Ok(Call::put(path, merged(&known, rule)?).if_version(Some(if_version.unwrap_or(&version))))
}

impl Fired {
    fn text(&self) -> String {
        let by = if self.manual { " by hand" } else { "" };
        match (&self.job_id, &self.skipped) {
            (Some(job), _) if self.misfire => {
                format!(
                    "{}{by}: job {}, later, for all that were missed from then on",
                    local(&self.at),
                    shown(job)
                )
            }
            (Some(job), _) => format!("{}{by}: job {}", local(&self.at), shown(job)),
            (None, Some(why)) => format!("{}{by}: skipped ({})", local(&self.at), shown(why)),
            (None, None) => format!("{}{by}", local(&self.at)),
        }
    }
}

fn table(page: &SchedulesPage) -> Table {
    let columns = [
        text("NAME"),
        word("STATE"),
        number("NEXT"),
        number("LAST").spare(2),
        text("QUEUE").spare(1),
        word("CRON").spare(3),
        word("ZONE").spare(4),
    ];
    let mut table = Table::new(&columns);
    for schedule in &page.schedules {
        let last = schedule.last_runs.last();
        let state = if schedule.paused { Cell::new("paused", Tone::Warn) } else { Cell::default() };
        table.row(vec![
            Cell::from(&schedule.name),
            state,
            Cell::from(schedule.next_runs.first().map_or_else(String::new, |at| relative(at))),
            Cell::from(last.map_or_else(String::new, |run| relative(&run.at))),
            Cell::from(&schedule.queue),
            Cell::from(&schedule.cron),
            Cell::from(&schedule.time_zone),
        ]);
    }
    table
}

fn show(context: &Context, schedule: &Schedule) -> Result<(), Failure> {
    let out = context.out;
    out.facts(&[
        ("name", shown(&schedule.name)),
        ("paused", if schedule.paused { "yes".to_owned() } else { String::new() }),
        ("cron", shown(&schedule.cron)),
        ("time zone", shown(&schedule.time_zone)),
        ("queue", shown(&schedule.queue)),
    ])?;
    for at in &schedule.next_runs {
        out.line(format!("  next {}", local(at)))?;
    }
    for run in schedule.last_runs.iter().rev() {
        out.line(format!("  ran {}", run.text()))?;
    }
    Ok(())
}
