//! `stats`: how fast the figures are answered beside many jobs in many queues: those of the server, then those
//! of single queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::calls::Queue;
use super::crew::Crew;
use super::figures::{Measured, Meter, Phase};
use super::pace::Pace;

/// A phase for the server's figures, and one for those of queues.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let queues = Queue::several(options.queues.min(options.jobs()));
    crew.fill(&queues, options.jobs()).await?;
    let server = looks(crew, "GET /stats", vec!["/stats".to_owned()]).await?;
    let paths = queues.iter().map(|queue| queue.stats.clone()).collect();
    let queue = looks(crew, "GET …/stats", paths).await?;
    let mut measured = Measured::of(vec![server, queue]);
    measured.set("jobs", options.jobs() as f64);
    measured.set("queues", queues.len() as f64);
    crew.discard(&queues, options.jobs()).await?;
    Ok(measured)
}

/// Looks at these paths in turn for as long as it was asked for. One look counts as one job.
async fn looks(crew: &Crew, name: &str, paths: Vec<String>) -> anyhow::Result<Phase> {
    let (paths, next, meter) = (Arc::new(paths), Arc::new(AtomicUsize::new(0)), Meter::new(name)?);
    let callers = crew.callers(crew.options.clients()).await?;
    let pace = Arc::new(Pace::new(crew.options.rate));
    let end = Instant::now() + Duration::from_secs(crew.options.seconds());
    let took = crew
        .work(name, (&meter, 0), callers, |mut caller| {
            let (paths, next, meter, pace) = (paths.clone(), next.clone(), meter.clone(), pace.clone());
            async move {
                loop {
                    let start = pace.turn().await;
                    if Instant::now() >= end {
                        return Ok(());
                    }
                    caller.get(&paths[next.fetch_add(1, Ordering::Relaxed) % paths.len()]).await?;
                    meter.add(start, 1);
                }
            }
        })
        .await?;
    Ok(meter.phase(took))
}
