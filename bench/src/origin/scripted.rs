//! Pages with text and links that a script makes.
//!
//! | path | what |
//! |---|---|
//! | `/p/N` | a document without text, of 2 kB |
//! | `/s/app.js` | the script of all pages, 300 kB, may be cached |
//! | `/s/style.css` | the style of all pages, may be cached |
//! | `/d/N/0` to `/d/N/2` | text and links of a page, JSON |

use std::fmt::Write;

/// Text of all pages.
pub(super) const FILLER: &str =
    "A crawler that waits for an event requests a page once, and not every minute. ";

/// Parts of the data of a page.
pub(super) const DATA_PARTS: u32 = 3;

/// Bytes of the script.
const SCRIPT_BYTES: usize = 300_000;

/// A page calls one in this many functions of the script.
const FUNCTIONS_PER_CALL: usize = 10;

/// Bytes of text with each link.
const TEXT_BYTES: usize = 200;

/// Appends the rest of a document to its title.
pub(super) fn finish_document(html: &mut String, page: u32, page_bytes: usize) {
    let _ = write!(
        html,
        "</title>\n<link rel=\"stylesheet\" href=\"/s/style.css\">\n\
         <script defer src=\"/s/app.js\"></script>\n</head>\n\
         <body><div id=\"root\" data-page=\"{page}\"></div>\n<!-- "
    );
    let end = " -->\n</body>\n</html>\n";
    let left = page_bytes.saturating_sub(html.len() + end.len());
    html.extend(FILLER.chars().cycle().take(left));
    html.push_str(end);
}

/// The script: many small functions, as a library has them, and the code that makes a page.
pub(super) fn script() -> String {
    let mut script = "\"use strict\";\nconst library = [];\n".to_owned();
    for number in 0.. {
        if script.len() >= SCRIPT_BYTES {
            break;
        }
        let _ = writeln!(
            script,
            "library.push(function hash{number}(text) {{ let sum = {number}; \
             for (let i = 0; i < text.length; i++) \
             sum = (sum * 31 + text.charCodeAt(i)) % 65521; return sum; }});"
        );
    }
    let _ = write!(
        script,
        r#"const root = document.getElementById("root");
const load = async (part) => (await fetch(`/d/${{root.dataset.page}}/${{part}}`)).json();
Promise.all(Array.from({{ length: {DATA_PARTS} }}, (_, part) => load(part))).then((parts) => {{
  let sum = 0;
  for (let i = 0; i < library.length; i += {FUNCTIONS_PER_CALL}) sum += library[i](parts[0][0].text);
  for (const {{ href, name, text }} of parts.flat()) {{
    const line = document.createElement("p");
    line.className = "line";
    const link = document.createElement("a");
    link.href = href;
    link.textContent = name;
    line.append(link, " ", text);
    root.append(line);
  }}
  root.dataset.sum = sum;
}});
"#
    );
    script
}

/// The style of all pages.
pub(super) const STYLE: &str = "body { margin: 2em; font: 16px/1.5 sans-serif; }\n\
    .line { max-width: 40em; padding: 0.5em; border-bottom: 1px solid #ccc; }\n\
    .line a { color: #036; font-weight: bold; }\n";

/// One part of the data of a page with links to these pages. Each of them is in one part.
pub(super) fn data(targets: impl Iterator<Item = u32>, part: u32) -> String {
    let text: String = FILLER.chars().cycle().take(TEXT_BYTES).collect();
    let own = targets.zip((0..DATA_PARTS).cycle()).filter(|(_, of)| *of == part);
    let lines = own.map(|(target, _)| {
        format!("{{\"href\":\"/p/{target}\",\"name\":\"Page {target}\",\"text\":\"{text}\"}}")
    });
    format!("[{}]", lines.collect::<Vec<_>>().join(",\n"))
}
