// The line of rates beside each topic, compared with what the broker answers.
// usage: topics.mjs ADDRESS

import { ok, strictEqual as same } from 'node:assert/strict';
import { main, openTab, tell, until } from './browser.mjs';
import { show } from './pages.mjs';

const [address] = process.argv.slice(2);
const STEP = 5;

// The highest mean of the seconds of a step, in the figures of the broker.
async function highest({ page }, topic) {
  const { columns, values } = await (await page.request.get(`${address}history?of=topics`)).json();
  const rates = values[columns.indexOf(topic)];
  const steps = new Map();
  values[0].forEach((time, index) => {
    const step = Math.floor(time / STEP);
    steps.set(step, [...steps.get(step) ?? [], rates[index]].filter(rate => rate !== null));
  });
  return Math.max(...[...steps.values()].filter(all => all.length > 0).map(all =>
    all.reduce((sum, rate) => sum + rate, 0) / all.length));
}

await main(async browser => {
  const tab = await openTab(browser, address);
  await show(tab, ['#/topics', 'orders']);
  await tell('publish');
  const line = topic => tab.page.getByRole('row').filter({ has: tab.page.getByRole('link', {
    name: topic, exact: true }) }).getByRole('img');
  const label = /^in the last 5 minutes at most ([\d.,]+)\/s$/;
  await until('the line of the events', async () => {
    const text = await line('orders').getAttribute('aria-label');
    const shown = Number(label.exec(text)[1].replace(',', ''));
    const wanted = await highest(tab, 'orders');
    return shown > 0 && Math.abs(shown - wanted) <= wanted / 20;
  });
  const heights = async topic => [...(await line(topic).locator('path').getAttribute('d'))
    .matchAll(/[ML][\d.]+ ([\d.]+)/g)].map(([, y]) => Number(y));
  // From the bottom to the top, as soon as a step without events is shown beside the one with them.
  await until('a line from the bottom to the top', async () => {
    const busy = await heights('orders');
    return Math.min(...busy) === 1 && Math.max(...busy) === 17;
  });
  // The other topic has had no event.
  const quiet = await heights('new-url');
  ok(quiet.length > 0);
  same(quiet.filter(y => y !== 17).length, 0);
  return null;
});
