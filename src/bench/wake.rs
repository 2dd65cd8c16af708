//! `wake`: clients wait for jobs of one queue at the last server, and one job at a time becomes deliverable by a call at the first;
//! reports the latency from just before that call to the response of the waiting reserve.

use std::time::{Duration, Instant};

use anyhow::Context as _;
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
    /// It is rolled back
    Rollback,
    /// Its time comes
    Due,
    /// Its lease runs out
    Lapse,
    /// The job before it in its group is committed
    Group,
    /// It is committed in the stage before
    Then,
    /// The last job of its batch is committed: it is the callback
    Callback,
    /// Its worker is removed
    Worker,
    /// It is dead, and retried
    Retry,
    /// It is dead, and redriven
    Redrive,
    /// It is scheduled, and run now
    Run,
    /// It is taken back from its worker
    TakeBack,
    /// The rate's window has room again
    RateWindow,
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
            Self::Rollback => "rollback",
            Self::Due => "push for later",
            Self::Lapse => "extend",
            Self::Group | Self::Then | Self::Callback => "commit",
            Self::Worker => "remove worker",
            Self::Retry => "retry",
            Self::Redrive => "redrive",
            Self::Run => "run",
            Self::TakeBack => "release",
            Self::RateWindow => "nothing",
        }
    }

    /// Returns whether the response of its call has the job.
    fn shows_its_job(self) -> bool {
        matches!(self, Self::Retry | Self::Redrive | Self::Run | Self::TakeBack)
    }

    /// Returns whether it makes jobs deliverable that were held before anyone waited.
    fn needs_held(self) -> bool {
        matches!(
            self,
            Self::Rollback
                | Self::Lapse
                | Self::Group
                | Self::Worker
                | Self::Retry
                | Self::Redrive
                | Self::Run
                | Self::TakeBack
        )
    }
}

/// When every server knows the settings that were set at one.
const KNOWN_EVERYWHERE: Duration = Duration::from_secs(1);

