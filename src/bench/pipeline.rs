//! `pipeline`: jobs with a route through `--stages` queues, each commit moving them to the next stage; compared with as
//! many plain jobs. The commit of the last stage ends the jobs, too: it shows the remaining cost of a completed route.

use super::calls::{Jobs, Queue};
use super::crew::Crew;
use super::figures::Measured;
use super::settling::{self, Settling, Steps};

/// Runs a phase for the plain jobs and one for each stage; reports the rates relative to the plain jobs.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let work = (options.clients(), options.jobs());
    let plain = Queue::unique();
    settling::push(crew, &plain, work.0, work.1).await?;
    let settled = Settling::run(crew, &plain, work, Steps::None).await?;
    let (first, mut empty_reserves) = (settled.pair.jobs_per_s, settled.empty_reserves);
    let mut measured = Measured::of(vec![settled.pair]);

    let stages = Queue::several(options.stages);
    if let [start, route @ ..] = &stages[..] {
        let jobs = Jobs::along(options.payload_bytes, options.batch, route);
        let mut push = settling::push_these(crew, start, jobs, work).await?;
        push.name = "push with a route".into();
        measured.phases.push(push);
    }
    for (n, stage) in stages.iter().enumerate() {
        let settled = Settling::run(crew, stage, work, Steps::None).await?;
        empty_reserves += settled.empty_reserves;
        let mut phase = settled.pair;
        phase.name = format!("stage {}", n + 1);
        measured.set(format!("ratio_of_stage_{}", n + 1), phase.jobs_per_s / first);
        measured.phases.push(phase);
    }
    measured.set("empty_reserves", empty_reserves as f64);
    Ok(measured)
}
