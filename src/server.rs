//! Wiring: builds the parts, starts them, and stops them in order. Read this first.
//!
//! Start: listen → connect to and migrate the store, read the settings (retried until the store is available) → background tasks →
//! readiness turns 200. The line that says where the server listens waits a second for that. Stop: readiness turns 503 →
//! everything is still served for the notice → waiting calls return empty → no new connections, in-flight requests finish → background tasks end → the store is
//! closed → spans that wait are exported.

use std::io::{Read, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::background::{self, Driver};
use crate::backup::{self, Backup, Exported, Tally};
use crate::config::{Config, ConfigError, MongoTuning, StoreUrl};
use crate::http::budget::Budget;
use crate::http::session::Attempts;
use crate::http::tls::Tls;
use crate::http::{self, AppState, ServerInfo, Services, listen, waiting};
use crate::queue::{self, Maintenance, Queues, Readiness};
use crate::store::metered::Metered;
use crate::store::mongo::{self, Mongo, MongoOptions};
use crate::store::picture::{Isolation, Picture, PictureError};
use crate::store::sqlite::{self, Location, SqliteStore};
use crate::store::{RESTORING, Store, StoreError, chain};
use crate::telemetry::trace::export::Export;
use crate::telemetry::{self, Throttle};
use crate::transfer::{self, Progress, Verdict};

/// The pause between retries of connecting to the store at the start.
const RETRY: Duration = Duration::from_millis(500);
/// How long the first line of output waits for the store.
const READY_TIMEOUT: Duration = Duration::from_secs(1);
/// The minimum deadline of a MongoDB call during a transfer.
const TRANSFER_DEADLINE: Duration = Duration::from_secs(20);
/// The prefix of the first migration's name: a store without it has never been used.
const FIRST_MIGRATION: &str = "0001_";
/// How long a server that stops waits until jobs are given back that their clients did not receive.
const RETURN_WAIT: Duration = Duration::from_secs(5);
/// How long the last figures may take to be written.
const LAST_WRITE: Duration = Duration::from_secs(1);
/// How long closing the store may take.
const CLOSING: Duration = Duration::from_secs(10);
/// How many files are open beside connections: the store's, the log, the runtime's.
const FILES: usize = 64;

/// Returns the configured store, with metrics and closed until it is opened, and the name of its kind.
pub fn store(config: &Config) -> anyhow::Result<(Arc<dyn Store>, &'static str)> {
    let (store, kind) = store_at(&config.store, config.mongodb)?;
    Ok((Arc::new(Metered::new(store)), kind))
}

/// Returns the store at this URL and the name of its kind. Only this and [`picture`] know all kinds.
fn store_at(url: &StoreUrl, tuning: MongoTuning) -> anyhow::Result<(Arc<dyn Store>, &'static str)> {
    Ok(match url {
        StoreUrl::Mongo(url) => (Arc::new(Mongo::new(options_of(url, tuning))), "mongodb"),
        StoreUrl::Sqlite(path) => {
            let location = path.clone().map_or(Location::Memory, Location::Path);
            (SqliteStore::open(location)?, "sqlite")
        }
    })
}

fn options_of(url: &str, tuning: MongoTuning) -> MongoOptions {
    let MongoTuning { deadline, pool_size, .. } = tuning;
    MongoOptions { url: url.to_owned(), deadline, pool_size, validates_own: false }
}

/// Serves until SIGTERM or SIGINT.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let metrics = telemetry::install_metrics()?;
    let export = config.trace.clone().map(Export::begin).transpose()?;
    let mut signals = Signals::listen()?;
    let listener =
        listen::bind(config.listen).with_context(|| format!("cannot listen on {}", config.listen))?;
    let address = listener.local_addr()?;
    let (store, kind) = store(&config)?;
    let connections =
        listen::Options { connections: connections_within_file_limit(&config), ..config.connections.clone() };
    let waiting = config.queue.waiting.min(waiting::may_wait(connections.connections));
    let queues = Queues::new(store.clone(), queue::Options { waiting, ..config.queue.clone() });
    let readiness = Readiness::default();
    let maintenance = Maintenance::new(queues.clone(), readiness.clone());
    let mut driver = Driver::default();
    driver.start(background::histogram_drain(metrics.clone()));
    let server = ServerInfo {
        readiness: readiness.clone(),
        tasks: driver.statuses(),
        metrics: Some(metrics),
        started: Instant::now(),
        store: kind,
    };
    let (access, budget) = (config.access, Budget::new(config.memory));
    let state = AppState::new(Services {
        queues: queues.clone(),
        server,
        limits: config.limits,
        budget: budget.clone(),
        access,
        read_only: config.read_only,
        attempts: Attempts::default(),
    });
    let service = http::service(state, config.hosts.clone());
    let tls = connections.tls.clone().map(Tls::open).transpose()?.map(Arc::new);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let (stop, drain) = (CancellationToken::new(), config.shutdown);
    let serving = listen::serve(listener, service, connections, tls, budget, stop.clone(), drain);
    let serving = tokio::spawn(serving);
    log_start(address, kind);

    let listening_line = format!("listening on {scheme}://{address}");
    let outcome =
        run(&listening_line, &store, maintenance, &readiness, &mut driver, &config, &mut signals).await;

    queues.drain();
    stop.cancel();
    if let Err(error) = serving.await {
        tracing::error!(%error, "server failed");
    }
    queues.returned(RETURN_WAIT).await;
    driver.stop().await;
    write_last_series(&queues).await;
    close(&*store).await;
    Export::stop(export).await;
    if outcome.is_ok() {
        tracing::info!("stopped");
    }
    outcome
}

