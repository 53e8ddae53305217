//! Frames made by hand: what gRPC in Go and in C sends, and what an HTTP/2 client might.

use futures::stream;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::transport::Server;

use super::*;
use crate::kubelet::metrics::Metrics;
use crate::kubelet::proto::registration::PluginInfo;
use crate::kubelet::proto::registration::registration_server::RegistrationServer;
use crate::kubelet::registration::{Registration, RegistrationService};
use crate::kubelet::tests::{GET_INFO, NOTIFY};

pub(in crate::kubelet) const CLIENT_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const ENCODED: &[u8] = b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fgpu.nvidia.com-reg.sock";
const BARE: &[u8] = b"/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock";

/// `ENCODED` in Huffman code, as grpc-go sends it.
const ENCODED_HUFFMAN: [u8; 49] = [
    0x54, 0x58, 0x7b, 0x8e, 0xc5, 0x45, 0x86, 0x83, 0x46, 0xa8, 0xb0, 0xf5, 0xb6, 0x32, 0xd0, 0x54, 0xaa, 0x2c, 0x35,
    0xd1, 0x6c, 0xc6, 0xa9, 0x11, 0x58, 0x59, 0x8c, 0x84, 0xd9, 0xe9, 0x51, 0x61, 0x9a, 0xbb, 0x57, 0xab, 0xb9, 0xa4,
    0x30, 0xd7, 0x21, 0xe9, 0x5a, 0xc2, 0xcc, 0xba, 0x0e, 0x4e, 0xbf,
];

const DATA: u8 = 0x00;
pub(in crate::kubelet) const RST_STREAM: u8 = 0x03;
pub(in crate::kubelet) const SETTINGS: u8 = 0x04;
const GOAWAY: u8 = 0x07;
const CONTINUATION: u8 = 0x09;
const END_STREAM: u8 = 0x01;
const END_HEADERS: u8 = 0x04;

pub(in crate::kubelet) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A string literal that is not in Huffman code.
pub(in crate::kubelet) fn plain(text: &[u8]) -> Vec<u8> {
    if text.len() < 127 {
        return [&[u8::try_from(text.len()).unwrap()], text].concat();
    }
    let rest = text.len() - 127;
    [&[127, 0x80 | u8::try_from(rest & 0x7f).unwrap(), u8::try_from(rest >> 7).unwrap()], text].concat()
}

fn huffman(code: &[u8]) -> Vec<u8> {
    [&[0x80 | u8::try_from(code.len()).unwrap()], code].concat()
}

/// Everything that a name of `:authority` can look like.
fn names() -> [Vec<u8>; 9] {
    let huffman_name = huffman(&[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f]);
    [
        vec![0x41],
        vec![0x01],
        vec![0x11],
        [&[0x40], &*plain(b":authority")].concat(),
        [&[0x00], &*plain(b":authority")].concat(),
        [&[0x10], &*plain(b":authority")].concat(),
        [&[0x40], &*huffman_name].concat(),
        [&[0x00], &*huffman_name].concat(),
        [&[0x10], &*huffman_name].concat(),
    ]
}

/// And everything that a value can.
fn values() -> [Vec<u8>; 5] {
    let long = [b"/".repeat(200), BARE.to_vec()].concat();
    [plain(ENCODED), plain(BARE), huffman(&ENCODED_HUFFMAN), plain(b"/var/lib/"), plain(&long)]
}

/// What h2 gets of `input`, pushed in these pieces.
fn seen<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut frames, mut out) = (Frames::new(), BytesMut::new());
    for piece in pieces {
        frames.push(piece, &mut out);
        assert!(frames.held.len() < FRAME_HEADER + MAX_PAYLOAD, "at most one frame is held");
    }
    out.extend_from_slice(&frames.held);
    out.to_vec()
}

