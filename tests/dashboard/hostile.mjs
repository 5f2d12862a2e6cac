// Contents that peers wrote are text: no markup, no script, no link but http(s), nothing invisible.
// usage: hostile.mjs ADDRESS WORD SHOWN: a word, and how the pages show it

import { ok, strictEqual as same } from 'node:assert/strict';
import { main, openTab, until } from './browser.mjs';
import { show } from './pages.mjs';

const [address, word, shown] = process.argv.slice(2);
const encoded = encodeURIComponent(word);

// Pages with the word as data, and pages whose address has it. The broker encodes URLs of pages.
const PAGES = [
  '#/topics/harvest', '#/topics/dead-letter', '#/dead', '#/crawlers', '#/groups/crawlers',
  ['#/groups/crawlers/hosts/a.example', '?%3Cimg'], ['#/schedules', '?%3Cimg'], '#/jobs/probe',
  '#/groups/tenants', `#/groups/tenants/hosts/${encoded}`, `#/topics/${encoded}`,
  `#/groups/${encoded}`, `#/groups/crawlers/hosts/${encoded}`, `#/jobs/${encoded}`,
].map(page => (Array.isArray(page) ? page : [page, shown]));

// is_invisible of the protocol, without the line feeds of the page itself, and lone surrogates.
const INVISIBLE = /[\0-\x09\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]|\p{Cs}/u;

// What is wrong with the document as it is now.
const inspect = page => page.evaluate(() => {
  const links = [...document.querySelectorAll('a')];
  const strange = [
    // Elements that only a peer could have brought.
    ...document.body.querySelectorAll('img, script, iframe, object, svg, style, base'),
    ...[...document.querySelectorAll('*')].filter(each =>
      each.getAttributeNames().some(name => name.startsWith('on') || name === 'srcdoc')),
    ...links.filter(each => !/^(https?:\/\/|#)/.test(each.getAttribute('href'))),
    ...links.filter(each => each.origin !== location.origin && each.rel !== 'noreferrer noopener'),
  ];
  return {
    strange: strange.map(each => each.outerHTML).join('\n'),
    text: document.title + document.body.textContent,
    width: document.scrollingElement.scrollWidth,
  };
});

await main(async browser => {
  const tab = await openTab(browser, address, {
    viewport: { width: 320, height: 900 }, expected: [/status of 40[04]/],
  });
  const { page } = tab;
  const check = async where => {
    const { strange, text, width } = await inspect(page);
    same(strange, '', where);
    same(width, 320, `${where} is ${width} px wide`);
    const hidden = INVISIBLE.exec(text);
    ok(!hidden, `${where}: U+${hidden?.[0].codePointAt(0).toString(16)}`);
  };
  for (const each of PAGES) {
    await show(tab, each);
    await check(each[0]);
  }

  // Lists that are opened, and single events.
  await show(tab, ['#/jobs/probe', 'Pages that failed']);
  await page.locator('summary').click();
  await page.getByRole('table', { name: 'Failed:' }).getByText(shown).first().waitFor();
  await check('failures');
  const dialog = page.getByRole('dialog');
  await show(tab, ['#/results', shown]);
  const results = page.getByRole('button', { name: 'Open result' });
  // Four events of the test with a URL, and the one of the task that failed.
  await until('five results', async () => await results.count() === 5);
  for (const result of await results.all()) {
    await result.click();
    await dialog.getByRole('button', { name: 'Fetch again now' }).waitFor();
    await check(await dialog.getByRole('heading', { level: 2 }).textContent());
    await dialog.getByRole('button', { name: 'Close' }).click();
  }
  await show(tab, ['#/topics/harvest', shown]);
  const events = page.getByRole('button', { name: 'Open event' });
  await until('seven events', async () => await events.count() === 7);
  const found = [];
  for (const event of await events.all()) {
    await event.click();
    await check(await dialog.getByRole('heading', { level: 2 }).textContent());
    found.push({
      attributes: await dialog.getByRole('row').count(),
      text: await dialog.locator('pre').first().textContent(),
    });
    await dialog.getByRole('button', { name: 'Close' }).click();
  }
  return found;
});
