//! What stands between the plugin and the API server in many clusters: it cuts watches, or loses them without a word.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::node::within;
use crate::scene::Scene;

/// How a request for a watch is told from others.
const WATCH: &[u8] = b"watch=true";

/// What to do with connections that carry a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Pass,
    Cut,
    Freeze,
}

/// A proxy for connections. It ends when this is dropped.
pub(crate) struct Proxy {
    orders: watch::Sender<Order>,
    /// How many watches were answered.
    answered: watch::Sender<usize>,
    task: JoinHandle<()>,
}

// === impl Proxy ===

impl Proxy {
    /// Places one before the API server of a node whose plugin is not started yet.
    pub(crate) async fn before(scene: &Scene) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut kubeconfig: Value = serde_json::from_str(&scene.api().kubeconfig()).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        kubeconfig["clusters"][0]["cluster"]["server"] = url.into();
        fs::write(scene.node.kubeconfig(), kubeconfig.to_string()).unwrap();
        let (orders, receiver) = watch::channel(Order::Pass);
        let answered = watch::Sender::new(0);
        let server = scene.api().address();
        let count = answered.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server, receiver.clone(), count.clone()));
            }
        });
        Self { orders, answered, task }
    }

    /// Waits until so many watches in all were answered. One that is cut before that has failed, not ended.
    pub(crate) async fn until_answered(&self, watches: usize) {
        let mut answered = self.answered.subscribe();
        within("another watch", answered.wait_for(|answered| *answered >= watches)).await.unwrap();
    }

    pub(crate) fn answered(&self) -> usize {
        *self.answered.borrow()
    }

    /// Closes the connections of running watches.
    pub(crate) fn cut_watches(&self) {
        self.orders.send_replace(Order::Cut);
    }

    /// Keeps from the plugin what running watches say from now on, and their end.
    pub(crate) fn freeze_watches(&self) {
        self.orders.send_replace(Order::Freeze);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Passes bytes both ways until one side has closed, or an order about watches says otherwise. An order is for the watches
/// that run then.
async fn pass(
    mut client: TcpStream,
    server: SocketAddr,
    mut orders: watch::Receiver<Order>,
    answered_watches: watch::Sender<usize>,
) {
    orders.mark_unchanged();
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let (mut asked, mut answered) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let (mut is_watch, mut is_answered, mut is_frozen) = (false, false, false);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(read @ 1..) = read else { return };
                is_watch = asked[..read].windows(WATCH.len()).any(|window| window == WATCH);
                is_answered = false;
                if server.write_all(&asked[..read]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered), if !is_frozen => {
                let Ok(read @ 1..) = read else { return };
                if client.write_all(&answered[..read]).await.is_err() {
                    return;
                }
                if is_watch && !std::mem::replace(&mut is_answered, true) {
                    answered_watches.send_modify(|count| *count += 1);
                }
            }
            order = orders.changed() => match *orders.borrow_and_update() {
                _ if order.is_err() => return,
                Order::Cut if is_watch => return,
                Order::Freeze if is_watch => is_frozen = true,
                _ => {}
            },
        }
    }
}
