//! Receipts: what a call did, kept so that its repeat gets the same response after the job has changed or gone.

use super::state::Verb;
use super::transition::{Operation, Outcome};
use super::{Child, Claim, JobId, Meta, QueueName, Timestamp};

/// How long a receipt is kept, in milliseconds.
pub const RETAIN_MS: u64 = 600_000;

/// The verbs that leave receipts, and the words that stores keep for them.
const WORDS: [(Verb, &str); 3] = [(Verb::Commit, "commit"), (Verb::Move, "move"), (Verb::Cancel, "cancel")];

/// What a call with this claim did to a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    /// The job.
    pub id: JobId,
    /// The claim that the call was made with; of a [`Verb::Cancel`], the claim that lost the job.
    pub claim: Claim,
    /// What was done.
    pub verb: Verb,
    /// The queue that the job was in.
    pub queue: QueueName,
    /// What became of the job.
    pub outcome: Outcome,
    /// When the job had last been delivered.
    pub started_at: Option<Timestamp>,
    /// The jobs that were stored with it.
    pub pushed: Vec<Child>,
    /// When it was done.
    pub at: Timestamp,
}

/// Where the job of a receipt went on: the fields that a store keeps of the outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WentTo {
    /// The queue.
    pub queue: QueueName,
    /// When it was due there.
    pub run_at: Timestamp,
    /// Whether it was blocked there.
    pub blocked: bool,
}

impl Receipt {
    /// Returns the receipt of a call by the holder of the job, unless no claim held it.
    pub fn new(
        verb: Verb,
        before: &Meta,
        outcome: &Outcome,
        pushed: &[Child],
        at: Timestamp,
    ) -> Option<Self> {
        Some(Self {
            id: before.id.clone(),
            claim: before.claim.clone()?,
            verb,
            queue: before.queue.clone(),
            outcome: outcome.clone(),
            started_at: before.started_at,
            pushed: pushed.to_vec(),
            at,
        })
    }

    /// Returns until when it is kept.
    pub fn until(&self) -> Timestamp {
        self.at.plus_ms(RETAIN_MS)
    }

    /// Returns when the call of a receipt was made that is kept until then.
    pub fn made_at(until: Timestamp) -> Timestamp {
        Timestamp::from_millis(until.millis().saturating_sub_unsigned(RETAIN_MS))
    }

    /// Returns where the job went on, if it did.
    pub fn went_to(&self) -> Option<WentTo> {
        match &self.outcome {
            Outcome::Returned { queue, run_at, blocked } => {
                Some(WentTo { queue: queue.clone(), run_at: *run_at, blocked: *blocked })
            }
            _ => None,
        }
    }

    /// Returns the outcome that [`went_to`](Self::went_to) was taken from.
    pub fn outcome_of(verb: Verb, went_to: Option<WentTo>) -> Outcome {
        match (went_to, verb) {
            (Some(WentTo { queue, run_at, blocked }), _) => Outcome::Returned { queue, run_at, blocked },
            (None, Verb::Commit) => Outcome::Done,
            (None, _) => Outcome::Removed,
        }
    }
}

/// Returns the word that a store keeps, for a verb that leaves receipts.
pub fn word(verb: Verb) -> Option<&'static str> {
    WORDS.iter().find(|(known, _)| *known == verb).map(|(_, word)| *word)
}

/// Returns the verb of a word that a store has kept.
pub fn verb(word: &str) -> Option<Verb> {
    WORDS.iter().find(|(_, known)| *known == word).map(|(verb, _)| *verb)
}

impl Operation {
    /// Whether its repeat needs a receipt, since the job does not show the outcome: it went on elsewhere, left other
    /// jobs behind, or was counted in its batch.
    pub fn leaves_receipt(&self, before: &Meta, outcome: &Outcome) -> bool {
        match self {
            Self::Move { .. } => true,
            Self::Commit { push, .. } => {
                !push.is_empty() || *outcome != Outcome::Done || before.batch.is_some()
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_outcomes_round_trip() {
        for (known, text) in WORDS {
            assert_eq!((word(known), verb(text)), (Some(text), Some(known)));
        }
        assert_eq!((word(Verb::Extend), verb("extend")), (None, None));
        let queue: QueueName = "q".parse().unwrap();
        let returned = Outcome::Returned { queue, run_at: Timestamp::from_millis(7), blocked: true };
        let outcomes =
            [(Verb::Commit, Outcome::Done), (Verb::Move, Outcome::Removed), (Verb::Move, returned)];
        for (verb, outcome) in outcomes {
            let receipt = Receipt {
                id: "J".parse().unwrap(),
                claim: Claim::random(),
                verb,
                queue: "q".parse().unwrap(),
                outcome: outcome.clone(),
                started_at: None,
                pushed: Vec::new(),
                at: Timestamp::from_millis(9),
            };
            assert_eq!(Receipt::made_at(receipt.until()), receipt.at);
            assert_eq!(Receipt::outcome_of(verb, receipt.went_to()), outcome);
        }
    }
}
