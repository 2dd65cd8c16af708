//! The command line.

use std::fs::File;
use std::io::{IsTerminal as _, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tailback::backup::Tally;
use tailback::cli;
use tailback::config::{self, Config, ConfigError, Flags, StoreUrl, secret};
use tailback::{backup, bench, http, keys, server, telemetry, transfer};

/// A request makes a few hundred small allocations on several threads, and so does SQLite, which uses this allocator
/// through the `override` feature.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long a server that has stopped waits for calls of the system that cannot be interrupted.
const LINGER: Duration = Duration::from_secs(1);

/// A job queue server over HTTP/JSON.
#[derive(Parser)]
#[command(version, about, args_conflicts_with_subcommands = true)]
struct Cli {
    /// The default command is `serve`.
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Options,
}

#[derive(Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT.
    Serve(Options),
    /// Migrate the store's schema to this version, or copy one store into another (--from, --to).
    ///
    /// With --from and --to everything is copied: settings, keys, and the jobs in every state, with their
    /// ids, reservations and history (but not workers, which are known again after their next heartbeat, nor
    /// operations, the audit and the figures of the past). Then
    /// both stores are read and compared, and the counts and digests of both are printed. Exit code 1 if they
    /// differ.
    ///
    /// Until this has ended, no server may run on either store, and no other program may write to them. That is
    /// checked for SQLite; for MongoDB only the comparison can detect it.
    ///
    /// Idempotent: it may be interrupted at any time and run again. Nothing in the target is ever overwritten or
    /// removed: its content must be in the source, and equal. If the source was used after an interrupted run,
    /// start with an empty target.
    #[command(verbatim_doc_comment)]
    Migrate(Migrate),
    /// Write a backup: all that the store keeps at one moment, as JSON Lines. Servers may go on meanwhile.
    ///
    /// The file has the secrets of the store in it: the hashes of API keys and what tokens are signed with.
    #[command(verbatim_doc_comment)]
    Export(Export),
    /// Restore a backup into an empty store, of either kind, and compare the two. Exit code 1 if they differ.
    ///
    /// No server may run on the store meanwhile, and none starts on it before the restore has ended. A file is read
    /// as a whole before anything is written. It may be interrupted at any time and run again with the same backup.
    #[command(verbatim_doc_comment)]
    Import(Import),
    /// Make, list, rotate and delete API keys, directly in the store.
    ///
    /// On an SQLite file no server may run meanwhile; a running server makes keys with POST /v1/keys.
    #[command(verbatim_doc_comment)]
    Keys(Keys),
    /// Print the OpenAPI document.
    Openapi {
        /// As OpenAPI 3.0.3, for generators that do not read 3.1
        #[arg(long)]
        twin: bool,
    },
    /// Print the documented configuration file: every option with its default.
    Config,
    /// Validate the configuration, and print the effective values and where each was set.
    CheckConfig(Options),
    /// Measure a running server.
    Bench(bench::Options),
    #[command(flatten)]
    People(Box<cli::Command>),
    #[command(flatten)]
    Generate(cli::Generate),
}

