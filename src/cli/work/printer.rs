//! What a worker prints, written by threads of their own: a reader that does not read stops no job and no heartbeat.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// How many pieces wait to be written; further ones are dropped, and counted.
const WAITING_MAX: usize = 1024;
/// How long is waited for the readers when the worker ends.
const LAST: Duration = Duration::from_secs(2);
/// How long is waited for room in a full queue.
const ROOM: Duration = Duration::from_millis(20);

/// Standard output and standard error of a worker. It never waits.
#[derive(Debug, Clone)]
pub struct Printer {
    out: Stream,
    err: Stream,
}

#[derive(Debug, Clone)]
struct Stream {
    queue: SyncSender<Piece>,
    count: Arc<Count>,
}

#[derive(Debug, Default)]
struct Count {
    /// Pieces that were dropped, and not reported yet.
    dropped: AtomicU64,
    /// Pieces that were taken, and are not written yet.
    waiting: AtomicU64,
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

impl Printer {
    /// Begins to print.
    pub fn start() -> std::io::Result<Self> {
        let err = Stream::start("stderr", std::io::stderr(), None)?;
        let out = Stream::start("stdout", std::io::stdout(), Some(err.clone()))?;
        Ok(Self { out, err })
    }

    /// Prints a line on standard output.
    pub fn line(&self, line: &str) {
        self.out.push(Piece::Lines(format!("{line}\n").into_bytes()));
    }

    /// Prints bytes on standard error, as a command has written them.
    pub fn error(&self, bytes: Vec<u8>) {
        self.err.push(Piece::Bytes(bytes));
    }

    /// Prints lines on standard error. What stands there unfinished is ended first.
    pub fn lines(&self, lines: Vec<u8>) {
        self.err.push(Piece::Lines(lines));
    }

    /// Prints a note for a person, on standard error.
    pub fn note(&self, text: &str) {
        self.lines(format!("tailback: {text}\n").into_bytes());
    }

    /// Waits until all is written, but only briefly where the output is not read. Reports what is not written then.
    pub async fn flush(&self) {
        let lost = self.out.flush(LAST).await;
        if lost > 0 {
            // It may be that only standard output is not read.
            self.lines(unread(lost));
        }
        // What is lost here cannot be reported.
        let _ = self.err.flush(LAST).await;
    }
}

fn unread(lost: u64) -> Vec<u8> {
    format!("tailback: {lost} lines were not printed, since nobody has read\n").into_bytes()
}

impl Stream {
    /// Starts a thread that writes; what is dropped is reported on `other`, or else in the stream itself.
    fn start(name: &str, to: impl Write + Send + 'static, other: Option<Self>) -> std::io::Result<Self> {
        let (queue, pieces) = sync_channel(WAITING_MAX);
        let count = Arc::new(Count::default());
        let of_thread = count.clone();
        std::thread::Builder::new()
            .name(format!("print-{name}"))
            .spawn(move || write_all(to, &pieces, &of_thread, other.as_ref()))?;
        Ok(Self { queue, count })
    }

    fn push(&self, piece: Piece) {
        // Before it is sent, since it may be written at once.
        self.count.waiting.fetch_add(1, Ordering::Relaxed);
        if self.queue.try_send(piece).is_err() {
            self.count.waiting.fetch_sub(1, Ordering::Relaxed);
            self.count.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all is written, but no longer than this. Returns how many pieces are not.
    async fn flush(&self, patience: Duration) -> u64 {
        let flushed = timeout(patience, async {
            let (written, is_written) = oneshot::channel();
            let mut piece = Piece::Flush(written);
            // A full queue has room again once its reader reads.
            while let Err(TrySendError::Full(unsent)) = self.queue.try_send(piece) {
                piece = unsent;
                sleep(ROOM).await;
            }
            let _ = is_written.await;
        });
        if flushed.await.is_ok() {
            return 0;
        }
        // Reported by the caller: the thread may be blocked.
        self.count.waiting.load(Ordering::Relaxed) + self.count.dropped.swap(0, Ordering::Relaxed)
    }
}

fn write_all(mut to: impl Write, pieces: &Receiver<Piece>, count: &Count, other: Option<&Stream>) {
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
        let mut flushed = None;
        match piece {
            Piece::Bytes(bytes) => write(&bytes, false),
            Piece::Lines(lines) => write(&lines, true),
            Piece::Flush(written) => flushed = Some(written),
        }
        if flushed.is_none() {
            count.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        let lost = count.dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            match other {
                Some(other) => other.push(Piece::Lines(unread(lost))),
                None => write(&unread(lost), true),
            }
        }
        if let Some(flushed) = flushed {
            let _ = flushed.send(());
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

    fn stuck() -> (std::sync::mpsc::Sender<()>, Receiver<Vec<u8>>, Stream) {
        let (let_go, is_let) = std::sync::mpsc::channel();
        let (written, all) = std::sync::mpsc::channel();
        let stream = Stream::start("test", Stuck(is_let, written), None).unwrap();
        (let_go, all, stream)
    }

    #[tokio::test]
    async fn a_reader_that_reads_late_gets_the_last_lines() {
        let (let_go, all, stream) = stuck();
        for n in 0..WAITING_MAX + 10 {
            stream.push(Piece::Lines(format!("{n}\n").into_bytes()));
        }
        // Full: what is there comes all the same, once the reader reads.
        let (lost, ()) = tokio::join!(stream.flush(Duration::from_secs(60)), async {
            tokio::task::yield_now().await;
            drop(let_go);
        });
        assert_eq!(lost, 0);
        assert!(all.try_iter().count() > WAITING_MAX);
    }

    #[tokio::test]
    async fn what_nobody_has_read_in_the_end_is_counted() {
        let (let_go, all, stream) = stuck();
        for n in 0..WAITING_MAX + 10 {
            stream.push(Piece::Lines(format!("{n}\n").into_bytes()));
        }
        let lost = stream.flush(Duration::from_millis(50)).await;
        assert_eq!(lost, u64::try_from(WAITING_MAX + 10).unwrap());
        drop((let_go, all));
    }

    #[test]
    fn nobody_waits_for_a_reader_and_what_is_dropped_is_told() {
        let (let_go, all, stream) = stuck();
        for n in 0..WAITING_MAX + 10 {
            stream.push(Piece::Lines(format!("{n}\n").into_bytes()));
        }
        drop(let_go);
        drop(stream);
        let lines: Vec<String> = all.iter().map(|line| String::from_utf8(line).unwrap()).collect();
        let told = lines.iter().find_map(|line| line.strip_prefix("tailback: ")).unwrap();
        let lost: usize = told.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(lines.len() - 1 + lost, WAITING_MAX + 10, "{told}");
    }
}
