//! What an administrator does with API keys.

use mongodb::bson::Document;
use serde_json::{Value, json};
use tailback::job::SecretHash;

use crate::case::{Case, Done, Found, Prep};
use crate::lane::Call;

fn key(p: &Prep<'_>) -> Value {
    json!({"name": p.name("key"), "scopes": ["read"]})
}

/// Makes a key and returns its id.
async fn made(p: &Prep<'_>) -> String {
    p.lane.must("POST", "/v1/keys", key(p)).await["id"].as_str().unwrap().to_owned()
}

fn hash(key: &Document) -> &[u8] {
    key.get_binary_generic("hash").unwrap()
}

/// Whether the text in the answer, if there is one, is that of the stored key.
fn of_stored(found: &Found<'_>, stored: &Document) -> Done {
    let Some((200..=299, answer)) = &found.answer else { return Done::Yes };
    let is_valid = hash(stored) == SecretHash::of(answer["key"].as_str().unwrap()).as_bytes();
    if is_valid { Done::Yes } else { Done::Part("the answer has another secret".into()) }
}

/// Not repeated: each call makes a key of its own.
pub async fn add(p: &Prep<'_>) -> Case {
    Case::of(Call::new("POST", "/v1/keys", key(p)), |found| match found.all("api_keys") {
        [] => Done::No,
        [stored] => of_stored(found, stored),
        more => Done::Part(format!("{} keys", more.len())),
    })
}

/// Not repeated: each call makes a secret of its own, and the last one counts.
pub async fn rotate(p: &Prep<'_>) -> Case {
    let id = made(p).await;
    let keys = p.lane.documents("api_keys", "name", p.tag()).await;
    let before = keys.iter().find(|key| key.get_str("_id").is_ok_and(|found| found == id));
    let before = hash(before.unwrap()).to_vec();
    let call = Call::new("POST", format!("/v1/keys/{id}/rotate"), json!({}));
    let rotated = id.clone();
    let case = Case::of(call, move |found| match found.other("api_keys", &rotated) {
        None => Done::Part("the key is gone".into()),
        Some(stored) if hash(stored) == before => Done::No,
        Some(stored) => of_stored(found, stored),
    });
    case.about(&[id])
}

pub async fn delete(p: &Prep<'_>) -> Case {
    let id = made(p).await;
    let call = Call::new("DELETE", format!("/v1/keys/{id}"), Value::Null);
    let deleted = id.clone();
    Case::of(call, move |found| found.other("api_keys", &deleted).is_none().into()).about(&[id]).repeats()
}
