//! The cache of the dynamic linker (`/etc/ld.so.cache`): the paths of libraries by their names.
//!
//! The format is that of glibc since 2.2, alone or behind the older one: a header of 48 bytes, then
//! 24 bytes for each library, then texts. All offsets count from the header. Each is checked, so a
//! damaged cache finds less, and never panics.

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER: usize = 48;
const ENTRY: usize = 24;
/// The flags of a library for glibc on x86-64.
const X86_64: u32 = 0x0303;

/// The cache: names with paths, the best first.
#[derive(Debug, Default)]
pub(super) struct Cache(Vec<(String, String)>);

impl Cache {
    pub(super) fn read(data: &[u8]) -> Cache {
        let start = data.windows(MAGIC.len()).position(|window| window == MAGIC);
        let data = start.map_or(&[][..], |start| &data[start..]);
        let word = |at: usize| {
            let bytes = data.get(at..at.checked_add(4)?)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let text = |at: u32| {
            let rest = data.get(at as usize..)?;
            let end = rest.iter().position(|byte| *byte == 0)?;
            String::from_utf8(rest[..end].to_vec()).ok()
        };
        let count = word(MAGIC.len()).unwrap_or(0) as usize;
        let entries = (0..count).map_while(|index| {
            let at = index.checked_mul(ENTRY)?.checked_add(HEADER)?;
            Some((word(at)?, word(at + 4)?, word(at + 8)?))
        });
        let ours = entries.filter(|(flags, ..)| *flags == X86_64);
        Cache(ours.filter_map(|(_, name, path)| Some((text(name)?, text(path)?))).collect())
    }

    /// The paths of a library. There are several if some are for newer processors.
    pub(super) fn find<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(of, _)| of == name).map(|(_, path)| path.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache with these flags, names and paths.
    fn cache(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let mut texts = Vec::new();
        let mut table = Vec::new();
        let start = HEADER + ENTRY * entries.len();
        for (flags, name, path) in entries {
            table.extend(flags.to_le_bytes());
            for text in [name, path] {
                table.extend(((start + texts.len()) as u32).to_le_bytes());
                texts.extend(text.bytes().chain([0]));
            }
            table.extend([0; 12]);
        }
        let mut data = MAGIC.to_vec();
        data.extend((entries.len() as u32).to_le_bytes());
        data.resize(HEADER, 0);
        [data, table, texts].concat()
    }

    #[test]
    fn libraries_of_this_machine_are_found() {
        let data = cache(&[
            (X86_64, "libc.so.6", "/lib/v3/libc.so.6"),
            (X86_64, "libc.so.6", "/lib/libc.so.6"),
            (3, "libc.so.6", "/lib32/libc.so.6"),
        ]);
        // Behind a cache of the older format.
        for data in [data.clone(), [b"ld.so-1.7.0\0older".to_vec(), data].concat()] {
            let cache = Cache::read(&data);
            let found: Vec<_> = cache.find("libc.so.6").collect();
            assert_eq!(found, ["/lib/v3/libc.so.6", "/lib/libc.so.6"]);
            assert_eq!(cache.find("libc.so").next(), None);
        }
    }

    #[test]
    fn a_damaged_cache_finds_less() {
        let data = cache(&[(X86_64, "a", "/a"), (X86_64, "b", "/b")]);
        for end in 0..data.len() {
            assert!(Cache::read(&data[..end]).0.len() <= 2);
        }
        for at in 0..data.len() {
            let mut damaged = data.clone();
            damaged[at] ^= 0xff;
            assert!(Cache::read(&damaged).0.len() <= 4);
        }
    }
}
