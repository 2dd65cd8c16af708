//! Stores that a test opens itself, without a server in front of them.

use std::sync::Arc;

use futures::future::BoxFuture;
use tailback::store::Store;
use tailback::store::mongo::{Mongo, MongoOptions};
use tailback::store::sqlite::{Location, SqliteStore};

use super::mongod;
use super::server::PATIENCE;

/// A store that holds nothing yet, and what must be done after it has been closed.
pub struct Fixture {
    pub store: Arc<dyn Store>,
    tidy: BoxFuture<'static, ()>,
}

impl Fixture {
    /// SQLite in memory.
    pub async fn sqlite_memory() -> Self {
        Self { store: open_sqlite(Location::Memory).await, tidy: Box::pin(async {}) }
    }

    /// SQLite in a new file.
    pub async fn sqlite_file() -> Self {
        let home = tempfile::tempdir().unwrap();
        let store = open_sqlite(Location::Path(home.path().join("tailback.db"))).await;
        Self { store, tidy: Box::pin(async move { home.close().unwrap() }) }
    }

    /// A new database on the MongoDB of this run.
    pub async fn mongo() -> Self {
        let url = mongod::mongodb_url();
        let store = open_mongo(&url).await;
        Self { store, tidy: Box::pin(async move { mongod::drop_database(&url).await }) }
    }

    /// Closes the store and removes what it has stored.
    pub async fn close(self) {
        self.store.close().await;
        self.tidy.await;
    }
}

async fn open_sqlite(location: Location) -> Arc<SqliteStore> {
    let store = SqliteStore::open(location).unwrap();
    store.migrate().await.unwrap();
    store
}

/// A store over this database, with its schema up to date. Its deadline is one that no machine runs into.
pub async fn open_mongo(url: &str) -> Arc<Mongo> {
    let options =
        MongoOptions { url: url.to_owned(), deadline: PATIENCE, pool_size: 16, validates_own: true };
    let store = Arc::new(Mongo::new(options));
    store.migrate().await.unwrap();
    store
}
