//! `tailback queues`

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Subcommand;
use hyper::Method;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::assign::{Assignment, assignment, patch};
use super::body::Body;
use super::client::{Answer, Call, segment};
use super::events::tone_of_reason;
use super::failure::{DONE, Failure};
use super::job::Wait;
use super::operations;
use super::out::note;
use super::pages::{self, Paging, page};
use super::shown::shown;
use super::stats::Need;
use super::table::{Cell, Table, Tone, number, text, word};
use super::time::{ago, human};
use super::view::{Counts, Rates, rate};
use super::{Context, Run};

/// Arguments of `queues`.
#[derive(Debug, clap::Args)]
pub struct Queues {
    #[command(subcommand)]
    action: Option<Action>,
    /// Queues whose names begin so
    #[arg(long, allow_hyphen_values = true)]
    prefix: Option<String>,
    /// By what: name, ready, scheduled, reserved, blocked, dead, done, oldest, pushed, finished, failed, waiting, attention; --sort=-ready: the largest first
    #[arg(long, value_name = "FIGURE", allow_hyphen_values = true)]
    sort: Option<String>,
    /// Only queues that need attention, or that need it for these reasons: --attention=starved,dead
    #[arg(long, value_name = "REASONS", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    attention: Option<String>,
    #[command(flatten)]
    paging: Paging,
}

