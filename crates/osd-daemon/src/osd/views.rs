//! The cluster map as the cores of one OSD need it.
//!
//! Contract: pure.

use cluster::{ClusterMap, SessionState};
use ec_store::pg::{PgView, SessionTable, ShardView};
use protocol::OsdId;
use std::sync::Arc;

/// The PGs that `osd` holds a shard of, by the core that owns them.
pub(super) fn shard_views(map: &ClusterMap, osd: OsdId, cores: u16) -> Vec<Vec<ShardView>> {
    let sessions = Arc::new(session_table(map));
    let mut by_core = vec![Vec::new(); usize::from(cores)];
    for (&pg, info) in &map.pgs {
        let (Some(me), Some(pool)) = (map.shard_of(pg, osd), map.pools.get(&pg.pool)) else {
            continue;
        };
        let view = PgView {
            pg,
            epoch: info.epoch,
            profile: pool.profile,
            in_sync: info.in_sync,
            joining: info.joining,
            active: info.active,
        };
        let core = usize::from(pg.core(cores).get());
        by_core[core].push(ShardView { pg: view, me, sessions: Arc::clone(&sessions) });
    }
    by_core
}

fn session_table(map: &ClusterMap) -> SessionTable {
    let of = |wanted: SessionState| {
        map.sessions
            .iter()
            .filter(move |(_, state)| **state == wanted)
            .map(|(session, _)| *session)
            .collect()
    };
    SessionTable {
        live: of(SessionState::Live),
        dead: of(SessionState::Dead),
        last: map.last_session,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{ExpectedOsd, PoolSpec, create_cluster};
    use protocol::{ClusterId, PgId, SessionId};

    #[test]
    fn every_shard_of_the_osd_goes_to_the_core_that_clients_ask() {
        let pool = PoolSpec::new("data", 2, 1, 512, 16).expect("a profile");
        let mut map = create_cluster(ClusterId::new(5), &ExpectedOsd::first(4), &pool)
            .expect("a cluster")
            .map;
        map.sessions.insert(SessionId::new(2), SessionState::Dead);
        map.last_session = SessionId::new(7);
        for osd in map.osds.keys().copied() {
            let views = shard_views(&map, osd, 3);
            assert_eq!(views.len(), 3);
            for (core, view) in
                (0u16..).zip(&views).flat_map(|(core, views)| views.iter().map(move |v| (core, v)))
            {
                assert_eq!(view.pg.pg.core(3).get(), core);
                assert_eq!(map.osd_of(view.pg.pg, view.me), Some(osd));
                assert!(view.sessions.dead.contains(&SessionId::new(2)));
                assert_eq!(view.sessions.last, map.last_session);
            }
            let mut held: Vec<PgId> = views.iter().flatten().map(|v| v.pg.pg).collect();
            held.sort();
            let expected = map.pgs.keys().filter(|pg| map.shard_of(**pg, osd).is_some());
            assert!(held.iter().eq(expected));
        }
    }
}
