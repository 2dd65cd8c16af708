//! API keys, and the secret of reservation tokens, with which tokens that are in use stay valid.

use std::collections::BTreeMap;

use anyhow::bail;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use super::verify::Verdict;
use super::{Hold, with_retries};
use crate::job::{ApiKey, ApiKeyId, Filter, Visible};
use crate::store::{Store, UnreadableKey, listed_id};

type All = BTreeMap<ApiKeyId, ApiKey>;

/// How many of the keys that cannot be read are named.
const NAMED: usize = 10;

/// Returns the keys of the source or the target, as `side` says. When they were used last is no difference.
async fn all(store: &dyn Store, side: &str) -> anyhow::Result<All> {
    let mut stored = with_retries(async || store.api_keys().await).await?;
    stored.tame();
    if let Some(refusal) = refusal(&stored.unreadable, side) {
        bail!(refusal);
    }
    let bare = |key: ApiKey| (key.id.clone(), ApiKey { last_used_at: None, ..key });
    Ok(stored.keys.into_iter().map(bare).collect())
}

/// Returns what is to be done about the keys that cannot be read, if there are any.
fn refusal(unreadable: &[UnreadableKey], side: &str) -> Option<String> {
    let named = unreadable.iter().take(NAMED).map(|UnreadableKey { id, why }| format!("{id} ({why})"));
    let others = unreadable.len().saturating_sub(NAMED);
    let others = (others > 0).then(|| format!("{others} more"));
    let all: Vec<String> = named.chain(others).collect();
    let what = "cannot be read; delete each with `tailback keys delete ID --store URL`";
    (!all.is_empty()).then(|| format!("API keys of the {side} {what}: {}", all.join(", ")))
}

/// Fails if a key of the target is not in the source or differs from it.
pub(super) async fn check(source: &dyn Store, target: &dyn Store) -> anyhow::Result<()> {
    let (wanted, there) = (all(source, "source").await?, all(target, "target").await?);
    match there.iter().find(|(id, key)| wanted.get(id) != Some(key)) {
        Some((id, _)) => bail!(
            "conflict: the API key {id} in the target differs from the source; nothing was written. Start with an \
             empty target"
        ),
        None => Ok(()),
    }
}

/// Returns what distinguishes this store from others: a digest of its secret.
pub(super) async fn origin(source: &dyn Store) -> anyhow::Result<String> {
    let fresh = rand::random();
    let secret = with_retries(async || source.token_secret(fresh).await).await?;
    let digest = Sha256::new().chain_update(b"origin of a copy\0").chain_update(secret).finalize();
    Ok(URL_SAFE_NO_PAD.encode(&digest[..16]))
}

/// Returns whether the target has the secret of the source.
pub(super) async fn has_secret_of(source: &dyn Store, target: &dyn Store) -> anyhow::Result<bool> {
    let there = with_retries(async || target.stored_secret().await).await?;
    Ok(there.is_some() && there == with_retries(async || source.stored_secret().await).await?)
}

/// Copies the secret; to be called before anything else is written. Where the target has a secret of its own, nothing is, and this fails
/// if a job of the source is reserved: at the target its token would be refused, and its work be done twice.
pub(super) async fn copy_secret(source: &dyn Store, hold: &Hold) -> anyhow::Result<()> {
    let fresh = rand::random();
    let secret = with_retries(async || source.token_secret(fresh).await).await?;
    if hold.with_retries(async || hold.target().token_secret(secret).await).await? == secret {
        return Ok(());
    }
    let reserved = Filter { states: vec![Visible::Reserved], ..Filter::default() };
    let held = with_retries(async || source.find(&reserved, None, 1).await).await?;
    if let Some(job) = held.first() {
        bail!(
            "a server has run on the target, which has a secret of its own: the tokens of jobs that are reserved in the \
             source, such as {id}, would be refused there; nothing was written. Start with an empty target on which no \
             server has run, or start a server on the source and end the reserved jobs first",
            id = listed_id(job)
        );
    }
    tracing::warn!(
        "a server has run on the target, which has a secret of its own: repeats of commits and other calls with tokens of \
         the source will be refused, and sessions of the dashboard end"
    );
    Ok(())
}

/// Copies the keys.
pub(super) async fn copy(source: &dyn Store, hold: &Hold) -> anyhow::Result<()> {
    let target = hold.target();
    let there = all(target, "target").await?;
    for key in with_retries(async || source.api_keys().await).await?.keys {
        if !there.contains_key(&key.id) {
            hold.with_retries(async || target.add_api_key(&key).await).await?;
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
    let (ours, theirs) = (all(source, "source").await?, all(target, "target").await?);
    (verdict.source.api_keys, verdict.target.api_keys) = (ours.len(), theirs.len());
    let ids: std::collections::BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    for id in ids {
        if ours.get(id) != theirs.get(id) {
            verdict.differ(|| format!("the API key {id} differs"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::StoredKeyId;

    #[test]
    fn ten_of_the_keys_that_cannot_be_read_are_named() {
        let key = |n: usize| UnreadableKey {
            id: StoredKeyId::of_text(&format!("k{n}")),
            why: "a fault".to_owned(),
        };
        let told = |count: usize| refusal(&(1..=count).map(key).collect::<Vec<_>>(), "source");
        assert_eq!(told(0), None);
        let two = "API keys of the source cannot be read; delete each with `tailback keys delete ID --store URL`: \
                   k1 (a fault), k2 (a fault)";
        assert_eq!(told(2).as_deref(), Some(two));
        assert!(told(10).unwrap().ends_with(", k10 (a fault)"));
        assert!(told(12).unwrap().ends_with(", k10 (a fault), 2 more"));
    }
}
