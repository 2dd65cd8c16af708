//! Which deployments of MongoDB can be used.

use mongodb::bson::Document;
use mongodb::options::ServerAddress;

use crate::store::StoreError;

/// What is wrong with a server that replied so to a hello, if anything is, and the command that corrects it.
pub fn unsuitable(hello: &Document, host: &ServerAddress, wanted: Option<&str>) -> Option<StoreError> {
    let is_router = hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid");
    let set = hello.get_str("setName").ok();
    if is_router || set.is_some_and(|set| wanted.is_none_or(|wanted| wanted == set)) {
        return None;
    }
    if let Some(set) = set {
        return Some(StoreError::Unsuitable(format!(
            "{host} is a member of the replica set {set:?}; the store's URL asks for another"
        )));
    }
    let name = wanted.unwrap_or("rs0");
    let initiate = format!(
        "mongosh --host {host} --eval 'rs.initiate({{_id: \"{name}\", members: [{{_id: 0, host: \"{host}\"}}]}})'"
    );
    Some(if hello.get_bool("isreplicaset").unwrap_or(false) {
        // A member that is just starting says the same, and is worth waiting for.
        StoreError::unavailable(format_args!(
            "{host} waits for its replica set to be initiated; run: {initiate}"
        ))
    } else {
        StoreError::Unsuitable(format!(
            "{host} is a standalone MongoDB, which has no transactions and no majority writes; restart it with \
             --replSet {name} and run once: {initiate}"
        ))
    })
}
