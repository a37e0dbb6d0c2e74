//! What every client links: sessions, object I/O, striping, leases, and the file system as an async API.
