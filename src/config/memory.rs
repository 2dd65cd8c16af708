//! How much memory there is for this process, and how much of it requests and responses may take.

use std::path::Path;

use super::{Check, ConfigError, raw, size};
use crate::http;

/// Returns how many bytes of memory there are: of the machine, or of the control group where that has less.
pub fn available() -> Option<u64> {
    let own = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let of_group = of_group(Path::new("/sys/fs/cgroup"), &own);
    of_group.into_iter().chain(of_machine(&read(Path::new("/proc/meminfo"))?)).min()
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Returns the least limit of the control group and of those that it is in. A service of systemd is in one of its own; in a
/// container, its own is what it sees as the root.
fn of_group(root: &Path, own: &str) -> Option<u64> {
    let groups = own.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        match controllers {
            "" => Some((root.to_owned(), "memory.max", path)),
            _ if controllers.split(',').any(|name| name == "memory") => {
                Some((root.join("memory"), "memory.limit_in_bytes", path))
            }
            _ => None,
        }
    });
    let of_each = groups.flat_map(|(root, file, path)| {
        let within = Path::new(path.trim_start_matches('/')).ancestors();
        let limits: Vec<u64> =
            within.filter_map(|group| number(&read(&root.join(group).join(file))?)).collect();
        limits
    });
    of_each.min()
}

/// Reads a limit; the text `max` is none.
fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    number(line.trim().strip_suffix("kB")?)?.checked_mul(1024)
}

/// How many times the largest body must fit into the memory for requests and responses: half of it for bodies that arrive, and
/// the other half for those that are worked on.
const BODIES_IN_MEMORY: u64 = (http::budget::TURNS * (http::budget::FACTOR - 1) * 2) as u64;
/// The memory for requests and responses, unless it is set: a quarter of what there is, and at most this.
const MEMORY_MAX: u64 = 256 << 20;

/// Returns the memory for requests and responses, in bytes.
pub fn bytes(limits: &raw::Limits, check: &Check<'_>) -> Result<usize, ConfigError> {
    let least = limits.body_bytes * BODIES_IN_MEMORY;
    match limits.memory_bytes {
        0 => {
            let share = available().map_or(MEMORY_MAX, |bytes| bytes / 4);
            Ok(size(share.min(MEMORY_MAX).max(least)))
        }
        set if set < least => {
            let what =
                format!("must be 0, or {BODIES_IN_MEMORY} times limits.body_bytes at least, and is {set}");
            Err(check.fault("limits.memory_bytes", &what))
        }
        set => Ok(size(set)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        assert_eq!(number("536870912\n"), Some(536_870_912));
        assert_eq!(number("max\n"), None);
        assert_eq!(of_machine("MemTotal:       24617284 kB\nMemFree: 1 kB\n"), Some(24_617_284 * 1024));
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn the_least_limit_of_all_groups_holds() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("system.slice/memory.max", "2000\n");
        put("system.slice/tailback.service/memory.max", "max\n");
        let of = |own: &str| of_group(root.path(), own);
        assert_eq!(of("0::/system.slice/tailback.service\n"), Some(2000));
        put("system.slice/tailback.service/memory.max", "1000\n");
        assert_eq!(of("0::/system.slice/tailback.service\n"), Some(1000));
        assert_eq!(of("0::/user.slice\n"), None);
        put("memory.max", "500\n"); // the group of a container, as it sees it
        assert_eq!(of("0::/\n"), Some(500));
        // The older kind, where each controller has groups of its own.
        put("memory/docker/memory.limit_in_bytes", "300\n");
        assert_eq!(of("3:cpu,cpuacct:/x\n2:memory:/docker\n"), Some(300));
        assert_eq!(of("2:memory:/elsewhere\n"), None);
    }
}
