//! Changes of jobs within a transaction, written in the cheaper of two ways.
//!
//! MongoDB up to 6.0 reads the description of the whole collection twice for each index of each document that an update
//! within a transaction changes: that the snapshot knows the index. With the thirteen of `jobs` this is three quarters of
//! the update (measured: 290 µs a job instead of 70). Neither deletions nor inserts do so. So jobs that are small are
//! deleted, and inserted as they are to be: 115 µs. In one transaction no reader sees the one without the other, and all
//! fields stay, also those that are not ours, since the document is read within it. From 7.0 on an update is the cheaper
//! one again.
//!
//! Where the store's user may not pass by the validator, jobs are updated: an insert would be refused where another program
//! has spoiled the job, and so keep those before it in its line from ending.

use std::collections::{HashMap, HashSet};

use mongodb::bson::raw::RawBsonRef;
use mongodb::bson::{Document, RawDocument, RawDocumentBuf, doc};
use mongodb::options::Hint;

use crate::job::State;
use crate::store::mongo::JOBS;
use crate::store::mongo::client::{Connection, parts};
use crate::store::mongo::jobs::guard::as_read;
use crate::store::mongo::transaction::{Tx, TxError};
use crate::store::{Result, StoreError};

/// From this size on a job is updated where it is: what it contains would travel twice.
const BYTES: i32 = 16 << 10;
/// Fewer jobs are not worth the read that their documents need.
const FEW: usize = 4;

/// What is to become of a job that was read.
pub struct Rewrite {
    pub id: String,
    /// The `rev` that was read: the job is changed only if it has that one.
    pub rev: i64,
    /// The state that was read.
    pub from: State,
    /// `$set` and `$unset` of whole fields.
    pub update: Document,
    /// The document, where this transaction has read it: see [`small`].
    pub document: Option<RawDocumentBuf>,
}

/// Returns the expression of a job's document in a projection; nothing where that is too large to be rewritten.
pub fn small() -> Document {
    doc! { "$cond": [is_small(), "$$ROOT", "$$REMOVE"] }
}

fn is_small() -> Document {
    doc! { "$lt": [{ "$bsonSize": "$$ROOT" }, BYTES] }
}

/// Changes these jobs, and runs these deletions of others. Returns how many jobs were found to be as they were read.
pub async fn write(
    changes: Vec<Rewrite>,
    mut deletes: Vec<Document>,
    tx: &mut Tx<'_>,
) -> Result<u64, TxError> {
    let (anew, in_place) = match rewrites(&tx.mongo.connection) {
        true => read(changes, tx).await?,
        false => (Vec::new(), changes),
    };
    let wanted = (in_place.len() + anew.len()) as u64;
    let mut found = 0;
    for part in parts(statements(&in_place))? {
        found += tx.write_jobs(doc! { "update": JOBS, "updates": part }).await?;
    }
    if !anew.is_empty() {
        let guard = as_read(anew.iter().map(|(change, _)| (change.id.as_str(), change.rev)));
        deletes.push(doc! { "q": guard, "limit": 0, "hint": { "_id": 1 } });
    }
    for part in parts(deletes)? {
        found += tx.write(doc! { "delete": JOBS, "deletes": part }).await?;
    }
    if found < wanted {
        return Ok(found); // no part of it is stored
    }
    tx.insert_jobs(anew.into_iter().map(|(_, document)| document).collect()).await?;
    Ok(found)
}

/// Whether jobs are deleted and inserted.
fn rewrites(connection: &Connection) -> bool {
    connection.updates_are_slow() && connection.bypasses_validator()
}

/// Returns the jobs that are rewritten, as they are to be, and the others.
async fn read(
    changes: Vec<Rewrite>,
    tx: &mut Tx<'_>,
) -> Result<(Vec<(Rewrite, RawDocumentBuf)>, Vec<Rewrite>), TxError> {
    let (known, unknown): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|change| change.document.is_some());
    let mut documents = HashMap::new();
    if unknown.len() >= FEW {
        let ids: Vec<&str> = unknown.iter().map(|change| change.id.as_str()).collect();
        let filter = doc! { "_id": { "$in": ids }, "$expr": is_small() };
        let jobs = tx.collection(JOBS).clone_with_type::<RawDocumentBuf>();
        let find = jobs.find(filter).hint(Hint::Keys(doc! { "_id": 1 }));
        let find = find.batch_size(u32::try_from(unknown.len() + 1).unwrap_or(u32::MAX));
        for document in tx.read_raw(find).await? {
            let id = document.get_str("_id").map(str::to_owned);
            documents.extend(id.ok().map(|id| (id, document)));
        }
    }
    let (mut anew, mut in_place) = (Vec::with_capacity(known.len() + unknown.len()), Vec::new());
    for mut change in known.into_iter().chain(unknown) {
        let document = change.document.take().or_else(|| documents.remove(&change.id));
        let document = document.filter(|document| has_rev(document, change.rev));
        // Another program may have changed the state and left the `rev`.
        if document
            .as_ref()
            .is_some_and(|document| document.get_str("state").ok() != Some(change.from.as_str()))
        {
            continue;
        }
        match document.map(|document| renewed(&document, &change.update)).transpose()?.flatten() {
            Some(document) => anew.push((change, document)),
            None => in_place.push(change),
        }
    }
    Ok((anew, in_place))
}

