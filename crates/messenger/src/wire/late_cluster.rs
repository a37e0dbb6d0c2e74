//! The cluster that a side belongs to, which it may learn only while it runs.
//!
//! Contract: once known, it does not change: a peer of another cluster is refused from then on, and
//! one that names a cluster before this side knows its own is told to come again.

use crate::wire::handshake::Refusal;
use protocol::ClusterId;
use std::sync::{Arc, OnceLock};

/// See the module. Clones share what one of them learns.
#[derive(Clone, Debug, Default)]
pub struct LateCluster(Arc<OnceLock<ClusterId>>);

/// Known from the start; the zero cluster takes peers of any.
impl From<ClusterId> for LateCluster {
    fn from(cluster: ClusterId) -> LateCluster {
        LateCluster(Arc::new(OnceLock::from(cluster)))
    }
}

impl LateCluster {
    /// What is named to a peer: zero if it is not known.
    pub fn get(&self) -> ClusterId {
        self.0.get().copied().unwrap_or_default()
    }

    /// Is it known?
    pub fn is_known(&self) -> bool {
        self.0.get().is_some()
    }

    /// Takes it over, if it is not known yet. False if it is another one.
    pub fn learn(&self, cluster: ClusterId) -> bool {
        *self.0.get_or_init(|| cluster) == cluster
    }

    /// May a peer that names this cluster come in?
    ///
    /// # Errors
    /// [`Refusal::Cluster`], and [`Refusal::Busy`] while it is not known.
    pub fn check(&self, theirs: ClusterId) -> Result<(), Refusal> {
        let zero = ClusterId::default();
        match self.0.get() {
            _ if theirs == zero => Ok(()),
            None => Err(Refusal::Busy),
            Some(&ours) if ours == zero || ours == theirs => Ok(()),
            Some(&ours) => Err(Refusal::Cluster { theirs, ours }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ClusterId = ClusterId::new(1);
    const TWO: ClusterId = ClusterId::new(2);

    #[test]
    fn what_is_learned_stays_and_is_shared() {
        let late = LateCluster::default();
        let other = late.clone();
        assert_eq!((late.get(), late.is_known()), (ClusterId::default(), false));
        assert_eq!(late.check(ONE), Err(Refusal::Busy));
        assert!(late.learn(ONE) && other.learn(ONE) && !other.learn(TWO));
        assert_eq!((other.get(), other.check(ONE)), (ONE, Ok(())));
        assert_eq!(other.check(TWO), Err(Refusal::Cluster { theirs: TWO, ours: ONE }));
    }

    #[test]
    fn who_names_none_comes_in_and_zero_takes_any() {
        assert_eq!(LateCluster::default().check(ClusterId::default()), Ok(()));
        assert_eq!(LateCluster::from(ONE).check(ClusterId::default()), Ok(()));
        assert_eq!(LateCluster::from(ClusterId::default()).check(TWO), Ok(()));
    }
}
