//! The indexes of MongoDB that are built when they are first needed.

use mongodb::bson::{Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{Database, IndexModel};

/// Their names.
pub const RARE: [&str; 4] = ["batch", "dead_lettered", "group", "key"];

/// Makes these indexes, as an older server does.
pub async fn make(database: &Database, names: &[&str]) {
    for name in names {
        let (keys, field) = match *name {
            "key" => (doc! { "queue": 1, "key": 1, "_id": 1 }, "key"),
            "group" => (doc! { "queue": 1, "group": 1, "_id": 1 }, "group"),
            "dead_lettered" => (doc! { "queue": 1, "_id": 1 }, "origin"),
            _ => (doc! { "batch": 1, "_id": 1 }, "batch"),
        };
        let filter = doc! { field: { "$exists": true } };
        let mut index = IndexModel::builder().keys(keys).build();
        let options = IndexOptions::builder();
        index.options = Some(options.name((*name).to_owned()).partial_filter_expression(filter).build());
        database.collection::<Document>("jobs").create_index(index).await.unwrap();
    }
}
