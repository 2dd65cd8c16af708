//! `tailback keys`: API keys, directly in the store. The way to the first key, and back in after the admin key was lost.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;

use crate::config::{Config, StoreUrl};
use crate::job::{ApiKeyName, QueuePattern, Rate, Scope, StoredKeyId};
use crate::queue::{Actor, FreshKey, NewApiKey, Queues, acting};
use crate::server;
use crate::store::{StoredKeys, chain};

/// What is done with the keys.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Make a key and print its text, which is stored nowhere else.
    Create(Create),
    /// List the keys.
    List,
    /// Give a key a new secret and print its text; the text before is refused from then on.
    Rotate {
        /// The id of the key
        id: StoredKeyId,
        /// Where its text goes
        #[command(flatten)]
        to: To,
    },
    /// Revoke a key, also one that cannot be read.
    Delete {
        /// The id of the key, as the list shows it
        id: StoredKeyId,
    },
}

/// A key that is made.
#[derive(Debug, clap::Args)]
pub struct Create {
    /// What people call the key
    #[arg(long, allow_hyphen_values = true)]
    name: ApiKeyName,
    /// What the key allows: push, consume, read, operate or admin; may be repeated
    #[arg(long = "scope", value_name = "SCOPE", required = true)]
    scopes: Vec<Scope>,
    /// A queue, or a pattern such as mail.*, that the key is for; may be repeated [default: all queues]
    #[arg(long = "queue", value_name = "PATTERN")]
    queues: Vec<QueuePattern>,
    /// After how many milliseconds the key expires [default: never]
    #[arg(long, value_name = "MS")]
    expires_in_ms: Option<u64>,
    /// How many requests the key may make in a time, such as 100/1000ms, at each server [default: no limit]
    #[arg(long, value_name = "LIMIT/MS", value_parser = rate)]
    rate: Option<Rate>,
    /// How many of its requests a server works on at once [default: no limit]
    #[arg(long, value_name = "COUNT")]
    max_concurrent: Option<u32>,
    #[command(flatten)]
    to: To,
}

fn rate(text: &str) -> Result<Rate, &'static str> {
    let parsed = text.split_once('/').and_then(|(limit, per_ms)| {
        let per_ms = per_ms.strip_suffix("ms").unwrap_or(per_ms);
        Some(Rate { limit: limit.parse().ok()?, per_ms: per_ms.parse().ok()? })
    });
    parsed.ok_or("must be a number of requests and a time in milliseconds, such as 100/1000ms")
}

/// Where the text of a key goes.
#[derive(Debug, clap::Args)]
pub struct To {
    /// Write the key's text into this new file, readable by its owner only, instead of printing it
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What is to be printed.
#[derive(Debug)]
pub struct Done {
    /// The text.
    pub text: String,
    /// What is to be said where it was not read: it may be the only copy of a key.
    pub unless_read: Option<String>,
}

impl From<String> for Done {
    fn from(text: String) -> Self {
        Self { text, unless_read: None }
    }
}

/// Does it, and returns what is to be printed.
pub async fn run(config: &Config, action: Action) -> anyhow::Result<Done> {
    // The first key may come before the server, which makes its store; whatever else is about keys that are there.
    if let StoreUrl::Sqlite(Some(path)) = &config.store
        && !matches!(action, Action::Create(_))
        && !path.exists()
    {
        anyhow::bail!("there is no file {}", path.display());
    }
    let (store, _) = server::store(config)?;
    let outcome = async {
        let failed = |error| anyhow::anyhow!("{}", chain(&error));
        store.migrate().await.map_err(failed)?;
        store.check_whole().await.map_err(failed)?;
        let queues = Queues::new(store.clone(), config.queue.clone());
        queues.load_settings().await.map_err(failed)?;
        acting(by_command(), act(&queues, action)).await
    };
    let outcome = outcome.await;
    store.close().await;
    outcome
}

/// The actor of these commands: any user who can read the configuration of the store.
fn by_command() -> Actor {
    Actor::new("command-line", None, None)
}

async fn act(queues: &Queues, action: Action) -> anyhow::Result<Done> {
    match action {
        Action::Create(Create {
            name,
            scopes,
            queues: patterns,
            expires_in_ms,
            rate,
            max_concurrent,
            to,
        }) => {
            let new = NewApiKey { name, scopes, queues: patterns, expires_in_ms, rate, max_concurrent };
            let file = to.create()?;
            let fresh = queues.create_api_key(new).await?;
            let id = &fresh.key.id;
            let unless_read =
                format!("the key {id} was made, and its text is lost: delete it, and make another");
            hand_out(fresh, file, unless_read)
        }
        Action::List => Ok(table(&queues.api_keys().await?).into()),
        Action::Rotate { id, to } => {
            let file = to.create()?;
            let fresh = queues.rotate_api_key(&id).await?;
            hand_out(fresh, file, format!("the key {id} has a new text, which is lost: rotate it again"))
        }
        Action::Delete { id } => {
            queues.delete_api_key(&id).await?;
            Ok(format!("the key {id} is deleted; running servers refuse it within two seconds").into())
        }
    }
}

/// A file for a key. One that gets none is removed: it would be in the way of the next call.
struct KeyFile {
    file: std::fs::File,
    path: PathBuf,
    is_used: bool,
}

impl KeyFile {
    /// Writes the key's text, which is nowhere else: returns once it is on the disk.
    fn write(&mut self, text: &str) -> std::io::Result<()> {
        self.is_used = true; // even a part of it may be of use
        writeln!(self.file, "{text}")?;
        self.file.sync_all()
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        if !self.is_used {
            let _ = std::fs::remove_file(&self.path); // the call has failed already
        }
    }
}

impl To {
    /// Creates the file before the key is made, so that no key is lost where it cannot be created.
    fn create(&self) -> anyhow::Result<Option<KeyFile>> {
        let create = |path: &PathBuf| {
            let file = new_private_file(path).with_context(|| format!("cannot create {}", path.display()))?;
            Ok(KeyFile { file, path: path.clone(), is_used: false })
        };
        self.output.as_ref().map(create).transpose()
    }
}

/// Creates a file that its owner alone may read.
fn new_private_file(path: &Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn hand_out(fresh: FreshKey, file: Option<KeyFile>, unless_read: String) -> anyhow::Result<Done> {
    let FreshKey { key, text } = fresh;
    let Some(mut file) = file else { return Ok(Done { text, unless_read: Some(unless_read) }) };
    file.write(&text).with_context(|| format!("{unless_read}; cannot write {}", file.path.display()))?;
    Ok(format!("the key {} is in {}", key.id, file.path.display()).into())
}

fn table(stored: &StoredKeys) -> String {
    if stored.is_empty() {
        return "no keys".to_owned();
    }
    let mut text = String::new();
    for key in &stored.keys {
        let scopes: Vec<&str> = key.scopes.iter().map(|scope| scope.as_str()).collect();
        let queues: Vec<String> = key.queues.iter().map(ToString::to_string).collect();
        let queues = if queues.is_empty() { "*".to_owned() } else { queues.join(",") };
        let or = |time: Option<crate::job::Timestamp>| time.map_or("never".to_owned(), |at| at.to_string());
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}  {}  scopes {}  queues {queues}  created {}  expires {}  last used {}",
            key.id,
            key.name,
            scopes.join(","),
            key.created_at,
            or(key.expires_at),
            or(key.last_used_at),
        );
    }
    for key in &stored.unreadable {
        let _ = writeln!(text, "{}  unreadable: {}", key.id, key.why);
    }
    text.trim_end().to_owned()
}
