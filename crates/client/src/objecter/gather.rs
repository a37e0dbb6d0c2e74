//! Writes whose data is gathered while they wait to be sent.
//!
//! Contract: what is gathered has room with all shards before the first of it is answered, as any
//! write has before it is numbered.

use super::delay::DELAY_MAX;
use super::local::Local;
use super::pg::PgIo;
use super::write::{admit, write_admitted};
use super::{Behind, Ending, WriterHint};
use crate::error::ClientError;
use bytes::Bytes;
use protocol::ObjectId;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What is gathered. Its calls come in this order, once each but for `poll_ends`; it is dropped at
/// the end, or where that fails.
pub trait Gathered: Send + Sync {
    /// There is room for all that it may become. False if it is not wanted any more.
    fn begins(&self) -> bool;
    /// Ready once somebody waits for it; else the task is woken then.
    fn poll_ends(&self, cx: &Context<'_>) -> Poll<()>;
    /// Nothing is added any more. What it is, if anything, and what the writer knows of the file
    /// now.
    fn take(&self) -> Option<(Bytes, WriterHint)>;
    /// What was taken is numbered and sent: whatever comes later in the session finds it.
    fn sent(&self);
}

/// Gathers a write of at most this range of an object, which begins at `base` in its file, and
/// sends it.
pub(super) async fn write_gathered(
    local: &Rc<Local>,
    pg: &Rc<PgIo>,
    object: ObjectId,
    (range, base): (Range<u64>, u64),
    gathered: Arc<dyn Gathered>,
    behind: Arc<dyn Behind>,
) -> Result<(), ClientError> {
    let fragment = pg.layout.fragment_cover(&range);
    let fragment_bytes = fragment.end - fragment.start;
    let touch = pg.all_shards();
    local.session_usable(pg).await?;
    local.room_to_keep(fragment_bytes as usize * touch.len() as usize).await;
    let on_the_way = admit(local, pg, object, touch, &fragment).await?;
    if !gathered.begins() {
        return Ok(());
    }
    let _ = local.worker.timeout(DELAY_MAX, poll_fn(|cx| gathered.poll_ends(cx))).await;
    let Some((data, hint)) = gathered.take() else { return Ok(()) };
    let hint = hint.of_object(base, pg.layout.profile().object_bytes());
    let ending = Ending { behind: Some(behind), ..Ending::default() };
    write_admitted(local, pg, object, (range.start, data), hint, ending, on_the_way).await?;
    gathered.sent();
    local.send_delayed();
    Ok(())
}
