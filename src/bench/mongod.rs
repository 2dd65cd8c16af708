//! Counts the commands that the server's MongoDB has run.

pub mod driver;

use std::collections::BTreeMap;

use anyhow::Context as _;
use mongodb::Client;
use mongodb::bson::{Bson, doc};

/// Commands that drivers send for monitoring, and the one that this program sends.
const NOT_COUNTED: [&str; 5] = ["hello", "isMaster", "ismaster", "getMore", "serverStatus"];

/// A connection to the server's MongoDB.
pub struct Mongod(Client);

impl Mongod {
    /// Connects; the user must be allowed to run `serverStatus`.
    pub async fn connect(url: &str) -> anyhow::Result<Self> {
        Ok(Self(Client::with_uri_str(url).await.context("--mongodb")?))
    }

    /// Returns how often each command has run since the mongod started.
    pub async fn commands(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let status = self.0.database("admin").run_command(doc! { "serverStatus": 1 }).await?;
        let commands = status.get_document("metrics").and_then(|metrics| metrics.get_document("commands"));
        let commands = commands.context("serverStatus has no metrics.commands")?;
        let counts = commands.iter().filter_map(|(name, entry)| {
            let total = match entry.as_document()?.get("total")? {
                Bson::Int64(total) => u64::try_from(*total).ok()?,
                Bson::Int32(total) => u64::try_from(*total).ok()?,
                _ => return None,
            };
            Some((name.clone(), total))
        });
        Ok(counts.filter(|(name, _)| !NOT_COUNTED.contains(&name.as_str())).collect())
    }
}
