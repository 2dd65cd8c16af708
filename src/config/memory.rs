//! How much memory there is for this process, and how much of it requests and responses may take.

use std::path::Path;

use super::{Check, ConfigError, raw, size};
use crate::http;

/// Returns how many bytes of memory there are: of the machine, or of the control group where that has less.
pub fn available() -> Option<u64> {
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let of_group = limits.iter().filter_map(|path| number(&read(path)?)).min();
    of_group.into_iter().chain(of_machine(&read("/proc/meminfo")?)).min()
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(path)).ok()
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
}
