//! The settings of queues, and the rules that follow from them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Invalid;
use super::backoff::{Backoff, YEAR_MS};
use super::names::QueueName;

/// The shortest lease, in milliseconds.
pub const LEASE_MIN_MS: u64 = 100;
/// The longest lease, in milliseconds: a day.
pub const LEASE_MAX_MS: u64 = 86_400_000;
/// The shortest timeout of a worker, in milliseconds: no shorter than the pause between two checks for timed-out
/// workers.
pub const WORKER_TIMEOUT_MIN_MS: u64 = 1000;
/// The longest timeout of a worker, in milliseconds: a day.
pub const WORKER_TIMEOUT_MAX_MS: u64 = 86_400_000;
/// The most attempts that a job or a queue may ask for.
pub const ATTEMPTS_MAX: u32 = 1_000_000;

/// The largest number of jobs in a setting: both stores keep numbers in 64 bits with a sign.
pub const COUNT_MAX: u64 = i64::MAX.unsigned_abs();

/// What becomes of a group whose first job dies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnGroupDead {
    /// The dead job stays in the queue and holds its group until it is redriven or taken away.
    #[default]
    Hold,
    /// The group goes on without it.
    Skip,
}

/// Where a job comes back that its worker has lost: its reservation ran out, or the worker fell silent or was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Lapsed {
    /// It is due now, behind all that waits with the same priority.
    #[default]
    Now,
    /// It keeps the place that it had in the order of delivery, before what was pushed later.
    First,
}

/// How much in a time. Of a queue: at most `limit` deliveries in any window of `per_ms`. Of an API key: `limit` requests at once, then
/// one whenever its part of `per_ms` has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// How many.
    #[schema(minimum = 1, maximum = 1000000)]
    pub limit: u64,
    /// How long, in milliseconds.
    #[schema(minimum = 1, maximum = 86400000)]
    pub per_ms: u64,
}

impl Rate {
    /// Returns the field that is out of its range and the rule for it, if any is.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self { limit, .. } if !(1..=1_000_000).contains(limit) => Some(("limit", "must be 1 to 1000000")),
            Self { per_ms, .. } if !(1..=LEASE_MAX_MS).contains(per_ms) => {
                Some(("per_ms", "must be 1 to 86400000"))
            }
            _ => None,
        }
    }
}

/// What a queue's owner has set. What is absent falls back on the server's defaults, at the moment it
/// is used and not when a job was pushed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QueueSettings {
    /// How long a reservation lasts when the reserve does not say, in milliseconds (100 to 86400000).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 100, maximum = 86400000)]
    pub lease_ms: Option<u64>,
    /// How often a job is delivered before it is dead, when the job does not say (1 to 1000000); 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1000000)]
    pub max_attempts: Option<u32>,
    /// How long a rolled back job waits, when the job does not say.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "super::backoff::object")]
    pub backoff: Option<Backoff>,
    /// The queue that takes this queue's dead jobs. Without it they stay here as `dead`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<QueueName>,
    /// How long finished jobs are kept as history, in milliseconds; 0 keeps none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    pub retain_done_ms: Option<u64>,
    /// How long a job is kept with its result once it is done, in milliseconds, when the job does not say and
    /// `retain_done_ms` is shorter: for producers that wait for it, or ask for it later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    pub retain_result_ms: Option<u64>,
    /// How long dead jobs are kept, in milliseconds; 0 keeps them until they are deleted or redriven.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    pub retain_dead_ms: Option<u64>,
    /// The most unfinished jobs that the queue takes; further pushes are refused with 429 `queue-full`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9223372036854775807_u64)]
    pub max_jobs: Option<u64>,
    /// The most jobs of the queue that are reserved at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9223372036854775807_u64)]
    pub max_reserved: Option<u64>,
    /// How often jobs of the queue are delivered at most, pops included, on all servers together.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "super::backoff::object")]
    pub rate: Option<Rate>,
    /// What becomes of a group whose first job dies: `hold` it, which is the default, or `skip` the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_group_dead: Option<OnGroupDead>,
    /// Where a job comes back whose reservation ran out, or whose worker was lost: `now`, which is the default, puts it behind
    /// all that waits; `first` where it was, with its earlier `run_at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lapsed: Option<Lapsed>,
    /// Stops delivery; pushes go on. `false` lets it go on. A `PUT` without it changes nothing about a pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

