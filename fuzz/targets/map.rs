//! The cluster map: whatever decodes can be asked everything that daemons ask of a map.
#![no_main]

use cluster::ClusterMap;
use libfuzzer_sys::fuzz_target;
use protocol::{Gfid, ObjectId, OsdId, PgId, PoolId, ShardIndex};

fuzz_target!(|bytes: &[u8]| {
    let Ok(map) = ClusterMap::decode(bytes) else { return };
    let is_sound = map.check_invariants().is_ok();
    let encoded = map.encode();
    assert_eq!(ClusterMap::decode(&encoded).expect("own bytes"), map);
    let object = ObjectId { gfid: Gfid::ROOT, index: 7 };
    // What receivers do with a map comes after they have checked it.
    for &pool in map.pools.keys().chain(&[PoolId::new(1)]) {
        if is_sound && let Some(pg) = map.pg_of(pool, object) {
            assert!(map.pgs.contains_key(&pg), "an object of a sound map has a PG");
        }
    }
    for &pg in map.pgs.keys().take(64).chain(&[PgId { pool: PoolId::new(1), number: 3 }]) {
        let _ = map.up_shards(pg);
        let _ = map.osd_of(pg, ShardIndex::new(0));
        let _ = map.shard_of(pg, OsdId::new(0));
    }
});
