//! `tailback bench`: a load generator that measures a running server over HTTP, as a client. It does not use the
//! server's internals.
//!
//! One file per scenario; they share the rest:
//!
//! - `options`: the command line.
//! - `crew`: runs the clients and shows the progress. All on one thread, so that they use at most one core.
//! - `against`: the cost of a feature, against plain jobs.
//! - `settling`: the loops that push jobs, and that reserve and commit them.
//! - `pace`: when iterations begin.
//! - `calls`, `client`, `response`: the calls, the connection below them, and parsing responses.
//! - `cpu`: the CPU time of the processes of a run.
//! - `figures`: the figures and their output.
//! - `mongod`: the counts of commands that the server's database ran; the same commands without a server.

mod against;
mod batches;
mod calls;
mod client;
mod cpu;
mod crew;
mod depth;
mod drain;
mod figures;
mod groups;
mod idle;
mod limit;
mod lives;
mod loops;
mod mongod;
mod options;
mod pace;
mod pipeline;
mod response;
mod schedule;
mod semaphores;
mod settling;
mod simulation;
mod stats;
mod waiting;
mod wake;

use std::sync::atomic::Ordering;

use self::crew::Crew;
use self::figures::Report;
pub use self::options::{Options, Scenario};
use crate::cli;

/// Runs a scenario and prints its figures. On one thread: the rest of the machine is for the server.
pub fn run(options: Options) -> anyhow::Result<()> {
    options.check()?;
    let json = options.json;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(measure(options))?;
    let text = if json { serde_json::to_string(&report)? + "\n" } else { report.table() };
    Ok(cli::print(&text)?)
}

async fn measure(options: Options) -> anyhow::Result<Report> {
    let crew = Crew::new(options)?;
    lives::warm_up(&crew).await?;
    let measured = match crew.options.scenario {
        Scenario::Lives => lives::run(&crew).await?,
        Scenario::Loop => loops::run(&crew).await?,
        Scenario::Depth => depth::run(&crew).await?,
        Scenario::Drain => drain::run(&crew).await?,
        Scenario::Wake => wake::run(&crew).await?,
        Scenario::Idle => idle::run(&crew).await?,
        Scenario::Stats => stats::run(&crew).await?,
        Scenario::Schedule => schedule::run(&crew).await?,
        Scenario::Pipeline => pipeline::run(&crew).await?,
        Scenario::Groups => groups::run(&crew).await?,
        Scenario::Semaphores => semaphores::run(&crew).await?,
        Scenario::Batch => batches::run(&crew).await?,
        Scenario::Limit => limit::run(&crew).await?,
        Scenario::Simulation => simulation::run(&crew).await?,
    };
    let servers = crew.servers();
    let Crew { options, traffic, .. } = crew;
    Ok(Report {
        scenario: options.scenario.name(),
        servers,
        clients: options.clients(),
        batch: options.batch,
        payload_bytes: options.payload_bytes,
        retries: traffic.retries.load(Ordering::Relaxed),
        measured,
    })
}
