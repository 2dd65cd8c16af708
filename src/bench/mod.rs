//! `tailback bench`: a load generator that measures a running server from outside, over HTTP, with
//! connections of its own. It knows nothing of the server's inside.

mod client;
mod lives;

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use self::client::Client;

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Where the server listens.
    #[arg(long, default_value = "http://127.0.0.1:8321")]
    url: String,
    /// How many clients work at once, each with a connection of its own.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// How many jobs go through.
    #[arg(long, default_value_t = 20_000)]
    jobs: usize,
    /// How many bytes of text the payload of each job has.
    #[arg(long, default_value_t = 200)]
    payload_bytes: usize,
    /// How many jobs travel in one call.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// One phase's figures.
#[derive(Debug, Serialize)]
pub struct Phase {
    /// What was done.
    pub name: &'static str,
    /// Jobs that went through it.
    pub jobs: u64,
    /// Jobs per second.
    pub jobs_per_s: f64,
    /// Half of the calls took no longer, in milliseconds.
    pub p50_ms: f64,
    /// 99 of 100 calls took no longer, in milliseconds.
    pub p99_ms: f64,
    /// The slowest call, in milliseconds.
    pub max_ms: f64,
}

/// A run's figures.
#[derive(Debug, Serialize)]
pub struct Report {
    /// How many clients worked at once.
    pub clients: usize,
    /// How many jobs travelled in one call.
    pub batch: usize,
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// Whole lives per second: 1 / (1/push + 1/settle).
    pub lives_per_s: f64,
}

/// Measures, and prints what it measured.
pub async fn run(options: Options) -> anyhow::Result<()> {
    anyhow::ensure!(options.clients > 0 && options.jobs > 0, "there must be clients and jobs");
    anyhow::ensure!((1..=1000).contains(&options.batch), "--batch must be 1 to 1000");
    let report = lives::run(&options).await?;
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    println!(
        "{:<16} {:>9} {:>10} {:>9} {:>9} {:>9}",
        "phase", "jobs", "jobs/s", "p50 ms", "p99 ms", "max ms"
    );
    for phase in &report.phases {
        let Phase { name, jobs, jobs_per_s, p50_ms, p99_ms, max_ms } = phase;
        println!("{name:<16} {jobs:>9} {jobs_per_s:>10.0} {p50_ms:>9.2} {p99_ms:>9.2} {max_ms:>9.2}");
    }
    println!("whole lives per second: {:.0}", report.lives_per_s);
    Ok(())
}

/// What one worker has measured: a latency for each call, and how many jobs they were about.
struct Tally {
    latencies: Histogram<u64>,
    jobs: u64,
}

impl Tally {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { latencies: Histogram::new_with_bounds(1, 120_000_000, 3)?, jobs: 0 })
    }

    /// A call that began at `start` has just ended, and was about so many jobs.
    fn add(&mut self, start: Instant, jobs: u64) {
        self.latencies.saturating_record(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX));
        self.jobs += jobs;
    }
}

/// The figures of a phase out of what its workers measured.
fn phase(name: &'static str, took: Duration, tallies: Vec<Tally>) -> anyhow::Result<Phase> {
    let mut all = Tally::new()?;
    for tally in tallies {
        all.latencies.add(&tally.latencies)?;
        all.jobs += tally.jobs;
    }
    let ms = |micros: u64| micros as f64 / 1e3;
    Ok(Phase {
        name,
        jobs: all.jobs,
        jobs_per_s: all.jobs as f64 / took.as_secs_f64(),
        p50_ms: ms(all.latencies.value_at_quantile(0.5)),
        p99_ms: ms(all.latencies.value_at_quantile(0.99)),
        max_ms: ms(all.latencies.max()),
    })
}
