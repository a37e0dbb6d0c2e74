//! The FUSE client: mounts a Trefoil cluster as a POSIX file system.
//!
//! `fuse-client mount ADDRESS DIR`, `fuse-client umount DIR`, and, under the name
//! `mount.fuse.trefoil`, the helper that `mount -t fuse.trefoil` and fstab run. Exit status 0 means
//! done (mounted, unmounted, or a foreground mount that ended cleanly), 1 an error that is printed
//! with what to do, 2 wrong usage.
//!
//! It turns FUSE requests into calls of [`client::fs`] and nothing else. Start reading at
//! [`mount::run`] for the life of a mount and [`adapter`] for the requests.
#![deny(unsafe_code)]

mod adapter;
mod allocator;
mod cli;
mod convert;
mod daemon;
mod device;
mod error;
mod invalidate;
mod mount;
mod mountpoint;
mod options;
mod options_page;

use cli::Action;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> ExitCode {
    let result = match cli::parse(std::env::args_os()) {
        Ok(Action::Mount(settings)) if settings.daemon => daemon::start(&settings),
        Ok(Action::Mount(settings)) => mount::run(&settings),
        Ok(Action::Remount(settings)) => device::remount(&settings),
        Ok(Action::Unmount { dir, lazy }) => mountpoint::unmount(&dir, lazy),
        Ok(Action::PrintOptions) => {
            print!("{}", options_page::page());
            Ok(())
        }
        Ok(Action::InstallHelper { dir }) => cli::install_helper(&dir),
        Err(usage) => usage.exit(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuse-client: {error}");
            daemon::report_failure(&error);
            ExitCode::FAILURE
        }
    }
}
