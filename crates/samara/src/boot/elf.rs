//! The ELF headers of a program or library of x86-64: whether the kernel can run it, the
//! interpreter that it names, and the libraries that it needs.
//!
//! Files come from anywhere. `object` checks each number, and a file that contradicts itself is an
//! error. Nothing is run. The kernel and the dynamic linker go by the same headers, so these are
//! all that they load at the start.

use object::elf::{
    DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_STRSZ, DT_STRTAB, EM_X86_64, ET_DYN, ET_EXEC, FileHeader64,
    PT_INTERP, ProgramHeader64,
};
use object::endian::LittleEndian;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};

/// The bytes of a script in which its first line is looked for, as on Linux.
const LINE: usize = 256;

/// A program that the kernel can start, or a library.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Elf {
    pub(super) interpreter: Option<String>,
    pub(super) needed: Vec<String>,
    /// DT_RPATH and DT_RUNPATH: folders with colons between them.
    pub(super) rpath: Option<String>,
    pub(super) runpath: Option<String>,
}

impl Elf {
    /// Reads a file.
    ///
    /// # Errors
    /// The kernel cannot run it: the reason, with the cure.
    pub(super) fn read(data: &[u8]) -> Result<Elf, String> {
        let endian = LittleEndian;
        let header = FileHeader64::<LittleEndian>::parse(data)
            .map_err(|_| "it is no ELF file of 64 bits: compile a program for x86-64 Linux")?;
        if header.e_machine(endian) != EM_X86_64 {
            return Err("it is for another processor: compile it for x86-64 Linux".into());
        }
        if !matches!(header.e_type(endian), ET_EXEC | ET_DYN) {
            return Err("it is an object file, not a program: link it".into());
        }
        let truncated =
            "it is truncated: the file ends before the data of its headers; copy it again";
        let segments = header.program_headers(endian, data).map_err(|_| truncated)?;
        let end = |segment: &ProgramHeader64<_>| {
            segment.p_offset(endian).saturating_add(segment.p_filesz(endian))
        };
        if segments.iter().any(|segment| end(segment) > data.len() as u64) {
            return Err(truncated.into());
        }
        let bad = |what: &str| format!("its {what} is damaged; copy it again");
        let mut elf = Elf::default();
        if let Some(segment) = segments.iter().find(|one| one.p_type(endian) == PT_INTERP) {
            let path = segment.interpreter(endian, data).ok().flatten();
            elf.interpreter = Some(path.and_then(text).ok_or_else(|| bad("interpreter's name"))?);
        }
        for segment in segments {
            if let Some(dynamic) =
                segment.dynamic(endian, data).map_err(|_| bad("dynamic section"))?
            {
                elf.read_dynamic(dynamic, segments, data).ok_or_else(|| bad("dynamic section"))?;
            }
        }
        Ok(elf)
    }

    fn read_dynamic(
        &mut self,
        dynamic: &[<FileHeader64<LittleEndian> as FileHeader>::Dyn],
        segments: &[ProgramHeader64<LittleEndian>],
        data: &[u8],
    ) -> Option<()> {
        let endian = LittleEndian;
        let used = dynamic.iter().take_while(|entry| entry.d_tag(endian) != object::elf::DT_NULL);
        let find = |tag| used.clone().find(|one| one.d_tag(endian) == tag);
        let value = |tag| find(tag).map(|entry| entry.d_val(endian));
        let (Some(at), Some(len)) = (value(DT_STRTAB), value(DT_STRSZ)) else { return Some(()) };
        let texts = segments
            .iter()
            .find_map(|segment| segment.data_range(endian, data, at, len).ok().flatten())?;
        for entry in used {
            let tag = entry.d_tag(endian);
            if !matches!(tag, DT_NEEDED | DT_RPATH | DT_RUNPATH) {
                continue;
            }
            let name = texts.get(usize::try_from(entry.d_val(endian)).ok()?..)?;
            let name = text(name.split(|byte| *byte == 0).next()?)?;
            match tag {
                DT_NEEDED => self.needed.push(name),
                DT_RPATH => self.rpath = Some(name),
                _ => self.runpath = Some(name),
            }
        }
        Some(())
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8(bytes.to_vec()).ok();
    text.filter(|text| !text.is_empty())
}

/// The program that the first line of a script names.
///
/// # Errors
/// The line names none.
pub(super) fn interpreter_of_script(data: &[u8]) -> Option<Result<String, String>> {
    let line = data.get(..data.len().min(LINE))?.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
    let name = words.find(|word| !word.is_empty()).and_then(text);
    Some(name.ok_or_else(|| "it is a script whose first line names no program".into()))
}
