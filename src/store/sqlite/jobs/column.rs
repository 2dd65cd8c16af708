//! How each type of a job's fields is kept in a column.

use rusqlite::Row;
use rusqlite::types::{ToSqlOutput, ValueRef};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::job::record::Origin;
use crate::job::spec::Headers;
use crate::job::{
    Backoff, BatchId, Claim, GroupName, JobId, JobKey, Payload, QueueName, SemaphoreName, State, Timestamp,
    WorkerName,
};
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::row;

const NULL: ToSqlOutput<'static> = ToSqlOutput::Borrowed(ValueRef::Null);

/// A value that one column holds.
pub trait Column: Sized {
    /// Reads the column at this index of the row; `name` is for the error.
    fn read(row: &Row<'_>, at: usize, name: &'static str) -> Result<Self, Fault>;

    /// Returns what is bound to a statement.
    fn write(&self) -> Result<ToSqlOutput<'_>, Fault>;

    /// Returns what a job that is about to be removed has instead of a value that cannot be read, if it needs none.
    fn instead() -> Option<Self> {
        None
    }
}

/// What is absent is NULL.
impl<T: Column> Column for Option<T> {
    fn read(row: &Row<'_>, at: usize, name: &'static str) -> Result<Self, Fault> {
        match row.get_ref(at)? {
            ValueRef::Null => Ok(None),
            _ => T::read(row, at, name).map(Some),
        }
    }

    fn write(&self) -> Result<ToSqlOutput<'_>, Fault> {
        self.as_ref().map_or(Ok(NULL), T::write)
    }

    fn instead() -> Option<Self> {
        Some(None)
    }
}

macro_rules! texts {
    ($($type:ty)*) => {
        $(
            impl Column for $type {
                fn read(row: &Row<'_>, at: usize, name: &'static str) -> Result<Self, Fault> {
                    row::parsed(row, at, name)
                }

                fn write(&self) -> Result<ToSqlOutput<'_>, Fault> {
                    Ok(self.as_str().into())
                }
            }
        )*
    };
}

texts! { String JobId QueueName JobKey WorkerName BatchId GroupName SemaphoreName }

macro_rules! numbers {
    ($($type:ty)*) => {
        $(
            impl Column for $type {
                fn read(row: &Row<'_>, at: usize, _: &'static str) -> Result<Self, Fault> {
                    Ok(row.get(at)?)
                }

                fn write(&self) -> Result<ToSqlOutput<'_>, Fault> {
                    Ok((*self).into())
                }

                fn instead() -> Option<Self> {
                    Some(Self::default())
                }
            }
        )*
    };
}

numbers! { bool i32 u32 i64 }

/// Beyond what SQLite's integers can hold, the largest of them.
impl Column for u64 {
    fn read(row: &Row<'_>, at: usize, _: &'static str) -> Result<Self, Fault> {
        Ok(row.get::<_, i64>(at)?.unsigned_abs())
    }

    fn write(&self) -> Result<ToSqlOutput<'_>, Fault> {
        Ok(row::signed(*self).into())
    }

    fn instead() -> Option<Self> {
        Some(0)
    }
}

impl Column for Timestamp {
    fn read(row: &Row<'_>, at: usize, _: &'static str) -> Result<Self, Fault> {
        Ok(Self::from_millis(row.get(at)?))
    }

    fn write(&self) -> Result<ToSqlOutput<'_>, Fault> {
        Ok(self.millis().into())
    }

    fn instead() -> Option<Self> {
        Some(Self::default())
    }
}

impl Column for State {
    fn read(row: &Row<'_>, at: usize, _: &'static str) -> Result<Self, Fault> {
        row::state(row, at)
    }

    fn write(&self) -> Result<ToSqlOutput<'_>, Fault> {
        Ok(self.as_str().into())
    }
}

impl Column for Claim {
    fn read(row: &Row<'_>, at: usize, _: &'static str) -> Result<Self, Fault> {
        Ok(Self::from_stored(row::text(row, at)?.unwrap_or_default()))
    }

    fn write(&self) -> Result<ToSqlOutput<'_>, Fault> {
        Ok(self.as_str().into())
    }
}

impl Column for Payload {
    fn read(row: &Row<'_>, at: usize, name: &'static str) -> Result<Self, Fault> {
        row::payload(row, at, name)?.ok_or_else(|| Fault::stored(name, "missing"))
    }

    fn write(&self) -> Result<ToSqlOutput<'_>, Fault> {
        Ok(self.as_str().into())
    }
}

macro_rules! json {
    ($($type:ty)*) => {
        $(
            impl Column for $type {
                fn read(row: &Row<'_>, at: usize, name: &'static str) -> Result<Self, Fault> {
                    row::json(row, at, name)?.ok_or_else(|| Fault::stored(name, "missing"))
                }

                fn write(&self) -> Result<ToSqlOutput<'_>, Fault> {
                    to_json(self)
                }
            }
        )*
    };
}

json! { Backoff Origin }

/// An empty list is NULL.
impl<T: Serialize + DeserializeOwned> Column for Vec<T> {
    fn read(row: &Row<'_>, at: usize, name: &'static str) -> Result<Self, Fault> {
        Ok(row::json(row, at, name)?.unwrap_or_default())
    }

    fn instead() -> Option<Self> {
        Some(Self::new())
    }

    fn write(&self) -> Result<ToSqlOutput<'_>, Fault> {
        if self.is_empty() { Ok(NULL) } else { to_json(self) }
    }
}

/// No headers are NULL.
impl Column for Headers {
    fn read(row: &Row<'_>, at: usize, name: &'static str) -> Result<Self, Fault> {
        Ok(row::json(row, at, name)?.unwrap_or_default())
    }

    fn write(&self) -> Result<ToSqlOutput<'_>, Fault> {
        if self.is_empty() { Ok(NULL) } else { to_json(self) }
    }
}

fn to_json<T: Serialize>(value: &T) -> Result<ToSqlOutput<'static>, Fault> {
    Ok(row::to_json(Some(value))?.map_or(NULL, Into::into))
}
