//! The claims of jobs that a settle takes with it (`next`): they bear a mark that is derived from what was settled, so that a repeat of
//! the settle finds the jobs at any server, without a record.

use super::state::{Verb, Visible};
use super::transition::Outcome;
use super::{Claim, JobId, Timestamp, Tokens};

/// What the claims begin with that were made for the settle of one delivery.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mark(Box<str>);

/// How long the rest of such a claim is behind the letter that says how the settle ended.
const REST_LEN: usize = 8;

/// How long the reservation of a commit must last at least, in milliseconds, so that the next jobs are claimed while it is carried out.
/// For as long only who holds that reservation ends the job, so that its absence proves the commit.
pub const PROOF_MS: u64 = 10_000;

/// How a settle ended, as far as the claims say that were made for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The job is done.
    Done,
    /// The commit was sent together with the claim: neither proves the other. The job's absence proves the commit until [`PROOF_MS`] after
    /// the claim.
    Sent,
    /// It was removed.
    Removed,
    /// It came back, or went on, and was in this state then.
    Returned(Visible),
    /// It is dead; `moved`: in a dead-letter queue.
    Dead {
        /// Whether it went there.
        moved: bool,
    },
}

const LETTERS: [(Ended, char); 8] = [
    (Ended::Done, 'd'),
    (Ended::Sent, 'p'),
    (Ended::Removed, 'x'),
    (Ended::Returned(Visible::Ready), 'r'),
    (Ended::Returned(Visible::Scheduled), 's'),
    (Ended::Returned(Visible::Blocked), 'b'),
    (Ended::Dead { moved: false }, 'k'),
    (Ended::Dead { moved: true }, 'm'),
];

impl Ended {
    /// Returns how a settle ended that led to this at this moment; `None` where it did not end a delivery.
    pub fn of(outcome: &Outcome, at: Timestamp) -> Option<Self> {
        Some(match outcome {
            Outcome::Done => Self::Done,
            Outcome::Removed => Self::Removed,
            Outcome::Dead { moved_to } => Self::Dead { moved: moved_to.is_some() },
            Outcome::Returned { blocked: true, .. } => Self::Returned(Visible::Blocked),
            Outcome::Returned { run_at, .. } if *run_at > at => Self::Returned(Visible::Scheduled),
            Outcome::Returned { .. } => Self::Returned(Visible::Ready),
            Outcome::Held { .. } => return None,
        })
    }
}

impl Tokens {
    /// Returns the mark of what is taken with the settle of a delivery. Another verb with the same token is another settle.
    pub fn mark(&self, claim: &Claim, id: &JobId, verb: Verb) -> Mark {
        let text = format!("{}\n{}\n{verb:?}", claim.as_str(), id.as_str());
        let mut mark = self.sign("next", text.as_bytes());
        mark.insert_str(0, Claim::SIGNED);
        mark.truncate(Mark::LEN);
        Mark(mark.into())
    }
}

impl Mark {
    /// How long a mark is: what all signed claims begin with, and 60 bits.
    pub const LEN: usize = 11;

    /// Returns the mark as it is at the beginning of claims.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns a fresh claim for what is taken with a settle that has ended so. Each call has its own: what one gives back is not
    /// another's.
    pub fn claim(&self, ended: Ended) -> Claim {
        let letter = LETTERS.iter().find(|(of, _)| *of == ended).map_or('r', |(_, letter)| *letter);
        let random = Claim::random();
        let rest = random.as_str().get(1..=REST_LEN).unwrap_or_default();
        Claim::from_stored(&format!("{}{letter}{rest}", self.0))
    }

    /// Returns how the settle ended for which this claim was made; `None`: it was made for something else.
    pub fn ended(&self, claim: &Claim) -> Option<Ended> {
        let letter = claim.as_str().strip_prefix(&*self.0)?.chars().next()?;
        LETTERS.iter().find(|(_, of)| *of == letter).map(|(ended, _)| *ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_says_for_which_settle_it_was_made_and_how_that_ended() {
        let (tokens, others) = (Tokens::new(&[1; 32]), Tokens::new(&[2; 32]));
        let (claim, id): (_, JobId) = (Claim::random(), "a".parse().unwrap());
        let mark = tokens.mark(&claim, &id, Verb::Commit);
        for (ended, _) in LETTERS {
            let own = mark.claim(ended);
            assert_eq!(own.as_str().len(), Claim::random().as_str().len());
            assert_eq!(mark.ended(&own), Some(ended));
            assert_ne!(own, mark.claim(ended));
            let token = tokens.reservation(&own, &id);
            assert_eq!(tokens.claim(&token, &id, true), Some(own.clone()));
            let different = [
                tokens.mark(&claim, &id, Verb::Rollback),
                tokens.mark(&Claim::random(), &id, Verb::Commit),
                tokens.mark(&claim, &"b".parse().unwrap(), Verb::Commit),
                others.mark(&claim, &id, Verb::Commit),
            ];
            assert!(different.iter().all(|other| other.ended(&own).is_none()));
        }
        assert_eq!(mark.ended(&claim), None);
    }
}
