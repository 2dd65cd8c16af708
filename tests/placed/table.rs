//! What came of the cases.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::case::Done;
use crate::coverage::Met;
use crate::harm::{Harm, Moment};
use crate::run::Report;
use crate::story::Outcome;

/// Which case it was.
pub struct Row {
    pub verb: &'static str,
    pub moment: Moment,
    pub harm: Harm,
    pub took: Duration,
}

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Ok,
    Refused,
    UnknownDone,
    UnknownNotDone,
    /// It was not looked for whether it was done, or others have worked on it since.
    Unknown,
    /// A background task: no client waits for it.
    Background,
    /// The fault was never met.
    Missed,
    Wrong,
}

impl End {
    const ALL: [(Self, char, &str); 8] = [
        (Self::Ok, '+', "ok"),
        (Self::Refused, '-', "refused"),
        (Self::UnknownDone, 'D', "unknown, done"),
        (Self::UnknownNotDone, 'N', "unknown, not done"),
        (Self::Unknown, 'U', "unknown"),
        (Self::Background, 'b', "in the background"),
        (Self::Missed, '.', "not met"),
        (Self::Wrong, '!', "violations"),
    ];

    fn of(report: Option<&Report>) -> Self {
        let Some(report) = report else { return Self::Missed };
        match (report.outcome, &report.done) {
            _ if !report.wrong.is_empty() => Self::Wrong,
            (None, _) => Self::Background,
            (Some(Outcome::Ok), _) => Self::Ok,
            (Some(Outcome::Refused(_)), _) => Self::Refused,
            (Some(Outcome::Unknown), Done::Yes) => Self::UnknownDone,
            (Some(Outcome::Unknown), Done::No) => Self::UnknownNotDone,
            (Some(Outcome::Unknown), _) => Self::Unknown,
        }
    }

    fn sign(self) -> char {
        Self::ALL.iter().find(|(end, ..)| *end == self).map_or('?', |(_, sign, _)| *sign)
    }
}

/// What came of the faults at one moment.
type Line = (Moment, BTreeMap<Harm, End>);

/// See the module's documentation.
#[derive(Default)]
pub struct Table {
    /// By verb, then in the order in which it passes them.
    rows: BTreeMap<&'static str, Vec<Line>>,
    counts: BTreeMap<Harm, BTreeMap<End, usize>>,
    /// How many cases there are in all, also those that were not chosen.
    pub possible: usize,
    pub cases: usize,
    pub wrong: Vec<String>,
    pub missed: Vec<String>,
    slowest: Vec<(Duration, String)>,
    /// What the verbs have passed.
    pub met: Met,
}

impl Table {
    pub fn note(&mut self, Row { verb, moment, harm, took }: Row, report: Option<&Report>) {
        let end = End::of(report);
        let name = format!("{verb} / {moment} / {}", harm.name());
        self.slowest.push((took, name.clone()));
        self.slowest.sort_by_key(|(took, _)| std::cmp::Reverse(*took));
        self.slowest.truncate(10);
        match report {
            None => self.missed.push(name),
            Some(report) => {
                self.cases += 1;
                if !report.wrong.is_empty() {
                    self.fail(&name, &report.wrong.join("\n"));
                }
            }
        }
        *self.counts.entry(harm).or_default().entry(end).or_default() += 1;
        let rows = self.rows.entry(verb).or_default();
        match rows.iter_mut().find(|(known, _)| *known == moment) {
            Some((_, ends)) => drop(ends.insert(harm, end)),
            None => rows.push((moment, BTreeMap::from([(harm, end)]))),
        }
    }

    pub fn fail(&mut self, name: &str, wrong: &str) {
        println!("VIOLATION {name}: {}", wrong.lines().next().unwrap_or_default());
        self.wrong.push(format!("{name}:\n{wrong}"));
    }

    /// The counts by fault.
    pub fn summary(&self) -> String {
        let mut text = String::from("| fault |");
        End::ALL.iter().for_each(|(.., name)| write!(text, " {name} |").unwrap());
        text.push_str("\n|---|");
        End::ALL.iter().for_each(|_| text.push_str("---:|"));
        text.push('\n');
        let mut sums = [0; End::ALL.len()];
        for (harm, counts) in &self.counts {
            write!(text, "| {} |", harm.name()).unwrap();
            for (n, (end, ..)) in End::ALL.iter().enumerate() {
                let count = counts.get(end).copied().unwrap_or(0);
                sums[n] += count;
                write!(text, " {count} |").unwrap();
            }
            text.push('\n');
        }
        text.push_str("| all |");
        sums.iter().for_each(|sum| write!(text, " {sum} |").unwrap());
        write!(text, "\n\n{} cases of {} possible", self.cases, self.possible).unwrap();
        for (took, name) in &self.slowest {
            write!(text, "\nslow: {took:?} {name}").unwrap();
        }
        text
    }

    /// The whole table, as a page of the documentation.
    pub fn page(&self, every: u64) -> String {
        let mut text = String::from("# Placed cases\n\n");
        let share = if every == 1 { "All cases".to_owned() } else { format!("One of {every} cases") };
        writeln!(
            text,
            "{share} of `tests/placed.rs` (`just placed` writes this page): each verb × each step that it"
        )
        .unwrap();
        text.push_str("passes × each fault. What the signs mean:\n\n");
        for (_, sign, name) in End::ALL {
            writeln!(text, "- `{sign}` {name}").unwrap();
        }
        let counted = self.summary();
        let counted = counted.split("\nslow").next().unwrap_or_default();
        write!(text, "\n{counted}\n\n## Verb by verb\n").unwrap();
        text.push_str("\nThe columns: ");
        let names: Vec<String> =
            Harm::ALL.iter().enumerate().map(|(n, harm)| format!("{} {}", n + 1, harm.name())).collect();
        writeln!(text, "{}.", names.join(", ")).unwrap();
        for (verb, rows) in &self.rows {
            write!(text, "\n### {verb}\n\n| step |").unwrap();
            (1..=Harm::ALL.len()).for_each(|n| write!(text, " {n} |").unwrap());
            text.push_str("\n|---|");
            Harm::ALL.iter().for_each(|_| text.push_str("---|"));
            for (moment, ends) in rows {
                write!(text, "\n| {moment} |").unwrap();
                for harm in Harm::ALL {
                    write!(text, " {} |", ends.get(harm).map_or(' ', |end| end.sign())).unwrap();
                }
            }
            text.push('\n');
        }
        text
    }
}
