//! `tailback reserve`, `commit`, `rollback`, `extend`

use std::time::Duration;

use serde::Deserialize;

use super::body::Body;
use super::client::{Call, segment};
use super::failure::{DONE, Failure, NOTHING, printed};
use super::payload::value;
use super::time::{ms, span};
use super::view::{Job, Settled};
use super::{Context, Run};

/// Arguments of `reserve`.
#[derive(Debug, clap::Args)]
pub struct Reserve {
    /// The queue; of several, names or prefixes such as mail.*, the first that has a job
    #[arg(required = true)]
    queues: Vec<String>,
    /// How many jobs at most
    #[arg(long, value_name = "N")]
    count: Option<u32>,
    /// How long to wait for a job, such as 10s
    #[arg(long, value_name = "SPAN", value_parser = span)]
    wait: Option<Duration>,
    /// How long the reservations last; else as the jobs or their queue say
    #[arg(long, value_name = "SPAN", value_parser = span)]
    lease: Option<Duration>,
    /// The name of the worker, shown with the jobs
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    worker: Option<String>,
    /// How many bytes of payloads at most
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<u64>,
    /// A name of this call: a repeat of it returns the same jobs
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    idempotency_key: Option<String>,
}

/// Jobs that were reserved.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Reserved {
    /// The jobs.
    pub jobs: Vec<Job>,
}

/// Returns the call that reserves jobs of these queues.
pub fn reserve(queues: &[String], body: Body, wait: Duration) -> Call {
    let is_one = queues.len() == 1 && !queues[0].ends_with('*');
    let call = if is_one {
        Call::post(format!("/v1/queues/{}/reserve", segment(&queues[0])), body.json())
    } else {
        Call::post("/v1/reserve", body.texts("queues", queues).json())
    };
    call.waits(wait)
}

impl Run for Reserve {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        let body = Body::default()
            .raw("count", self.count)
            .raw("wait_ms", self.wait.map(ms))
            .raw("lease_ms", self.lease.map(ms))
            .text("worker", self.worker.as_deref())
            .raw("max_bytes", self.max_bytes);
        let mut call = reserve(&self.queues, body, self.wait.unwrap_or_default());
        if let Some(key) = &self.idempotency_key {
            call = call.header("idempotency-key", key);
        }
        let answer = context.client.call(&call).await?;
        let reserved: Reserved = answer.read()?;
        if context.out.is_json {
            // The empty list says that there is none.
            let code = if reserved.jobs.is_empty() { NOTHING } else { DONE };
            return printed(context.out.body(&answer.body), code);
        }
        if reserved.jobs.is_empty() {
            return Err(Failure::Nothing("no job is ready".to_owned()));
        }
        for (n, job) in reserved.jobs.iter().enumerate() {
            if n > 0 {
                context.out.line("")?;
            }
            job.print(context.out)?;
        }
        Ok(DONE)
    }
}

/// Which delivery is meant.
#[derive(Debug, clap::Args)]
pub struct Delivery {
    /// The job
    id: String,
    /// The token that the reserve printed [env: TAILBACK_JOB_RESERVATION]
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
    reservation: Option<String>,
}

impl Delivery {
    async fn settle(&self, context: &Context, verb: &str, body: Body) -> Result<u8, Failure> {
        let of_job = || std::env::var("TAILBACK_JOB_RESERVATION").ok().filter(|token| !token.is_empty());
        let token = self.reservation.clone().or_else(of_job).ok_or_else(|| {
            Failure::Usage("--reservation is missing: the token that the reserve printed".to_owned())
        })?;
        let body = body.text("reservation", Some(&token));
        let call = Call::post(format!("/v1/jobs/{}/{verb}", segment(&self.id)), body.json());
        let answer = context.client.call(&call).await?;
        if context.out.is_json {
            context.out.body(&answer.body)?;
        } else {
            answer.read::<Settled>()?.print(context.out)?;
        }
        Ok(DONE)
    }
}

/// Arguments of `commit`.
#[derive(Debug, clap::Args)]
pub struct Commit {
    #[command(flatten)]
    delivery: Delivery,
    /// The result: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    result: Option<String>,
}

impl Run for Commit {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        let result = self.result.as_ref().map(|result| value(result, "the result")).transpose()?;
        self.delivery.settle(context, "commit", Body::default().raw("result", result)).await
    }
}

/// Arguments of `rollback`.
#[derive(Debug, clap::Args)]
pub struct Rollback {
    #[command(flatten)]
    delivery: Delivery,
    /// What went wrong
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    error: Option<String>,
    /// Deliver it again after this time; else as its backoff says
    #[arg(long, value_name = "SPAN", value_parser = span)]
    delay: Option<Duration>,
    /// It is dead now, whatever attempts are left
    #[arg(long)]
    dead: bool,
    /// The job was not at fault: the attempt does not count
    #[arg(long)]
    uncounted: bool,
    /// It comes back at once to the place that it had
    #[arg(long)]
    keep_place: bool,
}

impl Run for Rollback {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        let body = Body::default()
            .text("error", self.error.as_deref())
            .raw("delay_ms", self.delay.map(ms))
            .flag("dead", self.dead)
            .raw("count_attempt", self.uncounted.then_some(false))
            .flag("keep_place", self.keep_place);
        self.delivery.settle(context, "rollback", body).await
    }
}

/// Arguments of `extend`.
#[derive(Debug, clap::Args)]
pub struct Extend {
    #[command(flatten)]
    delivery: Delivery,
    /// The new lease, from now on; else that of the reserve
    #[arg(long, value_name = "SPAN", value_parser = span)]
    lease: Option<Duration>,
    /// The progress: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    progress: Option<String>,
}

impl Run for Extend {
    async fn run(self, context: &Context) -> Result<u8, Failure> {
        let progress = self.progress.as_ref().map(|progress| value(progress, "the progress")).transpose()?;
        let body = Body::default().raw("lease_ms", self.lease.map(ms)).raw("progress", progress);
        self.delivery.settle(context, "extend", body).await
    }
}
