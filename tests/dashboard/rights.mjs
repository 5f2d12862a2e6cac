// Who may see and do what, and where the token goes.
// usage: rights.mjs ADDRESS OPERATOR WATCHER READER NAMES

import { main, openTab, tell, until, untilEqual } from './browser.mjs';
import { pages, show } from './pages.mjs';
import { strictEqual as same, ok } from 'node:assert/strict';

const [address, operator, watcher, reader, names] = process.argv.slice(2);

// Requests that change something or read events.
const FORBIDDEN = [
  ['POST', 'groups/crawlers/pause'],
  ['POST', 'groups/crawlers/purge'],
  ['POST', 'groups/crawlers/bump?prio=1'],
  ['POST', 'groups/crawlers/dead/retry'],
  ['POST', 'groups/crawlers/dead/drop'],
  ['PUT', 'groups/crawlers', '{"parallel":4}'],
  ['PUT', 'groups/crawlers/rules/127.1.0.1', '{"block":true}'],
  ['DELETE', 'groups/crawlers/rules/127.1.0.2'],
  ['DELETE', 'groups/crawlers'],
  ['PUT', 'topics/harvest', '{"sync":"memory"}'],
  ['DELETE', 'topics/harvest'],
  ['POST', 'topics/harvest', '{"events":["forged"]}'],
  ['GET', 'topics/harvest?from=first&wait=0'],
  ['POST', 'jobs', '{"job":"forged"}'],
  ['PATCH', 'jobs/almanac', '{"max-pages":1}'],
  ['POST', 'jobs/almanac/urls', '{"urls":["http://forged.example/"]}'],
  ['POST', 'jobs/almanac/cancel'],
  ['POST', 'jobs/almanac/retry'],
  ['DELETE', 'jobs/gazette'],
];

const shown = page => page.evaluate(() => document.documentElement.outerHTML);

async function expectLogin({ page }, reason) {
  await page.getByRole('heading', { name: 'Log in to Tidings' }).waitFor();
  if (reason) {
    await page.getByText(reason).waitFor();
  }
  const html = await shown(page);
  for (const name of names.split(',')) {
    ok(!html.includes(name), `${name} is on the screen`);
  }
  same(await page.evaluate(() => sessionStorage.length), 0);
}

async function login({ page }, token) {
  await page.getByLabel('Token').fill(token);
  await page.getByRole('button', { name: 'Log in' }).click();
}

async function expectTokenOnlyInTab(tab, token) {
  const { page, context } = tab;
  const stored = JSON.stringify(await context.storageState({ indexedDB: true }));
  ok(!stored.includes(token), stored);
  same(await page.evaluate(async () => (await caches.keys()).length), 0);
  // A fragment is not sent.
  const sent = tab.requests.map(each => each.url().split('#')[0]);
  for (const url of [...sent, ...await tab.history()]) {
    ok(!url.includes(token), url);
  }
  ok(!(await shown(page)).includes(token), 'the token is in the page');
  const [kept] = await page.evaluate(() => Object.values(sessionStorage));
  same(kept, token);
  const other = await context.newPage();
  await other.goto(address);
  await other.getByRole('heading', { name: 'Log in to Tidings' }).waitFor();
  await other.close();
}

// Clicks all buttons of the page, and returns the names of those that are off.
const clickAll = ({ page }) => page.evaluate(() => {
  const buttons = [...document.querySelectorAll('main button')];
  const disabled = buttons.filter(each => each.getAttribute('aria-disabled') === 'true');
  for (const each of disabled) {
    const why = document.getElementById(each.getAttribute('aria-describedby'));
    if (!/needs the permission \S+/.test(why.textContent)) {
      throw new Error(`${each.textContent} does not say which permission it needs`);
    }
  }
  buttons.forEach(each => each.click());
  document.querySelectorAll('dialog').forEach(each => each.close());
  return disabled.map(each => each.textContent);
});

async function expectNoAction(tab) {
  let off = 0;
  for (const place of Object.values(pages)) {
    await show(tab, place);
    off += (await clickAll(tab)).length;
  }
  ok(off >= 15, `${off} buttons are off`);
  await show(tab, ['#/jobs/almanac', 'Resume']);
  await untilEqual('what is off for a job that runs', () => clickAll(tab),
    ['Change…', 'Priorities…', 'Resume', 'Cancel', 'Download…']);
  const changed = tab.requests.filter(each => each.method() !== 'GET').map(each => each.url());
  same(changed.join(), '');
}

const byHand = ({ page }, token) => page.evaluate(([requests, token]) =>
  Promise.all(requests.map(async ([method, path, body]) => {
    const headers = { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' };
    return `${method} ${path} ${(await fetch(path, { method, body, headers })).status}`;
  })), [FORBIDDEN, token]);

await main(async browser => {
  const stranger = await openTab(browser, address, { expected: [/status of 40[13]/] });
  await expectLogin(stranger);
  await login(stranger, 'tdg_wrong');
  await expectLogin(stranger, 'The broker does not know this token.');
  await login(stranger, reader);
  await expectLogin(stranger, 'does not have the permission monitor.');
  await login(stranger, operator);
  await show(stranger, ['#/system', '"audit.log"']);
  await show(stranger, pages.dead);
  await expectTokenOnlyInTab(stranger, operator);
  await stranger.page.getByRole('button', { name: 'Log out' }).click();
  await expectLogin(stranger);

  const tab = await openTab(browser, `${address}#token=${watcher}`, {
    expected: [/status of 40[13]/],
  });
  await tab.page.getByRole('heading', { name: 'Overview' }).waitFor();
  same(tab.page.url(), address);
  await tab.page.reload();
  await show(tab, pages.jobs);
  await expectTokenOnlyInTab(tab, watcher);
  await expectNoAction(tab);
  const answers = await byHand(tab, watcher);
  same(answers.filter(text => !text.endsWith(' 403')).join(), '');

  await show(tab, ['#/system', 'A client that has logged in and has the permission admin']);
  same(await tab.page.getByText('audit.log').count(), 0);
  await show(tab, pages.topics);
  await tell('revoke the watcher');
  await expectLogin(tab, 'The broker does not accept this token any more.');
});