#[derive(Default, clap::Args)]
struct Options {
    /// A configuration file; see config.toml for every option and its default [env: TAILBACK_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address to listen on, such as 127.0.0.1:8321 [env: TAILBACK_LISTEN]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The store, such as mongodb://HOST/DATABASE [env: TAILBACK_STORE]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

#[derive(clap::Args)]
struct Keys {
    #[command(subcommand)]
    action: keys::Action,
    /// A configuration file [env: TAILBACK_CONFIG]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// The store [env: TAILBACK_STORE]
    #[arg(long, value_name = "URL", global = true)]
    store: Option<String>,
}

#[derive(clap::Args)]
struct Export {
    /// The file to write, once it is complete; - for standard output, which is the default unless that is a terminal
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Leave out what another program has written and cannot be read, instead of failing; a job of which a part can be read is dead then
    #[arg(long)]
    skip_unreadable: bool,
    #[command(flatten)]
    of: Of,
}

#[derive(clap::Args)]
struct Import {
    /// The backup; - for standard input, which is the default
    #[arg(long = "in", value_name = "FILE")]
    from: Option<PathBuf>,
    /// Only read the backup, and say what is in it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    of: Of,
}

/// What says which store is meant.
#[derive(clap::Args)]
struct Of {
    /// A configuration file [env: TAILBACK_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The store [env: TAILBACK_STORE]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

impl Of {
    /// Loads the configuration, and begins to log as it says.
    fn load(self) -> anyhow::Result<Config> {
        Options { config: self.config, listen: None, store: self.store }.begin()
    }
}

#[derive(clap::Args)]
struct Migrate {
    #[command(flatten)]
    options: Options,
    /// The store to copy from
    #[arg(long, value_name = "URL", requires = "to", conflicts_with = "store", value_parser = lasting)]
    from: Option<StoreUrl>,
    /// The store to copy into: empty, or the target of an earlier run from the same source
    #[arg(long, value_name = "URL", requires = "from", conflicts_with = "store", value_parser = lasting)]
    to: Option<StoreUrl>,
}

/// Parses the URL of a persistent store.
fn lasting(url: &str) -> Result<StoreUrl, String> {
    match url.parse()? {
        StoreUrl::Sqlite(None) => Err("must be a persistent store".to_owned()),
        lasting => Ok(lasting),
    }
}

impl Options {
    fn load(self) -> Result<Config, ConfigError> {
        let (file, flags) = self.sources();
        config::load(file.as_deref(), variables()?.into_iter(), &flags)
    }

    /// Loads the configuration, begins to log as it says, and warns of what looks like it and is ignored.
    fn begin(self) -> anyhow::Result<Config> {
        let config = self.load()?;
        telemetry::install_log(&config.log_filter, config.log_format)?;
        for ignored in ignored()? {
            tracing::warn!("{ignored}");
        }
        Ok(config)
    }

    fn show(self) -> Result<String, ConfigError> {
        let (file, flags) = self.sources();
        config::show(file.as_deref(), variables()?.into_iter(), &flags)
    }

    fn sources(self) -> (Option<PathBuf>, Flags) {
        let file = self.config.or_else(|| std::env::var_os("TAILBACK_CONFIG").map(PathBuf::from));
        (file, Flags { listen: self.listen, store: self.store })
    }
}

/// Returns the variables of the environment. One of ours that is no text is an error: it would be as if it were not set.
fn variables() -> Result<Vec<(String, String)>, ConfigError> {
    let mut variables = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) => variables.push((name, value)),
            Err(_) if name.starts_with("TAILBACK_") => {
                return Err(ConfigError::new(format!("{name} must be UTF-8 (it is set in the environment)")));
            }
            Err(_) => {}
        }
    }
    Ok(variables)
}

/// Returns what is to be said of variables that look like options and are none.
fn ignored() -> Result<Vec<String>, ConfigError> {
    Ok(config::ignored(variables()?.into_iter().map(|(name, _)| name)))
}

/// Exit codes: 0 done, 1 failed while running, 2 bad usage or configuration; the commands for people have more
/// (docs/guide/command-line.md).
fn main() -> ExitCode {
    let parsed = parse();
    let is_asked = parsed.as_ref().is_err_and(|error| !error.use_stderr()); // --help
    if let Some(text) = cli::unclear(&Cli::command(), &words()).filter(|_| !is_asked) {
        cli::note(&secret::mask(&text));
        return ExitCode::from(cli::USAGE);
    }
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let command = match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        Command::People(command) => return people(*command),
        command => command,
    };
    let ended = run(command);
    let is_read = telemetry::flush_log();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if is_read {
                // It may quote what others have stored.
                cli::note(&cli::shown_lines(&secret::mask(&format!("{error:#}"))));
            }
            let of_failure = error.downcast_ref::<cli::Failure>().map(cli::Failure::code);
            ExitCode::from(if error.is::<ConfigError>() { 2 } else { of_failure.unwrap_or(1) })
        }
    }
}

