//! The CPU time of the processes that a run is about, from `/proc` (proc(5)). Steadier than jobs per second on a machine that others
//! use as well.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::options::Options;

/// The processes whose CPU time is measured, by what they are.
#[derive(Debug, Clone)]
pub struct Processes(Vec<(&'static str, String)>);

/// CPU times, by what used them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CpuTimes(BTreeMap<&'static str, Duration>);

impl Processes {
    /// Returns those that the options name, and this one, which is the load.
    pub fn of(options: &Options) -> Self {
        let named = |name, pids: &[u32]| pids.iter().map(|pid| (name, pid.to_string())).collect::<Vec<_>>();
        let load = ("load", "self".to_owned());
        let all =
            [named("server", &options.server_pid), named("database", &options.database_pid), vec![load]];
        Self(all.concat())
    }

    /// Returns what each has used so far. What cannot be read, since it has ended or the system has no `/proc`, is left out.
    pub fn times(&self) -> CpuTimes {
        let mut times = BTreeMap::new();
        for (name, pid) in &self.0 {
            if let Some(used) = used(Path::new("/proc").join(pid).join("stat").as_path()) {
                *times.entry(*name).or_default() += used;
            }
        }
        CpuTimes(times)
    }
}

impl CpuTimes {
    /// Returns what was used since an earlier time.
    pub fn since(&self, earlier: &Self) -> Self {
        let used =
            self.0.iter().filter_map(|(name, now)| Some((*name, now.saturating_sub(*earlier.0.get(name)?))));
        Self(used.collect())
    }

    /// Returns the microseconds for each of so many jobs.
    pub fn us_per_job(&self, jobs: u64) -> BTreeMap<&'static str, f64> {
        let each = |used: &Duration| ((used.as_micros() as f64 / jobs.max(1) as f64) * 10.0).round() / 10.0;
        self.0.iter().map(|(name, used)| (*name, each(used))).collect()
    }
}

/// Returns the user and system time of a process, from its `stat` file.
fn used(stat: &Path) -> Option<Duration> {
    let text = std::fs::read_to_string(stat).ok()?;
    ticks(&text)
        .map(|ticks| Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Returns the clock ticks in a `stat` file: fields 14 and 15. The second field is a name in parentheses, which may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_behind_any_name() {
        let stat = "7 (a) b (c 1 2) S 1 7 7 0 -1 4194304 101 0 0 0 250 50 0 0 20 0 4 0 999 1000 10";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("7 (a"), None);
    }

    #[test]
    fn only_what_both_times_have_is_compared() {
        let ms = Duration::from_millis;
        let before = CpuTimes([("load", ms(10)), ("server", ms(100))].into());
        let after = CpuTimes([("load", ms(30)), ("database", ms(7)), ("server", ms(350))].into());
        let since = after.since(&before);
        assert_eq!(since, CpuTimes([("load", ms(20)), ("server", ms(250))].into()));
        assert_eq!(since.us_per_job(1000), [("load", 20.0), ("server", 250.0)].into());
    }
}
