//! Opening a database file, and bringing its schema up to date.

use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use include_dir::{Dir, include_dir};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::faults;
use crate::store::migrations;
use crate::store::sqlite::fault::Fault;

/// Every migration, in order; the file's `user_version` is the number of the last one that was made.
static MIGRATIONS: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| migrations::of(&FOLDER));
static FOLDER: Dir = include_dir!("$CARGO_MANIFEST_DIR/migrations/sqlite");

/// Marks a file as Tailback's: "Tail" in ASCII.
const APPLICATION_ID: i32 = 0x5461_696c;

/// How long to wait for another process's lock on the file, such as a backup's.
const BUSY: Duration = Duration::from_secs(5);

/// The mode of files that are created: jobs are read by their owner only.
const PRIVATE: u32 = 0o600;

/// Why a database file cannot be used. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{} is in use by another server (its lock is {}-lock)", .0.display(), .0.display())]
    InUse(PathBuf),
    /// A newer version has written it.
    #[error(
        "{} was written by a newer version of Tailback (schema {found}; this version knows up to {known})",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema's number.
        found: i64,
        /// The last number that this version knows.
        known: i64,
    },
    /// It is damaged, or no database at all.
    #[error("{} is damaged or not a database; it was left as it is: {cause}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        cause: rusqlite::Error,
    },
    /// It belongs to another program.
    #[error("{} is another program's database; it was left as it is", .0.display())]
    Foreign(PathBuf),
    /// It cannot be opened or created.
    #[error("{} cannot be opened: {cause}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
}

/// A database file that is open for writing.
pub struct Opened {
    pub db: Connection,
    pub lock: File,
    pub path: PathBuf,
}

/// Opens the file, or creates it, for this process alone.
pub fn file(path: &Path) -> Result<Opened, OpenError> {
    let path = resolved(path);
    let unusable =
        |cause: &dyn std::fmt::Display| OpenError::Unusable { path: path.clone(), cause: cause.to_string() };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        return Err(unusable(&format!("there is no folder {}: create it first", folder.display())));
    }
    if path.is_dir() {
        return Err(unusable(&"it is a folder: name a file in it"));
    }
    let lock = lock(&path)?;
    create(&path).map_err(|error| unusable(&error))?;
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(&path, flags).map_err(|error| unusable(&error))?;
    inspect(&db, &path)?;
    let mode: String = db
        .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))
        .map_err(|error| unusable(&error))?;
    if mode != "wal" {
        return Err(unusable(&format!("its file system allows no write-ahead log (only {mode})")));
    }
    tune(&db).map_err(|error| unusable(&error))?;
    Ok(Opened { db, lock, path })
}

/// A database that lives as long as its connection.
pub fn memory() -> Result<Connection, OpenError> {
    let opened = Connection::open_in_memory().and_then(|db| tune(&db).map(|()| db));
    opened.map_err(|cause| OpenError::Unusable { path: ":memory:".into(), cause: cause.to_string() })
}

/// Returns the file itself behind any links, so that two names of it have one lock.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match (parent.unwrap_or(Path::new(".")).canonicalize(), path.file_name()) {
        (Ok(real), Some(name)) => real.join(name),
        _ => path.to_owned(),
    }
}

/// Takes the lock of the file, which the system releases when this process ends, however it ends.
fn lock(path: &Path) -> Result<File, OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    let unusable = |cause: std::io::Error| OpenError::Unusable {
        path: path.to_owned(),
        cause: format!("{}: {cause}", name.display()),
    };
    let mut options = File::options();
    let lock =
        options.create(true).truncate(false).write(true).mode(PRIVATE).open(&name).map_err(unusable)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
        Err(TryLockError::Error(cause)) => Err(unusable(cause)),
    }
}

/// Creates the file if it is not there. SQLite gives the files beside it the same mode.
fn create(path: &Path) -> std::io::Result<()> {
    match File::options().create_new(true).write(true).mode(PRIVATE).open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Returns how many migrations this version knows.
pub fn known() -> usize {
    MIGRATIONS.len()
}

/// Checks that the file is one of ours, without writing to it, and returns the migrations that it lacks.
pub fn missing(db: &Connection, path: &Path) -> Result<Vec<&'static str>, OpenError> {
    let made = usize::try_from(inspect(db, path)?).unwrap_or_default();
    Ok(MIGRATIONS.iter().skip(made).map(|(name, _)| *name).collect())
}

/// The same, and returns how many migrations it has.
fn inspect(db: &Connection, path: &Path) -> Result<i64, OpenError> {
    let read = || -> rusqlite::Result<(i64, i64, i32)> {
        db.busy_timeout(BUSY)?;
        let tables = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        let version = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let application = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
        Ok((tables, version, application))
    };
    let (tables, found, application) = read().map_err(|cause| match cause.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            OpenError::Damaged { path: path.to_owned(), cause }
        }
        _ => OpenError::Unusable { path: path.to_owned(), cause: cause.to_string() },
    })?;
    if tables > 0 && application != APPLICATION_ID {
        return Err(OpenError::Foreign(path.to_owned()));
    }
    let known = MIGRATIONS.len() as i64;
    if found > known {
        return Err(OpenError::Newer { path: path.to_owned(), found, known });
    }
    Ok(found)
}

/// Settings of a connection, not of the file.
pub fn tune(db: &Connection) -> rusqlite::Result<()> {
    db.busy_timeout(BUSY)?;
    db.set_prepared_statement_cache_capacity(128);
    // Plans stay as they are: else SQLite prepares a statement again whenever a value that its plan depends on
    // changes, which for claims is at every call.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // FULL: a commit is on the disk before its caller gets the result. The log is cut back after a burst.
    db.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA foreign_keys = OFF; PRAGMA temp_store = MEMORY;
         PRAGMA cache_size = -16384; PRAGMA journal_size_limit = 67108864;
         PRAGMA wal_autocheckpoint = 4000;",
    )?;
    // CHECK constraints are for other programs: to evaluate `state IN (…)` SQLite builds a table of the words at each insert and update, and
    // what this server writes has gone through `State::write`. The types of STRICT tables are checked all the same. A debug build, which the
    // tests use, checks all of it: that shows that what is written passes.
    if !cfg!(debug_assertions) {
        db.pragma_update(None, "ignore_check_constraints", true)?;
    }
    if faults::bug("save_later") {
        db.pragma_update(None, "synchronous", "NORMAL")?;
    }
    Ok(())
}

/// Makes the migrations that are missing, within the caller's transaction. Returns their names.
pub fn migrate(db: &Connection) -> Result<Vec<String>, Fault> {
    let made: usize = db.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0))? as usize;
    let missing = MIGRATIONS.get(made..).unwrap_or_default();
    for (_, sql) in missing {
        db.execute_batch(sql)?;
    }
    if !missing.is_empty() {
        db.pragma_update(None, "application_id", APPLICATION_ID)?;
        db.pragma_update(None, "user_version", MIGRATIONS.len() as i64)?;
    }
    Ok(missing.iter().map(|(name, _)| (*name).to_owned()).collect())
}

/// Whether the file can be written: for a disk that has failed.
pub fn probe_by_writing(db: &Connection) -> Result<(), Fault> {
    let version: u32 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(db.pragma_update(None, "user_version", version)?)
}

/// Whether the file can be read. It writes nothing: an idle server should let the disk sleep.
pub fn probe(db: &Connection) -> Result<(), Fault> {
    db.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0))?;
    Ok(())
}
