//! `stats`: the latency of the figures with many jobs in many queues: those of the server, then those of single
//! queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::calls::Queue;
use super::crew::Crew;
use super::figures::{Measured, Meter, Phase};
use super::pace::Pace;

/// Runs a phase for the server's figures and one for those of queues.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let queues = Queue::several(options.queues.min(options.jobs()));
    crew.fill(&queues, options.jobs()).await?;
    let server = gets(crew, "GET /stats", vec!["/stats".to_owned()]).await?;
    let paths = queues.iter().map(|queue| queue.stats.clone()).collect();
    let queue = gets(crew, "GET …/stats", paths).await?;
    let mut measured = Measured::of(vec![server, queue]);
    measured.set("jobs", options.jobs() as f64);
    measured.set("queues", queues.len() as f64);
    crew.discard(&queues, options.jobs()).await?;
    Ok(measured)
}

/// Gets these paths in turn for the configured duration. One get counts as one job.
async fn gets(crew: &Crew, name: &str, paths: Vec<String>) -> anyhow::Result<Phase> {
    let (paths, next, meter) = (Arc::new(paths), Arc::new(AtomicUsize::new(0)), Meter::new(name)?);
    let callers = crew.callers(crew.options.clients()).await?;
    let pace = Arc::new(Pace::new(crew.options.rate));
    let end = Instant::now() + Duration::from_secs(crew.options.seconds());
    let took = crew
        .work(name, (&meter, 0), callers, |mut caller| {
            let (paths, next, meter, pace) = (paths.clone(), next.clone(), meter.clone(), pace.clone());
            async move {
                loop {
                    let start = pace.next_start().await;
                    if Instant::now() >= end {
                        return Ok(());
                    }
                    caller.get(&paths[next.fetch_add(1, Ordering::Relaxed) % paths.len()]).await?;
                    meter.add(start, 1);
                }
            }
        })
        .await?;
    Ok(meter.phase_of(&took))
}
