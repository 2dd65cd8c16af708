//! Wiring: builds the parts, starts them, and stops them in order. Read this first.
//!
//! Start: listen → reach and migrate the store, read the settings (again and again until it is there; saying
//! where the server listens waits a second for it) → background tasks. Stop: readiness turns 503 → waiting calls answer empty → no new connections, running requests
//! finish → background tasks end → the store is closed.

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::background::{self, Driver, MetricsUpkeep, Readiness};
use crate::config::{Config, MongoTuning, StoreUrl};
use crate::http::{self, AppState, ServerInfo, listen};
use crate::queue::Queues;
use crate::store::metered::Metered;
use crate::store::mongo::{Mongo, MongoOptions};
use crate::store::sqlite::{Location, SqliteStore};
use crate::store::{Store, StoreError, chain};
use crate::telemetry;
use crate::transfer::{self, Progress, Verdict};

/// How long to wait before the store is tried again at the start.
const RETRY: Duration = Duration::from_millis(500);
/// How long the first line waits for the store.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long one call of MongoDB may take at least while everything is copied.
const TRANSFER_DEADLINE: Duration = Duration::from_secs(20);
/// How the name of the first migration begins: a store that lacks it has never been used.
const FIRST_MIGRATION: &str = "0001_";

/// The store that the configuration names, measured and closed at first, and the word for its kind.
pub fn store(config: &Config) -> anyhow::Result<(Arc<dyn Store>, &'static str)> {
    let (store, kind) = store_at(&config.store, config.mongodb)?;
    Ok((Arc::new(Metered::new(store)), kind))
}

/// The store at this URL, and the word for its kind. The one place that knows them all.
fn store_at(url: &StoreUrl, tuning: MongoTuning) -> anyhow::Result<(Arc<dyn Store>, &'static str)> {
    Ok(match url {
        StoreUrl::Mongo(url) => {
            let options =
                MongoOptions { url: url.clone(), deadline: tuning.deadline, pool_size: tuning.pool_size };
            (Arc::new(Mongo::new(options)), "mongodb")
        }
        StoreUrl::Sqlite(path) => {
            let location = path.clone().map_or(Location::Memory, Location::Path);
            (SqliteStore::open(location)?, "sqlite")
        }
    })
}

/// Serves until a signal says to stop.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let metrics = telemetry::install_metrics()?;
    let mut signals = Signals::listen()?;
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("cannot listen on {}", config.listen))?;
    let address = listener.local_addr()?;
    let (store, kind) = store(&config)?;
    let queues = Queues::new(store.clone(), config.queue.clone());
    let readiness = Readiness::default();
    let mut driver = Driver::default();
    driver.start(MetricsUpkeep::new(metrics.clone()));
    let server = ServerInfo {
        readiness: readiness.clone(),
        tasks: driver.statuses(),
        metrics: Some(metrics),
        started: Instant::now(),
        store: kind,
    };
    let state = AppState { queues: queues.clone(), server: Arc::new(server), limits: config.limits };
    let service = http::service(state);
    let stop = CancellationToken::new();
    let serving =
        tokio::spawn(listen::serve(listener, service, config.connections, stop.clone(), config.shutdown));
    tracing::info!(%address, store = kind, version = env!("CARGO_PKG_VERSION"), "listening");

    let hello = format!("listening on http://{address}");
    let outcome = run(&hello, &store, &queues, &readiness, &mut driver, &config, &mut signals).await;

    queues.drain();
    stop.cancel();
    if let Err(error) = serving.await {
        tracing::error!(%error, "serving ended badly");
    }
    driver.stop().await;
    store.close().await;
    if outcome.is_ok() {
        tracing::info!("stopped");
    }
    outcome
}

/// Everything between the start and the end.
async fn run(
    hello: &str,
    store: &Arc<dyn Store>,
    queues: &Queues,
    readiness: &Readiness,
    driver: &mut Driver,
    config: &Config,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let mut opening = std::pin::pin!(open(store, queues, readiness));
    // Whoever waits for this line wants to use the server; a store that is away is not waited for.
    let opened = tokio::time::timeout(PATIENCE, &mut opening).await.ok().transpose()?;
    announce(hello)?;
    if opened.is_none() {
        tokio::select! {
            signal = signals.next() => {
                tracing::info!(signal, "stopping before the store was reached");
                return Ok(());
            }
            opened = opening => opened?,
        }
    }
    background::start(driver, queues, store, readiness, config.background);
    tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, "stopping");
            Ok(())
        }
        why = driver.failed() => anyhow::bail!("{why}; a server without it would do harm, so this one stops"),
    }
}

/// Reaches the store, brings its schema up to date and reads the settings, however long that takes.
async fn open(store: &Arc<dyn Store>, queues: &Queues, readiness: &Readiness) -> anyhow::Result<()> {
    let mut silent = false;
    loop {
        match try_open(store, queues).await {
            Ok(()) => {
                readiness.set(Ok(()));
                return Ok(());
            }
            Err(error @ StoreError::Unavailable(_)) => {
                if !std::mem::replace(&mut silent, true) {
                    tracing::warn!(
                        error = chain(&error),
                        "the store cannot be reached; trying again until it can"
                    );
                }
                readiness.set(Err(error.to_string()));
            }
            Err(error) => anyhow::bail!("{}", chain(&error)),
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn try_open(store: &Arc<dyn Store>, queues: &Queues) -> Result<(), StoreError> {
    for migration in store.migrate().await? {
        tracing::info!(migration, "migrated");
    }
    queues.load_settings().await
}

/// Brings the store's schema up to date, once.
pub async fn migrate(config: &Config) -> anyhow::Result<Vec<String>> {
    let (store, _) = store(config)?;
    let run = store.migrate().await.map_err(|error| anyhow::anyhow!("{}", chain(&error)));
    store.close().await;
    run
}

/// Copies everything from one store into another and compares them. No server may run on either.
pub async fn transfer(config: &Config, from: &StoreUrl, to: &StoreUrl) -> anyhow::Result<Verdict> {
    if from == to {
        anyhow::bail!("--from and --to name the same store");
    }
    if let StoreUrl::Sqlite(Some(path)) = from
        && !path.exists()
    {
        anyhow::bail!("--from: there is no file {}", path.display());
    }
    // Pages are large and nobody waits for a single one.
    let deadline = config.mongodb.deadline.max(TRANSFER_DEADLINE);
    let tuning = MongoTuning { deadline, ..config.mongodb };
    let (source, _) = store_at(from, tuning).context("--from")?;
    let (target, _) = store_at(to, tuning).context("--to")?;
    let outcome = copy(&*source, &*target).await;
    source.close().await;
    target.close().await;
    outcome
}

async fn copy(source: &dyn Store, target: &dyn Store) -> anyhow::Result<Verdict> {
    let prepared = |error: StoreError| anyhow::anyhow!("{}", chain(&error));
    let made = source.migrate().await.map_err(prepared).context("--from")?;
    if made.iter().any(|name| name.starts_with(FIRST_MIGRATION)) {
        anyhow::bail!("--from: Tailback had no store there, so there is nothing to copy; is the URL right?");
    }
    target.migrate().await.map_err(prepared).context("--to")?;
    transfer::copy(source, target, &mut Progress::new()).await
}

/// Says something on standard output at once, also where that is a pipe.
fn announce(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// The signals that ask the server to stop.
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
