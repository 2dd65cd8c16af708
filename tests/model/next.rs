//! Settles that take the next jobs with them, and their repeats: the calls of a store that these consist of.

use std::collections::BTreeSet;

use tailback::job::transition::Operation;
use tailback::job::{Ended, JobId, Mark, State, Tokens};
use tailback::store::{Change, ClaimAsk};

use super::drafts::{ms, nth};
use super::steps::{Act, Ask, Which};
use super::world::{World, fault};

impl World<'_> {
    /// A settle, and what is next under a claim that bears its mark.
    pub async fn next(&mut self, which: u8, act: &Act, ask: &Ask) -> Result<bool, String> {
        let Some(change) = self.resolve(Which::Held(which), act)? else { return Ok(false) };
        let (id, verb) = (change.id.clone(), change.operation.verb());
        let Some(claim) = change.operation.claim().cloned() else { return Ok(false) };
        let mark = Tokens::new(&[7; 32]).mark(&claim, &id, verb);
        self.apply(vec![change]).await?;
        let is_held =
            |job: &super::job::Job| job.state == State::Reserved && job.claim.as_ref() == Some(&claim);
        if self.model.jobs.get(&id).is_some_and(is_held) {
            return Err(format!("{id} is still held after its settle"));
        }
        self.settle_down().await?; // what has just come back may be due, or not
        let ask = ClaimAsk { claim: mark.claim(Ended::Done), ..self.ask(ask) };
        self.claim_all(&[ask]).await?;
        self.marks.push(mark);
        Ok(true)
    }

    /// The repeat of such a call: it finds what is still held of what the first has taken, and hands it out again. Then nobody else
    /// gives it back.
    pub async fn again(&mut self, place: u8, lease: super::steps::Ahead) -> Result<bool, String> {
        let Some(mark) = nth(&self.marks, place).cloned() else { return Ok(false) };
        let found = self.marked(&mark).await?;
        self.say(format!("{mark:?} has taken {found:?}"));
        let held = |unseen: bool| {
            let changes = found.iter().filter_map(|id| {
                let claim = self.model.jobs.get(id)?.claim.clone()?;
                let operation = match unseen {
                    true => Operation::Release { claim, unless_seen: true },
                    false => Operation::TakeOver { claim: claim.clone(), to: claim, lease_ms: ms(lease) },
                };
                Some(Change { id: id.clone(), operation })
            });
            changes.collect::<Vec<Change>>()
        };
        let (hand_out, give_back) = (held(false), held(true));
        self.apply(hand_out).await?;
        self.apply(give_back).await?;
        Ok(true)
    }

    /// What a mark finds, which must be what the model has.
    async fn marked(&mut self, mark: &Mark) -> Result<BTreeSet<JobId>, String> {
        let told = self.store.marked(std::slice::from_ref(mark)).await.map_err(fault)?;
        let told: BTreeSet<JobId> = told.into_iter().map(|job| job.meta.id).collect();
        let is_its = |job: &&super::job::Job| {
            let claim = job.claim.as_ref().map_or("", |claim| claim.as_str());
            job.state == State::Reserved && claim.starts_with(mark.as_str())
        };
        let expected: BTreeSet<JobId> =
            self.model.jobs.values().filter(is_its).map(|job| job.id.clone()).collect();
        if told == expected {
            Ok(told)
        } else {
            Err(format!("{mark:?} finds {told:?}, expected {expected:?}"))
        }
    }
}
