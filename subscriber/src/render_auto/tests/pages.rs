//! Verdicts on pages as sites and frameworks write them.

use RenderCause::{Declared, EmptyRoot, LittleText, Noscript, ScriptLinks};
use Verdict::{Maybe, No, Render};

use super::*;

/// What a page is, the verdict, and its HTML.
type Example = (&'static str, Verdict, String);

/// A document with this head and body.
fn document(head: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>A page</title>\n\
         {head}\n</head>\n<body>\n{body}\n</body></html>\n"
    )
}

/// Paragraphs with at least this many characters.
fn prose(chars: usize) -> String {
    let sentence = "The harbour was rebuilt after the flood of that winter, with higher walls. ";
    format!("<p>{}</p>\n", sentence.repeat(chars / 60 + 1))
}

/// A menu with this many links.
fn menu(links: usize) -> String {
    let items = (0..links).map(|n| format!("<li><a href=\"/section/{n}\">Section {n}</a></li>"));
    format!("<nav><ul>{}</ul></nav>\n", items.collect::<Vec<_>>().concat())
}

/// This many scripts of other files.
fn scripts(files: usize) -> String {
    let files = (0..files).map(|n| format!("<script src=\"/assets/{n}.js\" defer></script>\n"));
    files.collect::<Vec<_>>().concat()
}

/// A script in the page with at least this many bytes.
fn inline_script(bytes: usize) -> String {
    format!("<script>{}</script>\n", "window.state = window.state || {}; ".repeat(bytes / 30 + 1))
}

/// What an application of `create-react-app` shows without scripts.
const ENABLE: &str = "<noscript>You need to enable JavaScript to run this app.</noscript>";
const PIXEL: &str = "<noscript><img height=\"1\" width=\"1\" style=\"display:none\" \
    src=\"https://stats.example/tr?id=1&noscript=1\"></noscript>";

fn article() -> String {
    format!("{}<article><h1>The harbour</h1>{}</article>{}", menu(12), prose(3000), menu(5))
}

/// Shells of applications, as frameworks write them.
fn frameworks() -> Vec<Example> {
    let shell = |head: &str, body: &str| document(&format!("{}{head}", scripts(1)), body);
    vec![
        ("React", Render(EmptyRoot), shell("", &format!("{ENABLE}<div id=\"root\"></div>"))),
        (
            "React with Vite",
            Render(EmptyRoot),
            document(
                "<script type=\"module\" crossorigin src=\"/assets/index-4f1c.js\"></script>\
                 <link rel=\"modulepreload\" href=\"/assets/vendor-99ab.js\">",
                "<div id=\"root\"></div>",
            ),
        ),
        (
            "Vue with a splash screen",
            Render(EmptyRoot),
            shell(
                "",
                "<div id=app><div class=splash><div class=dot></div><p>Loading…</p></div></div>",
            ),
        ),
        (
            "Next without a server",
            Render(EmptyRoot),
            document(
                &scripts(6),
                "<div id=\"__next\"></div><script id=\"__NEXT_DATA__\" type=\"application/json\">\
                 {\"props\":{\"pageProps\":{}},\"page\":\"/\",\"buildId\":\"a1\"}</script>",
            ),
        ),
        (
            "Nuxt without a server",
            Render(EmptyRoot),
            document(
                &scripts(2),
                &format!(
                    "<div id=\"__nuxt\"></div><div id=\"teleports\"></div>{}",
                    inline_script(300)
                ),
            ),
        ),
        (
            "Angular",
            Render(EmptyRoot),
            document(
                "<base href=\"/\"><link rel=\"stylesheet\" href=\"styles.css\">",
                "<app-root></app-root><script src=\"polyfills.js\" type=\"module\"></script>\
                 <script src=\"main.js\" type=\"module\"></script>",
            ),
        ),
        ("Svelte", Render(EmptyRoot), shell("", "<div id=\"svelte\"></div>")),
        (
            "SvelteKit, which loads its scripts from a script in the page",
            Render(LittleText),
            document(
                "<link rel=\"modulepreload\" href=\"/_app/start.js\">",
                "<div style=\"display: contents\"><script>{ const element = \
                 document.currentScript.parentElement; import(\"/_app/start.js\")\
                 .then((kit) => kit.start(element)); }</script></div>",
            ),
        ),
        (
            "Ember",
            Render(LittleText),
            document(
                "<meta name=\"shop/config/environment\" content=\"%7B%22locationType%22%3A%22x%22%7D\">",
                "<script src=\"/assets/vendor.js\"></script><script src=\"/assets/shop.js\"></script>\
                 <div id=\"ember-basic-dropdown-wormhole\"></div>",
            ),
        ),
        ("Quasar", Render(EmptyRoot), document(&scripts(2), "<div id=\"q-app\"></div>")),
    ]
}