impl QueueSettings {
    /// The fields, and those of the fields that are objects.
    const FIELDS: &[(&str, &[&str])] = &[
        ("lease_ms", &[]),
        ("max_attempts", &[]),
        ("backoff", &["kind", "base_ms", "factor", "max_ms", "jitter"]),
        ("dead_letter", &[]),
        ("retain_done_ms", &[]),
        ("retain_result_ms", &[]),
        ("retain_dead_ms", &[]),
        ("max_jobs", &[]),
        ("max_reserved", &[]),
        ("rate", &["limit", "per_ms"]),
        ("on_group_dead", &[]),
        ("lapsed", &[]),
        ("paused", &[]),
    ];

    /// Returns what is wrong with a merge patch that has a field that is no setting. A null there would not be
    /// found by parsing what the patch makes of the settings.
    pub fn unknown_field(changes: &serde_json::Map<String, serde_json::Value>) -> Option<Invalid> {
        let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
        changes.iter().find_map(|(name, change)| {
            let wrong = |pointer: String, known: &[&str]| {
                Invalid::new(pointer, format!("is an unknown field; known fields: {}", known.join(", ")))
            };
            let Some((_, inner)) = Self::FIELDS.iter().find(|(field, _)| field == name) else {
                let known: Vec<&str> = Self::FIELDS.iter().map(|(field, _)| *field).collect();
                return Some(wrong(format!("/{}", escaped(name)), &known));
            };
            let unknown = |field: &&String| !inner.is_empty() && !inner.contains(&field.as_str());
            let field = change.as_object()?.keys().find(unknown)?;
            Some(wrong(format!("/{name}/{}", escaped(field)), inner))
        })
    }

    /// Reads stored settings: what can be read of them, and what is wrong with the rest, if anything is. Each field
    /// stands for itself, so that a pause holds although another program has spoiled a limit beside it.
    pub fn stored(value: serde_json::Value) -> (Self, Option<String>) {
        if let Some(settings) = Self::valid(value.clone()) {
            return (settings, None);
        }
        let serde_json::Value::Object(fields) = value else {
            return (Self::default(), Some("the settings are not an object".to_owned()));
        };
        let (mut whole, mut wrong) = (serde_json::Map::new(), Vec::new());
        for (name, value) in fields {
            let alone = serde_json::Map::from_iter([(name.clone(), value)]);
            match Self::valid(alone.clone().into()) {
                Some(_) => whole.extend(alone),
                None => wrong.push(name),
            }
        }
        let why = format!("not valid: {}", wrong.join(", "));
        (Self::valid(whole.into()).unwrap_or_default(), Some(why))
    }

    /// Versions before this one took larger counts, which have the same effect.
    fn valid(value: serde_json::Value) -> Option<Self> {
        let mut settings = serde_json::from_value::<Self>(value).ok()?.normal();
        for count in [&mut settings.max_jobs, &mut settings.max_reserved].into_iter().flatten() {
            *count = (*count).min(COUNT_MAX);
        }
        settings.fault().is_none().then_some(settings)
    }

    /// Whether delivery is stopped.
    pub fn is_paused(&self) -> bool {
        self.paused == Some(true)
    }

    /// Returns what takes the place of `before`, when all settings are replaced. A pause is an operator's act, not a setting
    /// that a deployment resets: it stays unless these settings say something about it.
    pub fn replacing(self, before: &Self) -> Self {
        Self { paused: self.paused.or(before.paused), ..self }.normal()
    }

    /// Returns the same settings as they are stored: what is not paused says nothing about it.
    pub fn normal(self) -> Self {
        Self { paused: self.paused.filter(|paused| *paused), ..self }
    }

