//! What MongoDB can judge of a filter: never less than what it means.

use mongodb::bson::{Bson, Document, doc};

use crate::job::{
    BatchId, FieldIs, Filter, GroupName, JobKey, Payload, Span, Timestamp, Visible, WorkerName,
};
use crate::store::mongo::jobs::document::date;
use crate::store::mongo::jobs::search::plan::Plan;

/// Returns the conditions that the indexes of a plan have not decided.
pub fn rest(filter: &Filter, plan: &Plan, now: Timestamp) -> Vec<Document> {
    let mut rest = of_states(filter, plan, now);
    let texts = [
        ("batch", filter.batch.as_ref().map(BatchId::as_str)),
        ("key", filter.key.as_ref().map(JobKey::as_str)),
        ("group", filter.group.as_ref().map(GroupName::as_str)),
        ("worker", filter.worker.as_ref().map(WorkerName::as_str)),
    ];
    for (field, text) in texts {
        rest.extend(text.filter(|_| !plan.decides(field)).map(|text| doc! { field: text }));
    }
    if filter.dead_lettered && !plan.decides("origin") {
        rest.push(doc! { "origin": { "$exists": true } });
    }
    let time = |span: Span<Timestamp>| {
        let moment = |at: Option<Timestamp>| at.map(|at| Bson::from(date(at)));
        (moment(span.from), moment(span.before))
    };
    let number = |span: Span<i64>| (span.from.map(Bson::from), span.before.map(Bson::from));
    for (field, (from, before)) in [
        ("created_at", time(filter.created)),
        ("finished_at", time(filter.finished)),
        ("run_at", time(filter.run_at)),
        ("priority", number(filter.priority)),
        ("attempts", number(filter.attempts)),
    ] {
        let mut range = Document::new();
        range.extend(from.map(|from| ("$gte".to_owned(), from)));
        range.extend(before.map(|before| ("$lt".to_owned(), before)));
        if !range.is_empty() {
            rest.push(doc! { field: range });
        }
    }
    rest.extend(of_errors(filter));
    rest.extend(filter.payload.iter().filter_map(of_payload));
    if !filter.headers.is_empty() {
        rest.push(
            doc! { "$or": [{ "headers": { "$exists": true } }, { "headers_json": { "$exists": true } }] },
        );
    }
    rest
}

fn of_states(filter: &Filter, plan: &Plan, now: Timestamp) -> Vec<Document> {
    let mut rest = Vec::new();
    if !filter.states.is_empty() && !plan.decides("state") {
        let states: Vec<&str> = filter.states.iter().map(|state| state.stored().as_str()).collect();
        rest.push(doc! { "state": { "$in": states } });
    }
    let has = |state: Visible| filter.states.contains(&state);
    let due = match (has(Visible::Ready), has(Visible::Scheduled)) {
        (true, false) => doc! { "$lte": date(now) },
        (false, true) => doc! { "$gt": date(now) },
        _ => return rest,
    };
    let waits = Visible::Ready.stored().as_str();
    rest.push(doc! { "$or": [{ "state": { "$ne": waits } }, { "run_at": due }] });
    rest
}

/// Any failure may be the last one.
fn of_errors(filter: &Filter) -> Option<Document> {
    let is_of_some = filter.error_group.as_ref().is_some_and(|group| !group.is_empty());
    let text = match &filter.error {
        // NUL ends an expression.
        Some(text) if !text.contains('\0') => doc! { "$regex": literal(text) },
        Some(_) => doc! { "$exists": true },
        None if is_of_some => doc! { "$exists": true },
        None => return None,
    };
    Some(doc! { "$or": [{ "errors.message": text.clone() }, { "origin.error": text }] })
}

/// Returns the expression that finds this text and nothing else.
fn literal(text: &str) -> String {
    let mut expression = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() && !c.is_ascii_alphanumeric() && !c.is_ascii_control() {
            expression.push('\\');
        }
        expression.push(c);
    }
    expression
}

