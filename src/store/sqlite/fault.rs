//! Errors of SQLite, and what they mean to a caller.

use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{ErrorCode, ffi};

use crate::store::{Cause, StoreError};
use crate::telemetry::Throttle;

/// The line that says that the file cannot be read.
static DAMAGE: Throttle = Throttle::new();

/// Why a piece of work on the database did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// SQLite refused or failed.
    #[error(transparent)]
    Sql(rusqlite::Error),
    /// A row holds what this version never writes.
    #[error("the stored {what} is not valid: {cause}")]
    Stored {
        /// Which column.
        what: &'static str,
        /// What is wrong with it.
        cause: String,
    },
}

impl Fault {
    /// Returns a [`Fault::Stored`].
    pub fn stored(what: &'static str, cause: impl std::fmt::Display) -> Self {
        Self::Stored { what, cause: cause.to_string() }
    }
}

/// A value that is not of the type that was asked for is one that this version never writes.
impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::Error::{
            FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error,
        };
        match error {
            InvalidColumnType(..)
            | IntegralValueOutOfRange(..)
            | FromSqlConversionFailure(..)
            | Utf8Error(..) => Self::stored("value", error),
            error => Self::Sql(error),
        }
    }
}

/// Returns what was read, unless the row cannot be read. Such a row, which another program wrote, is logged and skipped:
/// it must not make the others undeliverable, unreapable or invisible.
pub fn readable<T>(read: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(fault @ Fault::Stored { .. }) => {
            tracing::error!(%fault, "a row cannot be read");
            Ok(None)
        }
        Err(fault) => Err(fault),
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Sql(error) => from_sql(&error),
            stored @ Fault::Stored { .. } => Self::internal(stored),
        }
    }
}

/// Whether the disk has failed lately.
#[derive(Debug, Default)]
pub struct Health(AtomicBool);

impl Health {
    /// Notes an error if it is the disk's.
    pub fn note(&self, error: &StoreError) {
        if error.is_away() || matches!(error, StoreError::Full(_)) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether one was noted since the last time.
    pub fn take_failure(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Returns what this error of a COMMIT means to a caller.
///
/// SQLite enlarges its shared-memory file only once the frames of the transaction are in the log, and synced. Where there is no room for
/// that it returns an error, and rolls back in memory; a start that reads the log finds the transaction all the same.
pub fn of_commit(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error() {
        Some(code) if code.extended_code == ffi::SQLITE_IOERR_SHMSIZE => StoreError::unavailable(error),
        _ => from_sql(error),
    }
}

/// Returns what this error of SQLite means to a caller.
pub fn from_sql(error: &rusqlite::Error) -> StoreError {
    // The unix file layer returns FULL for ENOSPC, but the plain write error where a quota is used up, and
    // a code of its own where the shared-memory file cannot grow.
    let no_room = [ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_SHMSIZE];
    match error.sqlite_error() {
        Some(code) if code.code == ErrorCode::DiskFull || no_room.contains(&code.extended_code) => {
            StoreError::Full(Cause(error.to_string().into()))
        }
        Some(code) => match code.code {
            // A disk that cannot be read is reported as a damaged file.
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
                if let Some(more) = DAMAGE.due() {
                    tracing::error!(%error, more, "the database cannot be read: its disk fails, or it is damaged");
                }
                StoreError::Damaged(Cause(error.to_string().into()))
            }
            // After a failed fsync it is unknown what the disk holds: that is `Unavailable`, too.
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::OperationInterrupted
            | ErrorCode::CannotOpen
            | ErrorCode::SystemIoFailure => StoreError::unavailable(error),
            _ => StoreError::internal(error),
        },
        None => StoreError::internal(error),
    }
}
