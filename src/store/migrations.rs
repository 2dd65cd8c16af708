//! Migrations: the files of a store's folder in `migrations/`, which are part of the program. Each store has a file of each name.

use std::path::Path;

use include_dir::Dir;

/// Returns `(name, text)` of every migration of a folder, in order: that of the numbers with which the names begin.
pub fn of(folder: &'static Dir) -> Vec<(&'static str, &'static str)> {
    let name = |path: &'static Path| path.file_stem().and_then(|name| name.to_str());
    let files = folder.files().filter_map(|file| Some((name(file.path())?, file.contents_utf8()?)));
    let mut migrations: Vec<_> = files.collect();
    migrations.sort_unstable();
    migrations
}

#[cfg(test)]
mod tests {
    use include_dir::include_dir;

    use super::*;

    static MONGODB: Dir = include_dir!("$CARGO_MANIFEST_DIR/migrations/mongodb");
    static SQLITE: Dir = include_dir!("$CARGO_MANIFEST_DIR/migrations/sqlite");

    #[test]
    fn both_stores_have_the_same_numbered_without_gaps() {
        let names = |folder| of(folder).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let (mongodb, sqlite) = (names(&MONGODB), names(&SQLITE));
        assert_eq!(mongodb, sqlite);
        assert_eq!(mongodb.len(), MONGODB.files().count(), "a file that is no text, or has no name");
        for (n, name) in (1..).zip(&mongodb) {
            assert!(name.starts_with(&format!("{n:04}_")), "{name} is not the migration {n}");
        }
    }
}
