//! API keys, and the secret of reservation tokens.

use async_trait::async_trait;
use futures::TryStreamExt;
use mongodb::bson::{Binary, Bson, Document, doc, spec::BinarySubtype};
use mongodb::options::ReadConcern;

use crate::job::{ApiKey, ApiKeyId, Rate, Scope, SecretHash, StoredKeyId, Timestamp};
use crate::store::mongo::API_KEYS;
use crate::store::mongo::META;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::mongo::revision;
use crate::store::mongo::stored::{Stored, deletion};
use crate::store::mongo::transaction::{self, Transaction, Tx, TxError, Verdict};
use crate::store::{Access, Result, StoreError, StoredKeys, TokenSecret, UnreadableKey, chain};

/// The id of the secret of reservation tokens.
const SECRET: &str = "reservations";

#[async_trait]
impl Access for Mongo {
    async fn api_keys(&self) -> Result<StoredKeys> {
        self.connection.within(stored(self)).await
    }

    async fn stored_secret(&self) -> Result<Option<TokenSecret>> {
        self.connection.within(stored_secret(self)).await
    }

    async fn token_secret(&self, fresh: TokenSecret) -> Result<TokenSecret> {
        self.connection.within(token_secret(self, &fresh)).await
    }

    async fn add_api_key(&self, key: &ApiKey) -> Result<()> {
        change(self, Change::Add(key)).await.map(drop)
    }

    async fn rotate_api_key(&self, id: &ApiKeyId, hash: &SecretHash) -> Result<bool> {
        change(self, Change::Rotate(id, hash)).await
    }

    async fn remove_api_key(&self, id: &StoredKeyId) -> Result<bool> {
        let stored = match id.as_stored() {
            Some(text) => Some(Stored::from(doc! { "_id": text })),
            None => self.connection.within(named(self, id)).await?,
        };
        match stored {
            Some(stored) => change(self, Change::Remove(&stored)).await,
            None => Ok(false),
        }
    }

    async fn note_api_key_uses(&self, uses: &[(ApiKeyId, Timestamp)]) -> Result<()> {
        let noting = async {
            let keys = self.collection(API_KEYS).await?;
            for (id, at) in uses {
                let update = doc! { "$max": { "last_used_at": date(*at) } };
                keys.update_one(doc! { "_id": id.as_str() }, update).await.map_err(fault)?;
            }
            Ok(())
        };
        self.connection.within(noting).await
    }
}

/// Returns all keys. One that another program spoiled must not make the others unknown.
pub async fn stored(mongo: &Mongo) -> Result<StoredKeys> {
    let all = mongo.collection(API_KEYS).await?;
    let cursor = all.find(Document::new()).sort(doc! { "_id": 1 }).await.map_err(fault)?;
    let documents: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
    let mut stored = StoredKeys::default();
    for document in &documents {
        match parse(document) {
            Ok(key) => stored.keys.push(key),
            Err(error) => {
                stored.unreadable.push(UnreadableKey { id: name(document)?, why: why(document, &error) });
            }
        }
    }
    Ok(stored)
}

/// Returns what names the key of a document.
fn name(document: &Stored) -> Result<StoredKeyId> {
    match document.get_str("_id") {
        Ok(text) => Ok(StoredKeyId::of_text(text)),
        Err(_) => Ok(StoredKeyId::of_bytes(document.id()?.as_bytes())),
    }
}

/// Returns what is wrong with a document. Its id may be as large as another program likes.
fn why(document: &Document, error: &StoreError) -> String {
    let id = document.get("_id").filter(|_| Row(document).text::<ApiKeyId>("_id").is_err());
    let Some(id) = id else { return chain(error) };
    format!("its _id is not the id of a key: {:.200}", id.to_string())
}

/// Returns the document of the key of this name, with its `_id` alone.
async fn named(mongo: &Mongo, id: &StoredKeyId) -> Result<Option<Stored>> {
    let ids = mongo.collection(API_KEYS).await?;
    let find = ids.find(Document::new()).projection(doc! { "_id": 1 });
    let documents: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    for document in documents {
        if name(&document)? == *id {
            return Ok(Some(document));
        }
    }
    Ok(None)
}

/// Reads a key from its document.
pub fn parse(document: &Document) -> Result<ApiKey> {
    let row = Row(document);
    Ok(ApiKey {
        id: row.text("_id")?,
        name: row.text("name")?,
        hash: SecretHash::from_stored(bytes(document, "hash")?),
        scopes: texts::<Scope>(document, "scopes")?,
        queues: texts(document, "queues")?,
        created_at: row.time("created_at")?.ok_or_else(|| row.fault("created_at"))?,
        expires_at: row.time("expires_at")?,
        rate: row.part("rate")?,
        max_concurrent: row.some("max_concurrent", |row, field| row.number(field))?,
        last_used_at: row.time("last_used_at")?,
    })
}

/// Reads a secret or its hash.
pub fn bytes(document: &Document, field: &str) -> Result<[u8; 32]> {
    let bytes = document.get_binary_generic(field).ok();
    bytes.and_then(|bytes| bytes.as_slice().try_into().ok()).ok_or_else(|| Row(document).fault(field))
}

