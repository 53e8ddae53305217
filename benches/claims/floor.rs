//! One claim against the least that it can cost.
//!
//! The floor is a program of its own that speaks the same gRPC over a unix socket, answers the same bytes, and writes
//! the same files with the same guarantees: temporary file, fsync, rename, fsync of the directory for each, and unlink
//! and fsync of the directory at the end. It decides nothing, reads nothing and keeps nothing. What the plugin takes
//! longer is its own doing, except for the claim that it has to read from the API server: a second floor reads the claim
//! too, over one connection that stays open, and does not look at it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use fake_node::kubelet::proto::v1;
use fake_node::kubelet::proto::v1::dra_plugin_server::{DraPlugin, DraPluginServer};
use futures::stream;
use prost::Message;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::node::{BenchNode, Connection, Setup, timed};
use crate::report::{Row, Samples};

/// Times the floor that a claim may take.
const TARGET: f64 = 2.0;

/// Rounds before those that count: caches fill and pools grow.
const WARM_UP: usize = 20;

/// How long the floor may take to begin.
const PATIENCE: Duration = Duration::from_secs(10);

const SOCKET: &str = "floor.sock";
const ANSWER: &str = "answer";
const RECORD: &str = "record.json";
const SPEC: &str = "spec.json";

/// The floor as a process, which ends with this.
struct Floor {
    process: Child,
    connection: Connection,
    _directory: TempDir,
}

/// What the floor serves.
struct Service {
    directory: PathBuf,
    answer: v1::NodePrepareResourcesResponse,
    started: Vec<u8>,
    completed: Vec<u8>,
    spec: Vec<u8>,
    api: Option<Mutex<Api>>,
}

/// A connection to the API server.
struct Api {
    stream: BufReader<TcpStream>,
    request: String,
}

/// Prepares and unprepares one claim again and again, in turn with the floors.
pub(crate) async fn measure(setup: &Setup, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let node = setup.node().await?;
    let claim = node.claim("one", "gpu-0")?;
    let floor = Floor::start(setup, &node, &claim, false).await?;
    let reading = Floor::start(setup, &node, &claim, true).await?;
    let connections = [&node.dra, &floor.connection, &reading.connection];
    let (mut prepares, mut unprepares, mut both) =
        ([(); 3].map(|()| vec![]), [(); 3].map(|()| vec![]), [(); 3].map(|()| vec![]));
    for round in 0..WARM_UP + rounds {
        for (number, connection) in connections.iter().enumerate() {
            let prepare = timed(connection.prepare(&claim)).await?;
            let unprepare = timed(connection.unprepare(&claim)).await?;
            if round >= WARM_UP {
                prepares[number].push(prepare);
                unprepares[number].push(unprepare);
                both[number].push(prepare + unprepare);
            }
        }
    }
    let mut rows = Vec::new();
    for (what, times, target) in [
        ("prepare and unprepare of a GPU", both, Some(TARGET)),
        ("its prepare", prepares, None),
        ("its unprepare", unprepares, None),
    ] {
        let [ours, floor, reading] = times.map(Samples::new);
        rows.push(Row::ratio(format!("{what}, p50"), ours.p50(), ("floor", floor.p50()), target));
        rows.push(Row::ratio(format!("{what}, p99"), ours.p99(), ("floor", floor.p99()), target));
        rows.push(Row::ratio(format!("{what}, p50"), ours.p50(), ("floor that reads the claim", reading.p50()), None));
    }
    Ok(rows)
}

/// Is the floor, until it is killed.
pub(crate) fn serve(directory: &Path, get: Option<&str>) -> anyhow::Result<()> {
    let read = |name: &str| fs::read(directory.join(name));
    let completed = read(RECORD)?;
    let service = Service {
        directory: directory.to_owned(),
        answer: v1::NodePrepareResourcesResponse::decode(read(ANSWER)?.as_slice())?,
        started: String::from_utf8(completed.clone())?.replace("PrepareCompleted", "PrepareStarted").into_bytes(),
        completed,
        spec: read(SPEC)?,
        api: get.map(Api::connect).transpose()?.map(Mutex::new),
    };
    for directory in ["claims", "cdi"] {
        fs::create_dir(service.directory.join(directory))?;
    }
    // One thread: nothing is asked of it at once.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = UnixListener::bind(directory.join(SOCKET))?;
        let connections = stream::unfold(listener, async |listener| {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        Server::builder().add_service(DraPluginServer::new(service)).serve_with_incoming(connections).await?;
        Ok(())
    })
}

