//! What a delivery writes into its jobs.

use mongodb::bson::{Bson, doc};

use crate::job::{Job, Meta, State, Timestamp};
use crate::store::ClaimAsk;
use crate::store::mongo::jobs::document::date;

/// The job as it is once the request has it.
pub fn reserved(job: Job, ask: &ClaimAsk, rev: i64, now: Timestamp) -> Job {
    let meta = Meta {
        state: State::Reserved,
        attempts: job.meta.attempts.saturating_add(1),
        started_at: Some(now),
        reserved_until: Some(now.plus_ms(ask.lease_ms)),
        lease_ms: Some(ask.lease_ms),
        worker: ask.worker.clone(),
        claim: Some(ask.claim.clone()),
        rev,
        ..job.meta
    };
    Job { meta, ..job }
}

/// One update for the jobs of one request, or of several at once.
pub fn changes(taken: &[(Job, &ClaimAsk)], rev: i64, now: Timestamp) -> Bson {
    let until = |ask: &ClaimAsk| date(now.plus_ms(ask.lease_ms));
    let lease = |ask: &ClaimAsk| Bson::from(ask.lease_ms.cast_signed());
    let worker = |ask: &ClaimAsk| ask.worker.as_ref().map_or(Bson::Null, |worker| worker.as_str().into());
    let all_ask_alike = |value: &dyn Fn(&ClaimAsk) -> Bson| {
        let first = taken.first().map(|(_, ask)| value(ask))?;
        taken.iter().all(|(_, ask)| value(ask) == first).then_some(first)
    };
    let claim = |ask: &ClaimAsk| Bson::from(ask.claim.as_str());
    type Value<'a> = &'a dyn Fn(&ClaimAsk) -> Bson;
    let fields: [(&str, Value<'_>); 4] = [
        ("claim", &claim),
        ("lease_ms", &lease),
        ("reserved_until", &|ask| until(ask).into()),
        ("worker", &worker),
    ];
    let mut set = doc! { "state": "reserved", "started_at": date(now), "rev": rev };
    if all_ask_alike(&claim).is_some() {
        let mut unset = doc! { "due": "" };
        for (name, value) in fields {
            match all_ask_alike(value) {
                None | Some(Bson::Null) => drop(unset.insert(name, "")),
                Some(value) => drop(set.insert(name, value)),
            }
        }
        return Bson::Document(doc! { "$set": set, "$unset": unset, "$inc": { "attempts": 1_i64 } });
    }
    // Which request gets which job: the job's place among the ids is that of its values.
    let ids: Vec<&str> = taken.iter().map(|(job, _)| job.meta.id.as_str()).collect();
    let place = doc! { "$indexOfArray": [{ "$literal": ids }, "$_id"] };
    for (name, value) in fields {
        let value = match all_ask_alike(value) {
            Some(Bson::Null) => "$$REMOVE".into(),
            Some(value) => Bson::from(doc! { "$literal": value }),
            None => {
                let values: Vec<Bson> = taken.iter().map(|(_, ask)| value(ask)).collect();
                let picked = doc! { "$arrayElemAt": [{ "$literal": values }, &place] };
                Bson::from(doc! { "$ifNull": [picked, "$$REMOVE"] })
            }
        };
        set.insert(name, value);
    }
    set.insert("attempts", doc! { "$toLong": { "$add": ["$attempts", 1] } });
    set.insert("due", "$$REMOVE");
    Bson::Array(vec![Bson::Document(doc! { "$set": set })])
}
