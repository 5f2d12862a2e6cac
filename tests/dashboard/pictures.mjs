// The pictures of docs/dashboard.md. UPDATE=1 in the environment takes them, after some minutes of
// a crawl. Without it, a page fails that has other roles and names than when it was taken.
// usage: pictures.mjs ADDRESS REPOSITORY ORIGIN..

import { ok } from 'node:assert/strict';
import { statSync } from 'node:fs';
import { main, openTab } from './browser.mjs';
import { IS_UPDATE, Outlines } from './outline.mjs';
import { show } from './pages.mjs';

const [address, repository, ...origins] = process.argv.slice(2);
const outlines = new Outlines(`${repository}/tests/dashboard/pictures.json`);
const BYTES_MAX = 100_000;
const CRAWL_MS = 150_000;

// Of each: the page, and what differs from a light one of 1280 x 740 px. `part` is shown alone.
const PICTURES = {
  overview: { page: ['#/', 'Newest jobs'] },
  topic: { page: ['#/topics/orders', 'mailer'], height: 860 },
  hosts: { page: ['#/groups/crawlers', 'Retry-After'], part: 'Hosts that hold it up' },
  job: { page: ['#/jobs/catalogue', 'Retry-After'] },
  crawlers: { page: ['#/crawlers', '2 workers connected'], height: 420 },
  dead: { page: ['#/dead', '/busy/3'], height: 560 },
  'host-dark': {
    page: ['#/groups/crawlers/hosts/shop.example', 'done'], colorScheme: 'dark', height: 640,
  },
  'job-narrow': { page: ['#/jobs/catalogue', 'Retry-After'], width: 320, height: 700 },
};

async function send(method, path, body) {
  const answer = await fetch(address + path, {
    method, body: typeof body === 'string' ? body : JSON.stringify(body),
    headers: { 'Content-Type': typeof body === 'string' ? 'text/plain' : 'application/json' },
  });
  ok(answer.ok, `${method} ${path}: ${await answer.text()}`);
}

const of = (paths, some = origins) => some.flatMap(origin => paths.map(path => origin + path));

async function fill() {
  await send('PUT', 'groups/crawlers', { delay: '250ms', 'max-attempts': 2 });
  await send('PUT', 'groups/crawlers/rules/city.example', { pause: true, note: 'maintenance' });
  const busy = of(['/busy/1', '/busy/2', '/busy/3'], origins.slice(0, 2));
  const jobs = { manuals: [...busy, ...of(['/p/399'])], catalogue: of(['/p/0', '/gone/1']) };
  for (const [job, urls] of Object.entries(jobs)) {
    await send('POST', 'jobs', { job, urls, close: true });
  }
  await send('POST', 'topics/new-url', of(['/p/398']).map(url => `${url} every=2h`).join('\n'));
}

let order = 4711;
const publish = number => send('POST', 'topics/orders', Array.from({ length: number }, () =>
  `https://shop.example/orders/${order += 1} state=paid items=${order % 4 + 1}`).join('\n'));

await main(async browser => {
  const tab = await openTab(browser, address);
  const { page } = tab;
  await fill();
  await publish(20);
  let publishing = Promise.resolve();
  const timer = setInterval(() => {
    const second = Date.now() / 1000;
    const number = 12 + 6 * Math.sin(second / 17) + 3 * Math.sin(second / 5);
    publishing = publishing.then(() => publish(Math.round(number / 2)));
  }, 500).unref();
  if (IS_UPDATE) {
    await page.waitForTimeout(CRAWL_MS);
  }
  for (const [name, picture] of Object.entries(PICTURES)) {
    const { page: shown, part, colorScheme = 'light', width = 1280, height = 740 } = picture;
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height });
    await show(tab, shown);
    await outlines.expect(tab, name);
    const path = `${repository}/docs/pictures/${name}.png`;
    if (IS_UPDATE) {
      await page.evaluate(() => document.activeElement.blur());
      await (part ? page.locator('section', { hasText: part }) : page).screenshot({ path });
    }
    const { size } = statSync(path);
    ok(size < BYTES_MAX, `${path} has ${size} bytes`);
  }
  clearInterval(timer);
  await publishing;
  outlines.save();
  return null;
});
