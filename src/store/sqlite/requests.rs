//! Reserves that carry an `Idempotency-Key`.

use async_trait::async_trait;
use rusqlite::{Connection, Row, params};

use crate::job::settings::LEASE_MAX_MS;
use crate::job::{Claim, JobId, Timestamp};
use crate::store::requests::Earlier;
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::tx::Tx;
use crate::store::{Opened, Request, Requests, Result};

#[async_trait]
impl Requests for SqliteStore {
    async fn open_request(&self, request: &Request) -> Result<Opened> {
        let request = request.clone();
        self.writer.run(move |db, now| open(db, &request, now)).await
    }

    async fn close_request(&self, request: &Request, won: &[JobId], keep_until: Timestamp) -> Result<bool> {
        let (request, won) = (request.clone(), won.to_vec());
        self.writer.run(move |db: &Tx<'_>, _| close(db, &request, &won, keep_until)).await
    }

    /// There is no other server.
    async fn keep_alive(&self, _: &str, _: Timestamp) -> Result<()> {
        Ok(())
    }

    async fn forget_request(&self, request: &Request) -> Result<()> {
        let request = request.clone();
        self.writer.run(move |db: &Tx<'_>, _| forget(db, &request)).await
    }

    async fn knows_request(&self, id: &str) -> Result<bool> {
        let id = id.to_owned();
        self.read(move |db, _| {
            let mut by_id = db.prepare_cached("SELECT 1 FROM requests WHERE id = ?1")?;
            Ok(by_id.exists([&id])?)
        })
        .await
    }
}

/// Announces a request, or returns what is known of it.
pub fn open(db: &Connection, request: &Request, now: Timestamp) -> Result<Opened, Fault> {
    let earlier = {
        let mut by_id =
            db.prepare_cached("SELECT digest, claim, pending_until, won, until FROM requests WHERE id = ?1")?;
        by_id.query([&request.id])?.next()?.map(earlier).transpose()?
    };
    let opened = Opened::decide(request, earlier, now);
    if !matches!(opened, Opened::New | Opened::TakenOver { .. }) {
        return Ok(opened);
    }
    // Its server may die after it has won jobs: known for as long as a lease of them can last.
    let until = request.pending_until.plus_ms(LEASE_MAX_MS);
    db.prepare_cached(
        "INSERT OR REPLACE INTO requests (id, digest, claim, pending_until, won, until) \
         VALUES (?1, ?2, ?3, ?4, NULL, ?5)",
    )?
    .execute(params![
        request.id,
        request.digest,
        request.claim.as_str(),
        request.pending_until.millis(),
        until.millis(),
    ])?;
    Ok(opened)
}

fn earlier(found: &Row<'_>) -> Result<Earlier, Fault> {
    Ok(Earlier {
        digest: found.get(0)?,
        claim: Claim::from_stored(&found.get::<_, String>(1)?),
        pending_until: Timestamp::from_millis(found.get(2)?),
        won: row::json(found, 3, "jobs of a request")?,
        until: row::time(found, 4)?,
    })
}

/// What a process before this one was running is dead: the next repeat takes it over.
pub fn bury(db: &Connection) -> Result<(), Fault> {
    db.execute("UPDATE requests SET pending_until = 0 WHERE won IS NULL", [])?;
    Ok(())
}

fn close(db: &Connection, request: &Request, won: &[JobId], until: Timestamp) -> Result<bool, Fault> {
    let closed = db
        .prepare_cached("UPDATE requests SET won = ?3, until = ?4 WHERE id = ?1 AND claim = ?2")?
        .execute(params![request.id, request.claim.as_str(), row::to_json(Some(&won))?, until.millis()])?;
    Ok(closed == 1)
}

fn forget(db: &Connection, request: &Request) -> Result<(), Fault> {
    db.prepare_cached("DELETE FROM requests WHERE id = ?1 AND claim = ?2 AND won IS NULL")?
        .execute([request.id.as_str(), request.claim.as_str()])?;
    Ok(())
}
