//! `loop`: lives whose commits take the next jobs with them (`next`), against lives of three calls: push, reserve, commit. Both in
//! interleaved runs, so that what else the machine does concerns both alike; by all clients, then by a worker alone, which only works.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::calls::{Caller, Jobs, Queue};
use super::crew::{Crew, Remaining};
use super::figures::{Measured, Meter, Phase};
use super::settling;

/// A worker alone works on so many times fewer jobs than all clients.
const ALONE: usize = 10;

/// What a run is about.
#[derive(Clone, Copy)]
struct Run {
    /// Whether commits take the next jobs with them.
    with_next: bool,
    /// Whether each client pushes a job for each that it takes; else they are there before.
    pushes: bool,
    clients: usize,
    jobs: usize,
}

/// Runs the phases, each with half of the jobs.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let (clients, jobs) = (options.clients(), options.jobs().div_ceil(2));
    let mut measured = Measured::default();
    let empty = AtomicU64::new(0);
    let all = Run { with_next: false, pushes: true, clients, jobs };
    compare(crew, &mut measured, ["lives", "loop"], all, &empty).await?;
    let alone = Run { pushes: false, clients: 1, jobs: jobs.div_ceil(ALONE), ..all };
    compare(crew, &mut measured, ["alone", "alone_loop"], alone, &empty).await?;
    measured.set("empty_reserves", empty.into_inner() as f64);
    Ok(measured)
}

/// Measures runs without and with `next`, A-B-B-A, and adds their rates, the CPU time for each life and the ratio.
async fn compare(
    crew: &Crew,
    measured: &mut Measured,
    names: [&str; 2],
    run: Run,
    empty: &AtomicU64,
) -> anyhow::Result<()> {
    let mut phases: [Vec<Phase>; 2] = Default::default();
    for kind in [0, 1, 1, 0] {
        let run = Run { with_next: kind == 1, ..run };
        phases[kind].push(one(crew, names[kind], run, empty).await?);
    }
    let rate = |phases: &[Phase]| {
        let seconds: f64 = phases.iter().map(|phase| phase.seconds).sum();
        phases.iter().map(|phase| phase.jobs as f64).sum::<f64>() / seconds
    };
    for (name, phases) in names.iter().zip(&phases) {
        measured.set(format!("{name}_per_s"), rate(phases));
        let mut cpu: BTreeMap<&str, f64> = BTreeMap::new();
        for (of, us) in phases.iter().flat_map(|phase| &phase.cpu_us_per_job) {
            *cpu.entry(of).or_default() += us / phases.len() as f64;
        }
        for (of, us) in cpu {
            measured.set(format!("{of}_cpu_us_of_{name}"), us);
        }
    }
    let [without, with] = &phases;
    measured.set(format!("ratio_of_{}", names[1]), rate(with) / rate(without));
    measured.phases.extend(phases.into_iter().flatten());
    Ok(())
}

/// The work of one run.
struct Work {
    queue: Queue,
    jobs: Jobs,
    run: Run,
    left: Remaining,
    empty: AtomicU64,
    meter: Arc<Meter>,
}

async fn one(crew: &Crew, name: &str, run: Run, empty: &AtomicU64) -> anyhow::Result<Phase> {
    let options = &crew.options;
    let work = Arc::new(Work {
        queue: Queue::unique(),
        jobs: Jobs::new(options.payload_bytes, options.batch),
        run,
        left: Remaining::new(run.jobs),
        empty: AtomicU64::new(0),
        meter: Meter::new(name)?,
    });
    if !run.pushes {
        crew.fill(std::slice::from_ref(&work.queue), run.jobs).await?;
    }
    let callers = crew.callers(run.clients).await?;
    let took = crew
        .work(name, (&work.meter, run.jobs), callers, |caller| {
            let work = work.clone();
            async move { work.client(caller).await }
        })
        .await?;
    empty.fetch_add(work.empty.load(Ordering::Relaxed), Ordering::Relaxed);
    Ok(work.meter.phase_of(&took))
}

impl Work {
    /// Lives one after the other, until there are no more. Every job that is taken is committed by who took it.
    async fn client(&self, mut caller: Caller) -> anyhow::Result<()> {
        let mut start = Instant::now();
        let mut wanted = self.more(&mut caller).await?;
        let mut held = 0;
        while wanted > 0 {
            if held == 0 {
                held = settling::reserve(&mut caller, &self.queue, wanted, &self.empty).await?;
            }
            let done = held;
            wanted -= done;
            if wanted == 0 {
                wanted = self.more(&mut caller).await?;
            }
            held = if self.run.with_next && wanted > 0 {
                caller.commit_and_take(wanted).await?
            } else {
                caller.commit().await?;
                0
            };
            self.meter.add(start, done);
            start = Instant::now();
        }
        Ok(())
    }

    /// Takes on more jobs, and pushes as many; returns how many.
    async fn more(&self, caller: &mut Caller) -> anyhow::Result<usize> {
        let count = self.left.take(self.jobs.batch());
        if self.run.pushes && count > 0 {
            caller.push(&self.queue, &self.jobs, count).await?;
        }
        Ok(count)
    }
}
