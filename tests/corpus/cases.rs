//! Hostile values: JSON texts and strings. Our own are written from RFC 8259 and from what the server's parts treat
//! specially; more come from a folder where one is given.

use std::path::{Path, PathBuf};

use super::{json, texts};

/// What a JSON parser must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Refuse,
    /// One of both, but always the same.
    Either,
}

/// A hostile value.
#[derive(Clone)]
pub enum Case {
    /// Bytes that stand for a JSON value.
    Json(String, Vec<u8>, Verdict),
    /// A text, which is written as a JSON string in a body.
    Text(String),
}

impl Case {
    /// The bytes in a body.
    pub fn in_body(&self) -> Vec<u8> {
        match self {
            Self::Json(_, bytes, _) => bytes.clone(),
            Self::Text(text) => serde_json::to_vec(text).unwrap(),
        }
    }

    /// The bytes elsewhere.
    pub fn elsewhere(&self) -> &[u8] {
        match self {
            Self::Json(_, bytes, _) => bytes,
            Self::Text(text) => text.as_bytes(),
        }
    }

    /// The case for a message.
    pub fn name(&self) -> String {
        let short = |bytes: &[u8]| bytes[..bytes.len().min(60)].escape_ascii().to_string();
        match self {
            Self::Json(name, bytes, _) => format!("{name} {}", short(bytes)),
            Self::Text(text) => format!("text {}", short(text.as_bytes())),
        }
    }
}

/// Returns our own cases, and the strings of the crate `naughty-strings`.
pub fn own() -> Vec<Case> {
    let case = |name: &str, bytes, verdict| Case::Json(name.to_owned(), bytes, verdict);
    let accepted =
        json::accepted().into_iter().map(|text| case("accept", text.into_bytes(), Verdict::Accept));
    let refused = json::refused().into_iter().map(|bytes| case("refuse", bytes, Verdict::Refuse));
    let either = json::either().into_iter().map(|text| case("either", text.into_bytes(), Verdict::Either));
    let naughty = naughty_strings::BLNS.iter().map(|text| (*text).to_owned());
    let texts = texts::all().into_iter().chain(naughty).map(Case::Text);
    accepted.chain(refused).chain(either).chain(texts).collect()
}

/// The folder with more cases: `TAILBACK_TEST_CORPUS`, or `../shared/corpora` beside the checkout.
fn folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpora");
    let given = std::env::var_os("TAILBACK_TEST_CORPUS").map(PathBuf::from);
    given.or_else(|| beside.is_dir().then_some(beside))
}

/// Returns the cases of the folder, none if there is none: `jsontestsuite/test_parsing/[yni]_*.json`, and arrays of strings
/// in `blns/*.json`.
pub fn given() -> Vec<Case> {
    let Some(folder) = folder() else {
        println!("no folder of further cases (TAILBACK_TEST_CORPUS)");
        return Vec::new();
    };
    let files = |below: &str| {
        let entries = std::fs::read_dir(folder.join(below)).into_iter().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
        files.sort();
        files
    };
    let mut cases = Vec::new();
    for file in files("jsontestsuite/test_parsing") {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let verdict = match name.get(..2) {
            Some("y_") => Verdict::Accept,
            Some("n_") => Verdict::Refuse,
            _ => Verdict::Either,
        };
        cases.push(Case::Json(name, std::fs::read(&file).unwrap(), verdict));
    }
    let parsing = cases.len();
    for file in files("blns") {
        let texts: Vec<String> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let known = |text: &String| naughty_strings::BLNS.contains(&text.as_str());
        cases.extend(texts.into_iter().filter(|text| !known(text)).map(Case::Text));
    }
    println!("further cases: {parsing} JSON texts and {} strings", cases.len() - parsing);
    cases
}

/// Returns all cases.
pub fn all() -> Vec<Case> {
    let mut cases = own();
    println!("own cases: {}", cases.len());
    cases.extend(given());
    cases
}
