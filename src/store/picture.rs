//! Everything that a store keeps, as it was at one moment: what a backup is made of.
//!
//! A store reads it from one snapshot beside whatever else goes on, kind by kind in the order of [`Kind::ALL`], and hands it over page
//! by page, so that neither side needs more memory than a few pages. What another program has spoiled is named, never left out silently.
//! Where nothing else is written, as while a restore is compared with its backup, it needs no snapshot: see [`Isolation`].

use tokio::sync::mpsc;

use super::{AuditRow, HeldKey, Memo, MemoKind, PageBuilder, StoreError, StoredSettings, TokenSecret};
use crate::job::{
    ApiKey, Batch, BatchId, BatchResult, Bulk, Job, QueueName, Schedule, SemaphoreName, Timestamp,
};

/// The most things in one page.
const PAGE: usize = 500;
/// The pages that are read ahead of their receiver.
const AHEAD: usize = 1;

/// The kinds of what a store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "named as what they are kinds of")]
pub enum Kind {
    TokenSecret,
    Settings,
    ApiKey,
    Key,
    Semaphore,
    Batch,
    BatchResult,
    Job,
    Receipt,
    Request,
    Answer,
    Deliveries,
    Operation,
    Audit,
    Schedule,
}

impl Kind {
    /// All of them with their words, in the order in which a restore writes them: jobs after what they need, operations after the
    /// jobs, and schedules last, so that none fires from a half of a backup.
    pub const ALL: [(Self, &str); 15] = [
        (Self::TokenSecret, "token_secret"),
        (Self::Settings, "settings"),
        (Self::ApiKey, "api_key"),
        (Self::Key, "key"),
        (Self::Semaphore, "semaphore"),
        (Self::Batch, "batch"),
        (Self::BatchResult, "batch_result"),
        (Self::Job, "job"),
        (Self::Receipt, "receipt"),
        (Self::Request, "request"),
        (Self::Answer, "answer"),
        (Self::Deliveries, "deliveries"),
        (Self::Operation, "operation"),
        (Self::Audit, "audit"),
        (Self::Schedule, "schedule"),
    ];

    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, word)| word)
    }

    /// Returns what the word stands for.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == word).map(|(kind, _)| *kind)
    }
}

/// One thing that a store keeps.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "named as what they hold")]
pub enum Item {
    TokenSecret(TokenSecret),
    Settings(QueueName, StoredSettings),
    ApiKey(ApiKey),
    Key(HeldKey),
    Semaphore(SemaphoreName, u64),
    Batch(Batch),
    BatchResult(BatchId, BatchResult),
    Job(Box<Job>),
    Memo(Memo),
    Operation(Box<Bulk>),
    Audit(Box<AuditRow>),
    Schedule(Box<Schedule>),
}

impl Item {
    /// Returns its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::TokenSecret(_) => Kind::TokenSecret,
            Self::Settings(..) => Kind::Settings,
            Self::ApiKey(_) => Kind::ApiKey,
            Self::Key(_) => Kind::Key,
            Self::Semaphore(..) => Kind::Semaphore,
            Self::Batch(_) => Kind::Batch,
            Self::BatchResult(..) => Kind::BatchResult,
            Self::Job(_) => Kind::Job,
            Self::Memo(memo) => match memo.kind() {
                MemoKind::Receipts => Kind::Receipt,
                MemoKind::Requests => Kind::Request,
                MemoKind::Answers => Kind::Answer,
                MemoKind::Deliveries => Kind::Deliveries,
            },
            Self::Operation(_) => Kind::Operation,
            Self::Audit(_) => Kind::Audit,
            Self::Schedule(_) => Kind::Schedule,
        }
    }

    /// Returns what names it among those of its kind: two parts, the second one often empty. Stores return things of a kind in the order of
    /// these: of the pairs, or of both parts with a slash between.
    pub fn name(&self) -> (String, String) {
        let one = |name: &dyn ToString| (name.to_string(), String::new());
        match self {
            Self::TokenSecret(_) => Default::default(),
            Self::Settings(queue, _) => one(queue),
            Self::ApiKey(key) => one(&key.id),
            Self::Key(key) => (key.queue.to_string(), key.key.to_string()),
            Self::Semaphore(name, _) => one(name),
            Self::Batch(batch) => one(&batch.id),
            Self::BatchResult(batch, result) => (batch.to_string(), result.id.to_string()),
            Self::Job(job) => one(&job.meta.id),
            Self::Memo(Memo::Receipt { receipt, .. }) => {
                (receipt.id.to_string(), receipt.claim.as_str().to_owned())
            }
            Self::Memo(memo) => one(&memo.id()),
            Self::Operation(operation) => one(&operation.id),
            Self::Audit(row) => one(&row.id),
            Self::Schedule(schedule) => one(&schedule.name),
        }
    }

    /// Returns its name as one text.
    pub fn shown(&self) -> String {
        match self.name() {
            (first, second) if second.is_empty() => first,
            (first, second) => format!("{first}/{second}"),
        }
    }

    /// Returns what it is called in a message.
    pub fn title(&self) -> String {
        format!("the {} {}", self.kind().as_str(), self.shown())
    }

    /// Returns when a database may forget it by itself, if ever.
    pub fn fades_at(&self) -> Option<Timestamp> {
        match self {
            Self::Job(job) => job.meta.purge_at,
            Self::Memo(memo) => memo.until(),
            _ => None,
        }
    }
}

