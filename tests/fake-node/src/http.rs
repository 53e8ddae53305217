//! The least of an HTTP client: for probes, and for what the kubelet asks of the API server.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Makes one request without a body: status code and body of the answer. HTTP/1.0, so that there is no keep-alive, there
/// are no chunks, and nothing has to be parsed but the end of the head.
pub(crate) async fn request(method: &str, address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json, */*\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "not an HTTP answer");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(malformed)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(malformed)?;
    Ok((status, body.to_owned()))
}
