// The broker is away and comes back: killed, silent, while the tab sleeps, and while new requests
// fail but the stream stays open.
// usage: away.mjs ADDRESS

import { notStrictEqual as notSame, strictEqual as same } from 'node:assert/strict';
import { main, openTab, tell, until } from './browser.mjs';
import { show } from './pages.mjs';

const [address] = process.argv.slice(2);

// Whether the last series of a plot can be seen.
const isDrawn = (page, title) => page.locator('figure', { hasText: title }).evaluate(figure => {
  const canvas = figure.querySelector('canvas');
  const line = [...figure.querySelectorAll('.legend i')].at(-1);
  const [red, green, blue] = getComputedStyle(line).color.match(/\d+/g).map(Number);
  const { data = [] } = canvas?.getContext('2d').getImageData(0, 0, canvas.width, canvas.height) ?? {};
  return data.some((value, at) =>
    at % 4 === 0 && value === red && data[at + 1] === green && data[at + 2] === blue);
});

await main(async browser => {
  // Chromium's advice comes when the plots are looked at often, as on a busy machine.
  const expected = [/net::ERR_\w+/, /willReadFrequently/];
  const tab = await openTab(browser, address, { expected });
  const { page, context } = tab;
  const banner = page.locator('#away');
  const isAway = () => banner.getByText(
    /^The broker does not answer\. The figures are from \d\d:\d\d:\d\d\.$/).waitFor();
  const isHere = () => page.locator('#away:empty').waitFor({ state: 'attached' });
  // The page is not loaded again: this mark stays.
  await page.evaluate(() => { globalThis.mark = 1; });
  // A broker that was killed leaves out some numbers.
  let figures = 'from 1 to 1';
  const isBack = async event => {
    await page.getByRole('cell', { name: event, exact: true }).waitFor();
    const now = page.getByText(/^from 1 to [\d,]+$/);
    await until('new figures', async () => await now.textContent() !== figures);
    figures = await now.textContent();
    await isHere();
    if (await page.evaluate(() => globalThis.mark) !== 1) {
      throw new Error('the page was loaded again');
    }
  };

  await show(tab, ['#/topics/harvest', 'from 1 to 1']);
  // Tabs on the overview: one goes to a page of which it has no code yet, one to a page that it has.
  const others = [];
  for (const before of [[], [['#/system', 'Version']]]) {
    const other = await openTab(browser, address, { expected });
    for (const each of [...before, ['#/', 'All is well.']]) {
      await show(other, each);
    }
    others.push(other.page);
  }
  const colour = at => at.locator('.verdict .mark').evaluate(mark =>
    getComputedStyle(mark, '::before').color);
  const green = await colour(others[0]);
  await tell('kill the broker');
  await isAway();
  for (const [index, hash] of ['#/topics', '#/system'].entries()) {
    const at = others[index];
    await at.locator('#away').getByText('The broker does not answer.').waitFor();
    notSame(await colour(at), green, 'the verdict is of a broker that has gone');
    // The line stays, whatever the page says.
    same(await at.evaluate(to => {
      location.hash = to;
      return new Promise(resolve => addEventListener('hashchange', () =>
        resolve(document.getElementById('away').textContent)));
    }, hash), 'The broker does not answer.');
    await at.locator('main h1').getByText(hash === '#/topics' ? 'Topics' : 'System').waitFor();
    await at.locator('main').getByText(/Connecting|does not answer/).waitFor();
  }
  await tell('start the broker and publish event-2');
  await isBack('event-2');
  for (const [index, sign] of ['harvest', 'Version'].entries()) {
    await others[index].locator('main').getByText(sign).filter({ visible: true }).first().waitFor();
    await others[index].locator('#away:empty').waitFor({ state: 'attached' });
    await others[index].context().close();
  }

  // As behind a cut network: the connections stay open.
  await tell('stop the broker');
  await isAway();
  await tell('continue the broker and publish event-3');
  await isBack('event-3');

  const cdp = await context.newCDPSession(page);
  await cdp.send('Page.setWebLifecycleState', { state: 'frozen' });
  await tell('restart the broker and publish event-4');
  await cdp.send('Page.setWebLifecycleState', { state: 'active' });
  await isBack('event-4');

  // Until the broker has answered, a page does not say that a list is empty.
  let answer;
  const answered = new Promise(resolve => { answer = resolve; });
  await page.route('**/groups', async route => {
    await answered;
    await route.continue();
  });
  await show(tab, ['#/groups', 'Make a group']);
  same(await page.getByText('No groups yet').filter({ visible: true }).count(), 0);
  answer();
  await show(tab, ['#/groups', 'No groups yet']);
  await page.unroute('**/groups');
  same(await page.getByText('Ready since').filter({ visible: true }).count(), 0);
  await show(tab, ['#/', 'Running for']);
  // Without one before or after it, no line leads to it.
  await until('the point of a single commit', () => isDrawn(page, 'Time of a commit to the disk'));
  await context.setOffline(true);
  await isAway();
  await context.setOffline(false);
  await isHere();
  await page.route('**/metrics', route => route.abort());
  await isAway();
  // What a page could not read is no fault of the next one.
  await show(tab, ['#/jobs', 'No jobs yet']);
  await isHere();
  return null;
});