/// What it gets of these frames.
fn seen_frame(frame: &[u8]) -> Vec<u8> {
    let out = seen([CLIENT_PREFACE, frame]);
    assert_eq!(&out[..PREFACE], CLIENT_PREFACE);
    out[PREFACE..].to_vec()
}

/// Fields before and after the authority: indexed, a table size update, literals of all kinds, a long one.
fn fields_around() -> ([Vec<u8>; 4], Vec<u8>) {
    let before = [
        Vec::new(),
        vec![0x83, 0x86],
        [&[0x3f, 0xe1, 0x1f, 0x83, 0x86, 0x44], &*plain(GET_INFO.as_bytes())].concat(),
        [&[0x83, 0xff, 0x03, 0x0f, 0x10], &*plain(&[b'x'; 300]), &[0x10], &*plain(b"x-y"), &*plain(b"")].concat(),
    ];
    let after = [&[0x5f], &*plain(b"application/grpc"), &[0x40], &*plain(b"te"), &*plain(b"trailers")].concat();
    (before, after)
}

#[test]
fn every_literal_authority_becomes_localhost_and_nothing_else_changes() {
    let (befores, after) = fields_around();
    for before in &befores {
        for name in names() {
            for value in values() {
                let block = [&**before, &name, &value, &after].concat();
                let changed = [&**before, &name, &plain(LOCALHOST), &after].concat();
                for (flags, head, tail) in [
                    (0, vec![], vec![]),
                    (PADDED, vec![7], vec![0; 7]),
                    (PRIORITY, vec![0x80, 0, 0, 0, 16], vec![]),
                    (PADDED | PRIORITY, vec![3, 0, 0, 0, 0, 16], vec![0; 3]),
                ] {
                    let with = |block: &[u8]| frame(HEADERS, flags | END_HEADERS, 5, &[&head, block, &tail].concat());
                    assert_eq!(seen_frame(&with(&block)), with(&changed));
                }
            }
        }
    }
}

#[test]
fn an_authority_never_grows() {
    for (authority, expected) in [(&b"/"[..], &b"l"[..]), (b"a.b", b"loc"), (b"", b""), (b"/var/run", b"localhos")] {
        let block = |authority| [&[0x41], &*plain(authority)].concat();
        let with = |authority| frame(HEADERS, END_HEADERS, 1, &block(authority));
        assert_eq!(seen_frame(&with(authority)), with(expected));
    }
}

#[test]
fn what_cannot_be_understood_passes_as_it_is() {
    let authority = [&[0x41], &*plain(BARE)].concat();
    let whole = frame(HEADERS, END_HEADERS, 1, &authority);
    for (what, bytes) in [
        ("no fields", frame(HEADERS, END_HEADERS, 1, &[])),
        ("no authority", frame(HEADERS, END_HEADERS, 1, &[0x83, 0x86])),
        ("another literal", frame(HEADERS, END_HEADERS, 1, &[&[0x44], &*plain(b"/")].concat())),
        ("a value that is cut", frame(HEADERS, 0, 1, &authority[..20])),
        ("a name that is cut", frame(HEADERS, 0, 1, b"\x40\x0a:auth")),
        ("an endless integer", frame(HEADERS, END_HEADERS, 1, &[&[0xff; 12], &*authority].concat())),
        ("more padding than frame", frame(HEADERS, END_HEADERS | PADDED, 1, &[&[200], &*authority].concat())),
        ("no room for priority", frame(HEADERS, END_HEADERS | PRIORITY, 1, &[1, 2])),
        ("in another kind of frame", frame(DATA, 0, 1, &authority)),
        ("in a continuation", frame(CONTINUATION, END_HEADERS, 1, &authority)),
        ("longer than h2 takes", frame(HEADERS, END_HEADERS, 1, &[&*authority, &[0x83; MAX_PAYLOAD]].concat())),
        ("an end in the middle of a frame", whole[..30].to_vec()),
        ("an end in the middle of a frame's header", whole[..5].to_vec()),
    ] {
        assert_eq!(seen_frame(&bytes), bytes, "{what}");
    }
}

