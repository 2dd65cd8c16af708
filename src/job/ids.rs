//! Ids and the tokens of deliveries: opaque text of `A-Za-z0-9_-`.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::Timestamp;
use super::names::{TextForm, text_type};

const TOKEN_RULE: &str = "1 to 64 of A-Z a-z 0-9 _ -";

fn is_token(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

text_type! {
    /// The id of a job. Those that Tailback makes are ULIDs: they sort in push order on one server.
    JobId, is_token, TOKEN_RULE, TextForm::up_to(64)
}

text_type! {
    /// The id of a batch, made like that of a job.
    BatchId, is_token, TOKEN_RULE, TextForm::up_to(64)
}

text_type! {
    /// The id of an operation over many jobs, made like that of a job.
    BulkId, is_token, TOKEN_RULE, TextForm::up_to(64)
}

text_type! {
    /// The token that a reserve returns with the id of a job; only its holder may settle the job.
    Reservation, is_token, TOKEN_RULE, TextForm::up_to(64)
}

/// The random part of a [`Reservation`]: one for each claim of a store, kept with the jobs it won. It begins with `-`, by which it is
/// distinguished from those of older versions.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Claim(Box<str>);

impl Claim {
    /// What a claim begins with whose tokens are always signed: each that this version makes. What older versions claimed for one request
    /// mostly begins otherwise, also where they signed its tokens, and this one may repeat such a request: while keys are not required, its
    /// tokens are understood unsigned as well. Of the claims of the versions that signed none, one in 64 begins like this by chance.
    pub(super) const SIGNED: &str = "-";

    /// Returns a fresh one: 114 random bits.
    pub fn random() -> Self {
        let mut text = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 15]>());
        text.replace_range(..1, Self::SIGNED);
        Self(text.into())
    }

    /// Returns the claim of a call with this id, the same at every server. What it wins has no tokens that anybody could derive: these
    /// are signed.
    pub fn of_call(id: &str) -> Self {
        let digest = Sha256::digest(id);
        let mut text = URL_SAFE_NO_PAD.encode(digest.get(..15).unwrap_or_default());
        text.replace_range(..1, Self::SIGNED);
        Self(text.into())
    }

    /// Returns the claim that a store has kept.
    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text itself, as a store keeps it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

const CLAIM_LEN: usize = 20;
/// The length of the tail of a token that is signed: 66 bits.
const SIGNED_LEN: usize = 11;
/// The length of the tail of one that is not.
const PLAIN_LEN: usize = 6;

/// Makes and reads the tokens of reservations. A token is the claim and a tail, so that each delivery has a token of its own
/// although one claim wins many jobs.
///
/// The tail is a signature that only the servers over one database can make, since they share a secret: the holder of one job cannot
/// derive the tokens of others, also where one claim won jobs for several requests. While keys are not required, a token of an older
/// version is understood as well, whose tail is the end of the job's id: for claims that this version cannot have made, or the
/// holder of one of its tokens could write those of the other jobs.
#[derive(Clone)]
pub struct Tokens(Hmac<Sha256>);

impl Tokens {
    /// Signs tokens with this secret.
    pub fn new(secret: &[u8; 32]) -> Self {
        let mut block = [0; 64]; // HMAC pads a short key with zeros
        block[..32].copy_from_slice(secret);
        Self(Hmac::new(&block.into()))
    }

    /// Returns the signature of a text for another purpose than tokens, which no token can be.
    pub fn sign(&self, purpose: &str, text: &[u8]) -> String {
        let mut mac = self.0.clone();
        mac.update(&[0]); // what is signed for a token begins with a claim
        mac.update(purpose.as_bytes());
        mac.update(&[0]);
        mac.update(text);
        URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
    }

