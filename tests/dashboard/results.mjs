// The page of results: what it lists and finds, as it comes; a result with the earlier ones of its
// URL, fetched again. Returns what it showed.
// usage: results.mjs ADDRESS OPERATOR WATCHER

import { ok, strictEqual as same } from 'node:assert/strict';
import { main, openTab, tell, until } from './browser.mjs';
import { pages, show } from './pages.mjs';

const [address, token, watcher] = process.argv.slice(2);

await main(async browser => {
  const tab = await openTab(browser, `${address}#token=${token}`, {
    expected: [/status of 400/],
  });
  const { page } = tab;
  const body = page.locator('main tbody');
  // URL, outcome, status and changed of each row.
  const rows = () => body.locator('tr').evaluateAll(lines =>
    lines.map(({ cells }) => [1, 2, 3, 4].map(at => cells[at].textContent)));
  const button = page.getByRole('button', { name: 'Search' });
  const search = async (filters, number) => {
    for (const label of ['Job', 'Host', 'Text in the URL']) {
      await page.getByLabel(label, { exact: true }).fill(filters[label] ?? '');
    }
    for (const label of ['Outcome', 'Changed']) {
      await page.getByLabel(label, { exact: true }).selectOption(filters[label] ?? '');
    }
    await button.click();
    await until(`${number} results`, async () => (await rows()).length === number);
    return rows();
  };
  const more = number =>
    page.getByRole('button', { name: `Show ${number} new result${number === 1 ? '' : 's'}` });
  // Holds the answers to requests that match, until the function that it returns is called.
  const hold = async pattern => {
    let release;
    const released = new Promise(resolve => { release = resolve; });
    await page.route(pattern, async route => {
      await released;
      await route.continue();
    });
    return release;
  };
  const alert = page.getByRole('search').getByRole('alert');
  const status = page.locator('main').getByRole('status');
  // The list of all results is still followed, and the page has no complaint.
  const isFollowed = async () => {
    for (let times = 0; times < 2; times += 1) {
      await page.waitForResponse(response =>
        /page-ready\?from=\d+&limit=10000&wait=0$/.test(response.url()));
    }
    same(await page.locator('#away').textContent(), '');
  };
  const all = {};

  // A search while the first list is read takes its place.
  let release = await hold(/\/topics\/page-ready\/state$/);
  await page.evaluate(() => { location.hash = '#/results'; });
  await status.getByText('Searching…').waitFor();
  await button.click();
  release();
  await show(tab, pages.results);
  await status.getByText(/^\d+ results$/).waitFor();
  all.listed = await rows();
  all.failed = await search({ Outcome: 'failed' }, 5);
  ok(page.url().endsWith('#/results?outcome=failed'), page.url());
  await page.reload();
  await until('the same list', async () => (await rows()).length === 5);
  const of = pattern => all.listed.filter(row => pattern.test(row.join(' '))).length;
  await search({ Job: 'gazette', Changed: 'new' }, of(/ new$/) - 1);
  await search({ Host: '127.1.0.2' }, of(/127\.1\.0\.2/));
  await search({ 'Text in the URL': 'BROKEN/4' }, 1);

  // The list stays while another search works, and after one that is refused.
  await search({}, all.listed.length);
  release = await hold(/outcome%3Dtrap/);
  await page.getByLabel('Outcome').selectOption('trap');
  await button.dblclick();
  await isFollowed();
  same((await rows()).length, all.listed.length);
  release();
  await status.getByText('No result.').waitFor();
  same(await alert.count(), 0);
  await search({}, all.listed.length);
  await page.getByLabel('Job', { exact: true }).fill('a b');
  await button.click();
  await alert.getByText('in-job').waitFor();
  ok(page.url().endsWith('#/results'), page.url());
  await isFollowed();
  same((await rows()).length, all.listed.length);

  // A filter of the address that is refused can be changed.
  await page.evaluate(() => { location.hash = '#/results?job=a%20b'; });
  await alert.getByText('in-job').waitFor();

  // New results come by themselves, but not while the reader is at a row.
  const before = await search({}, all.listed.length);
  await tell('announce a page');
  await until('a new row', async () => (await rows()).length === before.length + 1);
  all.came = (await rows())[0];
  await body.getByRole('button').nth(2).focus();
  await tell('announce it again');
  await more(1).waitFor();
  same((await rows()).length, before.length + 1);
  ok(await body.getByRole('button').nth(2).evaluate(node => node === document.activeElement));
  await more(1).click();
  await until('the newer row', async () => (await rows()).length === before.length + 2);
  await more(1).waitFor({ state: 'hidden' });

  const dialog = page.getByRole('dialog');
  await search({ 'Text in the URL': '/broken/4' }, 1);
  await body.getByRole('button').dblclick();
  await dialog.getByText('No earlier result of this URL is kept.').waitFor();
  all.record = await dialog.getByRole('table', { name: 'Attributes' }).getByRole('row')
    .evaluateAll(lines => lines.map(({ cells }) => [...cells].map(cell => cell.textContent)));
  await dialog.getByRole('button', { name: 'Fetch again now' }).click();
  all.said = await until('a sentence', () => page.locator('#said-text').textContent());
  await more(1).click();
  await until('both results', async () => (await rows()).length === 2);
  await body.getByRole('button').first().click();
  const earlier = dialog.getByRole('table', { name: 'Earlier results of this URL' });
  await earlier.getByRole('cell', { name: 'failed' }).waitFor();
  await dialog.getByRole('link', { name: '127.1.0.2', exact: true }).click();
  await page.getByText('host of the group crawlers').waitFor();

  // The same limit as on the page of results.
  await show(tab, ['#/topics/page-ready', '1 GiB']);
  await page.getByText('-20: the newest 20;').waitFor();

  const other = await openTab(browser, `${address}#token=${watcher}`);
  await show(other, ['#/results', 'The list of results needs the permission sub:page-ready.']);
  same(await other.page.locator('main tbody').count(), 0);
  return all;
});
