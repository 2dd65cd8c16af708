//! `tailback tail`

use std::time::Duration;

use super::events::{Event, Happened, LeftOut, News, Queue, Stream, tone_of_reason};
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
    if let Some(text) = unfollowed(event) {
        out.line(format!("{at}  {text}"))?;
    }
    Ok(())
}

/// Returns what is printed of queues that are in no message. That all are in one is news only where it was not so before.
fn unfollowed(event: &Event) -> Option<String> {
    match event.message.left_out()? {
        LeftOut::None if event.is_snapshot => None,
        LeftOut::None => Some("all queues are followed".to_owned()),
        LeftOut::Number(number) => Some(format!("{number} more queues are not followed")),
        LeftOut::Some => Some("more queues are not followed".to_owned()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_are_not_followed_are_said_with_or_without_their_number() {
        for (is_snapshot, json, says) in [
            (true, "{}", None),
            (true, r#"{"left_out": 0, "incomplete": false}"#, None),
            (true, r#"{"left_out": 7}"#, Some("7 more queues are not followed")),
            (true, r#"{"incomplete": true}"#, Some("more queues are not followed")),
            (false, "{}", None),
            (false, r#"{"left_out": 8}"#, Some("8 more queues are not followed")),
            (false, r#"{"left_out": 0}"#, Some("all queues are followed")),
            (false, r#"{"incomplete": false}"#, Some("all queues are followed")),
        ] {
            let message = serde_json::from_str(json).unwrap();
            let event = Event { message, is_snapshot, data: String::new() };
            assert_eq!(unfollowed(&event).as_deref(), says, "{is_snapshot} {json}");
        }
    }
}
