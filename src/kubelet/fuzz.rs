//! A door for `fuzz/`, which sees only what is public: the stream adapter between the sockets and h2.

use tokio::io::AsyncRead;

use super::authority::LocalAuthority;

/// What h2 reads of a connection.
pub fn with_local_authority(connection: impl AsyncRead + Unpin) -> impl AsyncRead + Unpin {
    LocalAuthority::new(connection)
}
