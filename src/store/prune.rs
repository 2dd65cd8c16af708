//! What is past its time: what both stores decide alike.

use crate::job::State;
use crate::job::push::holds_key;

/// How long the key of a job that holds it past the key's time is left alone, in milliseconds. A push that asks for the key reads
/// its job, so that this only says how long a record stays too long; a shorter time would be spent on the keys of dead
/// jobs, which may be very many.
pub(super) const KEY_CHECKED_AGAIN_MS: u64 = 600_000;

/// The states in which a job keeps its key past the key's time.
pub(super) fn holding() -> impl Iterator<Item = State> {
    State::ALL.into_iter().filter(|state| holds_key(*state))
}

/// The states in which a job is deleted once its `purge_at` has passed: history, and dead jobs. Work that is still to be done is not,
/// whatever another program has written there.
pub(super) fn purged() -> impl Iterator<Item = State> {
    State::ALL.into_iter().filter(|state| !state.is_unfinished())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_jobs_stay_and_keep_their_keys() {
        assert_eq!(purged().collect::<Vec<_>>(), [State::Done, State::Dead]);
        let expected = [State::Ready, State::Reserved, State::Blocked, State::Dead];
        assert_eq!(holding().collect::<Vec<_>>(), expected);
    }
}
