//! Receipts as rows, written in the transaction of the call.

use rusqlite::{Connection, Row, params};

use crate::job::receipt::{self, Receipt, WentTo};
use crate::job::state::Verb;
use crate::job::{Claim, JobId, Timestamp};
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::row;

/// The columns that [`read`] reads and [`insert`] writes, in this order.
macro_rules! columns {
    () => {
        "job, claim, verb, queue, started_at, returned_to, run_at, until, pushed, blocked"
    };
}

/// The statement that reads all receipts, to be continued.
pub const SELECT: &str = concat!("SELECT ", columns!(), " FROM receipts");

/// Writes a receipt that is kept until then.
pub fn insert(db: &Connection, receipt: &Receipt, until: Timestamp) -> Result<(), Fault> {
    let went_to = receipt.went_to();
    let went_to = went_to.as_ref();
    db.prepare_cached(concat!(
        "INSERT OR REPLACE INTO receipts (",
        columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
    ))?
    .execute(params![
        receipt.id.as_str(),
        receipt.claim.as_str(),
        receipt::word(receipt.verb),
        receipt.queue.as_str(),
        receipt.started_at.map(Timestamp::millis),
        went_to.map(|to| to.queue.as_str()),
        went_to.map(|to| to.run_at.millis()),
        until.millis(),
        row::to_json(Some(&receipt.pushed).filter(|pushed| !pushed.is_empty()))?,
        went_to.is_some_and(|to| to.blocked),
    ])?;
    Ok(())
}

/// Returns the receipt of an earlier call of this verb with this claim, if there is one.
pub fn find(db: &Connection, id: &JobId, claim: &Claim, verb: Verb) -> Result<Option<Receipt>, Fault> {
    let Some(word) = receipt::word(verb) else {
        return Ok(None);
    };
    let by_claim =
        concat!("SELECT ", columns!(), " FROM receipts WHERE job = ?1 AND claim = ?2 AND verb = ?3");
    let mut by_claim = db.prepare_cached(by_claim)?;
    let mut rows = by_claim.query([id.as_str(), claim.as_str(), word])?;
    rows.next()?.map(|found| Ok(read(found)?.0)).transpose()
}

/// Reads a receipt from its row, and until when it is kept.
pub fn read(found: &Row<'_>) -> Result<(Receipt, Timestamp), Fault> {
    let verb = receipt::verb(&found.get::<_, String>(2)?);
    let verb = verb.ok_or_else(|| Fault::stored("verb of a receipt", "it is none that leaves one"))?;
    let went_to = match row::parsed_if_any(found, 5, "queue of a receipt")? {
        Some(queue) => {
            let run_at = Timestamp::from_millis(found.get(6)?);
            Some(WentTo { queue, run_at, blocked: found.get(9)? })
        }
        None => None,
    };
    let until = Timestamp::from_millis(found.get(7)?);
    let receipt = Receipt {
        id: row::parsed(found, 0, "job of a receipt")?,
        claim: Claim::from_stored(&found.get::<_, String>(1)?),
        verb,
        queue: row::parsed(found, 3, "queue of a receipt")?,
        outcome: Receipt::outcome_of(verb, went_to),
        started_at: row::time(found, 4)?,
        pushed: row::json(found, 8, "jobs of a receipt")?.unwrap_or_default(),
        at: Receipt::made_at(until),
    };
    Ok((receipt, until))
}