/// Other pages that lack their content.
fn shells() -> Vec<Example> {
    vec![
        (
            "an application between a header and a footer from the server",
            Render(EmptyRoot),
            document(
                &scripts(3),
                &format!("{}<div id=\"app\"></div><footer>{}</footer>", menu(8), prose(600)),
            ),
        ),
        (
            "an application whose element has another name",
            Render(Noscript),
            document(
                &scripts(1),
                &format!(
                    "<main id=\"shop\"></main><footer>{}{}</footer>{ENABLE}",
                    menu(4),
                    prose(300)
                ),
            ),
        ),
        (
            "a notice in another language",
            Render(Noscript),
            document(
                &scripts(1),
                &format!(
                    "{}<noscript>Bitte JavaScript einschalten.</noscript>{}",
                    menu(5),
                    prose(300)
                ),
            ),
        ),
        (
            "one that declares itself",
            Render(Declared),
            document(&format!("<meta name=\"fragment\" content=\"!\">{}", scripts(1)), &menu(6)),
        ),
        (
            "views behind #!",
            Render(ScriptLinks),
            document(
                &scripts(2),
                "<ul><li><a href=\"#!/products\">Products</a><li><a href=\"#!/about\">About</a>\
                 <li><a href=\"/imprint\">Imprint</a></ul><p>A shop for tea and for all that one \
                 needs to make it. Since 1987. Our shop in the old town is open every day from nine \
                 to six, on Sundays until noon, and in winter until five. Parcels leave on weekdays.",
            ),
        ),
        (
            "a page that a script in it makes",
            Render(LittleText),
            document("", &format!("<h1>Results</h1><div id=list></div>{}", inline_script(4000))),
        ),
        (
            "a page that only goes to another one",
            Render(LittleText),
            document("<script>location.replace('/start')</script>", ""),
        ),
    ]
}

/// Articles.
fn articles() -> Vec<Example> {
    vec![
        ("an article", No, document(&scripts(4), &article())),
        ("an article with very many scripts", No, document(&scripts(60), &article())),
        ("an article without scripts", No, document("", &article())),
        (
            "an article with a pixel for browsers without scripts",
            No,
            document(&scripts(3), &format!("{PIXEL}{}", article())),
        ),
        (
            "a short text with that pixel",
            No,
            document(&scripts(1), &format!("{PIXEL}{}{}", menu(3), prose(500))),
        ),
        (
            "an article that says that its comments need JavaScript",
            No,
            document(
                &scripts(3),
                &format!("{}<noscript>Enable JavaScript to see comments.</noscript>", article()),
            ),
        ),
        (
            "Next with its server",
            No,
            document(
                &scripts(8),
                &format!(
                    "<div id=\"__next\"><div>{}</div></div>\
                     <script id=\"__NEXT_DATA__\" type=\"application/json\">{{\"props\":{{}}}}</script>",
                    article()
                ),
            ),
        ),
        (
            "Nuxt with its server",
            No,
            document(
                &scripts(3),
                &format!("<div id=\"__nuxt\">{}</div>{}", article(), inline_script(20_000)),
            ),
        ),
        (
            "an article with an empty element for a chat",
            Maybe,
            document(&scripts(3), &format!("{}<div id=\"root\"></div>", article())),
        ),
    ]
}

