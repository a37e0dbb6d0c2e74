//! Trimmed segments, kept to be written again.
//!
//! Contract: a segment made anew costs blocks, metadata and fresh pages, and gives them back when
//! it is trimmed; one that is written over costs none of these. A trimmed segment gets the name
//! `.kept.<number>`, and is written to only once that name is durable: so what a crash leaves under
//! the name of a segment was never written over. A restart deletes what is kept.

use super::Lsn;
use crate::medium::{self, Dir, Extent, MediumFile};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PREFIX: &str = ".kept.";

/// Trimmed segments kept at most: what a core that writes 1 GiB/s fills between two trims.
pub(super) const KEPT_SEGMENTS_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Oldest first: their names become durable in this order.
    files: VecDeque<KeptFile>,
}

#[derive(Debug)]
struct KeptFile {
    number: u64,
    file: Arc<dyn MediumFile>,
    /// The journal's last entry when it got its name: a sync of a later one has synced the name.
    named_at: Lsn,
    is_durable: bool,
}

impl Kept {
    /// Is there room for one more?
    pub(super) fn has_room(&self) -> bool {
        self.files.len() < KEPT_SEGMENTS_MAX
    }

    /// How many are kept.
    pub(super) fn count(&self) -> usize {
        self.files.len()
    }

    /// Does a name wait for a sync of the directory?
    pub(super) fn has_new_name(&self) -> bool {
        self.files.iter().any(|kept| !kept.is_durable)
    }

    /// Keeps a trimmed segment.
    ///
    /// # Errors
    /// What the system says; it has its name still.
    pub(super) fn put(
        &mut self,
        dir: &Dir,
        (number, path): (u64, &Path),
        file: Arc<dyn MediumFile>,
        last_lsn: Lsn,
    ) -> io::Result<()> {
        dir.medium().rename(path, &name(dir, number))?;
        self.files.push_back(KeptFile { number, file, named_at: last_lsn, is_durable: false });
        Ok(())
    }

    /// Everything up to `lsn` was synced, and the directory with it if [`Kept::has_new_name`] said
    /// so then.
    pub(super) fn synced(&mut self, lsn: Lsn) {
        self.files.iter_mut().for_each(|kept| kept.is_durable |= kept.named_at < lsn);
    }

    /// Makes one the segment at `path`: `bytes` of space taken, `header` in front and old bytes
    /// behind it. `None` if there is none, or it cannot be used; it is then gone.
    pub(super) fn take(
        &mut self,
        dir: &Dir,
        path: &Path,
        bytes: u64,
        header: &[u8],
    ) -> Option<Arc<dyn MediumFile>> {
        // A sync under way, or a reader, may still count on the bytes of one.
        let is_free =
            |kept: &mut KeptFile| kept.is_durable && Arc::get_mut(&mut kept.file).is_some();
        let at = self.files.iter_mut().position(is_free)?;
        let KeptFile { number, file, .. } = self.files.remove(at)?;
        let kept = name(dir, number);
        let made = file
            .extent(Extent::Allocate, 0, bytes)
            .and_then(|_| medium::write_counted(&*file, 0, header).map_err(|(_, error)| error))
            .and_then(|()| dir.medium().rename(&kept, path));
        match made {
            Ok(()) => Some(file),
            Err(error) => {
                tracing::warn!(path = %kept.display(), %error, "a trimmed journal segment cannot be used again");
                remove(dir, &kept);
                None
            }
        }
    }

    /// Gives back the space of all.
    pub(super) fn clear(&mut self, dir: &Dir) {
        self.files.drain(..).for_each(|kept| remove(dir, &name(dir, kept.number)));
    }
}

fn name(dir: &Dir, number: u64) -> PathBuf {
    dir.join(&format!("{PREFIX}{number:020}"))
}

fn remove(dir: &Dir, path: &Path) {
    if let Err(error) = dir.medium().remove(path) {
        tracing::warn!(path = %path.display(), %error, "a trimmed journal segment was not removed");
    }
}

/// Deletes what an earlier process kept.
///
/// # Errors
/// What the system says.
pub(super) fn remove_all(dir: &Dir) -> io::Result<()> {
    for name in dir.medium().list(dir.path())? {
        let name = name?;
        if let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) {
            dir.medium().remove(&dir.join(name))?;
        }
    }
    Ok(())
}
