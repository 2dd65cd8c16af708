//! A transaction that stays open, as one of a killed server does until its lifetime is over.

use mongodb::bson::{Document, doc};
use mongodb::{ClientSession, Collection, Database};

/// So that a mongod of a test's own ends no transaction by itself: for [`super::own_mongod::OwnMongod::with_parameters`].
pub const FOR_AN_HOUR: &str = "transactionLifetimeLimitSeconds=3600";

/// See the module's documentation.
pub struct OpenTransaction {
    session: ClientSession,
    jobs: Collection<Document>,
    id: String,
}

impl OpenTransaction {
    /// Changes this job, and ends neither way. Nothing is returned, and nothing left, where the job is not in this state any more.
    pub async fn on(database: &Database, id: &str, state: &str) -> Option<Self> {
        let jobs = database.collection::<Document>("jobs");
        let mut session = database.client().start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        let touch = doc! { "$set": { "touched": 1 } };
        let touched = jobs.update_one(doc! { "_id": id, "state": state }, touch).session(&mut session).await;
        if touched.is_ok_and(|touched| touched.matched_count == 1) {
            return Some(Self { session, jobs, id: id.to_owned() });
        }
        session.abort_transaction().await.unwrap();
        None
    }

    /// Returns whether it holds the job still.
    pub async fn is_open(&mut self) -> bool {
        let found = self.jobs.find_one(doc! { "_id": &self.id }).session(&mut self.session).await;
        found.is_ok_and(|found| found.is_some_and(|job| job.contains_key("touched")))
    }

    /// Leaves the job as it was.
    pub async fn abort(mut self) {
        self.session.abort_transaction().await.unwrap();
    }
}
