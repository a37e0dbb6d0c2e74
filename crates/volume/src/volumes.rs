//! The volumes of a cluster: made, found, opened, resized, removed.
//!
//! Contract: for ordinary threads; every function blocks. A volume appears under its name when it
//! is whole: it is made as a file without a name, which goes with the session that makes it, and
//! gets its name last. Names are one set in all pools.

use crate::volume::{Access, Volume, caller, file_system, lock_for, run};
use crate::{Limits, SECTOR_BYTES, VolumeError, VolumeName};
use client::fs::{FileSystem, LocalFs, Permissions};
use client::{Client, ClientConfig, ClientError, FileRef};
use protocol::lock::LockOwner;
use protocol::monitor::{MonitorReply, MonitorRequest};
use protocol::namespace::{Attr, DirEntry, NamespaceOp, Reply, SetAttr, VOLUMES};
use protocol::{Gfid, PoolId, SessionId};
use std::fmt;
use std::time::{Duration, Instant};

/// How the name of a session begins that opens volumes. Only such a one is taken a volume away.
pub const SESSION_PREFIX: &str = "volume ";
/// Largest volume, in bytes: 2^60, far below what file offsets and NBD have.
pub const SIZE_BYTES_MAX: u64 = 1 << 60;
/// Where its limits are stored with a volume.
const LIMITS_XATTR: &[u8] = b"trusted.trefoil.volume";
/// How long it may take until the last writes of a session that was declared dead are decided.
const STEAL_WAIT: Duration = Duration::from_secs(60);
/// How often a lock that is about to be free is asked for.
const STEAL_PAUSE: Duration = Duration::from_millis(100);
/// Entries of the directory asked for at once.
const LIST_PAGE: u32 = 1024;
const EAGAIN: i32 = 11;
const EEXIST: i32 = 17;
const ENODATA: i32 = 61;

/// Who has a volume open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The session.
    pub session: SessionId,
    /// What it calls itself; empty if it is gone or being ended.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => write!(f, "session {}, which is ending", self.session.get()),
            name => write!(f, "session {} ({name})", self.session.get()),
        }
    }
}

/// What is known of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeInfo {
    /// Its name.
    pub name: VolumeName,
    /// Its size in bytes.
    pub size: u64,
    /// The pool that holds its data.
    pub pool: String,
    /// Bytes that its data takes on disk, without parity.
    pub used: u64,
    /// Its limits.
    pub limits: Limits,
    /// Who has it open, or one of those.
    pub holder: Option<Holder>,
}

/// A session with a cluster, for its volumes. See the module.
pub struct Volumes {
    fs: FileSystem,
}

impl Volumes {
    /// Opens a session; `config.name` is put behind [`SESSION_PREFIX`].
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect(config: ClientConfig) -> Result<Volumes, VolumeError> {
        let name = format!("{SESSION_PREFIX}{}", config.name);
        let client = Client::connect(ClientConfig { name, ..config })?;
        Ok(Volumes { fs: file_system(client)? })
    }

    /// Ends the session. Volumes that are still open are not any more.
    ///
    /// # Errors
    /// What could not be made safe.
    pub fn close(self) -> Result<(), VolumeError> {
        let safe = self.fs.sync_everything();
        Ok(safe.and(self.fs.client().close())?)
    }

    // ---- making and removing

    /// Makes a volume that reads as zeros.
    ///
    /// # Errors
    /// [`VolumeError::Exists`], [`VolumeError::Invalid`] for the size, [`VolumeError::NoPool`].
    pub fn create(
        &self,
        name: &VolumeName,
        size: u64,
        pool: Option<&str>,
    ) -> Result<(), VolumeError> {
        let size = checked_size(size)?;
        let volume = self.begin(name, size, pool)?;
        self.publish(volume, size)
    }

    /// A volume without a name yet. It is gone with the session, unless [`Volumes::publish`] is
    /// called.
    pub(crate) fn begin(
        &self,
        name: &VolumeName,
        size: u64,
        pool: Option<&str>,
    ) -> Result<Volume, VolumeError> {
        let pool = self.pool(pool)?;
        if self.find(name).is_ok() {
            return Err(VolumeError::Exists(name.to_string()));
        }
        let dir = self.directory()?;
        let session = self.fs.client().live_session()?;
        let attr = run(&self.fs, dir, move |fs| async move {
            let permissions = Permissions { mode: 0o600, umask: 0 };
            let (attr, _) = fs.create_unnamed_in(pool, dir, permissions, true, caller()).await?;
            set_size(&fs, attr.gfid, size).await
        })?;
        let file = FileRef { gfid: attr.gfid, pool: attr.pool };
        Ok(Volume::of(self.fs.clone(), name.clone(), (file, size), Access::Write, (session, None)))
    }

