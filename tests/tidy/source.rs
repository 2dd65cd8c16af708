//! The sources that the rules are about, and how they are read.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A file of `src/`, by its path below it.
pub struct Source {
    pub path: String,
    pub text: String,
}

/// Where a line stands: before, in the head of, or within an item that is compiled for tests only.
enum Item {
    Other,
    Begins,
    UntilBrace(usize),
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

impl Source {
    /// Its lines without those for its tests, numbered from 1, without comments and the insides of texts.
    pub fn code(&self) -> Vec<(usize, String)> {
        self.untested().into_iter().map(|(n, line)| (n, bare(line))).collect()
    }

    /// Its lines, numbered from 1, without the items that are compiled for tests only.
    pub fn untested(&self) -> Vec<(usize, &str)> {
        let (mut kept, mut item) = (Vec::new(), Item::Other);
        for (n, line) in self.text.lines().enumerate() {
            item = match item {
                Item::Other if line.trim() == "#[cfg(test)]" => Item::Begins,
                Item::Begins if line.ends_with('{') => Item::UntilBrace(indentation(line)),
                Item::Begins if !line.ends_with(';') => Item::Begins,
                Item::UntilBrace(depth) if indentation(line) != depth || line.trim() != "}" => item,
                Item::Other => {
                    kept.push((n + 1, line));
                    Item::Other
                }
                Item::Begins | Item::UntilBrace(_) => Item::Other,
            };
        }
        kept
    }

    pub fn is_tests(&self) -> bool {
        self.path.ends_with("tests.rs")
    }

    pub fn is_below(&self, folder: &str) -> bool {
        self.path.starts_with(&format!("{folder}/")) || self.path == format!("{folder}.rs")
    }
}

/// A line without its comment and the insides of its texts.
fn bare(line: &str) -> String {
    let mut bare = String::new();
    let (mut within, mut escaped) = (false, false);
    for c in line.chars() {
        match c {
            '"' if !escaped && !bare.ends_with('\'') => {
                within = !within;
                bare.push(c);
            }
            _ if !within => bare.push(c),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
        if !within && bare.ends_with("//") {
            bare.truncate(bare.len() - 2);
            break;
        }
    }
    bare
}

pub fn sources() -> Vec<Source> {
    files("src")
}

/// The files of a folder and those below it, by their paths in it.
pub fn files(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let (mut folders, mut sources) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                sources.push(Source { path: below, text: std::fs::read_to_string(&path).unwrap() });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(sources.len() > 30, "the sources were not found");
    sources
}

/// Fails with a list of what is wrong where.
pub fn assert_none(what: &str, found: impl IntoIterator<Item = String>) {
    let list = found.into_iter().fold(String::new(), |mut list, one| {
        let _ = write!(list, "\n  src/{one}");
        list
    });
    assert!(list.is_empty(), "{what}:{list}");
}

/// Every line of code that contains one of these words, in the files that `which` chooses.
pub fn lines_with(words: &[&str], which: impl Fn(&Source) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| which(source) && !source.is_tests()) {
        for (n, line) in source.code() {
            found.extend(
                words
                    .iter()
                    .filter(|word| has_word(&line, word))
                    .map(|word| format!("{}:{n} has {word}", source.path)),
            );
        }
    }
    found
}

/// Whether the word is there as a whole, not as a part of a longer name.
pub fn has_word(line: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let begins = !word.starts_with(is_name) || !before.is_some_and(is_name);
        begins && (!word.ends_with(is_name) || !after.is_some_and(is_name))
    })
}

#[test]
fn the_readings_of_this_file_are_right() {
    assert_eq!(bare(r#"let a = "b // c"; // d"#), r#"let a = ""; "#);
    assert_eq!(bare(r#"call("a \" b", '"', x)"#), r#"call("", '"', x)"#);
    assert!(has_word("use crate::http::body;", "crate::http"));
    assert!(!has_word("use crate::https;", "crate::http"));
    assert!(has_word("x.unwrap()", ".unwrap()"));
}

#[test]
fn only_what_is_for_tests_is_left_out() {
    let text = "\
        #[cfg(test)]\nmod tests;\nuse a;\nimpl B {\n    #[cfg(test)]\n    pub fn c(\n        d: E,\n    ) {\n        f();\n    }\n\
        \n    fn g() {}\n}\n\n#[cfg(test)]\nmod tests {\n    fn h() {\n    }\n}\nconst I: J;\n";
    let source = Source { path: String::new(), text: text.to_owned() };
    let lines: Vec<&str> = source.untested().into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines, ["use a;", "impl B {", "", "    fn g() {}", "}", "", "const I: J;"]);
}

/// Of each file that has something in it, something is seen.
#[test]
fn every_file_is_read_to_its_end() {
    let unread = sources().into_iter().filter(|source| !source.is_tests()).filter_map(|source| {
        let seen = source.untested().last().map_or(0, |(n, _)| *n);
        let tests = source.text.lines().skip(seen).filter(|line| line.trim() == "#[cfg(test)]").count();
        let is_whole = seen == source.text.lines().count() || tests > 0;
        (!is_whole || seen == 0).then(|| format!("{} is read up to line {seen}", source.path))
    });
    assert_none("files that are not read to their end", unread);
}
