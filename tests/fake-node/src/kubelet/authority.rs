//! Makes our HTTP/2 client say what the kubelet's says in `:authority`: the percent-encoded path of the socket.
//!
//! The kubelet's plugin manager dials a registrar by its bare path, and grpc-go makes that path, percent-encoded, the
//! authority (`%2Fvar%2Flib%2Fkubelet%2F…`). Neither `http::Uri` nor h2 can hold such a value, on either side. A fake
//! kubelet that sent anything else would accept plugins which no real kubelet can register, so the bytes that our client
//! writes are changed on their way to the socket:
//!
//! ```text
//!  tonic, with a placeholder ──▶ HEADERS │ 41 │ len │ placeholder (Huffman) │ ──▶ HEADERS │ 41 │ len │ %2Fvar%2F… │
//! ```
//!
//! Only the literal changes; later requests refer to it by its index in the HPACK dynamic table, as they do in grpc-go.
//! The placeholder is as long as the path, so that the entry has the same size in both tables and they evict alike.

use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use bytes::{BufMut as _, BytesMut};

/// What an HTTP/2 client sends first (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length, type, flags and stream of a frame (RFC 9113 §4.1).
const FRAME_HEADER: usize = 9;

/// The largest frame that a peer accepts unless it said otherwise (RFC 9113 §6.5.2).
const MAX_FRAME: usize = 16_384;

/// The frame type that starts a request.
const HEADERS: u8 = 0x1;

/// `:authority` in HPACK's static table (RFC 7541 appendix A).
const AUTHORITY_INDEX: usize = 1;

/// Rewrites the bytes of one connection, client to server.
#[derive(Debug)]
pub(crate) struct PathAuthority {
    encoded: Vec<u8>,
    input: BytesMut,
    preface_seen: bool,
    authority_seen: bool,
}

/// Where in a header block a string is: its length prefix and itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    start: usize,
    end: usize,
}

// === impl PathAuthority ===

impl PathAuthority {
    /// For a connection to the socket at `path`.
    pub(crate) fn new(path: &Path) -> Self {
        let encoded = percent_encoded(path).into_bytes();
        Self { encoded, input: BytesMut::new(), preface_seen: false, authority_seen: false }
    }

    /// What the client must be told that its authority is.
    pub(crate) fn placeholder(&self) -> String {
        "x".repeat(self.encoded.len())
    }

    /// Takes what the client wrote and appends to `out` what goes to the server; an incomplete frame waits for the rest.
    ///
    /// Fails where a request does not carry the authority in a form that can be rewritten: sending it unchanged would
    /// make the fake laxer than a kubelet.
    pub(crate) fn push(&mut self, written: &[u8], out: &mut BytesMut) -> io::Result<()> {
        self.input.extend_from_slice(written);
        if !self.preface_seen {
            if self.input.len() < PREFACE.len() {
                return Ok(());
            }
            out.extend_from_slice(&self.input.split_to(PREFACE.len()));
            self.preface_seen = true;
        }
        while let Some(length) = frame_length(&self.input) {
            if self.input.len() < FRAME_HEADER + length {
                break;
            }
            let frame = self.input.split_to(FRAME_HEADER + length);
            if frame[3] == HEADERS { self.rewrite(&frame, out)? } else { out.extend_from_slice(&frame) }
        }
        Ok(())
    }

    fn rewrite(&mut self, frame: &[u8], out: &mut BytesMut) -> io::Result<()> {
        let (header, payload) = frame.split_at(FRAME_HEADER);
        let block = block_start(header[4]);
        let Some(span) = payload.get(block..).and_then(authority_literal) else {
            if !self.authority_seen {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the request carries no literal :authority"));
            }
            out.extend_from_slice(frame);
            return Ok(());
        };
        self.authority_seen = true;

        let mut rewritten = BytesMut::with_capacity(payload.len() + self.encoded.len());
        rewritten.extend_from_slice(&payload[..block + span.start]);
        put_length(&mut rewritten, self.encoded.len());
        rewritten.extend_from_slice(&self.encoded);
        rewritten.extend_from_slice(&payload[block + span.end..]);
        if rewritten.len() > MAX_FRAME {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the rewritten HEADERS frame is too large"));
        }
        out.put_uint(rewritten.len() as u64, 3);
        out.extend_from_slice(&header[3..]);
        out.extend_from_slice(&rewritten);
        Ok(())
    }
}

/// A path as grpc-go's `encodeAuthority` writes it.
fn percent_encoded(path: &Path) -> String {
    let mut encoded = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

fn frame_length(input: &[u8]) -> Option<usize> {
    (input.len() >= FRAME_HEADER).then(|| u32::from_be_bytes([0, input[0], input[1], input[2]]) as usize)
}

/// Where in a HEADERS payload the header block starts: after the pad length and the priority, if flagged.
fn block_start(flags: u8) -> usize {
    let padded = usize::from(flags & 0x8 != 0);
    let priority = if flags & 0x20 == 0 { 0 } else { 5 };
    padded + priority
}

/// Where in a header block the value of a literal `:authority` is.
fn authority_literal(block: &[u8]) -> Option<Span> {
    let mut at = 0;
    while at < block.len() {
        let first = block[at];
        // Indexed field, table size update, or one of the literals: with, without and never indexed (RFC 7541 §6).
        let prefix = match first {
            0x80.. => 7,
            0x40..0x80 => 6,
            0x20..0x40 => 5,
            _ => 4,
        };
        let (index, next) = integer(block, at, prefix)?;
        at = next;
        if prefix == 7 || prefix == 5 {
            continue;
        }
        if index == 0 {
            at = string(block, at)?.end;
        }
        let value = string(block, at)?;
        if index == AUTHORITY_INDEX {
            return Some(value);
        }
        at = value.end;
    }
    None
}

fn string(block: &[u8], at: usize) -> Option<Span> {
    let (length, start) = integer(block, at, 7)?;
    let end = start.checked_add(length)?;
    (end <= block.len()).then_some(Span { start: at, end })
}

/// An integer with a prefix of `bits` (RFC 7541 §5.1), and where it ends.
fn integer(block: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
    let max = (1_usize << bits) - 1;
    let mut value = usize::from(*block.get(at)?) & max;
    let mut next = at + 1;
    if value < max {
        return Some((value, next));
    }
    for shift in [0, 7, 14, 21] {
        let byte = usize::from(*block.get(next)?);
        next += 1;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, next));
        }
    }
    None
}