    /// Gives a volume its size and its name, durably.
    pub(crate) fn publish(&self, volume: Volume, size: u64) -> Result<(), VolumeError> {
        let (dir, gfid, name) = (self.directory()?, volume.file().gfid, volume.name().clone());
        let stored = name.stored();
        let sized = run(&self.fs, gfid, move |fs| async move { set_size(&fs, gfid, size).await });
        // Its data before its name.
        sized.map_err(VolumeError::Client).and_then(|_| volume.call(crate::Request::Flush))?;
        let linked = run(&self.fs, gfid, move |fs| async move {
            fs.link(gfid, dir, stored, caller()).await?;
            fs.sync_names(dir, Default::default(), caller()).await
        });
        match linked {
            Err(ClientError::Posix(EEXIST)) => return Err(VolumeError::Exists(name.to_string())),
            other => other?,
        }
        volume.close()
    }

    /// Removes a volume that nobody has open. Its space comes back in the background.
    ///
    /// # Errors
    /// [`VolumeError::NoVolume`], [`VolumeError::InUse`].
    pub fn remove(&self, name: &VolumeName) -> Result<(), VolumeError> {
        let attr = self.find(name)?;
        let owner = self.lock(name, attr.gfid, Access::Write, false)?;
        let (dir, gfid, stored) = (self.directory()?, attr.gfid, name.stored());
        let removed = run(&self.fs, dir, move |fs| async move {
            fs.unlink(dir, stored, caller()).await?;
            fs.sync_names(dir, Default::default(), caller()).await
        });
        self.unlock(gfid, owner);
        Ok(removed?)
    }

    /// Gives a volume that nobody has open another size. What a smaller one cuts off is lost.
    ///
    /// # Errors
    /// [`VolumeError::NoVolume`], [`VolumeError::InUse`], [`VolumeError::Invalid`] for the size.
    pub fn resize(&self, name: &VolumeName, size: u64) -> Result<(), VolumeError> {
        let size = checked_size(size)?;
        let attr = self.find(name)?;
        let gfid = attr.gfid;
        let owner = self.lock(name, gfid, Access::Write, false)?;
        let resized = run(&self.fs, gfid, move |fs| async move {
            fs.open(gfid, true, caller()).await?;
            let sized = match set_size(&fs, gfid, size).await {
                Ok(_) => fs.fsync(gfid, Default::default(), false, caller()).await,
                Err(error) => Err(error),
            };
            sized.and(fs.release(gfid).await)
        });
        self.unlock(gfid, owner);
        Ok(resized?)
    }

    // ---- finding