/// How long after its call a job is due, or its lease over; the shortest lease that there is.
const LATER: Duration = Duration::from_millis(100);
/// The window of the rate: long enough that the next job is there before it is over.
const WINDOW: Duration = Duration::from_secs(1);

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
    /// The commits of the jobs that are held, as path and body; the last one is the next.
    held: Vec<(String, String)>,
    /// When a job was delivered last.
    delivered: Instant,
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
            Cause::Then => format!(",\"then\":[{{\"queue\":\"{}\"}}]", queue.name),
            Cause::Due => format!(",\"delay_ms\":{}", LATER.as_millis()),
            _ => String::new(),
        };
        let jobs = Jobs::with(crew.options.payload_bytes, 1, &needs);
        let (held, delivered) = (Vec::new(), Instant::now());
        Ok(Self { cause, caller, beside, queue, own, semaphore, jobs, held, delivered, done: 0 })
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

    /// Holds this many jobs of the queue, before anyone waits for them, each as a worker of its own.
    async fn hold_many(&mut self, count: usize) -> anyhow::Result<()> {
        let jobs = format!("/v1/queues/{}/jobs", self.queue.name);
        for n in 0..count {
            let group = format!("{{\"group\":\"g{n}\"}}");
            let body = if self.cause == Cause::Group { group.as_str() } else { "{}" };
            self.caller.send("POST", &jobs, body).await?;
            let worker = format!("{}-{n}", self.own.name);
            let held = self.caller.reserve_as(&self.queue, &worker).await?;
            anyhow::ensure!(held == 1, "a job that was pushed is reserved by another client");
            let (path, reservation) = self.caller.held();
            match self.cause {
                Cause::Group => self.caller.send("POST", &jobs, body).await?,
                Cause::Retry | Cause::Redrive => {
                    let (path, body) = settle(&path, &reservation, "rollback", ",\"dead\":true")?;
                    self.caller.send("POST", &path, &body).await?;
                }
                Cause::Run => {
                    let (path, body) = settle(&path, &reservation, "rollback", ",\"delay_ms\":86400000")?;
                    self.caller.send("POST", &path, &body).await?;
                }
                _ => {}
            }
            self.held.push((path, reservation));
        }
        self.held.reverse();
        Ok(())
    }

    /// Does what is to be done once, before anyone waits.
    async fn begin(&mut self, jobs: usize) -> anyhow::Result<()> {
        if self.cause.needs_held() {
            self.set(Some(self.settings("{\"lease_ms\":86400000}"))).await?;
            tokio::time::sleep(KNOWN_EVERYWHERE).await;
            return self.hold_many(jobs).await;
        }
        let (call, held_of) = match self.cause {
            Cause::RateWindow => {
                let per_ms = WINDOW.as_millis();
                let rate = format!("{{\"rate\":{{\"limit\":1,\"per_ms\":{per_ms}}}}}");
                (Some(self.settings(&rate)), Some(self.queue.clone()))
            }
            Cause::Release => (Some(self.capacity(1)), None),
            Cause::Capacity => (Some(self.capacity(1)), Some(self.own.clone())),
            Cause::MaxReserved => (None, Some(self.queue.clone())),
            Cause::Rate => (Some(self.rate(1)), Some(self.queue.clone())),
            _ => (None, None),
        };
        self.set(call).await?;
        tokio::time::sleep(KNOWN_EVERYWHERE).await;
        if let Some(queue) = held_of {
            self.hold(&queue).await?;
        }
        self.delivered = Instant::now();
        Ok(())
    }

    /// Makes a job that waits for the cause, if it needs one.
    async fn prepare(&mut self) -> anyhow::Result<()> {
        let call = match self.cause {
            Cause::Push | Cause::Due => return Ok(()),
            cause if cause.needs_held() => return Ok(()),
            Cause::Then => return self.hold(&self.own.clone()).await,
            Cause::Callback => {
                let batch = self.jobs.as_batch(&self.own, &self.queue, 1);
                self.caller.send("POST", "/v1/batches", &batch).await?;
                let held = self.caller.reserve(&self.own, 1, 0).await?;
                anyhow::ensure!(held == 1, "the job of a batch is reserved by another client");
                return Ok(());
            }
            Cause::Move => return self.hold(&self.own.clone()).await,
            Cause::Release => {
                self.hold(&self.own.clone()).await?;
                None
            }
            Cause::Capacity => Some(self.capacity(1)),
            Cause::MaxReserved => Some(self.settings("{\"max_reserved\":1}")),
            Cause::Resume => Some(self.queue("pause")),
            _ => None,
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

    /// Makes the job deliverable. Returns from when on it is, at the earliest.
    async fn wake(&mut self) -> anyhow::Result<Instant> {
        self.done += 1;
        let start = Instant::now();
        let call = match self.cause {
            Cause::Push | Cause::Due => {
                self.caller.push(&self.queue, &self.jobs, 1).await?;
                return Ok(if self.cause == Cause::Due { start + LATER } else { start });
            }
            Cause::Move => {
                self.caller.move_to(&self.queue).await?;
                return Ok(start);
            }
            Cause::Release | Cause::Then | Cause::Callback => {
                self.caller.commit().await?;
                return Ok(start);
            }
            Cause::RateWindow => return Ok(self.delivered + WINDOW),
            Cause::Capacity => self.capacity(2),
            Cause::MaxReserved => self.settings("{\"max_reserved\":2}"),
            Cause::Rate => self.rate(self.done + 1),
            Cause::Resume => self.queue("resume"),
            _ => self.settle_held()?,
        };
        match send(&mut self.caller, call).await {
            // The job left before it was read, so that the response was 503; the retry did not find it.
            Err(error) if self.cause.shows_its_job() && error.to_string().contains("unknown-job") => {}
            sent => sent?,
        }
        Ok(if self.cause == Cause::Lapse { start + LATER } else { start })
    }

    /// The call that makes the next of the held jobs deliverable.
    fn settle_held(&mut self) -> anyhow::Result<Call> {
        let (path, reservation) = self.held.pop().context("every job that was held is delivered")?;
        let verb = match self.cause {
            Cause::Worker => {
                let worker = format!("/v1/workers/{}-{}", self.own.name, self.done - 1);
                return Ok(("DELETE", worker, String::new()));
            }
            Cause::Group => return Ok(("POST", path, reservation)),
            Cause::Rollback => "rollback",
            Cause::Lapse => "extend",
            Cause::Redrive => "redrive",
            Cause::Run => "run",
            Cause::TakeBack => "release",
            _ => "retry",
        };
        let more = match self.cause {
            Cause::Rollback => ",\"delay_ms\":0",
            Cause::Lapse => ",\"lease_ms\":100",
            _ => return Ok(("POST", settle(&path, "{}", verb, "")?.0, "{}".to_owned())),
        };
        let (path, body) = settle(&path, &reservation, verb, more)?;
        Ok(("POST", path, body))
    }
}

/// Returns another call than the commit of a held job, with further fields.
fn settle(commit: &str, reservation: &str, verb: &str, fields: &str) -> anyhow::Result<(String, String)> {
    let path = commit.strip_suffix("commit").context("one job must be reserved")?;
    let reservation = reservation.strip_suffix('}').unwrap_or(reservation);
    Ok((format!("{path}{verb}"), format!("{reservation}{fields}}}")))
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
    waker.begin(options.jobs()).await?;
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
        let from = waker.wake().await?;
        calls.add(start, 1);
        let delivered = waiting.next().await?;
        waker.delivered = delivered;
        // A claim that was under way while the queue was paused, or its limit set, may still have taken the job.
        match delivered.checked_duration_since(from) {
            Some(latency) => wakes.add_latency(latency, 1),
            None => early_jobs += 1,
        }
    }
    let took = start.elapsed();
    let mut measured = Measured::of(vec![wakes.phase(took), calls.phase(took)]);
    measured.set("early_jobs", early_jobs.into());
    Ok(measured)
}
