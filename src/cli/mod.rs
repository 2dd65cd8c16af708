//! The command line for people: arguments → a request over HTTP → what is printed. It knows nothing of the server but its HTTP
//! interface, so that it talks to servers of other versions as well.

mod assign;
mod body;
mod client;
mod dead;
mod deliver;
mod events;
mod failure;
mod generate;
mod help;
mod job;
mod jobs;
mod operations;
mod out;
mod pages;
mod payload;
mod push;
mod queues;
mod schedules;
mod semaphores;
mod shown;
mod stats;
mod table;
mod tail;
mod target;
mod time;
pub(crate) mod tls;
mod top;
mod view;
mod work;
mod workers;

use std::process::ExitCode;

use clap::Subcommand;

use self::client::Client;
use self::failure::DONE;
pub use self::failure::{Failure, USAGE};
pub use self::generate::Generate;
pub use self::help::documented;
pub use self::job::unclear;
use self::out::Out;
pub use self::out::{note, print, write};
pub use self::shown::{shown_lines, shown_words};
use self::target::Options;
pub(crate) use self::target::{Access, Target};

/// The commands that ask a running server.
#[derive(Subcommand)]
pub enum Command {
    /// Push a job.
    #[command(verbatim_doc_comment)]
    Push(With<push::Push>),
    /// Reserve jobs, and print them with their tokens. Exit code 3 if there are none.
    Reserve(With<deliver::Reserve>),
    /// Commit a reserved job: it is done.
    Commit(With<deliver::Commit>),
    /// Roll a reserved job back: it is tried again, or dead.
    Rollback(With<deliver::Rollback>),
    /// Extend the lease of a reserved job.
    Extend(With<deliver::Extend>),
    /// Search jobs in all queues.
    Jobs(With<jobs::Jobs>),
    /// Show one job, wait for it, or do something to it.
    Job(With<job::JobCommand>),
    /// List queues with their figures, or set, pause, resume, purge, redrive and replay one.
    Queues(With<queues::Queues>),
    /// Show the figures of the server, or of one queue.
    Stats(With<stats::Stats>),
    /// Count the dead jobs by their errors.
    Dead(With<dead::Dead>),
    /// List, begin, watch and cancel operations over many jobs.
    Operations(With<operations::Operations>),
    /// List schedules, or set, run, pause, resume and delete one.
    Schedules(With<schedules::Schedules>),
    /// List semaphores, or show, set and delete one.
    Semaphores(With<semaphores::Semaphores>),
    /// List workers, or show and remove one.
    Workers(With<workers::Workers>),
    /// Show queues and figures live. ? lists the keys.
    Top(With<top::Top>),
    /// Follow what happens in queues, until interrupted.
    Tail(With<tail::Tail>),
    /// Run a command for each job of a queue: the smallest worker there is.
    ///
    /// The payload is on the command's standard input, what is known of the job in the environment (TAILBACK_JOB_ID and
    /// others). Exit code 0 commits the job; 75 puts it off (the attempt does not count); 65 makes it dead at once; any
    /// other one, or a signal, rolls it back, with the end of standard error as the error.
    #[command(verbatim_doc_comment)]
    Work(With<work::Work>),
}

/// A command's own arguments, and those that all of them share.
#[derive(clap::Args)]
pub struct With<A: clap::Args> {
    #[command(flatten)]
    own: A,
    #[command(flatten)]
    options: Options,
}

/// What a command needs to ask and to answer.
pub(crate) struct Context {
    client: Client,
    out: Out,
}

/// A command.
trait Run {
    /// Does it, and returns the exit code.
    async fn run(self, context: &Context) -> Result<u8, Failure>;
}

impl<A: clap::Args> With<A> {
    async fn run(self) -> Result<u8, Failure>
    where
        A: Run,
    {
        let out = Out::new(self.options.json);
        let context = Context { client: Client::new(self.options.target()?)?, out };
        self.own.run(&context).await
    }

    fn is_json(&self) -> bool {
        self.options.json
    }
}

/// Runs a command, prints why it failed, and returns its exit code.
pub async fn run(command: Command) -> ExitCode {
    macro_rules! run {
        ($($name:ident)*) => {
            match command { $(Command::$name(with) => (with.is_json(), Box::pin(with.run()).await),)* }
        };
    }
    let (is_json, result) = run!(Push Reserve Commit Rollback Extend Jobs Job Queues Stats Dead Operations Schedules
        Semaphores Workers Top Tail Work);
    let code = match result {
        Ok(code) => code,
        Err(Failure::Closed) => DONE,
        Err(failure) => {
            tell(&failure, is_json);
            failure.code()
        }
    };
    ExitCode::from(code)
}

fn tell(failure: &Failure, is_json: bool) {
    use std::io::Write as _;
    // A failure here cannot be reported.
    let _ = std::io::stderr().lock().write_all(&told(failure, is_json));
}

/// Returns what is printed of a failure: a problem as it came where scripts read, and in words for people.
fn told(failure: &Failure, is_json: bool) -> Vec<u8> {
    use std::io::IsTerminal as _;
    match failure {
        Failure::Problem(problem) if is_json && !problem.body.is_empty() => {
            let mut body = problem.body.trim_ascii().to_vec();
            if std::io::stderr().is_terminal() {
                body = shown::shown_json(&String::from_utf8_lossy(&body)).into_bytes();
            }
            body.push(b'\n');
            body
        }
        failure => format!("tailback: {failure}\n").into_bytes(),
    }
}
