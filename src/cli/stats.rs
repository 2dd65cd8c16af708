//! `tailback stats`

use serde::Deserialize;

use super::client::{Call, query, segment};
use super::events::tone_of_reason;
use super::failure::{DONE, Failure};
use super::shown::shown;
use super::table::Tone;
use super::time::{human, relative};
use super::view::{Counts, Percentiles, Rates, rate};
use super::{Context, Run};

/// Arguments of `stats`.
#[derive(Debug, clap::Args)]
pub struct Stats {
    /// The queue; all of them if none is named
    queue: Option<String>,
    /// Count the jobs in the store now
    #[arg(long, requires = "queue")]
    exact: bool,
}

/// The figures of all queues, or of one.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Figures {
    pub counts: Counts,
    pub oldest_ready_age_ms: Option<u64>,
    pub rates_per_s: Rates,
    pub queue_time_ms: Option<Percentiles>,
    pub run_time_ms: Option<Percentiles>,
    pub waiting: Waiting,
    pub version: Option<String>,
    pub store: Option<String>,
    pub uptime_ms: Option<u64>,
    pub queues: Option<u64>,
    pub workers: Option<u64>,
    pub tasks: Vec<Task>,
    pub queue: Option<String>,
    pub paused: Option<bool>,
    pub next_due_at: Option<String>,
    pub backoff: Option<u64>,
    oldest_first_attempt_age_ms: Option<u64>,
    oldest_retry_age_ms: Option<u64>,
    is_partial: bool,
    oldest_ages_are_partial: bool,
    pub attention: Vec<Need>,
}

/// Why a queue needs a person.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Need {
    pub reason: String,
    detail: String,
    next_step: String,
}

impl Need {
    /// Returns how it looks.
    pub fn tone(&self) -> Tone {
        tone_of_reason(&self.reason)
    }
}

/// The calls that wait for jobs.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Waiting {
    pub here: u64,
    pub elsewhere: bool,
}

/// A background task.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Task {
    pub name: String,
    pub last_error: Option<String>,
    pub last_error_ms_ago: Option<u64>,
}

impl Run for Stats {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        let call = match &self.queue {
            None => Call::get("/stats"),
            Some(queue) => {
                let exact = self.exact.then(|| "true".to_owned());
                Call::get(query(&format!("/v1/queues/{}/stats", segment(queue)), &[("exact", exact)]))
            }
        };
        let answer = context.client.call(&call).await?;
        if context.out.is_json {
            context.out.body(&answer.body)?;
        } else {
            print(context, &answer.read()?)?;
        }
        Ok(DONE)
    }
}

fn print(context: &Context, figures: &Figures) -> Result<(), Failure> {
    let out = context.out;
    let text = |text: &Option<String>| text.as_deref().map_or_else(String::new, shown);
    let number = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
    let span = |ms: Option<u64>| ms.map_or_else(String::new, human);
    let are_ages_of_a_part = figures.is_partial || figures.oldest_ages_are_partial;
    // Of very many jobs the first are looked at; a figure that is absent is none of those.
    let part = |figure: String, is_part: bool| match (is_part, figure.is_empty()) {
        (false, _) => figure,
        (true, true) => "none of those looked at".to_owned(),
        (true, false) => format!("{figure}, of those looked at"),
    };
    let counts = figures.counts.each().map(|(state, count)| {
        let tone = if count > 0 { Tone::of_state(state) } else { Tone::Dim };
        out.paint(tone, &format!("{count} {state}"))
    });
    let rates: Vec<String> = figures
        .rates_per_s
        .0
        .iter()
        .filter(|(_, per_s)| **per_s > 0.0)
        .map(|(event, per_s)| format!("{} {}/s", rate(*per_s), shown(&event.replace('_', " "))))
        .collect();
    let times = |times: &Option<Percentiles>| times.as_ref().map_or_else(String::new, Percentiles::text);
    let elsewhere = if figures.waiting.elsewhere { ", and others elsewhere" } else { "" };
    let paused = figures.paused.filter(|paused| *paused).map_or("", |_| "yes");
    out.facts(&[
        ("server", context.client.url()),
        ("version", text(&figures.version)),
        ("store", text(&figures.store)),
        ("up", span(figures.uptime_ms)),
        ("queue", text(&figures.queue)),
        ("paused", paused.to_owned()),
        ("queues", number(figures.queues)),
        ("workers", number(figures.workers)),
        ("waiting", format!("{} calls here{elsewhere}", figures.waiting.here)),
        ("jobs", counts.join("  ")),
        ("to be tried again", part(number(figures.backoff.filter(|jobs| *jobs > 0)), figures.is_partial)),
        ("next due", figures.next_due_at.as_deref().map_or_else(String::new, relative)),
        ("oldest ready", span(figures.oldest_ready_age_ms)),
        ("oldest untried", part(span(figures.oldest_first_attempt_age_ms), are_ages_of_a_part)),
        ("oldest retried", part(span(figures.oldest_retry_age_ms), are_ages_of_a_part)),
        ("last minute", rates.join("  ")),
        ("queue time", times(&figures.queue_time_ms)),
        ("run time", times(&figures.run_time_ms)),
    ])?;
    for need in &figures.attention {
        let reason = out.paint(need.tone(), &shown(&need.reason));
        out.line(format!("{reason}: {}; {}", shown(&need.detail), shown(&need.next_step)))?;
    }
    for task in &figures.tasks {
        if let Some(error) = &task.last_error {
            let ago = span(task.last_error_ms_ago);
            let text = format!("task {} failed {ago} ago: {}", shown(&task.name), shown(error));
            out.line(out.paint(Tone::Bad, &text))?;
        }
    }
    Ok(())
}
