//! New clusters and new pools.
//!
//! Contract: pure; the random cluster id comes from the caller.

use crate::map::{ClusterMap, Osd, Pg, Pool};
use crate::state::{MonitorState, PgState};
use placement::objects::{
    Device, FailureDomain, Hierarchy, OsdNumber, WEIGHT_ONE, name_number, select,
};
use protocol::{ClusterId, Epoch, OsdId, PgId, PoolId, Profile, ProfileError, SessionId, ShardSet};
use std::collections::BTreeMap;

/// PGs of a pool, at most: every map carries them all.
pub const PG_NUM_MAX: u32 = 65536;
/// Bytes of a pool's name, at most.
pub const POOL_NAME_BYTES_MAX: usize = 64;

/// An OSD that a new cluster is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedOsd {
    /// Its id.
    pub id: OsdId,
    /// Its machine, the failure domain; if it is not known yet, leave it empty for the OSD's own
    /// name.
    pub host: String,
    /// Share of data, in units of 1/65536; 65536 for one.
    pub weight: u32,
}

impl ExpectedOsd {
    /// OSDs `0..count` of equal weight, on machines not known yet.
    pub fn first(count: u32) -> Vec<Self> {
        (0..count)
            .map(|id| Self { id: OsdId::new(id), host: String::new(), weight: WEIGHT_ONE })
            .collect()
    }
}

/// A pool to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    /// Its name, unique.
    pub name: String,
    /// Its code.
    pub profile: Profile,
    /// Number of PGs, 1..=65536.
    pub pg_num: u32,
}

impl PoolSpec {
    /// A pool with the default object size of 64 MiB, rounded down to whole stripes where k does
    /// not divide it.
    ///
    /// # Errors
    /// When k, m and chunk are not a profile.
    pub fn new(
        name: &str,
        k: u8,
        m: u8,
        chunk_bytes: u32,
        pg_num: u32,
    ) -> Result<Self, ProfileError> {
        let stripe = u64::from(k.max(1)) * u64::from(chunk_bytes.max(1));
        let object_bytes = Profile::OBJECT_BYTES_DEFAULT / stripe * stripe;
        Ok(Self {
            name: name.to_owned(),
            profile: Profile::new(k, m, chunk_bytes, object_bytes)?,
            pg_num,
        })
    }
}

/// Why a cluster or pool cannot be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// Ids are unique.
    #[error("{0} is there twice")]
    OsdTwice(OsdId),
    /// Every shard needs an OSD of its own.
    #[error("a pool of {shards} shards needs as many OSDs, and there are {osds}")]
    TooFewOsds {
        /// k + m.
        shards: u8,
        /// OSDs with weight.
        osds: usize,
    },
    /// Pool names are unique.
    #[error("there is already a pool named {0:?}")]
    PoolExists(String),
    /// There is no such pool.
    #[error("there is no pool named {name:?}; there are: {known}")]
    NoPool {
        /// What was asked for.
        name: String,
        /// Names of those that there are.
        known: String,
    },
    /// A pool's name.
    #[error("a pool's name has 1 to {POOL_NAME_BYTES_MAX} bytes")]
    PoolName,
    /// Number of PGs.
    #[error("pg_num is {0}, and must be from 1 to {PG_NUM_MAX}")]
    PgNum(u32),
    /// The code. (A profile off the wire has not been checked.)
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

/// A new cluster: its OSDs, all down yet, and its first pool.
///
/// # Errors
/// See [`CreateError`].
pub fn create_cluster(
    cluster: ClusterId,
    osds: &[ExpectedOsd],
    pool: &PoolSpec,
) -> Result<MonitorState, CreateError> {
    let mut members = BTreeMap::new();
    for ExpectedOsd { id, host, weight } in osds {
        let host = if host.is_empty() { id.to_string() } else { host.clone() };
        let osd = Osd {
            addr: None,
            cores: 1,
            up: false,
            is_in: true,
            weight: *weight,
            host,
            fsid: 0,
            replace: false,
        };
        if members.insert(*id, osd).is_some() {
            return Err(CreateError::OsdTwice(*id));
        }
    }
    let map = ClusterMap {
        cluster,
        epoch: Epoch::new(1),
        osds: members,
        pools: BTreeMap::new(),
        pgs: BTreeMap::new(),
        sessions: BTreeMap::new(),
        last_session: SessionId::default(),
        mds: None,
    };
    let mut state =
        MonitorState { map, pgs: BTreeMap::new(), session_names: BTreeMap::new(), namespace: None };
    add_pool(&mut state, pool)?;
    Ok(state)
}

