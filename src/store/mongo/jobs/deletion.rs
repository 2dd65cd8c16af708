//! Jobs that leave together, by one command.

use mongodb::bson::doc;

use crate::store::Result;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::write;
use crate::store::mongo::jobs::plan::{Plan, deletions};

/// Deletes the jobs that leave by these plans. Returns how many there were.
pub async fn delete(mongo: &Mongo, plans: &[(usize, Plan)]) -> Result<u64> {
    let leaving: Vec<&Plan> = plans.iter().map(|(_, plan)| plan).filter(|plan| plan.deletes()).collect();
    if leaving.is_empty() {
        return Ok(0);
    }
    let command = doc! { "delete": JOBS, "deletes": deletions(&leaving) };
    write(mongo.connection.database().await?, command).await
}
