//! The pages of these tests.

const HTML: &str = "text/html";
const SCRIPT: &str = "text/javascript";
const DATA: &str = "application/json";

/// The content type and the body at a path; `None` if there is no such page.
pub(crate) fn page(path: &str) -> Option<(&'static str, String)> {
    if let Some(name) = path.strip_prefix("/data/") {
        return Some((DATA, name.to_owned()));
    }
    if let Some((_, script)) = ANSWERS.iter().find(|(known, _)| *known == path) {
        return Some((
            HTML,
            format!("<!DOCTYPE html><p id=p>text</p><script>{LATE}{script}</script>"),
        ));
    }
    let (_, kind, body) = PAGES.iter().find(|(known, ..)| *known == path)?;
    let head = if *kind == HTML { "<!DOCTYPE html><title>t</title><body>" } else { "" };
    Some((*kind, format!("{head}{body}")))
}

/// What the scripts below use.
const LATE: &str = "
    const later = fetch('/data/first').then(it => it.text());
    const show = () => { document.body.innerHTML += '<a href=/shown>shown</a>'; };
    const answer = request => new Promise((resolve, reject) => {
        request.onsuccess = () => resolve(request.result);
        request.onerror = reject;
    });
    const store = async name => {
        const opening = indexedDB.open(name, 1);
        opening.onupgradeneeded = () => opening.result.createObjectStore('s');
        const database = await answer(opening);
        await answer(database.transaction('s', 'readwrite').objectStore('s').put('value', 'key'));
        return answer(database.transaction('s').objectStore('s').get('key'));
    };
    const seen = element => new Promise(resolve => new IntersectionObserver(entries => {
        if (entries.some(it => it.isIntersecting)) resolve();
    }).observe(element));";

/// Pages with a link that needs an answer of the next frame, or of the browser itself: the path and
/// the script.
pub(crate) const ANSWERS: &[(&str, &str)] = &[
    ("/indexed-db", "later.then(() => store('a')).then(show)"),
    ("/indexed-dbs", "later.then(() => store('a')).then(() => store('b')).then(show)"),
    (
        "/indexed-db-then-fetch",
        "later.then(() => store('a')).then(() => fetch('/data/x')).then(show)",
    ),
    (
        "/cache",
        "later.then(() => caches.open('c')).then(async cache => {
            await cache.put('/k', new Response('value'));
            await (await cache.match('/k')).text();
            show();
        })",
    ),
    ("/lock", "later.then(() => navigator.locks.request('l', show))"),
    ("/seen", "setTimeout(() => seen(p).then(show), 300)"),
    ("/seen-after-fetch", "later.then(() => seen(p)).then(show)"),
    ("/resized", "later.then(() => new ResizeObserver(show).observe(p))"),
    (
        "/frames",
        "later.then(() => requestAnimationFrame(() => requestAnimationFrame(() =>
            requestAnimationFrame(show))))",
    ),
    ("/transition", "later.then(() => document.startViewTransition(show))"),
    (
        "/cookie-store",
        "later.then(() => cookieStore.set('a', 'b')).then(() => cookieStore.get('a')).then(show)",
    ),
    (
        "/private-file",
        "later.then(() => navigator.storage.getDirectory()).then(async folder => {
            const file = await folder.getFileHandle('f', { create: true });
            const writer = await file.createWritable();
            await writer.write('value');
            await writer.close();
            await (await file.getFile()).text();
            show();
        })",
    ),
    ("/estimate", "later.then(() => navigator.storage.estimate()).then(show)"),
    (
        "/channel",
        "later.then(() => {
        new BroadcastChannel('c').onmessage = show;
        new BroadcastChannel('c').postMessage('');
    })",
    ),
    (
        "/rewritten",
        "later.then(() => {
            document.open();
            document.write('<img src=data:,><script>onload = () => { document.body.innerHTML = \"<a href=/shown>\" }</' + 'script>');
            document.close();
        })",
    ),
    ("/idle", "later.then(() => requestIdleCallback(show))"),
];

