//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tailback::config::{self, Config, ConfigError, Flags};
use tailback::{bench, http, server, telemetry};

/// A job queue server over HTTP/JSON.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    /// Without a command, the server serves with what is configured.
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT.
    Serve(Options),
    /// Bring the store's schema up to this version.
    Migrate(Options),
    /// Print the OpenAPI document.
    Openapi,
    /// Check the configuration and show what holds.
    CheckConfig(Options),
    /// Measure a running server.
    Bench(bench::Options),
}

#[derive(Default, clap::Args)]
struct Options {
    /// A configuration file; see config.toml for every option and its default [env: TAILBACK_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen, such as 127.0.0.1:8321 [env: TAILBACK_LISTEN]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where the jobs live, such as mongodb://HOST/DATABASE [env: TAILBACK_STORE]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

impl Options {
    fn load(self) -> Result<Config, ConfigError> {
        let file = self.config.or_else(|| std::env::var_os("TAILBACK_CONFIG").map(PathBuf::from));
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        config::load(file.as_deref(), variables, &Flags { listen: self.listen, store: self.store })
    }
}

/// Exit codes: 0 done, 1 failed while running, 2 bad usage or configuration.
fn main() -> ExitCode {
    match run(Cli::parse().command.unwrap_or_else(|| Command::Serve(Options::default()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tailback: {error:#}");
            ExitCode::from(if error.is::<ConfigError>() { 2 } else { 1 })
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    // One provider is compiled in, but rustls wants to be told.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match command {
        Command::Serve(options) => {
            let config = options.load()?;
            telemetry::install_log(&config.log_filter, config.log_format)?;
            runtime()?.block_on(server::serve(config))
        }
        Command::Migrate(options) => {
            let config = options.load()?;
            telemetry::install_log(&config.log_filter, config.log_format)?;
            let run = runtime()?.block_on(server::migrate(&config))?;
            println!("{}", if run.is_empty() { "nothing to do".to_owned() } else { run.join("\n") });
            Ok(())
        }
        Command::Openapi => {
            println!("{}", http::openapi::document().to_pretty_json()?);
            Ok(())
        }
        Command::CheckConfig(options) => {
            println!("{:#?}", options.load()?);
            Ok(())
        }
        Command::Bench(options) => runtime()?.block_on(bench::run(options)),
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}
