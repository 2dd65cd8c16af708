//! How quickly a client reads its responses. One that does not read, or reads slowly, holds the memory of a response that others
//! need.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::budget::Budget;
use super::connection::Wire;

/// The client of a connection as one that reads.
pub struct Reader {
    /// How long it may not read at all, and over how much time that the server has waited for it its pace is judged.
    wait: Duration,
    budget: Budget,
    wire: Arc<Wire>,
    window: Window,
    /// The write that waits for it.
    waits: Option<Waits>,
}

/// What the client has read of a response since its pace was judged.
#[derive(Default)]
struct Window {
    /// Which request is responded to, counted from 1.
    request: usize,
    bytes: usize,
    /// How long the server has waited for the client.
    waited: Duration,
}

/// A write that waits for the client.
struct Waits {
    since: Instant,
    /// Until when its wait is in the window.
    counted: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Waits {
    fn new(first: Duration) -> Self {
        let now = Instant::now();
        Self { since: now, counted: now, sleep: Box::pin(tokio::time::sleep(first)) }
    }

    /// Counts the wait in the window, and returns the time until which it does.
    fn count(&mut self, window: &mut Window) -> Instant {
        let now = Instant::now();
        window.waited += now - self.counted;
        self.counted = now;
        now
    }
}

impl Reader {
    /// Returns the client of a new connection, which may not read for so long.
    pub fn new(wait: Duration, budget: Budget, wire: Arc<Wire>) -> Self {
        Self { wait, budget, wire, window: Window::default(), waits: None }
    }

    /// Passes on what a write has come to. One that waits for the client fails with [`io::ErrorKind::TimedOut`] when the client has
    /// not read for too long, or too slowly.
    pub fn wrote<T>(
        &mut self,
        wrote: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        let Poll::Ready(result) = wrote else { return self.wait(cx).map(Err) };
        if let Some(mut waits) = self.waits.take() {
            waits.count(&mut self.window);
        }
        self.window.bytes += result.as_ref().map_or(0, bytes);
        Poll::Ready(result)
    }

    /// Waits for as long as the client may be waited for, and returns the error that ends the connection then.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Self { wait, budget, wire, window, waits } = self;
        let too_slow = |why: &'static str| Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, why));
        // What was read of the response before says nothing about this one.
        let request = wire.requests();
        if window.request != request {
            *window = Window { request, ..Window::default() };
        }
        let waits = waits.get_or_insert_with(|| Waits::new(wait.saturating_sub(window.waited)));
        loop {
            ready!(waits.sleep.as_mut().poll(cx));
            let now = waits.count(window);
            if now >= waits.since + *wait {
                return too_slow("the client does not read");
            }
            if window.waited >= *wait {
                let least = budget.pace() as f64 * wait.as_secs_f64();
                if (window.bytes as f64) < least {
                    return too_slow("the client reads too slowly");
                }
                *window = Window { request, ..Window::default() };
            }
            let next = (waits.since + *wait).min(now + (*wait - window.waited));
            waits.sleep.as_mut().reset(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::http::peers::Peers;

    const WAIT: Duration = Duration::from_millis(800);

    fn reader(budget: &Budget) -> Reader {
        let peers = Arc::new(Peers::new(1, Vec::new()));
        let wire = Wire::new([127, 0, 0, 1].into(), peers.clone(), peers);
        Reader::new(WAIT, budget.clone(), Arc::new(wire))
    }

    /// Writes so many bytes whenever the client has made the server wait for a tenth of the time. Returns how it ends, and the longest
    /// of these waits.
    async fn read_at(reader: &mut Reader, bytes: usize, times: usize) -> (io::Result<()>, Duration) {
        let mut longest = Duration::ZERO;
        for _ in 0..times {
            let began = Instant::now();
            let waits =
                std::future::poll_fn(|cx| reader.wrote(Poll::<io::Result<usize>>::Pending, |_| 0, cx));
            let ended = tokio::time::timeout_at(began + WAIT / 10, waits).await;
            longest = longest.max(began.elapsed());
            if let Ok(ended) = ended {
                return (ended.map(drop), longest);
            }
            let cx = &mut Context::from_waker(Waker::noop());
            assert!(reader.wrote(Poll::Ready(Ok(bytes)), |bytes| *bytes, cx).is_ready());
        }
        (Ok(()), longest)
    }

    #[tokio::test]
    async fn who_does_not_read_or_reads_slowly_is_given_up() {
        let budget = Budget::new(1 << 20);
        let nothing = read_at(&mut reader(&budget), 0, 100).await.0.unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::TimedOut);
        assert!(read_at(&mut reader(&budget), 100, 100).await.0.is_err(), "some bytes are too few");
        let quota = (budget.pace() as f64 * WAIT.as_secs_f64()) as usize;
        // A machine that stands still looks like a client that does not read: then there is another one.
        while let (Err(error), longest) = read_at(&mut reader(&budget), quota, 15).await {
            assert!(longest >= WAIT / 5, "{error}");
        }
        let _held = budget.take(512 << 10).unwrap();
        assert!(
            read_at(&mut reader(&budget), quota / 3, 30).await.0.is_err(),
            "while memory is short, more is needed"
        );
    }
}