/// What is done to a queue.
#[derive(Debug, Subcommand)]
enum Action {
    /// Show the settings of a queue.
    Show {
        /// The queue
        queue: String,
    },
    /// Change settings of a queue: lease_ms=30s, max_attempts=3, rate.limit=5. The others stay; KEY= resets one to its default.
    Set {
        /// The queue
        queue: String,
        /// The settings, as the API names them; times may be spans
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = assignment)]
        settings: Vec<Assignment>,
        /// Only if the settings have this version
        #[arg(long, value_name = "VERSION", allow_hyphen_values = true)]
        if_version: Option<String>,
    },
    /// Stop delivery; pushes go on.
    Pause {
        /// The queue
        queue: String,
    },
    /// Let delivery go on.
    Resume {
        /// The queue
        queue: String,
    },
    /// Delete the jobs in one state. Asks for the queue's name, unless --confirm says it.
    Purge {
        /// The queue
        queue: String,
        /// Which jobs: scheduled, ready, blocked, done or dead
        #[arg(long)]
        state: String,
        /// Only jobs from before this time: 2026-01-31T12:00:00Z, or how long ago: 7d
        #[arg(long, value_name = "TIME", value_parser = ago)]
        before: Option<String>,
        /// The queue's name again
        #[arg(long, value_name = "QUEUE", allow_hyphen_values = true)]
        confirm: Option<String>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Dead jobs are ready again; dead-lettered ones go back to where they came from.
    Redrive {
        /// The queue
        queue: String,
        /// How many at most
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Push copies of done jobs.
    Replay {
        /// The queue
        queue: String,
        /// How many at most
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// Only jobs that finished from this time on: 2026-01-31T12:00:00Z, or how long ago: 2h
        #[arg(long, value_name = "TIME", value_parser = ago)]
        from: Option<String>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Delete a queue: its settings, and with --force its jobs. Asks for its name, unless --confirm says it.
    Delete {
        /// The queue
        queue: String,
        /// Also if it has jobs
        #[arg(long)]
        force: bool,
        /// The queue's name again
        #[arg(long, value_name = "QUEUE")]
        confirm: Option<String>,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Settings {
    queue: String,
    paused: bool,
    figures: Figures,
    effective: Effective,
    unreadable: Option<String>,
    dead_letter: Option<String>,
    max_reserved: Option<u64>,
    max_jobs: Option<u64>,
    lapsed: Option<String>,
    rate: Option<Box<RawValue>>,
    on_group_dead: Option<String>,
    version: String,
}

/// The figures of a queue of the list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Figures {
    counts: Counts,
    oldest_ready_age_ms: Option<u64>,
    oldest_is_approximate: bool,
    rates_per_s: Rates,
    attention: Vec<Need>,
}

impl Figures {
    fn rate(&self, name: &str) -> String {
        rate(self.rates_per_s.of(name))
    }

    fn oldest(&self) -> String {
        let about = if self.oldest_is_approximate { "~" } else { "" };
        self.oldest_ready_age_ms.map_or_else(String::new, |age| format!("{about}{}", human(age)))
    }

    /// Returns why the queue needs attention; that it is paused is said in its state.
    fn attention(&self) -> Cell {
        let reasons = self.attention.iter().filter(|need| need.reason != "paused");
        let words: Vec<String> = reasons.map(|need| shown(&need.reason)).collect();
        let tone = self.attention.first().map_or(Tone::Plain, |need| tone_of_reason(&need.reason));
        Cell::new(words.join(","), tone)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Effective {
    paused: bool,
    lease_ms: u64,
    max_attempts: u64,
    backoff: Option<Box<RawValue>>,
    retain_done_ms: u64,
    retain_result_ms: u64,
    retain_dead_ms: u64,
}

page!(QueuesPage, queues: Settings);

/// How many jobs were affected.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Affected {
    affected: u64,
    /// What does the rest, where there are many.
    operation: Option<Begun>,
}

/// An operation that was begun.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Begun {
    id: String,
}

impl Run for Queues {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        match self.action {
            Some(action) => action.run(context).await,
            None => {
                let parameters = [
                    ("prefix", self.prefix.clone()),
                    ("sort", self.sort.clone()),
                    ("attention", self.attention.clone()),
                    ("figures", Some("true".to_owned())),
                ];
                let table = async |page: &QueuesPage| Ok(table(page));
                pages::print(context, "/v1/queues", &parameters, &self.paging, table).await
            }
        }
    }
}

fn table(page: &QueuesPage) -> Table {
    let mut table = Table::new(&[
        text("QUEUE"),
        word("STATE").spare(7),
        text("ATTENTION").spare(1),
        number("READY"),
        number("RESERVED").spare(3),
        number("DEAD"),
        number("OLDEST").spare(2),
        number("IN/S").spare(5),
        number("DONE/S").spare(4),
        number("FAILED/S").spare(6),
        number("SCHEDULED").spare(8),
        number("BLOCKED").spare(9),
        number("DONE").spare(10),
    ]);
    for queue in &page.queues {
        let (figures, counts) = (&queue.figures, queue.figures.counts);
        let (state, tone) = match (&queue.unreadable, queue.paused || queue.effective.paused) {
            (Some(_), _) => ("unreadable", Tone::Bad),
            (None, true) => ("paused", Tone::Warn),
            (None, false) => ("", Tone::Plain),
        };
        let dead = if counts.dead > 0 { Tone::Bad } else { Tone::Plain };
        table.row(vec![
            Cell::from(&queue.queue),
            Cell::new(state, tone),
            figures.attention(),
            Cell::from(counts.ready.to_string()),
            Cell::from(counts.reserved.to_string()),
            Cell::new(counts.dead.to_string(), dead),
            Cell::from(figures.oldest()),
            Cell::from(figures.rate("pushed")),
            Cell::from(figures.rate("finished")),
            Cell::from(figures.rate("failed")),
            Cell::from(counts.scheduled.to_string()),
            Cell::from(counts.blocked.to_string()),
            Cell::from(counts.done.to_string()),
        ]);
    }
    table
}

impl Action {
    fn call(&self) -> Result<Call, Failure> {
        let path = |queue: &str| format!("/v1/queues/{}", segment(queue));
        Ok(match self {
            Self::Show { queue } => Call::get(path(queue)),
            Self::Set { queue, settings, if_version } => {
                Call::patch(path(queue), patch(settings)?).if_version(if_version.as_deref())
            }
            Self::Pause { queue } => Call::new(Method::POST, format!("{}/pause", path(queue))),
            Self::Resume { queue } => Call::new(Method::POST, format!("{}/resume", path(queue))),
            Self::Purge { queue, state, before, .. } => {
                let body = Body::default().text("state", Some(state)).text("before", before.as_deref());
                Call::post(format!("{}/purge", path(queue)), body.json())
            }
            Self::Redrive { queue, limit, .. } => {
                Call::post(format!("{}/redrive", path(queue)), Body::default().raw("limit", *limit).json())
            }
            Self::Replay { queue, limit, from, .. } => {
                let body = Body::default().raw("limit", *limit).text("from", from.as_deref());
                Call::post(format!("{}/replay", path(queue)), body.json())
            }
            Self::Delete { queue, force, .. } => {
                let force = if *force { "?force=true" } else { "" };
                Call::new(Method::DELETE, format!("{}{force}", path(queue)))
            }
        })
    }

    async fn run(self, context: &Context) -> Result<u8, Failure> {
        if let Self::Purge { queue, confirm, .. } | Self::Delete { queue, confirm, .. } = &self {
            confirmed(queue, confirm.as_deref())?;
        }
        // Large queues take their time.
        let call = self.call()?.waits(Duration::from_secs(600));
        let answer = context.client.call(&call).await.map_err(in_flags)?;
        let out = context.out;
        if let Self::Purge { wait, .. } | Self::Redrive { wait, .. } | Self::Replay { wait, .. } = &self {
            return affected(context, &answer, wait.span()).await;
        }
        if out.is_json {
            out.body(&answer.body)?;
            return Ok(DONE);
        }
        match &self {
            Self::Show { .. } => show(context, &answer.read()?)?,
            Self::Set { queue, .. } => match answer.read::<Settings>()? {
                // A key that may not read gets the version alone.
                Settings { effective: Effective { lease_ms: 0, .. }, .. } => {
                    out.line(format!("{}  set", shown(queue)))?;
                }
                settings => show(context, &settings)?,
            },
            Self::Pause { queue } => out.line(format!("{}  paused", shown(queue)))?,
            Self::Resume { queue } => out.line(format!("{}  goes on", shown(queue)))?,
            Self::Delete { queue, .. } => out.line(format!("{}  deleted", shown(queue)))?,
            Self::Purge { .. } | Self::Redrive { .. } | Self::Replay { .. } => {}
        }
        Ok(DONE)
    }
}

/// Returns a failure with what a flag can do about it.
fn in_flags(failure: Failure) -> Failure {
    match failure {
        Failure::Problem(problem) if problem.word() == "queue-not-empty" => {
            let text = "the queue has jobs; --force deletes them as well";
            Failure::Problem(Box::new(problem.said(text)))
        }
        failure => failure,
    }
}

/// Prints how many jobs were affected, and what does the rest; once that is over, if it is to wait.
async fn affected(context: &Context, answer: &Answer, wait: Option<Duration>) -> Result<u8, Failure> {
    let Affected { affected, operation } = answer.read()?;
    let rest = operation.map(|operation| operation.id);
    match (&rest, wait) {
        (Some(id), Some(wait)) => {
            note(&format!("{affected} jobs; operation {} does the rest", shown(id)));
            return operations::show(context, id, Some(wait), true).await;
        }
        _ if context.out.is_json => context.out.body(&answer.body)?,
        (Some(id), None) => {
            context.out.line(format!("{affected} jobs; operation {} does the rest", shown(id)))?;
        }
        (None, _) => context.out.line(format!("{affected} jobs"))?,
    }
    Ok(DONE)
}

/// What cannot be taken back is asked for by name.
pub fn confirmed(name: &str, confirm: Option<&str>) -> Result<(), Failure> {
    let said = match confirm {
        Some(confirm) => confirm.to_owned(),
        None if std::io::stdin().is_terminal() => {
            let mut err = std::io::stderr().lock();
            write!(err, "This cannot be taken back. Type the name {} to go on: ", shown(name))?;
            err.flush()?;
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line)?;
            line.trim_end_matches(['\r', '\n']).to_owned()
        }
        None => {
            return Err(Failure::Usage(format!("this cannot be taken back: add --confirm {}", shown(name))));
        }
    };
    if said == name {
        return Ok(());
    }
    Err(Failure::Usage(format!("this is not the name {}: nothing was done", shown(name))))
}

fn show(context: &Context, queue: &Settings) -> Result<(), Failure> {
    let kept = |ms: u64, zero: &str| if ms == 0 { zero.to_owned() } else { human(ms) };
    let number = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
    let text = |text: &Option<String>| text.as_deref().map_or_else(String::new, shown);
    let raw = |json: &Option<Box<RawValue>>| json.as_deref().map_or_else(String::new, |raw| shown(raw.get()));
    let effective = &queue.effective;
    context.out.facts(&[
        ("queue", shown(&queue.queue)),
        ("paused", if queue.paused || effective.paused { "yes".to_owned() } else { "no".to_owned() }),
        ("lease", human(effective.lease_ms)),
        ("attempts", effective.max_attempts.to_string()),
        ("backoff", raw(&effective.backoff)),
        ("dead letters to", text(&queue.dead_letter)),
        ("done jobs kept", kept(effective.retain_done_ms, "no")),
        ("results kept", kept(effective.retain_result_ms, "")),
        ("dead jobs kept", kept(effective.retain_dead_ms, "until they are deleted")),
        ("reserved at most", number(queue.max_reserved)),
        ("jobs at most", number(queue.max_jobs)),
        ("rate", raw(&queue.rate)),
        ("groups of dead jobs", text(&queue.on_group_dead)),
        ("lapsed jobs", text(&queue.lapsed)),
        ("version", shown(&queue.version)),
        ("unreadable", text(&queue.unreadable)),
    ])
}
