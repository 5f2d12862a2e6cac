//! Follows docs/several-machines.md literally, on three machines with a network between them, which
//! exist only for this test. NATS and netcat are the real programs.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::docs::pages::{code_blocks, is_same_shape};
use crate::support::process::{Process, in_place_of, tidings_command};

const PAGE: &str = "docs/several-machines.md";

/// The machines are network namespaces. Each has a shell, which runs the lines that begin with its
/// name, in a folder of its own.
const MACHINES: &str = r#"
set -e
exec 2>&1
mount -t proc proc /proc
mount -t tmpfs none /run
mkdir /run/netns
hosts='127.0.0.1 localhost'
ip link set lo up
ip link add bridge type bridge
ip link set bridge up
for number in 1 2 3; do
    name=n$number
    hosts="$hosts\n10.0.0.$number $name"
    mkdir "$name"
    cp "$CONFIG" "$name/nats-server.conf"
    ip netns add $name
    ip link add to-$name master bridge type veth peer name here netns $name
    ip link set to-$name up
    ip netns exec $name sh -c "ip address add 10.0.0.$number/24 dev here; ip link set here up; ip link set lo up"
done
printf "$hosts\n" > hosts
mount --bind hosts /etc/hosts
for name in n1 n2 n3; do
    mkfifo $name/lines
    (cd $name; ip netns exec $name bash -c 'while IFS= read -r line; do eval "$line" </dev/null; status=$?; done' <>lines) &
done
echo ready
while read -r name line; do printf '%s\n' "$line" >$name/lines; done
"#;

#[test]
#[ignore = "needs foreign programs"]
fn every_command_of_the_page_runs_as_shown() {
    let mut machines = Machines::start();
    for block in code_blocks(PAGE).iter().filter(|block| block.kind == "console") {
        let location = format!("{PAGE}:{}", block.first_line);
        let mut lines = block.lines.iter().peekable();
        let prompt = |line: &str| line.split_once("$ ").is_some_and(|(name, _)| name.len() == 2);
        while let Some(line) = lines.next() {
            let (machine, command) =
                line.split_once("$ ").unwrap_or_else(|| panic!("{location}: {line}"));
            let shown = std::iter::from_fn(|| lines.next_if(|line| !prompt(line)));
            machines.run(machine, command, &shown.cloned().collect::<Vec<_>>(), &location);
        }
    }
    assert!(machines.commands >= 18, "{} commands", machines.commands);
}

struct Machines {
    shell: Process,
    /// Lines printed before the current command.
    printed_lines: usize,
    commands: usize,
    _folder: TempDir,
}

impl Machines {
    #[track_caller]
    fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = TempDir::new().unwrap();
        let binary = tidings_command(folder.path(), [""; 0]);
        let programs = Path::new(binary.get_program()).parent().unwrap();
        let (programs, nats) = (programs.display(), root.join("target/venv/bin"));
        let path = format!("{programs}:{}:{}", nats.display(), std::env::var("PATH").unwrap());
        // Only root may create networks.
        let is_root = rustix::process::geteuid().is_root();
        let mut command = Command::new(if is_root { "unshare" } else { "sudo" });
        command.args((!is_root).then_some("unshare"));
        command.args([
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "bash",
            "-c",
            MACHINES,
        ]);
        let mut command = in_place_of(command, &binary);
        command.env("PATH", path).env("CONFIG", root.join("packaging/nats/nats-server.conf"));
        let shell = Process::start(&mut command);
        shell.wait_for_line_with("ready");
        Self { shell, printed_lines: 0, commands: 0, _folder: folder }
    }

    /// Runs a command on a machine. Without shown output it must succeed; shown lines must be printed,
    /// with other lines in between.
    #[track_caller]
    fn run(&mut self, machine: &str, command: &str, shown: &[String], location: &str) {
        eprintln!("{location}: {machine}$ {command}");
        self.commands += 1;
        let marker = format!("-- command {} is done: ", self.commands);
        self.shell.write(format!("{machine} {command}\n"));
        if command.contains("nats-server") {
            let wait = "until grep --quiet 'Server is ready' nats.log; do sleep 0.1; done";
            self.shell.write(format!("{machine} {wait}\n"));
        }
        let shown_at = self.shell.wait_for_lines_in_order(self.printed_lines, shown, is_same_shape);
        self.shell.write(format!("{machine} echo \"{marker}$status\"\n"));
        let line = self.shell.wait_for_line_with(&marker);
        assert!(!shown.is_empty() || line.ends_with(": 0"), "{location}: {command}: {line}");
        self.printed_lines = shown_at;
    }
}
