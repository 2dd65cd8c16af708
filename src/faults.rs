//! Places in this program that a test stops, and mistakes that a test plants.
//!
//! Only a build with the feature `faults` has them: `scripts/test` builds with it, a release cannot (see below). Even
//! there nothing happens unless an environment variable says so:
//!
//! - `TAILBACK_FAULTS`: a directory. Code that reaches the point `claim.written` looks for a file of that name there,
//!   renames it to `claim.written.met`, and does what it contains: `pause` (until `claim.written.go` exists, or `claim.written.met` does not), `stop`
//!   (SIGSTOP to this process) or `kill` (SIGKILL). A file strikes once. While there is a file `trace`, the name of each
//!   point that is reached is added to it.
//!   A file `restore.silent` or `clock.slept` there has a number of milliseconds instead: a time that tests cannot wait for, or for which
//!   the machine stood still.
//! - `TAILBACK_BUG`: the name of one planted mistake, `drop_push`, or `drop_push/7` for every seventh opportunity only.

#[cfg(all(feature = "faults", not(debug_assertions)))]
compile_error!("the feature `faults` is for tests; a release must not have it");

#[cfg(not(feature = "faults"))]
mod imp {
    /// Does nothing.
    #[inline(always)]
    pub async fn point(_name: &'static str) {}

    /// Does nothing.
    #[inline(always)]
    pub fn point_in_thread(_name: &'static str) {}

    /// Returns nothing.
    #[inline(always)]
    pub fn millis(_name: &'static str) -> Option<u64> {
        None
    }

    /// Returns `false`.
    #[inline(always)]
    pub fn bug(_name: &'static str) -> bool {
        false
    }
}

#[cfg(feature = "faults")]
mod imp {
    use std::fs::OpenOptions;
    use std::io::Write as _;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    static DIRECTORY: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os("TAILBACK_FAULTS").map(PathBuf::from));
    static BUG: LazyLock<Option<(String, u64)>> = LazyLock::new(|| {
        let text = std::env::var("TAILBACK_BUG").ok()?;
        let (name, every) = text.split_once('/').unwrap_or((&text, "1"));
        Some((name.to_owned(), every.parse().ok()?))
    });
    static OPPORTUNITIES: AtomicU64 = AtomicU64::new(0);
    const LOOK: Duration = Duration::from_millis(5);

    /// Adds the name to the trace, if there is one.
    fn trace(directory: &Path, name: &str) {
        if let Ok(mut trace) = OpenOptions::new().append(true).open(directory.join("trace")) {
            let _ = trace.write_all(format!("{name}\n").as_bytes());
        }
    }

    /// A pause: until there is the one file, or the other is taken away.
    struct Pause {
        go: PathBuf,
        met: PathBuf,
    }

    impl Pause {
        fn lasts(&self) -> bool {
            !self.go.exists() && self.met.exists()
        }
    }

    /// What is to happen here, where it is a pause.
    fn strike(name: &str) -> Option<Pause> {
        let directory = DIRECTORY.as_ref()?;
        trace(directory, name);
        let (file, met) = (directory.join(name), directory.join(format!("{name}.met")));
        let action = std::fs::read_to_string(&file).ok()?;
        std::fs::rename(file, &met).ok()?; // of two that meet it, one is struck
        let signal = match action.trim() {
            "pause" => return Some(Pause { go: directory.join(format!("{name}.go")), met }),
            "stop" => "-STOP",
            _ => "-KILL",
        };
        let _ = Command::new("kill").args([signal, &std::process::id().to_string()]).status();
        None
    }

    /// A point at which a task of the runtime can be stopped.
    pub async fn point(name: &'static str) {
        if let Some(pause) = strike(name) {
            while pause.lasts() {
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// The same in a thread that may block.
    #[expect(clippy::disallowed_methods, reason = "the thread has no other tasks")]
    pub fn point_in_thread(name: &'static str) {
        if let Some(pause) = strike(name) {
            while pause.lasts() {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// Returns how many milliseconds something lasts, where a test wants it to be shorter.
    pub fn millis(name: &'static str) -> Option<u64> {
        std::fs::read_to_string(DIRECTORY.as_ref()?.join(name)).ok()?.trim().parse().ok()
    }

    /// Returns whether this mistake is to be made now.
    pub fn bug(name: &'static str) -> bool {
        BUG.as_ref().is_some_and(|(planted, every)| {
            planted == name && OPPORTUNITIES.fetch_add(1, Ordering::Relaxed) % every == every - 1
        })
    }
}

pub use imp::{bug, millis, point, point_in_thread};
