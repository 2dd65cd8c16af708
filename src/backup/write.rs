//! Where a backup is written to.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

/// The mode of a backup, which has the secrets of the store in it.
const PRIVATE: u32 = 0o600;
/// How much is written at once.
const BUFFER: usize = 1 << 20;
/// What the names of a store's files have behind that of the database: itself, its log and journal, and the lock of its server.
const OF_STORE: [&str; 5] = ["", "-wal", "-shm", "-journal", "-lock"];

/// A backup that is being written. A file is complete or not there: until its end it has another name.
pub struct Output {
    to: BufWriter<Box<dyn Write + Send>>,
    sum: Sha256,
    file: Option<Partial>,
}

/// A file under its preliminary name, removed unless it gets its own.
struct Partial {
    file: File,
    at: PathBuf,
    to: PathBuf,
    is_done: bool,
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = std::fs::remove_file(&self.at);
        }
    }
}

impl Output {
    /// Writes to standard output.
    pub fn standard() -> Self {
        Self::new(Box::new(std::io::stdout()), None)
    }

    /// Writes to a file, which replaces what is there once it is complete, also behind a link. A pipe or a device is written as it is.
    pub fn file(path: &Path) -> anyhow::Result<Self> {
        match std::fs::metadata(path) {
            Ok(there) if there.is_dir() => bail!("{} is a directory: name a file in it", path.display()),
            Ok(there) if !there.is_file() => {
                let file = File::options().write(true).open(path);
                let file = file.with_context(|| format!("cannot write to {}", path.display()))?;
                Ok(Self::new(Box::new(file), None))
            }
            _ => {
                let to = behind_links(path).with_context(|| format!("cannot create {}", path.display()))?;
                Self::partial(&to)
            }
        }
    }

    fn partial(path: &Path) -> anyhow::Result<Self> {
        let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
        if let Some(folder) =
            path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir())
        {
            bail!(
                "cannot create {}: there is no folder {}: create it first",
                path.display(),
                folder.display()
            );
        }
        let mut partial = name.to_owned();
        partial.push(format!(".{:08x}.partial", rand::random::<u32>()));
        let at = path.with_file_name(partial);
        let mut options = File::options();
        let file = options.create_new(true).write(true).mode(PRIVATE).open(&at);
        let file = file.with_context(|| format!("cannot create {}", at.display()))?;
        let partial = Partial { file, at, to: path.to_owned(), is_done: false };
        let to = Box::new(partial.file.try_clone()?);
        Ok(Self::new(to, Some(partial)))
    }

    fn new(to: Box<dyn Write + Send>, file: Option<Partial>) -> Self {
        Self { to: BufWriter::with_capacity(BUFFER, to), sum: Sha256::new(), file }
    }

    /// Returns whether what is written to this path is a file under a preliminary name until its end, to be removed unless it is completed.
    pub fn is_partial(path: &Path) -> bool {
        !std::fs::metadata(path).is_ok_and(|there| !there.is_file())
    }

    /// Writes a line.
    pub fn line(&mut self, line: &str) -> anyhow::Result<()> {
        for part in [line.as_bytes(), b"\n"] {
            self.sum.update(part);
            self.to.write_all(part).context("the backup cannot be written")?;
        }
        Ok(())
    }

    /// Returns the SHA-256 of all lines so far.
    pub fn sum(&self) -> String {
        hex(&self.sum.clone().finalize())
    }

    /// Makes sure that all of it is stored, and gives the file its name.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.to.flush().context("the backup cannot be written")?;
        let Some(partial) = &mut self.file else { return Ok(()) };
        partial.file.sync_all().context("the backup cannot be written")?;
        std::fs::rename(&partial.at, &partial.to)
            .with_context(|| format!("cannot rename {} to {}", partial.at.display(), partial.to.display()))?;
        partial.is_done = true;
        let folder = partial.to.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .context("the backup's folder cannot be synced")
    }
}

/// Fails where a backup would replace a file of the store that it is taken of.
pub fn check_apart(to: &Path, store: &Path) -> anyhow::Result<()> {
    // The files beside it are named after the file itself.
    let store = behind_links(store).unwrap_or_else(|_| store.to_owned());
    for end in OF_STORE {
        let mut file = store.clone().into_os_string();
        file.push(end);
        if is_same_file(to, Path::new(&file)) {
            bail!(
                "--out: {} is a file of the store that is exported, {}: name another one",
                to.display(),
                file.display()
            );
        }
    }
    Ok(())
}

/// Returns whether both paths lead to one file; where neither is there yet, whether they would.
fn is_same_file(one: &Path, other: &Path) -> bool {
    match (identity(one), identity(other)) {
        (None, None) => place(one).is_some_and(|one| place(other) == Some(one)),
        (one, other) => one == other,
    }
}

/// Returns what a file that is there has alone, whatever its names are.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|there| (there.dev(), there.ino()))
}

/// Returns the folder of a file that need not be there, and its name in it.
fn place(path: &Path) -> Option<((u64, u64), OsString)> {
    let path = behind_links(path).ok()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some((identity(folder)?, path.file_name()?.to_owned()))
}

/// Returns what a path leads to, whether it is there or not.
fn behind_links(path: &Path) -> std::io::Result<PathBuf> {
    match std::fs::canonicalize(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => match std::fs::read_link(path) {
            Ok(link) => behind_links(&path.parent().unwrap_or(Path::new("")).join(link)),
            Err(_) => Ok(path.to_owned()),
        },
        found => found,
    }
}

/// Returns bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
