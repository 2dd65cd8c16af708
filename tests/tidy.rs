//! The rules of the house that a compiler does not check. They read `src/` as rustfmt left it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The most lines of a file.
const FILE_LINES: usize = 500;
/// The most lines of a function.
const FUNCTION_LINES: usize = 60;

/// A file of `src/`, by its path below it.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// Its lines up to its tests, numbered from 1, without comments and the insides of texts.
    fn code(&self) -> Vec<(usize, String)> {
        let lines = self.text.lines().enumerate();
        let tests = "#[cfg(test)]";
        let untested = lines.take_while(|(_, line)| *line != tests);
        untested.map(|(n, line)| (n + 1, bare(line))).collect()
    }

    fn is_tests(&self) -> bool {
        self.path.ends_with("tests.rs")
    }

    fn is_below(&self, folder: &str) -> bool {
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

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
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
fn assert_none(what: &str, found: impl IntoIterator<Item = String>) {
    let list = found.into_iter().fold(String::new(), |mut list, one| {
        let _ = write!(list, "\n  src/{one}");
        list
    });
    assert!(list.is_empty(), "{what}:{list}");
}

/// Every line of code that contains one of these words, in the files that `which` chooses.
fn lines_with(words: &[&str], which: impl Fn(&Source) -> bool) -> Vec<String> {
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
fn has_word(line: &str, word: &str) -> bool {
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

/// `http` and `background` know `queue`, which knows the trait in `store`, which knows `job`.
#[test]
fn each_layer_knows_only_those_below_it() {
    let above = [
        ("job", &["crate::store", "crate::queue", "crate::http", "crate::background"][..]),
        ("store", &["crate::queue", "crate::http", "crate::background"]),
        ("queue", &["crate::http", "crate::background"]),
        ("background", &["crate::http"]),
        ("telemetry", &["crate::store", "crate::queue", "crate::http", "crate::background"]),
    ];
    for (layer, forbidden) in above {
        let everywhere = ["crate::server", "crate::config"];
        let words: Vec<&str> = forbidden.iter().copied().chain(everywhere).collect();
        assert_none(
            &format!("{layer} names what is above it"),
            lines_with(&words, |source| source.is_below(layer)),
        );
    }
    assert_none(
        "http names what wires it",
        lines_with(&["crate::server", "crate::config"], |source| source.is_below("http")),
    );
}

#[test]
fn jobs_and_stores_know_nothing_of_http() {
    let found = lines_with(&["axum", "http", "hyper", "tower_http"], |source| {
        source.is_below("job") || source.is_below("store")
    });
    assert_none("HTTP below the http layer", found);
}

#[test]
fn only_stores_know_databases() {
    // The load generator asks MongoDB how much a server has asked of it, past the server.
    let is_measuring = |source: &Source| source.is_below("bench/mongod");
    let drivers =
        lines_with(&["rusqlite", "bson"], |source| !source.is_below("store") && !is_measuring(source));
    assert_none("a database driver outside src/store", drivers);
    // The configuration checks a URL with the driver's own parser.
    let mongodb = lines_with(&["mongodb::"], |source| {
        !source.is_below("store") && !source.is_below("config") && !is_measuring(source)
    });
    assert_none("the MongoDB driver outside src/store", mongodb);
    let concrete = ["store::mongo", "store::sqlite", "mongo::Mongo", "SqliteStore"];
    let named = lines_with(&concrete, |source| {
        !source.is_below("store") && !source.is_below("server") && !source.is_below("config")
    });
    assert_none("a concrete store where only the trait may be known", named);
    let mixed = lines_with(&["sqlite", "rusqlite"], |source| source.is_below("store/mongo"))
        .into_iter()
        .chain(lines_with(&["mongo", "mongodb", "bson"], |source| source.is_below("store/sqlite")));
    assert_none("one store knows of another", mixed);
}

#[test]
fn files_can_be_read_in_one_sitting() {
    let long = sources().into_iter().filter_map(|source| {
        let lines = source.text.lines().count();
        (lines > FILE_LINES).then(|| format!("{} has {lines} lines", source.path))
    });
    assert_none("files that are too long", long);
}

/// The functions of a file, as name and number of lines: from `fn` to the brace below it.
fn functions(source: &Source) -> Vec<(String, usize)> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut functions = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some((before, after)) = code.split_once("fn ") else { continue };
        let is_head = before
            .split(' ')
            .all(|word| ["", "pub", "async", "const", "unsafe"].contains(&word) || word.starts_with("pub("));
        if !is_head {
            continue;
        }
        let end = format!("{}}}", &line[..line.len() - code.len()]);
        // A declaration ends in a semicolon before any brace stands below it.
        let length =
            lines[n..].iter().position(|line| *line == end || line.ends_with(';') && !has_body(&lines[n..]));
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        functions.push((name, length.map_or(1, |length| length + 1)));
    }
    functions
}

/// Whether the head that these lines begin with opens a brace.
fn has_body(lines: &[&str]) -> bool {
    let end = lines.iter().position(|line| line.ends_with('{') || line.ends_with(';') || line.ends_with('}'));
    end.is_some_and(|end| !lines[end].ends_with(';'))
}

#[test]
fn functions_fit_on_a_screen() {
    let sources = sources();
    let all: usize = sources.iter().map(|source| functions(source).len()).sum();
    assert!(all > 300, "only {all} functions were found");
    let long = sources.iter().flat_map(|source| {
        let long = functions(source).into_iter().filter(|(_, lines)| *lines > FUNCTION_LINES);
        long.map(|(name, lines)| format!("{}: {name} has {lines} lines", source.path))
    });
    assert_none("functions that are too long", long);
}

#[test]
fn nothing_panics_on_purpose() {
    let words = [".unwrap()", ".expect(", "panic!(", "todo!(", "unimplemented!(", "unreachable!(", "dbg!("];
    assert_none("a server must answer, not panic", lines_with(&words, |_| true));
}
