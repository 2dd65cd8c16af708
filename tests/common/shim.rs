//! What a test does to the disk and to the clock of one server: `tests/shim/shim.c`, loaded into it by `LD_PRELOAD`.
//!
//! A [`Shim`] is one control file, which the servers that were started with its environment have mapped: what is
//! written there holds from the next operation on, and what they count is read from there.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use sha2::{Digest as _, Sha256};

const SOURCE: &str = include_str!("../shim/shim.c");

/// The fields of the control file by their offset; see `struct control` in the source.
const ATTACHED: u64 = 0;
const SHIFT_MS: u64 = 8;
const COUNT: u64 = 16;
const AT: u64 = 24;
const FAULT: u64 = 32;
const STRUCK: u64 = 40;
const SEED: u64 = 48;
const LOG: u64 = 64;
/// How many operations are remembered.
const LOGGED: u64 = 8192;

/// What happens to an operation on the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u64)]
pub enum DiskFault {
    /// The server is killed before it.
    KillBefore = 1,
    /// The server is killed after it.
    KillAfter = 2,
    /// Half of a write happens, then the server is killed; other operations do not happen.
    Torn = 3,
    /// Everything since the last sync of each file is undone, and the server killed.
    PowerCut = 4,
    /// The same, but some sectors of what was written since then are kept.
    PowerCutPartly = 5,
    /// The operation fails with an input/output error. What a failed sync was to save, no later one saves: a power
    /// cut takes it back, unless it was written once more.
    ErrorOnce = 6,
    /// It and all after it fail so.
    ErrorFrom = 7,
    /// The disk is full: from there on no file grows.
    FullFrom = 8,
    /// The quota is used up: from there on no write succeeds.
    QuotaFrom = 9,
    /// Every read fails.
    ReadError = 10,
    /// The operation does not return before the disk is healed.
    StallFrom = 11,
}

impl DiskFault {
    /// All faults of a single operation.
    pub const SINGLE: [Self; 6] = [
        Self::KillBefore,
        Self::KillAfter,
        Self::Torn,
        Self::PowerCut,
        Self::PowerCutPartly,
        Self::ErrorOnce,
    ];
}

impl DiskFault {
    /// Returns whether the server is gone afterwards.
    pub fn kills(self) -> bool {
        self <= Self::PowerCutPartly
    }
}

/// An operation that a server made: what, and on which file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Operation {
    verb: u8,
    file: u8,
}

impl Operation {
    /// Returns whether it saves what was written before.
    pub fn is_sync(self) -> bool {
        self.verb == b's'
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verb = match self.verb {
            b'w' => "write",
            b't' => "truncate",
            b's' => "sync",
            b'r' => "remove",
            _ => "?",
        };
        let file = match self.file {
            b'd' => "database",
            b'l' => "log",
            b'j' => "journal",
            b'i' => "index",
            b'p' => "directory",
            _ => "?",
        };
        write!(f, "{verb} {file}")
    }
}

/// See the module's documentation.
pub struct Shim {
    control: File,
    environment: Vec<(String, String)>,
    _directory: tempfile::TempDir,
}

impl Shim {
    /// Returns a shim that can only shift the clock.
    pub fn clock() -> Self {
        Self::new(None)
    }

    /// Returns a shim for the disk as well: for the database that this URL (`sqlite:PATH`) names.
    pub fn disk(url: &str) -> Self {
        Self::new(Some(Path::new(url.strip_prefix("sqlite:").unwrap())))
    }

    fn new(database: Option<&Path>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let control = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        control.set_len(LOG + 2 * LOGGED).unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let mut environment =
            vec![("LD_PRELOAD".to_owned(), text(library())), ("TAILBACK_SHIM".to_owned(), text(&path))];
        if let Some(database) = database {
            let folder = database.parent().unwrap().canonicalize().unwrap();
            let file = folder.join(database.file_name().unwrap());
            environment.push(("TAILBACK_SHIM_FILE".to_owned(), text(&file)));
        }
        Self { control, environment, _directory: directory }
    }

    /// Returns the variables for [`super::server::Server::start_with`].
    pub fn environment(&self) -> Vec<(&str, &str)> {
        self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    /// Returns how many processes have loaded it: 0 after a start means that it is not in effect.
    pub fn attached(&self) -> u64 {
        self.get(ATTACHED)
    }

    /// Sets the clock of the servers to so many milliseconds ahead of the machine's, from now on.
    pub fn shift_clock(&self, ms: i64) {
        self.set(SHIFT_MS, ms.cast_unsigned());
    }

    /// Returns how many operations the servers have made on the database.
    pub fn count(&self) -> u64 {
        self.get(COUNT)
    }

    /// Strikes the operation of this number; the first one has 1.
    pub fn arm(&self, fault: DiskFault, at: u64) {
        self.set(FAULT, 0);
        self.set(AT, at);
        self.set(STRUCK, 0);
        self.set(SEED, at);
        self.set(FAULT, fault as u64);
    }

    /// Strikes the next operation.
    pub fn arm_next(&self, fault: DiskFault) {
        self.arm(fault, self.count() + 1);
    }

    /// Ends the fault.
    pub fn heal(&self) {
        self.set(FAULT, 0);
    }

    /// Returns how often the fault has struck.
    pub fn struck(&self) -> u64 {
        self.get(STRUCK)
    }

    /// Returns the operation of this number, one of the last thousands.
    pub fn operation(&self, number: u64) -> Operation {
        let mut entry = [0; 2];
        self.control.read_exact_at(&mut entry, LOG + 2 * (number % LOGGED)).unwrap();
        Operation { verb: entry[0], file: entry[1] }
    }

    fn get(&self, field: u64) -> u64 {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, field).unwrap();
        u64::from_ne_bytes(bytes)
    }

    fn set(&self, field: u64, value: u64) {
        self.control.write_all_at(&value.to_ne_bytes(), field).unwrap();
    }
}

/// Returns the library, built when it is needed first. Its name changes with its source.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let digest = Sha256::digest(SOURCE);
        let name = digest.iter().take(8).fold("shim-".to_owned(), |name, byte| format!("{name}{byte:02x}"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let library = folder.join(format!("{name}.so"));
        if !library.exists() {
            let made = folder.join(format!("{name}-{}.so", std::process::id()));
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shim/shim.c");
            let compiled = Command::new("cc")
                .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
                .arg(&made)
                .arg(source)
                .status();
            assert!(compiled.unwrap().success(), "cc cannot compile {source}");
            std::fs::rename(made, &library).unwrap(); // tests that build it at the same time do not meet halves
        }
        library
    })
}
