//! Groups in the model: the jobs of a queue that have the same one stand in a line, in the order in which they came. The
//! first may be delivered, and the others are blocked.

use std::collections::{BTreeMap, BTreeSet};

use tailback::job::transition::Operation;
use tailback::job::{GroupName, JobId, QueueName, State, Timestamp};
use tailback::store::{Applied, Change, Denied, Imported};

use super::drafts::Draft;
use super::job::{Job, Rev, Turn, Waits, When};
use super::state::{Checked, Model};
use super::steps::Ask;
use super::world::{World, fault};

/// The line of a group in a queue.
pub type Line = (QueueName, GroupName);

/// Whether these are the ones that a call told of.
pub fn are_told(expected: &[(QueueName, When)], told: &[(QueueName, Timestamp)]) -> bool {
    let is =
        |(own, told): (&(QueueName, When), &(QueueName, Timestamp))| own.0 == told.0 && own.1.has(told.1);
    expected.len() == told.len() && expected.iter().zip(told).all(is)
}

impl Job {
    /// The line in which it stands.
    pub fn line(&self) -> Option<Line> {
        self.group_here().filter(|_| self.turn != Turn::None)
    }

    fn group_here(&self) -> Option<Line> {
        Some((self.queue.clone(), self.group.clone()?))
    }

    /// Whether those before it in its line keep it from being delivered.
    fn is_behind(&self) -> bool {
        self.state == State::Blocked && self.waits_for == Waits::No
    }
}

impl Model {
    /// The job is like this from now on. It leaves its line where it has no turn any more, and comes to the end of one where
    /// it has none yet: dead letters do not.
    pub fn put(&mut self, mut job: Job) {
        if let Rev::Same(rev) = job.rev {
            job.rev = Rev::Changed(rev);
        }
        if let (Turn::None, Some(line)) = (job.turn, self.jobs.get(&job.id).and_then(Job::line)) {
            self.leave(&line, &job.id);
        }
        if let (State::Ready, Turn::None, None, Some(line)) =
            (job.state, job.turn, &job.origin, job.group_here())
        {
            let line = self.lines.entry(line).or_default();
            job.turn = Turn::New;
            job.state = if line.is_empty() { State::Ready } else { State::Blocked };
            line.push(job.id.clone());
        }
        self.touched.insert(job.id.clone());
        self.jobs.insert(job.id.clone(), job);
    }

    pub fn remove(&mut self, id: &JobId) {
        if let Some(line) = self.jobs.get(id).and_then(Job::line) {
            self.leave(&line, id);
        }
        self.touched.insert(id.clone());
        self.jobs.remove(id);
    }

    fn leave(&mut self, line: &Line, id: &JobId) {
        let Some(members) = self.lines.get_mut(line) else { return };
        let was_first = members.first() == Some(id);
        members.retain(|other| other != id);
        self.touched.extend(members.iter().cloned());
        let next = members.first().cloned();
        if members.is_empty() {
            self.lines.remove(line);
        }
        if let (true, Some(next)) = (was_first, next.and_then(|next| self.jobs.get(&next)).cloned()) {
            self.unblocked.push((next.queue.clone(), next.run_at));
            self.put(Job { state: State::Ready, ..next });
        }
    }

    /// The lines that a change may concern.
    pub fn concerned(&self, change: &Change) -> BTreeSet<Line> {
        let mut lines = BTreeSet::new();
        if let Some(job) = self.jobs.get(&change.id) {
            let mut to =
                |queue: &QueueName| lines.extend(job.group.clone().map(|group| (queue.clone(), group)));
            to(&job.queue);
            job.route.iter().for_each(|stage| to(&stage.queue));
            job.origin.iter().for_each(|home| to(&home.queue));
            if let Operation::Move { queue, .. } | Operation::Relocate { queue, .. } = &change.operation {
                to(queue);
            }
            if let Operation::Edit { edit, .. } = &change.operation {
                lines.extend(edit.group.clone().flatten().map(|group| (job.queue.clone(), group)));
            }
            let called = job.batch.as_ref().and_then(|id| self.batches.get(id)?.on_finished.as_ref());
            lines.extend(called.and_then(|called| Some((called.queue.clone(), called.group.clone()?))));
        }
        if let Operation::Commit { push, .. } = &change.operation {
            lines.extend(push.iter().filter_map(|job| Some((job.queue.clone(), job.spec.group.clone()?))));
        }
        lines
    }

