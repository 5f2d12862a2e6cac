// The broker is away and comes back: killed, silent, and while the tab sleeps.
// usage: away.mjs ADDRESS

import { main, openTab, tell, until } from './browser.mjs';
import { show } from './pages.mjs';

const [address] = process.argv.slice(2);

await main(async browser => {
  const expected = [/net::ERR_\w+/];
  const tab = await openTab(browser, address, { expected });
  const { page, context } = tab;
  const banner = page.locator('#away');
  const isAway = () => banner.getByText(/^Not connected since \d\d:\d\d:\d\d\./).waitFor();
  // The page is not loaded again: this mark stays.
  await page.evaluate(() => { globalThis.mark = 1; });
  // A broker that was killed leaves out some numbers.
  let figures = 'from 1 to 1';
  const isBack = async event => {
    await page.getByRole('cell', { name: event, exact: true }).waitFor();
    const now = page.getByText(/^from 1 to [\d,]+$/);
    await until('new figures', async () => await now.textContent() !== figures);
    figures = await now.textContent();
    await page.locator('#away:empty').waitFor({ state: 'attached' });
    if (await page.evaluate(() => globalThis.mark) !== 1) {
      throw new Error('the page was loaded again');
    }
  };

  await show(tab, ['#/topics/harvest', 'from 1 to 1']);
  await tell('kill the broker');
  await isAway();
  await tell('start the broker and publish event-2');
  await isBack('event-2');

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
  return null;
});
