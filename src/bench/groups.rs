//! `groups`: jobs in groups of `--group-size`, of which only one of each may be delivered at a time; before them as many
//! plain jobs, and after them as many plain jobs behind a group that is blocked at the head of their queue.

use super::calls::{Jobs, Queue};
use super::crew::Crew;
use super::figures::{Measured, Phase};
use super::settling::{self, Settling, Steps};

/// Whole lives per second, out of the phases that make them up.
fn lives(push: &Phase, settle: &Phase) -> f64 {
    1.0 / (1.0 / push.jobs_per_s + 1.0 / settle.jobs_per_s)
}

/// The phases one after the other, and the rates as parts of those of plain jobs.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let (payload_bytes, batch) = (options.payload_bytes, options.batch);
    let work = (options.clients(), options.jobs());
    let mut empty_reserves = 0;

    let queue = Queue::unique();
    let mut push = settling::push(crew, &queue, work.0, work.1).await?;
    let mut settle = settled(crew, &queue, work, &mut empty_reserves).await?;
    (push.name, settle.name) = ("plain push".into(), "plain reserve+commit".into());
    let (plain, plain_settle) = (lives(&push, &settle), settle.jobs_per_s);
    let mut measured = Measured::of(vec![push, settle]);

    let queue = Queue::unique();
    let groups = options.jobs().div_ceil(options.group_size);
    let mut push =
        settling::push_these(crew, &queue, Jobs::grouped(payload_bytes, batch, groups), work).await?;
    let mut settle = settled(crew, &queue, work, &mut empty_reserves).await?;
    (push.name, settle.name) = ("push into groups".into(), "reserve+commit in groups".into());
    let grouped = lives(&push, &settle);
    measured.phases.extend([push, settle]);

    let queue = Queue::unique();
    settling::push_these(crew, &queue, Jobs::grouped(payload_bytes, batch, 1), work).await?;
    let mut holder = crew.caller(options.first_url()).await?;
    holder.reserve(&queue, 1, 0).await?;
    settling::push(crew, &queue, work.0, work.1).await?;
    let mut settle = settled(crew, &queue, work, &mut empty_reserves).await?;
    holder.commit().await?;
    settle.name = "beside a blocked group".into();
    measured.set("groups", groups as f64);
    measured.set("plain_lives_per_s", plain);
    measured.set("lives_per_s_in_groups", grouped);
    measured.set("ratio_in_groups", grouped / plain);
    measured.set("ratio_beside_a_blocked_group", settle.jobs_per_s / plain_settle);
    measured.phases.push(settle);
    measured.set("empty_reserves", empty_reserves as f64);
    Ok(measured)
}

async fn settled(
    crew: &Crew,
    queue: &Queue,
    work: (usize, usize),
    empty_reserves: &mut u64,
) -> anyhow::Result<Phase> {
    let settled = Settling::run(crew, queue, work, Steps::None).await?;
    *empty_reserves += settled.empty_reserves;
    Ok(settled.pair)
}