    /// Notes the lines that several of these changes concern, and answers the jobs that wait in them.
    pub fn contest(&mut self, changes: &[Change]) -> BTreeSet<JobId> {
        let mut once = BTreeSet::new();
        self.contested.clear();
        for line in changes.iter().flat_map(|change| self.concerned(change)).collect::<Vec<_>>() {
            if !once.insert(line.clone()) {
                self.contested.insert(line);
            }
        }
        let members = self.contested.iter().filter_map(|line| self.lines.get(line)).flatten();
        // Who leaves for another line is told so by its own answer.
        let leaves = |change: &Change| match &change.operation {
            Operation::Edit { edit, .. } => edit.group.is_some().then(|| change.id.clone()),
            Operation::Relocate { .. } => Some(change.id.clone()),
            _ => None,
        };
        let leaving: BTreeSet<JobId> = changes.iter().filter_map(leaves).collect();
        let is_behind = |id: &&JobId| self.jobs.get(*id).is_some_and(Job::is_behind);
        let behind = members.filter(|id| is_behind(id) && !leaving.contains(*id));
        behind.cloned().collect()
    }

    /// Exactly the first of each line is not blocked by it, and the store's places are in the order of the line.
    pub fn check_lines(&self) -> Checked {
        for (line, members) in &self.lines {
            let jobs: Vec<&Job> = members.iter().filter_map(|id| self.jobs.get(id)).collect();
            let turn = |job: &Job| if let Turn::Seen(turn) = job.turn { Some(turn) } else { None };
            let turns: Option<Vec<i64>> = jobs.iter().map(|job| turn(job)).collect();
            let in_order = turns.is_some_and(|turns| turns.is_sorted_by(|a, b| a < b));
            let is_right = |(place, job): (usize, &&Job)| job.is_behind() == (place > 0);
            if jobs.len() != members.len() || !in_order || !jobs.iter().enumerate().all(is_right) {
                return Err(format!("the line {line:?} is {jobs:?}"));
            }
        }
        let standing = self.jobs.values().filter(|job| job.turn != Turn::None).count();
        let all: usize = self.lines.values().map(Vec::len).sum();
        if standing == all { Ok(()) } else { Err(format!("{standing} jobs stand in lines of {all}")) }
    }
}

