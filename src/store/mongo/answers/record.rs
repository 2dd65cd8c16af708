//! What calls with an `Idempotency-Key` were answered: documents of the collection `requests`, beside those of reserves.

use futures::TryStreamExt;
use mongodb::Collection;
use mongodb::bson::{Binary, Document, doc, spec::BinarySubtype};
use mongodb::options::ReadConcern;

use crate::store::mongo::Mongo;
use crate::store::mongo::REQUESTS;
use crate::store::mongo::client::{fault, parts};
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{Tx, TxError};
use crate::store::{KeyedCall, Memo, PageBuilder, Recalled, Result, Store as _};

/// The most bytes of an answer in one document, which must be less than 16 MiB long. What popped jobs say may be longer.
const PIECE: usize = 4 << 20;

/// Returns what is remembered of a call. Only what a majority has: a failover must not take back what a repeat gets.
pub async fn recall(mongo: &Mongo, call: &KeyedCall) -> Result<Option<Recalled>> {
    let requests = mongo.collection(REQUESTS).await?;
    let find = requests.find_one(doc! { "_id": &call.id }).read_concern(ReadConcern::majority());
    let Some(first) = find.await.map_err(fault)? else { return Ok(None) };
    let pieces = pieces_of(&requests, &call.id, &first).await?;
    recalled(mongo, call, &first, &pieces)
}

/// The further documents of an answer, in their order.
async fn pieces_of(requests: &Collection<Stored>, id: &str, first: &Document) -> Result<Vec<Stored>> {
    let further = further(id, first);
    if further.is_empty() {
        return Ok(Vec::new());
    }
    let find = requests.find(doc! { "_id": { "$in": further } }).sort(doc! { "part": 1 });
    let cursor = find.read_concern(ReadConcern::majority()).await.map_err(fault)?;
    cursor.try_collect().await.map_err(fault)
}

/// The same within a transaction, whose commit makes sure that it is durable.
pub async fn find(call: &KeyedCall, tx: &mut Tx<'_>) -> Result<Option<Recalled>, TxError> {
    let requests = tx.collection(REQUESTS);
    let Some(first) = requests.find_one(doc! { "_id": &call.id }).session(tx.session()).await? else {
        return Ok(None);
    };
    let further = further(&call.id, &first);
    let mut pieces = Vec::new();
    if !further.is_empty() {
        let find = requests.find(doc! { "_id": { "$in": further } }).sort(doc! { "part": 1 });
        pieces = tx.read(find).await?;
    }
    Ok(recalled(tx.mongo, call, &first, &pieces)?)
}

/// The ids of the further documents of an answer.
pub fn further(id: &str, first: &Document) -> Vec<String> {
    let count = first.get_i32("parts").unwrap_or(1);
    (1..count).map(|part| part_id(id, part)).collect()
}

fn part_id(id: &str, part: i32) -> String {
    format!("{id}/{part}")
}

fn recalled(
    mongo: &Mongo,
    call: &KeyedCall,
    first: &Document,
    pieces: &[Stored],
) -> Result<Option<Recalled>> {
    let Some((known, answer)) = read(first, pieces)? else { return Ok(None) };
    Ok(Recalled::decide(call, known.digest, known.until, mongo.now()?, answer))
}

/// Reads a call and its answer. Nothing where pieces are missing: its time is over, and MongoDB is removing it.
pub fn read(first: &Document, pieces: &[Stored]) -> Result<Option<(KeyedCall, String)>> {
    let row = Row(first);
    let id: String = row.text("_id")?;
    if pieces.len() != further(&id, first).len() {
        return Ok(None);
    }
    let digest = first.get_binary_generic("digest").ok();
    let digest =
        digest.and_then(|bytes| bytes.as_slice().try_into().ok()).ok_or_else(|| row.fault("digest"))?;
    let until = row.time("until")?.ok_or_else(|| row.fault("until"))?;
    let mut answer: String = row.text("answer")?;
    for piece in pieces {
        answer.push_str(&Row(piece).text::<String>("answer")?);
    }
    Ok(Some((KeyedCall { id, digest, until }, answer)))
}

/// Remembers the answer of a call of which nothing was found within this transaction, or only what is past its time. Another
/// call with the same id is a conflict: the next attempt finds its answer.
pub async fn keep(call: &KeyedCall, answer: &str, tx: &mut Tx<'_>) -> Result<(), TxError> {
    let upsert =
        |(id, document): (String, Document)| doc! { "q": { "_id": id }, "upsert": true, "u": document };
    let updates: Vec<Document> = documents(call, answer).into_iter().map(upsert).collect();
    for part in parts(updates)? {
        tx.write(doc! { "update": REQUESTS, "updates": part }).await?;
    }
    Ok(())
}

/// Returns the documents of an answer with their ids, which they lack.
pub fn documents(call: &KeyedCall, answer: &str) -> Vec<(String, Document)> {
    let pieces = split(answer);
    let until = date(call.until);
    let digest = Binary { subtype: BinarySubtype::Generic, bytes: call.digest.to_vec() };
    let count = i32::try_from(pieces.len()).unwrap_or(i32::MAX);
    let document = |(part, piece): (i32, &str)| match part {
        0 => {
            let first = doc! { "digest": digest.clone(), "until": until, "answer": piece, "parts": count };
            (call.id.clone(), first)
        }
        part => (part_id(&call.id, part), doc! { "until": until, "answer": piece, "part": part }),
    };
    (0..).zip(pieces).map(document).collect()
}

/// Returns the calls whose answers are remembered, by their ids, those after `after`.
pub async fn export(mongo: &Mongo, after: &str, limit: usize) -> Result<Vec<Memo>> {
    let requests = mongo.collection(REQUESTS).await?;
    // The first documents of answers: further ones have no digest, and the records of reserves no answer.
    let exists = doc! { "$exists": true };
    let filter = doc! { "_id": { "$gt": after }, "digest": exists.clone(), "answer": exists };
    let mut firsts = requests.find(filter).sort(doc! { "_id": 1 }).await.map_err(fault)?;
    let mut page = PageBuilder::new(limit);
    while !page.is_full()
        && let Some(first) = firsts.try_next().await.map_err(fault)?
    {
        let pieces = pieces_of(&requests, first.get_str("_id").unwrap_or_default(), &first).await?;
        if let Some((call, answer)) = read(&first, &pieces)? {
            page.push(Memo::Answer { call, answer });
        }
    }
    Ok(page.into_items())
}

/// Splits a text between characters.
fn split(text: &str) -> Vec<&str> {
    let (mut pieces, mut left) = (Vec::new(), text);
    while left.len() > PIECE {
        let end = (0..=PIECE).rev().find(|end| left.is_char_boundary(*end)).unwrap_or(PIECE);
        let (piece, rest) = left.split_at(end);
        pieces.push(piece);
        left = rest;
    }
    pieces.push(left);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_split_between_characters() {
        for text in [String::new(), "a".repeat(PIECE), "ä".repeat(PIECE), format!("a{}", "ä€".repeat(PIECE))]
        {
            let pieces = split(&text);
            assert!(pieces.concat() == text && pieces.iter().all(|piece| piece.len() <= PIECE));
            assert_eq!(pieces.len() > 1, text.len() > PIECE);
        }
    }
}
