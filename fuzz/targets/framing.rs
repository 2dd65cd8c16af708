//! The framing of a connection is the same in whatever parts its bytes come.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailback::http::wire::{Bounds, Framing};

fn framed(bytes: &[u8], part: usize) -> Option<usize> {
    let mut framing = Framing::new(Bounds { head: 1024, body: 1000 });
    let mut bytes = [bytes, b"\r\n\r\n"].concat();
    let refused = bytes.chunks_mut(part).any(|part| framing.read(part).is_some());
    (!refused).then(|| framing.heads())
}

fuzz_target!(|input: (u8, &[u8])| {
    let (part, bytes) = input;
    assert_eq!(framed(bytes, usize::from(part) + 1), framed(bytes, bytes.len() + 4));
});
