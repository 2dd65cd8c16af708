//! All that a file keeps at one moment, read beside a server that runs on it.
//!
//! The connection only reads, and does so within one transaction: in WAL mode that is one snapshot, however long it takes, and a writer
//! does not wait for it. The lock of the file, which keeps a second server away, is neither needed nor taken. Meanwhile SQLite cannot cut
//! the log back, so that it grows by what is written.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, Row};

use crate::job::{QueueSettings, Timestamp};
use crate::store::picture::{Item, Kind, Pages, Picture, PictureError, Spoiled};
use crate::store::settings::valid_version;
use crate::store::sqlite::clock::Clock;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::row::{self, job_columns};
use crate::store::sqlite::jobs::unreadable;
use crate::store::sqlite::{access, batches, open, schedules, settings, transfer};
use crate::store::{MemoKind, StoredSettings};

/// How one kind of things is read.
struct Table {
    kind: Kind,
    /// Reads all rows, in the order of the names.
    query: String,
    /// The columns of the name.
    name: &'static [usize],
    read: fn(&Row<'_>) -> Result<Item, Fault>,
}

impl Table {
    fn new(
        kind: Kind,
        query: &str,
        name: &'static [usize],
        read: fn(&Row<'_>) -> Result<Item, Fault>,
    ) -> Self {
        Self { kind, query: query.to_owned(), name, read }
    }

    fn memos(
        kind: Kind,
        of: MemoKind,
        rest: &str,
        name: &'static [usize],
        read: fn(&Row<'_>) -> Result<Item, Fault>,
    ) -> Self {
        Self { kind, query: format!("{} {rest}", transfer::columns(of)), name, read }
    }
}

/// Every kind, in the order of a picture.
fn tables() -> [Table; Kind::ALL.len()] {
    use MemoKind::{Answers, Deliveries, Receipts, Requests};
    let secret = "SELECT value FROM secrets WHERE name = 'reservations'";
    let keys = "SELECT queue, key, job, digest, until, run_at, lasts FROM keys ORDER BY queue, key";
    let jobs = concat!("SELECT ", job_columns!(), " FROM jobs ORDER BY id");
    [
        Table::new(Kind::TokenSecret, secret, &[], |found| Ok(Item::TokenSecret(found.get(0)?))),
        Table::new(
            Kind::Settings,
            "SELECT queue, settings, version FROM settings ORDER BY queue",
            &[0],
            settings_in,
        ),
        Table::new(Kind::ApiKey, access::ALL, &[0], |found| access::key(found).map(Item::ApiKey)),
        Table::new(Kind::Key, keys, &[0, 1], |found| transfer::held(found).map(Item::Key)),
        Table::new(Kind::Semaphore, "SELECT name, capacity FROM semaphores ORDER BY name", &[0], |found| {
            let capacity = row::own::<i64>(found, 1, "capacity of a semaphore")?;
            Ok(Item::Semaphore(row::parsed(found, 0, "name of a semaphore")?, capacity.unsigned_abs()))
        }),
        Table::new(Kind::Batch, batches::ALL, &[0], |found| batches::read(found).map(Item::Batch)),
        Table::new(Kind::BatchResult, batches::ALL_RESULTS, &[5, 0], |found| {
            let batch = row::parsed(found, 5, "batch of a result")?;
            if !found.get::<_, bool>(6)? {
                return Err(Fault::stored("result", format!("there is no batch {batch}")));
            }
            Ok(Item::BatchResult(batch, batches::result(found)?))
        }),
        Table::new(Kind::Job, jobs, &[0], |found| Ok(Item::Job(Box::new(row::canonical_job(found)?)))),
        Table::memos(Kind::Receipt, Receipts, "ORDER BY job, claim", &[0, 1], |found| {
            transfer::memo(Receipts, found).map(Item::Memo)
        }),
        Table::memos(Kind::Request, Requests, "WHERE claim <> '' ORDER BY id", &[0], |found| {
            transfer::memo(Requests, found).map(Item::Memo)
        }),
        Table::memos(Kind::Answer, Answers, "WHERE claim = '' ORDER BY id", &[0], |found| {
            transfer::memo(Answers, found).map(Item::Memo)
        }),
        Table::memos(Kind::Deliveries, Deliveries, "ORDER BY queue", &[0], |found| {
            transfer::memo(Deliveries, found).map(Item::Memo)
        }),
        Table::new(Kind::Operation, "SELECT id, body FROM operations ORDER BY id", &[0], |found| {
            let operation = row::json(found, 1, "operation")?;
            operation.map(Item::Operation).ok_or_else(|| Fault::stored("operation", "it is missing"))
        }),
        Table::new(Kind::Audit, "SELECT id, body FROM audit ORDER BY id", &[0], |found| {
            let kept = row::json(found, 1, "row of the audit")?;
            kept.map(Item::Audit).ok_or_else(|| Fault::stored("row of the audit", "it is missing"))
        }),
        Table::new(Kind::Schedule, schedules::ALL, &[0], |found| {
            Ok(Item::Schedule(Box::new(schedules::schedule(found)?)))
        }),
    ]
}

fn settings_in(found: &Row<'_>) -> Result<Item, Fault> {
    let (settings, wrong) = QueueSettings::stored(settings::object(found)?);
    if let Some(why) = wrong {
        return Err(Fault::stored("settings", why));
    }
    let version = valid_version(row::own(found, 2, "version of settings")?);
    let version = version.ok_or_else(|| Fault::stored("version of settings", "not a version"))?;
    Ok(Item::Settings(row::parsed(found, 0, "queue")?, StoredSettings { settings, version }))
}

/// Begins to read a file on a thread of its own.
pub fn picture(path: &Path) -> Result<Picture, PictureError> {
    let unusable = |error: &dyn std::fmt::Display| {
        PictureError::Refused(format!("{} cannot be read: {error}", path.display()))
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(|error| unusable(&error))?;
    let refused = |error: open::OpenError| PictureError::Refused(error.to_string());
    let missing = open::missing(&db, path).map_err(refused)?;
    if missing.len() == open::known() {
        return Err(PictureError::Absent(format!("{} holds no Tailback store", path.display())));
    }
    if let Some(missing) = missing.first() {
        return Err(PictureError::Refused(format!(
            "{} was written by an older version of Tailback (the migration {missing} is missing); run `tailback migrate` first, \
             or the version that wrote it",
            path.display()
        )));
    }
    // The snapshot is that of the first read, which is the clock's.
    let clock = Clock::new();
    let begin = || -> Result<bool, Fault> {
        open::tune(&db)?;
        db.execute_batch("BEGIN")?;
        clock.load(&db)?;
        Ok(transfer::restoring(&db)?.is_some())
    };
    let is_part = begin().map_err(|error| unusable(&error))?;
    let now = clock.now();
    let (picture, mut pages) = Picture::new(now, is_part);
    let thread = std::thread::Builder::new().name("picture".to_owned());
    let reading = thread.spawn(move || {
        let outcome = read_all(&db, now, &mut pages);
        pages.end_blocking(outcome.map_err(|fault| PictureError::Store(fault.into())));
    });
    reading.map_err(|error| unusable(&error))?;
    Ok(picture)
}

fn read_all(db: &Connection, now: Timestamp, pages: &mut Pages) -> Result<(), Fault> {
    for Table { kind, query, name, read } in tables() {
        let mut all = db.prepare(&query)?;
        let mut rows = all.query([])?;
        while let Some(found) = rows.next()? {
            let item = match read(found) {
                Ok(item) => Ok(item),
                Err(fault @ Fault::Stored { .. }) => {
                    let why = fault.to_string();
                    let stand_in = match kind {
                        Kind::Job => unreadable::stand_in(found, &why, now)?.map(Box::new),
                        _ => None,
                    };
                    Err(Spoiled { kind, name: name_of(found, name), why, stand_in })
                }
                Err(fault) => return Err(fault),
            };
            if !pages.put_blocking(item) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Returns what is stored where a name should be.
fn name_of(found: &Row<'_>, columns: &[usize]) -> String {
    use rusqlite::types::ValueRef;
    let part = |at: &usize| match found.get_ref(*at) {
        Ok(ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        Ok(ValueRef::Integer(number)) => number.to_string(),
        Ok(ValueRef::Real(number)) => number.to_string(),
        Ok(ValueRef::Null) | Err(_) => String::new(),
    };
    columns.iter().map(part).collect::<Vec<_>>().join("/")
}
