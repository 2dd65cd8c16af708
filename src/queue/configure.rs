//! Changes of queues' settings. They travel in rounds: what arrives while one is in flight is drafted on what the round reads, one
//! change behind the other, and stored at once, so that changes of a server never conflict with each other. Those of several
//! servers may, and are drafted anew.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::audit::{self, Act};
use super::quotas::Places;
use super::rounds::{Item, Limits, Rounds};
use super::settings::NO_VERSION;
use super::{Error, Precondition, QueueView, Queues, Result, Shared};
use crate::job::settings::dead_letter_circle;
use crate::job::{QueueName, QueueSettings};
use crate::store::audit::log;
use crate::store::{AuditRow, Expected, Saved, SettingsChange, SettingsSnapshot, StoreError, StoredSettings};

/// The longest pause before another try, for each that there was.
const BACKOFF: Duration = Duration::from_millis(10);
/// The longest pause before another try.
const BACKOFF_MAX: Duration = Duration::from_millis(200);

/// What is to become of a queue's settings.
pub(super) enum Change {
    /// They are replaced; a pause stays unless they say something about it.
    Replace(Box<QueueSettings>),
    /// They become what this makes of them.
    Edit(Box<dyn Fn(QueueSettings) -> Result<QueueSettings> + Send + Sync>),
    /// Delivery is stopped, or goes on.
    Pause(bool),
    /// They are removed.
    Remove,
}

impl Change {
    /// Returns what it is called in the audit.
    fn what(&self) -> &'static str {
        match self {
            Self::Replace(_) => "queue.set",
            Self::Edit(_) => "queue.update",
            Self::Pause(true) => "queue.pause",
            Self::Pause(false) => "queue.resume",
            Self::Remove => "queue.delete",
        }
    }
}

/// A change of one queue's settings.
pub(super) struct Ask {
    queue: QueueName,
    precondition: Precondition,
    change: Change,
    /// What is remembered of it in the audit, but for what the settings are before and after it.
    row: Option<AuditRow>,
    /// When its caller gets 503; the change must not be stored after that.
    until: Instant,
}

impl Item for Ask {
    fn weight(&self) -> usize {
        1
    }
}

/// Changes in flight, of all queues.
pub(super) type ConfigureRounds = Arc<Rounds<(), Ask, Result<QueueView>>>;

pub(super) fn rounds(shared: &Weak<Shared>) -> ConfigureRounds {
    let shared = shared.clone();
    Rounds::new(Limits { round: 500, overlap: 1, large: 500, waiting: 10_000 }, move |(), asks| {
        let shared = shared.upgrade();
        Box::pin(async move {
            match shared {
                Some(shared) => Queues(shared).configure_round(asks).await,
                None => Vec::new(),
            }
        })
    })
}

/// Waits before another try, with jitter: the change that this one met may still be on its way to a majority.
pub(super) async fn back_off(attempt: usize) {
    let most = BACKOFF.saturating_mul(u32::try_from(attempt).unwrap_or(u32::MAX)).min(BACKOFF_MAX);
    if attempt > 0 {
        tokio::time::sleep(most.mul_f64(rand::random())).await;
    }
}

/// The settings as they are once what was drafted is stored.
struct Draft {
    snapshot: Arc<SettingsSnapshot>,
    changed: BTreeMap<QueueName, Option<StoredSettings>>,
    /// What is remembered of these changes.
    rows: HashMap<QueueName, Vec<AuditRow>>,
}

impl Draft {
    /// Changes a queue's settings.
    fn put(&mut self, ask: &Ask, to: Option<StoredSettings>) {
        let settings = |stored: &StoredSettings| audit::shown(&stored.settings);
        let before = self.stored(&ask.queue).and_then(settings);
        if let Some(row) = ask.row.clone() {
            let after = to.as_ref().and_then(settings);
            self.rows.entry(ask.queue.clone()).or_default().push(AuditRow { before, after, ..row });
        }
        self.changed.insert(ask.queue.clone(), to);
    }

    fn stored(&self, queue: &QueueName) -> Option<&StoredSettings> {
        match self.changed.get(queue) {
            Some(changed) => changed.as_ref(),
            None => self.snapshot.queues.get(queue),
        }
    }

