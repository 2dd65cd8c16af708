//! Tests keep to the sizes of `src/`.

use super::source::files;
use crate::{FILE_LINES, FUNCTION_LINES, functions};

/// Fails with what is too long, each with its lines.
fn judge(sizes: &[(String, usize)], most: usize) {
    let long = sizes.iter().filter(|(_, lines)| *lines > most);
    let long: Vec<String> = long.map(|(name, lines)| format!("tests/{name} has {lines} lines")).collect();
    assert!(long.is_empty(), "more than {most} lines:\n  {}", long.join("\n  "));
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
    judge(&sizes, FILE_LINES);
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
    judge(&sizes, FUNCTION_LINES);
}