/// Writes the length of a string that is not Huffman-coded (RFC 7541 §5.2).
fn put_length(out: &mut BytesMut, length: usize) {
    let max = (1 << 7) - 1;
    let Some(mut rest) = length.checked_sub(max) else {
        out.put_uint(length as u64, 1);
        return;
    };
    out.put_uint(max as u64, 1);
    while rest >= 0x80 {
        out.put_uint((0x80 | rest & 0x7f) as u64, 1);
        rest >>= 7;
    }
    out.put_uint(rest as u64, 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKET: &str = "/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock";
    const ENCODED: &str = "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fgpu.nvidia.com-reg.sock";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = BytesMut::new();
        frame.put_uint(payload.len() as u64, 3);
        frame.extend_from_slice(&[kind, flags, 0, 0, 0, 1]);
        frame.extend_from_slice(payload);
        frame.to_vec()
    }

    /// `:method POST`, `:scheme http`, a Huffman-coded `:authority`, `:path` as a literal that is not indexed.
    fn block(representation: u8) -> Vec<u8> {
        [&[0x83, 0x86, representation, 0x83, 0xf3, 0xe7, 0xcf], &b"\x04\x02/a"[..]].concat()
    }

    fn rewritten_block(representation: u8) -> Vec<u8> {
        assert_eq!(ENCODED.len(), 67);
        let mut expected = vec![0x83, 0x86, representation, 67];
        expected.extend_from_slice(ENCODED.as_bytes());
        expected.extend_from_slice(b"\x04\x02/a");
        expected
    }

    fn rewritten(chunks: &[&[u8]]) -> io::Result<Vec<u8>> {
        let mut authority = PathAuthority::new(Path::new(SOCKET));
        let mut out = BytesMut::new();
        for chunk in chunks {
            authority.push(chunk, &mut out)?;
        }
        Ok(out.to_vec())
    }

    #[test]
    fn paths_are_encoded_as_grpc_go_does() {
        assert_eq!(percent_encoded(Path::new(SOCKET)), ENCODED);
        assert_eq!(percent_encoded(Path::new("/a b/ü#")), "%2Fa%20b%2F%C3%BC%23");
        assert_eq!(PathAuthority::new(Path::new(SOCKET)).placeholder().len(), ENCODED.len());
    }

    #[test]
    fn every_representation_of_the_literal_is_rewritten() {
        for representation in [0x41, 0x01, 0x11] {
            let input = [PREFACE, &frame(HEADERS, 0x4, &block(representation))].concat();
            let expected = [PREFACE, &frame(HEADERS, 0x4, &rewritten_block(representation))].concat();
            assert_eq!(rewritten(&[&input]).unwrap(), expected, "{representation:#x}");
        }
    }

    #[test]
    fn padding_and_priority_stay_in_front_of_the_block() {
        let prefix = [2, 0, 0, 0, 0, 16];
        let input = [&prefix[..], &block(0x41), &[0, 0]].concat();
        let expected = [&prefix[..], &rewritten_block(0x41), &[0, 0]].concat();
        let input = [PREFACE, &frame(HEADERS, 0x2c, &input)].concat();
        assert_eq!(rewritten(&[&input]).unwrap(), [PREFACE, &frame(HEADERS, 0x2c, &expected)].concat());
    }

    #[test]
    fn writes_may_be_split_anywhere() {
        let settings = frame(0x4, 0, &[0, 3, 0, 0, 0, 1]);
        let input = [PREFACE, &settings, &frame(HEADERS, 0x4, &block(0x41)), &frame(0x0, 0x1, b"body")].concat();
        let expected =
            [PREFACE, &settings, &frame(HEADERS, 0x4, &rewritten_block(0x41)), &frame(0x0, 0x1, b"body")].concat();
        for split in 0..input.len() {
            let (head, tail) = input.split_at(split);
            assert_eq!(rewritten(&[head, tail]).unwrap(), expected, "split at {split}");
        }
    }

    #[test]
    fn later_requests_refer_to_the_table() {
        let indexed = frame(HEADERS, 0x4, &[0x83, 0x86, 0xbe, 0x04, 0x02, b'/', b'b']);
        let first = [PREFACE, &frame(HEADERS, 0x4, &block(0x41))].concat();
        let expected = [PREFACE, &frame(HEADERS, 0x4, &rewritten_block(0x41)), &indexed].concat();
        assert_eq!(rewritten(&[&first, &indexed]).unwrap(), expected);
    }

    #[test]
    fn a_first_request_without_a_literal_authority_is_an_error() {
        let input = [PREFACE, &frame(HEADERS, 0x4, &[0x83, 0x86, 0x84])].concat();
        assert_eq!(rewritten(&[&input]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn lengths_of_every_size_survive() {
        for value in [0, 126, 127, 128, 254, 255, 300, 16_383, 20_000] {
            let mut out = BytesMut::new();
            put_length(&mut out, value);
            assert_eq!(integer(&out, 0, 7), Some((value, out.len())), "{value}");
        }
    }
}
