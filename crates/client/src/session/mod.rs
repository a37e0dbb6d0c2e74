//! One client's session with a cluster: the map, calls to the monitor and to the metadata service.
//!
//! Contract: a [`Client`] is cheap to clone and may be used from any thread. Its futures may be awaited anywhere.

use crate::config::ClientConfig;
use crate::error::ClientError;
use crate::objecter::{FileRef, LocalIo};
use cluster::ClusterMap;
use protocol::SessionId;
use protocol::monitor::{MonitorReply, MonitorRequest};
use protocol::namespace::{Caller, NamespaceOp, Recall, Reply};
use std::sync::Arc;

/// What the layer above must know at once. Delivered on a worker; handlers must not block.
#[derive(Clone, Debug)]
pub enum ClientEvent {
    /// The metadata service wants a lease back: answer with `NamespaceOp::ReturnLease`.
    Recall(Recall),
    /// The connection to the metadata service was made anew, or the service restarted: answer with
    /// `NamespaceOp::Reclaim` of everything held; other calls of the layer may go on meanwhile.
    MdsRestarted,
    /// The session was declared dead: all leases are gone, all caches void. Every call fails with
    /// [`ClientError::Fenced`] until the layer has dropped what it holds and calls [`Client::reopen`].
    Fenced(SessionId),
}

/// A session with a cluster. See the module.
#[derive(Clone)]
pub struct Client {
    config: Arc<ClientConfig>,
}

impl Client {
    /// Opens a session: blocks until the map is there, at most `config.timeout` (30 s if that is zero).
    ///
    /// # Errors
    /// [`ClientError::Config`], [`ClientError::Connect`], [`ClientError::Refused`].
    pub fn connect(config: ClientConfig) -> Result<Client, ClientError> {
        Ok(Client { config: Arc::new(config.checked()?) })
    }

    /// The settings.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// The session's id; another one after [`Client::reopen`].
    pub fn session_id(&self) -> SessionId {
        SessionId::default()
    }

    /// The newest map.
    pub fn map(&self) -> Result<Arc<ClusterMap>, ClientError> {
        Err(ClientError::Closed)
    }

    /// The worker whose [`LocalIo`] reaches this place of the file without a hop to another worker.
    pub fn worker_of(&self, _file: FileRef, _offset: u64) -> usize {
        0
    }

    /// This worker's data I/O. Call it on a worker (inside a task started with `handle().spawn_on`).
    ///
    /// # Errors
    /// [`ClientError::Closed`] after [`Client::close`], and on any other thread.
    pub fn local(&self) -> Result<LocalIo, ClientError> {
        Err(ClientError::Closed)
    }

    /// Says what to do on events; the last handler set counts. Events before the first handler are kept for it.
    pub fn on_event(&self, _handler: impl Fn(ClientEvent) + Send + Sync + 'static) {}

    /// A call to the monitor.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`] and others; `Refused` and `Fenced` answers are errors.
    pub async fn call_monitor(&self, _request: MonitorRequest) -> Result<MonitorReply, ClientError> {
        Err(ClientError::Closed)
    }

    /// A call to the metadata service, carried out exactly once: it is sent again under the same number after a lost
    /// connection, a restart of the service, or `TryAgain`.
    ///
    /// # Errors
    /// [`ClientError::Posix`] for the service's errnos, [`ClientError::Fenced`], [`ClientError::TimedOut`].
    pub async fn namespace(&self, _op: NamespaceOp, _caller: Caller) -> Result<Reply, ClientError> {
        Err(ClientError::Closed)
    }

    /// Opens a new session after [`ClientEvent::Fenced`]. The caller has dropped all leases and caches.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn reopen(&self) -> Result<SessionId, ClientError> {
        Err(ClientError::Closed)
    }

    /// Makes everything written stable, closes the session and stops the workers. Blocks; not on a worker.
    ///
    /// # Errors
    /// What could not be made stable in `config.timeout`; the client is closed all the same.
    pub fn close(&self) -> Result<(), ClientError> {
        Err(ClientError::Closed)
    }
}