/// Closes the store. A migration, or a read of very much, may take long and cannot be interrupted: it ends with the process, and
/// SQLite rolls back what was not committed.
async fn close(store: &dyn Store) {
    if tokio::time::timeout(CLOSING, store.close()).await.is_err() {
        tracing::warn!("the store is still at work, and is not closed: what it does ends with the process");
    }
}

/// Writes what has happened since the last step, unless the store is away.
async fn write_last_series(queues: &Queues) {
    let written = tokio::time::timeout(LAST_WRITE, queues.write_series(false, true)).await;
    if let Ok(Err(error)) = written {
        tracing::debug!(error = chain(&error), "the figures of the last seconds are not written");
    }
}

/// Raises the soft limit on open files where it is too low for the configured connections, and returns how many connections
/// there may be.
fn connections_within_file_limit(config: &Config) -> usize {
    let wanted = config.connections.connections;
    let others = FILES + listen::SPARE + config.mongodb.pool_size as usize;
    let needed = (wanted + others) as u64;
    let limit = getrlimit(Resource::Nofile);
    let is_enough = |current: Option<u64>| current.is_none_or(|current| current >= needed);
    if is_enough(limit.current) {
        return wanted;
    }
    let raised = limit.maximum.map_or(needed, |most| most.min(needed));
    let raised = match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit }) {
        Ok(()) => raised,
        Err(_) => limit.current.unwrap_or(raised),
    };
    if is_enough(Some(raised)) {
        return wanted;
    }
    let connections = usize::try_from(raised).unwrap_or(usize::MAX).saturating_sub(others).max(1);
    tracing::warn!(
        "limit of open files" = raised,
        "limits.connections" = wanted,
        connections,
        "the limit of open files is too low for limits.connections: fewer are served (ulimit -n, LimitNOFILE)"
    );
    connections
}

/// Logs what serves where. What is built for trying (`cargo run --release`) should not be deployed by mistake.
fn log_start(address: SocketAddr, store: &str) {
    tracing::info!(%address, store, version = env!("CARGO_PKG_VERSION"), "listening");
    if !cfg!(debug_assertions) && env!("BUILT_WITH_OPT_LEVEL") == "0" {
        tracing::warn!(
            "this build is for trying; cargo build --profile dist makes the one to deploy, which is much faster"
        );
    }
}

