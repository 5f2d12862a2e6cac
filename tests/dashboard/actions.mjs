// Actions of an operator, by the buttons and dialogs of the pages. Returns what the page said.
// usage: actions.mjs ADDRESS OPERATOR

import { main, openTab, until } from './browser.mjs';
import { pages, show } from './pages.mjs';
import { strictEqual as same } from 'node:assert/strict';

const [address, token] = process.argv.slice(2);

await main(async browser => {
  const expected = [/net::ERR_FAILED/];
  const tab = await openTab(browser, `${address}#token=${token}`, { expected });
  const { page } = tab;
  const press = name => page.locator('main').getByRole('button', { name, exact: true }).click();
  const dialog = page.getByRole('dialog');
  const confirm = name => dialog.getByRole('button', { name, exact: true }).click();
  // Said in the status line; the line of the action before is closed.
  const said = async () => {
    const line = page.locator('#said-text');
    const text = await until('a sentence', () => line.textContent());
    await page.getByRole('button', { name: 'Close' }).click();
    return text;
  };
  const all = {};

  await show(tab, pages.group);
  await press('Pause');
  all.pause = await said();
  await page.getByText('paused: it releases no task').waitFor();
  // The page that is shown now has read of the pause in the metrics, which say later than the group
  // that it is over.
  await show(tab, ['#/groups', 'paused: it releases no task']);
  await show(tab, ['#/groups/crawlers', 'a status that may change later']);
  await press('Resume');
  all.resume = await said();
  same(await page.getByText('paused: it releases no task').count(), 0);

  await press('Change…');
  await dialog.getByLabel('Attempts').fill('4');
  await confirm('Change');
  all.set = await said();

  await show(tab, pages.dead);
  for (const number of [0, 2, 4]) {
    await page.getByRole('checkbox', { name: `/broken/${number}` }).check();
  }
  await press('Retry those chosen…');
  all.asked = await dialog.locator('p').first().textContent();
  // The first one of the requests arrives.
  let sent = 0;
  const failLater = route => ((sent += 1) === 1 ? route.continue() : route.abort());
  await page.route('**/retry?*', failLater);
  await confirm('Yes, retry');
  all.partly = await said();
  await page.unroute('**/retry?*', failLater);
  await until('four dead letters', async () =>
    await page.getByRole('checkbox', { name: '/broken/' }).count() === 4);
  await press('Retry those chosen…');
  await confirm('Yes, retry');
  all.retry = await said();
  await until('two dead letters', async () =>
    await page.getByRole('checkbox', { name: '/broken/' }).count() === 2);

  await show(tab, ['#/jobs/almanac', 'almanac']);
  await press('Change…');
  await dialog.getByLabel('No links that match').fill('/p/3\n/p/4');
  await confirm('Preview');
  all.preview = await dialog.getByText('would be dropped').textContent();
  all.urls = await dialog.getByRole('listitem').allTextContents();
  await confirm('Change the job');
  all.change = await said();

  await press('Priorities…');
  await dialog.getByLabel('URLs that match').fill('/p/2,/p/4');
  await dialog.getByLabel('Priority').fill('7');
  await confirm('Change the priority');
  all.bump = await said();

  await show(tab, pages.host);
  await press('Drop what waits…');
  all.before = await dialog.locator('p').first().textContent();
  await confirm('Drop them');
  all.drop = await said();
  await press('Drop what waits…');
  all.nothing = await said();
  await press('Block…');
  await dialog.getByLabel('Note').fill('complaint 7');
  await confirm('Block');
  all.block = await said();
  await page.getByText('A rule blocks it: nothing is requested, and nothing waits.').waitFor();
  await page.getByText('Rule: blocked, note: complaint 7').waitFor();

  // Reads fail from the last click of each of these actions on.
  const failReads = route =>
    (route.request().method() === 'GET' ? route.abort() : route.continue());
  all.unread = [];
  const unread = async (button, last, prepare) => {
    await press(button);
    await prepare?.();
    await page.route('**/*', failReads);
    await confirm(last);
    all.unread.push(await said());
    await page.unroute('**/*', failReads);
  };
  await show(tab, ['#/dead', '/broken/1']);
  await page.getByRole('checkbox', { name: '/broken/1' }).check();
  await unread('Drop those chosen…', 'Yes, drop');
  await show(tab, pages.schedules);
  await unread(/^End…/, 'End it');
  await show(tab, ['#/groups/crawlers', 'asked-by-its-owner']);
  await unread('End… the rule of 127.1.0.2', 'End the rule');
  await unread('Add a rule…', 'Set the rule', () => dialog.getByLabel('Host').fill('127.1.0.3'));
  await show(tab, ['#/groups/crawlers/hosts/127.1.0.2', 'Nothing waits']);
  await unread('Pause…', 'Pause');
  await show(tab, pages.topic);
  await unread('Settings…', 'Save', () => dialog.getByLabel('Keep events for').fill('9d'));
  await show(tab, pages.groups);
  await unread('Make a group…', 'Make', () => dialog.getByLabel('Name').fill('archive'));
  return all;
});
