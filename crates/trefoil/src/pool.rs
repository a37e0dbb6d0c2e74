//! `trefoil pool ls | get | create | rename`.

use crate::error::OperatorError;
use crate::{Cluster, output, table};
use clap::Subcommand;
use protocol::Profile;
use protocol::monitor::{MonitorReply, MonitorRequest, PoolStatus};

/// What to do with pools.
#[derive(Subcommand)]
pub enum PoolCommand {
    /// Lists them
    Ls,
    /// What a pool is, by Ceph's names: size, min_size, k, m, chunk_bytes, object_bytes, pg_num,
    /// pgp_num, hashpspool
    Get {
        /// Its name
        name: String,
        /// One of these alone
        key: Option<String>,
    },
    /// Gives one another name; what lies in it stays, and who uses it goes on
    Rename {
        /// Its name
        name: String,
        /// Its new name
        new_name: String,
    },
    /// Makes one
    Create {
        /// Its name
        name: String,
        /// Data shards; 1 for copies
        #[arg(long, default_value_t = 2)]
        k: u8,
        /// Parity shards, or further copies: how many storage daemons may die
        #[arg(long, default_value_t = 1)]
        m: u8,
        /// Striping chunk in bytes, a power of two from 512 to 1048576
        #[arg(long, default_value_t = 512)]
        chunk_bytes: u32,
        /// Placement groups
        #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_536))]
        pg_num: u32,
    },
}

/// Does it.
///
/// # Errors
/// The monitor's refusal among others.
pub fn run(cluster: &Cluster, command: PoolCommand) -> Result<(), OperatorError> {
    match command {
        PoolCommand::Ls => output::text(&table::pools(&cluster.status()?.pools)),
        PoolCommand::Get { name, key } => {
            let pools = cluster.status()?.pools;
            let found = pools.iter().find(|pool| pool.name == name);
            let known =
                || pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", ");
            let no_pool = || {
                OperatorError::Refused(format!("there is no pool {name:?}; there are: {}", known()))
            };
            output::text(&shown(found.ok_or_else(no_pool)?, key.as_deref())?)
        }
        PoolCommand::Rename { name, new_name } => {
            let request =
                MonitorRequest::RenamePool { name: name.clone(), new_name: new_name.clone() };
            match cluster.ask(&request)? {
                MonitorReply::Done(_) => {
                    output::line(&format!("pool `{name}` is now `{new_name}`"))
                }
                other => Err(OperatorError::unexpected(&other)),
            }
        }
        PoolCommand::Create { name, k, m, chunk_bytes, pg_num } => {
            let profile = profile(k, m, chunk_bytes)?;
            match cluster.ask(&MonitorRequest::CreatePool {
                name: name.clone(),
                profile,
                pg_num,
            })? {
                MonitorReply::Done(epoch) => {
                    output::line(&format!("pool `{name}` made in epoch {}", epoch.get()))
                }
                other => Err(OperatorError::unexpected(&other)),
            }
        }
    }
}

/// What a pool is, or the value of one key.
fn shown(pool: &PoolStatus, key: Option<&str>) -> Result<String, OperatorError> {
    let profile = pool.profile;
    let values = [
        ("size", profile.shards().to_string()),
        ("min_size", profile.k().to_string()),
        ("k", profile.k().to_string()),
        ("m", profile.m().to_string()),
        ("chunk_bytes", profile.chunk_bytes().to_string()),
        ("object_bytes", profile.object_bytes().to_string()),
        ("pg_num", pool.pg_num.to_string()),
        ("pgp_num", pool.pg_num.to_string()),
        ("hashpspool", "true".to_owned()),
    ];
    match key {
        None => Ok(values.map(|(key, value)| format!("{key}: {value}\n")).concat()),
        Some(key) => match values.iter().find(|(known, _)| *known == key) {
            Some((_, value)) => Ok(format!("{value}\n")),
            None => {
                let known = values.map(|(key, _)| key).join(", ");
                Err(OperatorError::Refused(format!("pools have no `{key}`; there are: {known}")))
            }
        },
    }
}

/// A profile whose objects are whole stripes.
fn profile(k: u8, m: u8, chunk_bytes: u32) -> Result<Profile, OperatorError> {
    let stripe = (u64::from(k) * u64::from(chunk_bytes)).max(1);
    let object = Profile::OBJECT_BYTES_DEFAULT / stripe * stripe;
    Profile::new(k, m, chunk_bytes, object).map_err(|e| OperatorError::Refused(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_shown_by_cephs_names() {
        let (id, name) = (protocol::PoolId::new(1), "copies".to_owned());
        let pool = PoolStatus { id, name, profile: profile(1, 2, 512).unwrap(), pg_num: 8 };
        assert_eq!(shown(&pool, Some("size")).unwrap(), "3\n");
        assert_eq!(shown(&pool, Some("min_size")).unwrap(), "1\n");
        assert!(shown(&pool, None).unwrap().contains("pg_num: 8\npgp_num: 8\n"));
        let error = shown(&pool, Some("sise")).unwrap_err().to_string();
        assert!(error.contains("`sise`") && error.contains("min_size"), "{error}");
    }

    #[test]
    fn objects_are_whole_stripes_of_any_code() {
        for k in 1..=15 {
            let made = profile(k, 1, 512).unwrap();
            assert_eq!(made.object_bytes() % made.stripe_bytes(), 0);
        }
        assert!(profile(0, 1, 512).is_err() && profile(2, 1, 500).is_err());
    }
}
