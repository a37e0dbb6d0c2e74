//! `trefoil pool ls | create`.

use crate::error::OperatorError;
use crate::{Cluster, output, table};
use clap::Subcommand;
use protocol::Profile;
use protocol::monitor::{MonitorReply, MonitorRequest};

/// What to do with pools.
#[derive(Subcommand)]
pub enum PoolCommand {
    /// Lists them
    Ls,
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
        PoolCommand::Create { name, k, m, chunk_bytes, pg_num } => {
            let profile = profile(k, m, chunk_bytes)?;
            match cluster.ask(&MonitorRequest::CreatePool { name: name.clone(), profile, pg_num })? {
                MonitorReply::Done(epoch) => output::line(&format!("pool `{name}` made in epoch {}", epoch.get())),
                other => Err(OperatorError::unexpected(&other)),
            }
        }
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
    fn objects_are_whole_stripes_of_any_code() {
        for k in 1..=15 {
            let made = profile(k, 1, 512).unwrap();
            assert_eq!(made.object_bytes() % made.stripe_bytes(), 0);
        }
        assert!(profile(0, 1, 512).is_err() && profile(2, 1, 500).is_err());
    }
}