/// Texts in several languages, and lists.
fn texts() -> Vec<Example> {
    let notice = |body: &str| document(&scripts(1), body);
    vec![
        ("a very long text without links", No, document(&scripts(2), &prose(200_000))),
        (
            "a text in Cyrillic letters",
            No,
            notice(&format!(
                "{}<p>{}",
                menu(2),
                "Гавань восстановили после зимнего потопа. ".repeat(8)
            )),
        ),
        (
            "a short text in Japanese",
            No,
            notice(&format!(
                "<h1>港の歴史</h1><p>{}",
                "その冬の洪水のあと、港はより高い壁で再建された。町の人々は今も毎年その日を祝う。"
                    .repeat(2)
            )),
        ),
        (
            "a text in Arabic letters",
            No,
            notice(&format!("<p dir=rtl>{}", "أعيد بناء الميناء بعد فيضان ذلك الشتاء. ".repeat(9))),
        ),
        ("an index with three links", Maybe, notice(&format!("<h1>Index</h1>{}", menu(3)))),
        ("that index without scripts", No, document("", &format!("<h1>Index</h1>{}", menu(3)))),
        (
            "a list of files",
            No,
            document(
                "",
                "<h1>Index of /</h1><pre><a href=\"../\">../</a>\n<a href=a.tar>a.tar</a></pre>",
            ),
        ),
    ]
}

/// Pages with little text, and their content.
fn short_pages() -> Vec<Example> {
    let notice = |body: &str| document(&scripts(1), body);
    vec![
        (
            "an image and its neighbours",
            Maybe,
            notice("<a href=/i/1>Previous</a><img src=/i/2.jpg alt=Boats><a href=/i/3>Next</a>"),
        ),
        ("an image alone", No, document("", "<img src=\"2.jpg\">")),
        (
            "a form for a name and a password",
            Maybe,
            notice(
                "<div id=app><form method=post><label>Name <input name=name></label>\
                 <label>Password <input type=password name=p></label><button>Log in</button></form></div>",
            ),
        ),
        (
            "an error from the server",
            No,
            document("", "<h1>Not found</h1><p>The page was moved. <a href=/>Start</a></p>"),
        ),
        (
            "an error with a counter of visits in the page",
            No,
            document("", &format!("<h1>Not found</h1><a href=/>Start</a>{}", inline_script(400))),
        ),
        (
            "a question about cookies in front of the page",
            Maybe,
            document(
                &scripts(7),
                &format!("<h1>Your consent</h1>{}<button>Agree</button><a href=/p>Policy</a>", prose(500)),
            ),
        ),
        (
            "a question about cookies with few scripts",
            No,
            document(&scripts(2), &format!("<h1>Your consent</h1>{}<a href=/p>Policy</a>", prose(500))),
        ),
        (
            "frames",
            No,
            "<html><head><title>A manual</title></head><frameset cols=\"20%,*\"><frame src=toc.html>\
             <frame src=intro.html></frameset></html>"
                .to_owned(),
        ),
        (
            "frames with a script",
            Maybe,
            "<html><head><script src=a.js></script></head><frameset cols=\"20%,*\">\
             <frame src=toc.html><frame src=intro.html></frameset></html>"
                .to_owned(),
        ),
        (
            "a feed for readers",
            No,
            document(
                &scripts(1),
                &(0..30)
                    .map(|n| format!("<h2><a href=/{n}>Item {n}</a></h2><p>Two boats came in.</p>"))
                    .collect::<Vec<_>>()
                    .concat(),
            ),
        ),
        (
            "slides with links to places in the page",
            No,
            document(&scripts(2), &format!("{}<a href=\"#2\">2</a><a href=\"#3\">3</a>", prose(900))),
        ),
        ("nothing at all", No, String::new()),
        ("an empty body", No, document("", "")),
    ]
}

#[test]
fn pages_are_judged_by_their_signs() {
    let pages = [frameworks(), shells(), articles(), texts(), short_pages()].concat();
    for (what, expected, html) in pages {
        let signs = read("https://site.example/", &html).signs.unwrap();
        assert_eq!(Verdict::of(&signs), expected, "{what}: {signs:?}");
    }
}

#[test]
fn every_reason_to_render_has_an_example() {
    let pages = [frameworks(), shells()].concat();
    let reasons: Vec<_> = pages.into_iter().map(|(_, verdict, _)| verdict).collect();
    for reason in RenderCause::ALL {
        // `HostGained` depends on other pages too, so it is not a verdict.
        assert!(reason == RenderCause::HostGained || reasons.contains(&Render(reason)), "{reason}");
    }
}
