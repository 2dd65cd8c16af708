//! Documents as they are stored, by whatever program.
//!
//! The driver reads a `Document` through serde, which refuses text that is not UTF-8 and takes a nested `{"$oid": …}` for
//! extended JSON: one such document fails the whole read that meets it. Here each is read by itself, and always.

use std::ops::Deref;

use mongodb::bson::raw::RawBsonRef;
use mongodb::bson::spec::ElementType;
use mongodb::bson::{Bson, Document, RawDocument, RawDocumentBuf, rawdoc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::store::{Result, StoreError};

/// What is known of a document of which not all can be read.
const KEPT: [&str; 3] = ["_id", "queue", "state"];

/// A document as it is stored. A field that cannot be read is [`Bson::Undefined`], which no field accepts.
#[derive(Debug, Clone, Default)]
pub struct Stored {
    document: Document,
    /// Its bytes, where the document does not say all that is in them.
    raw: Option<RawDocumentBuf>,
}

impl Stored {
    /// Reads a document.
    pub fn read(raw: RawDocumentBuf) -> Self {
        let (mut document, mut is_exact) = (Document::new(), true);
        for element in raw.iter_elements() {
            let Ok(element) = element else {
                // A name that is not UTF-8: what follows it is out of reach.
                let lost = document.iter_mut().filter(|(name, _)| !KEPT.contains(&name.as_str()));
                lost.for_each(|(_, value)| *value = Bson::Undefined);
                is_exact = false;
                break;
            };
            let name = element.key().as_str();
            let read = element.value().ok().and_then(|read| value(read, &mut is_exact));
            is_exact &= read.is_some();
            if document.insert(name, read.unwrap_or(Bson::Undefined)).is_some() {
                is_exact = false;
                document.insert(name, Bson::Undefined); // twice the same name: MongoDB may mean the other one
            }
        }
        Self { document, raw: (!is_exact).then_some(raw) }
    }

    /// Whether MongoDB may have something else under this name than what was read: what stands behind a name that is not UTF-8 is out of
    /// reach, and of two fields with one name it means one. To set the field leaves that as it is.
    pub fn hides(&self, name: &str) -> bool {
        let Some(raw) = &self.raw else { return false };
        let mut seen = 0;
        for element in raw.iter_elements() {
            match element {
                Ok(element) => seen += usize::from(element.key().as_str() == name),
                Err(_) => return true,
            }
        }
        seen > 1
    }

    fn raw(&self) -> Result<RawDocumentBuf> {
        match &self.raw {
            Some(raw) => Ok(raw.clone()),
            None => RawDocumentBuf::try_from(&self.document).map_err(StoreError::internal),
        }
    }

    /// Returns its `_id`, byte for byte.
    pub fn raw_id(&self) -> Result<RawId> {
        let exact;
        let raw: &RawDocument = match &self.raw {
            Some(raw) => raw,
            None => {
                // Not all of it: it may be long.
                let first = self.document.iter().take(1);
                let first: Document = first.map(|(name, value)| (name.clone(), value.clone())).collect();
                exact = RawDocumentBuf::try_from(&first).map_err(StoreError::internal)?;
                &exact
            }
        };
        let id = raw.iter_elements().next().and_then(std::result::Result::ok);
        let id = id.filter(|id| id.key().as_str() == "_id");
        let id = id.ok_or_else(|| StoreError::internal("a document does not begin with its _id"))?;
        let value = raw.as_bytes().iter().skip(4 + 1 + "_id\0".len()).take(id.size());
        Ok(RawId { kind: id.element_type() as u8, value: value.copied().collect() })
    }

    /// Returns a document of its `_id` alone under another name, byte for byte.
    fn id_as(&self, name: &str) -> Result<RawDocumentBuf> {
        let RawId { kind, value } = self.raw_id()?;
        assemble([(name, kind, value.as_slice())])
    }

    /// Returns its `_id` as a document.
    pub fn id(&self) -> Result<RawDocumentBuf> {
        self.id_as("_id")
    }

    /// Returns the filter that finds the document by its `_id`, whatever that is. A document with an operator's name in it is a
    /// value here.
    pub fn by_id(&self) -> Result<RawDocumentBuf> {
        Ok(rawdoc! { "_id": self.id_as("$eq")? })
    }

    /// Returns the filter that finds the document, read as a whole, as long as all of it is as it was read.
    pub fn as_read(&self) -> Result<RawDocumentBuf> {
        let same = rawdoc! { "$eq": ["$$ROOT", { "$literal": self.raw()? }] };
        Ok(rawdoc! { "_id": self.id_as("$eq")?, "$expr": same })
    }
}

/// The bytes of an `_id`, whatever it is: also of one that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RawId {
    kind: u8,
    value: Vec<u8>,
}

