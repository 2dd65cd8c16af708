//! Comments use the words of the field, by which they are searched. Those listed here only get fewer.

use super::source::{assert_none, has_word, sources};

/// Words that do not name the client, server or call that acts, or what is sent; and the most lines of comments in
/// `src/` that may have one of them. Those that are left are also texts of the API's document.
const WORDS: [(&[&str], usize); 2] =
    [(&["whoever", "nobody", "somebody"], 3), (&["told", "tells", "tell"], 4)];

/// The comment of a line, without the code that it quotes.
fn comment(line: &str) -> String {
    let line = line.trim_start();
    let behind_code = || line.split_once(" // ").map_or("", |(_, comment)| comment);
    let comment = if line.starts_with("//") { line } else { behind_code() };
    comment.split('`').step_by(2).collect()
}

/// Whether the comment of this line has one of these words, in upper or lower case.
fn has_one(line: &str, words: &[&str]) -> bool {
    let comment = comment(line).to_lowercase();
    words.iter().any(|word| has_word(&comment, word))
}

#[test]
fn words_are_found_in_comments_only() {
    for line in ["/// Nobody waits.", "    // What is told", "f(); // nobody reads it", "//! `f`: tell it"] {
        assert!(WORDS.iter().any(|(words, _)| has_one(line, words)), "{line}");
    }
    for line in
        ["let told = tell();", "/// Returns `told`.", "\"since nobody has read\"", "/// An untold number."]
    {
        assert!(!WORDS.iter().any(|(words, _)| has_one(line, words)), "{line}");
    }
}

#[test]
fn comments_use_the_words_of_the_field() {
    for (words, most) in WORDS {
        let mut found = Vec::new();
        for source in sources() {
            for (n, line) in source.text.lines().enumerate() {
                let is_found = has_one(line, words);
                found.extend(is_found.then(|| format!("{}:{}", source.path, n + 1)));
            }
        }
        if found.len() > most {
            let what = format!("{} comments have one of {words:?}, and {most} may", found.len());
            assert_none(&what, found);
        }
    }
}
