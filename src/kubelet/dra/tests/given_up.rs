//! A prepare that the kubelet gives up, and the unprepare that it sends right behind it.

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::*;
use crate::kubelet::authority::tests::{CLIENT_PREFACE, RST_STREAM, SETTINGS, frame, plain, request, response};
use crate::kubelet::tests::{Node, PREPARE, UNPREPARE};

/// The frames of a call for claim `a`.
fn call(stream: u32, path: &str) -> Vec<u8> {
    let fields = [b"application/grpc".as_slice(), b"te", b"trailers"].map(plain);
    let [content_type, te, trailers] = &fields;
    let block = [&[0x83, 0x86, 0x04], &*plain(path.as_bytes()), &[0x0f, 0x10], content_type, &[0x00], te, trailers];
    request(stream, &block.concat(), &prost::Message::encode_to_vec(&prepare_request(&["a"])))
}

#[tokio::test]
async fn a_prepare_that_was_given_up_before_its_turn_does_no_work() {
    for given_up in [false, true] {
        let node = Node::new();
        let (begin, mut begins) = mpsc::unbounded_channel();
        let (work, mut works) = mpsc::unbounded_channel();
        let prepare = move |_, _, _| {
            begin.send(()).unwrap();
            let work = work.clone();
            async move {
                work.send(()).unwrap();
                Ok(Vec::new())
            }
            .boxed()
        };
        let dra = node.serve_dra(Dra::from_work(prepare, |_, _, _| async { Ok(()) }.boxed())).await;
        let mut kubelet = UnixStream::connect(dra.endpoint()).await.unwrap();
        let reset = if given_up { frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()) } else { Vec::new() };
        let all = [CLIENT_PREFACE, &frame(SETTINGS, 0, 0, &[]), &call(1, PREPARE), &reset, &call(3, UNPREPARE)];
        kubelet.write_all(&all.concat()).await.unwrap();
        response(&mut kubelet, 3).await.expect("the unprepare is answered");
        drop(kubelet);

        dra.close(crate::kubelet::tests::PATIENCE).await;
        assert!(begins.recv().await.is_some(), "it had arrived");
        assert_eq!(works.recv().await.is_some(), !given_up);
    }
}