/// The path, the content type and the body of each response; for HTML, the content of `<body>`.
/// `CANARY` and `OTHER` stand for the addresses of the canary and of another site.
const PAGES: &[(&str, &str, &str)] = &[
    ("/plain", HTML, "plain"),
    (
        "/scripts",
        HTML,
        "<main></main><img src=/picture.png><script>
        fetch('/list.json').then(it => it.json()).then(list => {
            const main = document.querySelector('main');
            for (const path of list) main.innerHTML += `<a href='${path}'>${path}</a>`;
            const host = document.createElement('div');
            host.attachShadow({ mode: 'open' }).innerHTML = '<a rel=nofollow href=/in-shadow>';
            document.body.append(host);
            document.title = 'made by a script';
            history.pushState(null, '', '/pushed');
            throw new Error('thrown here');
        })</script>",
    ),
    ("/list.json", DATA, "[\"/made\"]"),
    (
        "/parts",
        HTML,
        "<iframe src=/frame></iframe><iframe src=http://OTHER/other-frame></iframe><script>
        const add = text => document.body.append(`[${text}] `);
        onmessage = event => add(event.data);
        new Worker('/worker.js').onmessage = event => add(event.data);
        new SharedWorker('/shared.js').port.onmessage = event => add(event.data);
        navigator.serviceWorker.register('/service.js');
        navigator.serviceWorker.onmessage = event => add(event.data);
        navigator.serviceWorker.ready.then(it => it.active.postMessage(''));
        </script>",
    ),
    (
        "/frame",
        HTML,
        "<script>fetch('/data/frame').then(it => it.text()).then(it => parent.postMessage(it, '*'))</script>",
    ),
    (
        "/other-frame",
        HTML,
        "<script>fetch('/data/other-site').then(it => it.text()).then(it => parent.postMessage(it, '*'))</script>",
    ),
    ("/worker.js", SCRIPT, "fetch('/data/worker').then(it => it.text()).then(postMessage)"),
    (
        "/shared.js",
        SCRIPT,
        "onconnect = event => fetch('/data/shared-worker').then(it => it.text()).then(it => event.ports[0].postMessage(it))",
    ),
    (
        "/service.js",
        SCRIPT,
        "onmessage = event => fetch('/data/service-worker').then(it => it.text()).then(it => event.source.postMessage(it))",
    ),
    ("/dialogs", HTML, "before dialogs<script>onload = () => { while (true) alert(1); }</script>"),
    ("/endless", HTML, "before the loop<script>onload = () => { while (true); }</script>"),
    ("/waits", HTML, "waits<script>fetch('/never-answered')</script>"),
    ("/ticker", HTML, "tick<script>setInterval(() => document.body.append('.'), 10)</script>"),
    (
        "/memory",
        HTML,
        "<script>const kept = []; setInterval(() => {
            document.body.append('.');
            for (let i = 0; i < 4; i++) kept.push(new Uint8Array(16 << 20).fill(7));
        }, 5)</script>",
    ),
    (
        "/heap",
        HTML,
        "<script>const kept = []; setInterval(() => {
            document.body.append('.');
            for (let i = 0; i < 4; i++) kept.push(new Array(1000000).fill(i));
        }, 5)</script>",
    ),
    (
        "/counted",
        HTML,
        "<script>fetch('/data/part' + location.search).then(it => it.text())
        .then(it => document.body.append('counted: ' + it))</script>",
    ),
    (
        "/together",
        HTML,
        "<script>fetch('/data/together' + location.search).then(it => it.text())
        .then(it => document.body.append('counted: ' + it))</script>",
    ),
    // The heap of its renderer overflows at once.
    (
        "/crashes",
        HTML,
        "<script>const kept = []; while (true) kept.push(new Array(30000000));</script>",
    ),
    (
        "/late",
        HTML,
        "<script>setTimeout(async () => {
            const list = await (await fetch('/list.json')).json();
            setTimeout(() => document.body.append('late: ' + list), 800);
        }, 900)</script>",
    ),
    (
        "/slow",
        HTML,
        "<script>setTimeout(() => { clearInterval(ticker); document.body.append('done'); }, 12000);
        const ticker = setInterval(() => document.body.append('.'), 100)</script>",
    ),
    (
        "/printed",
        HTML,
        "<div style='height: 5000px'></div><img loading=lazy src=/data/below>
        <div hidden><img loading=lazy src=/data/hidden></div>
        <script>onbeforeprint = () => { new Image().src = '/data/at-printing'; }</script>",
    ),
    ("/printed-frame", HTML, "<div style='height: 5000px'></div><iframe loading=lazy src=/frame>"),
    (
        "/printed-never",
        HTML,
        "<div style='height: 5000px'></div><img loading=lazy src=/never-answered>",
    ),
    ("/away", HTML, "stays<script>onload = () => { location = '/never'; }</script>"),
    ("/blank", HTML, "goes<script>onload = () => { location = 'about:blank'; }</script>"),
    (
        "/opens",
        HTML,
        "stays<a download href=/never-file></a><script>
        open('/never-popup'); document.querySelector('a').click();</script>",
    ),
    ("/closes", HTML, "closes<script>close()</script>"),
    (
        "/flood",
        HTML,
        "flood<script>setInterval(() => { for (let i = 0; i < 20000; i++) console.error(i); }, 1)</script>",
    ),
    (
        "/count",
        HTML,
        "<script>
        const visits = localStorage.visits = 1 + +(localStorage.visits || 0);
        const cookie = 1 + +(document.cookie.split('=')[1] || 0);
        document.cookie = `count=${cookie}`;
        document.body.append(`visits: ${visits}, cookie: ${cookie}`);</script>",
    ),
    (
        "/canary",
        HTML,
        "<link rel=preconnect href=http://CANARY/><link rel=dns-prefetch href=http://CANARY/>
        <link rel=prefetch href=http://CANARY/prefetch><img src=http://CANARY/image>
        <video src=http://CANARY/video></video><a ping=http://CANARY/ping href='#x'>a</a>
        <script type=speculationrules>{\"prefetch\":[{\"urls\":[\"http://CANARY/rules\"]}],
        \"prerender\":[{\"urls\":[\"http://CANARY/prerender\"]}]}</script>
        <script>
        const attempt = action => { try { action(); } catch (error) { console.error(error); } };
        attempt(() => new WebSocket('ws://CANARY/socket'));
        attempt(() => new WebTransport('https://CANARY/transport'));
        attempt(() => new EventSource('http://CANARY/events'));
        attempt(() => navigator.sendBeacon('http://CANARY/beacon', 'x'));
        attempt(() => fetch('http://CANARY/post', { method: 'POST', body: 'x' }));
        attempt(() => fetch('http://CANARY/alive', { method: 'POST', keepalive: true }));
        attempt(() => document.querySelector('a').click());
        attempt(() => open('http://CANARY/popup'));
        attempt(() => {
            const peer = new RTCPeerConnection({ iceServers: [
                { urls: 'stun:CANARY' },
                { urls: 'turn:CANARY?transport=tcp', username: 'a', credential: 'b' },
            ] });
            peer.createDataChannel('x');
            peer.createOffer().then(it => peer.setLocalDescription(it));
        });
        attempt(() => {
            const form = document.createElement('form');
            form.method = 'post'; form.action = 'http://CANARY/form';
            document.body.append(form); form.submit();
        });
        setTimeout(() => document.body.append('tried all'), 2500);
        setInterval(() => document.body.append('.'), 100);
        </script>",
    ),
];
