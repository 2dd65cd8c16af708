//! How much memory there is for this process.

use std::path::Path;

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
