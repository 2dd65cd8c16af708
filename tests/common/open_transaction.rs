//! A transaction that stays open, as one of a killed server does until its lifetime is over.

use mongodb::bson::{Document, doc};
use mongodb::error::TRANSIENT_TRANSACTION_ERROR;
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
        loop {
            session.start_transaction().await.unwrap();
            let touch = doc! { "$set": { "touched": 1 } };
            let touch = jobs.update_one(doc! { "_id": id, "state": state }, touch);
            let touched = touch.session(&mut session).await;
            if touched.as_ref().is_ok_and(|touched| touched.matched_count == 1) {
                return Some(Self { session, jobs, id: id.to_owned() });
            }
            let _ = session.abort_transaction().await; // MongoDB may have ended it
            match touched {
                Ok(_) => return None,
                // Somebody else had the job, or a lock, at that moment: that says nothing of its state.
                Err(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => {}
                Err(error) => panic!("{error}"),
            }
        }
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
