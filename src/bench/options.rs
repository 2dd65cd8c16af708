//! What to measure, as the command line says it.

use clap::ValueEnum;

/// A situation to measure a server in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Whole lives of jobs: push them all, then reserve and commit them all; with --mixed also all at once
    Lives,
    /// How fast jobs are reserved and committed from queues of 1,000, 10,000 … jobs
    Depth,
    /// How fast a large queue is worked off, tenth by tenth
    Drain,
    /// How soon a waiting reserve answers after a push; with several --url, across servers
    Wake,
    /// What waiting reserves cost the database while nothing happens
    Idle,
    /// How fast the figures are answered beside many jobs
    Stats,
    /// How late jobs with a run_at are delivered
    Schedule,
    /// The queue simulation of MongoDB's schema book: 1,000 publishers and 300 readers a second
    Simulation,
    /// How fast jobs go from stage to stage, against jobs that have but one
    Pipeline,
    /// How fast jobs of ordered groups live, against plain jobs; and what a blocked group costs the others
    Groups,
    /// How fast jobs that need semaphores live, against plain jobs; and what waiting ones cost the others
    Semaphores,
    /// How fast the jobs of batches live, against plain jobs
    Batch,
}

impl Scenario {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lives => "lives",
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
        }
    }

    /// How many clients work unless it is said.
    fn clients(self) -> usize {
        match self {
            Self::Wake => 1,
            Self::Stats => 8,
            Self::Simulation => 200,
            _ => 64,
        }
    }

    /// How many jobs there are unless it is said.
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

    /// For how long it measures unless it is said, in seconds.
    fn seconds(self) -> u64 {
        match self {
            Self::Simulation => 25,
            Self::Stats => 10,
            _ => 20,
        }
    }

    /// How many jobs stay in the queue unless it is said.
    fn backlog(self) -> usize {
        if self == Self::Depth { 1_000_000 } else { 1_000 }
    }
}

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Where a server listens; several times to spread the clients over several servers
    #[arg(long, default_value = "http://127.0.0.1:8321")]
    pub(super) url: Vec<String>,
    /// What to measure
    #[arg(long, value_enum, default_value_t = Scenario::Lives)]
    pub(super) scenario: Scenario,
    /// How many clients work at once, each with a connection of its own [default: 64; wake: 1, stats: 8,
    /// simulation: 200; idle has --waiters]
    #[arg(long)]
    clients: Option<usize>,
    /// How many jobs go through (stats: how many there are) [default: 20000; drain: 1000000, stats: 100000,
    /// schedule: 10000, wake: 200]
    #[arg(long)]
    jobs: Option<usize>,
    /// How many bytes of text the payload of each job has
    #[arg(long, default_value_t = 200)]
    pub(super) payload_bytes: usize,
    /// How many jobs travel in one call (lives, depth, drain, schedule, pipeline, groups, semaphores, batch)
    #[arg(long, default_value_t = 1)]
    pub(super) batch: usize,
    /// How many turns begin per second in all, however long the answers take; latencies count from when a turn
    /// should have begun. A turn is a push, a reserve with its commit, all three (--mixed), or a look (lives,
    /// stats) [default: each client begins its next turn when its last has ended]
    #[arg(long)]
    pub(super) rate: Option<f64>,
    /// After the two phases a third: every client pushes, reserves and commits, beside a backlog (lives)
    #[arg(long)]
    pub(super) mixed: bool,
    /// How many jobs stay in the queue (lives --mixed), or do so at most (depth) [default: 1000; depth: 1000000]
    #[arg(long)]
    backlog: Option<usize>,
    /// How many queues there are (idle, stats)
    #[arg(long, default_value_t = 500)]
    pub(super) queues: usize,
    /// How many queues each job goes through (pipeline)
    #[arg(long, default_value_t = 3)]
    pub(super) stages: usize,
    /// How many jobs each group has (groups)
    #[arg(long, default_value_t = 10)]
    pub(super) group_size: usize,
    /// How many jobs each batch has (batch)
    #[arg(long, default_value_t = 100)]
    pub(super) members: usize,
    /// How many reserves wait (idle)
    #[arg(long, default_value_t = 2000)]
    pub(super) waiters: usize,
    /// For how long to measure, in seconds (idle, stats), or over how many to spread (schedule, simulation)
    /// [default: 20; stats: 10, simulation: 25]
    #[arg(long)]
    seconds: Option<u64>,
    /// How long to pause before each push, in milliseconds; up to as much again comes on top, at random (wake)
    #[arg(long, default_value_t = 50)]
    pub(super) pause_ms: u64,
    /// The server's MongoDB, to read there how many commands it ran (idle)
    #[arg(long, value_name = "URL")]
    pub(super) mongodb: Option<String>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

impl Options {
    /// Refuses what cannot be measured.
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
        let idle = self.scenario == Scenario::Idle;
        anyhow::ensure!(self.mongodb.is_none() || idle, "--mongodb is for idle, not for {name}");
        Ok(())
    }

    /// The server that a scenario asks where it asks only one.
    pub(super) fn first_url(&self) -> &str {
        self.url.first().map_or("", String::as_str)
    }

    /// The other server, where a scenario needs two; the same one where only one is named.
    pub(super) fn last_url(&self) -> &str {
        self.url.last().map_or("", String::as_str)
    }

    /// How many clients work at once.
    pub(super) fn clients(&self) -> usize {
        self.clients.unwrap_or(if self.scenario == Scenario::Idle {
            self.waiters
        } else {
            self.scenario.clients()
        })
    }

    /// How many jobs go through.
    pub(super) fn jobs(&self) -> usize {
        self.jobs.unwrap_or(self.scenario.jobs())
    }

    /// How many jobs stay in the queue.
    pub(super) fn backlog(&self) -> usize {
        self.backlog.unwrap_or(self.scenario.backlog())
    }

    /// For how long to measure, in seconds.
    pub(super) fn seconds(&self) -> u64 {
        self.seconds.unwrap_or(self.scenario.seconds())
    }
}