/// Reads the command line.
fn parse() -> Result<Cli, clap::Error> {
    // Without styles what a terminal obeys in an error is of arguments, and can be shown.
    let mut command = cli::documented(Cli::command()).styles(clap::builder::Styles::plain());
    let mut matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Runs a command that asks a server, and returns its exit code.
fn people(command: cli::Command) -> ExitCode {
    match runtime() {
        Ok(runtime) => {
            let code = runtime.block_on(cli::run(command));
            // What still waits for a terminal or a pipe does not delay the exit.
            runtime.shutdown_background();
            code
        }
        Err(error) => {
            cli::note(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Prints what the command line should be, without the values that may have passwords: clap quotes what it refuses.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return match cli::print(&error.render().to_string()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                cli::note(&failure.to_string());
                ExitCode::from(failure.code())
            }
        };
    }
    let words = words();
    let text = secret::mask_words(&error.render().ansi().to_string(), words.iter().map(String::as_str));
    tell(cli::shown_words(&text, words.iter().map(String::as_str)).trim_end());
    if let (clap::error::ErrorKind::ArgumentConflict, Some(command)) = (error.kind(), behind_options()) {
        tell(format_args!("\n  tip: put the options behind the command: tailback {command} [OPTIONS]"));
    }
    ExitCode::from(cli::USAGE)
}

/// Returns the command of a command line that has options of `serve` in front of it.
fn behind_options() -> Option<String> {
    let words = words();
    let is_command = |word: &&String| Cli::command().find_subcommand(word.as_str()).is_some();
    let begins_with_option = words.first().is_some_and(|first| first.starts_with('-'));
    words.iter().find(is_command).filter(|_| begins_with_option).cloned()
}

/// Returns what stands behind the program's name.
fn words() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Prints a line on standard error; a failure to do so cannot be reported.
fn tell(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

fn run(command: Command) -> anyhow::Result<()> {
    // Only one provider is compiled in, but rustls requires it to be installed explicitly.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match command {
        Command::Serve(options) => {
            let config = options.begin()?;
            let runtime = runtime()?;
            let served = runtime.block_on(server::serve(config));
            // A name that is being looked up for the export of spans cannot be interrupted.
            runtime.shutdown_timeout(LINGER);
            served
        }
        Command::Migrate(Migrate { options, from, to }) => {
            let config = options.begin()?;
            match (from, to) {
                (Some(from), Some(to)) => copy(&config, &from, &to),
                _ => migrate(&config),
            }
        }
        Command::Export(Export { out, skip_unreadable, of }) => export(&of.load()?, out, skip_unreadable),
        Command::Import(Import { from, dry_run, of }) => import(&of.load()?, from, dry_run),
        Command::Keys(Keys { action, config, store }) => {
            let config = Options { config, listen: None, store }.begin()?;
            show(&runtime()?.block_on(keys::run(&config, action))?)
        }
        Command::Openapi { twin } => {
            let document = http::openapi::document();
            let document = if twin { http::openapi::twin(document) } else { document };
            Ok(cli::print(&format!("{}\n", serde_json::to_string_pretty(&document)?))?)
        }
        Command::CheckConfig(options) => {
            cli::print(&format!("{}\n", options.show()?))?;
            for ignored in ignored()? {
                tell(format_args!("warning: {ignored}"));
            }
            Ok(())
        }
        Command::Config => Ok(cli::print(config::DEFAULTS)?),
        Command::Bench(options) => bench::run(options),
        Command::Generate(generate) => Ok(generate.run(Cli::command())?),
        Command::People(_) => Ok(()), // `main` has run it
    }
}

/// Prints what was done with keys. The text of a key is nowhere else: that it was not read is a failure.
fn show(done: &keys::Done) -> anyhow::Result<()> {
    let text = format!("{}\n", cli::shown_lines(&done.text));
    match &done.unless_read {
        None => Ok(cli::print(&text)?),
        Some(unless_read) => {
            cli::write(&text).map_err(|failure| anyhow::anyhow!("{unless_read} ({failure})"))
        }
    }
}

fn migrate(config: &Config) -> anyhow::Result<()> {
    let run = runtime()?.block_on(server::migrate(config))?;
    let run = if run.is_empty() { "nothing to do".to_owned() } else { run.join("\n") };
    Ok(cli::print(&format!("{run}\n"))?)
}

fn copy(config: &Config, from: &StoreUrl, to: &StoreUrl) -> anyhow::Result<()> {
    let verdict = runtime()?.block_on(server::transfer(config, from, to))?;
    cli::print(&verdict.to_string())?;
    if !verdict.is_equal() {
        anyhow::bail!("the stores differ: was one of them used during the copy?");
    }
    Ok(cli::print(&format!("verified: both stores are equal\n{}\n", transfer::NOT_COPIED))?)
}

fn export(config: &Config, out: Option<PathBuf>, skip_unreadable: bool) -> anyhow::Result<()> {
    if out.is_none() && std::io::stdout().is_terminal() {
        anyhow::bail!(
            "a backup has secrets in it and is long: name a file with --out, or - for this terminal"
        );
    }
    let file = out.as_deref().filter(|path| *path != Path::new("-"));
    let done = runtime()?.block_on(server::export(config, file, skip_unreadable))?;
    tell(format_args!("exported: {}", counted(&done.tally)));
    if done.left_out > 0 {
        tell(format_args!("left out, since it cannot be read: {}", done.left_out));
    }
    if done.salvaged > 0 {
        tell(format_args!("dead in it, since only a part of it can be read: {}", done.salvaged));
    }
    tell(backup::NOT_IN_IT);
    Ok(())
}

fn import(config: &Config, from: Option<PathBuf>, dry_run: bool) -> anyhow::Result<()> {
    let mut input: Box<dyn Read> = Box::new(std::io::stdin());
    let mut is_checked_first = dry_run;
    let path = from.filter(|path| path != Path::new("-"));
    let open = |path: &Path| File::open(path).with_context(|| format!("cannot read {}", path.display()));
    if let Some(path) = &path {
        let file = open(path)?;
        is_checked_first |= file.metadata()?.is_file(); // a pipe can be read only once
        input = Box::new(file);
    }
    if is_checked_first {
        cli::print(&format!("the backup is complete: {}\n", counted(&server::check_backup(input)?)))?;
        match &path {
            Some(path) if !dry_run => input = Box::new(open(path)?),
            _ => return Ok(()),
        }
    }
    let verdict = runtime()?.block_on(server::import(config, input))?;
    cli::print(&verdict.to_string())?;
    if !verdict.is_equal() {
        anyhow::bail!(
            "the store differs from the backup: was it used meanwhile? Start again with an empty store"
        );
    }
    Ok(cli::print("verified: the store has all of the backup\n")?)
}

/// Returns how many things there are of each kind, as one line.
fn counted(tally: &Tally) -> String {
    let counts = tally.counts();
    let of = |(kind, count): (&String, &u64)| format!("{kind} {count}");
    if counts.is_empty() {
        "nothing".to_owned()
    } else {
        counts.iter().map(of).collect::<Vec<_>>().join(", ")
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_arguments_say_what_they_are() {
        fn check(command: &clap::Command) {
            for argument in command.get_arguments() {
                let id = argument.get_id();
                assert!(argument.get_help().is_some(), "{}: {id} has no description", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn a_time_behind_a_wait_is_not_taken_for_something_else() {
        let unclear = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            cli::unclear(&Cli::command(), &words)
        };
        for line in [
            "push q --wait 1",
            "push q 7 --wait 1s",
            "job X --wait 1m30s",
            "job X retry --wait 10",
            "operations show X --wait 1h",
            "operations retry --queue q --wait 1h",
            "queues redrive q --wait 5",
        ] {
            assert!(unclear(line).is_some_and(|text| text.contains("write --wait=")), "{line}");
        }
        for line in [
            "push q 1 --wait",
            "push q --wait=1s 1",
            "push q --wait {}",
            "push q --wait -- 1",
            "push q --wait --delay 1s",
            "reserve q --wait 1s",
            "work q --once --wait 1s -- sleep 1",
            "work q -- tailback push x --wait 1",
        ] {
            assert_eq!(unclear(line), None, "{line}");
        }
    }
}