    /// Returns the field that is out of its range and the rule for it, if any is.
    pub fn fault(&self) -> Option<(String, &'static str)> {
        let plain = |field: &str, what| Some((field.to_owned(), what));
        if self.lease_ms.is_some_and(|ms| !(LEASE_MIN_MS..=LEASE_MAX_MS).contains(&ms)) {
            return plain("lease_ms", "must be 100 to 86400000");
        }
        if self.max_attempts.is_some_and(|n| n > ATTEMPTS_MAX) {
            return plain("max_attempts", "must be 1 to 1000000, or 0 for no limit");
        }
        if self.retain_done_ms.is_some_and(|ms| ms > YEAR_MS) {
            return plain("retain_done_ms", "must be 0 to 31536000000 (a year)");
        }
        if self.retain_result_ms.is_some_and(|ms| ms > YEAR_MS) {
            return plain("retain_result_ms", "must be 0 to 31536000000 (a year)");
        }
        if self.retain_dead_ms.is_some_and(|ms| ms > YEAR_MS) {
            return plain("retain_dead_ms", "must be 0 to 31536000000 (a year)");
        }
        for (field, count) in [("max_jobs", self.max_jobs), ("max_reserved", self.max_reserved)] {
            match count {
                Some(0) => return plain(field, "must be at least 1; pause the queue to stop its delivery"),
                Some(count) if count > COUNT_MAX => return plain(field, "must be 1 to 9223372036854775807"),
                _ => {}
            }
        }
        if let Some((field, what)) = self.rate.as_ref().and_then(Rate::fault) {
            return Some((format!("rate/{field}"), what));
        }
        let (field, what) = self.backoff.as_ref()?.fault()?;
        Some((format!("backoff/{field}"), what))
    }
}

/// What queues fall back on; the `[defaults]` section of the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Defaults {
    /// See [`QueueSettings::lease_ms`].
    pub lease_ms: u64,
    /// See [`QueueSettings::max_attempts`].
    pub max_attempts: u32,
    /// See [`QueueSettings::backoff`].
    pub backoff: Backoff,
    /// See [`QueueSettings::retain_done_ms`].
    pub retain_done_ms: u64,
    /// See [`QueueSettings::retain_dead_ms`].
    pub retain_dead_ms: u64,
    /// How long a batch that is finished is kept with its results, in milliseconds.
    pub retain_batch_ms: u64,
    /// How long a job waits for its semaphores until later ones that need one of them wait behind it, in
    /// milliseconds.
    pub semaphore_patience_ms: u64,
    /// How long a key stays taken at least, in milliseconds, when the push does not say.
    pub key_ttl_ms: u64,
    /// How long after its last heartbeat a worker loses what it holds, in milliseconds, when its heartbeat does not say.
    pub worker_timeout_ms: u64,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            lease_ms: 30_000,
            max_attempts: 5,
            backoff: Backoff::default(),
            retain_done_ms: 0,
            retain_dead_ms: 0,
            retain_batch_ms: 86_400_000,
            semaphore_patience_ms: 10_000,
            key_ttl_ms: 300_000,
            worker_timeout_ms: 15_000,
        }
    }
}

/// All queues' settings at one moment, as a server knows them: cheap to clone, never changed in place.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    defaults: Arc<Defaults>,
    queues: Arc<HashMap<QueueName, QueueSettings>>,
}

impl Rules {
    /// Returns the rules that follow from these settings over these defaults.
    pub fn new(defaults: Arc<Defaults>, queues: HashMap<QueueName, QueueSettings>) -> Self {
        Self { defaults, queues: Arc::new(queues) }
    }

    /// Returns what queues fall back on.
    pub fn defaults(&self) -> &Arc<Defaults> {
        &self.defaults
    }

    /// Returns the settings of every queue that has some.
    pub fn configured(&self) -> &HashMap<QueueName, QueueSettings> {
        &self.queues
    }

    /// Returns what the queue's owner has set, if anything.
    pub fn settings(&self, queue: &QueueName) -> Option<&QueueSettings> {
        self.queues.get(queue)
    }

    fn own<T>(&self, queue: &QueueName, field: impl Fn(&QueueSettings) -> Option<T>, default: T) -> T {
        self.queues.get(queue).and_then(field).unwrap_or(default)
    }

    /// Returns how long a reservation in this queue lasts when the reserve does not say.
    pub fn lease_ms(&self, queue: &QueueName) -> u64 {
        self.own(queue, |s| s.lease_ms, self.defaults.lease_ms)
    }

    /// Returns how often a job of this queue is delivered when the job does not say; 0 for no limit.
    pub fn max_attempts(&self, queue: &QueueName) -> u32 {
        self.own(queue, |s| s.max_attempts, self.defaults.max_attempts)
    }