/// Adds a pool and its PGs, not yet proposed, with the present epoch; returns the PGs.
pub(super) fn add_pool(
    state: &mut MonitorState,
    spec: &PoolSpec,
) -> Result<Vec<PgId>, CreateError> {
    let (name, profile) = (&spec.name, spec.profile);
    Profile::new(profile.k(), profile.m(), profile.chunk_bytes(), profile.object_bytes())?;
    check_name(&state.map, name)?;
    if !(1..=PG_NUM_MAX).contains(&spec.pg_num) {
        return Err(CreateError::PgNum(spec.pg_num));
    }
    let hierarchy = hierarchy(&state.map)?;
    let shards = usize::from(profile.shards());
    let enough = |domain: &FailureDomain| hierarchy.domains(*domain) >= shards;
    let domain =
        [FailureDomain::Host, FailureDomain::Osd].into_iter().find(enough).ok_or_else(|| {
            CreateError::TooFewOsds {
                shards: profile.shards(),
                osds: hierarchy.domains(FailureDomain::Osd),
            }
        })?;
    let id = PoolId::new(state.map.pools.keys().next_back().map_or(1, |last| last.get() + 1));
    let all = ShardSet::first(profile.shards());
    let mut pgs = Vec::new();
    for number in 0..spec.pg_num {
        let pg = PgId { pool: id, number };
        let chosen = select(&hierarchy, pg.to_u64(), shards, domain);
        let acting: Vec<OsdId> =
            chosen.into_iter().flatten().map(|osd| OsdId::new(osd.0)).collect();
        assert_eq!(acting.len(), shards, "there are enough failure domains");
        let epoch = state.map.epoch;
        let pg_info =
            Pg { epoch, acting, in_sync: ShardSet::EMPTY, joining: ShardSet::EMPTY, active: false };
        state.map.pgs.insert(pg, pg_info);
        state.pgs.insert(pg, PgState { confirmed: all, ..PgState::default() });
        pgs.push(pg);
    }
    state.map.pools.insert(id, Pool { name: name.clone(), profile, pg_num: spec.pg_num });
    Ok(pgs)
}

/// Gives a pool another name. Its id, and so all that lies in it, stays.
pub(super) fn rename_pool(
    map: &mut ClusterMap,
    name: &str,
    new_name: &str,
) -> Result<(), CreateError> {
    let Some((id, _)) = map.pool_named(name) else {
        let known =
            map.pools.values().map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(CreateError::NoPool { name: name.to_owned(), known });
    };
    check_name(map, new_name)?;
    let pool = map.pools.get_mut(&id).expect("it was found");
    pool.name = new_name.to_owned();
    Ok(())
}

/// May a pool get this name?
fn check_name(map: &ClusterMap, name: &str) -> Result<(), CreateError> {
    if name.is_empty() || name.len() > POOL_NAME_BYTES_MAX {
        return Err(CreateError::PoolName);
    }
    if map.pool_named(name).is_some() {
        return Err(CreateError::PoolExists(name.to_owned()));
    }
    Ok(())
}

/// The map's OSDs as a tree. There are no racks in the map yet: all hosts stand in one.
fn hierarchy(map: &ClusterMap) -> Result<Hierarchy, CreateError> {
    let device = |(id, osd): (&OsdId, &Osd)| Device {
        osd: OsdNumber(id.get()),
        rack: 0,
        host: name_number(&osd.host),
        weight: osd.weight,
        is_in: osd.is_in,
    };
    let devices = map.osds.iter().map(device).collect();
    Ok(Hierarchy::new(devices).expect("ids of a map are unique and there is one rack"))
}
