//! Cron rules and time zones: a rule that is accepted comes after any moment, and is found soon.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailback::job::Timestamp;
use tailback::job::cron::{CronRule, Zone};

fuzz_target!(|text: (&str, i64)| {
    let (text, after) = text;
    let _ = text.parse::<Zone>();
    let (Ok(rule), Ok(zone)) = (text.parse::<CronRule>(), "Europe/Berlin".parse::<Zone>()) else { return };
    let after = Timestamp::from_millis(after);
    assert!(rule.next(after, &zone).is_none_or(|next| next > after));
    assert!(rule.as_str().parse::<CronRule>().is_ok_and(|again| again.as_str() == rule.as_str()));
});
