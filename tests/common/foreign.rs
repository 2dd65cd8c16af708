//! Documents with bytes that no driver writes by itself, and other programs have written all the same.

use mongodb::Database;
use mongodb::bson::{Bson, Document, RawArrayBuf, RawDocumentBuf, doc, rawdoc};

/// Returns a document with bytes that are not UTF-8 in place of `?BAD`, and one name for the fields `?DUP` and `!DUP`.
pub fn foreign(document: &Document) -> RawDocumentBuf {
    let mut bytes = document.to_vec().unwrap();
    for (mark, to) in [(b"?BAD", b"\xff\xff\xff\xff"), (b"!DUP", b"?DUP")] {
        while let Some(at) = memchr::memmem::find(&bytes, mark) {
            bytes[at..at + mark.len()].copy_from_slice(to);
        }
    }
    RawDocumentBuf::from_bytes(bytes).unwrap()
}

/// Inserts such a document past the server, and past the driver, which reads its `_id`. Returns whether MongoDB took it.
pub async fn insert(database: &Database, collection: &str, document: &Document) -> bool {
    insert_raw(database, collection, foreign(document)).await
}

/// The same with bytes of one's own.
pub async fn insert_raw(database: &Database, collection: &str, document: RawDocumentBuf) -> bool {
    let documents: RawArrayBuf = [document].into_iter().collect();
    let command = rawdoc! { "insert": collection, "documents": documents, "bypassDocumentValidation": true };
    // A refusal may quote what the driver cannot read.
    database.run_raw_command(command).await.is_ok_and(|reply| reply.get_i32("n").is_ok_and(|n| n == 1))
}

/// Ids of such documents, with the marks of [`foreign`]. Those of each number are others.
pub fn foreign_ids(n: usize) -> Vec<Bson> {
    let n = i64::try_from(n).unwrap();
    let documents = [
        doc! { "a": "?BAD", "n": n },
        doc! { "?BAD": n },
        doc! { "?DUP": 1, "!DUP": 2, "n": n },
        doc! { "?DUP": 2, "!DUP": 2, "n": n },
    ];
    let texts = [format!("{n}?BAD"), format!("a{n}?BAD"), format!("!{n}?BAD")];
    documents.into_iter().map(Bson::from).chain(texts.map(Bson::from)).collect()
}