/// A connection with a bit of everything, and what h2 is to see of it.
fn conversation() -> (Vec<u8>, Vec<u8>) {
    let connection = |authority: &[u8]| {
        let first = [&[0x83, 0x86, 0x41], authority, &[0x5f], &*plain(b"application/grpc")].concat();
        [
            CLIENT_PREFACE,
            &frame(SETTINGS, 0, 0, &[]),
            &frame(HEADERS, 0, 1, &first),
            &frame(CONTINUATION, END_HEADERS, 1, &[&[0x41], &*plain(BARE)].concat()),
            &frame(DATA, END_STREAM, 1, &[0; 5]),
            &frame(HEADERS, END_HEADERS, 3, &[0x83, 0x86, 0xbf, 0xbe]),
            &frame(DATA, END_STREAM, 3, &[0x41; 70]),
            &frame(HEADERS, END_HEADERS | PADDED, 5, &[&[2, 0x01], authority, &[0, 0]].concat()),
        ]
        .concat()
    };
    (connection(&huffman(&ENCODED_HUFFMAN)), connection(&plain(LOCALHOST)))
}

#[test]
fn it_does_not_matter_how_the_stream_is_cut() {
    let (sent, expected) = conversation();
    for cut in 0..=sent.len() {
        let (one, two) = sent.split_at(cut);
        assert_eq!(seen([one, two]), expected, "cut at {cut}");
    }
    for piece in [1, 2, 3, 7, 24, 33, 100] {
        assert_eq!(seen(sent.chunks(piece)), expected, "pieces of {piece}");
    }
}

/// Bytes that look like frames now and then.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let payload = proptest::collection::vec(any::<u8>(), 0..80);
    let any_frame = (prop_oneof![3 => Just(HEADERS), 1 => any::<u8>()], any::<u8>(), payload)
        .prop_map(|(kind, flags, payload)| frame(kind, flags, 1, &payload));
    let garbage = proptest::collection::vec(any::<u8>(), 0..40);
    (proptest::collection::vec(any_frame, 0..8), garbage).prop_map(|(frames, end)| [frames.concat(), end].concat())
}

proptest! {
    #[test]
    fn any_bytes_come_out_the_same_however_they_are_cut(
        bytes in frames(),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..6),
    ) {
        let sent = [CLIENT_PREFACE, &bytes].concat();
        let whole = seen([&*sent]);
        prop_assert!(whole.len() <= sent.len());
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(sent.len() + 1)).collect();
        cuts.extend([0, sent.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &sent[cut[0]..cut[1]]);
        prop_assert_eq!(seen(pieces), whole);
    }
}

#[tokio::test]
async fn a_reader_with_a_small_buffer_gets_all_of_it() {
    let (sent, expected) = conversation();
    let (mut client, server) = tokio::io::duplex(11);
    let writing = tokio::spawn(async move { client.write_all(&sent).await.unwrap() });
    let (mut server, mut got) = (LocalAuthority::new(server), Vec::new());
    let mut small = [0; 3];
    loop {
        let read = server.read(&mut small).await.unwrap();
        if read == 0 {
            break;
        }
        got.extend_from_slice(&small[..read]);
    }
    assert_eq!(got, expected);
    writing.await.unwrap();
}

#[tokio::test]
async fn a_frame_that_the_end_of_the_stream_cuts_is_not_lost() {
    let (sent, _) = conversation();
    let cut = PREFACE + 2 * FRAME_HEADER + 10;
    let (mut client, server) = tokio::io::duplex(1024);
    client.write_all(&sent[..cut]).await.unwrap();
    drop(client);
    let mut got = Vec::new();
    LocalAuthority::new(server).read_to_end(&mut got).await.unwrap();
    assert_eq!(got, sent[..cut]);
}

// === With tonic ===

