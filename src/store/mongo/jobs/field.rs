//! How each type of a field is kept in a document.

use mongodb::bson::{Bson, DateTime, Document};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::job::record::Origin;
use crate::job::{
    Backoff, BatchId, Claim, GroupName, JobId, JobKey, Payload, QueueName, SemaphoreName, State, Timestamp,
    WorkerName,
};
use crate::store::mongo::jobs::payload;
use crate::store::{Result, StoreError};

/// A value that one field holds.
pub trait Field: Sized {
    /// Reads the field of this name.
    fn read(row: &Row<'_>, name: &str) -> Result<Self>;

    /// Returns what is written; nothing for a field that is absent.
    fn write(&self) -> Result<Option<Bson>>;

    /// Returns what a job that is about to be removed has instead of a value that cannot be read, if it needs none.
    fn instead() -> Option<Self> {
        None
    }
}

impl<T: Field> Field for Option<T> {
    fn read(row: &Row<'_>, name: &str) -> Result<Self> {
        row.some(name, T::read)
    }

    fn write(&self) -> Result<Option<Bson>> {
        self.as_ref().map_or(Ok(None), T::write)
    }

    fn instead() -> Option<Self> {
        Some(None)
    }
}

macro_rules! texts {
    ($($type:ty)*) => {
        $(
            impl Field for $type {
                fn read(row: &Row<'_>, name: &str) -> Result<Self> {
                    row.text(name)
                }

                fn write(&self) -> Result<Option<Bson>> {
                    Ok(Some(self.as_str().into()))
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

    fn write(&self) -> Result<Option<Bson>> {
        Ok(Some(self.as_str().into()))
    }
}

impl Field for State {
    fn read(row: &Row<'_>, name: &str) -> Result<Self> {
        row.0.get_str(name).ok().and_then(Self::from_word).ok_or_else(|| row.fault(name))
    }

    fn write(&self) -> Result<Option<Bson>> {
        Ok(Some(self.as_str().into()))
    }

    fn instead() -> Option<Self> {
        Some(Self::Dead)
    }
}

/// Integers, and the type that each is written as; either is read.
macro_rules! numbers {
    ($($type:ty, $bson:ty;)*) => {
        $(
            impl Field for $type {
                fn read(row: &Row<'_>, name: &str) -> Result<Self> {
                    row.number(name)
                }

                fn write(&self) -> Result<Option<Bson>> {
                    let bson = <$bson>::try_from(*self).map_err(StoreError::internal)?;
                    Ok(Some(bson.into()))
                }

                fn instead() -> Option<Self> {
                    Some(0)
                }
            }
        )*
    };
}

numbers! {
    i32, i32;
    i64, i64;
    u32, i64;
    u64, i64;
}

/// What is false is absent.
impl Field for bool {
    fn read(row: &Row<'_>, name: &str) -> Result<Self> {
        match row.0.get(name) {
            Some(Bson::Undefined) => Err(row.fault(name)),
            _ => Ok(row.0.get_bool(name).unwrap_or(false)),
        }
    }

    fn write(&self) -> Result<Option<Bson>> {
        Ok(self.then_some(Bson::Boolean(true)))
    }
}

impl Field for Timestamp {
    fn read(row: &Row<'_>, name: &str) -> Result<Self> {
        row.time(name)?.ok_or_else(|| row.fault(name))
    }

    fn write(&self) -> Result<Option<Bson>> {
        Ok(Some(date(*self).into()))
    }

    fn instead() -> Option<Self> {
        Some(Self::default())
    }
}

macro_rules! parts {
    ($($type:ty)*) => {
        $(
            impl Field for $type {
                fn read(row: &Row<'_>, name: &str) -> Result<Self> {
                    row.part(name)?.ok_or_else(|| row.fault(name))
                }

                fn write(&self) -> Result<Option<Bson>> {
                    serialized(self).map(Some)
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

    fn write(&self) -> Result<Option<Bson>> {
        (!self.is_empty()).then(|| serialized(self)).transpose()
    }

    fn instead() -> Option<Self> {
        Some(Self::new())
    }
}

/// Returns a time as MongoDB keeps it.
pub fn date(at: Timestamp) -> DateTime {
    DateTime::from_millis(at.millis())
}

/// Returns a value as BSON through serde. Times in it become text, so no query may sort by them. A number past 64 bits
/// with a sign is an error.
pub fn serialized(value: &impl Serialize) -> Result<Bson> {
    mongodb::bson::serialize_to_bson(value).map_err(StoreError::internal)
}

/// Reads fields of one document. A field that violates the schema is an error that names it.
pub struct Row<'a>(pub &'a Document);

impl Row<'_> {
    /// Returns the error of an invalid field.
    pub fn fault(&self, field: &str) -> StoreError {
        let id = self.0.get("_id").map(ToString::to_string).unwrap_or_default();
        StoreError::internal(format_args!("the document {id} has no valid field {field}"))
    }

    /// Reads a text that must parse.
    pub fn text<T: std::str::FromStr>(&self, field: &str) -> Result<T> {
        self.0.get_str(field).ok().and_then(|text| text.parse().ok()).ok_or_else(|| self.fault(field))
    }

    /// Reads the state.
    pub fn state(&self) -> Result<State> {
        State::read(self, "state")
    }

    /// Reads an integer of either width that must fit.
    pub fn number<T: TryFrom<i64>>(&self, field: &str) -> Result<T> {
        let value = match self.0.get(field) {
            Some(Bson::Int32(number)) => i64::from(*number),
            Some(Bson::Int64(number)) => *number,
            _ => return Err(self.fault(field)),
        };
        T::try_from(value).map_err(|_| self.fault(field))
    }

    /// Reads the number at the end of a `place_in_line`.
    pub fn turn(&self, field: &str) -> Result<i64> {
        let text = self.0.get_str(field).map_err(|_| self.fault(field))?;
        let number = text.rsplit('/').next().and_then(|number| i64::from_str_radix(number, 16).ok());
        number.ok_or_else(|| self.fault(field))
    }

    /// Reads a date, if the field is there.
    pub fn time(&self, field: &str) -> Result<Option<Timestamp>> {
        match self.0.get(field) {
            None | Some(Bson::Null) => Ok(None),
            Some(Bson::DateTime(at)) => Ok(Some(Timestamp::from_millis(at.timestamp_millis()))),
            Some(_) => Err(self.fault(field)),
        }
    }

    /// Reads a field if it is there.
    pub fn some<T>(&self, field: &str, read: impl Fn(&Self, &str) -> Result<T>) -> Result<Option<T>> {
        match self.0.get(field) {
            None | Some(Bson::Null) => Ok(None),
            Some(_) => read(self, field).map(Some),
        }
    }

    /// Reads a value through serde, if the field is there.
    pub fn part<T: DeserializeOwned>(&self, field: &str) -> Result<Option<T>> {
        self.some(field, |row, field| {
            let value = row.0.get(field).cloned().unwrap_or(Bson::Null);
            mongodb::bson::deserialize_from_bson(value).map_err(|_| row.fault(field))
        })
    }

    /// Reads a JSON value that `put_json` put there.
    pub fn json(&self, field: &str) -> Result<Option<Payload>> {
        let text_field = format!("{field}_json");
        let read = match (self.0.get(field), self.0.get(&text_field)) {
            (Some(Bson::Undefined), _) => None, // which JSON has no word for, nor have we
            (Some(value), _) => payload::from_bson(value).ok(),
            (None, None | Some(Bson::Null)) => return Ok(None),
            (None, Some(text)) => text.as_str().and_then(|text| Payload::parse(text).ok()),
        };
        read.map(Some).ok_or_else(|| self.fault(field))
    }
}
