//! Names that only builds with a cargo feature know. The manual describes all of them.

use std::ffi::OsString;

/// A feature, whether this build has it, and what it adds to the command line.
const NAMES: [(&str, bool, &[&str]); 6] = [
    ("bench", cfg!(feature = "bench"), &["bench"]),
    ("cluster", cfg!(feature = "cluster"), &["cluster", "--cluster"]),
    ("hub", cfg!(feature = "hub"), &["--hub"]),
    ("postgres", cfg!(feature = "postgres"), &["--postgres"]),
    ("top", cfg!(feature = "top"), &["top"]),
    ("zeromq", cfg!(feature = "_zmq"), &["bridge", "--zmq-pub", "--zmq-pull"]),
];

/// What to do about a word of the command line that this build does not know.
pub(super) fn hint(words: &[OsString]) -> Option<String> {
    let words = words.iter().skip(1).filter_map(|word| word.to_str()?.split('=').next());
    let absent = |word: &str| {
        NAMES.iter().find(|(_, is_here, names)| !is_here && names.contains(&word)).map(
            |(feature, ..)| {
                format!(
                    "; this build lacks it: build with `--features {feature}`, or install a package"
                )
            },
        )
    };
    words.into_iter().find_map(absent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    /// `.ci/long features` runs this test without the features.
    #[test]
    fn an_absent_name_is_explained_and_a_present_one_is_known() {
        for (feature, is_here, names) in NAMES {
            for name in names {
                let words = ["tidings", name, "--help"].map(OsString::from);
                let failure =
                    cli::parse(words).expect_err("help, or unknown").text().unwrap_or_default();
                let is_explained = failure.contains(&format!("--features {feature}`"));
                assert_eq!(is_explained, !is_here, "{name}: {failure}");
            }
        }
    }
}