/// The registration service on the other end of a connection.
fn serve<S>(connection: S) -> watch::Receiver<Registration>
where
    S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let (last, status) = watch::channel(Registration::Waiting);
    let metrics = Metrics::register(&mut prometheus_client::registry::Registry::default());
    let service = RegistrationService::new("gpu.nvidia.com", "/dra.sock", last, metrics);
    let routes = Routes::new(RegistrationServer::new(service));
    let incoming = stream::iter([Ok::<_, io::Error>(connection)]);
    tokio::spawn(Server::builder().serve_with_incoming(routes, incoming));
    status
}

/// A call with one message.
pub(in crate::kubelet) fn request(stream: u32, block: &[u8], message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let data = [&[0], &length[..], message].concat();
    [frame(HEADERS, END_HEADERS, stream, block), frame(DATA, END_STREAM, stream, &data)].concat()
}

/// Reads what the server says until the stream ends: the messages of the stream, or the kind of frame that broke it.
pub(in crate::kubelet) async fn response(client: &mut (impl AsyncRead + Unpin), stream: u32) -> Result<Vec<u8>, u8> {
    let mut data = Vec::new();
    loop {
        let mut header = [0; FRAME_HEADER];
        client.read_exact(&mut header).await.unwrap();
        let mut payload = vec![0; usize::from(header[1]) << 8 | usize::from(header[2])];
        client.read_exact(&mut payload).await.unwrap();
        let (kind, flags, of) = (header[3], header[4], u32::from_be_bytes(header[5..].try_into().unwrap()));
        match kind {
            RST_STREAM | GOAWAY => return Err(kind),
            DATA if of == stream => data.extend_from_slice(&payload),
            _ => {}
        }
        if of == stream && flags & END_STREAM != 0 && matches!(kind, DATA | HEADERS) {
            return Ok(data);
        }
    }
}

/// GetInfo, with the authority spelt out in a way that puts it into the table of both sides.
fn get_info(authority_name: &[u8], authority_value: &[u8]) -> Vec<u8> {
    let block = [
        &[0x83, 0x86, 0x44],
        &*plain(GET_INFO.as_bytes()),
        authority_name,
        authority_value,
        &[0x5f],
        &plain(b"application/grpc"),
        &[0x40],
        &plain(b"te"),
        &plain(b"trailers"),
    ]
    .concat();
    [CLIENT_PREFACE, &frame(SETTINGS, 0, 0, &[]), &request(1, &block, &[])].concat()
}

#[tokio::test]
async fn a_kubelet_is_understood_twice_on_one_connection() {
    for name in [vec![0x41], [&[0x40], &*plain(b":authority")].concat()] {
        for value in [plain(ENCODED), huffman(&ENCODED_HUFFMAN), plain(BARE)] {
            let (mut client, server) = tokio::io::duplex(64 * 1024);
            let status = serve(LocalAuthority::new(server));

            client.write_all(&get_info(&name, &value)).await.unwrap();
            let message = response(&mut client, 1).await.expect("GetInfo is answered");
            let info: PluginInfo = prost::Message::decode(&message[5..]).unwrap();
            assert_eq!(info.endpoint, "/dra.sock");

            // Now the table holds, newest first: the new path, te, content-type, authority. All but the path are
            // indices from here on.
            let block = [&[0x83, 0x86, 0x44], &*plain(NOTIFY.as_bytes()), &[0xc1, 0xc0, 0xbf]].concat();
            client.write_all(&request(3, &block, &[0x08, 0x01])).await.unwrap();
            response(&mut client, 3).await.expect("NotifyRegistrationStatus is answered");
            assert_eq!(*status.borrow(), Registration::Registered);
        }
    }
}

/// When this fails, h2 has learnt to accept such authorities: see the module on what then becomes of it.
#[tokio::test]
async fn h2_still_refuses_kubelets_without_our_help() {
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    serve(server);
    client.write_all(&get_info(&[0x41], &plain(ENCODED))).await.unwrap();
    assert_eq!(response(&mut client, 1).await, Err(RST_STREAM));
}