impl RawId {
    /// Returns how many bytes it has.
    pub fn size(&self) -> usize {
        self.value.len()
    }
}

/// Returns the condition on `_id` that leaves out the documents with these ids.
pub fn none_of(ids: &[RawId]) -> Result<RawDocumentBuf> {
    let indexes: Vec<String> = (0..ids.len()).map(|index| index.to_string()).collect();
    let items = indexes.iter().zip(ids).map(|(index, id)| (index.as_str(), id.kind, id.value.as_slice()));
    let list = assemble(items)?;
    assemble([("$nin", ElementType::Array as u8, list.as_bytes())])
}

/// Returns a document of these fields: the name of each, its type, and the bytes of its value.
fn assemble<'a>(fields: impl IntoIterator<Item = (&'a str, u8, &'a [u8])>) -> Result<RawDocumentBuf> {
    let mut bytes = vec![0; 4];
    for (name, kind, value) in fields {
        bytes.push(kind);
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(value);
    }
    bytes.push(0);
    let length = i32::try_from(bytes.len()).map_err(StoreError::internal)?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    RawDocumentBuf::from_bytes(bytes).map_err(StoreError::internal)
}

/// Returns the command that deletes what the filter finds, one at most.
pub fn deletion(collection: &str, filter: RawDocumentBuf) -> RawDocumentBuf {
    rawdoc! { "delete": collection, "deletes": [{ "q": filter, "limit": 1 }] }
}

fn value(raw: RawBsonRef<'_>, is_exact: &mut bool) -> Option<Bson> {
    match raw {
        RawBsonRef::Document(raw) => nested(raw, is_exact).map(Bson::Document),
        RawBsonRef::Array(raw) => {
            let items = raw.into_iter().map(|item| value(item.ok()?, is_exact));
            items.collect::<Option<_>>().map(Bson::Array)
        }
        other => {
            // Sorted options, or a scope with the same name twice: other bytes than those that were read.
            *is_exact &=
                !matches!(other, RawBsonRef::RegularExpression(_) | RawBsonRef::JavaScriptCodeWithScope(_));
            Bson::try_from(other).ok()
        }
    }
}

fn nested(raw: &RawDocument, is_exact: &mut bool) -> Option<Document> {
    let mut document = Document::new();
    for field in raw {
        let (name, field) = field.ok()?;
        let field = value(field, is_exact)?;
        *is_exact &= document.insert(name.as_str(), field).is_none();
    }
    Some(document)
}

impl Deref for Stored {
    type Target = Document;

    fn deref(&self) -> &Document {
        &self.document
    }
}

impl From<Document> for Stored {
    fn from(document: Document) -> Self {
        Self { document, raw: None }
    }
}

impl<'de> Deserialize<'de> for Stored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RawDocumentBuf::deserialize(deserializer).map(Self::read)
    }
}

impl Serialize for Stored {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.raw {
            Some(raw) => raw.serialize(serializer),
            None => self.document.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;
    use mongodb::bson::raw::cstr;

