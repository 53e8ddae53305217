//! Makes the `:authority` of kubelets acceptable to h2.
//!
//! The kubelet dials the registrar by its bare path, and gRPC in Go and C then sends that path as `:authority`
//! (`%2Fvar%2Flib%2F…` or `/var/lib/…`). `http` has no such authority, h2 resets the stream with `PROTOCOL_ERROR`, and
//! the plugin could never register. [`LocalAuthority`] sits between the socket and h2 and replaces the value by
//! `localhost` on its way in:
//!
//! ```text
//!  socket ──▶ preface │ frame │ HEADERS frame │ frame ──▶ h2
//!                pass    pass   hold, rewrite   pass
//! ```
//!
//! Why this is sound:
//!
//! * Only a literal `:authority` in a HEADERS frame changes. Padding, priority, CONTINUATION frames and all others pass
//!   as they are, and so does everything that cannot be parsed: h2 judges it, as it would without us.
//! * The field keeps its representation, so client and h2 add the same entries to their HPACK tables in the same order.
//!   The new value is never longer than the client's, so h2 never evicts an entry that the client still has. A later
//!   request that refers to the entry by its index is right without being touched.
//! * What is held back is one frame of the size that h2 accepts, and nothing else.
//!
//! Not covered, because no known client does it: an `:authority` that starts in a CONTINUATION frame or is cut by the
//! end of its frame, or whose name is an index into the dynamic table. These pass and are refused as before.
//!
//! To be removed when h2 accepts such authorities (hyperium/h2#487), or when no supported kubelet sends them.

mod hpack;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// Length of the client's connection preface (RFC 9113 §3.4).
const PREFACE: usize = 24;

/// Length of a frame's header (RFC 9113 §4.1): length 3, type 1, flags 1, stream 4.
const FRAME_HEADER: usize = 9;

/// The longest payload that we look into: what h2 accepts unless told otherwise (`SETTINGS_MAX_FRAME_SIZE`).
const MAX_PAYLOAD: usize = 16 * 1024;

/// Frame type and flags (RFC 9113 §6.2).
const HEADERS: u8 = 0x01;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

/// The new value. Shorter authorities get a part of it, see the module.
const LOCALHOST: &[u8; 9] = b"localhost";

/// How much is read from the socket at once. A gRPC call of a kubelet is a few hundred bytes.
const CHUNK: usize = 4096;

/// A stream whose reader sees `localhost` for every `:authority` that the peer spells out.
#[derive(Debug)]
pub(super) struct LocalAuthority<S> {
    stream: S,
    frames: Frames,
    /// Bytes that h2 has not taken yet.
    ready: BytesMut,
}

/// Cuts a client's byte stream into frames.
#[derive(Debug)]
struct Frames {
    state: State,
    /// The beginning of a frame; empty in `State::Pass`.
    held: BytesMut,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// So many bytes go through as they are; at least one.
    Pass(usize),
    /// So many bytes are to be held in all: a frame's header, or a whole HEADERS frame.
    Hold(usize),
}

// === impl LocalAuthority ===

impl<S> LocalAuthority<S> {
    /// Wraps a connection that was just accepted.
    pub(super) fn new(stream: S) -> Self {
        Self { stream, frames: Frames::new(), ready: BytesMut::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LocalAuthority<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.ready.is_empty() {
            let mut chunk = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                // The peer is done, perhaps in the middle of a frame.
                this.ready = this.frames.held.split();
                break;
            }
            this.frames.push(chunk.filled(), &mut this.ready);
        }
        let taken = this.ready.len().min(buf.remaining());
        buf.put_slice(&this.ready.split_to(taken));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LocalAuthority<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl<S: Connected> Connected for LocalAuthority<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

// === impl Frames ===

impl Frames {
    fn new() -> Self {
        Self { state: State::Pass(PREFACE), held: BytesMut::new() }
    }

    /// Takes what the peer sent and appends to `out` what h2 is to see of it.
    fn push(&mut self, mut input: &[u8], out: &mut BytesMut) {
        while !input.is_empty() {
            match self.state {
                State::Pass(left) => {
                    let (passed, rest) = input.split_at(left.min(input.len()));
                    out.extend_from_slice(passed);
                    input = rest;
                    self.state = State::pass(left - passed.len());
                }
                State::Hold(wanted) => {
                    let (taken, rest) = input.split_at((wanted - self.held.len()).min(input.len()));
                    self.held.extend_from_slice(taken);
                    input = rest;
                    if self.held.len() == wanted {
                        self.state = self.release(out);
                    }
                }
            }
        }
    }

    /// Decides on what is held, now that it is complete.
    fn release(&mut self, out: &mut BytesMut) -> State {
        if self.held.len() == FRAME_HEADER {
            let payload = usize::from(self.held[0]) << 16 | usize::from(self.held[1]) << 8 | usize::from(self.held[2]);
            if self.held[3] == HEADERS && (1..=MAX_PAYLOAD).contains(&payload) {
                return State::Hold(FRAME_HEADER + payload);
            }
            out.unsplit(self.held.split());
            return State::pass(payload);
        }
        let frame = self.held.split();
        match localised(&frame) {
            Some(changed) => out.unsplit(changed),
            None => out.unsplit(frame),
        }
        State::pass(0)
    }
}

// === impl State ===

impl State {
    /// Lets so many bytes through, and then looks at the next frame.
    fn pass(bytes: usize) -> Self {
        if bytes == 0 { Self::Hold(FRAME_HEADER) } else { Self::Pass(bytes) }
    }
}

/// The HEADERS frame with another authority; `None` if it has none that we can replace.
fn localised(frame: &[u8]) -> Option<BytesMut> {
    let value = authority(frame)?;
    let authority = &LOCALHOST[..LOCALHOST.len().min(value.text_len)];
    // Both fit: the authority is short, and the frame only shrinks.
    let text_len = u8::try_from(authority.len()).ok()?;
    let payload = frame.len() - FRAME_HEADER - (value.end - value.start) + 1 + authority.len();
    let payload = u32::try_from(payload).ok()?.to_be_bytes();

    let mut changed = BytesMut::with_capacity(frame.len());
    changed.extend_from_slice(&payload[1..]);
    changed.extend_from_slice(&frame[3..value.start]);
    changed.extend_from_slice(&[text_len]);
    changed.extend_from_slice(authority);
    changed.extend_from_slice(&frame[value.end..]);
    Some(changed)
}

/// Where in a HEADERS frame the value of `:authority` is.
fn authority(frame: &[u8]) -> Option<hpack::StringLiteral> {
    let flags = frame[4];
    let mut start = FRAME_HEADER;
    let mut end = frame.len();
    if flags & PADDED != 0 {
        end = end.checked_sub(usize::from(*frame.get(start)?))?;
        start += 1;
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    let value = hpack::authority(frame.get(start..end)?)?;
    Some(hpack::StringLiteral { start: start + value.start, end: start + value.end, ..value })
}

#[cfg(test)]
pub(super) mod tests;
