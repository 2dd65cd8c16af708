//! The figures of a run, and their output as a table or JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::cpu::CpuTimes;

/// The upper limit of the histogram, in microseconds.
const LONGEST_US: u64 = 600_000_000;

/// What the work of a phase took.
#[derive(Debug, Clone)]
pub struct Took {
    /// How long it lasted.
    pub time: Duration,
    /// The CPU time of each process.
    pub cpu: CpuTimes,
}

/// Collects the latencies of one operation over all clients.
#[derive(Debug)]
pub struct Meter {
    name: String,
    latencies_us: Mutex<Histogram<u64>>,
    jobs: AtomicU64,
}

impl Meter {
    /// Returns an empty meter.
    pub fn new(name: impl Into<String>) -> anyhow::Result<Arc<Self>> {
        let latencies_us = Mutex::new(Histogram::new_with_bounds(1, LONGEST_US, 3)?);
        Ok(Arc::new(Self { name: name.into(), latencies_us, jobs: AtomicU64::new(0) }))
    }

    /// Records that an operation on `jobs` jobs, begun at `start`, has just ended.
    pub fn add(&self, start: Instant, jobs: usize) {
        self.add_latency(start.elapsed(), jobs);
    }

    /// Records the latency of an operation on `jobs` jobs.
    pub fn add_latency(&self, latency: Duration, jobs: usize) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.latencies_us.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(us);
        self.jobs.fetch_add(jobs as u64, Ordering::Relaxed);
    }

    /// Returns the number of jobs so far.
    pub fn jobs(&self) -> u64 {
        self.jobs.load(Ordering::Relaxed)
    }

    /// Returns the figures of a phase that took `took`, without CPU times.
    pub fn phase(&self, took: Duration) -> Phase {
        self.phase_of(&Took { time: took, cpu: CpuTimes::default() })
    }

    /// Returns the figures of a phase that took `took`.
    pub fn phase_of(&self, took: &Took) -> Phase {
        let latencies_us = self.latencies_us.lock().unwrap_or_else(PoisonError::into_inner);
        let (jobs, seconds) = (self.jobs(), took.time.as_secs_f64());
        let cpu_us_per_job = took.cpu.us_per_job(jobs);
        let latency_ms = LatencyMs::of(&latencies_us);
        let turns = latencies_us.len();
        let jobs_per_s = if seconds > 0.0 { jobs as f64 / seconds } else { 0.0 };
        Phase { name: self.name.clone(), turns, jobs, seconds, jobs_per_s, latency_ms, cpu_us_per_job }
    }
}

/// The figures of one phase.
#[derive(Debug, Clone, Serialize)]
pub struct Phase {
    /// The name of the operation.
    pub name: String,
    /// The number of latencies.
    pub turns: u64,
    /// The number of jobs.
    pub jobs: u64,
    /// The duration, in seconds.
    pub seconds: f64,
    /// Jobs per second.
    pub jobs_per_s: f64,
    /// The latencies.
    pub latency_ms: LatencyMs,
    /// The CPU time for each job of the load, and of the processes that the options name (server, database), in microseconds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_us_per_job: BTreeMap<&'static str, f64>,
}

/// The distribution of latencies, in milliseconds; all zero if there are none.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub struct LatencyMs {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub stddev: f64,
    /// The minimum.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// The 75th percentile.
    pub p75: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub max: f64,
}

impl LatencyMs {
    fn of(latencies_us: &Histogram<u64>) -> Self {
        let ms = |us: u64| us as f64 / 1e3;
        let at = |quantile: f64| ms(latencies_us.value_at_quantile(quantile));
        Self {
            mean: latencies_us.mean() / 1e3,
            stddev: latencies_us.stdev() / 1e3,
            min: ms(latencies_us.min()),
            p50: at(0.5),
            p75: at(0.75),
            p95: at(0.95),
            p99: at(0.99),
            max: ms(latencies_us.max()),
        }
    }
}

/// A scenario's figures.
#[derive(Debug, Default, Serialize)]
pub struct Measured {
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// Further figures, by name; the name ends in the unit.
    pub figures: serde_json::Map<String, serde_json::Value>,
}

impl Measured {
    /// Returns figures with only phases.
    pub fn of(phases: Vec<Phase>) -> Self {
        Self { phases, ..Self::default() }
    }

    /// Adds a figure, rounded to a thousandth.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), ((value * 1e3).round() / 1e3).into());
    }
}