    fn signature(&self, claim: &str, id: &JobId) -> String {
        let mut mac = self.0.clone();
        mac.update(claim.as_bytes());
        mac.update(&[0]); // no token has it
        mac.update(id.as_str().as_bytes());
        let code = mac.finalize().into_bytes();
        // Three bytes are four characters: no more is written than is kept.
        let mut signature = URL_SAFE_NO_PAD.encode(&code[..SIGNED_LEN.div_ceil(4) * 3]);
        signature.truncate(SIGNED_LEN);
        signature
    }

    /// Returns the reservation of one of the jobs that this claim won.
    pub fn reservation(&self, claim: &Claim, id: &JobId) -> Reservation {
        Reservation(format!("{}{}", claim.0, self.signature(&claim.0, id)).into())
    }

    /// Returns the claim behind a token, if it is a token of this job; where it must be `signed`, only if it is.
    pub fn claim(&self, token: &Reservation, id: &JobId, signed: bool) -> Option<Claim> {
        let (claim, tail) = token.as_str().split_at_checked(CLAIM_LEN)?;
        let is_plain = || !claim.starts_with(Claim::SIGNED) && tail == plain_tail(id);
        let is_signed = || -> bool { self.signature(claim, id).as_bytes().ct_eq(tail.as_bytes()).into() };
        ((!signed && is_plain()) || is_signed()).then(|| Claim(claim.into()))
    }
}

fn plain_tail(id: &JobId) -> &str {
    let text = id.as_str();
    &text[text.len().saturating_sub(PLAIN_LEN)..]
}

impl JobId {
    /// Returns the id that none is below which is made at this moment or later.
    pub fn first_of(at: Timestamp) -> Self {
        let millis = u64::try_from(at.millis()).unwrap_or(0);
        Self(ulid::Ulid::from_parts(millis, 0).to_string().into())
    }
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

    /// Returns the next id, for an operation over many jobs.
    pub fn next_bulk(&self, now: Timestamp) -> BulkId {
        BulkId(self.next(now).0)
    }

    /// Returns the next id, for a batch.
    pub fn next_batch(&self, now: Timestamp) -> BatchId {
        BatchId(self.next(now).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim that an older version made.
    const OLDER: &str = "0123456789abcdefghij";

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
        let (tokens, others) = (Tokens::new(&[1; 32]), Tokens::new(&[2; 32]));
        for claim in [Claim::random(), Claim::from_stored(OLDER)] {
            let token = tokens.reservation(&claim, &one);
            for signed in [false, true] {
                assert_eq!(tokens.claim(&token, &one, signed), Some(claim.clone()));
                assert_eq!(tokens.claim(&token, &two, signed), None);
                assert_eq!(others.claim(&token, &one, signed), None);
            }
            assert_ne!(token, tokens.reservation(&claim, &two));
            let short: JobId = "x".parse().unwrap();
            assert_eq!(tokens.claim(&tokens.reservation(&claim, &short), &short, false), Some(claim));
        }
        assert_eq!(tokens.claim(&"short".parse().unwrap(), &one, false), None);
    }

    #[test]
    fn an_unsigned_token_is_that_of_an_older_version() {
        let (tokens, id) = (Tokens::new(&[1; 32]), IdSource::default().next(Timestamp::from_millis(1)));
        let plain = |claim: &Claim| -> Reservation {
            format!("{}{}", claim.as_str(), plain_tail(&id)).parse().unwrap()
        };
        let older = Claim::from_stored(OLDER);
        assert_eq!(tokens.claim(&plain(&older), &id, false), Some(older.clone()));
        assert_eq!(tokens.claim(&plain(&older), &id, true), None);
        for _ in 0..500 {
            let own = Claim::random();
            assert_eq!(own.as_str().len(), CLAIM_LEN);
            assert_eq!(tokens.claim(&plain(&own), &id, false), None);
        }
    }

    #[test]
    fn malformed_tokens_do_not_parse() {
        for bad in ["", "a b", "é", "a.b", &"x".repeat(65)] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
    }
}