/// Something that another program has spoiled.
#[derive(Debug, Clone, PartialEq)]
pub struct Spoiled {
    /// What it should be.
    pub kind: Kind,
    /// What names it, or is stored in place of a name.
    pub name: String,
    /// What is wrong with it.
    pub why: String,
    /// A job in its place, with what can be read of it: see [`Salvaged::stand_in`](crate::job::transition::Salvaged::stand_in).
    pub stand_in: Option<Box<Job>>,
}

/// What was found where something is kept.
pub type Found = Result<Item, Spoiled>;

/// Why there is no picture.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PictureError {
    /// There is no store, of whatever version; says where.
    #[error("{0}")]
    Absent(String),
    /// The store cannot be read like this; says why, and what to do about it.
    #[error("{0}")]
    Refused(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

enum Message {
    Page(Vec<Found>),
    End,
}

/// What a picture shows of what is written while it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Nothing: it is of one moment, for as long as the database keeps that.
    Snapshot,
    /// What is committed when each part of it is read, however long all of it takes: for a store to which no other process writes. What
    /// a database forgets by itself meanwhile may be in it or not.
    ReadCommitted,
}

/// All that a store kept at one moment. See the module's documentation.
pub struct Picture {
    at: Timestamp,
    is_part: bool,
    pages: mpsc::Receiver<Result<Message, PictureError>>,
}

impl Picture {
    /// Returns a picture of this moment, and what hands its pages over. `is_part`: of a part of a backup, whose restore has not ended.
    pub(super) fn new(at: Timestamp, is_part: bool) -> (Self, Pages) {
        let (to, pages) = mpsc::channel(AHEAD);
        (Self { at, is_part, pages }, Pages { to, page: PageBuilder::new(PAGE) })
    }

    /// Returns the moment, by the store's clock; without a snapshot that of its beginning.
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns whether a restore into the store had begun by then, and had not ended.
    pub fn is_part(&self) -> bool {
        self.is_part
    }

    /// Returns the next page; `None` only where that was all.
    pub async fn next(&mut self) -> Result<Option<Vec<Found>>, PictureError> {
        match self.pages.recv().await {
            Some(Ok(Message::Page(page))) => Ok(Some(page)),
            Some(Ok(Message::End)) => Ok(None),
            Some(Err(error)) => Err(error),
            None => Err(StoreError::internal("whatever read the store ended before it was done").into()),
        }
    }
}

/// Where a store puts what it reads. Every method returns whether the receiver still takes it.
pub(super) struct Pages {
    to: mpsc::Sender<Result<Message, PictureError>>,
    page: PageBuilder<Found>,
}

impl Pages {
    /// Adds what was found, and returns a page that is full.
    fn add(&mut self, found: Found) -> Option<Message> {
        self.page.push(found);
        self.page.is_full().then(|| self.rest())
    }

    fn rest(&mut self) -> Message {
        Message::Page(std::mem::replace(&mut self.page, PageBuilder::new(PAGE)).into_items())
    }

    /// Hands over what was found; waits where pages are not taken as fast.
    pub(super) async fn put(&mut self, found: Found) -> bool {
        match self.add(found) {
            Some(page) => self.to.send(Ok(page)).await.is_ok(),
            None => true,
        }
    }

    /// The same on a thread that may wait.
    pub(super) fn put_blocking(&mut self, found: Found) -> bool {
        self.add(found).is_none_or(|page| self.to.blocking_send(Ok(page)).is_ok())
    }

    /// Ends the picture: with this error, or because that was all.
    pub(super) async fn end(mut self, outcome: Result<(), PictureError>) {
        let last = [Ok(self.rest()), outcome.map(|()| Message::End)];
        for message in last {
            if self.to.send(message).await.is_err() {
                return;
            }
        }
    }

    /// The same on a thread that may wait.
    pub(super) fn end_blocking(mut self, outcome: Result<(), PictureError>) {
        let last = [Ok(self.rest()), outcome.map(|()| Message::End)];
        let _ = last.into_iter().try_for_each(|message| self.to.blocking_send(message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_word_and_their_order_is_that_of_the_list() {
        for (index, (kind, word)) in Kind::ALL.into_iter().enumerate() {
            assert_eq!((kind as usize, kind.as_str(), Kind::from_word(word)), (index, word, Some(kind)));
        }
        assert_eq!(Kind::from_word("__proto__"), None);
    }

    #[tokio::test]
    async fn a_picture_that_breaks_off_is_no_end() {
        let (mut picture, mut pages) = Picture::new(Timestamp::default(), false);
        assert!(pages.put(Ok(Item::TokenSecret([0; 32]))).await);
        drop(pages);
        assert!(picture.next().await.is_err());
        let (mut picture, pages) = Picture::new(Timestamp::default(), false);
        let read = async {
            assert!(picture.next().await.unwrap().unwrap().is_empty());
            assert!(picture.next().await.unwrap().is_none());
        };
        tokio::join!(pages.end(Ok(())), read);
    }
}
