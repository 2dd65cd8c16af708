//! The rules of the house that a compiler does not check. They read `src/` as rustfmt left it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "tidy/sizes_of_tests.rs"]
mod sizes_of_tests;

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
    files("src")
}

/// The files of a folder and those below it, by their paths in it.
fn files(folder: &str) -> Vec<Source> {
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
        ("dashboard", &["crate::job", "crate::store", "crate::queue", "crate::http", "crate::background"]),
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

/// The commands for people talk to servers of any version: they know what those say over HTTP, and nothing of how.
#[test]
fn the_commands_for_people_know_only_http() {
    let modules = sources().into_iter().filter_map(|source| {
        let name = source.path.split('/').next()?.trim_end_matches(".rs").to_owned();
        (!["cli", "lib", "main"].contains(&name.as_str())).then(|| format!("crate::{name}"))
    });
    let modules: std::collections::BTreeSet<String> = modules.collect();
    let words: Vec<&str> =
        modules.iter().map(String::as_str).chain(["axum", "mongodb", "rusqlite"]).collect();
    assert!(words.contains(&"crate::queue") && words.contains(&"crate::http"));
    assert_none("cli names what is behind HTTP", lines_with(&words, |source| source.is_below("cli")));
    // The load generator means the same server by the same flags and variables.
    let asked = lines_with(&["crate::cli"], |source| !source.is_below("cli") && !source.is_below("bench"));
    assert_none("something else than main.rs and bench names cli", asked);
    // What is printed of others goes to a terminal: nothing prints past the one place.
    let past = lines_with(&["println!", "print!", "eprintln!"], |source| source.is_below("cli"));
    assert_none("cli prints past out.rs", past);
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

/// The files that encode what `job::transition` says of states, as rows, documents and statements.
const STATE_ENCODERS: [&str; 4] = [
    "store/sqlite/jobs/row.rs",
    "store/mongo/jobs/document.rs",
    "store/mongo/jobs/transitions.rs",
    "store/sqlite/jobs/many.rs",
];

/// The names of states, as code and as stored words.
const STATES: [(&str, &str); 5] = [
    ("State::Ready", "ready"),
    ("State::Reserved", "reserved"),
    ("State::Blocked", "blocked"),
    ("State::Done", "done"),
    ("State::Dead", "dead"),
];

/// What writes a state in this code, if anything does. Filters, which only read, may name states.
fn state_writes(code: &str) -> Vec<&'static str> {
    let mut found = Vec::new();
    for (what, begin, end, state) in [
        ("assigns a state", ".state = State::", ";", ""),
        ("assigns a state", "meta.state = ", ";", ""),
        ("builds a job with a state", " state: State::", ",", ""),
        ("inserts a field `state`", "set.insert(\"state\", ", ")", ""),
        ("inserts a field `state`", "put(\"state\", ", ")", ""),
        ("sets a state with SQL", "SET ", "WHERE", "state ="),
        ("inserts jobs with SQL", "INTO jobs ", "VALUES", "state"),
        ("sets a state in a document", "\"$set\": {", "}", "\"state\""),
        ("sets a state in a document", "set = doc! {", "}", "\"state\""),
        ("sets a state in a document", "set.extend(doc! {", "}", "\"state\""),
    ] {
        let writes = code.match_indices(begin).any(|(at, _)| {
            let rest = &code[at + begin.len()..];
            rest[..rest.find(end).unwrap_or(rest.len())].contains(state)
        });
        found.extend(writes.then_some(what));
    }
    found
}

/// The lines of a file up to its tests, without those that are comments.
fn with_texts(source: &Source) -> String {
    let lines = source.text.lines().take_while(|line| *line != "#[cfg(test)]");
    lines.filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_search_for_written_states_finds_them() {
    for written in [
        "ready.state = State::Ready;",
        "meta.state = state;",
        "let ready = Meta { state: State::Ready, ..meta };",
        "\"UPDATE jobs SET rev = ?1, state = 'ready' WHERE id = ?2\"",
        "\"INSERT INTO jobs (id, state) VALUES (?1, 'ready')\"",
        "doc! { \"$set\": { \"rev\": 1, \"state\": \"ready\" } }",
        "let mut set = doc! { \"state\": \"ready\" };",
        "set.insert(\"state\", \"ready\");",
    ] {
        assert_eq!(state_writes(written).len(), 1, "{written}");
    }
    for read in [
        "if meta.state == State::Ready {",
        "\"UPDATE jobs SET due = NULL WHERE state = 'ready'\"",
        "doc! { \"q\": { \"state\": \"ready\" }, \"u\": { \"$set\": { \"rev\": 1 } } }",
    ] {
        assert!(state_writes(read).is_empty(), "{read}");
    }
}

/// `job::transition` says which state follows which. A store encodes that in one place for each form, and there names
/// no state itself.
#[test]
fn stores_write_no_state_by_hand() {
    let sources = sources();
    let stores = || sources.iter().filter(|source| source.is_below("store") && !source.is_tests());
    let is_encoder = |source: &Source| STATE_ENCODERS.contains(&source.path.as_str());
    let by_hand = stores().filter(|source| !is_encoder(source)).flat_map(|source| {
        state_writes(&with_texts(source)).into_iter().map(|what| format!("{} {what}", source.path))
    });
    assert_none("a store writes a state outside of its encoders", by_hand);
    let encoders: Vec<&Source> = stores().filter(|source| is_encoder(source)).collect();
    assert_eq!(encoders.len(), STATE_ENCODERS.len(), "an encoder is gone");
    let named = encoders.into_iter().flat_map(|source| {
        let code = with_texts(source);
        let names = |(variant, word): &&(&str, &str)| {
            has_word(&code, variant)
                || code.contains(&format!("\"{word}\""))
                || code.contains(&format!("'{word}'"))
        };
        let named: Vec<_> = STATES.iter().filter(names).collect();
        named.into_iter().map(|(variant, _)| format!("{} names {variant}", source.path))
    });
    assert_none("an encoder of states chooses one itself", named);
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

/// What each module of `store/mongo` may import, all of it from lines above its own: so there are no circles. A folder's own `mod.rs` may import all of the folder;
/// only the root's `Mongo`, its options and the names of collections may be imported from above.
const MONGO: [(&str, &[&str]); 58] = [
    ("deployment", &[]),
    ("pool", &[]),
    ("client", &["deployment", "pool"]),
    ("clock", &[]),
    ("keyed_mutex", &[]),
    ("stored", &[]),
    ("cache", &["clock"]),
    ("migrate", &["client", "stored"]),
    ("indexes", &["client", "migrate", "stored"]),
    ("figures::counters", &["client"]),
    ("audit", &["client", "stored"]),
    ("transaction", &["audit", "cache", "client", "figures::counters", "stored"]),
    ("jobs::payload", &[]),
    ("jobs::field", &["jobs::payload"]),
    ("jobs::document", &["jobs::field", "jobs::payload", "stored"]),
    ("figures::counts", &["client", "figures::counters", "jobs::document", "stored"]),
    ("figures::summary", &["client", "figures::counters", "figures::counts", "jobs::document", "stored"]),
    ("figures::load", &["client", "jobs::document", "stored"]),
    ("series", &["client", "figures::counts", "jobs::document", "stored"]),
    ("figures::now", &["client", "jobs::document", "stored"]),
    ("figures::reconcile", &["client", "figures::counters", "figures::counts", "jobs::document", "stored"]),
    ("jobs::transitions", &["jobs::document", "stored"]),
    ("jobs::unreadable", &["client", "jobs::document"]),
    ("jobs::query", &["client", "jobs::document", "jobs::unreadable", "stored"]),
    ("jobs::search", &["client", "indexes", "jobs::document", "jobs::unreadable"]),
    ("jobs::stocked", &["client", "jobs::document", "stored"]),
    ("jobs::rewrite", &["client", "transaction"]),
    (
        "jobs::groups",
        &["cache", "client", "jobs::document", "jobs::rewrite", "jobs::transitions", "transaction", "stored"],
    ),
    ("answers", &["client", "jobs::document", "stored", "transaction"]),
    ("jobs::receipts", &["client", "jobs::document", "transaction", "stored"]),
    ("jobs::plan", &["cache", "jobs::document"]),
    ("jobs::deletion", &["client", "jobs::plan"]),
    (
        "jobs::push",
        &[
            "cache",
            "client",
            "figures::counters",
            "indexes",
            "jobs::document",
            "jobs::groups",
            "jobs::query",
            "transaction",
            "stored",
        ],
    ),
    (
        "batches",
        &[
            "answers",
            "client",
            "indexes",
            "jobs::document",
            "jobs::groups",
            "jobs::push",
            "jobs::query",
            "transaction",
            "stored",
        ],
    ),
    (
        "jobs::bury",
        &[
            "batches",
            "client",
            "jobs::document",
            "jobs::groups",
            "jobs::push",
            "jobs::rewrite",
            "jobs::transitions",
            "transaction",
            "stored",
        ],
    ),
    ("jobs::obstacles", &["client", "jobs::document"]),
    ("jobs::lines", &["client", "jobs::document", "stored"]),
    ("jobs::expired", &["jobs::bury", "jobs::document", "jobs::query", "stored"]),
    ("jobs::head", &["cache", "client", "jobs::bury", "jobs::document", "stored"]),
    (
        "jobs::apply_atomic",
        &[
            "batches",
            "jobs::groups",
            "jobs::plan",
            "jobs::push",
            "jobs::query",
            "jobs::receipts",
            "jobs::rewrite",
            "transaction",
        ],
    ),
    ("jobs::push_once", &["answers", "jobs::groups", "jobs::push", "jobs::query", "transaction"]),
    (
        "jobs::apply_once",
        &["answers", "client", "jobs::apply_atomic", "jobs::document", "jobs::plan", "stored", "transaction"],
    ),
    (
        "jobs::apply",
        &[
            "jobs::bury",
            "client",
            "jobs::apply_atomic",
            "jobs::deletion",
            "jobs::document",
            "jobs::plan",
            "jobs::receipts",
            "jobs::unreadable",
            "stored",
        ],
    ),
    (
        "semaphores",
        &[
            "cache",
            "client",
            "jobs::document",
            "jobs::query",
            "jobs::transitions",
            "jobs::bury",
            "transaction",
            "stored",
        ],
    ),
    (
        "jobs::claim_limited",
        &[
            "cache",
            "client",
            "jobs::transitions",
            "jobs::document",
            "jobs::head",
            "jobs::rewrite",
            "semaphores",
            "transaction",
        ],
    ),
    (
        "jobs::claim",
        &["client", "jobs::claim_limited", "jobs::transitions", "jobs::document", "jobs::head", "stored"],
    ),
    (
        "schedules",
        &[
            "answers",
            "client",
            "jobs::document",
            "jobs::groups",
            "jobs::push",
            "jobs::query",
            "transaction",
            "stored",
        ],
    ),
    (
        "operations",
        &[
            "answers",
            "client",
            "jobs::apply_atomic",
            "jobs::apply_once",
            "jobs::document",
            "jobs::groups",
            "jobs::push",
            "jobs::query",
            "stored",
            "transaction",
        ],
    ),
    ("keyed", &["answers", "batches", "jobs::apply_once", "jobs::push_once", "schedules"]),
    ("revision", &["client", "jobs::document", "transaction"]),
    ("access", &["client", "jobs::document", "revision", "transaction", "stored"]),
    ("settings", &["access", "client", "jobs::document", "revision", "transaction", "stored"]),
    ("prune", &["audit", "batches", "client", "jobs::document", "operations", "stored"]),
    ("requests", &["client", "jobs::document", "stored"]),
    ("signals", &["client", "jobs::document", "stored"]),
    (
        "transfer",
        &[
            "answers",
            "audit",
            "cache",
            "client",
            "jobs::document",
            "jobs::groups",
            "jobs::receipts",
            "stored",
            "transaction",
        ],
    ),
    (
        "picture",
        &[
            "access",
            "answers",
            "audit",
            "batches",
            "client",
            "jobs::document",
            "migrate",
            "operations",
            "schedules",
            "stored",
            "transfer",
        ],
    ),
    ("workers", &["client", "jobs::document", "stored", "transaction"]),
];

/// The modules that this line imports from `store/mongo`, by their paths below it, and what else it names there.
fn mongo_imports(line: &str, modules: &[&str]) -> Vec<String> {
    const ROOT: &str = "crate::store::mongo::";
    let found = line.match_indices(ROOT).map(|(at, _)| {
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '{';
        let path: String = line[at + ROOT.len()..].chars().take_while(|c| is_path(*c)).collect();
        let module = modules.iter().filter(|module| {
            let rest = path.strip_prefix(**module);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        });
        module.max_by_key(|module| module.len()).map_or(path.clone(), |module| (*module).to_owned())
    });
    found.collect()
}

#[test]
fn transactions_are_run_in_one_place() {
    let words = ["start_transaction", "commit_transaction", "abort_transaction"];
    let found = lines_with(&words, |source| source.path != "store/mongo/transaction.rs");
    assert_none("a transaction outside of store/mongo/transaction.rs", found);
}

#[test]
fn modules_of_the_mongodb_store_import_each_other_in_one_direction() {
    let modules: Vec<&str> = MONGO.iter().map(|(module, _)| *module).collect();
    for (n, (module, allowed)) in MONGO.iter().enumerate() {
        let above: Vec<_> = allowed.iter().filter(|other| !modules[..n].contains(other)).collect();
        assert!(
            above.is_empty(),
            "{module} stands above {above:?} in this table: imports go round in a circle"
        );
    }
    let is_root = |name: &str| {
        let is_collection = !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        is_collection || ["Mongo", "MongoOptions"].contains(&name)
    };
    let (mut found, mut seen) = (Vec::new(), Vec::new());
    for source in sources().iter().filter(|source| source.path.starts_with("store/mongo/")) {
        let path = source.path.trim_start_matches("store/mongo/").trim_end_matches(".rs").replace('/', "::");
        let module = path.trim_end_matches("mod").trim_end_matches("::");
        if ["", "jobs", "figures"].contains(&module) {
            continue;
        }
        let own = modules.iter().find(|own| module == **own || module.starts_with(&format!("{own}::")));
        let Some((own, allowed)) = own.and_then(|own| MONGO.iter().find(|(name, _)| name == own)) else {
            found.push(format!("{}: is not in the table of {}", source.path, file!()));
            continue;
        };
        for (n, line) in source.code() {
            found.extend(line.contains("super::").then(|| format!("{}:{n} has super::", source.path)));
            for import in mongo_imports(&line, &modules) {
                seen.push((*own, import.clone()));
                if import != *own && !allowed.contains(&import.as_str()) && !is_root(&import) {
                    found.push(format!("{}:{n} imports {import}", source.path));
                }
            }
        }
    }
    assert_none("imports between modules of the MongoDB store that are not in the table", found);
    for (module, allowed) in MONGO {
        let unused = allowed.iter().filter(|other| !seen.contains(&(module, (**other).to_owned())));
        assert_none(
            "imports in the table that are gone",
            unused.map(|other| format!("store/mongo: {module} -> {other}")),
        );
    }
}
