//! Jobs that cannot be read, because another program wrote them: what can be read of them.

use mongodb::bson::{Document, doc};

use crate::job::transition::Salvaged;
use crate::job::{Content, Job, JobId, Meta};
use crate::store::mongo::jobs::document::{
    Row, salvaged, salvaged_contents, to_job, to_job_without_contents,
};
use crate::store::mongo::jobs::guard::lacks_rev;
use crate::store::mongo::stored::Stored;
use crate::store::{ListedJob, Result, StoreError, UnreadableJob, chain};

/// Returns a job as a list shows it, with its payload and its result or from a document that was read without.
pub fn listed(document: &Document, with_contents: bool) -> Result<ListedJob> {
    let read = if with_contents { to_job } else { to_job_without_contents };
    read(document).map(Ok).or_else(|error| {
        let id = Row(document).text("_id")?;
        tracing::error!(error = chain(&error), "a job cannot be read");
        let remains = salvaged(document).ok().map(|meta| {
            let Salvaged { payload, headers, result } = salvaged_contents(document);
            Box::new(Job { meta, payload: payload.unwrap_or_else(Content::null), headers, result })
        });
        let why = match error {
            StoreError::Internal(cause) | StoreError::Unreadable(cause) => cause.to_string(),
            other => chain(&other),
        };
        Ok(Err(UnreadableJob { id, why, remains }))
    })
}

/// What can be read of the metadata of a job that is to be removed.
pub struct Removable {
    pub meta: Meta,
    /// What finds the job as it was read, where it has no `rev` to go by.
    pub guard: Option<Document>,
}

/// Returns it where it suffices.
pub fn removable(document: &Stored) -> Option<Removable> {
    let meta = salvaged(document).ok()?;
    let has_rev = Row(document).number::<i64>("rev").is_ok();
    let guard = (!has_rev).then(|| without_rev(&meta.id, document));
    Some(Removable { meta, guard })
}

/// Returns the filter that finds a job without a `rev` as it was read: a burial and a mend give it one. What MongoDB has there is not known
/// where it is hidden, nor needed: no write of a server makes such a job readable, so that none claims it. (Another program that replaces
/// it meanwhile by a job in the same state loses that.)
fn without_rev(id: &JobId, document: &Stored) -> Document {
    let mut guard = doc! { "_id": id.as_str() };
    if let Ok(state) = document.get_str("state") {
        guard.insert("state", state);
    }
    if !document.hides("rev") {
        guard.insert("$expr", lacks_rev());
    }
    guard
}

#[cfg(test)]
mod tests {
    use mongodb::bson::raw::cstr;
    use mongodb::bson::{Bson, RawDocumentBuf};

    use super::*;

    fn guard(raw: RawDocumentBuf) -> Option<Document> {
        removable(&Stored::read(raw)).unwrap().guard
    }

    #[test]
    fn a_job_without_a_rev_is_found_by_what_else_was_read() {
        let job = doc! { "_id": "a", "queue": "q", "state": "ready", "backoff": 7 };
        let with = |rev: Bson| {
            let mut job = job.clone();
            job.insert("rev", rev);
            RawDocumentBuf::try_from(&job).unwrap()
        };
        assert_eq!((guard(with(Bson::Int32(5))), guard(with(Bson::Int64(5)))), (None, None));
        let lacking = doc! { "_id": "a", "state": "ready", "$expr": lacks_rev() };
        for rev in [Bson::Null, Bson::from("x"), Bson::Array(vec![Bson::Int32(5)]), Bson::Double(5.0)] {
            assert_eq!(guard(with(rev.clone())).as_ref(), Some(&lacking), "{rev}");
        }
        assert_eq!(guard(RawDocumentBuf::try_from(&job).unwrap()), Some(lacking));
        let mut twice = with(Bson::Int32(5));
        twice.append(cstr!("rev"), 7_i64);
        assert_eq!(guard(twice), Some(doc! { "_id": "a", "state": "ready" }));
    }
}
