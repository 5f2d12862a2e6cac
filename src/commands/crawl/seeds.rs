//! The seeds of a crawl: URLs of the command line, and those of a file with one in each line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use tidings_egress::AllowPrivate;
use tidings_protocol::{CanonicalUrl, URL_BYTES_MAX};

use crate::client::job::parse_seed;

/// The limit of seeds of a job: about 1 GB at 100 bytes each.
const SEEDS_MAX: usize = 10_000_000;

/// The longest line in bytes, with its end and spaces around the URL.
const LINE_BYTES_MAX: usize = 2 * URL_BYTES_MAX;

/// The file name that stands for standard input.
const STDIN: &str = "-";

/// All seeds, as they were given; the error names the wrong one and its place.
pub(crate) fn read(
    urls: &[String],
    file: Option<&Path>,
) -> Result<Vec<CanonicalUrl<'static>>, String> {
    let mut seeds = urls.iter().map(|text| parse_argument(text)).collect::<Result<Vec<_>, _>>()?;
    let Some(file) = file else { return Ok(seeds) };
    let (name, before) = (file.display().to_string(), seeds.len());
    if file == Path::new(STDIN) {
        read_lines(io::stdin().lock(), "standard input", &mut seeds)?;
    } else {
        let opened = File::open(file).map_err(|error| format!("cannot read {name}: {error}"))?;
        read_lines(BufReader::new(opened), &name, &mut seeds)?;
    }
    if seeds.len() == before {
        return Err(format!("{name} contains no URL; write one on each line"));
    }
    Ok(seeds)
}

/// Parses a seed of the command line.
fn parse_argument(text: &str) -> Result<CanonicalUrl<'static>, String> {
    parse_seed(text).map_err(|error| {
        // The value of that flag follows an equals sign.
        if text.contains('/') && text.parse::<AllowPrivate>().is_ok() {
            return format!(
                "{text} is not a URL; to allow this network, write --allow-private={text}"
            );
        }
        error
    })
}

fn read_lines(
    mut input: impl BufRead,
    name: &str,
    seeds: &mut Vec<CanonicalUrl<'static>>,
) -> Result<(), String> {
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let limit = LINE_BYTES_MAX as u64 + 1;
        let read = input.by_ref().take(limit).read_until(b'\n', &mut line);
        match read.map_err(|error| format!("cannot read {name}: {error}"))? {
            0 => break,
            _ if line.len() > LINE_BYTES_MAX => {
                return Err(format!(
                    "{name}:{number}: the line is longer than {LINE_BYTES_MAX} bytes"
                ));
            }
            _ => {}
        }
        let text = str::from_utf8(&line).map_err(|_| format!("{name}:{number}: not UTF-8"))?;
        // Some editors write a byte order mark at the beginning.
        let text = text.strip_prefix('\u{feff}').filter(|_| number == 1).unwrap_or(text).trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if seeds.len() == SEEDS_MAX {
            return Err(format!("{name}:{number}: a job has at most {SEEDS_MAX} seeds"));
        }
        seeds.push(parse_seed(text).map_err(|error| format!("{name}:{number}: {error}"))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: impl AsRef<[u8]>) -> Result<Vec<String>, String> {
        let mut seeds = Vec::new();
        read_lines(text.as_ref(), "f", &mut seeds)?;
        Ok(seeds.iter().map(|seed| seed.as_str().to_owned()).collect())
    }

    #[test]
    fn each_line_is_a_seed_except_blanks_and_comments() {
        let text =
            "\u{feff}http://a.example/\r\n\n  # no\n\t http://b.example/#x \nhttp://c.example";
        let seeds = ["http://a.example/", "http://b.example/", "http://c.example/"];
        assert_eq!(read_text(text).unwrap(), seeds);
        assert_eq!(read_text("").unwrap(), [""; 0]);
    }

    #[test]
    fn the_first_wrong_line_is_reported() {
        let wrong = read_text("http://a.example/\n\nb.example\nftp://c.example/").unwrap_err();
        assert_eq!(wrong, "f:3: b.example is not a URL; did you mean https://b.example ?");
        assert!(read_text(b"\n\xff\n").unwrap_err().starts_with("f:2: not UTF-8"));
        let long = format!("http://a.example/{}\n", "x".repeat(LINE_BYTES_MAX));
        assert!(read_text(&long).unwrap_err().starts_with("f:1: the line is longer"));
        let blank = " ".repeat(LINE_BYTES_MAX - 1) + "\nx";
        assert!(read_text(&blank).unwrap_err().starts_with("f:2: x is not a URL"));
    }

    #[test]
    fn a_network_is_reported_as_the_value_of_its_flag() {
        let wrong = |text: &str| read(&[text.to_owned()], None).unwrap_err();
        assert!(wrong("10.0.0.0/8").ends_with("write --allow-private=10.0.0.0/8"));
        assert!(wrong("b.example/8").ends_with("did you mean https://b.example/8 ?"));
    }

    #[test]
    fn an_unreadable_or_empty_file_is_reported() {
        let gone = read(&[], Some(Path::new("/no/such/file"))).unwrap_err();
        assert!(gone.starts_with("cannot read /no/such/file: "), "{gone}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let typed = ["http://a.example/".to_owned()];
        let empty = read(&typed, Some(file.path())).unwrap_err();
        assert!(empty.contains("contains no URL"), "{empty}");
    }
}
