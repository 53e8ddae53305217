//! One connection to a plugin's socket.
//!
//! A connection is made once and never made again by itself: when it ends, [`Connection::ended`] says so and whoever
//! holds it decides, as the kubelet does from grpc-go's connection events.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::authority::PathAuthority;

/// What the kubelet says in `:authority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authority {
    /// The percent-encoded path of the socket, which grpc-go makes of a bare path.
    Path,
    /// `localhost`, which grpc-go makes of a `unix:` target.
    Localhost,
}

/// Why a socket could not be dialled.
#[derive(Debug, thiserror::Error)]
#[error("failed to dial socket {}, err: {source}", path.display())]
pub(crate) struct DialError {
    path: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// For calls; fails once the connection has ended.
    pub(crate) channel: Channel,
    open: oneshot::Receiver<()>,
}

/// The stream below HTTP/2. Dropped by hyper when the connection ends, which drops `_open`.
#[derive(Debug)]
struct Wire {
    stream: UnixStream,
    rewrite: Option<PathAuthority>,
    out: BytesMut,
    _open: oneshot::Sender<()>,
}

// === impl Connection ===

impl Connection {
    /// Dials the socket at `path`.
    pub(crate) async fn dial(path: &Path, authority: Authority) -> Result<Self, DialError> {
        let failed = |source| DialError { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).await.map_err(|error| failed(error.into()))?;
        let rewrite = (authority == Authority::Path).then(|| PathAuthority::new(path));
        let host = rewrite.as_ref().map_or_else(|| "localhost".to_owned(), PathAuthority::placeholder);

        let (sender, open) = oneshot::channel();
        let mut wire = Some(TokioIo::new(Wire { stream, rewrite, out: BytesMut::new(), _open: sender }));
        let connector = service_fn(move |_| {
            let wire = wire.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
            async move { wire }
        });
        let channel = Endpoint::from_shared(format!("http://{host}"))
            .map_err(|error| failed(error.into()))?
            .connect_with_connector(connector)
            .await
            .map_err(|error| failed(error.into()))?;
        Ok(Self { channel, open })
    }

    /// Waits until the connection has ended.
    pub(crate) async fn ended(self) {
        let _ = self.open.await;
    }
}

// === impl Wire ===

impl Wire {
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.out.has_remaining() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.out))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.out.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.drain(cx))?;
        let Some(rewrite) = &mut this.rewrite else { return Pin::new(&mut this.stream).poll_write(cx, buf) };
        // What is taken here goes out with the next write or flush; hyper flushes whatever it wrote.
        rewrite.push(buf, &mut this.out)?;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.drain(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.drain(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

/// Calls a method that answers once. The kubelet's deadline cancels the call on the wire too.
pub(crate) async fn unary<Q, A>(channel: Channel, path: PathAndQuery, request: Q, limit: Duration) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let deadline = Instant::now() + limit;
    let call = async {
        let mut grpc = Grpc::new(channel);
        grpc.ready().await.map_err(|error| unavailable(&error))?;
        let mut request = Request::new(request);
        request.set_timeout(limit);
        grpc.unary(request, path, ProstCodec::default()).await
    };
    match tokio::time::timeout_at(deadline, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        // tonic ends the call at the same moment, with another code than grpc-go.
        Ok(Err(status)) if Instant::now() < deadline => Err(status),
        Ok(Err(_)) | Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
    }
}

/// Calls a method that answers with a stream, without a deadline.
pub(crate) async fn stream<Q, A>(channel: Channel, path: PathAndQuery, request: Q) -> Result<Streaming<A>, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| unavailable(&error))?;
    grpc.server_streaming(Request::new(request), path, ProstCodec::default()).await.map(tonic::Response::into_inner)
}

/// A status as grpc-go prints it: this is what people read in a pod's events.
pub(crate) fn go_error(status: &Status) -> String {
    let code = match status.code() {
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    };
    let mut text = format!("rpc error: code = {code} desc = {}", status.message());
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let error_text = error.to_string();
        if !text.contains(&error_text) {
            let _ = write!(text, ": {error_text}");
        }
        cause = error.source();
    }
    text
}

fn unavailable(error: &tonic::transport::Error) -> Status {
    Status::unavailable(format!("connection error: {error}"))
}
