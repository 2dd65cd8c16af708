//! The claims of jobs that a settle takes with it (`next`): they bear a mark that is derived from what was settled, so that a repeat of
//! the settle finds the jobs at any server, without a record.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::receipt::RETAIN_MS;
use super::state::{Verb, Visible};
use super::transition::Outcome;
use super::{Claim, JobId, Meta, Timestamp, Tokens};

/// What the claims begin with that were made for the settle of one delivery.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mark(Box<str>);

/// How long the rest of such a claim is behind the letter that says how the settle ended.
const REST_LEN: usize = 8;

/// For how long a commit must be proven by the absence of its job at least, in milliseconds, so that the next jobs are claimed while it is
/// carried out.
pub const PROOF_MS: u64 = 10_000;
/// How long before they end a proof must not count on the reservation, nor on receipts, in milliseconds.
const MARGINS_MS: (u64, u64) = (1000, 60_000);

/// How long the time is with which that rest begins where a claim was made beside a commit: 24 bits in base64.
const SECONDS_LEN: usize = 4;
/// The seconds after which that time begins again: half a year.
const SECONDS: u32 = 1 << 24;
/// How far that time may lie ahead of the claim's own, in seconds: as far as a receipt is kept, and some, since one is the latest that the
/// clock may show, and the other the earliest.
const AHEAD_S: u32 = RETAIN_MS as u32 / 1000 + 60;

fn seconds_of(time: Timestamp) -> u32 {
    u32::try_from(time.millis().div_euclid(1000).rem_euclid(i64::from(SECONDS))).unwrap_or_default()
}

/// How a settle ended, as far as the claims say that were made for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The job is done.
    Done,
    /// The commit was sent together with the claim: neither proves the other. The job's absence proves the commit until
    /// [`Mark::proven_until`].
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

/// Returns until when the absence of a job proves that the holder of its delivery has committed it: its reservation has certainly not run
/// out, and what else may have ended it early has left a receipt, which is still kept.
pub fn proven_by_absence_until(meta: &Meta) -> Option<Timestamp> {
    let reserved = meta.reserved_until?.minus_ms(MARGINS_MS.0);
    Some(reserved.min(meta.started_at?.plus_ms(RETAIN_MS).minus_ms(MARGINS_MS.1)))
}

const LETTERS: [(Ended, char); 8] = [
    (Ended::Done, 'd'),
    (Ended::Sent, 'q'),
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

    /// Returns a fresh claim for what is taken while a commit is carried out that the absence of its job proves until this time.
    pub fn claim_beside(&self, until: Timestamp) -> Claim {
        let claim = self.claim(Ended::Sent);
        let (begin, random) = claim.as_str().split_at(Self::LEN + 1);
        let [_, seconds @ ..] = seconds_of(until).to_be_bytes();
        let random = random.get(..REST_LEN - SECONDS_LEN).unwrap_or_default();
        Claim::from_stored(&format!("{begin}{}{random}", URL_SAFE_NO_PAD.encode(seconds)))
    }

    /// Returns the time until which the absence of the job proves the commit beside this claim, which won something at `claimed_at`: rounded
    /// down to a second, so that a proof by it ends early.
    pub fn proven_until(&self, claim: &Claim, claimed_at: Timestamp) -> Option<Timestamp> {
        let rest = claim.as_str().strip_prefix(&*self.0)?.get(1..=SECONDS_LEN)?;
        let [high, middle, low] = <[u8; 3]>::try_from(URL_SAFE_NO_PAD.decode(rest).ok()?).ok()?;
        let seconds = u32::from_be_bytes([0, high, middle, low]);
        let ahead = seconds_of(claimed_at).wrapping_add(AHEAD_S).wrapping_sub(seconds) % SECONDS;
        let before = i64::from(ahead) - i64::from(AHEAD_S);
        Some(Timestamp::from_millis((claimed_at.millis().div_euclid(1000) - before) * 1000))
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

    #[test]
    fn a_claim_beside_a_commit_says_until_when_that_is_proven() {
        let mark = Tokens::new(&[1; 32]).mark(&Claim::random(), &"a".parse().unwrap(), Verb::Commit);
        let begins_again = i64::from(SECONDS) * 1000 * 106;
        for until in [0, 1_795_000_000_999, begins_again - 1, begins_again] {
            let claim = mark.claim_beside(Timestamp::from_millis(until));
            assert_eq!(claim.as_str().len(), Claim::random().as_str().len());
            assert_eq!(mark.ended(&claim), Some(Ended::Sent));
            assert_ne!(claim, mark.claim_beside(Timestamp::from_millis(until)));
            for later in [-659_000, -59_000, 0, 1, 1_001, 86_400_000] {
                let found = mark.proven_until(&claim, Timestamp::from_millis(until + later));
                assert_eq!(found, Some(Timestamp::from_millis(until / 1000 * 1000)), "{until} {later}");
            }
        }
        assert_eq!(mark.proven_until(&Claim::random(), Timestamp::default()), None);
    }
}
