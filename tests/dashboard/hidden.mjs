// Every page in a tab of its own, of which only the one in front is visible: the others keep no
// connection, and each has the newest data once it is in front again.
// usage: hidden.mjs ADDRESS OPERATOR

import { strictEqual as same } from 'node:assert/strict';
import { launchWithHiddenTabs, main, tell } from './browser.mjs';
import { pages, show } from './pages.mjs';

const [address, token] = process.argv.slice(2);

// What came while the tabs were hidden, as the pages show it.
const NEWS = {
  overview: 'paused: it releases no task',
  topics: 'sequel',
  topic: 'from 1 to 4',
  groups: 'paused: it releases no task',
  group: 'paused: it releases no task',
  jobs: 'sequel',
  dead: '4 dead letters in crawlers',
  schedules: '/hourly',
  results: '/hourly',
};

await main(async browser => {
  const [context] = browser.contexts();
  const [empty] = context.pages();
  const tabs = [];
  for (const [name, place] of Object.entries(pages)) {
    const page = await context.newPage();
    await page.bringToFront();
    await page.goto(`${address}#token=${token}`);
    await show({ page }, place);
    await page.evaluate(() => { globalThis.mark = 1; });
    tabs.push({ name, page });
  }
  await empty.bringToFront();
  for (const { name, page } of tabs) {
    same(await page.evaluate(() => document.visibilityState), 'hidden', name);
  }
  await tell('wait for the end of all connections');
  await tell('change what the pages show');
  for (const { name, page } of tabs) {
    await page.bringToFront();
    if (NEWS[name]) {
      await page.locator('main').getByText(NEWS[name]).filter({ visible: true }).first().waitFor();
    }
    same(await page.evaluate(() => globalThis.mark), 1, `${name} was loaded again`);
  }
  await empty.bringToFront();
  await tell('wait for their end again');
  return { hidden: tabs.length };
}, launchWithHiddenTabs);
