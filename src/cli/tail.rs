//! `tailback tail`

use std::time::Duration;

use super::events::{Event, Happened, News, Queue, Stream, tone_of_reason};
use super::failure::{DONE, Failure};
use super::out::{Out, note};
use super::shown::shown;
use super::table::Tone;
use super::time::{of_day, span};
use super::view::rate;
use super::{Context, Run};

/// Arguments of `tail`.
#[derive(Debug, clap::Args)]
pub struct Tail {
    /// The queues: names, or prefixes such as mail.*; all if none are named
    queues: Vec<String>,
    /// End after this time
    #[arg(long = "for", value_name = "SPAN", value_parser = span)]
    ends_in: Option<Duration>,
}

impl Run for Tail {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        let mut stream = Stream::new(context.client.clone(), &self.queues, None);
        stream.connect().await?; // a wrong name or key ends it at once
        let ends_in = self.ends_in;
        let end = async move {
            match ends_in {
                Some(span) => tokio::time::sleep(span).await,
                None => std::future::pending().await,
            }
        };
        let mut end = std::pin::pin!(end);
        let mut is_lost = false;
        loop {
            let news = tokio::select! {
                news = stream.follow() => news?,
                () = &mut end => return Ok(DONE),
            };
            match news {
                News::Event(event) => print(context.out, &event)?,
                News::Connected => {
                    is_lost = false;
                    note("connected again");
                }
                News::Lost(failure) if !is_lost => {
                    is_lost = true;
                    note(&format!("{failure}; trying again"));
                }
                News::Lost(_) => {}
            }
        }
    }
}

/// Prints a message: a line for each thing that happened and for each queue, or its JSON as one line.
fn print(out: Out, event: &Event) -> Result<(), Failure> {
    if out.is_json {
        return out.line(&event.data);
    }
    let message = &event.message;
    let at = out.paint(Tone::Dim, &of_day(&message.at));
    for happened in &message.happened {
        out.line(format!("{at}  {}", told(out, happened)))?;
    }
    if message.more_happened {
        out.line(format!("{at}  more has happened than is told"))?;
    }
    for queue in &message.queues {
        out.line(format!("{at}  {}", described(out, queue)))?;
    }
    for gone in &message.gone {
        out.line(format!("{at}  {}  is empty", shown(gone)))?;
    }
    if let Some(left_out) = message.left_out {
        out.line(format!("{at}  {left_out} more queues are not followed"))?;
    }
    Ok(())
}

/// Returns something that happened, in words.
pub fn told(out: Out, happened: &Happened) -> String {
    let of = |name: &Option<String>| shown(name.as_deref().unwrap_or("?"));
    let (tone, text) = match happened.kind.as_str() {
        "dead" => (Tone::Bad, format!("{}  {} more dead", of(&happened.queue), happened.jobs.unwrap_or(1))),
        "paused" => (Tone::Warn, format!("{}  paused", of(&happened.queue))),
        "resumed" => (Tone::Good, format!("{}  resumed", of(&happened.queue))),
        "settings" => (Tone::Plain, format!("{}  its settings were changed", of(&happened.queue))),
        "worker_lost" => (Tone::Bad, format!("the worker {} is lost", of(&happened.worker))),
        "store_away" => (Tone::Bad, "the server does not reach its store".to_owned()),
        "store_back" => (Tone::Good, "the server reaches its store again".to_owned()),
        other => (Tone::Plain, format!("{}  {}", of(&happened.queue), shown(other))),
    };
    out.paint(tone, &text)
}

fn described(out: Out, queue: &Queue) -> String {
    let mut words = vec![shown(&queue.queue)];
    if queue.paused {
        words.push(out.paint(Tone::Warn, "paused"));
    }
    words.extend(queue.reasons().map(|reason| out.paint(tone_of_reason(reason), &shown(reason))));
    let counts = queue.counts.each().into_iter().filter(|(_, count)| *count > 0);
    words.extend(counts.map(|(state, count)| out.paint(Tone::of_state(state), &format!("{count} {state}"))));
    words.extend(queue.oldest().map(|age| format!("oldest {age}")));
    let rates = &queue.rates_per_s;
    let rates = [(rates.of("pushed"), "in"), (rates.finished(), "done"), (rates.failed(), "failed")];
    for (per_s, name) in rates {
        words.extend((per_s > 0.0).then(|| format!("{} {name}/s", rate(per_s))));
    }
    words.join("  ")
}