    /// Names and sizes, in the order of the names.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn list(&self) -> Result<Vec<(VolumeName, u64)>, VolumeError> {
        let (gfid, mut found, mut after) = (self.directory()?, Vec::new(), Vec::new());
        loop {
            let (entries, end) = self.entries(gfid, after, LIST_PAGE)?;
            let Some(last) = entries.last() else { return Ok(found) };
            after = last.name.clone();
            let named = |name: &[u8]| std::str::from_utf8(name).ok()?.parse::<VolumeName>().ok();
            found.extend(
                entries.iter().filter_map(|entry| Some((named(&entry.name)?, entry.attr.size))),
            );
            if end {
                return Ok(found);
            }
        }
    }

    /// What is known of a volume.
    ///
    /// # Errors
    /// [`VolumeError::NoVolume`]; those of the cluster.
    pub fn info(&self, name: &VolumeName) -> Result<VolumeInfo, VolumeError> {
        let attr = self.find(name)?;
        let client = self.fs.client();
        let file = FileRef { gfid: attr.gfid, pool: attr.pool };
        let used = move |io: client::LocalIo| async move { io.allocated(file, attr.size).await };
        let used = client.block_on(client.run_on(client.worker_of(file, 0), used))?;
        let pool = client
            .map()?
            .pools
            .get(&attr.pool)
            .map_or_else(|| attr.pool.to_string(), |pool| pool.name.clone());
        let limits = self.limits_of(attr.gfid)?;
        let holder = self.holder(attr.gfid, Access::Write)?;
        Ok(VolumeInfo { name: name.clone(), size: attr.size, pool, used, limits, holder })
    }

    /// By the directory's listing, for which nobody has to be asked: a lookup would recall the
    /// lease of whoever writes the volume, and wait for one who does not answer.
    fn find(&self, name: &VolumeName) -> Result<Attr, VolumeError> {
        let (entries, _) = self.entries(self.directory()?, before(name.as_str()), 1)?;
        let found = entries.into_iter().find(|entry| entry.name == name.as_str().as_bytes());
        found.map(|entry| entry.attr).ok_or_else(|| VolumeError::NoVolume(name.to_string()))
    }

    /// Entries of the directory, and whether it ends with them.
    fn entries(
        &self,
        gfid: Gfid,
        after: Vec<u8>,
        limit: u32,
    ) -> Result<(Vec<DirEntry>, bool), VolumeError> {
        let client = self.fs.client();
        match client
            .block_on(client.namespace(NamespaceOp::ReadDir { gfid, after, limit }, caller()))?
        {
            Reply::Entries { entries, end } => Ok((entries, end)),
            other => Err(ClientError::Protocol(format!("{other:?} to a listing")).into()),
        }
    }

    /// The directory of volumes, which no mount shows.
    fn directory(&self) -> Result<Gfid, VolumeError> {
        let client = self.fs.client();
        match client
            .block_on(client.namespace(NamespaceOp::BlobRoot { pool: VOLUMES }, caller()))?
        {
            Reply::Attr(attr) => Ok(attr.gfid),
            other => {
                Err(ClientError::Protocol(format!("{other:?} to a question for the volumes"))
                    .into())
            }
        }
    }

    fn pool(&self, name: Option<&str>) -> Result<PoolId, VolumeError> {
        let map = self.fs.client().map()?;
        match name {
            None => map
                .pools
                .keys()
                .next()
                .copied()
                .ok_or(ClientError::NoPool(PoolId::default()).into()),
            Some(name) => {
                map.pool_named(name).map(|(id, _)| id).ok_or_else(|| VolumeError::NoPool {
                    name: name.to_owned(),
                    known: map
                        .pools
                        .values()
                        .map(|pool| pool.name.as_str())
                        .collect::<Vec<_>>()
                        .join(", "),
                })
            }
        }
    }

    // ---- limits

    /// The limits of a volume.
    ///
    /// # Errors
    /// [`VolumeError::NoVolume`]; [`VolumeError::Invalid`] if another version has set some.
    pub fn limits(&self, name: &VolumeName) -> Result<Limits, VolumeError> {
        self.limits_of(self.find(name)?.gfid)
    }

    /// Sets the limits of a volume, also of one that is open: its server learns of them within
    /// seconds.
    ///
    /// # Errors
    /// [`VolumeError::NoVolume`]; those of the cluster.
    pub fn set_limits(&self, name: &VolumeName, limits: Limits) -> Result<(), VolumeError> {
        let gfid = self.find(name)?.gfid;
        let text = limits.to_text().into_bytes();
        Ok(run(&self.fs, gfid, move |fs| async move {
            fs.setxattr(gfid, LIMITS_XATTR.to_vec(), text, None, false, caller()).await?;
            fs.sync_names(gfid, Default::default(), caller()).await
        })?)
    }

    /// The limits of a volume that is open here, as they are stored now.
    ///
    /// # Errors
    /// As [`Volumes::limits`].
    pub fn limits_of_open(volume: &Volume) -> Result<Limits, VolumeError> {
        limits_of(volume.file_system(), volume.file().gfid)
    }

    fn limits_of(&self, gfid: Gfid) -> Result<Limits, VolumeError> {
        limits_of(&self.fs, gfid)
    }

    // ---- opening

    /// Opens a volume. With `steal`, sessions that have it open are declared dead, and this waits
    /// until their last writes are decided, at most [`STEAL_WAIT`].
    ///
    /// # Errors
    /// [`VolumeError::NoVolume`]; [`VolumeError::InUse`] with the holder's name;
    /// [`VolumeError::Foreign`] for a lock that no opener of volumes holds.
    pub fn open(
        &self,
        name: &VolumeName,
        access: Access,
        steal: bool,
    ) -> Result<Volume, VolumeError> {
        let gfid = self.find(name)?.gfid;
        let session = self.fs.client().live_session()?;
        let owner = self.lock(name, gfid, access, steal)?;
        let opened = run(&self.fs, gfid, move |fs| async move {
            fs.open(gfid, access == Access::Write, caller()).await?;
            fs.getattr(gfid, caller()).await
        });
        match opened {
            Ok(attr) => {
                let file = FileRef { gfid, pool: attr.pool };
                Ok(Volume::of(
                    self.fs.clone(),
                    name.clone(),
                    (file, attr.size),
                    access,
                    (session, Some(owner)),
                ))
            }
            Err(error) => {
                self.unlock(gfid, owner);
                Err(error.into())
            }
        }
    }

    fn lock(
        &self,
        name: &VolumeName,
        gfid: Gfid,
        access: Access,
        steal: bool,
    ) -> Result<LockOwner, VolumeError> {
        let (owner, lock) = (LockOwner(fastrand::u64(..)), lock_for(access));
        let begin = Instant::now();
        loop {
            let locked = run(&self.fs, gfid, move |fs| async move {
                fs.set_lock(gfid, owner, lock, caller()).await
            });
            match locked {
                Ok(()) => return Ok(owner),
                Err(ClientError::Posix(EAGAIN)) => {}
                Err(error) => return Err(error.into()),
            }
            let holder = self.holder(gfid, access)?;
            if let Some(holder) = &holder {
                if !steal || begin.elapsed() > STEAL_WAIT {
                    return Err(VolumeError::InUse {
                        name: name.to_string(),
                        holder: holder.to_string(),
                    });
                }
                self.evict(name, holder)?;
            }
            std::thread::sleep(STEAL_PAUSE);
        }
    }

    fn unlock(&self, gfid: Gfid, owner: LockOwner) {
        let unlocked =
            run(&self.fs, gfid, move |fs| async move { fs.close_locks(gfid, owner).await });
        if let Err(error) = unlocked {
            tracing::warn!(%error, "a lock goes with the session only");
        }
    }

    /// Who holds a lock that is in the way of this access.
    fn holder(&self, gfid: Gfid, access: Access) -> Result<Option<Holder>, VolumeError> {
        let (owner, lock) = (LockOwner(fastrand::u64(..)), lock_for(access));
        let found = run(&self.fs, gfid, move |fs| async move {
            fs.lock_holder(gfid, owner, lock, caller()).await
        })?;
        let Some(session) = found else { return Ok(None) };
        let client = self.fs.client();
        let status = match client.block_on(client.call_monitor(MonitorRequest::Status))? {
            MonitorReply::Status(status) => status,
            other => {
                return Err(ClientError::Protocol(format!(
                    "{other:?} to a question for the status"
                ))
                .into());
            }
        };
        let name = status.clients.into_iter().find(|(id, _)| *id == session).map(|(_, name)| name);
        Ok(Some(Holder { session, name: name.unwrap_or_default() }))
    }

    /// Declares a holder dead, if it is one that opens volumes, and not dead already.
    fn evict(&self, name: &VolumeName, holder: &Holder) -> Result<(), VolumeError> {
        if holder.name.is_empty() {
            return Ok(());
        }
        if !holder.name.starts_with(SESSION_PREFIX) {
            return Err(VolumeError::Foreign {
                name: name.to_string(),
                holder: holder.to_string(),
            });
        }
        tracing::warn!(volume = %name, %holder, "is taken away from its holder");
        let client = self.fs.client();
        client.block_on(
            client.call_monitor(MonitorRequest::EvictSession { session: holder.session }),
        )?;
        Ok(())
    }
}

