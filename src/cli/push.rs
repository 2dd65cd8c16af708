//! `tailback push`

use std::time::Duration;

use super::body::Body;
use super::client::{Call, segment};
use super::failure::{DONE, Failure};
use super::job::{Wait, print_finished, wait_for};
use super::out::note;
use super::payload::{Form, value_or_text};
use super::shown::shown;
use super::time::{ms, span};
use super::view::Settled;
use super::{Context, Run};

/// Arguments of `push`.
#[derive(Debug, clap::Args)]
pub struct Push {
    /// The queue
    queue: String,
    /// The payload: JSON, @FILE, or - for standard input; null if there is none
    #[arg(allow_negative_numbers = true)]
    payload: Option<String>,
    /// Deliver it after this time, such as 10s or 2h
    #[arg(long, value_name = "SPAN", value_parser = span, conflicts_with = "at")]
    delay: Option<Duration>,
    /// Deliver it at this time, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Higher is delivered first
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// The deduplication key of the job: while it is in use, an equal push returns the same job
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    job_key: Option<String>,
    /// Jobs of a group are delivered one at a time, in their order
    #[arg(long, allow_hyphen_values = true)]
    group: Option<String>,
    /// A semaphore that it needs; may be repeated
    #[arg(long = "semaphore", value_name = "NAME")]
    semaphores: Vec<String>,
    /// A header: JSON, or a text if it is none; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header, allow_hyphen_values = true)]
    headers: Vec<(String, String)>,
    /// A further stage of its route; may be repeated
    #[arg(long = "then", value_name = "QUEUE")]
    then: Vec<String>,
    /// How often it is delivered before it is dead; 0 for no limit
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// How long a reservation of it lasts
    #[arg(long, value_name = "SPAN", value_parser = span)]
    lease: Option<Duration>,
    /// Remove it unless it is delivered within this time
    #[arg(long, value_name = "SPAN", value_parser = span)]
    expires_in: Option<Duration>,
    /// How long it is kept once it is done, for who waits for its result; with --wait at least a minute
    #[arg(long, value_name = "SPAN", value_parser = span)]
    retain_result: Option<Duration>,
    /// A name of this call: a repeat of it pushes nothing more
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    idempotency_key: Option<String>,
    #[command(flatten)]
    wait: Wait,
    // The last: its head is that of all that follows.
    #[command(flatten)]
    form: Form,
}

/// Splits `NAME=VALUE`.
pub fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it must be NAME=VALUE")?;
    Ok((name.to_owned(), value_or_text(value)))
}

impl Push {
    fn body(&self) -> Result<String, Failure> {
        let headers =
            self.headers.iter().fold(Body::default(), |body, (name, value)| body.raw(name, Some(value)));
        let stages: Vec<String> =
            self.then.iter().map(|queue| Body::default().text("queue", Some(queue)).json()).collect();
        // A client that waits for a job whose queue keeps no history would find it gone.
        let retain = self.retain_result.or(self.wait.span().map(|_| Duration::from_secs(60)));
        Ok(Body::default()
            .fields(self.form.fields(self.payload.as_deref())?.0)
            .raw("delay_ms", self.delay.map(ms))
            .text("run_at", self.at.as_deref())
            .raw("priority", self.priority)
            .text("key", self.job_key.as_deref())
            .text("group", self.group.as_deref())
            .texts("semaphores", &self.semaphores)
            .raw("headers", (!self.headers.is_empty()).then(|| headers.json()))
            .raw("then", (!stages.is_empty()).then(|| format!("[{}]", stages.join(","))))
            .raw("max_attempts", self.max_attempts)
            .raw("lease_ms", self.lease.map(ms))
            .raw("expires_in_ms", self.expires_in.map(ms))
            .raw("retain_result_ms", retain.map(ms))
            .json())
    }
}

impl Run for Push {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        let mut call = Call::post(format!("/v1/queues/{}/jobs", segment(&self.queue)), self.body()?);
        if let Some(key) = &self.idempotency_key {
            call = call.header("idempotency-key", key);
        }
        let answer = context.client.call(&call).await?;
        let pushed: Settled = answer.read()?;
        match self.wait.span() {
            None if context.out.is_json => context.out.body(&answer.body)?,
            None => pushed.print(context.out)?,
            Some(wait) => {
                note(&format!("job {} is pushed", shown(&pushed.id)));
                let finished = wait_for(context, &pushed.id, wait, true).await?;
                return print_finished(context, &finished);
            }
        }
        Ok(DONE)
    }
}
