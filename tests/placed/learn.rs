//! What a verb passes where nothing, or one lost reply, disturbs it: the moments at which faults can be placed.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::case::{Done, SHORT_MS, Verb};
use crate::common::proxy::Fault;
use crate::common::server::PATIENCE;
use crate::common::signal::{self, Signal};
use crate::common::steps::Step;
use crate::harm::Moment;
use crate::lane::Lane;
use crate::run::World;
use crate::story::Outcome;

/// How long a background task is waited for.
const WORKS: Duration = Duration::from_secs(20);

impl World<'_> {
    /// Whether what the case is about is done by now.
    async fn is_done(&self) -> bool {
        (self.case.effect)(&self.found(None).await) == Done::Yes
    }

    /// Waits until a background task has done it, and has passed the point behind it.
    async fn until_done(&self) {
        while !self.is_done().await {
            sleep(Duration::from_millis(10)).await;
        }
        let Some(point) = self.case.last_point else { return };
        while !self.lane.has_passed(point) {
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Runs a verb undisturbed, and returns its moments; an error: what was wrong. `short_ms`: the lease of what is to lapse.
pub async fn learn(lane: &mut Lane, verb: &Verb, short_ms: u64) -> Result<Vec<Moment>, String> {
    let mut world = World::prepare(lane, verb, false, short_ms).await;
    world.lane.trace();
    let call = world.begin();
    let (mut answer, mut outcome, mut is_seen) = (None, None, true);
    if let Some(call) = call {
        answer = timeout(PATIENCE, call).await.unwrap().unwrap();
        outcome = Some(world.ended(&answer));
    } else {
        // On a slow machine it may be done before it is looked at, and be done by `near`.
        is_seen = !world.is_done().await && timeout(WORKS, world.until_done()).await.is_ok();
    }
    sleep(Duration::from_millis(20)).await;
    signal::send(world.lane.near.child.id(), Signal::SIGCONT);
    let steps = world.lane.proxy.steps().into_iter().map(Moment::Command);
    let moments: Vec<Moment> = steps.chain(world.lane.traced().into_iter().map(Moment::Point)).collect();
    let found = world.found(answer).await;
    world.finish_held().await;
    let report = world.verdict(found, outcome, false).await;
    if !is_seen {
        return Err("the background task was not seen at work".to_owned());
    }
    if !report.wrong.is_empty() || outcome.is_some_and(|outcome| !world.case.expects(outcome)) {
        return Err(format!("undisturbed: {outcome:?} {}", report.wrong.join("\n")));
    }
    let call = world.case.call.clone();
    lane.met.note(verb, call.as_ref(), &moments);
    Ok(moments)
}

/// Runs a verb with the reply to this step lost, and returns what it passes because of that.
pub async fn learn_second(lane: &mut Lane, verb: &Verb, first: &Step, known: &[Moment]) -> Vec<Moment> {
    let mut world = World::prepare(lane, verb, false, SHORT_MS).await;
    let lost = world.lane.proxy.at(first, Fault::CutAfter);
    world.lane.trace();
    let call = world.begin().expect("a background task waits for no reply");
    let answer = timeout(PATIENCE, call).await.unwrap().unwrap();
    let outcome = world.ended(&answer);
    signal::send(world.lane.near.child.id(), Signal::SIGCONT);
    let later = if world.case.lease_ms.is_some() { 1300 } else { 30 };
    sleep(Duration::from_millis(later)).await;
    let steps = world.lane.proxy.steps();
    let after = steps.iter().position(|step| step == first).map_or(steps.len(), |at| at + 1);
    let steps = steps[after..].iter().cloned().map(Moment::Command);
    let points = world.lane.traced().into_iter().map(Moment::Point);
    let fresh = steps.chain(points).filter(|moment| !known.contains(moment));
    let moments: Vec<Moment> = fresh.map(|then| Moment::Second(first.clone(), Box::new(then))).collect();
    drop(lost);
    if outcome == Outcome::Unknown {
        timeout(PATIENCE, world.repeat()).await.expect("the repeat is never answered");
    }
    world.finish_held().await;
    world.drain().await;
    lane.met.note(verb, None, &moments);
    moments
}