/// Reads a list of texts, which must be there: a key without patterns is for all queues.
fn texts<T: std::str::FromStr>(document: &Document, field: &str) -> Result<Vec<T>> {
    let fault = || Row(document).fault(field);
    let list = document.get_array(field).map_err(|_| fault())?;
    list.iter().map(|text| text.as_str().and_then(|text| text.parse().ok()).ok_or_else(fault)).collect()
}

fn binary(bytes: &[u8; 32]) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() })
}

fn document(key: &ApiKey) -> Document {
    let scopes: Vec<&str> = key.scopes.iter().map(|scope| scope.as_str()).collect();
    let queues: Vec<String> = key.queues.iter().map(ToString::to_string).collect();
    let mut document = doc! {
        "_id": key.id.as_str(),
        "name": key.name.as_str(),
        "hash": binary(key.hash.as_bytes()),
        "scopes": scopes,
        "queues": queues,
        "created_at": date(key.created_at),
    };
    document.extend(key.expires_at.map(|at| ("expires_at".to_owned(), date(at).into())));
    document.extend(key.rate.map(|Rate { limit, per_ms }| {
        let (limit, per_ms) = (limit.cast_signed(), per_ms.cast_signed());
        ("rate".to_owned(), doc! { "limit": limit, "per_ms": per_ms }.into())
    }));
    document.extend(key.max_concurrent.map(|most| ("max_concurrent".to_owned(), i64::from(most).into())));
    document.extend(key.last_used_at.map(|at| ("last_used_at".to_owned(), date(at).into())));
    document
}

/// What is done to a key.
///
/// Idempotence: each is the same when it is done again, since ids and secrets are made before.
#[derive(Clone, Copy)]
enum Change<'a> {
    Add(&'a ApiKey),
    Rotate(&'a ApiKeyId, &'a SecretHash),
    Remove(&'a Stored),
}

async fn change(mongo: &Mongo, change: Change<'_>) -> Result<bool> {
    let end = mongo.connection.end();
    let _one_by_one = revision::turn(mongo, end).await?;
    Ok(transaction::until(mongo, end).retrying_duplicate_keys().run(change).await?)
}

impl Transaction for Change<'_> {
    type Done = bool;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<bool>, TxError> {
        let keys = tx.collection(API_KEYS);
        let is_found = match *self {
            Self::Add(key) => {
                let by_id = doc! { "_id": key.id.as_str() };
                keys.replace_one(by_id, Stored::from(document(key)))
                    .upsert(true)
                    .session(tx.session())
                    .await?;
                true
            }
            Self::Rotate(id, hash) => {
                let update = doc! { "$set": { "hash": binary(hash.as_bytes()) } };
                let by_id = doc! { "_id": id.as_str() };
                keys.update_one(by_id, update).session(tx.session()).await?.matched_count == 1
            }
            Self::Remove(key) => tx.write_raw(deletion(API_KEYS, key.by_id()?)).await? > 0,
        };
        if !is_found {
            return Ok(Verdict::Abort(false));
        }
        revision::raise(tx).await?;
        tx.record().await?;
        Ok(Verdict::Commit(true))
    }
}

/// Returns the secret of reservation tokens, as a majority has it.
async fn stored_secret(mongo: &Mongo) -> Result<Option<TokenSecret>> {
    let meta = mongo.collection(META).await?;
    let find = meta.find_one(doc! { "_id": SECRET }).read_concern(ReadConcern::majority());
    Ok(find.await.map_err(fault)?.and_then(|found| bytes(&found, "secret").ok()))
}

/// Returns that secret. Where there is none, one of several servers that start at once stores its own.
async fn token_secret(mongo: &Mongo, fresh: &TokenSecret) -> Result<TokenSecret> {
    if let Some(secret) = stored_secret(mongo).await? {
        return Ok(secret);
    }
    let attempts = transaction::until(mongo, mongo.connection.end()).retrying_duplicate_keys();
    Ok(attempts.run(MakeSecret(fresh)).await?)
}

/// The secret of reservation tokens, which is stored unless there is one. One that cannot be read is replaced: it must not stop a
/// server.
///
/// Idempotence: a repeat finds what is there.
struct MakeSecret<'a>(&'a TokenSecret);

impl Transaction for MakeSecret<'_> {
    type Done = TokenSecret;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<TokenSecret>, TxError> {
        let (meta, by_id) = (tx.collection(META), doc! { "_id": SECRET });
        let found = meta.find_one(by_id.clone()).session(tx.session()).await?;
        if let Some(secret) = found.and_then(|found| bytes(&found, "secret").ok()) {
            return Ok(Verdict::Commit(secret)); // it must be durable before it is used
        }
        let update = doc! { "q": by_id, "u": { "$set": { "secret": binary(self.0) } }, "upsert": true };
        tx.write(doc! { "update": META, "updates": [update] }).await?;
        Ok(Verdict::Commit(*self.0))
    }
}
