//! The guard of a statement for many jobs: each of them is as it was read.

use mongodb::bson::{Document, doc};

/// Returns a filter that finds those of these jobs that have the `rev` with which they were read. It has no other `$expr`.
///
/// Each job is compared with its own `rev`: one statement may have written the `rev` of another one of them into it since, because all
/// jobs that a statement changes get one. Most jobs that are settled together were claimed together, and have one `rev`. Where they
/// differ, one statement compares the `rev` at the job's index in the list, which MongoDB finds by a hash: measured in rounds of 20
/// and 100 deletions, that costs no more than two lists which are not compared by pairs, and a statement for each `rev` up to 60 % more.
pub fn as_read<'a>(jobs: impl IntoIterator<Item = (&'a str, i64)>) -> Document {
    let (ids, revs): (Vec<&str>, Vec<i64>) = jobs.into_iter().unzip();
    match revs.as_slice() {
        [] => doc! { "_id": { "$in": ids } },
        [rev, others @ ..] if others.iter().all(|other| other == rev) => {
            doc! { "_id": { "$in": ids }, "rev": rev }
        }
        _ => {
            let index = doc! { "$indexOfArray": [{ "$literal": &ids }, "$_id"] };
            let rev = doc! { "$arrayElemAt": [{ "$literal": revs }, index] };
            doc! { "_id": { "$in": ids }, "$expr": { "$eq": ["$rev", rev] } }
        }
    }
}

/// Returns the expression that finds jobs whose `rev` is no number: no server has written them since. By `$type` alone a list with a number
/// in it would be taken for one.
pub fn lacks_rev() -> Document {
    doc! { "$not": [{ "$in": [{ "$type": "$rev" }, ["int", "long"]] }] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_one_rev_are_found_by_it() {
        let guard = doc! { "_id": { "$in": ["a", "b"] }, "rev": 7_i64 };
        assert_eq!(as_read([("a", 7), ("b", 7)]), guard);
    }

    #[test]
    fn jobs_of_several_revs_are_compared_each_with_its_own() {
        let guard = as_read([("a", 7), ("b", 8), ("c", 7)]);
        let index = doc! { "$indexOfArray": [{ "$literal": ["a", "b", "c"] }, "$_id"] };
        let rev = doc! { "$arrayElemAt": [{ "$literal": [7_i64, 8_i64, 7_i64] }, index] };
        let wanted = doc! { "_id": { "$in": ["a", "b", "c"] }, "$expr": { "$eq": ["$rev", rev] } };
        assert_eq!(guard, wanted);
    }
}
