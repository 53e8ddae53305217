//! Any bytes from a client that connects to one of the sockets: h2 reads the same however they arrive; only literals in
//! HEADERS frames differ, and only in being a part of `localhost`; and no more than one frame is held back.

#![no_main]

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use gpu_dra_plugin::kubelet::fuzz::with_local_authority;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncRead, ReadBuf};

const PREFACE: usize = 24;
const HEADER: usize = 9;
const HEADERS: u8 = 1;
const LOCALHOST: &[u8] = b"localhost";

/// What h2 accepts for a frame's payload.
const MAX_PAYLOAD: usize = 16 * 1024;

/// As much as h2 reads at once.
const CHUNK: usize = 4096;

/// A client whose bytes arrive in pieces.
struct Client<'a> {
    bytes: &'a [u8],
    /// How long the pieces are, over and over.
    pieces: &'a [usize],
    received: &'a Cell<usize>,
    /// How much had arrived, and how much of it h2 had, each time when h2 asked for more.
    asked: &'a RefCell<Vec<(usize, usize)>>,
    sent: usize,
    piece: usize,
}

// === impl Client ===

impl AsyncRead for Client<'_> {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.asked.borrow_mut().push((this.sent, this.received.get()));
        let left = &this.bytes[this.sent..];
        let piece = this.pieces[this.piece % this.pieces.len()].min(left.len()).min(buf.remaining());
        buf.put_slice(&left[..piece]);
        this.sent += piece;
        this.piece += 1;
        Poll::Ready(Ok(()))
    }
}

fuzz_target!(|bytes: &[u8]| {
    let whole = received(bytes, &[usize::MAX], usize::MAX);
    // Pieces as odd as the input.
    let odd: Vec<usize> =
        [1].into_iter().chain(bytes.iter().rev().take(64).map(|byte| usize::from(*byte) + 1)).collect();
    for (pieces, room) in [(&[1][..], 1), (&odd, 7), (&odd, CHUNK)] {
        assert_eq!(received(bytes, pieces, room), whole);
    }
    assert_eq!(received(&whole, &[usize::MAX], usize::MAX), whole, "what was changed needs no other change");
});

/// What h2 gets, reading into a buffer with so much room.
fn received(bytes: &[u8], pieces: &[usize], room: usize) -> Vec<u8> {
    let (count, asked) = (Cell::new(0), RefCell::new(Vec::new()));
    let client = Client { bytes, pieces, received: &count, asked: &asked, sent: 0, piece: 0 };
    let mut connection = with_local_authority(client);
    let mut context = Context::from_waker(Waker::noop());
    let mut room = vec![0; room.min(CHUNK)];
    let mut all = Vec::new();
    loop {
        let mut buffer = ReadBuf::new(&mut room);
        let read = Pin::new(&mut connection).poll_read(&mut context, &mut buffer);
        assert!(matches!(read, Poll::Ready(Ok(()))), "the client never keeps it waiting");
        if buffer.filled().is_empty() {
            break;
        }
        all.extend_from_slice(buffer.filled());
        count.set(all.len());
    }
    drop(connection);
    compare(bytes, &all, &asked.take());
    all
}

/// Goes through what the client sent and what h2 got, side by side.
fn compare(sent: &[u8], got: &[u8], asked: &[(usize, usize)]) {
    let preface = PREFACE.min(sent.len());
    assert_eq!(sent[..preface], got[..preface], "the preface passes as it is");
    let (mut sent_before, mut got_before) = (preface, preface);
    let mut asked = asked.iter().peekable();
    loop {
        let (rest, rest_got) = (&sent[sent_before..], &got[got_before..]);
        let (length, got_length) = (HEADER + payload(rest), HEADER + payload(rest_got));
        if rest.len() < HEADER || rest.len() < length {
            assert_eq!(rest, rest_got, "the end of a stream passes as it is");
            return;
        }
        assert_eq!(wrong(&rest[..length], &rest_got[..got_length]), None);
        while let Some((arrived, had)) = asked.next_if(|(arrived, _)| *arrived < sent_before + length) {
            let held = arrived.saturating_sub(sent_before).saturating_sub(had.saturating_sub(got_before));
            assert!(*had >= got_before.min(*arrived) && held <= HEADER + MAX_PAYLOAD, "more than one frame is held");
        }
        (sent_before, got_before) = (sent_before + length, got_before + got_length);
    }
}

/// The length of the payload of the frame that begins here.
fn payload(frame: &[u8]) -> usize {
    frame.get(..3).map_or(0, |length| length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
}

/// What is wrong with what became of a frame.
fn wrong(sent: &[u8], got: &[u8]) -> Option<&'static str> {
    if sent == got {
        return None;
    }
    if sent.len() > HEADER + MAX_PAYLOAD
        || sent[3] != HEADERS
        || sent[3..HEADER] != got[3..HEADER]
        || sent.len() < got.len()
    {
        return Some("only HEADERS frames that h2 accepts change, and only by becoming shorter");
    }
    let (sent, got) = (&sent[HEADER..], &got[HEADER..]);
    let common = sent.iter().zip(got).take_while(|(sent, got)| sent == got).count();
    let replaced = |start: &usize| {
        let Some((text, end)) = literal(sent, *start) else { return false };
        let authority = &LOCALHOST[..LOCALHOST.len().min(text)];
        let length = u8::try_from(authority.len()).expect("nine at most");
        got == [&sent[..*start], &[length], authority, &sent[end..]].concat()
    };
    if (0..=common).any(|start| replaced(&start)) { None } else { Some("only one string literal changes") }
}

/// How long the text of the string literal is that begins here, and where it ends.
fn literal(block: &[u8], start: usize) -> Option<(usize, usize)> {
    let first = usize::from(*block.get(start)? & 0x7f);
    let (mut length, mut at) = (first, start + 1);
    if first == 0x7f {
        for shift in [0, 7, 14, 21] {
            let byte = *block.get(at)?;
            at += 1;
            length += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    Some((length, at + length)).filter(|(_, end)| *end <= block.len())
}