    /// Returns how long a job of this queue waits after a rollback when the job does not say.
    pub fn backoff(&self, queue: &QueueName) -> Backoff {
        self.own(queue, |s| s.backoff, self.defaults.backoff)
    }

    /// Returns how long this queue's finished jobs are kept; `None`: not at all.
    pub fn retain_done_ms(&self, queue: &QueueName) -> Option<u64> {
        Some(self.own(queue, |s| s.retain_done_ms, self.defaults.retain_done_ms)).filter(|ms| *ms > 0)
    }

    /// Returns how long this queue's finished jobs are kept for clients that wait for their results; `None`: not at all.
    pub fn retain_result_ms(&self, queue: &QueueName) -> Option<u64> {
        self.queues.get(queue)?.retain_result_ms.filter(|ms| *ms > 0)
    }

    /// Returns how long a job of this queue is kept once it is done, which may say itself how long its result is; `None`: not
    /// at all.
    pub fn retain_finished_ms(&self, queue: &QueueName, own: Option<u64>) -> Option<u64> {
        let result_ms = own.or(self.retain_result_ms(queue)).filter(|ms| *ms > 0);
        self.retain_done_ms(queue).max(result_ms)
    }

    /// Returns how long this queue's dead jobs are kept; `None`: until they are deleted.
    pub fn retain_dead_ms(&self, queue: &QueueName) -> Option<u64> {
        Some(self.own(queue, |s| s.retain_dead_ms, self.defaults.retain_dead_ms)).filter(|ms| *ms > 0)
    }

    /// Returns the queue that takes this queue's dead jobs.
    pub fn dead_letter(&self, queue: &QueueName) -> Option<&QueueName> {
        self.queues.get(queue)?.dead_letter.as_ref()
    }

    /// Returns the most unfinished jobs that the queue takes.
    pub fn max_jobs(&self, queue: &QueueName) -> Option<u64> {
        self.queues.get(queue)?.max_jobs
    }

    /// Returns the most jobs of the queue that are reserved at once.
    pub fn max_reserved(&self, queue: &QueueName) -> Option<u64> {
        self.queues.get(queue)?.max_reserved
    }

    /// Returns how often jobs of the queue are delivered at most.
    pub fn rate(&self, queue: &QueueName) -> Option<Rate> {
        self.queues.get(queue)?.rate
    }

    /// Whether a dead job of this queue holds its group.
    pub fn holds_dead(&self, queue: &QueueName) -> bool {
        self.own(queue, |s| s.on_group_dead, OnGroupDead::Hold) == OnGroupDead::Hold
    }

    /// Whether a job of this queue keeps its place in the order of delivery where its worker loses it.
    pub fn lapsed_come_first(&self, queue: &QueueName) -> bool {
        self.own(queue, |s| s.lapsed, Lapsed::Now) == Lapsed::First
    }

    /// Whether delivery from this queue is stopped.
    pub fn paused(&self, queue: &QueueName) -> bool {
        self.queues.get(queue).is_some_and(QueueSettings::is_paused)
    }
}

/// Returns the circle of dead-letter queues that arises if `queue` gets this one, from the queue back to itself, if one does.
/// `dead_letter_of` says which one another queue has.
pub fn dead_letter_circle<E>(
    queue: &QueueName,
    dead_letter: &QueueName,
    mut dead_letter_of: impl FnMut(&QueueName) -> Result<Option<QueueName>, E>,
) -> Result<Option<Vec<QueueName>>, E> {
    let (mut chain, mut seen) = (vec![queue.clone()], HashSet::new());
    let mut next = dead_letter.clone();
    loop {
        if next == *queue {
            chain.push(next);
            return Ok(Some(chain));
        }
        // A circle further on, which an older version let arise, is not this one.
        if !seen.insert(next.clone()) {
            return Ok(None);
        }
        let Some(further) = dead_letter_of(&next)? else { return Ok(None) };
        chain.push(std::mem::replace(&mut next, further));
    }
}

