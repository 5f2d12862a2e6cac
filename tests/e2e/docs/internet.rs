//! Follows docs/internet.md literally: runs every command and writes every file in order, on a
//! machine with a network and on another one. Both exist only for this test. nginx, nftables,
//! openssl, curl and netcat are the real programs; a script stands in for systemd.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::docs::pages::{CodeBlock, code_blocks, is_same_shape};
use crate::support::process::Process;

const PAGE: &str = "docs/internet.md";

/// The prompts of the page, and the prefix of their machine in support/machine.sh.
const PROMPTS: [(&str, &str); 2] = [("broker# ", ""), ("elsewhere$ ", "elsewhere ")];

/// Blocks that need a name in the public DNS.
const SKIPPED_BLOCKS: [&str; 1] = ["certbot "];

#[test]
#[ignore = "needs foreign programs"]
fn every_command_of_the_page_runs_as_shown() {
    let mut machines = TestMachines::start();
    let (mut commands, mut files) = (0, 0);
    for block in code_blocks(PAGE) {
        let location = format!("{PAGE}:{}", block.first_line);
        if block.kind == "console" {
            commands += machines.run_block(&location, &block);
        } else if let Some(path) = named_file(&block.preceding_line) {
            machines.write_file(&path, &block);
            files += 1;
        } else {
            let line = &block.lines[0];
            assert!(SKIPPED_BLOCKS.iter().any(|word| line.starts_with(word)), "{location}: {line}");
        }
    }
    assert!(commands >= 60 && files >= 5, "{commands} commands and {files} files");

    // The stand-in for systemd reads fewer settings of a unit than systemd does.
    let verify = "systemd-analyze verify /etc/systemd/system/tidings.{service,socket} 2>&1 | grep -c tidings";
    machines.run("", verify, &["0".to_owned()], "the units");
    // No other user can read tokens, keys or data.
    let modes = "stat --format '%a %U %G' /var/lib/tidings /var/lib/tidings/access.toml /etc/tidings/tls \
                 /etc/tidings/tls/key.pem operator.token";
    let expected = [
        "700 tidings tidings",
        "600 tidings tidings",
        "750 root tidings",
        "640 root tidings",
        "600 root root",
    ];
    machines.run("", modes, &expected.map(str::to_owned), "modes and owners");
}

/// The file that a line of text announces at its end: `.. in `/a/file`:`.
fn named_file(line: &str) -> Option<PathBuf> {
    let line = line.strip_suffix("`:")?;
    Some(line.rsplit_once('`')?.1.into()).filter(|path: &PathBuf| path.is_absolute())
}

/// Two machines: one with a broker, and `elsewhere`.
struct TestMachines {
    shell: Process,
    /// Lines printed before the current command.
    printed_lines: usize,
    commands: usize,
    folder: TempDir,
}

impl TestMachines {
    #[track_caller]
    fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        // World-readable: the broker's user must be able to reach its data.
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["bin", "units", "home/target/release", "home/site"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        symlink(env!("CARGO_BIN_EXE_tidings"), at("home/target/release/tidings")).unwrap();
        symlink(root.join("packaging"), at("home/packaging")).unwrap();
        let manager = root.join("tests/e2e/support/systemd.py");
        let (manager, units) = (manager.display(), at("units"));
        for name in ["systemctl", "journalctl"] {
            let arguments = format!("exec python3 {manager} {name} {} \"$@\"", units.display());
            fs::write(at("bin").join(name), format!("#!/bin/sh\n{arguments}\n")).unwrap();
            fs::set_permissions(at("bin").join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        // Only root may create users and networks.
        let is_root = rustix::process::geteuid().is_root();
        let mut command = Command::new(if is_root { "unshare" } else { "sudo" });
        command.args((!is_root).then_some("unshare"));
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "bash"]);
        command.arg(root.join("tests/e2e/support/machine.sh")).arg(folder.path());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDINGS_")) {
            command.env_remove(name);
        }
        // Unbuffered Python writes the end of its first line separately, after output of other
        // programs.
        command.env_remove("PYTHONUNBUFFERED");
        let shell = Process::start(&mut command);
        shell.wait_for_line_with("ready");
        let mut machines = Self { shell, printed_lines: 0, commands: 0, folder };
        let units = units.display();
        machines.shell.write(format!("python3 {manager} serve {units} &\n"));
        machines.shell.wait_for_line_with("the manager listens");
        // The blog that the page mentions.
        let site = "python3 -u -m http.server 80 --bind 192.0.2.99 --directory site";
        machines.shell.write(format!("ip netns exec elsewhere {site} &\n"));
        machines.shell.wait_for_line_with("Serving HTTP");
        machines
    }

    /// Runs the commands of a block and returns their number.
    #[track_caller]
    fn run_block(&mut self, location: &str, block: &CodeBlock) -> usize {
        let prompt = |line: &str| {
            let of = |(prompt, machine): &(_, &'static str)| {
                Some((line.strip_prefix(*prompt)?, *machine))
            };
            PROMPTS.iter().find_map(of).map(|(command, machine)| (command.to_owned(), machine))
        };
        let mut lines = block.lines.iter().peekable();
        let mut commands = 0;
        while let Some(line) = lines.next() {
            let (command, machine) = prompt(line).unwrap_or_else(|| panic!("{location}: {line}"));
            let output = std::iter::from_fn(|| lines.next_if(|line| prompt(line).is_none()));
            let expected: Vec<_> = output.cloned().collect();
            self.run(machine, &command, &expected, location);
            commands += 1;
        }
        commands
    }

    /// Runs a command and waits for its end. Without shown output the command must succeed; shown
    /// lines must be printed, with other lines in between.
    #[track_caller]
    fn run(&mut self, machine: &str, command: &str, shown: &[String], location: &str) {
        eprintln!("{location}: {machine}{command}");
        self.commands += 1;
        let end_marker = format!("-- command {} is done: ", self.commands);
        self.shell.write(format!("{machine}{command}\n{machine}echo \"{end_marker}$status\"\n"));
        let line = self.shell.wait_for_line_with(&end_marker);
        if shown.is_empty() {
            assert_eq!(line, format!("{end_marker}0"), "{location}: {command}");
        }
        let output =
            self.shell.wait_for_lines_in_order(self.printed_lines, &[line], |expected, line| {
                expected == line
            });
        let at = self.shell.wait_for_lines_in_order(self.printed_lines, shown, is_same_shape);
        assert!(at <= output, "{location}: {command} did not print {shown:#?}; later commands did");
        self.printed_lines = output;
    }

    /// Writes a file as an editor on the broker's machine would: as root, and only into an existing
    /// folder.
    #[track_caller]
    fn write_file(&mut self, path: &Path, block: &CodeBlock) {
        let text = self.folder.path().join("text");
        fs::write(&text, block.lines.join("\n") + "\n").unwrap();
        let command = format!("cat {} > {}", text.display(), path.display());
        self.run("", &command, &[], &format!("{PAGE}:{}", block.first_line));
    }
}
