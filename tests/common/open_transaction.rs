//! A transaction that stays open, as one of a killed server does until its lifetime is over.

use mongodb::bson::{Document, doc};
use mongodb::error::TRANSIENT_TRANSACTION_ERROR;
use mongodb::{ClientSession, Collection, Database};

/// So that a mongod of a test's own ends no transaction by itself: for [`super::own_mongod::OwnMongod::with_parameters`].
pub const FOR_AN_HOUR: &str = "transactionLifetimeLimitSeconds=3600";

/// See the module's documentation.
pub struct OpenTransaction {
    session: ClientSession,
    documents: Collection<Document>,
    id: String,
}

impl OpenTransaction {
    /// Changes this job, and ends neither way. Nothing is returned, and nothing left, where the job is not in this state any more.
    pub async fn on(database: &Database, id: &str, state: &str) -> Option<Self> {
        Self::begin(database, "jobs", id, doc! { "_id": id, "state": state }).await
    }

    /// The same with a schedule, where it is there.
    pub async fn on_schedule(database: &Database, name: &str) -> Option<Self> {
        Self::begin(database, "schedules", name, doc! { "_id": name }).await
    }

    /// The same with a batch.
    pub async fn on_batch(database: &Database, id: &str) -> Option<Self> {
        Self::begin(database, "batches", id, doc! { "_id": id }).await
    }

    async fn begin(database: &Database, collection: &str, id: &str, filter: Document) -> Option<Self> {
        let documents = database.collection::<Document>(collection);
        let mut session = database.client().start_session().await.unwrap();
        loop {
            session.start_transaction().await.unwrap();
            let touch = doc! { "$set": { "touched": 1 } };
            let touch = documents.update_one(filter.clone(), touch);
            let touched = touch.session(&mut session).await;
            if touched.as_ref().is_ok_and(|touched| touched.matched_count == 1) {
                return Some(Self { session, documents, id: id.to_owned() });
            }
            let _ = session.abort_transaction().await; // MongoDB may have ended it
            match touched {
                Ok(_) => return None,
                // Somebody else had the document, or a lock, at that moment: that says nothing of its state.
                Err(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Returns whether it holds the document still.
    pub async fn is_open(&mut self) -> bool {
        let found = self.documents.find_one(doc! { "_id": &self.id }).session(&mut self.session).await;
        found.is_ok_and(|found| found.is_some_and(|document| document.contains_key("touched")))
    }

    /// Leaves the document as it was.
    pub async fn abort(mut self) {
        self.session.abort_transaction().await.unwrap();
    }
}
