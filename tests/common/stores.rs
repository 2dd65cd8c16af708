//! Stores that a test opens itself, without a server in front of them.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use tailback::store::mongo::{Mongo, MongoOptions};
use tailback::store::sqlite::{Location, SqliteStore};
use tailback::store::{Signals as _, Store};

use tokio::task::JoinHandle;

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

    /// A new database on the MongoDB of this run. The store knows that it is alone, and so it reads ahead.
    pub async fn mongo() -> Self {
        let url = mongod::mongodb_url();
        let store = open_mongo(&url).await;
        let listening = listen(&store);
        let tidy = Box::pin(async move {
            listening.abort();
            mongod::drop_database(&url).await;
        });
        Self { store, tidy }
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

/// Lets a store find out, again and again, whether other servers are there, and say that it is, as a server does.
pub fn listen(store: &Arc<Mongo>) -> JoinHandle<()> {
    let mut signals = store.signals().unwrap();
    tokio::spawn(async move { while signals.next().await.is_some() {} })
}
