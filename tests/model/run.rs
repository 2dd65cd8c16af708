//! Draws steps from a seed, takes them, and where the store is not as the model says looks for the fewest steps that
//! show it.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use proptest::strategy::{Strategy as _, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tailback::store::Store;

use super::draws::step;
use super::steps::Step;
use super::world::{SLACK_MS, World};
use crate::common::server::until;
use crate::common::stores::Fixture;

/// The steps of one sequence, which begins with an empty store.
const LENGTH: usize = 400;
/// So often all of the store is compared.
const CHECK_EVERY: usize = 20;
/// For so long fewer steps are looked for.
const SHRINKING: Duration = Duration::from_secs(60);

type Drawn = Box<dyn ValueTree<Value = Step>>;

/// How a sequence went wrong.
struct Failure {
    /// How many steps were taken until then, that one included.
    steps: usize,
    /// Those of them for which there was nothing to do.
    idle: Vec<usize>,
    what: String,
    log: Vec<String>,
}

fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a whole number, not {text:?}")))
}

/// Takes that many steps or more, in sequences whose seeds follow each other.
pub async fn run(test: &str, steps: usize, open: impl AsyncFn() -> Fixture) {
    // Each test takes a walk of its own, the same in every run of the suite: a change is judged by what it changes.
    let own = test.bytes().fold(0_u64, |seed, byte| seed * 31 % 1_000_003 + u64::from(byte));
    let seed = from_env("TAILBACK_MODEL_SEED").unwrap_or(own);
    let steps = from_env("TAILBACK_MODEL_STEPS").map_or(steps, |steps| steps as usize);
    println!("{test}: {steps} steps from TAILBACK_MODEL_SEED={seed} on");
    let (began, mut taken) = (Instant::now(), 0);
    for seed in seed.. {
        if taken >= steps {
            break;
        }
        let mut drawn = draw(seed);
        match play(&drawn, CHECK_EVERY, &open).await {
            Ok(done) => taken += done,
            Err(failure) => {
                let before = taken + failure.steps;
                let shortest = shrink(&mut drawn, failure, &open).await;
                panic!("{}", message(test, seed, before, drawn.len(), &shortest));
            }
        }
    }
    println!("{test}: {taken} steps in {} ms", began.elapsed().as_millis());
}

fn message(test: &str, seed: u64, before: usize, steps: usize, failure: &Failure) -> String {
    format!(
        "after {before} steps the store is not what the model says. The same with {steps} of them:\n{}\n{}\n\n\
         again: TAILBACK_MODEL_SEED={seed} scripts/test -E 'binary(model) & test(={test})'\n\
         longer: TAILBACK_MODEL_STEPS=1000000 beside it",
        failure.log.join("\n"),
        failure.what
    )
}

/// The steps of this seed, the same each time.
fn draw(seed: u64) -> Vec<Drawn> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = step();
    (0..LENGTH).map(|_| Box::new(strategy.new_tree(&mut runner).unwrap()) as Drawn).collect()
}

