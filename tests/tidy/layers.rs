//! Which module of the crate may know which.

use std::collections::BTreeSet;

use crate::tidy::source::{Source, assert_none, lines_with, sources};

/// What each module of `src/` may import, all of it from lines above its own: so there are no circles. Each import that it allows is
/// there.
const LAYERS: [(&str, &[&str]); 19] = [
    ("faults", &[]),
    ("job", &["faults"]),
    ("connect", &[]),
    ("lines", &[]),
    ("telemetry", &["connect", "job", "lines"]),
    ("store", &["faults", "job", "telemetry"]),
    ("queue", &["faults", "job", "store", "telemetry"]),
    ("dashboard", &[]),
    ("background", &["queue", "store", "telemetry"]),
    ("http", &["background", "dashboard", "faults", "job", "queue", "store", "telemetry"]),
    ("config", &["background", "http", "job", "queue", "telemetry"]),
    ("transfer", &["faults", "job", "store"]),
    ("backup", &["job", "store", "transfer"]),
    ("server", &["background", "backup", "config", "http", "queue", "store", "telemetry", "transfer"]),
    ("keys", &["config", "job", "queue", "server", "store"]),
    // It talks to servers of any version: it knows what those say over HTTP, and nothing of how.
    ("cli", &["connect", "lines"]),
    // The load generator means the same server by the same flags and variables.
    ("bench", &["cli"]),
    ("lib", &[]),
    ("main", &[]),
];

/// The modules of the crate that this code imports, or names by their whole path.
fn imports(code: &str) -> BTreeSet<String> {
    const ROOT: &str = "crate::";
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let name = |path: &str| path.trim_start().chars().take_while(|c| is_name(*c)).collect::<String>();
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices(ROOT) {
        if code[..at].ends_with(is_name) {
            continue;
        }
        let path = &code[at + ROOT.len()..];
        let Some(group) = path.strip_prefix('{') else {
            found.insert(name(path));
            continue;
        };
        let (mut depth, mut begin) = (0, 0);
        for (n, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                ',' if depth == 0 => {
                    found.insert(name(&group[begin..n]));
                    begin = n + 1;
                }
                '}' if depth == 0 => {
                    found.insert(name(&group[begin..n]));
                    break;
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
    }
    found.remove("");
    found
}

/// The module of the crate that this file is of.
fn module(source: &Source) -> &str {
    source.path.split('/').next().unwrap_or(&source.path).trim_end_matches(".rs")
}

#[test]
fn imports_are_found() {
    let found = |code: &str| imports(code).into_iter().collect::<Vec<_>>();
    assert_eq!(found("use crate::a::b;\nfn f() { crate::c(); subcrate::d(); }"), ["a", "c"]);
    assert_eq!(found("use crate::{a, b::{c, d},\n    e::f,\n};"), ["a", "b", "e"]);
}

#[test]
fn each_layer_knows_only_those_below_it() {
    let names: Vec<&str> = LAYERS.iter().map(|(layer, _)| *layer).collect();
    for (n, (layer, allowed)) in LAYERS.iter().enumerate() {
        let above: Vec<_> = allowed.iter().filter(|other| !names[..n].contains(other)).collect();
        assert!(
            above.is_empty(),
            "{layer} stands above {above:?} in this table: imports go round in a circle"
        );
    }
    let (mut wrong, mut seen) = (Vec::new(), BTreeSet::new());
    for source in sources().iter().filter(|source| !source.is_tests()) {
        let layer = module(source);
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
            wrong.push(format!("{}: its module is not in the table of {}", source.path, file!()));
            continue;
        };
        let code: String = source.code().into_iter().map(|(_, line)| line + "\n").collect();
        for import in imports(&code).into_iter().filter(|import| import != layer) {
            if !allowed.contains(&import.as_str()) {
                wrong.push(format!("{} imports {import}", source.path));
            }
            seen.insert((layer.to_owned(), import));
        }
        // Within the root `super` is the crate.
        let is_root = !source.path.contains('/') || source.path == format!("{layer}/mod.rs");
        wrong.extend((is_root && code.contains("super::")).then(|| format!("{} has super::", source.path)));
    }
    assert_none("modules that import what is not below them in the table", wrong);
    let gone = LAYERS.iter().flat_map(|(layer, allowed)| {
        let gone =
            allowed.iter().filter(|other| !seen.contains(&((*layer).to_owned(), (**other).to_owned())));
        gone.map(move |other| format!("{layer} -> {other}"))
    });
    assert_none("imports in the table that are gone", gone);
}

/// What the commands for people print of others goes to a terminal: nothing prints past the one place.
#[test]
fn the_commands_for_people_know_only_http() {
    let behind = lines_with(&["axum", "mongodb", "rusqlite"], |source| source.is_below("cli"));
    assert_none("cli names what is behind HTTP", behind);
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
    // The load generator asks MongoDB how much a server has asked of it, and how fast it is without one.
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
