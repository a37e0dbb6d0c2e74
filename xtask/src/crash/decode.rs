//! Every object of stopped storage daemons, decoded from every k of its shards.
//!
//! Contract: reads fragment files as the daemons do, each sector against its checksum, and writes
//! nothing. The journals must be empty: what is in them only is not seen. All shards of an object
//! must be one codeword: each subset of k gives the other m as they are on disk. A fragment that is
//! missing counts as zeros, as it does for a daemon.

use crate::error::{Context, Outcome, ensure};
use ec_store::codec;
use ec_store::fragment::{FragmentFile, FragmentKey, FragmentStore, ReadMode};
use ec_store::superblock::DataDir;
use protocol::{ObjectId, PgId, Profile, ShardIndex};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Extents of a fragment that are listed at a time.
const EXTENTS: usize = 4096;
/// Findings that are shown.
const SHOWN: usize = 8;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Objects.
    pub objects: u64,
    /// Decodings: for each object as many as there are ways to choose k of its shards.
    pub subsets: u64,
    /// Bytes that a decoding gave and that were compared with what is on disk.
    pub compared_bytes: u64,
}

/// Checks everything in these data directories of storage daemons, none of which may run.
///
/// # Errors
/// Objects whose shards do not belong together, and bytes that fail their checksum.
pub fn every_subset(dirs: &[PathBuf]) -> Outcome<Decoded> {
    let mut stores = Vec::new();
    for dir in dirs {
        let superblock = DataDir::peek(dir).doing(|| "cannot read a superblock")?;
        stores.push(
            FragmentStore::open_alone(dir.as_path(), superblock.cluster).doing(|| "cannot open")?,
        );
    }
    let mut objects: BTreeMap<(PgId, ObjectId), Vec<(usize, ShardIndex)>> = BTreeMap::new();
    for (osd, store) in stores.iter_mut().enumerate() {
        for pg in store.list_pgs().doing(|| "cannot list placement groups")? {
            for found in store.list(pg).doing(|| "cannot list fragments")? {
                let (object, shard) = found.doing(|| "cannot list fragments")?;
                objects.entry((pg, object)).or_default().push((osd, shard));
            }
        }
    }
    let (mut decoded, mut findings) = (Decoded::default(), Vec::new());
    for ((pg, object), held) in objects {
        let mut files = Vec::new();
        for (osd, shard) in held {
            match stores[osd].get(FragmentKey { pg, object, shard }) {
                Ok(Some(file)) => files.push((shard, file)),
                Ok(None) => {}
                Err(error) => findings.push(error.to_string()),
            }
        }
        if let Err(error) = one_object(&files, &mut decoded) {
            findings.push(format!("{pg}/{object}: {error}"));
        }
    }
    let shown = findings.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("\n  ");
    ensure!(
        findings.is_empty(),
        "{} findings in {} objects:\n  {shown}",
        findings.len(),
        decoded.objects
    );
    Ok(decoded)
}

fn one_object(files: &[(ShardIndex, Arc<FragmentFile>)], decoded: &mut Decoded) -> Outcome {
    let Some((_, first)) = files.first() else { return Ok(()) };
    let profile = first.profile();
    let mut length = 0;
    for (_, file) in files {
        length = length.max(end_of(file)?);
    }
    let mut shards = vec![vec![0; length as usize]; usize::from(profile.shards())];
    for (shard, file) in files {
        let buffer = &mut shards[usize::from(shard.get())];
        file.read(0, buffer, ReadMode::Blocking).doing(|| "cannot be read")?;
    }
    decoded.objects += 1;
    check_subsets(profile, &shards, decoded)
}

/// Where the last data of a fragment ends.
fn end_of(file: &FragmentFile) -> Outcome<u64> {
    let mut end = 0;
    loop {
        let extents = file.data_extents(end, EXTENTS).doing(|| "cannot be read")?;
        match extents.last() {
            Some(last) => end = last.end,
            None => return Ok(end),
        }
    }
}