    use super::*;

    /// Returns a document whose texts have bytes that are not UTF-8 in place of `?BAD`.
    fn raw(document: &Document) -> RawDocumentBuf {
        let mut bytes = document.to_vec().unwrap();
        while let Some(at) = bytes.windows(4).position(|part| part == b"?BAD") {
            bytes[at..at + 4].fill(0xff);
        }
        RawDocumentBuf::from_bytes(bytes).unwrap()
    }

    fn read(document: &Document) -> Stored {
        Stored::read(raw(document))
    }

    #[test]
    fn what_cannot_be_read_is_one_field() {
        let found = read(&doc! { "_id": "a", "text": "?BAD", "deep": { "list": [{ "?BAD": 1 }] }, "n": 1 });
        assert_eq!(*found, doc! { "_id": "a", "text": Bson::Undefined, "deep": Bson::Undefined, "n": 1 });
        let found = read(&doc! { "_id": "a", "state": "ready", "n": 1, "?BAD": 1, "lost": 1 });
        assert_eq!(*found, doc! { "_id": "a", "state": "ready", "n": Bson::Undefined });
    }

    #[test]
    fn what_cannot_be_reached_is_hidden() {
        let found = read(&doc! { "_id": "a", "text": "?BAD", "n": 1 });
        assert!(!["_id", "text", "n", "none"].iter().any(|name| found.hides(name)));
        for document in [doc! { "_id": "a", "n": 1, "?BAD": 1 }, doc! { "_id": "a", "?BAD": 1, "n": 1 }] {
            assert!(read(&document).hides("n"), "{document}");
        }
        let mut twice = raw(&doc! { "_id": "a", "n": 1, "m": 1 });
        twice.append(cstr!("n"), 2_i32);
        let found = Stored::read(twice);
        assert_eq!(*found, doc! { "_id": "a", "n": Bson::Undefined, "m": 1 });
        assert!(found.hides("n") && !found.hides("m"));
    }

    #[test]
    fn names_of_extended_json_are_names() {
        let document = doc! { "_id": { "$oid": 5 }, "d": { "$date": "x" }, "n": [{ "$numberLong": "1" }] };
        let found = read(&document);
        assert_eq!(*found, document);
        let bytes = mongodb::bson::serialize_to_vec(&found).unwrap();
        let found: Stored = mongodb::bson::deserialize_from_slice(&bytes).unwrap();
        assert_eq!(*found, document);
    }

    #[test]
    fn an_id_is_found_by_its_bytes() {
        let found = read(&doc! { "_id": "?BAD", "n": 1 });
        assert_eq!(found.get("_id"), Some(&Bson::Undefined));
        assert_eq!(found.id().unwrap(), raw(&doc! { "_id": "?BAD" }));
        let found = Stored::from(doc! { "_id": { "a": 1 }, "n": 1 });
        assert_eq!(found.id().unwrap(), rawdoc! { "_id": { "a": 1 } });
        assert_eq!(found.by_id().unwrap(), rawdoc! { "_id": { "$eq": { "a": 1 } } });
    }

    #[test]
    fn documents_are_left_out_by_the_bytes_of_their_ids() {
        let ids = ["?BAD", "b"].map(|id| read(&doc! { "_id": id, "n": 1 }).raw_id().unwrap());
        assert_eq!(none_of(&ids).unwrap(), raw(&doc! { "$nin": ["?BAD", "b"] }));
        let ids = [doc! { "_id": 7 }, doc! { "_id": { "a": 1 }, "n": "?BAD" }];
        let ids = ids.map(|document| read(&document).raw_id().unwrap());
        assert_eq!(none_of(&ids).unwrap(), rawdoc! { "$nin": [7, { "a": 1 }] });
        assert_ne!(ids[0], ids[1]);
        assert!(Stored::from(doc! { "n": 1 }).raw_id().is_err());
    }
}