    fn is_unreadable(&self, queue: &QueueName) -> bool {
        !self.changed.contains_key(queue) && self.snapshot.unreadable.contains_key(queue)
    }

    fn check(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        if let Some((field, what)) = settings.fault() {
            return Err(Error::invalid(format!("/{field}"), what));
        }
        let of = |queue: &QueueName| self.stored(queue)?.settings.dead_letter.clone();
        // One that is there, from an older version, stays as it is.
        let Some(dead_letter) =
            settings.dead_letter.as_ref().filter(|named| of(queue).as_ref() != Some(named))
        else {
            return Ok(());
        };
        match dead_letter_circle(queue, dead_letter, |queue| Ok::<_, Error>(of(queue)))? {
            Some(circle) => Err(Error::DeadLetterCircle(circle)),
            None => Ok(()),
        }
    }

    /// What has to be stored, each guarded by what was read.
    fn changes(&self) -> Vec<SettingsChange> {
        let expected = |queue: &QueueName| match self.snapshot.queues.get(queue) {
            Some(stored) => Expected::Version(stored.version.clone()),
            None => Expected::Absent,
        };
        let change = |(queue, to): (&QueueName, &Option<StoredSettings>)| SettingsChange {
            queue: queue.clone(),
            to: to.clone(),
            expected: expected(queue),
            rows: self.rows.get(queue).cloned().unwrap_or_default(),
        };
        self.changed.iter().map(change).collect()
    }
}

/// Logs the acts that are stored, or may be.
fn log_rows(changes: &[SettingsChange], saved: &Result<Vec<Saved>, StoreError>) {
    for (n, change) in changes.iter().enumerate() {
        let outcome = match saved {
            Ok(saved) if saved.get(n) == Some(&Saved::Done) => None,
            Err(StoreError::Unavailable(_)) => Some("unknown"),
            Ok(_) | Err(_) => continue,
        };
        change.rows.iter().for_each(|row| log(row, outcome));
    }
}

/// What came of drafting a change.
enum Drafted {
    /// It is in the draft; these places are its own once that is stored.
    Ready(Vec<Places>),
    /// It is refused. `is_certain`: also if nothing of the draft is stored.
    Refused { why: Error, is_certain: bool },
}

impl Queues {
    /// Changes a queue's settings, together with whatever else is being changed.
    pub(super) async fn change(
        &self,
        name: &QueueName,
        precondition: Precondition,
        change: Change,
    ) -> Result<QueueView> {
        let until = Instant::now() + self.options().patience;
        let row =
            self.row(Act { what: change.what(), on: name.as_str(), queue: Some(name), ..Act::default() });
        let ask = Ask { queue: name.clone(), precondition, change, row, until };
        self.in_time(self.0.configures.travel((), ask)).await??
    }

