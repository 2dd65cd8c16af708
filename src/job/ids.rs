//! Ids and the tokens of deliveries: opaque text of `A-Za-z0-9_-`.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::Timestamp;
use super::names::text_type;

const TOKEN_RULE: &str = "1 to 64 of A-Z a-z 0-9 _ -";

fn is_token(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

text_type! {
    /// The id of a job. Those that Tailback makes are ULIDs: they sort in push order on one server.
    JobId, is_token, TOKEN_RULE
}

text_type! {
    /// The id of a batch, made like that of a job.
    BatchId, is_token, TOKEN_RULE
}

text_type! {
    /// The token that a reserve returns with the id of a job; only its holder may settle the job.
    Reservation, is_token, TOKEN_RULE
}

/// The random part of a [`Reservation`]: one for each claim of a store, kept with the jobs it won.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Claim(Box<str>);

const CLAIM_LEN: usize = 20;
const TAIL_LEN: usize = 6;

impl Claim {
    /// Returns a fresh one: 120 random bits.
    pub fn random() -> Self {
        Self(URL_SAFE_NO_PAD.encode(rand::random::<[u8; 15]>()).into())
    }

    /// Returns the claim that a store has kept.
    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text itself, as a store keeps it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the reservation of one of the jobs that this claim won. It ends in the tail of the job's id, so
    /// that each delivery has a token of its own although one claim wins many jobs.
    pub fn reservation(&self, id: &JobId) -> Reservation {
        Reservation(format!("{}{}", self.0, tail(id)).into())
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Reservation {
    /// Returns the claim behind this token, if it is a token of this job.
    pub fn claim(&self, id: &JobId) -> Option<Claim> {
        let text = self.as_str();
        let claim = text.get(..CLAIM_LEN)?;
        (text.get(CLAIM_LEN..) == Some(tail(id))).then(|| Claim(claim.into()))
    }
}

fn tail(id: &JobId) -> &str {
    let text = id.as_str();
    &text[text.len().saturating_sub(TAIL_LEN)..]
}

/// Makes job ids that sort in the order in which they were asked for.
#[derive(Default)]
pub struct IdSource {
    last: Mutex<ulid::Generator>,
}

impl IdSource {
    /// Returns the next id. `now` is the store's clock; should it jump backwards, the order still holds.
    pub fn next(&self, now: Timestamp) -> JobId {
        let millis = u64::try_from(now.millis()).unwrap_or(0);
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // A generator overflows after 2^80 ids in one millisecond; a fresh random id is as good then.
        let id = last.generate_from_datetime(time).unwrap_or_else(|_| ulid::Ulid::from_datetime(time));
        JobId(id.to_string().into())
    }

    /// Returns the next id, for a batch.
    pub fn next_batch(&self, now: Timestamp) -> BatchId {
        BatchId(self.next(now).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_in_the_order_of_their_making_even_when_the_clock_steps_back() {
        let ids = IdSource::default();
        let made: Vec<JobId> =
            (0..2000).map(|n| ids.next(Timestamp::from_millis(1_700_000_000_000 - n % 7))).collect();
        assert!(made.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn a_reservation_belongs_to_one_job() {
        let ids = IdSource::default();
        let (one, two) = (ids.next(Timestamp::from_millis(1)), ids.next(Timestamp::from_millis(1)));
        let claim = Claim::random();
        let token = claim.reservation(&one);
        assert_eq!(token.claim(&one), Some(claim.clone()));
        assert_eq!(token.claim(&two), None);
        assert_ne!(token, claim.reservation(&two));
        assert_eq!("short".parse::<Reservation>().unwrap().claim(&one), None);
        assert_eq!(claim.reservation(&"x".parse().unwrap()).claim(&"x".parse().unwrap()), Some(claim));
    }

    #[test]
    fn malformed_tokens_do_not_parse() {
        for bad in ["", "a b", "é", "a.b", &"x".repeat(65)] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
    }
}