/// Runs the server until it is signalled to stop or a background task fails. Owns `maintenance`, so that the
/// stream of signals ends with the last background task: closing the store waits for its connection.
async fn run(
    listening_line: &str,
    store: &Arc<dyn Store>,
    maintenance: Arc<Maintenance>,
    readiness: &Readiness,
    driver: &mut Driver,
    config: &Config,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let mut opening = std::pin::pin!(async {
        let proven = open(store, &maintenance, readiness).await?;
        check_access(&config.access, maintenance.queues())?;
        anyhow::Ok(proven)
    });
    // Clients that wait for this line want to use the server, but a store that is unavailable must not delay it.
    let early = tokio::time::timeout(READY_TIMEOUT, &mut opening).await.ok().transpose()?;
    print_beside(listening_line.to_owned());
    let proven = match early {
        Some(proven) => proven,
        None => tokio::select! {
            signal = signals.next() => {
                tracing::info!(signal, "stopping before the store became available");
                return Ok(());
            }
            opened = opening => opened?,
        },
    };
    // Clients of a server that is ready rely on its background tasks.
    background::start(driver, &maintenance, config.background);
    readiness.set(Ok(proven));
    tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, notice_ms = config.shutdown_notice.as_millis() as u64, "stopping");
            maintenance.queues().leave();
            tokio::select! {
                () = tokio::time::sleep(config.shutdown_notice) => {}
                signal = signals.next() => tracing::info!(signal, "shutdown notice cut short by a second signal"),
                why = driver.failed() => anyhow::bail!("{why}; the server cannot run without it and stops"),
            }
            Ok(())
        }
        why = driver.failed() => anyhow::bail!("{why}; the server cannot run without it and stops"),
    }
}

/// Fails where keys are required and there is none, and says in the log which requests are served without one.
fn check_access(access: &http::access::Options, queues: &Queues) -> anyhow::Result<()> {
    if let Some(fault) = access.fault(queues) {
        return Err(ConfigError::new(fault).into());
    }
    match (access.is_required(queues) != Some(false), access.is_exposed) {
        (true, _) => {}
        (false, true) => {
            tracing::warn!("keys are not required: every client that reaches the port may do everything")
        }
        (false, false) => {
            tracing::info!("there are no keys: the server listens on loopback only, and requests need none");
        }
    }
    Ok(())
}

