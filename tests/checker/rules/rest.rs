//! What is left at the end.

use serde_json::json;

use super::super::facts::text;
use super::super::{Findings, Rule};
use super::Case;

pub fn judge(case: &Case<'_, '_>, findings: &mut Findings) {
    for wrong in case.scan.uncounted() {
        findings.add(Rule::Counts, "stats", wrong);
    }
    if !case.setup.is_drained {
        return;
    }
    for job in &case.scan.jobs {
        if !matches!(text(job, "state"), "done" | "dead") {
            findings.add(Rule::NotDrained, text(job, "id"), job.to_string());
        }
    }
    for semaphore in &case.scan.semaphores {
        let holders = semaphore.get("holders").filter(|holders| !holders.is_null());
        if semaphore["held"] != 0 || semaphore["waiting"] != 0 || holders.is_some_and(|one| *one != json!([]))
        {
            findings.add(Rule::NotDrained, text(semaphore, "name"), semaphore.to_string());
        }
    }
}