/// Takes the steps with an empty store, and answers how many of them there was something to do for.
async fn play(
    drawn: &[Drawn],
    check_every: usize,
    open: &impl AsyncFn() -> Fixture,
) -> Result<usize, Failure> {
    let fixture = open().await;
    read_clock(&*fixture.store).await;
    let mut world = World::new(&fixture.store);
    let (mut taken, mut idle) = (0, Vec::new());
    let steps = drawn.iter().map(|tree| tree.current());
    let played =
        AssertUnwindSafe(take(&mut world, steps, check_every, &mut taken, &mut idle)).catch_unwind().await;
    let log = std::mem::take(&mut world.log);
    fixture.close().await;
    match played {
        Ok(Ok(())) => Ok(taken - idle.len()),
        Ok(Err(what)) => Err(Failure { steps: taken, idle, what, log }),
        Err(panic) => {
            let what = panic.downcast_ref::<String>().cloned();
            let what = what.or(panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
            Err(Failure { steps: taken, idle, what: format!("a panic: {what}"), log })
        }
    }
}

/// Asks the store for its clock until an answer was not long on its way: what is believed of that clock is late by as much.
async fn read_clock(store: &dyn Store) {
    until("the store's clock is known", || async {
        let asked = Instant::now();
        store.ping().await.is_ok() && asked.elapsed() < Duration::from_millis(SLACK_MS / 2)
    })
    .await;
}

async fn take(
    world: &mut World<'_>,
    steps: impl Iterator<Item = Step>,
    check_every: usize,
    taken: &mut usize,
    idle: &mut Vec<usize>,
) -> Result<(), String> {
    for step in steps {
        *taken += 1;
        world.say(format!("{taken}."));
        if !world.step(&step).await? {
            idle.push(*taken - 1);
        }
        if taken.is_multiple_of(check_every) {
            world.check_all().await?;
        }
    }
    world.say("in the end:");
    world.drain().await
}

/// Fewer steps that go wrong as well are looked for.
struct Search<'a, F> {
    drawn: &'a mut Vec<Drawn>,
    failure: Failure,
    open: &'a F,
    end: Instant,
}

/// Leaves out and simplifies steps for as long as the store goes wrong without that, and answers how it does then.
async fn shrink(drawn: &mut Vec<Drawn>, failure: Failure, open: &impl AsyncFn() -> Fixture) -> Failure {
    drawn.truncate(failure.steps);
    let idle = failure.idle.clone();
    let mut search = Search { drawn, failure, open, end: Instant::now() + SHRINKING };
    search.goes_wrong_without(&idle).await;
    let mut chunk = search.drawn.len() / 2;
    while chunk > 0 && search.goes_on() {
        let (mut at, before) = (0, search.drawn.len());
        while at < search.drawn.len() && search.goes_on() {
            let places: Vec<usize> = (at..search.drawn.len().min(at + chunk)).collect();
            if !search.goes_wrong_without(&places).await {
                at += chunk;
            }
        }
        if chunk > 1 || search.drawn.len() == before {
            chunk /= 2;
        }
    }
    search.simplify().await;
    search.failure
}

impl<F: AsyncFn() -> Fixture> Search<'_, F> {
    fn goes_on(&self) -> bool {
        Instant::now() < self.end
    }

    async fn goes_wrong(&mut self) -> bool {
        // A short one is compared after each step, so that it ends as soon as it is wrong.
        let every = if self.drawn.len() > 60 { CHECK_EVERY } else { 1 };
        match play(self.drawn, every, self.open).await {
            Ok(_) => false,
            Err(again) => {
                self.failure = again;
                true
            }
        }
    }

    /// Leaves these steps out, unless nothing goes wrong then.
    async fn goes_wrong_without(&mut self, places: &[usize]) -> bool {
        let all: Vec<(usize, Drawn)> = self.drawn.drain(..).enumerate().collect();
        let (without, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|(n, _)| places.contains(n));
        let (kept, trees): (Vec<usize>, Vec<Drawn>) = rest.into_iter().unzip();
        *self.drawn = trees;
        if self.goes_wrong().await {
            self.drawn.truncate(self.failure.steps);
            return true;
        }
        let mut all: Vec<(usize, Drawn)> =
            kept.into_iter().zip(self.drawn.drain(..)).chain(without).collect();
        all.sort_by_key(|(n, _)| *n);
        self.drawn.extend(all.into_iter().map(|(_, tree)| tree));
        false
    }

    async fn simplify(&mut self) {
        let mut at = 0;
        while at < self.drawn.len() && self.goes_on() {
            if !self.drawn[at].simplify() {
                at += 1;
            } else if self.goes_wrong().await {
                self.drawn.truncate(self.failure.steps);
            } else if !self.drawn[at].complicate() {
                at += 1;
            }
        }
    }
}
