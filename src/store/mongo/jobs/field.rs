//! How each type of a job's fields is kept in a document.

use mongodb::bson::Bson;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::job::record::Origin;
use crate::job::{
    Backoff, BatchId, Claim, GroupName, JobId, JobKey, QueueName, SemaphoreName, State, Timestamp, WorkerName,
};
use crate::store::Result;
use crate::store::mongo::jobs::document::{Row, date, serialized};

/// A value that one field holds.
pub trait Field: Sized {
    /// Reads the field of this name.
    fn read(row: &Row<'_>, name: &str) -> Result<Self>;

    /// Returns what is written; nothing for a field that is absent.
    fn write(&self) -> Option<Bson>;
}

impl<T: Field> Field for Option<T> {
    fn read(row: &Row<'_>, name: &str) -> Result<Self> {
        row.some(name, T::read)
    }

    fn write(&self) -> Option<Bson> {
        self.as_ref()?.write()
    }
}

macro_rules! texts {
    ($($type:ty)*) => {
        $(
            impl Field for $type {
                fn read(row: &Row<'_>, name: &str) -> Result<Self> {
                    row.text(name)
                }

                fn write(&self) -> Option<Bson> {
                    Some(self.as_str().into())
                }
            }
        )*
    };
}

texts! { String JobId QueueName JobKey WorkerName BatchId GroupName SemaphoreName }

impl Field for Claim {
    fn read(row: &Row<'_>, name: &str) -> Result<Self> {
        row.0.get_str(name).map(Self::from_stored).map_err(|_| row.fault(name))
    }

    fn write(&self) -> Option<Bson> {
        Some(self.as_str().into())
    }
}

impl Field for State {
    fn read(row: &Row<'_>, name: &str) -> Result<Self> {
        row.0.get_str(name).ok().and_then(Self::from_word).ok_or_else(|| row.fault(name))
    }

    fn write(&self) -> Option<Bson> {
        Some(self.as_str().into())
    }
}

/// Integers, and the type that each is written as; either is read.
macro_rules! numbers {
    ($($type:ty, $bson:ty, $cast:expr;)*) => {
        $(
            impl Field for $type {
                fn read(row: &Row<'_>, name: &str) -> Result<Self> {
                    row.number(name)
                }

                fn write(&self) -> Option<Bson> {
                    let cast: fn($type) -> $bson = $cast;
                    Some(cast(*self).into())
                }
            }
        )*
    };
}

numbers! {
    i32, i32, |number| number;
    i64, i64, |number| number;
    u32, i64, i64::from;
    u64, i64, u64::cast_signed;
}

/// What is false is absent.
impl Field for bool {
    fn read(row: &Row<'_>, name: &str) -> Result<Self> {
        Ok(row.0.get_bool(name).unwrap_or(false))
    }

    fn write(&self) -> Option<Bson> {
        self.then_some(Bson::Boolean(true))
    }
}

impl Field for Timestamp {
    fn read(row: &Row<'_>, name: &str) -> Result<Self> {
        row.time(name)?.ok_or_else(|| row.fault(name))
    }

    fn write(&self) -> Option<Bson> {
        Some(date(*self).into())
    }
}

macro_rules! parts {
    ($($type:ty)*) => {
        $(
            impl Field for $type {
                fn read(row: &Row<'_>, name: &str) -> Result<Self> {
                    row.part(name)?.ok_or_else(|| row.fault(name))
                }

                fn write(&self) -> Option<Bson> {
                    Some(serialized(self))
                }
            }
        )*
    };
}

parts! { Backoff Origin }

/// An empty list is absent.
impl<T: Serialize + DeserializeOwned> Field for Vec<T> {
    fn read(row: &Row<'_>, name: &str) -> Result<Self> {
        Ok(row.part(name)?.unwrap_or_default())
    }

    fn write(&self) -> Option<Bson> {
        (!self.is_empty()).then(|| serialized(self))
    }
}
