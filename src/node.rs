//! The plugin on its node: wires the parts, watches over them, and drains them.
//!
//! ```text
//!  start   sockets' directory ─▶ claims of the last run ─▶ DRA socket ─▶ their specs ─▶ registrar socket ─▶ HTTP
//!                                                           └▶ inventory, publisher, health, collector
//!  stop    SIGTERM ─▶ registrar goes ─▶ claims that wait are given up, calls at work end ─▶ DRA socket goes
//! ```
//!
//! Registration waits for the specs of the last run to be whole, which needs a moment of NVML if there are any. Otherwise it
//! waits for neither NVML nor the API server: the kubelet gives a plugin one second, and unprepare must work when both are
//! down. What is not there yet is named by `/readyz`, and in the log once per change.

mod damage;
mod driver;
mod gone_claims;
mod hook;
mod offer;
mod readiness;
mod telling;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::driver::NvmlLibrary;
use self::gone_claims::Collector;
use self::offer::Offer;
use self::readiness::Readiness;
use crate::args::{self, Args, Endpoint, MigCounting};
use crate::device::attribute::Form;
use crate::host::driver_root::DriverRoot;
use crate::host::{Roots, node};
use crate::inventory::{Inventory, MigModes, NameMap, Views};
use crate::kubelet::{self, DeviceHealth, HealthSnapshot, Verdict};
use crate::nvml::Session;
use crate::prepare::{self, Preparer};
use crate::slice::{self, Counting, Layout};
use crate::{cdi, cluster, http, metrics};

/// Threads of the async runtime. All it does is wait: for sockets, for the API server, and for work on other threads.
pub const WORKERS: usize = 2;

/// How long calls at work may take at the end. DaemonSets grant 30 s by default before they kill.
const GRACE: Duration = Duration::from_secs(20);

/// How long registration waits for a look at the GPUs, without which specs that were lost cannot be written again. It
/// takes milliseconds, unless NVML has to initialise GPUs that nobody uses, or hangs.
const LOOK_FIRST: Duration = Duration::from_secs(1);

/// How long it waits for those specs to be written.
const SPECS_FIRST: Duration = Duration::from_secs(10);

