//! The lives of jobs by MongoDB's commands, without a server.

use std::time::Instant;

use anyhow::Context as _;
use futures::TryStreamExt as _;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::Hint;
use mongodb::{Client, Collection, IndexModel};

use crate::bench::crew::{Crew, Remaining};
use crate::bench::figures::{Meter, Phase};

/// A collection like the server's, with the indexes that list a plain job.
pub struct Driver {
    jobs: Collection<Document>,
    payload: String,
}

impl Driver {
    /// Carries out lives in rounds of as many jobs as there are clients, one command after the other, each acknowledged as the server's are.
    pub async fn run(crew: &Crew) -> anyhow::Result<(Phase, Phase)> {
        let options = &crew.options;
        let url = options.mongodb.as_deref().context("limit needs --mongodb")?;
        let client = Client::with_uri_str(url).await.context("--mongodb")?;
        let database = client.database(&format!("tailback_limit_{:08x}", rand::random::<u32>()));
        let (jobs, payload) = (database.collection("jobs"), "x".repeat(options.payload_bytes));
        let driver = Self { jobs, payload };
        let measured = driver.measure(options.jobs(), options.clients().min(options.jobs())).await;
        database.drop().await?;
        measured
    }

    async fn measure(&self, count: usize, round: usize) -> anyhow::Result<(Phase, Phase)> {
        let head = doc! { "queue": 1, "state": 1, "priority": -1, "run_at": 1, "_id": 1 };
        for keys in [head.clone(), doc! { "queue": 1, "state": 1, "_id": 1 }, doc! { "reserved_until": 1 }] {
            self.jobs.create_index(IndexModel::builder().keys(keys).build()).await?;
        }
        let (pushed, settled) = (Meter::new("driver push")?, Meter::new("driver settle")?);
        let (start, left) = (Instant::now(), Remaining::new(count));
        while let count @ 1.. = left.take(round) {
            let start = Instant::now();
            self.jobs.insert_many((0..count).map(|_| self.job())).await?;
            pushed.add(start, count);
        }
        let (pushed, start, left) = (pushed.phase(start.elapsed()), Instant::now(), Remaining::new(count));
        while let count @ 1.. = left.take(round) {
            let start = Instant::now();
            self.settle(&head, count).await?;
            settled.add(start, count);
        }
        Ok((pushed, settled.phase(start.elapsed())))
    }

    fn job(&self) -> Document {
        let now = DateTime::now();
        doc! {
            "_id": ulid::Ulid::new().to_string(), "queue": "limit", "state": "ready", "priority": 0, "run_at": now, "created_at": now,
            "attempts": 0_i64, "max_attempts": 20, "rev": rand::random::<i64>(), "payload": { "x": &self.payload },
        }
    }

    /// Reads so many jobs at the head, reserves and deletes them.
    async fn settle(&self, head: &Document, count: usize) -> anyhow::Result<()> {
        let now = DateTime::now();
        let due = doc! { "queue": "limit", "state": "ready", "priority": 0, "run_at": { "$lte": now } };
        let order = doc! { "run_at": 1, "_id": 1 };
        let found =
            self.jobs.find(due).sort(order).limit(i64::try_from(count)?).hint(Hint::Keys(head.clone()));
        let found: Vec<Document> = found.batch_size(u32::try_from(count)?).await?.try_collect().await?;
        let ids: Vec<&str> = found.iter().filter_map(|job| job.get_str("_id").ok()).collect();
        anyhow::ensure!(ids.len() == count, "another program works on this database");
        let until = DateTime::from_millis(now.timestamp_millis() + 60_000);
        let set = doc! {
            "state": "reserved", "reserved_until": until, "lease_ms": 60_000_i64, "started_at": now, "claim": "a-claim-of-24-characters",
            "rev": rand::random::<i64>(),
        };
        let reserve = doc! { "$set": set, "$inc": { "attempts": 1_i64 } };
        self.jobs.update_many(doc! { "_id": { "$in": &ids }, "state": "ready" }, reserve).await?;
        self.jobs.delete_many(doc! { "_id": { "$in": &ids }, "state": "reserved" }).await?;
        Ok(())
    }
}
