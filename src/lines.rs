//! An output that is written by a thread of its own: a reader that does not read stops nothing else.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// How many pieces wait to be written, and how many bytes; further ones are dropped, and counted.
const WAITING_MAX: usize = 4096;
const BYTES_MAX: usize = 8 << 20;
/// How often is looked whether there is room in a full queue, or all is written.
const LOOK: Duration = Duration::from_millis(20);

/// An output to which pieces are given without waiting. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Lines {
    queue: SyncSender<Piece>,
    count: Arc<Count>,
}

#[derive(Debug, Default)]
struct Count {
    /// Pieces that were dropped, and not reported yet.
    dropped: AtomicU64,
    /// Pieces that were taken, and are not written yet.
    waiting: AtomicU64,
    /// Their bytes.
    bytes: AtomicUsize,
}

#[derive(Debug)]
enum Piece {
    /// As they are; they may end within a line.
    Bytes(Vec<u8>),
    /// Lines of their own.
    Lines(Vec<u8>),
    /// All that came before is written.
    Flush(oneshot::Sender<()>),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) | Self::Lines(bytes) => bytes.len(),
            Self::Flush(_) => 0,
        }
    }
}

impl Lines {
    /// Starts a thread that writes. `missing` returns the line for so many pieces that were dropped, which stands on `other`, or else in the
    /// output itself.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(
        name: &str,
        to: impl Write + Send + 'static,
        missing: impl Fn(u64) -> Vec<u8> + Send + 'static,
        other: Option<Self>,
    ) -> std::io::Result<Self> {
        let (queue, pieces) = sync_channel(WAITING_MAX);
        let count = Arc::new(Count::default());
        let of_thread = count.clone();
        std::thread::Builder::new()
            .name(format!("print-{name}"))
            .spawn(move || write_all(to, &pieces, &of_thread, missing, other.as_ref()))?;
        Ok(Self { queue, count })
    }

    /// Writes bytes as they are; they may end within a line.
    pub fn bytes(&self, bytes: Vec<u8>) {
        self.push(Piece::Bytes(bytes));
    }

    /// Writes whole lines. What stands there unfinished is ended first.
    pub fn lines(&self, lines: Vec<u8>) {
        self.push(Piece::Lines(lines));
    }

    fn push(&self, piece: Piece) {
        let len = piece.len();
        // Before it is sent, since it may be written at once.
        self.count.waiting.fetch_add(1, Ordering::Relaxed);
        let has_room = self.count.bytes.fetch_add(len, Ordering::Relaxed) <= BYTES_MAX;
        if !has_room || self.queue.try_send(piece).is_err() {
            self.count.waiting.fetch_sub(1, Ordering::Relaxed);
            self.count.bytes.fetch_sub(len, Ordering::Relaxed);
            self.count.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all is written, but no longer than this. Returns how many pieces are not.
    pub async fn flush(&self, patience: Duration) -> u64 {
        let flushed = timeout(patience, async {
            let (written, is_written) = oneshot::channel();
            let mut piece = Piece::Flush(written);
            // A full queue has room again once its reader reads.
            while let Err(TrySendError::Full(unsent)) = self.queue.try_send(piece) {
                piece = unsent;
                sleep(LOOK).await;
            }
            let _ = is_written.await;
        });
        if flushed.await.is_ok() {
            return 0;
        }
        // Reported by the caller: the thread may be blocked.
        self.count.waiting.load(Ordering::Relaxed) + self.count.dropped.swap(0, Ordering::Relaxed)
    }

    /// The same in a thread that may block. Returns whether all is written.
    #[expect(clippy::disallowed_methods, reason = "the thread has no tasks")]
    pub fn wait(&self, patience: Duration) -> bool {
        let begun = Instant::now();
        while self.count.waiting.load(Ordering::Acquire) > 0 {
            if begun.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

/// Each write is a line, or several: of a log.
impl Write for Lines {
    fn write(&mut self, lines: &[u8]) -> std::io::Result<usize> {
        self.lines(lines.to_vec());
        Ok(lines.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn write_all(
    mut to: impl Write,
    pieces: &Receiver<Piece>,
    count: &Count,
    missing: impl Fn(u64) -> Vec<u8>,
    other: Option<&Lines>,
) {
    let mut is_within = false; // a line
    // Work goes on where the reader has left.
    let mut write = |bytes: &[u8], is_own_line: bool| {
        if is_own_line && is_within {
            drop(to.write_all(b"\n"));
        }
        is_within = !bytes.ends_with(b"\n");
        drop(to.write_all(bytes).and_then(|()| to.flush()));
    };
    while let Ok(piece) = pieces.recv() {
        let (len, mut flushed) = (piece.len(), None);
        match piece {
            Piece::Bytes(bytes) => write(&bytes, false),
            Piece::Lines(lines) => write(&lines, true),
            Piece::Flush(written) => flushed = Some(written),
        }
        let lost = count.dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            match other {
                Some(other) => other.lines(missing(lost)),
                None => write(&missing(lost), true),
            }
        }
        match flushed {
            Some(flushed) => drop(flushed.send(())),
            None => {
                count.bytes.fetch_sub(len, Ordering::Relaxed);
                count.waiting.fetch_sub(1, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that reads only once it is let.
    struct Stuck(Receiver<()>, std::sync::mpsc::Sender<Vec<u8>>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.recv();
            let _ = self.1.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn stuck() -> (std::sync::mpsc::Sender<()>, Receiver<Vec<u8>>, Lines) {
        let (let_go, is_let) = std::sync::mpsc::channel();
        let (written, all) = std::sync::mpsc::channel();
        let missing = |lost| format!("missing: {lost}\n").into_bytes();
        let lines = Lines::start("test", Stuck(is_let, written), missing, None).unwrap();
        (let_go, all, lines)
    }

    fn fill(lines: &Lines) {
        for n in 0..WAITING_MAX + 10 {
            lines.lines(format!("{n}\n").into_bytes());
        }
    }

    #[tokio::test]
    async fn a_reader_that_reads_late_gets_the_last_lines() {
        let (let_go, all, lines) = stuck();
        fill(&lines);
        // Full: what is there comes all the same, once the reader reads.
        let (lost, ()) = tokio::join!(lines.flush(Duration::from_secs(60)), async {
            tokio::task::yield_now().await;
            drop(let_go);
        });
        assert_eq!(lost, 0);
        assert!(lines.wait(Duration::from_secs(60)));
        assert!(all.try_iter().count() > WAITING_MAX);
    }

    #[tokio::test]
    async fn what_nobody_has_read_in_the_end_is_counted() {
        let (let_go, all, lines) = stuck();
        fill(&lines);
        assert!(!lines.wait(Duration::from_millis(50)));
        let lost = lines.flush(Duration::from_millis(50)).await;
        assert_eq!(lost, u64::try_from(WAITING_MAX + 10).unwrap());
        drop((let_go, all));
    }

    /// What is written, and what the last line says is missing.
    fn written(all: &Receiver<Vec<u8>>) -> (usize, usize) {
        let lines: Vec<String> = all.iter().map(|line| String::from_utf8(line).unwrap()).collect();
        let missing = lines.iter().find_map(|line| line.strip_prefix("missing: ")).unwrap();
        (lines.len() - 1, missing.trim().parse().unwrap())
    }

    #[test]
    fn no_one_waits_for_a_reader_and_what_is_dropped_is_reported() {
        let (let_go, all, lines) = stuck();
        fill(&lines);
        drop(let_go);
        drop(lines);
        let (there, missing) = written(&all);
        assert_eq!(there + missing, WAITING_MAX + 10);
    }

    #[test]
    fn what_waits_has_a_bound_in_bytes() {
        let (let_go, all, lines) = stuck();
        for _ in 0..20 {
            let mut long = vec![b'x'; 1 << 20];
            long.push(b'\n');
            lines.lines(long);
        }
        drop(let_go);
        drop(lines);
        let (there, missing) = written(&all);
        assert!(there < 12 && there + missing == 20, "{there} and {missing}");
    }
}