/// Each k of the shards must give the others.
fn check_subsets(profile: Profile, shards: &[Vec<u8>], decoded: &mut Decoded) -> Outcome {
    let codec = codec::for_profile(profile);
    let index = |at: usize| ShardIndex::new(at as u8);
    for subset in subsets(shards.len(), usize::from(profile.k())) {
        let have: Vec<(ShardIndex, &[u8])> =
            subset.iter().map(|&at| (index(at), shards[at].as_slice())).collect();
        let others: Vec<usize> = (0..shards.len()).filter(|at| !subset.contains(at)).collect();
        let mut given = vec![vec![0; shards[0].len()]; others.len()];
        let mut want: Vec<_> = others
            .iter()
            .zip(&mut given)
            .map(|(&at, out)| (index(at), out.as_mut_slice()))
            .collect();
        codec.reconstruct(&have, &mut want).doing(|| "cannot be decoded")?;
        for (&at, out) in others.iter().zip(&given) {
            if let Some(difference) = crate::tree::first_difference(&shards[at], out) {
                return crate::error::fail(format!(
                    "shards {subset:?} do not give shard {at}: {difference}"
                ));
            }
            decoded.compared_bytes += out.len() as u64;
        }
        decoded.subsets += 1;
    }
    Ok(())
}

/// Every choice of k out of n.
fn subsets(n: usize, k: usize) -> impl Iterator<Item = Vec<usize>> {
    let members = move |bits: u32| (0..n).filter(|at| bits >> at & 1 == 1).collect::<Vec<_>>();
    (0u32..1 << n).filter(move |bits| bits.count_ones() as usize == k).map(members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ec_store::fragment::{Mark, sector_crcs};
    use protocol::{ClusterId, Gfid, OsdId, PoolId};

    const CLUSTER: ClusterId = ClusterId::new(5);

    /// Three data directories with one object of whole stripes.
    fn made(root: &std::path::Path, spoil: Option<usize>) -> Vec<PathBuf> {
        let profile = Profile::new(2, 1, 512, Profile::OBJECT_BYTES_DEFAULT).unwrap();
        let mut shards = [vec![7u8; 2048], vec![9u8; 2048], vec![0u8; 2048]];
        let (data, parity) = shards.split_at_mut(2);
        codec::for_profile(profile).encode(&[&data[0], &data[1]], &mut [&mut parity[0]]);
        if let Some(at) = spoil {
            shards[at][700] ^= 1;
        }
        let pg = PgId { pool: PoolId::new(1), number: 3 };
        let object = ObjectId { gfid: Gfid::of_inode(11), index: 0 };
        let mut dirs = Vec::new();
        for (at, bytes) in shards.iter().enumerate() {
            let dir = root.join(format!("osd-{at}"));
            drop(DataDir::open(&dir, CLUSTER, OsdId::new(at as u32)).unwrap());
            let mut store = FragmentStore::open_alone(dir.as_path(), CLUSTER).unwrap();
            let key = FragmentKey { pg, object, shard: ShardIndex::new(at as u8) };
            let mut crcs = Vec::new();
            sector_crcs(bytes, &mut crcs);
            let file = store.get_or_create(key, profile).unwrap();
            file.write(0, bytes, &crcs, Mark::default()).unwrap();
            file.sync().unwrap();
            dirs.push(dir);
        }
        dirs
    }

    #[test]
    fn a_codeword_decodes_from_every_pair() {
        let root = tempfile::tempdir().unwrap();
        let decoded = every_subset(&made(root.path(), None)).unwrap();
        assert_eq!(decoded, Decoded { objects: 1, subsets: 3, compared_bytes: 3 * 2048 });
    }

    #[test]
    fn shards_that_do_not_belong_together_are_found_though_their_checksums_hold() {
        for at in 0..3 {
            let root = tempfile::tempdir().unwrap();
            let error = every_subset(&made(root.path(), Some(at))).unwrap_err().to_string();
            assert!(error.contains("do not give shard"), "{error}");
        }
    }

    #[test]
    fn a_missing_fragment_of_data_is_found() {
        let root = tempfile::tempdir().unwrap();
        let dirs = made(root.path(), None);
        std::fs::remove_dir_all(dirs[1].join("pg")).unwrap();
        assert!(every_subset(&dirs).is_err());
    }

    #[test]
    fn every_choice_comes_once() {
        assert_eq!(subsets(3, 2).collect::<Vec<_>>(), [[0, 1], [0, 2], [1, 2]]);
        assert_eq!(subsets(6, 4).count(), 15);
    }
}
