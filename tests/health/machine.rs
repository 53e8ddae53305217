//! A machine without a GPU, and the plugin's session on it.

use std::path::PathBuf;
use std::time::Duration;

use fake_node::host::{Host, HostBuilder};
use gpu_dra_plugin::device::GpuUuid;
use gpu_dra_plugin::nvml::events::{News, watch};
use gpu_dra_plugin::nvml::probe::{self, Probe};
use gpu_dra_plugin::nvml::{Error, Session};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use topology::{Event, Fault, GpuState, State, Topology};

/// Longer than any call that ends at all.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Machine {
    pub(crate) host: Host,
    pub(crate) session: Session,
    _directory: TempDir,
}

/// Somebody who watches a machine.
pub(crate) struct Watcher {
    pub(crate) news: mpsc::Receiver<News>,
    pub(crate) stop: CancellationToken,
    pub(crate) end: JoinHandle<Result<(), Error>>,
}

// === impl Machine ===

impl Machine {
    pub(crate) fn new(name: &str) -> Self {
        Self::without_symbols(name, &[])
    }

    pub(crate) fn without_symbols(name: &str, hidden: &'static [&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Cargo puts the library of a dependency beside the test.
        let library = std::env::current_exe().unwrap().with_file_name("libmock_nvml.so");
        let builder = HostBuilder::new(Topology::builtin(name).unwrap(), library);
        let builder = builder.transform_library(|library| mock_nvml::hide::hide_symbols(library, hidden).unwrap());
        let host = builder.build(directory.path().join("node")).unwrap();
        let library: PathBuf = host.library();
        let session = Session::new(move || Some(library.clone()));
        Self { host, session, _directory: directory }
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut State)) {
        self.host.node().update(change).unwrap();
    }

    pub(crate) fn update_gpu(&self, index: usize, change: impl FnOnce(&mut GpuState)) {
        self.update(|state| change(state.gpus.entry(index).or_default()));
    }

    pub(crate) fn fail(&self, faults: &[Fault]) {
        self.update(|state| state.faults = faults.to_vec());
    }

    pub(crate) fn send(&self, event: &Event) {
        self.host.node().send(event).unwrap();
    }

    pub(crate) fn uuid(&self, index: usize) -> GpuUuid {
        GpuUuid::parse(&self.host.topology().gpus[index].uuid).unwrap()
    }

    pub(crate) async fn probe(&self, index: usize) -> Result<Probe, Error> {
        let gpu = self.uuid(index);
        self.session.call("probe a GPU", LONG, move |nvml| probe::read(nvml, &gpu)).await
    }

    /// Starts to watch. What comes first are the GPUs that are watched.
    pub(crate) fn watch(&self) -> Watcher {
        let (sender, news) = mpsc::channel(1000);
        let stop = CancellationToken::new();
        let (session, stopped) = (self.session.clone(), stop.clone());
        let watching =
            async move { session.call("watch the GPUs", LONG, move |nvml| watch(nvml, &stopped, &sender)).await };
        Watcher { news, stop, end: tokio::spawn(watching) }
    }
}

// === impl Watcher ===

impl Watcher {
    pub(crate) async fn next(&mut self) -> News {
        timeout(LONG, self.news.recv()).await.unwrap().unwrap()
    }

    /// Passes over other news.
    pub(crate) async fn event(&mut self) -> gpu_dra_plugin::nvml::events::Event {
        loop {
            if let News::Event(event) = self.next().await {
                return event;
            }
        }
    }

    /// The next list of who is watched.
    pub(crate) async fn watching(&mut self) -> (Vec<GpuUuid>, Vec<(Option<GpuUuid>, Error)>) {
        loop {
            if let News::Watching { watched, unwatched } = self.next().await {
                return (watched, unwatched);
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) fn fault(call: &str, gpu: Option<usize>, code: u32) -> Fault {
    Fault { call: call.to_owned(), gpu, code: Some(code), ..Fault::default() }
}
