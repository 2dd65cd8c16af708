//! A document of `series`: its `_id`, and the fields of its hour. What cannot be read of it is passed over.

use std::sync::Arc;

use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document};

use crate::job::{Tally, Timestamp};
use crate::store::mongo::stored::Stored;
use crate::store::series::HOUR_MS;
use crate::store::{Depth, Span};

/// Returns the `_id` of what a server says of an hour; without a server, that before all of them.
pub fn id(subject: &str, hour: i64, server: &str) -> String {
    format!("{subject}|{hour:08}|{server}")
}

/// Returns the field with what happened in steps of this length.
pub fn name(span: Span) -> &'static str {
    match span {
        Span::Step => "s",
        Span::Minute => "m",
        Span::Coarse => "t",
    }
}

/// Returns bytes as a value.
pub fn binary(bytes: Vec<u8>) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes })
}

/// Returns the bytes of a value.
pub fn bytes(value: &Bson) -> Option<&[u8]> {
    match value {
        Bson::Binary(binary) => Some(&binary.bytes),
        _ => None,
    }
}

/// What a server says of an hour.
pub struct Hour<'a> {
    document: &'a Document,
    /// Which server.
    pub server: Arc<str>,
    /// The hour, since 1970.
    pub hour: i64,
}

impl<'a> Hour<'a> {
    /// Reads a document.
    pub fn read(document: &'a Stored) -> Option<Self> {
        let (rest, server) = document.get_str("_id").ok()?.rsplit_once('|')?;
        let hour = rest.rsplit_once('|')?.1.parse().ok()?;
        Some(Self { document, server: server.into(), hour })
    }

    /// Returns the values of a field with the numbers that they have in it, those of steps within an hour.
    fn numbered<T>(&self, field: &str, span: Span, read: fn(&[u8]) -> Option<T>) -> Vec<(Timestamp, T)> {
        let fields = self.document.get_document(field).into_iter().flatten();
        let read = |(number, value): (&String, &Bson)| {
            let number: i64 = number.parse().ok()?;
            let at = Timestamp::from_millis(self.hour * HOUR_MS + number * span.ms());
            (0..HOUR_MS / span.ms()).contains(&number).then_some((at, read(bytes(value)?)?))
        };
        fields.filter_map(read).collect()
    }

    /// Returns what happened, in steps of this length.
    pub fn tallies(&self, span: Span) -> Vec<(Timestamp, Tally)> {
        self.numbered(name(span), span, Tally::from_bytes)
    }

    /// Returns how many jobs there were.
    pub fn depths(&self) -> Vec<(Timestamp, Depth)> {
        self.numbered("d", Span::Step, Depth::from_bytes)
    }
}
