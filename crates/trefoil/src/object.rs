//! `trefoil object put | get | ls | rm | stat`: named objects, to and from files and pipes.

use crate::error::OperatorError;
use crate::transfer::{Source, Target, progress};
use crate::{Cluster, output, table};
use clap::{Args, Subcommand};
use client::{Client, ClientConfig, blob};
use protocol::PoolId;
use std::path::{Path, PathBuf};

/// What to do with objects.
#[derive(Subcommand)]
pub enum ObjectCommand {
    /// Stores a file, or standard input, under a name; replaces what was there at once when all of
    /// it is stored
    Put {
        #[command(flatten)]
        object: ObjectArgs,
        /// The file; `-` or nothing for standard input
        file: Option<PathBuf>,
    },
    /// Writes an object to a file, or to standard output
    Get {
        #[command(flatten)]
        object: ObjectArgs,
        /// The file; `-` or nothing for standard output
        file: Option<PathBuf>,
    },
    /// Lists names, one a line
    Ls {
        #[command(flatten)]
        pool: PoolArgs,
        /// Only names that begin so
        #[arg(default_value = "")]
        prefix: String,
        /// With sizes
        #[arg(short, long)]
        long: bool,
    },
    /// Removes an object
    Rm {
        #[command(flatten)]
        object: ObjectArgs,
    },
    /// Shows name, size and time
    Stat {
        #[command(flatten)]
        object: ObjectArgs,
    },
}

/// Where objects are.
#[derive(Args)]
pub struct PoolArgs {
    /// The pool
    #[arg(long, default_value = "data")]
    pool: String,
}

/// Which object.
#[derive(Args)]
pub struct ObjectArgs {
    #[command(flatten)]
    place: PoolArgs,
    /// Its name
    name: String,
}

/// Does it.
///
/// # Errors
/// No such object, local files, the cluster.
pub fn run(cluster: &Cluster, command: ObjectCommand) -> Result<(), OperatorError> {
    let pool_name = match &command {
        ObjectCommand::Ls { pool, .. } => pool.pool.clone(),
        ObjectCommand::Put { object, .. }
        | ObjectCommand::Get { object, .. }
        | ObjectCommand::Rm { object }
        | ObjectCommand::Stat { object } => object.place.pool.clone(),
    };
    // Before the session: a file that cannot be read needs no cluster, and a cluster that is not
    // there is said at once.
    let source = match &command {
        ObjectCommand::Put { file, .. } => Some(Source::open(file.as_deref())?),
        _ => None,
    };
    cluster.status()?;
    let session = Session::open(cluster, &pool_name)?;
    let done = match command {
        ObjectCommand::Put { object, .. } => {
            let source = source.expect("opened above for every put");
            session.put(&object.name, source)
        }
        ObjectCommand::Get { object, file } => session.get(&object.name, file.as_deref()),
        ObjectCommand::Ls { prefix, long, .. } => session.ls(&prefix, long),
        ObjectCommand::Rm { object } => session.rm(&object.name),
        ObjectCommand::Stat { object } => session.stat(&object.name),
    };
    let closed = session.client.close().map_err(|e| OperatorError::Refused(e.to_string()));
    done.and(closed)
}

/// A session with the cluster, on one pool.
struct Session {
    client: Client,
    pool: PoolId,
}

impl Session {
    fn open(cluster: &Cluster, pool: &str) -> Result<Session, OperatorError> {
        let failed = |e| OperatorError::of_client(e, "");
        let config = ClientConfig {
            timeout: cluster.timeout,
            ..ClientConfig::new(&cluster.monitor, "trefoil object")
        };
        let client = Client::connect(config).map_err(failed)?;
        let map = client.map().map_err(failed)?;
        let Some((pool, _)) = map.pool_named(pool) else {
            let known: Vec<&str> = map.pools.values().map(|p| p.name.as_str()).collect();
            return Err(OperatorError::NoPool { name: pool.to_owned(), known: known.join(", ") });
        };
        Ok(Session { client, pool })
    }

    fn put(&self, name: &str, mut source: Source) -> Result<(), OperatorError> {
        let bar = progress(source.length);
        let stored = blob::put(&self.client, self.pool, name.as_bytes(), &mut source, &mut |n| {
            bar.set_position(n)
        });
        bar.finish_and_clear();
        match (stored, source.failed) {
            (Ok(_), _) => Ok(()),
            (Err(_), Some(error)) => Err(OperatorError::File { path: source.path, source: error }),
            (Err(error), None) => Err(OperatorError::of_client(error, name)),
        }
    }

    fn get(&self, name: &str, file: Option<&Path>) -> Result<(), OperatorError> {
        // Asked first, so that nothing is made for an object that does not exist.
        let stat = blob::stat(&self.client, self.pool, name.as_bytes())
            .map_err(|e| OperatorError::of_client(e, name))?;
        let mut target = Target::open(file)?;
        let bar = progress(Some(stat.size));
        let got = blob::get(&self.client, self.pool, name.as_bytes(), &mut target, &mut |n, _| {
            bar.set_position(n)
        });
        bar.finish_and_clear();
        match (got, target.failed.take()) {
            (Ok(_), _) => target.finish(),
            (Err(_), Some(error)) => Err(target.error(error)),
            (Err(error), None) => Err(OperatorError::of_client(error, name)),
        }
    }

    fn ls(&self, prefix: &str, long: bool) -> Result<(), OperatorError> {
        let found = blob::list(&self.client, self.pool, prefix.as_bytes());
        let mut out = Vec::new();
        for blob in found.map_err(|e| OperatorError::of_client(e, prefix))? {
            if long {
                out.extend_from_slice(format!("{:>10}  ", table::bytes(blob.size)).as_bytes());
            }
            out.extend_from_slice(&blob.name);
            out.push(b'\n');
        }
        output::bytes(&out)
    }

    fn rm(&self, name: &str) -> Result<(), OperatorError> {
        blob::remove(&self.client, self.pool, name.as_bytes())
            .map_err(|e| OperatorError::of_client(e, name))
    }

    fn stat(&self, name: &str) -> Result<(), OperatorError> {
        let stat = blob::stat(&self.client, self.pool, name.as_bytes())
            .map_err(|e| OperatorError::of_client(e, name))?;
        let (size, units) = (stat.size, table::bytes(stat.size));
        let modified = table::time(stat.mtime.secs, stat.mtime.nanos);
        output::line(&format!(
            "name      {name}\nsize      {size} bytes ({units})\nmodified  {modified}"
        ))
    }
}
