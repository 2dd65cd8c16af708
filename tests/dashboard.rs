//! The dashboard as it is served: its files, their policy and their size. What it does is tried in a browser.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "sizes, shown with --no-capture")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use common::server::{Place, Server};
use reqwest::Response;

/// The most that a browser loads to show the page, compressed; and to show any other screen first.
const BYTES: usize = 60_000;
const SCREEN_BYTES: usize = 90_000;

// No store is asked for any of it.
on_one_store! { sqlite: the_page_and_its_files_are_served a_page_of_another_version_still_finds_its_files }

/// What is loaded beside modules.
const PAGE: [&str; 3] = ["index.html", "app.css", "icon.svg"];

/// Returns all files of the page, by their paths below its folder.
fn files() -> BTreeSet<String> {
    fn walk(folder: &Path, root: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => walk(&path, root, found),
                false => drop(found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned())),
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard/ui");
    let mut found = BTreeSet::new();
    walk(&root, &root, &mut found);
    found
}

fn text_of(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard/ui").join(file))
        .unwrap()
}

/// Returns a file of the page as a browser asks for it.
async fn get(server: &Server, path: &str) -> Response {
    let request = server.http.get(format!("{}{path}", server.base)).header("accept-encoding", "gzip");
    request.send().await.unwrap()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

/// Returns the folder of the version that the page names.
async fn base(server: &Server) -> String {
    let page = get(server, "/").await.text().await.unwrap();
    let at = page.find("/ui/").unwrap();
    page[at..].split('/').take(3).collect::<Vec<_>>().join("/")
}

async fn the_page_and_its_files_are_served(place: &Place) {
    let server = Server::start(&place.url).await;
    let page = get(&server, "/").await;
    assert_eq!((page.status().as_u16(), header(&page, "content-type")), (200, "text/html; charset=utf-8"));
    assert_eq!(header(&page, "cache-control"), "no-store");
    let policy = header(&page, "content-security-policy").to_owned();
    for part in [
        "default-src 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ] {
        assert!(policy.split("; ").any(|directive| directive == part), "{part}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let (base, mut sizes) = (base(&server).await, BTreeMap::new());
    sizes.insert("index.html".to_owned(), page.bytes().await.unwrap().len());
    for file in files().iter().filter(|file| *file != "index.html") {
        let response = get(&server, &format!("{base}/{file}")).await;
        assert_eq!(response.status().as_u16(), 200, "{file}");
        assert_eq!(header(&response, "cache-control"), "public, max-age=31536000, immutable", "{file}");
        assert_eq!(header(&response, "content-security-policy"), policy, "{file}");
        assert_eq!(header(&response, "x-content-type-options"), "nosniff", "{file}");
        let kind = match file.rsplit_once('.').unwrap().1 {
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            other => panic!("what is {other}?"),
        };
        assert_eq!(header(&response, "content-type"), kind, "{file}");
        sizes.insert(file.clone(), response.bytes().await.unwrap().len());
    }
    for screen in sizes.keys().filter(|file| file.starts_with("screens/")) {
        let loaded = [&["main.js", screen], &PAGE[..]].concat();
        let bytes: usize = loaded_with(&loaded).iter().map(|file| sizes[file]).sum();
        println!("{screen}: {bytes} bytes");
        let most = if screen == "screens/overview.js" { BYTES } else { SCREEN_BYTES };
        assert!(bytes <= most, "{bytes} bytes are sent for {screen}");
    }
    println!("all: {} bytes", sizes.values().sum::<usize>());
}

async fn a_page_of_another_version_still_finds_its_files(place: &Place) {
    let server = Server::start(&place.url).await;
    let old = get(&server, "/ui/0123456789abcdef/main.js").await;
    assert_eq!((old.status().as_u16(), header(&old, "cache-control")), (200, "no-store"));
    for missing in
        ["nothing.js", "index.html", "../mod.rs", "%2e%2e/mod.rs", "screens", "screens/", "/etc/passwd"]
    {
        let response = get(&server, &format!("{}/{missing}", base(&server).await)).await;
        assert_eq!(response.status().as_u16(), 404, "{missing}");
    }
}

/// Returns what is loaded with these files: what they import from the start.
fn loaded_with(files: &[&str]) -> BTreeSet<String> {
    let mut next: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
    let mut loaded = BTreeSet::new();
    while let Some(file) = next.pop() {
        if loaded.insert(file.clone()) {
            next.extend(imports(&file, &[" from '"]));
        }
    }
    loaded
}

/// Returns what a module imports in these ways, by paths below the folder.
fn imports(file: &str, ways: &[&str]) -> Vec<String> {
    let text = text_of(file);
    let quoted = ways.iter().flat_map(|way| text.split(way).skip(1));
    let mut found = Vec::new();
    for name in quoted.filter_map(|rest| rest.split('\'').next()).filter(|name| name.starts_with('.')) {
        let mut parts: Vec<&str> = file.split('/').collect();
        parts.pop();
        for part in name.split('/') {
            match part {
                "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        found.push(parts.join("/"));
    }
    found
}

#[test]
fn every_module_is_imported_and_every_import_is_there() {
    let files = files();
    let (mut seen, mut next) = (BTreeSet::new(), vec!["main.js".to_owned()]);
    while let Some(file) = next.pop() {
        assert!(files.contains(&file), "{file} is imported and is not there");
        if seen.insert(file.clone()) {
            next.extend(imports(&file, &[" from '", "import('"]));
        }
    }
    let unused: Vec<_> = files.iter().filter(|file| file.ends_with(".js") && !seen.contains(*file)).collect();
    assert!(unused.is_empty(), "imported by nothing: {unused:?}");
}

/// What a payload says is text: nothing here can make elements of it, and nothing is loaded from elsewhere.
#[test]
fn no_text_becomes_html_and_nothing_comes_from_elsewhere() {
    let words = [
        concat!("inner", "HTML"),
        concat!("outer", "HTML"),
        concat!("insertAdjacent", "HTML"),
        concat!("document.", "write"),
        concat!("DOM", "Parser"),
        concat!("createContextual", "Fragment"),
        concat!("setHTML", "Unsafe"),
        concat!("eval", "("),
        concat!("new ", "Function"),
        concat!("src", "doc"),
    ];
    for file in files() {
        let text = text_of(&file).replace("http://www.w3.org/2000/svg", "");
        for word in words {
            assert!(!text.contains(word), "{file} has {word}");
        }
        assert!(!text.contains("://"), "{file} names another place");
    }
}
