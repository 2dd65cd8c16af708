//! Compares jobs that use a feature with as many plain jobs, which are measured first.

use super::calls::{Jobs, Queue};
use super::crew::Crew;
use super::figures::{Measured, Phase};
use super::settling::{self, Settling, Steps};

/// The measurements so far.
pub struct Against<'a> {
    crew: &'a Crew,
    measured: Measured,
    empty_reserves: u64,
    /// Full life cycles of plain jobs per second.
    lives: f64,
    /// Reserves with commits of plain jobs per second.
    settles: f64,
}

impl<'a> Against<'a> {
    /// Measures plain jobs.
    pub async fn plain(crew: &'a Crew) -> anyhow::Result<Self> {
        let mut this =
            Self { crew, measured: Measured::of(Vec::new()), empty_reserves: 0, lives: 0.0, settles: 0.0 };
        let jobs = Jobs::new(crew.options.payload_bytes, crew.options.batch);
        let (pushes, settles) = this.live_in(&Queue::unique(), "plain", jobs).await?;
        (this.lives, this.settles) = (1.0 / (1.0 / pushes + 1.0 / settles), settles);
        this.measured.set("plain_lives_per_s", this.lives);
        Ok(this)
    }

    async fn live_in(&mut self, queue: &Queue, name: &str, jobs: Jobs) -> anyhow::Result<(f64, f64)> {
        let work = (self.crew.options.clients(), self.crew.options.jobs());
        let mut push = settling::push_these(self.crew, queue, jobs, work).await?;
        push.name = format!("push, {name}");
        let pushes = push.jobs_per_s;
        self.measured.phases.push(push);
        let settles = self.settle(queue, name).await?;
        Ok((pushes, settles))
    }

    /// Measures full life cycles of other jobs.
    pub async fn live(&mut self, name: &str, jobs: Jobs) -> anyhow::Result<()> {
        let (pushes, settles) = self.live_in(&Queue::unique(), name, jobs).await?;
        self.compare(&name.replace(' ', "_"), pushes, settles);
        Ok(())
    }

    /// Pushes plain jobs into a queue that has others, and measures how fast they are reserved and committed.
    pub async fn beside(&mut self, queue: &Queue, name: &str) -> anyhow::Result<()> {
        settling::push(self.crew, queue, self.crew.options.clients(), self.crew.options.jobs()).await?;
        let settles = self.settle(queue, name).await?;
        self.measured.set(format!("ratio_{}", name.replace(' ', "_")), settles / self.settles);
        Ok(())
    }

    /// Measures how fast the jobs of a queue are reserved and committed.
    pub async fn settle(&mut self, queue: &Queue, name: &str) -> anyhow::Result<f64> {
        let work = (self.crew.options.clients(), self.crew.options.jobs());
        let settled = Settling::run(self.crew, queue, work, Steps::None).await?;
        self.empty_reserves += settled.empty_reserves;
        let mut phase = settled.pair;
        phase.name = format!("reserve+commit, {name}");
        let rate = phase.jobs_per_s;
        self.measured.phases.push(phase);
        Ok(rate)
    }

    /// Adds a phase that was measured elsewhere.
    pub fn add(&mut self, phase: Phase) {
        self.measured.phases.push(phase);
    }

    /// Records the rates of pushes and settles, and their ratio to those of plain jobs.
    pub fn compare(&mut self, name: &str, pushes: f64, settles: f64) {
        let lives = 1.0 / (1.0 / pushes + 1.0 / settles);
        self.measured.set(format!("lives_per_s_{name}"), lives);
        self.measured.set(format!("ratio_{name}"), lives / self.lives);
        self.measured.set(format!("ratio_of_settles_{name}"), settles / self.settles);
    }

    /// Returns all measurements.
    pub fn done(mut self) -> Measured {
        self.measured.set("empty_reserves", self.empty_reserves as f64);
        self.measured
    }
}