fn limits_of(fs: &FileSystem, gfid: Gfid) -> Result<Limits, VolumeError> {
    let read =
        run(
            fs,
            gfid,
            move |fs| async move { fs.getxattr(gfid, LIMITS_XATTR.to_vec(), caller()).await },
        );
    match read {
        Ok(text) => Limits::parse(&text),
        Err(ClientError::Posix(ENODATA)) => Ok(Limits::default()),
        Err(error) => Err(error.into()),
    }
}

async fn set_size(fs: &LocalFs, gfid: Gfid, size: u64) -> Result<Attr, ClientError> {
    fs.setattr(gfid, SetAttr { size: Some(size), ..SetAttr::default() }, caller()).await
}

/// What comes before this name, and after every other name before it: no name has a byte 0xff.
fn before(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    if let Some(last) = bytes.last_mut() {
        *last -= 1;
    }
    bytes.push(0xff);
    bytes
}

/// A size that a volume can have.
fn checked_size(size: u64) -> Result<u64, VolumeError> {
    let complaint = match size {
        0 => "0 bytes are no volume",
        _ if size > SIZE_BYTES_MAX => "a volume has at most 1 EiB",
        _ if !size.is_multiple_of(SECTOR_BYTES) => {
            "the size of a volume is a multiple of 512 bytes"
        }
        _ => return Ok(size),
    };
    Err(VolumeError::Invalid(complaint.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lies_between_a_name_and_what_comes_before_it() {
        let mut names =
            ["a", "a ", "a~", "aa", "ab", "b", "b0", "Ü", "Üa", "Ý", "z\u{10ffff}", "z\u{10ffff}z"];
        names.sort_unstable();
        for (at, name) in names.iter().enumerate() {
            assert!(before(name) < name.as_bytes().to_vec());
            assert!(names[..at].iter().all(|other| other.as_bytes() < &before(name)[..]), "{name}");
        }
    }

    #[test]
    fn sizes_are_whole_sectors() {
        for size in [512, 10 << 30, SIZE_BYTES_MAX] {
            assert_eq!(checked_size(size).expect("fits"), size);
        }
        for size in [0, 1, 513, SIZE_BYTES_MAX + 512, u64::MAX] {
            assert!(checked_size(size).is_err());
        }
    }
}