/// Runs the plugin until SIGTERM or SIGINT.
///
/// # Errors
/// What makes it impossible to begin: directories that cannot be written, a socket that another plugin serves, a
/// kubeconfig that cannot be read. Whatever can come right by itself is waited for instead. Later, that a part of it
/// has ended: a plugin that is deaf to the kubelet is worse than one that starts again.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let stop = stop_on_signal()?;
    let drivers = driver::candidates(&args);
    let host = driver::host_mount(&args);
    let Args {
        node_name,
        kubeconfig,
        driver_name,
        list_attributes,
        kubelet,
        cdi_root,
        driver_root: _,
        container_driver_root: _,
        nvml_library,
        mig,
        containers,
        sys_root,
        proc_root,
        dev_root,
        placeholder_devices,
        time_scale,
        http_endpoint,
        log_format: _,
        log_level: _,
    } = args;
    info!(version = env!("CARGO_PKG_VERSION"), driver = driver_name, node = node_name, "starting");

    let server = bind(http_endpoint).await?;
    let mut registry = metrics::registry(&driver_name);
    let kubelet = kubelet_settings(kubelet, &driver_name);
    let cluster = cluster::Cluster::connect(&cluster::Settings {
        kubeconfig,
        driver: driver_name.clone(),
        node: node_name.clone(),
        clock: cluster::Clock::scaled(time_scale),
    })
    .await?;
    // Before any file is touched: a second instance by mistake ends here.
    kubelet.move_in().await?;

    let library = NvmlLibrary::new(nvml_library, drivers.clone(), sys_root.clone());
    let other_devs = drivers.iter().filter_map(DriverRoot::dev).collect();
    let roots = Roots { sys: sys_root, proc: proc_root, dev: dev_root, other_devs, placeholders: placeholder_devices };
    let names = NameMap::load(&kubelet.plugin_dir)?;
    let session = Session::new(move || library.locate());
    let modes = MigModes::of(&kubelet.plugin_dir, boot_id(&roots.proc)?);
    let mut inventory = Inventory::new(session.clone(), roots.clone(), names);
    inventory.partitions(mig.dynamic_mig, modes.clone());
    inventory.register(&mut registry);
    let form = if list_attributes { Form::List } else { Form::Scalar };
    inventory.published_in(form);
    let views = inventory.views();

    let (pool, wanted) = watch::channel(None);
    let (publisher, acceptance) =
        cluster::Publisher::new(cluster.clone(), wanted, cluster::Metrics::register(&mut registry));

    let graphics = containers.graphics;
    let hooks = hook::Choice::new(containers, host).carry_out(&kubelet.plugin_dir)?;
    let sources = cdi::Sources { devices: roots.devices(), driver_roots: drivers, sys: roots.sys, hooks, graphics };
    let settings = prepare::Settings {
        claims_dir: kubelet.plugin_dir.join("claims"),
        cdi_dir: cdi_root,
        cdi_kind: cdi::Kind::claims_of(&driver_name)?,
        sources,
        pool: node_name.clone(),
        boot_id: boot_id(&roots.proc)?,
    };
    let gpus = prepare::Gpus { views: views.clone(), session, modes };
    let preparer = Preparer::open(settings, gpus, prepare::Metrics::register(&mut registry)).await?;
    // Before the first look gives names.
    inventory.remember(preparer.names());

    let kubelet_metrics = kubelet::Metrics::register(&mut registry);
    let (health, snapshots) = watch::channel(Arc::default());
    let (dra, claim_statuses) = dra_and_statuses(&cluster, &preparer);
    let dra = kubelet::serve_dra(&kubelet, dra, snapshots, &kubelet_metrics).await?;

    // Everything that runs until the end. Dropping it stops it, in whatever it is at: all of it may be killed too.
    let mut running = JoinSet::new();
    running.spawn(inventory.run());
    running.spawn(preparer.clone().keep_specs());
    let layout = Layout { form, counting: counting(mig.mig_counting) };
    running.spawn(Offer::new(layout, node_name.clone(), preparer.clone()).keep(views.clone(), pool));
    running.spawn(report_health(views.clone(), node_name, health));
    running.spawn(publisher.run());
    running.spawn(damage::report(preparer.clone(), &cluster, &mut registry));
    running.spawn(claim_statuses);
    running.spawn(Collector::new(cluster, preparer.clone(), dra.tasks(), &mut registry).run());

    until_specs_kept(&stop, &preparer, views.clone()).await;
    let registrar = kubelet::serve_registrar(&kubelet, &dra, &kubelet_metrics).await?;
    let containers = preparer.usable();
    let readiness = Readiness { views, containers, registration: registrar.status(), published: acceptance };
    running.spawn(readiness.clone().log());
    if let Some(server) = server {
        let conditions = Arc::new(move || readiness.conditions());
        running.spawn(server.serve(Arc::new(registry), conditions));
    }

    let outcome = until_stopped(&stop, &mut running, &dra, &registrar).await;
    info!("stopping");
    registrar.close().await;
    preparer.stop_waiting();
    drop(running);
    dra.close(GRACE).await;
    info!("stopped");
    outcome
}

/// The DRA service, and the task that writes to the status of claims what it has done.
fn dra_and_statuses(
    cluster: &cluster::Cluster,
    preparer: &Preparer,
) -> (kubelet::Dra, impl Future<Output = ()> + Send + use<>) {
    let records = preparer.clone();
    let (statuses, task) = cluster::ClaimStatuses::new(cluster.clone(), move |uid| records.claims().contains(uid));
    (kubelet::Dra::new(cluster.clone(), preparer.clone(), statuses), task)
}

