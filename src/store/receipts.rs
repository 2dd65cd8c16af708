//! What the repeat of a call gets: the receipt of the first call as its result.

use crate::job::receipt::Receipt;
use crate::store::Applied;

impl From<Receipt> for Applied {
    fn from(Receipt { outcome, queue, started_at, pushed, at, .. }: Receipt) -> Self {
        // The callback of a batch, the next job of a group and semaphores were reported by the first call.
        Self { pushed, repeated: true, ..Self::new(outcome, queue, started_at, at) }
    }
}
