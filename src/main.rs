//! The command line.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "what a command prints is its output")]

use std::fs::File;
use std::io::{IsTerminal as _, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use tailback::backup::Tally;
use tailback::config::{self, Config, ConfigError, Flags, StoreUrl, secret};
use tailback::{bench, http, keys, server, telemetry, transfer};

/// A request makes a few hundred small allocations on several threads, and so does SQLite, which uses this allocator
/// through the `override` feature.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    /// Leave out what another program has written and cannot be read, instead of failing
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
        let config = Options { config: self.config, listen: None, store: self.store }.load()?;
        telemetry::install_log(&config.log_filter, config.log_format)?;
        Ok(config)
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
        config::load(file.as_deref(), variables(), &flags)
    }

    fn show(self) -> Result<String, ConfigError> {
        let (file, flags) = self.sources();
        config::show(file.as_deref(), variables(), &flags)
    }

    fn sources(self) -> (Option<PathBuf>, Flags) {
        let file = self.config.or_else(|| std::env::var_os("TAILBACK_CONFIG").map(PathBuf::from));
        (file, Flags { listen: self.listen, store: self.store })
    }
}

fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Exit codes: 0 done, 1 failed while running, 2 bad usage or configuration.
fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    match run(cli.command.unwrap_or(Command::Serve(cli.serve))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tailback: {}", secret::mask(&format!("{error:#}")));
            ExitCode::from(if error.is::<ConfigError>() { 2 } else { 1 })
        }
    }
}

/// Prints what the command line should be, without the values that may have passwords: clap quotes what it refuses.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        print!("{}", error.render());
        return ExitCode::SUCCESS;
    }
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let text = secret::mask_words(&error.render().to_string(), words.iter().map(String::as_str));
    eprint!("{text}");
    ExitCode::from(2)
}

fn run(command: Command) -> anyhow::Result<()> {
    // Only one provider is compiled in, but rustls requires it to be installed explicitly.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match command {
        Command::Serve(options) => {
            let config = options.load()?;
            telemetry::install_log(&config.log_filter, config.log_format)?;
            for ignored in config::ignored(variables().map(|(name, _)| name)) {
                tracing::warn!("{ignored}");
            }
            runtime()?.block_on(server::serve(config))
        }
        Command::Migrate(Migrate { options, from, to }) => {
            let config = options.load()?;
            telemetry::install_log(&config.log_filter, config.log_format)?;
            match (from, to) {
                (Some(from), Some(to)) => copy(&config, &from, &to),
                _ => migrate(&config),
            }
        }
        Command::Export(Export { out, skip_unreadable, of }) => export(&of.load()?, out, skip_unreadable),
        Command::Import(Import { from, dry_run, of }) => import(&of.load()?, from, dry_run),
        Command::Keys(Keys { action, config, store }) => {
            let config = Options { config, listen: None, store }.load()?;
            telemetry::install_log(&config.log_filter, config.log_format)?;
            println!("{}", runtime()?.block_on(keys::run(&config, action))?);
            Ok(())
        }
        Command::Openapi { twin } => {
            let document = http::openapi::document();
            let document = if twin { http::openapi::twin(document) } else { document };
            println!("{}", serde_json::to_string_pretty(&document)?);
            Ok(())
        }
        Command::CheckConfig(options) => {
            println!("{}", options.show()?);
            for ignored in config::ignored(variables().map(|(name, _)| name)) {
                eprintln!("warning: {ignored}");
            }
            Ok(())
        }
        Command::Config => {
            print!("{}", config::DEFAULTS);
            Ok(())
        }
        Command::Bench(options) => bench::run(options),
    }
}

fn migrate(config: &Config) -> anyhow::Result<()> {
    let run = runtime()?.block_on(server::migrate(config))?;
    println!("{}", if run.is_empty() { "nothing to do".to_owned() } else { run.join("\n") });
    Ok(())
}

fn copy(config: &Config, from: &StoreUrl, to: &StoreUrl) -> anyhow::Result<()> {
    let verdict = runtime()?.block_on(server::transfer(config, from, to))?;
    print!("{verdict}");
    if !verdict.is_equal() {
        anyhow::bail!("the stores differ: was one of them used during the copy?");
    }
    println!("verified: both stores are equal");
    println!("{}", transfer::NOT_COPIED);
    Ok(())
}

fn export(config: &Config, out: Option<PathBuf>, skip_unreadable: bool) -> anyhow::Result<()> {
    if out.is_none() && std::io::stdout().is_terminal() {
        anyhow::bail!(
            "a backup has secrets in it and is long: name a file with --out, or - for this terminal"
        );
    }
    let file = out.as_deref().filter(|path| *path != Path::new("-"));
    let done = runtime()?.block_on(server::export(config, file, skip_unreadable))?;
    eprintln!("exported: {}", counted(&done.tally));
    if done.left_out > 0 {
        eprintln!("left out, since it cannot be read: {}", done.left_out);
    }
    eprintln!("{}", transfer::NOT_COPIED);
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
        println!("the backup is complete: {}", counted(&server::check_backup(input)?));
        match &path {
            Some(path) if !dry_run => input = Box::new(open(path)?),
            _ => return Ok(()),
        }
    }
    let verdict = runtime()?.block_on(server::import(config, input))?;
    print!("{verdict}");
    if !verdict.is_equal() {
        anyhow::bail!(
            "the store differs from the backup: was it used meanwhile? Start again with an empty store"
        );
    }
    println!("verified: the store has all of the backup");
    Ok(())
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
