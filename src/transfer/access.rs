//! API keys, and the secret of reservation tokens, with which tokens that are in use stay valid.

use std::collections::BTreeMap;

use anyhow::bail;

use super::verify::Verdict;
use super::with_retries;
use crate::job::{ApiKey, ApiKeyId};
use crate::store::{Store, UnreadableKey};

type All = BTreeMap<ApiKeyId, ApiKey>;

/// Returns the keys. When they were used last is no difference.
async fn all(store: &dyn Store) -> anyhow::Result<All> {
    let stored = with_retries(async || store.api_keys().await).await?;
    if let Some(UnreadableKey { id, why }) = stored.unreadable.first() {
        bail!("the API key {id} cannot be read ({why}); delete it with DELETE /v1/keys/{id}");
    }
    let bare = |key: ApiKey| (key.id.clone(), ApiKey { last_used_at: None, ..key });
    Ok(stored.keys.into_iter().map(bare).collect())
}

/// Fails if a key of the target is not in the source or differs from it.
pub(super) async fn check(source: &dyn Store, target: &dyn Store) -> anyhow::Result<()> {
    let (wanted, there) = (all(source).await?, all(target).await?);
    match there.iter().find(|(id, key)| wanted.get(id) != Some(key)) {
        Some((id, _)) => bail!(
            "conflict: the API key {id} in the target differs from the source; nothing was written. Start with an \
             empty target"
        ),
        None => Ok(()),
    }
}

/// Copies the keys and the secret.
pub(super) async fn copy(source: &dyn Store, target: &dyn Store) -> anyhow::Result<()> {
    let fresh = rand::random();
    let secret = with_retries(async || source.token_secret(fresh).await).await?;
    if with_retries(async || target.token_secret(secret).await).await? != secret {
        tracing::warn!(
            "a server has run on the target, which has a secret of its own: where keys are required, the tokens of jobs \
             that are reserved now will be refused"
        );
    }
    let there = all(target).await?;
    for key in with_retries(async || source.api_keys().await).await?.keys {
        if !there.contains_key(&key.id) {
            with_retries(async || target.add_api_key(&key).await).await?;
        }
    }
    Ok(())
}

/// Compares the keys of both stores.
pub(super) async fn compare(
    source: &dyn Store,
    target: &dyn Store,
    verdict: &mut Verdict,
) -> anyhow::Result<()> {
    let (ours, theirs) = (all(source).await?, all(target).await?);
    (verdict.source.api_keys, verdict.target.api_keys) = (ours.len(), theirs.len());
    let ids: std::collections::BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    for id in ids {
        if ours.get(id) != theirs.get(id) {
            verdict.differ(|| format!("the API key {id} differs"));
        }
    }
    Ok(())
}
