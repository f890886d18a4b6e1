//! A range map that many threads read while one writes: a table of routes, by address.
//!
//! ```sh
//! cargo run -p samara-examples --bin range_map
//! ```

use samara::maple::{Epoch, MapleTree, Refused};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const ADDRESSES: usize = 1 << 24;
const BLOCK: usize = 1 << 12;

fn main() -> Result<(), Refused<Arc<String>>> {
    let routes = MapleTree::<Arc<String>, Epoch>::new();
    // One route for everything, then exceptions: each store splits the routes that it overlaps.
    routes.store_range(0..=ADDRESSES - 1, Arc::new("default".into()))?;
    for block in 0..64 {
        let start = block * 64 * BLOCK;
        routes.store_range(start..=start + BLOCK - 1, Arc::new(format!("port {block}")))?;
    }

    let done = AtomicBool::new(false);
    let lookups = AtomicU64::new(0);
    thread::scope(|scope| {
        for reader in 0..2 {
            let (routes, done, lookups) = (&routes, &done, &lookups);
            scope.spawn(move || {
                let (mut address, mut count) = (reader, 0);
                while !done.load(Ordering::Relaxed) {
                    // The guard keeps the entries that this thread looks at; it takes no lock.
                    let guard = routes.pin();
                    for _ in 0..64 {
                        address = (address * 69_069 + 1) % ADDRESSES;
                        let route = routes.load(&guard, address);
                        assert!(route.is_some(), "a route vanished while it was replaced");
                        count += 1;
                    }
                }
                lookups.fetch_add(count, Ordering::Relaxed);
            });
        }
        let result = (0..20_000).try_for_each(|turn| {
            let start = turn * 7 % 4096 * BLOCK;
            routes.store_range(start..=start + BLOCK - 1, Arc::new(format!("turn {turn}")))
        });
        done.store(true, Ordering::Relaxed);
        result
    })?;

    let guard = routes.pin();
    println!("{} lookups during 20,000 stores", lookups.load(Ordering::Relaxed));
    for (range, route) in routes.iter(&guard, 0..=4 * BLOCK) {
        println!("{:#010x} to {:#010x}: {route}", range.start(), range.end());
    }
    Ok(())
}