/// Returns the condition that payloads with this field meet. What BSON cannot hold is in `payload_json`, which MongoDB cannot query.
fn of_payload(field: &FieldIs) -> Option<Document> {
    let own = in_bson(field)?;
    Some(doc! { "$or": [own, { "payload_json": { "$exists": true } }] })
}

/// Returns the condition on the real path, if there can be one: what begins with `$` means something else to MongoDB, and what is equal to
/// an object or an array does not follow from a few values.
pub fn in_bson(field: &FieldIs) -> Option<Document> {
    if field.path().iter().any(|key| key.starts_with('$')) {
        return None;
    }
    let values = scalars(field.value())?;
    Some(doc! { format!("payload.{}", field.path().join(".")): { "$in": values } })
}

/// Returns the values of BSON that are equal to this value; `None` where they are unknown.
fn scalars(value: &Payload) -> Option<Vec<Bson>> {
    let text = value.as_str();
    Some(match text.as_bytes().first()? {
        b'{' | b'[' => return None,
        b'"' => vec![serde_json::from_str::<String>(text).ok()?.into()],
        b't' => vec![true.into()],
        b'f' => vec![false.into()],
        b'n' => vec![Bson::Null],
        _ => {
            // MongoDB compares whole numbers exactly, and fractions as they are kept: equal texts are equal fractions.
            let fraction = text.parse::<f64>().ok()?;
            let whole = text.parse::<i64>().ok().or_else(|| whole(text));
            let fraction = Some(fraction).filter(|fraction| fraction.is_finite()).map(Bson::Double);
            whole.map(Bson::Int64).into_iter().chain(fraction).collect()
        }
    })
}

/// Returns the whole number that a text with a fraction or a power is, if it is one of 64 bits.
fn whole(text: &str) -> Option<i64> {
    let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (digits, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let power = power.parse::<i64>().ok()?.checked_sub(i64::try_from(fraction.len()).ok()?)?;
    let all = format!("{digits}{fraction}");
    let number = match usize::try_from(power) {
        Ok(zeros) if zeros <= 19 => format!("{all}{}", "0".repeat(zeros)),
        Ok(_) => return None,
        Err(_) => {
            let cut = usize::try_from(power.unsigned_abs()).ok()?;
            let kept = all.len().checked_sub(cut)?;
            let (kept, rest) = (all.get(..kept)?, all.get(kept..)?);
            if rest.bytes().any(|digit| digit != b'0') {
                return None;
            }
            if kept.is_empty() || kept == "-" { "0".to_owned() } else { kept.to_owned() }
        }
    };
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Option<Vec<Bson>> {
        scalars(&Payload::parse(text).unwrap())
    }

    #[test]
    fn numbers_are_asked_for_in_each_form_that_may_hold_them() {
        let both = |whole: i64, fraction: f64| Some(vec![Bson::Int64(whole), Bson::Double(fraction)]);
        assert_eq!(values("42"), both(42, 42.0));
        assert_eq!(values("42.0"), both(42, 42.0));
        assert_eq!(values("4.2e1"), both(42, 42.0));
        assert_eq!(values("4200E-2"), both(42, 42.0));
        assert_eq!(values("-0.0"), both(0, -0.0));
        assert_eq!(values("1.5"), Some(vec![Bson::Double(1.5)]));
        assert_eq!(values("9223372036854775807"), both(i64::MAX, i64::MAX as f64));
        assert_eq!(values("1e400"), Some(Vec::new()));
        assert_eq!(values("1e99999999999999999999"), Some(Vec::new()));
        assert_eq!(values("\"1\""), Some(vec!["1".into()]));
        assert_eq!((values("[1]"), values("{}")), (None, None));
    }

    #[test]
    fn an_expression_of_a_text_is_literal() {
        assert_eq!(literal("a.*(b|c)$"), "a\\.\\*\\(b\\|c\\)\\$");
        assert_eq!(literal("é\n"), "é\n");
    }
}
