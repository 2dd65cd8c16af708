//! `wake`: clients wait for jobs of one queue at the last server, and one job at a time becomes deliverable by a call at the first;
//! reports the latency from just before that call to the response of the waiting reserve.

use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::calls::{Caller, Jobs, Queue};
use super::crew::Crew;
use super::figures::{Measured, Meter};
use super::waiting::Waiting;

/// What makes a job deliverable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Cause {
    /// It is pushed
    Push,
    /// It is moved from another queue
    Move,
    /// A job that holds its semaphore is committed
    Release,
    /// Its semaphore gets more capacity
    Capacity,
    /// The queue's max_reserved is raised
    MaxReserved,
    /// The queue's rate is raised
    Rate,
    /// The queue is resumed
    Resume,
}

impl Cause {
    /// Returns the name of the phase of its calls.
    fn call(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Move => "move",
            Self::Release => "commit",
            Self::Capacity => "set capacity",
            Self::MaxReserved => "set max_reserved",
            Self::Rate => "set rate",
            Self::Resume => "resume",
        }
    }
}

/// When every server knows the settings that were set at one.
const KNOWN_EVERYWHERE: Duration = Duration::from_secs(1);

/// Makes jobs deliverable, one at a time.
struct Waker {
    cause: Cause,
    caller: Caller,
    /// At the server of those who wait, which knows at once what is set by it.
    beside: Caller,
    /// The queue of those who wait.
    queue: Queue,
    /// A queue of jobs that are only reserved here.
    own: Queue,
    semaphore: String,
    jobs: Jobs,
    /// How many jobs were made deliverable.
    done: usize,
}

impl Waker {
    async fn new(crew: &Crew, queue: Queue) -> anyhow::Result<Self> {
        let cause = crew.options.cause;
        let caller = crew.caller().await?;
        let beside = crew.last_caller().await?;
        let (own, semaphore) = (Queue::unique(), Queue::unique().name);
        let needs = match cause {
            Cause::Release | Cause::Capacity => format!(",\"semaphores\":[\"{semaphore}\"]"),
            _ => String::new(),
        };
        let jobs = Jobs::with(crew.options.payload_bytes, 1, &needs);
        Ok(Self { cause, caller, beside, queue, own, semaphore, jobs, done: 0 })
    }

    /// A change of the queue's settings.
    fn settings(&self, changed: &str) -> Call {
        ("PATCH", format!("/v1/queues/{}", self.queue.name), changed.to_owned())
    }

    fn capacity(&self, capacity: usize) -> Call {
        ("PUT", format!("/v1/semaphores/{}", self.semaphore), format!("{{\"capacity\":{capacity}}}"))
    }

    /// At most so many jobs of the queue in an hour.
    fn rate(&self, limit: usize) -> Call {
        self.settings(&format!("{{\"rate\":{{\"limit\":{limit},\"per_ms\":3600000}}}}"))
    }

    /// `pause` or `resume`.
    fn queue(&self, call: &str) -> Call {
        ("POST", format!("/v1/queues/{}/{call}", self.queue.name), String::new())
    }

    /// Reserves a job that is pushed for that.
    async fn hold(&mut self, queue: &Queue) -> anyhow::Result<()> {
        self.caller.push(queue, &self.jobs, 1).await?;
        let held = self.caller.reserve(queue, 1, 0).await?;
        anyhow::ensure!(held == 1, "a job that was pushed is reserved by another client");
        Ok(())
    }

    /// Does what is to be done once, before anyone waits.
    async fn begin(&mut self) -> anyhow::Result<()> {
        let (call, held_of) = match self.cause {
            Cause::Push | Cause::Move | Cause::Resume => (None, None),
            Cause::Release => (Some(self.capacity(1)), None),
            Cause::Capacity => (Some(self.capacity(1)), Some(self.own.clone())),
            Cause::MaxReserved => (None, Some(self.queue.clone())),
            Cause::Rate => (Some(self.rate(1)), Some(self.queue.clone())),
        };
        self.set(call).await?;
        tokio::time::sleep(KNOWN_EVERYWHERE).await;
        match held_of {
            Some(queue) => self.hold(&queue).await,
            None => Ok(()),
        }
    }

    /// Makes a job that waits for the cause, if it needs one.
    async fn prepare(&mut self) -> anyhow::Result<()> {
        let call = match self.cause {
            Cause::Push => return Ok(()),
            Cause::Move => return self.hold(&self.own.clone()).await,
            Cause::Release => {
                self.hold(&self.own.clone()).await?;
                None
            }
            Cause::Capacity => Some(self.capacity(1)),
            Cause::MaxReserved => Some(self.settings("{\"max_reserved\":1}")),
            Cause::Rate => None,
            Cause::Resume => Some(self.queue("pause")),
        };
        self.set(call).await?;
        self.caller.push(&self.queue, &self.jobs, 1).await
    }

    /// Sets something at the server of those who wait.
    async fn set(&mut self, call: Option<Call>) -> anyhow::Result<()> {
        match call {
            Some(call) => send(&mut self.beside, call).await,
            None => Ok(()),
        }
    }

    /// Makes the job deliverable.
    async fn wake(&mut self) -> anyhow::Result<()> {
        self.done += 1;
        let call = match self.cause {
            Cause::Push => return self.caller.push(&self.queue, &self.jobs, 1).await,
            Cause::Move => return self.caller.move_to(&self.queue).await,
            Cause::Release => return self.caller.commit().await,
            Cause::Capacity => self.capacity(2),
            Cause::MaxReserved => self.settings("{\"max_reserved\":2}"),
            Cause::Rate => self.rate(self.done + 1),
            Cause::Resume => self.queue("resume"),
        };
        send(&mut self.caller, call).await
    }
}

/// Method, path and body.
type Call = (&'static str, String, String);

async fn send(caller: &mut Caller, (method, path, body): Call) -> anyhow::Result<()> {
    caller.send(method, &path, &body).await
}

/// Runs one phase for the wake-ups and one for the calls that cause them.
pub async fn run(crew: &Crew) -> anyhow::Result<Measured> {
    let options = &crew.options;
    let queue = Queue::unique();
    let mut waker = Waker::new(crew, queue.clone()).await?;
    waker.begin().await?;
    let mut waiters = Vec::with_capacity(options.clients());
    for _ in 0..options.clients() {
        waiters.push((crew.last_caller().await?, queue.clone()));
    }
    let mut waiting = Waiting::start(waiters);
    let (wakes, calls) = (Meter::new("wake")?, Meter::new(options.cause.call())?);
    let (start, mut early_jobs) = (Instant::now(), 0_u32);
    for _ in 0..options.jobs() {
        waker.prepare().await?;
        // Random, so that calls do not synchronise with a periodic task of the other server.
        let pause = options.pause_ms + rand::random_range(0..=options.pause_ms);
        waiting.pass(Duration::from_millis(pause)).await?;
        let start = Instant::now();
        waker.wake().await?;
        calls.add(start, 1);
        let delivered = waiting.next().await?;
        // A claim that was under way while the queue was paused, or its limit set, may still have taken the job.
        match delivered.checked_duration_since(start) {
            Some(latency) => wakes.add_latency(latency, 1),
            None => early_jobs += 1,
        }
    }
    let took = start.elapsed();
    let mut measured = Measured::of(vec![wakes.phase(took), calls.phase(took)]);
    measured.set("early_jobs", early_jobs.into());
    Ok(measured)
}
