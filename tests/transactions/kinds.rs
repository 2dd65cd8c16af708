//! The kinds of transactions, and the code that each of them runs.

use std::collections::BTreeSet;
use std::path::Path;

macro_rules! kinds {
    ($($kind:ident $file:literal $transaction:literal,)*) => {
        /// A kind of transaction.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind {
            $($kind,)*
        }

        /// Every kind.
        pub const KINDS: [Kind; [$($file),*].len()] = [$(Kind::$kind,)*];

        impl Kind {
            /// Returns its file below `src/store/mongo`, and the `Transaction` there.
            pub fn transaction(self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$kind => ($file, $transaction),)*
                }
            }
        }
    };
}

kinds! {
    KeyedPush "jobs/push.rs" "Push",
    GroupedPush "jobs/push.rs" "Push",
    PushOnce "jobs/push_once.rs" "Push",
    PushAll "jobs/push_once.rs" "PushAll",
    PushAllOnce "jobs/push_once.rs" "PushAll",
    CommitWithPushes "jobs/apply_atomic.rs" "CarryOut",
    CommitWithKeyedPush "jobs/apply_atomic.rs" "CarryOut",
    Move "jobs/apply_atomic.rs" "CarryOut",
    KeyedMove "jobs/apply_atomic.rs" "CarryOut",
    LastOfBatch "jobs/apply_atomic.rs" "CarryOut",
    GroupAdvance "jobs/apply_atomic.rs" "CarryOut",
    GroupEnd "jobs/apply_atomic.rs" "CarryOut",
    ForcedCancel "jobs/apply_atomic.rs" "CarryOut",
    Abandon "jobs/apply_atomic.rs" "CarryOut",
    ReleaseByHand "jobs/apply_atomic.rs" "CarryOut",
    MoveByHand "jobs/apply_atomic.rs" "CarryOut",
    SettleOnce "jobs/apply_once.rs" "ChangeOnce",
    MendFirstOfGroup "jobs/bury.rs" "CarryOut",
    MaxReserved "jobs/claim_limited.rs" "Deliver",
    RateLimit "jobs/claim_limited.rs" "Deliver",
    Semaphore "jobs/claim_limited.rs" "Deliver",
    ImportLine "jobs/groups.rs" "Extend",
    ImportJobs "transaction.rs" "InsertMissing",
    CreateBatch "batches.rs" "Change",
    CreateBatchOnce "batches.rs" "Change",
    AddToBatch "batches.rs" "Change",
    SealBatch "batches.rs" "Change",
    SaveSchedule "schedules.rs" "Save",
    DiscardSchedule "schedules.rs" "Discard",
    Fire "schedules.rs" "Fire",
    FireOnce "schedules.rs" "Fire",
    SaveSettings "settings.rs" "Save",
    SaveSemaphore "semaphores/change.rs" "Save",
    RemoveSemaphore "semaphores/change.rs" "Remove",
    ForgetWorker "workers.rs" "Forget",
    AddApiKey "access.rs" "Change",
    RotateApiKey "access.rs" "Change",
    RemoveApiKey "access.rs" "Change",
    MakeSecret "access.rs" "MakeSecret",
    BeginOperation "operations.rs" "Save",
    StopOperation "operations.rs" "Save",
    OperationStep "operations.rs" "Work",
    OperationPush "operations.rs" "Push",
}

/// Every `impl Transaction for …` of the store: its file below `src/store/mongo`, and the type.
fn transactions() -> BTreeSet<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/mongo");
    let (mut folders, mut found) = (vec![root.clone()], BTreeSet::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let file = path.strip_prefix(&root).unwrap().to_str().unwrap();
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                let Some((_, name)) = line.split_once(" Transaction for ") else { continue };
                let is_impl = line.starts_with("impl");
                let name = name.split(['<', ' ']).next().unwrap();
                found.extend(is_impl.then(|| (file.to_owned(), name.to_owned())));
            }
        }
    }
    assert!(found.len() > 15, "the transactions were not found");
    found
}

#[test]
fn each_transaction_of_the_store_has_a_kind() {
    let named = KINDS.map(Kind::transaction);
    let named: BTreeSet<_> =
        named.iter().map(|(file, name)| ((*file).to_owned(), (*name).to_owned())).collect();
    let there = transactions();
    let missing: Vec<_> = there.difference(&named).collect();
    assert!(missing.is_empty(), "no kind in tests/transactions/kinds.rs runs {missing:?}");
    let gone: Vec<_> = named.difference(&there).collect();
    assert!(gone.is_empty(), "kinds in tests/transactions/kinds.rs name what is not there: {gone:?}");
}
