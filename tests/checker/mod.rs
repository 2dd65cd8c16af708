//! Judges a server by what its clients saw, and by nothing else.
//!
//! ```ignore
//! mod checker;
//! let recorder = checker::Recorder::new();
//! let client = checker::Client::new(&recorder, "producer", &server.base);
//! client.push("mail", json!({"payload": 1})).await;              // each call is one HTTP request, recorded with its outcome
//! for job in client.at(&other.base).reserve("mail", json!({"lease_ms": 5000})).await {
//!     client.settle(Verb::Commit, &job, json!({})).await;
//! }
//! checker::drain(&client, &[&server.base], &[], PATIENCE).await; // after healing: works until nothing is left
//! let history = recorder.history();
//! let scan = checker::Scan::read(&server.base, &history).await;  // every job, count, semaphore and batch that is left
//! checker::assert_sound(&history, &scan, &Setup::default());     // or `judge`, which returns the violations
//! ```
//!
//! Every test binary may include this tree (`mod checker;`). A [`History`] can be written to a file and read again.
//! What the judge needs of a test:
//!
//! - All calls that change jobs go through a [`Client`]: what is not recorded is taken for invented. It gives each job
//!   that it pushes a header `mark`, by which a job is recognized whose push was not answered. A repeat of a call sends the same mark
//!   (give the body its mark with [`client::mark`] first), and is another call.
//! - A response 4xx or 507 means that nothing happened; a 5xx, a timeout or a broken connection that it may have happened, or
//!   may still happen. A repeated call that is refused says nothing of the first one.
//! - Settle with the job as it was returned; ask with `lease_ms`: without it no lease is known to protect a delivery.
//! - Jobs that should not die have `max_attempts` of 1000 or more: one that may have died may have ended its batch or
//!   left its group.
//!
//! Concluded is only what is certain. A claim happened between the sending of the request that won it (with an `Idempotency-Key`:
//! the first one) and the response. A token is the current one from its first response until the earliest of: the end of
//! the lease measured from that sending, less [`Setup::slack_ms`]; the sending of anything that may have ended it. But where a settle
//! with this token succeeds, it was current until that settle was first sent.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

pub mod client;
pub mod drain;
pub mod facts;
pub mod history;
pub mod rules;
pub mod scan;
pub mod tokens;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub use client::{Client, jobs};
pub use drain::drain;
pub use history::{Call, History, Outcome, Recorder, Verb};
pub use scan::Scan;

/// What the judge must know beside the records.
#[derive(Debug, Clone)]
pub struct Setup {
    /// How far the server's estimate of the store's clock may be behind it: the longest way of a message between them.
    pub slack_ms: u64,
    /// Whether everything was drained before the scan.
    pub is_drained: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self { slack_ms: 250, is_drained: true }
    }
}

impl Setup {
    fn slack_us(&self) -> u64 {
        self.slack_ms * 1000
    }
}

/// What was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// An acknowledged job is gone, and nothing can have ended it.
    Lost,
    /// A job that no client pushed.
    Invented,
    /// A job of a push that was refused.
    RefusedButDone,
    /// One push made several jobs.
    StoredTwice,
    /// The payload, or what else belongs to the job, is not what was pushed.
    Altered,
    /// Two tokens of one job were valid at once.
    TwoHolders,
    /// Two requests got the same token.
    SharedToken,
    /// A token had an effect after a later one was handed out.
    StaleToken,
    /// A job, or a token, ended twice.
    SettledTwice,
    /// Delivered after its end was acknowledged.
    DeliveredAfterEnd,
    /// Delivered from a queue that it was not in.
    WrongQueue,
    /// Delivered while a job before it in its group was unfinished.
    GroupOrder,
    /// Two jobs of a group were held at once.
    GroupShared,
    /// More holders than the semaphore's capacity.
    Capacity,
    /// A part of what is stored together.
    Partial,
    /// A batch's callback came early, twice or never.
    Callback,
    /// Two jobs with one key.
    Key,
    /// Delivered before its delay was over.
    Early,
    /// An occurrence of a schedule was pushed twice.
    Schedule,
    /// Something is left that nobody can have.
    NotDrained,
    /// The counts differ from the jobs.
    Counts,
    /// Two answers to a call and its repeat, under one `Idempotency-Key`, differ.
    OtherAnswer,
    /// An operation took what it must not: a job that came later, or one after it was cancelled.
    Operation,
}

/// One broken guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// The job, the batch or whatever it is about.
    pub about: String,
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}: {}", self.rule, self.about, self.detail)
    }
}

/// Collects violations.
#[derive(Default)]
pub struct Findings(Vec<Violation>);

impl Findings {
    pub fn add(&mut self, rule: Rule, about: &str, detail: String) {
        self.0.push(Violation { rule, about: about.to_owned(), detail });
    }
}

/// Returns every guarantee that these records prove to be broken.
pub fn judge(history: &History, scan: &Scan, setup: &Setup) -> Vec<Violation> {
    let facts = facts::Facts::new(history, scan);
    let lives: BTreeMap<_, _> =
        facts.lives.iter().map(|(id, life)| (*id, tokens::tokens(life, &facts, setup))).collect();
    let mut findings = Findings::default();
    let case = rules::Case { facts: &facts, tokens: &lives, scan, setup };
    rules::lives::judge(&case, &mut findings);
    rules::ends::judge(&case, &mut findings);
    rules::holds::judge(&case, &mut findings);
    rules::times::judge(&case, &mut findings);
    rules::lines::judge(&case, &mut findings);
    rules::together::judge(&case, &mut findings);
    rules::rest::judge(&case, &mut findings);
    rules::repeats::judge(history, &mut findings);
    rules::operations::judge(&case, &mut findings);
    findings.0
}

/// A file that stays when the test has ended, unlike what is in its temporary directory.
pub fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Panics with the violations, if there are any, after writing the history beside other files of this run.
pub fn assert_sound(history: &History, scan: &Scan, setup: &Setup) {
    let violations = judge(history, scan, setup);
    if violations.is_empty() {
        return;
    }
    let path = kept(&format!("tailback-history-{}.jsonl", std::process::id()));
    history.write(&path);
    let text: Vec<String> = violations.iter().map(Violation::to_string).collect();
    panic!("{} violations; the history is in {}:\n{}", text.len(), path.display(), text.join("\n"));
}