/// Waits until the specs of all prepared claims are what containers can start from, but not for what may never come.
async fn until_specs_kept(stop: &CancellationToken, preparer: &Preparer, mut views: Views) {
    let looked = async {
        tokio::select! {
            // Without claims, that takes no look.
            () = preparer.specs_kept() => true,
            found = views.current.wait_for(Option::is_some) => found.is_ok(),
            _ = views.failure.wait_for(Option::is_some) => false,
            () = stop.cancelled() => false,
        }
    };
    let kept =
        timeout(LOOK_FIRST, looked).await.unwrap_or(false) && timeout(SPECS_FIRST, preparer.specs_kept()).await.is_ok();
    if !kept {
        warn!("registering though specs of prepared claims could not be checked yet: their containers may not start");
    }
}

/// Waits for the signal. An error says which part has ended without one.
async fn until_stopped(
    stop: &CancellationToken,
    running: &mut JoinSet<()>,
    dra: &kubelet::DraServer,
    registrar: &kubelet::Registrar,
) -> anyhow::Result<()> {
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = running.join_next() => Err(match ended {
            Some(Err(error)) => anyhow::Error::from(error).context("a part of the plugin ended by itself"),
            Some(Ok(())) | None => anyhow::anyhow!("a part of the plugin ended by itself"),
        }),
        () = dra.ended() => Err(anyhow::anyhow!("the DRA server ended by itself")),
        () = registrar.ended() => Err(anyhow::anyhow!("the registrar ended by itself")),
    }
}

fn kubelet_settings(args: args::Kubelet, driver: &str) -> kubelet::Settings {
    let args::Kubelet { kubelet_root, kubelet_registrar_directory_path, kubelet_plugins_directory_path, pod_uid } =
        args;
    kubelet::Settings {
        registry_dir: kubelet_registrar_directory_path.unwrap_or_else(|| kubelet_root.join("plugins_registry")),
        plugin_dir: kubelet_plugins_directory_path.unwrap_or_else(|| kubelet_root.join("plugins")).join(driver),
        driver: driver.to_owned(),
        pod_uid,
    }
}

fn counting(counting: MigCounting) -> Counting {
    match counting {
        MigCounting::Exact => Counting::Exact,
        MigCounting::Light => Counting::Light,
    }
}

/// Takes the address of /metrics and /readyz at once, so that a wrong one is known at start.
async fn bind(endpoint: Endpoint) -> anyhow::Result<Option<http::Server>> {
    let Endpoint::At(address) = endpoint else { return Ok(None) };
    let server = http::Server::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} for /metrics and /readyz; see --http-endpoint"))?;
    let address = server.address().context("cannot tell where /metrics and /readyz are")?;
    info!(%address, "serving /metrics, /healthz and /readyz");
    Ok(Some(server))
}

fn boot_id(proc: &Path) -> anyhow::Result<String> {
    let context = || format!("cannot read the id of this boot below {}: check --proc-root", proc.display());
    node::boot_id(proc).with_context(context)
}

/// Tells the kubelet of every look at the machine which devices it found. A look that fails tells nothing, so that what
/// cannot be checked becomes unknown.
async fn report_health(mut views: Views, pool: String, health: watch::Sender<Arc<HealthSnapshot>>) {
    let mut healthy = Vec::new();
    while views.looked.changed().await.is_ok() {
        let Some(updated) = *views.looked.borrow_and_update() else { continue };
        if views.current.has_changed().unwrap_or(false) {
            let node = views.current.borrow_and_update().clone();
            let slices = node.map(|node| slice::pool(&pool, &node).slices).unwrap_or_default();
            healthy =
                slices.into_iter().flat_map(|slice| slice.devices).map(|device| device.name.to_string()).collect();
        }
        let devices = healthy.iter().map(|device| DeviceHealth {
            pool: pool.clone(),
            device: device.clone(),
            verdict: Verdict::Healthy,
            message: String::new(),
            updated,
        });
        health.send_replace(Arc::new(HealthSnapshot { devices: devices.collect() }));
    }
}

/// A token that SIGTERM and SIGINT cancel.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let handler = |kind| signal(kind).context("cannot handle signals");
    let (mut terminate, mut interrupt) = (handler(SignalKind::terminate())?, handler(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        token.cancel();
    });
    Ok(stop)
}
