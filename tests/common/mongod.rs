//! The MongoDB that tests run on. Without one they fail: `scripts/test` provides it.

use mongodb::Client;

use super::server::until;

/// For clients of tests: they wait for a MongoDB that stands still. Servers have limits of their own, whatever their URL says.
const PATIENT: &str = "serverSelectionTimeoutMS=120000&connectTimeoutMS=120000";

/// A database of its own on a MongoDB that `scripts/mongod run` provides: on any one of them, where there are several.
pub fn mongodb_url() -> String {
    let uris = std::env::var("TAILBACK_TEST_MONGODB_URI").expect(
        "TAILBACK_TEST_MONGODB_URI is not set: run the tests with scripts/test, which provides a MongoDB",
    );
    let uris: Vec<&str> = uris.split_whitespace().collect();
    let number = rand::random::<u64>();
    let uri = uris[number as usize % uris.len()];
    let (hosts, options) = match uri.split_once('?') {
        Some((hosts, options)) => (hosts, format!("{options}&{PATIENT}")),
        None => (uri, PATIENT.to_owned()),
    };
    let database = format!("test_{number:016x}");
    format!("{}/{database}?{options}", hosts.trim_end_matches('/'))
}

/// Removes the database that this URL names.
pub async fn drop_database(url: &str) {
    let client = Client::with_uri_str(url).await.unwrap();
    let database = client.default_database().unwrap();
    until("the database is dropped", || async { database.drop().await.is_ok() }).await;
}