    /// Runs one round of changes, again for those that met a change of another server.
    async fn configure_round(&self, asks: Vec<Ask>) -> Vec<Result<QueueView>> {
        let mut answers: Vec<Option<Result<QueueView>>> = asks.iter().map(|_| None).collect();
        let end = Instant::now() + self.options().patience;
        for attempt in 0.. {
            back_off(attempt).await;
            if let Err(error) = self.try_changes(&asks, &mut answers).await {
                for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
                    *answer = Some(Err(error.clone()));
                }
            }
            if answers.iter().all(Option::is_some) || Instant::now() > end {
                break;
            }
        }
        let late = || StoreError::unavailable("the settings were changed by others again and again");
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(late().into()))).collect()
    }

    /// Tries to make those changes that have no answer yet. An error concerns all of them: whether they happened is unknown.
    async fn try_changes(&self, asks: &[Ask], answers: &mut [Option<Result<QueueView>>]) -> Result<()> {
        let since = self.0.store.term();
        self.refresh_settings().await?;
        let late = asks.iter().zip(answers.iter_mut()).filter(|(ask, _)| ask.until <= Instant::now());
        for (_, answer) in late.filter(|(_, answer)| answer.is_none()) {
            *answer = Some(Err(StoreError::unavailable("the settings were not changed in time").into()));
        }
        let mut draft = Draft { snapshot: self.snapshot(), changed: BTreeMap::new(), rows: HashMap::new() };
        let mut drafted = Vec::new();
        for (ask, answer) in asks.iter().zip(answers).filter(|(_, answer)| answer.is_none()) {
            let is_certain = draft.changed.is_empty();
            let made = match self.draft(&mut draft, ask).await {
                Ok(places) => Drafted::Ready(places),
                Err(error @ Error::Store(_)) => {
                    *answer = Some(Err(error));
                    break; // the next one would wait as long for the same: it has its turn in the next attempt
                }
                Err(why) => Drafted::Refused { why, is_certain },
            };
            drafted.push((ask, answer, made));
        }
        if drafted.iter().any(|(ask, ..)| ask.until <= Instant::now()) {
            return Ok(()); // drafting took long: the next attempt answers those, and drafts the others anew
        }
        let changes = draft.changes();
        let saved = self.save_changes(&changes).await?;
        let is_whole = saved.values().all(|saved| *saved == Saved::Done);
        let is_unchanged = |(Ask { queue, .. }, _, made): &(&Ask, _, Drafted)| {
            matches!(made, Drafted::Ready(_)) && !saved.contains_key(queue)
        };
        // What is stored comes after what was read.
        if (saved.is_empty() || !is_whole) && drafted.iter().any(is_unchanged) {
            self.0.store.confirm(since).await?;
        }
        for (Ask { queue, .. }, answer, made) in drafted {
            match made {
                Drafted::Refused { why, is_certain } if is_certain || is_whole => *answer = Some(Err(why)),
                Drafted::Refused { .. } => {}
                Drafted::Ready(places) => match saved.get(queue) {
                    None | Some(Saved::Done) => {
                        places.into_iter().for_each(Places::keep_all);
                        *answer = Some(Ok(self.view(queue.clone())));
                    }
                    // Another server has named the rest of it since.
                    // The next draft knows the rest of the circle, and refuses only what closes it.
                    Some(Saved::Circle(_) | Saved::Conflict) => {}
                },
            }
        }
        Ok(())
    }

    /// Stores changes, and reads what holds from then on.
    async fn save_changes<'a>(&self, changes: &'a [SettingsChange]) -> Result<HashMap<&'a QueueName, Saved>> {
        if changes.is_empty() {
            return Ok(HashMap::new());
        }
        let saved = self.0.store.save_all_settings(changes).await;
        log_rows(changes, &saved);
        let saved = saved?;
        self.0.waiters.peers.note_settings();
        if saved.iter().all(|saved| *saved == Saved::Done) {
            self.refresh_settings().await?;
        } else {
            // What another program has written raises no revision.
            self.read_all_settings().await?;
        }
        Ok(changes.iter().map(|change| &change.queue).zip(saved).collect())
    }

    /// Adds a change to the draft, unless it changes nothing.
    async fn draft(&self, draft: &mut Draft, ask: &Ask) -> Result<Vec<Places>> {
        let Ask { queue, precondition, change, .. } = ask;
        let stored = draft.stored(queue);
        if !precondition.is_met(stored.map_or(NO_VERSION, |stored| &stored.version)) {
            return Err(Error::SettingsChanged(queue.clone()));
        }
        let is_new = stored.is_none();
        let before = stored.map(|stored| stored.settings.clone()).unwrap_or_default();
        let (settings, makes) = match change {
            Change::Remove if is_new => return Ok(Vec::new()),
            Change::Remove => {
                draft.put(ask, None);
                return Ok(Vec::new());
            }
            // Also where all of them are the defaults: from now on the queue is listed.
            Change::Replace(settings) => (settings.as_ref().clone().replacing(&before), is_new),
            Change::Edit(edit) => (edit(before.clone())?.normal(), false),
            Change::Pause(paused) => {
                (QueueSettings { paused: Some(*paused), ..before.clone() }.normal(), false)
            }
        };
        draft.check(queue, &settings)?;
        if settings == before && !makes && !draft.is_unreadable(queue) {
            return Ok(Vec::new());
        }
        let mut places = vec![self.admit_queues(self.new_queues(settings.dead_letter.iter())).await?];
        if is_new {
            places.push(self.admit_settings(queue).await?);
        }
        let version = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 9]>());
        draft.put(ask, Some(StoredSettings { settings, version }));
        Ok(places)
    }
}
