//! The MongoDB that tests run on. Without one they fail: `scripts/test` provides it.

use mongodb::Client;

/// A database of its own on the MongoDB that `scripts/mongod run` provides.
pub fn mongodb_url() -> String {
    let uri = std::env::var("TAILBACK_TEST_MONGODB_URI").expect(
        "TAILBACK_TEST_MONGODB_URI is not set: run the tests with scripts/test, which provides a MongoDB",
    );
    let (hosts, options) = uri.split_once('?').unwrap_or((&uri, ""));
    let database = format!("test_{:016x}", rand::random::<u64>());
    format!("{}/{database}?{options}", hosts.trim_end_matches('/'))
}

/// Removes the database that this URL names.
pub async fn drop_database(url: &str) {
    let client = Client::with_uri_str(url).await.unwrap();
    client.default_database().unwrap().drop().await.unwrap();
}
