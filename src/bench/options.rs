//! The options of `tailback bench`.

use clap::ValueEnum;

use super::wake::Cause;
use crate::cli::{Access, Failure, Target};

/// A scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Full life cycles: push all jobs, then reserve and commit them all; with --mixed also all at once
    Lives,
    /// Lives whose commits take the next jobs with them, against lives of three calls; by all clients, then by a worker alone
    Loop,
    /// How fast jobs are reserved and committed from queues of 1,000, 10,000 … jobs
    Depth,
    /// How fast a large queue is emptied, tenth by tenth
    Drain,
    /// The latency from a push, or another --cause, to the response of a waiting reserve; with several --url, across servers
    Wake,
    /// The load of waiting reserves on the database while nothing happens
    Idle,
    /// The latency of the figures with many jobs
    Stats,
    /// The lateness of jobs with a run_at
    Schedule,
    /// The queue simulation of MongoDB's schema book: 1,000 publishers and 300 readers a second
    Simulation,
    /// The rate of jobs with several stages, against plain jobs
    Pipeline,
    /// The rate of jobs in ordered groups, against plain jobs; and the effect of a blocked group on others
    Groups,
    /// The rate of jobs that need semaphores, against plain jobs; and the effect of waiting ones on others
    Semaphores,
    /// The rate of jobs in batches, against plain jobs
    Batch,
    /// Lives, against what HTTP calls and MongoDB's commands reach one after the other, each without the other; needs --mongodb
    Limit,
}

impl Scenario {
    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lives => "lives",
            Self::Loop => "loop",
            Self::Depth => "depth",
            Self::Drain => "drain",
            Self::Wake => "wake",
            Self::Idle => "idle",
            Self::Stats => "stats",
            Self::Schedule => "schedule",
            Self::Simulation => "simulation",
            Self::Pipeline => "pipeline",
            Self::Groups => "groups",
            Self::Semaphores => "semaphores",
            Self::Batch => "batch",
            Self::Limit => "limit",
        }
    }

    /// Returns the default number of clients.
    fn clients(self) -> usize {
        match self {
            Self::Wake => 1,
            Self::Stats => 8,
            Self::Simulation => 200,
            _ => 64,
        }
    }

    /// Returns the default number of jobs.
    fn jobs(self) -> usize {
        match self {
            Self::Idle | Self::Simulation => 0,
            Self::Drain => 1_000_000,
            Self::Stats => 100_000,
            Self::Schedule => 10_000,
            Self::Wake => 200,
            _ => 20_000,
        }
    }

    /// Returns the default duration, in seconds.
    fn seconds(self) -> u64 {
        match self {
            Self::Simulation => 25,
            Self::Stats => 10,
            _ => 20,
        }
    }

    /// Returns the default backlog.
    fn backlog(self) -> usize {
        if self == Self::Depth { 1_000_000 } else { 1_000 }
    }
}

/// The options of a run.
#[derive(Clone, clap::Args)]
pub struct Options {
    /// The scenario to measure
    #[arg(long, value_enum, default_value_t = Scenario::Lives)]
    pub(super) scenario: Scenario,
    /// The number of concurrent clients, each with its own connection [default: 64; wake: 1, stats: 8,
    /// simulation: 200; idle has --waiters]
    #[arg(long)]
    clients: Option<usize>,
    /// The number of jobs (stats: how many there are) [default: 20000; drain: 1000000, stats: 100000,
    /// schedule: 10000, wake: 200]
    #[arg(long)]
    jobs: Option<usize>,
    /// The size of each job's payload, in bytes of text
    #[arg(long, default_value_t = 200)]
    pub(super) payload_bytes: usize,
    /// The number of jobs per call (lives, depth, drain, schedule, pipeline, groups, semaphores, batch)
    #[arg(long, default_value_t = 1)]
    pub(super) batch: usize,
    /// The number of iterations per second in all, independent of the response times; latencies count from when an
    /// iteration was due. An iteration is a push, a reserve with its commit, all three (--mixed), or a get (lives,
    /// stats) [default: each client begins its next iteration when its last has ended]
    #[arg(long)]
    pub(super) rate: Option<f64>,
    /// Adds a third phase: every client pushes, reserves and commits, beside a backlog (lives)
    #[arg(long)]
    pub(super) mixed: bool,
    /// The backlog (lives --mixed), or its maximum (depth) [default: 1000; depth: 1000000]
    #[arg(long)]
    backlog: Option<usize>,
    /// The number of queues (idle, stats)
    #[arg(long, default_value_t = 500)]
    pub(super) queues: usize,
    /// The number of stages of each job (pipeline)
    #[arg(long, default_value_t = 3)]
    pub(super) stages: usize,
    /// The number of jobs in a group (groups)
    #[arg(long, default_value_t = 10)]
    pub(super) group_size: usize,
    /// The number of jobs in a batch (batch)
    #[arg(long, default_value_t = 100)]
    pub(super) members: usize,
    /// The number of waiting reserves (idle)
    #[arg(long, default_value_t = 2000)]
    pub(super) waiters: usize,
    /// The duration, in seconds (idle, stats), or how many to spread the jobs over (schedule, simulation)
    /// [default: 20; stats: 10, simulation: 25]
    #[arg(long)]
    seconds: Option<u64>,
    /// The pause before each push or other cause, in milliseconds, plus a random part of up to as much again (wake)
    #[arg(long, default_value_t = 50)]
    pub(super) pause_ms: u64,
    /// What makes each job deliverable (wake)
    #[arg(long, value_enum, default_value_t = Cause::Push)]
    pub(super) cause: Cause,
    /// The URL of the server's MongoDB, to count its commands (idle), or to send the same ones (limit)
    #[arg(long, value_name = "URL")]
    pub(super) mongodb: Option<String>,
    /// The process of a server on this machine, to measure its CPU time for each job; may be repeated
    #[arg(long, value_name = "PID")]
    pub(super) server_pid: Vec<u32>,
    /// The process of the server's database on this machine, likewise
    #[arg(long, value_name = "PID")]
    pub(super) database_pid: Vec<u32>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,
    /// The URL of a server; repeat it to spread the clients over several servers [env: TAILBACK_URL]
    /// [default: http://127.0.0.1:8321]
    #[arg(long, help_heading = "Which server")]
    url: Vec<String>,
    #[command(flatten)]
    access: Access,
}

