//! The repeat of a call that `near` has carried out, or is in the middle of, or that `far` itself has carried out: `far` makes it, and
//! meets the faults.

use std::time::Duration;

use tokio::time::sleep;

use crate::case::{Before, Case, Prep};
use crate::common::server::Server;
use crate::verbs;
use crate::verbs_once as once;
use crate::verbs_one_job as one_job;
use crate::verbs_others as others;
use crate::verbs_settle as settle;

/// How a command is recognised that looks for the next jobs of an earlier call: it ends a range with a tilde.
const MARKED: &str = "~\0";

/// For so long a server is not heard of that counts as dead.
const UNHEARD: Duration = Duration::from_millis(1200);

/// The call is carried out at `near`, and its client hears nothing.
async fn again(p: &Prep<'_>, case: Case) -> Case {
    again_after(p, &p.lane.near, case).await
}

/// The same with this server in the place of `near`.
async fn again_after(p: &Prep<'_>, first: &Server, case: Case) -> Case {
    let asked = p.story.now();
    for (n, held) in case.held.iter().enumerate() {
        if let Some(commits) = case.settles {
            p.story.settling(&held.id, &held.token, n < commits); // whose end is not known
        }
    }
    let answer = p.lane.unheard_at(first, case.call.as_ref().unwrap()).await;
    case.with(|case| {
        case.texts.push(MARKED.to_owned());
        case.before = Some(Before { asked, answer, is_stopped: false });
    })
}

/// `near` stands still in the middle of the call for so long that it counts as dead.
async fn stopped(p: &Prep<'_>, case: Case, point: &str) -> Case {
    let asked = p.story.now();
    p.lane.stopped_at_near(case.call.as_ref().unwrap(), point).await;
    sleep(UNHEARD).await;
    case.with(|case| case.before = Some(Before { asked, answer: None, is_stopped: true }))
}

macro_rules! repeats {
    ($($name:ident: $verb:path,)*) => {
        $(pub async fn $name(p: &Prep<'_>) -> Case {
            again(p, $verb(p).await).await
        })*
    };
}

repeats! {
    push: verbs::push_idempotent,
    push_many: verbs::push_many_idempotent,
    push_together: once::push_together_once,
    reserve: verbs::reserve_keyed,
    pop: verbs::pop_once,
    commit_next: settle::commit_next,
    commit_pushes_next: settle::commit_pushes_next,
    rollback_next: settle::rollback_next,
    settle_many_next: settle::settle_many_next,
    redrive: once::redrive,
    replay_of_a_job: one_job::replay_once,
    operation_begin: once::operation_begin_once,
    schedule_run: others::schedule_run,
    batch_create: others::batch_create_idempotent,
    batch_add: once::batch_add,
}

// Repeats of settles that took nothing: at the same server, and at another one, to which no job that is held proves the first call. That
// call has ended the delivery: its lease is one that no fault outlasts.
macro_rules! repeats_of_none {
    ($($here:ident, $elsewhere:ident: $verb:path,)*) => {
        $(
            pub async fn $here(p: &Prep<'_>) -> Case {
                let p = &Prep { is_lasting: false, ..*p };
                again_after(p, &p.lane.far, $verb(p).await).await
            }

            pub async fn $elsewhere(p: &Prep<'_>) -> Case {
                let p = &Prep { is_lasting: false, ..*p };
                again(p, $verb(p).await).await.with(|case| case.may_be_lost = true)
            }
        )*
    };
}

repeats_of_none! {
    commit_next_empty_here, commit_next_empty: settle::commit_next_empty,
    commit_next_paused_here, commit_next_paused: settle::commit_next_paused,
    commit_next_full_here, commit_next_full: settle::commit_next_full,
}

/// `near` has claimed, and not written what.
pub async fn reserve_taken_over(p: &Prep<'_>) -> Case {
    let case = verbs::reserve_keyed(p).await;
    stopped(p, case, "request.claimed").await
}

/// `near` has announced the call, and not claimed.
pub async fn reserve_opened(p: &Prep<'_>) -> Case {
    let case = verbs::reserve_keyed(p).await;
    stopped(p, case, "request.opened").await
}

/// `near` has claimed, and not taken away.
pub async fn pop_from_another(p: &Prep<'_>) -> Case {
    let case = verbs::pop_once(p).await;
    stopped(p, case, "pop.claimed").await
}