fn has_rev(document: &RawDocument, rev: i64) -> bool {
    match document.get("rev") {
        Ok(Some(RawBsonRef::Int64(found))) => found == rev,
        Ok(Some(RawBsonRef::Int32(found))) => i64::from(found) == rev,
        _ => false,
    }
}

/// Returns the document as an update makes it; `None` where another program has spoiled it so that this is not certain.
fn renewed(document: &RawDocument, update: &Document) -> Result<Option<RawDocumentBuf>> {
    let nothing = Document::new();
    let part = |name| update.get_document(name).unwrap_or(&nothing);
    let (set, unset) = (part("$set"), part("$unset"));
    let set = RawDocumentBuf::try_from(set).map_err(StoreError::internal)?;
    let mut values = HashMap::new();
    for element in set.iter_elements() {
        let element = element.map_err(StoreError::internal)?;
        values.insert(element.key().as_str(), element.value().map_err(StoreError::internal)?);
    }
    let (mut renewed, mut seen) = (RawDocumentBuf::new(), HashSet::new());
    for element in document.iter_elements() {
        let Ok(element) = element else { return Ok(None) };
        let name = element.key();
        let Ok(value) = element.value() else { return Ok(None) };
        if !seen.insert(name.as_str()) {
            return Ok(None);
        }
        if !unset.contains_key(name.as_str()) {
            renewed.append(name, values.get(name.as_str()).copied().unwrap_or(value));
        }
    }
    for element in set.iter_elements().flatten().filter(|element| !seen.contains(element.key().as_str())) {
        renewed.append(element.key(), element.value().map_err(StoreError::internal)?);
    }
    Ok(Some(renewed))
}

/// Returns the statements of these changes: one for all jobs of a state that are changed alike.
fn statements(changes: &[Rewrite]) -> Vec<Document> {
    let mut alike: Vec<Vec<&Rewrite>> = Vec::new();
    for change in changes {
        let same = |group: &&mut Vec<&Rewrite>| {
            group.first().is_some_and(|first| first.from == change.from && first.update == change.update)
        };
        match alike.iter_mut().find(same) {
            Some(group) => group.push(change),
            None => alike.push(vec![change]),
        }
    }
    let statement = |group: &Vec<&Rewrite>| match group.as_slice() {
        [one] => doc! { "q": { "_id": &one.id, "rev": one.rev }, "u": &one.update },
        [first, ..] => {
            let mut guard = as_read(group.iter().map(|change| (change.id.as_str(), change.rev)));
            guard.insert("state", first.from.as_str());
            doc! { "q": guard, "u": &first.update, "multi": true, "hint": { "_id": 1 } }
        }
        [] => Document::new(),
    };
    alike.iter().map(statement).collect()
}

#[cfg(test)]
mod tests {
    use mongodb::bson::rawdoc;

    use super::*;

    #[test]
    fn a_document_is_renewed_as_an_update_would() {
        let before = rawdoc! { "_id": "a", "rev": 1_i64, "due": 3, "theirs": [1, 2], "state": "ready" };
        let update = doc! { "$set": { "rev": 2_i64, "claim": "c", "state": "reserved" }, "$unset": { "due": "", "none": "" } };
        let after = renewed(&before, &update).unwrap().unwrap();
        let wanted =
            rawdoc! { "_id": "a", "rev": 2_i64, "theirs": [1, 2], "state": "reserved", "claim": "c" };
        assert_eq!(after, wanted);
        assert!(has_rev(&before, 1) && !has_rev(&before, 2) && has_rev(&rawdoc! { "rev": 1 }, 1));
    }

    #[test]
    fn a_spoiled_document_is_left_where_it_is() {
        let mut twice = rawdoc! { "_id": "a", "rev": 1_i64 };
        twice.append(mongodb::bson::raw::cstr!("rev"), 1_i64);
        assert!(renewed(&twice, &doc! { "$set": { "rev": 2_i64 } }).unwrap().is_none());
    }

    #[test]
    fn what_is_changed_alike_is_one_statement() {
        let change = |id: &str, rev, state: &str| Rewrite {
            id: id.to_owned(),
            rev,
            from: State::Ready,
            update: doc! { "$set": { "state": state } },
            document: None,
        };
        let made = statements(&[change("a", 1, "x"), change("b", 2, "y"), change("c", 3, "x")]);
        let mut guard = as_read([("a", 1), ("c", 3)]);
        guard.insert("state", "ready");
        assert_eq!(made.len(), 2);
        assert_eq!(made[0].get_document("q").unwrap(), &guard);
        assert_eq!(made[1].get_document("q").unwrap(), &doc! { "_id": "b", "rev": 2_i64 });
    }
}
