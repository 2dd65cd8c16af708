//! What the codes mean with which MongoDB refuses something.

use crate::store::{Cause, StoreError};

/// Server errors behind which the outcome is unknown and a later try may succeed: no primary, shutting down, out of time, a write
/// conflict; a right that is missing, which an operator may give; an index that is being built, or whose build was ended; what was
/// ended from outside: an operation (11601), a cursor (43, 237), a plan (175), a transaction (290).
const PASSING: [i32; 30] = [
    6, 7, 13, 43, 50, 64, 89, 91, 112, 133, 134, 175, 189, 202, 211, 237, 246, 251, 262, 276, 290, 9001,
    10058, 10107, 11600, 11601, 11602, 12587, 13435, 13436,
];
/// MongoDB's `OutOfDiskSpace`.
const NO_SPACE: i32 = 14031;
/// MongoDB's `DocumentValidationFailure`: what this server writes is valid, so that it comes from what another wrote.
const NOT_VALID: i32 = 121;
/// MongoDB's `DuplicateKey`.
const DUPLICATE_KEY: i32 = 11000;
/// The unique indexes of this program: each collection has one of `_id`, `jobs` one of the places in lines as well.
const OWN_INDEXES: [&str; 2] = ["_id_", "turn"];

/// Returns what an error of this code and message means; `cause` is for the log.
pub fn meaning(code: Option<i32>, message: &str, cause: Cause) -> StoreError {
    match code {
        Some(NO_SPACE) => StoreError::Full(cause),
        Some(NOT_VALID) => StoreError::Unreadable(cause),
        Some(DUPLICATE_KEY) => match other_index(message) {
            Some(index) => StoreError::NotUnique(Cause(index.into())),
            None => StoreError::Internal(cause),
        },
        Some(code) if PASSING.contains(&code) => StoreError::Unavailable(cause),
        _ => StoreError::Internal(cause),
    }
}

/// Whether a value is there already that this program wants to be there once, and not one that a unique index of another program keeps
/// away.
pub fn is_own_duplicate(code: Option<i32>, message: &str) -> bool {
    code == Some(DUPLICATE_KEY) && other_index(message).is_none()
}

/// Returns the name of the unique index that has a value already, if another program made it. The driver has it in the message only:
/// `E11000 duplicate key error collection: db.jobs index: NAME dup key: …`, with the collation before the key.
fn other_index(message: &str) -> Option<&str> {
    let (_, said) = message.split_once("E11000 duplicate key error")?;
    let (_, named) = said.split_once(" index: ")?;
    let name = named.split(" dup key").next()?.split(" collation:").next()?;
    (!OWN_INDEXES.contains(&name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str = "E11000 duplicate key error collection: db.jobs index:";

    #[test]
    fn a_duplicate_of_an_own_index_is_told_from_that_of_another() {
        let own = ["_id_ dup key: { _id: \"a\" }", "turn dup key: { turn: \"mail/a/1\" }"];
        for message in own.map(|end| format!("{BEGIN} {end}")).iter().map(String::as_str).chain([""]) {
            assert!(is_own_duplicate(Some(DUPLICATE_KEY), message), "{message}");
            let meaning = meaning(Some(DUPLICATE_KEY), message, Cause("".into()));
            assert!(matches!(meaning, StoreError::Internal(_)), "{meaning:?}");
        }
        for (end, name) in [
            ("payload.order_1 dup key: { payload.order: \" index: _id_ dup key\" }", "payload.order_1"),
            ("my turn dup key: { a: 1 }", "my turn"),
            ("words collation: { locale: \"de\" } dup key: { a: \"0x29\" }", "words"),
        ] {
            let message = format!("{BEGIN} {end}");
            assert!(!is_own_duplicate(Some(DUPLICATE_KEY), &message), "{message}");
            let meaning = meaning(Some(DUPLICATE_KEY), &message, Cause("".into()));
            assert!(matches!(&meaning, StoreError::NotUnique(index) if *index.0 == *name), "{meaning:?}");
        }
        assert!(!is_own_duplicate(Some(112), ""));
    }
}
