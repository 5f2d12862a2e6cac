//! The scripts in `findings/` have the form that its README.md describes. They are not run.

use std::fs;
use std::path::Path;

const FIELDS: [&str; 5] = ["Package", "Input", "Guess", "Behaviour", "Output"];

#[test]
fn findings_have_their_form() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("findings");
    let readme = fs::read_to_string(folder.join("README.md")).unwrap();
    let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    let scripts: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|end| end == "sh")).collect();
    assert_eq!(scripts.len(), readme.matches(".sh](").count(), "README.md lists each script");
    for script in scripts {
        let name = script.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&script).unwrap();
        assert!(readme.contains(&format!("({name})")), "README.md does not list {name}");
        let lines = text.lines().skip(1).map_while(|line| line.strip_prefix("# "));
        let (mut fields, mut output) = (Vec::new(), Vec::new());
        for line in lines {
            match line.split_once(':').filter(|(field, _)| FIELDS.contains(field)) {
                Some((field, _)) => fields.push(field),
                None if fields.last() == Some(&"Output") => output.push(line.trim_start()),
                None => {}
            }
        }
        assert_eq!(fields, FIELDS, "{name}");
        let code = text.split_once("\nset -eu\n").map_or("", |(_, code)| code);
        for line in output {
            let is_compared = code.contains(line) || code.replace('\\', "").contains(line);
            assert!(is_compared, "{name} does not compare {line:?}");
        }
        assert!(code.contains("$(mktemp -d)") && code.contains("trap "), "{name}: folder");
        assert!(code.contains("==") || code.contains('@'), "{name} pins no version");
        for foreign in ["tidings", "/home/", "/root/"] {
            assert!(!text.to_lowercase().contains(foreign), "{name} mentions {foreign}");
        }
    }
}
