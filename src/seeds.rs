//! Where a crawl begins: URLs of the command line, and those of a file, one a line.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use tidings_protocol::{CanonicalUrl, URL_BYTES_MAX};

use crate::job::seed;

/// Seeds of one job: at about 100 bytes each, a gigabyte.
const SEEDS_MAX: usize = 10_000_000;

/// Bytes of a line, with its end and blanks around the URL.
const LINE_BYTES_MAX: usize = 2 * URL_BYTES_MAX;

/// What stands for standard input.
const STDIN: &str = "-";

/// All seeds, each as it was given; the error says which one is wrong, and where it stands.
pub(crate) fn read(
    urls: &[String],
    file: Option<&Path>,
) -> Result<Vec<CanonicalUrl<'static>>, String> {
    let mut seeds = urls.iter().map(|text| seed(text)).collect::<Result<Vec<_>, _>>()?;
    let Some(file) = file else { return Ok(seeds) };
    let (name, before) = (file.display().to_string(), seeds.len());
    if file == Path::new(STDIN) {
        lines(io::stdin().lock(), "standard input", &mut seeds)?;
    } else {
        let opened = File::open(file).map_err(|error| format!("cannot read {name}: {error}"))?;
        lines(BufReader::new(opened), &name, &mut seeds)?;
    }
    if seeds.len() == before {
        return Err(format!("{name} holds no URL; write one on each line"));
    }
    Ok(seeds)
}

fn lines(
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
                return Err(format!("{name}:{number}: the line is longer than any URL"));
            }
            _ => {}
        }
        let text =
            str::from_utf8(&line).map_err(|_| format!("{name}:{number}: it is not UTF-8"))?;
        // Editors of some systems put a mark of the byte order in front of everything.
        let text = text.strip_prefix('\u{feff}').filter(|_| number == 1).unwrap_or(text).trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if seeds.len() == SEEDS_MAX {
            return Err(format!("{name}:{number}: a job has at most {SEEDS_MAX} seeds"));
        }
        seeds.push(seed(text).map_err(|error| format!("{name}:{number}: {error}"))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: impl AsRef<[u8]>) -> Result<Vec<String>, String> {
        let mut seeds = Vec::new();
        lines(text.as_ref(), "f", &mut seeds)?;
        Ok(seeds.iter().map(|seed| seed.as_str().to_owned()).collect())
    }

    #[test]
    fn a_seed_a_line_with_blanks_and_comments_between() {
        let text =
            "\u{feff}http://a.example/\r\n\n  # no\n\t http://b.example/#x \nhttp://c.example";
        let seeds = ["http://a.example/", "http://b.example/", "http://c.example/"];
        assert_eq!(read_text(text).unwrap(), seeds);
        assert_eq!(read_text("").unwrap(), [""; 0]);
    }

    #[test]
    fn the_first_line_that_is_no_url_is_named() {
        let wrong = read_text("http://a.example/\n\nb.example\nftp://c.example/").unwrap_err();
        assert_eq!(wrong, "f:3: b.example is no URL; did you mean https://b.example ?");
        assert!(read_text(b"\n\xff\n").unwrap_err().starts_with("f:2: it is not UTF-8"));
        let long = format!("http://a.example/{}\n", "x".repeat(LINE_BYTES_MAX));
        assert!(read_text(&long).unwrap_err().starts_with("f:1: the line is longer"));
        let blank = " ".repeat(LINE_BYTES_MAX - 1) + "\nx";
        assert!(read_text(&blank).unwrap_err().starts_with("f:2: x is no URL"));
    }

    #[test]
    fn a_file_that_cannot_be_read_or_is_empty_is_named() {
        let gone = read(&[], Some(Path::new("/no/such/file"))).unwrap_err();
        assert!(gone.starts_with("cannot read /no/such/file: "), "{gone}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let typed = ["http://a.example/".to_owned()];
        let empty = read(&typed, Some(file.path())).unwrap_err();
        assert!(empty.contains("holds no URL"), "{empty}");
    }
}
