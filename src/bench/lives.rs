//! Whole lives of jobs in two phases: push them all, then reserve and commit them all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::Value;

use super::{Client, Options, Phase, Report, Tally, phase};

/// How many jobs go through before anything is measured.
const WARM_UP: usize = 500;

/// A queue of its own for each run, so that nothing of an earlier one is in the way.
fn queue() -> String {
    format!("bench-{:08x}", rand::random::<u32>())
}

pub async fn run(options: &Options) -> anyhow::Result<Report> {
    let warm_up = Options { jobs: WARM_UP.max(options.batch), ..options.clone() };
    lives(&warm_up).await?;
    let [push, settle] = lives(options).await?;
    let lives_per_s = 1.0 / (1.0 / push.jobs_per_s + 1.0 / settle.jobs_per_s);
    Ok(Report { clients: options.clients, batch: options.batch, phases: vec![push, settle], lives_per_s })
}

async fn lives(options: &Options) -> anyhow::Result<[Phase; 2]> {
    let work = Arc::new(Work {
        queue: queue(),
        payload: format!("{{\"x\":\"{}\"}}", "x".repeat(options.payload_bytes)),
        batch: options.batch,
        left: AtomicUsize::new(options.jobs),
    });
    let push = all(options, "push", &work, |client, work| async move { push(client, &work).await }).await?;
    work.left.store(options.jobs, Ordering::Relaxed);
    let settle =
        all(options, "reserve+commit", &work, |client, work| async move { settle(client, &work).await });
    Ok([push, settle.await?])
}

struct Work {
    queue: String,
    payload: String,
    batch: usize,
    /// Jobs that no worker has taken on yet.
    left: AtomicUsize,
}

impl Work {
    /// Takes on up to a batch of the jobs that are left.
    fn take(&self) -> usize {
        let take = |left: usize| Some(left.saturating_sub(self.batch));
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        before.min(self.batch)
    }
}

/// Runs a phase on every client at once.
async fn all<F>(
    options: &Options,
    name: &'static str,
    work: &Arc<Work>,
    run: impl Fn(Client, Arc<Work>) -> F,
) -> anyhow::Result<Phase>
where
    F: Future<Output = anyhow::Result<Tally>> + Send + 'static,
{
    let mut clients = Vec::with_capacity(options.clients);
    for _ in 0..options.clients {
        clients.push(Client::connect(&options.url).await?);
    }
    let start = Instant::now();
    let workers: Vec<_> = clients.into_iter().map(|client| tokio::spawn(run(client, work.clone()))).collect();
    let mut tallies = Vec::with_capacity(workers.len());
    for worker in workers {
        tallies.push(worker.await??);
    }
    phase(name, start.elapsed(), tallies)
}

async fn push(mut client: Client, work: &Work) -> anyhow::Result<Tally> {
    let mut tally = Tally::new()?;
    let job = format!("{{\"payload\":{}}}", work.payload);
    loop {
        let count = work.take();
        if count == 0 {
            return Ok(tally);
        }
        let start = Instant::now();
        if work.batch == 1 {
            client.post(&format!("/v1/queues/{}/jobs", work.queue), job.clone()).await?;
        } else {
            let body = format!("{{\"jobs\":[{}]}}", vec![job.as_str(); count].join(","));
            let answer = client.post(&format!("/v1/queues/{}/jobs/batch", work.queue), body).await?;
            check(&answer["results"], 201)?;
        }
        tally.add(start, count as u64);
    }
}

async fn settle(mut client: Client, work: &Work) -> anyhow::Result<Tally> {
    let mut tally = Tally::new()?;
    let reserve = format!("/v1/queues/{}/reserve", work.queue);
    loop {
        let count = work.take();
        if count == 0 {
            return Ok(tally);
        }
        let mut left = count;
        while left > 0 {
            let start = Instant::now();
            let answer = client.post(&reserve, format!("{{\"count\":{left}}}")).await?;
            let jobs = answer["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
            if jobs.is_empty() {
                tokio::task::yield_now().await; // others have what is left, or are about to put it back
                continue;
            }
            commit(&mut client, jobs, work.batch).await?;
            left -= jobs.len();
            tally.add(start, jobs.len() as u64);
        }
    }
}

async fn commit(client: &mut Client, jobs: &[Value], batch: usize) -> anyhow::Result<()> {
    if let ([job], 1) = (jobs, batch) {
        let path = format!("/v1/jobs/{}/commit", job["id"].as_str().unwrap_or_default());
        client.post(&path, format!("{{\"reservation\":{}}}", job["reservation"])).await?;
        return Ok(());
    }
    let items =
        jobs.iter().map(|job| format!("{{\"id\":{},\"reservation\":{}}}", job["id"], job["reservation"]));
    let body = format!("{{\"commit\":[{}]}}", items.collect::<Vec<_>>().join(","));
    check(&client.post("/v1/settle", body).await?["commit"], 200)
}

/// Each element must have had its status.
fn check(results: &Value, status: u16) -> anyhow::Result<()> {
    let results = results.as_array().map(Vec::as_slice).unwrap_or_default();
    match results.iter().find(|result| result["status"] != status) {
        Some(other) => anyhow::bail!("an element was answered {other}"),
        None => Ok(()),
    }
}
