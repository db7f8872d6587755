//! Waiting for a buffer of several pools.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::buf::Buf;
use crate::classes::Classes;

impl Classes {
    /// Waits for a buffer that [`take`](Self::take) would return. Tasks that wait for the same
    /// buffers get them in order of arrival: a returned buffer is handed over to the first task,
    /// and no caller of `take` gets it before. `None` if no buffer has `len` bytes.
    pub fn wait(&self, len: usize) -> WaitForBuf<'_> {
        WaitForBuf {
            classes: self,
            len,
            id: None,
        }
    }
}

/// The future of [`Classes::wait`]. If it is dropped, a buffer that was handed over to it goes to
/// the next task.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct WaitForBuf<'a> {
    classes: &'a Classes,
    len: usize,
    /// Identifier of the waiter, while there is one.
    id: Option<u64>,
}

impl WaitForBuf<'_> {
    fn poll_buf(&mut self, waker: &Waker) -> Poll<Option<Buf>> {
        let classes = self.classes;
        if let Some(id) = self.id {
            let Some(piece) = classes.waiters().given(id, waker) else {
                return Poll::Pending;
            };
            self.id = None;
            return Poll::Ready(classes.buf_of(piece));
        }
        if let Some(buf) = classes.take(self.len) {
            return Poll::Ready(Some(buf));
        }
        let pools = classes.fitting(self.len);
        if pools.is_empty() {
            return Poll::Ready(None);
        }
        let mark = || {
            classes.set_awaited(pools.clone());
            classes.take(self.len)
        };
        match classes.waiters().enter(pools.clone(), waker, mark) {
            Err(buf) => Poll::Ready(Some(buf)),
            Ok(id) => {
                self.id = Some(id);
                Poll::Pending
            }
        }
    }
}

impl Future for WaitForBuf<'_> {
    type Output = Option<Buf>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Buf>> {
        let len = self.len;
        self.poll_buf(context.waker()).map(|buf| {
            let mut buf = buf?;
            buf.set_len(len).ok()?;
            Some(buf)
        })
    }
}