/// The same for a queue that may name this one already: a circle that is there stays as it is where its settings are saved again.
pub fn new_dead_letter_circle<E>(
    queue: &QueueName,
    dead_letter: &QueueName,
    mut dead_letter_of: impl FnMut(&QueueName) -> Result<Option<QueueName>, E>,
) -> Result<Option<Vec<QueueName>>, E> {
    match dead_letter_of(queue)? {
        Some(named) if named == *dead_letter => Ok(None),
        _ => dead_letter_circle(queue, dead_letter, dead_letter_of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> QueueName {
        text.parse().unwrap()
    }

    #[test]
    fn a_chain_that_returns_is_a_circle() {
        let chains = [("b", "c"), ("c", "a"), ("x", "y"), ("y", "x")];
        let chains = HashMap::from(chains.map(|(queue, dead_letter)| (name(queue), name(dead_letter))));
        let circle = |queue: &str, dead_letter: &str| {
            let next = |queue: &QueueName| Ok::<_, std::convert::Infallible>(chains.get(queue).cloned());
            dead_letter_circle(&name(queue), &name(dead_letter), next).unwrap()
        };
        assert_eq!(circle("a", "b"), Some(["a", "b", "c", "a"].map(name).to_vec()));
        assert_eq!(circle("a", "a"), Some(["a", "a"].map(name).to_vec()));
        assert_eq!(circle("d", "b"), None);
        assert_eq!(circle("d", "x"), None);
        let new_circle = |queue: &str, dead_letter: &str| {
            let next = |queue: &QueueName| Ok::<_, std::convert::Infallible>(chains.get(queue).cloned());
            new_dead_letter_circle(&name(queue), &name(dead_letter), next).unwrap()
        };
        assert_eq!(new_circle("a", "b"), circle("a", "b"));
        assert_eq!(circle("x", "y"), Some(["x", "y", "x"].map(name).to_vec()));
        assert_eq!(new_circle("x", "y"), None, "it is there");
    }

    #[test]
    fn what_can_be_read_of_stored_settings_holds() {
        let read = |text: &str| QueueSettings::stored(serde_json::from_str(text).unwrap());
        let (settings, why) =
            read(r#"{"paused":true,"max_jobs":"x","lease_ms":1,"lease_ms2":1,"retain_done_ms":5}"#);
        assert_eq!((settings.is_paused(), settings.retain_done_ms), (true, Some(5)));
        assert_eq!(why.unwrap(), "not valid: max_jobs, lease_ms, lease_ms2");
        assert_eq!(
            read("null"),
            (QueueSettings::default(), Some("the settings are not an object".to_owned()))
        );
        let (settings, why) = read(r#"{"max_jobs":18446744073709551615}"#);
        assert_eq!((settings.max_jobs, why), (Some(COUNT_MAX), None));
    }

    #[test]
    fn a_patch_is_checked_for_every_field() {
        let text = r#"{"lease_ms":100,"max_attempts":1,"backoff":{"kind":"fixed","base_ms":1},"dead_letter":"d",
            "retain_done_ms":1,"retain_result_ms":1,"retain_dead_ms":1,"max_jobs":1,"max_reserved":1,"rate":{"limit":1,"per_ms":1},
            "on_group_dead":"hold","lapsed":"first","paused":true}"#;
        let whole: QueueSettings = serde_json::from_str(text).unwrap();
        let serde_json::Value::Object(mut fields) = serde_json::to_value(&whole).unwrap() else { panic!() };
        assert_eq!(fields.len(), QueueSettings::FIELDS.len());
        assert_eq!(
            QueueSettings::unknown_field(&fields).map(|wrong| wrong.pointer),
            None,
            "of what is written, everything is known"
        );
        fields["rate"]["a/b"] = serde_json::Value::Null;
        assert_eq!(QueueSettings::unknown_field(&fields).unwrap().pointer, "/rate/a~1b");
    }

    #[test]
    fn faults_name_the_field() {
        let settings = QueueSettings { lease_ms: Some(99), ..Default::default() };
        assert_eq!(settings.fault().unwrap().0, "lease_ms");
        let backoff = Some(Backoff { jitter: 1.5, ..Backoff::default() });
        assert_eq!(QueueSettings { backoff, ..Default::default() }.fault().unwrap().0, "backoff/jitter");
        assert_eq!(QueueSettings::default().fault(), None);
    }
}
