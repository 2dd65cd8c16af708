//! API keys, and the secret of reservation tokens.

use tailback::job::{ApiKey, Rate, Scope, SecretHash, StoredKeyId, Timestamp};
use tailback::store::{RestoreMark, Store, StoredKeys};

fn key(scopes: &[Scope], queues: &[&str]) -> ApiKey {
    let id = ApiKey::fresh_id();
    ApiKey {
        hash: SecretHash::of(&ApiKey::fresh_text(&id)),
        id,
        name: "the mailer, v2".parse().unwrap(),
        scopes: scopes.to_vec(),
        queues: queues.iter().map(|text| text.parse().unwrap()).collect(),
        created_at: Timestamp::from_millis(1_700_000_000_123),
        expires_at: None,
        rate: None,
        max_concurrent: None,
        last_used_at: None,
    }
}

/// All keys, as they are read and as they are remembered.
async fn all(store: &dyn Store) -> Vec<ApiKey> {
    let StoredKeys { keys, unreadable } = store.api_keys().await.unwrap();
    let remembered = store.settings(None).await.unwrap().unwrap().api_keys;
    assert_eq!((&remembered.keys, remembered.unreadable, unreadable), (&keys, Vec::new(), Vec::new()));
    keys
}

async fn revision(store: &dyn Store) -> i64 {
    store.settings(None).await.unwrap().unwrap().revision
}

pub async fn api_keys_come_back_as_they_were_stored(store: &dyn Store) {
    assert!(all(store).await.is_empty());
    let full = ApiKey {
        expires_at: Some(Timestamp::from_millis(1_800_000_000_456)),
        last_used_at: Some(Timestamp::from_millis(1_700_000_000_789)),
        rate: Some(Rate { limit: 1_000_000, per_ms: 86_400_000 }),
        max_concurrent: Some(u32::MAX),
        ..key(&Scope::ALL[..4], &["mail.*", "reports", "*"])
    };
    let mut keys = vec![full, key(&[Scope::Admin], &[])];
    for key in &keys {
        store.add_api_key(key).await.unwrap();
    }
    keys.sort_by(|one, other| one.id.cmp(&other.id));
    assert_eq!(all(store).await, keys);
}

pub async fn changes_of_api_keys_raise_the_revision(store: &dyn Store) {
    let (one, other) = (key(&[Scope::Read], &[]), key(&[Scope::Push], &["a"]));
    let mut last = revision(store).await;
    let mut raised = async |store: &dyn Store| {
        let now = revision(store).await;
        std::mem::replace(&mut last, now) < now
    };
    store.add_api_key(&one).await.unwrap();
    assert!(raised(store).await);
    store.add_api_key(&other).await.unwrap();
    assert!(raised(store).await);
    let fresh = SecretHash::of("fresh");
    assert!(store.rotate_api_key(&one.id, &fresh).await.unwrap());
    assert!(raised(store).await);
    let at = Timestamp::from_millis(1_700_000_100_000);
    store.note_api_key_uses(&[(one.id.clone(), at), (ApiKey::fresh_id(), at)]).await.unwrap();
    assert!(!raised(store).await, "each use of a key would be read by every server");
    assert!(store.remove_api_key(&StoredKeyId::from(&other.id)).await.unwrap());
    assert!(raised(store).await);
    assert_eq!(all(store).await, [ApiKey { hash: fresh, last_used_at: Some(at), ..one }]);
}

pub async fn an_api_key_that_is_gone_stays_gone(store: &dyn Store) {
    let gone = key(&[Scope::Read], &[]);
    store.add_api_key(&gone).await.unwrap();
    assert!(store.remove_api_key(&StoredKeyId::from(&gone.id)).await.unwrap());
    assert!(!store.remove_api_key(&StoredKeyId::from(&gone.id)).await.unwrap());
    assert!(!store.rotate_api_key(&gone.id, &gone.hash).await.unwrap());
    store.note_api_key_uses(&[(gone.id.clone(), store.now().unwrap())]).await.unwrap();
    assert!(all(store).await.is_empty());
}

pub async fn the_last_use_of_an_api_key_is_the_latest(store: &dyn Store) {
    let used = key(&[Scope::Read], &[]);
    store.add_api_key(&used).await.unwrap();
    for millis in [1_700_000_200_000, 1_700_000_100_000] {
        let at = Timestamp::from_millis(millis);
        store.note_api_key_uses(&[(used.id.clone(), at)]).await.unwrap();
    }
    assert_eq!(all(store).await[0].last_used_at, Some(Timestamp::from_millis(1_700_000_200_000)));
}

pub async fn the_secret_of_tokens_is_made_once(store: &dyn Store) {
    assert_eq!(store.stored_secret().await.unwrap(), None);
    let (one, other) = tokio::join!(store.token_secret([1; 32]), store.token_secret([2; 32]));
    let secret = one.unwrap();
    assert_eq!(secret, other.unwrap());
    assert!([[1; 32], [2; 32]].contains(&secret));
    assert_eq!(store.token_secret([3; 32]).await.unwrap(), secret);
    assert_eq!(store.stored_secret().await.unwrap(), Some(secret));
}

pub async fn a_restore_is_noted_until_it_has_ended(store: &dyn Store) {
    let mark = |origin: &str, beat| RestoreMark { origin: origin.to_owned(), beat };
    let (one, other) = (mark("one", 1), mark("other", 2));
    let set = async |seen: Option<&RestoreMark>, to: Option<&RestoreMark>| {
        store.mark_restoring(seen, to).await.unwrap()
    };
    assert_eq!(store.restoring().await.unwrap(), None);
    // Of two at once one sets its mark.
    let both = tokio::join!(set(None, Some(&one)), set(None, Some(&other)));
    assert!(both.0 != both.1, "{both:?}");
    let (mine, theirs) = if both.0 { (&one, &other) } else { (&other, &one) };
    assert_eq!(store.restoring().await.unwrap().as_ref(), Some(mine));
    assert!(set(None, Some(mine)).await, "a repeat after an unknown outcome");
    assert!(!set(Some(theirs), None).await && !set(Some(&mark(&mine.origin, 9)), None).await);
    let next = mark(&mine.origin, 3);
    assert!(set(Some(mine), Some(&next)).await);
    assert!(!set(Some(mine), Some(&mark(&mine.origin, 4))).await, "it was taken over");
    assert_eq!(store.restoring().await.unwrap().as_ref(), Some(&next));
    for _ in 0..2 {
        assert!(set(Some(&next), None).await);
        assert_eq!(store.restoring().await.unwrap(), None);
    }
    let secret = store.token_secret([1; 32]).await.unwrap();
    assert_eq!(store.token_secret([2; 32]).await.unwrap(), secret);
}