/// The figures of a run with its parameters.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The scenario.
    pub scenario: &'static str,
    /// The number of servers.
    pub servers: usize,
    /// The number of concurrent clients.
    pub clients: usize,
    /// The number of jobs per call.
    pub batch: usize,
    /// The size of each job's payload, in bytes of text.
    pub payload_bytes: usize,
    /// The number of retries after 429 or 503 with `Retry-After`; the delay is part of the latencies.
    pub retries: u64,
    /// The measurements.
    #[serde(flatten)]
    pub measured: Measured,
}

impl Report {
    /// Returns the figures as a table.
    pub fn table(&self) -> String {
        let Self { scenario, servers, clients, batch, payload_bytes, retries, measured } = self;
        let mut text = format!(
            "{scenario}: {clients} clients, {servers} server(s), {batch} jobs a call, payloads of \
             {payload_bytes} bytes\n"
        );
        if !measured.phases.is_empty() {
            let _ = writeln!(
                text,
                "\n{:<16}{:>9}{:>10}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}",
                "", "jobs", "jobs/s", "mean ms", "sd", "min", "p50", "p75", "p95", "p99", "max"
            );
        }
        for Phase { name, jobs, jobs_per_s, latency_ms: ms, .. } in &measured.phases {
            let _ = write!(text, "{name:<16}{jobs:>9}{jobs_per_s:>10.0}");
            for value in [ms.mean, ms.stddev, ms.min, ms.p50, ms.p75, ms.p95, ms.p99] {
                let _ = write!(text, "{value:>9.2}");
            }
            let _ = writeln!(text, "{:>10.2}", ms.max);
        }
        for Phase { name, cpu_us_per_job, .. } in &measured.phases {
            for (of, us) in cpu_us_per_job {
                let _ = writeln!(text, "{:<40}{us:>12}", format!("{name}: {of}_cpu_us_per_job"));
            }
        }
        if !measured.figures.is_empty() {
            text.push('\n');
        }
        for (name, value) in &measured.figures {
            let value = value.as_f64().unwrap_or(f64::NAN);
            let _ = writeln!(text, "{name:<40}{value:>12}");
        }
        if *retries > 0 {
            let _ = writeln!(text, "\n{retries} retries after 429 or 503 with Retry-After");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let meter = Meter::new("push").unwrap();
        for ms in 1..=100 {
            meter.add_latency(Duration::from_millis(ms), 2);
        }
        let mut measured = Measured::of(vec![meter.phase(Duration::from_secs(2))]);
        measured.set("lives_per_s", 123.456_78);
        Report { scenario: "lives", servers: 1, clients: 4, batch: 2, payload_bytes: 9, retries: 0, measured }
    }

    #[test]
    fn percentiles_are_those_of_what_was_measured() {
        let phase = &report().measured.phases[0];
        assert_eq!((phase.turns, phase.jobs, phase.jobs_per_s), (100, 200, 100.0));
        let LatencyMs { mean, stddev, min, p50, p75, p95, p99, max } = phase.latency_ms;
        // Of a hundred values from 1 to 100; the histogram keeps three digits.
        let near = [(mean, 50.5), (stddev, 28.87), (min, 1.0), (p50, 50.0), (p75, 75.0)];
        for (is, should) in near.into_iter().chain([(p95, 95.0), (p99, 99.0), (max, 100.0)]) {
            assert!((is - should).abs() <= should * 0.002, "{is} is not {should}");
        }
    }

    #[test]
    fn nothing_measured_is_all_zero() {
        let phase = Meter::new("push").unwrap().phase(Duration::ZERO);
        let zero =
            LatencyMs { mean: 0.0, stddev: 0.0, min: 0.0, p50: 0.0, p75: 0.0, p95: 0.0, p99: 0.0, max: 0.0 };
        assert_eq!((phase.turns, phase.jobs_per_s, phase.latency_ms), (0, 0.0, zero));
    }

    #[test]
    fn the_table_has_a_column_for_each_figure() {
        let table = report().table();
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[2], "jobs jobs/s mean ms sd min p50 p75 p95 p99 max".split(' ').collect::<Vec<_>>());
        assert_eq!(rows[3][..3], ["push", "200", "100"]);
        assert_eq!(rows[3].len(), 11);
        assert_eq!(rows[5], ["lives_per_s", "123.457"]);
    }

    #[test]
    fn json_keeps_everything_in_one_object() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["phases"][0]["jobs"], 200);
        assert_eq!(json["figures"]["lives_per_s"], 123.457);
        assert_eq!((&json["scenario"], &json["clients"]), (&"lives".into(), &4.into()));
    }
}
