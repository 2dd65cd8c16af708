//! What a request has shown, and whether that still holds where the request acts later than it was judged: behind a body that
//! came slowly, or after a wait for jobs.

use std::sync::Arc;
use std::time::Duration;

use super::{Error, Queues, Result};
use crate::job::ApiKey;
use crate::job::access::EXPIRY_MAX_MS;

/// What a request has shown.
#[derive(Debug, Clone)]
pub enum Credential {
    /// Nothing that can end: the admin key of the configuration, or nothing where nothing is needed.
    Lasting,
    /// Nothing, while there were no keys.
    NoKey,
    /// A key, or a session of it.
    Key(Arc<Shown>),
}

/// A key that a request has shown.
#[derive(Debug)]
pub struct Shown {
    /// The key.
    pub key: Arc<ApiKey>,
    /// What [`Queues::narrowings`] returned before the key was recognised.
    pub narrowings: u64,
}

impl Queues {
    /// Returns a number that is another one as soon as something that a key allowed may not be any more.
    pub fn narrowings(&self) -> u64 {
        self.0.keys.narrowings()
    }

    /// Refuses what does not hold any more.
    pub fn check_credential(&self, credential: &Credential) -> Result<()> {
        match credential {
            Credential::Lasting => Ok(()),
            Credential::NoKey if self.has_api_keys() == Some(false) => Ok(()),
            Credential::NoKey => Err(Error::Unauthorized("a key is required by now")),
            Credential::Key(shown) => self.check_shown(shown),
        }
    }

    fn check_shown(&self, Shown { key: shown, narrowings }: &Shown) -> Result<()> {
        // Most requests act at once: nothing has changed, and nothing needs to be looked up.
        let is_unchanged = *narrowings == self.narrowings();
        if is_unchanged && shown.expires_at.is_none() {
            return Ok(());
        }
        let is_kept = || self.stored_api_key(&shown.id).is_some_and(|key| key.allows_like(shown));
        if !is_unchanged && !is_kept() {
            return Err(Error::Unauthorized("the key was deleted or replaced"));
        }
        if shown.is_expired(self.now()?) {
            return Err(Error::Unauthorized("the key has expired"));
        }
        Ok(())
    }

    /// Returns as soon as this does not hold any more, and why.
    pub async fn ended(&self, credential: &Credential) -> Error {
        if matches!(credential, Credential::Lasting) {
            return std::future::pending().await;
        }
        loop {
            let narrowed = self.0.keys.narrowed(); // before the check: nothing is missed in between
            if let Err(error @ Error::Unauthorized(_)) = self.check_credential(credential) {
                return error;
            }
            let _ = tokio::time::timeout(self.lasts(credential), narrowed).await;
        }
    }

    /// Returns after which time a key expires.
    fn lasts(&self, credential: &Credential) -> Duration {
        let expires_at = match credential {
            Credential::Key(shown) => shown.key.expires_at,
            Credential::Lasting | Credential::NoKey => None,
        };
        let ms = expires_at.zip(self.now().ok()).map_or(EXPIRY_MAX_MS, |(at, now)| at.ms_since(now));
        Duration::from_millis(ms.max(1))
    }
}
