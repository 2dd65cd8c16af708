//! Tests keep to the sizes of `src/`, but for functions that only get fewer and shorter.

use super::source::files;
use crate::{FILE_LINES, FUNCTION_LINES, functions};

/// The functions that are longer, and the most lines that each may have.
const LONG_FUNCTIONS: [(&str, &str, usize); 10] = [
    ("cli_commands.rs", "keys_come_from_the_environment_or_a_profile_and_are_never_shown", 68),
    ("cli_commands.rs", "lists_show_what_there_is", 87),
    ("corpus/foreign.rs", "walk", 94),
    ("hostile/spoiled_jobs.rs", "a_spoiled_job_can_be_mended", 75),
    ("http/acting.rs", "do_all_acts", 71),
    ("http/acting.rs", "each_act_is_remembered", 78),
    ("http/binary.rs", "what_is_wrong_with_bytes_is_named", 66),
    ("http/operations.rs", "an_operation_takes_every_condition_of_a_search", 71),
    ("trace/carried.rs", "what_a_job_leads_to_stays_in_its_trace", 81),
    ("trace/spans.rs", "one_trace_leads_through_the_queue", 98),
];

/// Fails with what is too long, and with the exceptions that nothing needs any more. Each is named, with its lines.
fn judge(sizes: &[(String, usize)], most: usize, exceptions: &[(String, usize)]) {
    let mut found = Vec::new();
    for (name, lines) in sizes {
        let own = exceptions.iter().find(|(other, _)| other == name).map_or(most, |(_, lines)| *lines);
        found.extend((*lines > own).then(|| format!("tests/{name} has {lines} lines, and may have {own}")));
    }
    for (name, _) in exceptions {
        let is_needed = sizes.iter().any(|(other, lines)| other == name && *lines > most);
        found.extend((!is_needed).then(|| format!("tests/{name} needs no exception any more: take it out")));
    }
    assert!(found.is_empty(), "sizes of tests:\n  {}", found.join("\n  "));
}

#[test]
fn files_of_tests_can_be_read_in_one_sitting() {
    let sizes: Vec<_> = files("tests")
        .into_iter()
        .map(|source| {
            let lines = source.text.lines().count();
            (source.path, lines)
        })
        .collect();
    judge(&sizes, FILE_LINES, &[]);
}

#[test]
fn functions_of_tests_fit_on_a_screen() {
    let sizes: Vec<_> = files("tests")
        .iter()
        .flat_map(|source| {
            let named = |(name, lines): (String, usize)| (format!("{}: {name}", source.path), lines);
            functions(source).into_iter().map(named)
        })
        .collect();
    let exceptions = LONG_FUNCTIONS.map(|(path, name, lines)| (format!("{path}: {name}"), lines));
    judge(&sizes, FUNCTION_LINES, &exceptions);
}
