//! The rules of the house that a compiler does not check. They read `src/` as rustfmt left it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod tidy {
    pub mod layers;
    mod sizes_of_tests;
    pub mod source;
    mod words;
}

use tidy::source::{Source, assert_none, has_word, lines_with, sources};

/// The most lines of a file.
const FILE_LINES: usize = 500;
/// The most lines of a function.
const FUNCTION_LINES: usize = 60;

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

/// The lines of a file without its tests and those that are comments.
fn with_texts(source: &Source) -> String {
    let lines = source.untested().into_iter().map(|(_, line)| line);
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
const MONGO: [(&str, &[&str]); 67] = [
    ("deployment", &[]),
    ("pool", &[]),
    ("term", &[]),
    ("codes", &[]),
    ("client", &["codes", "deployment", "pool", "term"]),
    ("clock", &[]),
    ("keyed_mutex", &[]),
    ("stored", &[]),
    ("cache", &["clock", "stored"]),
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
    ("jobs::guard", &[]),
    ("jobs::transitions", &["jobs::document", "jobs::guard", "stored"]),
    ("jobs::unreadable", &["jobs::document", "jobs::guard", "stored"]),
    ("jobs::query", &["client", "jobs::document", "jobs::unreadable", "stored"]),
    ("jobs::search", &["client", "indexes", "jobs::document", "jobs::unreadable", "migrate"]),
    ("jobs::stocked", &["client", "jobs::document", "stored"]),
    ("jobs::rewrite", &["client", "jobs::guard", "transaction"]),
    (
        "jobs::groups",
        &["cache", "client", "jobs::document", "jobs::rewrite", "jobs::transitions", "transaction", "stored"],
    ),
    ("answers::record", &["client", "jobs::document", "stored", "transaction"]),
    ("jobs::receipts", &["client", "jobs::document", "transaction", "stored"]),
    ("jobs::next", &["client", "jobs::receipts"]),
    ("jobs::plan", &["cache", "jobs::document", "jobs::guard"]),
    ("jobs::deletion", &["client", "jobs::plan"]),
    ("jobs::proof", &["jobs::plan", "jobs::receipts"]),
    ("jobs::passes", &[]),
    ("jobs::holders", &["jobs::document", "stored", "transaction"]),
    (
        "jobs::push",
        &[
            "cache",
            "client",
            "figures::counters",
            "indexes",
            "jobs::document",
            "jobs::groups",
            "jobs::holders",
            "jobs::query",
            "transaction",
        ],
    ),
    (
        "batches",
        &[
            "answers::record",
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
    ("jobs::in_the_way", &["jobs::bury", "jobs::document", "stored"]),
    ("jobs::oversized", &["client", "jobs::document", "jobs::in_the_way", "stored"]),
    ("jobs::lines", &["client", "jobs::document", "stored"]),
    ("jobs::expired", &["jobs::bury", "jobs::document", "jobs::in_the_way", "jobs::query", "stored"]),
    ("jobs::head", &["cache", "client", "jobs::document", "jobs::in_the_way", "jobs::query", "stored"]),
    (
        "jobs::apply_atomic",
        &[
            "batches",
            "jobs::bury",
            "jobs::groups",
            "jobs::plan",
            "jobs::push",
            "jobs::query",
            "jobs::receipts",
            "jobs::rewrite",
            "transaction",
        ],
    ),
    ("jobs::push_once", &["answers::record", "jobs::groups", "jobs::push", "transaction"]),
    (
        "jobs::apply_once",
        &[
            "answers::record",
            "client",
            "jobs::apply_atomic",
            "jobs::document",
            "jobs::plan",
            "jobs::query",
            "jobs::unreadable",
            "stored",
            "transaction",
        ],
    ),
    (
        "jobs::apply",
        &[
            "jobs::bury",
            "client",
            "jobs::apply_atomic",
            "jobs::deletion",
            "jobs::document",
            "jobs::passes",
            "jobs::plan",
            "jobs::proof",
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
            "jobs::in_the_way",
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
            "jobs::oversized",
            "jobs::rewrite",
            "semaphores",
            "transaction",
        ],
    ),
    (
        "jobs::claim",
        &[
            "client",
            "jobs::claim_limited",
            "jobs::transitions",
            "jobs::document",
            "jobs::head",
            "jobs::oversized",
            "stored",
        ],
    ),
    (
        "schedules",
        &[
            "answers::record",
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
            "answers::record",
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
    ("answers", &["batches", "jobs::apply_once", "jobs::push_once", "schedules"]),
    ("revision", &["client", "jobs::document", "transaction"]),
    ("access", &["client", "jobs::document", "revision", "transaction", "stored"]),
    ("settings", &["access", "client", "jobs::document", "revision", "transaction", "stored"]),
    ("prune", &["audit", "batches", "client", "jobs::document", "operations", "stored"]),
    ("requests", &["client", "jobs::document", "stored"]),
    ("signals", &["client", "jobs::document", "stored"]),
    (
        "transfer",
        &[
            "answers::record",
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
            "answers::record",
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