// === impl Floor ===

impl Floor {
    /// Starts one that does as the plugin does for this claim.
    async fn start(setup: &Setup, node: &BenchNode, claim: &v1::Claim, reads: bool) -> anyhow::Result<Self> {
        let directory = setup.temporary()?;
        let answer = node.dra.prepare(claim).await?;
        let samples = [
            (ANSWER, answer.encode_to_vec()),
            (RECORD, only_file(&node.plugin_dir().join("claims"))?),
            (SPEC, only_file(&node.host.cdi_dir())?),
        ];
        node.dra.unprepare(claim).await?;
        for (name, bytes) in samples {
            fs::write(directory.path().join(name), bytes)?;
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--serve-floor").arg(directory.path()).stdin(Stdio::null());
        if reads {
            let v1::Claim { namespace, name, uid: _ } = claim;
            let path = format!("apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
            command.arg("--get").arg(format!("{}/{path}", node.api.address()));
        }
        let process = command.spawn().context("cannot start the floor")?;
        let connection = Self::dial(&directory.path().join(SOCKET)).await?;
        Ok(Self { process, connection, _directory: directory })
    }

    async fn dial(socket: &Path) -> anyhow::Result<Connection> {
        let start = Instant::now();
        loop {
            match Connection::dial(socket).await {
                Err(_) if start.elapsed() < PATIENCE => tokio::time::sleep(Duration::from_millis(10)).await,
                outcome => return outcome,
            }
        }
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The content of the one regular file in a directory.
fn only_file(directory: &Path) -> anyhow::Result<Vec<u8>> {
    let entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    let files: Vec<_> = entries.iter().map(fs::DirEntry::path).filter(|path| path.is_file()).collect();
    ensure!(files.len() == 1, "{} files in {}", files.len(), directory.display());
    Ok(fs::read(&files[0])?)
}

// === impl Service ===

impl Service {
    fn prepare(&self) -> io::Result<()> {
        if let Some(api) = &self.api {
            api.lock().unwrap_or_else(PoisonError::into_inner).get()?;
        }
        self.write("claims", RECORD, &self.started)?;
        self.write("cdi", SPEC, &self.spec)?;
        self.write("claims", RECORD, &self.completed)
    }

    fn unprepare(&self) -> io::Result<()> {
        self.remove("cdi", SPEC)?;
        self.remove("claims", RECORD)
    }

    fn write(&self, directory: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        let directory = self.directory.join(directory);
        let temporary = directory.join(".temporary");
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, directory.join(name))?;
        File::open(directory)?.sync_all()
    }

    fn remove(&self, directory: &str, name: &str) -> io::Result<()> {
        let directory = self.directory.join(directory);
        fs::remove_file(directory.join(name))?;
        File::open(directory)?.sync_all()
    }
}

#[tonic::async_trait]
impl DraPlugin for Service {
    async fn node_prepare_resources(
        &self,
        _: Request<v1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1::NodePrepareResourcesResponse>, Status> {
        self.prepare()?;
        Ok(Response::new(self.answer.clone()))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1::NodeUnprepareResourcesResponse>, Status> {
        self.unprepare()?;
        let claims = request.into_inner().claims;
        let entry = |claim: v1::Claim| (claim.uid, v1::NodeUnprepareResourceResponse::default());
        Ok(Response::new(v1::NodeUnprepareResourcesResponse { claims: claims.into_iter().map(entry).collect() }))
    }
}

// === impl Api ===

impl Api {
    /// Connects to `<address>/<path>`.
    fn connect(target: &str) -> anyhow::Result<Self> {
        let (address, path) = target.split_once('/').context("a target has a path")?;
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let request = format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\n\r\n");
        Ok(Self { stream: BufReader::new(stream), request })
    }

    /// Reads the object, and throws it away.
    fn get(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(self.request.as_bytes())?;
        let mut length = 0;
        let mut line = String::new();
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let text = line.trim_end().to_ascii_lowercase();
            if text.is_empty() {
                break;
            }
            if let Some(value) = text.strip_prefix("content-length: ") {
                length = value.parse().map_err(io::Error::other)?;
            }
        }
        self.stream.read_exact(&mut vec![0; length])
    }
}
