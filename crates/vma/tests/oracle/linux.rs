//! The runner that is right: a real process on the running Linux. Its program is `pages.c`.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{PAGES, Runner, program::Step};

pub(crate) struct Linux {
    child: Child,
    steps: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Linux {
    /// Compiles and starts the process.
    pub(crate) fn start() -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../vma/tests/oracle/pages.c");
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(&folder).unwrap();
        // Tests of this process run at once. Only the number has to be unique: Relaxed.
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let program = folder.join(format!("oracle-{}-{number}", std::process::id()));
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-o"]).arg(&program).arg(format!("-DPAGES={PAGES}"));
        // With room for huge pages, the program has them.
        compiler.args((PAGES >= 512).then_some("-DHUGE"));
        let compiled = compiler
            .arg(source)
            .status()
            .expect("a C compiler: install the package build-essential");
        assert!(compiled.success(), "cc cannot compile {source}");
        let mut command = Command::new(&program);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        fs::remove_file(program).unwrap();
        let (steps, lines) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Linux { child, steps, lines: BufReader::new(lines) }
    }
}

impl Runner for Linux {
    fn run(&mut self, program: &[Step]) -> Vec<String> {
        let mut text: String = program.iter().map(|step| format!("{step}\n")).collect();
        text.push_str("end\n");
        // The lines are written at the end of the program, so neither side waits for the other.
        self.steps.write_all(text.as_bytes()).expect("the process lives");
        let mut answers = Vec::new();
        for step in program {
            let mut line = String::new();
            self.lines.read_line(&mut line).unwrap();
            if !line.ends_with('\n') {
                panic!("the process ended at `{step}`: {:?}", self.child.wait());
            }
            answers.push(line.trim_end().to_string());
        }
        answers
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        // Nothing of it is needed any more; that it has ended already is no failure.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}
