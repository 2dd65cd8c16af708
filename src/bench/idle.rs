//! `idle`: many clients wait for jobs of many empty queues; reports how many commands that costs the database. In the
//! end a few jobs are pushed, to prove that the clients are waiting.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::calls::{Jobs, Queue};
use super::crew::Crew;
use super::figures::{Measured, Meter};
use super::mongod::Mongod;
use super::waiting::Waiting;

/// How long the clients get until all of them are waiting: connecting and the first query are not measured.
const SETTLE: Duration = Duration::from_secs(3);
/// The number of queues that get a job in the end.
const PROBED: usize = 100;

/// Runs the scenario; reports the commands per second, in all and by name, and a phase for the final jobs.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let mongod = match &options.mongodb {
        Some(url) => Some(Mongod::connect(url).await?),
        None => None,
    };
    let queues = Queue::several(options.queues);
    let callers = crew.callers(options.waiters).await?;
    let mut waiting = Waiting::start(callers.into_iter().zip(queues.iter().cycle().cloned()));
    waiting.pass(SETTLE.min(Duration::from_secs(options.seconds()))).await?;
    let commands = match &mongod {
        Some(mongod) => Some(watch(mongod, &mut waiting, options.seconds()).await?),
        None => {
            waiting.pass(Duration::from_secs(options.seconds())).await?;
            None
        }
    };
    let probes = Meter::new("wake")?;
    let jobs = Jobs::new(options.payload_bytes, 1);
    let mut pusher = crew.caller().await?;
    let start = Instant::now();
    for queue in queues.iter().take(PROBED).take(options.waiters) {
        let start = Instant::now();
        pusher.push(queue, &jobs, 1).await?;
        probes.add_latency(waiting.next().await?.saturating_duration_since(start), 1);
    }
    let mut measured = Measured::of(vec![probes.phase(start.elapsed())]);
    measured.set("waiters", options.waiters as f64);
    measured.set("queues", options.queues as f64);
    if let Some(commands) = commands {
        measured.set("commands_per_s", commands.values().sum());
        for (name, per_s) in commands {
            measured.set(format!("{name}_per_s"), per_s);
        }
    }
    Ok(measured)
}

/// Returns the commands per second over `seconds`, by name; names without calls are left out.
async fn watch(
    mongod: &Mongod,
    waiting: &mut Waiting,
    seconds: u64,
) -> anyhow::Result<BTreeMap<String, f64>> {
    let (start, before) = (Instant::now(), mongod.commands().await?);
    waiting.pass(Duration::from_secs(seconds)).await?;
    let (took, after) = (start.elapsed().as_secs_f64(), mongod.commands().await?);
    let more = after.into_iter().map(|(name, count)| {
        let before = before.get(&name).copied().unwrap_or(0);
        (name, count.saturating_sub(before))
    });
    Ok(more.filter(|(_, count)| *count > 0).map(|(name, count)| (name, count as f64 / took)).collect())
}