/// Connects to the store, migrates its schema and reads the settings; retries until the store is available. Returns when it was seen to be.
async fn open(
    store: &Arc<dyn Store>,
    maintenance: &Maintenance,
    readiness: &Readiness,
) -> anyhow::Result<Instant> {
    let (throttle, mut tries) = (Throttle::new(), 0_u64);
    loop {
        tries += 1;
        match try_open(store, maintenance).await {
            Ok(()) => {
                if tries > 1 {
                    tracing::info!(tries, "the store is available");
                }
                return Ok(Instant::now());
            }
            Err(error) if error.is_away() => {
                if throttle.due().is_some() {
                    let error = chain(&error);
                    tracing::warn!(error, tries, "the store is unavailable; retrying until it is available");
                }
                readiness.set(Err(error.to_string()));
            }
            Err(error) => anyhow::bail!("{}", chain(&error)),
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn try_open(store: &Arc<dyn Store>, maintenance: &Maintenance) -> Result<(), StoreError> {
    for migration in store.migrate().await? {
        tracing::info!(migration, "migrated");
    }
    store.check_whole().await?;
    maintenance.load_settings().await
}

/// Migrates the store's schema, once.
pub async fn migrate(config: &Config) -> anyhow::Result<Vec<String>> {
    let (store, _) = store(config)?;
    let run = store.migrate().await.map_err(|error| anyhow::anyhow!("{}", chain(&error)));
    store.close().await;
    run
}

/// Copies one store into another and compares them. No server may run on either.
pub async fn transfer(config: &Config, from: &StoreUrl, to: &StoreUrl) -> anyhow::Result<Verdict> {
    if from == to {
        anyhow::bail!("--from and --to name the same store");
    }
    if let StoreUrl::Sqlite(Some(path)) = from
        && !path.exists()
    {
        anyhow::bail!("--from: there is no file {}", path.display());
    }
    let tuning = patient(config.mongodb);
    let (source, _) = store_at(from, tuning).context("--from")?;
    let (target, _) = store_at(to, tuning).context("--to")?;
    let outcome = copy(&*source, &target, is_alone(to)).await;
    source.close().await;
    target.close().await;
    outcome
}

async fn copy(source: &dyn Store, target: &Arc<dyn Store>, is_alone: bool) -> anyhow::Result<Verdict> {
    let prepared = |error: StoreError| anyhow::anyhow!("{}", chain(&error));
    let made = source.migrate().await.map_err(prepared).context("--from")?;
    if made.iter().any(|name| name.starts_with(FIRST_MIGRATION)) {
        anyhow::bail!(
            "--from: there was no Tailback store, so there is nothing to copy; is the URL correct?"
        );
    }
    target.migrate().await.map_err(prepared).context("--to")?;
    source.check_whole().await.map_err(prepared).context("--from")?;
    transfer::copy(source, target, is_alone, &mut Progress::new()).await
}

/// Returns whether no other process can have this store open: a file is locked.
fn is_alone(url: &StoreUrl) -> bool {
    matches!(url, StoreUrl::Sqlite(_))
}

/// Returns a picture of all that a store keeps, and the name of its kind. Servers may run on it meanwhile. A file keeps the moment of a
/// picture for as long as that is read: there each is a snapshot.
async fn picture(
    url: &StoreUrl,
    tuning: MongoTuning,
    isolation: Isolation,
) -> Result<(Picture, &'static str), PictureError> {
    Ok(match url {
        StoreUrl::Mongo(url) => (mongo::picture(options_of(url, tuning), isolation).await?, "mongodb"),
        StoreUrl::Sqlite(Some(path)) if !path.exists() => {
            return Err(PictureError::Absent(format!("there is no file {}", path.display())));
        }
        StoreUrl::Sqlite(Some(path)) => (sqlite::picture(path)?, "sqlite"),
        StoreUrl::Sqlite(None) => {
            let why = "a store in memory has no backup; name another with --store";
            return Err(PictureError::Refused(why.to_owned()));
        }
    })
}

/// Returns the error of a command whose store cannot be read.
fn not_exported(error: PictureError) -> anyhow::Error {
    anyhow::anyhow!("the store cannot be exported: {}", chain(&error))
}

/// Pages are large, and latency does not matter.
fn patient(tuning: MongoTuning) -> MongoTuning {
    MongoTuning { deadline: tuning.deadline.max(TRANSFER_DEADLINE), ..tuning }
}

/// Writes a backup of the configured store to this file, or to standard output. Servers may run on the store meanwhile.
pub async fn export(config: &Config, to: Option<&Path>, leave_out: bool) -> anyhow::Result<Exported> {
    if let (Some(to), StoreUrl::Sqlite(Some(store))) = (to, &config.store) {
        backup::check_apart(to, store)?;
    }
    // A partial file is removed; without one a signal ends the process at once, even where its output is not read.
    let signals = to.is_some_and(backup::Output::is_partial).then(Signals::listen).transpose()?;
    let out = to.map_or_else(|| Ok(backup::Output::standard()), backup::Output::file)?;
    let exporting = async {
        let picture = picture(&config.store, patient(config.mongodb), Isolation::Snapshot).await;
        let (mut picture, kind) = picture.map_err(not_exported)?;
        if picture.is_part() {
            anyhow::bail!("the store cannot be exported: {RESTORING}");
        }
        backup::export(&mut picture, kind, out, leave_out, &mut Progress::new()).await
    };
    let Some(mut signals) = signals else { return exporting.await };
    tokio::select! {
        exported = exporting => exported,
        signal = signals.next() => anyhow::bail!("{signal}: there is no backup"),
    }
}

/// Reads a whole backup, and says what is in it. Nothing is written.
pub fn check_backup(from: impl Read) -> anyhow::Result<Tally> {
    let mut read = Backup::open(from)?;
    while read.next_item()?.is_some() {}
    Ok(read.into_tally())
}

/// Restores a backup into the configured store, on which no server may run, and compares the two.
pub async fn import(config: &Config, from: impl Read) -> anyhow::Result<backup::Verdict> {
    if config.store == StoreUrl::Sqlite(None) {
        anyhow::bail!("a store in memory would be gone at once; name another with --store");
    }
    let backup = Backup::open(from)?;
    let tuning = patient(config.mongodb);
    let (target, _) = store_at(&config.store, tuning)?;
    let outcome = restore(config, backup, &target).await;
    target.close().await;
    outcome
}

/// Fails where a restore must leave the store as it is. It comes before the migrations: a store of an older version, which they would
/// take from that version, is none to restore into.
async fn check_target(config: &Config) -> anyhow::Result<()> {
    match picture(&config.store, patient(config.mongodb), Isolation::Snapshot).await {
        Err(PictureError::Absent(_)) => Ok(()),
        Err(error) => anyhow::bail!(
            "{}. Nothing was written; restore into an empty store, into which no other import is under way",
            chain(&error)
        ),
        Ok((there, _)) if there.is_part() => Ok(()),
        Ok((mut there, _)) => backup::check_empty(&mut there).await,
    }
}

/// Returns a picture of the store that is restored into.
async fn read(config: &Config, isolation: Isolation) -> anyhow::Result<Picture> {
    Ok(picture(&config.store, patient(config.mongodb), isolation).await.map_err(not_exported)?.0)
}

async fn restore(
    config: &Config,
    mut from: Backup<impl Read>,
    target: &Arc<dyn Store>,
) -> anyhow::Result<backup::Verdict> {
    let failed = |error: StoreError| anyhow::anyhow!("{}", chain(&error));
    check_target(config).await?;
    target.migrate().await.map_err(failed)?;
    let read_now = async || read(config, Isolation::Snapshot).await;
    let hold = backup::claim(target, from.head(), is_alone(&config.store), read_now).await?;
    let mut progress = Progress::new();
    let restoring = async {
        backup::restore(&mut from, &hold, &mut progress).await?;
        progress.end();
        transfer::settle_counts(&**target).await?;
        // The mark keeps others from writing, and reading all of it may take longer than MongoDB keeps a moment.
        let mut there = read(config, Isolation::ReadCommitted).await?;
        let stored = backup::tally(&mut there, &mut progress).await?;
        target.ping().await.map_err(failed)?;
        let is_whole = from.is_whole();
        let verdict = backup::Verdict::new(from.into_tally(), stored, target.now().map_err(failed)?);
        if verdict.is_equal() && !is_whole {
            backup::count_lost(&hold, config.queue.defaults.clone()).await?;
        }
        anyhow::Ok(verdict)
    };
    let verdict = tokio::select! {
        verdict = restoring => verdict?,
        lost = hold.lost() => return Err(lost),
    };
    if verdict.is_equal() {
        hold.end().await?;
    }
    Ok(verdict)
}

/// Prints a line beside all else: a pipe that is full and not read holds up nothing but this, and a disk that is full ends no server.
fn print_beside(line: String) {
    tokio::task::spawn_blocking(move || {
        let mut out = std::io::stdout().lock();
        if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
            tracing::warn!(%error, "the address could not be printed on standard output");
        }
    });
}

/// The signals that stop the server.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
