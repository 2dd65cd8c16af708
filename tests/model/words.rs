//! Steps and answers in words, for who reads how a run went wrong.

use tailback::job::transition::Operation;
use tailback::job::{JobId, NewJob};
use tailback::store::{Applied, Change, Denied};

pub fn words_of_all(jobs: &[NewJob]) -> String {
    let words = |job: &NewJob| {
        let mut words = format!("{} into {}", job.id, job.queue);
        let mut add = |what: &str, value: Option<String>| {
            words.extend(value.map(|value| format!(" {what} {value}")));
        };
        add("priority", (job.spec.priority != 0).then(|| job.spec.priority.to_string()));
        add(
            "in ms",
            (job.run_at != job.created_at)
                .then(|| (job.run_at.millis() - job.created_at.millis()).to_string()),
        );
        add(
            "key",
            job.key.as_ref().map(|hold| {
                format!(
                    "{:?} for {} ms, until {:?}, {:?}",
                    hold.key,
                    hold.until.ms_since(job.created_at),
                    hold.lasts,
                    hold.conflict
                )
            }),
        );
        add("expires in ms", job.expires_at().map(|at| at.ms_since(job.created_at).to_string()));
        add("attempts", job.spec.max_attempts.map(|most| most.to_string()));
        add(
            "then",
            (!job.spec.then.is_empty())
                .then(|| format!("{:?}", job.spec.then.iter().map(|stage| &stage.queue).collect::<Vec<_>>())),
        );
        add("group", job.spec.group.as_ref().map(ToString::to_string));
        add("needs", (!job.spec.semaphores.is_empty()).then(|| format!("{:?}", job.spec.semaphores)));
        add("of", job.batch.as_ref().map(ToString::to_string));
        add("payload", Some(format!("{:?}", job.spec.payload)));
        words
    };
    jobs.iter().map(words).collect::<Vec<_>>().join("; ")
}

pub fn words_of_change(change: &Change) -> String {
    match &change.operation {
        Operation::Commit { claim, result, push } => {
            format!("{}: commit by {claim:?} with {result:?}, pushing [{}]", change.id, words_of_all(push))
        }
        operation => format!("{}: {operation:?}", change.id),
    }
}

pub fn words_of_answer(told: &Result<Applied, Denied>) -> String {
    match told {
        Ok(applied) => {
            let repeated = if applied.repeated { " (a repeat)" } else { "" };
            let pushed: Vec<&JobId> = applied.pushed.iter().map(|child| &child.id).collect();
            let (unblocked, released) = (&applied.unblocked, &applied.released);
            let others = format!("{pushed:?} {:?} unblocked {unblocked:?} {released:?}", applied.callback);
            format!("{:?}{repeated} {others}", applied.outcome)
        }
        Err(denied) => format!("{denied}"),
    }
}