impl Options {
    /// Rejects invalid combinations of options.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let paced = matches!(self.scenario, Scenario::Lives | Scenario::Stats);
        let name = self.scenario.name();
        anyhow::ensure!(self.clients() > 0, "--clients must be at least 1");
        anyhow::ensure!(self.jobs != Some(0), "--jobs must be at least 1");
        anyhow::ensure!((1..=1000).contains(&self.batch), "--batch must be 1 to 1000");
        anyhow::ensure!(self.queues > 0 && self.waiters > 0, "--queues and --waiters must be at least 1");
        anyhow::ensure!((1..=1000).contains(&self.members), "--members must be 1 to 1000");
        anyhow::ensure!(self.group_size > 0, "--group-size must be at least 1");
        anyhow::ensure!((1..=100).contains(&self.stages), "--stages must be 1 to 100");
        anyhow::ensure!((1..=3600).contains(&self.seconds()), "--seconds must be 1 to 3600");
        anyhow::ensure!(self.rate.is_none() || paced, "--rate is for lives and stats, not for {name}");
        anyhow::ensure!(self.rate.is_none_or(|rate| rate >= 0.1), "--rate must be at least 0.1");
        anyhow::ensure!(
            !self.mixed || self.scenario == Scenario::Lives,
            "--mixed is for lives, not for {name}"
        );
        let is_wake = self.scenario == Scenario::Wake;
        anyhow::ensure!(is_wake || self.cause == Cause::Push, "--cause is for wake, not for {name}");
        let is_limit = self.scenario == Scenario::Limit;
        let takes_mongodb = self.scenario == Scenario::Idle || is_limit;
        anyhow::ensure!(
            self.mongodb.is_none() || takes_mongodb,
            "--mongodb is for idle and limit, not for {name}"
        );
        anyhow::ensure!(!is_limit || self.mongodb.is_some(), "limit needs the --mongodb of the server");
        anyhow::ensure!(!is_limit || self.batch == 1, "limit has one job per call");
        Ok(())
    }

    /// Returns the servers, at least one.
    pub(super) fn targets(&self) -> Result<Vec<Target>, Failure> {
        if self.url.is_empty() {
            return Ok(vec![self.access.target(None)?]);
        }
        self.url.iter().map(|url| self.access.target(Some(url))).collect()
    }

    /// Returns the number of concurrent clients.
    pub(super) fn clients(&self) -> usize {
        self.clients.unwrap_or(if self.scenario == Scenario::Idle {
            self.waiters
        } else {
            self.scenario.clients()
        })
    }

    /// Returns the number of jobs.
    pub(super) fn jobs(&self) -> usize {
        self.jobs.unwrap_or(self.scenario.jobs())
    }

    /// Returns the backlog.
    pub(super) fn backlog(&self) -> usize {
        self.backlog.unwrap_or(self.scenario.backlog())
    }

    /// Returns the duration, in seconds.
    pub(super) fn seconds(&self) -> u64 {
        self.seconds.unwrap_or(self.scenario.seconds())
    }
}
