//! `limit`: how far a server over MongoDB is from what its two parts reach one after the other, each by itself: calls that ask no store
//! anything, and the commands of a life without a server. In one run, since machines drift.

use std::sync::Arc;
use std::time::Instant;

use super::crew::{Crew, Remaining};
use super::figures::{Measured, Meter, Phase};
use super::lives;
use super::mongod::driver::Driver;

/// How many calls a life takes: push, reserve, commit.
const CALLS: usize = 3;

/// Runs lives, then as many calls and as many jobs by commands. `limit_per_s` is 1/(1/`http_lives_per_s` + 1/`driver_lives_per_s`), and
/// `share_of_limit` the lives' share of it.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let mut measured = lives::run(crew).await?;
    let lives_per_s = measured.figures.get("lives_per_s").and_then(serde_json::Value::as_f64);
    let http = calls(crew).await?;
    let (push, settle) = Driver::run(crew).await?;
    let http_lives_per_s = http.jobs_per_s / CALLS as f64;
    let driver_lives_per_s = 1.0 / (1.0 / push.jobs_per_s + 1.0 / settle.jobs_per_s);
    let limit_per_s = 1.0 / (1.0 / http_lives_per_s + 1.0 / driver_lives_per_s);
    measured.phases.extend([http, push, settle]);
    measured.set("http_lives_per_s", http_lives_per_s);
    measured.set("driver_lives_per_s", driver_lives_per_s);
    measured.set("limit_per_s", limit_per_s);
    measured.set("share_of_limit", lives_per_s.unwrap_or_default() / limit_per_s);
    Ok(measured)
}

/// All clients get what needs no store. One call counts as one job.
async fn calls(crew: &Crew) -> anyhow::Result<Phase> {
    let count = CALLS * crew.options.jobs();
    let (left, meter) = (Arc::new(Remaining::new(count)), Meter::new("GET /healthz")?);
    let callers = crew.callers(crew.options.clients()).await?;
    let took = crew
        .work("http", (&meter, count), callers, |mut caller| {
            let (left, meter) = (left.clone(), meter.clone());
            async move {
                while left.take(1) > 0 {
                    let start = Instant::now();
                    caller.get("/healthz").await?;
                    meter.add(start, 1);
                }
                Ok(())
            }
        })
        .await?;
    Ok(meter.phase_of(&took))
}