impl World<'_> {
    /// Several changes of one call have no order. Where they concern the same line, those who come to it stand there in an
    /// order that the store chose, behind all who stood there; and the first one's turn was told of.
    pub async fn line_up(&mut self, told: &[Result<Applied, Denied>], behind: &BTreeSet<JobId>) -> Checked {
        for line in std::mem::take(&mut self.model.contested) {
            let Some(members) = self.model.lines.get(&line).cloned() else { continue };
            let seen = self.store.get(&members).await.map_err(fault)?;
            let mut seen: Vec<_> =
                seen.into_iter().flatten().flatten().map(|job| (job.meta.turn, job.meta.id)).collect();
            seen.sort();
            let seen: Vec<JobId> = seen.into_iter().map(|(_, id)| id).collect();
            let stood =
                |id: &&JobId| self.model.jobs.get(*id).is_some_and(|job| matches!(job.turn, Turn::Seen(_)));
            let old: Vec<&JobId> = members.iter().filter(stood).collect();
            if seen.len() != members.len() || !seen.iter().take(old.len()).eq(old) {
                return Err(format!("the line {line:?} is {seen:?}, expected {members:?}"));
            }
            for (place, id) in seen.iter().enumerate() {
                let Some(job) = self.model.jobs.get_mut(id) else { continue };
                match place {
                    0 if job.is_behind() => job.state = State::Ready,
                    0 => {}
                    _ => job.state = State::Blocked,
                }
            }
            self.model.touched.extend(seen.iter().cloned());
            if let Some(first) =
                seen.first().filter(|id| behind.contains(*id)).and_then(|id| self.model.jobs.get(id))
            {
                let mut unblocked = told.iter().flatten().flat_map(|told| &told.unblocked);
                // When it is due may have been changed in the same call, after its turn had come.
                if !unblocked.any(|(queue, _)| *queue == first.queue) {
                    return Err(format!("nobody told that the turn of {} has come", first.id));
                }
            }
            self.model.lines.insert(line, seen);
        }
        self.model.check_blocked()
    }

    /// The jobs of a line of another store, with their places: there may be gaps, and the first one may be held, or dead.
    pub async fn import_line(&mut self, state: u8, drafts: &[Draft], ask: &Ask) -> Result<bool, String> {
        let Some(draft) = drafts.first() else { return Ok(false) };
        let line = (super::drafts::queue(draft.queue), super::drafts::group(draft.group.unwrap_or(0)));
        if self.model.lines.contains_key(&line) {
            return Ok(false); // places are numbered within one store
        }
        let (mut jobs, mut own) = (Vec::new(), Vec::new());
        for (place, draft) in drafts.iter().enumerate() {
            let mut new = self.build(draft, None)?;
            // A job that holds semaphores was let through by the other store.
            (new.key, new.spec.expires_in_ms, new.spec.semaphores) = (None, None, Vec::new());
            (new.queue, new.spec.group) = (line.0.clone(), Some(line.1.clone()));
            let mut job = new.clone().into_job();
            let meta = &mut job.meta;
            meta.turn = Some(3 + 2 * place as i64);
            let mut held = Job { turn: Turn::New, ..Job::pushed(&new) };
            match (place, state % 3) {
                (0, 0) => {}
                (0, 1) => {
                    let (ask, now) = (self.ask(ask), self.now()?);
                    (meta.state, meta.attempts, meta.started_at) = (State::Reserved, 1, Some(now));
                    (meta.claim, meta.lease_ms) = (Some(ask.claim.clone()), Some(ask.lease_ms));
                    meta.reserved_until = Some(now.plus_ms(ask.lease_ms));
                    (held.attempts, held.started_at) = (1, Some(When::at(now)));
                    (held.claim, held.lease_ms) = (Some(ask.claim), Some(ask.lease_ms));
                    held.reserved_until = meta.reserved_until.map(When::at);
                }
                (0, _) => {
                    (meta.state, meta.finished_at) = (State::Dead, Some(self.now()?));
                    held.finished_at = meta.finished_at.map(When::at);
                }
                _ => meta.state = State::Blocked,
            }
            held.state = meta.state;
            jobs.push(job);
            own.push(held);
        }
        let words = own.iter().map(|job| format!("{} {:?}", job.id, job.state)).collect::<Vec<_>>();
        self.say(format!("import the line {line:?} of {words:?}"));
        let told = self.store.import(jobs).await;
        if !told.iter().all(|told| matches!(told, Ok(Imported::New))) {
            return Err(format!("an import was told {told:?}"));
        }
        self.model.lines.insert(line, own.iter().map(|job| job.id.clone()).collect());
        own.into_iter().for_each(|job| self.model.put(job));
        Ok(true)
    }
}

impl Model {
    /// What must hold after every step.
    fn check_blocked(&self) -> Checked {
        let behind: BTreeMap<&JobId, &Line> = self
            .lines
            .iter()
            .flat_map(|(line, members)| members.iter().skip(1).map(move |id| (id, line)))
            .collect();
        let is_right = |job: &Job| job.is_behind() == behind.contains_key(&job.id);
        match self.jobs.values().find(|job| !is_right(job)) {
            None => Ok(()),
            Some(job) => Err(format!("in its line {} is {:?}", job.id, job.state)),
        }
    }
}
