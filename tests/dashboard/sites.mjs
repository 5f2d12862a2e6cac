// Pages of other sites try to make the browser read from a broker or change something there.
// usage: sites.mjs ADDRESS [CERTIFICATE KEY]

import { createServer } from 'node:http';
import { main, openTab, until } from './browser.mjs';

const [address, certPath, keyPath] = process.argv.slice(2);

// Each runs in a page of the other site. It returns what that page has learnt, or null, after the
// browser has the answer.
const WAYS = {
  'a form': (at, { submit }) => submit(`${at}topics/log`, 'frame'),
  'a form that navigates': (at, { submit }) => submit(`${at}topics/log`, '_blank'),
  'fetch without CORS': (at, { fetched }) =>
    fetched(`${at}topics/log`, { method: 'POST', mode: 'no-cors', body: 'forged' }),
  'fetch with CORS': (at, { fetched }) => fetched(`${at}topics/log`, { method: 'POST', body: 'forged' }),
  'fetch with CORS that reads': (at, { fetched }) => fetched(`${at}topics/log?from=first&wait=0`),
  'fetch with a preflight': (at, { fetched }) => fetched(`${at}topics/forged`, {
    method: 'PUT', body: '{}', headers: { 'Content-Type': 'application/json' },
  }),
  'a beacon': at => {
    navigator.sendBeacon(`${at}topics/log`, 'forged');
    return null;
  },
  'an event source': (at, { loaded }) => {
    const source = new EventSource(`${at}topics/log/events?from=first`, { withCredentials: true });
    source.onmessage = event => source.dispatchEvent(new MessageEvent('load', { data: event.data }));
    return loaded(source).finally(() => source.close());
  },
  'an image': (at, { element }) => element('img', { src: `${at}topics/log?from=first&wait=0` }),
  'a script': (at, { element }) => element('script', { src: `${at}topics/log?from=first&wait=0` }),
  'a style sheet': (at, { element }) => element('link', { rel: 'stylesheet', href: `${at}topics` }),
  'an object': (at, { element }) => element('object', { data: `${at}topics`, type: 'text/html' }),
  'a frame': (at, { framed }) => framed(at),
  'a frame of an answer': (at, { framed }) => framed(`${at}topics/log?from=first&wait=0`),
  'a window': (at, { opened }) => opened(`${at}topics/log?from=first&wait=0`),
  'a prefetch': (at, { element }) => element('link', { rel: 'prefetch', href: `${at}topics` }),
  'a worker': (at, { loaded }) => {
    const code = `fetch('${at}topics/log', { credentials: 'include', method: 'POST', body: 'forged' })
      .then(answer => answer.text()).then(postMessage, () => postMessage(null))`;
    const worker = new Worker(URL.createObjectURL(new Blob([code])));
    return new Promise(resolve => {
      worker.onmessage = event => resolve(event.data);
    });
  },
  'a WebSocket': (at, { loaded }) => {
    const socket = new WebSocket(`${at.replace('http', 'ws')}topics/log/events`);
    socket.onopen = () => socket.dispatchEvent(new Event('load'));
    return loaded(socket);
  },
};

// In the page of the other site; also runs the way.
async function attack([way, at]) {
  const loaded = target => new Promise(resolve => {
    target.addEventListener('load', event => resolve(event.data ?? 'it was loaded'));
    target.addEventListener('error', () => resolve(null));
  });
  const element = (name, attributes) => {
    const node = Object.assign(document.createElement(name), attributes);
    document.body.append(node);
    return loaded(node);
  };
  // A frame and a window load the refusal, too; what counts is what can be read in them.
  const inside = target => {
    try {
      return target.document.documentElement.textContent || null;
    } catch {
      return null;
    }
  };
  const framed = async src => {
    const frame = document.createElement('iframe');
    const end = loaded(frame);
    frame.src = src;
    document.body.append(frame);
    await end;
    return inside(frame.contentWindow);
  };
  const opened = url => inside(window.open(url));
  const submit = (action, target) => {
    document.body.append(Object.assign(document.createElement('iframe'), { name: 'frame' }));
    const form = Object.assign(document.createElement('form'), {
      action, target, method: 'post', enctype: 'text/plain',
    });
    form.append(Object.assign(document.createElement('input'), { name: 'forged', value: 'form' }));
    document.body.append(form);
    form.submit();
    return null;
  };
  const fetched = async (url, options) => {
    try {
      return await (await fetch(url, { credentials: 'include', ...options })).text() || null;
    } catch {
      return null;
    }
  };
  const run = (0, eval)(`(${way})`);
  return run(at, { loaded, element, framed, opened, submit, fetched });
}

await main(async browser => {
  const site = createServer((_, response) => response.setHeader('Content-Type', 'text/html').end('<h1>Other'));
  await new Promise(resolve => site.listen(0, '0.0.0.0', resolve));
  const { port } = site.address();
  const context = { expected: [/./], ignoreHTTPSErrors: true };
  if (certPath) {
    context.clientCertificates = [{ origin: new URL(address).origin, certPath, keyPath }];
  }
  const tried = [];
  try {
    // Another site by name and by address, and another origin of the same site. The driver sends
    // certificates through a proxy of its own, which knows no such names.
    for (const host of [...(certPath ? [] : ['other.localhost']), '127.0.0.2', '127.0.0.1']) {
      const tab = await openTab(browser, `http://${host}:${port}/`, context);
      const ask = async path => (await tab.context.request.get(address + path)).json();
      for (const [name, way] of Object.entries(WAYS)) {
        const { refused } = await ask('stats');
        const learnt = await tab.page.evaluate(attack, [String(way), address]);
        if (learnt !== null) {
          throw new Error(`${host} has learnt by ${name}: ${learnt}`);
        }
        await until(`the refusal of ${name} from ${host}`, async () => (await ask('stats')).refused > refused);
        tried.push(`${host}: ${name}`);
      }
      // A person who follows a link sees the page, and the other site has no hold on it.
      const popup = tab.page.waitForEvent('popup');
      await tab.page.evaluate(at => {
        document.body.innerHTML = `<a href="${at}" target="_blank" rel="opener">Tidings</a>`;
      }, address);
      await tab.page.getByRole('link').click();
      const page = await popup;
      await until('the title', async () => (await page.title()).includes('Tidings'));
      if (await page.evaluate(() => window.opener !== null)) {
        throw new Error('the page of the broker knows who opened it');
      }
      if (await page.evaluate(async () => (await fetch('stats')).status) !== 200) {
        throw new Error('the broker lets nobody in, so there was nothing to refuse');
      }
      await tab.context.close();
    }
    // A name of another site that leads to the broker: the same origin for the browser.
    const name = new URL(address);
    name.hostname = 'rebound.example';
    // The page of the other site, which the name led to before, has no policy.
    const options = { expected: [/status of 403/], ignoreHTTPSErrors: true, bypassCSP: true };
    const tab = await openTab(browser, name.href, options);
    const statuses = await tab.page.evaluate(async () => [
      (await fetch('topics')).status,
      (await fetch('topics/log', { method: 'POST', body: 'forged' })).status,
    ]);
    return { tried, statuses, text: await tab.page.locator('body').innerText() };
  } finally {
    site.close();
    site.closeAllConnections();
  }
});
