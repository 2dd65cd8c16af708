//! What the operating system says of this process.

use std::time::Duration;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// The figures of this process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Process {
    /// CPU time, of user and system.
    pub cpu: Duration,
    /// Physical memory, in bytes.
    pub resident_bytes: u64,
    /// Virtual memory, in bytes.
    pub virtual_bytes: u64,
    /// How many threads there are.
    pub threads: u64,
    /// How many files are open, sockets included.
    pub open_files: u64,
    /// How many may be; `None`: any number.
    pub most_files: Option<u64>,
}

impl Process {
    /// Reads the figures, where the system has `/proc`. Takes milliseconds with very many connections.
    pub fn read() -> Option<Self> {
        let open_files = std::fs::read_dir("/proc/self/fd").ok()?.count();
        let read = Self::parsed(&std::fs::read_to_string("/proc/self/stat").ok()?)?;
        // The one that lists them is open as well.
        let open_files = u64::try_from(open_files).unwrap_or(u64::MAX).saturating_sub(1);
        Some(Self { open_files, most_files: getrlimit(Resource::Nofile).current, ..read })
    }

    /// Reads `/proc/self/stat`. The name of the program comes second, within brackets, and may have any bytes.
    fn parsed(stat: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(')')?;
        // From the third field on, as proc_pid_stat(5) counts them.
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = field(14)? + field(15)?;
        Some(Self {
            cpu: Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second().max(1) as f64),
            threads: field(20)?,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)?.saturating_mul(page_size() as u64),
            open_files: 0,
            most_files: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_is_passed_over() {
        let stat = "4711 (a) b (c) S 1 2 3 0 -1 4 5 6 7 8 250 50 0 0 20 0 9 0 100 8192000 300 1844 1";
        let read = Process::parsed(stat).unwrap();
        assert_eq!(read.cpu, Duration::from_secs_f64(300.0 / clock_ticks_per_second() as f64));
        assert_eq!((read.threads, read.virtual_bytes), (9, 8_192_000));
        assert_eq!(read.resident_bytes, 300 * page_size() as u64);
        assert_eq!(Process::parsed("4711 (cut"), None);
    }

    #[test]
    fn this_process_has_figures() {
        let read = Process::read().unwrap();
        assert!(read.open_files >= 3 && read.threads >= 1 && read.resident_bytes > 1 << 20, "{read:?}");
    }
}