impl Drop for WaitForBuf<'_> {
    fn drop(&mut self) {
        let left = self.id.and_then(|id| self.classes.waiters().leave(id));
        drop(left.and_then(|piece| self.classes.buf_of(piece)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::{ClassSpec, Pages};

    /// Counts how often it was woken, and unparks the thread that made it.
    struct Count(AtomicU32, std::thread::Thread);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            self.1.unpark();
        }
    }

    fn count() -> Arc<Count> {
        Arc::new(Count(AtomicU32::new(0), std::thread::current()))
    }

    fn classes(specs: &[(usize, usize)]) -> Classes {
        let specs: Vec<_> = specs
            .iter()
            .map(|&(len, count)| ClassSpec { len, count })
            .collect();
        Classes::new(&specs, Pages::Normal).unwrap()
    }

    fn poll(wait: &mut WaitForBuf<'_>, count: &Arc<Count>) -> Poll<Option<Buf>> {
        let waker = Waker::from(Arc::clone(count));
        Pin::new(wait).poll(&mut Context::from_waker(&waker))
    }

    fn ready(wait: &mut WaitForBuf<'_>, count: &Arc<Count>) -> Buf {
        match poll(wait, count) {
            Poll::Ready(Some(buf)) => buf,
            other => panic!("{other:?}"),
        }
    }

    fn block_on(mut wait: WaitForBuf<'_>) -> Option<Buf> {
        let count = count();
        loop {
            match poll(&mut wait, &count) {
                Poll::Ready(buf) => return buf,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    #[test]
    fn free_buffer_ends_the_wait_immediately() {
        let classes = classes(&[(4096, 1)]);
        let buf = ready(&mut classes.wait(512), &count());
        assert_eq!((buf.len(), buf.capacity()), (512, 4096));
        drop(buf);
        assert_eq!(classes.available(), 1);
    }

    #[test]
    fn wait_for_more_than_the_longest_ends_with_nothing() {
        let classes = classes(&[(4096, 1)]);
        let wait = poll(&mut classes.wait(4097), &count());
        assert!(matches!(wait, Poll::Ready(None)));
    }

    #[test]
    fn returned_buffers_go_to_tasks_in_order_of_arrival() {
        let classes = classes(&[(4096, 1)]);
        let held = classes.take(1).unwrap();
        let counts = [count(), count()];
        let mut waits = [classes.wait(100), classes.wait(200)];
        for (wait, count) in waits.iter_mut().zip(&counts) {
            assert!(poll(wait, count).is_pending());
        }
        drop(held);
        let woken = |at: usize| counts[at].0.load(Ordering::SeqCst);
        assert_eq!((woken(0), woken(1)), (1, 0));
        // It is not free for others, who came later.
        assert!(classes.take(1).is_none());
        assert!(poll(&mut waits[1], &counts[1]).is_pending());
        let buf = ready(&mut waits[0], &counts[0]);
        assert_eq!(buf.len(), 100);
        drop(buf);
        assert_eq!((woken(0), woken(1)), (1, 1));
        let buf = ready(&mut waits[1], &counts[1]);
        assert_eq!(buf.len(), 200);
        drop(buf);
        assert_eq!(classes.available(), 1);
        assert_eq!(classes.take(1).unwrap().len(), 1);
    }

    #[test]
    fn buffer_of_dropped_wait_goes_to_the_next() {
        let classes = classes(&[(4096, 1)]);
        let held = classes.take(1).unwrap();
        let counts = [count(), count(), count()];
        let [mut first, mut second, mut third] = [1, 2, 3].map(|len| classes.wait(len));
        for (wait, count) in [&mut first, &mut second, &mut third]
            .into_iter()
            .zip(&counts)
        {
            assert!(poll(wait, count).is_pending());
        }
        // Before and after the buffer was handed over to it.
        drop(second);
        drop(held);
        drop(first);
        assert_eq!(ready(&mut third, &counts[2]).len(), 3);
        assert_eq!(classes.available(), 1);
    }

    #[test]
    fn wait_ends_with_a_buffer_of_its_size_or_the_next_only() {
        let classes = classes(&[(4096, 1), (8192, 1), (65536, 1)]);
        let held = [1, 8192, 65536].map(|len| classes.take(len).unwrap());
        let [small, middle, large] = held;
        let counts = [count(), count()];
        let (mut short, mut long) = (classes.wait(1), classes.wait(5000));
        assert!(poll(&mut short, &counts[0]).is_pending());
        assert!(poll(&mut long, &counts[1]).is_pending());
        drop(large);
        assert!(poll(&mut short, &counts[0]).is_pending());
        assert_eq!(ready(&mut long, &counts[1]).capacity(), 65536);
        drop(middle);
        assert_eq!(ready(&mut short, &counts[0]).capacity(), 8192);
        drop(small);
        assert_eq!(classes.available(), 3);
    }

    #[test]
    fn waker_of_the_last_poll_is_woken() {
        let classes = classes(&[(4096, 1)]);
        let held = classes.take(1).unwrap();
        let (former, current) = (count(), count());
        let mut wait = classes.wait(1);
        assert!(poll(&mut wait, &former).is_pending());
        assert!(poll(&mut wait, &current).is_pending());
        drop(held);
        let woken = [former, current].map(|count| count.0.load(Ordering::SeqCst));
        assert_eq!(woken, [0, 1]);
        drop(wait);
        assert_eq!(classes.available(), 1);
    }

    #[test]
    fn concurrent_waits_all_end() {
        let classes = classes(&[(4096, 2), (8192, 1)]);
        let rounds = if cfg!(miri) { 20 } else { 10_000 };
        std::thread::scope(|scope| {
            for thread in 0..6usize {
                let classes = &classes;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let len = if (round + thread) % 3 == 0 { 5000 } else { 100 };
                        if (round + thread) % 7 == 0 {
                            // One that is given up.
                            let _ = poll(&mut classes.wait(len), &count());
                        }
                        let mut buf = block_on(classes.wait(len)).unwrap();
                        let mark = u8::try_from(thread).unwrap();
                        buf.fill(mark);
                        std::hint::black_box(&mut buf);
                        assert!(buf.iter().all(|byte| *byte == mark));
                    }
                });
            }
        });
        assert_eq!(classes.available(), 3);
        assert_eq!(classes.waiters().len(), 0);
    }
}
